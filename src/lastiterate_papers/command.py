"""The command ``lastiterate papers``: list items, make one, make all; print published values next
to ours."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

import lastiterate_papers
from lastiterate import interrupts
from lastiterate.errors import InputError, NotCertified
from lastiterate_papers import files
from lastiterate_papers.finished_cells import check_writable, kept_any
from lastiterate_papers.item import Item, Progress, Work, by_name, shown

COLOURS = {
    "matches": "green",
    "restored": "green",
    "differs": "yellow",
    "not published": "dim",
    "data not at hand": "dim",
}
MOST_ROWS = 18


def papers(
    console: Console,
    name: str | None,
    work: Work,
    chosen: Mapping[str, float],
    *,
    out: Path | None,
    every: bool,
    as_json: bool,
) -> bool:
    """Whether everything that was asked for was made. ``name``: of an item; ``chosen``: settings of
    its own."""
    if every and name is not None:
        raise InputError("--all", "cannot be combined with an item", name, "leave one of them out")
    if every and out is None:
        raise InputError("--all", "needs a folder for its files", None, "give one with --out")
    if work.data_dir is not None and not work.data_dir.is_dir():
        raise InputError(
            "data_dir",
            "must be an existing folder",
            str(work.data_dir),
            "name the one that holds the files",
        )
    if work.seed < 0:
        raise InputError("seed", "must be an integer >= 0", work.seed, "choose another one")
    if chosen and name is None:
        raise InputError(
            "--set", "needs an item whose setting it is", next(iter(chosen)), "name the item"
        )
    items = lastiterate_papers.ITEMS
    if every and out is not None:
        return _every(console, items, work, out, as_json)
    if name is not None:
        item = by_name(items, name)
        found = _one(item, item.work(work, chosen), out, "")
        print(json.dumps(found, indent=1)) if as_json else _show(console, found, out)
        return True
    listed = [_listed(each, work.data_dir) for each in items]
    print(json.dumps(listed, indent=1)) if as_json else _list(console, listed)
    return True


def _listed(item: Item, data_dir: Path | None) -> dict[str, Any]:
    return {
        "item": item.name,
        "status": item.status_with(data_dir),
        "title": item.title,
        "paper": item.paper,
        "missing": list(item.missing(data_dir)),
        "settings": {name: each.default for name, each in item.settings.items()},
    }


def _list(console: Console, listed: list[dict[str, Any]]) -> None:
    """All items, under the paper they are of, and which of them need which files that are not
    there."""
    shown, needed = Table(), dict[str, list[str]]()
    for name in ("item", "status", "what"):
        shown.add_column(name, no_wrap=name != "what")
    for place, row in enumerate(listed):
        if place == 0 or listed[place - 1]["paper"] != row["paper"]:
            shown.add_section()
            shown.add_row("", "", f"[bold]{escape(row['paper'])}[/bold]")
        shown.add_row(
            row["item"], f"[{COLOURS[row['status']]}]{row['status']}[/]", escape(row["title"])
        )
        if row["missing"]:
            needed.setdefault(", ".join(row["missing"]), []).append(row["item"])
    console.print(shown)
    for missing, names in needed.items():
        console.print(
            f"- {', '.join(names)}: --data-dir names a folder with {missing}",
            style="dim",
            highlight=False,
            markup=False,
            soft_wrap=True,
        )


def _one(item: Item, work: Work, out: Path | None, place: str) -> dict[str, Any]:
    """Run an item and write its files; where it fails, neither, and its finished cells stay for the
    next run."""
    try:
        with _ticking(f"{place}{item.name}") as tick:
            result, cost = files.made(item, replace(work, progress=tick), out)
            if out is not None:
                files.write(out, item, work, result, cost)
    except KeyboardInterrupt:
        if out is not None and kept_any(out, item.name):
            interrupts.say(
                f"finished pieces of {item.name} are kept in {out}: the same command resumes there"
            )
        raise
    return files.as_json(item, work, result, cost)


def _every(console: Console, items: tuple[Item, ...], work: Work, out: Path, as_json: bool) -> bool:
    """All items one after another, the finished ones kept; whether none of them failed."""
    check_writable(out)
    summary = list[dict[str, Any]]()
    for number, item in enumerate(items, 1):
        row: dict[str, Any] = {
            "item": item.name,
            "title": item.title,
            "paper": item.paper,
            "missing": list(item.missing(work.data_dir)),
            "seconds": 0.0,
        }
        summary.append(row)
        how = f"needs {', '.join(row['missing'])} in --data-dir"
        try:
            if row["missing"]:
                row["status"] = "data not at hand"
            else:
                own = item.work(work, {})
                kept = files.kept(out, item, own)
                done = _one(item, own, out, f"{number} of {len(items)}: ") if kept is None else kept
                row |= {
                    "status": done["status"],
                    "seconds": done["seconds"],
                    "kept": kept is not None,
                }
                how = "kept" if row["kept"] else f"{row['seconds']:.1f} s"
        except (InputError, NotCertified) as error:
            if isinstance(error, InputError) and error.argument == "out":
                raise  # a full disk: no later item could be written
            row |= {"status": "failed", "error": str(error)}
            Console(stderr=True).print(
                f"[bold red]error:[/bold red] {escape(item.name)}: {escape(str(error))}",
                highlight=False,
                soft_wrap=True,
            )
            continue
        if not as_json:
            console.print(f"{item.name}: {row['status']} ({how})", highlight=False, soft_wrap=True)
    if as_json:
        print(json.dumps(summary, indent=1))
    else:
        console.print(
            f"{sum('kept' in row for row in summary)} of {len(items)} items, "
            f"{sum(row['seconds'] for row in summary):.0f} s of work; files in {out}",
            highlight=False,
            soft_wrap=True,
        )
    return not any("error" in row for row in summary)


def _show(console: Console, found: dict[str, Any], out: Path | None) -> None:
    """One item on the screen."""
    console.print(
        f"[bold]{found['item']}[/bold]: {escape(found['title'])} ({escape(found['paper'])})",
        highlight=False,
    )
    compared = any(row["published"] is not None for row in found["rows"])
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("", min_width=24)
    for name in ("published", "ours", "off by", "within", "") if compared else ("ours",):
        table.add_column(name, justify="right" if name else "left", no_wrap=True)
    for row in found["rows"][:MOST_ROWS]:
        alone = row["published"] is None
        relation = "" if alone or row["relation"] == "=" else row["relation"] + " "
        unit = row["unit"]
        verdict = {None: "", True: "agrees", False: "[yellow]differs[/yellow]"}[row["agrees"]]
        cells = (
            relation + shown(row["published"], unit, 6),
            shown(row["ours"], unit, 6),
            shown(row["difference"], unit, 2),
            "" if alone else shown(row["tolerance"], unit, 2),
            verdict,
        )
        table.add_row(escape(row["what"]), *(cells if compared else cells[1:2]))
    console.print(table)
    if len(found["rows"]) > MOST_ROWS:
        console.print(
            f"and {len(found['rows']) - MOST_ROWS} further rows: --json shows all", style="dim"
        )
    for note in (*([said] if (said := found.get("finding")) else ()), *found["notes"]):
        console.print(f"- {note}", style="dim", highlight=False, markup=False)
    where = "" if out is None else f"; {out / found['item']}.png and .json"
    console.print(
        f"status: [{COLOURS[found['status']]}]{found['status']}[/], {found['seconds']:.1f} "
        f"s{where}",
        highlight=False,
    )


@contextmanager
def _ticking(name: str) -> Iterator[Progress]:
    """A line on standard error that says what an item does."""
    with Console(stderr=True).status(escape(name)) as status:
        yield lambda text: status.update(f"{escape(name)}: {escape(text)}")

"""``lastiterate papers``: figures and tables, the published value beside ours."""

from __future__ import annotations

import json
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from lastiterate import interrupts
from lastiterate.cli.screen import Json, app, console, reports_errors
from lastiterate.errors import InputError, NotCertified

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lastiterate_papers.item import Item, Work

COLOURS = {"matches": "green", "differs": "yellow", "not published": "dim", "data not at hand": "dim"}
MOST_ROWS = 18


@app.command("papers")
@reports_errors
def papers_command(
    item: Annotated[str | None, typer.Argument(metavar="ITEM", help="its name; without one all are listed")] = None,
    out: Annotated[Path | None, typer.Option("--out", help="a folder for NAME.png and NAME.json")] = None,
    all_: Annotated[bool, typer.Option("--all", help="every item; finished ones in --out are kept")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="reduced sizes: all items in minutes")] = False,
    seed: Annotated[int, typer.Option("--seed", help="of everything that is drawn")] = 0,
    data_dir: Annotated[Path | None, typer.Option("--data-dir", help="real data; items that need them are listed "
                                                  "with the file names")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="a setting of the item's own")
                    ] = None,
    json_: Json = False,
) -> None:
    """Figures and tables of the papers: the published value beside ours, their difference and its tolerance.

    Without ITEM all are listed; with one it is made, as in: lastiterate papers chourasia-fig1 --out figs
    """
    from lastiterate_papers import ITEMS
    from lastiterate_papers.item import Work, by_name

    if all_ and item is not None:
        raise InputError("--all", "cannot be combined with an item", item, "leave one of them out")
    if all_ and out is None:
        raise InputError("--all", "needs a folder for its files", None, "give one with --out")
    if data_dir is not None and not data_dir.is_dir():
        raise InputError("data_dir", "must be an existing folder", str(data_dir), "name the one that holds the files")
    if seed < 0:
        raise InputError("seed", "must be a whole number >= 0", seed, "choose another one")
    chosen = _chosen(set_ or [])
    if chosen and item is None:
        raise InputError("--set", "needs an item whose setting it is", next(iter(chosen)),
                         "name the item")
    work = Work(quick, seed, data_dir)
    if all_ and out is not None:
        _every(ITEMS, work, out, json_)
    elif item is not None:
        named = by_name(ITEMS, item)
        found = _one(named, named.work(work, chosen), out, "")
        print(json.dumps(found, indent=1)) if json_ else _show(found, out)
    elif json_:
        print(json.dumps([_listed(each, data_dir) for each in ITEMS], indent=1))
    else:
        listed = [_listed(each, data_dir) for each in ITEMS]
        console.print(_table(listed))
        for line in _needed(listed):
            console.print(f"- {line}", style="dim", highlight=False, markup=False, soft_wrap=True)


def _chosen(words: list[str]) -> dict[str, float]:
    """NAME=VALUE, several in one word with commas or in several."""
    from lastiterate.cli.flags import number

    found: dict[str, float] = {}
    for part in ",".join(words).split(",") if words else []:
        name, separator, value = part.partition("=")
        if not separator:
            raise InputError("--set", "must be NAME=VALUE", part, "as in --set n=1000")
        found[name.strip()] = number("--set", value)
    return found


def _listed(item: Item, data_dir: Path | None) -> dict[str, Any]:
    return {"item": item.name, "status": item.status_with(data_dir), "title": item.title, "paper": item.paper,
            "missing": list(item.missing(data_dir)),
            "settings": {name: each.default for name, each in item.settings.items()}}


def _table(listed: list[dict[str, Any]]) -> Table:
    """All items, under the paper they are of; the names in them lead to ``lastiterate papers ITEM``."""
    shown = Table()
    for name in ("item", "status", "what"):
        shown.add_column(name, no_wrap=name != "what")
    for place, row in enumerate(listed):
        if place == 0 or listed[place - 1]["paper"] != row["paper"]:
            shown.add_section()
            shown.add_row("", "", f"[bold]{escape(row['paper'])}[/bold]")
        shown.add_row(row["item"], f"[{COLOURS[row['status']]}]{row['status']}[/]", escape(row["title"]))
    return shown


def _needed(listed: list[dict[str, Any]]) -> list[str]:
    """Which items need which files that are not there."""
    found: dict[tuple[str, ...], list[str]] = {}
    for row in listed:
        if row["missing"]:
            found.setdefault(tuple(row["missing"]), []).append(row["item"])
    return [f"{', '.join(names)}: --data-dir names a folder with {', '.join(missing)}"
            for missing, names in found.items()]


def _one(item: Item, work: Work, out: Path | None, place: str) -> dict[str, Any]:
    """Run an item and write its files; where it fails, neither, and its finished cells stay for the next run."""
    from dataclasses import replace

    from lastiterate_papers import files
    from lastiterate_papers.cells import kept_any

    try:
        with _ticking(f"{place}{item.name}") as tick:
            result, cost = files.made(item, replace(work, progress=tick), out)
            if out is not None:
                files.write(out, item, work, result, cost)
    except KeyboardInterrupt:
        if out is not None and kept_any(out, item.name):
            interrupts.say(f"finished pieces of {item.name} are kept in {out}: the same command goes on there")
        raise
    return files.as_json(item, work, result, cost)


def _every(items: tuple[Item, ...], work: Work, out: Path, json_: bool) -> None:
    """All items one after another, the finished ones kept; exit code 2 where one of them failed."""
    from lastiterate_papers import files
    from lastiterate_papers.cells import check_writable

    check_writable(out)
    summary = list[dict[str, Any]]()
    for number, item in enumerate(items, 1):
        row: dict[str, Any] = {"item": item.name, "title": item.title, "paper": item.paper,
                               "missing": list(item.missing(work.data_dir)), "seconds": 0.0}
        own = item.work(work, {})
        found = None if row["missing"] else files.kept(out, item, own)
        try:
            if row["missing"]:
                row["status"] = "data not at hand"
            else:
                done = _one(item, own, out, f"{number} of {len(items)}: ") if found is None else found
                row |= {"status": done["status"], "seconds": done["seconds"], "kept": found is not None}
        except (InputError, NotCertified) as error:
            if isinstance(error, InputError) and error.argument == "out":
                raise  # a full disk: no later item could be written
            row |= {"status": "failed", "error": str(error)}
            Console(stderr=True).print(f"[bold red]error:[/bold red] {escape(item.name)}: {escape(str(error))}",
                                       highlight=False, soft_wrap=True)
        summary.append(row)
        if not json_ and "error" not in row:
            console.print(f"{item.name}: {row['status']} ({_how(row)})", highlight=False, soft_wrap=True)
    if json_:
        print(json.dumps(summary, indent=1))
    else:
        made = sum("kept" in row for row in summary)
        console.print(f"{made} of {len(items)} items, {sum(row['seconds'] for row in summary):.0f} s of work; "
                      f"files in {out}", highlight=False, soft_wrap=True)
    if any("error" in row for row in summary):
        raise typer.Exit(2)


def _how(row: dict[str, Any]) -> str:
    """How an item's files came about, or what it lacks."""
    if row["missing"]:
        return f"needs {', '.join(row['missing'])} in --data-dir"
    return "kept" if row["kept"] else f"{row['seconds']:.1f} s"


def _show(found: dict[str, Any], out: Path | None) -> None:
    """One item on the screen."""
    console.print(f"[bold]{found['item']}[/bold]: {escape(found['title'])} ({escape(found['paper'])})", highlight=False)
    compared = any(row["published"] is not None for row in found["rows"])
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("", min_width=24)
    for name in ("published", "ours", "off by", "within", "") if compared else ("ours",):
        table.add_column(name, justify="right" if name else "left", no_wrap=True)
    for row in found["rows"][:MOST_ROWS]:
        relation = "" if row["relation"] == "=" else row["relation"] + " "
        verdict = {None: "", True: "agrees", False: "[yellow]differs[/yellow]"}[row["agrees"]]
        published = row["published"] is not None
        beside = (relation * published + _number(row["published"]), _number(row["ours"]), _short(row["difference"]),
                  _short(row["tolerance"]) if published else "", verdict)
        table.add_row(escape(row["what"]), *(beside if compared else beside[1:2]))
    console.print(table)
    if len(found["rows"]) > MOST_ROWS:
        console.print(f"and {len(found['rows']) - MOST_ROWS} further rows: --json shows all", style="dim")
    for note in found["notes"]:
        console.print(f"- {note}", style="dim", highlight=False, markup=False)
    where = "" if out is None else f"; {out / found['item']}.png and .json"
    console.print(f"status: [{COLOURS[found['status']]}]{found['status']}[/], {found['seconds']:.1f} s{where}",
                  highlight=False)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"


def _short(value: float | None) -> str:
    return "" if value is None else f"{value:.2g}"


@contextmanager
def _ticking(name: str) -> Iterator[Any]:
    """A line on standard error that says what an item does."""
    with Console(stderr=True).status(escape(name)) as status:
        yield lambda text: status.update(f"{escape(name)}: {escape(text)}")

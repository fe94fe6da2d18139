"""Write docs/papers.md and its pictures from the folder of a finished `lastiterate papers --all
--out FOLDER`.

python tools/papers_page.py FOLDER
"""

from __future__ import annotations

import json
import re
import sys
import textwrap
from pathlib import Path
from typing import Any

from lastiterate_papers import ITEMS, Item, Panel, Trace
from lastiterate_papers.files import drawn
from lastiterate_papers.item import shown

DOCS = Path(__file__).parents[1] / "docs"
HEAD = """# The papers, item by item

`lastiterate papers` lists these items. `lastiterate papers NAME --out DIR` makes one: a picture, and a JSON file with
every published value, ours, their difference, its tolerance, the settings, seconds and processor seconds.

- `--all` makes all items and skips finished ones. `--quick` reduces sizes. `--data-dir` names real data.
- A long item stores its finished pieces in a hidden file of the folder. It resumes from there with the same settings,
  seed, data and version. If it fails, there is neither a picture nor a JSON file.
- `ryffel-table3` needs Equinox: `pip install 'lastiterate[papers]'`.

*Matches*: every published value, or inequality, holds within its tolerance. *Restored*: the same, where published
represents formulas that the text at hand lost and we restored or evaluate; no printed number is compared. *Differs*: at
least one does not hold. *Not published*: the text at hand has no value to compare; settings are then ours, and each
item says so. Every item has all values of its run. Numbers without a unit are pure: an epsilon, a divergence, a ratio,
a count. *Run* says whether it was made in full or reduced.

The statements of the papers are functions too: `lastiterate_papers.formulas` (Lemma 6 and Theorem 4 of Chourasia et
al.; Lemmas 4.1 to 4.3, Theorems 4.1 to 4.4 and the ridge radius of Ryffel et al.), `lastiterate_papers.lemma_51` (Lemma
5.1 of the data, independent of them, and paid for), `lastiterate_papers.kong_ribero_table2` (Table 2), and
`lastiterate.analysis.shifts` (Lemma C.1, Corollaries C.2 and C.3).

This page was written by `python tools/papers_page.py` from {how}.
"""

BEYOND = """## Beyond the seeds

Other texts on the same subject, by their statements at hand. Not at hand, and therefore not compared: De
et al. 2022 and Tramer and Boneh 2021 (accuracies of features and networks under differential privacy), the theorems of
Altschuler and Talwar 2022 for batches with their conditions, the nonlinear programmes of Chien and Li 2024, the
theorems of Feldman and Shenfeld 2026, and the constructions of Annamalai 2024 and of Cebere, Bellet and Papernot 2024.
"""


def loaded(folder: Path) -> dict[str, dict[str, Any]]:
    """The finished items of a folder, by name."""
    found = {item.name: folder / f"{item.name}.json" for item in ITEMS}
    return {
        name: json.loads(path.read_text(encoding="utf-8"))
        for name, path in found.items()
        if path.is_file()
    }


def ours(found: dict[str, dict[str, Any]], item: str, what: str) -> str:
    """One value of ours, four digits; a dash where the item is not finished."""
    rows = found.get(item, {}).get("rows", [])
    value = next((row["ours"] for row in rows if row["what"] == what), None)
    return "-" if value is None else f"{value:.4g}"


def picture(body: dict[str, Any]) -> bytes:
    """All panels of an item, two in a line."""
    panels = [
        Panel(
            **{
                **panel,
                "names": tuple(panel.get("names", ())),
                "traces": tuple(
                    Trace(
                        t["label"],
                        tuple(t["x"]),
                        tuple(float("nan") if y is None else y for y in t["y"]),
                        t["style"],
                    )
                    for t in panel["traces"]
                ),
            }
        )
        for panel in body["panels"]
    ]
    return drawn(panels, dpi=80, most=2)


def table(found: dict[str, dict[str, Any]]) -> list[str]:
    """One row per item, under its heading where the subject changes."""
    lines = [
        "| item | status | run | what | compared | largest difference | seconds | processor "
        "seconds |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for item in ITEMS:
        body = found.get(item.name)
        if body is None:
            lines.append(f"| `{item.name}` | data not at hand | | {item.title} | | | | |")
            continue
        compared = [row for row in body["rows"] if row["published"] is not None]
        off = [row for row in compared if not row["agrees"]]
        worst = max(off, key=lambda row: abs(row["difference"] or 0), default=None)
        said = (
            ""
            if worst is None
            else f"{shown(worst['difference'], worst['unit'], 3)}: {worst['what']}"
        )
        lines.append(
            f"| [`{item.name}`](#{item.name}) | {body['status']} | {size(body)} | {item.title} | "
            f"{len(compared) - len(off)} of {len(compared)} | {said} | {body['seconds']:.1f} | "
            f"{body['processor_seconds']:.1f} |"
        )
    return lines


def size(body: dict[str, Any]) -> str:
    """Whether an item was run in full, reduced, or with settings of a caller's choice."""
    item = next(each for each in ITEMS if each.name == body["item"])
    chosen = [
        f"{name}={value:g}"
        for name, value in body["given"].items()
        if value != item.settings[name].default
    ]
    return ("reduced" if body["quick"] else "in full") + (
        f", with {', '.join(chosen)}" if chosen else ""
    )


def values(body: dict[str, Any]) -> str:
    """Published, ours and their difference, with units; what is published stands before what is
    only ours."""
    published = any(row["published"] is not None for row in body["rows"])
    lines = (
        ["| | published | ours | difference | |", "|---|---|---|---|---|"]
        if published
        else ["| | ours |", "|---|---|"]
    )
    for row in sorted(body["rows"], key=lambda row: row["published"] is None):
        unit, what = row["unit"], cell(row["what"])
        if not published:
            lines.append(f"| {what} | {shown(row['ours'], unit)} |")
            continue
        alone = row["published"] is None
        relation = "" if alone or row["relation"] == "=" else f"{row['relation']} "
        verdict = {None: "", True: "agrees", False: "**differs**"}[row["agrees"]]
        lines.append(
            f"| {what} | {relation}{shown(row['published'], unit)} | {shown(row['ours'], unit)} | "
            f"{shown(row['difference'], unit, 2)} | {verdict} |"
        )
    return "\n".join(lines)


def cell(text: str) -> str:
    """Text that a table, or a line of Markdown, takes as it is."""
    return text.replace("|", "\\|").replace("*", "\\*")


def section(item: Item, body: dict[str, Any]) -> list[str]:
    """A heading, what was found, all panels, all values and the notes of an item."""
    run = f"{body['status']}, run {size(body)}"
    data = " --data-dir DATA" * bool(item.data or item.optional)
    long = f" (about {item.minutes} minutes of processor time)" if item.minutes else ""
    command = f"`lastiterate papers {item.name}{data} --out DIR`"
    fully = f"In full{long}: {command}, which goes on where it was interrupted.\n"
    return [
        f"\n### {item.name}\n",
        f"{item.title}. *{item.paper}.* **{run}**.\n",
        f"{cell(item.found(body['rows']))}\n",
        f"![{item.title}](papers/{item.name}.png)\n",
        f"{values(body)}\n",
        f"Size and settings: {cell(settings(body['settings']))}.\n",
        *([fully] if body["quick"] else []),
        cell("\n".join(f"- {note}" for note in body["notes"])),
    ]


def settings(value: Any) -> str:
    """What a run rests on, in a line: names before their numbers."""
    match value:
        case dict():
            return ", ".join(
                f"{name} ({settings(part)})"
                if isinstance(part, dict)
                else f"{name} {settings(part)}"
                for name, part in value.items()
            )
        case list():
            return " / ".join(
                f"({settings(part)})" if isinstance(part, list) else settings(part)
                for part in value
            )
        case None:
            return "none"
        case float() if not value.is_integer():
            return f"{value:.4g}"
        case float():
            return f"{value:g}"
        case _:
            return str(value)


def sections(found: dict[str, dict[str, Any]]) -> list[str]:
    """Every item that is finished; what lies beyond the seeds last, in a part of its own."""
    lines, beyond = list[str](), False
    for item in ITEMS:
        if body := found.get(item.name):
            if item.beyond and not beyond:
                beyond = True
                lines.append(f"\n{BEYOND}")
            lines += section(item, body)
    return lines


def findings(found: dict[str, dict[str, Any]]) -> str:
    """What we found, with the numbers of the items."""

    def value(item: str, what: str) -> str:
        return ours(found, item, what)

    theorem = "n 100, m 1: exact Renyi divergence of order 2, projected"
    return f"""## Findings

**Refuted, each with a counterexample that runs.**

- Ryffel, Bach and Pointcheval, Theorem 3.2 for sampled batches: one step with a batch of one record in a hundred has a
  Renyi divergence of order 2 of {value("ryffel-theorem32", theorem)} where 0.116 is claimed, and delta
  {value("ryffel-theorem32", "n 100, m 1: true delta at that epsilon")} at the epsilon that is claimed for 1e-5. With
  full batches the theorem holds (`ryffel-full-batch`). With 2L/m instead of 2L/n it is repaired. A bound that has
  sampling and forgetting together is another one ([restarted-fixed-size](theorems/restarted-fixed-size.md)).
- The recursion in the proof of their Lemma 4.1 loses a factor of 2: exact
  {value("ryffel-lemma41-proof", "1 step: exact squared distance against (11) as printed")} where 0.361 is claimed after
  one step (`ryffel-lemma41-proof`). The lemma with twice its variance follows; no case was found that breaks
  the printed one.
- Theorem 1 of the blog post on Chourasia, Ye and Shokri lacks the curvature in its exponent: 0.0417 where 0.0238 is
  claimed (`chourasia-blog-theorem1`); Corollary 1 of the paper has it. Lemma 1 of the paper has one drift as minus
  the other, which they are not (`chourasia-dynamics`). Nothing rests on it.
- A bound in completed epochs is false for a run that ends inside an epoch: exact 4/3 against 1
  (`kong-ribero-unfinished`).
- Clipped steps are not nonexpansive: convex losses with per-example clips need a constant above 1
  (`kong-ribero-constants`), and softmax with ten classes a capped scalar instead (`bok-mnist`).
- [How bounds fail](guides/how-bounds-fail.md) has pictures of these and of others.

**Gains of a hidden state.** On Bok et al.'s MNIST settings composition charges
{value("bok-table1", "100 passes: composition")} after 100 passes, the last iterate
{value("bok-table1", "100 passes, ridge 0.002: theirs")}, and with one secret permutation
{value("bok-table1", "100 passes, ridge 0.002: one secret permutation (not in the paper)")}. On strongly convex
problems noisy
gradient descent and output perturbation reach the order of Table 1 of Chourasia et al.: fitted slopes of risk over n of
{value("chourasia-table1", "noisy GD (steps 1/(2 smooth)): fitted slope of excess risk over n")} and
{value("chourasia-table1", "output perturbation: fitted slope of excess risk over n")}.

**Limits at equal tuning.** Poisson DP-SGD, which charges every iterate, reaches about the same risk on
the same problems at small n, and
{value("chourasia-table1", "n 8000, Poisson DP-SGD: excess risk (delayed-shifts-poisson)")} at n 8000, where noisy
gradient descent reaches
{value("chourasia-table1", "n 8000, noisy GD (steps 1/(2 smooth)): excess risk (shifted-interpolation)")}; it needs
fewer gradient evaluations at every n (`chourasia-table1`). The seven named algorithms that share one preparation and
batches of many records lie within 0.02 of one another in accuracy on sets of 4,000 records and more (0.04 on smaller
ones). Noise on the objective, on the output, on variance-reduced steps or on steps of one record reaches less on
MNIST and CIFAR-10 features: the [leaderboard](leaderboard.md). Linear losses show how much a hidden
state could buy at most
for Poisson batches: epsilon {value("steinke-linear", "q 0.01, noise 1, 1000 steps: linear losses, the last iterate")}
of
{value("steinke-linear", "q 0.01, noise 1, 1000 steps: all iterates, certified")} after 1000 steps; a ridge can leak
more than
linear losses do.

**Random allocation against Poisson.** Shuffled blocks are not Poisson batches: at noise 0.6 one pass of 1000 batches
leaks
{value("chua-shuffling", "noise 0.6: shuffled at least, minus Poisson at most")} more than Poisson batches are
charged. Secret
blocks that every record draws by itself are charged no more
({value("chua-shuffling", "noise 0.6: random allocation at most, minus Poisson at most")} at the same noise), in every
case tried.

**Not published.** The papers of the rivals in Table 1 are not at hand: DP-SVRG's noise and certificate are our
own ([proof](theorems/variance-reduction.md)), and the orders are those that the table prints. Where the texts at hand
lost settings or values of figures, the item says that ours are used.
"""


def filled(text: str) -> str:
    """Paragraphs and list items filled to 118 columns; headings, tables and pictures as they are."""
    blocks = list[str]()
    for block in text.split("\n\n"):
        if block.startswith(("#", "|", "!")) or "\n|" in block:
            blocks.append(block)
            continue
        parts = re.split(r"\n(?=- )", block)
        blocks.append(
            "\n".join(
                textwrap.fill(
                    " ".join(part.split()),
                    118,
                    subsequent_indent="  " * part.startswith("- "),
                    break_long_words=False,
                    break_on_hyphens=False,
                )
                for part in parts
            )
        )
    return "\n\n".join(blocks)


def main(folder: Path) -> None:
    """Write the page and the pictures."""
    found = loaded(folder)
    quick = sum(body["quick"] for body in found.values())
    seconds = sum(body["seconds"] for body in found.values())
    spent = sum(body["processor_seconds"] for body in found.values())
    how = (
        f"{len(found)} finished items ({quick or 'none'} of them reduced by `--quick`), "
        f"{seconds:.0f} seconds of "
        f"work together, {spent:.0f} of processor time"
    )
    pictures = DOCS / "papers"
    pictures.mkdir(exist_ok=True)
    for old in pictures.glob("*.png"):
        old.unlink()
    for name, body in found.items():
        (pictures / f"{name}.png").write_bytes(picture(body))
    text = [
        filled(HEAD.format(how=how)),
        "",
        filled(findings(found)),
        "\n## Items\n",
        *table(found),
        "",
        filled("\n".join(sections(found))),
    ]
    (DOCS / "papers.md").write_text("\n".join(text).rstrip() + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))

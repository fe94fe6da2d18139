"""What ``theorems`` shows: a line each, or one of them in full."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.markup import escape

from lastiterate.theorems import words
from lastiterate.theorems.theorem import Theorem


def as_json(entry: Theorem) -> dict[str, Any]:
    """One theorem, JSON-ready."""
    title, text = words(entry)
    return {"name": entry.name, "kind": entry.kind, "title": title, "text": text, "formula": entry.formula,
            "assumptions": [assumption.needs for assumption in entry.assumptions], "remark": entry.remark,
            "citation": entry.citation}


def theorem_rows(table: dict[str, Theorem]) -> tuple[list[str], list[list[object]]]:
    """Header and rows: name, kind, what it says, what it needs, its source."""
    return ["theorem", "kind", "statement", "needs", "source"], [
        [entry.name, entry.kind, words(entry)[0], "; ".join(a.needs for a in entry.assumptions), entry.citation]
        for entry in table.values()]


def theorems(console: Console, table: dict[str, Theorem]) -> None:
    """The table of theorems, one line each: what does not fit is cut."""
    wide = max(map(len, table))
    lines = [("theorem", "kind", "statement"), *((one.name, one.kind, words(one)[0]) for one in table.values())]
    for name, kind, statement in lines:
        console.print(f"{name:<{wide}}  {kind:<7}  {statement}", overflow="ellipsis", no_wrap=True, highlight=False,
                      markup=False)


def theorem(console: Console, entry: Theorem) -> None:
    """One theorem in full."""
    title, text = words(entry)
    console.print(f"[bold]{entry.name}[/bold] ({entry.kind})\n\n{escape(title)}\n", highlight=False)
    console.print(f"  {entry.formula}\n", highlight=False, markup=False)
    for paragraph in text.split("\n\n"):
        console.print(" ".join(paragraph.split()) + "\n", highlight=False, markup=False)
    console.print("Assumptions:", highlight=False)
    for assumption in entry.assumptions:
        console.print(f"  - {assumption.needs}", highlight=False, markup=False)
    if entry.remark:
        console.print(f"\n{entry.remark}", highlight=False, markup=False)
    console.print(f"\nSource: {entry.citation}", highlight=False, markup=False)

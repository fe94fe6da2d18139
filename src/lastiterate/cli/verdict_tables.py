"""What ``account`` shows: the answer, the theorems that apply, and what is folded away."""

from __future__ import annotations

import math
from typing import Any

from rich.console import Console
from rich.table import Table

from lastiterate.accounting import explain
from lastiterate.accounting.certificate import Certificate
from lastiterate.accounting.wording import rounded_down, rounded_up
from lastiterate.cli.names import in_flags
from lastiterate.curves.curve import check_delta
from lastiterate.theorems.theorem import by_reason


def verdicts(certificate: Certificate, delta: float) -> Table:
    """The theorems that apply, best first."""
    table = Table(title=f"epsilon at delta = {delta:g}, {certificate.run.adjacency} adjacency", title_justify="left")
    table.add_column("theorem", no_wrap=True)
    table.add_column("kind")
    table.add_column("epsilon", justify="right")
    table.add_column("rests on facts")
    rows = [row for row in certificate.rows(delta) if row["applies"]]
    for row in sorted(rows, key=lambda r: (r["epsilon"] is None, r["epsilon"] or 0.0)):
        epsilon: float | None = row["epsilon"]
        lower = row["kind"] == "lower" and epsilon is not None
        shown = f">= {rounded_down(epsilon)}" if lower and epsilon is not None else rounded_up(epsilon)
        table.add_row(row["theorem"], row["kind"], shown, row["evidence"].lower())
    return table


def verdict_rows(certificate: Certificate, delta: float) -> tuple[list[str], list[list[object]]]:
    """Header and rows of every theorem's verdict, those that apply first; epsilon in full, as a float."""
    rows = sorted(certificate.rows(delta), key=lambda row: (not row["applies"], row["epsilon"] is None,
                                                            row["epsilon"] or 0.0))
    return ["theorem", "kind", "applies", "epsilon", "facts", "reasons"], [
        [row["theorem"], row["kind"], "yes" if row["applies"] else "no", row["epsilon"],
         (row["evidence"] or "").lower(), "; ".join(map(in_flags, row["reasons"]))] for row in rows]


def rounded(rows: list[list[object]]) -> list[list[object]]:
    """The same for people to read: upper bounds up, lower bounds down, four digits."""
    def shown(kind: object, epsilon: object) -> object:
        return epsilon if not isinstance(epsilon, float) else rounded_down(epsilon) if kind == "lower" else \
            rounded_up(epsilon)

    return [[*row[:3], shown(row[1], row[3]), *row[4:]] for row in rows]


def sources(console: Console, certificate: Certificate, delta: float) -> None:
    """Where the theorems that apply are proved."""
    applies = [row["theorem"] for row in certificate.rows(delta) if row["applies"]]
    console.print("sources:", style="dim")
    for verdict in certificate.verdicts:
        if verdict.theorem.name in applies:
            console.print(f"- {verdict.theorem.name}: {verdict.theorem.citation}", style="dim", highlight=False,
                          markup=False)


def refusals(console: Console, certificate: Certificate, delta: float) -> None:
    """The theorems that do not apply, and why."""
    failures = {row["theorem"]: row["reasons"] for row in certificate.rows(delta) if not row["applies"]}
    if failures:
        console.print("does not apply:", style="dim")
        console.print(in_flags(by_reason(failures)), style="dim", highlight=False, markup=False)


def accounted(console: Console, certificate: Certificate, delta: float, *, every: bool = False) -> None:
    """The screen of ``account``: the answer, then what it is made of; ``every``: sources and refusals too."""
    check_delta(delta)
    certified = math.isfinite(certificate.epsilon(delta))
    console.print(in_flags(explain.headline(certificate, delta)), highlight=False, markup=False)
    if certified:
        other = certificate.replace_one_epsilon(delta)
        console.print(f"under replace-one: epsilon {rounded_up(other)}", highlight=False)
    if any(row["applies"] for row in certificate.rows(delta)):
        console.print(verdicts(certificate, delta))
    if every:
        sources(console, certificate, delta)
    if every and certified:
        refusals(console, certificate, delta)
    elif certified:
        fails = sum(not row["applies"] for row in certificate.rows(delta))
        console.print(f"{fails} theorems do not apply: --all says why, and where the others are proved", style="dim",
                      highlight=False)
    for caveat in certificate.all_caveats():
        console.print(in_flags(f"- {caveat}"), style="dim", highlight=False)


def divergences(orders: list[float], rows: list[dict[str, Any]]) -> Table:
    """Renyi divergences by theorem and order, rounded up."""
    table = Table(title="Renyi divergence of order", title_justify="left")
    table.add_column("theorem", no_wrap=True)
    table.add_column("kind")
    for order in orders:
        table.add_column(f"{order:g}", justify="right")
    for row in rows:
        table.add_row(row["theorem"], row["kind"], *(rounded_up(value) for value in row["epsilon"]))
    return table

"""``lastiterate ledger``: make a budget for a data set, show what was released, verify the file."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from lastiterate import interrupts
from lastiterate.cli.app import Json, app, console, reports_errors
from lastiterate.cli.help import PlainGroup
from lastiterate.errors import InputError

if TYPE_CHECKING:
    from lastiterate.ledger.budget_check import Release, Total
    from lastiterate.ledger.filters import Filter

ledgers = typer.Typer(
    cls=PlainGroup, no_args_is_help=True, help="Keep a data set's total privacy budget."
)
app.add_typer(ledgers, name="ledger")
LedgerFile = Annotated[Path, typer.Argument(help="a ledger file")]
Dataset = Annotated[str | None, typer.Option("--dataset", help="show one data set of several")]


@ledgers.command("make")
@reports_errors
def ledger_make(
    file: LedgerFile,
    dataset: Annotated[str, typer.Option("--dataset", help="a name for the data set")],
    unit: Annotated[str, typer.Option("--unit", help="who a record belongs to, such as person")],
    epsilon: Annotated[float, typer.Option("--epsilon", help="the total over all releases")],
    delta: Annotated[float, typer.Option("--delta", help="the total over all releases")],
    rows_per_unit: Annotated[
        int | None,
        typer.Option(
            "--rows-per-unit",
            help="rows that one unit has in the data, at most",
        ),
    ] = None,
    adjacency: Annotated[
        str, typer.Option("--adjacency", help="zero-out, replace-one or add-remove")
    ] = "zero-out",
    filter: Annotated[
        str, typer.Option("--filter", help="gaussian or renyi (cannot be changed later)")
    ] = "gaussian",
    failure: Annotated[
        float | None,
        typer.Option(
            "--failure",
            help="failure probability of other releases (default delta/10)",
        ),
    ] = None,
    orders: Annotated[
        str | None,
        typer.Option(
            "--orders",
            help="orders of a renyi filter, such as 4,8,16",
        ),
    ] = None,
) -> None:
    """Fix the privacy budget of a data set.

    It cannot be changed afterwards: make the ledger before the first release.
    """
    from lastiterate.accounting.certificate_subject import format_rounded_up
    from lastiterate.ledger import Ledger
    from lastiterate.ledger.budget_check import is_row
    from lastiterate.release.allowance import Allowance

    if adjacency not in ("zero-out", "replace-one", "add-remove"):
        raise InputError("adjacency", "must be zero-out, replace-one or add-remove", adjacency)
    budget = _filter(filter, epsilon, delta, failure, orders)
    with interrupts.later():
        Ledger(file).add(
            dataset, unit=unit, adjacency=adjacency, filter=budget, rows_per_unit=rows_per_unit
        )
        interrupts.say(f"{file} is made")
    shown = f"{delta:g}"
    console.print(
        f"{file}: all releases on {dataset} together stay within epsilon "
        f"{format_rounded_up(budget.total().epsilon(float(shown)))} at delta {shown} "
        f"({adjacency}, per {unit}).",
        highlight=False,
        markup=False,
    )
    if rest := Allowance.of(Ledger(file).total(dataset)).describe_first(delta):
        console.print(f"{rest}.", highlight=False, markup=False)
    if rows_per_unit is None and not is_row(unit):
        console.print(
            "Only releases that say whose a row is are charged (train --unit COLUMN). If you know "
            f"the most "
            f"rows that one {unit} has, state it: lastiterate ledger rows {file} NUMBER",
            highlight=False,
            markup=False,
        )


def _filter(
    kind: str, epsilon: float, delta: float, failure: float | None, orders: str | None
) -> Filter:
    from lastiterate.ledger import GaussianFilter, RenyiFilter

    match kind:
        case "gaussian" if orders is None:
            return GaussianFilter.of(epsilon, delta, failure)
        case "renyi" if failure is None:
            try:
                listed = (
                    () if orders is None else tuple(float(order) for order in orders.split(","))
                )
            except ValueError:
                raise InputError("orders", "must be numbers such as 4,8,16", orders) from None
            return RenyiFilter.of(epsilon, delta, listed)
        case "gaussian" | "renyi":
            name, value, other = (
                ("orders", orders, "renyi")
                if kind == "gaussian"
                else ("failure", failure, "gaussian")
            )
            raise InputError(name, f"is for the {other} filter", value, "leave it out")
        case _:
            raise InputError("filter", "must be gaussian or renyi", kind)


@ledgers.command("show")
@reports_errors
def ledger_show(file: LedgerFile, dataset: Dataset = None, json_: Json = False) -> None:
    """Show the releases and the remaining budget."""
    from lastiterate.accounting.certificate_subject import format_rounded_down
    from lastiterate.ledger import Ledger
    from lastiterate.ledger.database import VERSION
    from lastiterate.ledger.quote import budget_delta, count_repeats, together
    from lastiterate.release.allowance import Allowance

    ledger = Ledger(file)
    head, problems = ledger.head(), ledger.verify()
    totals = [ledger.total(name) for name in (ledger.datasets() if dataset is None else (dataset,))]
    if json_:
        print(
            json.dumps(
                {
                    "format": VERSION,
                    "head": head,
                    "problems": problems,
                    "datasets": [_to_json(total) for total in totals],
                },
                indent=2,
            )
        )
        raise typer.Exit(1 if problems else 0)
    for total in totals:
        rows = "" if total.rows is None else f" of at most {total.rows} row{'s' * (total.rows > 1)}"
        console.print(
            f"[bold]{escape(total.dataset)}[/bold] (per {escape(total.unit)}{rows}, "
            f"{escape(total.adjacency)})",
            highlight=False,
        )
        console.print(f"  {together(total)}", highlight=False, markup=False)
        delta = budget_delta(total.filter)
        pairs = zip(total.filter.dimensions, total.left, strict=True)
        shares = ", ".join(
            f"{format_rounded_down(100 * left)}% of the {name}" for name, left in pairs
        )
        if delta is not None:
            shares = f"{Allowance.of(total).describe_rest(delta, planned=True)} ({shares})"
        console.print(f"  left: {shares}", highlight=False, markup=False)
        if total.releases and delta is not None:
            console.print(
                f"  charged, at the budget's delta {delta:g} (a card may state epsilon at another):",
                highlight=False,
                markup=False,
                soft_wrap=True,
            )
        for release in total.releases:
            charged = "" if delta is None else f"  {_describe_charge(release, delta)}"
            model = "no model" if release.model is None else f"model {release.model[:12]}"
            console.print(
                f"  {release.number}  {release.day}  {release.state:9}  {release.purpose}{charged}  "
                f"{model}  {release.token}",
                highlight=False,
                markup=False,
                soft_wrap=True,
            )
        if not problems and (repeats := count_repeats(total)) is not None:
            console.print(f"  enough is left for {repeats} more like the last", highlight=False)
    console.print(
        f"head {head}",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )
    for problem in problems:
        console.print(
            f"does not hold: {problem}",
            style="bold red",
            highlight=False,
            markup=False,
            soft_wrap=True,
        )
    if problems:
        raise typer.Exit(1)


def _describe_charge(release: Release, delta: float) -> str:
    """The epsilon that a line was charged for; of a line that was damaged, that nothing is known."""
    from lastiterate.accounting.certificate_subject import format_rounded_up
    from lastiterate.ledger.quote import find_charged_epsilon

    try:
        epsilon = find_charged_epsilon(release, delta)
    except (InputError, ValueError, TypeError, KeyError, RecursionError):
        return "its curve cannot be read"
    known = format_rounded_up(epsilon) if math.isfinite(epsilon) else "infinite"
    return f"epsilon {known} at delta {delta:g}"


def _to_json(total: Total) -> dict[str, Any]:
    return {
        "dataset": total.dataset,
        "unit": total.unit,
        "rows_per_unit": total.rows,
        "adjacency": total.adjacency,
        "releases_of_rows": list(total.unproven),
        "filter": total.filter.to_dict(),
        "left": dict(zip(total.filter.dimensions, total.left, strict=True)),
        "releases": [
            {
                "number": r.number,
                "token": r.token,
                "day": r.day,
                "state": r.state,
                "purpose": r.purpose,
                "model_sha256": r.model,
            }
            for r in total.releases
        ],
    }


@ledgers.command("verify")
@reports_errors
def ledger_verify(
    file: LedgerFile,
    head: Annotated[
        str | None,
        typer.Option("--head", help="require this earlier head in the ledger's history"),
    ] = None,
    json_: Json = False,
) -> None:
    """Recompute the chain, every charge and the totals.

    Exit code 1 if something does not hold.
    """
    from lastiterate.ledger import Ledger
    from lastiterate.ledger.database import VERSION

    ledger = Ledger(file)
    problems, now = ledger.verify(head), ledger.head()
    if json_:
        print(
            json.dumps(
                {
                    "holds": not problems,
                    "problems": list(problems),
                    "format": VERSION,
                    "head": now,
                },
                indent=2,
            )
        )
    elif problems:
        console.print("[bold red]the ledger does not hold[/bold red]")
        for problem in problems:
            console.print(f"- {problem}", highlight=False, markup=False)
    else:
        console.print(
            "holds: every charge covers its curve, and no budget is exceeded.", highlight=False
        )
        console.print(_describe_coverage(head, now), style="dim", highlight=False)
    if problems:
        raise typer.Exit(1)


def _describe_coverage(kept: str | None, now: str) -> str:
    """What a ledger that holds says by itself, and what it does not."""
    if kept is not None:
        return f"It contains the head that was kept: nothing before it was deleted or changed. Head now: {now}"
    return (
        "Every field is in the chain. An older copy of the file, one whose last lines were "
        "deleted, or one that was rewritten completely looks the same: keep the head in another "
        "place, and give it with --head. "
        f"Head now: {now}"
    )


@ledgers.command("rows")
@reports_errors
def ledger_rows(
    file: LedgerFile,
    rows_per_unit: Annotated[
        int, typer.Argument(help="rows that one unit has in the data, at most")
    ],
    dataset: Dataset = None,
) -> None:
    """State how many rows one unit has, at most.

    Releases that protect single rows are then charged for so many. It cannot be changed.
    """
    from lastiterate.ledger import Ledger

    ledger = Ledger(file)
    ledger.state_rows(dataset, rows_per_unit)
    total = ledger.total(dataset)
    console.print(
        f"{total.dataset}: one {total.unit} has at most {total.rows} "
        f"row{'s' * (rows_per_unit > 1)}, by your "
        "word",
        highlight=False,
        markup=False,
    )


@ledgers.command("cancel")
@reports_errors
def ledger_cancel(
    file: LedgerFile, token: Annotated[str, typer.Argument(help="the release's token")]
) -> None:
    """Return the reservation of a run that was killed.

    Only a run that read no record can be cancelled.
    """
    from lastiterate.ledger import Ledger

    Ledger(file).cancel(token)
    console.print("given back", highlight=False)

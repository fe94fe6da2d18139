"""``lastiterate account``, ``calibrate`` and ``theorems``: what holds for a run that is described, not executed."""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from lastiterate.cli.bundles import flagged
from lastiterate.cli.flags import NUMBERS, WORDS
from lastiterate.cli.screen import FLAG_HELP, Delta, Json, RunFile, Trust, app, console, reports_errors
from lastiterate.cli.spreadsheets import Csv, Latex, as_csv, as_latex, one_form
from lastiterate.errors import InputError


def _run_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the flags that describe a run."""
    described = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[
            (str if name in WORDS else float) | None,
            typer.Option("--" + name.replace("_", "-"), help=FLAG_HELP.get(name, ""))])
        for name in (*WORDS[:3], *NUMBERS[:3], *WORDS[3:], *NUMBERS[3:])
    ]
    own = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY)
           for each in inspect.signature(command, eval_str=True).parameters.values()
           if each.kind != inspect.Parameter.VAR_KEYWORD]
    return flagged(command, command, [*own, *described])


@app.command("account")
@_run_flags
@reports_errors
def account_command(run: RunFile = None, delta: Delta = 1e-5, json_: Json = False, csv: Csv = False,
            latex: Latex = False, trust_constants: Trust = False,
            every: Annotated[bool, typer.Option("--all", help="also sources, and why the other theorems do not apply")
                             ] = False,
            plot: Annotated[Path | None, typer.Option("--plot", help="epsilon over steps, as a picture")] = None,
            renyi: Annotated[str | None, typer.Option("--renyi", help="orders such as 1.5,2,8: Renyi divergences too"
                                                      )] = None,
            **flags: object) -> None:
    """What a run is certified with, by the theorems that apply, best first; exit code 1 where none certifies it."""
    one_form(json=json_, csv=csv, latex=latex)
    from lastiterate.accounting import calibration as accounting
    from lastiterate.accounting import theorem_rows
    from lastiterate.accounting.budgets import warn_of_delta, warn_of_epsilon
    from lastiterate.cli import flags as grammar
    from lastiterate.cli import verdict_tables
    from lastiterate.run.evidence import Evidence

    at_least = Evidence.ASSUMED if trust_constants else Evidence.ENFORCED
    orders = [] if renyi is None else [grammar.number("--renyi", part) for part in renyi.split(",")]
    certificate = accounting.account(grammar.describe(run, flags), at_least=at_least)
    warn_of_delta(delta, certificate.run.n)
    divergences = theorem_rows.renyi(certificate, orders) if orders else []
    if plot is not None:
        from lastiterate.report.plots import epsilon_over_steps

        epsilon_over_steps(certificate, delta, plot)
    warn_of_epsilon(certificate.epsilon(delta))
    if csv or latex:
        header, rows = verdict_tables.verdict_rows(certificate, delta)
        print(as_csv(header, rows) if csv else as_latex(header, verdict_tables.rounded(rows)), end="")
    elif json_:
        more = {"renyi": {"orders": orders, "theorems": divergences}} if orders else {}
        print(json.dumps(certificate.answer(delta) | more, indent=2))
    else:
        verdict_tables.accounted(console, certificate, delta, every=every)
        if orders:
            console.print(verdict_tables.divergences(orders, divergences))
    if math.isinf(certificate.epsilon(delta)):
        raise typer.Exit(1)


@app.command("calibrate")
@_run_flags
@reports_errors
def calibrate_command(run: RunFile = None, *, epsilon: Annotated[float, typer.Option("--epsilon", help="the budget")],
              delta: Delta = 1e-5,
              field: Annotated[str, typer.Option("--field", help="noise or steps")] = "noise", json_: Json = False,
              trust_constants: Trust = False, **flags: object) -> None:
    """The least noise, or the most steps, that a budget allows."""
    from lastiterate.accounting import calibration as accounting
    from lastiterate.cli import flags as grammar
    from lastiterate.cli import verdict_tables
    from lastiterate.run.evidence import Evidence

    described = grammar.describe(run, flags, searched=field)
    at_least = Evidence.ASSUMED if trust_constants else Evidence.ENFORCED
    certified = accounting.calibrate(described, epsilon=epsilon, delta=delta, field=cast(Any, field), at_least=at_least)
    if json_:
        print(json.dumps(certified.answer(delta), indent=2))
        return
    console.print(certified.run.method.calibrated(certified.run), highlight=False)
    verdict_tables.accounted(console, certified, delta)


@app.command("theorems")
@reports_errors
def theorems_command(name: Annotated[str | None, typer.Argument(help="one theorem in full")] = None,
                     delta: Delta = 1e-5, json_: Json = False, csv: Csv = False, latex: Latex = False,
                     plot: Annotated[Path | None, typer.Option("--plot", help="a picture of it on an example")] = None
                     ) -> None:
    """The table of theorems, a line each; with a name, one of them in full."""
    one_form(json=json_, csv=csv, latex=latex)
    from lastiterate.cli import theorem_tables
    from lastiterate.theorems import TABLE, by_name

    if name is None and plot is not None:
        raise InputError("plot", "needs the name of a theorem", None, "one of " + ", ".join(TABLE))
    if json_:
        chosen = TABLE.values() if name is None else (by_name(name),)
        print(json.dumps([theorem_tables.as_json(theorem) for theorem in chosen], indent=2))
        return
    if csv or latex:
        chosen = TABLE if name is None else {name: by_name(name)}
        print((as_csv if csv else as_latex)(*theorem_tables.theorem_rows(chosen)), end="")
        return
    if name is None:
        theorem_tables.theorems(console, TABLE)
        console.print("lastiterate theorems NAME: formula, assumptions and source in full", style="dim")
        return
    named = by_name(name)
    theorem_tables.theorem(console, named)
    if plot is not None:
        from lastiterate.report.plots import theorem_over_steps

        certificate = theorem_over_steps(named, delta, plot)
        console.print(f"\n{plot} shows it beside the others that apply to this run:", highlight=False, markup=False)
        console.print(certificate.run.to_json(), style="dim", highlight=False)

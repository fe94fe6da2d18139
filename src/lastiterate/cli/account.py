"""`lastiterate account`, `calibrate` and `theorems`: commands and the tables that they print."""

from __future__ import annotations

import inspect
import json
import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from lastiterate import plugins
from lastiterate.accounting import explain
from lastiterate.accounting.certificate import Certificate
from lastiterate.accounting.certificate_subject import format_rounded_down, format_rounded_up
from lastiterate.cli.app import (
    FLAG_HELP,
    LISTED,
    Delta,
    Json,
    RunFile,
    Trust,
    app,
    console,
    format_csv,
    reports_errors,
    translate_to_flags,
)
from lastiterate.cli.flag_bundles import with_flags
from lastiterate.cli.run_flags import NUMBERS, WORDS
from lastiterate.curves.curve import check_delta
from lastiterate.errors import InputError
from lastiterate.theorems.theorem import Theorem, group_by_reason

# Tables for other programs and papers: comma-separated values, and LaTeX with the package booktabs.

Csv = Annotated[bool, typer.Option("--csv", help="print comma-separated values with all digits")]
Latex = Annotated[bool, typer.Option("--latex", help="print LaTeX (package booktabs)")]
Header = Sequence[str]
Rows = Sequence[Sequence[object]]
_ESCAPES = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    **{letter: "\\" + letter for letter in "&%$#_{}"},
}


def one_form(**asked: bool) -> None:
    """Refuse two forms at once."""
    given = [name for name, wanted in asked.items() if wanted]
    if len(given) > 1:
        raise InputError(
            given[1],
            "cannot be combined with another form of output",
            None,
            "name one of " + ", ".join(f"--{name}" for name in asked),
        )


def format_latex(header: Header, rows: Rows) -> str:
    """A ``tabular`` of texts; columns of numbers are aligned right, and every character is printed
    as it is.
    """
    body = [list(row) for row in rows]
    columns = "".join(
        "r" if all(_number(row[i]) for row in body) else "l" for i in range(len(header))
    )
    lines = [" & ".join(map(_cell, row)) + r" \\" for row in body]
    return "\n".join(
        [
            rf"\begin{{tabular}}{{{columns}}}",
            r"\toprule",
            " & ".join(map(_cell, header)) + r" \\",
            r"\midrule",
            *lines,
            r"\bottomrule",
            r"\end{tabular}",
            "",
        ]
    )


def _number(value: object) -> bool:
    try:
        return value is None or isinstance(float(str(value)), float)
    except ValueError:
        return False


def _cell(value: object) -> str:
    text = "--" if value is None else " ".join(str(value).split())
    return "".join(_ESCAPES.get(letter, letter) for letter in text)


# ``lastiterate account``, ``calibrate`` and ``theorems``: what holds for a run that is described,
# not executed.


def _run_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the flags that describe a run."""
    described = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[
                (str if name in WORDS else float) | None,
                typer.Option(
                    "--" + name.replace("_", "-"),
                    help=FLAG_HELP.get(name, ""),
                    callback=LISTED.get(name),
                    is_eager=name in LISTED,
                ),
            ],
        )
        for name in (*WORDS[:3], *NUMBERS[:3], *WORDS[3:], *NUMBERS[3:])
    ]
    own = [
        each.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for each in inspect.signature(command, eval_str=True).parameters.values()
        if each.kind != inspect.Parameter.VAR_KEYWORD
    ]
    return with_flags(command, command, [*own, *described])


@app.command("account")
@_run_flags
@reports_errors
def account_command(
    run: RunFile = None,
    delta: Delta = 1e-5,
    json_: Json = False,
    csv: Csv = False,
    latex: Latex = False,
    trust_constants: Trust = False,
    every: Annotated[
        bool, typer.Option("--all", help="also show sources, and why other theorems do not apply")
    ] = False,
    plot: Annotated[
        Path | None, typer.Option("--plot", help="draw epsilon over steps into this file")
    ] = None,
    renyi: Annotated[
        str | None,
        typer.Option("--renyi", help="also show Renyi divergences of these orders: 1.5,2,8"),
    ] = None,
    **flags: object,
) -> None:
    """State the epsilon of a run by all theorems that apply.

    The best bound comes first. Exit code 1 if no theorem certifies the run.
    """
    one_form(json=json_, csv=csv, latex=latex)
    from lastiterate.accounting import noise_calibration
    from lastiterate.accounting.guarantee import renyi as renyi_rows
    from lastiterate.accounting.noise_calibration import warn_of_delta, warn_of_epsilon
    from lastiterate.cli import run_flags
    from lastiterate.run.facts import Evidence

    min_evidence = Evidence.ASSUMED if trust_constants else Evidence.ENFORCED
    orders = (
        []
        if renyi is None
        else [run_flags.parse_number("--renyi", part) for part in renyi.split(",")]
    )
    certificate = noise_calibration.account(
        run_flags.describe(run, flags), min_evidence=min_evidence
    )
    warn_of_delta(delta, certificate.run.n)
    moments = renyi_rows(certificate, orders) if orders else []
    if plot is not None:
        from lastiterate.report.plots import epsilon_over_steps

        epsilon_over_steps(certificate, delta, plot)
    warn_of_epsilon(certificate.epsilon(delta))
    if csv or latex:
        header, rows = verdict_rows(certificate, delta)
        print(format_csv(header, rows) if csv else format_latex(header, round_rows(rows)), end="")
    elif json_:
        more = {"renyi": {"orders": orders, "theorems": moments}} if orders else {}
        print(json.dumps(certificate.answer(delta) | more, indent=2))
    else:
        show_account(console, certificate, delta, every=every)
        if orders:
            console.print(divergences(orders, moments))
    if math.isinf(certificate.epsilon(delta)):
        raise typer.Exit(1)


@app.command("calibrate")
@_run_flags
@reports_errors
def calibrate_command(
    run: RunFile = None,
    *,
    epsilon: Annotated[float, typer.Option("--epsilon", help="the privacy budget")],
    delta: Delta = 1e-5,
    field: Annotated[str, typer.Option("--field", help="calibrate noise or steps")] = "noise",
    json_: Json = False,
    trust_constants: Trust = False,
    **flags: object,
) -> None:
    """Find the least noise, or the most steps, for a budget."""
    from lastiterate.accounting import noise_calibration
    from lastiterate.cli import run_flags
    from lastiterate.run.facts import Evidence

    described = run_flags.describe(run, flags, searched=field)
    min_evidence = Evidence.ASSUMED if trust_constants else Evidence.ENFORCED
    certified = noise_calibration.calibrate(
        described, epsilon=epsilon, delta=delta, field=cast(Any, field), min_evidence=min_evidence
    )
    if json_:
        print(json.dumps(certified.answer(delta), indent=2))
        return
    console.print(certified.run.method.summarise_noise(certified.run), highlight=False)
    show_account(console, certified, delta)


@app.command("theorems")
@reports_errors
def theorems_command(
    name: Annotated[str | None, typer.Argument(help="show one theorem in full")] = None,
    delta: Delta = 1e-5,
    json_: Json = False,
    csv: Csv = False,
    latex: Latex = False,
    plot: Annotated[
        Path | None, typer.Option("--plot", help="draw its bound for an example into this file")
    ] = None,
) -> None:
    """List the theorems, or show one in full."""
    one_form(json=json_, csv=csv, latex=latex)
    from lastiterate.theorems import TABLE, find_theorem

    if name is None and plot is not None:
        raise InputError("plot", "needs the name of a theorem", None, "one of " + ", ".join(TABLE))
    if json_:
        chosen = TABLE.values() if name is None else (find_theorem(name),)
        print(json.dumps([theorem_to_json(theorem) for theorem in chosen], indent=2))
        return
    if csv or latex:
        chosen = TABLE if name is None else {name: find_theorem(name)}
        print((format_csv if csv else format_latex)(*theorem_rows(chosen)), end="")
        return
    if name is None:
        theorems(console, TABLE)
        for words in plugins.describe_unused("theorems"):
            console.print(
                f"not asked: {words} (--allow-plugins)",
                style="dim",
                highlight=False,
                markup=False,
            )
        console.print(
            "lastiterate theorems NAME: formula, assumptions and source in full", style="dim"
        )
        return
    named = find_theorem(name)
    theorem(console, named)
    if plot is not None:
        from lastiterate.report.plots import theorem_over_steps

        theorem_over_steps(named, delta, plot)
        console.print(
            f"\n{plot} compares it with the others that apply to this run:",
            highlight=False,
            markup=False,
        )
        console.print(named.example.to_json(), style="dim", highlight=False)


# What ``theorems`` shows: a line each, or one of them in full.


def theorem_to_json(entry: Theorem) -> dict[str, Any]:
    """One theorem, JSON-ready."""
    title, text = entry.title, entry.text
    return {
        "name": entry.name,
        "kind": entry.kind,
        "title": title,
        "text": text,
        "formula": entry.formula,
        "assumptions": [assumption.needs for assumption in entry.assumptions],
        "remark": entry.remark,
        "citation": entry.citation,
    } | ({"by": entry.origin} if entry.origin else {})


def theorem_rows(table: Mapping[str, Theorem]) -> tuple[list[str], list[list[object]]]:
    """Header and rows: name, kind, what it says, what it needs, its source."""
    return ["theorem", "kind", "statement", "needs", "source"], [
        [
            entry.name,
            entry.kind,
            f"{entry.title} ({entry.mark})" if entry.origin else entry.title,
            "; ".join(a.needs for a in entry.assumptions),
            entry.citation,
        ]
        for entry in table.values()
    ]


def theorems(console: Console, table: Mapping[str, Theorem]) -> None:
    """The theorems, each with its kind and its whole statement below the name."""
    for one in table.values():
        by = f", {one.mark}" if one.origin else ""
        console.print(f"{one.name} ({one.kind}{by})", highlight=False, markup=False)
        title = textwrap.fill(
            " ".join(one.title.split()), console.width - 4, break_on_hyphens=False
        )
        console.print(textwrap.indent(title, "    "), style="dim", highlight=False, markup=False)


def theorem(console: Console, entry: Theorem) -> None:
    """One theorem in full."""
    title, text = entry.title, entry.text
    console.print(f"[bold]{entry.name}[/bold] ({entry.kind})\n\n{escape(title)}\n", highlight=False)
    if entry.origin:
        console.print(
            f"Provided {entry.mark}.\n", style="bold yellow", highlight=False, markup=False
        )
    console.print(f"  {entry.formula}\n", highlight=False, markup=False)
    for paragraph in text.split("\n\n"):
        console.print(" ".join(paragraph.split()) + "\n", highlight=False, markup=False)
    console.print("Assumptions:", highlight=False)
    for assumption in entry.assumptions:
        console.print(f"  - {assumption.needs}", highlight=False, markup=False)
    if entry.remark:
        console.print(f"\n{entry.remark}", highlight=False, markup=False)
    console.print(f"\nSource: {entry.citation}", highlight=False, markup=False)


# What ``account`` shows: the answer, the theorems that apply, and what is folded away.


def verdicts(certificate: Certificate, delta: float) -> Table:
    """The theorems that apply, best first."""
    table = Table()
    table.add_column("theorem", no_wrap=True)
    table.add_column("kind")
    table.add_column("epsilon", justify="right")
    table.add_column("rests on facts")
    rows = [row for row in certificate.rows(delta) if row["applies"]]
    for row in sorted(rows, key=lambda r: (r["epsilon"] is None, r["epsilon"] or 0.0)):
        epsilon: float | None = row["epsilon"]
        lower = row["kind"] == "lower" and epsilon is not None
        shown = (
            f">= {format_rounded_down(epsilon)}"
            if lower and epsilon is not None
            else format_rounded_up(epsilon)
        )
        rests = row["evidence"].lower() + (f", {plugins.mark(row['by'])}" if "by" in row else "")
        table.add_row(row["theorem"], row["kind"], shown, rests)
    return table


def verdict_rows(certificate: Certificate, delta: float) -> tuple[list[str], list[list[object]]]:
    """Header and rows of every theorem's verdict, those that apply first; epsilon in full, as a
    float.
    """
    rows = sorted(
        certificate.rows(delta),
        key=lambda row: (not row["applies"], row["epsilon"] is None, row["epsilon"] or 0.0),
    )
    return ["theorem", "kind", "applies", "epsilon", "facts", "reasons"], [
        [
            row["theorem"],
            row["kind"],
            "yes" if row["applies"] else "no",
            row["epsilon"],
            (row["evidence"] or "").lower(),
            "; ".join(map(translate_to_flags, row["reasons"])),
        ]
        for row in rows
    ]


def round_rows(rows: list[list[object]]) -> list[list[object]]:
    """The same for people to read: upper bounds up, lower bounds down, four digits."""

    def format_epsilon(kind: object, epsilon: object) -> object:
        return (
            epsilon
            if not isinstance(epsilon, float)
            else format_rounded_down(epsilon)
            if kind == "lower"
            else format_rounded_up(epsilon)
        )

    return [[*row[:3], format_epsilon(row[1], row[3]), *row[4:]] for row in rows]


def sources(console: Console, certificate: Certificate, delta: float) -> None:
    """Where the theorems that apply are proved."""
    applies = [row["theorem"] for row in certificate.rows(delta) if row["applies"]]
    console.print("sources:", style="dim")
    for verdict in certificate.verdicts:
        if verdict.theorem.name in applies:
            console.print(
                f"- {verdict.theorem.name}: {verdict.theorem.citation}",
                style="dim",
                highlight=False,
                markup=False,
            )


def refusals(console: Console, certificate: Certificate, delta: float) -> None:
    """The theorems that do not apply, and why."""
    failures = {
        row["theorem"]: row["reasons"] for row in certificate.rows(delta) if not row["applies"]
    }
    if failures:
        console.print("does not apply:", style="dim")
        console.print(
            translate_to_flags(group_by_reason(failures)),
            style="dim",
            highlight=False,
            markup=False,
        )


def show_account(
    console: Console, certificate: Certificate, delta: float, *, every: bool = False
) -> None:
    """The screen of ``account``: the answer, then what it is made of; ``every``: sources and
    refusals too.
    """
    check_delta(delta)
    certified = math.isfinite(certificate.epsilon(delta))
    console.print(
        translate_to_flags(explain.headline(certificate, delta)), highlight=False, markup=False
    )
    if any(row["applies"] for row in certificate.rows(delta)):
        console.print(verdicts(certificate, delta))
    if every:
        sources(console, certificate, delta)
    fails = sum(not row["applies"] for row in certificate.rows(delta))
    if every and certified:
        refusals(console, certificate, delta)
    elif every:
        console.print(
            translate_to_flags(certificate.why_not()), style="dim", highlight=False, markup=False
        )
    elif fails:
        console.print(
            f"{fails} theorems do not apply: --all says why, and where the others are proved",
            style="dim",
            highlight=False,
        )
    for caveat in certificate.all_caveats() if certified else ():
        console.print(translate_to_flags(f"- {caveat}"), style="dim", highlight=False)


def divergences(orders: list[float], rows: list[dict[str, Any]]) -> Table:
    """Renyi divergences by theorem and order, rounded up."""
    table = Table(title="Renyi divergence of order", title_justify="left")
    table.add_column("theorem", no_wrap=True)
    table.add_column("kind")
    for order in orders:
        table.add_column(f"{order:g}", justify="right")
    for row in rows:
        table.add_row(
            row["theorem"], row["kind"], *(format_rounded_up(value) for value in row["epsilon"])
        )
    return table

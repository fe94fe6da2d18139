"""What the terminal shows: tables and short texts from certificates; pure functions of what they are given."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table

from lastiterate.accounting import explain
from lastiterate.accounting.certificate import Certificate
from lastiterate.accounting.secrecy import gained
from lastiterate.accounting.wording import rounded_down, rounded_up
from lastiterate.cli.names import in_flags
from lastiterate.curves.curve import check_delta
from lastiterate.features.map_table import described
from lastiterate.planning.planner import Choice, share_words
from lastiterate.run.correlated_noise import Correlated
from lastiterate.run.noise import NoiseMultiplier
from lastiterate.run.updates import HeavyBall
from lastiterate.theorems import words
from lastiterate.theorems.theorem import Theorem, by_reason

if TYPE_CHECKING:
    from lastiterate.release.pipeline import Released
    from lastiterate.run.run import Run


PROTECTS = ("one record: a row of the data. Zero-out hides whether it was used at all, replace-one also which "
            "values it had; a person with k rows needs k times as much")
"""What the numbers above it are about."""


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


def refusals(console: Console, certificate: Certificate, delta: float) -> None:
    """The theorems that do not apply, and why."""
    failures = {row["theorem"]: row["reasons"] for row in certificate.rows(delta) if not row["applies"]}
    if failures:
        console.print("does not apply:", style="dim")
        console.print(in_flags(by_reason(failures)), style="dim", highlight=False, markup=False)


def accounted(console: Console, certificate: Certificate, delta: float) -> None:
    """The screen of ``account``."""
    check_delta(delta)
    certified = math.isfinite(certificate.epsilon(delta))
    console.print(in_flags(explain.headline(certificate, delta)), highlight=False, markup=False)
    if certified:
        other = certificate.replace_one_epsilon(delta)
        console.print(f"under replace-one: epsilon {rounded_up(other)}", highlight=False)
    if any(row["applies"] for row in certificate.rows(delta)):
        console.print(verdicts(certificate, delta))
    if certified:
        refusals(console, certificate, delta)
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


def trained(console: Console, result: Released, where: str) -> None:
    """The one screen that ``train`` ends with."""
    from lastiterate.release.answers import Labels
    from lastiterate.release.linear import FittedLinear

    model = result.model
    certificate, delta = model.certificate, model.delta
    table = Table.grid(padding=(0, 3))
    table.add_row("privacy", f"[bold]epsilon {rounded_up(certificate.epsilon(delta))}[/bold] at delta {delta:g}, "
                             f"{certificate.adjacency} adjacency")
    table.add_row("", f"epsilon {rounded_up(certificate.replace_one_epsilon(delta))} under replace-one")
    table.add_row("protects", PROTECTS)
    linear = isinstance(model, FittedLinear)
    kinds = {"linear": lambda: _run_rows(certificate, delta), "selected": lambda: _selected_rows(model),
             "exact": lambda: _exact_rows(model)}
    for row in kinds.get(model.form, lambda: _sample_rows(model))():
        table.add_row(*row)
    if model.schema is not None and model.schema.features:
        table.add_row("features", described(model.schema.features))
    what = "accuracy" if linear and isinstance(model.answers, Labels) else "R^2"
    if result.test_score is not None:
        table.add_row(f"test {what}", f"[bold]{result.test_score:.3f}[/bold] on public test data")
    for found in getattr(model, "accuracies", ()):
        table.add_row("accuracy", str(found))
    if result.plain_score is not None:
        table.add_row("", f"{result.plain_score:.3f} without privacy (shown because this set is public)")
    table.add_row("model", escape(where))
    notes = "\n".join(f"- {escape(in_flags(caveat))}" for caveat in certificate.all_caveats())
    console.print(Panel(Group(table, "", f"[dim]{notes}[/dim]"), title="trained in the dark, released once",
                        expand=False))


def _run_rows(certificate: Certificate, delta: float) -> list[tuple[str, str]]:
    best, run = certificate.best(delta), certificate.run
    assert best is not None and best.evidence is not None
    return [("certified by", f"{best.theorem.name} ({best.evidence.name.lower()} facts)"),
            ("secrecy", gained(certificate, delta)), ("run", run.method.words(run)), *_probabilities(run)]


def _probabilities(run: Run) -> list[tuple[str, str]]:
    """Whether probabilities are calibrated, of a classifier."""
    if not run.loss.target_classes:
        return []
    return [("probabilities", "not calibrated: they rank records, and nothing more" if run.calibration is None else
             f"calibrated by {run.calibration.rounds} noisy rounds, which are part of the guarantee")]


def _exact_rows(model: Any) -> list[tuple[str, str]]:
    run = model.run
    return [("certified by", "exact sums, exact discrete Gaussian noise, every step charged"),
            ("run", run.method.words(run)), *_probabilities(run)]


def _selected_rows(model: Any) -> list[tuple[str, str]]:
    chosen, run = model.selection, model.run
    return [
        ("selected", f"the best of a secret number of runs, {chosen.law.mean:.3g} on average, by a noisy score"),
        ("from", f"{len(chosen.candidates)} candidates, {chosen.held_out} records held out for their scores"),
        ("run", f"{run.steps} steps on {run.n} records, {type(run.batching).__name__}, row norm {run.loss.row_norm:g}"),
    ]


def _sample_rows(model: Any) -> list[tuple[str, str]]:
    prior = model.problem.model
    return [("one exact posterior sample", f"prior precision {prior.prior_precision:.4g}, "
                                           f"noise precision {prior.noise_precision:.4g}")]


def plans(console: Console, choice: Choice, delta: float) -> None:
    """The plans that were considered, what the theorems charge for each, and why the first won."""
    table = Table(title="plans considered", title_justify="left")
    shared = choice.alone is not None
    for name in ("plan", "predicted", "run", "noise multiplier", "seconds", *(("ledger",) if shared else ())):
        table.add_column(name, justify="left" if name in ("plan", "run") else "right")
    charges: list[str] = []
    for place, plan in enumerate(choice.plans):
        run = plan.certificate.run
        momentum = f", momentum {run.update.beta:.3g}" if isinstance(run.update, HeavyBall) else ""
        blocks = f"{run.steps // run.blocks} passes of {run.blocks} blocks" if run.blocks > 1 else f"{run.steps} steps"
        ridge = f", ridge {strong:.3g}" if (strong := run.loss.facts().fact("strong")) else ""
        multiplier = f"{run.noise.z:.4g}" if isinstance(run.noise, NoiseMultiplier | Correlated) else ""
        table.add_row(plan.name, rounded_up(plan.risk), blocks + momentum + ridge, multiplier, f"{plan.seconds:.2g}",
                      *((share_words(plan.share),) if shared else ()), style="bold" if place == 0 else "")
        charged = [(row["epsilon"], row["theorem"]) for row in plan.certificate.rows(delta)
                   if row["applies"] and row["kind"] == "upper" and row["epsilon"] is not None]
        charges.append(f"  {plan.name}: " + ", ".join(f"{name} {rounded_up(value)}" for value, name in sorted(charged)))
    table.add_row("output perturbation", rounded_up(choice.floor), "for comparison, not executed", "", "", style="dim")
    console.print(table)
    console.print("predicted: excess loss on a public reference problem; no data are read.", style="dim")
    console.print(f"epsilon at delta = {delta:g} that each theorem charges:", *charges, sep="\n", highlight=False)
    first, *others = choice.plans
    rival = min(others, key=lambda plan: plan.risk, default=None)
    reason = "the only family that fits" if rival is None else (
        f"predicted {rounded_up(first.risk)} in {first.seconds:.2g} s, against {rounded_up(rival.risk)} in "
        f"{rival.seconds:.2g} s by {rival.name}")
    console.print(f"chosen: [bold]{first.name}[/bold], {reason}.", highlight=False)
    if shared:
        console.print(choice.about_sharing[0].upper() + choice.about_sharing[1:] + ".", highlight=False)
    sentence = gained(first.certificate, delta)
    console.print(sentence[0].upper() + sentence[1:] + ".", highlight=False)


def as_json(found: Theorem) -> dict[str, Any]:
    """One theorem, JSON-ready."""
    title, text = words(found)
    return {"name": found.name, "kind": found.kind, "title": title, "text": text, "formula": found.formula,
            "assumptions": [assumption.needs for assumption in found.assumptions], "remark": found.remark,
            "citation": found.citation}


def theorems(table: dict[str, Theorem]) -> Table:
    """The table of theorems, a row each."""
    shown = Table()
    for name in ("theorem", "kind", "needs", "source"):
        shown.add_column(name, overflow="fold", no_wrap=name == "theorem")
    for theorem in table.values():
        needs = "; ".join(a.needs for a in theorem.assumptions if a.name not in ("known_sensitivity", "known_noise"))
        shown.add_row(theorem.name, theorem.kind, escape(needs or "nothing more"), escape(theorem.citation))
    return shown


def theorem(console: Console, found: Theorem) -> None:
    """One theorem in full."""
    title, text = words(found)
    console.print(f"[bold]{found.name}[/bold] ({found.kind})\n\n{escape(title)}\n", highlight=False)
    console.print(f"  {found.formula}\n", highlight=False, markup=False)
    for paragraph in text.split("\n\n"):
        console.print(" ".join(paragraph.split()) + "\n", highlight=False, markup=False)
    console.print("Assumptions:", highlight=False)
    for assumption in found.assumptions:
        console.print(f"  - {assumption.needs}", highlight=False, markup=False)
    if found.remark:
        console.print(f"\n{found.remark}", highlight=False, markup=False)
    console.print(f"\nSource: {found.citation}", highlight=False, markup=False)

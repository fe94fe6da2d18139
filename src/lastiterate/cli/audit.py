"""`lastiterate audit`."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from lastiterate import interrupts
from lastiterate.cli.app import (
    Json,
    Terminal,
    app,
    console,
    list_on_request,
    reports_errors,
    translate_to_flags,
)
from lastiterate.cli.flag_bundles import bundle_flags
from lastiterate.errors import InputError
from lastiterate.run.validation import check_integer

if TYPE_CHECKING:
    from lastiterate.accounting.certificate import Certificate
    from lastiterate.audit import AuditReport, OneRunReport
    from lastiterate.audit.runner import AuditTarget
    from lastiterate.run.run import Run


# ``lastiterate audit``: flags in, one table out.


def list_attacks() -> dict[str, str]:
    """Attacks by name, each with what it does."""
    from lastiterate.audit import attacks, one_run

    return {name: attack.about for name, attack in attacks.ATTACKS.items()} | {
        attacks.NAME: "trains again with guessed seeds, and compares",
        one_run.NAME: "one model with many canaries, each in or out with probability 1/2",
    }


@dataclass(frozen=True, kw_only=True)
class Auditing:
    """What ``audit`` is asked for."""

    subject: Annotated[
        Path,
        typer.Argument(metavar="RUN.json|MODEL_DIR", help="a run, or a folder that train wrote"),
    ]
    attack: Annotated[
        str | None,
        typer.Option(
            "--attack",
            help="one attack; by default several; list shows all",
            callback=list_on_request(list_attacks),
            is_eager=True,
        ),
    ] = None
    trials: Annotated[
        int | None,
        typer.Option("--trials", help="models per data set; default: one to four minutes"),
    ] = None
    batch_models: Annotated[
        int | None, typer.Option("--batch-models", help="models trained at once (limits memory)")
    ] = None
    failure: Annotated[
        float, typer.Option("--failure", help="probability that a statement is wrong")
    ] = 0.05
    delta: Annotated[
        float | None, typer.Option("--delta", help="default: the certificate's, else 1e-5")
    ] = None
    features: Annotated[
        int | None, typer.Option("--features", help="columns of the synthetic data")
    ] = None
    seed: Annotated[int | None, typer.Option("--seed", help="a seed that repeats an audit")] = None
    results: Annotated[
        Path | None, typer.Option("--results", help="a file to resume from after an interruption")
    ] = None
    law: Annotated[
        bool,
        typer.Option(
            "--law",
            help="compare with the exact distribution instead of attacking",
        ),
    ] = False
    json_: Json = False
    plot: Annotated[
        Path | None,
        typer.Option("--plot", help="draw error rates and the limit into this file"),
    ] = None


@app.command("audit")
@reports_errors
@bundle_flags
def audit_command(asked: Auditing) -> None:
    """Attack a run's trainer and bound epsilon from below.

    Exit code 1 if the attack refutes the certificate.
    """
    from lastiterate.audit import one_run, runner
    from lastiterate.report.plots import figure_for

    subject = runner.read(asked.subject)
    if asked.plot is not None:
        figure_for(asked.plot)  # refuse a bad name before the work
    if asked.seed is not None:
        check_integer("seed", asked.seed, least=0)
    delta = next(value for value in (asked.delta, subject.delta, 1e-5) if value is not None)
    if asked.law or asked.attack == one_run.NAME:
        what = "comparisons with a law" if asked.law else f"the attack '{asked.attack}'"
        for name, value in (("plot", asked.plot), ("results", asked.results)):
            if value is not None:
                raise InputError(
                    f"--{name}", f"has no meaning for {what}", str(value), "leave it out"
                )
        if subject.exact:
            raise InputError(
                "audit",
                f"knows {what} for noise in floating point only",
                None,
                "leave the flag out",
            )
    if subject.forgetting is not None:
        _forgotten(asked, subject.forgetting, delta)
    elif asked.law:
        _show_law(subject.run, asked.trials, asked.seed, asked.json_)
    elif asked.attack == one_run.NAME:
        once = one_run.audit_one_run(
            subject.run,
            failure=asked.failure,
            delta=delta,
            seed=asked.seed,
            min_evidence=subject.min_evidence,
        )
        _show_report(once, asked.json_, subject.whole)
    else:
        _attack(asked, subject, delta)


def _forgotten(asked: Auditing, certificate: Certificate, delta: float) -> None:
    """Attack unlearning: distinguish a forgotten record from one never seen, on synthetic records."""
    from lastiterate.audit import unlearning_attack

    for name, value in (
        ("attack", asked.attack),
        ("plot", asked.plot),
        ("results", asked.results),
        ("batch_models", asked.batch_models),
        ("features", asked.features),
        ("law", asked.law or None),
    ):
        if value is not None:
            raise InputError(
                name,
                "has no meaning for a model that forgot, which has one attack",
                None,
                "leave it out",
            )
    trials = unlearning_attack.TRIALS if asked.trials is None else asked.trials
    _show_report(
        unlearning_attack.audit_forgetting(
            certificate, trials=trials, failure=asked.failure, delta=delta, seed=asked.seed
        ),
        asked.json_,
        certificate,
    )


def _attack(asked: Auditing, subject: AuditTarget, delta: float) -> None:
    """Train many models, and show what distinguishes them."""
    from lastiterate.audit import runner
    from lastiterate.report import plots

    every = subject.kind == "torch" and subject.run.release == "all"
    attacked = replace(subject, run=replace(subject.run, release="last")) if every else subject
    interrupts.say("no model was counted yet, so there is nothing to report")
    with _bar() as bar:
        task = bar.add_task("audit", total=None, speed="", left="choosing attacks")

        def tick(done: int, total: int, per_minute: float, left: float) -> None:
            if done == 0:
                bar.console.print(
                    f"{total:,} models, about {max(left, 1):.0f} s; Ctrl-C reports "
                    "what is counted by then",
                    highlight=False,
                )
            bar.update(
                task,
                completed=done,
                total=total,
                speed=f"{per_minute:,.0f} models/min",
                left=f"{left:.0f} s left",
            )

        code = 0
        try:
            report = runner.audit(
                attacked.attacked,
                attack=asked.attack,
                trials=asked.trials,
                failure=asked.failure,
                delta=delta,
                batch_models=asked.batch_models,
                results=asked.results,
                seed=asked.seed,
                features=asked.features,
                min_evidence=subject.min_evidence,
                train=_train_of(attacked),
                progress=tick,
            )
        except runner.Interrupted as early:
            report, code = early.report, 130
    if every:
        report = replace(report, not_executed=("release (all)", *report.not_executed))
    if asked.plot is not None:
        plots.receiver_curve(report, subject.certificate, asked.plot)
    _show_report(report, asked.json_, subject.whole, code)


def _train_of(subject: AuditTarget) -> Any:
    """The trainer of the folder's kind where it is not the library's own."""
    if subject.kind != "torch":
        return None
    from lastiterate.audit import networks, runner

    attacked = runner.auditable(subject.run).run  # without what a folder does not hold
    return import_module("lastiterate.torch.audited_modules").stand_in(attacked, networks.SHAPES)


def _show_law(run: Run, models: int | None, seed: int | None, json_: bool) -> None:
    from lastiterate.audit import exact_distribution as law

    report = law.compare(
        run, models=law.MODELS if models is None else models, seed=0 if seed is None else seed
    )
    if json_:
        print(report.to_json())
    else:
        _table(report.rows(), bad=not report.holds)
    if not report.holds:
        raise typer.Exit(1)


def _table(rows: list[tuple[str, str]], *, bad: bool) -> None:
    table = Table(show_header=False, box=None, pad_edge=False)
    for label, text in rows:
        table.add_row(label, text, style="bold red" if bad and label == "verdict" else None)
    console.print(table, highlight=False)


def _show_report(
    report: AuditReport | OneRunReport, json_: bool, certificate: Certificate, code: int = 0
) -> None:
    """Print the report; exit code 1 if the certificate is refuted, 130 if the audit was
    interrupted.

    A page shows the JSON only together with the certificate that was audited.
    """
    from lastiterate.release.ledger_charge import hash_of

    if json_:
        about = {"run_sha256": hash_of(certificate.subject.describe_charge())}
        print(json.dumps(json.loads(report.to_json()) | about, indent=2))
    else:
        _table(report.rows(), bad=report.refuted)
        for caveat in report.caveats:
            console.print(translate_to_flags(f"- {caveat}"), style="dim", highlight=False)
    if report.refuted or code:
        raise typer.Exit(code or 1)


def _bar() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[speed]}"),
        TextColumn("{task.fields[left]}"),
        console=Terminal(stderr=True),
        transient=True,
    )

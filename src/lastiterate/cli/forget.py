"""``lastiterate forget``: a model, its data and a list of ids in, a model as if it had never seen
them out.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table

from lastiterate.accounting.certificate_subject import format_rounded_up
from lastiterate.cli.app import (
    Header,
    Json,
    Out,
    app,
    console,
    reports_errors,
    translate_to_flags,
)
from lastiterate.cli.flag_bundles import Charged, bundle_flags
from lastiterate.errors import InputError

if TYPE_CHECKING:
    from lastiterate.release.forget_file import ForgetResult


@dataclass(frozen=True, kw_only=True)
class Forgetting(Charged):
    """What ``forget`` is asked for."""

    model: Annotated[
        Path, typer.Argument(metavar="MODEL_DIR", help="a folder that train or forget wrote")
    ]
    data: Annotated[
        str,
        typer.Argument(help="its training data, without records forgotten before"),
    ]
    remove: Annotated[Path, typer.Option("--remove", help="a text file with one id per line")]
    epsilon: Annotated[
        float, typer.Option("--epsilon", help="distance to a model that never saw the records")
    ]
    delta: Annotated[str, typer.Option("--delta", help="a number, or auto: at most 1/(10 n)")] = (
        "auto"
    )
    ids: Annotated[
        str | None,
        typer.Option(
            "--ids",
            help="the column of the ids; by default record numbers from 1",
        ),
    ] = None
    unit: Annotated[
        str | None,
        typer.Option(
            "--unit",
            help="the column of persons, if one row each was used",
        ),
    ] = None
    epochs: Annotated[
        int, typer.Option("--epochs", "--passes", help="epochs over the data, at most")
    ] = 80
    reserve: Annotated[
        int,
        typer.Option(
            "--reserve",
            help="predict the cost of forgetting this many records later",
        ),
    ] = 0
    header: Header = None
    memory: Annotated[
        str | None,
        typer.Option("--memory", help="bytes it may take: 1GB; default: a quarter of free"),
    ] = None
    scratch: Annotated[
        Path | None,
        typer.Option("--scratch", help="a folder for encrypted temporary files"),
    ] = None
    out: Out = None
    json_: Json = False


@app.command("forget")
@reports_errors
@bundle_flags
def forget_command(asked: Forgetting) -> None:
    """Remove records from a released model.

    Training resumes without them until the model is certified to be as if it had never seen
    them.
    """
    from lastiterate.cli import run_flags
    from lastiterate.cli.app import Terminal
    from lastiterate.cli.train import save_and_finish
    from lastiterate.release.file_training import find_free_folder
    from lastiterate.release.forget_file import Request, forget_file
    from lastiterate.release.jax_processes import refuse_launcher
    from lastiterate.release.pipeline import steps_bar
    from lastiterate.release.training_request import parse_delta

    refuse_launcher("forget")
    if asked.reserve < 0:
        raise InputError("reserve", "must be an integer number of records", asked.reserve)
    where, earlier = find_free_folder(asked.data) if asked.out is None else (asked.out, None)
    delta, shown = parse_delta(asked.delta), Terminal(stderr=True)
    wanted = Request(
        model=asked.model,
        data=asked.data,
        remove=asked.remove,
        epsilon=asked.epsilon,
        ids=asked.ids,
        unit=asked.unit,
        delta=None if delta == "auto" else delta,
        passes=asked.epochs,
        reserve=asked.reserve,
        header=run_flags.header(asked.header),
        memory=None if asked.memory is None else run_flags.parse_bytes("--memory", asked.memory),
        scratch=asked.scratch,
        notice=lambda text: shown.print(
            translate_to_flags(text, ["memory"]), highlight=False, soft_wrap=True
        ),
    )
    charging = asked.make_charging(purpose="forget", place=where, earlier=earlier)
    with charging, steps_bar("forgetting", shown) as tick:
        result = forget_file(wanted, charging=charging, progress=tick)
    place = save_and_finish(result.model, where, charging)
    if asked.json_:
        print(json.dumps(plan_to_json(result, str(place)), indent=2))
    else:
        _show(result, str(place))
    if place not in (where, charging.finished):
        raise typer.Exit(2)


def plan_to_json(forgot: ForgetResult, where: str) -> dict[str, Any]:
    """All of its numbers."""
    plan, model = forgot.plan, forgot.model
    return {
        "model": where,
        "kind": model.form,
        "epsilon": model.certificate.epsilon(model.delta),
        "delta": model.delta,
        "adjacency": model.certificate.adjacency,
        "removed": plan.subject.requests[-1].removed,
        "removed_in_all": plan.subject.removed,
        "requests": len(plan.subject.requests),
        "reference": plan.subject.reference,
        "passes": plan.passes,
        "steps": plan.run.steps,
        "noise_before": plan.run.start.std,
        "predicted_excess": plan.excess,
        "passes_anew": plan.retraining,
        "epsilon_of_others": forgot.whole,
        "epsilon_of_others_by_these_steps": forgot.steps,
        "adjacency_of_others": plan.run.adjacency,
        "later": None
        if forgot.later is None
        else {
            "records": forgot.reserve,
            "passes": forgot.later.passes,
            "predicted_excess": forgot.later.excess,
        },
        "caveats": list(model.certificate.all_caveats()),
    }


def _show(forgot: ForgetResult, where: str) -> None:
    from lastiterate.accounting.unlearning import format_count
    from lastiterate.planning.unlearning_plans import explain_caveat

    model, plan = forgot.model, forgot.plan
    subject, table = plan.subject, Table.grid(padding=(0, 3))
    removed, requests = subject.requests[-1].removed, format_count(len(subject.requests), "request")
    what = "record" if not forgot.unit else "unit"
    whose = f" ({forgot.unit}), by the first row" if forgot.unit else ""
    table.add_row(
        "forgot",
        f"[bold]{format_count(removed, what)}{escape(whose)}[/bold], {subject.removed} in all of "
        f"{requests}",
    )
    table.add_row(
        "certified",
        f"[bold]epsilon {format_rounded_up(model.certificate.epsilon(model.delta))}[/bold] at delta "
        f"{model.delta:g}, against a model that never saw them",
    )
    table.add_row("that model", escape(subject.reference))
    table.add_row(
        "took",
        f"{format_count(plan.passes, 'epoch')}, {format_count(plan.run.steps, 'step')}; predicted excess loss "
        f"{format_rounded_up(plan.excess)}",
    )
    table.add_row("retraining", _describe_retraining(plan.retraining, plan.worth_it))
    if forgot.later is not None:
        table.add_row(
            "later",
            f"{format_count(forgot.reserve, 'more record')}: {format_count(forgot.later.passes, 'epoch')}, "
            "predicted excess loss "
            f"{format_rounded_up(forgot.later.excess)}",
        )
    table.add_row(
        "everybody else",
        "nothing is promised to the records that stay: training or steps had no noise, "
        "or are about other neighbours"
        if forgot.whole is None
        else f"epsilon {format_rounded_up(forgot.whole)} "
        f"({plan.run.adjacency}) for all of it, of which these steps alone "
        f"{format_rounded_up(forgot.steps)}",
    )
    table.add_row(
        "now",
        "delete these records from the data, and every copy of the old model that you can reach; "
        "make the next request on the remaining data",
    )
    table.add_row("model", escape(where))
    notes = "\n".join(
        f"- {escape(explain_caveat(text, model.certificate, model.delta))}"
        for text in model.certificate.all_caveats()
    )
    console.print(Panel(table, title="forgotten", expand=False))
    console.print(f"[dim]{notes}[/dim]", highlight=False)


def _describe_retraining(passes: int | None, worth_it: bool) -> str:
    if passes is None:
        return "would take more epochs than were tried"
    return f"would take about {passes} epochs" + (
        "" if worth_it else ": no more than this, and it leaves nothing to certify; consider it"
    )

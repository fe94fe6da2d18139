"""``lastiterate plan``: what would be trained, from public numbers alone."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from lastiterate.cli.screen import Calibrated, Json, Out, TimeBudget, app, console, emit, reports_errors
from lastiterate.errors import InputError

if TYPE_CHECKING:
    from lastiterate.planning.task import Task
    from lastiterate.release.linear import Budget


@app.command("plan")
@reports_errors
def plan_command(
    n: Annotated[int, typer.Option("--n", help="public number of records")],
    epsilon: Annotated[float, typer.Option("--epsilon", help="the privacy budget")],
    features: Annotated[int | None, typer.Option("--features", help="columns; or by --schema")] = None,
    classes: Annotated[int | None, typer.Option("--classes", help="0 for regression; 2 by default")] = None,
    schema: Annotated[Path | None, typer.Option("--schema", help="takes features, classes and row norm from a schema"
                                                )] = None,
    delta: Annotated[str, typer.Option("--delta", help="a number, or auto: at most 1/(10 n)")] = "auto",
    row_norm: Annotated[float | None, typer.Option("--row-norm", help="public bound on a row's norm")] = None,
    adjacency: Annotated[str, typer.Option("--adjacency", help="zero-out or replace-one")] = "zero-out",
    time_budget: TimeBudget = 60.0,
    stream: Annotated[bool, typer.Option("--stream", help="data that do not fit in memory")] = False,
    ledger: Annotated[Path | None, typer.Option("--ledger", help="plan for what this ledger file leaves")] = None,
    dataset: Annotated[str | None, typer.Option("--dataset", help="the data set's name in the ledger")] = None,
    calibrated: Calibrated = True,
    out: Out = None,
    json_: Json = False,
) -> None:
    """What train would do with such data, and why; --out writes the chosen run as JSON."""
    from lastiterate.cli import as_json, show
    from lastiterate.planning.planner import consider
    from lastiterate.planning.task import automatic_delta
    from lastiterate.release import datafile
    from lastiterate.release.charging import custody
    from lastiterate.release.linear import Budget

    given = datafile.parse_delta(delta)
    task = _task(Budget(epsilon, given, cast(Any, adjacency), time_budget), n, schema, features, classes, row_norm)
    task = replace(task, calibrated=calibrated)
    value = automatic_delta(n) if isinstance(given, str) else given
    choice = consider(task, epsilon=epsilon, delta=value, adjacency=cast(Any, adjacency),
                      time_budget=time_budget, stream=stream, shared=custody(ledger=ledger, dataset=dataset).allowance)
    if json_:
        print(json.dumps(as_json.plans(choice, value), indent=2))
    else:
        show.plans(console, choice, value)
    if out is not None:
        emit(choice.best.certificate.run.to_json() + "\n", out)


def _task(budget: Budget, n: int, schema: Path | None, features: int | None, classes: int | None,
          row_norm: float | None) -> Task:
    """The public numbers of a plan, from flags or from a schema (whose array does not say how wide it is)."""
    from lastiterate.data import Schema
    from lastiterate.planning.task import Task
    from lastiterate.release.feature_choice import AUTO, chosen

    if schema is not None:
        facts = Schema.read(schema)
        for name, value in (("features", None if facts.array is not None else features), ("classes", classes)):
            if value is not None:
                raise InputError(name, "cannot be combined with a schema, which says it", value, "leave it out")
        classes = len(facts.classes)
        if features is not None or facts.array is None:
            shape = (1 if features is None else features,)
            form = chosen(facts, AUTO, shape, n, budget).schema.form(shape)
            features, row_norm = form.width, form.norm if row_norm is None else row_norm
    if features is None:
        raise InputError("features", "is needed: how many columns of numbers a row has", None,
                         "give it, or the --schema of a table")
    return Task(n, features, 2 if classes is None else classes, 1.0 if row_norm is None else row_norm)

"""``lastiterate plan``: what would be trained, from public numbers alone."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lastiterate.cli.app import Calibrated, Json, Out, app, console, emit, reports_errors
from lastiterate.cli.train import Budgeted, Charged, bundle_flags
from lastiterate.errors import InputError

if TYPE_CHECKING:
    from lastiterate.planning.task import Task
    from lastiterate.release.linear_plans import FeatureChoice


@dataclass(frozen=True, kw_only=True)
class Planning(Charged, Budgeted):
    """What ``plan`` is asked for."""

    n: Annotated[int, typer.Option("--n", help="public number of records")]  # pyright: ignore
    features: Annotated[
        int | None, typer.Option("--features", help="number of columns, if there is no --schema")
    ] = None
    classes: Annotated[
        int | None,
        typer.Option("--classes", help="number of classes (default 2; 0 for regression)"),
    ] = None
    schema: Annotated[
        Path | None,
        typer.Option("--schema", help="a schema that states features, classes and row norm"),
    ] = None
    row_norm: Annotated[
        float | None, typer.Option("--row-norm", help="public bound on a row's norm")
    ] = None
    stream: Annotated[bool, typer.Option("--stream", help="plan for data larger than memory")] = (
        False
    )
    calibrated: Calibrated = True
    out: Out = None
    json_: Json = False

    @property
    def rows(self) -> tuple[Task, FeatureChoice | None]:
        """The public numbers, from flags or from a schema (whose array does not say how wide it
        is), and its maps.
        """
        from lastiterate.data import Schema
        from lastiterate.planning.task import Task
        from lastiterate.release.linear_plans import AUTO, choose_features

        features, classes, row_norm, maps = self.features, self.classes, self.row_norm, None
        if self.schema is not None:
            facts = Schema.read(self.schema)
            for name, value in (
                ("features", None if facts.array is not None else features),
                ("classes", classes),
            ):
                if value is not None:
                    raise InputError(
                        name,
                        "cannot be combined with a schema, which says it",
                        value,
                        "leave it out",
                    )
            classes = len(facts.classes)
            if features is not None or facts.array is None:
                shape = (1 if features is None else features,)
                maps = choose_features(facts, AUTO, shape, self.n, self.budget)
                form = maps.schema.form(shape)
                features, row_norm = form.width, form.norm if row_norm is None else row_norm
        if features is None:
            raise InputError(
                "features",
                "is needed: how many columns of numbers a row has",
                None,
                "give it, or the --schema of a table",
            )
        return Task(
            self.n,
            features,
            2 if classes is None else classes,
            1.0 if row_norm is None else row_norm,
            calibrated=self.calibrated,
        ), maps


@app.command("plan")
@reports_errors
@bundle_flags
def plan_command(asked: Planning) -> None:
    """Show the plan that train would choose, and why.

    ``--out`` writes the chosen run as JSON.
    """
    from lastiterate.cli import show
    from lastiterate.planning.planner import consider

    (task, maps), budget = asked.rows, asked.budget
    delta = budget.delta_for(asked.n)
    choice = consider(
        task,
        epsilon=budget.epsilon,
        delta=delta,
        adjacency=budget.adjacency,
        time_budget=budget.time_budget,
        stream=asked.stream,
        shared=asked.make_charging().allowance(),
    )
    if asked.json_:
        print(json.dumps(show.plans_as_json(choice, delta), indent=2))
    else:
        show.plans(console, choice, delta)
        if maps is not None:
            console.print(f"features: {maps.why}", highlight=False, markup=False)
            if said := maps.compare_costs(task, choice.best, budget, stream=asked.stream):
                console.print(f"more features? {said}.", highlight=False, markup=False)
    if asked.out is not None:
        emit(choice.best.certificate.run.to_json() + "\n", asked.out)

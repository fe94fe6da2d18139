"""``lastiterate plan``: what would be trained, from public numbers alone."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lastiterate.cli.app import Calibrated, Json, Out, app, console, emit, reports_errors
from lastiterate.cli.flag_bundles import Budgeted, Charged, bundle_flags, check_rows_named
from lastiterate.errors import InputError
from lastiterate.run.adjacency import has_fixed_size
from lastiterate.run.validation import check_integer

if TYPE_CHECKING:
    from lastiterate.planning.task import Task
    from lastiterate.release.allowance import Allowance
    from lastiterate.release.linear_plans import FeatureChoice


@dataclass(frozen=True, kw_only=True)
class Planning(Charged, Budgeted):
    """What ``plan`` is asked for."""

    n: Annotated[int, typer.Option("--n", help="public number of records (persons with --unit)")]  # pyright: ignore
    ledger: Annotated[
        Path | None,
        typer.Option("--ledger", help="plan for what this ledger leaves; nothing is charged"),
    ] = None
    unit: Annotated[
        str | None, typer.Option("--unit", help="the column that names the person of a row")
    ] = None
    rows_per_unit: Annotated[
        int, typer.Option("--rows-per-unit", help="rows used of each person, at most (public)")
    ] = 1
    features: Annotated[
        str | None,
        typer.Option("--features", help="number of columns, or with --schema maps as in train"),
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
        from lastiterate.features.map_registry import PLAIN
        from lastiterate.planning.task import Task
        from lastiterate.release.linear_plans import choose_features
        from lastiterate.release.units import check_unit_column

        if self.n is None:  # pyright: ignore[reportUnnecessaryComparison]  # the flag was left out
            raise InputError("n", "is needed: the public number of records", None, "such as n=5000")
        features, names = self._split_features()
        classes, row_norm, maps = self.classes, self.row_norm, None
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
                        "leave it out, or name maps such as curves"
                        if name == "features"
                        else "leave it out",
                    )
            if self.unit is not None:
                check_unit_column(facts, self.unit)
            classes = len(facts.classes)
            if features is not None or facts.array is None:
                shape = (1 if features is None else features,)
                maps = choose_features(facts, names, shape, self.n, self.budget)
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
            rows_per_record=self.rows_per_unit,
            feature_map=PLAIN if maps is None else maps.part,
            calibrated=self.calibrated,
        ), maps

    def _split_features(self) -> tuple[int | None, str]:
        """The number of columns, and the names of maps for a schema's."""
        from lastiterate.release.linear_plans import AUTO

        text = self.features
        if text is None:
            return None, AUTO
        if text.isdecimal():
            return int(text), AUTO
        if self.schema is None:
            raise InputError(
                "features",
                "must be the number of columns, or with a schema the names of maps that train takes",
                text,
                "such as features=30, or add schema=FILE",
            )
        return None, text

    def check_units(self) -> None:
        """Refuse rows of persons that nobody names, and persons that no batch draws."""
        check_integer("rows_per_unit", self.rows_per_unit)
        check_rows_named(self.unit, self.rows_per_unit)
        if self.rows_per_unit > 1 and (self.stream or not has_fixed_size(self.adjacency)):
            raise InputError(
                "rows_per_unit",
                "must be 1 with --stream or add-remove: no batch draws persons there",
                self.rows_per_unit,
                "lastiterate train --explain-plan shows its plan",
            )

    def check_ledger(self) -> None:
        """Refuse to plan for what a damaged ledger says it leaves."""
        from lastiterate.ledger import Ledger

        if self.ledger is not None and (problems := Ledger(self.ledger).verify()):
            raise InputError(
                "ledger",
                f"must hold before it is planned for: {problems[0]}",
                str(self.ledger),
                "restore it from a copy; lastiterate ledger verify lists all that is wrong",
            )

    def words_of_group(self, allowance: Allowance | None) -> str:
        """That a ledger of persons is charged for several single rows, and what costs less."""
        rows = 1 if allowance is None or self.unit is not None else allowance.total.groups(1)
        if rows == 1 or allowance is None:
            return ""
        from lastiterate.data import Schema
        from lastiterate.release.units import find_id_columns, guess_unit_column

        unit = allowance.total.unit
        ids = () if self.schema is None else find_id_columns(Schema.read(self.schema))
        known = guess_unit_column(ids, unit)
        column = "COLUMN" if known is None else shlex.quote(known)
        return (
            f"Single rows are planned, and one {unit} has at most {rows} of them: the ledger would "
            f"be charged for a group of {rows}. --unit {column}, with --n counting by {unit}, costs "
            f"less (--rows-per-unit {rows} uses all rows of each)"
        )


@app.command("plan")
@reports_errors
@bundle_flags
def plan_command(asked: Planning) -> None:
    """Show the plan that train would choose, and why.

    --out writes the chosen run as JSON.
    """
    from lastiterate.cli import tables
    from lastiterate.planning.planner import consider

    asked.check_units()
    (task, maps), budget = asked.rows, asked.budget
    charging = asked.make_charging()
    asked.check_ledger()
    charging.of_units = asked.unit is not None
    allowance = charging.allowance()
    delta = budget.delta_for(asked.n)
    choice = consider(
        task,
        epsilon=budget.epsilon,
        delta=delta,
        adjacency=budget.adjacency,
        time_budget=budget.time_budget,
        stream=asked.stream,
        shared=allowance,
    )
    if asked.json_:
        print(json.dumps(tables.plans_as_json(choice, delta), indent=2))
    else:
        tables.plans(console, choice, delta)
        if said := asked.words_of_group(allowance):
            console.print(f"{said}.", highlight=False, markup=False)
        if maps is not None:
            console.print(f"features: {maps.why}", highlight=False, markup=False)
            if said := tables.about_text(maps.schema):
                console.print(f"text: {said}", highlight=False, markup=False)
            if said := tables.about_wide_columns(maps.schema):
                console.print(f"columns: {said}.", highlight=False, markup=False)
            if said := maps.compare_costs(
                task, choice.best, budget, stream=asked.stream, shared=allowance
            ):
                console.print(f"more features? {said}.", highlight=False, markup=False)
    if asked.out is not None:
        emit(choice.best.certificate.run.to_json() + "\n", asked.out)

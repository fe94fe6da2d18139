"""``lastiterate train``: a file in, a released model out."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lastiterate.accounting.releaser_statement import ENTRIES
from lastiterate.cli.bundles import FromFile, bundled
from lastiterate.cli.screen import (
    ALGORITHM_HELP,
    FLAG_HELP,
    Calibrated,
    Json,
    Threshold,
    app,
    console,
    reports_errors,
)
from lastiterate.cli.terminal import Terminal
from lastiterate.errors import InputError

if TYPE_CHECKING:
    from lastiterate.release.datafile import Wanted
    from lastiterate.release.pipeline import Released


@dataclass(frozen=True, kw_only=True)
class Training(FromFile):
    """What ``train`` is asked for."""

    model: Annotated[str | None, typer.Option("--model", help="logistic, huber-ridge or bayes-linear")] = None
    target: Annotated[str | None, typer.Option("--target", help="the column to predict, if not the schema's")] = None
    classes: Annotated[str | None, typer.Option("--classes", help="public labels a,b,c, if not the schema's")] = None
    row_norm: Annotated[float | None, typer.Option("--row-norm", help="public bound on a scaled row's norm")] = None
    test: Annotated[str | None, typer.Option("--test", help="a test file to score on")] = None
    test_is_public: Annotated[bool, typer.Option("--test-is-public", help="scores may be shown")] = False
    explain_plan: Annotated[bool, typer.Option("--explain-plan", help="the plans considered, and why one won")] = False
    algorithm: Annotated[str, typer.Option("--algorithm", help=ALGORITHM_HELP)] = "automatic"
    batch: Annotated[str | None, typer.Option("--batch", help="batches of --algorithm: " + FLAG_HELP["batch"])] = None
    prox: Annotated[str | None, typer.Option("--prox", help="a penalty for --algorithm: " + FLAG_HELP["prox"])] = None
    cap: Annotated[float | None, typer.Option("--cap", help="cap of --algorithm's loss on 1 - p_y")] = None
    checkpoint: Annotated[Path | None, typer.Option("--checkpoint", help="an encrypted file to go on from")] = None
    checkpoint_every: Annotated[float, typer.Option("--checkpoint-every", help="seconds")] = 60.0
    checkpoint_key: Annotated[Path | None, typer.Option("--checkpoint-key", help="a file of mode 0600 with 64 "
                                                        "hexadecimal digits; or LASTITERATE_CHECKPOINT_KEY")] = None
    secure_noise: Annotated[bool, typer.Option("--secure-noise", help="exact sums and exact noise; every step "
                                               "is charged")] = False
    unit: Annotated[str | None, typer.Option("--unit", help="the column that says which person a row is of")] = None
    rows_per_unit: Annotated[int, typer.Option("--rows-per-unit", help="most rows of one unit that are used; a public "
                                               "number")] = 1
    purpose: Annotated[str | None, typer.Option("--purpose", help="what the model is for; shown in the report")] = None
    trained_by: Annotated[str | None, typer.Option("--trained-by", help="who trains it; shown in the report")] = None
    statement: Annotated[Path | None, typer.Option("--statement", help="a TOML file with the releaser's statement: "
                                                   f"{', '.join(ENTRIES)}")] = None
    stream: Annotated[bool, typer.Option("--stream", help="read the file piece by piece, also where its values would "
                                         "fit in memory")] = False
    scratch: Annotated[Path | None, typer.Option("--scratch", help="a folder for encrypted scratch files without a "
                                                 "name, where a file is read piece by piece")] = None
    devices: Annotated[int, typer.Option("--devices", help="how many of JAX's devices share every batch")] = 1
    report_accuracy: Annotated[float | None, typer.Option("--report-accuracy", help="show the accuracy on a tenth of "
                               "the records, held out, counted with noise; the part of the budget mu^2 it costs, such "
                               "as 0.05")] = None
    calibrated: Calibrated = True
    class_weight: Annotated[str | None, typer.Option("--class-weight", help="public weights LABEL=WEIGHT,LABEL=WEIGHT "
                                                     "of the records of every class; only ratios matter")] = None
    threshold: Threshold = None
    json_: Json = False

    def stated(self) -> dict[str, Any]:
        """The releaser's statement: the file's entries, and those that have a flag of their own."""
        from lastiterate.accounting.releaser_statement import check_statement, read_statement

        said = {} if self.statement is None else read_statement(self.statement)
        for name, text in (("purpose", self.purpose), ("trained_by", self.trained_by)):
            if text is not None and said.get(name, text) != text:
                raise InputError(name, "differs from what the releaser's statement says", text, "say it once")
            said |= {} if text is None else {name: text}
        return check_statement(said)

    def wanted(self) -> Wanted:
        """The same, read and checked."""
        from lastiterate.cli import flags
        from lastiterate.release.datafile import Wanted
        from lastiterate.release.linear_plans import Algorithm
        from lastiterate.release.open_dataset import schema_for
        from lastiterate.release.protected_units import Units

        schema = schema_for(self.data, self.schema, target=self.target, classes=self.classes, model=self.model,
                            header=flags.header(self.header))
        if self.test is not None and not self.test_is_public:
            raise InputError("test", "scores are shown only when the test file is declared public", self.test,
                             "add --test-is-public, or leave --test out")
        if self.unit is None and self.rows_per_unit != 1:
            raise InputError("rows_per_unit", "needs the column that says who a row is of", self.rows_per_unit,
                             "name --unit")
        batching = None if self.batch is None else flags.batching(self.batch)
        return Wanted(data=self.data, budget=self.budget, model=self.model, schema=schema, test=self.test,
                      algorithm=Algorithm(self.algorithm, batching, flags.prox(self.prox), self.cap),
                      row_norm=self.row_norm, units=None if self.unit is None else Units(self.unit, self.rows_per_unit),
                      features=self.features, secure_noise=self.secure_noise, stream=self.stream, scratch=self.scratch,
                      devices=self.devices, report_accuracy=self.report_accuracy, calibrated=self.calibrated,
                      class_weight=flags.class_weight(self.class_weight), threshold=flags.threshold(self.threshold))


@app.command("train")
@reports_errors
@bundled
def train_command(asked: Training) -> None:
    """Train a model, certify it, write it to a folder."""
    from lastiterate.cli.saving import committed
    from lastiterate.cli.show import measure
    from lastiterate.release import datafile, open_dataset
    from lastiterate.release.steps_bar import steps_bar

    wanted = asked.wanted()
    (where, earlier), said = asked.folders(), asked.stated()
    charging = asked.charging(checkpoint=asked.checkpoint, every=asked.checkpoint_every, key_file=asked.checkpoint_key,
                              place=where, earlier=earlier)
    why = None if wanted.stream else open_dataset.too_large(wanted.data)
    if why is not None:
        wanted = replace(wanted, stream=True)
        Terminal(stderr=True).print(f"the data are read piece by piece: {why}", highlight=False, soft_wrap=True)
    with charging, steps_bar("training", Terminal(stderr=True)) as tick:
        result = datafile.fit_file(wanted, progress=tick, charging=charging)
    if result.test_score is not None:
        what = "" if measure(result.model) == "accuracy" else "R^2 "
        said.setdefault("accuracy", f"{what}{result.test_score:.3f} on {asked.test or 'a bundled public test set'}")
    if said and charging.finished is None:
        result = replace(result, model=result.model.saying(said))
    place = committed(result.model, where, charging)
    try:
        _show(result, str(place), asked)
        sys.stdout.flush()
    except OSError:
        Terminal(stderr=True).print(f"the model is at {place}", highlight=False, soft_wrap=True)
        raise
    if place not in (where, charging.finished):
        raise typer.Exit(2)


def _show(result: Released, where: str, asked: Training) -> None:
    """The one screen that a fit ends with, or all of its numbers as JSON."""
    from lastiterate.cli import as_json, show

    if asked.json_:
        print(json.dumps(as_json.trained(result, where), indent=2))
        return
    if asked.explain_plan and result.choice is None:
        name = asked.algorithm if asked.model is None else asked.model
        console.print(f"no plans were considered for {name}", highlight=False)
    elif asked.explain_plan and result.choice is not None:
        show.plans(console, result.choice, result.model.delta)
        if result.features:
            console.print(f"features: {result.features}", highlight=False, markup=False)
        if result.weigh is not None and (said := result.weigh()):
            console.print(f"more features? {said}.", highlight=False, markup=False)
    show.trained(console, result, where)

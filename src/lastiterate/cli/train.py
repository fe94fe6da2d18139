"""`lastiterate train` and `tune`: their flags, and saving a model that was paid for."""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lastiterate import interrupts
from lastiterate.cli.app import (
    ALGORITHM_HELP,
    FLAG_HELP,
    LISTED,
    Calibrated,
    Json,
    Terminal,
    Threshold,
    TimeBudget,
    app,
    console,
    list_on_request,
    reports_errors,
    translate_to_flags,
)
from lastiterate.cli.flag_bundles import (
    FromFile,
    ReadFile,
    bundle_flags,
    list_algorithms,
    list_maps,
)
from lastiterate.errors import InputError
from lastiterate.ledger.ledger import Ledger
from lastiterate.release import folder
from lastiterate.release.ledger_charge import Charging
from lastiterate.release.released_model import ReleasedModel

if TYPE_CHECKING:
    from lastiterate.release.file_training import TrainResult
    from lastiterate.release.training_request import Processes, TrainingRequest

# Save a model that was paid for. Where its folder cannot be written, it goes to a temporary one.


def save_and_finish(model: ReleasedModel, where: Path, charging: Charging) -> Path:
    """Write the model, call it released, write its report: all of it, whatever is pressed
    meanwhile; the place.

    What the ledger would refuse is not written. A ledger that cannot be written at the moment does
    not cost the model.
    """
    interrupts.check()
    with interrupts.later():
        if charging.finished is None:
            charging.announce(model)
            stored = save_model(model, where)
        else:
            stored = folder.read(charging.finished)
            Terminal(stderr=True).print(
                f"{stored.path} was written by an earlier run of this command, which was stopped "
                "before it ended: nothing was trained or charged again",
                highlight=False,
                markup=False,
                soft_wrap=True,
            )
        complete = f"the model is complete, at {stored.path}"
        interrupts.say(complete)
        try:
            charging.release(model)
        except InputError as error:
            raise error.with_clause(f"{complete}, and its line in the ledger is charged") from None
        show_head(charging.ledger)
        write_report(stored, model, charging.ledger)
        charging.discard()
    return stored.path


def save_model(model: ReleasedModel, where: Path) -> folder.StoredModel:
    """Write the model to ``where``, or else to a new temporary folder; returns what was written and
    says what happened.

    A folder with these weights is left as it is: an earlier process of this fit wrote it.
    """
    from lastiterate.release.pipeline import store_paid

    stored, why = store_paid(model, where)
    if why:
        Terminal(stderr=True).print(
            f"[bold red]error:[/bold red] --out {where} could not be written ({why}); the "
            f"model was saved at {stored.path}: move it from there",
            highlight=False,
            soft_wrap=True,
        )
    return stored


def write_report(
    stored: folder.StoredModel, model: ReleasedModel, ledger: Ledger | None = None
) -> None:
    """Write the report into a model's folder, with the line of the ledger that was charged; where
    there is no space left for it the model is complete without.
    """
    from lastiterate.report import page, subject

    place = stored.path
    if folder.holds(place, folder.PAGE):
        return
    try:
        text = page.page(subject.subject_of_release(stored, model, ledger))
        folder.add(place, folder.PAGE, text.encode(), replacing=True)
    except (OSError, InputError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        Terminal(stderr=True).print(
            f"the model is complete, but its report could not be written ({why}): "
            f"lastiterate report {place}",
            highlight=False,
            soft_wrap=True,
        )


def show_head(ledger: Ledger | None) -> None:
    """After a charge: the ledger's head, which shows later that none of its lines was lost."""
    if ledger is not None:
        head = ledger.head()
        said = f"lastiterate ledger verify {ledger.path} --head {head}"
        Terminal(stderr=True).print(
            f"the ledger's head is {head}: keep it in another place, and see later that "
            f"nothing was lost with: {said}",
            style="dim",
            highlight=False,
            markup=False,
            soft_wrap=True,
        )


# ``lastiterate train``: a file in, a released model out.


@dataclass(frozen=True, kw_only=True)
class Training(ReadFile, FromFile):
    """What ``train`` is asked for."""

    features: Annotated[
        str,
        typer.Option(
            "--features",
            help="auto, plain, curves, words ...; list shows all",
            callback=list_on_request(list_maps),
            is_eager=True,
        ),
    ] = "auto"
    row_norm: Annotated[
        float | None, typer.Option("--row-norm", help="public bound on a scaled row's norm")
    ] = None
    test: Annotated[str | None, typer.Option("--test", help="a test file to score on")] = None
    test_is_public: Annotated[
        bool, typer.Option("--test-is-public", help="the test file is public: show its scores")
    ] = False
    explain_plan: Annotated[
        bool, typer.Option("--explain-plan", help="show the plans compared, and why one won")
    ] = False
    algorithm: Annotated[
        str,
        typer.Option(
            "--algorithm",
            help=ALGORITHM_HELP,
            callback=list_on_request(list_algorithms),
            is_eager=True,
        ),
    ] = "automatic"
    batch: Annotated[
        str | None,
        typer.Option("--batch", help=FLAG_HELP["batch"], callback=LISTED["batch"], is_eager=True),
    ] = None
    prox: Annotated[
        str | None,
        typer.Option(
            "--prox",
            help="a penalty: l1:W, l2-squared:W ...; list shows all",
            callback=LISTED["prox"],
            is_eager=True,
        ),
    ] = None
    cap: Annotated[
        float | None, typer.Option("--cap", help="cap of --algorithm's loss on 1 - p_y")
    ] = None
    checkpoint: Annotated[
        Path | None, typer.Option("--checkpoint", help="an encrypted file to resume from")
    ] = None
    checkpoint_every: Annotated[
        float, typer.Option("--checkpoint-every", help="seconds between checkpoints")
    ] = 60.0
    checkpoint_key: Annotated[
        Path | None,
        typer.Option(
            "--checkpoint-key",
            help="a file (mode 0600) that holds 64 hexadecimal digits",
        ),
    ] = None
    secure_noise: Annotated[
        bool,
        typer.Option("--secure-noise", help="use exact integer noise; every step is charged"),
    ] = False
    purpose: Annotated[
        str | None, typer.Option("--purpose", help="what the model is for; shown in the report")
    ] = None
    trained_by: Annotated[
        str | None, typer.Option("--trained-by", help="who trains it; shown in the report")
    ] = None
    statement: Annotated[
        Path | None,
        typer.Option("--statement", help="a TOML file with the releaser's statement"),
    ] = None
    scratch: Annotated[
        Path | None,
        typer.Option(
            "--scratch",
            help="a folder for the encrypted temporary files of --stream",
        ),
    ] = None
    memory: Annotated[
        str | None,
        typer.Option("--memory", help="bytes it may take: 1GB; default: a quarter of free"),
    ] = None
    devices: Annotated[int, typer.Option("--devices", help="devices that share every batch")] = 1
    processes: Annotated[
        str | None,
        typer.Option("--processes", help="N here, or ray:N; 1: without the launcher's others"),
    ] = None
    report_accuracy: Annotated[
        float | None,
        typer.Option(
            "--report-accuracy",
            help="show a noisy held-out accuracy for this part of mu^2",
        ),
    ] = None
    calibrated: Calibrated = True
    class_weight: Annotated[
        str | None,
        typer.Option(
            "--class-weight",
            help="public weights of classes: no=1,yes=5",
        ),
    ] = None
    threshold: Threshold = None
    json_: Json = False

    def read_statement(self) -> dict[str, Any]:
        """The releaser's statement: the file's entries, and those that have a flag of their own."""
        from lastiterate.certificate_statement import check_statement, read_statement

        said = {} if self.statement is None else read_statement(self.statement)
        for name, text in (("purpose", self.purpose), ("trained_by", self.trained_by)):
            if text is not None and said.get(name, text) != text:
                raise InputError(
                    name, "differs from what the releaser's statement says", text, "say it once"
                )
            said |= {} if text is None else {name: text}
        return check_statement(said)

    def order(self, processes: Processes) -> TrainingRequest:
        """The same, checked by the flags alone; ``processes``: who trains together."""
        from lastiterate.cli import run_flags as flags
        from lastiterate.release.file_training import check_asked
        from lastiterate.release.training_request import Algorithm, TrainingRequest

        if self.test is not None and not self.test_is_public:
            raise InputError(
                "test",
                "scores are shown only when the test file is declared public",
                self.test,
                "add --test-is-public, or leave --test out",
            )
        if self.test is None and self.test_is_public:
            raise InputError(
                "test_is_public",
                "speaks of a test file, and none is given",
                None,
                "name it with --test FILE, or leave --test-is-public out",
            )
        batching = None if self.batch is None else flags.parse_batching(self.batch)
        order = TrainingRequest(
            data=self.data,
            budget=self.budget,
            model=self.model,
            test=self.test,
            algorithm=Algorithm(self.algorithm, batching, flags.prox(self.prox), self.cap),
            row_norm=self.row_norm,
            units=self.units(),
            features=self.features,
            exact=self.secure_noise,
            stream=self.stream,
            scratch=self.scratch,
            memory=None if self.memory is None else flags.parse_bytes("--memory", self.memory),
            devices=self.devices,
            report_accuracy=self.report_accuracy,
            calibrated=self.calibrated,
            class_weight=flags.class_weight(self.class_weight),
            threshold=flags.threshold(self.threshold),
            processes=processes,
        )
        if processes.count > 1:
            check_asked(order)
        return order


@app.command("train")
@reports_errors
@bundle_flags
def train_command(asked: Training) -> None:
    """Train a private model, certify it, write it to a folder."""
    from lastiterate.release import file_training
    from lastiterate.release.distributed import count_processes, run_command
    from lastiterate.release.jax_processes import (
        LaunchedProcesses,
        join,
        join_devices,
        redirect_stdout,
        refuse_once,
    )
    from lastiterate.release.ledger_charge import Charging
    from lastiterate.release.pipeline import progress_bars

    if asked.processes not in (None, "1"):
        asked.order(LaunchedProcesses(count_processes(asked.processes)))
        asked.read_schema()  # what can be refused without the others is
        raise typer.Exit(run_command(asked.processes, _without_processes(sys.argv[1:])))
    # before they connect all of them refuse the same: a file may be missing in one of them alone
    with refuse_once(launched := LaunchedProcesses(1 if asked.processes == "1" else None)):
        order = asked.order(launched)
    joined = 1 if order.processes.count == 1 else join()
    processes = join_devices(joined)
    first, schema = processes.rank == 0, asked.read_schema()
    (where, earlier), said = asked.folders(), asked.read_statement()
    charging = (
        asked.make_charging(
            checkpoint=asked.checkpoint,
            every=asked.checkpoint_every,
            key_file=asked.checkpoint_key,
            place=where,
            earlier=earlier,
        )
        if first
        else Charging()
    )
    shown = Terminal(stderr=True, quiet=not first)

    def say(text: str) -> None:
        shown.print(translate_to_flags(text, ["memory"]), highlight=False, soft_wrap=True)

    libraries = redirect_stdout(2) if processes.count > 1 else nullcontext()
    with libraries, charging, progress_bars("training", shown) as (steps, rows):
        result = file_training.fit_file(
            replace(
                order,
                schema=schema,
                devices=joined if asked.devices == 1 else asked.devices,
                progress=steps,
                rows_progress=rows,
                notice=say,
                charging=charging,
                processes=processes,
            )
        )
    if not first:
        return processes.send(lambda: None)  # the model is out
    if result.scores is not None:
        tested_on = asked.test or "a bundled public test set"
        said.setdefault("accuracy", result.scores.describe(tested_on))
    if said and charging.finished is None:
        result = replace(result, model=result.model.with_statement(said))
    place = save_and_finish(result.model, where, charging)
    processes.send(lambda: None)
    try:
        _show(result, str(place), asked)
        sys.stdout.flush()
    except OSError:
        Terminal(stderr=True).print(f"the model is at {place}", highlight=False, soft_wrap=True)
        raise
    if place not in (where, charging.finished):
        raise typer.Exit(2)


def _without_processes(words: list[str]) -> list[str]:
    """The words of a command without ``--processes``."""
    kept = [word for word in words if not word.startswith("--processes=")]
    if "--processes" in kept:
        at = kept.index("--processes")
        del kept[at : at + 2]
    return kept


def _show(result: TrainResult, where: str, asked: Training) -> None:
    """The one screen that a fit ends with, or all of its numbers as JSON."""
    from lastiterate.cli import tables

    if asked.json_:
        print(json.dumps(tables.model_to_json(result, where), indent=2))
        return
    if asked.explain_plan and result.choice is None:
        name = asked.algorithm if asked.model is None else asked.model
        console.print(f"no plans were considered for {name}", highlight=False)
    elif asked.explain_plan and result.choice is not None:
        tables.plans(console, result.choice, result.model.delta)
        if result.features:
            console.print(f"features: {result.features}", highlight=False, markup=False)
        if said := result.weigh_features():
            console.print(f"more features? {said}.", highlight=False, markup=False)
    tables.show_model(console, result, where)


# ``lastiterate tune``: a secret number of candidates, one release.


@dataclass(frozen=True, kw_only=True)
class Tuning(FromFile):
    """What ``tune`` is asked for."""

    epsilon: Annotated[
        float,
        typer.Option("--epsilon", help="the privacy budget of all candidates together"),
    ]
    mean_runs: Annotated[
        float, typer.Option("--mean-runs", help="candidates trained on average")
    ] = 10.0
    runs: Annotated[
        str,
        typer.Option("--runs", help="logarithmic, geometric or poisson number"),
    ] = "logarithmic"
    row_norms: Annotated[
        str | None, typer.Option("--row-norms", help="candidates, such as 0.5,1,2")
    ] = None
    algorithms: Annotated[
        str, typer.Option("--algorithms", help="named algorithms to try, separated by commas")
    ] = "automatic"
    features: Annotated[
        list[str] | None,
        typer.Option(
            "--features",
            help="maps to try, as for train; give it once for each",
            callback=list_on_request(list_maps),
            is_eager=True,
        ),
    ] = None
    unit: Annotated[
        str | None,
        typer.Option("--unit", help="the column that names the person of a row; one row each"),
    ] = None
    rows_per_unit: Annotated[
        int, typer.Option("--rows-per-unit", help="1: scores count one row of each person")
    ] = 1
    class_weight: Annotated[
        str | None,
        typer.Option(
            "--class-weight",
            help="public weights of classes, not of scores: no=1,yes=5",
        ),
    ] = None
    time_budget: TimeBudget = 10.0

    @property
    def norms(self) -> tuple[float, ...]:
        """The candidates' row norms."""
        try:
            return (
                ()
                if self.row_norms is None
                else tuple(float(norm) for norm in self.row_norms.split(","))
            )
        except ValueError:
            raise InputError(
                "row_norms", "must be numbers such as 0.5,1,2", self.row_norms
            ) from None


@app.command("tune")
@reports_errors
@bundle_flags
def tune_command(asked: Tuning) -> None:
    """Train several candidates and release the best one.

    Train a secret number of candidates and score them on held-out records: classes by accuracy,
    which hardly counts a rare class, numbers by squared error. Give at least two candidates with
    --row-norms, --algorithms or --features.

    What is shown while it runs says nothing: neither how many candidates there are, nor their
    scores.
    """
    from lastiterate.cli import run_flags as flags
    from lastiterate.cli import tables
    from lastiterate.release import data_file, file_training, tuning
    from lastiterate.release.jax_processes import refuse_launcher
    from lastiterate.release.training_request import Algorithm, TrainingRequest
    from lastiterate.release.units import Units

    refuse_launcher("tune")
    if asked.rows_per_unit != 1:
        raise InputError(
            "rows_per_unit",
            "must be 1 for tune, whose scores count one row of each person",
            asked.rows_per_unit,
            "leave it out, or use lastiterate train, which takes several rows of a person",
        )
    schema = data_file.schema_for(
        asked.data,
        asked.schema,
        target=None,
        classes=None,
        model=None,
        header=flags.header(asked.header),
    )
    (where, earlier), norms = asked.folders(), asked.norms
    algorithms = tuple(Algorithm(name.strip()) for name in asked.algorithms.split(","))
    with asked.make_charging(purpose="tune", place=where, earlier=earlier) as charging:
        order = TrainingRequest(
            data=asked.data,
            budget=asked.budget,
            schema=schema,
            charging=charging,
            units=None if asked.unit is None else Units(asked.unit, 1),
            class_weight=flags.class_weight(asked.class_weight),
        )
        law = tuning.law_of(asked.mean_runs, asked.runs)
        result = file_training.tune_file(
            order,
            row_norms=norms,
            algorithms=algorithms,
            features=tuple(asked.features or ()),
            law=law,
        )
    place = save_and_finish(result.model, where, charging)
    tables.show_model(console, result, str(place))
    if place not in (where, charging.finished):
        raise typer.Exit(2)

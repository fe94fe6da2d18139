"""``lastiterate train``, ``schema``, ``predict`` and ``verify``: data and models in files."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from lastiterate.cli.screen import (
    ALGORITHM_HELP,
    FILES,
    FLAG_HELP,
    Calibrated,
    Json,
    Out,
    TimeBudget,
    UnpackedLimit,
    app,
    console,
    emit,
    reports_errors,
)
from lastiterate.cli.terminal import Terminal
from lastiterate.errors import InputError
from lastiterate.features.map_table import TABLE

if TYPE_CHECKING:
    from lastiterate.accounting.comparison import Checked
    from lastiterate.release.datafile import Trained


@app.command("train")
@reports_errors
def train_command(
    data: Annotated[str, typer.Argument(help=f"{FILES}; or digits, breast_cancer, wine, iris, diabetes")],
    epsilon: Annotated[float, typer.Option("--epsilon", help="the privacy budget")],
    delta: Annotated[str, typer.Option("--delta", help="a number, or auto: at most 1/(10 n)")] = "auto",
    model: Annotated[str | None, typer.Option("--model", help="logistic, huber-ridge or bayes-linear")] = None,
    target: Annotated[str | None, typer.Option("--target", help="the column to predict, if not the schema's")] = None,
    schema: Annotated[Path | None, typer.Option("--schema", help="public facts: lastiterate schema FILE")] = None,
    classes: Annotated[str | None, typer.Option("--classes", help="public labels a,b,c, if not the schema's")] = None,
    row_norm: Annotated[float | None, typer.Option("--row-norm", help="public bound on a scaled row's norm")] = None,
    adjacency: Annotated[str, typer.Option("--adjacency", help="zero-out or replace-one")] = "zero-out",
    out: Out = None,
    test: Annotated[str | None, typer.Option("--test", help="a test file to score on")] = None,
    test_is_public: Annotated[bool, typer.Option("--test-is-public", help="scores may be shown")] = False,
    explain_plan: Annotated[bool, typer.Option("--explain-plan", help="the plans considered, and why one won")] = False,
    time_budget: TimeBudget = 60.0,
    algorithm: Annotated[str, typer.Option("--algorithm", help=ALGORITHM_HELP)] = "automatic",
    batch: Annotated[str | None, typer.Option("--batch", help="batches of --algorithm: " + FLAG_HELP["batch"])] = None,
    prox: Annotated[str | None, typer.Option("--prox", help="a penalty for --algorithm: " + FLAG_HELP["prox"])] = None,
    ledger: Annotated[Path | None, typer.Option("--ledger", help="charge the release to this ledger file")] = None,
    dataset: Annotated[str | None, typer.Option("--dataset", help="the data set's name in the ledger")] = None,
    checkpoint: Annotated[Path | None, typer.Option("--checkpoint", help="an encrypted file to go on from")] = None,
    checkpoint_every: Annotated[float, typer.Option("--checkpoint-every", help="seconds")] = 60.0,
    checkpoint_key: Annotated[Path | None, typer.Option("--checkpoint-key", help="a file of mode 0600 with 64 "
                                                        "hexadecimal digits; or LASTITERATE_CHECKPOINT_KEY")] = None,
    secure_noise: Annotated[bool, typer.Option("--secure-noise", help="exact sums and exact noise; every step "
                                               "is charged")] = False,
    unit: Annotated[str | None, typer.Option("--unit", help="the column that says which person a row is of")] = None,
    rows_per_unit: Annotated[int, typer.Option("--rows-per-unit", help="most rows of one unit that are used; a public "
                                               "number")] = 1,
    word: Annotated[Path | None, typer.Option("--word", help="a TOML file with what the releaser says: unit, purpose, "
                                              "public_facts, charged, not_charged, audit, contact, note")] = None,
    cap: Annotated[float | None, typer.Option("--cap", help="cap of --algorithm's loss on 1 - p_y")] = None,
    features: Annotated[str, typer.Option("--features", help="public maps of single records: auto (by the kinds of "
                                          f"columns, the records and the budget), plain, {', '.join(TABLE)}; or in the "
                                          "run: sqrt (for counts, ReLU features), fourier (random cosines)")] = "auto",
    stream: Annotated[bool, typer.Option("--stream", help="read the file piece by piece, also where its values would "
                                         "fit in memory")] = False,
    scratch: Annotated[Path | None, typer.Option("--scratch", help="a folder for encrypted scratch files without a "
                                                 "name, where a file is read piece by piece")] = None,
    devices: Annotated[int, typer.Option("--devices", help="how many of JAX's devices share every batch")] = 1,
    report_accuracy: Annotated[float | None, typer.Option("--report-accuracy", help="show the accuracy on a tenth of "
                               "the records, held out, counted with noise; the part of the budget mu^2 it costs, such "
                               "as 0.05")] = None,
    calibrated: Calibrated = True,
    json_: Json = False,
    unpacked_limit: UnpackedLimit = None,
) -> None:
    """Train a model, certify it, write it to a folder."""
    from lastiterate.accounting.releaser_statement import read_word
    from lastiterate.cli import flags as grammar
    from lastiterate.cli.saving import committed
    from lastiterate.release import datafile, folder, open_dataset
    from lastiterate.release.charging import custody
    from lastiterate.release.linear import Budget
    from lastiterate.release.protected_units import Units

    facts = open_dataset.schema_for(data, schema, target=target, classes=classes, model=model)
    if test is not None and not test_is_public:
        raise InputError("test", "scores are shown only when the test file is declared public", test,
                         "add --test-is-public, or leave --test out")
    if unit is None and rows_per_unit != 1:
        raise InputError("rows_per_unit", "needs the column that says who a row is of", rows_per_unit, "name --unit")
    said = None if word is None else read_word(word)
    units = None if unit is None else Units(unit, rows_per_unit)
    where = folder.free(datafile.unused_folder(data) if out is None else out)
    batching = None if batch is None else grammar.batching(batch)
    template = datafile.template(algorithm, batching, grammar.prox(prox), cap)
    budget = Budget(epsilon, datafile.parse_delta(delta), adjacency, time_budget)
    guard = custody(ledger=ledger, dataset=dataset, checkpoint=checkpoint, every=checkpoint_every,
                    key_file=checkpoint_key, place=where)
    why = None if stream else open_dataset.too_large(data)
    if why is not None:
        Terminal(stderr=True).print(f"the data are read piece by piece: {why}", highlight=False, soft_wrap=True)
    with guard, _progress() as bar:
        task = bar.add_task("training", total=None, visible=False)  # until the data are read

        def tick(done: int, steps: int, seconds: float) -> None:
            bar.update(task, completed=done, total=steps, visible=True)

        result = datafile.fit_file(data, budget, schema=facts, test=test, row_norm=row_norm, model=model,
                                   template=template, progress=tick, custody=guard,
                                   secure_noise=secure_noise, units=units, features=features,
                                   stream=stream or why is not None, scratch=scratch,
                                   devices=devices, report_accuracy=report_accuracy, calibrated=calibrated)
    if said is not None:
        result = replace(result, model=result.model.saying(said))
    place = committed(result.model, where, guard)
    try:
        _show(result, str(place), json_=json_, explain_plan=explain_plan, asked=algorithm if model is None else model)
        sys.stdout.flush()
    except OSError:
        Terminal(stderr=True).print(f"the model is at {place}", highlight=False, soft_wrap=True)
        raise
    if place != where:
        raise typer.Exit(2)


def _show(result: Trained, where: str, *, json_: bool, explain_plan: bool, asked: str) -> None:
    """The one screen that a fit ends with, or all of its numbers as JSON."""
    from lastiterate.cli import as_json, show

    if json_:
        print(json.dumps(as_json.trained(result, where), indent=2))
        return
    if explain_plan and result.choice is None:
        console.print(f"no plans were considered for {asked}", highlight=False)
    elif explain_plan and result.choice is not None:
        show.plans(console, result.choice, result.model.delta)
        if result.features:
            console.print(f"features: {result.features}", highlight=False, markup=False)
    show.trained(console, result, where)


def _progress() -> Progress:
    """Steps and time; nothing that depends on the data."""
    return Progress(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
                    TimeRemainingColumn(), console=Terminal(stderr=True))


@app.command("schema")
@reports_errors
def schema_command(
    file: Annotated[str, typer.Argument(help=FILES)],
    columns: Annotated[str | None, typer.Option("--columns", help="kinds: NAME:number,NAME:category,NAME:ignore,...")
                       ] = None,
    no_header: Annotated[bool, typer.Option("--no-header", help="the file has no header: --columns names all, in order")
                         ] = False,
    like: Annotated[Path | None, typer.Option("--like", help="a filled-in schema to take entries from")] = None,
    from_public_sample: Annotated[str | None, typer.Option("--from-public-sample", help="a public file with the same "
                                  "columns, whose cells may show which columns are numbers")] = None,
    wizard: Annotated[bool, typer.Option("--wizard", help="ask for every public fact; no cell is ever read")] = False,
    out: Out = None,
    unpacked_limit: UnpackedLimit = None,
) -> None:
    """Write a schema to fill in. Only the header of the file is read: names, and the types that Parquet states."""
    import tomllib

    from lastiterate.data import Schema, schema_template

    known = None if like is None else tomllib.loads(like.read_text(encoding="utf-8")) if Schema.read(like) else None
    text = schema_template(file, columns=columns, header=not no_header, like=known, sample=from_public_sample,
                           ask=_asked if wizard else None)
    emit(text, out)
    if out is not None:
        left = sum(line.split("#")[0].count('"?"') for line in text.splitlines())
        console.print(f"{out}: " + (f"{left} public facts are left to fill in" if left else "complete"),
                      highlight=False)


def _asked(question: str, choices: Sequence[str]) -> str:
    """One answer on the terminal; one of ``choices``, if there are any."""
    while True:
        answer = typer.prompt(question, default="", show_default=False, err=True).strip()
        if not choices or answer in choices or (answer == "" and "[" in question):
            return answer
        typer.echo("one of: " + ", ".join(choices), err=True)


@app.command("predict")
@reports_errors
def predict_command(model: Annotated[Path, typer.Argument(help="a folder that train wrote")],
                    file: Annotated[str, typer.Argument(help=f"new records: {FILES}")],
                    ids: Annotated[str | None, typer.Option("--ids", help="a column of the file that is written beside "
                                                            "each prediction")] = None,
                    threshold: Annotated[float | None, typer.Option("--threshold", help="of two classes: the "
                                                                    "probability from which on the second is "
                                                                    "predicted")] = None,
                    out: Out = None, json_: Json = False, unpacked_limit: UnpackedLimit = None) -> None:
    """Predictions as CSV: the label (or number), and the probability of each class; frequencies where the model is
    calibrated (train --calibrated)."""
    from lastiterate.cli import as_json
    from lastiterate.release import datafile
    from lastiterate.release.loading import load

    header, rows = datafile.prediction_rows(load(model), file, ids=ids, threshold=threshold)
    if json_:
        emit(json.dumps(as_json.predictions(header, rows), indent=2) + "\n", out)
        return
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([header, *rows])
    emit(text.getvalue(), out)


@app.command("verify")
@reports_errors
def verify_command(path: Annotated[Path, typer.Argument(help="a model folder, or a certificate")],
                   key: Annotated[Path | None, typer.Option("--key", help="a public key: the folder must be signed by "
                                                            "its holder")] = None,
                   chain: Annotated[list[Path] | None, typer.Option("--chain", help="certificates: the folder must be "
                                                                    "signed below them")] = None,
                   json_: Json = False) -> None:
    """Recompute a certificate from its run; exit code 1 when it does not hold."""
    from lastiterate.release.loading import verify

    found = verify(path, key=key, chain=chain or ())
    if json_:
        print(json.dumps({"holds": found.holds, "problems": list(found.problems), "epsilon": found.epsilon,
                          "delta": found.delta, "condition": found.condition,
                          "uncovered": list(found.uncovered)}, indent=2))
    elif found.problems:
        console.print("[bold red]the certificate does not hold[/bold red]")
        for problem in found.problems:
            console.print(f"- {problem}", highlight=False, markup=False)
    else:
        what = "weights, model and certificate agree" if path.is_dir() else "the certificate is consistent"
        console.print(f"holds: {claim(found)}; {what}.", highlight=False, markup=False)
        for what in found.uncovered:
            console.print(f"not covered: {what}.", style="bold yellow", highlight=False, markup=False)
        if found.condition:
            console.print(found.condition, style="bold yellow", highlight=False, markup=False)
        if key is not None or chain:
            console.print(f"Every file is signed by the holder of {key or 'a certificate below the chain'}.",
                          highlight=False, markup=False)
        else:
            unsigned = "Its signature was not checked (--key)" if path.is_dir() else "It is not signed"
            console.print(f"{unsigned}: one that was re-issued as a whole looks the same.", style="dim",
                          highlight=False)
    if found.problems:
        raise typer.Exit(1)


def claim(found: Checked) -> str:
    """What a certificate that holds says; one may hold and certify nothing."""
    if found.epsilon is None:
        return "it certifies no epsilon"
    return f"epsilon {found.epsilon:.6g} at delta {found.delta:g}"

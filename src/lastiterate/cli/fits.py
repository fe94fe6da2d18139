"""``lastiterate train``, ``plan``, ``schema``, ``predict`` and ``verify``: data and models in files."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from lastiterate.cli.screen import ALGORITHM_HELP, FILES, FLAG_HELP, Json, Out, TimeBudget, app, console, emit, told
from lastiterate.errors import InputError


@app.command("train")
@told
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
) -> None:
    """Train a model, certify it, write it to a folder."""
    from lastiterate.cli import flags as grammar
    from lastiterate.cli import show
    from lastiterate.estimators import files as workflow

    kind = None if model == "bayes-linear" else model
    facts = workflow.schema_for(data, schema, target=target, classes=classes, model=kind)
    if test is not None and not test_is_public:
        raise InputError("--test", "scores are shown only when the test file is declared public", test,
                         "add --test-is-public, or leave --test out")
    folder = workflow.free_folder(data) if out is None else out
    if folder.exists():
        raise InputError("--out", "must not exist yet", str(folder), "choose another folder, or remove this one")
    batching = None if batch is None else grammar.batching(batch)
    template = workflow.template(algorithm, batching, grammar.prox(prox))
    if model == "bayes-linear":
        from lastiterate.models.posterior import release

        if template is not None:
            raise InputError("--algorithm", "cannot be combined with bayes-linear, which draws one posterior sample",
                             algorithm)
        found = release(data, folder, schema=facts, epsilon=epsilon, delta=workflow.parse_delta(delta),
                        row_norm=row_norm, adjacency=cast(Any, adjacency), test=test)
        console.print(found.text(str(folder)), highlight=False, markup=False, soft_wrap=True)
        return
    budget = {"epsilon": epsilon, "delta": workflow.parse_delta(delta), "adjacency": adjacency,
              "time_budget": time_budget}
    with _progress() as bar:
        task = bar.add_task("training", total=None, visible=False)  # until the data are read

        def tick(done: int, steps: int, seconds: float) -> None:
            bar.update(task, completed=done, total=steps, visible=True)

        result = workflow.fit_file(data, schema=facts, test=test, row_norm=row_norm, progress=tick, template=template,
                                **budget)
    workflow.save(result, folder)
    if explain_plan and result.estimator.choice_ is None:
        console.print(f"no plans were considered: --algorithm {algorithm} was asked for", highlight=False)
    elif explain_plan:
        show.plans(console, result.estimator.choice_, result.estimator.delta_)
    show.trained(console, result, str(folder))


def _progress() -> Progress:
    """Steps and time; nothing that depends on the data."""
    return Progress(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
                    TimeRemainingColumn(), console=Console(stderr=True))


@app.command("plan")
@told
def plan_command(
    n: Annotated[int, typer.Option("--n", help="public number of records")],
    features: Annotated[int, typer.Option("--features")],
    epsilon: Annotated[float, typer.Option("--epsilon", help="the privacy budget")],
    classes: Annotated[int, typer.Option("--classes", help="0 for regression")] = 2,
    delta: Annotated[str, typer.Option("--delta", help="a number, or auto: at most 1/(10 n)")] = "auto",
    row_norm: Annotated[float, typer.Option("--row-norm", help="public bound on a row's norm")] = 1.0,
    adjacency: Annotated[str, typer.Option("--adjacency", help="zero-out or replace-one")] = "zero-out",
    time_budget: TimeBudget = 60.0,
    stream: Annotated[bool, typer.Option("--stream", help="data that do not fit in memory: public order only")] = False,
    out: Out = None,
) -> None:
    """What train would do with such data, and why; --out writes the chosen run as JSON."""
    from lastiterate.cli import show
    from lastiterate.estimators import files as workflow
    from lastiterate.planning import planner as planning

    task = planning.Task(n, features, classes, row_norm)
    given = workflow.parse_delta(delta)
    value = planning.automatic_delta(n) if isinstance(given, str) else given
    choice = planning.consider(task, epsilon=epsilon, delta=value, adjacency=cast(Any, adjacency),
                               time_budget=time_budget, stream=stream)
    show.plans(console, choice, value)
    if out is not None:
        emit(choice.best.certificate.run.to_json() + "\n", out)


@app.command("schema")
@told
def schema_command(file: Annotated[str, typer.Argument(help=FILES)], out: Out = None) -> None:
    """Write an empty schema to fill in: nothing in it is measured on the data."""
    from lastiterate.data import schema_template

    emit(schema_template(file), out)


@app.command("predict")
@told
def predict_command(model: Annotated[Path, typer.Argument(help="a folder that train wrote")],
            file: Annotated[str, typer.Argument(help=f"new records: {FILES}")], out: Out = None) -> None:
    """Predictions as CSV: the label (or number), and the probability of each class."""
    from lastiterate.estimators import files as workflow
    from lastiterate.models import posterior

    kind = posterior if posterior.wrote(model) else workflow
    header, rows = kind.prediction_rows(model, file)
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([header, *rows])
    emit(text.getvalue(), out)


@app.command("verify")
@told
def verify_command(path: Annotated[Path, typer.Argument(help="a model folder, or a certificate")],
                   json_: Json = False) -> None:
    """Recompute a certificate from its run; exit code 1 when it does not hold."""
    from lastiterate.accounting import stored
    from lastiterate.models import posterior

    found = posterior.checked(path) if posterior.wrote(path) else stored.verify(path)
    if json_:
        print(json.dumps({"holds": not found.problems, "problems": list(found.problems), "epsilon": found.epsilon,
                          "delta": found.delta}, indent=2))
    elif found.problems:
        console.print("[bold red]the certificate does not hold[/bold red]")
        for problem in found.problems:
            console.print(f"- {problem}", highlight=False)
    else:
        what = "weights, model and certificate agree" if path.is_dir() else "the certificate is consistent"
        console.print(f"holds: epsilon {found.epsilon:.6g} at delta {found.delta:g}; {what}.", highlight=False)
        console.print("It is not signed: one that was re-issued as a whole looks the same.", style="dim",
                      highlight=False)
    if found.problems:
        raise typer.Exit(1)

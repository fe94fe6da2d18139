"""The command line: flags in, one screen out; no logic of its own."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from lastiterate.errors import InputError, NotCertified

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False,
                  help="Train under differential privacy and release only the final model.")
console = Console()
FILES = "a .csv, .parquet, .npz, .npy, IDX or CIFAR-10 file, or a CIFAR-10 folder"
FLAG_HELP = {
    "n": "public number of records", "steps": "number of steps",
    "step_size": "NUMBER, inverse-decay:BETA,STRONG or @FILE",
    "noise_std": "noise std per coordinate of the mean gradient", "sigma": "Langevin: noise sqrt(2 step) sigma",
    "noise_multiplier": "noise in units of clip (or lipschitz) / b",
    "batch": "full, cyclic:B, permuted:B, reshuffled:B, fixed:B, poisson:Q or bins:B",
    "start": "fixed or gaussian:STD",
    "prox": "l1:W, l2-squared:W, elastic-net:L1,L2, group-lasso:W or nuclear-norm:W",
}


ALGORITHM_HELP = ("automatic: planned; or noisy-gd, dp-sgld, cyclic-dp-sgd, permuted-sgd, bins-sgd, poisson-dp-sgd "
                  "with usual settings")


def _told(command: Callable[..., None]) -> Callable[..., None]:
    """Errors are one sentence on standard error and exit code 2."""

    @wraps(command)
    def told(*args: Any, **kwargs: Any) -> None:
        try:
            command(*args, **kwargs)
        except (InputError, NotCertified) as error:
            Console(stderr=True).print(f"[bold red]error:[/bold red] {_plain(error)}", highlight=False, soft_wrap=True)
            raise typer.Exit(2) from None

    return told


def _plain(error: Exception) -> str:
    from rich.markup import escape

    return escape(str(error))


Json = Annotated[bool, typer.Option("--json", help="machine-readable output")]
Out = Annotated[Path | None, typer.Option("--out", help="where to write")]
RunFile = Annotated[Path | None, typer.Argument(help="a run as JSON; or describe it with flags")]
Trust = Annotated[bool, typer.Option("--trust-constants", help="rely on constants that nothing enforces")]
Delta = Annotated[float, typer.Option("--delta")]
TimeBudget = Annotated[float, typer.Option("--time-budget", help="seconds a fit may take, estimated on two cores")]


@app.command()
@_told
def train(
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
    from lastiterate import workflow
    from lastiterate.cli import flags as grammar
    from lastiterate.cli import show

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
        from lastiterate.bayes.folder import release

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

        result = workflow.train(data, schema=facts, test=test, row_norm=row_norm, progress=tick, template=template,
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


@app.command()
@_told
def plan(
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
    from lastiterate import planning, workflow
    from lastiterate.cli import show

    task = planning.Task(n, features, classes, row_norm)
    given = workflow.parse_delta(delta)
    value = planning.automatic_delta(n) if isinstance(given, str) else given
    choice = planning.consider(task, epsilon=epsilon, delta=value, adjacency=cast(Any, adjacency),
                               time_budget=time_budget, stream=stream)
    show.plans(console, choice, value)
    if out is not None:
        _emit(choice.best.certificate.run.to_json() + "\n", out)


@app.command()
@_told
def schema(file: Annotated[str, typer.Argument(help=FILES)], out: Out = None) -> None:
    """Write an empty schema to fill in: nothing in it is measured on the data."""
    from lastiterate.data import schema_template

    _emit(schema_template(file), out)


@app.command()
@_told
def predict(model: Annotated[Path, typer.Argument(help="a folder that train wrote")],
            file: Annotated[str, typer.Argument(help=f"new records: {FILES}")], out: Out = None) -> None:
    """Predictions as CSV: the label (or number), and the probability of each class."""
    from lastiterate import workflow
    from lastiterate.bayes import folder as posterior

    kind = posterior if posterior.wrote(model) else workflow
    header, rows = kind.prediction_rows(model, file)
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([header, *rows])
    _emit(text.getvalue(), out)


def _emit(text: str, out: Path | None) -> None:
    if out is None:
        sys.stdout.write(text)
        return
    if out.exists():
        raise InputError("--out", "must not exist yet", str(out), "choose another name")
    out.write_text(text, encoding="utf-8")


@app.command()
@_told
def verify(path: Annotated[Path, typer.Argument(help="a model folder, or a certificate")], json_: Json = False) -> None:
    """Recompute a certificate from its run; exit code 1 when it does not hold."""
    from lastiterate import artefact
    from lastiterate.bayes import folder as posterior

    found = posterior.checked(path) if posterior.wrote(path) else artefact.verify(path)
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


def main() -> None:
    """Entry point of the ``lastiterate`` command."""
    app()


from lastiterate.cli import audits, runs  # noqa: E402, F401 - register their commands, with what is defined above

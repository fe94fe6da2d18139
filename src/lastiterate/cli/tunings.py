"""``lastiterate tune``: a secret number of candidates, one release."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lastiterate.cli.screen import ALGORITHM_HELP, FILES, Out, TimeBudget, UnpackedLimit, app, console, reports_errors
from lastiterate.errors import InputError


@app.command("tune")
@reports_errors
def tune_command(
    data: Annotated[str, typer.Argument(help=f"{FILES}; or digits, breast_cancer, wine, iris, diabetes")],
    epsilon: Annotated[float, typer.Option("--epsilon", help="the budget of all candidates, scores and the release")],
    delta: Annotated[str, typer.Option("--delta", help="a number, or auto: at most 1/(10 n)")] = "auto",
    mean_runs: Annotated[float, typer.Option("--mean-runs", help="candidates trained on average")] = 10.0,
    runs: Annotated[str, typer.Option("--runs", help="law of their number: logarithmic, geometric or poisson")]
    = "logarithmic",
    row_norms: Annotated[str | None, typer.Option("--row-norms", help="candidates, such as 0.5,1,2")] = None,
    algorithms: Annotated[str, typer.Option("--algorithms", help="candidates, by commas; " + ALGORITHM_HELP)]
    = "automatic",
    schema: Annotated[Path | None, typer.Option("--schema", help="public facts: lastiterate schema FILE")] = None,
    adjacency: Annotated[str, typer.Option("--adjacency", help="zero-out or replace-one")] = "zero-out",
    out: Out = None,
    time_budget: TimeBudget = 10.0,
    ledger: Annotated[Path | None, typer.Option("--ledger", help="charge the release to this ledger file")] = None,
    dataset: Annotated[str | None, typer.Option("--dataset", help="the data set's name in the ledger")] = None,
    unpacked_limit: UnpackedLimit = None,
) -> None:
    """Train a secret number of candidates, score them on held-out records, release the best one.

    What is shown while it runs says nothing: neither how many candidates there are, nor their scores.
    """
    from lastiterate.cli import show
    from lastiterate.cli.saving import committed
    from lastiterate.release import datafile, folder, open_dataset, tuning
    from lastiterate.release.charging import custody
    from lastiterate.release.linear import Budget

    facts = open_dataset.schema_for(data, schema, target=None, classes=None, model=None)
    where = folder.free(datafile.unused_folder(data) if out is None else out)
    try:
        norms = () if row_norms is None else tuple(float(norm) for norm in row_norms.split(","))
    except ValueError:
        raise InputError("row_norms", "must be numbers such as 0.5,1,2", row_norms) from None
    templates = tuple(datafile.template(name.strip(), None, None) for name in algorithms.split(","))
    guard = custody(ledger=ledger, dataset=dataset, purpose="tune", place=where)
    with guard:
        result = datafile.tune_file(data, Budget(epsilon, datafile.parse_delta(delta), adjacency, time_budget),
                                    schema=facts, row_norms=norms, templates=templates,
                                    law=tuning.law_of(mean_runs, runs), custody=guard)
    place = committed(result.model, where, guard)
    show.trained(console, result, str(place))
    if place != where:
        raise typer.Exit(2)

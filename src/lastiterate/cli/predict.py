"""`lastiterate predict`: the answers of a released model for new records."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from lastiterate.cli.account import format_csv
from lastiterate.cli.app import (
    Header,
    Json,
    Out,
    Threshold,
    UnpackedLimit,
    app,
    emit,
    reports_errors,
)


@app.command("predict")
@reports_errors
def predict_command(
    model: Annotated[Path, typer.Argument(help="a folder that train wrote")],
    file: Annotated[str, typer.Argument(help="new records: a file as for train")],
    ids: Annotated[
        str | None,
        typer.Option(
            "--ids",
            help="the column to copy next to each prediction",
        ),
    ] = None,
    threshold: Threshold = None,
    header: Header = None,
    probabilities: Annotated[
        bool,
        typer.Option(
            "--probabilities",
            help="require probabilities; warn if they are not calibrated",
        ),
    ] = False,
    out: Out = None,
    json_: Json = False,
    unpacked_limit: UnpackedLimit = None,
) -> None:
    """Write the predictions of a model as CSV.

    A row holds the label (or number) and the probability of each class, which train --calibrated
    calibrates.
    """
    from lastiterate.cli import run_flags, tables
    from lastiterate.cli.run_flags import threshold as threshold_from
    from lastiterate.release import file_training
    from lastiterate.release.loading import load

    titles, rows = file_training.prediction_rows(
        load(model),
        file,
        ids=ids,
        threshold=threshold_from(threshold),
        probabilities=probabilities,
        header=run_flags.header(header),
    )
    if json_:
        emit(json.dumps(tables.predictions(titles, rows), indent=2) + "\n", out)
        return
    emit(format_csv(titles, rows), out)

"""`lastiterate predict`: the answers of a released model for new records."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from lastiterate.cli.app import (
    Header,
    Json,
    Out,
    Threshold,
    UnpackedLimit,
    app,
    emit,
    format_csv,
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
    from lastiterate.cli import run_flags
    from lastiterate.cli.run_flags import threshold as threshold_from
    from lastiterate.release.loading import load
    from lastiterate.release.prediction import prediction_rows

    titles, rows = prediction_rows(
        load(model),
        file,
        ids=ids,
        threshold=threshold_from(threshold),
        probabilities=probabilities,
        header=run_flags.header(header),
    )
    if json_:
        emit(json.dumps(to_objects(titles, rows), indent=2) + "\n", out)
        return
    emit(format_csv(titles, rows), out)


def to_objects(header: list[str], rows: list[list[str]]) -> list[dict[str, Any]]:
    """Return one object per record: its copied columns as text, the prediction as text or number,
    and the probability of every class.
    """
    at = header.index("prediction")
    numbers = [place > at or place == at == len(header) - 1 for place in range(len(header))]
    return [
        {
            name: float(cell) if number else cell
            for name, number, cell in zip(header, numbers, row, strict=True)
        }
        for row in rows
    ]

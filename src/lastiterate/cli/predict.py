"""`lastiterate predict`: the answers of a released model for new records."""

from __future__ import annotations

import json
import re
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from shutil import copyfileobj
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lastiterate import interrupts
from lastiterate.atomic_files import SHARED, is_taken, whole_file
from lastiterate.cli.app import (
    Header,
    Json,
    Terminal,
    Threshold,
    UnpackedLimit,
    app,
    emit,
    format_cell,
    format_csv,
    reports_errors,
    visible,
)
from lastiterate.errors import InputError
from lastiterate.remote_files import is_remote, to_new_object, write_object

if TYPE_CHECKING:
    from lastiterate.release.prediction import PredictedRecords

FORMS = ("csv", "jsonl")
AT_ONCE = 2**20
"""Characters that standard output gets at once, and without which it gets nothing where a record is
refused."""
_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:/ -]*")
"""Cells of CSV that stay as they are."""


@app.command("predict")
@reports_errors
def predict_command(
    model: Annotated[Path, typer.Argument(help="a folder that train wrote")],
    file: Annotated[str, typer.Argument(help="new records: a file as for train, or JSON lines")],
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
    out: Annotated[
        str | None, typer.Option("--out", help="the file to write, or an address in a store")
    ] = None,
    json_: Json = False,
    format: Annotated[
        str,
        typer.Option("--format", help="standard input and output: csv or jsonl"),
    ] = "csv",
    unpacked_limit: UnpackedLimit = None,
) -> None:
    """Write a model's predictions as CSV, JSON lines or Parquet.

    A row holds the label (or number) and the probability of each class, which train --calibrated
    calibrates. CSV, JSON lines and Parquet are read and written in blocks. The name of --out says
    its form: .jsonl, .parquet, or CSV.
    """
    from lastiterate.cli import run_flags
    from lastiterate.cli.run_flags import threshold as threshold_from
    from lastiterate.release.prediction import labels_with, predict_blocks
    from lastiterate.release.verification import load

    if format not in FORMS:
        raise InputError("format", "must be csv or jsonl", format)
    released, chosen = load(model), threshold_from(threshold)
    labels = labels_with(released, chosen)
    if isinstance(chosen, tuple) and labels is not None:
        Terminal(stderr=True).print(
            f"costs {threshold}: {labels.about_threshold}", highlight=False, markup=False
        )
    blocks = predict_blocks(
        released,
        file,
        ids=ids,
        threshold=chosen,
        probabilities=probabilities,
        header=run_flags.header(header),
        form=format,
    )
    place = None if out is None else to_new_object(out, "out")
    if json_:
        objects = [one for block in blocks for one in to_objects(block.titles, block.rows())]
        text = json.dumps(objects, indent=2) + "\n"
        if place is None or not is_remote(place):
            emit(text, place)
        else:
            _write_object(place, lambda file, _: file.write(text.encode()))
        return
    if place is None:
        _print_blocks(format_blocks(blocks, format == "jsonl", visible))
        return
    if is_remote(place):
        _write_object(place, lambda file, name: _write_blocks(file, name, blocks))
        return
    if is_taken(place):
        raise InputError("folder", "must not exist yet", str(place), "choose another name")
    _write_file(place, blocks)


def _print_blocks(texts: Iterable[str]) -> None:
    """Write texts to standard output, ``AT_ONCE`` characters and more at a time."""
    held, size = list[str](), 0
    for text in texts:
        interrupts.check()
        held.append(text)
        size += len(text)
        if size >= AT_ONCE:
            sys.stdout.write("".join(held))
            sys.stdout.flush()
            held, size = [], 0
    sys.stdout.write("".join(held))
    sys.stdout.flush()  # a full disk is reported here, and not when Python ends


def _write_file(out: Path, blocks: Iterator[PredictedRecords]) -> None:
    """Write a file of predictions, whole or not at all."""
    try:
        with tempfile.TemporaryFile(dir=out.parent) as held:
            _write_blocks(held, out, blocks)
            held.seek(0)
            with interrupts.later():
                with whole_file(out, new=True, mode=SHARED) as file:
                    copyfileobj(held, file)
                interrupts.say(f"{out} is written")
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(out)) from None
    sys.stdout.flush()


def _write_object(place: Path, write: Callable[[Any, Path], object]) -> None:
    """Write predictions into a store, whole or not at all."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        interrupts.unfinished.add(folder)
        try:
            held = folder / "predictions"
            with held.open("wb") as file:
                write(file, place)
            with interrupts.later():
                interrupts.say(f"{place} may be written")
                try:
                    write_object(place, held)
                except FileExistsError:
                    raise InputError(
                        "out", "must not exist yet", str(place), "choose another name"
                    ) from None
                except OSError as error:
                    raise OSError(error.errno, error.strerror or str(error), str(place)) from None
                interrupts.say(f"{place} is written")
        finally:
            interrupts.unfinished.discard(folder)
    sys.stdout.flush()


def _write_blocks(file: Any, name: Path, blocks: Iterator[PredictedRecords]) -> None:
    """Write predictions in the form that the ending of ``name`` says."""
    suffix = name.suffix.lower()
    if suffix == ".parquet":
        _write_parquet(file, name, blocks)
        return
    for text in format_blocks(blocks, suffix in (".jsonl", ".ndjson"), lambda text: text):
        interrupts.check()
        file.write(text.encode())


def _write_parquet(file: Any, out: Path, blocks: Iterator[PredictedRecords]) -> None:
    """Write a Parquet file: texts, and numbers in double precision."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise InputError(
            "out",
            "in Parquet needs pyarrow",
            out.name,
            "install it with: pip install lastiterate[parquet]",
        ) from None
    writer = None
    for block in blocks:
        interrupts.check()
        columns = [pyarrow.array(column) for column in block.columns]
        table = pyarrow.table(columns, names=block.titles)
        writer = writer or parquet.ParquetWriter(file, table.schema)
        writer.write_table(table)
    if writer is not None:
        writer.close()


def format_blocks(
    blocks: Iterator[PredictedRecords], lines: bool, show: Callable[[str], str]
) -> Iterator[str]:
    """Predictions as JSON ``lines`` or as CSV with a header, a text for each block.

    ``show``: what happens to the letters of names and cells.
    """
    first = True
    for block in blocks:
        if first and not lines:
            yield show(format_csv(block.titles, []))
        first = False
        texts: dict[str, str] = {}

        def cell(text: str, texts: dict[str, str] = texts) -> str:
            if not lines and _PLAIN.fullmatch(text):
                return text
            found = texts.get(text)
            if found is None:
                found = json.dumps(text) if lines else show(format_cell(text))
                texts[text] = found
            return found

        columns = [
            list(map(cell, column)) if isinstance(column[0], str) else column
            for column in block.columns
        ]
        forms = ["%s" if isinstance(column[0], str) else "%.6g" for column in columns]
        if lines:
            keys = [json.dumps(title).replace("%", "%%") for title in block.titles]
            pairs = [f"{key}: {form}" for key, form in zip(keys, forms, strict=True)]
            line = "{" + ", ".join(pairs) + "}\n"
        else:
            line = ",".join(forms) + "\n"
        yield "".join([line % row for row in zip(*columns, strict=True)])


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

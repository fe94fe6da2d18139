"""Predictions of a released model for the records of a file.

Nothing here trains or certifies: a linear model predicts without JAX, SciPy and the accounting.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lastiterate.data.blocks import is_json_lines, read_blocks
from lastiterate.data.columns import Id
from lastiterate.data.encoding import encode_features, keep_schema
from lastiterate.data.readers import read_table
from lastiterate.data.schema import Schema
from lastiterate.data.table import Table
from lastiterate.errors import InputError, outside
from lastiterate.release.fitted_linear import FittedLinear
from lastiterate.release.released_model import ReleasedModel
from lastiterate.release.score_meaning import Labels, check_costs, pick_class, threshold_of
from lastiterate.remote_files import to_path
from lastiterate.run.probability_calibration import Calibration, weighs_classes
from lastiterate.run.run import Run

WHOLE = 2**24
"""Bytes of a file that is read again, and whole, to say what is wrong with it."""


@dataclass(frozen=True, eq=False)
class PredictedRecords:
    """Predictions for some records of a file.

    ``copied``: the name of a column of the file and its cells, which are written in front. For
    classes ``names`` and ``chances`` (n, classes) are theirs, and ``picked`` (n,) is the index of
    the label; for numbers ``numbers`` (n,) are the predictions.
    """

    copied: tuple[str, list[str]] | None
    names: tuple[str, ...] = ()
    picked: np.ndarray | None = None
    chances: np.ndarray | None = None
    numbers: np.ndarray | None = None

    @property
    def titles(self) -> list[str]:
        """What the columns are called."""
        front = [] if self.copied is None else [self.copied[0]]
        return [*front, "prediction", *(f"probability_{name}" for name in self.names)]

    @property
    def columns(self) -> list[list[Any]]:
        """The copied cells and the labels as text, every number as a float."""
        front = [] if self.copied is None else [self.copied[1]]
        if self.picked is None or self.chances is None:
            assert self.numbers is not None
            return [*front, _to_list(self.numbers)]
        labels: list[Any] = [self.names[index] for index in _to_list(self.picked)]
        return [*front, labels, *(_to_list(column) for column in self.chances.T)]

    def rows(self) -> list[list[str]]:
        """Rows of text; numbers have six digits."""
        rows = zip(*self.columns, strict=True)
        return [[cell if isinstance(cell, str) else f"{cell:.6g}" for cell in row] for row in rows]


def _to_list(values: np.ndarray) -> list[Any]:
    return values.tolist()


def prediction_rows(
    model: ReleasedModel, data: str, *, probabilities: bool = False
) -> tuple[list[str], list[list[str]]]:
    """Header and rows of the CSV that ``predict`` writes, of all records at once; see
    ``predict_blocks``."""
    blocks = list(predict_blocks(model, data, probabilities=probabilities))
    return blocks[0].titles, [row for block in blocks for row in block.rows()]


def labels_with(
    model: ReleasedModel, threshold: float | tuple[float, float] | None
) -> Labels | None:
    """The labels of a classifier with this threshold in place of its own; ``None`` for numbers."""
    answers = getattr(model, "answers", None)
    if isinstance(model, FittedLinear) and isinstance(answers, Labels):
        check_costs(threshold, model.run, "")
        if threshold is None:
            return answers
        return replace(answers, threshold=threshold_of(threshold, len(answers.values)))
    if threshold is not None:
        raise InputError(
            "threshold",
            "is for two classes, and this model gives numbers",
            threshold,
            "leave it out",
        )
    return None


def predict_blocks(
    model: ReleasedModel,
    data: str,
    *,
    ids: str | None = None,
    threshold: float | tuple[float, float] | None = None,
    probabilities: bool = False,
    header: bool | None = None,
    form: str = "csv",
) -> Iterator[PredictedRecords]:
    """The predictions for a file, block by block: the label, and the probability of every class.

    ``header``: whether the file's first row is a header, where the model's schema does not decide.
    ``form``: what standard input holds.

    ``ids``: a column of the file that is written in front of them; by default the one that the
    schema calls an id, where the file has it. ``threshold``: instead of the model's own.
    ``probabilities``: they are relied on, so that a model without any is refused, and a warning
    says where nothing made frequencies of them.
    """
    if model.schema is None:
        raise InputError(
            "model",
            "does not say how the records of a file become rows",
            model.kind,
            "load it in Python with lastiterate.load and predict from arrays",
        )
    answers = labels_with(model, threshold)
    if probabilities and answers is None:
        raise InputError(
            "probabilities",
            "are those of classes, and this model gives numbers",
            None,
            "leave it out",
        )
    if probabilities and isinstance(model, FittedLinear):
        _warn_of_probabilities(model.run)
    schema = model.schema.with_header(header)
    own = [column.name for column in schema.columns if isinstance(column, Id)]
    tables = read_blocks(
        data, schema, copied=own if ids is None else [ids], header=header, form=form
    )
    while True:
        try:
            table = next(tables, None)
            if table is None:
                return
            features = encode_features(table, model.schema)
        except InputError as error:
            raise keep_schema(_name_first_fault(error, data, schema), data) from None
        if ids is None and table.cells is not None:
            ids = next((name for name in own if name in table.cells), None)
        predicted = _predict(model, answers, features)
        yield predicted if ids is None else replace(predicted, copied=_copy(table, ids, predicted))


def _name_first_fault(error: InputError, data: str, schema: Schema) -> InputError:
    """The refusal of a file that is read whole: of several faults the one that training names.

    A file above ``WHOLE`` bytes, standard input and JSON lines have that of their first block.
    """
    path = to_path(data)
    if not path.is_file() or path.stat().st_size > WHOLE or is_json_lines(path):
        return error
    try:
        encode_features(read_table(path, schema), schema)
    except InputError as first:
        return first
    return error


def _predict(
    model: ReleasedModel, answers: Labels | None, features: np.ndarray
) -> PredictedRecords:
    """Predictions for rows."""
    try:
        if answers is None or not isinstance(model, FittedLinear):
            return PredictedRecords(None, numbers=model.predict(features))
        chances = answers.probabilities(model.scores(features))
    except InputError as error:
        raise (
            InputError("data file", error.rule.removesuffix("."))
            if error.argument == "x"
            else error
        ) from None
    names = tuple(str(value) for value in np.asarray(answers.values))
    return PredictedRecords(None, names, pick_class(chances, answers.threshold), chances)


def _copy(table: Table, ids: str, predicted: PredictedRecords) -> tuple[str, list[str]]:
    """The name and the cells of a column of the file that is written in front of predictions."""
    if table.cells is None or ids not in table.cells or ids in predicted.titles:
        raise InputError(
            "ids",
            "must be a column of the file, and named otherwise than those of predictions",
            ids,
            "name one, or leave it out",
        )
    return ids, [str(cell) for cell in table.cells[ids]]


def _warn_of_probabilities(run: Run) -> None:
    """Warn where a model's probabilities are no frequencies of the records."""
    if not isinstance(run.probability_calibration, Calibration):
        said = (
            "the probabilities are not calibrated on records: their order means something, and "
            "frequencies they are not"
        )
    elif weighs_classes(run):
        said = (
            "the probabilities are frequencies among the records weighted by class, and not among "
            "the records: divide each by its class's weight, and the results by their sum"
        )
    else:
        return
    warnings.warn(said, UserWarning, stacklevel=outside())

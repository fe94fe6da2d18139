"""Predictions of a released model for the records of a file.

Nothing here trains or certifies: a linear model predicts without JAX, SciPy and the accounting.
"""

from __future__ import annotations

import warnings
from dataclasses import replace

from lastiterate.data.columns import Id
from lastiterate.data.encoding import encode_features
from lastiterate.data.readers import read_table
from lastiterate.data.table import Table
from lastiterate.errors import InputError, outside
from lastiterate.release.fitted_linear import FittedLinear
from lastiterate.release.released_model import ReleasedModel
from lastiterate.release.score_meaning import Labels, threshold_of
from lastiterate.run.probability_calibration import Calibration, weighs_classes
from lastiterate.run.run import Run


def prediction_rows(
    model: ReleasedModel,
    data: str,
    *,
    ids: str | None = None,
    threshold: float | tuple[float, float] | None = None,
    probabilities: bool = False,
    header: bool | None = None,
) -> tuple[list[str], list[list[str]]]:
    """Header and rows of the CSV that ``predict`` writes: the answer, and the probability of every
    class.

    ``header``: whether the file's first row is a header, where the model's schema does not decide.

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
    answers = model.answers if isinstance(model, FittedLinear) else None
    answers = answers if isinstance(answers, Labels) else None
    if threshold is not None and answers is None:
        raise InputError(
            "threshold",
            "is for two classes, and this model gives numbers",
            threshold,
            "leave it out",
        )
    if probabilities and answers is None:
        raise InputError(
            "probabilities",
            "are those of classes, and this model gives numbers",
            None,
            "leave it out",
        )
    if probabilities and isinstance(model, FittedLinear):
        _warn_of_probabilities(model.run)
    try:
        table = read_table(data, model.schema.with_header(header))
        features = encode_features(table, model.schema)
    except InputError as error:
        raise _without_training(error, data) from None
    if ids is None and table.cells is not None:
        ids = next(
            (c.name for c in model.schema.columns if isinstance(c, Id) and c.name in table.cells),
            None,
        )
    if answers is not None and threshold is not None:
        answers = replace(answers, threshold=threshold_of(threshold, len(answers.values)))
    try:
        numbers = (
            model.predict(features)
            if answers is None or not isinstance(model, FittedLinear)
            else model.scores(features)
        )
    except InputError as error:
        raise (
            InputError("data file", error.rule.removesuffix("."))
            if error.argument == "x"
            else error
        ) from None
    if answers is None:
        return _prepend_column(table, ids, ["prediction"], [[f"{value:.6g}"] for value in numbers])
    titles = ["prediction", *(f"probability_{name}" for name in answers.values)]
    pairs = zip(answers.of(numbers), answers.probabilities(numbers), strict=True)
    return _prepend_column(
        table,
        ids,
        titles,
        [[str(label), *(f"{chance:.6g}" for chance in row)] for label, row in pairs],
    )


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


def _without_training(error: InputError, data: str) -> InputError:
    """The error of a file to predict for: another schema would need another fit, which costs
    epsilon."""
    rule, again, _ = error.rule.partition("or train ")
    if not again:
        return error
    return InputError(error.argument, f"{rule.rstrip(' ,;')}; rewrite {data}, not the schema")


def _prepend_column(
    table: Table, ids: str | None, header: list[str], rows: list[list[str]]
) -> tuple[list[str], list[list[str]]]:
    """The rows with a column of the file in front of them."""
    if ids is None:
        return header, rows
    if table.cells is None or ids not in table.cells or ids in header:
        raise InputError(
            "ids",
            "must be a column of the file, and named otherwise than those of predictions",
            ids,
            "name one, or leave it out",
        )
    return [ids, *header], [
        [str(one), *row] for one, row in zip(table.cells[ids], rows, strict=True)
    ]

"""What a linear model on mapped rows learned of every column, as curves with the noise's own band.

A score is a sum over the columns up to the length that a row is divided by. That length is taken as
its mean square, which follows from what the private preparation released: everything here is
computed from the released model alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from lastiterate.data.columns import INDICATOR, Column, Date, Numeric
from lastiterate.engine.preprocessing import keeps_lengths, stretch
from lastiterate.features.record_fields import Choice, Field, Number
from lastiterate.planning.predicted_risk import filter_response
from lastiterate.release.fitted_linear import FittedLinear
from lastiterate.run.losses import KnownConstants
from lastiterate.run.preprocessing import (
    PrivateCovariance,
    PrivateMean,
    PrivateTargetMean,
    TopEigenvalue,
    UnitRows,
)
from lastiterate.run.run import Run

PLACES = 49
"""Values of a number at which its curve is computed."""
READ = (PrivateMean, PrivateTargetMean, PrivateCovariance, TopEigenvalue, UnitRows)
YEAR = 365.2425


@dataclass(frozen=True)
class Effect:
    """How the score changes with a column, against the noisy mean that the run released.

    Without one it is against a part of the row that is 0: for a plain number the middle of its
    public range.

    ``places``: values of a number, or the numbers of ``labels``. ``change``: of the score (log odds
    of the second class, units of half the target's range, or of several classes the score of
    ``answer`` against the mean of all). ``band``: two standard deviations of the noise in it, as
    large as it is where no record has the value.
    ``missing``: both where the column's value is missing and has an indicator. ``origin``: of a
    number on a logarithmic scale, what its distances are counted from. ``unit``: of ``places``.
    ``bounded``: whether the band is at least the noise; otherwise it is twice the weights' root
    mean square (see ``bounds_noise``).
    """

    column: str
    places: tuple[float, ...]
    change: tuple[float, ...]
    band: tuple[float, ...]
    labels: tuple[str, ...] = ()
    answer: str = ""
    missing: tuple[float, float] | None = None
    origin: float | None = None
    unit: str = ""
    bounded: bool = True

    @property
    def size(self) -> float:
        """The largest change less the smallest one, of a missing value too."""
        every = self.change if self.missing is None else (*self.change, self.missing[0])
        return max(every) - min(every)


def column_effects(model: FittedLinear) -> tuple[Effect, ...]:
    """The effect of every number and category, the largest first; none where rows have no columns
    with a meaning.

    These are tables by a schema whose scores are linear in the mapped row. Text and arrays have no
    curve.
    """
    schema, run = model.schema, model.run
    if schema is None or schema.array is not None or isinstance(run.loss, KnownConstants):
        return ()
    form = schema.form()
    if (
        any(type(part) not in READ for part in run.preprocessing)
        or model.released.weights.shape[1] != form.width + 1
    ):
        return ()
    slopes, mean, spread = _linear(model, form.norm)
    answers = ("",) if len(slopes) == 1 else tuple(map(str, schema.classes))
    columns = {field.name: column for column in schema.columns for field in column.fields}
    effects, at = list[Effect](), 0
    for field, one, width in form.parts:
        block, at, column = slice(at, at + width), at + width, columns.get(field.name)
        lacks = isinstance(column, Numeric | Date) and column.missing == INDICATOR
        for places, values, labels in _list_values(field, column):
            asked = (
                np.append(values, math.nan if isinstance(field, Number) else -1)
                if lacks
                else values
            )
            rows = (field.rows(asked) if one is None else one.rows(field, asked)) - mean[block]
            band = (2 * np.linalg.norm(rows @ spread[block], axis=1)).tolist()
            for answer, slope in zip(answers, slopes, strict=True):
                change, many = (rows @ slope[block]).tolist(), len(places)
                missing = (change[-1], band[-1]) if lacks else None
                origin = column.origin if isinstance(column, Numeric) else None
                effects.append(
                    Effect(
                        field.name,
                        tuple(places.tolist()),
                        tuple(change[:many]),
                        tuple(band[:many]),
                        labels,
                        answer,
                        missing,
                        origin,
                        "year" if isinstance(column, Date) and not labels else "",
                        bounds_noise(run),
                    )
                )
    return tuple(sorted(effects, key=lambda effect: -effect.size))


def _list_values(
    field: Field, column: Column | None
) -> Iterator[tuple[np.ndarray, np.ndarray, tuple[str, ...]]]:
    """Values of a field, what they are in the column's units, and their names."""
    match field, column:
        case Number(), Numeric():
            scaled = np.linspace(-1, 1, PLACES)
            yield column.from_unit(scaled), scaled, ()
        case Number(), Date(_, first, _):
            scaled, (low, high) = np.linspace(-1, 1, PLACES), column.ends
            yield float(first[:4]) + (scaled + 1) / 2 * (high - low) / YEAR, scaled, ()
        case Choice(_, labels), _:
            yield np.arange(len(labels), dtype=np.float64), np.arange(len(labels)), labels
        case _:
            return


def _linear(model: FittedLinear, norm: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Slopes (k, d) of the scores in mapped rows, their private mean (d,), and the noise's spread
    in a slope (d, d).

    Several scores count against their mean, which every score may have added; its noise is the
    smaller for that.
    """
    run, weights = model.run, model.released.weights[:, :-1]
    outputs, width = weights.shape
    mean, matrix, length = np.zeros(width), np.eye(width), 1.0
    for part, value in zip(run.preprocessing, model.released.released, strict=True):
        if isinstance(part, PrivateMean):
            mean = np.asarray(value, dtype=np.float64)
        elif isinstance(part, PrivateCovariance):
            matrix = np.asarray(value, dtype=np.float64)
            length = math.sqrt(
                max(norm**2 - float(mean @ mean), 0.05 * norm**2)
            )  # of rows as long as they may be
            if part.row_norm is None:
                length *= stretch(part, matrix)
            elif keeps_lengths(part, matrix) or length < part.row_norm:
                length = part.row_norm
        elif isinstance(part, UnitRows):
            length = norm
    if outputs > 1:
        weights = weights - weights.mean(axis=0)
    kept = math.sqrt(1 - 1 / outputs) if outputs > 1 else 1.0
    return weights @ matrix.T / length, mean, matrix * (kept * _noise(model) / length)


def bounds_noise(run: Run) -> bool:
    """Whether the noise in a weight has a bound here: averages, and steps that follow their own
    gradients, have none."""
    return run.method.noisy_steps and not run.method.averaged and run.rule.linear


def _noise(model: FittedLinear) -> float:
    """Standard deviation of the noise in a weight, at most: that of a weight that no record pulls
    back, such as a category's that no record has. Without a bound, the weights' root mean square,
    which holds signal as well."""
    weights, run = model.released.weights[:, :-1], model.run
    if not bounds_noise(run):
        return math.sqrt(float((weights**2).mean()))
    return math.sqrt(float(filter_response(_resolve_run(model), np.zeros(1), run.loss.ridge)[1][0]))


def _resolve_run(model: FittedLinear) -> Run:
    """The run with the steps that followed from what its preparation released."""
    run = model.run
    for part, value in zip(run.preprocessing, model.released.released, strict=True):
        if isinstance(part, PrivateCovariance):
            run = run.with_eigenvalues(
                np.linalg.eigvalsh(np.asarray(value, dtype=np.float64)).tolist()
            )
        elif isinstance(part, TopEigenvalue):
            run = run.with_top_eigenvalue(
                float(np.asarray(value).item()), model.released.weights.shape[1]
            )
    return run

"""Families of canaries: pairs of synthetic data sets, each of which shows mistakes that the others
hide.

The tight pair comes first; a correct trainer leaks most on it. The others are for trainers that are
not: rows along all axes for norms that are measured wrongly, no features for what happens to the
intercept, short and long rows for clips, a lone extreme record among ordinary ones for preparation
that reads the data, records in every part of a pass, and records of several classes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from lastiterate.audit.canaries import (
    FAR,
    LONG,
    DataSet,
    Neighbours,
    columns,
    find_width,
    is_replace_one,
    linear_in_noise,
    move_record,
    rotate_pair,
    without,
    worst_case,
    worst_place,
)
from lastiterate.engine.linear_gradients import linear_loss
from lastiterate.engine.preprocessing import clip_rows
from lastiterate.run.losses import LinearLoss
from lastiterate.run.run import Run

WIDTH = 6
"""Columns of the synthetic data where nothing else fixes their number."""
LENGTHS = (0.001, 0.01, 0.1, 0.3, 2.0, 1e3)
"""Lengths of canary rows, in units of ``row_norm``."""
ORDINARY = (0.2, 3.0, 0.3)
"""Lengths of ordinary rows, in the same units."""
EXTREME = 1e3


def families(run: Run, features: int | None = None, seed: int = 0) -> tuple[Neighbours, ...]:
    """All pairs that fit the run, of one shape: the tight one first, as it is, the others as
    ``seed`` turns them."""
    width = columns(run, features if features is not None or find_width(run) else WIDTH)
    made, rng = _Maker(run, linear_loss(run), width), np.random.default_rng(seed)
    tight = worst_case(run, width)
    others = [
        *(_move_to_ends(run, tight) if run.batching.drawn == "never" else ()),
        *(_labels if made.loss.target_classes else _numbers)(made),
    ]
    return (tight, *(rotate_pair(run, made.loss, pair, rng) for pair in others))


def _move_to_ends(run: Run, tight: Neighbours) -> list[Neighbours]:
    """The tight pair with its record first and last in public order."""
    return [
        replace(move_record(tight, record), about=f"{about}: {tight.about}")
        for record, about in ((run.n - 1, "the last record"), (0, "the first record"))
        if run.blocks > 1 and record != tight.record
    ]


@dataclass(frozen=True)
class _Maker:
    """Puts a canary among other records, and zeroes it or replaces it by another."""

    run: Run
    loss: LinearLoss
    width: int

    @cached_property
    def record(self) -> int:
        return worst_place(self.run)

    def axis(self, length: float) -> np.ndarray:
        return np.eye(self.width)[0] * length * self.loss.row_norm

    def dense(self, length: float) -> np.ndarray:
        return np.ones(self.width) / np.sqrt(self.width) * length * self.loss.row_norm

    def signs(self, answer: float) -> np.ndarray:
        """Along which outputs the gradient of an answer lies, (k,), seen from the others' answer 0."""
        if self.loss.outputs == 1:
            return np.array(
                [np.sign(answer) if self.loss.target_classes == 0 else 2.0 * answer - 1.0]
            )
        return np.eye(self.loss.outputs)[int(answer)] - np.eye(self.loss.outputs)[0]

    def gradient(self, row: np.ndarray, answer: float) -> np.ndarray:
        clipped = clip_rows(row[None], self.loss.row_norm)[0].astype(np.float64)
        return np.outer(self.signs(answer), np.append(clipped, self.loss.intercept))

    def pair(
        self,
        about: str,
        others: tuple[np.ndarray, np.ndarray],
        row: np.ndarray,
        answer: float,
        opposite: tuple[np.ndarray, float] | None = None,
        *,
        gaussian: bool = False,
        known: bool = True,
    ) -> Neighbours:
        """``opposite``: its replacement under replace-one (by default the same row with another
        answer)."""
        features, target = others[0].astype(np.float32).copy(), others[1].copy()
        features[self.record], target[self.record] = row, answer
        direction, present = self.gradient(row, answer), DataSet(features, target)
        if not is_replace_one(self.run):
            other = without(present, self.record)
        else:
            instead = opposite or (row, -answer if self.loss.target_classes == 0 else 0)
            other = DataSet(features.copy(), target.copy())
            other.features[self.record], other.target[self.record] = instead
            direction = direction - self.gradient(instead[0], instead[1])
        return Neighbours(
            present, other, self.record, about, direction if known else None, gaussian
        )


def _numbers(made: _Maker) -> list[Neighbours]:
    """Pairs for squared error with clamped residuals."""
    run, n = made.run, made.run.n
    exact = linear_in_noise(run)
    empty = np.zeros((n, made.width))
    turns = (
        np.where(np.arange(n) % 2 == made.record % 2, FAR, -FAR)
        if run.batching.drawn == "never"
        else np.full(n, FAR)
    )
    bound = getattr(made.loss, "residual_clip", 1.0)
    ordinary = _ordinary(made, lambda long, side: np.where(long, 3.0, 0.5 * side) * bound)
    far, near = made.dense(EXTREME), made.dense(0.5)
    plain = (-near, -0.5 * bound)
    pairs = [
        made.pair(
            "an extreme row and target among ordinary ones", ordinary, far, -FAR, plain, known=False
        ),
        made.pair(
            "an extreme row among ordinary ones", ordinary, far, 0.5 * bound, plain, known=False
        ),
        made.pair("an extreme target among ordinary ones", ordinary, near, FAR, plain, known=False),
        made.pair("a row along all axes", (empty, turns), made.dense(LONG), FAR, gaussian=exact),
        made.pair(
            "a row along one axis, all other targets on the other side",
            (empty, np.full(n, -FAR)),
            made.axis(LONG),
            FAR,
            gaussian=exact,
        ),
    ]
    if made.loss.intercept > 0:
        pairs.append(
            made.pair("a row without features", (empty, turns), made.axis(0.0), FAR, gaussian=exact)
        )
    pairs += [
        made.pair(
            f"a row of {length:g} times the bound",
            (empty, turns),
            made.axis(length),
            FAR,
            gaussian=exact,
        )
        for length in LENGTHS
    ]
    if is_replace_one(run):
        other = made.axis(LONG)[::-1].copy() if made.width > 1 else -made.axis(LONG)
        pairs.append(
            made.pair(
                "records that differ in row and target",
                (empty, turns),
                made.axis(LONG),
                FAR,
                (other, -FAR),
                gaussian=exact,
            )
        )
    return pairs


def _labels(made: _Maker) -> list[Neighbours]:
    """Pairs for classes; the canary has the last class, and where there are only two the second."""
    n, last = made.run.n, made.loss.target_classes - 1
    empty, zeros = np.zeros((n, made.width)), np.zeros(n, np.int64)
    spread = np.arange(n) % made.loss.target_classes
    ordinary = _ordinary(made, lambda long, side: np.where(long, last, (side > 0) * last))
    plain = (made.dense(-0.5), 0)
    axis, dense = np.tile(made.axis(LONG), (n, 1)), np.tile(made.dense(LONG), (n, 1))
    pairs = [
        made.pair(
            "an extreme row among ordinary ones",
            ordinary,
            made.dense(EXTREME),
            0 if last == 1 else 1,
            plain,
            known=False,
        ),
        made.pair(
            "an extreme row among ordinary ones of the other class",
            (ordinary[0], zeros),
            made.dense(EXTREME),
            last,
            plain,
            known=False,
        ),
        made.pair(
            "a row along all axes, the others with the opposite label",
            (dense, zeros),
            made.dense(LONG),
            last,
        ),
        made.pair(
            "a lone row, the others without features", (empty, spread), made.axis(LONG), last
        ),
        made.pair("equal rows of all classes", (axis, spread), made.axis(LONG), last, known=False),
    ]
    if made.loss.intercept > 0:
        pairs.append(
            made.pair(
                "a row without features, the others with the opposite label",
                (empty, zeros),
                made.axis(0.0),
                last,
            )
        )
    pairs += [
        made.pair(
            f"a row of {length:g} times the bound, the others with the opposite label",
            (axis, zeros),
            made.axis(length),
            last,
        )
        for length in LENGTHS
    ]
    if is_replace_one(made.run):
        pairs.append(
            made.pair(
                "records that differ in row and label",
                (axis, zeros),
                made.axis(LONG),
                last,
                (-made.axis(LONG), 0),
            )
        )
    return pairs


def _ordinary(
    made: _Maker, answer: Callable[[np.ndarray, np.ndarray], np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """Rows of several lengths, the long ones alike, with answers that follow from them."""
    rng, n = np.random.default_rng(7), made.run.n
    lengths = np.resize(ORDINARY, n) * made.loss.row_norm
    rows = rng.normal(size=(n, made.width))
    long = lengths > made.loss.row_norm
    rows[long] = made.dense(1.0)
    rows *= (lengths / np.linalg.norm(rows, axis=1))[:, None]
    answers = answer(long, np.sign(rows[:, 0]))
    return rows, answers.astype(np.int64) if made.loss.target_classes else answers

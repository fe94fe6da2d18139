"""Accuracy that may be shown: counts over private records, with noise that the certificate pays
for."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from lastiterate.accounting.certificate_subject import count_curve, format_rounded_up
from lastiterate.curves.curve import Curve
from lastiterate.curves.roots import smallest_true
from lastiterate.data import split
from lastiterate.errors import InputError
from lastiterate.planning.task import budget
from lastiterate.run.facts import FLOAT_SLACK
from lastiterate.run.noisy_counts import Count, NoisyCount, NoisyGroups
from lastiterate.run.run import Run

if TYPE_CHECKING:
    from lastiterate.engine.random import Key

HELD_OUT = 0.1
"""The part of the records that is split off to count accuracy on."""
WIDE = 0.2
"""An interval of this length and more says so."""
TOO_WIDE = 0.25
"""Half width of an interval of accuracy from which on no budget is charged for it."""
CONFIDENCE, NOISE_PART = 0.95, 0.01
"""Of intervals; and the probability with which the noise may lie outside of what they allow for."""


@dataclass(frozen=True)
class Accuracy:
    """The share of right answers that a noisy count says, and an interval for that of new records
    like the counted.

    ``group``: whose answers, empty for all; the number of records of a group is private, and
    ``records`` a noisy one.
    """

    value: float
    low: float
    high: float
    records: int
    apart: bool
    group: str = ""

    def __str__(self) -> str:
        whose, about = (f"{self.group}: ", "about ") if self.group else ("", "")
        said = (
            f"{whose}{self.low:.3f} to {self.high:.3f} with {CONFIDENCE:.0%} confidence; counted "
            f"{self.value:.3f}, with noise, on {about}{self.records} private records"
        )
        if self.high - self.low > WIDE:
            said += ": too few records, at this noise, to say more"
        if not self.apart:
            said += "; they, or other rows of the same person, may be trained on"
        return said


def split_held_out(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the public positions of the records that are trained on, and of those that accuracy is
    counted on."""
    if n < 20:
        raise InputError("report_accuracy", "needs at least 20 records to split", n, "leave it out")
    return split(n, seed=1, test_fraction=HELD_OUT)


def count_for(
    share: float, epsilon: float, delta: float, records: int, *, rows_per_unit: int = 1
) -> NoisyCount:
    """The count that a ``share`` of the budget's mu^2 pays for, apart from the training where a
    unit is one row."""
    if isinstance(share, bool) or not isinstance(share, float | int) or not 0 < share < 1:  # pyright: ignore
        raise InputError(
            "report_accuracy", "must lie between 0 and 1", share, "0.05 is a common choice"
        )
    mu = budget(epsilon, delta) * math.sqrt(share)
    return NoisyCount(
        rows_per_unit * (1 + FLOAT_SLACK) / mu * (1 + 1e-9),
        records,
        "apart" if rows_per_unit == 1 else "anywhere",
    )


def noisy_count(right: np.ndarray, count: NoisyCount, key: Key) -> float:
    """How many of the counted records are right, with noise.

    **Guarantee:** a record moves the sum by 1 at most; the noise has the described standard
    deviation.
    """
    import jax

    from lastiterate.engine.random import normals

    _check_length("y", right.shape, count)
    with jax.enable_x64(True):
        noise = float(normals(key, 0, 1)[0])
    return float(right.astype(bool).sum()) + count.noise_multiplier * noise


def count_of(run: Run, mu: float, records: int, by: Any, groups: tuple[str, ...]) -> Count:
    """Return the count that ``mu`` pays for in addition to a run, of all ``records`` or by groups;
    of ``by`` only the form is read."""
    if (by is None) != (not groups):
        raise InputError(
            "by",
            "and groups belong together",
            None,
            "give every record's group in by=, and the groups' public names in groups=",
        )
    one: Count = NoisyGroups(1.0, records, groups) if groups else NoisyCount(1.0, records)
    if groups:
        _check_length("by", np.shape(by), one)
    moved = one.sensitivity(run.adjacency) * run.rows_per_unit
    return replace(one, noise_multiplier=moved * (1 + FLOAT_SLACK) / mu * (1 + 1e-9))


def noisy_numbers(right: np.ndarray, by: object, count: Count, key: Key) -> tuple[float, ...]:
    """What is released: the noisy count, or of every group how many are right and wrong, with
    noise.

    ``by`` (n,): the name of every record's group; other names count nowhere.
    **Guarantee:** a record is in one of these numbers at most; every number has noise of its own.
    """
    import jax

    from lastiterate.engine.random import normals

    if isinstance(count, NoisyCount):
        return (noisy_count(right, count, key),)
    _check_length("y", right.shape, count)
    right, names = right.astype(bool), np.asarray(by).astype(str)
    sums = [
        float((part & (names == name)).sum()) for name in count.groups for part in (right, ~right)
    ]
    with jax.enable_x64(True):
        noise = normals(key, 0, count.numbers)
    return tuple(float(one) for one in sums + count.noise_multiplier * noise)


def _check_length(name: str, shape: tuple[int, ...], count: Count) -> None:
    if shape != (count.records,):
        raise InputError(
            name, f"must have {count.records} entries, one for every counted record", shape
        )


def accuracies(counts: tuple[Count, ...], counted: tuple[float, ...]) -> tuple[Accuracy, ...]:
    """What all released numbers of a run's counts say, in their order."""
    scores, at = list[Accuracy](), 0
    for count in counts:
        said = counted[at : at + count.numbers]
        at += count.numbers
        scores += (
            [accuracy(count, *said)] if isinstance(count, NoisyCount) else _of_groups(count, said)
        )
    return tuple(scores)


def accuracy(count: NoisyCount, counted: float) -> Accuracy:
    """What a released count says: post-processing.

    The interval allows for the noise (both sides together are exceeded with probability
    ``NOISE_PART``), and for which records were drawn by the exact binomial interval of Clopper and
    Pearson at the rest.
    """
    from scipy.stats import norm  # pyright: ignore

    m, reach = count.records, count.noise_multiplier * float(norm.ppf(1 - NOISE_PART / 2))  # pyright: ignore
    fewest = min(m, max(0, math.floor(counted - reach)))
    most = min(m, max(0, math.ceil(counted + reach)))
    low, high = _binomial(fewest, m - fewest)[0], _binomial(most, m - most)[1]
    return Accuracy(min(1.0, max(0.0, counted / m)), low, high, m, count.apart)


def half_width(count: Count) -> float:
    """Half the width of the interval around an accuracy of one half: known before any record is.

    Of groups: the width for a group that holds every record, which no other group falls below.
    """
    middle = accuracies((count,), (count.records / 2,) * count.numbers)[0]
    return (middle.high - middle.low) / 2


def check_width(
    argument: str, given: float, count_at: Callable[[float], Count], most: float, remedy: str
) -> Count:
    """The count that an argument pays for; refused where its interval would say next to nothing.

    ``count_at``: the count for another value of the argument, of which the remedy names the
    smallest that is enough, if one up to ``most`` is.
    """
    count = count_at(given)
    half = half_width(count)
    if half < TOO_WIDE:
        return count
    enough = smallest_true(lambda value: half_width(count_at(value)) < TOO_WIDE, given, most, 1e-4)
    raise InputError(
        argument,
        f"must buy an accuracy that is known to within less than {TOO_WIDE:g}: this one would be "
        f"known to within about {half:.2f} only, as its count of {count.records} records has noise "
        f"of standard deviation {count.noise_multiplier:.3g}",
        given,
        (f"{argument}={format_rounded_up(enough)} is enough, or " if enough < math.inf else "")
        + remedy,
    )


def _of_groups(count: NoisyGroups, counted: tuple[float, ...]) -> list[Accuracy]:
    """What a released count by groups says, each group by itself; its interval allows for the noise
    of both numbers (four sides together are exceeded with probability ``NOISE_PART``)."""
    from scipy.stats import norm  # pyright: ignore

    scores = list[Accuracy]()
    reach = count.noise_multiplier * float(norm.ppf(1 - NOISE_PART / 4))  # pyright: ignore
    for name, right, wrong in zip(count.groups, counted[::2], counted[1::2], strict=True):
        least = [min(count.records, max(0, math.floor(one - reach))) for one in (right, wrong)]
        most = [min(count.records, max(0, math.ceil(one + reach))) for one in (right, wrong)]
        low, high = _binomial(least[0], most[1])[0], _binomial(most[0], least[1])[1]
        value = max(0.0, right) / max(1.0, max(0.0, right) + max(0.0, wrong))
        scores.append(
            Accuracy(
                min(high, max(low, value)), low, high, max(0, round(right + wrong)), False, name
            )
        )
    return scores


def _binomial(right: int, wrong: int) -> tuple[float, float]:
    """Both ends of the exact interval of Clopper and Pearson, each with half of what the noise
    leaves."""
    from scipy.stats import beta  # pyright: ignore

    side = (1 - CONFIDENCE - NOISE_PART) / 2
    return (
        0.0 if right == 0 else float(beta.ppf(side, right, wrong + 1)),  # pyright: ignore
        1.0 if wrong == 0 else float(beta.ppf(1 - side, right + 1, wrong)),  # pyright: ignore
    )


@dataclass(frozen=True)
class CountCharge:
    """What a ledger is charged for one more count, under its adjacency."""

    run: Run
    count: Count
    adjacency: str

    def curve(self) -> Curve:
        return count_curve(self.count, self.run, self.adjacency)

    def with_adjacency(self, adjacency: str) -> CountCharge:
        return replace(self, adjacency=adjacency)

    def describe(self) -> dict[str, Any]:
        """The run whose last count is charged; another subject than the run itself."""
        return {"run": self.run.to_dict(), "charged": "its last count"}

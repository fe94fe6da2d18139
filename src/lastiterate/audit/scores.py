"""Scores of many models on both data sets, and how far a record moves them."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lastiterate import interrupts
from lastiterate.atomic_files import SHARED, append_line, write_file
from lastiterate.audit import learned_scores
from lastiterate.audit.canaries import DataSet, Neighbours, Train, execute
from lastiterate.audit.end_to_end import TrialPlan
from lastiterate.errors import InputError
from lastiterate.run import serialization
from lastiterate.run.methods import NoisySGD
from lastiterate.run.run import Run

# How far a record moves a score, by the description: the sum of what it adds in the steps whose
# batches hold it.  Where every step is linear, a step that holds the record adds a number that the
# description says; which steps do is drawn. Draws are written out again here, and so is their
# arithmetic: the accountant's mistakes are not to be shared. Sums are put on a grid: a sum between
# two points of it is split between them so that its mean stays, and the variance that splitting
# adds is counted.

GRID = 2**14
LONGEST = 4096
"""Steps whose moves are followed one by one, at most."""
BEYOND = 32.2
"""A sum exceeds the grid with probability exp(-BEYOND) at most, by Bernstein's inequality; what
does is counted."""
Choice = tuple[np.ndarray, np.ndarray]
"""One draw: the values that it may add and their probabilities; with the remaining probability it
adds nothing."""


@dataclass(frozen=True, eq=False)
class MoveDistribution:
    """``values`` >= 0 and their ``weights``, (c,) each, in units that mean nothing; ``variance``:
    what the grid has added to the sum's; ``lost``: probability that is not on it."""

    values: np.ndarray
    weights: np.ndarray
    variance: float = 0.0
    lost: float = 0.0


CERTAIN = MoveDistribution(np.ones(1), np.ones(1))
"""Of a record that is in the same steps of every run."""


def moves(run: Run, *, all_steps: bool) -> MoveDistribution | None:
    """Return the distribution of the sum; ``all_steps``: of the attack on all iterates, else on the
    last one.

    ``None`` where no line says what a step adds, or where steps move the score to both sides.
    """
    if run.batching.drawn == "never":
        return CERTAIN
    if (
        type(run.method) is not NoisySGD
        or run.steps > LONGEST
        or run.preprocessing
        or run.rows_per_record > 1
    ):
        return None
    added = learned_scores.weights(run, 0) if all_steps else weight_in_last(run)
    added = added * (-1.0 if added.sum() < 0 else 1.0)
    if not np.isfinite(added).all() or added.max() <= 0 or added.min() < -1e-12 * added.max():
        return None
    return sum_law(choices(run, np.maximum(added, 0.0)))


def weight_in_last(run: Run) -> np.ndarray:
    """By how much a gradient of 1 in step k, and nowhere else, lets the last iterate go against it;
    (T,)."""
    theta, rule = np.zeros(run.steps), run.rule
    memory = rule.init(theta)
    for k, step in enumerate(np.eye(run.steps)):
        point = rule.point(theta, memory, k)
        direction, memory = rule.update(run.loss.ridge * point - step, memory, theta, k)
        theta = point - float(run.step_sizes[k]) * direction
    return theta


def choices(run: Run, added: np.ndarray) -> list[Choice]:
    """The independent draws of one record: one for every step, for every pass, or one in all."""
    batching, blocks = run.batching, run.blocks
    if batching.drawn == "each step":
        share = np.array([batching.inclusion_probability(run.n)], np.float64)
        return [(added[k : k + 1], share) for k in range(run.steps)]
    passes = np.pad(added, (0, -run.steps % blocks)).reshape(-1, blocks)
    places = batching.place_probabilities(run.n)
    assert places is not None  # nothing else is drawn
    return [
        (row, places)
        for row in (passes.sum(0, keepdims=True) if batching.drawn == "once" else passes)
    ]


def sum_law(drawn: list[Choice]) -> MoveDistribution:
    """Return the distribution of the sum of independent draws."""
    mean = sum(float(v @ p) for v, p in drawn)
    spread = sum(float(v**2 @ p) for v, p in drawn)
    most = max(float(v.max()) for v, _ in drawn)
    far = BEYOND * most / 3
    top = min(
        sum(float(v.max()) for v, _ in drawn), mean + far + math.sqrt(far**2 + 2 * BEYOND * spread)
    )
    width = (
        most / math.ceil(most * (GRID - 2) / top) if top > 0 else 1.0
    )  # the largest addend lies on the grid
    mass, variance = np.zeros(math.ceil(top / width) + 2), 0.0
    mass[0] = 1.0
    for values, shares in drawn:
        after = (1 - shares.sum()) * mass
        for value, share in zip(values, shares, strict=True):
            low = math.floor(float(value) / width * (1 + 1e-12))
            rest = max(float(value) / width - low, 0.0)
            _add_shifted(after, mass, low, share * (1 - rest))
            _add_shifted(after, mass, low + 1, share * rest)
            variance += float(share) * rest * (1 - rest) * width**2
        mass = np.maximum(after, 0.0)
    kept = mass > 1e-18
    return MoveDistribution(
        np.flatnonzero(kept) * width,
        mass[kept],
        variance,
        max(0.0, 1 - float(mass[kept].sum())) + 1e-15,
    )


def _add_shifted(onto: np.ndarray, mass: np.ndarray, by: int, weight: float) -> None:
    """Add so much of ``mass``, moved by so many points; what leaves the grid is lost."""
    if weight > 0 and by < mass.size:
        onto[by:] += weight * mass[: mass.size - by]


# Many models on both data sets: trained in batches, scored as they come, resumed from a file after
# an interruption.

Progress = Callable[[int, int, float, float], None]
"""Called with models done, models in all, models per minute and seconds left."""


def settings(results: str | Path | None) -> dict[str, Any]:
    """What the first line of a file of results says about its audit; nothing where there is no such
    file yet."""
    if results is not None and not Path(results).parent.is_dir():
        raise InputError(
            "results", "must lie in an existing folder", str(results), "make the folder first"
        )
    if results is None or not Path(results).is_file():
        return {}
    with Path(results).open(encoding="utf-8") as file:
        try:
            header = json.loads(file.readline())
        except (json.JSONDecodeError, UnicodeDecodeError):
            return {}
    return header if serialization.is_object(header) else {}


class Results:
    """Scores on disk, one JSON line per batch under a line that says which audit they belong to."""

    def __init__(self, path: Path | None, about: dict[str, Any]) -> None:
        self._path, self._scores = path, dict[tuple[int, int], np.ndarray]()
        digest = hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()
        if path is None:
            return
        if path.exists():
            self._read(path, digest)
        else:
            write_file(
                path,
                (json.dumps({"audit": digest, **about}) + "\n").encode(),
                new=True,
                mode=SHARED,
            )

    def _read(self, path: Path, digest: str) -> None:
        lines = path.read_text(encoding="utf-8").split("\n")
        whole = [lines[0], *lines[1:-1]]  # the last line is empty, or was cut off
        try:
            owner, *entries = map(json.loads, whole)
            owner = owner["audit"]
            self._scores = {
                (entry["data_set"], entry["first"]): np.array(entry["scores"], dtype=np.float64)
                for entry in entries
            }
        except (ValueError, KeyError, TypeError):
            raise InputError(
                "results", "must be a file that an audit wrote", str(path), "choose a new name"
            ) from None
        if owner != digest:
            raise InputError(
                "results",
                "belong to another audit: a run, attack, number or seed differs",
                str(path),
                "choose a new name, or repeat that audit",
            )
        write_file(path, ("\n".join(whole) + "\n").encode(), mode=SHARED)

    def get(self, data_set: int, first: int, size: int) -> np.ndarray | None:
        scores = self._scores.get((data_set, first))
        return scores if scores is not None and len(scores) == size else None

    def store(self, data_set: int, first: int, scores: np.ndarray) -> None:
        if self._path is not None:
            line = (
                json.dumps({"data_set": data_set, "first": first, "scores": scores.tolist()}) + "\n"
            )
            with interrupts.later():
                append_line(self._path, line.encode())


def sides(pair: Neighbours) -> tuple[DataSet, DataSet]:
    """The data set with the record, and the one without it."""
    return pair.with_record, pair.without_record


def pilots_of(
    run: Run, number: int, pair: Neighbours, train: Train, plan: TrialPlan
) -> tuple[np.ndarray, np.ndarray]:
    """Models of both data sets of a pair that are not counted, with the record and without."""
    pilots = list[np.ndarray]()
    for place, data_set in enumerate(sides(pair)):
        keys = plan.keys(2 * number + place, counted=False)
        parts = [
            _release_models(run, data_set, train, keys[first : first + plan.batch_models])
            for first in range(0, plan.pilot, plan.batch_models)
        ]
        pilots.append(np.concatenate(parts)[: plan.pilot])
    return pilots[0], pilots[1]


def train_in_batches(
    run: Run, data_set: DataSet, train: Train, keys: np.ndarray, size: int
) -> np.ndarray:
    """One model per key, from batches of ``size``: the last one is filled up, so that no other size
    is compiled."""
    filled = np.concatenate((keys, np.repeat(keys[:1], -len(keys) % size, axis=0)))
    parts = list[np.ndarray]()
    for first in range(0, len(filled), size):
        interrupts.check()
        parts.append(execute(run, data_set, train, filled[first : first + size]))
    return np.concatenate(parts)[: len(keys)]


def _release_models(run: Run, data_set: DataSet, train: Train, keys: np.ndarray) -> np.ndarray:
    models = execute(run, data_set, train, keys)
    if models.ndim < 2 or len(models) != len(keys):
        raise InputError(
            "train", "must return one model per key", models.shape, "as Trainer(run).fit_many does"
        )
    return models


def check_pure(
    run: Run, pair: Neighbours, train: Train, plan: TrialPlan, present: np.ndarray
) -> None:
    """Refuse a trainer that answers the pilot's first keys in another way than it did.

    Batches of another size may round differently; other noise is far above the tolerance of 1e-6.
    """
    keys = plan.keys(0, counted=False)[: plan.batch_models]  # a size that is compiled already
    again = _release_models(run, pair.with_record, train, keys)[: len(present)]
    before = present[: len(again)]
    if again.shape != before.shape or not np.allclose(
        before, again, rtol=1e-6, atol=1e-9, equal_nan=True
    ):
        raise InputError(
            "train",
            "is not a pure function of (data, key): the same keys gave two answers",
            None,
            "audit a trainer that takes all its randomness from the key",
        )


class Clock:
    """Models per minute and time left, counting only models that were trained now."""

    def __init__(self, total: int, progress: Progress | None) -> None:
        self._began, self._total, self._progress = time.perf_counter(), total, progress

    def report(self, done: int, trained: int) -> None:
        """Say that so many models are ``done``, of which so many were ``trained`` now."""
        if self._progress is not None:
            rate = max(trained, 1) / max(time.perf_counter() - self._began, 1e-9)
            self._progress(done, self._total, 60 * rate, (self._total - done) / rate)


class Collected:
    """Scores of the models that count: for every pair and data set, batch by batch, one column per
    statement."""

    def __init__(self, numbers: list[int]) -> None:
        self.parts: dict[tuple[int, int], list[np.ndarray]] = {
            (n, place): [] for n in numbers for place in (0, 1)
        }

    def of(self, pair: int, column: int) -> tuple[np.ndarray, np.ndarray]:
        """Scores with the record and without, as many of both as there are."""
        both = [self.parts[pair, place] for place in (0, 1)]
        count = min(map(len, both))
        scores = [
            np.concatenate(parts[:count])[:, column] if count else np.zeros(0) for parts in both
        ]
        return scores[0], scores[1]


def collect(
    run: Run,
    pairs: dict[int, Neighbours],
    scores: dict[int, list[Callable[[np.ndarray], np.ndarray]]],
    train: Train,
    plan: TrialPlan,
    results: Results,
    progress: Progress | None,
) -> Collected:
    """Train and score ``trials`` models of every data set; only scores are kept.

    An interruption ends it with what is complete by then, if the first pair has anything.
    """
    store = Collected(list(pairs))
    try:
        _fill(store, run, pairs, scores, train, plan, results, progress)
    except KeyboardInterrupt:
        if not store.parts[next(iter(pairs)), 1]:
            raise
        interrupts.mark_answered()
    return store


def _fill(
    store: Collected,
    run: Run,
    pairs: dict[int, Neighbours],
    scores: dict[int, list[Callable[[np.ndarray], np.ndarray]]],
    train: Train,
    plan: TrialPlan,
    results: Results,
    progress: Progress | None,
) -> None:
    clock, trained, done = Clock(2 * plan.trials * len(pairs), progress), 0, 0
    keys = {
        place: plan.keys(place, counted=True)
        for number in pairs
        for place in (2 * number, 2 * number + 1)
    }
    for first in range(0, plan.trials, plan.batch_models):
        size = min(plan.batch_models, plan.trials - first)
        for (number, place), parts in store.parts.items():
            interrupts.check()
            which = 2 * number + place
            values = results.get(which, first, size)
            if values is None:
                models = _release_models(
                    run,
                    sides(pairs[number])[place],
                    train,
                    keys[which][first:][: plan.batch_models],
                )
                values = np.stack(
                    [np.asarray(score(models[:size]), np.float64) for score in scores[number]],
                    axis=1,
                )
                results.store(which, first, values)
                trained += size
            parts.append(values)
            done += size
            clock.report(done, trained)

"""Many models on both data sets: trained in batches, scored as they come, resumed from a file after an interruption."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lastiterate.audit.neighbours import DataSet, Neighbours, Train, execute
from lastiterate.engine import seeded_keys
from lastiterate.engine.gradients import AT_ONCE, outputs
from lastiterate.engine.prepare import linear_loss
from lastiterate.engine.samplers import sampler_of
from lastiterate.errors import InputError
from lastiterate.run.run import Run

Progress = Callable[[int, int, float, float], None]
"""Called with models done, models in all, models per minute and seconds left."""
SMALL = 64
"""Models that are trained twice without much ado."""
MEMORY = 2**29
"""Bytes that a batch of models may take, about, when its size is not given."""


@dataclass(frozen=True)
class TrialPlan:
    """How many models, from which seed, in which batches; every data set has keys of its own, and so has the pilot."""

    trials: int
    pilot: int
    batch_models: int
    seed: int

    @property
    def at_once(self) -> int:
        """Models that one call of ``train_first`` trains: the pilot too, where one batch holds all that count."""
        return self.batch_models + (self.pilot if self.batch_models == self.trials else 0)

    def keys(self, data_set: int) -> Any:
        """One key per model, the pilot's first; each data set has its own. Spare ones at the end fill up batches, so
        that programs are compiled for one size only."""
        words = np.random.SeedSequence([self.seed, data_set]).generate_state(1)
        return seeded_keys(int(words[0]) & 0x7FFFFFFF, self.pilot + self.trials + self.at_once)


def batch_size(run: Run, width: int) -> int:
    """Models whose training fits in ``MEMORY``, about: scores and residuals of a chunk, parameters, a secret order."""
    plan, k = sampler_of(run.batching, run.n, AT_ONCE).layout, outputs(linear_loss(run))
    numbers = 6 * k * (plan.rows + width + 1)
    if run.release == "all":
        numbers += run.steps * k * (width + 1)
    if run.batching.drawn in ("once", "each pass"):
        numbers += 2 * plan.slots * (width + 3)
    return int(min(max(MEMORY // (8 * numbers), 16), 2**16))


def require_pure(run: Run, data_set: DataSet, train: Train, keys: Any, released: np.ndarray) -> None:
    """Refuse a trainer that does not answer ``keys`` as it did before, when they were the first of ``released``.

    Batches of another size may round differently; other noise is far above the tolerance of 1e-6.
    """
    again = execute(run, data_set, train, keys)
    if again.ndim < 2 or released.shape[1:] != again.shape[1:] or len(again) != len(keys):
        raise InputError("train", "must return one model per key", again.shape, "as Trainer(run).fit_many does")
    if not np.allclose(released[:len(again)], again, rtol=1e-6, atol=1e-9, equal_nan=True):
        raise InputError("train", "is not a pure function of (data, key): the same keys gave two answers", None,
                         "audit a trainer that takes all its randomness from the key")


def settings(results: str | Path | None) -> dict[str, Any]:
    """What the first line of a file of results says about its audit; nothing where there is no such file yet."""
    if results is None or not Path(results).is_file():
        return {}
    with Path(results).open(encoding="utf-8") as file:
        try:
            found = json.loads(file.readline())
        except (json.JSONDecodeError, UnicodeDecodeError):
            return {}
    return found if isinstance(found, dict) else {}


class Results:
    """Scores on disk, one JSON line per batch under a line that says which audit they belong to."""

    def __init__(self, path: Path | None, about: dict[str, Any]) -> None:
        self._path, self._found = path, {}
        digest = hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()
        if path is None:
            return
        if path.exists():
            self._read(path, digest)
        else:
            path.write_text(json.dumps({"audit": digest, **about}) + "\n", encoding="utf-8")

    def _read(self, path: Path, digest: str) -> None:
        lines = path.read_text(encoding="utf-8").split("\n")
        try:
            owner = json.loads(lines[0])["audit"]
        except (json.JSONDecodeError, KeyError, TypeError):
            raise InputError("results", "must be a file that an audit wrote", str(path), "choose a new name") from None
        if owner != digest:
            raise InputError("results", "belong to another audit: a run, attack, number or seed differs", str(path),
                             "choose a new name, or repeat that audit")
        whole = lines[:-1]  # the last line is empty, or was cut off
        for line in whole[1:]:
            entry = json.loads(line)
            self._found[entry["data_set"], entry["first"]] = np.array(entry["scores"], dtype=np.float64)
        path.write_text("\n".join(whole) + "\n", encoding="utf-8")

    def get(self, data_set: int, first: int, size: int) -> np.ndarray | None:
        found = self._found.get((data_set, first))
        return found if found is not None and len(found) == size else None

    def put(self, data_set: int, first: int, scores: np.ndarray) -> None:
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"data_set": data_set, "first": first, "scores": scores.tolist()}) + "\n")


@dataclass(frozen=True, eq=False)
class FirstModels:
    """Keys of one data set, and the models of its first ones: the pilot and the first batch that counts."""

    data_set: DataSet
    keys: Any
    released: np.ndarray
    pilot: int
    seconds: float


def train_first(run: Run, neighbours: Neighbours, train: Train, plan: TrialPlan) -> tuple[FirstModels, FirstModels]:
    """Train the pilot and the first batch of both data sets."""
    found: list[FirstModels] = []
    for place, data_set in enumerate((neighbours.with_record, neighbours.without_record)):
        keys, began = plan.keys(place), time.perf_counter()
        parts: list[np.ndarray] = []
        for first in range(0, plan.pilot + plan.batch_models, plan.at_once):
            part = keys[first:first + plan.at_once]
            parts.append(execute(run, data_set, train, part))
            if parts[-1].ndim < 2 or len(parts[-1]) != len(part):
                raise InputError("train", "must return one model per key", parts[-1].shape,
                                 "as Trainer(run).fit_many does")
        released = np.concatenate(parts)[:plan.pilot + plan.batch_models]
        found.append(FirstModels(data_set, keys, released, plan.pilot, time.perf_counter() - began))
    few = plan.at_once if plan.at_once <= SMALL else 3  # a size that is compiled already, if that is cheap
    require_pure(run, neighbours.with_record, train, found[0].keys[:few], found[0].released)
    return found[0], found[1]


def all_scores(run: Run, firsts: tuple[FirstModels, FirstModels], train: Train, plan: TrialPlan,
               score: Callable[[np.ndarray], np.ndarray], results: Results, progress: Progress | None
               ) -> tuple[np.ndarray, np.ndarray]:
    """Scores of ``trials`` models with the record, and of as many without; only scores are kept.

    An interruption ends it with as many of both as there are by then, if there are any.
    """
    found: tuple[list[np.ndarray], list[np.ndarray]] = ([], [])
    try:
        _collect(found, run, firsts, train, plan, score, results, progress)
    except KeyboardInterrupt:
        if not found[1]:
            raise
    return np.concatenate(found[0][:len(found[1])]), np.concatenate(found[1])


def _collect(found: tuple[list[np.ndarray], list[np.ndarray]], run: Run, firsts: tuple[FirstModels, FirstModels],
             train: Train, plan: TrialPlan, score: Callable[[np.ndarray], np.ndarray], results: Results,
             progress: Progress | None) -> None:
    """Add the scores of batch after batch to ``found``, with the record and without."""
    began = time.perf_counter() - sum(first_models.seconds for first_models in firsts)
    trained, done = sum(first_models.pilot for first_models in firsts), 0
    for first in range(0, plan.trials, plan.batch_models):
        for place, first_models in enumerate(firsts):
            size = min(plan.batch_models, plan.trials - first)
            scores = results.get(place, first, size)
            if scores is None:
                part = first_models.keys[first_models.pilot + first:][:plan.batch_models]
                released = (execute(run, first_models.data_set, train, part) if first
                            else first_models.released[first_models.pilot:])
                scores = np.asarray(score(released[:size]), dtype=np.float64)
                results.put(place, first, scores)
                trained += size
            found[place].append(scores)
            done += size
            if progress is not None:
                rate = trained / max(time.perf_counter() - began, 1e-9)
                progress(done, 2 * plan.trials, 60 * rate, (2 * plan.trials - done) / rate)

"""Adversary instantiation for networks (Heller, Fetaya 2023, section V; Nasr et al. 2021): can one record be seen?

Models are trained on both neighbours. Each is known by four numbers: its logits of the adversarial and of the original
class on the crafted image and on the original one. Standardised, they go into a linear classifier that was fitted on
other models; its errors give the lower bound (their equations 10 to 12), after every number of passes.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import jax
import numpy as np

from lastiterate.audit.adversarial_image import ImageModel, ImageNeighbours, check_replace_one
from lastiterate.audit.auditing import certificate_of
from lastiterate.audit.checkpoints import trainer
from lastiterate.audit.judged import Judged, conclude
from lastiterate.audit.outcome import AuditReport
from lastiterate.audit.scoring import Progress, Results
from lastiterate.audit.statistics import require_statement
from lastiterate.engine import seeded_keys
from lastiterate.engine.parameter_form import Form
from lastiterate.errors import InputError
from lastiterate.run.evidence import Evidence
from lastiterate.run.run import Run

NAME = "adversarial-record"
LEAST = 10
"""Models per data set, at least, to fit the classifier and to count its errors."""


@dataclass(frozen=True)
class Effort:
    """``trials`` models per data set that count, ``pilot`` further ones to fit the classifier on; at least 10 each.

    ``batch_models``: models trained at once, which bounds memory. ``seed``: of the models' keys.
    """

    trials: int = 100
    pilot: int = 50
    batch_models: int = 10
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("trials", "pilot"):
            if getattr(self, name) < LEAST:
                raise InputError(name, f"must be at least {LEAST} models per data set", getattr(self, name))
        if self.batch_models < 1:
            raise InputError("batch_models", "must be a whole number >= 1", self.batch_models)

    def keys(self, data_set: int) -> Any:
        """One key per model, the pilot's first; the data sets share none with one another or with ``instantiate``."""
        words = np.random.SeedSequence([self.seed, 1 + data_set]).generate_state(1)
        return seeded_keys(int(words[0]) & 0x7FFFFFFF, self.pilot + self.trials)


def attack_network(run: Run, model: ImageModel, neighbours: ImageNeighbours, *, effort: Effort | None = None,
                   checkpoints: Sequence[int] | None = None, failure: float = 0.05, delta: float = 1e-5,
                   results: str | Path | None = None, at_least: Evidence = Evidence.ENFORCED,
                   progress: Progress | None = None) -> list[AuditReport]:
    """One report per number of steps in ``checkpoints`` (default: after every pass), each of the run of that length.

    **Guarantee:** all reports hold together except with probability ``failure``, which is split evenly over them; each
    report states its share. ``results``: a file to resume from.
    """
    check_replace_one(run)
    effort = Effort() if effort is None else effort
    checkpoints = _checked(run, checkpoints)
    share = failure / len(checkpoints)
    require_statement(effort.trials, share, delta)
    about = {"run": run.to_dict(), "attack": NAME, "effort": vars(effort), "checkpoints": checkpoints,
             "neighbours": _digest(model, neighbours)}
    kept = Results(None if results is None else Path(results), about)
    present, without = (_features(run, model, neighbours, data_set, effort, checkpoints, kept, progress)
                        for data_set in (0, 1))
    reports = list[AuditReport]()
    for place, steps in enumerate(checkpoints):
        scores = classified(present[:, place], without[:, place], effort.pilot)
        certificate = certificate_of(run.shortened(steps), at_least)
        reports.append(conclude(certificate, [Judged(NAME, neighbours, (0.0,), 1.0, scores)], failure=share,
                                delta=delta, pilot=effort.pilot, seed=effort.seed))
    return reports


def classified(present: np.ndarray, without: np.ndarray, pilot: int) -> tuple[np.ndarray, np.ndarray]:
    """Scores of the models behind the pilot's, positive where the crafted image seems present; features (models, 4)."""
    from sklearn.linear_model import LogisticRegression  # pyright: ignore
    from sklearn.pipeline import make_pipeline  # pyright: ignore
    from sklearn.preprocessing import StandardScaler  # pyright: ignore

    rule = cast(Any, make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)))
    rule.fit(np.concatenate([present[:pilot], without[:pilot]]), np.repeat([1, 0], pilot))
    return rule.decision_function(present[pilot:]), rule.decision_function(without[pilot:])


def _checked(run: Run, checkpoints: Sequence[int] | None) -> list[int]:
    """Numbers of steps, increasing; by default the end of every pass, and of the run."""
    if checkpoints is None:
        return sorted({*range(run.blocks, run.steps, run.blocks), run.steps})
    counts = [int(steps) for steps in checkpoints]
    if not counts or counts[0] < 1 or counts[-1] > run.steps or counts != sorted(set(counts)):
        raise InputError("checkpoints", f"must be increasing numbers of steps within 1 .. {run.steps}", counts)
    return counts


def _features(run: Run, model: ImageModel, neighbours: ImageNeighbours, data_set: int, effort: Effort,
              checkpoints: list[int], kept: Results, progress: Progress | None) -> np.ndarray:
    """Features (models, checkpoints, 4) of one data set: 0 with the crafted image, 1 with the original."""
    images = neighbours.without_record if data_set else neighbours.with_record
    form, pair = Form.of(model.params), neighbours.pair
    classes = np.array([neighbours.adversarial, neighbours.original])

    @jax.jit  # pyright: ignore
    def look(thetas: jax.Array) -> jax.Array:
        def one(theta: jax.Array) -> jax.Array:
            params = form.whole(form.arrays(theta, exact=False))
            return jax.numpy.concatenate([model.logits(params, image)[classes] for image in pair])

        return jax.vmap(one)(thetas)

    keys, parts, clock = effort.keys(data_set), list[np.ndarray](), _Clock(data_set, effort, progress)
    with jax.enable_x64(True):
        trained = trainer(run, model.loss, model.params, (images, neighbours.labels), model.many)
        for begin in range(0, len(keys), effort.batch_models):
            part = keys[begin:begin + effort.batch_models]
            values = kept.get(data_set, begin, len(part))
            if values is None:
                values = np.asarray(trained(part, checkpoints, look), np.float64)
                kept.put(data_set, begin, values)
                clock.trained(len(part))
            parts.append(values)
            clock.report(begin + len(part))
    return np.concatenate(parts)


class _Clock:
    """Models per minute and time left, counting only models that were trained now."""

    def __init__(self, data_set: int, effort: Effort, progress: Progress | None) -> None:
        self._began, self._count, self._progress = time.perf_counter(), 0, progress
        self._each = effort.pilot + effort.trials
        self._before = data_set * self._each

    def trained(self, models: int) -> None:
        self._count += models

    def report(self, done: int) -> None:
        if self._progress is not None and self._count:
            rate = self._count / max(time.perf_counter() - self._began, 1e-9)
            done += self._before
            self._progress(done, 2 * self._each, 60 * rate, (2 * self._each - done) / rate)


def _digest(model: ImageModel, neighbours: ImageNeighbours) -> str:
    digest = hashlib.sha256(f"{neighbours.adversarial}{model.many is not None or ''}".encode())
    arrays = [leaf for leaf in jax.tree.leaves(model.params) if hasattr(leaf, "dtype")]
    for array in (neighbours.with_record, neighbours.without_record, neighbours.labels, *arrays):
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()

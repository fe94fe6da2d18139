"""Audits of the entry points that users call, and how many models an audit trains."""

from __future__ import annotations

import contextlib
import math
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from inspect import signature
from pathlib import Path
from typing import Any, cast

import numpy as np

from lastiterate.accounting.accounted_run import ExactRun
from lastiterate.accounting.certificate import Certificate
from lastiterate.audit import canaries
from lastiterate.audit.canaries import Neighbours, Train
from lastiterate.engine import (
    TrainedWeights,
    execute,
    key_from_seed,
    keys_from_seed,
    linear_gradients,
)
from lastiterate.engine.exact_linear import execute_exactly
from lastiterate.engine.linear_gradients import UnitRecords, linear_loss
from lastiterate.engine.linear_model import execute_units
from lastiterate.engine.random import Key
from lastiterate.engine.samplers import sampler_of
from lastiterate.engine.streaming.buffers import Arrays
from lastiterate.errors import InputError, NotCertified
from lastiterate.ledger.filters import GaussianFilter
from lastiterate.ledger.ledger import Ledger
from lastiterate.release.linear_model import FittedLinear
from lastiterate.release.released_model import ReleasedModel
from lastiterate.release.training import train
from lastiterate.run.facts import Evidence
from lastiterate.run.measured_smoothness import StableSteps
from lastiterate.run.preprocessing import TopEigenvalue
from lastiterate.run.run import Run

# What users call, audited as a whole: private preparation with its noise, planning, encoding, and
# the steps.  Models are trained one by one. What is attacked is everything that is released:
# weights, and what the preparation found.

AT_ONCE = 64
"""Models in a batch, which are trained one after the other."""
QUICK = 50_000
"""Records times steps of runs whose models are trained one after the other."""
RECORDS, COLUMNS = 60, 3
"""Default size of the synthetic data."""


WHOLE = "the estimator's fit was attacked as a whole, under replace-one"
EXACT = "the exact noise was attacked as it is drawn, model by model"


def can_audit_whole(run: Run) -> bool:
    """Whether models are trained with their preparation: where that is quick enough for hundreds,
    and an absent record can be kept out of every part (the eigenvalue's intercept cannot)."""
    measured = any(isinstance(part, TopEigenvalue) for part in run.preprocessing)
    return (
        run.n * run.steps * run.rows_per_record <= QUICK
        and type(run.step_size) is not StableSteps
        and not measured
    )


def flat(model: TrainedWeights) -> np.ndarray:
    """All released numbers, (p,)."""
    return np.concatenate(
        [np.ravel(part).astype(np.float64) for part in (model.weights, *model.released)]
    )


def alone(run: Run) -> bool:
    """Whether a run has more than steps on rows, so that its models are trained one by one."""
    return (
        bool(run.preprocessing)
        or run.probability_calibration is not None
        or run.rows_per_record > 1
    )


def one_by_one(run: Run, *, exact: bool = False) -> Train:
    """The whole run, private preparation and calibration included; (models, p). A record that is a
    unit has its row at all of its positions; ``exact``: on exact sums with exact noise."""

    def model(
        features: np.ndarray, target: np.ndarray, key: Key, absent: Sequence[int]
    ) -> TrainedWeights:
        if run.rows_per_record > 1:
            return execute_units(run, group_rows(run, features, target, absent), key)
        return (execute_exactly if exact else execute)(run, features, target, key, absent=absent)

    def train(
        features: np.ndarray, target: np.ndarray, keys: np.ndarray, absent: Sequence[int] = ()
    ) -> np.ndarray:
        return np.stack([flat(model(features, target, np.asarray(key), absent)) for key in keys])

    return train


def group_rows(
    run: Run, features: np.ndarray, target: np.ndarray, absent: Sequence[int]
) -> UnitRecords:
    """Return records whose positions hold one row each; absent ones have no position."""
    present = np.ones((run.n, run.rows_per_record), bool)
    present[list(absent)] = False
    rows, answers = (
        np.repeat(np.asarray(part)[:, None], run.rows_per_record, axis=1)
        for part in (features, target)
    )
    return UnitRecords(
        np.where(present[..., None], rows, 0), np.where(present, answers, 0), present
    )


@dataclass(frozen=True, eq=False)
class EndToEnd:
    """An estimator of this library on synthetic data: its run, its certificate, and its ``fit``,
    which is audited."""

    run: Run
    certificate: Certificate
    columns: int | None
    train: Train
    said: str


def exactly(subject: ExactRun, features: int | None) -> EndToEnd:
    """A linear run on exact sums with exact noise, one model after the other."""
    run = subject.run
    if run.n * run.steps > QUICK:
        raise InputError(
            "exact noise",
            f"is audited for at most {QUICK} records times steps",
            run.n * run.steps,
            "audit the same run with fewer records or steps",
        )
    linear_loss(run)
    return EndToEnd(run, Certificate(subject), features, one_by_one(run, exact=True), EXACT)


def end_to_end(estimator: Any, n: int | None, features: int | None) -> EndToEnd:
    """``estimator`` as it is fitted on ``n`` records: planning, preparation, encoding and training.

    It is audited under replace-one: a record that is zeroed is no row that could be handed to
    ``fit``.
    """
    from sklearn.base import clone  # pyright: ignore

    if not hasattr(estimator, "fit") or not hasattr(estimator, "adjacency"):
        raise InputError(
            "audit",
            "needs a Run or one of lastiterate's estimators",
            type(estimator).__name__,
            "models and certificates have a .run, and lastiterate.load(folder).run is a folder's",
        )
    n, columns = RECORDS if n is None else n, COLUMNS if features is None else features
    labels = None
    if hasattr(estimator, "classes"):
        if estimator.classes is None:
            raise InputError(
                "classes",
                "must be given: labels taken from the data are no part of the claim",
                None,
                "pass the public labels with classes=",
            )
        labels = np.unique(np.asarray(estimator.classes))

    def fit_estimator(rows: np.ndarray, target: np.ndarray, seed: int) -> Any:
        made = cast(Any, clone(estimator)).set_params(
            adjacency="replace-one", random_state=seed, ledger=None
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return made.fit(rows, target if labels is None else labels[np.asarray(target)])

    def train(rows: np.ndarray, target: np.ndarray, keys: np.ndarray) -> np.ndarray:
        return np.stack(
            [flat(fit_estimator(rows, target, int(key[0]) >> 1).model_) for key in np.asarray(keys)]
        )

    target = np.arange(n) % (1 if labels is None else len(labels))
    first = fit_estimator(np.ones((n, columns)), target, 0)
    if type(first.run_) is not Run:
        raise InputError(
            "estimator", "must plan a run of steps", type(first.run_).__name__, "give it run="
        )
    return EndToEnd(first.run_, first.certificate_, columns, train, WHOLE)


# Ways in which users call ``train``, compared with the attacked program: each gives the same model
# under the same key.  The attacked program is vectorised over many keys. Here the public function
# is called on the same synthetic records: in memory, on records that are read in pieces, stopped
# half way and resumed under a ledger, and without a key of the caller's. The audit does not
# execute those of its parameters that no call has used.

SEED = 11
QUICK_WAYS = 1_000_000
"""Records times steps of runs that are trained a few more times."""
BUDGET = GaussianFilter(900.0, 1e-3)
DATA = frozenset(("run", "data"))


class _Stopped(Exception):
    """Raised half way through a fit."""


@dataclass
class PublicTrainer:
    """Calls of ``train`` for one run; ``given``: the parameters that they have used.

    ``data``: the user's data; ``extra``: the other arguments of this kind of model; ``numbers``:
    those of a released model, as the vectorised program has them. ``close``: relative distance
    below which two models are the same, because programs of another shape may round differently.
    """

    run: Run
    data: tuple[Any, ...]
    numbers: Callable[[Any], np.ndarray]
    extra: dict[str, Any] = field(default_factory=dict[str, Any])
    close: float = 1e-6
    given: set[str] = field(default_factory=set[str])

    def __call__(self, data: Any = None, **given: Any) -> np.ndarray:
        given = {"min_evidence": Evidence.ASSUMED} | self.extra | given
        self.given |= given.keys()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that fits compose and that seeds repeat is known here
            return self.numbers(train(self.run, self.data if data is None else data, **given))

    def same(self, one: np.ndarray, two: np.ndarray) -> bool:
        """Whether two models are one up to rounding."""
        scale = max(float(np.abs(two).max(initial=0.0)), 1e-300)
        return one.size == two.size and bool(
            (np.abs(np.ravel(one) - np.ravel(two)) <= self.close * scale).all()
        )


@dataclass(frozen=True)
class AuditedTrainer:
    """A trainer that is attacked, and what its users call instead of it, on the records of a pair."""

    train: Train
    call: Callable[[Neighbours], PublicTrainer]

    def __call__(
        self, features: np.ndarray, target: np.ndarray, keys: np.ndarray, absent: Sequence[int] = ()
    ) -> np.ndarray:
        return self.train(features, target, keys, absent=absent)


def in_memory(call: PublicTrainer, folder: Path) -> np.ndarray:
    return call(seed=SEED)


def in_pieces(call: PublicTrainer, folder: Path) -> np.ndarray:
    """From a source of records; what has to be sorted goes to a file in the folder."""
    return call(Arrays(call.data), seed=SEED, scratch=folder)


def resume_halfway(call: PublicTrainer, folder: Path) -> np.ndarray:
    """Stopped half way, and resumed from the sealed checkpoint; charged to a ledger once."""

    def halfway(done: int, steps: int, seconds: float) -> None:
        if 2 * done >= steps:
            raise _Stopped

    ledger, key = Ledger(folder / "ledger"), folder / "key"
    ledger.add("synthetic", unit="record", adjacency=call.run.adjacency, filter=BUDGET)
    key.write_text(bytes(range(32)).hex())
    key.chmod(0o600)
    kept: dict[str, Any] = {
        "seed": SEED,
        "ledger": ledger,
        "dataset": "synthetic",
        "checkpoint": folder / "checkpoint",
        "checkpoint_every": 0.0,
        "checkpoint_key": key,
    }
    with contextlib.suppress(_Stopped):
        call(progress=halfway, **kept)
    return call(**kept)


WAYS: dict[str, Callable[[PublicTrainer, Path], np.ndarray]] = {
    "train": in_memory,
    "train on records in pieces": in_pieces,
    "train, stopped and resumed": resume_halfway,
}


def linear(run: Run, pair: Neighbours, *, exact: bool = False) -> PublicTrainer:
    """Calls for a linear model on the data set with the record; a unit's positions hold the same
    row. ``exact``: with exact noise."""
    places = run.rows_per_record
    rows, target = (
        np.repeat(part, places, axis=0)
        for part in (pair.with_record.features, pair.with_record.target)
    )
    extra: dict[str, Any] = {} if places == 1 else {"unit": np.repeat(np.arange(run.n), places)}
    extra |= {"secure_noise": True} if exact else {}
    return PublicTrainer(run, (rows, target), _of_linear, extra)


def _of_linear(model: ReleasedModel) -> np.ndarray:
    assert isinstance(model, FittedLinear)
    return flat(model.released)


def check_entry_points(
    call: PublicTrainer, attacked: Callable[[Any], np.ndarray], *, noisy: bool = True
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What does not hold of the public ways, and what was not executed, in words.

    ``attacked``: the models (keys, ...) that the attacked program trains on the same records;
    ``noisy``: whether two keys give two models.
    """
    broken, refused = list[str](), dict[str, list[str]]()
    if call.run.n * call.run.steps > QUICK_WAYS:
        return (), ("train itself: the run is a long one",)
    known = attacked(key_from_seed(SEED)[None])[0]
    for words, way in WAYS.items():
        with tempfile.TemporaryDirectory() as folder:
            try:
                model = way(call, Path(folder))
            except (InputError, NotCertified) as error:
                refused.setdefault(_reason(error), []).append(words)
                continue
        if not call.same(model, known):
            broken.append(f"{words} gives another model than the one that is attacked")
    if (
        noisy
        and not any("train" in ways for ways in refused.values())
        and call.same(call(), call())
    ):
        broken.append("two calls of train give one model")
    return tuple(broken), (
        *(f"{', '.join(ways)} ({reason})" for reason, ways in refused.items()),
        *_list_unused(call),
    )


def _reason(error: Exception) -> str:
    return str(error).rstrip(".") if isinstance(error, InputError) else "nothing certifies the run"


def _list_unused(call: PublicTrainer) -> tuple[str, ...]:
    names = [name for name in signature(train).parameters if name not in call.given | DATA]
    return ("of train: " + ", ".join(names),) if names else ()


# How many models an audit trains, in which batches and from which seed.

PAIRS = 2
"""Pairs that models are spent on."""
MEMORY = 2**29
"""Bytes that a batch of models may take, about, when its size is not given."""


@dataclass(frozen=True)
class TrialPlan:
    """How many models, from which seed, in which batches; every data set has keys of its own, and
    so has its pilot."""

    trials: int
    pilot: int
    batch_models: int
    seed: int
    rate: float = 0.0  #: models per second, 0 where it was not measured

    def keys(self, data_set: int, *, counted: bool) -> Any:
        """One key per model. Spare ones at the end fill up batches, so that programs are compiled
        for one size only."""
        words = np.random.SeedSequence([self.seed, data_set, int(counted)]).generate_state(1)
        count = (self.trials if counted else self.pilot) + self.batch_models
        return keys_from_seed(int(words[0]) & 0x7FFFFFFF, count)


def batch_size(run: Run, width: int) -> int:
    """Models whose training fits in ``MEMORY``, about: scores and residuals of a chunk, parameters,
    a secret order."""
    plan, k = (
        sampler_of(run.batching, run.n, linear_gradients.AT_ONCE).layout,
        run.loss.outputs or 1,
    )
    numbers = 6 * k * (plan.rows + width + 1)
    if run.release == "all":
        numbers += run.steps * k * (width + 1)
    if run.batching.drawn in ("once", "each pass"):
        numbers += 2 * plan.slots * (width + 3)
    return int(min(max(MEMORY // (8 * numbers), 16), 2**16))


# How fast models are trained, measured on synthetic data.

MINUTE = 60.0
"""Seconds that an audit takes by default, about."""
FEWEST, MOST_SECONDS = 100, 50_000
"""Trials by default, at least and at most."""
FIRST, GROWTH, GAIN = 16, 4, 1.15
"""Models at once in the first measurement, the factor to the next one, and the speed-up that it
must bring for the search to continue: large batches save calls, small ones stay in the cache."""
LONG_ENOUGH, AT_MOST, SOON = 0.2, 2.0, 10.0
"""Seconds after which a measurement counts; that a batch may take, so that progress is shown so
often; that are soon over, so that another program is not worth its compilation."""


def measure_rate(
    run: Run, neighbours: Neighbours, train: Train, most: int, models: int | None
) -> tuple[float, int]:
    """Models per second, and how many at once are trained fastest; at most ``most``. Compilation is
    left out.

    ``models``: how many there will be, if that is known; where they are done soon, nothing faster
    is looked for. The keys are of no use to the audit: models that are counted take no part in what
    is decided here.
    """
    size = min(FIRST, most)
    best, kept = rate(run, neighbours, train, size), size
    while (
        size < most and GROWTH * size < best * AT_MOST and (models is None or models > SOON * best)
    ):
        size = min(GROWTH * size, most)
        speed = rate(run, neighbours, train, size)
        if speed < GAIN * best:
            break
        best, kept = speed, size
    return best, kept


def rate(run: Run, neighbours: Neighbours, train: Train, size: int) -> float:
    """Models per second in batches of ``size``."""
    keys = keys_from_seed(0, size)
    canaries.execute(run, neighbours.with_record, train, keys)  # compiled here
    began, done = time.perf_counter(), 0
    while time.perf_counter() - began < LONG_ENOUGH:
        canaries.execute(run, neighbours.with_record, train, keys)
        done += size
    return done / (time.perf_counter() - began)


def trials_for(speed: float) -> int:
    """Trials of each data set, with their pilots, that ``MINUTE`` holds; two digits are enough."""
    trials = min(max(MINUTE * speed / 2.2, FEWEST), MOST_SECONDS)
    return int(float(f"{trials:.2g}"))


# Pilots of every pair, the models that count, and how many at once.

PILOTS, COUNTED = 15.0, 30.0
"""Seconds that pilots and the models that count may take by default, about, at the speed that is
measured."""
FEW, MANY, MOST_AT_ONCE = 200, 8000, 100_000
"""Models per data set of a pilot, at least and at most, and models that count, at most, where many
pairs are tried."""
LEAST = 4
"""Pairs that are tried even where models are slow."""
WORK, SMALLEST, LARGEST = 2e8, 16, 4096
"""Approximate multiplications in one batch of models, and its least and largest number of models.
There is one size for everything, because each size is a compilation of its own."""


def plan_trials(
    run: Run,
    pairs: tuple[Neighbours, ...],
    train: Train,
    trials: int | None,
    batch_models: int | None,
    seed: int,
    most: int,
) -> tuple[TrialPlan, tuple[Neighbours, ...]]:
    """The plan, and the pairs that there is time for; ``most``: models at once, at most."""
    if batch_models is not None and batch_models < 1:
        raise InputError("batch_models", "must be an integer >= 1", batch_models)
    if len(pairs) == 1:
        return _audit_pair(run, pairs[0], train, trials, batch_models, seed, most), pairs
    if trials is not None:
        pairs = pairs[:LEAST] if alone(run) or models_at_once(run, pairs[0]) < FEW else pairs
        pilot = min(max(trials // 4, min(FEW, max(trials // 2, 50))), MANY)
        size = (
            min(most, pilot, models_at_once(run, pairs[0]))
            if batch_models is None
            else batch_models
        )
        return TrialPlan(trials, pilot, min(size, trials), seed), pairs
    size = min(most, models_at_once(run, pairs[0])) if batch_models is None else batch_models
    per_minute = rate(run, pairs[0], train, size)
    pairs = pairs[: max(LEAST, int(per_minute * PILOTS / (2 * FEW)))]
    pilot = int(min(max(per_minute * PILOTS / (2 * len(pairs)), FEW // 2), MANY))
    count = int(min(max(per_minute * COUNTED / (2 * PAIRS), FEWEST), MOST_AT_ONCE))
    return TrialPlan(int(float(f"{count:.2g}")), pilot, size, seed), pairs


def models_at_once(run: Run, pair: Neighbours) -> int:
    """Models in a batch: long runs on many records few, short ones many."""
    records, *shape = pair.with_record.features.shape
    each = (
        run.steps
        * min(records, run.batching.expected_batch(run.n))
        * (math.prod(shape) + 1)
        * (run.loss.outputs or 1)
    )
    return int(min(max(WORK / each, SMALLEST), LARGEST))


def _audit_pair(
    run: Run,
    pair: Neighbours,
    train: Train,
    trials: int | None,
    batch_models: int | None,
    seed: int,
    most: int,
) -> TrialPlan:
    """One pair: a pilot of a tenth of the trials, at least 200 (or half of them) and at most 4,000."""
    size = most if batch_models is None else batch_models
    if trials is None:
        rate, fastest = measure_rate(run, pair, train, size, None)
        trials, size = trials_for(rate), fastest if batch_models is None else size
    pilot = min(max(trials // 10, min(200, max(trials // 2, 50))), 4000)
    if batch_models is None:
        size = min(size, max(pilot, trials // 10))
    return TrialPlan(trials, pilot, min(size, trials), seed)

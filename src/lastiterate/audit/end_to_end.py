"""Audit the entry points that users call, preparation and planning included."""

from __future__ import annotations

import contextlib
import tempfile
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from inspect import signature
from pathlib import Path
from typing import Any, cast

import numpy as np

from lastiterate.accounting.certificate import Certificate
from lastiterate.accounting.exact_run import ExactRun
from lastiterate.audit.canaries import Neighbours, Train
from lastiterate.engine import TrainedWeights, execute, key_from_seed
from lastiterate.engine.exact_linear import execute_exactly
from lastiterate.engine.linear_gradients import UnitRecords, linear_loss
from lastiterate.engine.random import Key
from lastiterate.engine.streaming.buffers import Arrays
from lastiterate.engine.unit_gradients import execute_units
from lastiterate.errors import InputError, NotCertified
from lastiterate.ledger.filters import GaussianFilter
from lastiterate.ledger.store import Ledger
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

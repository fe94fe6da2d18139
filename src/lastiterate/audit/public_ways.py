"""Ways in which users call ``train``, executed beside what is attacked: each gives the very model, under its key.

What is attacked is a vectorised program over many keys. Here the public function is called on the same made-up records:
in memory, on records that are read in pieces, stopped half way and resumed under a ledger, and without a key of the
caller's. Whatever of its parameters no call has used is what an audit does not execute.
"""

from __future__ import annotations

import contextlib
import tempfile
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np

from lastiterate.audit.neighbours import Neighbours, Train
from lastiterate.audit.whole import flat
from lastiterate.engine import seeded_key
from lastiterate.engine.streaming.devices import Arrays
from lastiterate.errors import InputError, NotCertified
from lastiterate.ledger.filters import GaussianFilter
from lastiterate.ledger.store import Ledger
from lastiterate.release.fitted import Fitted
from lastiterate.release.fitted_linear import FittedLinear
from lastiterate.release.training import train
from lastiterate.run.evidence import Evidence
from lastiterate.run.run import Run

SEED = 11
QUICK = 1_000_000
"""Records times steps of runs that are trained a few more times."""
BUDGET = GaussianFilter(900.0, 1e-3)
DATA = frozenset(("run", "data"))


class _Stopped(Exception):
    """Raised half way through a fit."""


@dataclass
class Public:
    """Calls of ``train`` for one run; ``given``: the parameters that they have used.

    ``data``: what users give, ``extra``: what this kind of model needs beside it, ``numbers``: of a released model, as
    the vectorised program has them. ``close``: relative distance below which two models are the same, because programs
    of another shape may round differently.
    """

    run: Run
    data: tuple[Any, ...]
    numbers: Callable[[Any], np.ndarray]
    extra: dict[str, Any] = field(default_factory=dict[str, Any])
    close: float = 1e-6
    given: set[str] = field(default_factory=set[str])

    def __call__(self, data: Any = None, **given: Any) -> np.ndarray:
        given = {"at_least": Evidence.ASSUMED} | self.extra | given
        self.given |= given.keys()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that fits compose and that seeds repeat is known here
            return self.numbers(train(self.run, self.data if data is None else data, **given))

    def same(self, one: np.ndarray, two: np.ndarray) -> bool:
        """Whether two models are one up to rounding."""
        scale = max(float(np.abs(two).max(initial=0.0)), 1e-300)
        return one.size == two.size and bool((np.abs(np.ravel(one) - np.ravel(two)) <= self.close * scale).all())


@dataclass(frozen=True)
class Executed:
    """A trainer that is attacked, and what its users call instead of it, on the records of a pair."""

    train: Train
    call: Callable[[Neighbours], Public]

    def __call__(self, features: np.ndarray, target: np.ndarray, keys: np.ndarray,
                 absent: Sequence[int] = ()) -> np.ndarray:
        return self.train(features, target, keys, absent=absent)


def in_memory(call: Public, folder: Path) -> np.ndarray:
    return call(seed=SEED)


def in_pieces(call: Public, folder: Path) -> np.ndarray:
    """From a source of records; what has to be sorted goes to a file in the folder."""
    return call(Arrays(call.data), seed=SEED, scratch=folder)


def resumed(call: Public, folder: Path) -> np.ndarray:
    """Stopped half way, and resumed from the sealed checkpoint; charged to a ledger once."""
    def halfway(done: int, steps: int, seconds: float) -> None:
        if 2 * done >= steps:
            raise _Stopped

    ledger, key = Ledger(folder / "ledger"), folder / "key"
    ledger.add("made up", unit="record", adjacency=call.run.adjacency, filter=BUDGET)
    key.write_text(bytes(range(32)).hex())
    key.chmod(0o600)
    kept: dict[str, Any] = {"seed": SEED, "ledger": ledger, "dataset": "made up", "checkpoint": folder / "checkpoint",
                                "checkpoint_every": 0.0, "checkpoint_key": key}
    with contextlib.suppress(_Stopped):
        call(progress=halfway, **kept)
    return call(**kept)


WAYS: dict[str, Callable[[Public, Path], np.ndarray]] = {
    "train": in_memory, "train on records in pieces": in_pieces, "train, stopped and resumed": resumed}


def linear(run: Run, pair: Neighbours, *, exact: bool = False) -> Public:
    """Calls for a linear model on the data set with the record; a unit's places hold the same row. ``exact``: with
    exact noise."""
    places = run.rows_per_record
    rows, target = (np.repeat(part, places, axis=0) for part in (pair.with_record.features, pair.with_record.target))
    extra: dict[str, Any] = {} if places == 1 else {"unit": np.repeat(np.arange(run.n), places)}
    extra |= {"secure_noise": True} if exact else {}
    return Public(run, (rows, target), _of_linear, extra)


def _of_linear(model: Fitted) -> np.ndarray:
    assert isinstance(model, FittedLinear)
    return flat(model.released)


def checked(call: Public, attacked: Callable[[Any], np.ndarray], *, noisy: bool = True
            ) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What does not hold of the public ways, and what was not executed, in words.

    ``attacked``: the models (keys, ...) that the attacked program trains on the same records; ``noisy``: whether two
    keys give two models.
    """
    broken, refused = list[str](), dict[str, list[str]]()
    if call.run.n * call.run.steps > QUICK:
        return (), ("train itself: the run is a long one",)
    known = attacked(seeded_key(SEED)[None])[0]
    for words, way in WAYS.items():
        with tempfile.TemporaryDirectory() as folder:
            try:
                model = way(call, Path(folder))
            except (InputError, NotCertified) as error:
                refused.setdefault(_reason(error), []).append(words)
                continue
        if not call.same(model, known):
            broken.append(f"{words} gives another model than the one that is attacked")
    if noisy and not any("train" in ways for ways in refused.values()) and call.same(call(), call()):
        broken.append("two calls of train give one model")
    return tuple(broken), (*(f"{', '.join(ways)} ({reason})" for reason, ways in refused.items()), *_unused(call))


def _reason(error: Exception) -> str:
    return str(error).rstrip(".") if isinstance(error, InputError) else "nothing certifies the run"


def _unused(call: Public) -> tuple[str, ...]:
    names = [name for name in signature(train).parameters if name not in call.given | DATA]
    return ("of train: " + ", ".join(names),) if names else ()

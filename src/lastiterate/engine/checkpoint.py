"""Checkpoints of a run that goes on: key, parameters and steps done, sealed; opened again after an interruption.

A resumed run uses the same key, so the same secret draws: it releases the very bits that an uninterrupted one would.
Even when a run was killed at once, it must go on with the key that it began with; so the key is sealed before a record
is looked at.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import Any, Protocol, final

import jax
import numpy as np
from safetensors.numpy import load, save

from lastiterate.engine import sealed
from lastiterate.engine.gaussian_noise import Key as NoiseKey
from lastiterate.engine.gaussian_noise import fresh_key, stream
from lastiterate.errors import InputError
from lastiterate.run.run import Run

KEY, DONE, GIVEN = "key", "done", "given"
COMPUTES = ("lastiterate", "jax", "jaxlib", "numpy")
"""Libraries whose other versions may compute otherwise."""


def versions() -> str:
    """Their versions."""
    return ", ".join(f"{name} {version(name)}" for name in COMPUTES)


class Line(Protocol):
    """What a ledger knows of a run's checkpoints; ``digest`` distinguishes the noise, the data and the loss."""

    def begin(self, digest: str, write: Callable[[], None]) -> None:
        """Write the first one; refused where there was one."""
        ...

    def note(self, number: int, write: Callable[[], None]) -> None:
        """Write a later one."""
        ...

    def resume(self, digest: str, number: int) -> None:
        """Go on from one; refused where it is not the last one of the first one's noise."""
        ...


@final
@dataclass
class Checkpoint:
    """A run's state, written to ``path`` every ``seconds``, under ``key``.

    ``token`` names the run's line in a ledger, and ``line`` is what that ledger knows of its checkpoints: an older copy
    of the file is refused, and another beginning. ``beside``: arrays of records that are read after the run alone, such
    as those that a noisy count is about; they are data like all others. ``read_as``: what the scores of these records
    are read as, where numbers about them are released: it is part of the model.

    **Guarantee:** the file is ciphertext that is bound to the run and to the data; it is only ever replaced as a whole.
    """

    path: Path
    key: sealed.Key
    seconds: float = 60.0
    token: str = ""
    line: Line | None = None
    beside: tuple[Any, ...] = ()
    read_as: str = ""
    _owner: sealed.Owner = field(init=False, repr=False)
    _number: int = field(init=False, default=0, repr=False)
    _secret: np.ndarray = field(init=False, repr=False)
    _given: np.ndarray = field(init=False, repr=False)  #: whether a caller's seed made the key: a caveat
    _state: dict[str, np.ndarray] = field(init=False, default_factory=dict[str, np.ndarray], repr=False)
    _last: float = field(init=False, default=0.0, repr=False)

    def __post_init__(self) -> None:
        if not self.seconds >= 0:
            raise InputError("checkpoint_every", "must be a number of seconds >= 0", self.seconds)

    def begin(self, run: Run, arrays: Iterable[Any], key: NoiseKey | None, program: str) -> NoiseKey:
        """The key that the run goes on with, or begins with: then it is sealed before anything else happens.

        ``program``: what distinguishes the loss, the model and the arithmetic from all others.
        Errors: a checkpoint of another run, of other data, of another loss, of other versions of the libraries, under
        another key, damaged, or older than the ledger knows.

        **Guarantee:** one key is drawn from for one loss on one data set only: of two releases with the same noise the
        difference would be a sum of gradients without noise.
        """
        if run.release != "last":
            raise InputError("checkpoint", "is for runs that release the last iterate", run.release, "leave it out")
        described = hashlib.sha256(run.to_json().encode()).hexdigest()
        named = self.key.digest([np.frombuffer((program + self.read_as).encode(), np.uint8)])
        data = self.key.digest(chain(arrays, self.beside))
        self._owner = sealed.Owner(described, data, self.token, named, versions())
        if self.path.exists() and not sealed.is_claim(self.path, self.key, self.token):
            self._resume(key)
        else:
            self._secret = np.asarray(fresh_key() if key is None else key)
            self._given = np.array([key is not None])
            self.keep(0, {})
        return self._secret

    def _resume(self, key: NoiseKey | None) -> None:
        self._number, body = sealed.unseal(self.path, self.key, self._owner)
        sealed.clean(self.path)
        self._state = load(body)
        self._secret, self._given = self._state.pop(KEY), self._state.pop(GIVEN)
        same = key is None or np.array_equal(self._secret, np.asarray(key))
        if (key is not None) != bool(self._given[0]) or not same:
            raise InputError("seed", "must be the one that the checkpoint was begun with", "none" if key is None else
                             "another seed", "give that seed" if self._given[0] else "leave it out")
        if self.line is not None:
            self.line.resume(self._digest(), self._number)
        self._last = time.monotonic()

    def drawn(self, which: int) -> np.ndarray:
        """A stream of the run's key, for what is released beside its parameters: the same whenever the run goes on."""
        with jax.enable_x64(True):
            return np.asarray(stream(self._secret, which))

    @property
    def state(self) -> tuple[int, dict[str, np.ndarray]]:
        """Steps done, and the arrays of the state then (none at the beginning)."""
        arrays = dict(self._state)
        return int(arrays.pop(DONE)[0]), arrays

    @property
    def due(self) -> bool:
        """Whether it is time for the next checkpoint: a matter of the clock alone."""
        return time.monotonic() - self._last >= self.seconds

    def keep(self, done: int, arrays: dict[str, np.ndarray]) -> None:
        """Seal the state after ``done`` steps."""
        self._state = {DONE: np.array([done]), **arrays}
        kept = {KEY: self._secret, GIVEN: self._given, **self._state}
        body = save({name: np.asarray(array, order="C") for name, array in kept.items()})  # of any shape, () too
        number = self._number + 1

        def write() -> None:
            sealed.seal(self.path, self.key, self._owner, number, body)

        if self.line is None:
            write()
        elif number == 1:
            self.line.begin(self._digest(), write)
        else:
            self.line.note(number, write)
        self._number = number
        self._last = time.monotonic()

    def _digest(self) -> str:
        """What distinguishes this run's noise, on its data and with its loss, from all others."""
        owner = json.dumps(asdict(self._owner)).encode()
        return self.key.digest([self._secret, np.frombuffer(owner, np.uint8)])

    def finish(self) -> None:
        """Delete the checkpoint: the model is released."""
        sealed.remove(self.path)

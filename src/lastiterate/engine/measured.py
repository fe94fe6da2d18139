"""What a run measures on private rows before its first step, wherever the rows come from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
from scipy.special import ndtri  # pyright: ignore

from lastiterate.engine.gaussian_noise import PREPARATION, Key, stream
from lastiterate.engine.preparation import executed, prepared
from lastiterate.engine.preparation.eigenvalue import released_eigenvalue, top_eigenvalue
from lastiterate.engine.preparation.in_threads import one_thread
from lastiterate.run.measured_smoothness import largest_eigenvalue, squared_row
from lastiterate.run.preparation import TopEigenvalue, columns
from lastiterate.run.run import Run
from lastiterate.run.step_sizes import StableSteps

Released = tuple[np.ndarray, ...]
"""What each part of a run's preparation released, in order."""
Blocks = Iterable[Iterable[np.ndarray]]
"""Rows as steps read them, in slices, batch by batch."""


@dataclass(frozen=True)
class Measurable:
    """Rows and targets as preparations read them: as often as there are parts, in slices, in public order."""

    n: int
    features: int
    rows: Callable[[], Iterator[np.ndarray]]
    targets: Callable[[], Iterator[np.ndarray]]
    together: Callable[[Iterator[np.ndarray]], Any] = iter  #: what is read, as the sums take it: ``Shared``, or itself


def _key(key: Key, part: int) -> Key:
    with jax.enable_x64(True):
        return stream(stream(key, PREPARATION), part)


Release = Callable[[int, Any, Iterable[np.ndarray], Measurable], np.ndarray]
"""What a part, of some number, releases about slices of rows or of targets."""


def drawn_with(key: Key) -> Release:
    """Releases with Gaussian noise in double precision, from the key."""
    return lambda number, part, slices, data: executed(part).release(part, slices, data.n, data.features,
                                                                     _key(key, number))


@one_thread
def prepare_privately(run: Run, data: Measurable, release: Release) -> Released:
    """What every part of the run's preparation releases, in order, each about rows as the parts before it left them (or
    about the targets)."""
    released: Released = ()
    for number, part in enumerate(run.prelude):
        slices = data.targets() if part.targets else (
            prepared(rows, run.prelude, released) for rows in data.rows())
        width = columns(run.prelude[:number], data.features)
        released += (release(number, part, data.together(slices), replace(data, features=width)),)
    return released


@one_thread
def settled(run: Run, features: int, released: Released, key: Key,
            blocks: Callable[[], Blocks]) -> tuple[Run, Released]:
    """The run with the step sizes that follow from its preparation, and what that released; ``blocks``: the batches
    that an eigenvalue is measured on (see ``measure_eigenvalue``)."""
    if run.prelude and isinstance(run.prelude[-1], TopEigenvalue):
        top = measure_eigenvalue(run, blocks(), key)
        run, released = run.measured(top, columns(run.prelude, features) + 1), (*released[:-1], np.array([top]))
    if type(run.step_size) is StableSteps:
        run = run.stabilised(np.linalg.eigvalsh(released[-1]).tolist())
    return run, released


def measure_eigenvalue(run: Run, blocks: Blocks, key: Key) -> float:
    """The released largest eigenvalue of the rows that steps read, as the run's ``TopEigenvalue`` describes.

    **Guarantee:** measured on rows after clipping and with their intercept; on the very batches of the run where they
    are the same in every pass, the secret order included, otherwise on all records.
    """
    part = run.prelude[-1]
    assert isinstance(part, TopEigenvalue)
    most, scale = largest_eigenvalue(run), squared_row(run) * part.noise_multiplier
    return released_eigenvalue(top_eigenvalue(blocks), scale, -float(ndtri(part.failure)), part.floor * most, most,
                               _key(key, len(run.prelude) - 1))

"""Any differentiable model on exact sums: every record's clipped gradient is rounded to a grid, and
added as integers.

A record's gradient is a function of that record and of the parameters; it is clipped, rounded
toward zero to whole multiples of a power of two, and its squared norm is checked in int64. Sums of
such vectors are exact in any order, and so is the discrete Gaussian that is added in the same units
(docs/theorems/exact-noise.md).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from itertools import cycle
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np

from lastiterate.engine.checkpoint import Checkpoint
from lastiterate.engine.clipped_gradients import one_by_one
from lastiterate.engine.exact_linear import SUMMABLE, check_independent
from lastiterate.engine.exact_noise import draws_of, places_for
from lastiterate.engine.external_gradients import ExternalLoop, Gather
from lastiterate.engine.linear_gradients import counts
from lastiterate.engine.network import Execution, PerExample, fit_network, real_records
from lastiterate.engine.noise import register_pytree
from lastiterate.engine.parameters import Form
from lastiterate.engine.random import Key, Number
from lastiterate.engine.record_loss import RecordLoss, cast_records, repeat_for_keys
from lastiterate.engine.step_iterator import Steps
from lastiterate.engine.tracing import alone
from lastiterate.engine.trainer import Loop, Progress
from lastiterate.errors import InputError
from lastiterate.run.run import Run
from lastiterate.run.validation import Weights

FINEST, COARSEST = 30, 12
"""Fractional bits, relative to the clip: int64 holds all squared norms, and rounding keeps the
information of a gradient."""
SHRINK = 1 - 2.0**-40
"""Gradients are scaled to this fraction of the clip: more than float64 rounds."""


@final
@dataclass(frozen=True)
class RecordGrid:
    """Gradients are multiples of 2^-``places``; ``most_squared``: of a record's gradient, in
    squared units."""

    places: int
    most_squared: int

    @property
    def step(self) -> float:
        return 2.0**-self.places

    @classmethod
    def of(cls, run: Run) -> RecordGrid:
        """The finest grid on which sums and their noise are exact; from public numbers alone."""
        check_independent(run)
        if run.clip is None:
            raise InputError(
                "secure_noise",
                "needs a clip where the loss is given as a function",
                None,
                "add clip=",
            )
        above = math.ceil(math.log2(run.clip))
        places = min(
            FINEST - above, places_for(run.n * run.clip, float(run.noise_stds.max()) * run.divisor)
        )
        if places + above < COARSEST:
            raise InputError(
                "secure_noise",
                f"needs a grid of at least {COARSEST} binary places below the clip",
                places + above,
                "its sums would not be exact: use fewer records, or less noise",
            )
        return cls(places, math.floor(Fraction(run.clip) ** 2 * Fraction(4) ** places))


@register_pytree
@dataclass(frozen=True)
class ExactRecords:
    """Per-example gradients on a grid; a chunk is records (pytrees of (m, ...)) and which are real,
    (m,).

    **Guarantee:** a chunk's sum is the exact sum of one vector per record, of norm at most
    ``clip``, each a function of that record and of the parameters alone; gradients that are not
    finite, or beyond the clip, count as 0.
    """

    loss: RecordLoss
    form: Form
    clip: float
    places: int
    most_squared: int
    most: int
    copies: int = 0  #: as in ``PerExample``, and so are ``weights``
    weights: Weights = None
    alone: bool = False  #: records are read one by one, where batches move them
    ridge: float = 0.0

    def chunk_sum(self, theta: jax.Array, chunk: tuple[Any, ...]) -> jax.Array:
        """Sum of the rounded gradients of the real records, (size,) float64, a multiple of the
        grid."""
        read = partial(self._read, self.form.arrays(theta, exact=False))
        return (
            one_by_one(lambda one: ({0: read(one)}, {}), chunk)[0][0] if self.alone else read(chunk)
        )

    def _read(self, arrays: list[Any], chunk: tuple[Any, ...]) -> jax.Array:
        records, real = real_records(chunk)
        scale = 2.0**self.places

        def one(arrays: list[Any], record: tuple[Any, ...]) -> jax.Array:
            gradient = jax.grad(lambda own: self.loss(self.form.whole(own), *record))(arrays)
            return jnp.concatenate([jnp.ravel(leaf).astype(jnp.float64) for leaf in gradient])

        given = cast_records(records, exact=False)
        given = repeat_for_keys(given) if self.copies else given
        each = jax.vmap(alone(one, arrays, jax.tree.map(lambda a: a[0], given)), (None, 0))(
            arrays, given
        )
        each = each.reshape(len(real), -1, each.shape[1]).mean(1) if self.copies > 1 else each
        squares = (each**2).sum(1)
        counted = real & jnp.isfinite(squares)
        factor = jnp.minimum(1.0, self.clip * SHRINK / jnp.maximum(jnp.sqrt(squares), 1e-300))
        factor = factor if self.weights is None else factor * counts(self.weights, records[1])
        whole = jnp.trunc(jnp.where(counted[:, None], each * factor[:, None], 0.0) * scale)
        within = ((whole**2).sum(1) < SUMMABLE) & (
            (whole.astype(jnp.int64) ** 2).sum(1) <= self.most_squared
        )
        return jnp.where(within[:, None], whole, 0.0).sum(0) / scale

    def leafwise(self, function: Callable[[jax.Array], jax.Array], theta: jax.Array) -> jax.Array:
        return self.form.vector([function(array) for array in self.form.arrays(theta, exact=True)])


AT_ONCE = 2**20
"""Bytes of records that one call sums, about."""


@dataclass(frozen=True)
class RecordSums:
    """Exact sums over records of any number, ``chunks`` chunks of the objective's ``most`` at a
    time. ``devices``: each takes calls in turn; JAX's own choice where there are none.

    **Guarantee:** one compiled program of one shape computes every sum, so that where records are
    read changes no bit of a gradient, as long as its place in a chunk is the same; with ``alone``
    that does not count either.
    """

    objective: ExactRecords
    chunks: int
    devices: tuple[Any, ...] = ()

    @classmethod
    def of(
        cls, run: Run, plain: PerExample, records: tuple[Any, ...], devices: tuple[Any, ...] = ()
    ) -> RecordSums:
        """The sums of ``run``; of ``records`` shapes and types count."""
        grid = RecordGrid.of(run)
        assert run.clip is not None
        objective = ExactRecords(
            plain.loss,
            plain.form,
            run.clip,
            grid.places,
            grid.most_squared,
            plain.most,
            plain.copies,
            plain.weights,
            alone=run.batching.streams != "in order",  # else every batch has its public order
        )
        parts = [
            leaf if hasattr(leaf, "dtype") else np.asarray(leaf)
            for leaf in jax.tree.leaves(records)
        ]
        size = sum(part.dtype.itemsize * math.prod(part.shape[1:]) for part in parts)
        largest = math.ceil(min(run.n, run.divisor) / plain.most)
        chunks = max(1, min(largest, AT_ONCE // max(1, size * plain.most)))
        return cls(objective, chunks, devices)

    @property
    def most(self) -> int:
        """Records of a call."""
        return self.chunks * self.objective.most

    def __call__(
        self,
        point: np.ndarray,
        take: Callable[[np.ndarray], Any],
        numbers: np.ndarray,
        keys: np.ndarray | None,
    ) -> np.ndarray:
        """The sum at the parameters ``point``, (size,), over the records of these ``numbers``,
        which ``take`` gives, and their ``keys``, where they draw something."""
        total, behind = np.zeros(point.shape), deque[jax.Array]()
        turns = cycle(self.devices or (None,))
        with jax.enable_x64(True):
            for first in range(0, len(numbers), self.most):
                part = numbers[first : first + self.most]
                padded = np.full(self.most, part[0])
                padded[: len(part)] = part
                records = take(padded)
                if keys is not None:
                    own = np.zeros((self.most, *keys.shape[1:]), keys.dtype)
                    own[: len(part)] = keys[first : first + self.most]
                    records = (*records, own)
                given = jax.device_put((point, records, len(part)), next(turns))
                behind.append(_sum_records(self.objective, *given))
                if len(behind) > 2 * max(1, len(self.devices)):  # records wait in memory
                    total += np.asarray(behind.popleft())
            return total + sum(map(np.asarray, behind))

    def sum_piece(
        self, point: np.ndarray, piece: tuple[np.ndarray, ...], keys: np.ndarray | None
    ) -> np.ndarray:
        """The sum over the records of a piece, (size,)."""

        def take(numbers: np.ndarray) -> tuple[np.ndarray, ...]:
            return tuple(part[numbers] for part in piece)

        return self(point, take, np.arange(len(piece[0])), keys)


@jax.jit
def _sum_records(
    objective: ExactRecords, theta: jax.Array, records: tuple[Any, ...], used: Number
) -> jax.Array:
    """The sum over the first ``used`` of records (m, ...), m a multiple of the chunks' rows."""
    real = jnp.arange(len(jax.tree.leaves(records)[0])) < used
    chunks = jax.tree.map(
        lambda a: a.reshape(-1, objective.most, *a.shape[1:]),
        (*records, real.astype(jnp.uint8)),
    )

    def add(i: jax.Array, total: jax.Array) -> jax.Array:
        return total + objective.chunk_sum(theta, jax.tree.map(lambda a: a[i], chunks))

    end = (used + objective.most - 1) // objective.most
    return jax.lax.fori_loop(0, end, add, jnp.zeros_like(theta))


@jax.jit
def _take_records(records: Any, numbers: np.ndarray) -> Any:
    return jax.tree.map(lambda a: a[numbers], records)


def make_exact_loop(loop: Loop, key: Key, gather: Gather | None = None) -> ExternalLoop:
    """The steps of ``loop`` on sums that come from outside, with exact noise."""
    assert isinstance(loop.objective, PerExample)
    run, form = loop.run, loop.objective.form
    return ExternalLoop(
        run,
        form.shapes,
        draws_of(run, RecordGrid.of(run).step, key),
        loop.rule,
        gather=gather,
        copies=loop.objective.copies,
        compiled=True,
    )


def exactly(run: Run) -> Execution:
    """Exact sums with exact noise, as another arithmetic for the loop of ``run``.

    **Guarantee:** what leaves a step is a function of sum + noise, both integer numbers of grid
    steps, added exactly.
    """
    RecordGrid.of(run)

    def iterate(
        loop: Loop,
        initial: np.ndarray,
        data: tuple[Any, ...],
        key: Key,
        progress: Progress | None,
        checkpoint: Checkpoint | None,
        by_step: bool,
    ) -> Steps[np.ndarray]:
        assert isinstance(loop.objective, PerExample)
        summed = RecordSums.of(run, loop.objective, data)
        held = jax.tree.map(jnp.asarray, data)
        take = partial(_take_records, held)

        def sums(point: np.ndarray, batch: np.ndarray, keys: np.ndarray | None) -> np.ndarray:
            return summed(point, take, batch, keys)

        count = len(jax.tree.leaves(data)[0])
        steps = replace(make_exact_loop(loop, key), records=count)
        return steps.iterate(initial, sums, key, progress, checkpoint, by_step=by_step)

    return iterate


def fit_network_exactly(
    run: Run,
    loss: RecordLoss,
    params: object,
    data: tuple[Any, ...],
    key: Key | None = None,
    **more: Any,
) -> Any:
    """``fit_network`` on exact sums with exact noise; the same arguments."""
    return fit_network(run, loss, params, data, key, executed_as=exactly(run), **more)

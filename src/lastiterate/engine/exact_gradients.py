"""Any differentiable model on exact sums: every record's clipped gradient is rounded to a grid, and
added as integers.

A record's gradient is a function of that record and of the parameters; it is clipped, rounded
toward zero to whole multiples of a power of two, and its squared norm is checked in int64. Sums of
such vectors are exact in any order, and so is the discrete Gaussian that is added in the same units
(docs/theorems/exact-noise.md).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from typing import Any, final

import jax
import jax.numpy as jnp

from lastiterate.engine.clipped_gradients import one_by_one
from lastiterate.engine.exact_linear import SUMMABLE, check_independent
from lastiterate.engine.exact_noise import draws_of, places_for
from lastiterate.engine.linear_gradients import batches_move, counts
from lastiterate.engine.network import PerExample, fit_network, real_records
from lastiterate.engine.noise import register_pytree
from lastiterate.engine.parameters import Form
from lastiterate.engine.random import Key
from lastiterate.engine.record_loss import RecordLoss, cast_records, repeat_for_keys
from lastiterate.engine.tracing import alone
from lastiterate.engine.trainer import Loop
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


def exactly(run: Run) -> Callable[[Loop, Key], Loop]:
    """Exact sums with exact noise, as another arithmetic for the loop of ``run``.

    **Guarantee:** what leaves a step is a function of sum + noise, both integer numbers of grid
    steps, added exactly.
    """
    grid = RecordGrid.of(run)

    def replace_arithmetic(loop: Loop, key: Key) -> Loop:
        plain: Any = loop.objective
        assert isinstance(plain, PerExample) and run.clip is not None
        return replace(
            loop,
            draws=draws_of(run, grid.step, key),
            objective=ExactRecords(
                plain.loss,
                plain.form,
                run.clip,
                grid.places,
                grid.most_squared,
                plain.most,
                plain.copies,
                plain.weights,
                alone=batches_move(run),
            ),
        )

    return replace_arithmetic


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

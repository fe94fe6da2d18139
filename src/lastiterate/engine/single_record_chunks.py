"""Chunks that are read one record at a time: the same compiled step for each, wherever it stands.

Where batches are drawn a record that is in one moves others to other positions of a chunk.
Vectorised code may round a record's gradient differently there, because what a kernel adds in which
order can depend on the position: in double precision as well, where the last bit decides on which
side of a kink a record stands, and with it all of a clipped gradient. A loop whose body reads one
record cannot. So gradients are functions of the record and of the parameters, bit by bit, in
whatever precision, and only sums, which are double precision, know an order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lastiterate.engine.clipped_gradients import Apart, Convolution, layers_of
from lastiterate.engine.linear_gradients import batches_move, hidden_state
from lastiterate.engine.parameters import Form
from lastiterate.engine.record_loss import RecordLoss, cast_records
from lastiterate.engine.tracing import equations, program
from lastiterate.errors import InputError
from lastiterate.run.run import Run

LARGE = 2**13
"""Parameters from which on a CPU is quicker one by one: what a record needs stays in its cache."""
WHOLE = (jax.lax.DotAlgorithmPreset.DEFAULT, jax.lax.DotAlgorithmPreset.F64_F64_F64)
"""Ways to multiply that keep all of double precision; every other one that has a name rounds what
it is given."""

Parts = tuple[dict[int, jax.Array], Apart]


def one_by_one(read: Callable[[Any], Parts], chunk: tuple[Any, ...]) -> Parts:
    """Sums in float64 of what ``read`` makes of chunks of one record, over a chunk up to its last
    real record; and what is kept apart, a row for each record."""
    real = chunk[-1] > 0
    end = jnp.max(jnp.where(real, jnp.arange(len(real)) + 1, 0))

    def single(i: jax.Array) -> Parts:
        return read(jax.tree.map(lambda a: jax.lax.dynamic_slice_in_dim(a, i, 1), chunk))

    def add(i: jax.Array, held: Parts) -> Parts:
        sums, apart = single(i)
        return (
            jax.tree.map(lambda total, own: total + own.astype(jnp.float64), held[0], sums),
            jax.tree.map(
                lambda rows, own: jax.lax.dynamic_update_slice_in_dim(rows, own, i, 0),
                held[1],
                apart,
            ),
        )

    sums, apart = jax.eval_shape(single, 0)
    begin = (
        jax.tree.map(lambda a: jnp.zeros(a.shape, jnp.float64), sums),
        jax.tree.map(lambda a: jnp.zeros((len(real), *a.shape[1:]), a.dtype), apart),
    )
    return jax.lax.fori_loop(0, end, add, begin)


def arithmetic(
    run: Run, loss: RecordLoss, form: Form, records: tuple[Any, ...]
) -> tuple[bool, bool]:
    """Whether everything that depends on parameters is double precision, and whether records are
    read one by one.

    The first is needed where theorems compare a step at two parameters, and the second where
    batches move records, in any precision. Else it is a matter of time: patches of many records'
    convolutions leave the cache.
    """

    def of_arrays(arrays: list[Any], *record: object) -> jax.Array:
        return loss(form.whole(arrays), *record)

    exact = hidden_state(run)
    first = cast_records(
        jax.tree.map(lambda a: np.zeros_like(np.asarray(a)[0]), records), exact=exact
    )
    arrays = form.arrays(np.zeros(form.size), exact=exact)
    if exact and rounds(of_arrays, arrays, first):
        raise InputError(
            "loss",
            "must be computed in double precision where theorems compare one step at two "
            "different parameters, and rounds what it makes of them to fewer bits",
            None,
            "leave the cast out, or the constants and the bounded domain that such theorems need",
        )
    large = not exact and form.size >= LARGE and jax.default_backend() == "cpu"
    return exact, batches_move(run) or (large and convolves(of_arrays, arrays, first))


def convolves(loss: Callable[..., jax.Array], arrays: list[Any], record: tuple[Any, ...]) -> bool:
    """Whether a loss has convolutions whose gradients are materialised."""
    traced, _ = program(loss, arrays, *record)
    return any(
        isinstance(layer, Convolution) for layer in layers_of(traced.jaxpr, len(arrays)).values()
    )


def rounds(loss: Callable[..., jax.Array], arrays: object, record: tuple[Any, ...]) -> bool:
    """Whether a loss of double precision, or its gradient, makes something of its parameters that
    is less precise.

    What it makes of ``record`` alone, numbers of one record, is computed and not looked at, but for
    what the backward pass of a custom derivative makes of it.
    """
    traced = jax.make_jaxpr(jax.grad(lambda own: loss(own, *record)))(arrays)
    return any(
        0 < min(bits(made), precision_of(eqn)) < 64
        and any(bits(given) == 64 for given in eqn.invars)
        for eqn in equations(traced.jaxpr)
        for made in eqn.outvars
    )


def bits(var: Any) -> int:
    """Return the bits of a floating-point number, or of each part of a complex one; 0 for all
    else."""
    dtype = getattr(var.aval, "dtype", np.dtype(bool))
    if not jnp.issubdtype(dtype, jnp.inexact):
        return 0
    return 8 * dtype.itemsize // (2 if jnp.issubdtype(dtype, jnp.complexfloating) else 1)


def precision_of(eqn: Any) -> int:
    """Bits of double precision that an equation says to keep, whatever the type of its result; 32:
    fewer than all."""
    if eqn.primitive.name == "reduce_precision":
        return 64 if eqn.params["exponent_bits"] >= 11 and eqn.params["mantissa_bits"] >= 52 else 32
    algorithm = eqn.params.get("precision")
    named = isinstance(algorithm, jax.lax.DotAlgorithm | jax.lax.DotAlgorithmPreset)
    return 32 if named and algorithm not in WHOLE else 64

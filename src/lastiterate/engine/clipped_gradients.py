"""Per-example gradients of a chunk without storing those of dense layers, nor differentiating
convolutions one by one.

Where a weight matrix is used once, as a product with a vector, one record's gradient is the outer
product of the layer's input a and of the derivative d by its output, of norm |a| |d|; the sum of
clipped ones is a matrix product over the chunk (Goodfellow 2015, arXiv:1510.01799; Rochette,
Manoel, Tramel 2019, arXiv:1912.06015). Such layers are found in the traced loss, a to d by adding
zeros to the outputs and differentiating by them.

A convolution whose kernel is used once is the same product with the patches of its input (Rochette
et al., section 3): its gradients are materialised, but by one batched matrix product. Of a table
that is read once (``lookup``) they are kept in the rows that a record reads. All others are
differentiated record by record.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core

from lastiterate.engine.linear_gradients import batches_move, hidden_state
from lastiterate.engine.parameters import Form
from lastiterate.engine.record_loss import RecordLoss, cast_records
from lastiterate.engine.tracing import Tag, Walk, alone, equations, is_inlined, program
from lastiterate.engine.window_gradients import Lookup, Rows, kernel_gradient, lookup, small
from lastiterate.errors import InputError
from lastiterate.run.facts import CHUNK
from lastiterate.run.run import Run


@dataclass(frozen=True)
class Dense:
    """A matrix whose axis ``inner`` is summed against a vector; ``shape`` of the result."""

    inner: int
    shape: tuple[int, ...]

    def means(self, inputs: jax.Array, slopes: jax.Array, copies: int) -> jax.Array:
        """Gradients by the matrix, the mean over the copies of every record: (m, ...)."""
        left, right = (slopes, inputs) if self.inner else (inputs, slopes)
        pair = (values.reshape(-1, copies, values.shape[-1]) for values in (left, right))
        return jnp.einsum("mko,mki->moi", *pair, precision="highest") / copies  # pyright: ignore


@dataclass(frozen=True, eq=False)
class Convolution:
    """A kernel of ``size`` (spatial) applied to one record; ``shape`` of the result."""

    size: tuple[int, ...]
    params: dict[str, Any]  #: of the primitive
    shape: tuple[int, ...]

    def gradients(self, inputs: jax.Array, slopes: jax.Array) -> jax.Array:
        """Every record's gradient by the kernel, (m, ...) in the kernel's own layout."""
        return jax.vmap(
            lambda values, slope: kernel_gradient(values, slope, self.size, self.params)
        )(inputs, slopes)


Layer = Dense | Convolution | Lookup


class Outer(NamedTuple):
    """Gradients by a matrix as outer products of ``left`` (m, rows) and ``right`` (m, columns)."""

    left: jax.Array
    right: jax.Array

    def total(self, shape: tuple[int, ...], dtype: Any) -> jax.Array:
        """Their sum, a matrix of that ``shape``."""
        left, right = (part.astype(dtype) for part in self)
        return jnp.matmul(left.T, right, precision="highest").reshape(shape)


Apart = dict[int, Outer | Rows]
"""Gradients that are never materialised, by the index of their array; every part has a row for each
record."""


def layers_of(jaxpr: Any, count: int) -> dict[int, Layer]:
    """Which of the first ``count`` inputs are weights that are used once, by a layer that is known
    here."""
    uses: dict[int, list[Layer | None]] = {}

    def walk(jaxpr: Any, tags: Sequence[Tag | None]) -> None:
        names = {var: tag for var, tag in zip(jaxpr.invars, tags, strict=True) if tag is not None}
        for eqn in jaxpr.eqns:
            held = [None if isinstance(v, core.Literal) else names.get(v) for v in eqn.invars]
            if is_inlined(eqn):
                walk(eqn.params["jaxpr"].jaxpr, held)
            elif (
                eqn.primitive.name == "transpose"
                and held[0] is not None
                and eqn.params["permutation"] == (1, 0)
            ):
                names[eqn.outvars[0]] = (held[0][0], 1 - held[0][1])
            else:
                for tag in filter(None, held):
                    uses.setdefault(tag[0], []).append(_layer(eqn, held, tag))
        for var in jaxpr.outvars:
            tag = None if isinstance(var, core.Literal) else names.get(var)
            if tag is not None:
                uses.setdefault(tag[0], []).append(None)

    tags = [
        (i, 0) if i < count and len(v.aval.shape) >= 2 else None for i, v in enumerate(jaxpr.invars)
    ]
    walk(jaxpr, tags)
    return {
        i: layers[0] for i, layers in uses.items() if len(layers) == 1 and layers[0] is not None
    }


def _layer(eqn: Any, held: Sequence[Tag | None], tag: Tag) -> Layer | None:
    """The layer, if the equation multiplies the tagged matrix with a vector, or convolves one
    record with it."""
    result, weight = eqn.outvars[0].aval, eqn.invars[held.index(tag)].aval
    if (
        sum(name is not None for name in held) != 1
        or result.dtype != weight.dtype
        or 0 in (result.size, weight.size)
    ):
        return None
    place, shape = held.index(tag), tuple(eqn.outvars[0].aval.shape)
    other = eqn.invars[1 - place].aval if len(eqn.invars) == 2 else None
    if eqn.primitive.name == "dot_general" and other is not None:
        axes, batched = eqn.params["dimension_numbers"]
        if (
            not any(batched)
            and len(axes[0]) == 1
            and len(other.shape) == 1
            and len(eqn.invars[place].aval.shape) == 2
        ):
            return Dense(axes[place][0] ^ tag[1], shape)
    if (place, tag[1]) == (0, 0) and (read := lookup(eqn, weight.shape)) is not None:
        return read
    if (
        eqn.primitive.name == "conv_general_dilated"
        and (place, tag[1]) == (1, 0)
        and other is not None
    ):
        spec = eqn.params["dimension_numbers"]
        alone = other.shape[spec.lhs_spec[0]] == 1
        size = tuple(weight.shape[axis] for axis in spec.rhs_spec[2:])
        grouped = eqn.params["feature_group_count"] * eqn.params["batch_group_count"] > 1
        if alone and not grouped and small(size, eqn.params["window_strides"]):
            return Convolution(size, eqn.params, shape)
    return None


PerRecord = Callable[..., jax.Array]
TINY = 2.0**-126
"""Smaller scales are subnormal in single precision, where rounding could double them; 0 instead."""


def sum_clipped(
    loss: PerRecord,
    clip: float | None,
    params: object,
    records: tuple[Any, ...],
    real: jax.Array,
    copies: int = 1,
    counts: jax.Array | None = None,
) -> Any:
    """Sum of the per-example gradients scaled to norm at most ``clip``, shaped like ``params``, in
    float32 or float64.

    At most ``CHUNK`` records (m, ...), real (m,). With ``copies`` every record stands so often, one
    after the other, in ``records`` (m copies, ...), and its gradient is the mean over them. A
    gradient that is not finite counts as 0, with a clip or without, and so does one that is too
    long for a sum without a clip to be finite: if it ended the run instead, one record could be
    recognised by that alone. ``counts``: what clipped gradients are multiplied by, at most 1, (m,).

    **Guarantee:** a record's gradient is a function of that record and of the parameters alone
    (``alone``); norms are summed in float64, scaled gradients stay below the clip after rounding,
    and the sum has at least single precision, whatever that of the parameters.
    """
    return assemble_sums(
        params, *sum_clipped_parts(loss, clip, params, records, real, copies, counts)
    )


def assemble_sums(
    params: object, sums: dict[int, jax.Array], apart: Apart, dtype: Any = None
) -> Any:
    """Sums by the numbers of their arrays, structured like ``params``; what is kept apart is added
    in ``dtype``, or in its own precision."""
    leaves, tree = jax.tree.flatten(params)
    every = sums | {
        i: part.total(leaves[i].shape, dtype or part[1].dtype) for i, part in apart.items()
    }
    return jax.tree.unflatten(tree, [every[i] for i in range(len(leaves))])


def sum_clipped_parts(
    loss: PerRecord,
    clip: float | None,
    params: object,
    records: tuple[Any, ...],
    real: jax.Array,
    copies: int = 1,
    counts: jax.Array | None = None,
) -> tuple[dict[int, jax.Array], Apart]:
    """``sum_clipped`` by numbers of arrays: sums, and what is kept apart instead."""
    leaves = jax.tree.leaves(params)
    first = jax.tree.map(lambda a: a[0], records)
    closed, _ = program(loss, params, *first)
    layers = layers_of(closed.jaxpr, len(leaves))
    others = [i for i in range(len(leaves)) if i not in layers]

    def one(leaves: list[Any], record: object) -> tuple[dict[int, Any], dict[int, Any], list[Any]]:
        def value(zeros: dict[int, Any], rest: list[Any]) -> Any:
            mine = list(leaves)
            for i, leaf in zip(others, rest, strict=True):
                mine[i] = leaf
            walk = Walk(zeros)
            entries = jax.tree.leaves(record)
            tags = [(i, 0) if i in layers else None for i in range(len(leaves))] + [None] * len(
                entries
            )
            (number,) = walk.run(closed.jaxpr, closed.consts, (*mine, *entries), tags)
            return number, walk.inputs

        zeros = {i: jnp.zeros(layer.shape, leaves[i].dtype) for i, layer in layers.items()}
        (slopes, rest), inputs = jax.grad(value, (0, 1), has_aux=True)(
            zeros, [leaves[i] for i in others]
        )
        return slopes, inputs, rest

    slopes, inputs, rest = jax.vmap(alone(one, leaves, first), (None, 0))(leaves, records)
    dense = {i: layer for i, layer in layers.items() if isinstance(layer, Dense) and copies == 1}
    each = dict(zip(others, rest, strict=True))
    each |= {
        i: layer.gradients(inputs[i], slopes[i])
        for i, layer in layers.items()
        if isinstance(layer, Convolution)
    }
    if copies > 1:
        each = {
            i: values.reshape(-1, copies, *values.shape[1:]).mean(1) for i, values in each.items()
        }
        each |= {
            i: layer.means(inputs[i], slopes[i], copies)
            for i, layer in layers.items()
            if isinstance(layer, Dense)
        }
    rows = {
        i: layer.gradients(inputs[i], slopes[i]).merge_copies(copies)
        for i, layer in layers.items()
        if isinstance(layer, Lookup)
    }
    squares = sum(
        (_squares(slopes[i]) * _squares(inputs[i]) for i in dense),
        jnp.zeros(real.shape, jnp.float64),
    )
    squares = sum(
        map(_squares, (*each.values(), *(part.values for part in rows.values()))), squares
    )
    norms = jnp.sqrt(squares)
    # what is not clipped is added as it is, so that sums of so many must be numbers of the
    # precision they have
    most = (
        math.inf
        if clip is not None
        else min(float(jnp.finfo(_wide(leaf)).max) for leaf in leaves)  # pyright: ignore
        / (2 * CHUNK)
    )
    counted = real & jnp.isfinite(squares) & (norms <= most)
    bound = math.inf if clip is None else clip * (1 - 2.0**-18)
    scale = jnp.where(counted, jnp.minimum(1.0, bound / jnp.maximum(norms, 1e-300)), 0.0)
    scale = scale if counts is None else scale * counts
    scale = jnp.where(scale < TINY, 0.0, scale)
    apart: Apart = {}
    for i, layer in dense.items():
        left, right = _summable(slopes[i], counted), _summable(inputs[i], counted)
        left = left * scale.astype(left.dtype)[:, None]
        left = jnp.where(
            jnp.abs(left) < TINY, 0.0, left
        )  # rounded there, and multiplied by what may be large
        apart[i] = Outer(left, right) if layer.inner else Outer(right, left)
    for i, part in rows.items():
        values = _summable(part.values, counted)
        apart[i] = Rows(part.numbers, values * scale.astype(values.dtype)[:, None, None])
    summable = {i: _summable(leaf, counted) for i, leaf in each.items()}
    return {
        i: jnp.einsum("m,m...->...", scale.astype(leaf.dtype), leaf, precision="highest")  # pyright: ignore
        for i, leaf in summable.items()
    }, apart


def _wide(values: jax.Array) -> Any:
    """The precision of sums: at least single."""
    return jnp.promote_types(values.dtype, jnp.float32)


def _summable(values: jax.Array, counted: jax.Array) -> jax.Array:
    """In at least single precision, and 0 where a record does not count: 0 times infinity would be
    no number."""
    values = values.astype(_wide(values))
    return jnp.where(counted.reshape((-1,) + (1,) * (values.ndim - 1)), values, 0.0)


def _squares(values: jax.Array) -> jax.Array:
    """Upper bounds on every record's squared norm, (m,): each square that underflows is below
    2^-1022."""
    flat = values.astype(jnp.float64).reshape(values.shape[0], -1)
    return (flat**2).sum(1) + flat.shape[1] * 2.0**-1022


# Chunks that are read one record at a time: the same compiled step for each, wherever it stands.
#
# Where batches are drawn a record that is in one moves others to other positions of a chunk.
# Vectorised code may round a record's gradient differently there, because what a kernel adds in which
# order can depend on the position: in double precision as well, where the last bit decides on which
# side of a kink a record stands, and with it all of a clipped gradient. A loop whose body reads one
# record cannot. So gradients are functions of the record and of the parameters, bit by bit, in
# whatever precision, and only sums, which are double precision, know an order.

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

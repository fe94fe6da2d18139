"""Per-example gradients of convolutions, windows and table lookups."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.lax import GatherScatterMode

# Convolutions and maxima over windows by slices and matrix products, which CPUs execute quickly
# inside of loops. XLA compiles a convolution to a library's only where no loop surrounds it, and
# the training loop does (on CPUs, JAX 0.10). One slice of the input per position of the window
# makes the patches; the rest is one matrix product.

MOST, APART, MAXIMA = 100, 256, 25
"""Positions of a window that are still written out: of a convolution, of one whose windows do not
overlap, of a maximum.

Beyond them programs take long to compile, and the patches of overlapping windows much memory.
"""


def small(size: Sequence[int], strides: Sequence[int]) -> bool:
    """Return whether a convolution's window has so few positions that they are written out."""
    apart = all(stride >= length for stride, length in zip(strides, size, strict=True))
    return 1 <= math.prod(size) <= (APART if apart else MOST)


def can_execute(name: str, params: dict[str, Any], operands: Sequence[Any], size: int) -> bool:
    """Whether the operation ``name`` of a traced loss, with ``size`` results, is executed here."""
    if jax.default_backend() != "cpu" or size == 0:
        return False
    if name == "reduce_window_max":
        return math.prod(params["window_dimensions"]) <= MAXIMA and jnp.issubdtype(
            operands[0].dtype, jnp.floating
        )
    if (
        name != "conv_general_dilated"
        or params["batch_group_count"] != 1
        or operands[1].size * operands[0].size == 0
    ):
        return False
    kernel = [operands[1].shape[axis] for axis in params["dimension_numbers"].rhs_spec[2:]]
    return small(kernel, params["window_strides"])


def windows(
    x: jax.Array,
    size: Sequence[int],
    strides: Sequence[int],
    padding: Sequence[tuple[int, int]],
    base: Sequence[int],
    dilation: Sequence[int],
    fill: float,
) -> list[jax.Array]:
    """Return the input as each position of the window reads it, positions in row-major order; all
    arguments have x.ndim entries.

    ``base`` - 1 entries of ``fill`` lie between two of x, ``padding`` (negative: cut) around them.
    """
    pads = [(low, high, gap - 1) for (low, high), gap in zip(padding, base, strict=True)]
    if any(map(any, pads)):
        x = jax.lax.pad(x, jnp.asarray(fill, x.dtype), pads)
    counts = [
        (length - (k - 1) * d - 1) // s + 1
        for length, k, d, s in zip(x.shape, size, dilation, strides, strict=True)
    ]
    views = list[jax.Array]()
    for place in np.ndindex(*size):
        begin = [at * d for at, d in zip(place, dilation, strict=True)]
        end = [
            first + s * (count - 1) + 1
            for first, s, count in zip(begin, strides, counts, strict=True)
        ]
        views.append(jax.lax.slice(x, begin, end, strides))
    return views


def patches(x: jax.Array, size: Sequence[int], params: dict[str, Any]) -> jax.Array:
    """Return what a kernel of spatial ``size`` reads of one record (c, *spatial): (positions of the
    kernel, c, *output)."""
    views = windows(
        x,
        (1, *size),
        (1, *params["window_strides"]),
        ((0, 0), *params["padding"]),
        (1, *params["lhs_dilation"]),
        (1, *params["rhs_dilation"]),
        0.0,
    )
    return jnp.stack(views)


def convolve(lhs: jax.Array, rhs: jax.Array, params: dict[str, Any]) -> jax.Array:
    """``lax.conv_general_dilated``, with its own parameters, to rounding."""
    spec, groups = params["dimension_numbers"], params["feature_group_count"]
    images, kernel = lhs.transpose(spec.lhs_spec), rhs.transpose(spec.rhs_spec)
    size = kernel.shape[2:]
    outputs, each = kernel.shape[0] // groups, kernel.shape[1]
    flat = kernel.reshape(groups, outputs, each, -1).swapaxes(2, 3).reshape(groups, outputs, -1)

    def one(image: jax.Array) -> jax.Array:
        windows = patches(image, size, params)
        shape = windows.shape[2:]
        by_group = (
            windows.reshape(windows.shape[0], groups, each, -1)
            .swapaxes(0, 1)
            .reshape(groups, flat.shape[2], -1)
        )
        product = jnp.matmul(
            flat,
            by_group,
            precision=params["precision"],
            preferred_element_type=params["preferred_element_type"],
        )
        return product.reshape(groups * outputs, *shape)

    single = images.shape[0] == 1
    maps = one(images[0])[None] if single else jax.vmap(one)(images)
    return maps.transpose(tuple(map(int, np.argsort(spec.out_spec))))


def kernel_gradient(
    image: jax.Array, slope: jax.Array, size: Sequence[int], params: dict[str, Any]
) -> jax.Array:
    """Gradient by a kernel of spatial ``size`` for one record and the derivative by its output; in
    the kernel's layout.

    ``image``, ``slope``: with a batch axis of length 1; no groups.
    """
    spec = params["dimension_numbers"]
    windows = patches(image.transpose(spec.lhs_spec)[0], size, params)
    slopes = slope.transpose(spec.out_spec)[0]
    flat = jnp.matmul(
        slopes.reshape(slopes.shape[0], -1),
        windows.reshape(windows.shape[0] * windows.shape[1], -1).T,
        precision="highest",
    )
    gradient = flat.reshape(slopes.shape[0], windows.shape[0], windows.shape[1]).swapaxes(1, 2)
    return gradient.reshape(*gradient.shape[:2], *size).transpose(
        tuple(map(int, np.argsort(spec.rhs_spec)))
    )


def largest(x: jax.Array, params: dict[str, Any]) -> jax.Array:
    """``lax.reduce_window`` by the maximum; its gradient goes to the first of several that are
    largest, as there."""
    first, *rest = windows(
        x,
        params["window_dimensions"],
        params["window_strides"],
        params["padding"],
        params["base_dilation"],
        params["window_dilation"],
        -math.inf,
    )
    for other in rest:
        first = jnp.where((other > first) | jnp.isnan(other), other, first)
    return first


# Tables of which one record reads a few rows: its gradient is 0 in all others, and is kept in those
# rows. Words' vectors are such a table. Materialised, a record's gradient by it is as large as the
# table, which then costs a step far more than the rest of the network.


class Rows(NamedTuple):
    """Gradients of records with respect to a table: ``values[i, t]`` of record i for row
    ``numbers[i, t]``, and 0 for all others.

    ``numbers`` (m, positions), those past the end for no row; ``values`` (m, positions, width), 0
    where the record has named that row before.
    """

    numbers: jax.Array
    values: jax.Array

    @classmethod
    def of(cls, numbers: jax.Array, values: jax.Array) -> Rows:
        """Add first what one record's positions add to one row: so a sum over records has terms
        that are parts of one record's gradient, whose norm is that of its ``values``.

        By a product, not a scatter, whose order some devices leave open.
        """
        same = numbers[:, :, None] == numbers[:, None, :]
        first = same.argmax(2) == jnp.arange(numbers.shape[1])
        one = (same & first[:, :, None]).astype(values.dtype)
        return cls(numbers, jnp.matmul(one, values, precision="highest"))

    def merge_copies(self, copies: int) -> Rows:
        """The means over the copies of every record, which stand one after the other."""
        if copies == 1:
            return self
        many, width = self.numbers.shape[1], self.values.shape[2]
        return Rows.of(
            self.numbers.reshape(-1, copies * many),
            self.values.reshape(-1, copies * many, width) / copies,
        )

    def total(self, shape: tuple[int, ...], dtype: Any) -> jax.Array:
        """The sum over the records, a table of that ``shape``."""
        width = self.values.shape[2]
        table = jnp.zeros((shape[0], width), dtype)
        rows = self.values.reshape(-1, width).astype(dtype)
        return table.at[self.numbers.reshape(-1)].add(rows, mode="drop").reshape(shape)


@dataclass(frozen=True)
class Lookup:
    """Whole rows of a table of ``count``, read at positions in the record; ``shape`` of the result.

    ``part``: of the vectors that give a position, the entry with the row's index. ``rest``: axes of
    the result within a row. ``bounded``: numbers past an end mean the row at that end, or else
    none, whose gradient is dropped.
    """

    count: int
    part: int
    parts: int
    rest: tuple[int, ...]
    bounded: bool
    shape: tuple[int, ...]

    def gradients(self, places: jax.Array, slopes: jax.Array) -> Rows:
        """Every record's gradient, of what it was read at and the derivatives by what was read,
        both (m, ...)."""
        numbers = places.reshape(len(places), -1, self.parts)[:, :, self.part]
        behind = jnp.moveaxis(slopes, [1 + axis for axis in self.rest], range(-len(self.rest), 0))
        values = behind.reshape(*numbers.shape, -1)
        if self.bounded:
            return Rows.of(jnp.clip(numbers, 0, self.count - 1), values)
        there = (numbers >= 0) & (numbers < self.count)
        return Rows.of(
            jnp.where(there, numbers, self.count), jnp.where(there[:, :, None], values, 0)
        )


def lookup(eqn: Any, table: tuple[int, ...]) -> Lookup | None:
    """Return the look-up of an equation that reads whole rows of its first operand, a ``table`` of
    this shape."""
    name, params, shape = eqn.primitive.name, eqn.params, tuple(eqn.outvars[0].aval.shape)
    if params.get("slice_sizes") != (1, *table[1:]):
        return None
    if name == "dynamic_slice":  # starts are moved to where the slice fits: all but the first to 0
        return Lookup(table[0], 0, 1, tuple(range(1, len(shape))), True, shape)
    if name != "gather":
        return None
    axes, bounded = params["dimension_numbers"], params["mode"] == GatherScatterMode.CLIP
    if axes.start_index_map != (0,) and not (bounded and 0 in axes.start_index_map):
        return None
    rest = axes.offset_dims[0 not in axes.collapsed_slice_dims :]
    return Lookup(
        table[0],
        axes.start_index_map.index(0),
        len(axes.start_index_map),
        tuple(rest),
        bounded,
        shape,
    )

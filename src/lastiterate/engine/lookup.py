"""Tables of which one record reads a few rows: its gradient is 0 in all others, and is kept in those rows.

Words' vectors are such a table. Materialised, a record's gradient by it is as large as the table, which then costs a
step far more than the rest of the network.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.lax import GatherScatterMode


class Rows(NamedTuple):
    """What records add to a table: ``values[i, t]`` of record i to row ``numbers[i, t]``, and 0 to all others.

    ``numbers`` (m, places), those past the end for no row; ``values`` (m, places, width), 0 where a row of the record
    has been said before.
    """

    numbers: jax.Array
    values: jax.Array

    @classmethod
    def of(cls, numbers: jax.Array, values: jax.Array) -> Rows:
        """What one record's places add to one row is added first: so a sum over records has terms that are parts of
        one record's gradient, whose norm is that of its ``values``.

        By a product, not a scatter, whose order some devices leave open.
        """
        same = numbers[:, :, None] == numbers[:, None, :]
        first = same.argmax(2) == jnp.arange(numbers.shape[1])
        one = (same & first[:, :, None]).astype(values.dtype)
        return cls(numbers, jnp.matmul(one, values, precision="highest"))

    def merged(self, copies: int) -> Rows:
        """The means over the copies of every record, which stand one after the other."""
        if copies == 1:
            return self
        many, width = self.numbers.shape[1], self.values.shape[2]
        return Rows.of(self.numbers.reshape(-1, copies * many), self.values.reshape(-1, copies * many, width) / copies)

    def total(self, shape: tuple[int, ...], dtype: Any) -> jax.Array:
        """The sum over the records, a table of that ``shape``."""
        width = self.values.shape[2]
        table = jnp.zeros((shape[0], width), dtype)
        rows = self.values.reshape(-1, width).astype(dtype)
        return table.at[self.numbers.reshape(-1)].add(rows, mode="drop").reshape(shape)


@dataclass(frozen=True)
class Lookup:
    """Whole rows of a table of ``count``, read at places in the record; ``shape`` of the result.

    ``part``: of the vectors that say a place, the number of the row. ``rest``: axes of the result within a row.
    ``bounded``: numbers past an end mean the row at that end, or else none, whose gradient is dropped.
    """

    count: int
    part: int
    parts: int
    rest: tuple[int, ...]
    bounded: bool
    shape: tuple[int, ...]

    def gradients(self, places: jax.Array, slopes: jax.Array) -> Rows:
        """Every record's gradient, of what it was read at and the derivatives by what was read, both (m, ...)."""
        numbers = places.reshape(len(places), -1, self.parts)[:, :, self.part]
        behind = jnp.moveaxis(slopes, [1 + axis for axis in self.rest], range(-len(self.rest), 0))
        values = behind.reshape(*numbers.shape, -1)
        if self.bounded:
            return Rows.of(jnp.clip(numbers, 0, self.count - 1), values)
        there = (numbers >= 0) & (numbers < self.count)
        return Rows.of(jnp.where(there, numbers, self.count), jnp.where(there[:, :, None], values, 0))


def lookup(eqn: Any, table: tuple[int, ...]) -> Lookup | None:
    """What an equation does, if it reads whole rows of its first operand, a ``table`` of this shape."""
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
    rest = axes.offset_dims[0 not in axes.collapsed_slice_dims:]
    return Lookup(table[0], axes.start_index_map.index(0), len(axes.start_index_map), tuple(rest), bounded, shape)

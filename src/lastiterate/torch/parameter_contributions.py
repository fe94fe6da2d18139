"""What the records of a chunk contribute to one parameter: stored one by one, or as factors that
are kept apart.

A linear layer on vectors has as one record's gradient the outer product of the layer's input a and
of the derivative d by its output, of norm |a| |d|; the sum of clipped ones is a matrix product over
the chunk (Goodfellow 2015, arXiv:1510.01799). A table of embeddings has gradients that are 0 but in
the rows that a record looks up.

Sums are of single precision where the contributions are, or ``wide``: of double precision, of the
same numbers.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch.utils._pytree import register_pytree_node

TINY = 2.0**-126
"""Smaller scales are subnormal in single precision, where rounding could double them; 0 instead."""


AT_ONCE = 2**18
"""Numbers that are made double precision at once."""


class GradientRows:
    """Gradients whose numbers are ``values`` (m, ...), each of them once."""

    values: torch.Tensor

    @property
    def parts(self) -> tuple[torch.Tensor, ...]:
        return (self.values,)

    def squares(self) -> torch.Tensor:
        """Upper bounds on the records' squared norms, (m,) float64."""
        return bound_squared_norms(self.values)


@dataclass(frozen=True, eq=False)
class Stored(GradientRows):
    """Gradients as they are, ``values`` (m, ...)."""

    values: torch.Tensor

    def total(
        self, scale: torch.Tensor, counted: int | torch.Tensor, *, wide: bool
    ) -> torch.Tensor:
        """Sum of the scaled gradients, (entries,)."""
        values = summable(self.values, counted)
        scale = scale[: values.shape[0]].to(torch.float64 if wide else values.dtype)
        if not wide or values.dtype == torch.float64:
            return scale @ values
        parts = in_parts(values)
        total = torch.zeros(values.shape[1], dtype=torch.float64, device=values.device)
        for factor, part in zip(scale.split([len(part) for part in parts]), parts, strict=True):
            total = total + factor @ part.double()
        return total

    def each(self) -> torch.Tensor:
        """Every record's gradient, (m, entries) float64."""
        return self.values.reshape(self.values.shape[0], -1).double()

    def merge_copies(self, copies: int) -> Stored:
        """Sums over the copies of every record, which stand one after the other."""
        return (
            Stored(self.values.reshape(-1, copies, *self.values.shape[1:]).sum(1))
            if copies > 1
            else self
        )


@dataclass(frozen=True, eq=False)
class Outer:
    """Outer products of ``left`` (m, outputs) and ``right`` (m, inputs)."""

    left: torch.Tensor
    right: torch.Tensor

    @property
    def parts(self) -> tuple[torch.Tensor, ...]:
        return self.left, self.right

    def squares(self) -> torch.Tensor:
        return bound_squared_norms(self.left) * bound_squared_norms(self.right)

    def total(
        self, scale: torch.Tensor, counted: int | torch.Tensor, *, wide: bool
    ) -> torch.Tensor:
        left, right = summable(self.left, counted), summable(self.right, counted)
        left = left * scale[: left.shape[0]].to(left.dtype)[:, None]
        left = torch.where(
            left.abs() < TINY, 0.0, left
        )  # rounded there, and multiplied by what may be large
        return (left.double().T @ right.double() if wide else left.T @ right).reshape(-1)

    def merge_copies(self, copies: int) -> Stored | Outer:
        if copies == 1:
            return self
        left, right = (part.reshape(-1, copies, part.shape[-1]) for part in self.parts)
        return Stored(left.transpose(1, 2) @ right)

    def each(self) -> torch.Tensor:
        return (self.left.double()[:, :, None] * self.right.double()[:, None, :]).flatten(1)


@dataclass(frozen=True, eq=False)
class Rows(GradientRows):
    """Gradients by a table of ``count`` rows: row ``numbers[i, t]`` of record i gets ``values[i,
    t]``, and no other.

    ``numbers`` (m, places); ``values`` (m, places, width), 0 where a row of the record has been
    said before.
    """

    numbers: torch.Tensor
    values: torch.Tensor
    count: int

    @classmethod
    def of(cls, numbers: torch.Tensor, slopes: torch.Tensor, count: int) -> Rows:
        """What one record's places add to the same row is added first: so every term of the sum
        over a chunk is part of one record's clipped gradient, and no longer than the clip."""
        same = numbers[:, :, None] == numbers[:, None, :]
        first = ~same.tril(-1).any(2)
        return cls(numbers, (same & first[:, :, None]).to(slopes.dtype) @ slopes, count)

    def merge_copies(self, copies: int) -> Rows:
        numbers = self.numbers.reshape(-1, copies * self.numbers.shape[1])
        values = self.values.reshape(len(numbers), -1, self.values.shape[-1])
        return Rows.of(numbers, values, self.count) if copies > 1 else self

    def total(
        self, scale: torch.Tensor, counted: int | torch.Tensor, *, wide: bool
    ) -> torch.Tensor:
        values = summable(self.values, counted)
        kept, width = values.shape[0], self.values.shape[-1]
        values = (values * scale[:kept].to(values.dtype)[:, None]).reshape(-1, width)
        values = values.double() if wide else values
        table = torch.zeros(self.count, width, dtype=values.dtype, device=values.device)
        return table.index_add(0, self.numbers[:kept].reshape(-1), values).reshape(-1)

    def each(self) -> torch.Tensor:
        count, width = self.values.shape[0], self.values.shape[-1]
        table = torch.zeros(
            count, self.count, width, dtype=torch.float64, device=self.values.device
        )
        places = self.numbers[:, :, None].expand(-1, -1, width)
        return table.scatter_add(1, places, self.values.double()).flatten(1)


@dataclass(frozen=True, eq=False)
class Products:
    """Gradients that are products of ``left`` and ``right`` (m, copies, ...), summed over copies:
    ``multiply`` makes those of one record, (copies, ...), and no two records' are there at once.

    **Guarantee:** a record is multiplied twice, for its norm and for the sum, and the second product
    may round otherwise, by more than all of its norm where terms cancel. What is added is never
    longer than the bound of ``squares``, which is that of the first product: a second one that is
    longer is scaled down to it, and one that is not finite is 0.
    """

    left: torch.Tensor
    right: torch.Tensor
    multiply: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

    @property
    def parts(self) -> tuple[torch.Tensor, ...]:
        return self.left, self.right

    def _of_record(self, number: int) -> torch.Tensor:
        """One record's gradient, (1, entries); of copies, so that nothing follows from where its
        factors lie in memory."""
        product = self.multiply(self.left[number].clone(), self.right[number].clone())
        return product.sum(0).reshape(1, -1) if len(product) > 1 else product.reshape(1, -1)

    def squares(self) -> torch.Tensor:
        """Upper bounds on the squared norms of the first products, (m,) float64."""
        return self._squares

    @cached_property
    def _squares(self) -> torch.Tensor:
        count = self.left.shape[0]
        return torch.cat([bound_squared_norms(self._of_record(number)) for number in range(count)])

    def total(
        self, scale: torch.Tensor, counted: int | torch.Tensor, *, wide: bool
    ) -> torch.Tensor:
        count = counted if isinstance(counted, int) else len(counted)
        total: torch.Tensor | None = None
        for number in range(count):
            gradient = self._of_record(number)[0]
            allowed, square = self._squares[number], bound_squared_norms(gradient[None])[0]
            factor = scale[number] * torch.where(square > allowed, (allowed / square).sqrt(), 1.0)
            holds = torch.isfinite(square) & (factor >= TINY)
            if not isinstance(counted, int):
                holds = holds & counted[number]
            gradient = gradient.double() if wide else gradient
            term = torch.where(holds, gradient * factor.to(gradient.dtype), 0.0)
            total = term if total is None else total.add_(term)
        if total is not None:
            return total
        entries = self._of_record(0).shape[1]
        return torch.zeros(
            entries, dtype=torch.float64 if wide else self.left.dtype, device=self.left.device
        )

    def each(self) -> torch.Tensor:
        """Every record's gradient, (m, entries) float64."""
        return torch.cat([self._of_record(number) for number in range(len(self.left))]).double()

    def merge_copies(self, copies: int) -> Products:
        left, right = (part.reshape(-1, copies, *part.shape[2:]) for part in self.parts)
        return Products(left, right, self.multiply)


Contribution = Stored | Outer | Rows | Products
# nested tensors, as traces know them
register_pytree_node(Stored, lambda one: (list(one.parts), None), lambda parts, _: Stored(*parts))
register_pytree_node(Outer, lambda one: (list(one.parts), None), lambda parts, _: Outer(*parts))
register_pytree_node(
    Rows,
    lambda one: ([one.numbers, one.values], one.count),
    lambda parts, count: Rows(*parts, count=count),
)


def bound_squared_norms(values: torch.Tensor) -> torch.Tensor:
    """Upper bounds on every record's squared norm, (m,) float64; squares that underflow are below
    2^-1022 each."""
    flat = values.reshape(values.shape[0], -1)
    if flat.dtype == torch.float64:
        return (flat * flat).sum(1) + flat.shape[1] * 2.0**-1022
    norms = [torch.linalg.vector_norm(part, dim=1, dtype=torch.float64) for part in in_parts(flat)]
    return (norms[0] if len(norms) == 1 else torch.cat(norms)).square() * (1 + 2.0**-50)


def in_parts(flat: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Some records at a time: their copy in double precision stays in the cache."""
    return (
        flat.split(max(1, AT_ONCE // max(flat.shape[1], 1))) if flat.numel() > AT_ONCE else (flat,)
    )


def summable(values: torch.Tensor, counted: int | torch.Tensor) -> torch.Tensor:
    """The records that count: the first ``counted``, or of the first records those that a tensor
    names, others 0.

    0 times infinity would be no number.
    """
    flat = values.reshape(values.shape[0], -1)
    if isinstance(counted, int):
        return flat[:counted]
    return torch.where(counted[:, None], flat[: len(counted)], 0.0)

"""What every public map of a record answers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Self

import numpy as np

from lastiterate.features.record_fields import Field, Values


class RecordMap(ABC):
    """A public map of single fields of one record: a frozen description, recognised by its exact type.

    ``name``: what ``features=`` calls it. ``takes``: the kinds of fields that it speaks of; the others become numbers
    as without a map. Widths, names and norms follow from public facts alone.

    **Guarantee:** what ``rows`` makes of a value depends on that value and on public facts, and on no other value, and
    its Euclidean norm is at most ``norm(field)``.
    """

    name: ClassVar[str]
    takes: ClassVar[tuple[type[Field], ...]]

    @classmethod
    def sized(cls, fields: tuple[Field, ...], resolved: float) -> Self:
        """The map with as many numbers as such fields and a budget carry.

        ``resolved``: public records times mu of the budget, in proportion to how fine a difference stands out of the
        noise of a fit.
        """
        return cls()

    @classmethod
    def pays(cls, fields: tuple[Field, ...], resolved: float) -> bool:
        """Whether ``features="auto"`` takes it for a record of such fields."""
        return False

    @abstractmethod
    def width(self, field: Field) -> int:
        """Numbers that a field becomes. Errors: a field that the map does not fit."""

    @abstractmethod
    def norm(self, field: Field) -> float:
        """Their largest Euclidean norm, whatever the values."""

    @abstractmethod
    def rows(self, field: Field, values: Values) -> np.ndarray:
        """The numbers (n, width) of values (n, ...)."""

    @abstractmethod
    def words(self) -> str:
        """What it does, in a few words."""

    def names(self, field: Field) -> tuple[str, ...]:
        """What the numbers are called."""
        return tuple(f"{field.name}#{i}" for i in range(self.width(field)))

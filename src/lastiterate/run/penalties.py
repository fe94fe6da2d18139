"""Convex functions h of composite objectives, entered by their proximal maps.

Every step ends with prox_{step h}(x) = argmin_u step h(u) + |u - x|^2 / 2, which is firmly
nonexpansive (Moreau 1965; Bauschke, Combettes 2017, Proposition 12.28). On parameters in several
arrays h is the sum over the arrays.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from lastiterate.errors import InputError
from lastiterate.run.serialization import settle
from lastiterate.run.validation import positive


@final
@dataclass(frozen=True)
class L1:
    """h = weight |theta|_1 (soft thresholding)."""

    weight: float

    quadratic = 0.0

    def __post_init__(self) -> None:
        settle(self)
        positive("weight of l1", self.weight)


@final
@dataclass(frozen=True)
class L2Squared:
    """h = weight/2 |theta|_2^2 (shrinkage)."""

    weight: float

    def __post_init__(self) -> None:
        settle(self)
        positive("weight of l2-squared", self.weight)

    @property
    def quadratic(self) -> float:
        """The weight w of the part w/2 |theta|^2, which its proximal map shrinks by 1 / (1 + step
        w)."""
        return self.weight


@final
@dataclass(frozen=True)
class ElasticNet:
    """h = l1 |theta|_1 + l2/2 |theta|_2^2."""

    l1: float
    l2: float

    def __post_init__(self) -> None:
        settle(self)
        positive("l1 of the elastic net", self.l1)
        positive("l2 of the elastic net", self.l2)

    @property
    def quadratic(self) -> float:
        """The weight w of the part w/2 |theta|^2, which its proximal map shrinks by 1 / (1 + step
        w)."""
        return self.l2


@final
@dataclass(frozen=True)
class GroupLasso:
    """h = weight times the sum of the norms of the groups along ``axis``.

    With axis 0 a group is what an array holds for one index of its other axes: for linear models
    all classes' weights of one feature, which the penalty keeps or drops together.
    """

    weight: float
    axis: int = 0

    quadratic = 0.0

    def __post_init__(self) -> None:
        settle(self)
        positive("weight of the group lasso", self.weight)
        if self.axis not in (0, 1):
            raise InputError("axis of the group lasso", "must be 0 or 1", self.axis)


@final
@dataclass(frozen=True)
class NuclearNorm:
    """h = weight times the sum of the singular values of every matrix (arrays that are not matrices
    have none)."""

    weight: float

    quadratic = 0.0

    def __post_init__(self) -> None:
        settle(self)
        positive("weight of the nuclear norm", self.weight)


Prox = L1 | L2Squared | ElasticNet | GroupLasso | NuclearNorm

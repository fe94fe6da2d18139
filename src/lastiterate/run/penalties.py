"""Convex functions h of composite objectives, entered by their proximal maps.

Every step ends with prox_{step h}(x) = argmin_u step h(u) + |u - x|^2 / 2, which is firmly
nonexpansive (Moreau 1965; Bauschke, Combettes 2017, Proposition 12.28). On parameters in several
arrays h is the sum over the arrays.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import final

from lastiterate.errors import InputError
from lastiterate.run.serialization import Checked, normalise_fields, require
from lastiterate.run.validation import positive


@final
@dataclass(frozen=True)
class L1(Checked):
    """The penalty ``weight`` |theta|_1 (soft thresholding).

    Parameters
    ----------
    weight : float
        Weight, positive.

    Raises
    ------
    InputError
        If ``weight`` is out of range.

    Examples
    --------
    >>> import lastiterate as li
    >>> run = li.Run(n=100, steps=3, step_size=0.1, clip=1.0, prox=li.penalties.L1(0.01))
    >>> run.prox.weight
    0.01
    """

    weight: float = field(metadata=require(positive, "weight of l1"))

    quadratic = 0.0


@final
@dataclass(frozen=True)
class L2Squared(Checked):
    """The penalty ``weight`` / 2 |theta|_2^2 (shrinkage).

    Parameters
    ----------
    weight : float
        Weight, positive.

    Raises
    ------
    InputError
        If ``weight`` is out of range.

    Examples
    --------
    >>> import lastiterate as li
    >>> li.penalties.L2Squared(0.01).quadratic
    0.01
    """

    weight: float = field(metadata=require(positive, "weight of l2-squared"))

    @property
    def quadratic(self) -> float:
        """Weight w of the part w/2 |theta|^2, shrunk by 1 / (1 + step w)."""
        return self.weight


@final
@dataclass(frozen=True)
class ElasticNet(Checked):
    """The penalty ``l1`` |theta|_1 + ``l2`` / 2 |theta|_2^2.

    Parameters
    ----------
    l1 : float
        Weight of the absolute values, positive.
    l2 : float
        Weight of the squares, positive.

    Raises
    ------
    InputError
        If a weight is out of range.

    Examples
    --------
    >>> import lastiterate as li
    >>> li.penalties.ElasticNet(l1=0.01, l2=0.1).quadratic
    0.1
    """

    l1: float = field(metadata=require(positive, "l1 of the elastic net"))
    l2: float = field(metadata=require(positive, "l2 of the elastic net"))

    @property
    def quadratic(self) -> float:
        """Weight w of the part w/2 |theta|^2, shrunk by 1 / (1 + step w)."""
        return self.l2


@final
@dataclass(frozen=True)
class GroupLasso:
    """The penalty ``weight`` times the sum of the norms of groups of parameters.

    Parameters
    ----------
    weight : float
        Weight, positive.
    axis : {0, 1}, default 0
        Axis along which a group extends. With axis 0 a group has one index of the other axes: for
        linear models all classes' weights of one feature, which are kept or dropped together.

    Raises
    ------
    InputError
        If a value is out of range.

    Examples
    --------
    >>> import lastiterate as li
    >>> li.penalties.GroupLasso(0.01).axis
    0
    """

    weight: float = field(metadata=require(positive, "weight of the group lasso"))
    axis: int = 0

    quadratic = 0.0

    def __post_init__(self) -> None:
        normalise_fields(self)
        if self.axis not in (0, 1):
            raise InputError("axis of the group lasso", "must be 0 or 1", self.axis)


@final
@dataclass(frozen=True)
class NuclearNorm(Checked):
    """The penalty ``weight`` times the sum of the singular values of every matrix.

    Parameters that are no matrix have none.

    Parameters
    ----------
    weight : float
        Weight, positive.

    Raises
    ------
    InputError
        If ``weight`` is out of range.

    Examples
    --------
    >>> import lastiterate as li
    >>> li.penalties.NuclearNorm(0.01).weight
    0.01
    """

    weight: float = field(metadata=require(positive, "weight of the nuclear norm"))

    quadratic = 0.0


Prox = L1 | L2Squared | ElasticNet | GroupLasso | NuclearNorm

"""Closed convex sets that iterates are projected onto, and the diameters that theorems need."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import final

import numpy as np

from lastiterate.errors import InputError
from lastiterate.run.serialization import Checked, normalise_fields, require
from lastiterate.run.validation import RANGE, check_integer, positive


@final
@dataclass(frozen=True)
class Everywhere:
    """The domain of all parameters: no constraint.

    Examples
    --------
    >>> import lastiterate as li
    >>> li.domains.Everywhere().diameter()
    inf
    """

    def diameter(self) -> float:
        """Return the largest Euclidean distance of two points: infinity."""
        return math.inf


@final
@dataclass(frozen=True)
class Ball(Checked):
    """The Euclidean ball around 0 that iterates and the start are projected onto.

    Parameters
    ----------
    radius : float
        Radius, positive.

    Raises
    ------
    InputError
        If ``radius`` is out of range.

    Examples
    --------
    >>> import lastiterate as li
    >>> run = li.Run(n=100, steps=3, step_size=0.1, clip=1.0, domain=li.domains.Ball(2.0))
    >>> run.domain.diameter()
    4.0
    """

    radius: float = field(metadata=require(positive, "radius"))

    def diameter(self) -> float:
        """Return the largest Euclidean distance of two points."""
        return 2.0 * self.radius


@final
@dataclass(frozen=True)
class Box:
    """The box [low, high] in every coordinate.

    Parameters
    ----------
    low : float
        Lower end.
    high : float
        Upper end, above ``low``.
    dimension : int, optional
        Number of coordinates, where it is known. Theorems that need a diameter need it.

    Raises
    ------
    InputError
        If a value is out of range.

    Examples
    --------
    >>> import lastiterate as li
    >>> li.domains.Box(-1.0, 1.0, dimension=4).diameter()
    4.0
    """

    low: float
    high: float
    dimension: int | None = None

    def __post_init__(self) -> None:
        normalise_fields(self)
        if not (abs(self.low) <= RANGE[1] and abs(self.high) <= RANGE[1] and self.low < self.high):
            raise InputError(
                "box", f"needs numbers low < high within {RANGE[1]:g}", (self.low, self.high)
            )
        positive("width of the box", self.high - self.low)
        if self.dimension is not None:
            check_integer("dimension of the box", self.dimension)

    def diameter(self) -> float:
        """Return the largest Euclidean distance of two points; infinity without a dimension."""
        return (
            math.inf
            if self.dimension is None
            else (self.high - self.low) * math.sqrt(self.dimension)
        )


@final
@dataclass(frozen=True)
class Simplex(Checked):
    """The parameters of at least 0 that sum to ``total``.

    Parameters
    ----------
    total : float, default 1.0
        Sum, positive.

    Raises
    ------
    InputError
        If ``total`` is out of range.

    Examples
    --------
    >>> import lastiterate as li
    >>> round(li.domains.Simplex().diameter(), 3)
    1.414
    """

    total: float = field(default=1.0, metadata=require(positive, "total of the simplex"))

    def diameter(self) -> float:
        """Return the largest Euclidean distance of two points, rounded up."""
        return self.total * math.sqrt(2.0) * (1 + 1e-15)


@final
@dataclass(frozen=True)
class AffineBall:
    """The parameters of bounded norm with <normals[i], theta> = offsets[i] for every i.

    Parameters
    ----------
    radius : float
        Bound on the Euclidean norm, positive.
    normals : tuple of tuple of float
        Normals of the hyperplanes, linearly independent and of one length.
    offsets : tuple of float
        Offsets of the hyperplanes.

    Raises
    ------
    InputError
        If a value is out of range, or the domain would be empty.

    Examples
    --------
    >>> import lastiterate as li
    >>> domain = li.domains.AffineBall(5.0, normals=((1.0, 0.0),), offsets=(3.0,))
    >>> round(domain.diameter(), 3)
    8.0
    """

    radius: float = field(metadata=require(positive, "radius"))
    normals: tuple[tuple[float, ...], ...]
    offsets: tuple[float, ...]

    def __post_init__(self) -> None:
        normalise_fields(self)
        rows = self.normals
        if (
            not rows
            or len(rows) != len(self.offsets)
            or len({len(row) for row in rows}) != 1
            or not rows[0]
        ):
            raise InputError(
                "normals",
                "need one offset each, and all the same positive length",
                (len(rows), len(self.offsets)),
            )
        if not all(
            math.isfinite(x) and abs(x) <= RANGE[1] for row in (*rows, self.offsets) for x in row
        ):
            raise InputError("normals", f"and offsets must be finite numbers within {RANGE[1]:g}")
        self.centre()

    def centre(self) -> tuple[tuple[float, ...], float]:
        """Return the point of the affine set nearest to 0, and the radius around it."""
        rows, offsets = np.array(self.normals), np.array(self.offsets)
        if np.linalg.matrix_rank(rows) < len(rows):
            raise InputError(
                "normals", "must be linearly independent", None, "leave out the ones that follow"
            )
        point = np.linalg.pinv(rows) @ offsets
        left = self.radius**2 - float(point @ point)
        if not left > 0:
            raise InputError(
                "radius",
                "must exceed the distance of the affine set from 0, "
                f"{math.sqrt(float(point @ point)):g}",
                self.radius,
                "the domain would be empty",
            )
        return tuple(point.tolist()), math.sqrt(left)

    def diameter(self) -> float:
        """Return the largest Euclidean distance of two points, rounded up."""
        return 2.0 * self.centre()[1] * (1 + 1e-9)


Domain = Everywhere | Ball | Box | Simplex | AffineBall

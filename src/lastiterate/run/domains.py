"""Closed convex sets that iterates are projected onto, and the diameters that theorems need."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import numpy as np

from lastiterate.errors import InputError
from lastiterate.run.serialization import settle
from lastiterate.run.validation import RANGE, positive, whole


@final
@dataclass(frozen=True)
class Everywhere:
    """No constraint on the parameters."""

    def diameter(self) -> float:
        """Largest Euclidean distance of two points: infinite."""
        return math.inf


@final
@dataclass(frozen=True)
class Ball:
    """The Euclidean ball of ``radius`` around 0; iterates (and the start) are projected onto it."""

    radius: float

    def __post_init__(self) -> None:
        settle(self)
        positive("radius", self.radius)

    def diameter(self) -> float:
        """Largest Euclidean distance of two points."""
        return 2.0 * self.radius


@final
@dataclass(frozen=True)
class Box:
    """The box [low, high] in each of ``dimension`` coordinates (leave ``dimension`` out if
    unknown)."""

    low: float
    high: float
    dimension: int | None = None

    def __post_init__(self) -> None:
        settle(self)
        if not (abs(self.low) <= RANGE[1] and abs(self.high) <= RANGE[1] and self.low < self.high):
            raise InputError(
                "box", f"needs numbers low < high within {RANGE[1]:g}", (self.low, self.high)
            )
        positive("width of the box", self.high - self.low)
        if self.dimension is not None:
            whole("dimension of the box", self.dimension)

    def diameter(self) -> float:
        """Largest Euclidean distance of two points; infinite where the dimension is unknown."""
        return (
            math.inf
            if self.dimension is None
            else (self.high - self.low) * math.sqrt(self.dimension)
        )


@final
@dataclass(frozen=True)
class Simplex:
    """Parameters >= 0 that sum to ``total``."""

    total: float = 1.0

    def __post_init__(self) -> None:
        settle(self)
        positive("total of the simplex", self.total)

    def diameter(self) -> float:
        """Largest Euclidean distance of two points, rounded up."""
        return self.total * math.sqrt(2.0) * (1 + 1e-15)


@final
@dataclass(frozen=True)
class AffineBall:
    """Parameters of norm at most ``radius`` with <normals[i], theta> = offsets[i] for every i."""

    radius: float
    normals: tuple[tuple[float, ...], ...]
    offsets: tuple[float, ...]

    def __post_init__(self) -> None:
        settle(self)
        positive("radius", self.radius)
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
        """The point of the affine set next to 0, and the radius of the ball around it that is the
        domain."""
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
        """Largest Euclidean distance of two points, rounded up."""
        return 2.0 * self.centre()[1] * (1 + 1e-9)


Domain = Everywhere | Ball | Box | Simplex | AffineBall

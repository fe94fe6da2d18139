"""Privacy losses on a grid, in both orders of a pair, and their composition by fast Fourier transforms.

**Guarantee:** ``delta`` is an upper end: ratios are rounded to the grid with their means preserved (``ratio_grid``),
what lies beyond a window counts as an infinite loss, and bounds on the errors of floating point are added.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lastiterate.curves.ratio_grid import UNIT, RatioGrid, lognormal
from lastiterate.curves.ratio_nodes import TAIL
from lastiterate.run.arrays import Array

CUT = 1e-18
"""Mass that a composition may have beyond either end of its window."""
LARGEST = 2**21
"""Grid points of a composition; more are refused with ``MemoryError``."""


@dataclass(frozen=True, eq=False)
class Losses:
    """One order of a pair: ``mass[i]`` at the loss (first + i) ``grid``, ``lost`` at infinity.

    ``mass_error`` is relative, ``loss_error`` absolute; ``error`` is what rounding may have taken from any delta.
    """

    grid: float
    first: int
    mass: Array
    lost: float
    mass_error: float
    loss_error: float
    error: float = 0.0

    @property
    def values(self) -> Array:
        return self.grid * np.arange(self.first, self.first + self.mass.size, dtype=np.float64)

    def delta(self, epsilon: float) -> float:
        """sum over losses x > eps of mass (1 - e^(eps - x)), rounded up."""
        if self.mass_error >= 0.5:
            return 1.0
        at = epsilon - self.loss_error
        start = int(min(max(at / self.grid - self.first, 0.0), self.mass.size))
        terms = self.mass[start:] * -np.expm1(np.minimum(at - self.values[start:], 0.0))
        return min(1.0, (max(0.0, float(terms.sum())) + self.lost) / (1 - self.mass_error) * (1 + 1e-12) + self.error)

    def log_moment(self, theta: float) -> float:
        """log of the sum of mass e^(theta x)."""
        with np.errstate(divide="ignore"):
            terms = np.log(self.mass) + theta * self.values
        top = float(terms.max())
        return top + math.log(float(np.exp(terms - top).sum()))


@dataclass(frozen=True, eq=False)
class LossDistribution:
    """Losses log(dP/dQ) under P (``remove``: the record is there under P alone) and log(dQ/dP) under Q (``add``)."""

    remove: Losses
    add: Losses

    def deltas(self, epsilon: float) -> tuple[float, float]:
        """Upper ends of delta for P against Q and for Q against P."""
        return self.remove.delta(epsilon), self.add.delta(epsilon)


def on_losses(law: RatioGrid, grid: float) -> LossDistribution:
    """``law`` rounded to the ratios e^(k grid)."""
    positive = law.value > 0
    value, q = law.value[positive], law.mass[positive]
    cell = np.floor(np.log(value) / grid).astype(np.int64)
    first = int(cell[0])
    if cell[-1] - first > LARGEST:
        raise MemoryError
    nodes = np.exp(grid * np.arange(first, int(cell[-1]) + 2))
    at = cell - first
    raised = q * np.clip((value - nodes[at]) / (nodes[at + 1] - nodes[at]), 0.0, 1.0)
    mass = np.bincount(at, q - raised, nodes.size) + np.bincount(at + 1, raised, nodes.size)
    rounded = replace(law, value=nodes, mass=mass, mass_error=law.mass_error + 2 * q.size * UNIT)
    return _both(rounded, first, grid, float(law.mass[~positive].sum()))


def gaussian(mu: float, grid: float) -> LossDistribution:
    """A mu-Gaussian-DP mechanism on the ratios e^(k grid); ``mu`` is rounded up to a quarter of the grid."""
    mu = max(mu, grid / 4)
    reach = TAIL * mu + mu * mu / 2
    if 2 * reach > LARGEST * grid:
        raise MemoryError
    steps = np.arange(math.floor(-reach / grid), math.ceil(reach / grid) + 1, dtype=np.float64)
    law = lognormal(mu, grid * steps)
    return _both(replace(law, value=law.value[1:], mass=law.mass[1:]), int(steps[0]), grid, float(law.mass[0]))


def _both(law: RatioGrid, first: int, grid: float, nothing: float) -> LossDistribution:
    """Both orders of a law on e^(k grid), k = first, ..., and with Q-mass ``nothing`` at 0."""
    last = first + law.value.size - 1
    moved = law.ratio_error + (8 + 2 * max(abs(first), abs(last)) * grid) * UNIT
    remove = Losses(grid, first, law.mass * law.value, law.lost, law.mass_error + moved, moved)
    return LossDistribution(remove, Losses(grid, -last, law.mass[::-1].copy(), nothing, law.mass_error, moved))


def composed(parts: tuple[tuple[LossDistribution, int], ...]) -> LossDistribution:
    """``count`` independent copies of every part, all on one grid, none a composition itself."""
    return LossDistribution(_composed(tuple((part.remove, count) for part, count in parts)),
                            _composed(tuple((part.add, count) for part, count in parts)))


def _composed(parts: tuple[tuple[Losses, int], ...]) -> Losses:
    """Mass below the window is wrapped to its top, where it counts as more than it is; mass above it is lost."""
    if len(parts) == 1 and parts[0][1] == 1:
        return parts[0][0]
    first, last = _window(parts)
    size = 2 ** max(1, math.ceil(math.log2(last - first + 1)))
    if size > LARGEST:
        raise MemoryError
    transforms: list[Any] = []
    for part, _ in parts:
        at = np.arange(part.first, part.first + part.mass.size) % size
        transforms.append(np.fft.rfft(np.bincount(at, part.mass, size)))
    total, error = _power(transforms, [count for _, count in parts], size)
    mass = np.roll(np.fft.irfft(total, size), -(first % size))

    def summed(name: str) -> float:
        return sum(count * getattr(part, name) for part, count in parts)

    return Losses(parts[0][0].grid, first, mass, summed("lost") + 3 * CUT, summed("mass_error"), summed("loss_error"),
                  error)


def _power(transforms: list[Any], counts: list[int], size: int) -> tuple[Any, float]:
    """The product of powers of the transforms f, and a bound on the error that any delta inherits.

    A transform of masses of sum 1 has errors below 9 u log2(size) in each coefficient (each is a sum over log2(size)
    stages of additions and products with roots of unity, Higham 2002, section 24.1), so that coefficient j of the
    power is off by e_j <= sum_i n_i (that + 3 u) prod |f|^n / |f_i|. delta weighs losses by a function that rises from
    0 to 1 and falls once: its own coefficients are below size / (2 j), hence e_j / j is added, for both signs of j. The
    inverse transform errs by no more in any mass than the transform of coefficients of the same sum / size.
    """
    one = 9 * UNIT * math.log2(size)
    total: Any = np.ones(size // 2 + 1, dtype=np.complex128)
    largest = np.ones(size // 2 + 1)
    for f, count in zip(transforms, counts, strict=True):
        total = total * _raised(f, count)
        largest *= (np.abs(f) + 2 * one) ** count
    wrong = np.zeros(size // 2 + 1)
    for f, count in zip(transforms, counts, strict=True):
        wrong += count * (one + 3 * UNIT) * largest / (np.abs(f) + 2 * one)
    error = float((wrong / np.maximum(np.arange(wrong.size), 1.0)).sum())
    return total, error + 2 * one * float(np.abs(total).sum())


def _raised(base: Any, count: int) -> Any:
    """base^count by repeated squaring."""
    out: Any = np.ones_like(base)
    while count:
        if count & 1:
            out = out * base
        base, count = base * base, count >> 1
    return out


def _window(parts: tuple[tuple[Losses, int], ...]) -> tuple[int, int]:
    """Grid indices between which the composition lies, but for a mass of ``CUT`` beyond either end (Chernoff)."""
    grid = parts[0][0].grid
    first = sum(count * part.first for part, count in parts)
    last = sum(count * (part.first + part.mass.size - 1) for part, count in parts)
    variance = 0.0
    for part, count in parts:
        mean = float((part.mass * part.values).sum())
        variance += count * float((part.mass * (part.values - mean) ** 2).sum())
    for step in 2.0 ** np.arange(-2, 7, 0.5):
        for sign in (-1, 1):
            theta = sign * step / math.sqrt(variance)
            bound = (sum(count * part.log_moment(theta) for part, count in parts) - math.log(CUT)) / theta
            if sign > 0:
                last = min(last, math.ceil(bound / grid) + 1)
            else:
                first = max(first, math.floor(bound / grid) - 1)
    return first, last

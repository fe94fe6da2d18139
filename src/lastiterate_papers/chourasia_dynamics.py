"""Chourasia, Ye and Shokri 2021, Lemmas 1 to 4 and their differential inequalities, in numbers on a
grid.

One parameter, two curved losses, no projection: within a step theta_k moves on as theta_k - eta U_1
- s U_2 + sqrt(2 s) sigma N(0, 1) on one data set, and with + s U_2 on the other (equation 5).
Densities follow from this recursion by quadrature, and from the Fokker-Planck equations of Lemma 1
by finite differences.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from lastiterate_papers.chourasia_privacy import PAPER
from lastiterate_papers.item import Item, Panel, Result, Row, Work, traced

STRONG, STEP, SIGMA, SHIFT = 0.5, 0.4, 0.5, 1.0
"""Losses log cosh(theta + 1) and log cosh(theta - 1), each with a ridge of 1/2: smoothness 3/2 and
a step below 2/3."""
SENSITIVITY = 2 * math.tanh(SHIFT)
"""S_g/n: the gradients differ most at 0."""
LSI = STRONG / (2 * SIGMA**2)
"""c along the whole diffusion that starts at N(0, 2 sigma^2/lambda), by their Lemma 5."""
ORDERS = (1.5, 2.0, 4.0, 8.0)


@dataclass(frozen=True, eq=False)
class Law:
    """One process at a time: density, its logarithm's slope and the drift V of Lemma 1, at the
    points of a grid."""

    density: np.ndarray
    slope: np.ndarray
    drift: np.ndarray


@dataclass(frozen=True, eq=False)
class Grid:
    """Points at equal distances."""

    x: np.ndarray

    @property
    def gap(self) -> float:
        return float(self.x[1] - self.x[0])

    @property
    def half(self) -> np.ndarray:
        """U_2, half of the difference of the gradients."""
        return (np.tanh(self.x + SHIFT) - np.tanh(self.x - SHIFT)) / 2

    def law(self, before: np.ndarray, after: float, sign: int) -> Law:
        """The law ``after`` so long into a step from the density ``before``; sign: +1 or -1, the
        data set."""
        common = STRONG * self.x + (np.tanh(self.x + SHIFT) + np.tanh(self.x - SHIFT)) / 2
        places = self.x - STEP * common - sign * after * self.half
        spread = 2 * SIGMA**2 * after
        off = places[None, :] - self.x[:, None]
        weights = np.exp(-(off**2) / (2 * spread)) * (
            before * self.gap / math.sqrt(2 * math.pi * spread)
        )
        density = weights.sum(axis=1)
        return Law(
            density,
            (weights * off).sum(axis=1) / spread / density,
            sign * (weights @ self.half) / density,
        )

    def flowed(self, before: np.ndarray, start: float, sign: int, steps: int) -> np.ndarray:
        """Lemma 1: dp/dt = d(pV)/dx + sigma^2 d^2p/dx^2 from ``start`` to the step's end (Crank and
        Nicolson)."""
        from scipy.linalg import solve_banded

        density, dt, n = self.law(before, start, sign).density, (STEP - start) / steps, len(self.x)
        for place in range(steps):
            drift = self.law(before, start + (place + 0.5) * dt, sign).drift
            bands = np.zeros((3, n))
            bands[0, 1:] = drift[1:] / (2 * self.gap) + SIGMA**2 / self.gap**2
            bands[1] = -2 * SIGMA**2 / self.gap**2
            bands[2, :-1] = -drift[:-1] / (2 * self.gap) + SIGMA**2 / self.gap**2
            moved = bands[1] * density
            moved[:-1] += bands[0, 1:] * density[1:]
            moved[1:] += bands[2, :-1] * density[:-1]
            left = -dt / 2 * bands
            left[1] += 1
            density = solve_banded((1, 1), left, density + dt / 2 * moved)
        return density

    def moment(self, order: float, one: Law, two: Law) -> float:
        """E_alpha of two distributions."""
        return float(
            np.exp(order * np.log(one.density) + (1 - order) * np.log(two.density)).sum() * self.gap
        )

    def renyi(self, order: float, one: Law, two: Law) -> float:
        return math.log(self.moment(order, one, two)) / (order - 1)

    def information(self, order: float, one: Law, two: Law) -> float:
        """I_alpha over E_alpha."""
        weights = np.exp(order * np.log(one.density) + (1 - order) * np.log(two.density))
        return float((weights * (one.slope - two.slope) ** 2).sum() / weights.sum())


def dynamics(work: Work) -> Result:
    """Both processes over some steps: densities in two ways, and every inequality at several times
    and orders."""
    grid, tiny = Grid(np.linspace(-6, 6, work.size(401, 801))), 1e-4
    times = [share * STEP for share in (0.1, 0.3, 0.6, 0.9)]
    laws = [
        np.exp(-(grid.x**2) / (4 * SIGMA**2 / STRONG)) / math.sqrt(4 * math.pi * SIGMA**2 / STRONG)
    ] * 2
    worst = {
        "off": 0.0,
        "drift": 0.0,
        "apart": 0.0,
        "two": -math.inf,
        "three": 0.0,
        "flow": math.inf,
    }
    lines: dict[str, list[float]] = {"exact": [], "Theorem 2": [], "Theorem 1 (composition)": []}
    at = list[float]()
    for step in range(work.size(2, 4)):
        for share in times:
            now = [grid.law(law, share, sign) for law, sign in zip(laws, (1, -1), strict=True)]
            late = [
                grid.law(law, share + tiny, sign) for law, sign in zip(laws, (1, -1), strict=True)
            ]
            early = [
                grid.law(law, share - tiny, sign) for law, sign in zip(laws, (1, -1), strict=True)
            ]
            seen = now[0].density + now[1].density > 1e-12
            worst["drift"] = max(worst["drift"], float(np.abs(now[0].drift - now[1].drift).max()))
            worst["apart"] = max(
                worst["apart"], float(np.abs(now[0].drift + now[1].drift)[seen].max())
            )
            for order in ORDERS:
                here = grid.renyi(order, *now)
                rate = (grid.renyi(order, *late) - grid.renyi(order, *early)) / (2 * tiny)
                over = (grid.renyi(order + tiny, *now) - grid.renyi(order - tiny, *now)) / (
                    2 * tiny
                )
                share_of = grid.information(order, *now)
                for gamma in (0.25, 0.5, 1.0):
                    most = order * SENSITIVITY**2 / (4 * SIGMA**2 * gamma)
                    worst["two"] = max(
                        worst["two"], rate + (1 - gamma) * SIGMA**2 * order * share_of - most
                    )
                    kept = most - 2 * (1 - gamma) * SIGMA**2 * LSI * (
                        here / order + (order - 1) * over
                    )
                    worst["flow"] = min(worst["flow"], kept - rate)
                spent = (here + order * (order - 1) * over) / (order**2 / (2 * LSI) * share_of)
                worst["three"] = max(worst["three"], spent)
            at.append(step * STEP + share)
            lines["exact"].append(grid.renyi(2.0, *now))
            lines["Theorem 2"].append(
                2 * SENSITIVITY**2 / (2 * LSI * SIGMA**4) * -math.expm1(-(SIGMA**2) * LSI * at[-1])
            )
            lines["Theorem 1 (composition)"].append(2 * SENSITIVITY**2 * at[-1] / (4 * SIGMA**2))
        for place, sign in enumerate((1, -1)):
            after = grid.law(laws[place], STEP, sign).density
            flowed = grid.flowed(laws[place], STEP / 8, sign, work.size(30, 150))
            worst["off"] = max(worst["off"], float(np.abs(flowed - after).sum() * grid.gap))
            laws[place] = after
    rows = (
        Row(
            "Lemma 1: L1 distance of the Fokker-Planck density from the recursion's, largest",
            worst["off"],
            0.0,
            2e-3,
        ),
        Row("Lemma 1 as printed, V' = -V: largest |V + V'|", worst["apart"], 0.0, 1e-3),
        Row(
            "Lemma 2: rate of loss minus its bound, largest (three gamma)",
            worst["two"],
            0.0,
            1e-6,
            "<=",
        ),
        Row("Lemma 3: left side over right side, largest", worst["three"], 1.0, 1e-6, "<="),
        Row("Lemma 4: largest |V - V'|", worst["drift"], SENSITIVITY, 1e-9, "<="),
        Row("(13) and (15): bound minus rate of loss, smallest", worst["flow"], 0.0, 1e-6, ">="),
    )
    return Result(
        rows,
        (
            Panel(
                "order 2",
                "time",
                "Renyi divergence",
                traced(at, lines, "chance", "certified", "composition"),
                False,
                True,
            ),
        ),
        {
            "losses": "log cosh(theta + 1), log cosh(theta - 1)",
            "lambda": STRONG,
            "beta": 1 + STRONG,
            "step": STEP,
            "sigma": SIGMA,
            "c": LSI,
            "orders": list(ORDERS),
            "gamma": [0.25, 0.5, 1.0],
            "steps": work.size(2, 4),
            "grid": f"{len(grid.x)} points in -6..6",
        },
        (
            "Lemma 1 prints V' = -V. Both are means of U_2 over where the process may have come "
            "from, which "
            "differs between data sets, so that V' is not -V (the blog post has it right); nothing "
            "else rests "
            "on it, since Lemma 4 needs |V - V'| only.",
            "The bound of Theorem 2 is the solution of (15) with gamma = 1/2.",
        ),
    )


ITEMS = (
    Item(
        "chourasia-dynamics",
        PAPER,
        "Lemmas 1 to 4 and the differential inequalities (13), (15) on a grid",
        "differs",
        dynamics,
        finding="The Fokker-Planck equations of Lemma 1 give the recursion's densities to [Lemma "
        "1: L1 distance of "
        "the Fokker-Planck density from the recursion's, largest], and every inequality holds at "
        "all times "
        "and orders tried; only V' = -V, as printed, is off by [Lemma 1 as printed, V' = -V: "
        "largest "
        "|V + V'|].",
    ),
)

"""Kong and Ribero 2025, Table 2: the bound of every source as a function, Renyi divergence of one
order.

The table's own cells are lost; what is here is what it cites, with explicit constants. Replace-one,
except for Poisson batches (zero-out). The source without a function is Chien and Li's Theorem A.1,
a nonlinear programme.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import lastiterate as li
from lastiterate_papers.comparisons import assumed, curve


@dataclass(frozen=True)
class At:
    """Where the bounds are evaluated: cyclic batches of ``batch`` records, gradients of norm at
    most ``clip``.

    ``sigma``: noise on the mean gradient; ``smooth``, ``weak``: M and m, Hessians between -m and M;
    ``diameter``: of the domain, where a source needs one.
    """

    passes: int
    order: float = 2.0
    n: int = 1000
    batch: int = 50
    step: float = 0.1
    sigma: float = 0.5
    clip: float = 1.0
    smooth: float = 1.0
    weak: float = 0.1
    diameter: float = 1.0

    @property
    def unit(self) -> float:
        """alpha C^2 / (b^2 sigma^2), which all cells have in common."""
        return self.order * (self.clip / (self.batch * self.sigma)) ** 2

    def run(self, *, convex: bool = False, bounded: bool = False) -> li.Run:
        """The cyclic run."""
        bent = {"strong": 0.0} if convex else {"weak_convexity": self.weak}
        return li.Run(
            n=self.n,
            steps=self.passes * (self.n // self.batch),
            step_size=self.step,
            noise=li.GradientNoise(self.sigma),
            batching=li.Cyclic(self.batch),
            adjacency="replace-one",
            domain=li.domains.Ball(self.diameter / 2) if bounded else li.domains.Everywhere(),
            loss=assumed(lipschitz=self.clip, smooth=self.smooth, **bent),
        )

    def poisson(self) -> li.Run:
        """As many Poisson batches of the same rate, any loss."""
        return li.Run(
            n=self.n,
            steps=self.passes * (self.n // self.batch),
            step_size=self.step,
            noise=li.GradientNoise(self.sigma),
            batching=li.Poisson(self.batch / self.n),
            loss=assumed(lipschitz=self.clip),
        )


def mironov_11(at: At) -> float:
    """Poisson batches in closed form, 2 alpha q^2 T / z^2 (zero-out); infinite outside of its
    conditions.

    q <= 1/5, z >= 4, alpha <= z^2 l/2 - 2 log z and alpha <= (z^2 l^2/2 - log 5 - 2 log z)/(l +
    log(q alpha) + 1/(2 z^2)), with l = log(1 + 1/(q (alpha - 1))) and z the noise multiplier sigma
    b/C.
    """
    q, z, alpha = at.batch / at.n, at.sigma * at.batch / at.clip, at.order
    if alpha <= 1 or q > 0.2 or z < 4:
        return math.inf
    log = math.log1p(1 / (q * (alpha - 1)))
    below = log + math.log(q * alpha) + 1 / (2 * z * z)
    second = (
        (z * z * log * log / 2 - math.log(5) - 2 * math.log(z)) / below if below > 0 else math.inf
    )
    if alpha > min(z * z * log / 2 - 2 * math.log(z), second):
        return math.inf
    return 2 * alpha * q * q * at.passes * (at.n // at.batch) / (z * z)


def altschuler_talwar_31(at: At) -> float:
    """Convex losses in a bounded domain: their *full batch*, with the same noise on the sum of
    gradients, b/n of it on the mean. Not their theorem for mini-batches, whose exact statement is
    not at hand."""
    full = replace(
        at.run(convex=True, bounded=True),
        batching=li.FullBatch(),
        noise=li.GradientNoise(at.sigma * at.batch / at.n),
    )
    return curve("bounded-domain-convex", full).rdp(at.order)


SOURCES: dict[str, Callable[[At], float]] = {
    "Chua et al., disjoint batches: composition": lambda at: curve("composition-gdp", at.run()).rdp(
        at.order
    ),
    "Mironov et al., section 3.3: quadrature (zero-out)": lambda at: curve(
        "poisson-rdp", at.poisson()
    ).rdp(at.order),
    "Mironov et al., Theorem 11: closed form (zero-out)": mironov_11,
    "Feldman et al., Theorem 35 (convex)": lambda at: curve("pabi-convex", at.run(convex=True)).rdp(
        at.order
    ),
    "Altschuler, Talwar: full batch at b/n of the noise (convex)": altschuler_talwar_31,
    "theirs, bounded (nonconvex, diameter 1)": lambda at: curve(
        "cyclic-weakly-convex-bounded", at.run(bounded=True)
    ).rdp(at.order),
    "theirs, unbounded (nonconvex)": lambda at: curve("cyclic-weakly-convex", at.run()).rdp(
        at.order
    ),
    "optimal shifts (nonconvex; not in the table)": lambda at: curve(
        "shifted-interpolation", at.run()
    ).rdp(at.order),
}
"""Every source's function, by what the item calls it."""

"""What the bounds of Ryffel, Bach and Pointcheval (2022) share: DP-SGLD with any step sizes.

Their noisy stochastic gradient descent is theta - eta_k/m (sum of gradients over a batch of m records) +
sqrt(2 eta_k) sigma N(0, I), projected. With full batches the proofs hold for any neighbours (S the sensitivity under
the run's own adjacency; 2 L in the paper). For m < n they are false as published: docs/theorems/sgld.
"""

from __future__ import annotations

import math

from lastiterate.analysis.langevin import decay, linear, squared_ratio, temperature
from lastiterate.curves.renyi import Rdp
from lastiterate.run.facts import known
from lastiterate.run.run import Run
from lastiterate.run.step_sizes import Constant, InverseDecay, Steps


def total_time(run: Run) -> float:
    """eta_0 + ... + eta_{K-1}, rounded up.

    1/(2 beta + strong k/2) is convex in k, so each term after the first is at most the integral over
    [k - 1/2, k + 1/2]: together (2/strong) log(1 + strong (K - 1) / (4 beta + strong/2)).
    """
    match run.step_size:
        case Constant(eta):
            return eta * run.steps
        case InverseDecay(beta, strong):
            first = run.step_size.at(0)
            if strong == 0:
                return first * run.steps
            return first + 2 / strong * math.log1p(strong * (run.steps - 1) / (4 * beta + strong / 2))
        case Steps(values):
            return math.fsum(values)


def lsi(run: Run, constant: float) -> Rdp:
    """alpha S^2 / (2 c sigma^4 n^2) (1 - exp(-sigma^2 c sum eta_k)), S = 2 L in the paper."""
    rate = temperature(run) * constant
    return linear(squared_ratio(run) / (2 * rate) * decay(rate * total_time(run)))


def strongly_convex_slope(run: Run) -> Rdp:
    """alpha S^2 / (lambda sigma^2 n^2) (1 - exp(-lambda sum eta_k / 2)), S = 2 L in the paper."""
    strong = known(run.facts(), "strong")
    assert strong is not None
    return linear(squared_ratio(run) / strong.value * decay(strong.value * total_time(run) / 2))

"""What the bounds of Ryffel, Bach and Pointcheval (2022) share: DP-SGLD with any step sizes.

Their noisy stochastic gradient descent is theta - eta_k/m (sum of gradients over a batch of m records) +
sqrt(2 eta_k) sigma N(0, I), projected. With full batches the proofs hold for any neighbours (S the sensitivity under
the run's own adjacency; 2 L in the paper). For m < n they are false as published: docs/theorems/sgld.
"""

from __future__ import annotations

import math

from lastiterate.assumptions import known, known_noise, known_sensitivity, last_iterate_only, no_momentum, no_prox
from lastiterate.diffusion import gibbs_start, langevin_noise, log_sobolev, log_sobolev_constant, temperature
from lastiterate.geometry import short_step, strongly_convex
from lastiterate.renyi import Rdp
from lastiterate.run import Run
from lastiterate.schedules import Constant, InverseDecay, Steps
from lastiterate.theorems.langevin import decay, linear, squared_ratio

PAPER = "Ryffel, Bach, Pointcheval: Differential privacy guarantees for stochastic gradient Langevin dynamics, 2022 " \
        "(arXiv:2201.11980)"
ALGORITHM = (known_sensitivity, known_noise, langevin_noise, last_iterate_only, no_momentum, no_prox)
"""What their Algorithm 1 fixes, but for the batches."""
LSI = (*ALGORITHM, log_sobolev)
STRONGLY_CONVEX = (*ALGORITHM, strongly_convex, short_step, gibbs_start)
REFUTED = "Refuted: a record that is drawn rarely is seen clearly when it is drawn (docs/theorems/sgld)."


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


def lsi(run: Run) -> Rdp:
    """alpha S^2 / (2 c sigma^4 n^2) (1 - exp(-sigma^2 c sum eta_k)), S = 2 L in the paper."""
    found = log_sobolev_constant(run)
    assert found is not None
    rate = temperature(run) * found[0]
    return linear(squared_ratio(run) / (2 * rate) * decay(rate * total_time(run)))


def strongly_convex_slope(run: Run) -> Rdp:
    """alpha S^2 / (lambda sigma^2 n^2) (1 - exp(-lambda sum eta_k / 2)), S = 2 L in the paper."""
    strong = known(run.facts(), "strong")
    assert strong is not None
    return linear(squared_ratio(run) / strong.value * decay(strong.value * total_time(run) / 2))

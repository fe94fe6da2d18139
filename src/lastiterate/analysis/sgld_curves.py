"""What the bounds of Ryffel, Bach and Pointcheval (2022) share: DP-SGLD with any step sizes.

Their noisy stochastic gradient descent is theta - eta_k/m (sum of gradients over a batch of m records) +
sqrt(2 eta_k) sigma N(0, I), projected. With full batches the proofs hold for any neighbours (S the sensitivity under
the run's own adjacency; 2 L in the paper). For m < n they are false as published: docs/theorems/sgld.
"""

from __future__ import annotations

from lastiterate.analysis.langevin_curves import decay, linear, squared_ratio
from lastiterate.curves.renyi import Rdp
from lastiterate.run.facts import known
from lastiterate.run.run import Run


def lsi(run: Run, constant: float) -> Rdp:
    """alpha S^2 / (2 c sigma^4 n^2) (1 - exp(-sigma^2 c sum eta_k)), S = 2 L in the paper."""
    rate = run.temperature * constant
    return linear(squared_ratio(run) / (2 * rate) * decay(rate * run.total_time))


def strongly_convex_slope(run: Run) -> Rdp:
    """alpha S^2 / (lambda sigma^2 n^2) (1 - exp(-lambda sum eta_k / 2)), S = 2 L in the paper."""
    strong = known(run.facts(), "strong")
    assert strong is not None
    return linear(squared_ratio(run) / strong.value * decay(strong.value * run.total_time / 2))

"""Smooth losses, a bounded domain, sampled batches, as published. It is false for sampled batches.

epsilon(alpha) = alpha min(A T, (sqrt A + sqrt B)^2), A = 2 C^2/(n b std^2), B = (1 + eta M)^2 D^2/(2 eta^2 std^2): the
least value over beta of A/beta + B/(1 - beta). 2 C is the sensitivity of a sum, M the smoothness, D the diameter.

Source: Liang, Zhang, He, Wu and Xing 2025 (arXiv:2502.17772v4), Theorems 3.3 and 3.4, as the authors' released script
computes them (github.com/HauLiang/DPSGD-DC, plot_figure_1.py). A averages the divergence of a step over whether the
record was drawn, which is right for no order above 1: counterexample in docs/theorems/smooth-bounded-domain.
"""

from __future__ import annotations

import math

from lastiterate.analysis.langevin_curves import linear
from lastiterate.curves.renyi import Rdp
from lastiterate.run.facts import known
from lastiterate.run.run import Run
from lastiterate.theorems.assumptions.basic import (
    NOISY_STEPS,
    bounded_domain,
    constant_schedule,
    last_iterate_only,
    not_averaged,
    plain_updates,
    sampled_batches,
)
from lastiterate.theorems.assumptions.geometry import lipschitz_step
from lastiterate.theorems.theorem import Theorem


def _bound(run: Run) -> Rdp:
    sensitivity, facts = known(run.facts(), "sensitivity"), run.loss.facts()
    assert sensitivity is not None
    smooth = max(facts.fact("smooth"), facts.fact("weak_convexity"))  # of the gradients: a bound on |Hessian|
    eta, std = run.first_step, run.first_noise
    if std == 0:
        return linear(math.inf if sensitivity.value > 0 else 0.0)
    drawn = sensitivity.value / std * math.sqrt(1 / (2 * run.n * run.divisor))  # sqrt A
    apart = (1 + eta * smooth) * run.domain.diameter() / (math.sqrt(2) * eta * std)  # sqrt B
    return linear(min(drawn**2 * run.steps, (drawn + apart) ** 2))


THEOREM = Theorem(
    name="smooth-bounded-domain",
    kind="claimed",
    citation="Liang, Zhang, He, Wu, Xing: An improved privacy and utility analysis of differentially private SGD with "
             "bounded domain and smooth losses, AAAI 2026 (arXiv:2502.17772v4), Theorem 3.4 as in the released script "
             "(refuted in docs/theorems/smooth-bounded-domain)",
    formula="epsilon(alpha) = alpha min(A T, (sqrt A + sqrt B)^2), A = 2 C^2 / (n b std^2), "
            "B = ((1 + eta M) D / (eta std))^2 / 2",
    assumptions=(*NOISY_STEPS, last_iterate_only, sampled_batches, plain_updates, not_averaged, constant_schedule,
                 bounded_domain, lipschitz_step),
    bound=_bound,
    remark="Refuted at low noise: it averages divergences over the draw of the batch "
           "(docs/theorems/smooth-bounded-domain).",
)

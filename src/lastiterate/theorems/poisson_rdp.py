"""Poisson batches by Renyi divergences: the sum over steps of the Poisson-subsampled Gaussian's curve.

epsilon(alpha) = sum_t log(A_alpha(q, z_t)) / (alpha - 1),
A_alpha = E_{x ~ N(0, z^2)} [((1 - q) + q N(1, z^2)/N(0, z^2))^alpha].

Source: Mironov, Talwar, Zhang 2019 (arXiv:1908.10530), Theorems 4 and 5 and section 3.3, as dp-accounting computes it
at its default orders. Regime: any loss, any schedule; zero-out or add-remove. See docs/theorems/poisson.
"""

from __future__ import annotations

from lastiterate.analysis.sampled_steps import levels
from lastiterate.curves.curve import Curve
from lastiterate.curves.gdp import Gdp
from lastiterate.curves.sampled_renyi import SampledRenyi
from lastiterate.run.run import Run
from lastiterate.theorems.assumptions.basic import POISSON_STEPS
from lastiterate.theorems.theorem import Theorem


def _bound(run: Run) -> Curve:
    noises, rate = levels(run), run.batching.inclusion_probability(run.n)
    assert rate is not None
    if noises is None:
        return Gdp(0.0)
    return SampledRenyi(rate, tuple(z for z, _ in noises), tuple(count for _, count in noises))


THEOREM = Theorem(
    name="poisson-rdp",
    kind="upper",
    citation="Mironov, Talwar, Zhang: Renyi differential privacy of the sampled Gaussian mechanism (arXiv:1908.10530), "
             "Theorems 4 and 5, section 3.3, through dp-accounting (docs/theorems/poisson)",
    formula="epsilon(alpha) = sum_t log E[((1 - q) + q N(1, z_t^2)/N(0, z_t^2))^alpha] / (alpha - 1), "
            "z_t = noise_std_t q n / sensitivity",
    assumptions=POISSON_STEPS,
    bound=_bound,
    remark="Holds for any loss, with momentum, and when all iterates are released.",
)

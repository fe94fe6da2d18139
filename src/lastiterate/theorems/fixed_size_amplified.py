"""Batches of a fixed size drawn afresh, amplified by sampling, whatever is released.

A step draws b of n records, q = b/n, z_t = noise_std_t b / S with S the run's sensitivity. At e >= 0, with e^eps = 1 +
(e^e - 1)/q and delta_m the curve of the m-Gaussian mechanism, a step has q delta_{1/z_t}(eps) in both orders under
replace-one; under zero-out that is the order in which the record is added, and the other one, where a drawn record
takes the place of another, has the curve of q N(2/z_t, 1) + (1 - q) N(0, 1) against q N(1/z_t, 1) + (1 - q) N(0, 1),
which some losses attain. Pairs with these curves compose.

Source: docs/theorems/fixed-size (on Balle, Barthe, Gaboardi 2018, arXiv:1807.01647, Theorem 11); Zhu, Dong, Wang 2022
(arXiv:2106.08567), Theorem 10. Regime: any loss, any schedule (many different noises are rounded down to a few).
"""

from __future__ import annotations

from lastiterate.analysis.sampled_steps import levels
from lastiterate.curves.curve import Curve
from lastiterate.curves.fixed_size_composition import FixedSizeSteps
from lastiterate.curves.gdp import Gdp
from lastiterate.run.adjacency import records_moved
from lastiterate.run.run import Run
from lastiterate.theorems.assumptions.basic import (
    NOISY_STEPS,
    sampled_batches,
)
from lastiterate.theorems.theorem import Theorem


def _bound(run: Run) -> Curve:
    noises, rate = levels(run), run.batching.inclusion_probability(run.n)
    assert rate is not None
    if noises is None:
        return Gdp(0.0)
    replaced = records_moved(run.adjacency) == 2
    return FixedSizeSteps(rate, tuple(z for z, _ in noises), tuple(count for _, count in noises), replaced)


THEOREM = Theorem(
    name="fixed-size-amplified",
    kind="upper",
    citation="Balle, Barthe, Gaboardi: Privacy amplification by subsampling, NeurIPS 2018 (arXiv:1807.01647), "
             "Theorem 11; sharpened and composed in docs/theorems/fixed-size",
    formula="a step at e >= 0: q delta_{1/z}(log(1 + (e^e - 1)/q)); zero-out, record removed: that of q N(2/z, "
            "1) + (1 - q) N(0, 1) against q N(1/z, 1) + (1 - q) N(0, 1); z = noise_std b / sensitivity; dominating "
            "pairs of all steps composed",
    assumptions=(*NOISY_STEPS, sampled_batches),
    bound=_bound,
    remark="Holds for any loss, with momentum, and when all iterates are released.",
)

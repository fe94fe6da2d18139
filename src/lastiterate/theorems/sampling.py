"""Amplification by sampling, whatever is released."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from lastiterate.analysis.restarted_sampling import allocation_passes, levels, poisson_steps
from lastiterate.analysis.shifts import allowance
from lastiterate.curves.allocation import SecretBins
from lastiterate.curves.curve import Curve
from lastiterate.curves.fixed_size import FixedSizeSteps
from lastiterate.curves.gaussian import Gdp
from lastiterate.curves.renyi import SampledRenyi
from lastiterate.run.adjacency import records_moved
from lastiterate.run.batching import BallsInBins, FixedSize, Poisson, RandomAllocation
from lastiterate.run.facts import require_fact
from lastiterate.run.run import Run
from lastiterate.theorems.assumptions import (
    NOISY_STEPS,
    POISSON_STEPS,
    fresh_blocks,
    not_replace_one,
    sampled_batches,
    secret_bins,
)
from lastiterate.theorems.theorem import EXAMPLE, Theorem, register


def strengths(run: Run) -> tuple[tuple[float, int], ...]:
    """(a, bins of this strength): the root of the sum of squared signal-to-noise ratios of a bin's
    steps."""
    sensitivity = require_fact(run.facts(), "sensitivity")
    unit, up = sensitivity.value / run.divisor, 1 + allowance(run.steps)
    if unit == 0:
        return ((0.0, run.blocks),)
    if run.constant:
        std = run.first_noise
        passes, more = divmod(run.steps, run.blocks)
        groups = ((passes, run.blocks - more), (passes + 1, more))
        return tuple(
            (math.sqrt(used) * unit / std * up if std > 0 else math.inf if used else 0.0, count)
            for used, count in groups
            if count
        )
    with np.errstate(divide="ignore"):
        charges = (unit / run.noise_stds) ** 2
    each = np.bincount(np.arange(run.steps) % run.blocks, weights=charges, minlength=run.blocks)
    values, counts = np.unique(np.sqrt(each) * up, return_counts=True)
    return tuple(zip(values.tolist(), counts.tolist(), strict=True))


def _bound_balls_in_bins_pld(run: Run) -> Curve:
    bins = strengths(run)
    if max(a for a, _ in bins) == 0:
        return Gdp(0.0)
    return SecretBins(tuple(a for a, _ in bins), tuple(count for _, count in bins))


BALLS_IN_BINS_PLD = register(
    Theorem(
        name="balls-in-bins-pld",
        kind="upper",
        family="sampling",
        statement="""
Secret independent bins by their exact pair, whatever is released: the record hides among the bins.

P = (1/l) sum_j N(a_j e_j, I) against Q = N(0, I), both orders, a_j^2 = sum over the steps of bin j
of (sensitivity / (b noise_std_t))^2. The likelihood ratio is the mean of l independent lognormal
factors; its distribution is computed on grids rounded to the safe side.

Source: docs/theorems/balls-in-bins. Regime: any loss, any schedule (many different noises are
rounded down to a few); zero-out. Attained by linear losses when all iterates are released.""",
        citation="this project, docs/theorems/balls-in-bins",
        formula="delta(eps) = H_eps((1/l) sum_j N(a_j e_j, I) || N(0, I)), the larger of both "
        "orders, a_j^2 = sum over the "
        "steps of bin j of (sensitivity / (b noise_std))^2",
        latex=r"\delta(\epsilon) = H_\epsilon\left(\frac{1}{l} \sum_j N(a_j e_j, I) \, \| \, N(0, "
        r"I)\right), \text{ the larger of both orders}, \quad a_j^2 = \sum_{\text{steps of "
        r"bin } j} \left(\frac{\text{sensitivity}}{b \, \text{noise_std}}\right)^2",
        assumptions=(*NOISY_STEPS, secret_bins, not_replace_one),
        bound=_bound_balls_in_bins_pld,
        example=replace(EXAMPLE, batching=BallsInBins(100)),
        remark="Holds for any loss, with momentum, and when all iterates are released.",
    )
)


def _bound_fixed_size_amplified(run: Run) -> Curve:
    noises, rate = levels(run), run.sampling_rate
    if noises is None:
        return Gdp(0.0)
    replaced = records_moved(run.adjacency) == 2
    return FixedSizeSteps(
        rate, tuple(z for z, _ in noises), tuple(count for _, count in noises), replaced
    )


FIXED_SIZE_AMPLIFIED = register(
    Theorem(
        name="fixed-size-amplified",
        kind="upper",
        family="sampling",
        statement="""
Batches of a fixed size, drawn again at every step, amplified by sampling, whatever is released.

A step draws b of n records, q = b/n, z_t = noise_std_t b / S with S the run's sensitivity. At e >=
0, with e^eps = 1 + (e^e - 1)/q and delta_m the curve of the m-Gaussian mechanism, a step has q
delta_{1/z_t}(eps) in both orders under replace-one; under zero-out that is the order in which the
record is added, and the other one, where a drawn record replaces another, has the curve of q
N(2/z_t, 1) + (1 - q) N(0, 1) against q N(1/z_t, 1) + (1 - q) N(0, 1), which some losses attain.
Pairs with these curves compose.

Source: docs/theorems/fixed-size (on Balle, Barthe, Gaboardi 2018, arXiv:1807.01647, Theorem 11);
Zhu, Dong, Wang 2022 (arXiv:2106.08567), Theorem 10. Regime: any loss, any schedule (many different
noises are rounded down to a few).""",
        citation="Balle, Barthe, Gaboardi: Privacy amplification by subsampling, NeurIPS 2018 "
        "(arXiv:1807.01647), "
        "Theorem 11; sharpened and composed in docs/theorems/fixed-size",
        formula="a step at e >= 0: q delta_{1/z}(log(1 + (e^e - 1)/q)); zero-out, record removed: "
        "that of q N(2/z, "
        "1) + (1 - q) N(0, 1) against q N(1/z, 1) + (1 - q) N(0, 1); z = noise_std b / "
        "sensitivity; dominating "
        "pairs of all steps composed",
        latex=r"\text{a step at } e \ge 0: \ q \, \delta_{1/z}(\log(1 + (e^e - 1)/q)); \quad "
        r"\text{zero-out, record removed}: \ \text{that of } q N(2/z, 1) + (1 - q) N(0, 1) "
        r"\text{ against } q N(1/z, 1) + (1 - q) N(0, 1); \quad z = \frac{\text{noise_std} "
        r"\, b}{\text{sensitivity}}; \text{ dominating pairs of all steps composed}",
        assumptions=(*NOISY_STEPS, sampled_batches),
        bound=_bound_fixed_size_amplified,
        example=replace(EXAMPLE, batching=FixedSize(100)),
        remark="Holds for any loss, with momentum, and when all iterates are released.",
    )
)


POISSON_PLD = register(
    Theorem(
        name="poisson-pld",
        kind="upper",
        family="sampling",
        statement="""
Poisson batches by privacy loss distributions: the numerically exact composition of the dominating
pair.

delta(eps) = H_eps(prod_t P_t || prod_t Q_t), P_t = (1 - q) N(0, z_t^2) + q N(1, z_t^2), Q_t = N(0,
z_t^2), the larger of both orders, on a grid of privacy losses rounded to the safe side.

Source: Zhu, Dong, Wang 2022 (arXiv:2106.08567), Theorems 10 and 11; Doroshenko, Ghazi, Kamath,
Kumar, Manurangsi 2022 (arXiv:2207.04380) for the grid, as dp-accounting computes it. Regime: any
loss, any schedule (many different noises are rounded down to a few); zero-out or add-remove. See
docs/theorems/poisson.""",
        citation="Zhu, Dong, Wang: Optimal accounting of differential privacy via characteristic "
        "function, AISTATS 2022 "
        "(arXiv:2106.08567), Theorems 10 and 11, through dp-accounting (docs/theorems/poisson)",
        formula="delta(eps) = H_eps(prod_t (1 - q) N(0, z_t^2) + q N(1, z_t^2) || prod_t N(0, "
        "z_t^2)), the larger of both "
        "orders, z_t = noise_std_t q n / sensitivity",
        latex=r"\delta(\epsilon) = H_\epsilon\left(\prod_t (1 - q) N(0, z_t^2) + q N(1, z_t^2) \, "
        r"\| \, \prod_t N(0, z_t^2)\right), \text{ the larger of both orders}, \quad z_t = "
        r"\frac{\text{noise_std}_t \, q n}{\text{sensitivity}}",
        assumptions=POISSON_STEPS,
        bound=poisson_steps,
        example=replace(EXAMPLE, batching=Poisson(0.1)),
        remark="Holds for any loss, with momentum, and when all iterates are released.",
    )
)


def _bound_poisson_rdp(run: Run) -> Curve:
    noises, rate = levels(run), run.sampling_rate
    if noises is None:
        return Gdp(0.0)
    return SampledRenyi(rate, tuple(z for z, _ in noises), tuple(count for _, count in noises))


POISSON_RDP = register(
    Theorem(
        name="poisson-rdp",
        kind="upper",
        family="sampling",
        statement="""
Poisson batches by Renyi divergences: the sum over steps of the Poisson-subsampled Gaussian's curve.

epsilon(alpha) = sum_t log(A_alpha(q, z_t)) / (alpha - 1),
A_alpha = E_{x ~ N(0, z^2)} [((1 - q) + q N(1, z^2)/N(0, z^2))^alpha].

Source: Mironov, Talwar, Zhang 2019 (arXiv:1908.10530), Theorems 4 and 5 and section 3.3, as
dp-accounting computes it at its default orders. Regime: any loss, any schedule; zero-out or
add-remove. See docs/theorems/poisson.""",
        citation="Mironov, Talwar, Zhang: Renyi differential privacy of the sampled Gaussian "
        "mechanism (arXiv:1908.10530), "
        "Theorems 4 and 5, section 3.3, through dp-accounting (docs/theorems/poisson)",
        formula="epsilon(alpha) = sum_t log E[((1 - q) + q N(1, z_t^2)/N(0, z_t^2))^alpha] / "
        "(alpha - 1), "
        "z_t = noise_std_t q n / sensitivity",
        latex=r"\epsilon(\alpha) = \sum_t \frac{\log E\left[\left((1 - q) + q \frac{N(1, "
        r"z_t^2)}{N(0, z_t^2)}\right)^\alpha\right]}{\alpha - 1}, \quad z_t = "
        r"\frac{\text{noise_std}_t \, q n}{\text{sensitivity}}",
        assumptions=POISSON_STEPS,
        bound=_bound_poisson_rdp,
        example=replace(EXAMPLE, batching=Poisson(0.1)),
        remark="Holds for any loss, with momentum, and when all iterates are released.",
    )
)


RANDOM_ALLOCATION_PLD = register(
    Theorem(
        name="random-allocation-pld",
        kind="upper",
        family="sampling",
        statement="""
Secret blocks drawn again in every pass, by the exact pairs of single passes, whatever is released.

delta(eps) = H_eps(prod_e P_e || prod_e Q_e), the larger of both orders, P_e = (1/l) sum_j N(e_j /
z_e, I) against Q_e = N(0, I), z_e the least noise multiplier of pass e. A pass that ends after r of
its l blocks uses the record with probability r/l. Likelihood ratios and losses are rounded on grids
with their means preserved.

Source: docs/theorems/random-allocation. Regime: any loss, any schedule (many different noises are
rounded down to a few); zero-out or add-remove. In every case computed it needs no more noise than
Poisson batches of that expected size.""",
        citation="this project, docs/theorems/random-allocation (with Zhu, Dong, Wang 2022, "
        "Theorem 10; Feldman, Shenfeld "
        "2026, arXiv:2602.17284, on the same scheme)",
        formula="delta(eps) = H_eps(prod_e (1/l) sum_j N(e_j / z_e, I) || prod_e N(0, I)), the "
        "larger of both orders, "
        "z_e = the least noise_std of pass e times b / sensitivity",
        latex=r"\delta(\epsilon) = H_\epsilon\left(\prod_e \frac{1}{l} \sum_j N(e_j / z_e, I) \, "
        r"\| \, \prod_e N(0, I)\right), \text{ the larger of both orders}, \quad z_e = "
        r"\frac{b}{\text{sensitivity}} \times \text{the least noise_std of pass } e",
        assumptions=(*NOISY_STEPS, fresh_blocks, not_replace_one),
        bound=allocation_passes,
        example=replace(EXAMPLE, batching=RandomAllocation(100)),
        remark="Holds for any loss, with momentum, and when all iterates are released.",
    )
)

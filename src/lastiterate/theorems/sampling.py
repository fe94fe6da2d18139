"""Amplification by sampling: whatever is released, and for a hidden last iterate."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from lastiterate.analysis.delayed_shifts import (
    search_averages,
    search_block_intervals,
    search_draw_intervals,
)
from lastiterate.analysis.restarted_sampling import (
    allocation_passes,
    distances_of_draws,
    distances_of_passes,
    levels,
    poisson_steps,
    search_restarts,
    search_subset_restarts,
)
from lastiterate.analysis.shifts import allowance
from lastiterate.curves.allocation import SecretBins
from lastiterate.curves.curve import Curve
from lastiterate.curves.gaussian import Gdp
from lastiterate.curves.renyi import SampledRenyi
from lastiterate.curves.sampled_batches import FixedSizeSteps
from lastiterate.run.adjacency import records_moved
from lastiterate.run.batching import BallsInBins, FixedSize, Poisson, RandomAllocation
from lastiterate.run.facts import require_fact
from lastiterate.run.run import Run
from lastiterate.theorems.assumptions import (
    NOISY_STEPS,
    POISSON_STEPS,
    counted_records,
    fresh_blocks,
    last_iterate_only,
    lipschitz_step,
    no_prox,
    not_averaged,
    not_replace_one,
    plain_updates,
    sampled_batches,
    secret_bins,
    unmeasured_smoothness,
)
from lastiterate.theorems.theorem import EXAMPLE, Theorem, register

# Sampled batches and a hidden last iterate: restarts and delayed shifts.

DELAYED_SHIFTS_ALLOCATED = register(
    Theorem(
        name="delayed-shifts-allocated",
        kind="upper",
        family="last iterate",
        statement="""
Secret blocks drawn again in every pass, the last iterate: the noise of later steps hides what a
record adds, and its blocks stay secret.

The passes are cut into intervals J_1, ..., J_m, the last one a single step. With R_t the product of
the later Lipschitz constants and X_i = sum over J_i of v_t R_t^2, a pass with the intervals J_a,
..., J_b has the pair (1/l) sum over its steps t in J_i of N(s_t R_t / sqrt(X_{i+1}) e_i, I) against
N(0, I); the very last step is hidden by itself. delta is at most that of all passes' pairs,
composed, plus the probability that blocks are not of usual size. The best of several choices.

Source: docs/theorems/delayed-shifts. Regime: any smooth loss; it wins where noise is little or
steps contract.""",
        citation="this project, docs/theorems/delayed-shifts (on Bok, Su, Altschuler 2024; "
        "Mueller, Scarsini 2001)",
        formula="delta(eps) = H_eps(prod_e (1/l) sum_t N(s_t R_t / sqrt(X_{i+1}) e_i, I) || prod_e "
        "N(0, I)) + "
        "P[unusual blocks], X_i = sum of v_t R_t^2 over interval i",
        latex=r"\delta(\epsilon) = H_\epsilon\left(\prod_e \frac{1}{l} \sum_t N(s_t R_t / "
        r"\sqrt{X_{i+1}} \, e_i, I) \, \| \, \prod_e N(0, I)\right) + P[\text{unusual "
        r"blocks}], \quad X_i = \sum_{t \in J_i} v_t R_t^2",
        assumptions=(
            *NOISY_STEPS,
            last_iterate_only,
            fresh_blocks,
            counted_records,
            not_replace_one,
            plain_updates,
            not_averaged,
            no_prox,
            lipschitz_step,
        ),
        bound=search_block_intervals,
        example=replace(EXAMPLE, batching=RandomAllocation(100)),
    )
)


DELAYED_SHIFTS_FIXED_SIZE = register(
    Theorem(
        name="delayed-shifts-fixed-size",
        kind="upper",
        family="last iterate",
        statement="""
Batches of a fixed size, the last iterate: given the draws, what they add is hidden by the noise of
later steps.

The steps are cut into intervals J_1, ..., J_m, the last one a single step. With R_t the product of
the later Lipschitz constants, S_i = sum over J_i of s_t R_t B_t, B_t = 1 with probability b/n, and
X_i = sum over J_i of v_t R_t^2: delta(eps) is at most the mean over the draws of delta_mu(eps),
mu^2 = sum over i < m of S_{i-1}^2 / X_i, and (S_{m-1} + S_m)^2 / X_m. The best of several choices.

Source: docs/theorems/delayed-shifts. Regime: any smooth loss; it wins where noise is little and
steps are many, since draws that are published need not be compared with another record that
replaces it.""",
        citation="this project, docs/theorems/delayed-shifts (on Bok, Su, Altschuler 2024)",
        formula="delta(eps) = E delta_mu(eps), mu^2 = sum_i S_{i-1}^2 / X_i, S_i = sum of s_t R_t "
        "B_t, X_i = sum of "
        "v_t R_t^2 over interval i",
        latex=r"\delta(\epsilon) = E \, \delta_\mu(\epsilon), \quad \mu^2 = \sum_i "
        r"\frac{S_{i-1}^2}{X_i}, \quad S_i = \sum_{t \in J_i} s_t R_t B_t, \quad X_i = "
        r"\sum_{t \in J_i} v_t R_t^2, \quad R_t = \prod_{u > t} c_u",
        assumptions=(
            *NOISY_STEPS,
            sampled_batches,
            last_iterate_only,
            plain_updates,
            not_averaged,
            no_prox,
            lipschitz_step,
            unmeasured_smoothness,
        ),
        bound=search_averages,
        example=replace(EXAMPLE, batching=FixedSize(100)),
    )
)


DELAYED_SHIFTS_POISSON = register(
    Theorem(
        name="delayed-shifts-poisson",
        kind="upper",
        family="last iterate",
        statement="""
Poisson batches, the last iterate: what a drawn record adds is hidden by the noise of later steps,
its draws stay secret.

The steps are cut into intervals J_1, ..., J_m, the last one a single step. With R_t the product of
the later Lipschitz constants, S_i = sum over J_i of s_t R_t B_t, B_t = 1 with probability q, and
X_i = sum over J_i of v_t R_t^2: delta is at most that of the pairs E N(S_{i-1} / sqrt(X_i), 1)
against N(0, 1), i < m, and E N((S_{m-1} + S_m) / sqrt(X_m), 1) against N(0, 1), composed, plus the
probability that batches are not of usual size. The best of several choices.

Source: docs/theorems/delayed-shifts. Regime: any smooth loss; it wins over many steps and where
steps contract.""",
        citation="this project, docs/theorems/delayed-shifts (on Bok, Su, Altschuler 2024; "
        "Mueller, Scarsini 2001)",
        formula="delta(eps) = H_eps(prod_i E N(S_{i-1} / sqrt(X_i), 1) || prod_i N(0, 1)) + "
        "P[unusual draws], "
        "S_i = sum of s_t R_t B_t, X_i = sum of v_t R_t^2 over interval i",
        latex=r"\delta(\epsilon) = H_\epsilon\left(\prod_i E \, N(S_{i-1} / \sqrt{X_i}, 1) \, \| "
        r"\, \prod_i N(0, 1)\right) + P[\text{unusual draws}], \quad S_i = \sum_{t \in J_i} "
        r"s_t R_t B_t, \quad X_i = \sum_{t \in J_i} v_t R_t^2, \quad R_t = \prod_{u > t} c_u",
        assumptions=(
            *POISSON_STEPS,
            last_iterate_only,
            counted_records,
            plain_updates,
            not_averaged,
            no_prox,
            lipschitz_step,
        ),
        bound=search_draw_intervals,
        example=replace(EXAMPLE, batching=Poisson(0.1)),
    )
)


def _bound_restarted_allocation_pld(run: Run) -> Curve:
    return search_restarts(
        run,
        chance=1 / run.blocks,
        every=run.blocks,
        distances=distances_of_passes(run.blocks),
        curve=lambda run, at: allocation_passes(run, at.first, at.share, at.mu),
    )


RESTARTED_ALLOCATION_PLD = register(
    Theorem(
        name="restarted-allocation-pld",
        kind="upper",
        family="sampling",
        statement="""
Secret blocks drawn again in every pass, the last iterate: early passes contract, late ones are
sampled.

For a restart after pass r and a share beta in (0, 1): delta(eps) is at most that of the later
passes by their exact pairs with noise sqrt(beta) nu, composed with a Gaussian mechanism mu, mu^2 =
z_r^2 prod c^2 / ((1 - beta) sum_t v_t prod_(u > t) c_u^2), z_r = the largest distance that the
record causes in the passes before (or the diameter of the domain), plus the probability that blocks
are not of usual size. The best of several r, beta and sizes; r = 0 is random-allocation-pld.

Source: docs/theorems/restarted-sampling. Regime: any smooth loss; it wins where steps contract or
the domain is small.""",
        citation="this project, docs/theorems/restarted-sampling (on Bok, Su, Altschuler 2024, and "
        "docs/theorems/random-allocation)",
        formula="delta(eps) = H_eps(prod_(e > r) (1/l) sum_j N(e_j / (z_e sqrt(beta)), I) x N(mu, "
        "1) || "
        "prod_e N(0, I) x N(0, 1)) + P[unusual blocks]",
        latex=r"\delta(\epsilon) = H_\epsilon\left(\prod_{e > r} \frac{1}{l} \sum_j N(e_j / (z_e "
        r"\sqrt{\beta}), I) \times N(\mu, 1) \, \| \, \prod_e N(0, I) \times N(0, 1)\right) "
        r"+ P[\text{unusual blocks}]",
        assumptions=(
            *NOISY_STEPS,
            last_iterate_only,
            fresh_blocks,
            counted_records,
            not_replace_one,
            plain_updates,
            not_averaged,
            no_prox,
            lipschitz_step,
        ),
        bound=_bound_restarted_allocation_pld,
        example=replace(EXAMPLE, batching=RandomAllocation(100)),
    )
)


RESTARTED_FIXED_SIZE = register(
    Theorem(
        name="restarted-fixed-size",
        kind="upper",
        family="last iterate",
        statement="""
Batches of a fixed size, the last iterate: early steps contract, late ones are sampled.

For a restart at step r and a share beta in (0, 1): delta(eps) is at most that of the later steps of
fixed-size-amplified with noise sqrt(beta) z_t / (1 + M k_t zeta_t / S), composed with a Gaussian
mechanism mu, mu^2 = zeta_r^2 prod c^2 / ((1 - beta) sum_t v_t prod_(u > t) c_u^2). zeta_r = a bound
on the distance that the record causes before (Chernoff over its draws, or the diameter of the
domain), M = smoothness of one record's term, k_t zeta_t = the part of the distance that shift t
closes (replace-one: 2 zeta_t + 2 k_t zeta_t). The best of several r, beta and probabilities; r = 0
is fixed-size-amplified.

Source: docs/theorems/restarted-fixed-size. It holds where Theorem 3.2 of Ryffel, Bach, Pointcheval
2022 does not. Regime: any smooth loss; it wins where steps contract or the domain is small.""",
        citation="this project, docs/theorems/restarted-fixed-size (on Bok, Su, Altschuler 2024, "
        "and Balle, Barthe, "
        "Gaboardi 2018)",
        formula="fixed-size-amplified's pairs of steps t > r at noise sqrt(beta) z_t / (1 + M k_t "
        "zeta_t / S), x N(mu, 1) "
        "against N(0, 1); mu^2 = zeta_r^2 prod c^2 / ((1 - beta) sum v_t prod c^2); + P[unusual "
        "draws]",
        latex=r"\text{pairs of fixed-size-amplified of steps } t > r \text{ at noise } "
        r"\frac{\sqrt{\beta} z_t}{1 + M k_t \zeta_t / S}, \ \times N(\mu, 1) \text{ against "
        r"} N(0, 1); \quad \mu^2 = \frac{\zeta_r^2 \prod c^2}{(1 - \beta) \sum v_t \prod "
        r"c^2}; \quad + P[\text{unusual draws}]",
        assumptions=(
            *NOISY_STEPS,
            sampled_batches,
            last_iterate_only,
            plain_updates,
            not_averaged,
            no_prox,
            lipschitz_step,
            unmeasured_smoothness,
        ),
        bound=search_subset_restarts,
        example=replace(EXAMPLE, batching=FixedSize(100)),
    )
)


def _bound_restarted_poisson_pld(run: Run) -> Curve:
    rate = run.sampling_rate
    return search_restarts(
        run,
        chance=rate,
        every=1,
        distances=distances_of_draws(rate),
        curve=lambda run, at: poisson_steps(run, at.first, at.share, at.mu),
    )


RESTARTED_POISSON_PLD = register(
    Theorem(
        name="restarted-poisson-pld",
        kind="upper",
        family="sampling",
        statement="""
Poisson batches, the last iterate: early steps contract, late ones are sampled.

For a restart at step r and a share beta in (0, 1): delta(eps) is at most that of the later sampled
steps with noise sqrt(beta) nu, composed with a Gaussian mechanism mu, mu^2 = z_r^2 prod c^2 / ((1 -
beta) sum_t v_t prod_(u > t) c_u^2), z_r = a bound on the distance that the record causes before
(Chernoff over its draws, or the diameter of the domain), plus the probabilities that it is farther
and that batches are not of usual size. The best of several r, beta and probabilities; r = 0 is
poisson-pld.

Source: docs/theorems/restarted-sampling. Regime: any smooth loss; it wins where steps contract or
the domain is small.""",
        citation="this project, docs/theorems/restarted-sampling (on Bok, Su, Altschuler 2024, and "
        "Zhu, Dong, Wang 2022)",
        formula="delta(eps) = H_eps(prod_(t > r) (1 - q) N(0, beta z_t^2) + q N(1, beta z_t^2) x "
        "N(mu, 1) || "
        "prod_t N(0, beta z_t^2) x N(0, 1)) + P[unusual draws]",
        latex=r"\delta(\epsilon) = H_\epsilon\left(\prod_{t > r} (1 - q) N(0, \beta z_t^2) + q "
        r"N(1, \beta z_t^2) \times N(\mu, 1) \, \| \, \prod_t N(0, \beta z_t^2) \times N(0, "
        r"1)\right) + P[\text{unusual draws}]",
        assumptions=(
            *POISSON_STEPS,
            last_iterate_only,
            counted_records,
            plain_updates,
            not_averaged,
            no_prox,
            lipschitz_step,
        ),
        bound=_bound_restarted_poisson_pld,
        example=replace(EXAMPLE, batching=Poisson(0.1)),
    )
)


# Amplification by sampling, whatever is released.


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

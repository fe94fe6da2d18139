"""Sampled batches and a hidden last iterate: restarts and delayed shifts."""

from __future__ import annotations

from dataclasses import replace

from lastiterate.analysis.delayed_shifts import (
    search_averages,
    search_block_intervals,
    search_draw_intervals,
)
from lastiterate.analysis.restarted_sampling import (
    allocation_passes,
    distances_of_draws,
    distances_of_passes,
    poisson_steps,
    search_restarts,
    search_subset_restarts,
)
from lastiterate.curves.curve import Curve
from lastiterate.run.batching import FixedSize, Poisson, RandomAllocation
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
    unmeasured_smoothness,
)
from lastiterate.theorems.theorem import EXAMPLE, Theorem, register

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

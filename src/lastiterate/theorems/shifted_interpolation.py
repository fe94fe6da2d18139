"""The last iterate by the optimal allocation of shifts."""

from __future__ import annotations

from dataclasses import replace

from lastiterate.analysis.block_positions import merge_places, place_mus, place_weights
from lastiterate.analysis.secret_blocks import (
    mean_over_bins,
    mean_over_fresh_blocks,
    mean_over_fresh_places,
)
from lastiterate.curves.gaussian import Gdp, GdpMixture
from lastiterate.run.batching import BallsInBins, Permuted, RandomAllocation, Reshuffled
from lastiterate.run.run import Run
from lastiterate.theorems.assumptions import (
    NOISY_STEPS,
    counted_records,
    fresh_blocks,
    fresh_permutations,
    last_iterate_only,
    lipschitz_step,
    not_averaged,
    plain_updates,
    public_order,
    secret_bins,
    secret_blocks,
)
from lastiterate.theorems.theorem import EXAMPLE, Theorem, register

SHIFTED_INTERPOLATION = register(
    Theorem(
        name="shifted-interpolation",
        kind="upper",
        family="last iterate",
        statement="""
The last iterate by the optimal allocation of shifts, for any schedule, full batch or blocks in
public order.

z_0 = 0, z_t = c_t z_{t-1} + s_t - a_t >= 0, z_T = 0 (or restart at z_tau = diameter of the domain):
mu^2 = min sum_t a_t^2 / v_t, with c_t the Lipschitz constant of step t, s_t = eta_t sensitivity / b
where the record participates, v_t = (eta_t noise_std_t)^2; the worst position of the record.

Source: Bok, Su, Altschuler 2024 (arXiv:2403.00278), shifted interpolation; for variable steps,
noises and Lipschitz constants and its exact optimum docs/theorems/shifted-interpolation. Regime:
any step; beyond 2/smooth maps expand.""",
        citation="Bok, Su, Altschuler: Shifted interpolation for differential privacy, ICML 2024 "
        "(arXiv:2403.00278), "
        "generalised in docs/theorems/shifted-interpolation",
        formula="mu^2 = min sum_t a_t^2 / v_t over z_t = c_t z_{t-1} + s_t - a_t >= 0, z_0 = 0 (or "
        "restart at D), z_T = 0",
        latex=r"\mu^2 = \min \sum_t \frac{a_t^2}{v_t} \text{ over } z_t = c_t z_{t-1} + s_t - a_t "
        r"\ge 0, \ z_0 = 0 \text{ (or restart at } D \text{)}, \ z_T = 0",
        assumptions=(
            *NOISY_STEPS,
            last_iterate_only,
            public_order,
            plain_updates,
            not_averaged,
            lipschitz_step,
        ),
        bound=lambda run: Gdp(float(place_mus(run).max())),
        example=EXAMPLE,
    )
)


SHIFTED_INTERPOLATION_ALLOCATED = register(
    Theorem(
        name="shifted-interpolation-allocated",
        kind="upper",
        family="last iterate",
        statement="""
Secret blocks drawn again in every pass, the last iterate: an average over the record's positions,
given full blocks.

delta(eps) <= sum over groups g of positions P[g] delta_{mu_g}(eps) + P[some block of some pass
holds more other records than m, or fewer than k] in both directions, mu_g the optimal shift
allocation for the latest positions of the group with the curvature of k to m records over the
public divisor: condition on everybody's draws in all passes, then joint convexity. The best of
several (k, m).

Source: docs/theorems/random-allocation. Nothing is said about releasing all iterates: that is
random-allocation-pld.""",
        citation="this project, docs/theorems/random-allocation (on Bok, Su, Altschuler 2024)",
        formula="delta(eps) <= sum_g P[g] delta_{mu_g}(eps) + l E P[Bin(n - 1, 1/l) > m], mu_g as "
        "for reshuffled blocks "
        "with at most m others in any block of any of E passes",
        latex=r"\delta(\epsilon) \le \sum_g P[g] \, \delta_{\mu_g}(\epsilon) + l E \, "
        r"P[\text{Bin}(n - 1, 1/l) > m], \quad \mu_g \text{ as for reshuffled blocks with at "
        r"most } m \text{ others in any block of any of } E \text{ passes}",
        assumptions=(
            *NOISY_STEPS,
            last_iterate_only,
            fresh_blocks,
            counted_records,
            plain_updates,
            not_averaged,
            lipschitz_step,
        ),
        bound=mean_over_fresh_blocks,
        example=replace(EXAMPLE, batching=RandomAllocation(100)),
    )
)


SHIFTED_INTERPOLATION_BINS = register(
    Theorem(
        name="shifted-interpolation-bins",
        kind="upper",
        family="last iterate",
        statement="""
Secret independent bins, the last iterate: the record's bin is averaged over, given how full the
bins are.

delta(eps) <= (1/l) sum_j delta_{mu_j}(eps) + P[some bin holds more records than m, or fewer than k]
in both directions, mu_j the optimal shift allocation for a record in bin j whose steps have the
curvature of k to m records over the public divisor: condition on everybody's bin, then joint
convexity of the hockey-stick divergence. The best of several (k, m).

Source: docs/theorems/balls-in-bins. Nothing is said about releasing all iterates: that is
balls-in-bins-pld.""",
        citation="this project, docs/theorems/balls-in-bins (on Bok, Su, Altschuler 2024)",
        formula="delta(eps) <= (1/l) sum_j delta_{mu_j}(eps) + l P[Bin(n - 1, 1/l) > m], mu_j by "
        "shifted-interpolation "
        "with the record in bin j and at most m others in any bin",
        latex=r"\delta(\epsilon) \le \frac{1}{l} \sum_j \delta_{\mu_j}(\epsilon) + l \, "
        r"P[\text{Bin}(n - 1, 1/l) > m], \quad \mu_j \text{ by shifted-interpolation with "
        r"the record in bin } j \text{ and at most } m \text{ others in any bin}",
        assumptions=(
            *NOISY_STEPS,
            last_iterate_only,
            secret_bins,
            plain_updates,
            not_averaged,
            lipschitz_step,
        ),
        bound=mean_over_bins,
        example=replace(EXAMPLE, batching=BallsInBins(100)),
    )
)


def _bound_shifted_interpolation_permuted(run: Run) -> GdpMixture:
    weights, mus = merge_places(place_weights(run.batching, run.n), place_mus(run), up=True)
    return GdpMixture(tuple(weights.tolist()), tuple(mus.tolist()))


SHIFTED_INTERPOLATION_PERMUTED = register(
    Theorem(
        name="shifted-interpolation-permuted",
        kind="upper",
        family="last iterate",
        statement="""
One secret permutation, then blocks in order, the last iterate: an average over the record's
position.

delta(eps) <= sum_j (n_j / n) delta_{mu_j}(eps) in both directions, mu_j the optimal shift
allocation for a record in block j (n_j records): condition on the position, then joint convexity of
the hockey-stick divergence.

Source: docs/theorems/shifted-interpolation-permuted. It does not cover releasing all iterates: the
position can then be seen.""",
        citation="this project, docs/theorems/shifted-interpolation-permuted (on Bok, Su, "
        "Altschuler 2024)",
        formula="delta(eps) <= sum_j (n_j / n) delta_{mu_j}(eps), mu_j by shifted-interpolation "
        "with the record in block j",
        latex=r"\delta(\epsilon) \le \sum_j \frac{n_j}{n} \, \delta_{\mu_j}(\epsilon), \quad \mu_j "
        r"\text{ by shifted-interpolation with the record in block } j",
        assumptions=(
            *NOISY_STEPS,
            last_iterate_only,
            secret_blocks,
            plain_updates,
            not_averaged,
            lipschitz_step,
        ),
        bound=_bound_shifted_interpolation_permuted,
        example=replace(EXAMPLE, batching=Permuted(100)),
    )
)


SHIFTED_INTERPOLATION_RESHUFFLED = register(
    Theorem(
        name="shifted-interpolation-reshuffled",
        kind="upper",
        family="last iterate",
        statement="""
A fresh secret permutation in every pass, the last iterate: an average over the record's positions.

delta(eps) <= sum over groups g of positions P[g] delta_{mu_g}(eps) in both directions, mu_g the
optimal shift allocation for the latest positions of the group: condition on the positions, then
joint convexity, and delta_mu grows with mu, mu with later positions.

Source: docs/theorems/shifted-interpolation-reshuffled. Nothing is said about releasing all
iterates.""",
        citation="this project, docs/theorems/shifted-interpolation-reshuffled (on Bok, Su, "
        "Altschuler 2024)",
        formula="delta(eps) <= sum_g P[g] delta_{mu_g}(eps), mu_g by shifted-interpolation with "
        "the record at the latest "
        "places of group g of the last passes, and at the end of every earlier pass",
        latex=r"\delta(\epsilon) \le \sum_g P[g] \, \delta_{\mu_g}(\epsilon), \quad \mu_g \text{ "
        r"by shifted-interpolation with the record at the latest places of group } g \text{ "
        r"of the last passes, and at the end of every earlier pass}",
        assumptions=(
            *NOISY_STEPS,
            last_iterate_only,
            fresh_permutations,
            plain_updates,
            not_averaged,
            lipschitz_step,
        ),
        bound=mean_over_fresh_places,
        example=replace(EXAMPLE, batching=Reshuffled(100)),
    )
)

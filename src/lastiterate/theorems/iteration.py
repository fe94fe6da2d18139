"""Amplification by iteration and bounded domains, blocks in public order."""

from __future__ import annotations

import math
from dataclasses import replace

from lastiterate.analysis.shifts import (
    ROUNDING,
    allowance,
    cyclic_mu,
    linear,
    log_square,
    unit_shift,
)
from lastiterate.analysis.step_map import Modulus, find_known_map, mu_of_constant_run
from lastiterate.curves.gaussian import Gdp
from lastiterate.curves.renyi import Rdp
from lastiterate.run.batching import FixedSize
from lastiterate.run.domains import Ball
from lastiterate.run.facts import FLOAT_SLACK, Evidence, Fact, find_fact, require_fact, weakest
from lastiterate.run.run import Run
from lastiterate.theorems.assumptions import (
    NOISY_STEPS,
    PAPER,
    bounded_domain,
    bounded_gradient,
    constant_schedule,
    convex,
    counted_batches,
    full_batch,
    hoelder_gradient,
    independent_noise,
    known_noise,
    last_iterate_only,
    lipschitz_step,
    noisy_steps,
    nonexpansive_step,
    not_averaged,
    plain_updates,
    public_order,
    sampled_batches,
    weakly_convex_step,
)
from lastiterate.theorems.theorem import (
    EXAMPLE,
    EXAMPLE_FULL_BATCH,
    Assumption,
    Satisfied,
    Theorem,
    Violated,
    example_loss,
    register,
)


def _bound_bounded_domain_convex(run: Run) -> Gdp:
    shift, std = unit_shift(run), run.first_noise
    if shift == 0 or std == 0:
        return Gdp(shift)
    apart = run.domain.diameter() / (run.first_step * std)

    def mu_of_restart(k: int) -> float:
        return (apart + k * shift) / math.sqrt(k) * (1 + allowance(k))

    # (D + k s)^2 / k is convex in k with its least value at D / s; any integer is a valid k
    whole = min(run.steps, max(1, math.floor(apart / shift)))
    unbounded = math.sqrt(run.steps) * shift * (1 + allowance(run.steps))
    return Gdp(min(unbounded, mu_of_restart(whole), mu_of_restart(min(run.steps, whole + 1))))


BOUNDED_DOMAIN_CONVEX = register(
    Theorem(
        name="bounded-domain-convex",
        kind="upper",
        family="last iterate",
        statement="""
Full batches, convex and smooth, a bounded domain: more iterations without more privacy loss.

mu^2 = min(T s^2/v, min over 1 <= k <= T of (D + k s)^2/(k v)), s = eta sensitivity/n, v = (eta
noise_std)^2, D the diameter: the last k steps absorb what the domain lets the states differ by, and
their own shifts. epsilon(alpha) = alpha mu^2/2. The minimum lies at a neighbour of k = D/s, where
it is about 4 D s/v: alpha (2 D L)/(eta n noise_std^2) times two under replace-one, whatever T.

Source: Altschuler and Talwar 2022, Theorem 3.1 for full batches (there up to constants); with these
constants by a restart in docs/theorems/shifted-interpolation. Regime: step <= 2/smooth. The longest
step allowed is itself rounded, so a map may expand by 1 + 2^-52: the allowance grows with the
number of steps that count.""",
        citation="Altschuler, Talwar: Privacy of noisy stochastic gradient descent: more "
        "iterations without more privacy "
        "loss, NeurIPS 2022 (arXiv:2205.13710), full batch (constants by "
        "docs/theorems/shifted-interpolation)",
        formula="mu^2 = min(T s^2, min_k (D + k s)^2 / k) / v; epsilon(alpha) = alpha mu^2 / 2",
        latex=r"\mu^2 = \frac{\min\left(T s^2, \min_k \frac{(D + k s)^2}{k}\right)}{v}; \quad "
        r"\epsilon(\alpha) = \frac{\alpha \mu^2}{2}",
        assumptions=(
            *NOISY_STEPS,
            last_iterate_only,
            full_batch,
            plain_updates,
            not_averaged,
            constant_schedule,
            bounded_domain,
            convex,
            nonexpansive_step,
        ),
        bound=_bound_bounded_domain_convex,
        example=replace(EXAMPLE_FULL_BATCH, domain=Ball(0.01)),
        remark="D is the diameter, not the radius.",
    )
)


def _bound_cyclic_weakly_convex(run: Run) -> Gdp:
    curvature = find_known_map(run)
    return Gdp(cyclic_mu(run, log_square(curvature, run.first_step)))


CYCLIC_WEAKLY_CONVEX = register(
    Theorem(
        name="cyclic-weakly-convex",
        kind="upper",
        family="last iterate",
        statement="""
Blocks in a public order, smooth losses that need not be convex, the last iterate, any domain.

epsilon(alpha) = alpha s^2/(2 v) ((E - 1) theta_L(l) + 1), s = eta sensitivity/b, v = (eta
noise_std)^2, l blocks per pass, E = ceil(T/l) passes started, theta_L(k) = L^(2k-2)/(1 + L^2 + ...
+ L^(2k-2)), L by Proposition 2.1: the worst position of the record. It is the Renyi curve of
mu-GDP, mu^2 = 2 epsilon(alpha)/alpha, and the pair is mu-GDP.

Source: Kong and Ribero 2025, Theorem 2.3, as restored and proved in
docs/theorems/cyclic-weakly-convex (E counts a pass that was only begun: floor(T/l) would be false).
Regime: step <= 1/(M + m), half of it where clips can act.""",
        citation=f"{PAPER}, Theorem 2.3 (docs/theorems/cyclic-weakly-convex)",
        formula="mu^2 = (s^2/v) ((ceil(T/l) - 1) theta_L(l) + 1); epsilon(alpha) = alpha mu^2 / 2",
        latex=r"\mu^2 = \frac{s^2}{v} \left((\lceil T/l \rceil - 1) \theta_L(l) + 1\right); \quad "
        r"\epsilon(\alpha) = \frac{\alpha \mu^2}{2}",
        assumptions=(
            *NOISY_STEPS,
            last_iterate_only,
            public_order,
            plain_updates,
            not_averaged,
            constant_schedule,
            weakly_convex_step,
        ),
        bound=_bound_cyclic_weakly_convex,
        example=replace(EXAMPLE, loss=example_loss(strong=None, weak_convexity=0.02)),
        remark="shifted-interpolation has the exact constant of the step and the optimal shifts, "
        "and is never worse.",
    )
)


Spread = tuple[float, tuple[Fact, ...]]
"""Largest distance of the two states before the last noise, and the facts that it rests on."""


def _by_gradients(run: Run) -> Spread | None:
    lipschitz = find_fact(run.facts(), "lipschitz")
    if lipschitz is None:
        return None
    eta, slack = run.first_step, 1 + FLOAT_SLACK if lipschitz.evidence >= Evidence.ENFORCED else 1.0
    kept = abs(1 - eta * run.loss.ridge) * run.domain.diameter()
    return kept + 2 * eta * lipschitz.value * slack, (lipschitz,)


def _by_smoothness(run: Run) -> Spread | None:
    if isinstance(held := weakly_convex_step.check(run), Violated):
        return None
    curvature, sensitivity, eta = (
        find_known_map(run),
        require_fact(run.facts(), "sensitivity"),
        run.first_step,
    )
    grown = math.exp(log_square(curvature, eta) / 2) * run.domain.diameter()
    return grown + eta * sensitivity.value / run.divisor, (*held.facts, sensitivity)


def spread(run: Run) -> Spread | None:
    """The smaller of the two forms among those with the strongest facts."""
    if find_fact(run.facts(), "sensitivity") is None:
        return None
    forms = [form for form in (_by_gradients(run), _by_smoothness(run)) if form is not None]
    return min(forms, key=lambda form: (-weakest(*form[1]), form[0]), default=None)


def _has_bounded_step(run: Run) -> Satisfied | Violated:
    form = spread(run)
    if form is None:
        return Violated(
            "it needs a bound on a record's gradient (clip=C or lipschitz=L), or a smooth loss "
            "(smooth=M) "
            "and a step of at most 1/(M + m), half of it where clips can act"
        )
    return Satisfied(form[1])


bounded_step = Assumption(
    "bounded_step",
    "bounded gradients of records, or a smooth loss and a short step",
    _has_bounded_step,
)


def _bound_cyclic_weakly_convex_bounded(run: Run) -> Gdp:
    form, std = spread(run), run.first_noise
    assert form is not None
    return Gdp(form[0] / (run.first_step * std) * ROUNDING if std > 0 else math.inf)


CYCLIC_WEAKLY_CONVEX_BOUNDED = register(
    Theorem(
        name="cyclic-weakly-convex-bounded",
        kind="upper",
        family="last iterate",
        statement="""
Blocks in a public order in a bounded domain: a bound that does not depend on the number of steps.

epsilon(alpha) = alpha mu^2/2, mu^2 v = (D + 2 eta C)^2 for any loss whose records' gradients are at
most C, and mu^2 v = (L D + s)^2 for smooth ones; v = (eta noise_std)^2, s = eta sensitivity/b, D
the diameter, L by Proposition 2.1: the worst position of the record. With a ridge outside the
records D becomes |1 - eta ridge| D in the first form. The pair is mu-GDP.

Source: Kong and Ribero 2025, Theorem 2.2, as restored and proved in
docs/theorems/cyclic-weakly-convex. Of the two forms the one that rests on stronger facts counts;
between equals the smaller.""",
        citation=f"{PAPER}, Theorem 2.2 (docs/theorems/cyclic-weakly-convex)",
        formula="mu^2 = min((D + 2 eta C)^2, (L D + s)^2) / v; epsilon(alpha) = alpha mu^2 / 2",
        latex=r"\mu^2 = \frac{\min\left((D + 2 \eta C)^2, (L D + s)^2\right)}{v}; \quad "
        r"\epsilon(\alpha) = \frac{\alpha \mu^2}{2}",
        assumptions=(
            *NOISY_STEPS,
            last_iterate_only,
            public_order,
            plain_updates,
            not_averaged,
            constant_schedule,
            bounded_domain,
            bounded_step,
        ),
        bound=_bound_cyclic_weakly_convex_bounded,
        example=replace(EXAMPLE, domain=Ball(0.01)),
        remark="D is the diameter, not the radius. The number of steps does not enter.",
    )
)


def largest_move(run: Run) -> float:
    """2 eta L: how far apart two (clipped) mean gradients can send one state."""
    lipschitz = require_fact(run.facts(), "lipschitz")
    return 2 * run.first_step * lipschitz.value * (1 + FLOAT_SLACK)


LIPSCHITZ_BOUNDED_DOMAIN = register(
    Theorem(
        name="lipschitz-bounded-domain",
        kind="upper",
        family="last iterate",
        statement="""
Bounded gradients in a bounded domain: neither convexity nor smoothness, any blocks.

mu^2 = min(T (2 eta L)^2, min over k <= T of (D + 2 k eta L)^2 / k) / (eta noise_std)^2: two states
at distance z are at most z + 2 eta L apart after a step, whatever the two gradients, and D is never
exceeded. k = 1 is the last step alone.

Source: k = 1: Kong and Ribero 2025 (arXiv:2407.05237 v3), Theorem 2.2, first bound (as restored in
this project); k > 1: docs/theorems/bounded-domain. Regime: clipped gradients suffice; step * ridge
<= 2.""",
        citation="Kong, Ribero: Privacy of the last iterate in cyclically-sampled DP-SGD on "
        "nonconvex composite losses "
        "(arXiv:2407.05237 v3), Theorem 2.2, and docs/theorems/bounded-domain",
        formula="mu^2 = min(T (2 eta L)^2, min over k <= T of (D + 2 k eta L)^2 / k) / (eta "
        "noise_std)^2",
        latex=r"\mu^2 = \frac{\min\left(T (2 \eta L)^2, \ \min_{k \le T} \frac{(D + 2 k \eta "
        r"L)^2}{k}\right)}{(\eta \, \text{noise_std})^2}",
        assumptions=(
            noisy_steps,
            known_noise,
            independent_noise,
            last_iterate_only,
            counted_batches,
            plain_updates,
            not_averaged,
            constant_schedule,
            bounded_domain,
            bounded_gradient,
        ),
        bound=lambda run: Gdp(mu_of_constant_run(Modulus(0.0, 1.0, largest_move(run)), run)),
        example=replace(
            EXAMPLE, batching=FixedSize(100), domain=Ball(0.01), loss=example_loss(lipschitz=0.001)
        ),
        remark="Holds for any loss whose gradients are clipped, convex or not.",
    )
)


def _bound_hoelder_bounded_domain(run: Run) -> Gdp:
    facts = run.facts()
    sensitivity, lipschitz = require_fact(facts, "sensitivity"), find_fact(facts, "lipschitz")
    eta = run.first_step
    growth, shift = eta * facts.fact("hoelder"), eta * sensitivity.value / run.divisor
    exponent = facts.fact("hoelder_exponent")
    if lipschitz is None:
        return Gdp(mu_of_constant_run(Modulus(growth, exponent, shift), run))
    return Gdp(mu_of_constant_run(Modulus(growth, exponent, shift, largest_move(run)), run))


HOELDER_BOUNDED_DOMAIN = register(
    Theorem(
        name="hoelder-bounded-domain",
        kind="upper",
        family="last iterate",
        statement="""
Hoelder continuous gradients in a bounded domain: neither convexity nor smoothness, any blocks.

mu^2 = min sum_t a_t^2 / (eta noise_std)^2 over paths D = z_tau, ..., z_T = 0 (or from z_0 = 0) with
z_t = z_{t-1} + min(eta H z_{t-1}^l + eta sensitivity / b, 2 eta L) - a_t, a_t >= 0 (L if known).

Source: Chien and Li 2024 (arXiv:2410.01068), for the recursion; docs/theorems/bounded-domain for
the proof and the paths. Regime: 0 < l <= 1; the record counts at every step, whatever the order of
the batches.""",
        citation="Chien, Li: Convergent privacy loss of noisy-SGD without convexity and smoothness "
        "(arXiv:2410.01068), "
        "proved in docs/theorems/bounded-domain",
        formula="mu^2 = min sum_t a_t^2 / (eta noise_std)^2 over z_t = z_{t-1} + min(eta H "
        "z_{t-1}^l + "
        "eta sensitivity / b, 2 eta L) - a_t, from z_tau = D (or z_0 = 0) to z_T = 0",
        latex=r"\mu^2 = \min \sum_t \frac{a_t^2}{(\eta \, \text{noise_std})^2} \text{ over } z_t = "
        r"z_{t-1} + \min\left(\eta H z_{t-1}^l + \frac{\eta \, \text{sensitivity}}{b}, 2 "
        r"\eta L\right) - a_t, \text{ from } z_\tau = D \text{ (or } z_0 = 0 \text{) to } "
        r"z_T = 0",
        assumptions=(
            *NOISY_STEPS,
            last_iterate_only,
            counted_batches,
            plain_updates,
            not_averaged,
            constant_schedule,
            bounded_domain,
            hoelder_gradient,
        ),
        bound=_bound_hoelder_bounded_domain,
        example=replace(
            EXAMPLE,
            batching=FixedSize(100),
            domain=Ball(0.01),
            loss=example_loss(
                lipschitz=0.01, smooth=None, strong=None, hoelder=0.01, hoelder_exponent=0.5
            ),
        ),
    )
)


PABI_CONVEX = register(
    Theorem(
        name="pabi-convex",
        kind="upper",
        family="last iterate",
        statement="""
Privacy amplification by iteration: convex, smooth losses, blocks in a public order, one pass or
several.

epsilon(alpha) = alpha s^2/(2 v) ((E - 1)/l + 1), s = eta sensitivity/b, v = (eta noise_std)^2, l
blocks per pass, E = ceil(T/l) passes started: the worst position of the record. A record used k
steps before the end of one pass has alpha s^2/(2 v k). The pair is mu-GDP with mu^2 = 2
epsilon(alpha)/alpha.

Source: Feldman, Mironov, Talwar and Thakurta 2018, Theorem 23 (one pass) and Theorem 35 (l passes,
b = 1), with the proof for any number of passes and blocks in docs/theorems/cyclic-weakly-convex.
Regime: step <= 2/smooth.""",
        citation="Feldman, Mironov, Talwar, Thakurta: Privacy amplification by iteration, FOCS "
        "2018 (arXiv:1808.06651), "
        "Theorems 23 and 35 (docs/theorems/cyclic-weakly-convex)",
        formula="mu^2 = (s^2/v) ((ceil(T/l) - 1)/l + 1); epsilon(alpha) = alpha mu^2 / 2",
        latex=r"\mu^2 = \frac{s^2}{v} \left(\frac{\lceil T/l \rceil - 1}{l} + 1\right); \quad "
        r"\epsilon(\alpha) = \frac{\alpha \mu^2}{2}",
        assumptions=(
            *NOISY_STEPS,
            last_iterate_only,
            public_order,
            plain_updates,
            not_averaged,
            constant_schedule,
            convex,
            nonexpansive_step,
        ),
        bound=lambda run: Gdp(cyclic_mu(run, log_square=0.0)),
        example=EXAMPLE,
    )
)


def _bound_smooth_bounded_domain(run: Run) -> Rdp:
    sensitivity, facts = require_fact(run.facts(), "sensitivity"), run.loss.facts()
    smooth = max(
        facts.fact("smooth"), facts.fact("weak_convexity")
    )  # of the gradients: a bound on |Hessian|
    eta, std = run.first_step, run.first_noise
    if std == 0:
        return linear(math.inf if sensitivity.value > 0 else 0.0)
    drawn = sensitivity.value / std * math.sqrt(1 / (2 * run.n * run.divisor))  # sqrt A
    apart = (1 + eta * smooth) * run.domain.diameter() / (math.sqrt(2) * eta * std)  # sqrt B
    return linear(min(drawn**2 * run.steps, (drawn + apart) ** 2))


SMOOTH_BOUNDED_DOMAIN = register(
    Theorem(
        name="smooth-bounded-domain",
        kind="claimed",
        family="last iterate",
        statement="""
Smooth losses, a bounded domain, sampled batches, as published. It is false for sampled batches.

epsilon(alpha) = alpha min(A T, (sqrt A + sqrt B)^2), A = 2 C^2/(n b std^2), B = (1 + eta M)^2
D^2/(2 eta^2 std^2): the least value over beta of A/beta + B/(1 - beta). 2 C is the sensitivity of a
sum, M the smoothness, D the diameter.

Source: Liang, Zhang, He, Wu and Xing 2025 (arXiv:2502.17772v4), Theorems 3.3 and 3.4, as the
authors' released script computes them (github.com/HauLiang/DPSGD-DC, plot_figure_1.py). A averages
the divergence of a step over whether the record was drawn, which is right for no order above 1:
counterexample in docs/theorems/smooth-bounded-domain.""",
        citation="Liang, Zhang, He, Wu, Xing: An improved privacy and utility analysis of "
        "differentially private SGD with "
        "bounded domain and smooth losses, AAAI 2026 (arXiv:2502.17772v4), Theorem 3.4 as in the "
        "released script "
        "(refuted in docs/theorems/smooth-bounded-domain)",
        formula="epsilon(alpha) = alpha min(A T, (sqrt A + sqrt B)^2), A = 2 C^2 / (n b std^2), "
        "B = ((1 + eta M) D / (eta std))^2 / 2",
        latex=r"\epsilon(\alpha) = \alpha \min\left(A T, (\sqrt{A} + \sqrt{B})^2\right), \quad A = "
        r"\frac{2 C^2}{n b \, \text{std}^2}, \quad B = \frac{\left((1 + \eta M) D / (\eta \, "
        r"\text{std})\right)^2}{2}",
        assumptions=(
            *NOISY_STEPS,
            last_iterate_only,
            sampled_batches,
            plain_updates,
            not_averaged,
            constant_schedule,
            bounded_domain,
            lipschitz_step,
        ),
        bound=_bound_smooth_bounded_domain,
        example=replace(EXAMPLE, batching=FixedSize(100), domain=Ball(0.01)),
        remark="Refuted at low noise: it averages divergences over the draw of the batch "
        "(docs/theorems/smooth-bounded-domain).",
    )
)

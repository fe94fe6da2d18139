"""Langevin dynamics (Chourasia, Ye and Shokri 2021), and SGLD (Ryffel, Bach and Pointcheval 2022)."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from lastiterate.analysis.shifts import (
    allowance,
    decay,
    linear,
    lsi,
    signal_to_noise,
    strongly_convex_slope,
)
from lastiterate.curves.gaussian import Gdp
from lastiterate.curves.renyi import Rdp
from lastiterate.run.batching import FixedSize
from lastiterate.run.facts import require_fact
from lastiterate.run.run import Run
from lastiterate.theorems.assumptions import (
    contracting_step,
    counted_batches,
    everywhere,
    fixed_start,
    full_batch,
    sampled_batches,
    short_step,
    strongly_convex,
)
from lastiterate.theorems.diffusion_assumptions import (
    LANGEVIN_PAPER,
    LAST_ITERATE,
    LSI,
    REFUTED,
    SGLD_ALGORITHM,
    SGLD_PAPER,
    STRONGLY_CONVEX,
    find_constant,
    gibbs_start,
    log_sobolev,
    squared_norm,
)
from lastiterate.theorems.theorem import (
    EXAMPLE,
    EXAMPLE_FULL_BATCH,
    STRONG,
    Theorem,
    example_loss,
    gibbs_example,
    register,
)

# Noisy gradient descent as Langevin dynamics (Chourasia, Ye and Shokri 2021).

LANGEVIN_LINEAR = register(
    Theorem(
        name="langevin-linear",
        kind="upper",
        family="last iterate",
        statement="""
Linear Renyi bound for tracing diffusions.

epsilon(alpha) = alpha S_v^2 T / (4 sigma^2), S_v = S_g/n, T = eta K.

Source: Chourasia et al. 2021, Theorem 1 with Lemma 4. Regime: any loss, any domain; never
decreasing in K. Proof: docs/theorems/langevin.""",
        citation=f"{LANGEVIN_PAPER}, Theorem 1 and Lemma 4 (docs/theorems/langevin)",
        formula="epsilon(alpha) = alpha S_g^2 eta K / (4 n^2 sigma^2)",
        latex=r"\epsilon(\alpha) = \frac{\alpha S_g^2 \eta K}{4 n^2 \sigma^2}",
        assumptions=LAST_ITERATE,
        bound=lambda run: linear(signal_to_noise(run) * run.first_step * run.steps / 4),
        example=EXAMPLE_FULL_BATCH,
        remark="The same number as composition: without isoperimetry the diffusion gives nothing "
        "more.",
    )
)


def _bound_langevin_lsi(run: Run) -> Rdp:
    rate = run.temperature * find_constant(run)
    return linear(signal_to_noise(run) / (2 * rate) * decay(rate * run.first_step * run.steps))


LANGEVIN_LSI = register(
    Theorem(
        name="langevin-lsi",
        kind="upper",
        family="last iterate",
        statement="""
Noisy gradient descent under a log-Sobolev inequality.

epsilon(alpha) = alpha S_g^2/(2 c sigma^4 n^2) (1 - e^{-sigma^2 c eta K}).

Source: Chourasia et al. 2021, Theorem 2. c is given (``log_sobolev``), or follows from Lemma 5: c =
strong/(2 sigma^2). Proof: docs/theorems/langevin.""",
        citation=f"{LANGEVIN_PAPER}, Theorem 2 (and Lemma 5 for the constant; "
        f"docs/theorems/langevin)",
        formula="epsilon(alpha) = alpha S_g^2 / (2 c sigma^4 n^2) (1 - exp(-sigma^2 c eta K))",
        latex=r"\epsilon(\alpha) = \frac{\alpha S_g^2}{2 c \sigma^4 n^2} \left(1 - \exp(-\sigma^2 "
        r"c \eta K)\right)",
        assumptions=(*LAST_ITERATE, log_sobolev),
        bound=_bound_langevin_lsi,
        example=gibbs_example(EXAMPLE_FULL_BATCH),
    )
)


def _bound_langevin_squared_norm(run: Run) -> Rdp:
    strong = require_fact(run.facts(), "strong")
    scaled = run.first_step * strong.value
    return linear(
        signal_to_noise(run)
        / ((2 - scaled) * strong.value)
        * decay((2 - scaled) * scaled * run.steps / 2)
    )


LANGEVIN_SQUARED_NORM = register(
    Theorem(
        name="langevin-squared-norm",
        kind="upper",
        family="last iterate",
        statement="""
Squared norm loss.

epsilon(alpha) = alpha S_g^2/((2 - eta m) m sigma^2 n^2) (1 - e^{-(2 - eta m) eta m K / 2}), m =
smooth = strong.

Source: Chourasia et al. 2021, Corollary 2 (m = 1; rescaled time for other curvatures). The text at
hand prints eta^2 for n^2 in the denominator; Theorem 2 with c = (2 - eta)/(2 sigma^2) gives n^2,
and only that passes the exact check. Proof: docs/theorems/langevin.""",
        citation=f"{LANGEVIN_PAPER}, Corollary 2 (with n^2 in the denominator; "
        f"docs/theorems/langevin)",
        formula="epsilon(alpha) = alpha S_g^2 / ((2 - eta m) m sigma^2 n^2) (1 - exp(-(2 - eta m) "
        "eta m K / 2))",
        latex=r"\epsilon(\alpha) = \frac{\alpha S_g^2}{(2 - \eta m) m \sigma^2 n^2} \left(1 - "
        r"\exp(-(2 - \eta m) \eta m K / 2)\right)",
        assumptions=(*LAST_ITERATE, everywhere, fixed_start, squared_norm),
        bound=_bound_langevin_squared_norm,
        example=replace(EXAMPLE_FULL_BATCH, loss=example_loss(strong=1.0)),
    )
)


def _bound_langevin_strongly_convex(run: Run) -> Rdp:
    strong = require_fact(run.facts(), "strong")
    time = run.first_step * run.steps
    return linear(signal_to_noise(run) / strong.value * decay(strong.value * time / 2))


LANGEVIN_STRONGLY_CONVEX = register(
    Theorem(
        name="langevin-strongly-convex",
        kind="upper",
        family="last iterate",
        statement="""
Noisy gradient descent, strongly convex.

epsilon(alpha) = alpha S_g^2/(lambda sigma^2 n^2) (1 - e^{-lambda eta K/2}).

Source: Chourasia et al. 2021, Corollary 1. Regime: eta < 1/beta, start projected N(0, 2
sigma^2/lambda I). Proof: docs/theorems/langevin.""",
        citation=f"{LANGEVIN_PAPER}, Corollary 1 (docs/theorems/langevin)",
        formula="epsilon(alpha) = alpha S_g^2 / (lambda sigma^2 n^2) (1 - exp(-lambda eta K / 2))",
        latex=r"\epsilon(\alpha) = \frac{\alpha S_g^2}{\lambda \sigma^2 n^2} \left(1 - "
        r"\exp(-\lambda \eta K / 2)\right)",
        assumptions=(*LAST_ITERATE, strongly_convex, short_step, gibbs_start),
        bound=_bound_langevin_strongly_convex,
        example=gibbs_example(EXAMPLE_FULL_BATCH),
    )
)


# SGLD with any step sizes (Ryffel, Bach and Pointcheval 2022).

SGLD_LSI = register(
    Theorem(
        name="sgld-lsi",
        kind="upper",
        family="last iterate",
        statement="""
Noisy gradient descent with any step sizes under a log-Sobolev inequality, full batches.

epsilon(alpha) = alpha S^2/(2 c sigma^4 n^2) (1 - e^{-sigma^2 c sum eta_k}); S = 2 L under
replace-one.

Source: Ryffel, Bach and Pointcheval 2022, Theorem 3.1 and (constant steps) Corollary 3.1, for m =
n. c is given, or follows from Lemma 3.4: c = strong/(2 sigma^2). For m < n: sgld-lsi-sampled.""",
        citation=f"{SGLD_PAPER}, Theorem 3.1 and Corollary 3.1 with m = n (and Lemma 3.4 for the "
        f"constant; docs/theorems/sgld)",
        formula="epsilon(alpha) = alpha S^2 / (2 c sigma^4 n^2) (1 - exp(-sigma^2 c sum_k eta_k))",
        latex=r"\epsilon(\alpha) = \frac{\alpha S^2}{2 c \sigma^4 n^2} \left(1 - "
        r"\exp\left(-\sigma^2 c \sum_k \eta_k\right)\right)",
        assumptions=(*LSI, full_batch),
        bound=lambda run: lsi(run, find_constant(run)),
        example=gibbs_example(EXAMPLE_FULL_BATCH),
    )
)


SGLD_LSI_SAMPLED = register(
    Theorem(
        name="sgld-lsi-sampled",
        kind="claimed",
        family="last iterate",
        statement="""
The published bound for sampled batches under a log-Sobolev inequality. It is false.

epsilon(alpha) = 2 alpha L^2/(c sigma^4 n^2) (1 - e^{-sigma^2 c sum eta_k}) for batches of m < n
records, drawn again at every step.

Source: Ryffel, Bach and Pointcheval 2022, Theorem 3.1 and Corollary 3.1 as published. Lemma 3.3
multiplies a quantity that is conditioned on the batch by the probability m/n of the batch; the
counterexample is in docs/theorems/sgld.""",
        citation=f"{SGLD_PAPER}, Theorem 3.1 and Corollary 3.1 for m < n (refuted in "
        f"docs/theorems/sgld)",
        formula="epsilon(alpha) = 2 alpha L^2 / (c sigma^4 n^2) (1 - exp(-sigma^2 c sum_k eta_k))",
        latex=r"\epsilon(\alpha) = \frac{2 \alpha L^2}{c \sigma^4 n^2} \left(1 - "
        r"\exp\left(-\sigma^2 c \sum_k \eta_k\right)\right)",
        assumptions=(*LSI, sampled_batches),
        bound=lambda run: lsi(run, find_constant(run)),
        example=gibbs_example(replace(EXAMPLE, batching=FixedSize(100))),
        remark=REFUTED,
    )
)


SGLD_STRONGLY_CONVEX = register(
    Theorem(
        name="sgld-strongly-convex",
        kind="upper",
        family="last iterate",
        statement="""
Noisy gradient descent with any step sizes, strongly convex, full batches.

epsilon(alpha) = alpha S^2/(lambda sigma^2 n^2) (1 - e^{-lambda sum eta_k / 2}); S = 2 L under
replace-one.

Source: Ryffel, Bach and Pointcheval 2022, Theorem 3.2, Corollary 3.2 (constant steps) and Corollary
3.3 (steps 1/(2 beta + lambda k/2)), for m = n; proof without a log-Sobolev inequality in
docs/theorems/sgld. The steps are k = 0, ..., K - 1 as in their Algorithm 1: their closed form of
Corollary 3.3 is the sum over k = 1, ..., K, which is smaller. Regime: eta_k < 1/beta, start
projected N(0, 2 sigma^2/lambda I).""",
        citation=f"{SGLD_PAPER}, Theorem 3.2, Corollaries 3.2 and 3.3 with m = n "
        f"(docs/theorems/sgld)",
        formula="epsilon(alpha) = alpha S^2 / (lambda sigma^2 n^2) (1 - exp(-lambda sum_k eta_k / "
        "2))",
        latex=r"\epsilon(\alpha) = \frac{\alpha S^2}{\lambda \sigma^2 n^2} \left(1 - "
        r"\exp\left(-\lambda \sum_k \eta_k / 2\right)\right)",
        assumptions=(*STRONGLY_CONVEX, full_batch),
        bound=strongly_convex_slope,
        example=gibbs_example(EXAMPLE_FULL_BATCH),
    )
)


LONGEST = 200_000
"""Steps that are looked at one by one; without the noise of earlier ones, and with 1 for 1 - R_0,
mu only grows."""


def _sums(run: Run, strong: float) -> tuple[float, float]:
    """(1 - R_0) / strong, and the sum of eta_u R_u^2."""
    if run.step_size.constant:
        eta = run.first_step
        if eta * strong >= 1:
            return 1 / strong, eta
        log_c = math.log1p(-eta * strong)
        return (
            -math.expm1(run.steps * log_c) / strong,
            eta * math.expm1(2 * run.steps * log_c) / math.expm1(2 * log_c),
        )
    eta = run.step_size.sizes(max(0, run.steps - LONGEST), run.steps)
    with np.errstate(divide="ignore", under="ignore"):
        logs = np.log1p(-np.minimum(eta * strong, 1.0))
        later = np.concatenate(
            (np.cumsum(logs[::-1])[::-1], [0.0])
        )  # log R_0, log R_1, ..., log R_K
        noise = float((eta * np.exp(2 * later[1:])).sum())
    forgotten = 1.0 if eta.size < run.steps else -math.expm1(float(later[0]))
    return forgotten / strong, noise


def batch_mu(run: Run) -> float:
    """mu of the last iterate when the record is in every batch."""
    sensitivity, strong = (
        require_fact(run.facts(), "sensitivity"),
        require_fact(run.facts(), "strong"),
    )
    ridge, (fewest, _) = run.loss.ridge, run.shares
    shift, noise = _sums(
        run, ridge + (strong.value - ridge) * fewest
    )  # a short block has less curvature
    mu = sensitivity.value / run.divisor * shift / math.sqrt(2 * run.temperature * noise)
    return mu * (1 + allowance(min(run.steps, LONGEST)))


SGLD_STRONGLY_CONVEX_BATCH = register(
    Theorem(
        name="sgld-strongly-convex-batch",
        kind="upper",
        family="last iterate",
        statement="""
Langevin noise, strongly convex, any batches of a public size: as if the record participated in
every step.

mu^2 = S_K^2/X_K, S_K = (S/lambda)(1 - R_0), X_K = 2 sigma^2 sum_u eta_u R_u^2, R_u = prod_{w>u} (1
- eta_w lambda), S the sensitivity of the batch's mean gradient (2 L/m under replace-one). At most
(S^2/(lambda sigma^2)) (1 - R_0)/ (1 + R_0), which implies the published form with the batch size m
instead of n.

Source: docs/theorems/sgld; it repairs Theorem 3.2 of Ryffel, Bach and Pointcheval (2022). Regime:
any steps eta_k <= 2/(lambda + beta), any start that does not depend on the data, with or without
projection.""",
        citation=f"this project, docs/theorems/sgld (repairs Theorem 3.2 of {SGLD_PAPER})",
        formula="mu^2 = (S/lambda)^2 (1 - R_0)^2 / (2 sigma^2 sum_u eta_u R_u^2), R_u = prod_{w>u} "
        "(1 - eta_w lambda), "
        "S = 2 L/m",
        latex=r"\mu^2 = \left(\frac{S}{\lambda}\right)^2 \frac{(1 - R_0)^2}{2 \sigma^2 \sum_u "
        r"\eta_u R_u^2}, \quad R_u = \prod_{w > u} (1 - \eta_w \lambda), \quad S = \frac{2 "
        r"L}{m}",
        assumptions=(*SGLD_ALGORITHM, strongly_convex, contracting_step, counted_batches),
        bound=lambda run: Gdp(batch_mu(run)),
        example=replace(EXAMPLE, batching=FixedSize(100), loss=example_loss(strong=STRONG)),
        remark="No amplification by sampling: the record is charged as if it were in every batch.",
    )
)


SGLD_STRONGLY_CONVEX_SAMPLED = register(
    Theorem(
        name="sgld-strongly-convex-sampled",
        kind="claimed",
        family="last iterate",
        statement="""
The published bound for sampled batches, strongly convex. It is false.

epsilon(alpha) = 4 alpha L^2/(lambda sigma^2 n^2) (1 - e^{-lambda sum eta_k / 2}) for m < n records
that are drawn again at every step.

Source: Ryffel, Bach and Pointcheval 2022, Theorem 3.2, Corollaries 3.2 and 3.3 as published (see
sgld-lsi-sampled). Counterexample: n = 100, m = 1, one step eta = 0.9, sigma = 0.1, |theta - x|^2/2
on [-1, 1]: claimed order-2 divergence 0.116, true 168.8. What holds for batches:
sgld-strongly-convex-batch.""",
        citation=f"{SGLD_PAPER}, Theorem 3.2, Corollaries 3.2 and 3.3 for m < n (refuted in "
        f"docs/theorems/sgld)",
        formula="epsilon(alpha) = 4 alpha L^2 / (lambda sigma^2 n^2) (1 - exp(-lambda sum_k eta_k "
        "/ 2))",
        latex=r"\epsilon(\alpha) = \frac{4 \alpha L^2}{\lambda \sigma^2 n^2} \left(1 - "
        r"\exp\left(-\lambda \sum_k \eta_k / 2\right)\right)",
        assumptions=(*STRONGLY_CONVEX, sampled_batches),
        bound=strongly_convex_slope,
        example=gibbs_example(replace(EXAMPLE, batching=FixedSize(100))),
        remark=REFUTED,
    )
)

"""Noisy gradient descent as Langevin dynamics (Chourasia, Ye and Shokri 2021)."""

from __future__ import annotations

from dataclasses import replace

from lastiterate.analysis.langevin import decay, linear, signal_to_noise
from lastiterate.curves.renyi import Rdp
from lastiterate.run.facts import require_fact
from lastiterate.run.run import Run
from lastiterate.theorems.assumptions import everywhere, fixed_start, short_step, strongly_convex
from lastiterate.theorems.diffusion_assumptions import (
    LANGEVIN_PAPER,
    LAST_ITERATE,
    find_constant,
    gibbs_start,
    log_sobolev,
    squared_norm,
)
from lastiterate.theorems.theorem import (
    EXAMPLE_FULL_BATCH,
    Theorem,
    example_loss,
    gibbs_example,
    register,
)

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

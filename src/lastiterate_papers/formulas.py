"""What the papers state about utility, as functions: noise, number of steps, predicted excess risk.

``lipschitz``, ``strong``, ``smooth``: of the whole loss, L, lambda and beta; ``n``: records, ``d``:
parameters. Risks without the constants that O() hides are those of the proofs where the proof is at
hand, and say so.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from lastiterate.errors import InputError
from lastiterate_papers.comparisons import positive


@dataclass(frozen=True)
class Constants:
    """The constants of a problem."""

    lipschitz: float
    strong: float
    smooth: float
    n: int
    d: int

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            positive(name, value)
        if self.strong > self.smooth:
            raise InputError(
                "strong", "must not exceed smooth", (self.strong, self.smooth), "exchange them"
            )

    @property
    def condition(self) -> float:
        """smooth / strong."""
        return self.smooth / self.strong


@dataclass(frozen=True)
class Choice:
    """Temperature sigma^2 and number of steps."""

    temperature: float
    steps: int

    @property
    def sigma(self) -> float:
        return math.sqrt(self.temperature)


def _log(epsilon: float, delta: float) -> float:
    """log(1/delta), where (epsilon, delta) are those that the theorems speak of."""
    positive("epsilon", epsilon)
    if not 0 < delta < 1 or epsilon > 2 * math.log(1 / delta):
        raise InputError(
            "epsilon",
            "must be at most 2 log(1/delta), with delta between 0 and 1",
            (epsilon, delta),
            "the theorem says nothing beyond",
        )
    return math.log(1 / delta)


def _order(alpha: float, epsilon: float) -> None:
    positive("epsilon", epsilon)
    if not 1 < alpha < math.inf:
        raise InputError(
            "alpha", "must be a finite order above 1", alpha, "the theorem says nothing beyond"
        )


def _short(step: float, longest: float, what: str) -> None:
    positive("step", step)
    if step > longest * (1 + 1e-12):
        raise InputError(
            "step", f"must be at most {what} = {longest:g}", step, "the lemma says nothing beyond"
        )


def _steps(value: float) -> int:
    return max(1, math.ceil(value))


def lemma_6(c: Constants, step: float, steps: int, temperature: float) -> float:
    """Chourasia et al., Lemma 6: excess risk of noisy gradient descent, step <= strong / (2
    smooth^2)."""
    _short(step, c.strong / (2 * c.smooth**2), "strong / (2 smooth^2)")
    return (
        2 * c.smooth * c.lipschitz**2 / c.strong**2 * math.exp(-c.strong * step * steps)
        + 2 * c.smooth * c.d * temperature / c.strong
    )


def theorem_4_renyi(c: Constants, alpha: float, epsilon: float) -> Choice:
    """Chourasia et al., Theorem 4: (alpha, epsilon)-Renyi DP with steps of strong / (2 smooth^2)."""
    _order(alpha, epsilon)
    return Choice(
        4 * alpha * c.lipschitz**2 / (c.strong * epsilon * c.n**2),
        _steps(2 * c.condition**2 * math.log(c.n**2 * epsilon / (alpha * c.d))),
    )


def theorem_4(c: Constants, epsilon: float, delta: float) -> Choice:
    """Chourasia et al., Theorem 4: (epsilon, delta)-DP, epsilon <= 2 log(1/delta)."""
    log = _log(epsilon, delta)
    return Choice(
        8 * c.lipschitz**2 * (epsilon + 2 * log) / (c.strong * epsilon**2 * c.n**2),
        _steps(2 * c.condition**2 * math.log(c.n**2 * epsilon**2 / (4 * log * c.d))),
    )


def ridge_radius(strong: float, lipschitz: float = math.inf, at_zero: float = math.inf) -> float:
    """Ryffel et al., section 3: a ball around 0 that holds the minimiser of the loss plus
    (strong/2) |theta|^2.

    The smaller of L/strong and sqrt(2 loss(0)/strong), for a loss that is nowhere negative;
    ``at_zero`` must be public, as log(k) for k classes is. Projecting on it changes no optimum.
    """
    positive("strong", strong)
    if min(lipschitz, at_zero) < 0 or min(lipschitz, at_zero) == math.inf:
        raise InputError(
            "lipschitz or at_zero",
            "must be given, and not negative",
            (lipschitz, at_zero),
            "without one of them no ball is known",
        )
    return min(lipschitz / strong, math.sqrt(2 * at_zero / strong))


def lemma_41(
    c: Constants, step: float, steps: int, temperature: float, start: float, batch_variance: float
) -> float:
    """Ryffel et al., Lemma 4.1, step < 1/(2 smooth); ``start``: E |theta_0 - theta*|^2,
    ``batch_variance``: xi^2."""
    _short(step, 1 / (2 * c.smooth), "1/(2 smooth)")
    return (
        c.smooth / 2 * start * math.exp(-c.strong * step * steps)
        + c.smooth * step * batch_variance / (2 * c.strong)
        + c.smooth * c.d * temperature / c.strong
    )


def lemma_42(
    c: Constants, step: float, steps: int, temperature: float, batch_variance: float
) -> float:
    """Ryffel et al., Lemma 4.2: the same with |theta_0 - theta*| <= 2 L / strong."""
    return lemma_41(c, step, steps, temperature, 4 * c.lipschitz**2 / c.strong**2, batch_variance)


def lemma_43(
    c: Constants, steps: int, temperature: float, start: float, batch_variance: float
) -> float:
    """Ryffel et al., Lemma 4.3: mean risk of all iterates with steps 1/(2 smooth + strong k/2)."""
    return (
        2 * c.smooth / steps * start
        + 4 * batch_variance / (steps * c.strong) * math.log1p(c.strong * steps / (4 * c.smooth))
        + 2 * c.d * temperature
    )


def theorem_41(c: Constants, alpha: float, epsilon: float) -> Choice:
    """Ryffel et al., Theorem 4.1: (alpha, epsilon)-Renyi DP, steps of 1/(2 smooth)."""
    _order(alpha, epsilon)
    return Choice(
        4 * alpha * c.lipschitz**2 / (epsilon * c.strong * c.n**2),
        _steps(2 * c.condition * math.log(epsilon * c.n**2 / (alpha * c.d))),
    )


def theorem_42(c: Constants, epsilon: float, delta: float) -> Choice:
    """Ryffel et al., Theorem 4.2: (epsilon, delta)-DP, epsilon <= 2 log(1/delta), steps of 1/(2
    smooth)."""
    log = _log(epsilon, delta)
    return Choice(
        8 * c.lipschitz**2 * (epsilon + 2 * log) / (epsilon**2 * c.strong * c.n**2),
        _steps(2 * c.condition * math.log(epsilon**2 * c.n**2 / (4 * log * c.d))),
    )


def _decreasing(c: Constants, ratio: float) -> int:
    return _steps(max(c.condition * ratio, ratio**2 / c.condition))


def theorem_43(c: Constants, alpha: float, epsilon: float) -> Choice:
    """Ryffel et al., Theorem 4.3: (alpha, epsilon)-Renyi DP, decreasing steps."""
    return Choice(
        theorem_41(c, alpha, epsilon).temperature, _decreasing(c, epsilon * c.n**2 / (alpha * c.d))
    )


def theorem_44(c: Constants, epsilon: float, delta: float) -> Choice:
    """Ryffel et al., Theorem 4.4: (epsilon, delta)-DP, decreasing steps."""
    return Choice(
        theorem_42(c, epsilon, delta).temperature,
        _decreasing(c, epsilon**2 * c.n**2 / (4 * math.log(1 / delta) * c.d)),
    )


def risk_constant(c: Constants, price: float, batch_variance: float) -> float:
    """Ryffel et al., end of the proofs of Theorems 4.1 and 4.2. ``price``: alpha/epsilon, or 8
    log(1/delta)/epsilon^2.

    Their recursion loses a factor of 2 before ``batch_variance``, xi^2 (item ryffel-lemma41-proof).
    """
    return 6 * price * c.smooth * c.d * c.lipschitz**2 / (c.strong**2 * c.n**2) + batch_variance / (
        4 * c.strong
    )


def risk_falling(c: Constants, price: float) -> float:
    """Ryffel et al., end of the proofs of Theorems 4.3 and 4.4: mean risk of all iterates;
    ``price`` as above."""
    return 18 * price * c.d * c.lipschitz**2 / (c.strong * c.n**2)

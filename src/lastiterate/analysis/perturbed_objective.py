"""Distance from the minimiser of a perturbed objective after a fixed number of accelerated steps,
for every data set.

f is the mean objective, m-strongly convex and b-smooth, with the random linear term; gradients are
computed with an error of at most e. Steps y = x_k + c (x_k - x_{k-1}), x_{k+1} = y - h g(y) with
1/h > b, a = sqrt(7/8 m h) and c = (1 - a) / (1 + a) keep E_k = f(x_k) - f* + 7/16 m |v_k - x*|^2,
v_{k+1} = x_k + (x_{k+1} - x_k) / a, at

    E_{k+1} <= (1 - a) E_k + e^2 / (2 (1/h - b)) + 4 e^2 / m,      |x_k - x*|^2 <= 2 E_k / m.

Proof: docs/theorems/objective-perturbation. Errors of single operations are u = 2^-53 relative;
sums of j terms in any order are good to j u / (1 - j u) of the sum of their sizes (Higham 2002,
section 3.1).
"""

from __future__ import annotations

import math
from dataclasses import replace

from lastiterate.run.losses import KnownConstants, Logistic, Softmax
from lastiterate.run.methods import KEPT, contraction, last_noise, linear_term, minimiser_of
from lastiterate.run.run import Run

TAIL = 14.0
"""|N(0, I_p)| > sqrt p + TAIL has probability at most e^(-TAIL^2 / 2): 3e-43."""
FAILURE = 1e-42
SUMMED = 1024
"""Records whose gradients are added before their sums are: no fewer than the trainer takes at
once."""
ELEMENTARY = 64 * 2.0**-53
"""Relative error allowed to residuals of exact scores, per class: a few exponentials, sums and
quotients."""
U = 2.0**-53


def curvature(run: Run) -> tuple[int, float]:
    """Return the number of eigenvalues of a record's Hessian, and a bound on their sum."""
    assert not isinstance(run.loss, KnownConstants)
    square = run.loss.row_norm**2 + run.loss.intercept**2
    match run.loss:
        case Logistic():
            # without the ridge, from which the difference of both would cancel
            return 1, replace(run.loss, ridge=0.0).facts().fact("smooth") * (1 + 1e-12)
        case Softmax(classes=classes):
            return classes - 1, square * (1 - 1 / classes) * (1 + 1e-12)
        case _:
            raise TypeError(f"no classifier: {run.loss}")


def log_determinants(run: Run) -> float:
    """D >= log det(A) - log det(A - H) for the Hessian H of any record and any A >= H + n ridge I,
    rounded up.

    The determinants' quotient is at most prod (1 + h_i / (n ridge)): largest where the eigenvalues
    h_i are equal.
    """
    count, trace = curvature(run)
    return count * math.log1p(trace / (count * run.n * run.loss.ridge)) * (1 + 1e-12)


def _parameters(run: Run) -> int:
    method = minimiser_of(run.method)
    assert method is not None
    return method.parameters


def perturbation(run: Run) -> float:
    """|b| / n, which is exceeded with probability below ``FAILURE``."""
    return linear_term(run) * (math.sqrt(_parameters(run)) + TAIL) / run.n


def radius(run: Run) -> float:
    """Norm of the minimiser: m/2 |x|^2 - |b| |x| / n <= f(x*) <= f(0) <= log classes."""
    strong, tilt, classes = run.loss.ridge, perturbation(run), run.loss.target_classes
    assert classes is not None
    return (tilt + math.sqrt(tilt**2 + 2 * strong * math.log(classes))) / strong * (1 + 1e-12)


def first_gap(run: Run) -> float:
    """A bound on E_0."""
    classes = run.loss.target_classes
    assert classes is not None
    strong = run.loss.ridge
    return (
        math.log(classes) + perturbation(run) ** 2 / (2 * strong) + strong / 2 * radius(run) ** 2
    ) * (1 + 1e-12)


def farthest(run: Run) -> float:
    """A bound on |y| for every y that a gradient is taken at, while E_k <= 2 E_0."""
    return radius(run) + 6 * math.sqrt(first_gap(run) / run.loss.ridge)


def gradient_error(run: Run) -> float:
    """A bound on the error of a computed gradient of the mean objective, the rounding of the step
    itself included.

    Scores are sums of ``columns`` products; residuals are as steep as the loss is smooth; gradients
    of chunks are added; the ridge, the linear term, looking ahead and the step round a few times.
    All of it is doubled.
    """
    assert not isinstance(run.loss, KnownConstants)
    outputs, away = run.loss.outputs, farthest(run)
    columns, row = _parameters(run) // outputs, math.hypot(run.loss.row_norm, run.loss.intercept)
    scores = 0.5 * (columns + 2) * U * row * away
    residuals = (outputs + 1) * ELEMENTARY
    sums = (SUMMED + run.n / SUMMED + 8) * U * math.sqrt(2)
    rest = 8 * U * (2 * row + perturbation(run) + (run.loss.ridge + 2 / run.first_step) * away)
    return 2 * (row * (scores + residuals + sums) + rest)


def floor(run: Run) -> float:
    """Return what rounding adds to E_k over all steps."""
    left = 1 / run.first_step - run.loss.facts().fact("smooth")
    error = gradient_error(run)
    each = error**2 / (2 * left) + error**2 / (2 * (1 - KEPT) * run.loss.ridge)
    return each / contraction(run) * (1 + 1e-9)


def distance(run: Run) -> float:
    """A bound on the distance between what the solver ends at and the minimiser; infinite where
    there is none."""
    gap, rounded = first_gap(run), floor(run)
    if rounded > gap:
        return math.inf
    left = gap * math.exp(run.steps * math.log1p(-contraction(run)) * (1 - 1e-12)) + rounded
    return math.sqrt(2 * left / run.loss.ridge) * (1 + 1e-9)


def last_mu(run: Run) -> float:
    """mu of the noise on the minimiser: both neighbours' solvers are off by ``distance`` at most."""
    return 2 * distance(run) / last_noise(run.method, run) * (1 + 1e-9)


def steps_for(run: Run, mu: float) -> int | None:
    """The fewest steps after which ``last_mu`` is about ``mu``; ``None`` where rounding does not
    allow it."""
    left = run.loss.ridge / 2 * (mu * last_noise(run.method, run) / 2) ** 2 - floor(run)
    if left <= 0:
        return None
    return max(1, math.ceil(math.log(first_gap(run) / left) / -math.log1p(-contraction(run))))

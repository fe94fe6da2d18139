"""From public numbers and a budget to a run: nothing here has seen the data.

The rule. Accelerated full-batch gradient descent on rows that are centred by a private mean, all of it certified
together. With mu the Gaussian-DP budget and q = sqrt(parameters) / (n mu) the noise-to-signal ratio of one released
gradient, ``8 / sqrt(q)`` steps balance slow convergence against noise that acceleration amplifies in flat directions;
steps fall linearly to a tenth, which lets that noise die out. The first step is sqrt(classes / 2) / smooth: the worst
curvature of softmax needs two classes at even odds, and more classes share less. Privacy never depends on these
choices. They were made on synthetic families (power-law spectra, sparse pixels, one-hot tables).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from lastiterate.accounting import calibrate
from lastiterate.certificate import Certificate
from lastiterate.curve import Gdp
from lastiterate.errors import InputError
from lastiterate.losses import HuberRidge, Logistic, Softmax
from lastiterate.run import Adjacency, Run
from lastiterate.schedules import Nesterov, NoiseMultiplier, PrivateMean, Steps, whole

FEWEST, MOST = 6, 400
INTERCEPT = 0.5  #: value of the constant column, relative to the norm of the centred rows
CENTRED = 0.25  #: norm that centred rows are clipped to, relative to the norm before
MEAN_SHARE = 0.08  #: part of the budget mu^2 spent on the mean


@dataclass(frozen=True)
class Task:
    """What is public about a data set: ``classes`` is 0 for regression."""

    n: int
    features: int
    classes: int
    row_norm: float = 1.0

    def __post_init__(self) -> None:
        whole("n", self.n)
        whole("features", self.features)
        if self.classes == 1:
            raise InputError("classes", "must be at least 2", self.classes, "one class needs no model")
        if not 0 < self.row_norm < math.inf:
            raise InputError("row_norm", "must be a positive number", self.row_norm)

    @property
    def parameters(self) -> int:
        return (self.features + 1) * (self.classes if self.classes > 2 else 1)


def automatic_delta(n: int) -> float:
    """A power of ten at most 1/(10 n), and at most 1e-5."""
    return min(1e-5, 10.0 ** -math.ceil(math.log10(10 * n)))


def budget(epsilon: float, delta: float) -> float:
    """The largest mu (to 1e-9) that is (epsilon, delta)-DP."""
    low, high = 0.0, 1.0
    while Gdp(high).delta(epsilon) <= delta and high < 1e6:
        low, high = high, 2 * high
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if Gdp(middle).delta(epsilon) <= delta else (low, middle)
    return low


def plan(task: Task, *, epsilon: float, delta: float, adjacency: Adjacency = "zero-out") -> Certificate:
    """The run for a task and a budget, calibrated; its certificate's epsilon(delta) is at most ``epsilon``."""
    if not 0 < epsilon < math.inf:
        raise InputError("epsilon", "must be a positive finite number", epsilon, "1 is a common choice")
    if not 0 < delta < 1:
        raise InputError("delta", "must lie strictly between 0 and 1", delta, "choose less than 1/n, such as 1e-6")
    mu = budget(epsilon, delta)
    noise_to_signal = math.sqrt(task.parameters) / (task.n * mu)
    steps = min(MOST, max(FEWEST, round(8 / math.sqrt(noise_to_signal))))
    norm = CENTRED * task.row_norm
    loss = _loss(task, norm)
    moved = 2.0 if adjacency == "replace-one" else 1.0
    mean = PrivateMean(noise_multiplier=1.01 * moved / (mu * math.sqrt(MEAN_SHARE)), row_norm=task.row_norm)
    first = math.sqrt(max(task.classes, 2) / 2) / loss.facts().fact("smooth")
    falling = Steps(tuple(first * (1 - 0.9 * k / steps) for k in range(steps)))
    run = Run(n=task.n, steps=steps, step_size=falling, noise=NoiseMultiplier(1.0), momentum=Nesterov(),
              loss=loss, adjacency=adjacency, prelude=(mean,))
    return calibrate(run, epsilon=epsilon, delta=delta)


def _loss(task: Task, norm: float) -> Logistic | Softmax | HuberRidge:
    if task.classes == 0:
        return HuberRidge(row_norm=norm, residual_clip=0.5, intercept=INTERCEPT * norm)
    if task.classes == 2:
        return Logistic(row_norm=norm, intercept=INTERCEPT * norm)
    return Softmax(classes=task.classes, row_norm=norm, intercept=INTERCEPT * norm)


def composition_epsilon(certificate: Certificate, delta: float) -> float:
    """What plain composition charges for the same run."""
    found = [v for v in certificate.certifying if v.theorem.name == "composition-gdp"]
    return min((replace(certificate, verdicts=(v,)).epsilon(delta) for v in found), default=math.inf)

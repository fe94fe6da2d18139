"""Predict a run's risk on a public reference problem."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from lastiterate.curves.roots import smallest_true
from lastiterate.planning.task import Task, of_draws
from lastiterate.run.losses import HuberRidge, KnownConstants, Logistic, Softmax
from lastiterate.run.methods import last_noise, linear_term
from lastiterate.run.preprocessing import PrivateCovariance, PrivateMean
from lastiterate.run.run import Run
from lastiterate.run.updates import UpdateRule

# What a run would do on a public reference problem: its predicted risk, for choosing among plans.
# The reference problem is a quadratic with the shape of a linear model: second moments of the rows
# with eigenvalues lambda_i = SPREAD r^2 i^-DECAY / sum_j j^-DECAY, i = 1 .. features, and a target
# w* whose part of the logits' variance in direction i is MARGIN^2 i^-SOURCE / sum_j j^-SOURCE; the
# loss has curvature 1/4 (logistic), 1/classes (softmax) or 1 (Huber). In every direction the run is
# a linear filter, so that bias and noise of the last iterate are exact:      risk = outputs
# curvature / 2 sum_i lambda_i (bias_i^2 w*_i^2 + sum_k response_ik^2 noise_std_k^2).  Rows that are
# divided by their norms have what the private mean's noise adds to all of them as one direction
# more. Whitening acts on eigenvalues as it does in the run: those below the covariance's noise are
# hardly raised. A hard clip leaves a loss of little curvature and a wide margin
# (``CLIPPED_CURVATURE``, ``CLIPPED_MARGIN``), whose excess is counted in the same units.  Nothing
# is measured on the user's data, and privacy never depends on a prediction. The constants were
# compared on synthetic families (power-law spectra, sparse pixels, one-hot tables;
# benchmarks/utility/synthetic_families.py).

DECAY, SOURCE, SPREAD, MARGIN = 1.5, 1.5, 0.4, 2.0
REGRESSION_MARGIN = 0.32  #: of targets in [-1, 1]: a tenth is variance that can be learnt
DIRECTIONS = 24  #: groups of neighbouring eigenvalues that are treated as one
CENTRED = 0.25  #: typical rows have squared norm SPREAD (CENTRED row_norm)^2 around their mean
CLIPPED_CURVATURE, CLIPPED_MARGIN = (
    0.1,
    3.0,
)  #: of classifiers on whitened rows, relative to centred ones
SHORTENED = 0.15
"""Share of what could be learnt that is lost where rows around their mean are all divided by their
norms, times their features: norms of many features differ little. Rows that are clipped to a part c
of their norm lose (1 - c)^2 of it."""
CLAMPED, UNCLAMPED = 1e-3, 0.5
"""Loss of a regression whose residuals, skewed perhaps, are clamped to c: this times (``UNCLAMPED``
- c)^2."""


@dataclass(frozen=True, eq=False)
class Reference:
    """The reference problem in groups of directions: eigenvalues, target and how many directions
    each group holds."""

    eigenvalue: np.ndarray  #: of the second moment of the rows that steps read
    part: np.ndarray  #: of the logits' variance, in a direction of each group
    count: np.ndarray
    curvature: float
    outputs: int
    margin: float
    flatness: float = 1.0  #: curvature of the clipped loss, relative to ``curvature``
    width: float = 1.0  #: its margin, relative to ``margin``

    @classmethod
    def of(cls, features: int, classes: int, row_norm: float) -> Reference:
        """For rows of norm at most ``row_norm``, as the run sees them; ``classes`` is 0 for
        regression."""
        every = np.arange(1.0, features + 1)
        edges = np.unique(np.round(np.geomspace(1, features + 1, DIRECTIONS + 1)).astype(int))
        index = (edges[:-1] + edges[1:] - 1) / 2
        eigenvalue = SPREAD * row_norm**2 * index**-DECAY / (every**-DECAY).sum()
        part = index**-SOURCE / (every**-SOURCE).sum()
        curvature = 1.0 if classes == 0 else 0.25 if classes == 2 else 1 / classes
        return cls(
            eigenvalue,
            part,
            np.diff(edges),
            curvature,
            classes if classes > 2 else 1,
            REGRESSION_MARGIN if classes == 0 else MARGIN,
        )

    @classmethod
    def from_centred_rows(cls, task: Task, run: Run) -> Reference:
        """For rows around their private mean: typical ones are shorter than what they are clipped
        to."""
        assert not isinstance(run.loss, KnownConstants)
        intercept = run.loss.intercept / run.loss.row_norm
        return cls.of(
            task.features, task.classes, CENTRED * task.mapped_norm * math.hypot(1, intercept)
        ).with_class_weights(task)

    def with_class_weights(self, task: Task) -> Reference:
        """With records of some classes that count less than one: steps learn less of them, and
        noise is as before.

        All classes are as frequent here: how many records each has is not public.
        """
        weights = task.class_weights or (1.0,)
        return replace(self, flatness=self.flatness * sum(weights) / len(weights))

    def with_whitening(
        self, offset: float, floor: float, power: float
    ) -> tuple[Reference, np.ndarray]:
        """For unit rows that are whitened in part, and the released eigenvalues of M in every
        direction.

        ``offset``: squared length of the mean's noise, in units of a typical row around its mean;
        ``floor``: what the covariance's noise adds to every eigenvalue.
        """
        total = (self.count * self.eigenvalue).sum() * (1 + offset)
        plain, common = self.eigenvalue / total, offset / (1 + offset)
        raised, top = plain + floor, max(float(plain[0]), common) + floor
        scale, common_scale = (raised / top) ** -power, ((common + floor) / top) ** -power
        trace = (self.count * plain * scale**2).sum() + common * common_scale**2
        reference = replace(self, eigenvalue=plain * scale**2 / trace)
        if self.margin == MARGIN:
            reference = replace(reference, flatness=CLIPPED_CURVATURE, width=CLIPPED_MARGIN)
        return reference, np.append(np.repeat(scale, self.count), common_scale)

    @property
    def target(self) -> np.ndarray:
        """w*_i."""
        return self.margin * self.width * np.sqrt(self.part / self.eigenvalue)

    @property
    def curvatures(self) -> np.ndarray:
        """The curvatures of the objective, in a direction of each group."""
        return self.flatness * self.curvature * self.eigenvalue

    def risk(self, run: Run) -> float:
        """Expected excess loss of what the run releases: its last iterate, started at 0, or a
        perturbed minimiser."""
        if run.method.hides_way:
            total = self.curvatures + run.loss.ridge
            noise = (linear_term(run) / (run.n * total)) ** 2 + last_noise(run.method, run) ** 2
            return self.excess(self.curvatures / total, noise)
        mean, noise = filter_response(run, self.curvatures, run.loss.ridge)
        return self.excess(mean * self.curvatures, noise)

    def excess(self, reached: np.ndarray, variance: np.ndarray) -> float:
        """Excess loss where a share ``reached`` of the target is learnt and each weight has a
        ``variance``."""
        lost = (1 - reached) ** 2 * self.target**2 + variance
        return float(
            self.outputs
            * self.curvature
            / 2
            * (self.count * self.eigenvalue * lost).sum()
            / self.width**2
        )


def predict_risk(task: Task, run: Run) -> float:
    """The risk of a plan's run on the reference problem of a task: public numbers only."""
    released = [
        part for part in run.preprocessing if part.noise_multiplier is not None and not part.targets
    ]
    if len(released) < 2:
        assert not isinstance(run.loss, KnownConstants)
        return risk_with_clipping(
            task,
            run.loss.row_norm / task.mapped_norm,
            Reference.from_centred_rows(task, run).risk(run),
        )
    mean, covariance = released[0], released[-1]
    assert isinstance(mean, PrivateMean) and isinstance(covariance, PrivateCovariance)
    assert not isinstance(run.loss, KnownConstants)
    plain = Reference.of(task.columns, task.classes, CENTRED * math.hypot(1.0, run.loss.intercept))
    offset = (
        task.features
        * (mean.noise_multiplier / task.n) ** 2
        / (plain.count * plain.eigenvalue).sum()
    )
    floor = covariance.noise_multiplier / task.n * math.sqrt(2 * task.columns)
    part = 0.0
    if (
        covariance.row_norm is not None
    ):  # rows whose root mean square is 1, clipped before and after
        floor /= min(1.0, SPREAD * (CENTRED * task.mapped_norm / covariance.row_norm) ** 2)
        part = run.loss.row_norm * CENTRED * math.sqrt(SPREAD)
    reference, scales = plain.with_whitening(float(offset), floor, covariance.power)
    if run.method.hides_way:  # no hard clip
        reference = replace(reference, flatness=1.0, width=1.0)
    clamped = (
        CLAMPED * max(0.0, UNCLAMPED - run.loss.residual_clip) ** 2
        if isinstance(run.loss, HuberRidge)
        else 0.0
    )
    return (
        risk_with_clipping(
            task,
            part,
            reference.with_class_weights(task).risk(run.with_eigenvalues(scales.tolist())),
        )
        + clamped
    )


def risk_with_clipping(task: Task, part: float, risk: float) -> float:
    """The risk, where rows around their mean are clipped to this part of their norm; 0: all are
    divided by it."""
    missed, lost = (
        risk_of_ignorance(task.classes),
        SHORTENED * (1 - min(part, 1.0)) ** 2 / task.features,
    )
    return missed - (missed - risk) * (1 - lost)


def risk_of_ignorance(classes: int) -> float:
    """The risk of weights of 0, which have learnt nothing; ``classes`` is 0 for regression."""
    reference = Reference.of(1, classes, 1.0)
    return reference.excess(np.zeros(1), np.zeros(1))


def filter_response(run: Run, curvature: np.ndarray, ridge: float) -> tuple[np.ndarray, np.ndarray]:
    """The last iterate in directions with these curvatures: response to a constant unit gradient,
    noise variance."""
    total = curvature + ridge
    if run.constant and run.optimizer is None and run.decided_noise.independent:
        return _plain(run.first_step, run.first_noise, run.steps, total)
    responses = _responses(run.rule, run.step_sizes.tobytes(), total.tobytes())
    noise = of_draws(run.decided_noise, responses) * run.noise_stds[:, None]
    return responses.sum(0), (noise**2).sum(0)


@lru_cache(maxsize=2)  # of a plan and of others that differ in their noise
def _responses(rule: UpdateRule, step_sizes: bytes, total: bytes) -> np.ndarray:
    """Return the responses of the last iterate to a unit that enters the gradient at every step,
    (T, directions): the rule gives the effect of every step at once, and one walk back follows
    it."""
    assert rule.linear, "what a step does is read off its effect on parameters, memory and gradient"
    steps, curvature = np.frombuffer(step_sizes), np.frombuffer(total)
    size, responses = len(rule.init(0.0)), np.empty((len(steps), len(curvature)))
    theta, *memory, unit = np.eye(size + 2)[:, :, None]
    each = np.arange(len(steps))[:, None, None]
    point = rule.point(theta, tuple(memory), each)
    direction, remembered = rule.update(curvature * point + unit, tuple(memory), theta, each)
    effects = [
        np.broadcast_to(after, (len(steps), size + 2, len(curvature)))
        for after in (point - steps[:, None, None] * direction, *remembered)
    ]
    later = np.zeros((size + 1, len(curvature)))  # d theta_T / d (theta_k, memory_k)
    later[0] = 1.0
    for k in range(len(steps))[::-1]:
        effect = effects[0][k] * later[0]
        for one, then in zip(effects[1:], later[1:], strict=True):
            effect += one[k] * then
        later, responses[k] = effect[:-1], -effect[-1]
    return responses


def _plain(step: float, std: float, steps: int, total: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Geometric sums: response_k = step c^(T - 1 - k) with c = 1 - step total."""
    log_kept = np.log(np.maximum(np.abs(1 - step * total), 1e-300))
    sign = np.where(1 - step * total < 0, (-1.0) ** (steps % 2), 1.0)
    mean = np.where(
        total > 0, (1 - sign * np.exp(steps * log_kept)) / np.maximum(total, 1e-300), step * steps
    )
    flat = np.abs(log_kept) < 1e-14
    noise = np.where(
        flat, steps, np.expm1(2 * steps * log_kept) / np.where(flat, 1.0, np.expm1(2 * log_kept))
    )
    return mean, (step * std) ** 2 * noise


def output_perturbation(problem: Reference, noise: float, n: int) -> float:
    """Lowest risk of noise on the exact minimiser: a ridge m leaves it a sensitivity L / (n m).

    ``noise``: standard deviation for a sum of sensitivity L. Source: Chaudhuri, Monteleoni, Sarwate
    2011 (arXiv:0912.0071), Algorithm 1 and Corollary 8, with Gaussian noise; for comparison, never
    executed.
    """
    curvature = problem.curvatures

    def risk(ridge: float) -> float:
        return problem.excess(
            curvature / (curvature + ridge), np.full_like(curvature, (noise / (n * ridge)) ** 2)
        )

    return min(risk(float(ridge)) for ridge in curvature[0] * np.geomspace(1e-6, 1e2, 49))


# How much too steep the scores of closely clipped contributions are, whatever the data: a public
# factor.  With scores s ~ N(0, MARGIN^2) between two classes, and y = 1 with probability sigma(s),
# a long training on residuals that are clipped to c ends near a s, where E s clip(sigma(a s) - y,
# -c, c) = 0: a = 2.7 for c = 0.1. A short one ends before scores are steep, and wide margins make
# them less so: the factor is halfway between 1 and 1/a, on a logarithmic scale. Nothing is measured
# on anybody's data (docs/theorems/probabilities).

CLIPPED_POINTS, FARTHEST_CLIPPED = 2001, 8.0
"""Scores that the mean is taken over, and the last ones in standard deviations."""
STEEPEST, FOUND = 100.0, 1e-4


def public_slope(run: Run) -> float:
    """Return the factor of a classifier's scores where records are too few to measure it; 1 where
    nothing is clipped or capped."""
    assert isinstance(run.loss, Logistic | Softmax)
    clip = 1.0 if run.clip is None else run.clip / run.loss.facts().fact("lipschitz")
    cap = 1.0 if run.loss.cap is None else run.loss.cap
    return slope_of(min(clip, cap, 1.0))


@lru_cache(maxsize=64)
def slope_of(clip: float) -> float:
    """1 / sqrt a for residuals clipped to ``clip`` in (0, 1], in hundredths."""
    if clip == 1:
        return 1.0
    places = np.linspace(-FARTHEST_CLIPPED, FARTHEST_CLIPPED, CLIPPED_POINTS)
    weights, scores = np.exp(-(places**2) / 2), MARGIN * places
    weights /= weights.sum()
    chance = (1 + np.tanh(scores / 2)) / 2

    def too_steep(steep: float) -> bool:
        said = (1 + np.tanh(steep * scores / 2)) / 2
        residual = chance * np.clip(said - 1, -clip, clip) + (1 - chance) * np.clip(
            said, -clip, clip
        )
        return float(weights @ (scores * residual)) >= 0

    return max(0.01, round(smallest_true(too_steep, 1.0, STEEPEST, FOUND) ** -0.5, 2))


# What a predicted risk means for a classifier: excess log loss of its probabilities, and accuracy
# of its answers.  On the reference problem the score of a decision between two classes is s ~ N(0,
# MARGIN^2), the second one has the probability sigma(s), and what is released gives s + e with e ~
# N(0, v) independent of it, v = 2 risk / (outputs curvature) for a risk of curvature times v / 2 an
# output. The answer is right with probability      E [sigma(|s|) Phi(|s| / sqrt v) + (1 -
# sigma(|s|)) Phi(-|s| / sqrt v)].  Probabilities that are not calibrated are those of scores
# ``STEEP`` times too large, which adds E KL(sigma(s), sigma( STEEP s)) to the log loss. Nothing is
# measured on anybody's data.

STEEP = 2.0
"""Scores of closely clipped contributions (docs/theorems/probabilities)."""
POINTS, FARTHEST = 2000, 8.0
"""Scores that the mean is taken over, and the last one in standard deviations."""


@dataclass(frozen=True)
class PredictedScores:
    """``log_loss``: above the best possible one. ``accuracy``: below the best possible one; both at
    least 0."""

    log_loss: float
    accuracy: float


def predict_scores(run: Run, risk: float) -> PredictedScores | None:
    """Return the meaning of a plan's predicted risk in scores; ``None`` where no classes are
    learned."""
    classes = run.loss.target_classes
    if not classes:
        return None
    outputs = run.loss.outputs or 1
    variance = 2 * risk / (outputs * (0.25 if classes == 2 else 1 / classes))
    added = 0.0 if run.probability_calibration is not None else _steepness()
    return PredictedScores(risk + added, _accuracy(0.0) - _accuracy(variance))


def _scores() -> tuple[np.ndarray, np.ndarray]:
    """Sizes of scores, and their weights."""
    nodes = (np.arange(POINTS) + 0.5) * FARTHEST / POINTS
    weights = np.exp(-(nodes**2) / 2)
    return MARGIN * nodes, weights / weights.sum()


def _accuracy(variance: float) -> float:
    """Return the accuracy of predictions whose scores have errors of this variance."""
    sizes, weights = _scores()
    right = 1 / (1 + np.exp(-sizes))
    if not math.isfinite(variance):
        return 0.5
    kept = (
        np.ones_like(sizes)
        if variance == 0
        else np.array([0.5 * math.erfc(-size / math.sqrt(2 * variance)) for size in sizes])
    )
    return float(weights @ (right * kept + (1 - right) * (1 - kept)))


@lru_cache(maxsize=1)
def _steepness() -> float:
    """Mean divergence of probabilities from those of scores that are ``STEEP`` times as large."""
    sizes, weights = _scores()
    chance = 1 / (1 + np.exp(-sizes))
    losses = [
        np.logaddexp(0, -factor * sizes) * chance + np.logaddexp(0, factor * sizes) * (1 - chance)
        for factor in (STEEP, 1.0)
    ]
    return float(weights @ (losses[0] - losses[1]))

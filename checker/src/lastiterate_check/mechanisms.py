"""What is certified by a mechanism of its own: selection, perturbed objectives, forgetting; and
what linear losses refute.

Sources: docs/theorems/private-selection, objective-perturbation, forgetting, linear-witness.
"""

from __future__ import annotations

import math

import numpy as np
from flint import arb
from scipy.special import log_ndtr

from lastiterate_check.curves import Best, Curve, Gaussian, Renyi, gaussian_delta, up
from lastiterate_check.losses import Losses, dot, few, sampled
from lastiterate_check.run import SLACK, Body, NotCovered, Run, number, whole
from lastiterate_check.shifts import Pools, Stretch, push, raised, recursion, total

ORDERS = tuple((1 + np.geomspace(0.01, 400, 120)).tolist())


class Selected(Curve):
    """The best of a random number of runs: delta(e) <= E[K] delta_Q(e - c)."""

    def __init__(self, curve: Curve, mean: float, shift: float) -> None:
        self.curve, self.mean, self.shift = curve, mean, shift * (1 + 1e-14)

    def delta(self, epsilon: float) -> float:
        if epsilon < self.shift:
            return 1.0
        one = self.curve.delta((epsilon - self.shift) * (1 - 1e-12))
        return min(1.0, self.mean * one * (1 + 1e-14))


def selected(curve: Curve, law: Body) -> Curve:
    """Papernot and Steinke 2022, Theorems 2 and 6, and the statement on profiles; the smaller of
    both."""
    known = {order: curve.divergence(order) for order in ORDERS}
    known = {order: base for order, base in known.items() if base < math.inf}
    table: dict[float, float] = {}
    if law.get("type") == "PoissonRuns":
        mean = number(law, "expected")
        found = Selected(curve, mean, mean * curve.delta(0.0))
        for order, base in known.items():
            failure = curve.delta(math.log1p(1 / (order - 1)) * (1 - 1e-12))
            some = arb(mean).log() + (arb(order) - 1) * (arb(base) + arb(mean) * failure)
            either = (some.exp() + (-arb(mean)).exp()).log()
            table[order] = max(0.0, up(either / (arb(order) - 1)))
    elif law.get("type") == "NegativeBinomial":
        shape, stop = number(law, "shape", low=-1.0), number(law, "stop")
        odds, log_stop = (1 - arb(stop)) / stop, arb(stop).log()
        mean = up(odds / -log_stop if shape == 0 else odds * shape / (1 - (shape * log_stop).exp()))
        tried = np.linspace(0, 2 * min(10.0, curve.epsilon(min(0.5, stop))), 100).tolist()
        least = min(up((arb(t).exp() + odds * curve.delta(t)).log()) for t in tried)
        found = Selected(curve, mean, (1 + shape) * least)
        inner = [up((1 - 1 / arb(b)) * base - log_stop / b) for b, base in known.items()]
        for order, base in known.items():
            rest = (1 + shape) * min(inner) + up(arb(mean).log() / (arb(order) - 1))
            table[order] = (base + rest) * (1 + 1e-14)
    else:
        raise NotCovered(f"a number of runs of the kind {law.get('type')}")
    return Best([found, Renyi(table=table)]) if table else found


class Perturbed(Curve):
    """delta(e) <= E[delta_t(e - D - max(0, mu^2/2 + mu M))], M the largest of J normals of
    correlation 1/2.

    The law of M is rounded up to the ends of cells. What follows is a mean of values that are
    computed in floats, good to 1e-10 relatively (log_ndtr is good to 1e-14, and differences of
    logarithms lose four digits), and raised by 1e-9.
    """

    def __init__(self, mu: float, others: int, shift: float, gaussian: float) -> None:
        self.mu, self.others, self.shift, self.gaussian = mu, others, shift, gaussian
        self.ends = np.linspace(-9.0, 11.5, 12000)
        # an even rule on an analytic integrand: its error is below 1e-100
        y = np.linspace(-14.0, 18.0, 801)
        weight = np.exp(-y * y / 2) * (y[1] - y[0]) / math.sqrt(2 * math.pi)
        above = np.exp(log_ndtr(-self.ends))
        if others > 1:
            logs = (others * log_ndtr(math.sqrt(2) * x - y) for x in self.ends)
            above = np.array([-dot(weight, np.expm1(log)) for log in logs])
        self.above = np.minimum(above * (1 + 1e-9), 1.0)

    def delta(self, epsilon: float) -> float:
        losses = np.maximum(0.0, self.mu**2 / 2 + self.mu * self.ends) * (1 + 1e-14)
        rest = epsilon - self.shift * (1 + 1e-14) - losses
        t = self.gaussian
        first = log_ndtr(t / 2 - rest / t)
        deltas = np.exp(first) - np.exp(rest + log_ndtr(-t / 2 - rest / t))
        deltas = np.maximum.accumulate(np.clip(deltas + 1e-15 * np.exp(first), 0.0, 1.0))
        rises = np.append(np.diff(deltas), 1 - deltas[-1])
        failed = 1e-42 * (1 + math.exp(min(epsilon, 700.0)))
        return min(1.0, float(deltas[0] + dot(self.above, rises)) * (1 + 1e-9) + failed)

    def with_gaussian(self, mu: float) -> Perturbed:
        both = math.hypot(self.gaussian, mu) * (1 + 1e-14)
        return Perturbed(self.mu, self.others, self.shift, both)


def solver_distance(run: Run) -> float:
    """How far the solver's end may be from the minimiser, for every data set: (1 - a)^T E_0, and
    what rounding adds."""
    loss, n, ridge = run.loss, run.n, run.ridge
    outputs = 1 if loss["type"] == "Logistic" else whole(loss, "classes", low=2)
    classes, parameters = max(2, outputs), whole(run.method, "parameters")
    step, smooth, u = float(run.etas[0]), run.constants["smooth"].value, 2.0**-53
    if ridge <= 0 or step * smooth > 16 / 17:
        raise NotCovered("a solver without a ridge, or with long steps")
    tilt = number(run.noise, "z") * run.unit * (math.sqrt(parameters) + 14) / n
    radius = (tilt + math.sqrt(tilt**2 + 2 * ridge * math.log(classes))) / ridge
    gap = math.log(classes) + tilt**2 / (2 * ridge) + ridge / 2 * radius**2
    away = radius + 6 * math.sqrt(gap / ridge)
    scores = 0.5 * (parameters // outputs + 2) * u * run.row * away
    sums = (1024 + n / 1024 + 8) * u * math.sqrt(2)
    rest = 8 * u * (2 * run.row + tilt + (ridge + 2 / step) * away)
    error = 2 * (run.row * (scores + (outputs + 1) * 64 * u + sums) + rest)
    a = math.sqrt(7 / 8 * ridge * step)
    floor = (error**2 / (2 * (1 / step - smooth)) + 4 * error**2 / ridge) / a
    if floor > gap:
        raise NotCovered("a ridge that is too small for the rounding of the solver")
    left = gap * math.exp(run.steps * math.log1p(-a) * (1 - 1e-12)) + floor
    return math.sqrt(2 * left / ridge) * (1 + 1e-8)


def perturbed_std(run: Run) -> float:
    """The noise on the released minimiser."""
    term = number(run.noise, "z") * run.unit
    return number(run.method, "last", 0.05) * term / (run.n * run.constants["smooth"].value)


def perturbed_objective(run: Run) -> Curve:
    """The minimiser of an objective with one random linear term, up to a tolerance, with noise
    on it."""
    known = run.loss["type"] in ("Logistic", "Softmax")
    if not known or run.clip is not None or run.release != "last":
        raise NotCovered("a perturbed objective of this loss")
    square = run.row**2
    if run.loss["type"] == "Logistic":
        count, trace = 1, run.curvature * square
    else:
        classes = whole(run.loss, "classes", low=2)
        count, trace = classes - 1, square * (1 - 1 / classes)
    shift = count * math.log1p(trace / (count * run.n * run.ridge)) * (1 + 1e-12)
    term = number(run.noise, "z") * run.unit
    nu = 2 * solver_distance(run) / perturbed_std(run) * (1 + 1e-12)
    return Perturbed(run.lipschitz.value / term * (1 + 1e-14), count, shift, nu)


def langevin(run: Run) -> tuple[arb, arb]:
    """S^2 / (sigma^2 n^2), and the sum of all steps, rounded up."""
    duration = math.fsum(run.etas) * (run.steps if run.etas.size == 1 else 1)
    spread = (arb(run.sensitivity.value) / run.n) ** 2 / arb(run.temperature)
    return spread, arb(duration) * (1 + arb(1e-15))


def diffusion(run: Run) -> Curve:
    """S^2 T / (4 sigma^2 n^2): Chourasia et al. 2021, Theorem 1 with Lemma 4."""
    spread, duration = langevin(run)
    return Renyi(up(spread * duration / 4))


def strongly_convex(run: Run) -> Curve:
    """S^2 / (lambda sigma^2 n^2) (1 - exp(-lambda T / 2)): Chourasia et al., Corollary 1; Ryffel
    et al. for m = n."""
    strong, (spread, duration) = arb(run.strong), langevin(run)
    return Renyi(up(spread / strong * (1 - (-strong * duration / 2).exp())))


def variance_reduced(run: Run) -> Curve:
    """Snapshots are Gaussian mechanisms, the steps between them Poisson-sampled ones
    (docs/theorems)."""
    every, z = whole(run.method, "every", low=2), number(run.noise, "z")
    longer = max(1.0, run.sensitivity.value / run.unit) * (1 + 1e-14)
    taken = -(-run.steps // every)
    mu = math.sqrt(taken) * longer / (number(run.method, "snapshot") * z) * (1 + 1e-14)
    noises = few(np.full(1, z / longer * (1 - 1e-14)), 1 / 30)
    return Losses([(sampled(run.rate, z), run.steps - taken) for z, _ in noises], mu)


def shown_by_linear_losses(body: Body, epsilon: float) -> float:
    """A lower end of delta at ``epsilon`` for the class that a run describes; 0 where none is known
    (PROOFS H).

    The class is that of any loss with gradients of norm L: linear losses are in it, and the
    record's gradient points the same way in all of its steps. Steps of public batches leave a
    Gaussian: all of them, or the last iterate of plain steps without a domain or a proximal term.
    """
    run = Run(body)
    facts, bound = run.constants, run.lipschitz
    curved = any(facts[name].value > 0 for name in ("strong", "log_sobolev") if name in facts)
    own = math.inf if bound is None else bound.value * run.moved
    own = min(own, facts["sensitivity"].value if "sensitivity" in facts else math.inf)
    known = run.loss["type"] == "Abstract" and not curved and own < math.inf and run.independent
    plain = run.method["type"] == "Descent" and run.drawn == "never" and run.steps <= 10**6
    if not (known and plain and (run.stds > 0).all()):
        return 0.0
    etas, stds, place = run.each(run.etas), run.each(run.stds), np.arange(run.steps) % run.blocks
    shared, squares = own / run.divisor * (1 - 1e-12), [0.0]
    if run.release == "all":
        squares.append(float(np.bincount(place, weights=(shared / stds) ** 2).max()))
    if run.update is None and run.prox is None and math.isinf(run.diameter):
        shift = float(np.bincount(place, weights=etas * shared).max())
        squares.append(shift**2 / float(((etas * stds) ** 2).sum()))
    mu = math.sqrt(max(squares)) * (1 - 1e-9)
    return max(0.0, -up(-gaussian_delta(mu, epsilon))) if mu > 0 else 0.0


def forgotten(body: Body, lines: list[str]) -> Curve:
    """The last weights against those of the same procedure without the removed records: one long
    run, in which they add nothing once they are removed (Theorem 1)."""
    requests, training = body["requests"], body["training"]
    removed = [whole(part, "removed") for part in requests]
    runs = [Run(part["run"], "zero-out") for part in requests]
    first = Run(training, "zero-out") if training.get("type") == "Run" else None
    everything = [*runs, *([first] if first is not None else [])]
    for run in everything:
        plain = run.update is None and run.release == "last" and run.calibration is None
        if run.loss["type"] == "Abstract" or not (plain and run.independent) or run.relative:
            raise NotCovered("a training that may not forget")
    if training.get("prelude"):
        raise NotCovered("forgetting after a private preparation")
    if any(run.random_sizes or run.drawn == "step" for run in everything):
        raise NotCovered("forgetting where batches are of random sizes or drawn at every step")
    same = first is not None and all(run.domain == runs[0].domain for run in everything)
    diameter = runs[0].diameter if same else math.inf
    left, steps = sum(removed), 0 if first is None else first.steps
    trained = [after_training(training, first, left)]
    for run, gone in zip(runs, removed, strict=True):
        left, steps = left - gone, steps + run.steps
        begun = number(run.start, "std") ** 2 if run.start["type"] == "GaussianStart" else 0.0
        for s, v, c in [(0.0, begun, 1.0), *stretches(run, left)]:
            options = [push(pools, (s, v, c)) for pools in trained]
            if math.isfinite(diameter):  # restarted before this step
                options.append(push(None, (diameter * c + s, v, c)))
            trained = sorted(options, key=total)[:8]
    lines.append(f"  {sum(removed)} records removed in {len(requests)} requests, in one long run")
    return Gaussian(math.sqrt(min(total(pools) for pools in trained)) * raised(steps))


def stretches(run: Run, count: int) -> list[Stretch]:
    """Every step; what ``count`` records add in a pass counts at its worst place, at its end."""
    rows, worst, arrays = [], 0.0, recursion(run, run.shares, run.steps)
    for t, (c, s, v) in enumerate(zip(*(x.tolist() for x in arrays), strict=True)):
        worst = max(c * worst, s) if t % run.blocks else s
        ends = (t + 1) % run.blocks == 0 or t + 1 == run.steps
        rows.append((count * worst if ends else 0.0, v, c))
    return rows


def after_training(training: Body, run: Run | None, count: int) -> Pools:
    """Pools of a training on all records, or of the distance that it leaves."""
    if run is None:
        if training.get("type") != "RidgeMinimiser":
            raise NotCovered("a training of this kind")
        loss = Run({"type": "Run", "n": training["n"], "steps": 1, "loss": training["loss"]})
        moved = count * loss.lipschitz.value * (1 + 1e-6) / loss.n + 2 * number(
            training, "residual"
        )
        return push(None, (moved / loss.strong * (1 + 1e-9), 0.0, 0.0))
    if run.method["type"] == "PerturbedMinimiser":
        moved = count * run.lipschitz.value * (1 + SLACK) / run.n / run.strong
        apart, std = moved + 2 * solver_distance(run), perturbed_std(run)
        return push(None, (apart * (1 + 1e-9), std**2, 0.0))
    pools: Pools = None
    for one in stretches(run, count):
        pools = push(pools, one)
    return pools

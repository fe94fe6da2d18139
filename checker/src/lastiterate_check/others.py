"""What is certified without a theorem of the table: selection, posteriors, perturbed objectives,
forgetting.

Sources: docs/theorems/private-selection, posterior-sample, ridge-posterior, objective-perturbation,
forgetting.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from flint import arb
from scipy.special import log_ndtr

from lastiterate_check.balls import Best, Curve, Failing, Gaussian, Renyi, down, gaussian_delta, up
from lastiterate_check.late import Tail, distance_of_draws
from lastiterate_check.losses import Array, dot
from lastiterate_check.run import SLACK, BadInput, NotCovered, Run, number, whole
from lastiterate_check.shifts import Pools, push, raised, total

ORDERS = tuple((1 + np.geomspace(0.01, 400, 120)).tolist())


class Selected(Curve):
    """The best of a random number of runs: delta(e) <= E[K] delta_Q(e - c)."""

    def __init__(self, curve: Curve, mean: float, shift: float) -> None:
        self.curve, self.mean, self.shift = curve, mean, shift

    def delta(self, epsilon: float) -> float:
        if epsilon < self.shift:
            return 1.0
        return min(
            1.0, self.mean * self.curve.delta((epsilon - self.shift) * (1 - 1e-12)) * (1 + 1e-14)
        )


def selected(curve: Curve, law: dict[str, Any]) -> Curve:
    """Papernot and Steinke 2022, Theorems 2 and 6, and the statement on profiles; the smaller of
    both."""
    if law.get("type") == "PoissonRuns":
        mean = number(law, "expected")
        found: list[Curve] = [Selected(curve, mean, mean * curve.delta(0.0) * (1 + 1e-14))]
        table = {}
        for order in ORDERS:
            base = curve.divergence(order)
            if base < math.inf:
                failure = curve.delta(math.log1p(1 / (order - 1)) * (1 - 1e-12))
                some = arb(mean).log() + (arb(order) - 1) * (arb(base) + arb(mean) * failure)
                table[order] = max(
                    0.0, up((some.exp() + (-arb(mean)).exp()).log() / (arb(order) - 1))
                )
    elif law.get("type") == "NegativeBinomial":
        shape, stop = number(law, "shape", low=-1.0), number(law, "stop")
        odds = (1 - arb(stop)) / stop
        log_stop = arb(stop).log()
        mean = up(odds / -log_stop if shape == 0 else odds * shape / (1 - (shape * log_stop).exp()))
        tried = np.linspace(0, 2 * min(10.0, curve.epsilon(min(0.5, stop))), 100).tolist()
        least = min(up((arb(t).exp() + odds * curve.delta(t)).log()) for t in tried)
        found = [Selected(curve, mean, (1 + shape) * least * (1 + 1e-14))]
        inner = [
            up((1 - 1 / arb(b)) * curve.divergence(b) - log_stop / b)
            for b in ORDERS
            if curve.divergence(b) < math.inf
        ]
        table = {}
        for order in ORDERS if inner else ():
            rest = (1 + shape) * min(inner) + up(arb(mean).log() / (arb(order) - 1))
            table[order] = (curve.divergence(order) + rest) * (1 + 1e-14)
    else:
        raise NotCovered(f"a number of runs of the kind {law.get('type')}")
    return Best([*found, *([Renyi(table=table)] if table else [])])


def posterior(problem: dict[str, Any], adjacency: str) -> Curve:
    """One exact sample: Renyi divergences of two Gaussian posteriors, bounded over all
    neighbours of the domain."""
    if adjacency not in ("zero-out", "replace-one"):
        raise BadInput("adjacency: must be zero-out or replace-one")
    model, domain = problem["model"], problem["domain"]
    alpha, beta = arb(number(model, "prior_precision")), arb(number(model, "noise_precision"))
    n, table = whole(domain, "n"), {}
    if problem.get("type") == "RidgePosterior":
        r, y = arb(number(domain, "row_norm")), arb(number(domain, "label_bound"))
        h = beta * r**2 / alpha
        t = (n - 1) * h
        f = h.sqrt() / (1 + h) if h < 1 else arb(0.5)
        for gap in np.geomspace(1e-3, 1e4, 1500):
            v = arb(1) + float(gap)
            left = 1 - (v - 1) * h
            if left > 0:
                logs = v * (1 + h).log() - (1 + v * h).log() - (v - 1) * (1 + h).log() - left.log()
                mean = (2 * f + (h * t).sqrt() * (t / (1 + t)).sqrt() / (1 + h)) ** 2
                table[float(v.mid())] = up(
                    logs / (2 * (v - 1)) + v / 2 * (1 + h) / left * beta * y**2 * mean
                )
        return Renyi(table=table)
    if problem.get("type") != "LinearPosterior":
        raise NotCovered("a problem of this kind")
    c = arb(number(domain, "ratio"))
    w = arb(number(domain, "spread")) * (1 + arb(1e-12)) + arb(1e-15) * c
    high, low = arb(number(domain, "x_high")) ** 2, arb(number(domain, "x_low")) ** 2
    kappa, short = (n - 1) * low, low if adjacency == "replace-one" else arb(0)
    for gap in np.geomspace(1e-3, 1e6, 1500):
        v, found = arb(1) + float(gap), []
        if 2 * v * high <= kappa:
            mean = (3 * w + c * alpha / (alpha + beta * kappa)) ** 2
            found.append(up(arb(1.5) * high / kappa + v * beta * high**2 / kappa * mean))
        a, d = alpha + beta * kappa + beta * short, high - short
        t = beta * d / a
        left = 1 - (v - 1) * t
        if (
            left > 0
            and v.sqrt() * beta * high <= alpha + beta * kappa
            and ((v - 1) * beta * high <= alpha + beta * kappa)
        ):
            log_part = -(1 + t).log() / 2 - left.log() / (2 * (v - 1))
            g = c - w if c > w else arb(0)
            gap_of_means = beta**2 * (2 * w * high + g * alpha * d / a) ** 2
            found.append(up(log_part + v / 2 * gap_of_means / ((a + beta * d) * left)))
        if found:
            table[float(v.mid())] = min(found)
    if not table:
        raise NotCovered("a problem without a bound of any order")
    return Renyi(table=table)


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
        y = np.linspace(
            -14.0, 18.0, 801
        )  # an even rule on an analytic integrand: its error is below 1e-100
        weight = np.exp(-y * y / 2) * (y[1] - y[0]) / math.sqrt(2 * math.pi)
        if others == 1:
            above = np.exp(log_ndtr(-self.ends))
        else:
            above = np.array(
                [
                    -float(weight @ np.expm1(others * log_ndtr(math.sqrt(2) * x - y)))
                    for x in self.ends
                ]
            )
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
        return Perturbed(
            self.mu, self.others, self.shift, math.hypot(self.gaussian, mu) * (1 + 1e-14)
        )


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


def perturbed_objective(run: Run) -> Curve:
    """The minimiser of an objective with one random linear term, up to a tolerance, with noise
    on it."""
    if (
        run.loss["type"] not in ("Logistic", "Softmax")
        or run.clip is not None
        or run.release != "last"
    ):
        raise NotCovered("a perturbed objective of this loss")
    square = run.row**2
    if run.loss["type"] == "Logistic":
        count, trace = 1, run.curvature * square
    else:
        classes = whole(run.loss, "classes", low=2)
        count, trace = classes - 1, square * (1 - 1 / classes)
    shift = count * math.log1p(trace / (count * run.n * run.ridge)) * (1 + 1e-12)
    term = number(run.noise, "z") * run.unit
    std = number(run.method, "last", 0.05) * term / (run.n * run.constants["smooth"].value)
    nu = 2 * solver_distance(run) / std * (1 + 1e-12)
    return Perturbed(run.lipschitz.value / term * (1 + 1e-14), count, shift, nu)


def shown_by_linear_losses(body: dict[str, Any], epsilon: float) -> float:
    """A lower end of delta at ``epsilon`` for the class that a run describes; 0 where none is known
    (PROOFS H).

    The class is that of any loss with gradients of norm L: linear losses are in it, and the
    record's gradient points the same way in all of its steps. Plain steps without a ridge, a domain
    or a proximal term leave a Gaussian.
    """
    run = Run(body)
    stated = run.constants
    curved = any(stated[name].value > 0 for name in ("strong", "log_sobolev") if name in stated)
    if run.loss["type"] != "Abstract" or curved or run.lipschitz is None or not run.independent:
        return 0.0
    own = run.lipschitz.value * run.moved
    if "sensitivity" in stated:
        own = min(own, stated["sensitivity"].value)
    shared = own / run.divisor * (1 - 1e-12)
    plain = run.update is None and run.prox is None and math.isinf(run.diameter)
    if run.method["type"] != "Descent" or run.drawn not in ("never", "once") or run.steps > 10**6:
        return 0.0
    etas, stds = np.array(run.each(run.etas)), np.array(run.each(run.stds))
    if not (stds > 0).all():
        return 0.0
    place = np.arange(run.steps) % run.blocks
    found = []
    if run.drawn == "never" and run.release == "all":
        found.append(math.sqrt(float(np.bincount(place, weights=(shared / stds) ** 2).max())))
    if plain and run.drawn == "never":
        shift = np.bincount(place, weights=etas * shared).max()
        found.append(float(shift) / math.sqrt(float(((etas * stds) ** 2).sum())))
    mu = max(found, default=0.0) * (1 - 1e-9)
    return max(0.0, down(gaussian_delta(mu, epsilon))) if mu > 0 else 0.0


def forgotten(body: dict[str, Any], lines: list[str]) -> Curve:
    """The last weights against those of the same procedure without the removed records: one long
    run (Theorem 1)."""
    training, requests = body["training"], body["requests"]
    removed = [whole(part, "removed") for part in requests]
    runs = [Run(part["run"], "zero-out", 1) for part in requests]
    count, failures, found = sum(removed), (0.0,), []
    first = Run(training, "zero-out", 1) if training.get("type") == "Run" else None
    everything = [*runs, *([first] if first is not None else [])]
    for run in everything:
        plain = (
            run.update is None
            and run.release == "last"
            and run.calibration is None
            and run.independent
        )
        if run.loss["type"] == "Abstract" or not plain or run.relative:
            raise NotCovered("a training that may not forget")
    if any(run.random_sizes or run.drawn == "step" for run in everything):
        failures = (1e-12, 1e-9, 1e-7)
    domains = [run.domain for run in everything]
    diameter = (
        runs[0].diameter
        if first is not None and all(d == domains[0] for d in domains)
        else math.inf
    )
    for failure in failures:
        each = failure / (len(requests) + 1)
        pools, _, steps = _trained(training, first, count, each)
        left = count
        for run, gone in zip(runs, removed, strict=True):
            left -= gone
            start = run.part("start", "Fixed")
            begun = number(start, "std") ** 2 if start["type"] == "GaussianStart" else 0.0
            rows = [(1.0, 0.0, begun), *_rows(Tail(run, each, run.blocks), run.blocks, left)]
            for c, s, v in rows:
                options = [push(p, (s, v, c)) for p in pools]
                if math.isfinite(diameter):
                    options.append((diameter * c + s, v, 0.0, None, c))
                pools = sorted(options, key=total)[:8] if len(options) > 8 else options
            steps += len(rows)
        mu = math.sqrt(min(total(p) for p in pools)) * raised(steps)
        found.append(Failing(Gaussian(mu), failure) if failure else Gaussian(mu))
    lines.append(f"  {count} records removed in {len(requests)} requests, {steps} steps in one row")
    if training.get("prelude"):
        raise NotCovered("forgetting after a private preparation")
    return Best(found)


def _rows(tail: Tail, blocks: int, count: int) -> list[tuple[float, float, float]]:
    """c, s, v of every step; a pass counts with the record's worst place, at its end."""
    if tail.skipped:
        raise NotCovered("forgetting after so many steps")
    rows, worst = [], 0.0
    for t, (c, s, v) in enumerate(
        zip(tail.c.tolist(), tail.s.tolist(), tail.v.tolist(), strict=True)
    ):
        worst = max(c * worst, s) if t % blocks else s
        last = t % blocks == blocks - 1 or t == tail.c.size - 1
        rows.append((c, count * worst if last else 0.0, v))
    return rows


def _trained(
    training: dict[str, Any], run: Run | None, count: int, failure: float
) -> tuple[list[Pools], float, int]:
    """Pools of a training on all records, or of the distance that it leaves."""
    if run is None:
        if training.get("type") != "RidgeMinimiser":
            raise NotCovered("a training of this kind")
        loss = Run({"type": "Run", "n": training["n"], "steps": 1, "loss": training["loss"]})
        strong = loss.constants["strong"].value
        moved = count * loss.constants["lipschitz"].value * (1 + 1e-6) / loss.n / strong
        apart = (moved + 2 * number(training, "residual") / strong) * (1 + 1e-9)
        return [(apart, 0.0, 0.0, None, 0.0)], apart, 1
    if run.method["type"] == "PerturbedMinimiser":
        strong = run.constants["strong"].value
        moved = count * run.lipschitz.value * (1 + SLACK) / run.n / strong + 2 * solver_distance(
            run
        )
        std = number(run.method, "last", 0.05) * number(run.noise, "z") * run.unit
        std /= run.n * run.constants["smooth"].value
        return [(moved * (1 + 1e-9), std**2, 0.0, None, 0.0)], moved, 1
    tail = Tail(run, failure if run.drawn != "step" else failure / 2, run.blocks)
    if run.drawn == "step":
        apart = distance_of_draws(tail, failure / 2, tail.c.size, run.rate, count)
        return [(apart * (1 + 1e-9), 0.0, 0.0, None, 0.0)], apart, 1
    pools: list[Pools] = [None]
    for c, s, v in _rows(tail, run.blocks, count):
        pools = [push(p, (s, v, c)) for p in pools]
    return pools, 0.0, tail.c.size


__all__ = ["Array", "forgotten", "perturbed_objective", "posterior", "selected"]

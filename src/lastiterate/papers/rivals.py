"""Table 1 of Chourasia et al. 2021 with its rivals executed: excess risk and gradient evaluations over n."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

import lastiterate as li
from lastiterate.papers.item import Item, Panel, Result, Row, Trace, Work
from lastiterate.papers.problems import Problem, logistic_problem
from lastiterate.papers.ryffel_privacy import digits
from lastiterate.papers.utility import CHOURASIA, slope
from lastiterate.run.noise import ObjectiveNoise
from lastiterate.run.run import Run

EPSILON, DELTA, RIDGE = 1.0, 1e-6, 0.1


@dataclass(frozen=True)
class Rival:
    """A row of the table: how its run is described for a problem, the order of its risk over n, its evaluations."""

    name: str
    describe: Callable[[Problem], Run]
    risk_order: float | None = None
    evaluations_order: float | None = None


def _full(problem: Problem, steps: int, step: float) -> Run:
    return li.Run(n=problem.n, steps=steps, step_size=step, noise=li.NoiseMultiplier(1.0), loss=problem.loss)


def contraction_time(problem: Problem, step: float, d: int) -> int:
    """Steps after which the start has shrunk below what the noise will leave, by log(n^2 epsilon^2/d)."""
    return max(10, math.ceil(math.log(max(math.e, problem.n**2 * EPSILON**2 / d)) / (step * problem.ridge)))


def noisy_gd(problem: Problem) -> Run:
    """Full batches, steps of 1/(2 smooth) as in Ryffel et al., the last iterate."""
    step = 1 / (2 * problem.smooth)
    return _full(problem, contraction_time(problem, step, problem.d), step)


def chourasia_gd(problem: Problem) -> Run:
    """Full batches with the paper's own steps, strong/(2 smooth^2)."""
    step = problem.ridge / (2 * problem.smooth**2)
    return _full(problem, contraction_time(problem, step, problem.d), step)


def output_perturbation(problem: Problem) -> Run:
    """Gradient descent with noise on its last step alone (Zhang et al. 2017; Chaudhuri et al. 2011)."""
    step = 1 / problem.smooth
    steps = contraction_time(problem, step, problem.d)
    return replace(_full(problem, steps, step), noise=li.GradientNoise((0.0,) * (steps - 1) + (1.0,)))


def poisson(problem: Problem) -> Run:
    """Poisson batches of about 50, 20 passes of steps that fall."""
    rate = min(1.0, 50 / problem.n)
    steps = math.ceil(20 / rate)
    return replace(_full(problem, steps, 1.0), step_size=li.InverseDecay(problem.smooth, problem.ridge),
                   batching=li.Poisson(rate))


def sgld(problem: Problem) -> Run:
    """Fresh batches of 50 without replacement, falling steps (the algorithm of Ryffel et al.), 20 passes."""
    size = min(problem.n, 50)
    return replace(poisson(problem), batching=li.FixedSize(size), steps=math.ceil(20 * problem.n / size))


def bassily(problem: Problem, most: int = 40_000) -> Run:
    """One record a step, steps of about 1/(ridge k), n^2 of them in the paper; here at most ``most``."""
    return replace(_full(problem, min(problem.n**2, most), 1.0), batching=li.FixedSize(1),
                   step_size=li.InverseDecay(problem.smooth, 2 * problem.ridge))


def objective_perturbation(problem: Problem) -> Run:
    """The minimiser of the objective with a random linear term, found by gradient descent to a tolerance that is paid
    for (docs/theorems/objective-perturbation)."""
    step = 0.94 / problem.smooth
    noise = ObjectiveNoise(1.0, problem.d + 1)
    return replace(_full(problem, 2 * contraction_time(problem, step, problem.d), step), noise=noise)


RIVALS = (
    Rival("noisy GD (steps 1/(2 smooth))", noisy_gd, -2.0, 1.0),
    Rival("noisy GD (the paper's steps)", chourasia_gd, -2.0, 1.0),
    Rival("output perturbation", output_perturbation, -2.0, 1.0),
    Rival("objective perturbation", objective_perturbation, -2.0),
    Rival("noisy SGD of Bassily et al., capped", bassily),
    Rival("Poisson DP-SGD", poisson),
    Rival("DP-SGLD, fresh batches", sgld),
)


def evaluations(run: Run) -> float:
    """Gradients of records that a run computes."""
    return float(run.steps) * run.batching.expected_batch(run.n)


def table_1(work: Work) -> Result:
    """All trainers at one budget on the same strongly convex problems."""
    ns, d, models = ((500, 1000, 2000) if work.quick else (500, 1000, 2000, 4000, 8000)), 5, work.size(8, 40)
    most = work.size(2000, 40_000)
    rows, risks, costs = list[Row](), dict[str, list[float]](), dict[str, list[float]]()
    for n in ns:
        problem = logistic_problem(n=n, d=d, ridge=RIDGE, seed=work.seed)
        for rival in RIVALS:
            work.progress(f"n {n}: {rival.name}")
            run = bassily(problem, most) if rival.describe is bassily else rival.describe(problem)
            found = li.calibrate(run, epsilon=EPSILON, delta=DELTA)
            risk = float(problem.excess(problem.trained(found.run, models, work.seed)).mean())
            best = found.best(DELTA)
            assert best is not None
            rows += [Row(f"n {n}, {rival.name}: excess risk ({best.theorem.name})", risk),
                     Row(f"n {n}, {rival.name}: gradient evaluations", evaluations(run))]
            risks.setdefault(rival.name, []).append(risk)
            costs.setdefault(rival.name, []).append(evaluations(run))
    at = [float(n) for n in ns]
    for rival in RIVALS:
        over = slope(at, risks[rival.name]), slope(at, costs[rival.name])
        for what, fitted, order in zip(("excess risk", "evaluations"), over,
                                       (rival.risk_order, rival.evaluations_order), strict=True):
            rows.append(Row(f"{rival.name}: fitted slope of {what} over n", fitted, order, 0.4))
    rows += _real(work)
    styles = ("certified", "other upper", "audit", "lower", "composition", "sampling", "assumed")
    panels = tuple(
        Panel(title, "n", y_name, tuple(Trace(name, ns, tuple(y), style) for (name, y), style
                                        in zip(lines.items(), styles, strict=True)), True, True)
        for title, y_name, lines in (("utility", "excess risk", risks), ("work", "gradient evaluations", costs)))
    return Result(tuple(rows), panels,
                  {"n": list(ns), "d": d, "ridge": RIDGE, "epsilon": EPSILON, "delta": DELTA, "adjacency": "zero-out",
                   "models": models, "most steps of noisy SGD": most},
                  ("Orders of Table 1 in n, log factors apart: risk n^-2 and n evaluations for noisy GD and output "
                   "perturbation. Its n^2 evaluations of noisy SGD are capped, so its order is not compared.",
                   "DP-SVRG (Wang et al. 2017): not published here; its paper is not at hand, and no statement about "
                   "its variance-reduced steps was derived.",
                   "Objective perturbation has no gradient evaluations in the table; ours are those of its solver.",
                   "Every run is certified by a row of our table of theorems at the same budget (zero-out), each by "
                   "its own; the problem is ours."))


def _real(work: Work) -> list[Row]:
    """The same on digits, even against odd, at one n."""
    x, y = digits()
    problem = Problem(x, y % 2, 0.01)
    rows = list[Row]()
    for rival in RIVALS:
        if rival.describe is bassily:
            continue
        work.progress(f"digits: {rival.name}")
        found = li.calibrate(rival.describe(problem), epsilon=EPSILON, delta=DELTA)
        theta = problem.trained(found.run, 4, work.seed)
        accuracy = float((((x @ theta.T) > 0) == (y % 2)[:, None]).mean())
        rows += [Row(f"digits, even or odd, {rival.name}: excess risk", float(np.mean(problem.excess(theta)))),
                 Row(f"digits, even or odd, {rival.name}: training accuracy", accuracy)]
    best = float((((x @ problem.optimum) > 0) == y % 2).mean())
    return [*rows, Row("digits, even or odd, without privacy: training accuracy", best)]


ITEMS = (
    Item("chourasia-table1", CHOURASIA, "Table 1: all algorithms on the same problems, risk and evaluations over n",
         "matches", table_1),
)

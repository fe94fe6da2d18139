"""Predicted and measured excess risk of batches: Ryffel et al., section 4, and a false recursion in
it."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import numpy as np

import lastiterate as li
from lastiterate_papers import formulas
from lastiterate_papers.comparisons import curve
from lastiterate_papers.formulas import Choice
from lastiterate_papers.item import Item, Panel, Result, Row, Work, traced
from lastiterate_papers.problems import Problem, logistic_problem
from lastiterate_papers.ryffel_privacy import PAPER as RYFFEL
from lastiterate_papers.utility import ALPHA, PROBLEM, RIDGE, constants, known, langevin, risk


def _batch_variance(problem: Problem, batch: int) -> float:
    """xi^2 = E |gradient of a batch at the optimum|^2, batches of one size without replacement."""
    p = 1 / (1 + np.exp(-(problem.x @ problem.optimum)))
    each = problem.x * (p - problem.y)[:, None] + problem.ridge * problem.optimum
    spread = float((each**2).sum(axis=1).mean())  # the mean gradient is 0
    return spread / batch * (problem.n - batch) / (problem.n - 1)


def _risks(problem: Problem, run: li.Run, seed: int) -> list[float]:
    """Excess risk of every iterate of one execution."""
    from lastiterate.engine import Trainer, key_from_seed

    all_of_them = Trainer(replace(run, release="all")).fit(
        problem.x, problem.y, key_from_seed(seed)
    )
    return problem.excess(all_of_them[:, 0, :-1]).tolist()


def lemmas(work: Work) -> Result:
    """Lemmas 4.1 to 4.3: constant steps over K, decreasing steps on average over all iterates."""
    problem = logistic_problem(n=200, d=5, ridge=RIDGE, seed=work.seed)
    c, batch, models = constants(problem), 20, work.size(20, 200)
    choice = formulas.theorem_41(c, ALPHA, 50.0)
    xi, theta = _batch_variance(problem, batch), problem.optimum
    start = float(theta @ theta) + problem.d * 2 * choice.temperature / problem.ridge
    step, rows, counts = 1 / (2 * problem.smooth), list[Row](), (1, 4, 16, 64, 256)
    lines: dict[str, list[float]] = {
        "Lemma 4.1": [],
        "Lemma 4.2": [],
        "constant steps, measured": [],
        "Lemma 4.3": [],
        "decreasing steps, measured mean": [],
    }
    # 4.1 asks for a step strictly below 1/(2 smooth)
    short = step * (1 - 1e-9)
    iterates = []
    for seed in range(work.size(4, 30)):
        run = replace(
            langevin(
                problem,
                Choice(choice.temperature, counts[-1]),
                li.InverseDecay(problem.smooth, problem.ridge),
            ),
            batching=li.FixedSize(batch),
        )
        iterates.append(
            work.cell(
                f"decreasing steps, {seed + 1}", partial(_risks, problem, run, work.seed + seed)
            )
        )
    averages = np.cumsum(np.mean(iterates, axis=0)) / np.arange(1, counts[-1] + 1)
    for steps in counts:
        run = replace(
            langevin(problem, replace(choice, steps=steps), short), batching=li.FixedSize(batch)
        )
        values = (
            formulas.lemma_41(c, short, steps, choice.temperature, start, xi),
            formulas.lemma_42(c, short, steps, choice.temperature, xi),
            work.cell(f"{steps} constant steps", partial(risk, problem, run, models, work.seed)),
            formulas.lemma_43(c, steps, choice.temperature, start, xi),
            float(averages[steps - 1]),
        )
        rows.append(
            Row(f"K {steps}: measured risk against Lemma 4.1", values[2], values[0], 0.0, "<=")
        )
        rows.append(
            Row(f"K {steps}: measured risk against Lemma 4.2", values[2], values[1], 0.0, "<=")
        )
        rows.append(
            Row(f"K {steps}: measured mean risk against Lemma 4.3", values[4], values[3], 0.0, "<=")
        )
        for line, value in zip(lines.values(), values, strict=True):
            line.append(value)
    traces = traced(counts, lines, "other upper", "composition", "audit", "other upper", "audit")
    panels = (
        Panel("constant steps", "steps K", "excess risk", traces[:3], True, True),
        Panel("decreasing steps", "steps K", "mean excess risk", traces[3:], True, True),
    )
    return Result(
        tuple(rows),
        panels,
        {
            "n": problem.n,
            "d": problem.d,
            "m": batch,
            "ridge": RIDGE,
            "smooth": problem.smooth,
            "sigma": choice.sigma,
            "xi^2": xi,
            "models": models,
        },
        (
            PROBLEM,
            "xi^2 is computed from the data: the lemmas are about utility, where that is allowed.",
        ),
    )


def _mean_and_last(problem: Problem, run: li.Run, seed: int) -> tuple[float, float]:
    """Mean excess risk of the iterates 1, ..., K of one execution, and that of the last."""
    risks = _risks(problem, run, seed)
    return float(np.mean(risks)), risks[-1]


def theorems(work: Work) -> Result:
    """Theorems 4.1 to 4.4: sigma^2, K, the budget they promise and what is true of it; promised and
    measured risk."""
    n, d, delta, epsilon = work.size(40, 100), 5, 1e-5, 4.0
    problem, batch, log = (
        logistic_problem(n=n, d=d, ridge=RIDGE, seed=work.seed),
        n // 10,
        math.log(1e5),
    )
    c, rows, xi = constants(problem), list[Row](), _batch_variance(problem, batch)
    renyi, approximate = ALPHA / epsilon, 8 * log / epsilon**2
    constant, falling = (
        li.Constant((1 - 1e-9) / (2 * problem.smooth)),
        li.InverseDecay(problem.smooth, RIDGE),
    )
    stated = {
        "4.1": (
            formulas.theorem_41(c, ALPHA, epsilon),
            constant,
            formulas.risk_constant(c, renyi, xi),
        ),
        "4.2": (
            formulas.theorem_42(c, epsilon, delta),
            constant,
            formulas.risk_constant(c, approximate, xi),
        ),
        "4.3": (formulas.theorem_43(c, ALPHA, epsilon), falling, formulas.risk_falling(c, renyi)),
        "4.4": (
            formulas.theorem_44(c, epsilon, delta),
            falling,
            formulas.risk_falling(c, approximate),
        ),
    }
    bars: dict[str, list[float]] = {
        "promised": [],
        "m = n, published": [],
        "batches, certified": [],
    }
    risks: dict[str, list[float]] = {"promised": [], "measured": []}
    for name, (choice, schedule, promised) in stated.items():
        full = langevin(problem, choice, schedule)
        sampled, where = replace(full, batching=li.FixedSize(batch)), f"Theorem {name}"

        def cost(row: str, run: li.Run, renyi: bool = name in ("4.1", "4.3")) -> float:
            found = curve(row, known(run, problem))
            return found.rdp(ALPHA) if renyi else found.epsilon(delta)

        published, true = (
            cost("sgld-strongly-convex", full),
            cost("sgld-strongly-convex-batch", sampled),
        )
        what = (
            f"Renyi epsilon of order {ALPHA:g}"
            if name in ("4.1", "4.3")
            else f"epsilon at {delta:g}"
        )
        rows += [
            Row(f"{where}: sigma^2", choice.temperature),
            Row(f"{where}: K, all executed", float(choice.steps)),
            Row(f"{where}: {what}, m = n", published, epsilon, 1e-9, "<="),
            Row(f"{where}: {what}, m = {batch}, certified", true, epsilon, 1e-9, "<="),
        ]
        if schedule is constant:
            measured = work.cell(
                where, partial(risk, problem, sampled, work.size(10, 200), work.seed)
            )
            rows.append(
                Row(
                    f"{where}: measured risk of the last iterate against the promise",
                    measured,
                    promised,
                    0.0,
                    "<=",
                )
            )
        else:
            both = [
                work.cell(
                    f"{where}, {seed + 1}",
                    partial(_mean_and_last, problem, sampled, work.seed + seed),
                )
                for seed in range(work.size(2, 10))
            ]
            measured, last = np.mean(both, axis=0).tolist()
            rows += [
                Row(
                    f"{where}: measured mean risk of all iterates against the promise",
                    measured,
                    promised,
                    0.0,
                    "<=",
                ),
                Row(f"{where}: measured risk of the last iterate", last),
            ]
        for line, value in zip(
            (*bars.values(), *risks.values()),
            (epsilon, published, true, promised, measured),
            strict=True,
        ):
            line.append(value)
    place = (1.0, 2.0, 3.0, 4.0)
    panels = (
        Panel(
            "what is promised and what holds",
            "theorem",
            "epsilon",
            traced(place, bars, "claimed", "other upper", "certified"),
            False,
            True,
            tuple(stated),
        ),
        Panel(
            "risk",
            "theorem",
            "excess risk",
            traced(place, risks, "claimed", "audit"),
            False,
            True,
            tuple(stated),
        ),
    )
    return Result(
        tuple(rows),
        panels,
        {
            "n": n,
            "d": d,
            "m": batch,
            "ridge": RIDGE,
            "alpha": ALPHA,
            "epsilon": epsilon,
            "delta": delta,
            "xi^2": xi,
            "models": {"4.1, 4.2": work.size(10, 200), "4.3, 4.4": work.size(2, 10)},
        },
        (
            PROBLEM,
            "The noise follows from Theorem 3.2, which is false for m < n: what is certified for "
            "batches (sensitivity 2L/m) exceeds the promise by up to (n/m)^2. With m = n it holds. "
            "An "
            "upper bound refutes nothing by itself: ryffel-theorem32 has the exact distribution.",
            "The promised risks are those at the end of the proofs, with their constants: 6, 48, "
            "18 and 144. "
            "Theorems 4.3 and 4.4 are proved for the mean over all iterates, which is what is "
            "compared, though "
            "4.4 prints the last one; a privacy bound for the last iterate does not cover that "
            "mean.",
            "K grows as n^4 in Theorems 4.3 and 4.4; n is chosen so that all of it can be "
            "executed.",
        ),
    )


def _one_step(
    n_steps: int, beta: float, strong: float, slope: float, start: float
) -> tuple[float, float, float]:
    """Return E |theta - theta*|^2 of the two-record example after some steps, recursion (11), and
    (11) with 2 xi^2.

    Records beta theta^2/2 + slope theta and strong theta^2/2 - slope theta, batches of one, no
    noise: theta* = 0.
    """
    step, mean, square = 1 / (2 * beta), start, start**2
    printed = repaired = start**2
    factors, pushes = (
        np.array([1 - step * beta, 1 - step * strong]),
        step * slope * np.array([-1.0, 1.0]),
    )
    for _ in range(n_steps):
        square = float((factors**2 * square + 2 * factors * pushes * mean + pushes**2).mean())
        mean = float((factors * mean + pushes).mean())
        printed = (1 - step * strong) * printed + (step * slope) ** 2
        repaired = (1 - step * strong) * repaired + 2 * (step * slope) ** 2
    return square, printed, repaired


def lemma_41_proof(work: Work) -> Result:
    """The recursion (11) in the proof of Lemma 4.1: it loses a factor of 2, and is false as
    printed."""
    rng, rows, worst, lemma = np.random.default_rng(work.seed), list[Row](), 0.0, 0.0
    strong, counts = 0.01, (1, 2, 3, 5, 10, 30)
    lines: dict[str, list[float]] = {"(11) as printed": [], "exact": [], "(11) with 2 xi^2": []}
    for steps in counts:
        exact, printed, repaired = _one_step(steps, 1.0, strong, 1.0, 1 / 3)
        for line, value in zip(lines.values(), (printed, exact, repaired), strict=True):
            line.append(value)
        if steps <= 3:
            many = f"{steps} step{'s' * (steps > 1)}"
            rows += [
                Row(
                    f"{many}: exact squared distance against (11) as printed",
                    exact,
                    printed,
                    1e-12,
                    "<=",
                ),
                Row(f"{many}: the same against (11) with 2 xi^2", exact, repaired, 1e-12, "<="),
            ]
    for _ in range(work.size(2000, 50_000)):
        low, slope, start = (
            float(rng.uniform(0.001, 1)),
            float(rng.uniform(0, 2)),
            float(rng.normal()),
        )
        steps = int(rng.integers(1, 60))
        exact, _, repaired = _one_step(steps, 1.0, low, slope, start)
        worst = max(worst, exact / repaired)
        stated = 0.5 * start**2 * math.exp(-low * steps / 2) + slope**2 / (4 * low)
        lemma = max(lemma, (1 + low) / 4 * exact / stated)
    rows += [
        Row(
            "random records and steps: exact over (11) with 2 xi^2, largest",
            worst,
            1.0,
            1e-12,
            "<=",
        ),
        Row("the same: exact risk over Lemma 4.1 as printed, largest", lemma, 1.0, 1e-12, "<="),
    ]
    return Result(
        tuple(rows),
        (
            Panel(
                "two records, batches of one",
                "steps",
                "E |theta - theta*|^2",
                traced(counts, lines, "claimed", "chance", "certified"),
                True,
            ),
        ),
        {"records": "theta^2/2 + theta and 0.01 theta^2/2 - theta", "step": 0.5, "start": 1 / 3},
        (
            "(a + b)^2 <= 2 a^2 + 2 b^2 gives 2 eta^2 xi^2; from the next display but one on the "
            "proof writes "
            "eta^2 xi^2. With the factor restored the floor of Lemma 4.1 is beta eta xi^2/lambda, "
            "twice the "
            "printed one, and that is proved; whether the printed one holds by another proof is "
            "open, and no "
            "draw of these records breaks it.",
            "Strong convexity is written with a lost sign: -<theta - theta*, gradient> is at most "
            "minus the "
            "excess risk minus lambda/2 |theta - theta*|^2, and so at most -lambda |theta - "
            "theta*|^2; the "
            "next line uses it rightly. The last step sets <gradient at theta*, theta_K - theta*> "
            "to 0, which "
            "holds where the optimum is inside the domain.",
        ),
    )


ITEMS = (
    Item(
        "ryffel-lemmas",
        RYFFEL,
        "Lemmas 4.1 to 4.3: risk with constant and decreasing steps",
        "matches",
        lemmas,
        finding="The measured risks keep all three lemmas by a wide margin: [K 256: measured risk "
        "against Lemma "
        "4.1] after 256 constant steps, [K 256: measured mean risk against Lemma 4.3] on average "
        "over falling"
        " ones.",
    ),
    Item(
        "ryffel-theorems",
        RYFFEL,
        "Theorems 4.1 to 4.4: noise, steps, budget and risk, promised and true",
        "differs",
        theorems,
        finding="The promised risks hold by a wide margin (Theorem 4.3: [Theorem 4.3: measured "
        "mean risk of all "
        "iterates against the promise]) and so do the budgets of full batches, while what is "
        "certified for "
        "batches of a tenth exceeds the promise.",
    ),
    Item(
        "ryffel-lemma41-proof",
        RYFFEL,
        "Lemma 4.1: the recursion in its proof, a lost factor 2",
        "differs",
        lemma_41_proof,
        finding="The printed recursion is false after one step ([1 step: exact squared distance "
        "against (11) as "
        "printed] exact); with twice the variance it holds, and the lemma itself has survived all "
        "draws.",
    ),
)

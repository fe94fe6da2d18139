"""The theorems that certify runs: what each needs of a description, and its curve for one record.

Names are those of certificates; theorems.toml has the table. Every theorem is evaluated from its
source's formula. Closed forms are balls; sums of many positive terms are floats, raised above their
rounding (``UP`` for each of at most 10^7 terms).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from flint import arb
from scipy.signal import lfilter

from lastiterate_check import mechanisms, restarts, sampling, shifts
from lastiterate_check.curves import Curve, Gaussian
from lastiterate_check.run import TABLE, Body, Fact, Fails, Run, StepMap, number

UP = 1 + 1e-9


def facts_used(theorem: Body, run: Run) -> list[Fact]:
    """The facts that a theorem rests on."""
    facts = [] if run.sensitivity is None else [run.sensitivity]
    return facts + (StepMap(run).facts if theorem.get("geometry") else [])


def is_convex(run: Run) -> bool:
    """Whether the loss is smooth and known to be convex, after clipping."""
    facts = run.smooth_facts()
    weak = facts.get("weak_convexity")
    return "smooth" in facts and ("strong" in facts or (weak is not None and weak.value == 0))


def starts_in_equilibrium(run: Run) -> bool:
    """Start N(0, 2 sigma^2 / strong)."""
    asked, fixed = math.sqrt(2 * run.temperature / run.strong), run.start["type"] != "GaussianStart"
    return not fixed and math.isclose(number(run.start, "std"), asked, rel_tol=1e-9)


def longest(run: Run) -> float:
    """The longest step, times the smoothness; infinite where that is unknown."""
    smooth = run.smooth_facts().get("smooth")
    return math.inf if smooth is None else float(run.etas.max()) * smooth.value


CONDITIONS: dict[str, Callable[[Run], bool]] = {
    "noisy": lambda run: run.method["type"] in ("Descent", "TailAverage", "ExponentialAverage"),
    "bounded": lambda run: run.sensitivity is not None,
    "independent": lambda run: run.independent,
    "correlated": lambda run: not run.independent,
    "last": lambda run: run.release == "last",
    "plain": lambda run: run.update is None,
    "own": lambda run: run.method["type"] == "Descent" and not run.body.get("record_draws"),
    "counted": lambda run: run.adjacency != "add-remove",
    "single": lambda run: run.moved == 1,
    "one-step": lambda run: run.etas.size == 1 and not run.relative,
    "constant": lambda run: run.constant,
    "one-temperature": lambda run: run.temperature > 0,
    "no-prox": lambda run: run.prox is None,
    "domain": lambda run: math.isfinite(run.diameter),
    "convex": is_convex,
    "strong": lambda run: longest(run) < math.inf and run.strong > 0,
    "gibbs": starts_in_equilibrium,
    "short": lambda run: longest(run) < 1,
    "nonexpansive": lambda run: longest(run) <= 2,
    "contracting": lambda run: longest(run) + float(run.etas.max()) * run.strong <= 2,
    "snapshots": lambda run: (
        run.method["type"] == "VarianceReduced"
        and (run.kind, run.clip, run.update) == ("Poisson", None, None)
        and run.noise["type"] == "NoiseMultiplier"
        and run.loss["type"] != "Abstract"
    ),
    "perturbed": lambda run: run.method["type"] == "PerturbedMinimiser",
}


def composition(run: Run) -> Curve:
    """mu^2 = sum over the record's steps of (S / (b std))^2 at the worst place (Dong, Roth, Su
    2022, Cor. 3.3)."""
    if run.sensitivity.value == 0:
        return Gaussian(0.0)
    if run.stds.size == 1:
        return Gaussian(run.ratio_of_step() * arb(run.passes).sqrt())
    charges, step = run.squared_ratios, np.arange(run.steps)
    if run.drawn == "pass":  # the place is another one in every pass: the worst of each
        worst = np.zeros(run.passes)
        np.maximum.at(worst, step // run.blocks, charges)
        return Gaussian(math.sqrt(math.fsum(worst)) * UP)
    total = np.bincount(step % run.blocks, weights=charges)
    return Gaussian(math.sqrt(float(total.max())) * UP)


def correlated(run: Run) -> Curve:
    """mu = s S / (b std), s^2 = max over places of sum_{e, f} |<C_{j+el}, C_{j+fl}>| (PROOFS Q).

    With absolute values in C all inner products add up, to the square of the sum of the columns at
    the record's steps, which is largest at the first place.
    """
    noise, blocks, steps = run.noise, run.blocks, run.steps
    if run.drawn not in ("never", "once") or steps > 10**7:
        raise Fails("a record in the same place of every pass, and at most 10,000,000 steps")
    entries = noise.get("band")
    if isinstance(entries, int):
        power, k = number(noise, "power", 0.5), np.arange(1, min(entries, steps))
        entries = np.concatenate(([1.0], np.cumprod((k - 1 + power) / k)))
    column = np.zeros(steps)
    column[: len(entries)] = entries[:steps]
    column = np.abs(lfilter([1.0], [1.0, -number(noise, "decay", 0.0)], column))
    for begin in range(blocks, steps, blocks):
        column[begin : begin + blocks] += column[begin - blocks : begin][: steps - begin]
    return Gaussian(run.ratio_of_step() * (arb(float((column**2).sum())) * UP).sqrt())


THEOREMS: dict[str, Body] = TABLE["theorems"]
MODULES = (mechanisms, restarts, sampling, shifts)
CURVES: dict[str, Callable[[Run], Curve]] = globals() | {
    name: value for module in MODULES for name, value in vars(module).items()
}
"""Functions of theorems, by the names in the table."""

"""Passes after which a record is forgotten: this project's bound beside that of Chien, Wang, Chen
and Li 2024.

    python -m benchmarks.utility.forgetting_bounds

Their process (arXiv:2403.17105): a pass reads batches of b records in one order, theta <- theta -
eta g + sqrt(2 eta) sigma N(0, I), losses m-strongly convex, gradients of norm at most M, training
goes on until its law stands still. Their bound, as their program computes it
(github.com/Graph-COM/SGD_unlearning, main_sgd.py): a record that is exchanged moves the law by at
most Z = 2 eta M / (b (1 - c^(n/b))) with c = 1 - eta m, and after K passes

    epsilon(alpha) = alpha Z^2 / (2 eta sigma^2) (1 - c^2) / (c^(-2 K n/b) - 1),

turned into (epsilon, delta) by log(1/delta) / (alpha - 1). A pair of normals with this distance has
half of that. Ours is ``lastiterate.analysis.unlearning`` for the same steps, 3,000 passes of
training, and records that are removed, which moves half as far: "theirs, removed" is their formula
with M in the place of 2 M.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from scipy.optimize import minimize_scalar

import lastiterate as li
from lastiterate.analysis.unlearning import Continued, forgotten_curve

TRAINING = 3000
"""Passes, about as many as their program's for full batches."""
MOST = 10_000


def process(n: int, b: int, ridge: float, sigma: float) -> li.Run:
    """One pass of theirs: logistic regression on rows of norm 1, step 1 / L."""
    step = 1 / (0.25 + ridge)
    loss = li.KnownConstants(li.LossFacts(lipschitz=1.0, smooth=0.25 + ridge, strong=ridge))
    return li.Run(
        n=n,
        steps=n // b,
        step_size=step,
        noise=li.GradientNoise(sigma * math.sqrt(2 / step)),
        loss=loss,
        batching=li.Cyclic(b),
    )


def theirs(run: li.Run, moved: float, sigma: float, delta: float) -> Callable[[int], float]:
    """Epsilon after so many passes; ``moved``: by how much records change the sum of one batch's
    gradients."""
    step, b, ridge = float(run.step_sizes[0]), run.batching.size, run.loss.facts().fact("strong")
    c = 1 - step * ridge
    distance = moved * step / (b * (1 - c ** (run.n // b)))

    def after(passes: int) -> float:
        rate = (
            distance**2
            / (2 * step * sigma**2)
            * (1 - c**2)
            / math.expm1(-2 * passes * (run.n // b) * math.log(c))
        )
        found = minimize_scalar(
            lambda order: math.exp(order) * rate + rate - math.log(delta) * math.exp(-order),
            bounds=(-15, 15),
            method="bounded",
        )  # order = log(alpha - 1)
        return float(found.fun)

    return after


def ours(run: li.Run, removed: int, delta: float) -> Callable[[int], float]:
    training = replace(run, steps=TRAINING * run.steps)

    def after(passes: int) -> float:
        return forgotten_curve(
            training, (Continued(replace(run, steps=passes * run.steps), removed),)
        ).epsilon(delta)

    return after


def needed(epsilon: Callable[[int], float], asked: float) -> int:
    """Least passes with at most the ``asked`` epsilon, by halving."""
    low, high = 0, 1
    while epsilon(high) > asked:
        low, high = high, 2 * high
        assert high < MOST
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if epsilon(middle) <= asked else (middle, high)
    return high


def main() -> None:
    """Passes until epsilon 1, for their MNIST problem of two classes, with their ridge and two of
    their noises."""
    n, delta = 11_264, 1 / 11_264
    print(
        "| batch | sigma | records | theirs, exchanged | theirs, removed | ours | then their "
        "epsilon, removed "
        "| ours |"
    )
    print("|" + "---|" * 8)
    for b in (32, 128, 512, n):
        for sigma in (0.03, 0.1):
            for records in (1, 10, 100):
                run = process(n, b, 1e-6 * n, sigma)
                exchanged, removed = (theirs(run, k * records, sigma, delta) for k in (2, 1))
                own, passes = ours(run, records, delta), needed(removed, 1.0)
                print(
                    f"| {b} | {sigma} | {records} | {needed(exchanged, 1.0)} | {passes} | "
                    f"{needed(own, 1.0)} | "
                    f"{removed(passes):.3f} | {own(passes):.3f} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()

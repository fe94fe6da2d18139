"""Heller and Fetaya 2023: a private posterior, and SGLD that is not private on its way there."""

from __future__ import annotations

import math

import numpy as np

from lastiterate.bayes import LinearModel, RatioDomain, lemma_bound, posterior_curve
from lastiterate.curves import Rdp
from lastiterate_papers.item import Item, Panel, Result, Row, Setting, Trace, Work, near
from lastiterate_papers.sgld_law import Chain, common_law, neighbour_laws
from lastiterate_papers.sgld_privacy import best_witness, chernoff_epsilon

PAPER = "Heller, Fetaya 2023 (SaTML, arXiv:2110.05057)"
MODEL = LinearModel()


def figure_1(work: Work) -> Result:
    """Compare epsilon of SGLD from below, over passes, with the posterior's from above."""
    n, ratio, delta = int(work.number("n")), work.number("ratio"), work.number("delta")
    chain = Chain.paper(MODEL, n, ratio=ratio)
    domain = RatioDomain.paper(n=n, exponent=work.number("exponent"), ratio=ratio)
    posterior = posterior_curve(MODEL, domain).epsilon(delta)
    turning = n / 2 * math.log(n + 2)
    passes = tuple(
        sorted(
            {max(1, round(p)) for p in np.geomspace(turning / 60, turning * 12, work.size(21, 81))}
        )
    )
    below = [chernoff_epsilon(chain, p * n, delta) for p in passes]
    best = [best_witness(chain, p * n, delta).epsilon(delta) for p in passes]
    top = int(np.argmax(below))
    around = sorted(
        {
            round(p)
            for p in np.linspace(passes[max(0, top - 1)], passes[min(len(passes) - 1, top + 1)], 61)
        }
    )
    peaks = [chernoff_epsilon(chain, p * n, delta) for p in around]
    highest, at = max(zip(peaks, around, strict=True))
    pair = [MODEL.posterior(*both) for both in _equation_8(n, ratio)]
    orders = 1 + np.geomspace(0.02, 200, 400)
    values = [
        max(gaussian_renyi(a, *pair), gaussian_renyi(a, *pair[::-1])) for a in orders.tolist()
    ]
    kept = np.isfinite(values)
    of_pair = Rdp(
        orders=tuple(orders[kept].tolist()), values=tuple(np.array(values)[kept].tolist())
    )
    rows = (
        Row("posterior sample: epsilon at most, every pair of the domain", posterior),
        Row(
            "posterior sample: epsilon at most, the pair of equation 8 by its Renyi divergences",
            of_pair.epsilon(delta),
        ),
        Row("SGLD: largest bound of Appendix A-E over the passes", highest),
        Row("passes at which that is", float(at)),
        Row("SGLD: the best half line", max(best)),
        Row(
            "the claim of Theorem IV.1: SGLD's bound over the posterior's",
            highest / posterior,
            1.0,
            0.0,
            ">=",
        ),
    )
    traces = (
        Trace("SGLD, Chernoff as published", passes, tuple(below), "lower"),
        Trace("SGLD, the best half line", passes, tuple(best), "audit"),
        Trace("posterior sample, certified", passes, (posterior,) * len(passes)),
    )
    return Result(
        rows,
        (Panel(f"n = {n}, c = {ratio:g}", "passes", f"epsilon at {delta:g}", traces, True, True),),
        {
            "n": n,
            "ratio": ratio,
            "delta": delta,
            "exponent": work.number("exponent"),
            "alpha = beta = x_high": 1.0,
            "x_low": 0.5,
        },
        (
            "The figure's parameters are not published in the text at hand; give others with --set "
            "n=..., "
            "ratio=..., delta=..., exponent=... The claim compared is the theorem's: SGLD's "
            "epsilon exceeds "
            "the posterior's.",
        ),
    )


def _equation_8(n: int, ratio: float) -> tuple[tuple[np.ndarray, np.ndarray], ...]:
    """The two data sets: all records (1, c), or one of them (1/2, c/2)."""
    x = np.ones(n)
    other = np.append(np.ones(n - 1), 0.5)
    return (x, ratio * x), (other, ratio * other)


def _printed_law(n: int, ratio: float, epochs: int) -> tuple[float, float, np.ndarray, np.ndarray]:
    """Lemma A.2 and equation 22 as printed (alpha = beta = x_high = 1): data set 1, and set 2 for
    every place."""
    eta = 2 / ((1 + n) * n**2)
    lam, hat = 1 - eta / 2 * (1 + n), 1 - eta / 2 * (1 + n / 4)
    rho, rho_hat = eta / 2 * n * ratio, eta / 2 * n * ratio / 4
    steps = epochs * n
    mean = rho * (1 - lam**steps) / (1 - lam)
    variance = lam ** (2 * steps) + eta * (1 - lam ** (2 * steps)) / (1 - lam**2)
    r = np.arange(1, n + 1)
    kappa = lam ** (n - 1) * hat
    moved = (
        rho * hat * lam ** (n - r) * (1 - lam ** (r - 1)) / (1 - lam)
        + rho_hat * lam ** (n - r)
        + rho * (1 - lam ** (n - r)) / (1 - lam)
    )
    spread = (
        hat**2 * lam ** (2 * (n - r)) * (1 - lam ** (2 * (r - 1))) / (1 - lam**2)
        + lam ** (2 * (n - r))
        + (1 - lam ** (2 * (n - r))) / (1 - lam**2)
    )
    grown = kappa**epochs
    return (
        mean,
        variance,
        moved * (1 - grown) / (1 - kappa),
        grown**2 + eta * spread * (1 - grown**2) / (1 - kappa**2),
    )


def lemma_a2(work: Work) -> Result:
    """Compare the exact distribution of SGLD: printed closed form, our shifted form, and the
    recursion step by step."""
    n, ratio, epochs = 50, 100.0, work.size(20, 200)
    chain = Chain.paper(MODEL, n, ratio=ratio)
    mean, variance, means, variances = _printed_law(n, ratio, epochs)
    ours, spread = common_law(chain, epochs * n)
    others, spreads = neighbour_laws(chain, epochs * n)
    states, squares = np.zeros(n), np.ones(n)  # one chain for every place of the differing record
    for step in range(epochs * n):
        x = np.where(np.arange(n) == step % n, 0.5, 1.0)
        factor = 1 - chain.step_size / 2 * (1 + n * x**2)
        states = factor * states + chain.step_size / 2 * n * ratio * x**2
        squares = factor**2 * squares + chain.step_size
    rows = (
        near("data set 1: mean", ours + ratio, mean, 1e-9),
        near("data set 1: variance", spread, variance, 1e-9),
        Row(
            "data set 2: largest difference of means over positions, relative",
            float(np.abs((others + ratio) / means - 1).max()),
            0.0,
            1e-9,
        ),
        Row(
            "data set 2: largest difference of variances, relative",
            float(np.abs(spreads / variances - 1).max()),
            0.0,
            1e-9,
        ),
        Row(
            "the recursion against the printed form: largest difference of means, relative",
            float(np.abs(states / means - 1).max()),
            0.0,
            1e-9,
        ),
        Row(
            "the recursion against the printed form: largest difference of variances, relative",
            float(np.abs(squares / variances - 1).max()),
            0.0,
            1e-9,
        ),
    )
    place = tuple(range(1, n + 1))
    traces = (
        Trace("Lemma A.2", place, tuple(means), "claimed"),
        Trace("recursion", place, tuple(states), "audit"),
    )
    return Result(
        rows,
        (
            Panel(
                f"mean on data set 2 after {epochs} passes", "place of the record", "mean", traces
            ),
        ),
        {"n": n, "ratio": ratio, "passes": epochs, "alpha = beta = x_high": 1.0},
        ("Lemma A.2 and equation 22 as restored in this project, in plain arithmetic.",),
        restored=True,
    )


def gaussian_renyi(order: float, one: tuple[float, float], two: tuple[float, float]) -> float:
    """Renyi divergence of N(mean, variance) pairs; infinite where it does not exist."""
    (m1, v1), (m2, v2) = one, two
    mixed = order * v2 + (1 - order) * v1
    if mixed <= 0:
        return math.inf
    logs = math.log(v2 / v1) / 2 + math.log(v2 / mixed) / (2 * (order - 1))
    return logs + order * (m1 - m2) ** 2 / (2 * mixed)


def scaling(work: Work) -> Result:
    """The rates behind Theorem IV.1: the posterior's c^2/n^3 and SGLD's c^2/n^2 (log factors
    apart)."""
    ns = (1000, 3000, 10_000, 30_000) if not work.quick else (1000, 3000, 10_000)
    above, below = list[float](), list[float]()
    for n in ns:
        ratio = float(n) ** 1.5
        work.progress(f"n {n}")
        domain = RatioDomain(n=n, ratio=ratio, spread=0.0)
        flat = RatioDomain(n=n, ratio=1e-9, spread=0.0)
        above.append(
            float(lemma_bound(2.0, MODEL, domain) - lemma_bound(2.0, MODEL, flat)) / ratio**2
        )
        chain = Chain.paper(MODEL, n, ratio=ratio)
        step = round(n / 2 * math.log(n)) * n
        mean, variance = common_law(chain, step)
        means, _ = neighbour_laws(chain, step)
        below.append(float(((mean - means) ** 2).mean()) / variance / ratio**2 / math.log(n) ** 2)
    slopes = [float(np.polyfit(np.log(ns), np.log(line), 1)[0]) for line in (above, below)]
    rows = (
        Row("posterior: slope over n of the part that grows with c^2", slopes[0], -3.0, 0.05),
        Row("SGLD: slope over n of gap^2/variance, over c^2 log(n)^2", slopes[1], -2.0, 0.1),
        Row(
            "SGLD: gap^2/variance over c^2 log(n)^2/n^2, largest n (9/128 = 0.0703 in the limit)",
            below[-1] * ns[-1] ** 2,
        ),
    )
    traces = (Trace("posterior", ns, tuple(above)), Trace("SGLD", ns, tuple(below), "lower"))
    return Result(
        rows,
        (Panel("what one unit of c^2 costs", "n", "", traces, True, True),),
        {"n": list(ns), "ratio": "n^1.5", "alpha = beta = x_high": 1.0, "x_low": 0.5},
        (
            "Published: O(c^2/n^3) and Omega(c^2/n^2); the constant 9/128 is derived in this "
            "project, and "
            "not compared.",
        ),
    )


ITEMS = (
    Item(
        "heller-fetaya-fig1",
        PAPER,
        "Figure 1: SGLD from below, the posterior from above, over passes",
        "matches",
        figure_1,
        settings={
            "n": Setting(1000.0, 2, 1e6, whole=True),
            "ratio": Setting(5623.0, 1e-6, 1e12),
            "delta": Setting(1e-5, 1e-15, 0.1),
            "exponent": Setting(1 / 64, 1e-3, 0.499),
        },
        finding="SGLD on its way leaks at least [SGLD: largest bound of Appendix A-E over the "
        "passes] where one "
        "posterior sample costs at most [posterior sample: epsilon at most, every pair of the "
        "domain].",
    ),
    Item(
        "heller-fetaya-lemma-a2",
        PAPER,
        "Lemma A.2: the exact distribution of SGLD",
        "restored",
        lemma_a2,
        finding="The restored closed form equals the recursion to rounding.",
    ),
    Item(
        "heller-fetaya-rates",
        PAPER,
        "Theorem IV.1: the rates of both epsilons over n",
        "matches",
        scaling,
        finding="Fitted rates are [posterior: slope over n of the part that grows with c^2] and "
        "[SGLD: slope over n "
        "of gap^2/variance, over c^2 log(n)^2], as the theorem says.",
    ),
)

"""Bounded domains without smoothness: against exact projected chains, closed forms and the general
optimum."""

import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

import lastiterate as li
from lastiterate.analysis.shifts import best_restart, optimal_mu
from lastiterate.analysis.step_map import Modulus, search_restart_mu
from lastiterate.curves.gaussian import Gdp
from lastiterate.run.facts import FLOAT_SLACK
from lastiterate.theorems import TABLE
from lastiterate.theorems.theorem import Applies, Fails, match
from oracles.gaussian import chain_delta
from tiers import size

LIPSCHITZ, HOELDER = "lipschitz-bounded-domain", "hoelder-bounded-domain"


def run_of(steps=50, radius=0.5, eta=0.1, std=0.7, loss=None, n=20, **more):
    settings = dict(
        n=n,
        steps=steps,
        step_size=li.Constant(eta),
        noise=li.GradientNoise(std),
        domain=li.domains.Ball(radius),
        loss=loss or li.KnownConstants(li.LossFacts(lipschitz=1.0)),
    )
    return li.Run(**settings | more)


def mu_of(name, run):
    result = match(TABLE[name], run)
    assert isinstance(result, Applies), result
    return result.curve.mu


def test_equal_shifts_are_best_for_bounded_gradients():
    for eta, steps in product((1e-3, 0.02, 0.5, 5.0), (1, 7, 400)):
        move = 2 * eta * (1 + FLOAT_SLACK)
        paths = [(1 + k * move) / math.sqrt(k) for k in range(1, steps + 1)]
        exact = min(*paths, math.sqrt(steps) * move) / (eta * 0.7)
        ours = mu_of(LIPSCHITZ, run_of(steps, eta=eta))
        assert exact * (1 - 1e-12) <= ours <= exact * (1 + 3e-3), (eta, steps)


def test_exponent_one_is_a_lipschitz_constant():
    for growth, shift, steps in product((0.0, 0.01, 0.3), (0.0, 0.02), (1, 5, 300)):
        c, s = np.full(steps, 1 + growth), np.full(steps, shift)
        exact = best_restart(c, s, np.full(steps, 0.3), 0.8)
        ours = search_restart_mu(Modulus(growth, 1.0, shift), 0.3, steps, 0.8)
        assert exact * (1 - 1e-9) <= ours <= exact * (1 + 3e-3), (growth, shift, steps)


def test_paths_are_as_good_as_a_search_over_all_grids():
    """Dynamic programming over distances on a grid of 300 finds nothing that is better by more than
    the grid."""
    for exponent, growth, shift, most in product(
        (0.3, 0.7), (0.05, 0.4), (0.01, 0.1), (0.15, math.inf)
    ):
        w = Modulus(growth, exponent, shift, most)
        z = np.linspace(0, 1, 301)
        price = np.maximum(w(z)[:, None] - z[None, :], 0) ** 2
        cost = np.where(z == 0, 0.0, np.inf)
        for steps in range(1, 9):
            cost = (price + cost[None, :]).min(1)
            found = search_restart_mu(w, 1.0, steps, 1.0)
            assert found <= math.sqrt(cost[-1]) * (1 + 2e-3), (w, steps)
            assert found >= math.sqrt(cost[-1]) * 0.97


def maps(rng, eta, hoelder, exponent, bound):
    """Steps whose gradients are Hoelder with a bound, one of them repelling: the worst case."""
    sign = float(rng.choice([1.0, -1.0]))
    scale = hoelder / 2 ** (1 - exponent)  # sign(x) |x|^l has Hoelder constant 2^(1 - l)

    def gradient(x):
        return sign * np.clip(scale * np.sign(x) * np.abs(x) ** exponent, -bound, bound)

    return gradient


@pytest.mark.parametrize("seed", range(8))
def test_projected_chains(seed):
    rng = np.random.default_rng(seed)
    steps, half, eta = (
        int(rng.integers(1, 6)),
        float(rng.uniform(0.1, 0.6)),
        float(rng.uniform(0.1, 1)),
    )
    hoelder, exponent, L = (
        float(rng.uniform(0.3, 2)),
        float(rng.choice([0.3, 0.6, 1.0])),
        float(rng.uniform(0.2, 1)),
    )
    v, n = float(rng.uniform(0.05, 0.4)) * eta, 2
    gradient = maps(rng, eta, hoelder, exponent, L)
    blocks = rng.random(steps) < 0.7
    # the other record is as it was; this one pulls by +L, or -L instead, in the steps that meet it
    chain = [
        (
            lambda x, met=met: x - eta * (gradient(x) + (L if met else gradient(x))) / n,
            lambda x, met=met: x - eta * (gradient(x) + (-L if met else gradient(x))) / n,
            v,
        )
        for met in blocks
    ]
    facts = li.LossFacts(lipschitz=L, hoelder=hoelder, hoelder_exponent=exponent)
    run = run_of(
        steps, half, eta, math.sqrt(v) / eta, li.KnownConstants(facts), n, adjacency="replace-one"
    )
    curves = [Gdp(mu_of(name, run)) for name in (LIPSCHITZ, HOELDER)]
    assert curves[1].mu <= curves[0].mu * (1 + 1e-3), "a Hoelder constant can only help"
    for epsilon in (0.0, 0.5, 2.0):
        exact = chain_delta(epsilon, chain, -half, half, cells=1001)
        assert min(curve.delta(epsilon) for curve in curves) >= exact - 3e-4, (
            "the grid is good to 3e-4"
        )


def test_attained_by_one_step_from_the_ends():
    """K = [-h, h], a huge first step separates the two, the last pulls them apart: mu = (D + 2 eta
    L) / std."""
    h, eta, L, v = 0.4, 0.5, 1.0, 0.3
    chain = [
        (lambda x: 0 * x - 9, lambda x: 0 * x + 9, 1e-9),
        (lambda x: x - eta * L, lambda x: x + eta * L, v),
    ]
    exact = chain_delta(1.0, chain, -h, h, cells=4001)
    mu = search_restart_mu(Modulus(0.0, 1.0, 2 * eta * L), v, 1, 2 * h)
    assert mu == pytest.approx((2 * h + 2 * eta * L) / math.sqrt(v))
    assert exact <= Gdp(mu).delta(1.0) and exact > Gdp(0.5 * mu).delta(1.0)


def test_modulus_and_its_inverse():
    z = np.linspace(0, 3, 400)
    for w in (
        Modulus(0.3, 0.5, 0.1),
        Modulus(0.3, 0.5, 0.1, 0.4),
        Modulus(0.0, 1.0, 0.2),
        Modulus(2.0, 1.0, 0.0),
    ):
        assert (np.diff(w(z)) > 0).all() and (w(z) >= z).all()
        assert w.inverse(w(z)) == pytest.approx(z, abs=1e-7)
        inner = z[(z > 0.05) & (np.abs(w(z) - z - w.most) > 1e-2)]
        assert w.slope(inner) == pytest.approx((w(inner + 1e-7) - w(inner - 1e-7)) / 2e-7, rel=1e-5)


def test_what_is_needed():
    clipped = run_of(loss=li.KnownConstants(), clip=1.0)
    found = li.account(clipped)
    names = {v.theorem.name for v in found.certifying}
    assert LIPSCHITZ in names and "shifted-interpolation" not in names, (
        "clips and projections suffice"
    )
    long = li.account(replace(clipped, steps=10**6, n=1))
    assert long.best(1e-5).theorem.name == LIPSCHITZ and long.epsilon(1e-5) == li.account(
        replace(clipped, steps=10**5, n=1)
    ).epsilon(1e-5)
    assert mu_of(LIPSCHITZ, replace(clipped, batching=li.Permuted(3))) == mu_of(LIPSCHITZ, clipped)
    for batching in (li.Poisson(0.1), li.BallsInBins(5)):
        assert isinstance(match(TABLE[LIPSCHITZ], replace(clipped, batching=batching)), Fails)
    ridged = run_of(loss=li.Softmax(classes=3, ridge=0.5), eta=4.0)
    assert isinstance(match(TABLE[LIPSCHITZ], ridged), Applies)
    assert isinstance(match(TABLE[LIPSCHITZ], replace(ridged, step_size=li.Constant(4.1))), Fails)
    silent = replace(clipped, noise=li.GradientNoise(0.0))
    assert mu_of(LIPSCHITZ, silent) == math.inf
    facts = li.LossFacts(sensitivity=0.3, hoelder=0.2, hoelder_exponent=0.5)
    rough = run_of(loss=li.KnownConstants(facts))
    expected = math.sqrt(50) * 0.1 * 0.3 / 20 / 0.07
    assert mu_of(HOELDER, rough) == pytest.approx(expected, rel=1e-9), (
        "a short run: every step is charged"
    )
    assert mu_of(HOELDER, replace(rough, batching=li.Cyclic(5))) > expected * 1.001, (
        "divided by the smaller b"
    )
    long = search_restart_mu(Modulus(0.1 * 0.2, 0.5, 0.1 * 0.3 / 20), 0.07**2, 10**6, 1.0)
    assert mu_of(HOELDER, replace(rough, steps=10**6)) == pytest.approx(long, rel=1e-9)
    assert li.Run.from_json(rough.to_json()) == rough
    for bad in (
        dict(hoelder=1.0),
        dict(hoelder_exponent=0.5),
        dict(hoelder=1.0, hoelder_exponent=1.5),
    ):
        with pytest.raises(li.Run.from_dict.__globals__["InputError"], match="hoelder"):
            li.LossFacts(**bad)


@pytest.mark.parametrize("name", [LIPSCHITZ, HOELDER])
def test_monotone(name):
    rng = np.random.default_rng(7)
    for _ in range(size(6, 12, "MONOTONE")):
        L, H, eta, radius = (float(10 ** rng.uniform(-2, 0.5)) for _ in range(4))
        facts = dict(lipschitz=L, hoelder=H, hoelder_exponent=float(rng.uniform(0.1, 1)))
        run = run_of(
            int(rng.integers(1, 200)), radius, eta, loss=li.KnownConstants(li.LossFacts(**facts))
        )
        now = mu_of(name, run)
        for change in (
            {"steps": run.steps + 7},
            {"noise": li.GradientNoise(0.5)},
            {"domain": li.domains.Ball(radius * 1.3)},
            {"loss": li.KnownConstants(li.LossFacts(**facts | {"lipschitz": 1.5 * L}))},
            {"loss": li.KnownConstants(li.LossFacts(**facts | {"hoelder": 1.5 * H}))},
        ):
            assert mu_of(name, replace(run, **change)) >= now * (1 - 3e-3), (
                change,
                run,
            )  # paths are searched


def test_no_restart_is_better_than_the_one_that_is_found():
    """Against every restart, on schedules whose cost over restarts has bumps: one behind each step
    of the record."""
    rng = np.random.default_rng(0)
    for _ in range(60):
        steps, blocks, grown = (
            int(rng.integers(2, 90)),
            int(rng.integers(1, 12)),
            rng.choice([1.0, 1.15]),
        )
        c, v, s = rng.uniform(0.6, 1, steps) * grown, rng.uniform(0.1, 1, steps), np.zeros(steps)
        s[rng.integers(blocks) :: blocks] = rng.uniform(0.1, 1)
        diameter = 10 ** rng.uniform(-2, 1)
        every = min(optimal_mu(c[-w:], s[-w:], v[-w:], diameter) for w in range(1, steps + 1))
        assert every <= best_restart(c, s, v, diameter) <= every * (1 + 1e-12)

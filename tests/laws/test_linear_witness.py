"""The lower bound for batches drawn afresh: below the exact mixture, near it, and below what certifies."""

import math
import tomllib
from dataclasses import replace
from math import comb
from pathlib import Path

import numpy as np
import pytest

import lastiterate as li
from lastiterate.run.facts import FLOAT_SLACK
from lastiterate.theorems import TABLE
from lastiterate.theorems.linear_witness import MOST_ATOMS, draws
from lastiterate.theorems.theorem import Fails, match
from oracles.gaussian import hidden_place_delta

GOLDEN = tomllib.loads((Path(__file__).parents[1] / "golden" / "poisson.toml").read_text())


def run_of(steps=20, rate=0.3, z=0.5, n=100, **more):
    settings = dict(
        n=n,
        steps=steps,
        step_size=li.Constant(0.7),
        noise=li.NoiseMultiplier(z),
        batching=li.Poisson(rate),
        loss=li.Abstract(li.LossFacts(lipschitz=1.5, smooth=1.0, strong=0.0)),
    )
    return li.Run(**settings | more)


def witness(run):
    return match(TABLE["linear-witness"], run).bound


def test_published_setting():
    row = GOLDEN["linear_witness"]
    run = run_of(row["steps"], row["rate"], row["noise_multiplier"], 10_000)
    found = witness(run).epsilon(row["delta"])
    assert row["epsilon"] - 2e-4 < found <= row["epsilon"] + 5e-5
    assert li.account(run, at_least=li.Evidence.ASSUMED).lower(row["delta"]) == found


@pytest.mark.parametrize(
    "steps, rate, z", [(1, 0.3, 0.5), (20, 0.3, 1.2), (50, 0.05, 0.8), (7, 1.0, 3.0), (30, 0.9, 2.0)]
)
def test_below_the_exact_mixture_and_near_it(steps, rate, z):
    m = 1 / (z * math.sqrt(steps))
    weights = [comb(steps, k) * rate**k * (1 - rate) ** (steps - k) for k in range(steps + 1)]
    mus = [k * m for k in range(steps + 1)]
    curve = witness(run_of(steps, rate, z))
    for epsilon in (0.0, 0.4, 1.5):
        exact = hidden_place_delta(epsilon, weights, mus)
        assert exact * (1 - 1e-6) - 1e-8 <= curve.delta(epsilon) <= exact + 2e-8


def test_never_above_what_certifies():
    rng = np.random.default_rng(5)
    for _ in range(6):
        run = run_of(int(rng.integers(1, 200)), float(rng.uniform(0.01, 0.9)), float(rng.uniform(0.4, 3)))
        found, delta = li.account(run, at_least=li.Evidence.ASSUMED), 10 ** rng.uniform(-7, -2)
        assert 0 <= found.lower(delta) <= found.epsilon(delta)
        fixed = li.account(replace(run, batching=li.FixedSize(7)), at_least=li.Evidence.ASSUMED)
        assert 0 <= fixed.lower(delta) <= fixed.epsilon(delta)


def test_units_of_the_pull():
    """The mean shift is eta L K / b, whatever noise convention, start and kind of batch describe the run."""
    run = run_of(rate=0.25, z=2.0)
    curve = witness(run)
    assert max(curve.mus) == pytest.approx(20 / (2.0 * math.sqrt(20)))
    assert witness(replace(run, batching=li.FixedSize(25))) == curve
    assert witness(replace(run, noise=li.GradientNoise(2.0 * 1.5 / 25))).mus == pytest.approx(curve.mus)
    eta, std = 0.7, 2.0 * 1.5 / 25
    wide = witness(replace(run, start=li.GaussianStart(0.3)))
    assert max(wide.mus) == pytest.approx(20 * eta * 1.5 / 25 / math.sqrt(20 * (eta * std) ** 2 + 0.09))
    given = replace(run, loss=li.Abstract(li.LossFacts(sensitivity=0.5, lipschitz=1.5)), noise=li.GradientNoise(std))
    assert max(witness(given).mus) == pytest.approx(max(curve.mus) / 3)
    halved = replace(given, loss=li.Abstract(li.LossFacts(sensitivity=0.5)), batching=li.FixedSize(25))
    assert max(witness(halved).mus) == pytest.approx(max(curve.mus) / 3)
    clipped = replace(given, loss=li.Abstract(), clip=1.5)
    assert max(witness(clipped).mus) == pytest.approx(max(curve.mus)) and FLOAT_SLACK > 0.005, (
        "no slack in a lower bound"
    )
    assert witness(replace(run, noise=li.GradientNoise(0.0))).epsilon(1e-5) == 0, "no statement"
    every = replace(run, batching=li.Poisson(1.0), noise=li.GradientNoise(0.0))
    assert witness(every).epsilon(1e-5) == math.inf
    weak = replace(every, loss=li.Abstract(li.LossFacts(lipschitz=0.2, smooth=1.0, strong=0.0)))
    assert witness(weak).epsilon(1e-5) == math.inf, "however short the pull"
    assert witness(replace(run, loss=li.Abstract(li.LossFacts(sensitivity=0.0, lipschitz=1.0)))).epsilon(1e-5) == 0


def test_ridges_are_not_in_the_class():
    ridged = match(TABLE["linear-witness"], run_of(loss=li.Logistic(ridge=0.1)))
    assert isinstance(ridged, Fails) and "strongly convex" in ridged.reasons[0]
    assert witness(run_of(loss=li.Logistic())).delta(0.1) > 0
    assert witness(run_of(release="all")) == witness(run_of())


@pytest.mark.parametrize(
    "steps, rate", [(10, 0.3), (10_000, 0.01), (10**6, 0.5), (10**7, 1e-6), (50, 1.0), (10**9, 0.3)]
)
def test_draws_are_binomial_and_rounded_down(steps, rate):
    count, weights = draws(steps, rate)
    assert weights.sum() == pytest.approx(1, abs=1e-12) and (weights >= 0).all() and count.size <= MOST_ATOMS + 1
    assert rate == 1 or count[0] == 0, "what is rounded away counts as no draw"
    mean, var = (weights * count).sum(), (weights * count**2).sum() - (weights * count).sum() ** 2
    width = max(1.0, np.diff(np.sort(count)[1:]).max()) if count.size > 2 else 1.0
    assert steps * rate - width - 1e-6 <= mean <= steps * rate + 1e-6
    assert var == pytest.approx(steps * rate * (1 - rate), rel=2e-2, abs=1e-6)
    if steps == 10:
        exact = [comb(10, k) * 0.3**k * 0.7 ** (10 - k) for k in range(11)]
        assert weights[1:] == pytest.approx(exact, rel=1e-9) and weights[0] < 2e-11

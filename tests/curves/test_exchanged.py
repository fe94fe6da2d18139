"""Replace-one by the best split: never below an exact exchange, and what is known of Poisson
batches."""

import json
import math

import numpy as np
import pytest
from scipy.special import log_ndtr, ndtr

import lastiterate as li
from lastiterate.curves.allocation import AllocationPld, SecretBins
from lastiterate.curves.composition import curve_from_dict
from lastiterate.curves.curve import BestOf, Exchanged, WithFailure
from lastiterate.curves.gaussian import Gdp, GdpMixture
from lastiterate.curves.renyi import _log_integral, _log_tail, divergence_of, renyi_divergence
from lastiterate.curves.sampled_batches import FixedSizeSteps, Pld
from lastiterate.errors import InputError


def mixture(x, q, z, sign):
    return (1 - q) * np.exp(-((x / z) ** 2) / 2) + q * np.exp(-(((x - sign) / z) ** 2) / 2)


@pytest.mark.parametrize("q, z", [(0.2, 1.0), (0.5, 2.0), (0.05, 0.7)])
def test_one_poisson_step_with_opposite_records(q, z):
    """The exact pair q N(1) + (1 - q) N(0) against q N(-1) + (1 - q) N(0): records that pull to
    opposite sides."""
    x = np.linspace(-14 * z - 2, 14 * z + 2, 200_001)
    p, w = (mixture(x, q, z, sign) / (z * math.sqrt(2 * math.pi)) for sign in (1, -1))
    curve = Exchanged(Pld(q, (z,), (1,)))
    for epsilon in (0.0, 0.3, 1.0, 3.0):
        true = np.maximum(p - math.exp(epsilon) * w, 0).sum() * (x[1] - x[0])
        assert (
            true * (1 - 1e-6)
            <= curve.delta(epsilon)
            <= Pld(q, (z,), (1,)).group(2).delta(epsilon) * (1 + 1e-9)
        )


def test_a_gaussian_mechanism():
    """Exactly 2 mu; the split bound lies above it, and far below the split into halves."""
    for mu in (0.2, 1.0, 4.0):
        split, exact = Exchanged(Gdp(mu)), Gdp(2 * mu)
        for delta in (1e-2, 1e-6):
            assert exact.epsilon(delta) <= split.epsilon(delta)
            assert split.delta(split.epsilon(delta)) <= delta * (1 + 1e-3)
        for epsilon in (0.0, 0.5, 3.0):
            assert exact.delta(epsilon) <= split.delta(epsilon) * (1 + 1e-12)
        assert split.epsilon(1e-6) < 1.35 * exact.epsilon(1e-6)
        assert Gdp(mu).replace_one_curve().mu == pytest.approx(2 * mu)


def test_poisson_batches():
    """q = .02, z = .8, 200 steps, delta 1e-5: 5.07 at the best split, 9.14 at the equal one; linear
    losses: 4.10."""
    curve = Pld(0.02, (0.8,), (200,))
    best = curve.replace_one_curve().epsilon(1e-5)
    assert 4.10 < best < 5.08 and curve.group(2).epsilon(1e-5) > 9
    run = li.Run(
        n=1000,
        steps=200,
        step_size=1.0,
        noise=li.NoiseMultiplier(0.8),
        batching=li.Poisson(0.02),
        loss=li.KnownConstants(li.LossFacts(lipschitz=1.0)),
    )
    found = li.account(run, min_evidence=li.Evidence.ASSUMED)
    assert found.replace_one_epsilon(1e-5) == pytest.approx(best, rel=1e-6)


@pytest.mark.parametrize(
    "curve",
    [
        Pld(0.05, (1.5,), (100,)),
        SecretBins((1.0,), (20,)),
        FixedSizeSteps(0.05, (3.0,), (100,)),
        AllocationPld(20, (2.0,), (3,)),
        GdpMixture((0.5, 0.5), (0.3, 1.0)),
        WithFailure(GdpMixture((1.0,), (0.5,)), 1e-9),
    ],
    ids=lambda curve: type(curve).__name__,
)
def test_every_curve_of_a_secret_place(curve):
    one, two, equal = (
        curve.epsilon(1e-6),
        curve.replace_one_curve().epsilon(1e-6),
        curve.group(2).epsilon(1e-6),
    )
    assert one < two <= max(equal, Exchanged(curve).epsilon(1e-6)) * (1 + 1e-9)
    assert Exchanged(curve).epsilon(1e-6) < 3 * one
    for epsilon in (0.5 * one, one):
        removed, added = curve.directions(epsilon)
        assert max(removed, added) == pytest.approx(curve.delta(epsilon), rel=1e-9)
        split = min(
            curve.directions(x)[0] + math.exp(x) * curve.directions(epsilon - x)[1]
            for x in np.linspace(0, epsilon, 60)
        )
        assert Exchanged(curve).delta(epsilon) <= split * 1.02
        assert Exchanged(curve).delta(epsilon) >= curve.delta(epsilon)


def test_json_and_limits():
    curve = Exchanged(SecretBins((1.0,), (20,)))
    assert curve_from_dict(json.loads(json.dumps(curve.to_dict()))) == curve
    assert isinstance(BestOf((Gdp(1.0), SecretBins((1.0,), (9,)))).replace_one_curve(), BestOf)
    assert (
        Exchanged(Gdp(0.0)).epsilon(1e-5) <= 1e-6
        and Exchanged(Gdp(math.inf)).epsilon(1e-5) == math.inf
    )
    assert Exchanged(WithFailure(Gdp(0.5), 1e-6)).epsilon(1e-7) == math.inf
    with pytest.raises(InputError):
        curve.replace_one_curve()


def test_integrals_of_curves_are_rounded_up():
    """delta is not convex in epsilon below the mean loss: chords in epsilon would lie below it
    there."""
    for mu, points, order in ((4.0, 9, 1.5), (4.0, 40, 3.0), (1.0, 12, 6.0), (0.1, 30, 20.0)):
        end = mu * mu / 2 + 6 * mu
        grid, fine = np.linspace(0, end, points), np.linspace(0, end, 200_001)

        def delta(e, mu=mu):
            return ndtr(mu / 2 - e / mu) - np.exp(e + log_ndtr(-mu / 2 - e / mu))

        for rate in (order - 1, -order):
            exact = np.trapezoid(np.exp(rate * fine) * delta(fine), fine)
            ours = math.exp(_log_integral(grid, delta(grid), rate))
            assert exact * (1 - 1e-8) <= ours <= exact * (1 + 5 * end / points)


def test_tails_beyond_a_grid():
    cases = (
        (1.0, 1.0, 3.0, 2.0),
        (0.5, 0.05, 8.0, 0.1),
        (2.0, 0.2, 2.0, 3.0),
        (1.0, 0.5, 1.3, 1.0),
    )
    for mu, rate, order, end in cases:
        e = end + np.linspace(0, 60 * mu + 5 * order * mu * mu, 400_001)
        inner = e + math.log(1 / rate) + np.log1p(-(1 - rate) * np.exp(-e))
        delta = rate * np.maximum(
            ndtr(mu / 2 - inner / mu) - np.exp(inner + log_ndtr(-mu / 2 - inner / mu)), 0
        )
        exact = order * (order - 1) * np.trapezoid(np.exp((order - 1) * e) * delta, e)
        assert exact * (1 - 1e-6) <= math.exp(_log_tail(end, order, mu, rate)) <= 100 * exact


def test_divergences_at_the_edges():
    curve = SecretBins((1.0,), (4,))
    assert (
        renyi_divergence(curve, 2.0, 0.0) == 0
        and renyi_divergence(curve, 2.0, math.inf) == math.inf
    )
    assert renyi_divergence(curve, 1.0, 1.0) == math.inf
    for mu in (0.3, 2.0):
        for order in (1.2, 3.0, 9.0):
            exact = order * mu * mu / 2
            grid, found = np.linspace(0, mu * mu / 2 + 9 * mu, 300), Gdp(mu)
            values = np.array([found.delta(float(e)) for e in grid])
            assert divergence_of((grid, values, values), order, 3 * mu) >= exact * (1 - 1e-9)
            assert divergence_of((grid, values, values), order, mu) == pytest.approx(
                exact, rel=1e-9
            )
            low = divergence_of((grid, values, values / 2), order, 3 * mu)
            assert low == divergence_of((grid, values / 2, values), order, 3 * mu), (
                "both orders, whichever is first"
            )

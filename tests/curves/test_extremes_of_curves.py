"""Every kind of curve from epsilon 1e-9 to 1e6 and down to delta 1e-300, against 60-digit
arithmetic."""

import math
from dataclasses import fields, replace

import mpmath as mp
import numpy as np
import pytest

from lastiterate.curves.allocation import AllocationPld, SecretBins
from lastiterate.curves.composition import KINDS
from lastiterate.curves.curve import (
    LEAST_DELTA,
    BestOf,
    Curve,
    EpsDelta,
    Exchanged,
    Grouped,
    WithFailure,
)
from lastiterate.curves.delayed_shifts import AllocatedShifts, DelayedShifts
from lastiterate.curves.gaussian import Gdp, GdpMixture, delta_of_draw
from lastiterate.curves.perturbed_minimum import PerturbedObjective
from lastiterate.curves.renyi import Rdp, SampledRenyi
from lastiterate.curves.sampled_batches import FixedSizeSteps, Pld
from lastiterate.curves.selection import NegativeBinomial, Selected, WorstOf
from lastiterate.errors import InputError
from lastiterate.ledger.filters import _by_later_points

EPSILONS = [0.0, *map(float, np.geomspace(1e-9, 1e6, 31)), 680.0, 705.0, 720.0, 1400.0, 5000.0]
DELTAS = (0.5, 1e-2, 1e-5, 1e-10, 1e-30, 1e-150, LEAST_DELTA)


def gaussian(mu, shift=0.0):
    """The exact delta of a mu-Gaussian mechanism at epsilon - shift; from 0 on."""

    def exact(epsilon):
        e, m = mp.mpf(epsilon) - mp.mpf(shift), mp.mpf(mu)
        return mp.ncdf(m / 2 - e / m) - mp.exp(e) * mp.ncdf(-m / 2 - e / m) if e >= 0 else mp.mpf(0)

    return exact


def sampled(q, mu):
    """The exact delta of one step of q N(mu, 1) + (1 - q) N(0, 1) against N(0, 1)."""

    def exact(epsilon):
        return q * gaussian(mu)(mp.log1p(mp.expm1(mp.mpf(epsilon)) / mp.mpf(q)))

    return exact


def point(at, delta):
    """Randomised response at ``at`` that is undone with probability ``delta``, and groups of one."""

    def exact(epsilon):
        e, e0, d = mp.mpf(epsilon), mp.mpf(at), mp.mpf(delta)
        return d + (max(mp.mpf(0), (1 - mp.exp(e - e0)) / (1 + mp.exp(-e0))) * (1 - d))

    return exact


def mixed(epsilon):
    return (gaussian(2.0)(epsilon) + 3 * gaussian(0.5)(epsilon)) / 4


def nothing(_epsilon):
    return mp.mpf(0)


CURVES = [
    (Gdp(1e-3), gaussian(1e-3)),
    (Gdp(0.35), gaussian(0.35)),
    (Gdp(40.0), gaussian(40.0)),
    (Gdp(900.0), gaussian(900)),
    (GdpMixture((0.25, 0.75), (2.0, 0.5)), mixed),
    (Rdp.linear(0.5), gaussian(1.0)),
    (Rdp.linear(800.0), gaussian(40)),
    (EpsDelta(0.5, 1e-6), point(0.5, 1e-6)),
    (EpsDelta(709.0, 0.0), point(709, 0)),
    (EpsDelta(800.0, 1e-200), point(800, 1e-200)),
    (EpsDelta(400.0, 1e-300).group(2), nothing),
    (Grouped(Gdp(0.35), 200), gaussian(70.0)),
    (Grouped(Gdp(40.0), 2), gaussian(80.0)),
    (Grouped(EpsDelta(0.5, 1e-6), 3), point(0.5, 1e-6)),
    (Grouped(Grouped(Gdp(0.5), 2), 10), gaussian(10.0)),
    (Exchanged(Gdp(40.0)), gaussian(80.0)),
    (Exchanged(Gdp(0.35)), gaussian(0.7)),
    (Grouped(Exchanged(Gdp(2.0)), 5), gaussian(20.0)),
    (WithFailure(Gdp(1.0), 1e-200), gaussian(1.0)),
    (WithFailure(Gdp(40.0), 1e-9).group(3), gaussian(120.0)),
    (BestOf((Gdp(3.0), Rdp.linear(4.5))), gaussian(3.0)),
    (WorstOf((Gdp(3.0), Gdp(1.0))), gaussian(3.0)),
    (Grouped(WorstOf((Gdp(30.0), EpsDelta(1.0, 0.0))), 2), gaussian(60.0)),
    (Selected(Gdp(0.5), NegativeBinomial(1.0, 0.1)), gaussian(0.5)),
    (PerturbedObjective(1.5, 1, 0.2), gaussian(1.5, 0.2)),
    (PerturbedObjective(40.0, 1, 0.2), gaussian(40.0, 0.2)),
    (PerturbedObjective(1.5, 1, 0.2, failure=1e-12), gaussian(1.5, 0.2)),
    (Pld(0.05, (1.0,), (1,)), sampled(0.05, 1.0)),
    (SampledRenyi(0.05, (1.0,), (1,)), sampled(0.05, 1.0)),
    (FixedSizeSteps(0.05, (1.0,), (1,), replaced=True), sampled(0.05, 1.0)),
    (FixedSizeSteps(0.5, (0.1,), (1,)), sampled(0.5, 10.0)),
    (FixedSizeSteps(0.99, (0.1,), (49,)).group(2), nothing),
    (Exchanged(FixedSizeSteps(0.99, (0.1,), (49,))), nothing),
    (SecretBins((1.0,), (1,)), gaussian(1.0)),
    (AllocationPld(1, (2.0,), (4,)), gaussian(1.0)),
    (DelayedShifts(1.0, (1,), (1.0,), (1.0,), (1.0,), 1.2, 30), gaussian(1.0)),
    (AllocatedShifts(1, (1,), (1.0,), (1.0,), (1.0,), 1.2, 30), gaussian(1.0)),
]


def name(value):
    return type(value).__name__ if isinstance(value, Curve) else ""


@pytest.mark.parametrize("curve, exact", CURVES, ids=name)
def test_delta_is_a_falling_upper_bound(curve, exact):
    last = math.inf
    with mp.workdps(60):
        for epsilon in sorted(EPSILONS):
            delta, log_delta, true = curve.delta(epsilon), curve.log_delta(epsilon), exact(epsilon)
            assert 0 <= delta <= 1 and delta <= last * (1 + 1e-9), epsilon
            assert true <= delta, f"delta at {epsilon} is below the exact one"
            assert log_delta <= 0 and (true == 0 or mp.log(true) <= log_delta), epsilon
            assert delta <= math.exp(log_delta) * (1 + 1e-9) + 1e-290
            last = delta


@pytest.mark.parametrize("curve, exact", CURVES, ids=name)
def test_epsilon_and_delta_agree(curve, exact):
    last = 0.0
    with mp.workdps(60):
        for delta in DELTAS:
            epsilon = curve.epsilon(delta)
            assert epsilon >= last * (1 - 1e-9)
            last = epsilon
            if not math.isfinite(epsilon):
                continue
            assert curve.delta(epsilon) <= delta and exact(epsilon) <= delta
            if epsilon > 0 and delta >= 1e-200 and not isinstance(curve, EpsDelta):
                at = curve.delta(epsilon * 1.01)
                assert at < LEAST_DELTA or curve.epsilon(at) <= epsilon * 1.01 * (1 + 1e-6) + 1e-9


def test_every_kind_of_curve_is_among_them():
    def parts(curve):
        yield type(curve).__name__
        for inner in [*getattr(curve, "curves", ()), getattr(curve, "curve", None)]:
            if inner is not None:
                yield from parts(inner)

    seen = {kind for curve, _ in CURVES for kind in parts(curve)}
    assert seen >= {kind for kind, made in KINDS.items() if issubclass(made, Curve)}


@pytest.mark.parametrize("curve", [curve for curve, _ in CURVES], ids=name)
@pytest.mark.parametrize("number", [5e-324, 1e-310, 1e308, math.inf])
def test_numbers_at_the_ends_of_doubles(curve, number):
    assert 0 <= curve.delta(number) <= 1
    if number < 1:
        with pytest.raises(InputError, match="at least 1e-300"):
            curve.epsilon(number)


def test_groups_of_strong_curves():
    """Grouped by the triangle inequality and, where it is better, by the Gaussian mechanism that is
    known."""
    curve = FixedSizeSteps(0.99, (0.1,), (49,))
    grouped = curve.group(2)
    assert 10162.7 < grouped.epsilon(1e-5) < Gdp(140.0).epsilon(1e-5) * (1 + 1e-6)
    assert grouped.delta(10162.7) > 1.7e-3
    many = Grouped(Gdp(0.35), 200)
    assert many.delta(2645.0) > 2.5e-3 and many.epsilon(1e-5) > Gdp(70.0).epsilon(1e-5)


def test_groups_of_a_point_add_up_powers():
    with mp.workdps(60):
        for at, size in ((1e-9, 7), (0.5, 2), (300.0, 3), (690.0, 2), (1e-3, 10**6)):
            one = EpsDelta(at, 1e-300).group(size)
            true = (
                mp.mpf(1e-300) * sum(mp.exp(i * mp.mpf(at)) for i in range(size))
                if size < 100
                else (mp.mpf(1e-300) * mp.expm1(size * mp.mpf(at)) / mp.expm1(mp.mpf(at)))
            )
            assert min(true, 1) <= one.at_delta <= true * (1 + mp.mpf("1e-8"))
    assert EpsDelta(800.0, 1e-300).group(2).at_delta == 1.0, "e^800 does not overflow"


def test_a_point_implies_smaller_epsilons_beyond_600():
    points = np.array([0.0, 590.0, 640.0, 650.0])
    implied = _by_later_points(points, np.array([1.0, 1.0, 1.0, 1e-6]))
    assert implied[2] > 0.9999 and implied[1] == 1.0


def list_without_a_number(curve):
    """Copies of a curve, each with NaN in the place of one number."""
    for item in fields(curve):
        value = getattr(curve, item.name)
        if type(value) in (int, float):
            yield item.name, math.nan
        if isinstance(value, tuple) and all(type(each) in (int, float) for each in value):
            for at in range(len(value)):
                yield item.name, (*value[:at], math.nan, *value[at + 1 :])


@pytest.mark.parametrize("curve", [*(curve for curve, _ in CURVES), Rdp(0.0, (2.0,), (0.5,))])
def test_no_number_of_a_curve_may_be_missing(curve):
    for name, value in list_without_a_number(curve):
        with pytest.raises(InputError):
            replace(curve, **{name: value})


def test_draws_whose_numbers_overflow_have_every_delta():
    assert delta_of_draw(np.array([301.0]), 1e-228, 15.0)[0] == 1e-228
    assert delta_of_draw(np.array([700.0]), 1e-18, 5.0)[0] == 1e-18


def test_a_failure_above_usual_deltas_makes_no_exchange_infinite():
    """At epsilon 0.16 both halves have 0.08, and the failure counts for each."""
    curve = Exchanged(WithFailure(Gdp(0.01), 1e-3))
    assert curve.epsilon(2.3e-3) < 0.2 and curve.delta(0.16) < 2.3e-3

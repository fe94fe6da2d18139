"""Pairs of mixtures: exact events, rounded down; a lower bound is no curve."""

import math

import mpmath as mp
import numpy as np
import pytest
from scipy.special import log_ndtr, ndtr

from lastiterate.curves.composition import compose
from lastiterate.curves.curve import Curve
from lastiterate.curves.gaussian import Gdp
from lastiterate.curves.lower_bound import Largest, LowerBound, MixturePair
from lastiterate.errors import InputError
from oracles.gaussian import gdp_delta, mixture_delta

PAIRS = [
    ((1.0,), (0.8,)),
    ((0.3, 0.7), (0.2, 1.5)),
    ((0.5, 0.5), (0.0, 2.0)),
    ((0.05, 0.9, 0.05), (0.01, 0.02, 5.0)),
    ((0.2, 0.8), (0.003, 0.001)),
    ((0.6, 0.4), (4.0, 9.0)),
]


def forward(epsilon, weights, mus, opposed):
    """H_eps(P || Q) by quadrature."""
    x = np.linspace(-40, 60, 400_001)
    p = sum(w * np.exp(-((x - m) ** 2) / 2) for w, m in zip(weights, mus, strict=True))
    q = sum(w * np.exp(-((x + opposed * m) ** 2) / 2) for w, m in zip(weights, mus, strict=True))
    return np.maximum(p - math.exp(epsilon) * q, 0).sum() * (x[1] - x[0]) / math.sqrt(2 * math.pi)


@pytest.mark.parametrize("opposed", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("weights, mus", PAIRS)
def test_delta_is_exact_and_rounded_down(weights, mus, opposed):
    pair = MixturePair(weights, mus, opposed)
    for epsilon in (0.0, 1e-3, 0.3, 1.0, 4.0):
        exact = forward(epsilon, weights, mus, opposed)
        assert exact * (1 - 1e-6) - 3e-8 <= pair.delta(epsilon) <= exact + 3e-8
        both = mixture_delta(epsilon, (weights, mus), (weights, [-opposed * m for m in mus]), 1.0)
        assert pair.delta(epsilon) <= both + 3e-8


@pytest.mark.parametrize("opposed", [0.0, 1.0])
def test_one_place_is_a_gaussian_pair(opposed):
    for mu in (1e-4, 0.3, 2.0, 12.0, 60.0):
        pair = MixturePair((1.0,), (mu / (1 + opposed),), opposed)
        assert pair.mu == pytest.approx(mu) and opposed + MixturePair.of_one(mu).mu == mu + opposed
        for epsilon in (0.0, 0.2, 3.0, 40.0, 800.0, 1500.0):
            exact = float(gdp_delta(epsilon, mu))
            assert exact * (1 - 1e-5) - 1e-15 <= pair.delta(epsilon) <= exact
        for delta in (0.3, 1e-3, 1e-8, 1e-40):
            exact = Gdp(mu).epsilon(delta)
            assert exact * (1 - 1e-6) - 1e-9 <= pair.epsilon(delta) <= exact
    with pytest.raises(InputError):
        _ = MixturePair((0.5, 0.5), (1.0, 2.0)).mu


@pytest.mark.parametrize("opposed", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("weights, mus", PAIRS)
def test_epsilon_and_delta_invert_one_another(weights, mus, opposed):
    pair = MixturePair(weights, mus, opposed)
    for delta in (0.1, 1e-3, 1e-6, 1e-12):
        found = pair.epsilon(delta)
        if found > 0:
            assert (
                delta * (1 - 1e-6) <= pair.delta(found)
                and pair.delta(found * (1 + 1e-6) + 1e-9) < delta
            )
        else:
            assert pair.delta(0.0) <= delta * (1 + 1e-6)


def test_places_that_shift_to_opposite_sides():
    """Half lines on either side are events: below the exact law, and near it where one side counts."""
    rng = np.random.default_rng(4)
    for _ in range(30):
        mus, opposed = rng.uniform(-2, 3, 4), float(rng.choice([0.0, 0.5, 1.0]))
        weights = rng.dirichlet(np.ones(4))
        sides = [MixturePair(tuple(weights), tuple(sign * mus), opposed) for sign in (1, -1)]
        pair = Largest(tuple(sides))
        for epsilon in (0.0, 0.7, 2.0):
            exact = mixture_delta(epsilon, (weights, mus), (weights, -opposed * mus), 1.0)
            assert 0 <= pair.delta(epsilon) <= exact + 3e-8
            assert pair.delta(epsilon) == max(side.delta(epsilon) for side in sides)
        assert pair.epsilon(1e-3) == max(side.epsilon(1e-3) for side in sides)
    assert pair.to_dict()["bounds"][0] == sides[0].to_dict()
    one = MixturePair((0.99, 0.01), (2.0, -0.01))
    assert one.delta(1.0) == pytest.approx(
        forward(1.0, *[(0.99, 0.01), (2.0, -0.01)], 0.0), rel=1e-5
    )


def test_the_edges():
    """With half of the mass at 0 the likelihood ratio stays above 1/2: beyond log 2 only one
    direction is left."""
    pair = MixturePair((0.5, 0.5), (0.0, 30.0))
    assert pair.delta(0.0) == pytest.approx(0.5, rel=1e-6) and pair.delta(1.0) == pytest.approx(
        0.5, rel=1e-6
    )
    silent = MixturePair((0.5, 0.5), (0.0, 0.0))
    assert silent.delta(0.0) == 0 and silent.delta(1.0) == 0 and silent.epsilon(1e-9) == 0
    many = MixturePair((0.2,) * 5, (0.7, 0.7, 0.7, 0.0, 0.0))
    assert many.delta(0.3) == pytest.approx(
        MixturePair((0.6, 0.4), (0.7, 0.0)).delta(0.3), rel=1e-9
    )
    unused = MixturePair((0.0, 1.0), (5.0, 0.5))
    assert unused.delta(0.1) == pytest.approx(Gdp(0.5).delta(0.1), rel=1e-6)


def test_without_noise_what_participates_is_seen():
    pair = MixturePair((0.7, 0.3), (0.0, math.inf))
    assert pair.delta(5.0) == pytest.approx(0.3) and pair.delta(5.0) <= 0.3
    assert pair.epsilon(0.29) == math.inf and pair.epsilon(0.31) == 0
    mixed = MixturePair((0.5, 0.5), (1.0, math.inf))
    assert 0.5 < mixed.delta(0.1) < 0.6 and mixed.epsilon(0.55) > 0.1
    assert MixturePair.of_one(math.inf).epsilon(1e-3) == math.inf
    sides = MixturePair((0.5, 0.5), (-math.inf, math.inf), 1.0)
    assert sides.delta(0.1) == 0, "the neighbour's other place hides it: the same two points"
    assert MixturePair((0.5, 0.5), (-math.inf, math.inf)).epsilon(0.4) == math.inf


SIDES = [(0.0, 1), (0.4, 1), (1.0, 1), (0.0, -1), (0.7, -1)]
"""How far the neighbour is opposed, and the sign of the smaller mu."""


def exact_tails(weights, mus, opposed, x):
    """P(x, inf) and Q(x, inf) with 40 digits."""
    ahead = mp.fsum(mp.mpf(w) * mp.ncdf(mp.mpf(m) - x) for w, m in zip(weights, mus, strict=True))
    behind = mp.fsum(
        mp.mpf(w) * mp.ncdf(-mp.mpf(opposed) * mp.mpf(m) - x)
        for w, m in zip(weights, mus, strict=True)
    )
    return ahead, behind


@pytest.mark.parametrize("opposed, sign", SIDES)
def test_tails_are_rounded_against_the_claim(opposed, sign):
    """P down and Q up, also where every mu is as large as it is rounded, and by little."""
    weights, mus = (0.25, 0.75), (sign * 0.5, 2.0)
    side = MixturePair(weights, mus, opposed)._side
    with mp.workdps(40):
        for x in (-6.0, -1.0, 0.3, 2.5, 9.0):
            ahead, log_behind = side._tails(x)
            p, q = exact_tails(weights, mus, opposed, mp.mpf(x))
            assert p * (1 - mp.mpf("1e-6")) <= ahead <= p * (1 - mp.mpf("5e-13"))
            assert mp.mpf("5e-13") <= log_behind - mp.log(q) <= mp.mpf("1e-6")


@pytest.mark.parametrize("opposed, sign", SIDES)
def test_likelihood_ratios_and_their_slopes(opposed, sign):
    weights, mus = np.array([0.25, 0.75]), np.array([sign * 0.5, 2.0])
    side = MixturePair(tuple(weights), tuple(mus), opposed)._side

    def log_ratio(x):
        p, q = (
            (weights * np.exp(-((x - shift * mus) ** 2) / 2)).sum() for shift in (1.0, -opposed)
        )
        return math.log(p / q)

    for x in (-3.0, -0.4, 0.0, 0.9, 4.0):
        value, slope = side._log_ratio(x)
        assert value == pytest.approx(log_ratio(x), abs=1e-7)
        steep = (log_ratio(x + 1e-5) - log_ratio(x - 1e-5)) / 2e-5
        assert slope == pytest.approx(steep, abs=1e-6)
    for wanted in (0.0, 0.2, 1.0, 5.0) + (60.0,) * (sign > 0):
        x = side._threshold(wanted)
        assert side._log_ratio(x)[0] == pytest.approx(wanted, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize(
    "weights, mus, opposed",
    [
        ((0.3, 0.7), (0.2, 1.5), 0.0),
        ((0.9, 0.1), (0.4, 2.0), 0.0),
        ((0.5, 0.5), (1.0, 100.0), 1.0),
        ((0.6, 0.4), (2.0, 90.0), 0.7),
        ((0.97, 0.03), (0.1, 7.0), 0.5),
        ((0.2, 0.8), (-1.0, 0.6), 0.0),
    ],
)
def test_the_best_half_line_is_found(weights, mus, opposed):
    """Delta at an epsilon, and epsilon at a delta, against every half line of a fine grid."""
    pair, w = MixturePair(weights, mus, opposed), np.array(weights)[:, None]
    x = np.concatenate([np.linspace(-8.0, 12.0, 200_001), np.linspace(12.0, 110.0, 20_001)])
    m = np.array(mus)[:, None]
    ahead = (w * ndtr(m - x)).sum(axis=0)
    log_behind = np.logaddexp(*(np.log(w) + log_ndtr(-opposed * m - x)))
    for epsilon in (0.0, 0.05, 0.6, 3.0):
        best = float((ahead - np.exp(np.minimum(epsilon + log_behind, 2.0))).max())
        assert pair.delta(epsilon) == pytest.approx(max(best, 0.0), rel=1e-5, abs=1e-12)
    for share in (0.999, 0.97, 0.6, 1e-3):
        delta = share * pair.delta(0.0)
        some = ahead > delta
        best = float((np.log(ahead[some] - delta) - log_behind[some]).max())
        assert pair.epsilon(delta) == pytest.approx(best, rel=1e-5, abs=1e-7)


@pytest.mark.parametrize(
    "weights, mus, opposed, epsilon",
    [
        ((0.054, 0.424, 0.522), (-8.2, 8.1, 14.8), 1.0, 0.3),
        ((0.051, 0.779, 0.17), (-2.3, 2.7, 0.95), 1.0, 0.3),
        ((0.074, 0.08, 0.846), (2.4, -2.7, 1.4), 0.5, 1.0),
    ],
)
def test_half_lines_where_the_likelihood_ratio_turns(weights, mus, opposed, epsilon):
    """A mu below 0 makes it fall far to the right, where Newton's steps begin."""
    side = MixturePair(weights, mus, opposed)._side
    assert side.reach == pytest.approx(opposed * max(map(abs, mus)))
    x, w = np.linspace(-3, 9, 2001)[:, None], np.array(weights)
    one, two = (ndtr(shift * np.array(mus) - x) @ w for shift in (1.0, -opposed))
    best = (one - math.exp(epsilon) * two).max()
    assert side.delta(epsilon) == pytest.approx(float(best), rel=1e-3)


def test_a_lower_bound_is_not_a_curve():
    pair = MixturePair.of_one(1.0)
    assert isinstance(pair, LowerBound) and not isinstance(pair, Curve)
    assert not any(hasattr(pair, name) for name in ("rdp", "group", "coarser"))
    with pytest.raises((AttributeError, TypeError)):
        compose(pair, Gdp(1.0))  # type: ignore[arg-type]
    assert pair.to_dict() == {"type": "MixturePair", "weights": [1.0], "mus": [1.0], "opposed": 0.0}


@pytest.mark.parametrize(
    "bad",
    [
        lambda c: c.epsilon(0.0),
        lambda c: c.epsilon(1.0),
        lambda c: c.epsilon(1.5),
        lambda c: c.delta(-0.1),
        lambda c: MixturePair((1.0,), (1.0, 2.0)),
        lambda c: MixturePair((), ()),
        lambda c: MixturePair((0.5, 0.4), (1.0, 2.0)),
        lambda c: MixturePair((1.5, -0.5), (1.0, 2.0)),
        lambda c: MixturePair((1.0,), (math.nan,)),
        lambda c: MixturePair((0.5, 0.5), (1.0, math.nan)),
        lambda c: MixturePair((1.0,), (1.0,), 1.1),
        lambda c: MixturePair((1.0,), (1.0,), -0.1),
    ],
)
def test_what_is_no_lower_bound_is_refused(bad):
    with pytest.raises(InputError):
        bad(MixturePair((1.0,), (1.0,)))

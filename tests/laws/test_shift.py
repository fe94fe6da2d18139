"""The optimal allocation against other ways to compute it, and against projected nonlinear chains."""

import math

import numpy as np
import pytest
from scipy.optimize import minimize

from lastiterate.analysis import shifts as constant_shift
from lastiterate.analysis.shifts import (
    allowance,
    best_restart,
    constant_mus,
    optimal_mu,
    pool,
    search,
)
from lastiterate.curves.gaussian import Gdp
from oracles.gaussian import chain_delta


def by_optimiser(c, s, v, start):
    """mu^2 = min sum a_t^2 / v_t over z_t = c_t z_{t-1} + s_t - a_t >= 0, z_T = 0, by a generic
    solver."""
    T = len(c)

    def z(a):
        out, now = [], start
        for t in range(T):
            now = c[t] * now + s[t] - a[t]
            out.append(now)
        return np.array(out)

    x0 = np.array(s, float)
    x0[0] += c[0] * start
    found = minimize(
        lambda a: np.sum(a**2 / v),
        x0,
        jac=lambda a: 2 * a / v,
        method="SLSQP",
        options={"maxiter": 500, "ftol": 1e-14},
        constraints=[
            {"type": "ineq", "fun": lambda a: z(a)[:-1]},
            {"type": "eq", "fun": lambda a: z(a)[-1]},
        ],
    )
    return math.sqrt(found.fun)


def test_against_a_generic_optimiser():
    rng = np.random.default_rng(0)
    for _ in range(80):
        T = int(rng.integers(1, 9))
        c, s, v = (
            rng.uniform(0.3, 1.6, T),
            rng.uniform(0, 2, T) * (rng.random(T) < 0.7),
            rng.uniform(0.2, 2, T),
        )
        s[rng.integers(T)] += 0.3
        start = float(rng.choice([0.0, rng.uniform(0, 2)]))
        assert optimal_mu(c, s, v, start) == pytest.approx(by_optimiser(c, s, v, start), rel=2e-5)


def test_closed_form_equals_the_general_one():
    rng = np.random.default_rng(1)
    for _ in range(400):
        T, blocks = int(rng.integers(1, 60)), int(rng.integers(1, 12))
        c = float(rng.choice([1.0, 0.0, rng.uniform(0.3, 1.4), rng.uniform(0.9, 1.1)]))
        s, v, D = (
            float(rng.uniform(0.1, 2)),
            float(rng.uniform(0.1, 2)),
            float(rng.choice([math.inf, rng.uniform(0.05, 5)])),
        )
        fast = constant_mus(c, s, v, T, blocks, D)
        for place in range(blocks):
            hits = np.where(np.arange(T) % blocks == place, s, 0.0)
            slow = optimal_mu(np.full(T, c), hits, np.full(T, v))
            if math.inf > D:
                slow = min(slow, best_restart(np.full(T, c), hits, np.full(T, v), D))
            assert fast[place] == pytest.approx(slow, rel=1e-11, abs=1e-300)


def test_steps_without_noise():
    c, s = np.array([0.9, 1.1, 0.8]), np.array([0.5, 0.2, 0.4])
    # folded forward: (c, s) of steps 1 and 2 act as one
    folded = optimal_mu(
        np.array([0.9 * 1.1, 0.8]), np.array([1.1 * 0.5 + 0.2, 0.4]), np.array([0.7, 0.3])
    )
    assert optimal_mu(c, s, np.array([0.0, 0.7, 0.3])) == pytest.approx(folded, rel=1e-12)
    assert optimal_mu(c, s, np.array([0.3, 0.7, 0.0])) == math.inf
    assert optimal_mu(c, np.array([0.5, 0.2, 0.0]), np.array([0.3, 0.7, 0.0])) < math.inf
    assert (
        optimal_mu(c, s, np.zeros(3)) == math.inf and optimal_mu(c, np.zeros(3), np.zeros(3)) == 0
    )
    assert optimal_mu(
        np.array([2.0, 0.0, 1.0]), np.array([9.0, 1.0, 1.0]), np.ones(3)
    ) == pytest.approx(math.sqrt(2))


def test_long_expanding_runs_do_not_cancel():
    T = 20_000
    ours = optimal_mu(np.full(T, 1.01), np.full(T, 0.1), np.full(T, 0.5))
    assert ours == pytest.approx(math.sqrt(T * 0.01 / 0.5), rel=1e-9), (
        "with c > 1 every step pays for itself"
    )
    assert constant_mus(1.01, 0.1, 0.5, T, 1)[0] == pytest.approx(ours, rel=1e-9)
    million = constant_mus(0.99999, 0.1, 0.5, 10**6, 1)[0]
    c = 0.99999
    exact = math.sqrt((1 + c) / (1 - c)) * 0.1 / math.sqrt(0.5)
    assert exact <= million * (1 + 1e-4) and million <= exact * (1 + 1e-9)


def test_restart_is_priced_by_the_diameter():
    """K = [-1, 1], maps to -5 and +5 with tiny noise, then the identity: exact mu = 2 / sqrt v; a
    radius gives half."""
    v = 0.3
    c, s, noise = np.array([0.0, 1.0]), np.array([10.0, 0.0]), np.array([1e-12, v])
    assert best_restart(c, s, noise, 2.0) >= 2 / math.sqrt(v) * (1 - 1e-12)
    exact = chain_delta(
        0.5,
        [(lambda x: 0 * x - 5, lambda x: 0 * x + 5, 1e-12), (lambda x: x, lambda x: x, v)],
        -1,
        1,
    )
    assert (
        Gdp(best_restart(c, s, noise, 2.0)).delta(0.5) >= exact > Gdp(1 / math.sqrt(v)).delta(0.5)
    )


@pytest.mark.parametrize("seed", range(12))
def test_projected_chains(seed):
    """Convex, clipped and nonconvex maps on an interval; the exact law by grid propagation, both
    directions."""
    rng = np.random.default_rng(seed)
    T, half = int(rng.integers(1, 6)), float(rng.uniform(0.3, 2))
    eta, M, m, L = (
        float(rng.uniform(0.1, 1.0)),
        1.0,
        float(rng.choice([0.0, 0.3])),
        float(rng.uniform(0.2, 1)),
    )
    wave = (M + m) / 2

    def gradient(x):  # second derivative between -m and M
        return wave * np.sin(x) + (M - m) / 2 * x

    # the record adds a gradient of norm at most L: a bounded pull
    c = max(abs(1 + eta * m), abs(1 - eta * M))
    s, v = eta * L, float(rng.uniform(0.05, 0.5)) * eta
    steps = [(lambda x: x - eta * gradient(x), lambda x: x - eta * gradient(x) - eta * L, v)] * T
    args = np.full(T, c), np.full(T, s), np.full(T, v)
    curve = Gdp(min(optimal_mu(*args), best_restart(*args, 2 * half)))
    for epsilon in (0.0, 0.5, 2.0):
        exact = chain_delta(epsilon, steps, -half, half, cells=1201)
        assert curve.delta(epsilon) >= exact - 2e-4, "the grid is good to 2e-4"


def test_many_blocks_in_a_bounded_domain_stay_quick_and_valid():
    free = constant_mus(1.0, 0.1, 0.5, 20_000, 5_000)
    assert (constant_mus(1.0, 0.1, 0.5, 20_000, 5_000, 1.0) == free).all()
    few = constant_mus(1.0, 0.1, 0.5, 2_000, 20, 0.05)
    assert (few < constant_mus(1.0, 0.1, 0.5, 2_000, 20)).all(), "a small domain helps"


def test_edges_of_constant_schedules():
    assert (constant_mus(0.9, 0.5, 0.0, 5, 3) == math.inf).all(), "no noise"
    assert (constant_mus(0.9, 0.5, 0.0, 2, 3) == [math.inf, math.inf, 0]).all(), (
        "the third block is not reached"
    )
    assert (constant_mus(0.9, 0.0, 0.0, 5, 3) == 0).all() and (
        constant_mus(0.9, 0.0, 0.3, 5, 3) == 0
    ).all()
    assert (constant_mus(1.2, 0.0, 0.3, 5, 3) == 0).all()
    for v in (0.3, 2.5):
        last = constant_mus(0.0, 0.7, v, 5, 3)  # step 5 is met by the second block
        assert last == pytest.approx([0, 0.7 / math.sqrt(v), 0], rel=1e-12)
        assert constant_mus(0.0, 0.7, v, 1, 1)[0] == pytest.approx(0.7 / math.sqrt(v), rel=1e-12)
    for c in (0.5, 1.0, 1.3):
        once = constant_mus(c, 0.7, 0.3, 4, 6)
        for place in range(4):  # one shift spread over the steps from its meeting on
            weights = c ** np.arange(3 - place, -1, -1)
            assert once[place] == pytest.approx(
                0.7 * weights[0] / math.sqrt(0.3 * (weights**2).sum()), rel=1e-11
            )
        assert (once[4:] == 0).all()


def test_restarts_of_constant_schedules(monkeypatch):
    for c, blocks, steps, D in (
        (0.9, 1, 40, 0.5),
        (1.0, 1, 300, 0.2),
        (1.2, 1, 12, 0.1),
        (0.8, 4, 30, 0.3),
        (1.0, 3, 50, 2.0),
    ):
        found = constant_mus(c, 0.4, 0.3, steps, blocks, D)
        for place in range(blocks):
            s = np.where(np.arange(steps) % blocks == place, 0.4, 0.0)
            arrays = np.full(steps, c), s, np.full(steps, 0.3)
            assert found[place] == pytest.approx(
                min(optimal_mu(*arrays), best_restart(*arrays, D)), rel=1e-11
            )
    nothing = constant_mus(0.9, 0.0, 0.3, 40, 1, 0.5)
    assert nothing[0] == 0
    only_start = constant_shift._search_restarts(0.9, 0.0, 0.3, 40, 1, 0.5)[0]
    weights = 0.9 ** np.arange(40)
    assert only_start == pytest.approx(
        0.5 * 0.9**40 / math.sqrt(0.3 * (weights**2).sum()), rel=1e-11
    )
    free = constant_mus(1.0, 0.4, 0.3, 50, 3)
    monkeypatch.setattr(constant_shift, "MOST_PLACES", 3)
    assert (constant_mus(1.0, 0.4, 0.3, 50, 3, 0.05) < free).all()
    monkeypatch.setattr(constant_shift, "MOST_PLACES", 2)
    one = constant_mus(1.0, 0.4, 0.3, 50, 3, 0.05)  # the last step alone: (c D + s) / sqrt(v)
    assert one == pytest.approx(np.full(3, 0.45 / math.sqrt(0.3)), rel=1e-11) and (one < free).all()


def test_long_runs_restart_within_the_last_steps():
    long = constant_mus(1.0, 0.01, 0.5, 9_001, 3, 0.3)
    place = [np.where((np.arange(9_001) % 3 == j)[-4096:], 0.01, 0.0) for j in range(3)]
    arrays = np.full(4096, 1.0), np.full(4096, 0.5)
    exact = [best_restart(arrays[0], s, arrays[1], 0.3) for s in place]
    assert long == pytest.approx(exact, rel=1e-11)


def test_pools_are_the_greatest_convex_minorant():
    rng = np.random.default_rng(4)
    for _ in range(200):
        shifts, noises = rng.uniform(0.1, 2, rng.integers(1, 9)), rng.uniform(0.1, 2, 9)
        noises = noises[: shifts.size]
        X, S = np.concatenate(([0], np.cumsum(noises))), np.concatenate(([0], np.cumsum(shifts)))
        corners = [0]  # the lower hull, by the smallest slope to any later point
        while corners[-1] < shifts.size:
            i = corners[-1]
            slopes = (S[i + 1 :] - S[i]) / (X[i + 1 :] - X[i])
            corners.append(i + 1 + int(np.flatnonzero(slopes <= slopes.min() * (1 + 1e-12))[-1]))
        found = pool(np.log(shifts), np.log(noises))
        assert np.exp(found[0]) == pytest.approx(np.diff(S[corners])) and np.exp(
            found[1]
        ) == pytest.approx(np.diff(X[corners]))


def test_starts_and_forgetting():
    c, s, v = np.array([0.5, 2.0, 0.9]), np.array([0.2, 0.0, 0.1]), np.array([0.4, 0.3, 0.7])
    assert optimal_mu(c, s, v, 0.8) == pytest.approx(
        optimal_mu(c, s + np.array([0.4, 0, 0]), v), rel=1e-13
    )
    assert optimal_mu(np.array([0.5, 0.0, 0.9]), s, v, 0.8) == pytest.approx(
        0.1 / math.sqrt(0.7), rel=1e-12
    )
    assert optimal_mu(np.array([0.0]), np.array([0.3]), np.array([0.4]), 5.0) == pytest.approx(
        0.3 / math.sqrt(0.4)
    )
    assert optimal_mu(c, 0 * s, v) == 0 and optimal_mu(c, 0 * s, v, 0.8) > 0
    assert optimal_mu(c, 0 * s, np.array([0.4, 0.3, 0.0]), 0.8) == pytest.approx(
        optimal_mu(c[:2], 0 * s[:2], v[:2], 0.8)
    )
    late = np.array([0.0, 0.0, 0.3])  # nothing to absorb before the first shift
    assert optimal_mu(c, late, v) == pytest.approx(0.3 / math.sqrt(0.7), rel=1e-12)
    kept = s.copy(), c.copy()
    optimal_mu(c, s, v, 0.8)
    assert (kept[0] == s).all() and (kept[1] == c).all(), "arguments are left alone"
    huge = np.full(4, 1e200)
    assert optimal_mu(huge, np.full(4, 1e200), np.full(4, 1e200)) > 0
    assert optimal_mu(np.full(2, math.inf), np.ones(2), np.ones(2)) == math.inf, "no statement"
    assert optimal_mu(np.ones(2), np.ones(2), np.array([math.inf, 1.0])) == math.inf, "no statement"


def test_rounding_allowances():
    assert allowance(0) == 1e-13
    assert allowance(1000) - 1e-13 == pytest.approx(1000 * 2.0**-52, rel=1e-3, abs=0)
    assert allowance(1000, 3.0) - 1e-13 == pytest.approx(4000 * 2.0**-52, rel=1e-3, abs=0)
    assert allowance(1000, -3.0) == allowance(1000)
    for c in (np.full(30, 0.9), np.full(30, 1.1)):
        exact = optimal_mu(c[:1], np.array([0.3]), np.array([0.5]))
        assert 0.3 / math.sqrt(0.5) < exact < 0.3 / math.sqrt(0.5) * (1 + 1e-12)


@pytest.mark.parametrize(
    "longest, best", [(1, 1), (2, 2), (50, 37), (5_000, 5_000), (5_000, 1), (100_000, 31_415)]
)
def test_search_finds_the_valley(longest, best):
    asked = []

    def cost(w):
        asked.append(w)
        return (math.log(w) - math.log(best)) ** 2

    assert search(cost, longest) == 0 and best in asked
    assert min(asked) >= 1 and max(asked) <= longest and len(set(asked)) == len(asked) < 80

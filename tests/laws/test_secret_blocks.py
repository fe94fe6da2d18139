"""Means over secret positions part by part: tails of loads, restarts in the last passes, noise that
is divided out, and the loads that a failure buys."""

import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from scipy.stats import binom

import lastiterate as li
from lastiterate.analysis import secret_blocks
from lastiterate.analysis.shifts import optimal_mu
from lastiterate.analysis.step_map import step_map
from lastiterate.curves.curve import BestOf, WithFailure
from lastiterate.curves.gaussian import Gdp, GdpMixture


def run_of(n=8, steps=7, eta=0.5, std=0.7, batching=None, strong=0.2, **more):
    constants = li.LossFacts(sensitivity=1.0, smooth=1.0, strong=strong)
    settings = {
        "step_size": li.Constant(eta),
        "noise": li.GradientNoise(std),
        "batching": batching or li.Reshuffled(2),
        "loss": li.KnownConstants(constants),
    }
    return li.Run(n=n, steps=steps, **settings | more)


# Loads.


@pytest.mark.parametrize("most", [0, 1, 2, 7, 10])
def test_the_first_integer_from_which_something_holds(most):
    """It is asked for integers below the last one, and none below 0."""
    for first in range(most + 1):

        def holds(k, first=first):
            assert 0 <= k < most
            return k >= first

        assert secret_blocks._first(holds, most) == first


@pytest.mark.parametrize(("trials", "chance"), [(1, 0.3), (7, 0.01), (7, 0.5), (500, 0.1)])
def test_tails_are_binomial(trials, chance):
    for count in (0, 1, trials // 2, trials - 1, trials, trials + 1):
        found = secret_blocks._more_than(trials, chance, count)
        assert found == pytest.approx(binom.sf(count, trials, chance), rel=1e-9, abs=0)


@pytest.mark.parametrize(
    ("others", "chance", "failure", "draws"),
    [(99, 0.1, 1e-6, 10), (99, 0.1, 1e-6, 700), (9, 0.25, 0.3, 4), (400, 0.9, 1e-3, 2)],
)
def test_counts_are_the_closest_whose_tails_are_rare_enough(others, chance, failure, draws):
    """Half of the failure for each end, shared by all draws, and no integer closer would do."""
    fewest, most = secret_blocks.usual_counts(others, chance, failure, draws)
    each = failure / 2 / draws
    assert binom.sf(most, others, chance) <= each and binom.cdf(fewest - 1, others, chance) <= each
    assert most == 0 or binom.sf(most - 1, others, chance) > each * (1 - 1e-5)
    assert fewest == others or binom.cdf(fewest, others, chance) > each * (1 - 1e-5)
    assert secret_blocks.usual_counts(others, chance, 0.0, draws) == (0, others)
    assert secret_blocks.usual_counts(0, chance, failure, draws) == (0, 0)
    assert secret_blocks.usual_counts(1, 0.1, 0.3, 1) == (0, 0), "one record is rarely there"
    assert secret_blocks.usual_loads(others, 8, failure) == secret_blocks.usual_counts(
        others, 1 / 8, failure, 8
    )
    assert secret_blocks.usual_loads(others, 8, failure, draws) == secret_blocks.usual_counts(
        others, 1 / 8, failure, 8 * draws
    )


@pytest.mark.parametrize("adjacency", ["zero-out", "replace-one"])
@pytest.mark.parametrize("constant", [True, False])
def test_curves_for_usual_loads(adjacency, constant):
    """One more record under replace-one; a failure that buys nothing is left out."""
    eta = li.Constant(1.5) if constant else li.StepSchedule((1.5, 1.4, 1.3))
    facts = li.LossFacts(lipschitz=1.0, smooth=1.0, strong=0.0)
    run = run_of(
        101, 3, batching=li.BallsInBins(20), adjacency=adjacency, loss=li.KnownConstants(facts)
    )
    run = replace(run, step_size=eta)
    own, asked = (1 if adjacency == "replace-one" else 0), []

    def curve(shares):
        asked.append(shares)
        return Gdp(shares[1])

    blocks = run.blocks
    for times in (1, 30):
        asked.clear()
        failures = (0.0, 1e-9, 2e-9 if constant else 1e-3, 1e-3)
        found = secret_blocks._best(run, failures, times, curve)
        wanted, maps = [], set()
        for failure in failures:
            fewest, most = secret_blocks.usual_counts(100, 1 / blocks, failure, blocks * times)
            shares = (fewest / run.divisor, (most + own) / run.divisor)
            key = step_map(run, shares).lipschitz(1.5) if constant else shares
            if key not in maps:
                wanted.append((shares, failure))
                maps.add(key)
        assert list(dict.fromkeys(asked)) == [shares for shares, _ in wanted] and len(wanted) > 1
        assert isinstance(found, BestOf) and len(found.curves) == len(wanted)
        for one, (shares, failure) in zip(found.curves, wanted, strict=True):
            assert one == (WithFailure(Gdp(shares[1]), failure) if failure else Gdp(shares[1]))
    alone = secret_blocks._best(run, (1e-9,), 1, curve)
    assert isinstance(alone, WithFailure) and alone.failure == 1e-9
    fallback = secret_blocks._best(run, (), 1, curve)
    asked_for = {getattr(one, "failure", 0.0) for one in fallback.curves}
    assert asked_for <= set(secret_blocks.FAILURES if constant else secret_blocks.FEW)
    assert 0.0 in asked_for and len(asked_for) > 1
    for failures in (secret_blocks.FAILURES, secret_blocks.FEW):
        assert failures[0] == 0.0 and list(failures) == sorted(set(failures))
    assert set(secret_blocks.FEW) <= set(secret_blocks.FAILURES)
    assert secret_blocks.FAILURES[-4:] == (1e-6, 1e-5, 1e-4, 1e-3)


def test_passes_that_were_begun_count(monkeypatch):
    """Loads of all passes are usual, of the last one too, where the run stops within it."""
    asked = []
    monkeypatch.setattr(
        secret_blocks, "_best", lambda run, failures, times, curve: asked.append(times)
    )
    for steps in (4, 5, 8, 9):
        secret_blocks.mean_over_fresh_blocks(run_of(8, steps, batching=li.RandomAllocation(2)))
    secret_blocks.mean_over_bins(run_of(8, 9, batching=li.BallsInBins(2)))
    assert asked == [1, 2, 2, 3, 1], "bins are drawn once"


# Noise.


def test_mu_is_inversely_proportional_to_the_noise():
    mixture = GdpMixture((0.25, 0.25, 0.5), (0.0, 1.0, 3.0))
    assert secret_blocks._scale_noise(mixture, 2.0) == GdpMixture(mixture.weights, (0.0, 0.5, 1.5))
    silent = secret_blocks._scale_noise(mixture, 0.0)
    assert silent == GdpMixture(mixture.weights, (0.0, math.inf, math.inf))


# Positions, each followed by itself.


def every_choice(c, s, v, weights, diameter=math.inf, window=None):
    """delta of every choice of positions, each with its own optimum over restarts."""
    steps, blocks = len(c), len(weights)
    found = []
    for places in product(range(blocks), repeat=-(-steps // blocks)):
        shifts = np.zeros(steps)
        for number, place in enumerate(places):
            if number * blocks + place < steps:
                at = number * blocks + place
                shifts[at] = s[at]
        mus = [] if window else [optimal_mu(c, shifts, v)]
        if math.isfinite(diameter):
            mus += [
                optimal_mu(c[-w:], shifts[-w:], v[-w:], diameter)
                for w in range(1, (window or steps) + 1)
            ]
        found.append((math.prod(weights[place] for place in places), min(mus)))
    return found


def mean_delta(choices, epsilon):
    return math.fsum(w * Gdp(mu).delta(epsilon) for w, mu in choices)


@pytest.mark.parametrize("epsilon", [0.0, 0.4, 1.5])
@pytest.mark.parametrize(
    ("diameter", "strong"), [(math.inf, 0.0), (math.inf, 0.3), (0.4, 0.0), (0.1, 0.3)]
)
@pytest.mark.parametrize("schedule", [False, True])
def test_the_mean_over_all_choices_of_positions(schedule, diameter, strong, epsilon):
    """Three passes of two blocks, constant and not, with a penalty and in a domain."""
    steps = 6
    eta = np.linspace(0.5, 0.8, steps) if schedule else np.full(steps, 0.5)
    std = np.linspace(0.6, 0.3, steps) if schedule else np.full(steps, 0.6)
    run = run_of(4, steps, strong=strong, prox=li.penalties.L2Squared(0.2))
    run = replace(run, noise=li.GradientNoise(tuple(std) if schedule else 0.6))
    if schedule:
        run = replace(run, step_size=li.StepSchedule(tuple(eta)))
    if math.isfinite(diameter):
        run = replace(run, prox=None, domain=li.domains.Ball(diameter / 2))
    shrink = 1 / (1 + eta * (0.0 if run.prox is None else 0.2))
    for shares in (None, (0.5, 2.0)):
        low, high = shares or (1.0, 1.0)
        c = np.maximum(abs(1 - eta * strong * low), abs(1 - eta * high)) * shrink
        s, v = eta * shrink / 2, (eta * shrink * std) ** 2
        exact = mean_delta(every_choice(c, s, v, (0.5, 0.5), diameter), epsilon)
        found = secret_blocks.mean_over_fresh_places(run, shares).delta(epsilon)
        assert exact * (1 - 1e-9) <= found <= exact * (1 + 1e-3) + 1e-12, shares


def test_nothing_is_hidden_and_nothing_leaks():
    silent = li.KnownConstants(li.LossFacts(sensitivity=0.0, smooth=1.0, strong=0.0))
    assert secret_blocks.mean_over_fresh_places(replace(run_of(), loss=silent)) == Gdp(0.0)


def test_only_a_short_last_block_is_followed_by_itself(monkeypatch):
    """Blocks of 4 and 2: only every second step has less curvature, so that following the steps is
    better; blocks that are alike, and runs that are too long, are not followed."""
    short = run_of(6, 6, batching=li.Reshuffled(4), strong=0.6)
    found = secret_blocks.mean_over_fresh_places(short)
    assert isinstance(found, BestOf) and len(found.curves) == 2
    assert found.delta(0.3) == found.curves[1].delta(0.3) < found.curves[0].delta(0.3)
    c = np.array([1 - 0.5 * 0.6, 1 - 0.25 * 0.6] * 3)
    s, v = np.full(6, 0.5 / 4), np.full(6, (0.5 * 0.7) ** 2)
    exact = mean_delta(every_choice(c, s, v, (2 / 3, 1 / 3)), 0.3)
    assert exact * (1 - 1e-9) <= found.delta(0.3) <= exact * (1 + 1e-3)
    worst = mean_delta(every_choice(np.full(6, 0.85), s, v, (2 / 3, 1 / 3)), 0.3)
    assert found.curves[0].delta(0.3) == pytest.approx(worst, rel=1e-3)
    assert isinstance(secret_blocks.mean_over_fresh_places(run_of(8, 6)), GdpMixture)
    given = secret_blocks.mean_over_fresh_places(short, (0.5, 1.0))
    assert given == found.curves[0], "loads are what they are"
    for most, curves in ((6, 2), (5, 1)):
        monkeypatch.setattr(secret_blocks, "LONGEST_FOLLOWED", most)
        again = secret_blocks.mean_over_fresh_places(short)
        assert (len(again.curves) if isinstance(again, BestOf) else 1) == curves


def test_restarts_lie_in_the_last_passes(monkeypatch):
    """The window begins with a pass; it is at least as long as stated, and shorter by no pass."""
    monkeypatch.setattr(secret_blocks, "LONGEST_WINDOW", 5)
    batching, weights = li.Reshuffled(2), (0.5, 0.5)
    for steps, window in ((4, 4), (5, 5), (6, 6), (7, 5), (8, 6), (11, 5), (10, 6)):
        secret_blocks._unit_restarts.cache_clear()
        found = secret_blocks._unit_restarts(0.8, 0.3, 0.25, steps, 4, batching, 0.6)
        c, s, v = np.full(window, 0.8), np.full(window, 0.3), np.full(window, 0.25)
        exact = every_choice(c, s, v, weights, 0.6, window)
        assert found is not None
        for epsilon in (0.0, 0.7):
            delta = math.fsum(
                w * Gdp(mu).delta(epsilon) for w, mu in zip(found.weights, found.mus, strict=True)
            )
            assert delta == pytest.approx(mean_delta(exact, epsilon), rel=1e-6), (steps, window)
    for blocks, restarted in ((10, True), (11, False)):
        secret_blocks._unit_restarts.cache_clear()
        found = secret_blocks._unit_restarts(
            0.8, 0.3, 0.25, 3 * blocks, blocks, li.Reshuffled(1), 0.6
        )
        assert (found is not None) is restarted, "a pass of more than two windows is not followed"
    secret_blocks._unit_restarts.cache_clear()


def test_bins_have_their_own_mus():
    """Three bins of two records on average, of which one is never reached: no other record in its
    bin, or all of them."""
    run = run_of(6, 5, 0.5, 0.7, li.BallsInBins(2), strong=0.3)
    found = secret_blocks.mean_over_bins(run, (0.0,))
    c = np.full(5, max(1.0, abs(1 - 0.5 * 5 / 2)))
    v, chances = np.full(5, (0.5 * 0.7) ** 2), [1 / 3] * 3
    mus = [optimal_mu(c, np.where(np.arange(5) % 3 == place, 0.25, 0.0), v) for place in range(3)]
    for epsilon in (0.0, 0.5):
        exact = mean_delta(list(zip(chances, mus, strict=True)), epsilon)
        assert found.delta(epsilon) == pytest.approx(exact, rel=1e-6)
    short = secret_blocks.mean_over_bins(replace(run, steps=2), (0.0,))
    assert isinstance(short, GdpMixture) and min(short.mus) == 0.0

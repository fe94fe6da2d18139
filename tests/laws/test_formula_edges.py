"""Bounds in closed form, step by step and at their edges: no noise, nothing to hide, one step."""

import math
from dataclasses import replace

import numpy as np
import pytest

import lastiterate as li
from lastiterate.curves.gaussian import Gdp
from lastiterate.curves.renyi import SampledRenyi
from lastiterate.curves.sampled_batches import FixedSizeSteps
from lastiterate.run.facts import FLOAT_SLACK
from lastiterate.theorems import TABLE, langevin, sampling
from lastiterate.theorems.iteration import spread
from lastiterate.theorems.sampling import strengths
from lastiterate.theorems.theorem import match

N, STEPS = 6, 7


def run_of(facts=None, **changes):
    settings = dict(
        n=N,
        steps=STEPS,
        step_size=0.3,
        noise=li.GradientNoise(0.8),
        loss=li.KnownConstants(li.LossFacts(**(facts or {"sensitivity": 1.3}))),
    )
    return li.Run(**settings | changes)


def bound(name, run):
    return match(TABLE[name], run).bound


# Composition.


@pytest.mark.parametrize(
    ("sensitivity", "z", "mu"),
    [(0.0, 0.5, 0.0), (0.0, 0.0, 0.0), (1.0, 0.0, math.inf), (1.0, 0.5, 1.0), (1.7, 0.5, 1.7)],
)
def test_correlated_noise_of_one_step(sensitivity, z, mu):
    """One draw of standard deviation 2 z hides one contribution."""
    facts = {"sensitivity": sensitivity, "lipschitz": 2.0}
    run = run_of(facts, n=1, steps=1, noise=li.Correlated(z, 2))
    assert bound("correlated-gdp", run).mu == pytest.approx(mu, rel=1e-12)


# Amplification by iteration.

CONVEX = {"sensitivity": 1.3, "smooth": 1.0, "strong": 0.0}


@pytest.mark.parametrize("steps", [1, 2, 3, 4, 50])
@pytest.mark.parametrize("quotient", [0.3, 0.9, 1.0, 1.6, 2.0, 2.3, 2.9, 3.3, 17.5, 300.0])
def test_bounded_domain_is_the_least_over_every_restart(steps, quotient):
    """``quotient``: the diameter in units of one shift."""
    for noise in (0.8, 1.0):
        run = run_of(CONVEX, steps=steps, noise=li.GradientNoise(noise))
        shift, v = 0.3 * 1.3 / N, (0.3 * noise) ** 2
        run = replace(run, domain=li.domains.Ball(quotient * shift / 2))
        k = np.arange(1, steps + 1)
        squares = np.append(steps * shift**2, (quotient * shift + k * shift) ** 2 / k) / v
        mu = bound("bounded-domain-convex", run).mu
        assert mu == pytest.approx(math.sqrt(squares.min()), rel=1e-11)


def test_bounded_domain_without_noise_or_sensitivity():
    small = dict(domain=li.domains.Ball(0.1), n=1)
    unit = CONVEX | {"sensitivity": 1.0}
    silent = run_of(unit, noise=li.GradientNoise(0.0), **small)
    assert bound("bounded-domain-convex", silent).mu == math.inf
    nothing = run_of(CONVEX | {"sensitivity": 0.0}, **small)
    assert bound("bounded-domain-convex", nothing).mu == 0
    one = run_of(unit, noise=li.GradientNoise(1.0), **small)  # shift and noise are 1
    assert bound("bounded-domain-convex", one).mu == pytest.approx((0.2 / 0.3 + 1), rel=1e-11)


RIDGED = li.HuberRidge(ridge=0.4, row_norm=3.0, intercept=0.0)
CLIPPED = li.KnownConstants(li.LossFacts(smooth=1.0, weak_convexity=0.5))


@pytest.mark.parametrize(
    ("changes", "distance", "facts"),
    [
        # (1 - eta ridge) D + 2 eta L, enforced constants with the slack of float32
        (dict(loss=RIDGED), (1 - 0.12) * 0.2 + 2 * 0.3 * 3 * (1 + FLOAT_SLACK), 1),
        (dict(loss=CLIPPED, clip=0.7), 0.2 + 2 * 0.3 * 0.7 * (1 + FLOAT_SLACK), 1),
        # stated constants without it
        (dict(facts={"lipschitz": 0.7}), 0.2 + 2 * 0.3 * 0.7, 1),
        (dict(facts={"lipschitz": 0.7, "smooth": 1.0, "strong": 0.0}), 0.2 + 0.3 * 0.7 / N, 3),
        # L D + s, L^2 = 1 + 2 eta m (1 + m / (2 (M + m)))
        (
            dict(facts={"sensitivity": 1.3, "smooth": 1.0, "weak_convexity": 0.5}),
            math.sqrt(1 + 0.3 * (1 + 1 / 6)) * 0.2 + 0.3 * 1.3 / N,
            3,
        ),
        # a stated sensitivity, and gradients that are clipped: the stronger facts count
        (dict(loss=li.KnownConstants(li.LossFacts(sensitivity=9.0)), clip=2.0), 0.2 + 1.2, 1),
    ],
)
def test_how_far_a_step_can_spread(changes, distance, facts):
    run = run_of(domain=li.domains.Ball(0.1), **changes)
    found = spread(run)
    slack = 1 + FLOAT_SLACK if run.clip == 2.0 else 1.0
    distance = 0.2 + 1.2 * slack if run.clip == 2.0 else distance
    assert found[0] == pytest.approx(distance, rel=1e-13) and len(found[1]) == facts
    mu = bound("cyclic-weakly-convex-bounded", run).mu
    assert mu == pytest.approx(distance / (0.3 * 0.8), rel=1e-11)
    silent = replace(run, noise=li.GradientNoise(0.0))
    assert bound("cyclic-weakly-convex-bounded", silent).mu == math.inf


def test_nothing_is_known_of_a_spread_without_a_sensitivity():
    assert spread(run_of({"smooth": 1.0}, domain=li.domains.Ball(0.1))) is None
    assert spread(run_of({"sensitivity": 1.3}, domain=li.domains.Ball(0.1))) is None


@pytest.mark.parametrize("steps", [1, 3, 2000])
@pytest.mark.parametrize("radius", [0.001, 0.02, 2.0])
@pytest.mark.parametrize("curvature", [{"strong": 0.0}, {"weak_convexity": 2.5}])
def test_the_published_form_of_sampled_batches_in_a_ball(steps, radius, curvature):
    """Liang et al. 2025, Theorem 3.4: alpha min(A T, (sqrt A + sqrt B)^2)."""
    facts = {"sensitivity": 1.3, "smooth": 1.7} | curvature
    run = run_of(facts, steps=steps, batching=li.FixedSize(2), domain=li.domains.Ball(radius))
    steepest = max(1.7, curvature.get("weak_convexity", 0.0))
    drawn = 2 * (1.3 / 2) ** 2 / (N * 2 * 0.8**2)
    apart = ((1 + 0.3 * steepest) * 2 * radius / (0.3 * 0.8)) ** 2 / 2
    slope = min(drawn * steps, (math.sqrt(drawn) + math.sqrt(apart)) ** 2)
    assert bound("smooth-bounded-domain", run).rdp(3.0) == pytest.approx(3 * slope, rel=1e-10)


@pytest.mark.parametrize(
    ("sensitivity", "noise", "slope"),
    [(0.0, 0.0, 0.0), (0.5, 0.0, math.inf), (0.0, 0.8, 0.0), (1.0, 1.0, 1 / 24)],
)
def test_the_published_form_at_its_edges(sensitivity, noise, slope):
    facts = {"sensitivity": sensitivity, "smooth": 1.0, "strong": 0.0}
    run = run_of(
        facts,
        steps=1,
        batching=li.FixedSize(2),
        domain=li.domains.Ball(5.0),
        noise=li.GradientNoise(noise),
    )
    assert bound("smooth-bounded-domain", run).rdp(2.0) == pytest.approx(2 * slope, rel=1e-10)


# Langevin dynamics and SGLD.


def sums_by_steps(etas, strong):
    """(1 - R_0) / strong and the sum of eta_u R_u^2, R_u the product of the later 1 - eta strong."""
    later, noise = 1.0, 0.0
    for eta in reversed(etas):
        noise += eta * later**2
        later *= 1 - eta * strong
    return (1 - later) / strong, noise


SCHEDULES = {
    "constant": (li.Constant(0.3), [0.3] * STEPS),
    "listed": (li.StepSchedule((0.3, 0.1, 0.2, 0.05, 0.3, 0.25, 0.15)), None),
    "forgetting": (li.StepSchedule((0.3, 0.5, 0.2, 0.05, 0.3, 0.25, 0.15)), None),
    "at once": (li.Constant(0.5), [0.5] * STEPS),
}


@pytest.mark.parametrize(
    ("schedule", "ridge", "batching"),
    [(name, 0.0, li.FullBatch()) for name in SCHEDULES]
    + [(name, 2.0, li.Cyclic(4)) for name in ("constant", "listed")],
)
def test_a_record_in_every_batch(schedule, ridge, batching):
    """mu^2 = (S / b)^2 (sum of later products)^2 / (2 sigma^2 sum eta_u R_u^2)."""
    size, etas = SCHEDULES[schedule]
    loss = (
        li.HuberRidge(ridge=ridge, row_norm=0.1, intercept=0.0)
        if ridge
        else li.KnownConstants(li.LossFacts(lipschitz=1.0, smooth=2.0, strong=2.0))
    )
    run = run_of(step_size=size, noise=li.Langevin(0.7), loss=loss, batching=batching)
    etas = etas or list(size.values)
    shift, noise = sums_by_steps(etas, 2.0)
    unit = run.facts().fact("sensitivity") / run.divisor
    exact = unit * shift / math.sqrt(2 * 0.7**2 * noise)
    assert bound("sgld-strongly-convex-batch", run).mu == pytest.approx(exact, rel=1e-11)


def test_a_short_block_has_less_of_the_records_curvature():
    """Four of six records, then two: half of the curvature that is stated of the records."""
    facts = {"sensitivity": 1.0, "smooth": 2.0, "strong": 2.0}
    run = run_of(facts, noise=li.Langevin(0.7), batching=li.Cyclic(4))
    shift, noise = sums_by_steps([0.3] * STEPS, 1.0)
    exact = 0.25 * shift / math.sqrt(2 * 0.7**2 * noise)
    assert bound("sgld-strongly-convex-batch", run).mu == pytest.approx(exact, rel=1e-11)


@pytest.mark.parametrize("longest", [1, 3, 6, 7, 8])
def test_long_schedules_count_their_last_steps(monkeypatch, longest):
    """Without the noise of earlier ones, and as if everything before were forgotten."""
    monkeypatch.setattr(langevin, "LONGEST", longest)
    size, _ = SCHEDULES["listed"]
    facts = {"sensitivity": 1.0, "smooth": 2.0, "strong": 2.0}
    run = run_of(facts, noise=li.Langevin(0.7), step_size=size)
    shift, _ = sums_by_steps(size.values, 2.0)
    _, noise = sums_by_steps(size.values[-longest:], 2.0)
    shift = shift if longest >= STEPS else 1 / 2.0
    exact = shift / N / math.sqrt(2 * 0.7**2 * noise)
    assert bound("sgld-strongly-convex-batch", run).mu == pytest.approx(exact, rel=1e-11)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_full_batches_with_any_steps(schedule):
    """alpha S^2 / (2 c sigma^4 n^2) (1 - exp(-sigma^2 c T)), and c = strong / (2 sigma^2)."""
    size, etas = SCHEDULES[schedule]
    time = sum(etas or size.values)
    for strong, sigma, constant in ((0.6, 0.7, 0.9), (0.2, 1.6, 0.1)):
        facts = {"sensitivity": 1.3, "smooth": 1.0, "strong": strong}
        start = li.GaussianStart(math.sqrt(2 * sigma**2 / strong))
        run = run_of(facts, step_size=size, noise=li.Langevin(sigma), start=start)
        slope = (1.3 / sigma / N) ** 2 / strong * (1 - math.exp(-strong * time / 2))
        for name in ("sgld-lsi", "sgld-strongly-convex"):
            assert bound(name, run).rdp(3.0) == pytest.approx(3 * slope, rel=1e-10)
        given = run_of(facts | {"log_sobolev": constant}, step_size=size, noise=run.noise)
        rate = sigma**2 * constant
        slope = (1.3 / N) ** 2 / (2 * constant * sigma**4) * (1 - math.exp(-rate * time))
        assert bound("sgld-lsi", given).rdp(3.0) == pytest.approx(3 * slope, rel=1e-10)


# Sampling.


def strengths_by_steps(run, unit):
    """The root of the sum of squared ratios in every bin, from step to step."""
    bins = [0.0] * run.blocks
    for step, std in enumerate(run.noise_stds):
        bins[step % run.blocks] += (unit / std) ** 2 if std > 0 else math.inf if unit else 0.0
    return sorted(math.sqrt(each) for each in bins)


@pytest.mark.parametrize("steps", [1, 2, 3, 6, 7])
@pytest.mark.parametrize("sensitivity", [0.0, 1.0, 1.3])
@pytest.mark.parametrize("std", [0.0, 0.8, "listed"])
def test_strengths_of_bins(steps, sensitivity, std):
    stds = std if std != "listed" else tuple(0.5 + 0.1 * k for k in range(steps))
    run = run_of(
        {"sensitivity": sensitivity},
        steps=steps,
        noise=li.GradientNoise(stds),
        batching=li.BallsInBins(2),
    )
    found = [a for a, count in strengths(run) for _ in range(count)]
    assert len(found) == run.blocks == 3
    exact = strengths_by_steps(run, sensitivity / 2)
    assert sorted(found) == pytest.approx(exact, rel=1e-11)
    assert all(a >= b for a, b in zip(sorted(found), exact, strict=True)), "rounded up"


@pytest.mark.parametrize("name", ["balls-in-bins-pld", "fixed-size-amplified", "poisson-rdp"])
def test_nothing_to_hide(name):
    batching = {"balls": li.BallsInBins(2), "fixed": li.FixedSize(2)}.get(name[:5], li.Poisson(0.3))
    run = run_of({"sensitivity": 0.0}, batching=batching)
    assert bound(name, run) == Gdp(0.0)


def test_one_bin_that_is_reached_is_not_nothing():
    run = run_of({"sensitivity": 0.5}, steps=1, batching=li.BallsInBins(2))
    assert bound("balls-in-bins-pld", run).delta(0.0) > 0


@pytest.mark.parametrize("adjacency", ["zero-out", "replace-one"])
def test_a_fixed_size_knows_its_neighbours(adjacency):
    run = run_of({"sensitivity": 1.0}, batching=li.FixedSize(2), adjacency=adjacency)
    found = bound("fixed-size-amplified", run)
    assert isinstance(found, FixedSizeSteps) and found.replaced == (adjacency == "replace-one")
    assert found.rate == 1 / 3 and found.counts == (STEPS,)
    assert found.multipliers == pytest.approx((1.6,), rel=1e-11)


def test_renyi_divergences_of_poisson_batches():
    run = run_of({"sensitivity": 1.0}, batching=li.Poisson(0.5))
    found = bound("poisson-rdp", run)
    assert isinstance(found, SampledRenyi) and found.rate == 0.5 and found.counts == (STEPS,)


@pytest.mark.parametrize(
    ("name", "batching", "chance", "every"),
    [
        ("restarted-allocation-pld", li.RandomAllocation(2), 1 / 3, 3),
        ("restarted-poisson-pld", li.Poisson(0.4), 0.4, 1),
    ],
)
def test_loads_of_batches_follow_the_chance_of_a_record(monkeypatch, name, batching, chance, every):
    """Batches are as full as the chance of the other records says; restarts lie between passes."""
    asked = {}
    monkeypatch.setattr(
        sampling, "search_restarts", lambda run, **more: asked.update(more) or Gdp(0.0)
    )
    run = run_of({"sensitivity": 1.0, "smooth": 1.0, "strong": 0.5}, batching=batching)
    bound(name, run)
    assert (asked["chance"], asked["every"]) == (chance, every)

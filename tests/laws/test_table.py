"""Laws of the whole table: no upper row below an exact law, whatever run is drawn; all of them
monotone."""

import itertools
import math
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

import lastiterate as li
from lastiterate.analysis.block_positions import place_mus, short_steps
from lastiterate.curves.gaussian import Gdp
from lastiterate.testing.exact_distributions import (
    CONSTANTS,
    block_curvatures,
    draw_quadratic_run,
    exact_mu_of,
    weaken,
)
from lastiterate.theorems import TABLE
from lastiterate.theorems.theorem import Applies, match
from oracles.drawn import about
from oracles.gaussian import hidden_place_delta, mixture_delta
from tiers import size

UPPER = [theorem.name for theorem in TABLE.values() if theorem.kind == "upper"]


def uppers(run, among=UPPER):
    for name in among:
        found = match(TABLE[name], run)
        if isinstance(found, Applies):
            yield name, found.curve


def test_blocks_in_public_order():
    """Records with curvatures of their own; b need not divide n, and a short block has less
    curvature."""
    rng, met, tight = np.random.default_rng(71), Counter(), Counter()
    for _ in range(size(1000, 3000, "ORDERED")):
        run, hessians = draw_quadratic_run(rng, rng.choice([li.Cyclic, lambda b: li.FullBatch()]))
        curvatures = block_curvatures(run, hessians)
        mu = max(exact_mu_of(run, curvatures, place) for place in range(run.blocks))
        for name, curve in uppers(run):
            met[name] += 1
            for alpha in (1.01, 2.0, 30.0):
                assert curve.rdp(alpha) >= alpha * mu**2 / 2 * (1 - 1e-12), (name, run, hessians)
            if isinstance(curve, Gdp):
                assert curve.mu >= mu * (1 - 1e-12), (name, run, hessians)
                tight[name] += curve.mu <= mu * (1 + 1e-9)
            else:
                assert curve.delta(1.0) >= Gdp(mu).delta(1.0) * (1 - 1e-9)
    starts = li.FixedStart(), li.GaussianStart(math.sqrt(0.5))
    wanted = about(li.FullBatch, li.Cyclic, starts=starts, strong=1.0)
    assert {name for name in UPPER if met[name] >= 20} == wanted, met
    assert (
        tight["shifted-interpolation"] > 100
        and tight["composition-gdp"] > 35
        and tight["pabi-convex"] > 10
    )


def test_a_short_block_is_followed_on_its_own():
    """Records of curvature 1, five of six in the first block: bound and exact law of every place,
    never far apart."""
    base = dict(n=6, step_size=li.Constant(0.3), noise=li.GradientNoise(1.0), batching=li.Cyclic(5))
    loss_of = li.KnownConstants(li.LossFacts(sensitivity=1.0, smooth=1.0, strong=1.0))
    for steps in (1, 2, 9, 40):
        run = li.Run(steps=steps, loss=loss_of, adjacency="replace-one", **base)
        curvatures = block_curvatures(run, np.ones(6))
        assert curvatures == [1.0, 0.2]
        for bound, place in zip(place_mus(run), (0, 1), strict=True):
            assert (
                exact_mu_of(run, curvatures, place)
                <= bound
                <= 1.4 * exact_mu_of(run, curvatures, place)
                or bound == 0
            )
        listed = replace(run, step_size=li.StepSchedule((0.3,) * steps))
        assert place_mus(listed) == pytest.approx(place_mus(run), rel=1e-12)
    permuted = replace(run, batching=li.Permuted(5))
    assert (place_mus(permuted) == place_mus(run)).all()


def test_every_short_block_counts_as_short():
    """Whichever blocks of a pass hold fewer records than the divisor, not only the last one."""
    strided = SimpleNamespace(divisor=lambda n: 4.0, block_sizes=lambda n: np.array([4, 3, 3]))
    assert short_steps(strided, 10, 5).tolist() == [False, True, True, False, True]
    assert short_steps(li.Cyclic(4), 10, 5).tolist() == [False, False, True, False, False]
    assert (
        not short_steps(li.Cyclic(5), 10, 5).any() and not short_steps(li.FullBatch(), 3, 2).any()
    )


def test_one_secret_permutation():
    """All records alike, or the others' order in plain sight: the exact mixture over the record's
    place."""
    rng, met, near = np.random.default_rng(72), Counter(), 0.0
    for _ in range(50):
        run, hessians = draw_quadratic_run(rng, li.Permuted)
        weights = (
            np.array(
                [min(run.batching.size, run.n - j * run.batching.size) for j in range(run.blocks)]
            )
            / run.n
        )
        curvatures = block_curvatures(run, np.full(run.n, hessians[0]))
        mus = [exact_mu_of(run, curvatures, place) for place in range(run.blocks)]
        for epsilon in (0.0, 1.0):
            true = hidden_place_delta(epsilon, weights, mus)
            for name, curve in uppers(run):
                met[name] += 1
                assert curve.delta(epsilon) >= true - 1e-6, (name, run, hessians)
                near = max(near, true / curve.delta(epsilon) if true > 1e-4 else 0.0)
    assert set(met) == about(li.Permuted) and near > 0.98


def test_secret_bins():
    """Other records show their bins, several may share one: the mean over bins of exact mixtures."""
    rng, met = np.random.default_rng(73), Counter()
    for _ in range(24):
        run, hessians = draw_quadratic_run(rng, li.BallsInBins)
        n = min(run.n, 3)
        run = replace(run, n=n, batching=li.BallsInBins(min(run.batching.size, n)))
        hessians[0] = 0.0  # the record is linear, so that its bin does not show in the variance
        counts = Counter()
        for bins in itertools.product(range(run.blocks), repeat=n - 1):
            held = (
                tuple(np.bincount(bins, weights=hessians[1:n], minlength=run.blocks))
                if bins
                else (0.0,) * run.blocks
            )
            counts[held] += run.blocks ** -(n - 1.0)
        for epsilon in (0.0, 1.0):
            true = 0.0
            for held, chance in counts.items():
                mus = [
                    exact_mu_of(run, np.array(held) / run.divisor, place)
                    for place in range(run.blocks)
                ]
                true += chance * hidden_place_delta(epsilon, [1 / run.blocks] * run.blocks, mus)
            for name, curve in uppers(run):
                met[name] += 1
                assert curve.delta(epsilon) >= true - 1e-6, (name, run, hessians)
    assert set(met) == about(li.BallsInBins) and min(met.values()) > 10


def test_a_crowded_bin_has_more_curvature():
    """Six records divided by two: a bin may hold five others, and steps beyond 2/(2.5 smooth) may
    expand."""
    name, base = "shifted-interpolation-bins", dict(n=6, steps=7, noise=li.GradientNoise(1.0))
    for step, crowded in ((0.8, False), (0.81, True), (2.0, True)):
        flat = li.KnownConstants(li.LossFacts(sensitivity=1.0, smooth=1.0, strong=0.0))
        run = li.Run(step_size=li.Constant(step), batching=li.BallsInBins(2), loss=flat, **base)
        blocks = match(
            TABLE["shifted-interpolation-permuted"], replace(run, batching=li.Permuted(2))
        ).curve.delta(0.1)
        bins = match(TABLE[name], run).curve.delta(0.1)
        assert bins > blocks * (1 + 1e-9) if crowded else bins == pytest.approx(blocks, rel=1e-9)
        # an empty bin has no curvature at all
        curved = replace(
            run, loss=li.KnownConstants(li.LossFacts(sensitivity=1.0, smooth=1.0, strong=0.3))
        )
        assert match(TABLE[name], curved).curve.delta(0.1) == bins


def test_batches_drawn_afresh():
    rng, met, near = np.random.default_rng(74), Counter(), 0.0
    for _ in range(size(60, 150, "AFRESH")):
        run, hessians = draw_quadratic_run(rng, li.FixedSize)
        run = (
            replace(run, steps=min(run.steps, 6))
            if not isinstance(run.step_size, li.StepSchedule) and run.constant
            else run
        )
        if run.steps > 6:
            continue
        etas = run.step_sizes
        stds = run.noise_stds
        later = np.concatenate((np.cumprod((1 - etas * hessians[0])[::-1])[::-1][1:], [1.0]))
        apart = (
            2 if run.adjacency == "replace-one" else 1
        )  # one record's pull, or a pull and its opposite
        pull = run.facts().sensitivity.value / apart / run.divisor * etas * later
        start = run.start.std**2 if isinstance(run.start, li.GaussianStart) else 0.0
        first = later[0] * (1 - etas[0] * hessians[0])
        std = math.sqrt(((etas * stds * later) ** 2).sum() + start * first**2)
        drawn = np.array(list(itertools.product((0, 1), repeat=run.steps)))
        q = run.batching.size / run.n
        weights = np.prod(np.where(drawn, q, 1 - q), axis=1)
        other = -1 if run.adjacency == "replace-one" else 0
        found = list(uppers(run))
        for epsilon in (0.0, 1.0):
            means = drawn @ pull
            true = mixture_delta(epsilon, (weights, means), (weights, other * means), std)
            for name, curve in found:
                met[name] += 1
                assert curve.delta(epsilon) >= true - 1e-5, (name, run, hessians)
                near = max(near, true / curve.delta(epsilon) if true > 1e-4 else 0.0)
    assert set(met) == about(li.FixedSize) and near > 0.98


EXEMPT = {("smoothness", "cyclic-weakly-convex"), ("smoothness", "cyclic-weakly-convex-bounded")}
"""L_lam^2 = 1 + 2 lam m (1 + m / (2 (M + m))) falls as M grows; both constants hold, the smaller
one for both."""


def test_a_bound_names_every_constant_that_it_uses():
    """Evidence cannot be lost: where another value of a constant changes a curve, its fact is among
    the verdict's."""
    rng, met = np.random.default_rng(76), Counter()
    kinds = [li.Cyclic, lambda b: li.FullBatch(), li.Permuted, li.FixedSize]
    for _ in range(size(120, 400, "NAMED")):
        run, _ = draw_quadratic_run(rng, kinds[int(rng.integers(len(kinds)))])
        if rng.random() < 0.3:
            run = replace(run, domain=li.domains.Ball(float(10 ** rng.uniform(-2, 1))))
        before = dict(uppers(run))
        for what, other in weaken(run, rng):
            for name, curve in uppers(other, before) if what in CONSTANTS else ():
                if curve != before[name]:
                    named = " ".join(fact.why for fact in match(TABLE[name], run).facts)
                    assert CONSTANTS[what] in named, (what, name, run)
                    met[name, what] += 1
    assert met["shifted-interpolation", "convexity"] and met["shifted-interpolation", "smoothness"]
    assert (
        met["shifted-interpolation", "curvature"] and met["sgld-strongly-convex-batch", "curvature"]
    )


def test_every_upper_bound_is_monotone():
    """Less noise, more sensitivity, less curvature, more steps, a larger domain, fewer records: no
    smaller bound."""
    rng, met = np.random.default_rng(75), Counter()
    starts = li.FixedStart(), li.GaussianStart(math.sqrt(0.5))
    domains = li.domains.Everywhere(), li.domains.Ball(1.0)
    listed = li.FullBatch, li.Cyclic, li.Permuted, li.Reshuffled
    # sampled batches, which take longer, have files of their own
    rows = set().union(*(about(*listed, domain=d, starts=starts, strong=1.0) for d in domains))
    kinds = [
        li.Cyclic,
        lambda b: li.FullBatch(),
        lambda b: li.FullBatch(),
        li.Permuted,
        li.FixedSize,
        li.Reshuffled,
    ]
    for _ in range(size(300, 600, "MONOTONE")):
        run, _ = draw_quadratic_run(rng, kinds[int(rng.integers(len(kinds)))])
        if rng.random() < 0.4:
            run = replace(run, domain=li.domains.Ball(float(10 ** rng.uniform(-2, 1))))
        before = dict(uppers(run, rows))
        for what, other in weaken(run, rng):
            for name, curve in uppers(other, before):
                searched = (
                    run.blocks > 1
                    and isinstance(run.domain, li.domains.Ball)
                    and what in ("steps", "domain")
                )
                if searched and name == "shifted-interpolation":
                    continue  # not every restart is tried
                if (what, name) not in EXEMPT:
                    met[name, what] += 1
                    assert curve.delta(0.7) >= before[name].delta(0.7) * (1 - 1e-9) - 1e-15, (
                        what,
                        name,
                        run,
                    )
    for name in rows:
        seen = {what for other, what in met if other == name}
        gibbs = any(a.name in ("gibbs_start", "log_sobolev") for a in TABLE[name].assumptions)
        assert {"sensitivity", "steps"} | (set() if gibbs else {"noise"}) <= seen, name

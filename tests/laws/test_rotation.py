"""Clipping that rotates gradients: the step's Lipschitz constant in the plane, and the theorems
that rest on it."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.stats import beta

import lastiterate as li
from lastiterate.analysis import shifts
from lastiterate.analysis.block_positions import place_mus
from lastiterate.analysis.step_map import StepMap, bound_clipped_step, step_map
from lastiterate.curves.gaussian import Gdp
from lastiterate.theorems import TABLE
from lastiterate.theorems.theorem import Fails, match
from oracles.drawn import applied
from oracles.plane import clip, expanding, projection, turned


def stretch(step, angle, turn, low, high):
    """|I - step P H|: P the projection beside the unit vector at ``angle``, H with curvatures low, high, turned."""
    return np.linalg.norm(
        np.eye(2) - step * projection(angle) @ turned(np.diag([low, high]), turn), 2
    )


def test_the_closed_form_is_the_largest_stretch_in_the_plane():
    """Reached by a quadratic at a point whose gradient is as long as the clip, unless no clipping
    stretches more."""
    rng, rotating = np.random.default_rng(81), 0
    for _ in range(150):
        high = float(rng.uniform(0.1, 3))
        low = float(rng.choice([0.0, high, rng.uniform(-1, 1) * high, rng.uniform(-20, -1) * high]))
        step = float(rng.uniform(0.05, 3.9)) / high
        ours = bound_clipped_step(step, low, high)
        angles = np.linspace(0, math.pi, 61)
        best = max(angles, key=lambda a: stretch(step, a, 0.0, low, high))
        found = minimize(
            lambda a, step=step, low=low, high=high: -stretch(step, a[0], 0.0, low, high),
            [best],
            method="Nelder-Mead",
            tol=1e-11,
        )
        unclipped = max(1.0, abs(1 - step * low), abs(1 - step * high))
        true = max(unclipped, -found.fun)
        assert true <= ours * (1 + 1e-12)
        assert ours == pytest.approx(true, rel=1e-9), (step, low, high)
        rotating += true > unclipped * (1 + 1e-6)
    assert rotating > 30
    assert bound_clipped_step(4.0, 0.0, 1.0) == 3.0, "where the formula has no value"


def field(rng, low, high):
    """A smooth function on the plane with Hessian in [low, high], as its gradient and its Hessian
    at points."""
    waves = rng.normal(size=(3, 2))
    waves /= np.linalg.norm(waves, axis=1, keepdims=True)
    share, shift, slope = rng.dirichlet(np.ones(3)), rng.uniform(0, 6, 3), rng.normal(size=2)
    middle, reach = (high + low) / 2, (high - low) / 2
    # sum of share_i cos(z_i) w_i w_i' lies in [-1, 1]
    return lambda x: middle * x + slope + reach * (share * np.sin(x @ waves.T + shift)) @ waves


@pytest.mark.parametrize("seed", range(8))
def test_averaged_clipped_steps_of_nonlinear_losses(seed):
    """Finite differences anywhere in the plane, batches, a ridge outside the clip, in two and three
    dimensions."""
    rng = np.random.default_rng(seed)
    for _ in range(40):
        high = float(rng.uniform(0.2, 2))
        low = float(rng.choice([0.0, rng.uniform(-1, 1) * high, rng.uniform(-20, -1) * high]))
        step, ridge = float(rng.uniform(0.1, 2)) / high, float(rng.choice([0.0, rng.uniform(0, 1)]))
        norm, batch = (
            float(rng.uniform(0.1, 2)),
            [field(rng, low, high) for _ in range(int(rng.integers(1, 4)))],
        )

        def move(x, batch=batch, norm=norm, step=step, ridge=ridge):
            return x - step * (sum(clip(g(x), norm) for g in batch) / len(batch) + ridge * x)

        x, h = rng.normal(size=(500, 2)) * 3, 1e-5
        j = np.stack([(move(x + h * e) - move(x - h * e)) / (2 * h) for e in np.eye(2)], axis=-1)
        found = StepMap(ridge, low, high, True, ())
        assert np.linalg.norm(j, 2, axis=(1, 2)).max() <= found.lipschitz(step) * (1 + 1e-6)
        if step <= shifts.longest_weakly_convex_step(found):
            assert found.lipschitz(step) <= math.exp(shifts.log_square(found, step) / 2) * (
                1 + 1e-12
            )


def test_what_is_known_about_a_clipped_softmax():
    """The ridge stays outside the clip, and the data term's curvature is the smoothness without it."""
    loss = li.Softmax(classes=3, row_norm=1.0, ridge=0.1, intercept=0.0)
    base = dict(n=10, steps=1, step_size=li.Constant(1.0), noise=li.GradientNoise(1.0), loss=loss)
    found = step_map(li.Run(clip=0.5, **base))
    assert (found.ridge, found.lowest, found.clipped) == (
        0.1,
        0.0,
        True,
    ) and found.highest == pytest.approx(0.5)
    assert found.lipschitz(1.0) == pytest.approx(0.9 * bound_clipped_step(1 / 0.9, 0.0, 0.5))
    assert not step_map(li.Run(**base)).clipped and step_map(li.Run(**base)).lipschitz(
        1.0
    ) == pytest.approx(0.9)


def test_three_dimensions_give_nothing_more():
    rng = np.random.default_rng(82)
    for _ in range(2000):
        low, high = sorted(rng.uniform(-1, 1, 2))
        high = abs(high) + 0.05
        g, q = rng.normal(size=3), np.linalg.qr(rng.normal(size=(3, 3)))[0]
        p = np.eye(3) - np.outer(g, g) / (g @ g) * rng.choice([1.0, rng.uniform(0, 1)])
        hessian = q @ np.diag(rng.choice([low, high], 3)) @ q.T
        step = float(rng.uniform(0.05, 3.9)) / high
        assert np.linalg.norm(np.eye(3) - step * p @ hessian, 2) <= bound_clipped_step(
            step, low, high
        ) * (1 + 1e-12)


def described(chain, passes):
    """The run that the chain executes: clipped, convex, smooth."""
    blocks = len(chain.blocks)
    return li.Run(
        n=chain.size * blocks,
        steps=blocks * passes,
        step_size=li.Constant(chain.step),
        noise=li.GradientNoise(chain.std),
        batching=li.Cyclic(chain.size),
        clip=chain.clip,
        loss=li.KnownConstants(li.LossFacts(smooth=1.0, strong=0.0)),
    )


def pretended(run):
    """The same run as if clipping kept convex steps from expanding."""
    sensitivity = run.facts().sensitivity.value
    return replace(
        run,
        clip=None,
        loss=li.KnownConstants(li.LossFacts(sensitivity=sensitivity, smooth=1.0, strong=0.0)),
    )


def test_a_clipped_chain_of_a_convex_loss_leaks_more_than_convex_theorems_say():
    """Both sides: what ignores the rotation is below the truth, what prices it is above."""
    chain = expanding(2, size=20_000, std=1 / 20_000 / 0.5)
    for passes in (8, 20, 50):
        run = described(chain, passes)
        true, _ = chain.exact_mu(passes)
        for name in ("pabi-convex", "cyclic-weakly-convex", "shifted-interpolation"):
            assert applied(name, pretended(run)).mu < true, "clipping is not nonexpansive"
        assert isinstance(match(TABLE["pabi-convex"], run), Fails)
        ours = applied("shifted-interpolation", run).mu
        assert true <= ours <= 1.2 * true, "and the exact constant is not wasteful"
        assert place_mus(run)[-1] >= true
        assert applied("composition-gdp", run).mu >= ours
        assert isinstance(match(TABLE["cyclic-weakly-convex"], run), Fails), (
            "its range ends at 1/(2 smooth)"
        )


def test_half_the_step():
    """Where Proposition 2.1 covers clipped steps, and where a bounded domain that is wide changes
    nothing."""
    chain = expanding(2, size=20_000, std=1 / 20_000 / 0.5, step=0.5)
    for passes in (2, 20):
        run = replace(described(chain, passes), domain=li.domains.Ball(10.0))
        true, _ = chain.exact_mu(passes)
        for name in (
            "shifted-interpolation",
            "cyclic-weakly-convex",
            "cyclic-weakly-convex-bounded",
        ):
            assert applied(name, run).mu >= true
        wide = applied("shifted-interpolation", replace(run, domain=li.domains.Everywhere())).mu
        assert applied("shifted-interpolation", run).mu == pytest.approx(wide, rel=1e-12)


def test_the_simulated_chain_leaks_what_the_linear_law_says():
    """The clipped chain itself, 60,000 runs on either side: a confidence bound on delta above the
    pretended curve."""
    passes, count = 20, 60_000
    chain, rng = expanding(2, size=20_000, std=1 / 20_000 / 0.5), np.random.default_rng(83)
    run = described(chain, passes)
    mu, direction = chain.exact_mu(passes)
    with_record, without = (
        chain.simulate(passes, count, rng, record=there) @ direction for there in (True, False)
    )
    moved = (with_record.mean() - without.mean()) / math.sqrt(
        (with_record.var() + without.var()) / 2
    )
    assert moved == pytest.approx(mu, rel=0.02)
    epsilon, sure = 0.5, 1 - 1e-6
    # the event on which N(mu, 1) has more than e^epsilon times the mass of N(0, 1)
    threshold = without.mean() + math.sqrt(without.var()) * (epsilon / mu + mu / 2)
    hits, alarms = int((with_record > threshold).sum()), int((without > threshold).sum())
    low = beta.ppf(1 - sure, hits, count - hits + 1)
    high = beta.ppf(sure, alarms + 1, count - alarms)
    shown = low - math.exp(epsilon) * high
    assert applied("pabi-convex", pretended(run)).delta(epsilon) < shown
    assert shown <= applied("shifted-interpolation", run).delta(epsilon)
    assert shown <= Gdp(mu).delta(epsilon) * 1.02


def test_a_secret_place_pays_for_the_rotation_too():
    chain = expanding(2, size=20, std=1 / 20 / 0.5)
    run = replace(described(chain, 20), batching=li.Permuted(20))
    for epsilon in (0.0, 1.0):
        priced = applied("shifted-interpolation-permuted", run).delta(epsilon)
        assert priced > applied("shifted-interpolation-permuted", pretended(run)).delta(epsilon)

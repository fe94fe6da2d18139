"""Constants of a step's map: which statements about a loss they follow from, what they shrink by,
rounding, and runs whose steps follow a measured smoothness."""

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

import lastiterate as li
from lastiterate.analysis.step_map import (
    StepMap,
    bound_clipped_step,
    find_known_map,
    shrinkage,
    step_map,
    to_accounted_run,
)
from lastiterate.run.facts import Evidence, find_fact
from lastiterate.run.losses import data_curvature, loss_from_facts

PLAIN = li.HuberRidge(row_norm=1.0, residual_clip=1.0, intercept=0.0, ridge=0.3)


def run_of(loss, **more):
    return li.Run(n=10, steps=3, step_size=0.5, noise=li.GradientNoise(1.0), loss=loss, **more)


def known(**constants):
    return li.KnownConstants(li.LossFacts(lipschitz=1.0, **constants))


@pytest.mark.parametrize(
    ("loss", "shares", "ridge", "lowest", "highest", "used"),
    [
        (known(smooth=2.0, strong=0.5), (0.25, 3.0), 0.0, 0.125, 6.0, ("smooth", "strong")),
        (known(smooth=2.0, strong=0.0), (0.25, 3.0), 0.0, 0.0, 6.0, ("smooth", "strong")),
        (known(smooth=2.0, weak_convexity=0.7), (0.25, 3.0), 0.0, -2.1, 6.0, ("smooth", "weak")),
        (known(smooth=2.0, weak_convexity=5.0), (0.5, 2.0), 0.0, -10.0, 4.0, ("smooth", "weak")),
        (known(smooth=2.0), (0.5, 3.0), 0.0, -6.0, 6.0, ("smooth",)),
        (PLAIN, (0.5, 3.0), 0.3, 0.0, 3.0, ("smooth", "strong")),
        (PLAIN, None, 0.3, 0.0, 1.0, ("smooth", "strong")),
    ],
)
def test_curvature_is_that_of_the_fewest_or_the_most_records(
    loss, shares, ridge, lowest, highest, used
):
    """Curvature that helps counts with the fewest records of a batch, all other with the most."""
    run = run_of(loss)
    found = step_map(run, shares)
    assert found == find_known_map(run, shares) and not found.clipped
    assert (found.ridge, found.lowest) == (ridge, pytest.approx(lowest))
    assert found.highest == pytest.approx(highest)
    names = {"weak": "weak_convexity"}
    assert found.facts == tuple(find_fact(loss.facts(), names.get(name, name)) for name in used)


def test_short_blocks_and_clips_of_a_run():
    short = step_map(run_of(known(smooth=2.0, strong=0.5), batching=li.Cyclic(4)))
    assert (short.lowest, short.highest) == (0.25, 2.0), "the last block holds 2 of 4"
    assert step_map(run_of(li.KnownConstants(), clip=1.0)) is None
    softmax = li.Softmax(classes=3)
    for loss, clip, acts in (
        (softmax, None, False),
        (softmax, 0.5, True),
        (li.Logistic(), 0.5, False),
        (known(smooth=1.0), 0.5, True),
        (known(smooth=1.0), None, False),
    ):
        assert step_map(run_of(loss, clip=clip)).clipped is acts, (loss, clip)


def test_a_ridge_shrinks_clipped_steps():
    """Against the largest stretch of I - step (P H + ridge I) over projections P; where the step
    times the ridge is 1 or more, by the triangle inequality."""
    angles = np.linspace(0, math.pi, 2001)
    normals = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    projections = np.eye(2) - normals[:, :, None] * normals[:, None, :]
    for ridge, low, high, step in (
        (0.3, 0.0, 1.0, 1.0),
        (0.3, -0.5, 1.0, 2.0),
        (0.3, -3.0, 1.0, 0.5),
        (0.5, 0.0, 1.0, 2.0),
        (0.5, -2.0, 1.0, 2.0),
        (0.5, -0.2, 1.0, 5.0),
        (4.0, -0.2, 0.1, 0.3),
    ):
        maps = (1 - step * ridge) * np.eye(2) - step * projections @ np.diag([low, high])
        most = max(float(np.linalg.norm(maps, 2, axis=(1, 2)).max()), abs(1 - step * ridge))
        found = StepMap(ridge, low, high, True, ()).lipschitz(step)
        assert found >= most * (1 - 1e-9)
        shrink = 1 - step * ridge
        if shrink > 0:
            inner = float(bound_clipped_step(np.array(step / shrink), low, high))
            assert found == pytest.approx(shrink * inner, rel=1e-12)
        else:
            assert found == pytest.approx(-shrink + step * max(-low, high), rel=1e-12)


def test_rounding_is_added_where_a_constant_cancels():
    """Below 1/2 the allowance is 2^-50 (1 + step (|ridge| + the larger curvature)); above it there
    is none."""
    for ridge, low, high, step, exact, allowed in (
        (0.0, 0.75, 1.25, 1.0, 0.25, 2.25),
        (0.25, 0.5, 0.75, 1.0, 0.25, 2.0),
        (0.5, -0.125, 0.25, 2.0, 0.5, 0.0),
        (0.25, 0.25, 0.75, 1.0, 0.5, 0.0),
        (0.25, 0.0, 0.75, 1.0, 0.75, 0.0),
        (3.0, 0.0, 1.0, 1.0, 3.0, 0.0),
    ):
        found = StepMap(ridge, low, high, False, ()).lipschitz(step)
        assert found == exact + allowed * 2.0**-50, (ridge, low, high)
    rng = np.random.default_rng(6)
    for _ in range(300):
        ridge = float(rng.uniform(0, 2))
        low = float(rng.uniform(-0.5, 0.5) * ridge)
        high = low * (1 + float(rng.choice([0.0, 1e-16, 1e-12])))
        step = 1 / (ridge + low) * (1 + float(rng.choice([0.0, 1e-16, -1e-15])))
        found = StepMap(ridge, min(low, high), max(low, high), False, ()).lipschitz(step)
        ends = (Fraction(ridge) + Fraction(part) for part in (low, high))
        true = max(abs(1 - Fraction(step) * end) for end in ends)
        assert true <= found <= true + Fraction(1, 2**40)


@pytest.mark.parametrize("weight", [1e-18, 1e-3, 0.3, 7.0])
def test_a_penalty_shrinks_by_its_quadratic_part(weight):
    """1 / (1 + step w), rounded up, never above 1."""
    steps = np.array([1e-9, 0.1, 0.5, 3.0])
    for prox in (li.penalties.L2Squared(weight), li.penalties.ElasticNet(l1=0.2, l2=weight)):
        found = shrinkage(run_of(known(smooth=1.0), prox=prox), steps)
        for step, one in zip(steps, found, strict=True):
            exact = 1 / (1 + Fraction(float(step)) * Fraction(prox.quadratic))
            assert exact <= Fraction(float(one)) <= min(1, exact * (1 + Fraction(1, 2**49)))
    for prox in (None, li.penalties.L1(weight)):
        assert (shrinkage(run_of(known(smooth=1.0), prox=prox), steps) == 1.0).all()


# Steps in units of a measured smoothness.

NOISES = {
    "multiplier": li.NoiseMultiplier(4.0),
    "std": li.GradientNoise(0.3),
    "list": li.GradientNoise((0.3, 0.2, 0.4)),
    "correlated": li.Correlated(2.0, 2),
}


def relative_run(noise, clip=None, loss=PLAIN, relative=1.5):
    return li.Run(
        n=12,
        steps=3,
        step_size=li.RelativeToSmooth(relative),
        noise=noise,
        batching=li.Cyclic(4),
        loss=loss,
        clip=clip,
        preprocessing=(li.TopEigenvalue(5.0),),
    )


@pytest.mark.parametrize("clip", [None, 0.5])
@pytest.mark.parametrize("kind", NOISES)
def test_steps_that_follow_a_measured_smoothness_have_length_one(kind, clip):
    """The noise of every step is the executed run's, for shifts that are scaled alike."""
    run = relative_run(NOISES[kind], clip, replace(PLAIN, ridge=0.0))
    found = to_accounted_run(run)
    assert found.step_size == li.Constant(1.0) and found.clip is None
    assert found.preprocessing == () and found.batching == run.batching
    assert found.first_noise == pytest.approx(run.first_noise, rel=1e-12)
    if kind == "correlated":
        assert type(found.noise) is type(run.decided_noise) and not found.noise.independent
    else:
        assert found.noise_stds == pytest.approx(run.noise_stds, rel=1e-12)
        assert found.noise.independent
    own, facts = run.facts(), found.loss.facts()
    assert facts.lipschitz == own.lipschitz
    assert (facts.fact("smooth"), facts.fact("strong"), facts.fact("weak_convexity", 9.0)) == (
        1.5,
        0.0,
        0.0,
    )
    assert facts.smooth.evidence is Evidence.PAID and facts.strong.evidence is Evidence.PROVED
    # measured on the batches themselves, however many records they hold
    assert step_map(found, (0.25, 3.0)).highest == step_map(found).highest == 1.5
    assert step_map(found, (0.25, 3.0)).lowest == 0.0


def test_a_measured_smoothness_is_that_of_the_batches():
    """Of a loss that states the same constants by another way they count by records."""
    found = to_accounted_run(relative_run(li.GradientNoise(1.0), loss=replace(PLAIN, ridge=0.0)))
    facts = found.loss.facts()
    assumed = replace(found, loss=li.KnownConstants(facts))
    assert step_map(assumed, (0.5, 3.0)).highest == 4.5
    assert step_map(replace(found, loss=loss_from_facts(facts)), (0.5, 3.0)).highest == 1.5


def test_other_runs_are_accounted_as_they_are():
    run = run_of(PLAIN)
    assert to_accounted_run(run) is run


@pytest.mark.parametrize("ridge", [0.0, 1e-9, 0.3, 1.0, 7.0, 1e6, 1e9])
@pytest.mark.parametrize("row_norm", [1e-9, 1e-4, 0.3, 1.1])
def test_curvature_far_below_the_ridge_is_rounded_up(row_norm, ridge):
    """Of losses that are quadratics: the curvature is the square of the norm, in exact fractions."""
    loss = li.HuberRidge(row_norm=row_norm, residual_clip=1.0, intercept=0.0, ridge=ridge)
    exact = Fraction(row_norm) ** 2
    found = data_curvature(loss.facts().smooth.value, ridge)
    rounding = Fraction(2) ** -51 * (Fraction(ridge) + exact)
    assert exact * (1 - Fraction(2) ** -52) <= Fraction(found) <= exact + rounding
    run = replace(run_of(loss), step_size=li.Constant(1e-10))
    known = find_known_map(run, (1.0, 1e6))
    assert Fraction(known.highest) >= exact * 10**6 * (1 - Fraction(2) ** -51)

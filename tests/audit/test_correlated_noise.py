"""Audits know correlated noise: executed noise has the law of the description, and every wrong one
is caught."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

import lastiterate as li
from lastiterate.audit import conformance, exact_distribution, learned_scores, worst_case
from lastiterate.audit.exact_distribution import columns, noise_p
from lastiterate.engine.noise import NoiseRecursion
from lastiterate.theorems import TABLE
from lastiterate.theorems.theorem import match
from oracles.cancelling import matrix

NOISE = li.Correlated(1.0, (1.0, 0.6, 0.3, 0.1), decay=0.5)
RUN = li.Run(
    n=6, steps=12, step_size=0.5, noise=NOISE, clip=1.0, batching=li.Cyclic(2), loss=li.HuberRidge()
)
RIGHT = NoiseRecursion.combine


def backwards(self, recent, drawn, k):
    return RIGHT(replace(self, taps=self.taps[::-1]), recent, drawn, k)


def shorter(self, recent, drawn, k):
    return RIGHT(replace(self, taps=self.taps * (np.arange(len(self.taps)) < 2)), recent, drawn, k)


def other_sign(self, recent, drawn, k):
    return RIGHT(replace(self, taps=-self.taps), recent, drawn, k)


def not_decaying(self, recent, drawn, k):
    return RIGHT(replace(self, decay=0.0), recent, drawn, k)


def forgotten(self, recent, drawn, k):
    return RIGHT(self, tuple(jnp.zeros_like(held) for held in recent), drawn, k)


def late(self, recent, drawn, k):
    return RIGHT(self, recent, drawn, k + (k > 5))


MUTANTS = [backwards, shorter, other_sign, not_decaying, forgotten, late]


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"optimizer": li.HeavyBall(0.5), "batching": li.FullBatch()},
        {"noise": li.Correlated(1.0, 5), "batching": li.BallsInBins(2)},
        {"noise": li.Correlated(1.0, 1, decay=0.9)},
    ],
    ids=str,
)
def test_the_last_iterate_follows_its_law(change):
    report = exact_distribution.compare(replace(RUN, **change), models=4000)
    assert report.holds, report


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_the_law_catches_noise_of_another_strategy(mutant, patched):
    patched(NoiseRecursion, "combine", mutant)
    assert not exact_distribution.compare(RUN, models=4000).holds


def test_a_default_audit_looks_at_the_noise_of_all_steps(patched):
    """What later steps take back is looked at in every audit, not only where the law is asked for."""
    holds = conformance.CHECKS[
        "the noise of all steps has another covariance than the described one"
    ]
    pair = worst_case(RUN)
    assert holds(RUN, pair, 16)
    patched(NoiseRecursion, "combine", other_sign)
    assert not holds(RUN, pair, 16)


@pytest.mark.parametrize(
    "noise", [NOISE, li.Correlated(0.3, 20), li.GradientNoise((0.1, 0.2, 0.3) * 4)], ids=str
)
def test_the_noise_of_all_steps_has_the_covariance_of_the_description(noise):
    run = replace(RUN, noise=noise)
    assert noise_p(run, 3) > 1e-6
    assert np.allclose(columns(run), matrix(noise, run.steps))


@pytest.mark.parametrize("batching", [li.FullBatch(), li.Cyclic(2)], ids=str)
def test_the_trajectory_attack_sees_as_much_as_the_theorem_says(batching):
    """A constant contribution of full length: the weighted sum has a distance of exactly mu."""
    run = replace(RUN, batching=batching, release="all")
    weight = learned_scores.weights(run, 0)
    moved = (np.arange(run.steps) % run.blocks == 0) / run.divisor
    inverse = np.linalg.inv(matrix(run.noise, run.steps)) * run.first_noise
    distance = weight @ moved / np.linalg.norm(weight @ inverse)
    mu = match(
        TABLE["correlated-gdp"],
        replace(run, clip=None, loss=li.KnownConstants(li.LossFacts(lipschitz=1.0))),
    )
    assert distance == pytest.approx(mu.curve.mu, rel=1e-9)


def test_an_audit_of_all_iterates_comes_near_its_certificate():
    run = li.Run(
        n=4,
        steps=8,
        step_size=0.5,
        noise=li.Correlated(2.0, 3),
        batching=li.Cyclic(2),
        release="all",
        clip=1.0,
        loss=li.HuberRidge(),
    )
    report = li.audit.audit(run, trials=4000, delta=1e-2)
    assert report.upper > report.lower > 0.5 * report.upper

"""Mistakes that no attack on a tight pair need see: the exact law of the released iterate gives
them away.

Statistics as in tests/engine/test_law.py: a right trainer fails each case with probability below
5e-6.
"""

from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
from scipy.stats import kstest, norm

import lastiterate as li
from benchmarks.audit.bugs import batching, output, preparation
from engine import reference
from engine.test_law import BASE, MODELS, X, Y, agrees, distance, sample
from lastiterate.engine import Trainer, keys_from_seed, trainer


def strength(run):
    return distance(sample(run), *reference.quadratic_law(run, X, Y))[0]


def test_the_right_trainer_follows_its_law():
    assert agrees(sample(BASE), BASE)


@pytest.mark.parametrize(
    "patches", [output.BEST_ITERATE, (preparation.START_OF_DATA,)], ids=lambda found: found[0][1]
)
def test_the_law_of_the_last_iterate_catches(patches, patched):
    for patch in patches:
        patched(*patch)
    assert not agrees(sample(BASE), BASE)
    print(f"{patches[0][1]}: z = {strength(BASE):.0f}")


@pytest.mark.parametrize("momentum", [li.Nesterov(), li.HeavyBall(0.3)], ids=str)
def test_the_law_catches_momentum_left_on(momentum, patched):
    of = trainer.StepProgram.of
    patched(trainer.StepProgram, "of", lambda *given: replace(of(*given), rule=momentum))
    assert not agrees(sample(BASE), BASE)
    print(f"{momentum}: z = {strength(BASE):.0f}")


def one_coordinate(run):
    """The first weight after one step from 0 into a box: exactly a Gaussian, clamped."""
    return Trainer(run).fit_many(X, Y, keys_from_seed(19, MODELS))[:, 0, 0]


def test_the_law_after_projection_catches_a_projection_that_is_skipped(patched):
    run = replace(
        BASE,
        steps=1,
        start=li.FixedStart(),
        domain=li.domains.Box(-0.1, 0.15),
        batching=li.FullBatch(),
    )
    mean, cov = reference.quadratic_law(replace(run, domain=li.domains.Ball(1e9)), X, Y)
    low, high = (norm.cdf((end - mean[0]) / np.sqrt(cov[0, 0])) for end in (-0.1, 0.15))

    def score():
        found = one_coordinate(run)
        inside = found[(found > -0.1) & (found < 0.15)]
        shares = [(found <= -0.1).mean(), (found < 0.15).mean()]
        z = max(
            abs(s - p) / np.sqrt(p * (1 - p) / MODELS)
            for s, p in zip(shares, (low, high), strict=True)
        )
        outside = float(((found < -0.1) | (found > 0.15)).mean())
        ranks = (norm.cdf((inside - mean[0]) / np.sqrt(cov[0, 0])) - low) / (high - low)
        return z, outside, kstest(ranks, "uniform").pvalue

    z, outside, p = score()
    assert z < 6 and outside == 0 and p > 1e-7
    patched(*output.UNPROJECTED)
    assert score()[1] > 0.3, "a third of the models lie where none can"


def test_the_mixture_over_orders_catches_blocks_in_public_order(patched):
    run = replace(BASE, batching=li.Permuted(3))
    cyclic = replace(BASE, batching=li.Cyclic(3))
    laws = [
        reference.quadratic_law(cyclic, X[list(o)], Y[list(o)]) for o in permutations(range(len(X)))
    ]
    means, covs = np.array([m for m, _ in laws]), np.array([c for _, c in laws])
    second = (covs + means[:, :, None] * means[:, None, :]).mean(0)

    def score():
        draws = sample(run)
        pairs = ((draws, means.mean(0)), (draws[:, :, None] * draws[:, None, :], second))
        return max(
            float((np.abs(f.mean(0) - e) / (f.std(0) / np.sqrt(MODELS))).max()) for f, e in pairs
        )

    assert score() < 6
    patched(*batching.PUBLIC_ORDER)
    found = score()
    assert found > 8
    print(f"public order: z = {found:.0f}")

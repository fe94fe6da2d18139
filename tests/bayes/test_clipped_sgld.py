"""Clipped SGLD as a run: the same update as equation 66, certified by the table, and a reason where
nothing can be."""

import math

import numpy as np
import pytest

import lastiterate as li
from lastiterate.bayes import make_clipped_sgld_run
from lastiterate.errors import InputError

GIVEN = dict(n=1000, steps=500, step_size=2e-5, clip=0.3, temperature=0.7, prior_precision=2.5)


def test_one_step_is_equation_66():
    run = make_clipped_sgld_run(**GIVEN, batching=li.Cyclic(8), loss=li.Logistic(row_norm=2.0))
    rng = np.random.default_rng(0)
    theta, gradients, xi = rng.normal(size=3), rng.normal(size=(8, 3)), rng.normal(size=3)
    clipped = gradients * np.minimum(1, 0.3 / np.linalg.norm(gradients, axis=1, keepdims=True))
    ascent = -2.5 * theta - 1000 / 8 * clipped.sum(
        0
    )  # gradients of the loss are minus those of the log-likelihood
    published = theta + 2e-5 / 2 * ascent + math.sqrt(2e-5 * 0.7) * xi
    step = run.first_step
    ours = theta - step * (
        clipped.sum(0) / run.divisor + run.loss.ridge * theta - run.first_noise * xi
    )
    assert ours == pytest.approx(published, rel=1e-12)
    assert run.clip == 0.3 and run.divisor == 8 and run.steps == 500


def test_the_table_certifies_it():
    run = make_clipped_sgld_run(**GIVEN)
    found = li.account(run)
    # 500 steps of a cycle of 1000: the record is seen at most once, mu = clip / noise on the sum
    assert found.epsilon(1e-5) == pytest.approx(
        li.account(run).best(1e-5).result.curve.epsilon(1e-5)
    )
    mu = 0.3 * run.first_step / math.sqrt(2e-5 * 0.7)
    single = [v.result.curve.mu for v in found.certifying if v.theorem.name == "composition-gdp"]
    assert single[0] == pytest.approx(mu, rel=0.02) and single[0] >= mu
    cold = li.account(make_clipped_sgld_run(**(GIVEN | {"temperature": 0.07})))
    assert cold.epsilon(1e-5) > found.epsilon(1e-5)
    smooth = make_clipped_sgld_run(**(GIVEN | {"steps": 20_000}), loss=li.Logistic())
    composed = make_clipped_sgld_run(**(GIVEN | {"steps": 20_000}))
    assert li.account(smooth).epsilon(1e-5) < li.account(composed).epsilon(1e-5), (
        "convexity buys something"
    )


def test_an_unclipped_run_is_told_why():
    bare = li.Run(
        n=100, steps=10, step_size=li.Constant(0.1), noise=li.Langevin(0.1), batching=li.Cyclic(1)
    )
    text = li.account(bare).why_not()
    assert all(
        word in text
        for word in ("clip=C", "domain=Ball(R)", "Theorem IV.1", "bayes.breach", "sample_posterior")
    )
    with pytest.raises(Exception, match="no theorem certifies"):
        li.calibrate(bare, epsilon=1.0, delta=1e-5)


@pytest.mark.parametrize(
    "change", [{"clip": 0.0}, {"temperature": -1.0}, {"step_size": 2.0}, {"prior_precision": 0.0}]
)
def test_bad_input(change):
    with pytest.raises(InputError):
        make_clipped_sgld_run(**(GIVEN | change))

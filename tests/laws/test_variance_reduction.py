"""Variance-reduced steps: the certificate against the exact law of two steps, and what is counted."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import norm

import lastiterate as li
from lastiterate.curves.sampled_batches import Pld
from lastiterate.theorems import TABLE
from lastiterate.theorems.theorem import Applies, Fails, match

RUN = li.Run(
    n=10,
    steps=2,
    step_size=0.5,
    noise=li.NoiseMultiplier(1.5),
    method=li.VarianceReduced(2, 2.0),
    batching=li.Poisson(0.3),
    loss=li.HuberRidge(residual_clip=1.0, intercept=0.0),
)
ROW = TABLE["variance-reduction"]


def curve(run):
    found = match(ROW, run)
    assert isinstance(found, Applies)
    return found.curve


def transcript_delta(epsilon, run, longer=1.0):
    """delta of (snapshot, second step) by quadrature: N(1, (r z)^2) against N(0, (r z)^2), then in
    units of the clip (1 - q) N(0, z^2) + q N(1, z^2) against N(0, z^2); the larger of both orders.
    ``longer``: every contribution is."""
    z, rate = run.noise.z / longer, run.batching.rate
    full = run.method.snapshot * z
    x = np.linspace(-9, 10, 3001)
    v = np.linspace(-9 * z, 9 * z + 1, 3001)
    one = np.outer(norm.pdf(x, 1 / full), (1 - rate) * norm.pdf(v, 0, z) + rate * norm.pdf(v, 1, z))
    two = np.outer(norm.pdf(x), norm.pdf(v, 0, z))
    cell = (x[1] - x[0]) * (v[1] - v[0])
    return max(
        np.maximum(p - math.exp(epsilon) * q, 0).sum() * cell for p, q in ((one, two), (two, one))
    )


LOUD = replace(
    RUN,
    batching=li.Poisson(0.05),
    noise=li.NoiseMultiplier(0.7),
    method=li.VarianceReduced(2, 10 / 7),
)
WHOLE = replace(
    RUN, batching=li.Poisson(1.0), noise=li.NoiseMultiplier(3.0), method=li.VarianceReduced(2, 1.0)
)


@pytest.mark.parametrize("run", [RUN, LOUD, WHOLE], ids=["usual", "seldom", "every record"])
def test_the_certificate_is_the_exact_law_of_two_steps(run):
    for epsilon in (0.1, 0.5, 1.5):
        exact, found = transcript_delta(epsilon, run), curve(run).delta(epsilon)
        counted = transcript_delta(
            epsilon, run, RUN.facts().sensitivity.value
        )  # what rounding may add
        assert exact <= found <= counted * (1 + 5e-3) + 1e-6


def test_snapshots_and_steps_between_are_charged():
    longer = curve(
        replace(RUN, steps=20, noise=li.NoiseMultiplier(1.5), method=li.VarianceReduced(5, 2.0))
    )
    assert isinstance(longer, Pld) and longer.counts == (16,) and longer.rate == 0.3
    moved = RUN.facts().sensitivity.value  # L and what rounding may add
    assert (
        moved > 1
        and longer.mu == pytest.approx(2 / 3 * moved, rel=1e-9)
        and longer.mu >= 2 / 3 * moved
    )
    assert (
        longer.multipliers[0] == pytest.approx(1.5 / moved, rel=1e-9)
        and longer.multipliers[0] <= 1.5 / moved
    )
    last = replace(RUN, steps=21, noise=li.NoiseMultiplier(1.5), method=li.VarianceReduced(5, 2.0))
    assert last.method.count_snapshots(last) == 5 and curve(last).counts == (16,)
    assert last.method.gradient_evaluations(last) == 5 * 10 + 2 * 16 * 3
    alone = curve(replace(RUN, steps=1))
    assert alone.mu == pytest.approx(moved / 3, rel=1e-9)


def test_only_its_own_row_certifies_and_the_account_is_in_both_adjacencies():
    certificate = li.account(RUN)
    assert [verdict.theorem.name for verdict in certificate.certifying] == ["variance-reduction"]
    assert li.account(replace(RUN, adjacency="add-remove")).epsilon(1e-5) == certificate.epsilon(
        1e-5
    )
    exchanged = li.account(replace(RUN, adjacency="replace-one")).epsilon(1e-5)
    assert certificate.epsilon(1e-5) < exchanged < math.inf
    for name, row in TABLE.items():
        if name != "variance-reduction":
            assert isinstance(match(row, RUN), Fails), name
    assert isinstance(match(ROW, replace(RUN, method=li.NoisySGD())), Fails)


def test_calibration_keeps_the_budget_and_wastes_little():
    certificate = li.calibrate(RUN, epsilon=1.0, delta=1e-5)
    noise = certificate.run.noise
    assert certificate.epsilon(1e-5) <= 1.0 and certificate.run.method == RUN.method
    less = replace(certificate.run, noise=noise.scale_by(0.99))
    assert li.account(less).epsilon(1e-5) > 1.0
    assert li.Run.from_json(RUN.to_json()) == RUN


@pytest.mark.parametrize(
    "change, words",
    [
        (dict(batching=li.FullBatch()), "must be Poisson where steps follow snapshots"),
        (dict(noise=li.Langevin(0.1)), "noise must be NoiseMultiplier or None"),
        (dict(clip=1.0), "clip must be None"),
        (dict(optimizer=li.HeavyBall(0.9)), "optimizer must be None"),
        (
            dict(loss=li.KnownConstants(li.LossFacts(lipschitz=1.0, smooth=1.0))),
            "loss must be Logistic or Softmax or HuberRidge",
        ),
        (
            dict(step_size=li.RelativeToSmooth(1.0), preprocessing=(li.TopEigenvalue(5.0),)),
            "step_size must be stated",
        ),
        (dict(rows_per_record=2), "must be 1 where steps follow snapshots"),
    ],
)
def test_what_does_not_fit_is_refused(change, words):
    with pytest.raises(li.InputError, match=words):
        replace(RUN, **change)


@pytest.mark.parametrize("numbers", [(1, 2.0), (2, 0.0), (2.5, 1.0), (2, math.inf)])
def test_bad_numbers_are_refused(numbers):
    with pytest.raises(li.InputError):
        li.VarianceReduced(*numbers)

"""Distributions of sampled steps in one pass, against dp-accounting's point by point."""

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution

from lastiterate.curves import subsampling
from lastiterate.curves.sampled_batches import Pld

STEPS = [
    (0.4, 1.0, 4),
    (1e-3, 0.31, 24),
    (0.98, 5.0, 7),
    (0.5, 0.05, 2),
    (0.05, 16.0, 50),
    (1.0, 2.0, 3),
]


@pytest.mark.parametrize(("rate", "z", "steps"), STEPS)
def test_one_step_is_the_library_s(rate, z, steps):
    grid = subsampling.interval(((z, steps),), rate, 0.0, coarse=True)
    ours = subsampling._single(z, rate, grid)
    theirs = privacy_loss_distribution.from_gaussian_mechanism(
        z, sampling_prob=rate, value_discretization_interval=grid
    )
    for name in ("_pmf_remove", "_pmf_add"):
        one, two = (getattr(law, name).to_dense_pmf() for law in (ours, theirs))
        assert one._lower_loss == two._lower_loss and one.size == two.size
        assert one._infinity_mass == pytest.approx(two._infinity_mass, abs=1e-30)
        np.testing.assert_allclose(one._probs, two._probs, rtol=0, atol=1e-12)
        for epsilon in np.linspace(-1.0, 8.0, 30):
            one_delta, two_delta = (law.get_delta_for_epsilon(float(epsilon)) for law in (one, two))
            assert one_delta == pytest.approx(two_delta, rel=0, abs=1e-14)


@pytest.mark.parametrize(("rate", "z", "steps"), STEPS)
def test_a_profile_is_its_points(rate, z, steps):
    for mu in (0.0, 0.7):
        curve = Pld(rate, (z,), (steps,), mu=mu, coarse=True)
        epsilons = np.concatenate([[0.0], np.geomspace(1e-3, 60.0, 40)])
        points = np.array([curve.directions(float(epsilon)) for epsilon in epsilons])
        np.testing.assert_allclose(curve.profile(epsilons), points, rtol=1e-12, atol=0)
        assert points[3].min() > 1e-7, "it is something"


def test_nothing_is_said_where_nothing_is_known():
    assert (Pld(0.1, (1e-3,), (1,)).profile(np.array([0.0, 1.0])) == 1).all()


@pytest.mark.parametrize("multiplier", [0.0844, 0.08497021276595745, 0.0855, 0.0859])
def test_losses_beyond_the_range_of_exponentials_keep_their_epsilon(multiplier):
    """dp-accounting's own epsilon overflows for some of them, and what is confirmed takes its place."""
    curve = Pld(0.1, (multiplier,), (20,))
    epsilon = curve.epsilon(1e-6)
    assert 700 < epsilon < 735 and curve.delta(epsilon) <= 1e-6 < curve.delta(0.995 * epsilon)

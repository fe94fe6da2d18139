"""Random allocation against an independent library's bounds from both sides (Feldman, Shenfeld:
arXiv:2602.17284)."""

import warnings

import pytest

from lastiterate.curves.allocation import AllocationPld
from lastiterate.curves.sampled_batches import Pld

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it says that numba is not installed
    from PLD_accounting import gaussian_allocation_epsilon_range


@pytest.mark.parametrize("blocks, passes, z, delta", [(20, 1, 1.2164, 1e-6), (3, 4, 0.9, 1e-5)])
def test_epsilon_lies_between_the_bounds_of_pld_accounting(blocks, passes, z, delta):
    upper, lower = gaussian_allocation_epsilon_range(
        delta=delta, sigma=z, num_steps=blocks, num_epochs=passes
    )
    assert lower <= AllocationPld(blocks, (z,), (passes,)).epsilon(delta) <= upper, (
        "theirs are 2 to 4 % apart"
    )


@pytest.mark.parametrize("mu", [0.5, 3.0])
@pytest.mark.parametrize("alpha", [1.5, 2.0, 7.0])
def test_a_gaussian_part_adds_its_own_renyi_divergence(mu, alpha):
    """alpha mu^2 / 2, on either side of mu = 2, where mu^2 and 2 mu change places."""
    alone, joint = Pld(0.05, (1.5,), (10,)), Pld(0.05, (1.5,), (10,), mu=mu)
    added = joint.rdp(alpha) - alone.rdp(alpha)
    assert added == pytest.approx(alpha * mu**2 / 2, rel=1e-6)

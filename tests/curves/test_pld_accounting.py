"""Random allocation against an independent library's bounds from both sides (Feldman, Shenfeld:
arXiv:2602.17284)."""

import warnings

import pytest

from lastiterate.curves.allocation import AllocationPld

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

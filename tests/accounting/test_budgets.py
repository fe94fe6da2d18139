"""Which budgets are refused, and which are warned of."""

import math
import warnings

import pytest

import lastiterate as li
from lastiterate.accounting.noise_calibration import check_budget

RUN = li.Run(n=1438, steps=10, step_size=0.1, noise=li.NoiseMultiplier(1.0), loss=li.Logistic())


@pytest.mark.parametrize("epsilon", [0.0, -1.0, 1e9, math.inf, math.nan])
def test_epsilons_that_mean_nothing(epsilon):
    with pytest.raises(li.InputError, match="epsilon must be a positive number, at most 1000"):
        li.calibrate(RUN, epsilon=epsilon, delta=1e-5)


@pytest.mark.parametrize(
    ("epsilon", "delta"), [("1", 1e-5), (1.0, "1e-5"), (True, 1e-5), (None, 1e-5)]
)
def test_budgets_that_are_no_numbers(epsilon, delta):
    with pytest.raises(li.InputError, match="must be a number"):
        li.calibrate(RUN, epsilon=epsilon, delta=delta)


@pytest.mark.parametrize(
    ("delta", "word"),
    [
        (0.5, "below 0.5"),
        (0.9, "less than 1/n = 0.0007"),
        (0.0, "strictly"),
        (1.0, "strictly"),
        (math.nan, "strictly"),
    ],
)
def test_deltas_that_mean_nothing(delta, word):
    with pytest.raises(li.InputError, match=word):
        li.calibrate(RUN, epsilon=1.0, delta=delta)


def test_a_delta_above_one_over_n_is_warned_of():
    with pytest.warns(li.errors.BudgetWarning, match="publishes one random record"):
        check_budget(1.0, 1e-3, 1438)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_budget(1.0, 1 / 1438, 1438)

"""Named algorithms find a certificate that uses the budget, from a thousand records to a billion."""

from itertools import product

import pytest

import lastiterate as li
from lastiterate.planning.plan_request import PlanRequest
from lastiterate.planning.presets import NAMED, describe_algorithm
from lastiterate.planning.task import Task
from tiers import unless

SCALES = (
    (10**3, 1, 1e-5),
    (10**6, 1, 1e-7),
    (10**6, 5, 1e-7),
    (10**9, 1, 1e-10),
    (10**9, 5, 1e-10),
)
"""Records, rows of a unit, delta."""
SETTINGS = tuple(product((0.1, 1.0, 10.0), ("zero-out", "replace-one")))
CASES = list(product(NAMED, SCALES, SETTINGS))


def every_sixth(case):
    """Each algorithm at each scale once, in another setting each time."""
    name, scale, setting = case
    return (list(NAMED).index(name) + SCALES.index(scale) + SETTINGS.index(setting)) % 6 == 0


@pytest.mark.parametrize("name, scale, setting", unless(every_sixth, CASES), ids=str)
def test_a_named_algorithm_uses_its_budget_at_every_scale(name, scale, setting):
    (n, rows, delta), (epsilon, adjacency) = scale, setting
    task = Task(n, 20, 2, 1.0, rows_per_unit=rows)
    run = describe_algorithm(PlanRequest(task, epsilon, delta, adjacency, 1e9), name)
    certificate = li.calibrate(run, epsilon=epsilon, delta=delta)
    assert 0.99 * epsilon < certificate.epsilon(delta) <= epsilon

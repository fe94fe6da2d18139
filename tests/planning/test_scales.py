"""Named algorithms find a certificate that uses the budget, from a thousand records to a billion."""

from itertools import product

import pytest

import lastiterate as li
from lastiterate.planning.plan_request import PlanRequest
from lastiterate.planning.presets import NAMED, describe_algorithm
from lastiterate.planning.task import Task
from tiers import EXHAUSTIVE

SCALES = (
    (10**3, 1, 1e-5),
    (10**6, 1, 1e-7),
    (10**6, 5, 1e-7),
    (10**9, 1, 1e-10),
    (10**9, 5, 1e-10),
)
"""Records, rows of a unit, delta."""
SETTINGS = tuple(product((0.1, 1.0, 10.0), ("zero-out", "replace-one")))
ALL = [  # outside of the exhaustive tier one of six settings
    (name, scale, setting)
    for row, name in enumerate(NAMED)
    for column, scale in enumerate(SCALES)
    for place, setting in enumerate(SETTINGS)
    if EXHAUSTIVE or (place + row + column) % len(SETTINGS) == 0
]


@pytest.mark.parametrize("name, scale, setting", ALL, ids=str)
def test_a_named_algorithm_uses_its_budget_at_every_scale(name, scale, setting):
    (n, rows, delta), (epsilon, adjacency) = scale, setting
    task = Task(n, 20, 2, 1.0, rows_per_unit=rows)
    run = describe_algorithm(PlanRequest(task, epsilon, delta, adjacency, 1e9), name)
    certificate = li.calibrate(run, epsilon=epsilon, delta=delta)
    assert 0.99 * epsilon < certificate.epsilon(delta) <= epsilon

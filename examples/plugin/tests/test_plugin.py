"""The laws that a theorem and a batching of a plug-in keep; run pytest after the installation."""

import pytest
from lastiterate_example import ONE_STEP, Strided, bound_one_step

import lastiterate as li
from lastiterate.testing import check_batching, check_theorem, find_surviving_mutants


@pytest.fixture(autouse=True)
def permission():
    with li.allow_plugins():
        yield


def test_the_theorem_keeps_every_law():
    check_theorem(ONE_STEP, runs=10)


def test_every_change_of_its_formula_is_noticed():
    def check(theorem):
        check_theorem(theorem, runs=5)

    assert not find_surviving_mutants(ONE_STEP, check, bound_one_step)


def test_the_batching_is_executed_as_it_is_described():
    check_batching(Strided, runs=5)

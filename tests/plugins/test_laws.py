"""``lastiterate.testing``: every theorem of the library keeps its laws, and false ones do not."""

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

import lastiterate as li
from lastiterate import testing
from lastiterate.curves import Gdp
from lastiterate.features import Curves
from lastiterate.features.record_fields import Number
from lastiterate.theorems import TABLE, Satisfied
from lastiterate.theorems.composition import composition_mu
from tiers import size, unless

KNOWN = TABLE["composition-gdp"]
UPPER = [name for name, theorem in TABLE.items() if theorem.kind == "upper"]
SLOW = {"poisson-rdp", "poisson-pld", "restarted-poisson-pld", "variance-reduction"}
RUNS = size(2, 30, "LAW_RUNS")


@pytest.mark.parametrize("name", TABLE)
def test_every_theorem_applies_to_its_example(name):
    testing.check_example(TABLE[name])


@pytest.mark.parametrize("name", unless(lambda name: name not in SLOW, UPPER))
def test_every_upper_theorem_charges_more_for_an_exchange(name):
    testing.check_adjacency(TABLE[name], runs=RUNS)


@pytest.mark.parametrize("name", unless(lambda name: name not in SLOW, list(TABLE)))
def test_no_theorem_contradicts_the_others(name):
    testing.check_against_table(TABLE[name], runs=RUNS)


def test_one_theorem_by_all_laws():
    testing.check_theorem(KNOWN, runs=RUNS)


def of_mu(change):
    """The composition theorem with another mu."""
    return replace(KNOWN, name="false", bound=lambda run: Gdp(change(run, composition_mu(run))))


@pytest.mark.parametrize("share", [0.5, 0.98])
def test_a_bound_that_is_too_small_is_found(share):
    false = of_mu(lambda run, mu: share * mu)
    with pytest.raises(AssertionError, match="lies below the exact"):
        testing.check_bound(false)
    with pytest.raises(AssertionError, match="lies below the exact"):
        testing.check_theorem(false)


def test_a_bound_below_a_lower_bound_of_the_library_is_found():
    with pytest.raises(AssertionError, match="contradict one another"):
        testing.check_against_table(of_mu(lambda run, mu: mu / 9))
    witness = TABLE["quadratic-witness"]
    false = replace(witness, name="false", bound=lambda run: twice(witness.bound(run)))
    with pytest.raises(AssertionError, match="contradict one another"):
        testing.check_against_table(false)


def twice(bound):
    """A lower bound whose two distributions are twice as far apart."""
    return replace(bound, mus=tuple(2 * mu for mu in bound.mus))


@pytest.mark.parametrize(
    "change, said",
    [
        (lambda run, mu: mu * run.noise_stds.max() ** 2, "noise for the worse"),
        (lambda run, mu: 1 / mu, "sensitivity for the worse"),
    ],
)
def test_a_bound_that_is_not_monotone_is_found(change, said):
    with pytest.raises(AssertionError, match=said):
        testing.check_monotone(of_mu(change))


def test_a_fact_that_a_bound_uses_and_does_not_name_is_found():
    silent = tuple(
        replace(one, check=lambda run: Satisfied()) if one.name == "known_sensitivity" else one
        for one in KNOWN.assumptions
    )
    with pytest.raises(AssertionError, match="uses sensitivity and no fact names it"):
        testing.check_monotone(replace(KNOWN, assumptions=silent))


def test_an_exchange_that_costs_less_is_found():
    def cheaper(run, mu):
        return mu / 4 if run.adjacency == "replace-one" else mu

    with pytest.raises(AssertionError, match="under replace-one"):
        testing.check_adjacency(of_mu(cheaper))


def test_a_theorem_that_applies_to_nothing_is_no_tested_one():
    beyond = replace(KNOWN, assumptions=TABLE["objective-perturbation"].assumptions)
    with pytest.raises(AssertionError, match="nothing is tested"):
        testing.check_bound(beyond, runs=2)
    with pytest.raises(AssertionError, match="does not apply to its example"):
        testing.check_example(
            replace(KNOWN, example=replace(KNOWN.example, loss=li.KnownConstants()))
        )


def test_mutants_that_a_law_does_not_notice_are_listed():
    right = KNOWN.bound(KNOWN.example)

    def weak(theorem):
        assert theorem.bound(theorem.example) == right

    def none(theorem):
        return None

    kept = testing.find_surviving_mutants(KNOWN, weak, composition_mu)
    every = testing.find_surviving_mutants(KNOWN, none, composition_mu)
    assert 0 < len(kept) < len(every) and {one.function for one in every} == {"composition_mu"}
    assert KNOWN.bound(KNOWN.example) == right, "the formula is as it was"
    with pytest.raises(ValueError, match="def of a module, got <lambda>"):
        testing.find_surviving_mutants(KNOWN, none)
    with pytest.raises(AssertionError):
        testing.find_surviving_mutants(of_mu(lambda run, mu: mu / 2), weak, composition_mu)


def test_the_laws_need_no_pytest_and_the_library_no_laws():
    code = (
        "import sys, lastiterate as li, lastiterate.cli\n"
        "assert 'lastiterate.testing' not in sys.modules\n"
        "import lastiterate.testing.laws\nassert 'pytest' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


class Relative(Curves):
    """A map whose rows are read next to those of the other records."""

    def rows(self, field, values):
        rows = super().rows(field, values)
        return rows - rows.mean(axis=0) if self.wrong == "others" else rows * self.wrong


@pytest.mark.parametrize(
    "wrong, said",
    [("others", "depends on other records"), (9.0, "norm"), (np.inf, "not finite"), (1.0, None)],
)
def test_a_map_that_is_none_of_single_records_is_found(monkeypatch, wrong, said):
    monkeypatch.setattr(Relative, "wrong", wrong, raising=False)
    values = np.array([-1.0, -0.2, 0.3, 1.0])
    if said is None:
        testing.check_feature_map(Relative(), Number("a"), values)
        return
    with pytest.raises(AssertionError, match=said):
        testing.check_feature_map(Relative(), Number("a"), values)

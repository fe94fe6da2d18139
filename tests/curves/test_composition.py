"""Several mechanisms on the same data, and stored curves: every pair of kinds, every kind of field."""

import math

import pytest

from lastiterate.curves.composition import compose, curve_from_dict
from lastiterate.curves.curve import BestOf, EpsDelta, WithFailure
from lastiterate.curves.gaussian import Gdp, GdpMixture
from lastiterate.curves.perturbed_minimum import PerturbedObjective
from lastiterate.curves.renyi import Rdp
from lastiterate.curves.sampled_batches import FixedSizeSteps
from lastiterate.curves.selection import WorstOf
from lastiterate.errors import InputError

MIXTURE = GdpMixture((0.25, 0.75), (0.6, 0.0))
STEPS = FixedSizeSteps(0.1, (1.0,), (3,))


def test_nothing_one_and_many():
    assert compose() == Gdp(0.0) and compose(MIXTURE) is MIXTURE
    many = compose(Gdp(2.0), Gdp(3.0), Gdp(6.0))
    assert 7 <= many.mu <= 7 * (1 + 1e-11)


@pytest.mark.parametrize(
    ("one", "two", "expected"),
    [
        (Gdp(0.6), Gdp(0.8), Gdp(1.0)),
        (MIXTURE, Gdp(0.8), GdpMixture((0.25, 0.75), (1.0, 0.8))),
        (BestOf((Gdp(3.0), MIXTURE)), Gdp(4.0), BestOf((Gdp(5.0), compose(MIXTURE, Gdp(4.0))))),
        (WorstOf((Gdp(3.0), Gdp(0.0))), Gdp(4.0), WorstOf((Gdp(5.0), Gdp(4.0)))),
        (WithFailure(Gdp(3.0), 0.1), Gdp(4.0), WithFailure(Gdp(5.0), 0.1)),
        (EpsDelta(1.0, 0.25), EpsDelta(2.0, 0.5), EpsDelta(3.0, 0.75)),
        (EpsDelta(1.0, 0.75), EpsDelta(2.0, 0.5), EpsDelta(3.0, 1.0)),
        (STEPS, Gdp(0.4), FixedSizeSteps(0.1, (1.0,), (3,), mu=0.4)),
        (Rdp.linear(0.5), Rdp.linear(0.25), Rdp.linear(0.75)),
        (Rdp.linear(0.5), Gdp(1.0), Rdp.linear(1.0)),
    ],
    ids=lambda curve: type(curve).__name__,
)
def test_pairs_in_either_order(one, two, expected):
    """The same curve up to rounding, which is upwards."""
    for both in (compose(one, two), compose(two, one)):
        assert type(both) is type(expected)
        for epsilon in (0.0, 0.5, 1.0, 2.5, 3.0, 4.0):
            least = expected.delta(epsilon)
            if isinstance(expected, EpsDelta) and epsilon == expected.at_epsilon:
                continue  # the point of the sum is rounded up
            assert least * (1 - 1e-14) <= both.delta(epsilon) <= least * (1 + 1e-8)


@pytest.mark.parametrize(
    "curve", [FixedSizeSteps(0.1, (1.0,), (3,)), PerturbedObjective(0.5, 3, 0.1)]
)
def test_exact_pairs_are_joined_exactly(curve):
    """No divergences: what a Gaussian mechanism adds is in the curve itself."""
    for both in (compose(curve, Gdp(0.3)), compose(Gdp(0.3), curve)):
        assert both == curve.with_gaussian(0.3)


@pytest.mark.parametrize("delta", [0.0, 1e-6])
def test_single_points_join_others_where_they_have_divergences(delta):
    point = EpsDelta(1.0, delta)
    for pair in ((point, Rdp.linear(0.25)), (Gdp(0.5), point), (point, MIXTURE)):
        if delta:
            with pytest.raises(InputError, match="compose only with one another"):
                compose(*pair)
        else:
            exact = sum(curve.rdp(3.0) for curve in pair)
            assert exact <= compose(*pair).rdp(3.0) <= exact * 1.02, "of a table of orders"


@pytest.mark.parametrize(
    ("failures", "expected"),
    [((0.125, 0.25), 0.375), ((0.125, 0.25, 0.5), 0.875), ((0.5, 0.75), 1.0), ((1.0, 1.0), 1.0)],
)
def test_failures_add_up_to_at_most_one(failures, expected):
    both = compose(*(WithFailure(Gdp(0.0), failure) for failure in failures))
    assert isinstance(both, WithFailure) and both.curve == Gdp(0.0)
    assert expected <= both.failure <= min(1.0, expected * (1 + 1e-11))


# Curves that were stored.


def nested(levels):
    """A stored Gaussian curve so many levels deep, its number included."""
    stored = {"type": "Gdp", "mu": 1.0}
    for _ in range(levels - 2):
        stored = {"type": "WithFailure", "curve": stored, "failure": 0.0}
    return stored


def test_deep_curves_are_refused_before_python_does():
    curve = curve_from_dict(nested(64))
    for _ in range(62):
        assert isinstance(curve, WithFailure)
        curve = curve.curve
    assert curve == Gdp(1.0)
    with pytest.raises(InputError, match="deeper"):
        curve_from_dict(nested(65))


STORED = {
    "Gdp": {"mu": 0.5},
    "GdpMixture": {"weights": [0.5, 0.5], "mus": [0.0, 1]},
    "Rdp": {"slope": 0.0, "orders": [2.0], "values": [0.5]},
    "EpsDelta": {"at_epsilon": 1, "at_delta": 0.0},
    "Grouped": {"curve": {"type": "Gdp", "mu": 0}, "size": 2},
    "FixedSizeSteps": {
        "rate": 0.1,
        "multipliers": [1.0],
        "counts": [3],
        "replaced": True,
        "mu": 0.0,
        "coarse": False,
    },
    "BestOf": {"curves": [{"type": "Gdp", "mu": 1.0}, {"type": "Gdp", "mu": 2.0}]},
    "Selected": {
        "curve": {"type": "Gdp", "mu": 1.0},
        "runs": {"type": "NegativeBinomial", "shape": -0.5, "stop": 0.25},
    },
}


@pytest.mark.parametrize("kind", STORED)
def test_stored_curves_are_read(kind):
    curve = curve_from_dict({"type": kind, **STORED[kind]})
    assert type(curve).__name__ == kind and curve_from_dict(curve.to_dict()) == curve


@pytest.mark.parametrize(
    ("kind", "field", "value"),
    [
        ("Gdp", "mu", True),
        ("Gdp", "mu", -0.5),
        ("Gdp", "mu", math.nan),
        ("Gdp", "mu", "0.5"),
        ("Gdp", "mu", None),
        ("GdpMixture", "mus", 1.0),
        ("GdpMixture", "mus", [0.5, True]),
        ("GdpMixture", "mus", [0.5, -1.0]),
        ("Rdp", "slope", -1e-9),
        ("Rdp", "values", ["0.5"]),
        ("Grouped", "size", [2]),
        ("Rdp", "values", [-0.5]),
        ("Grouped", "size", 2.0),
        ("Grouped", "size", True),
        ("Grouped", "size", -1),
        ("Grouped", "curve", 1.0),
        ("Grouped", "curve", {"type": "PoissonRuns", "expected": 2.0}),
        ("Grouped", "curve", {"type": "Gdp", "mu": True}),
        ("FixedSizeSteps", "replaced", 1),
        ("FixedSizeSteps", "replaced", 0.0),
        ("FixedSizeSteps", "coarse", "yes"),
        ("FixedSizeSteps", "counts", [True]),
        ("FixedSizeSteps", "counts", [3.0]),
        ("BestOf", "curves", {"type": "Gdp", "mu": 1.0}),
        ("BestOf", "curves", [{"type": "Gdp", "mu": 1.0}, 2.0]),
        ("Selected", "runs", {"type": "Gdp", "mu": 1.0}),
        ("Selected", "runs", {"type": "NegativeBinomial", "shape": -1.5, "stop": 0.25}),
        ("Selected", "runs", {"type": "NegativeBinomial", "shape": True, "stop": 0.25}),
    ],
)
def test_fields_of_another_type_and_negative_numbers_are_refused(kind, field, value):
    with pytest.raises(InputError):
        curve_from_dict({"type": kind, **STORED[kind], field: value})


@pytest.mark.parametrize(
    "stored",
    [None, 1.0, "Gdp", [], [{"type": "Gdp", "mu": 1.0}], {"type": "PoissonRuns", "expected": 2.0}],
)
def test_what_is_no_curve_is_refused(stored):
    with pytest.raises(InputError, match="curve"):
        curve_from_dict(stored)

"""What papers state as functions: against plain arithmetic, and against what they bound."""

import math
import warnings

import numpy as np
import pytest

from lastiterate.analysis import shifts
from lastiterate.curves.gaussian import Gdp
from lastiterate.errors import InputError
from lastiterate_papers import formulas, kong_ribero, lemma_51
from lastiterate_papers.kong_ribero_table2 import SOURCES, At, mironov_11
from lastiterate_papers.problems import logistic_problem
from lastiterate_papers.ryffel_privacy import softmax_curvature

RNG = np.random.default_rng(0)


def test_the_radius_of_an_unconstrained_ridge_problem():
    assert formulas.ridge_radius(0.1, lipschitz=2.0) == 20
    assert (
        formulas.ridge_radius(0.1, at_zero=0.2) == 2 and formulas.ridge_radius(0.1, 0.1, 0.2) == 1
    )
    problem = logistic_problem(n=60, d=3, ridge=0.02, seed=1)
    radius = formulas.ridge_radius(0.02, 1.0, math.log(2))
    assert np.linalg.norm(problem.optimum) <= radius == math.sqrt(100 * math.log(2))


C = formulas.Constants(lipschitz=2.0, strong=0.1, smooth=0.5, n=1000, d=5)


@pytest.mark.parametrize(
    "asked",
    [
        lambda: formulas.lemma_6(C, 0.21, 50, 1e-3),
        lambda: formulas.lemma_41(C, 1.01, 50, 1e-3, 3.0, 0.04),
        lambda: formulas.lemma_42(C, 1.01, 50, 1e-3, 0.04),
        lambda: formulas.theorem_4(C, 24.0, 1e-5),
        lambda: formulas.theorem_42(C, 0.0, 1e-5),
        lambda: formulas.theorem_44(C, 1.0, 1.0),
        lambda: formulas.theorem_4_renyi(C, 1.0, 0.5),
        lambda: formulas.theorem_41(C, 2.0, -1.0),
        lambda: formulas.theorem_43(C, math.inf, 1.0),
        lambda: formulas.ridge_radius(0.1),
        lambda: formulas.ridge_radius(0, 1),
        lambda: formulas.Constants(1.0, 0.2, 0.1, 10, 2),
        lambda: formulas.Constants(1.0, 0.1, 0.2, 0, 2),
    ],
)
def test_beyond_its_conditions_a_statement_is_refused(asked):
    with pytest.raises(InputError) as error:
        asked()
    assert str(error.value).count(". ") == 0


def test_lemma_51_in_three_forms():
    x = RNG.normal(size=(50, 4))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    with pytest.warns(lemma_51.UnpaidWarning, match="voids the guarantee"):
        unpaid = lemma_51.of_data(x, 0.01)
    assert unpaid == pytest.approx(np.linalg.svd(x)[1][0] ** 2 / 50 / 2 + 0.01)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # what is free or paid for says nothing
        free = lemma_51.data_independent(1.0, 0.01)
        paid = [
            lemma_51.paid(x, 0.01, row_norm=1.0, noise_multiplier=0.5, seed=seed)
            for seed in range(20)
        ]
    weights = [scale * RNG.normal(size=(3, 4)) for scale in (0, 0.3, 1, 10)]
    assert max(softmax_curvature(x, w, RNG) for w in weights) + 0.01 <= unpaid <= free == 0.51
    assert all(unpaid <= found.smooth <= free and found.mu == 2 for found in paid)
    assert len({found.smooth for found in paid}) > 10, "the noise is drawn"
    far = lemma_51.paid(x * [[1e6]] + 0, 0.01, row_norm=1.0, noise_multiplier=0.5, seed=0)
    assert far.smooth == pytest.approx(paid[0].smooth), "longer rows are scaled to the public norm"
    with pytest.raises(InputError):
        lemma_51.paid(x, 0.01, row_norm=1.0, noise_multiplier=0.0)


@pytest.mark.parametrize("passes", [1, 7])
def test_table_2_of_kong_and_ribero_by_hand(passes):
    at = At(passes, order=3.0)
    unit, blocks, s, v = 3.0 * (1 / 25) ** 2, 20, 2 * 0.1 / 50, (0.1 * 0.5) ** 2
    assert at.unit == pytest.approx(unit)
    found = {name: source(at) / unit for name, source in SOURCES.items()}
    composition, quadrature, closed, feldman, full, bounded, unbounded, optimal = found.values()
    assert composition == pytest.approx(2 * passes)
    assert feldman == pytest.approx(2 * ((passes - 1) / blocks + 1))
    square = 1 + 2 * 0.1 * 0.1 * (1 + 0.1 / 2.2)
    theta = square ** (blocks - 1) / sum(square**j for j in range(blocks))
    assert unbounded == pytest.approx(2 * ((passes - 1) * theta + 1), rel=1e-9)
    assert bounded == pytest.approx((math.sqrt(square) + s) ** 2 / (2 * v) * 3.0 / unit, rel=1e-9)
    assert optimal <= unbounded * (1 + 1e-9) and feldman <= unbounded <= composition * (1 + 1e-9)
    shift, steps = 0.1 * 2 / 1000, passes * blocks
    spread = (0.1 * 0.5 * 50 / 1000) ** 2
    assert full <= 3.0 / 2 * min(
        steps * shift**2 / spread,
        *((1 + k * shift) ** 2 / (k * spread) for k in range(1, steps + 1)),
    ) / unit * (1 + 1e-6)
    assert (
        closed == pytest.approx(2 * 3.0 * (1 / 20) ** 2 * steps / 25**2 / unit)
        and quadrature <= closed
    )


def test_the_closed_form_for_poisson_batches_has_conditions():
    assert (
        mironov_11(At(1))
        < math.inf
        == mironov_11(At(1, sigma=0.05))
        == mironov_11(At(1, batch=500))
    )
    assert mironov_11(At(1, order=1e6)) == math.inf


def test_a_budget_of_composition_is_the_gaussians():
    assert SOURCES["Chua et al., disjoint batches: composition"](At(4)) == pytest.approx(
        Gdp(math.sqrt(4) * 2 / 25).rdp(2.0)
    )


def test_corollaries_of_kong_and_ribero():
    rng = np.random.default_rng(33)
    for _ in range(300):
        smooth, weak, xi = (
            float(rng.uniform(0.1, 3)),
            float(rng.uniform(0.01, 2)),
            float(rng.uniform(1.05, 4)),
        )
        step = float(rng.uniform(0.01, 1)) / (smooth + weak)
        square = math.log1p(kong_ribero.excess(step, weak, smooth))
        assert square == pytest.approx(math.log1p(shifts.excess(step, weak, smooth)), rel=1e-12)
        long = math.ceil(kong_ribero.least_pass(square, xi))
        passes = int(rng.integers(1, 40))
        for blocks in (long, long + 7, 3 * long):
            bracket = (passes - 1) * kong_ribero.theta(square, blocks) + 1
            second = kong_ribero.corollary_c2(passes, step, weak, smooth, xi)
            third = kong_ribero.corollary_c3(3 * step * weak * (passes - 1), xi)
            assert third == pytest.approx(1 + 3 * xi * step * weak * (passes - 1), rel=1e-12)
            assert bracket <= second * (1 + 1e-12) and second <= third * (1 + 1e-12)
        if long > 2:  # a shorter pass is not covered
            short = max(1, math.floor(kong_ribero.least_pass(square, xi)) - 1)
            assert kong_ribero.theta(square, short) > xi * -math.expm1(-square)

"""One posterior sample of ridge regression: the bound against exact divergences of drawn and of
adversarial pairs."""

import math

import numpy as np
import pytest
from scipy.optimize import minimize

from lastiterate.bayes.linear import (
    ClippedRows,
    LinearModel,
    least_prior,
    posterior,
    ridge_bound,
    ridge_curve,
)
from lastiterate.errors import InputError
from tests.bayes.gaussian_pairs import renyi_matrix


def unit(rng, d):
    v = rng.normal(size=d)
    return v / np.linalg.norm(v)


def pair(rng, model, domain, kind):
    """Two neighbours in the domain: drawn, or the other records' labels along the differing
    record's row."""
    n, d, row, label = domain.n, domain.features, domain.row_norm, domain.label_bound
    v = unit(rng, d)
    x = rng.normal(size=(n - 1, d))
    x *= (
        row
        * rng.random((n - 1, 1)) ** rng.choice([0.1, 1])
        / np.maximum(np.linalg.norm(x, axis=1), 1e-9)[:, None]
    )
    y = rng.choice([-label, label], n - 1)
    if kind:
        share = model.prior_precision / (model.noise_precision * max(n - 1, 1) * row**2)
        x = np.tile(v, (n - 1, 1)) * row * min(1.0, rng.choice([1.0, math.sqrt(share)]))
        y = np.full(n - 1, label)
    one, two = unit(rng, d) * row, unit(rng, d) * row
    if kind == 1:
        one, two = v * row, v * row * rng.choice([0.0, 0.5, 1.0])
    if kind == 2:
        one = v * row
    ends = [(one, rng.choice([-label, label])), (two, rng.choice([-label, label]))]
    rng.shuffle(ends)
    return [(np.vstack([x, e[0]]), np.append(y, e[1])) for e in ends]


def divergence(order, model, first, second):
    (m1, a1), (m2, a2) = posterior(model, *first), posterior(model, *second)
    return renyi_matrix(order, m1, a1, m2, a2)


def test_no_pair_found_lies_above_the_bound():
    rng = np.random.default_rng(0)
    least = math.inf
    for case in range(1500):
        n, d = int(rng.integers(1, 12)), int(rng.integers(1, 4))
        row, label, beta = np.exp(rng.normal(size=3))
        alpha = beta * row**2 * math.exp(rng.normal(1, 2))
        order = 1 + rng.uniform(0.01, 0.98) * rng.choice([1, 0.3, 0.05]) * alpha / (beta * row**2)
        model = LinearModel(prior_precision=alpha, noise_precision=beta)
        domain = ClippedRows(n=n, features=d, row_norm=row, label_bound=label)
        bound = float(ridge_bound(order, model, domain))
        for _ in range(4):
            exact = divergence(order, model, *pair(rng, model, domain, case % 3))
            assert exact <= bound
            least = min(least, bound / max(exact, 1e-300))
    assert least < 1.05, "the search comes close to the bound somewhere"


@pytest.mark.parametrize(
    "n, d, leverage, order",
    [(1, 2, 0.3, 1.5), (4, 2, 0.2, 3.0), (8, 1, 0.05, 5.0), (3, 3, 0.4, 2.0)],
)
def test_optimised_pairs(n, d, leverage, order):
    """Climb over all coordinates of all records of both neighbours, projected into the domain."""
    rng = np.random.default_rng(n)
    model, domain = LinearModel(prior_precision=1 / leverage), ClippedRows(n=n, features=d)
    size = (n + 1) * (d + 1)

    def records(z):
        z = z.reshape(n + 1, d + 1)
        norms = np.maximum(np.linalg.norm(z[:, :d], axis=1, keepdims=True), 1.0)
        x, y = z[:, :d] / norms, np.clip(z[:, d], -1, 1)
        return (x[:-1], y[:-1]), (np.delete(x, n - 1, 0), np.delete(y, n - 1))

    def loss(z):
        return -divergence(order, model, *records(z))

    found = min(
        minimize(loss, rng.normal(size=size), method="Powell", options={"maxiter": 30}).fun
        for _ in range(4)
    )
    bound = float(ridge_bound(order, model, domain))
    assert -found <= bound and -found > bound / 3


def test_formula_by_hand():
    """alpha = 4, beta = R = Y = 1, n = 3, order 2: H = 1/4, T = 1/2."""
    model, domain = LinearModel(prior_precision=4.0), ClippedRows(n=3, features=2)
    logs = (2 * math.log(1.25) - math.log(1.5)) / 2 + (-math.log(1.25) - math.log(0.75)) / 2
    gap = 2 * 0.5 / 1.25 + math.sqrt(1 / 8) * math.sqrt(1 / 3) / 1.25
    exact = logs + 1.25 / 0.75 * gap**2
    found = float(ridge_bound(2.0, model, domain))
    assert found == pytest.approx(exact, rel=1e-9) and found >= exact
    assert not np.isfinite(ridge_bound(5.001, model, domain)), (
        "nothing beyond order 1 + alpha/(beta R^2)"
    )


def test_curve_and_the_least_prior():
    domain = ClippedRows(n=1000, features=3)
    model = least_prior(domain, epsilon=1.0, delta=1e-6)
    assert ridge_curve(model, domain).epsilon(1e-6) <= 1.0
    less = LinearModel(prior_precision=model.prior_precision * (1 - 1e-5))
    assert ridge_curve(less, domain).epsilon(1e-6) > 1.0
    curve = ridge_curve(model, domain)
    assert curve.rdp(curve.orders[7]) == float(ridge_bound(curve.orders[7], model, domain))
    assert max(curve.orders) <= 1 + model.prior_precision
    priors = [
        least_prior(ClippedRows(n=n, features=3), epsilon=1.0, delta=1e-6).prior_precision
        for n in (10, 100, 1000)
    ]
    assert priors == sorted(priors), "more records can move the mean further"
    for bad in (0.0, math.inf, 1e-9):
        with pytest.raises(InputError, match="epsilon"):
            least_prior(domain, epsilon=bad, delta=1e-12)


def test_records_are_clipped_one_by_one():
    domain = ClippedRows(n=4, features=2, row_norm=2.0, label_bound=1.5)
    rows, labels = domain.clip(
        [[3.0, 4.0], [1.0, 0.5], [0.0, 0.0], [1e200, -1e200]], [5.0, -0.2, -9.0, 1.5]
    )
    assert (
        rows[0] == pytest.approx([1.2, 1.6])
        and (rows[1] == [1.0, 0.5]).all()
        and (rows[2] == 0).all()
    )
    assert rows[3] == pytest.approx([math.sqrt(2), -math.sqrt(2)]) and list(labels) == [
        1.5,
        -0.2,
        -1.5,
        1.5,
    ]
    tiny = ClippedRows(n=1, features=2, row_norm=1e-20).clip([[3e-15, 4e-15]], [0.0])[0]
    assert tiny[0] == pytest.approx([6e-21, 8e-21])
    big = np.random.default_rng(0).normal(size=(20_000, 5)) * 10
    clipped, _ = ClippedRows(n=20_000, features=5).clip(big, np.zeros(20_000))
    assert np.linalg.norm(clipped, axis=1).max() <= 1 + 1e-12
    for bad in ([[math.nan, 0.0]], [[1.0]], [[math.inf, 0.0]]):
        with pytest.raises(InputError, match="data must be"):
            ClippedRows(n=1, features=2).clip(bad, [0.0])


def test_posterior_matches_the_linear_model():
    model = LinearModel(prior_precision=0.3, noise_precision=1.7)
    x, y = np.array([0.5, 1.0, 0.7]), np.array([1.0, -2.0, 0.5])
    mean, precision = posterior(model, x[:, None], y)
    assert (float(mean[0]), 1 / float(precision[0, 0])) == pytest.approx(
        model.posterior(x, y), rel=1e-12
    )

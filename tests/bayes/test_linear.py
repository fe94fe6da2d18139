"""One posterior sample of a linear model: the posterior itself, and bounds against a search for the
worst pair."""

import math

import numpy as np
import pytest

from lastiterate.bayes.linear import (
    LinearModel,
    RatioDomain,
    corner_bound,
    lemma_bound,
    log_part,
    posterior_curve,
    renyi,
)
from lastiterate.curves.renyi import Rdp
from lastiterate.errors import InputError
from tests.bayes.gaussian_pairs import epsilon_between


def problem(rng):
    """A model, a domain and an order inside the regime of the corner bound."""
    x_low = rng.uniform(0.3, 1)
    model = LinearModel(
        prior_precision=math.exp(rng.normal()), noise_precision=math.exp(rng.normal())
    )
    domain = RatioDomain(
        n=int(rng.integers(3, 60)),
        ratio=math.exp(rng.normal(0, 3)),
        spread=math.exp(rng.normal(0, 2)),
        x_low=x_low,
        x_high=x_low * rng.uniform(1, 2.5),
    )
    room = model.prior_precision / model.noise_precision + (domain.n - 1) * x_low**2
    return model, domain, 1 + math.exp(rng.uniform(-4, math.log(max(room / domain.x_high**2, 0.1))))


def divergences(rng, model, domain, order, count=2000, zero=False):
    """Renyi divergences of neighbours through their sufficient statistics, corners preferred;
    ordered pairs."""
    a, b, w, c = model.prior_precision, model.noise_precision, domain.spread, domain.ratio
    low, high = domain.x_low**2, domain.x_high**2

    def pick(*ends):
        inner = rng.uniform(ends[0], ends[-1], count)
        which = rng.integers(0, len(ends) + 1, count)
        return np.choose(which, [*(np.full(count, e) for e in ends), inner])

    s = (domain.n - 1) * pick(low, high)
    u = w * s * pick(-1, 1)
    q1, q2 = pick(low, high), pick(low, high)
    if zero:
        q1, q2 = (0 * q1, q2) if rng.random() < 0.5 else (q1, 0 * q2)
    v1, v2 = w * q1 * pick(-1, 1), w * q2 * pick(-1, 1)
    one, two = a + b * (s + q1), a + b * (s + q2)
    gap = (b * (u + v1) - c * a) / one - (b * (u + v2) - c * a) / two
    change = (two - one) / one
    return log_part(order, change) + order / 2 * gap**2 * two / (1 - (order - 1) * change)


def test_posterior_is_the_normalised_product():
    rng = np.random.default_rng(0)
    model = LinearModel(prior_precision=0.7, noise_precision=2.0)
    x, y = rng.uniform(0.5, 1, 6), rng.normal(2, 1, 6)
    theta = np.linspace(-10, 10, 200_001)
    logs = -0.7 * theta**2 / 2 - 2.0 * ((y[:, None] - theta * x[:, None]) ** 2).sum(0) / 2
    weights = np.exp(logs - logs.max())
    mean = (weights * theta).sum() / weights.sum()
    variance = (weights * (theta - mean) ** 2).sum() / weights.sum()
    assert model.posterior(x, y) == pytest.approx((mean, variance), rel=1e-8)


def test_statistics_give_the_divergence_of_real_data():
    """The search below works on sums; here the same numbers from records in the domain."""
    rng = np.random.default_rng(1)
    for _ in range(200):
        model, domain, order = problem(rng)
        x = rng.uniform(domain.x_low, domain.x_high, domain.n)
        y = x * (domain.ratio + domain.spread * rng.uniform(-1, 1, domain.n))
        other = rng.uniform(domain.x_low, domain.x_high)
        y2 = np.append(y[:-1], other * (domain.ratio + domain.spread * rng.uniform(-1, 1)))
        (m1, v1), (m2, v2) = model.posterior(x, y), model.posterior(np.append(x[:-1], other), y2)
        exact = renyi(order, m1, 1 / v1, m2, 1 / v2)
        assert exact <= float(corner_bound(order, model, domain)) * (1 + 1e-9)


def test_no_pair_found_lies_above_the_bounds():
    rng = np.random.default_rng(2)
    reached, zero_reached, published, against_lemma = [], [], [], []
    for _ in range(400):
        model, domain, order = problem(rng)
        bound = float(corner_bound(order, model, domain))
        if not math.isfinite(bound):
            continue
        most = divergences(rng, model, domain, order).max()
        assert most <= bound
        reached.append(bound / most)
        alone = float(corner_bound(order, model, domain, "zero-out"))
        most_alone = divergences(rng, model, domain, order, zero=True).max()
        assert most_alone <= alone
        zero_reached.append(alone / most_alone)
        lemma = float(lemma_bound(order, model, domain))
        if math.isfinite(lemma):
            assert most <= lemma and most_alone <= lemma
            published.append(lemma / bound)
            against_lemma.append(lemma / most)
    assert len(reached) > 250 and len(published) > 50
    assert np.mean(np.array(reached) < 1 + 1e-9) > 0.4, "the corner is a pair of the domain"
    assert min(published) > 3, "what the exact maximisation buys over the published lemma"
    assert min(against_lemma) > 1.2


@pytest.mark.parametrize("adjacency", ["replace-one", "zero-out"])
def test_the_worst_pair_is_a_pair(adjacency):
    """Common records short with low labels; the differing one short (or nothing) first and long
    then."""
    rng = np.random.default_rng(4)
    met = 0
    while met < 30:
        model, domain, order = problem(rng)
        bound = float(corner_bound(order, model, domain, adjacency))
        if domain.ratio < domain.spread or not math.isfinite(bound):
            continue
        met += 1
        x = np.full(domain.n, domain.x_low)
        y = x * (domain.ratio - domain.spread)
        y[0] = x[0] * (domain.ratio - domain.spread)
        first = (x, y) if adjacency == "replace-one" else (x[1:], y[1:])
        x2, y2 = x.copy(), y.copy()
        x2[0], y2[0] = domain.x_high, domain.x_high * (domain.ratio + domain.spread)
        (m1, v1), (m2, v2) = model.posterior(*first), model.posterior(x2, y2)
        assert renyi(order, m1, 1 / v1, m2, 1 / v2) == pytest.approx(bound, rel=1e-7)


def test_regimes_end_where_they_say():
    model, domain = LinearModel(), RatioDomain(n=41, ratio=3.0, spread=1.0, x_low=0.5, x_high=1.0)
    # kappa = 10, h = 1: the lemma up to order 5, the corner up to 1 + 11
    assert np.isfinite(lemma_bound(5.0, model, domain)) and not np.isfinite(
        lemma_bound(5.001, model, domain)
    )
    assert np.isfinite(corner_bound(12.0, model, domain)) and not np.isfinite(
        corner_bound(12.001, model, domain)
    )
    # below order 2.618 the square root decides
    tiny = RatioDomain(n=3, ratio=3.0, spread=1.0, x_low=0.2, x_high=1.0)
    room = 1 + 2 * 0.04
    edge = room**2
    assert np.isfinite(corner_bound(edge * 0.999, model, tiny)) and not np.isfinite(
        corner_bound(edge * 1.001, model, tiny)
    )
    # nothing where the divergence itself is about to be infinite: (order - 1) t reaches 0.999 under
    # zero-out
    top = 1 + 0.999 * 11.0
    assert np.isfinite(corner_bound(top * 0.9999, model, domain, "zero-out"))
    assert not np.isfinite(corner_bound(top * 1.0001, model, domain, "zero-out"))
    assert not np.isfinite(lemma_bound(2.0, model, RatioDomain(n=1, ratio=1.0, spread=1.0)))


def test_lemma_term_by_term():
    """(3/2) h/kappa + nu beta h^2/kappa (3 w + c alpha/(alpha + beta kappa))^2, with its six
    published orders."""
    model = LinearModel(prior_precision=2.0, noise_precision=3.0)
    domain = RatioDomain(n=1001, ratio=5.0, spread=0.7, x_low=0.4, x_high=0.9)
    h, k, w, c, nu = 0.81, 160.0, 0.7, 5.0, 4.0
    far = 2 + 3 * k
    terms = (
        h / (2 * k) + h / k,
        9 * nu * 3 * h**2 * w**2 / k,
        6 * nu * c * 2 * 3 * h**2 * w / (k * far),
        nu * c**2 * 4 * 3 * h**2 / (k * far**2),
    )
    assert float(lemma_bound(nu, model, domain)) == pytest.approx(sum(terms), rel=1e-9)


def test_the_curve_is_the_smaller_bound_at_every_order():
    model, domain = LinearModel(), RatioDomain.paper(n=2000, exponent=0.1, ratio=1000.0)
    curve = posterior_curve(model, domain)
    assert domain.spread == pytest.approx(2000**0.1)
    for order in (1.01, 2.0, 7.0, 100.0, 240.0):
        at = next(o for o in curve.orders if o >= order)
        assert curve.rdp(order) == min(
            float(corner_bound(at, model, domain)), float(lemma_bound(at, model, domain))
        )
    apart = posterior_curve(model, domain, "zero-out")
    at = apart.orders[50]
    assert apart.rdp(at) == float(corner_bound(at, model, domain, "zero-out"))
    # a record counted for nothing lies outside the domain: it moves the posterior more than an
    # exchange within it
    assert apart.epsilon(1e-5) > 1.05 * curve.epsilon(1e-5)
    more = posterior_curve(model, RatioDomain.paper(n=4000, exponent=0.1, ratio=1000.0))
    assert more.epsilon(1e-5) < curve.epsilon(1e-5)


@pytest.mark.parametrize(
    "n, ratio, by_renyi, exact",
    [(100, 316.2, 1.017, 0.921), (1000, 5623, 0.518, 0.471), (10_000, 3.98e5, 1.229, 1.126)],
)
def test_known_pairs(n, ratio, by_renyi, exact):
    """Posterior epsilon of the pair of Heller and Fetaya's equation 8 at delta = 1e-5, both
    directions."""
    one, two = n + 1.0, n + 0.25
    laws = [(ratio * (a - 1) / a, a) for a in (one, two)]
    orders = tuple(float(1 + g) for g in np.geomspace(0.01, min(n / 2, 2000), 2000))
    found = []
    for first, second in (laws, laws[::-1]):
        found.append(
            Rdp(orders=orders, values=tuple(renyi(o, *first, *second) for o in orders)).epsilon(
                1e-5
            )
        )
    assert max(found) == pytest.approx(by_renyi, abs=1e-3)
    (m1, a1), (m2, a2) = laws
    both = (
        epsilon_between(1e-5, m1, 1 / a1, m2, 1 / a2),
        epsilon_between(1e-5, m2, 1 / a2, m1, 1 / a1),
    )
    assert max(both) == pytest.approx(exact, abs=1e-3)


@pytest.mark.parametrize(
    "bad, words",
    [
        (lambda: LinearModel(prior_precision=0.0), "prior_precision must be a finite number > 0"),
        (lambda: LinearModel(noise_precision=-1.0), "noise_precision must be a finite number > 0"),
        (lambda: RatioDomain(n=0, ratio=1.0, spread=1.0), "n must be an integer"),
        (lambda: RatioDomain(n=5, ratio=1.0, spread=-1.0), "spread must be"),
        (lambda: RatioDomain(n=5, ratio=1.0, spread=1.0, x_low=2.0), "x_low cannot exceed"),
        (
            lambda: RatioDomain.paper(n=5, ratio=1.0, exponent=0.5),
            "exponent must lie strictly between 0 and 1/2",
        ),
        (
            lambda: posterior_curve(LinearModel(), RatioDomain(n=1, ratio=1.0, spread=1.0)),
            "n is too small",
        ),
        (
            lambda: RatioDomain(n=2, ratio=1.0, spread=0.1).check([1.0, 0.4], [1.0, 0.4]),
            "outside the public domain",
        ),
        (
            lambda: RatioDomain(n=2, ratio=1.0, spread=0.1).check([1.0, 0.5], [1.0, 0.6]),
            "outside the public domain",
        ),
        (
            lambda: RatioDomain(n=2, ratio=1.0, spread=0.1).check([1.0, math.nan], [1.0, 1.0]),
            "outside the public",
        ),
        (
            lambda: RatioDomain(n=2, ratio=1.0, spread=0.1).check([1.0], [1.0]),
            "must be x and y of shape",
        ),
    ],
)
def test_bad_input_is_one_sentence(bad, words):
    with pytest.raises(InputError, match=words):
        bad()


def test_the_least_n_is_the_one_named():
    for x_low in (0.2, 0.5, 1.0):
        model = LinearModel(prior_precision=0.01)
        with pytest.raises(InputError, match=r"needs at least (\d+) records") as told:
            posterior_curve(model, RatioDomain(n=1, ratio=1.0, spread=1.0, x_low=x_low))
        least = int(str(told.value).split("at least ")[1].split()[0])
        posterior_curve(model, RatioDomain(n=least, ratio=1.0, spread=1.0, x_low=x_low))
        with pytest.raises(InputError):
            posterior_curve(model, RatioDomain(n=least - 1, ratio=1.0, spread=1.0, x_low=x_low))

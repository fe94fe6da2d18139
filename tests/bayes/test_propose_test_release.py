"""Propose-test-sample: the claim on small neighbours by simulation, its parts exactly, and SGLD in
its last line."""

import dataclasses
import math

import numpy as np
import pytest

from lastiterate.bayes import LinearModel, ProposeTestSample, RatioDomain, propose_test_sample
from lastiterate.bayes.linear import corner_bound
from lastiterate.bayes.propose_test_release import GIVEN, ORDERS, PRECISION, SeededSource, run
from lastiterate.errors import InputError
from lastiterate_papers.sgld_law import Chain, common_law, neighbour_laws
from lastiterate_papers.sgld_privacy import peak

SMALL = ProposeTestSample(
    model=LinearModel(prior_precision=20.0),
    ratio_bound=40.0,
    spread=3.0,
    x_low=1.0,
    count_epsilon=0.4,
    ratio_epsilon=0.4,
    failure=1e-3,
    slope=0.2,
)
N = 700


def log_density(settings, x, y, out):
    """Log-density of a whole outcome, up to terms that are the same for all data."""
    ratios, rate = y / x, settings.count_epsilon
    found = -rate * abs(out.count - (x.size - settings.margin))
    if out.centre is None:
        return found
    average = (x * x) @ np.clip(ratios, -settings.ratio_bound, settings.ratio_bound) / (x @ x)
    found -= abs(out.centre - average) / settings.ratio_scale(out.count)
    near = np.abs(ratios - out.centre) <= settings.spread
    found -= rate * abs(out.kept - (near.sum() - settings.margin))
    if out.value is None:
        return found
    mean, variance = settings.model.posterior(x[near], y[near])
    return found - (out.value - mean) ** 2 / (2 * variance) - math.log(variance) / 2


def neighbours(kind):
    x, y = np.ones(N), np.full(N, 1.0)
    if kind == "an outlier replaced":
        other = y.copy()
        y[0], other[0] = -40.0, 40.0
        return (x, y), (x, other)
    if kind == "a kept record removed":
        y[0] = 3.5
        return (x, y), (x[1:], y[1:])
    y[0], other = 3.4, y.copy()
    other[0] = -1.4
    return (x, y), (x, other)


KINDS = ["an outlier replaced", "a kept record removed", "a kept record replaced"]


# what lies 0.07 above the claim is seen: a sixth of the noise on the average or on the counts does
COUNT = 1500
SLACK = math.sqrt(math.log(1e6) / (2 * COUNT))  # Hoeffding: false alarm 1e-6 each


def estimate(played, first, second, epsilons):
    """Unbiased estimates of delta(epsilon) of all that is released, of numbers in [0, 1]; how often
    a sample is."""
    source = SeededSource(np.random.default_rng(0))

    def exact(x, y, source):
        mean, variance = played.model.posterior(x, y)
        return mean + math.sqrt(variance) * float(source.normal(1)[0])

    outs = [run(played, *first, source, exact) for _ in range(COUNT)]
    losses = np.array(
        [log_density(played, *first, out) - log_density(played, *second, out) for out in outs]
    )
    released = np.mean([out.value is not None for out in outs])
    return [np.maximum(-np.expm1(epsilon - losses), 0).mean() for epsilon in epsilons], released


@pytest.mark.parametrize("kind", KINDS)
def test_the_claim_holds_on_neighbours(kind):
    one, two = neighbours(kind)
    for first, second in ((one, two), (two, one)):
        found, released = estimate(SMALL, first, second, (0.0, 0.3, 0.6))
        assert all(
            seen - SLACK <= SMALL.delta(e) for seen, e in zip(found, (0.0, 0.3, 0.6), strict=True)
        )
        assert released > 0.9, "the sample itself is part of the test"


def test_a_forgotten_factor_would_be_seen():
    """A sixth of the noise on the average, or on the counts, breaks the claim on the same
    neighbours."""

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Quiet(ProposeTestSample):
        def ratio_scale(self, count):
            return super().ratio_scale(count) / 6

    fields = {f.name: getattr(SMALL, f.name) for f in dataclasses.fields(SMALL)}
    (found,), _ = estimate(Quiet(**fields), *neighbours(KINDS[0]), (0.6,))
    assert found - SLACK > SMALL.delta(0.6)
    loud = dataclasses.replace(SMALL, count_epsilon=2.4)
    (found,), _ = estimate(loud, *neighbours(KINDS[1]), (0.6,))
    assert found - SLACK > SMALL.delta(0.6)


def test_noise_has_the_scales_that_are_accounted():
    """Dvoretzky-Kiefer-Wolfowitz at 1e-6 for both counts, the average and the sample."""
    x, y = neighbours(KINDS[2])[0]
    source = SeededSource(np.random.default_rng(3))
    units = []
    for _ in range(COUNT):
        used = []

        def exact(kept_x, kept_y, source, used=used):
            used.append(kept_x.size)
            return 0.0

        out = run(SMALL, x, y, source, exact)
        near = (np.abs(y - out.centre) <= SMALL.spread).sum()
        units.append(
            (
                (out.count - N + SMALL.margin) * SMALL.count_epsilon,
                (out.centre - y.mean()) / SMALL.ratio_scale(out.count),
                (out.kept - near + SMALL.margin) * SMALL.count_epsilon,
            )
        )
        assert out.value is None or used == [near]
    band = math.sqrt(math.log(2 / 1e-6) / (2 * COUNT))
    for values in np.sort(np.array(units), axis=0).T:
        law = np.where(values < 0, np.exp(values) / 2, 1 - np.exp(-np.abs(values)) / 2)
        assert np.abs(law - (np.arange(COUNT) + 0.5) / COUNT).max() < band + 1 / COUNT


def test_counts_are_rarely_too_large():
    """P[count > n - 1] = failure exactly: the margin covers a neighbour with one record less."""
    threshold = N - 1 - (N - SMALL.margin)
    assert math.exp(-SMALL.count_epsilon * threshold) / 2 == pytest.approx(SMALL.failure, rel=1e-12)


def parts(n):
    """n of n + 1 records, n with one of them exchanged, and n - 1."""
    return slice(0, n), slice(1, n + 1), slice(1, n)


def test_the_average_moves_by_at_most_its_sensitivity():
    rng = np.random.default_rng(0)
    settings = dataclasses.replace(SMALL, x_low=0.5, ratio_epsilon=1.0)
    most = 0.0
    for _ in range(5_000):
        n = int(rng.integers(2, 6))
        x = rng.choice([0.5, 1.0], n + 1)
        q = 40.0 * rng.choice([-1.0, 1.0], n + 1)

        whole, other, fewer = (x[keep] ** 2 @ q[keep] / (x[keep] @ x[keep]) for keep in parts(n))
        moved = abs(whole - other)
        assert moved <= settings.ratio_scale(n)
        most = max(most, moved / settings.ratio_scale(n))
        assert abs(whole - fewer) <= settings.ratio_scale(n)
    assert most > 0.999


def test_the_test_asks_for_the_proved_bound():
    settings = dataclasses.replace(SMALL, x_low=0.5)
    least = next(n for n in range(2, 10**6) if settings.passes(float(n), 5.0))
    assert settings.passes(least + 0.99, -5.0) and not settings.passes(least - 1e-9, 5.0)
    assert not settings.passes(least, 5e5) and not settings.passes(math.nan, 5.0)
    domain = RatioDomain(n=least, ratio=5.0, spread=3.0, x_low=0.5)
    for adjacency in ("replace-one", "zero-out"):
        assert (corner_bound(ORDERS, settings.model, domain, adjacency) <= 0.2 * ORDERS).all()
    assert settings.passes(10**9, 5.0)


def test_budget_of_the_whole():
    """Counts and average are pure, the sample has slope * order: by hand at one order, and the
    failures on top."""
    order = 4.0
    pure = 3 * order * 0.4**2 / 2
    assert SMALL.curve.rdp(order) == pytest.approx(pure + 0.2 * order, rel=0.05)
    assert SMALL.curve.rdp(order) >= pure + 0.2 * order
    for epsilon in (0.5, 2.0, 6.0):
        assert SMALL.delta(epsilon) == pytest.approx(SMALL.curve.delta(epsilon) + 2e-3, rel=1e-12)
    assert SMALL.epsilon(2e-3) == math.inf and SMALL.delta(SMALL.epsilon(0.01)) <= 0.01 * (1 + 1e-6)
    assert SMALL.delta(0.0) <= 1


def test_outcomes():
    x, y = neighbours(KINDS[0])[0]
    out = propose_test_sample(SMALL, x, y)
    assert out.caveats == (PRECISION,) and out.epsilon(0.01) == SMALL.epsilon(0.01)
    given = [propose_test_sample(SMALL, x, y, generator=np.random.default_rng(1)) for _ in range(2)]
    assert (
        given[0] == given[1]
        and given[0].caveats == (GIVEN, PRECISION)
        and given[0].value is not None
    )
    few = propose_test_sample(SMALL, x[:3], y[:3], generator=np.random.default_rng(1))
    assert few.value is None and few.centre is None and few.count < 2
    apart = propose_test_sample(
        SMALL, x, np.where(np.arange(N) % 2, 1.0, 30.0), generator=np.random.default_rng(1)
    )
    assert apart.value is None and apart.kept is not None and apart.kept < N / 2 + 60
    # x is clipped first, so a record far outside cannot weigh more than x_high
    wild = propose_test_sample(
        SMALL, np.append(x, 1e9), np.append(y, -3e10), generator=np.random.default_rng(1)
    )
    assert wild.centre is not None and abs(wild.centre - given[0].centre) < 2
    for bad in (([1.0, math.nan], [1.0, 1.0]), ([1.0], [1.0, 1.0]), ([[1.0]], [[1.0]])):
        with pytest.raises(InputError, match="data must be finite"):
            propose_test_sample(SMALL, *bad)


@pytest.mark.parametrize(
    "change",
    [
        {"spread": 0.0},
        {"failure": 0.0},
        {"failure": 0.5},
        {"x_low": 3.0},
        {"slope": -1.0},
        {"ratio_bound": 0.0},
    ],
)
def test_bad_settings(change):
    with pytest.raises(InputError):
        dataclasses.replace(SMALL, **change)


def test_sgld_in_the_last_line_breaks_the_claim():
    """Heller and Fetaya's Claim IV.9, with exact laws, on the pair of their equation 9 (here n =
    2^21, ratio = n).

    All ratios of both sets are equal, so the filter keeps all records or none. It keeps all when
    the noise on the average is below the spread, and none passes the test with a probability of
    exp(-count_epsilon n / 2) at most.
    """
    n = 2**21
    settings = ProposeTestSample(
        model=LinearModel(), ratio_bound=float(n), spread=60.0, ratio_epsilon=1.0
    )
    delta = 1e-5
    claimed = settings.epsilon(delta)
    assert claimed < 3
    # both counts are below n + 40 and above n - 40 - margin but for 2 exp(-10) each
    worst = n - settings.margin - 40
    missed = 2 * math.exp(-40 * settings.count_epsilon) + math.exp(
        -settings.spread / settings.ratio_scale(worst)
    )
    kept_all = 1 - missed - math.exp(-40 * settings.count_epsilon)
    assert settings.passes(worst, n + settings.spread) and kept_all > 0.99
    chain = Chain.paper(settings.model, n, ratio=float(n))
    epoch, witness = peak(chain, 2 * delta)
    none_kept = -settings.count_epsilon * n / 2
    assert not settings.passes(n / 2, 0.0), (
        "an empty set would need a count noise of n / 2, whatever the average"
    )
    p, log_q = kept_all * math.exp(witness.log_p), np.logaddexp(witness.log_q, none_kept)
    shown = math.log(p - delta) - log_q
    assert shown > 4 * claimed
    # and one simulated run on each set, with a draw from the law of SGLD as the last line
    mean, variance = common_law(chain, epoch * n)
    means, variances = neighbour_laws(chain, epoch * n)

    def sgld(x, y, source):
        assert x.size == n
        if x[17] == 1:
            return n + mean + math.sqrt(variance) * float(source.normal(1)[0])
        return (
            n
            + float(np.random.default_rng(0).choice(means))
            + math.sqrt(variances[0]) * float(source.normal(1)[0])
        )

    x = np.ones(n)
    drawn = []
    for differing in (1.0, 0.5):
        x[17] = differing
        out = run(settings, x, n * x, SeededSource(np.random.default_rng(5)), sgld)
        assert out.value is not None
        drawn.append(out.value)
    assert drawn[0] - drawn[1] > 2 * math.sqrt(variance)


def test_the_law_of_cyclic_sgld_is_its_recursion():
    """Two passes and a half in one order, the differing record at each place of it."""
    chain = Chain(
        model=LinearModel(prior_precision=1.3, noise_precision=0.7),
        n=6,
        step_size=0.05,
        differing=(-1.2, 2.0),
    )
    means, variances = neighbour_laws(chain, 15)
    for place in range(6):
        mean, variance = 0.0, 1 / 1.3
        for k in range(15):
            x, y = chain.differing if k % 6 == place else chain.common
            factor = 1 - 0.025 * (1.3 + 6 * 0.7 * x * x)
            mean = factor * mean + 0.025 * 6 * 0.7 * x * y
            variance = factor**2 * variance + 0.05
        assert means[place] + chain.ratio == pytest.approx(mean, rel=1e-12)
        assert variances[place] == pytest.approx(variance, rel=1e-12)

"""The law of the released iterate on quadratics, 20,000 runs each, against the exact Gaussian.

Seeds are fixed. Each comparison asks for z-scores of means and covariances below 6 (2e-9 each,
about 30 of them per run) and a Kolmogorov-Smirnov p-value above 1e-7: a correct trainer fails one
of the 10 cases with probability < 5e-6.
"""

from dataclasses import replace
from itertools import combinations, permutations, product

import numpy as np
import pytest
from scipy.stats import kstest, norm

import lastiterate as li
from engine import reference
from lastiterate.engine import Trainer, keys_from_seed
from tiers import unless

MODELS = 20_000
RNG = np.random.default_rng(42)
N, D = 7, 2
X = RNG.normal(size=(N, D)) * 0.5
Y = RNG.normal(size=N)
BASE = li.Run(
    n=N,
    steps=8,
    step_size=li.Constant(0.5),
    noise=li.GradientNoise(0.4),
    batching=li.Cyclic(3),
    start=li.GaussianStart(0.6),
    loss=li.HuberRidge(row_norm=50.0, residual_clip=1e6, ridge=0.1, intercept=0.8),
)


def sample(run):
    return Trainer(run).fit_many(X, Y, keys_from_seed(17, MODELS))[:, 0, :]


def distance(draws, mean, cov):
    """Largest z-score of mean and covariance entries, and the smallest KS p-value of two
    projections."""
    count = len(draws)
    centred = draws - mean
    scores = [np.abs(centred.mean(0)) / np.sqrt(np.diag(cov) / count)]
    spread = np.sqrt((np.outer(np.diag(cov), np.diag(cov)) + cov**2) / count)
    scores.append((np.abs(centred.T @ centred / count - cov) / spread).ravel())
    p = 1.0
    for direction in (np.ones(mean.size), np.arange(mean.size) - 1.2):
        scale = np.sqrt(direction @ cov @ direction)
        p = min(p, kstest(centred @ direction / scale, norm.cdf).pvalue)
    return max(s.max() for s in scores), p


def agrees(draws, run):
    z, p = distance(draws, *reference.quadratic_law(run, X, Y))
    return z < 6 and p > 1e-7


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"batching": li.FullBatch()},
        {"step_size": li.InverseDecay(1.0, 0.5)},
        {"start": li.FixedStart()},
        {
            "step_size": li.StepSchedule(tuple(np.linspace(0.2, 0.9, 8))),
            "noise": li.GradientNoise(tuple(np.linspace(0.9, 0.1, 8))),
        },
        {"noise": li.Langevin(0.3)},
        {"noise": li.Correlated(1.0, 4), "clip": 1e3},
    ],
    ids=str,
)
def test_law_on_quadratics(change):
    run = replace(BASE, **change)
    assert agrees(sample(run), run)


# secret batches are no flips: their laws, and that no other rule has them, are below
FLIPS = {
    "noise taken back": {"noise": li.Correlated(0.4 * 3 / 1e3, 5), "clip": 1e3},
    "noise": {"noise": li.GradientNoise(0.2)},
    "step size": {"step_size": li.Constant(0.45)},
    "steps": {"steps": 9},
    "order of blocks": {"batching": li.Cyclic(4)},
    "all records": {"batching": li.FullBatch()},
    "start": {"start": li.FixedStart()},
    "momentum": {"optimizer": li.HeavyBall(0.3)},
    "nesterov": {"optimizer": li.Nesterov()},
    "domain": {"domain": li.domains.Ball(1.0)},
    "box": {"domain": li.domains.Box(-0.5, 0.5)},
    "clip": {"clip": 0.3},
    "simplex": {"domain": li.domains.Simplex()},
    "affine": {"domain": li.domains.AffineBall(2.0, ((1.0, 1.0, 1.0),), (0.5,))},
    "l1": {"prox": li.penalties.L1(0.1)},
    "l2 squared": {"prox": li.penalties.L2Squared(0.1)},
    "elastic net": {"prox": li.penalties.ElasticNet(0.05, 0.05)},
    "group lasso": {"prox": li.penalties.GroupLasso(0.1)},
    "nuclear norm": {"prox": li.penalties.NuclearNorm(0.1)},
    "ridge": {"loss": replace(BASE.loss, ridge=0.2)},
    "clamp": {"loss": replace(BASE.loss, residual_clip=0.3)},
    "intercept": {"loss": replace(BASE.loss, intercept=0.5)},
    "row norm": {"loss": replace(BASE.loss, row_norm=0.3)},
}


OF_THEIR_KIND = {
    "nesterov",
    "domain",
    "simplex",
    "affine",
    "l2 squared",
    "elastic net",
    "group lasso",
    "nuclear norm",
}
"""Flips of which one of the same field stays: what each does to a step is compared with NumPy in
``test_steps.py``."""


@pytest.mark.parametrize("flip", unless(lambda flip: flip not in OF_THEIR_KIND, FLIPS), ids=str)
def test_every_field_changes_the_law(flip):
    assert not agrees(sample(replace(BASE, **FLIPS[flip])), BASE)


def test_permuted_blocks_follow_the_mixture_over_all_orders():
    """Moments of the exact mixture over all 5,040 permutations; z < 6 for 3 means and 6 second
    moments.

    The law knows an order only by the records of its blocks of 3, 3 and 1: 140 ways, of 36 orders
    each.
    """
    run = replace(BASE, batching=li.Permuted(3))
    ways = {(*sorted(o[:3]), *sorted(o[3:6]), o[6]) for o in permutations(range(N))}
    assert len(ways) == 140
    laws = [
        reference.quadratic_law(replace(BASE, batching=li.Cyclic(3)), X[list(o)], Y[list(o)])
        for o in ways
    ]
    means, covs = np.array([m for m, _ in laws]), np.array([c for _, c in laws])
    first = means.mean(0)
    second = (covs + means[:, :, None] * means[:, None, :]).mean(0)
    draws = sample(run)
    products = draws[:, :, None] * draws[:, None, :]
    for found, exact in ((draws, first), (products, second)):
        z = np.abs(found.mean(0) - exact) / (found.std(0) / np.sqrt(MODELS))
        assert z.max() < 6
    one = reference.quadratic_law(replace(BASE, batching=li.Cyclic(3)), X, Y)
    assert distance(draws, *one)[0] > 6, "and are not those of the public order"


def test_reshuffled_blocks_follow_the_mixture_over_all_pairs_of_orders():
    """Two passes over four records: the 24 x 24 pairs of orders are equally likely, and not only
    the 24 equal pairs."""
    few = replace(
        BASE,
        n=4,
        steps=4,
        batching=li.Reshuffled(2),
        start=li.FixedStart(),
        noise=li.GradientNoise(0.02),
    )
    few = replace(few, step_size=li.Constant(0.9))
    x, y = X[:4], Y[:4]
    orders = [list(order) for order in permutations(range(4))]
    run = replace(few, batching=li.Cyclic(2))

    def moments(pairs):
        laws = []
        for one, two in pairs:
            both = replace(run, n=8)  # two passes in two orders are one pass over eight records
            laws.append(
                reference.quadratic_law(
                    both, np.concatenate((x[one], x[two])), np.concatenate((y[one], y[two]))
                )
            )
        means, covs = np.array([m for m, _ in laws]), np.array([c for _, c in laws])
        return means.mean(0), (covs + means[:, :, None] * means[:, None, :]).mean(0)

    draws = Trainer(few).fit_many(x, y, keys_from_seed(18, MODELS))[:, 0, :]
    products = draws[:, :, None] * draws[:, None, :]

    def score(pairs):
        found = zip((draws, products), moments(pairs), strict=True)
        return max(
            float((np.abs(f.mean(0) - e) / (f.std(0) / np.sqrt(len(draws)))).max())
            for f, e in found
        )

    assert score([(one, two) for one in orders for two in orders]) < 6
    assert score([(one, one) for one in orders]) > 6, "the second pass is drawn anew"


def _subsets(n):
    return [[i for i in range(n) if mask >> i & 1] for mask in range(2**n)]


def _poisson_choices(rate):
    sets = [(rate ** len(s) * (1 - rate) ** (4 - len(s)), s) for s in _subsets(4)]
    return [(p * q, (s, t)) for (p, s), (q, t) in product(sets, sets)]


def _fixed_choices():
    sets = list(combinations(range(4), 2))
    return [(1 / len(sets) ** 2, (s, t)) for s, t in product(sets, sets)]


def _bins_choices():
    return [(1 / 16, (s, [i for i in range(4) if i not in s])) for s in _subsets(4)]


DRAWN = {
    "poisson": (li.Poisson(0.3), _poisson_choices(0.3)),
    "every record": (li.Poisson(1.0), [(1.0, (range(4), range(4)))]),
    "fresh subsets": (li.FixedSize(2), _fixed_choices()),
    "bins": (li.BallsInBins(2), _bins_choices()),
}


@pytest.mark.parametrize("name", DRAWN)
def test_drawn_batches_follow_the_exact_mixture(name):
    """Two steps on four records: moments of the mixture over all draws, |z| < 6 for 3 means, 6
    second moments and 10 third moments of projections (a correct trainer fails with probability <
    2e-7); every other rule is refuted."""
    batching, choices = DRAWN[name]
    run = replace(
        BASE, n=4, steps=2, batching=batching, start=li.FixedStart(), noise=li.GradientNoise(0.02)
    )
    run = replace(run, step_size=li.Constant(0.9))
    draws = Trainer(run).fit_many(X[:4], Y[:4], keys_from_seed(19, MODELS))[:, 0, :]

    def score(choices):
        found = [draws, draws[:, :, None] * draws[:, None, :], (draws @ PROJECTIONS) ** 3]
        exact = [0.0, 0.0, 0.0]
        for weight, batches in choices:
            mean, cov = reference.quadratic_law(run, X[:4], Y[:4], batches)
            m, v = mean @ PROJECTIONS, ((PROJECTIONS.T @ cov) * PROJECTIONS.T).sum(1)
            for i, moment in enumerate((mean, cov + np.outer(mean, mean), m**3 + 3 * m * v)):
                exact[i] = exact[i] + weight * moment
        return max(
            float((np.abs(f.mean(0) - e) / (f.std(0) / np.sqrt(len(f)))).max())
            for f, e in zip(found, exact, strict=True)
        )

    assert abs(sum(weight for weight, _ in choices) - 1) < 1e-12
    assert score(choices) < 6
    for other, (_, wrong) in DRAWN.items():
        assert other == name or score(wrong) > 6


def test_allocation_follows_the_mixture_over_all_pairs_of_passes():
    """Two passes of two blocks on four records: 16 x 16 equally likely allocations, and not the
    same one twice."""
    run = replace(
        BASE,
        n=4,
        steps=4,
        batching=li.RandomAllocation(2),
        start=li.FixedStart(),
        noise=li.GradientNoise(0.02),
    )
    run = replace(run, step_size=li.Constant(0.9))
    draws = Trainer(run).fit_many(X[:4], Y[:4], keys_from_seed(20, MODELS))[:, 0, :]
    ways = [(s, [i for i in range(4) if i not in s]) for s in _subsets(4)]

    def score(pairs):
        laws = [reference.quadratic_law(run, X[:4], Y[:4], (*one, *two)) for one, two in pairs]
        means, covs = np.array([m for m, _ in laws]), np.array([c for _, c in laws])
        exact = means.mean(0), (covs + means[:, :, None] * means[:, None, :]).mean(0)
        found = zip((draws, draws[:, :, None] * draws[:, None, :]), exact, strict=True)
        return max(
            float((np.abs(f.mean(0) - e) / (f.std(0) / np.sqrt(len(draws)))).max())
            for f, e in found
        )

    assert score(list(product(ways, ways))) < 6
    assert score([(one, one) for one in ways]) > 6, "the second pass is drawn anew"


PROJECTIONS = np.random.default_rng(3).normal(size=(3, 10))

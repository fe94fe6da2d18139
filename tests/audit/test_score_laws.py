"""The laws of an attack's scores by the description: against all batches that can be drawn, and
their bounds."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.special import ndtr
from scipy.stats import norm

import lastiterate as li
from lastiterate.audit import audit, exact_distribution, learned_scores, worst_case
from lastiterate.audit import scores as drawn_moves
from lastiterate.audit.canaries import execute
from lastiterate.audit.runner import default_train
from lastiterate.audit.score_distributions import ScoreLaws, find_score_laws, pushes
from lastiterate.audit.scores import MoveDistribution, weight_in_last
from lastiterate.audit.statistics import Counts, gaussian_epsilon
from lastiterate.engine import Trainer, keys_from_seed

LOSS = li.HuberRidge(row_norm=1.0, residual_clip=1.0, ridge=0.4, intercept=0.5)
RUN = li.Run(
    n=4,
    steps=3,
    step_size=li.InverseDecay(0.5, 0.3),
    noise=li.GradientNoise(0.2),
    loss=LOSS,
    batching=li.Poisson(0.3),
)
BATCHINGS = (
    li.Poisson(0.3),
    li.FixedSize(2),
    li.RandomAllocation(2),
    li.BallsInBins(2),
    li.Permuted(2),
    li.Reshuffled(2),
)


def listed(run, attack):
    """What all records together add to a score with the record and without, and the probabilities,
    batch by batch."""
    pair = worst_case(run)
    added = learned_scores.weights(run, 0) if attack == learned_scores.NAME else weight_in_last(run)
    sides = [pushes(run, part, pair.direction) for part in (pair.with_record, pair.without_record)]
    found = [
        (
            weight,
            *(
                sum(a * side[list(batch)].sum() for a, batch in zip(added, batches, strict=True))
                for side in sides
            ),
        )
        for weight, batches in exact_distribution.enumerate_batches(run)
    ]
    return np.array(found).T


@pytest.mark.parametrize("attack", ["projection", learned_scores.NAME])
@pytest.mark.parametrize("adjacency", ["zero-out", "replace-one"])
@pytest.mark.parametrize("batching", BATCHINGS, ids=lambda found: found.word)
def test_moves_are_those_of_all_batches_that_can_be_drawn(batching, adjacency, attack):
    """Probabilities of every score at three sizes of noise, with the record and without; place and
    scale aside."""
    steps = RUN.steps if batching.blocks(RUN.n) == 1 else 4
    run = replace(RUN, batching=batching, adjacency=adjacency, release="all", steps=steps)
    laws, (weights, *both) = find_score_laws(run, worst_case(run), attack), listed(run, attack)
    own = (laws.moves.values, laws.moves.weights)
    far = max(np.abs(both[0]).max(), np.abs(both[1]).max())
    unit = (weights @ both[0] - weights @ both[1]) / (
        (laws.present - laws.absent) * (own[0] @ own[1])
    )
    for factor, sums in ((laws.present, both[0]), (laws.absent, both[1])):
        place = weights @ sums - unit * factor * (own[0] @ own[1])
        for noise in (0.05, 0.3, 2.0):
            at = np.linspace(-1.5, 1.5, 31) * far
            wanted = [weights @ ndtr((t - sums) / (noise * far)) for t in at]
            found = [
                own[1] @ ndtr((t - place - unit * factor * own[0]) / (noise * far)) for t in at
            ]
            np.testing.assert_allclose(found, wanted, atol=1e-5)


def test_the_trainer_moves_its_scores_so():
    """Without noise every score is one of those that are listed, momentum included; fewer would
    leave some out."""
    run = replace(RUN, steps=2, optimizer=li.HeavyBall(0.3), noise=li.GradientNoise(0.0))
    pair = worst_case(replace(run, noise=li.GradientNoise(1.0)))
    scores = execute(run, pair.with_record, Trainer(run).fit_many, keys_from_seed(1, 400)).reshape(
        400, -1
    )
    scores = scores @ pair.direction.ravel() * run.divisor
    weights, present, _ = listed(run, "projection")
    near = np.abs(scores[:, None] - present[None]).min(axis=1)
    assert near.max() < 1e-5 * present.max()
    assert np.unique(np.round(scores, 4)).size == np.unique(np.round(present, 4)).size
    assert scores.mean() == pytest.approx(weights @ present, rel=0.1)


POISSON = MoveDistribution(np.array([0.0, 0.5, 0.8, 1.3]), np.array([0.42, 0.18, 0.28, 0.12]))
LAWS = {
    "zeroed": ScoreLaws(POISSON, 1.0, 0.0, ""),
    "replaced": ScoreLaws(POISSON, 1.0, -1.0, ""),
    "in another's place": ScoreLaws(POISSON, 0.7, -0.3, ""),
    "on a coarse grid": ScoreLaws(
        drawn_moves.sum_law(
            [(np.array([0.5]), np.array([0.4])), (np.array([0.8]), np.array([0.3]))]
        ),
        1.0,
        0.0,
        "",
    ),
}


def drawn(laws, theta, count, rng):
    """Scores of exact laws; of the third case in LAWS, too."""
    return [
        theta
        * factor
        * rng.choice(laws.moves.values, count, p=laws.moves.weights / laws.moves.weights.sum())
        + rng.normal(size=count)
        for factor in (laws.present, laws.absent)
    ]


@pytest.mark.parametrize("name", LAWS)
@pytest.mark.parametrize("theta", [0.0, 0.5, 2.0])
def test_theta_is_covered_on_the_exact_laws(name, theta):
    """1,500 simulated audits: the bound is too large in no more than failure of them, and it is not
    empty."""
    laws, rng, count, failure, times = LAWS[name], np.random.default_rng(3), 2000, 0.1, 1500
    middle = (
        theta * (laws.present + laws.absent) / 2 * float(laws.moves.values @ laws.moves.weights)
    )
    rates = [
        float(laws.moves.weights @ ndtr(sign * (theta * factor * laws.moves.values - middle)))
        for factor, sign in ((laws.absent, 1), (laws.present, -1))
    ]
    counts = Counts(
        rng.binomial(count, rates[0], times), count, rng.binomial(count, rates[1], times), count
    )
    bounds = np.transpose(counts.bounds(failure)).tolist()
    wrong = np.mean([laws.excludes(theta, *pair) for pair in bounds])
    assert wrong <= failure + 4 * np.sqrt(failure * (1 - failure) / times)
    for pair in bounds[:3]:
        found = laws.theta(*pair)
        assert not 0 < found < 0.7 * theta - 0.3 and laws.excludes(found, *pair) == (found > 0)
        assert not laws.excludes(found * (1 + 1e-6) + 1e-6, *pair)


@pytest.mark.parametrize("name", LAWS)
def test_epsilon_is_that_of_the_two_laws_from_below(name):
    """Against the integral of (p - e^eps q)+ over a fine grid, both ways round."""
    laws, theta, delta = LAWS[name], 1.5, 1e-4
    x = np.linspace(-12, 12, 20_001)
    p, q = (
        norm.pdf(x[:, None] - theta * factor * laws.moves.values) @ laws.moves.weights
        for factor in (laws.present, laws.absent)
    )
    epsilon = laws.epsilon(theta, delta)
    for grown, within in ((epsilon * 1.001, False), (epsilon * 0.999, True)):
        most = max(
            np.maximum(a - np.exp(grown) * b, 0).sum() * (x[1] - x[0]) for a, b in ((p, q), (q, p))
        )
        assert (most > delta) == within


def test_a_single_move_is_the_gdp_test():
    laws = find_score_laws(
        replace(RUN, batching=li.FullBatch()),
        worst_case(replace(RUN, batching=li.FullBatch())),
        "projection",
    )
    for mu in (0.2, 1.0, 6.0):
        assert laws.theta(float(ndtr(-mu / 2)), float(ndtr(-mu / 2))) == pytest.approx(mu, rel=1e-6)
        assert laws.epsilon(mu, 1e-5) == pytest.approx(gaussian_epsilon(mu, 1e-5), rel=1e-3)
        assert laws.epsilon(mu, 1e-5) <= gaussian_epsilon(mu, 1e-5) * (1 + 1e-9)
    assert laws.theta(0.5, 0.5) == 0


def test_scores_of_other_laws_do_not_fit():
    """Right ones do, at every theta and place; noise of another law, another law of the moves and
    no noise do not."""
    rng, laws = np.random.default_rng(7), LAWS["zeroed"]
    for theta in (0.0, 0.3, 4.0):
        for _ in range(20):
            assert laws.fit(*(3e4 + 2e-3 * part for part in drawn(laws, theta, 3000, rng)))
    present, absent = drawn(laws, 4.0, 3000, rng)
    always = ScoreLaws(drawn_moves.CERTAIN, 1.0, 0.0, "")
    assert not always.fit(present, absent), "the record is not in every batch"
    assert not laws.fit(4.0 + rng.normal(size=3000), absent), "it is in every batch"
    right, wrong = drawn(laws, 0.3, 20_000, rng)[0], rng.laplace(size=20_000) / np.sqrt(2)
    assert not laws.fit(right, wrong) and not laws.fit(wrong, right)
    assert not laws.fit(0 * present, 0 * absent)


def test_where_others_bring_a_secret_of_their_own_nothing_is_taken_for_known():
    found = worst_case(RUN)
    assert (
        find_score_laws(RUN, found, "projection") is not None
        and find_score_laws(RUN, found, "learned") is None
    )
    with_intercept = replace(found, direction=np.array([[1.0, 0.5]]))
    assert find_score_laws(RUN, with_intercept, "projection") is None, (
        "the others' number is drawn for itself"
    )
    fixed = replace(RUN, batching=li.FixedSize(2))
    assert find_score_laws(fixed, with_intercept, "projection").absent < 0, (
        "the others are as many as places are left"
    )
    for changes in (
        {"domain": li.domains.Ball(1.0)},
        {"method": li.TailAverage(0.5)},
        {"optimizer": li.HeavyBall(0.99)},
        {"preprocessing": (li.PrivateMean(9.0, 1.0),)},
    ):
        run = replace(
            RUN, **({"step_size": 1.9, "steps": 9} if "optimizer" in changes else {}), **changes
        )
        assert find_score_laws(run, worst_case(run), "projection") is None, changes


@pytest.mark.parametrize("release", ["last", "all"])
def test_sampled_rows_show_most_of_what_is_certified(release):
    """And not more; halved noise does, and no theorem says so: the same laws at twice the theta."""
    run = li.calibrate(
        li.Run(n=6, steps=4, step_size=0.5, clip=1.0, batching=li.Poisson(0.3), release=release),
        epsilon=4.0,
        delta=1e-5,
    ).run
    settings = dict(
        attack="projection" if release == "last" else learned_scores.NAME, trials=6000, seed=1
    )
    report = audit(run, **settings)
    assert (
        0.7 * report.upper < report.lower_gaussian <= report.upper
        and "drawn as described" in report.taken
    )
    assert report.lower < 0.7 * report.upper, "the bound for any trainer is no rival"
    halved = audit(
        run, **settings, train=default_train(replace(run, noise=run.noise.scale_by(0.5)))
    )
    assert halved.lower_gaussian > 1.3 * report.upper

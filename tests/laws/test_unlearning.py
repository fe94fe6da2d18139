"""The bound on forgotten records part by part: minimisers in closed form and by brute force, shares
of the failure, passes at their worst, and what lies before the steps that are followed."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import expit

import lastiterate as li
from lastiterate.analysis import perturbed_objective, restarted_sampling, unlearning
from lastiterate.analysis.unlearning import Continued, forgotten_curve
from lastiterate.curves.curve import BestOf, WithFailure
from lastiterate.curves.gaussian import Gdp
from lastiterate.run.facts import FLOAT_SLACK
from lastiterate.run.methods import NORM_SLACK, RidgeMinimiser, last_noise

N, RIDGE = 12, 0.4
LOSS = li.HuberRidge(row_norm=1.0, residual_clip=1.0, ridge=RIDGE, intercept=0.0)
PULL = 1 + FLOAT_SLACK
QUIET = li.GradientNoise(0.0)


def run_of(steps=4, eta=0.5, std=0.0, kick=0.0, batching=None, loss=LOSS, **more):
    return li.Run(
        n=N,
        steps=steps,
        step_size=eta,
        noise=li.GradientNoise(std),
        batching=batching or li.FullBatch(),
        start=li.GaussianStart(kick) if kick else li.FixedStart(),
        loss=loss,
        **more,
    )


def hidden(apart, spread, after):
    """mu of a distance, with noise of ``spread`` on it, behind the steps ``after`` of full
    batches."""
    c = 1 - RIDGE * after.step_sizes
    later = np.append(np.cumprod(c[::-1])[::-1], 1.0)
    variance = (spread**2 + after.start.std**2) * later[0] ** 2
    variance += float(((after.step_sizes * after.noise_stds * later[1:]) ** 2).sum())
    return apart * later[0] / math.sqrt(variance)


@pytest.mark.parametrize("residual", [1e-9, 1e-3, 0.2])
@pytest.mark.parametrize("removed", [1, 3])
def test_minimisers_move_by_gradients_over_curvature(residual, removed):
    training = RidgeMinimiser(n=N, loss=LOSS, residual=residual)
    after = run_of(3, 0.5, 0.3, 0.7)
    curve = forgotten_curve(training, (Continued(after, removed),))
    apart = removed * (1 + NORM_SLACK) / (N * RIDGE) + 2 * residual / RIDGE
    assert curve.mu == pytest.approx(hidden(apart, 0.0, after), rel=1e-7)


CLASSIFIER = li.Logistic(row_norm=1.0, ridge=RIDGE, intercept=0.0)
PERTURBED = li.Run(
    n=N,
    steps=9,
    step_size=0.8 / CLASSIFIER.facts().smooth.value,
    loss=CLASSIFIER,
    method=li.ObjectivePerturbation(2, 0.5),
    noise=li.NoiseMultiplier(0.6),
)


@pytest.mark.parametrize("removed", [1, 4])
def test_perturbed_minimisers_have_noise_of_their_own(removed):
    """The solver's distance counts for both, however many records are removed; it holds except with
    a probability."""
    after = run_of(3, 0.5, 0.3, 0.2, loss=replace(CLASSIFIER))
    curve = forgotten_curve(PERTURBED, (Continued(after, removed),))
    assert isinstance(curve, WithFailure) and curve.failure == perturbed_objective.FAILURE
    apart = removed * PULL / (N * RIDGE) + 2 * perturbed_objective.distance(PERTURBED)
    spread = last_noise(PERTURBED.method, PERTURBED)
    assert curve.curve.mu == pytest.approx(hidden(apart, spread, after), rel=1e-7)


def test_perturbed_minimisers_by_brute_force():
    """With and without records, for the same linear term."""
    rng, nearest = np.random.default_rng(3), 0.0
    for trial in range(12):
        x, y, removed = rng.normal(size=(N, 2)), rng.integers(0, 2, N), int(rng.integers(1, 5))
        if trial % 2:
            x[:removed], y[:removed] = [0.0, 1.0], 1
        x /= np.linalg.norm(x, axis=1, keepdims=True)
        b = rng.normal(size=2) * 0.6 / N
        ends = []
        for first in (0, removed):

            def objective(theta, x=x[first:], y=y[first:], b=b):
                score = x @ theta
                value = (np.logaddexp(0, score) - y * score).sum() / N
                gradient = x.T @ (expit(score) - y) / N + RIDGE * theta + b
                return value + RIDGE / 2 * theta @ theta + b @ theta, gradient

            ends.append(minimize(objective, np.zeros(2), jac=True, options={"gtol": 1e-9}).x)
        after = run_of(1, 1e-9, 0.0, 1.0, loss=CLASSIFIER)
        mu = forgotten_curve(PERTURBED, (Continued(after, removed),)).curve.mu
        bound = mu * math.hypot(1, last_noise(PERTURBED.method, PERTURBED))
        apart = float(np.linalg.norm(ends[0] - ends[1]))
        assert apart <= bound
        left = bound - 2 * perturbed_objective.distance(PERTURBED)
        nearest = max(nearest, apart / left)
    assert 0.3 < nearest <= 1


# Random batches.

SURE = [li.FullBatch(), li.Cyclic(4), li.Permuted(4), li.Reshuffled(4)]
RANDOM = [li.Poisson(0.25), li.FixedSize(3), li.BallsInBins(4), li.RandomAllocation(4)]


@pytest.mark.parametrize("batching", SURE + RANDOM, ids=lambda one: type(one).__name__)
@pytest.mark.parametrize("where", ["training", "request", "request after a minimiser"])
def test_random_batches_have_failures(batching, where):
    """Wherever they are; others have none."""
    one, two = run_of(kick=0.3, batching=batching), run_of(kick=0.3, std=0.1)
    exactly = RidgeMinimiser(n=N, loss=LOSS, residual=1e-6)
    training = {"training": one, "request": two}.get(where, exactly)
    curve = forgotten_curve(training, (Continued(two if where == "training" else one, 1),))
    if batching in SURE:
        assert isinstance(curve, Gdp)
    else:
        assert isinstance(curve, BestOf)
        assert [part.failure for part in curve.curves] == list(unlearning.FAILURES)


@pytest.mark.parametrize("batching", RANDOM, ids=lambda one: type(one).__name__)
@pytest.mark.parametrize("requests", [1, 3])
def test_failures_of_all_parts_are_no_more_than_the_whole(monkeypatch, batching, requests):
    """Loads of every part, and how often records are drawn in the training."""
    asked, drawn, chances, shares = [], [], [], []
    steps, draws = restarted_sampling.last_steps, restarted_sampling.distances_of_draws

    def last_steps(run, chance, failure, every, given):
        asked.append(failure)
        chances.append(chance)
        shares.append(given)
        return steps(run, chance, failure, every, given)

    def distances_of_draws(rate, records):
        assert rate == 0.25 and records == requests

        def distances(steps, failure, at):
            drawn.append(failure)
            return draws(rate, records)(steps, failure, at)

        return distances

    monkeypatch.setattr(unlearning, "last_steps", last_steps)
    monkeypatch.setattr(unlearning, "distances_of_draws", distances_of_draws)
    monkeypatch.setattr(unlearning, "FAILURES", (0.012,))
    part = run_of(kick=0.3, std=0.2, batching=batching)
    curve = forgotten_curve(part, tuple(Continued(part, 1) for _ in range(requests)))
    each = 0.012 / (requests + 1)
    assert isinstance(curve, WithFailure) and curve.failure == 0.012
    assert sum(asked) + sum(drawn) == pytest.approx(0.012)
    later = [each] * requests
    if batching.drawn == "each step":
        assert drawn == pytest.approx([each / 2]) and asked == pytest.approx([each / 2, *later])
    else:
        assert not drawn and asked == pytest.approx([each, *later])
    wanted = {"FixedSize": 0.25, "Poisson": 0.25}.get(type(batching).__name__, 1 / 3)
    assert chances == pytest.approx([wanted] * (requests + 1))
    fixed = [None if batching.sizes == "random" else part.shares] * (requests + 1)
    assert shares == fixed


@pytest.mark.parametrize("batching", [li.Poisson(0.25), li.FixedSize(3)])
@pytest.mark.parametrize("removed", [1, 3])
def test_records_that_may_be_drawn_in_every_step_count_in_every_step(batching, removed):
    """Where that is likelier than the failure: every record by as much as one."""
    run, after = run_of(4, 0.1, batching=batching), run_of(2, 0.3, 0.2, 0.6)
    apart = removed * sum(0.1 * PULL / 3 * (1 - 0.1 * RIDGE) ** k for k in range(4))
    found = forgotten_curve(run, (Continued(after, removed),)).curves[0]
    assert found.failure == 1e-30
    assert found.curve.mu == pytest.approx(hidden(apart, 0.0, after), rel=1e-6)


# Passes.


@pytest.mark.parametrize("steps", [3, 7, 9])
def test_a_record_counts_at_the_worst_position_of_every_pass(steps):
    """The largest of its shifts, each shrunk by the steps that follow in the pass, at its end."""
    rng = np.random.default_rng(steps)
    eta = rng.uniform(0.1, 0.7, steps)
    run = replace(run_of(batching=li.Cyclic(4)), steps=steps, step_size=tuple(eta))
    for one in (run, replace(run, adjacency="replace-one")):
        found, c = unlearning._steps(one, 0.0), 1 - RIDGE * eta
        assert found.c == pytest.approx(c, rel=1e-9) and found.before == 0.0
        for k in range(steps):
            begin, last = k // 3 * 3, min(k // 3 * 3 + 2, steps - 1)
            worst = max(
                eta[w] * PULL / 4 * np.prod(c[w + 1 : last + 1]) for w in range(begin, last + 1)
            )
            assert found.s[k] == pytest.approx(worst if k == last else 0.0, rel=1e-9)


def test_what_lies_before_the_steps_that_are_followed(monkeypatch):
    """Of a long training the first steps count as their limit, for every record; or as the diameter
    of a domain."""
    monkeypatch.setattr(restarted_sampling, "LONGEST", 4)
    run, after = run_of(10, 0.5), run_of(2, 0.3, 0.2, 0.6)
    limit, last = PULL / N / RIDGE, 1 - 0.5 * RIDGE
    apart = limit * last**4 + 0.5 * PULL / N * sum(last**k for k in range(4))
    for removed in (1, 3):
        found = forgotten_curve(run, (Continued(after, removed),)).mu
        assert found == pytest.approx(hidden(removed * apart, 0.0, after), rel=1e-7)
    flat = replace(LOSS, ridge=0.0)
    free, then = run_of(10, 0.5, loss=flat), run_of(2, 0.3, 0.2, 0.6, loss=flat)
    assert forgotten_curve(free, (Continued(then, 1),)).mu == math.inf
    ball = li.domains.Ball(0.01)
    kept, inside = replace(free, domain=ball), replace(then, domain=ball)
    found = forgotten_curve(kept, (Continued(inside, 1),)).mu
    noise = math.sqrt(0.6**2 + 2 * (0.3 * 0.2) ** 2)
    assert found == pytest.approx(0.02 / noise, rel=1e-7), "it starts again at the diameter"
    # a distance before that is larger than the domain is not the distance
    monkeypatch.setattr(unlearning, "best_restart", lambda c, s, v, diameter: math.inf)
    found = forgotten_curve(kept, (Continued(inside, 1),)).mu
    assert found == pytest.approx((0.02 + 4 * 0.5 * PULL / N) / noise, rel=1e-7)


def test_records_leave_one_request_after_the_other():
    """In the steps after a request those of later ones still pull."""
    training, first, last = run_of(2, 0.5), run_of(3, 0.2, 0.0, 0.5), run_of(1, 0.4, 0.0, 0.3)
    curve = forgotten_curve(training, (Continued(first, 2), Continued(last, 1)))
    pull, keep = PULL / N, lambda eta: 1 - eta * RIDGE
    one = 3 * 0.5 * pull * (1 + keep(0.5))  # all pull in the training
    two = sum(0.2 * pull * keep(0.2) ** k for k in range(3))
    # the optimum over how much of it the first noise hides
    kept, end = keep(0.2) ** 3, keep(0.4)
    shift, noise = np.array([one * kept, two]) * end, np.array([0.5 * kept, 0.3]) * end
    if shift[0] / noise[0] ** 2 >= shift[1] / noise[1] ** 2:
        wanted = shift.sum() / math.hypot(*noise)
    else:
        wanted = math.hypot(*(shift / noise))
    assert curve.mu == pytest.approx(wanted, rel=1e-7)
    swapped = forgotten_curve(training, (Continued(first, 1), Continued(last, 2)))
    assert swapped.mu > curve.mu * 1.01


def test_noise_before_a_request_moves_nothing():
    found = unlearning._initial_moves(run_of(kick=0.3))
    assert (found.c, found.s, found.v, found.before) == (1.0, 0.0, pytest.approx(0.09), 0.0)


def test_domains_must_be_the_same():
    ball = li.domains.Ball(1.0)
    run = run_of(domain=ball, kick=0.1)
    for training, parts, wanted in (
        (run, (run, run), 2.0),
        (run, (replace(run, domain=li.domains.Ball(2.0)), run), math.inf),
        (replace(run, domain=li.domains.Everywhere()), (run,), math.inf),
        (RidgeMinimiser(n=N, loss=LOSS, residual=1e-6), (run,), math.inf),
    ):
        requests = tuple(Continued(part, 1) for part in parts)
        assert unlearning._diameter(training, requests) == wanted

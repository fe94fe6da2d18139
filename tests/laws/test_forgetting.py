"""What is left of removed records: exact Gaussian laws, mixtures over draws, and distances by brute
force."""

import itertools
import json
import math
from dataclasses import replace
from pathlib import Path

import jsonschema
import numpy as np
import pytest

import lastiterate as li
from lastiterate.accounting import certificate_json
from lastiterate.accounting.certificate import Certificate
from lastiterate.accounting.unlearning import Unlearning
from lastiterate.analysis.unlearning import Continued, forgotten_curve
from lastiterate.run.facts import FLOAT_SLACK
from lastiterate.run.methods import RidgeMinimiser
from oracles.gaussian import gdp_delta, mixture_delta

SCHEMA = json.loads(
    (Path(certificate_json.__file__).parent / "certificate.schema.json").read_text()
)
N, RIDGE = 6, 0.4
LOSS = li.HuberRidge(row_norm=1.0, residual_clip=1.0, ridge=RIDGE, intercept=0.0)
"""Residuals stay clamped in what follows: a record pulls with a gradient of one length, only the
ridge bends."""
PULL = 1 + FLOAT_SLACK
QUIET = li.GradientNoise(0.0)


def described(rng, steps, batching, *, noisy=None, start=None):
    eta = rng.uniform(
        0.05, 1 / 1.4, steps
    )  # below 1/smooth, where 1 - step ridge is the Lipschitz constant
    std = rng.uniform(0.1, 1.0, steps) * (
        rng.random(steps) < (rng.choice([0, 0.5, 1]) if noisy is None else noisy)
    )
    kick = rng.uniform(0.1, 1.0) if start is None else start
    return li.Run(
        n=N,
        steps=steps,
        step_size=tuple(eta),
        noise=li.GradientNoise(tuple(std)),
        batching=batching,
        start=li.GaussianStart(kick) if kick else li.FixedStart(),
        loss=LOSS,
    )


def law(runs, records, removed):
    """Mean and variance of the last weight where ``records`` (places in blocks) pull until they are
    removed.

    ``records``: for every record to be forgotten its block in each run (``None``: in every batch),
    and its request.
    """
    mean = variance = 0.0
    for number, run in enumerate(runs):
        variance += run.start.std**2 if number else 0.0
        for k, (eta, std) in enumerate(zip(run.step_sizes, run.noise_stds, strict=True)):
            pull = sum(
                PULL
                for block, request in records
                if number < request and not removed and k % run.blocks == (block % run.blocks)
            )
            mean = (1 - eta * RIDGE) * mean + eta * pull / run.divisor
            variance = (1 - eta * RIDGE) ** 2 * variance + (eta * std) ** 2
    return mean, variance


def exact(runs, records):
    mean, variance = law(runs, records, removed=False)
    return abs(mean) / math.sqrt(variance) if variance else (math.inf if mean else 0.0)


@pytest.mark.parametrize("seed", range(6))
def test_exact_gaussian_laws(seed):
    """All batchings whose places are known once they are published; several records and requests;
    both orders are one, since the laws differ in their means alone."""
    rng = np.random.default_rng(seed)
    attained = 0
    for _ in range(60):
        requests = int(rng.integers(1, 4))
        batchings = [
            li.FullBatch()
            if rng.random() < 0.4
            else rng.choice([li.Cyclic, li.Permuted, li.Reshuffled])(int(rng.integers(1, 4)))
            for _ in range(requests + 1)
        ]
        runs = [described(rng, int(rng.integers(1, 9)), batching) for batching in batchings]
        removed = [int(rng.integers(1, 3)) for _ in range(requests)]
        curve = forgotten_curve(runs[0], tuple(map(Continued, runs[1:], removed)))
        for _ in range(4):
            records = [
                (int(rng.integers(6)), request)
                for request, many in enumerate(removed, 1)
                for _ in range(many)
            ]
            found = exact(runs, records)
            assert found <= curve.mu * (1 + 1e-9)
            attained += math.isfinite(curve.mu) and found >= curve.mu * (1 - 1e-6)
    assert attained >= 10, "full batches attain the bound where training has no noise"


def test_one_request_after_a_training_without_noise_attains_the_closed_form():
    rng = np.random.default_rng(1)
    quiet = described(rng, 12, li.FullBatch(), noisy=0, start=0)
    after = described(rng, 5, li.FullBatch(), noisy=1, start=0.7)
    curve = forgotten_curve(quiet, (Continued(after, 3),))
    z, found = 3 * law([quiet], [(0, 1)], removed=False)[0], exact([quiet, after], [(0, 1)] * 3)
    later = [float(np.prod(1 - RIDGE * after.step_sizes[k:])) for k in range(6)]
    spread = (0.7 * later[0]) ** 2 + sum(((after.step_sizes * after.noise_stds) * later[1:]) ** 2)
    assert (
        curve.mu
        == pytest.approx(z * later[0] / math.sqrt(spread), rel=1e-9)
        == pytest.approx(found, rel=1e-9)
    )


def test_delta_of_the_exact_law_in_both_orders():
    rng = np.random.default_rng(2)
    for _ in range(20):
        runs = [described(rng, 4, li.FullBatch()), described(rng, 3, li.Cyclic(3))]
        curve = forgotten_curve(runs[0], (Continued(runs[1], 2),))
        (mean, variance), (other, same) = (
            law(runs, [(0, 1), (1, 1)], False),
            law(runs, [(0, 1), (1, 1)], True),
        )
        assert variance == same and other == 0.0
        for epsilon in (0.1, 1.0, 3.0):
            assert curve.delta(epsilon) >= float(gdp_delta(epsilon, mean / math.sqrt(variance))) * (
                1 - 1e-9
            )


def mixture(weights_and_means, variance, curve):
    weights, means = map(np.array, zip(*weights_and_means, strict=True))
    for epsilon in (0.05, 0.5, 1.5):
        worst = mixture_delta(
            epsilon, (weights, means), (np.ones(1), np.zeros(1)), math.sqrt(variance)
        )
        assert curve.delta(epsilon) >= worst - 1e-9


@pytest.mark.parametrize("kind", [li.Permuted, li.BallsInBins])
def test_mixtures_over_secret_places(kind):
    """Two removed records of a secret order, or in secret bins: the law is a mixture over where
    they lay."""
    rng = np.random.default_rng(3)
    for _ in range(10):
        run = replace(described(rng, 6, li.Cyclic(3), noisy=0), batching=kind(3))
        after = described(rng, 4, li.FullBatch(), start=0.4)
        curve = forgotten_curve(run, (Continued(after, 2),))
        places = (
            itertools.permutations([0, 0, 0, 1, 1, 1], 2)
            if kind is li.Permuted
            else itertools.product([0, 1], repeat=2)
        )
        laws = [law([run, after], [(a, 1), (b, 1)], False) for a, b in places]
        mixture([(1 / len(laws), mean) for mean, _ in laws], laws[0][1], curve)


@pytest.mark.parametrize("batching", [li.Poisson(1 / 3), li.FixedSize(2)])
def test_mixtures_over_draws_of_every_step(batching):
    rng, eta, steps = np.random.default_rng(4), 0.5, 4
    run = li.Run(n=N, steps=steps, step_size=eta, noise=QUIET, batching=batching, loss=LOSS)
    factor = 1 - eta * RIDGE
    for _ in range(5):
        after = described(rng, 3, li.FullBatch(), start=float(rng.uniform(0.05, 0.5)))
        curve = forgotten_curve(run, (Continued(after, 2),))
        last, variance = (
            float(np.prod(1 - RIDGE * after.step_sizes)),
            law([run, after], [], True)[1],
        )
        laws = {}
        for drawn in itertools.product([0, 1, 2], repeat=steps):
            chance = math.prod(_chance(batching, count) for count in drawn)
            mean = (
                sum(
                    count * eta * PULL / 2 * factor ** (steps - 1 - t)
                    for t, count in enumerate(drawn)
                )
                * last
            )
            laws[mean] = laws.get(mean, 0.0) + chance
        assert sum(laws.values()) == pytest.approx(1)
        mixture([(weight, mean) for mean, weight in laws.items()], variance, curve)


def distances(training, removed):
    """The distances that the bound starts from, by the probability that records are drawn more
    often."""
    tiny = li.Run(
        n=training.n,
        steps=1,
        step_size=1e-9,
        noise=QUIET,
        start=li.GaussianStart(1.0),
        loss=training.loss,
    )
    return {
        curve.failure: curve.curve.mu
        for curve in forgotten_curve(training, (Continued(tiny, removed),)).curves
    }


@pytest.mark.parametrize("batching", [li.Poisson(1 / 3), li.FixedSize(2)])
def test_draws_that_are_not_rare_enough_count_in_full(batching):
    """Records are drawn at every step with a probability far above what is given up: they are as
    far as can be."""
    eta, steps = 0.5, 4
    run = li.Run(n=N, steps=steps, step_size=eta, noise=QUIET, batching=batching, loss=LOSS)
    farthest = sum(2 * eta * PULL / 2 * (1 - eta * RIDGE) ** k for k in range(steps))
    assert all(found >= farthest for found in distances(run, 2).values())


@pytest.mark.parametrize("batching", [li.Poisson(0.02), li.FixedSize(20)])
def test_distances_over_draws_by_simulation(batching):
    """Twenty of a thousand records: none of 20,000 trainings lies beyond, and the bound is far
    below the worst case."""
    n, steps, eta, removed, rng = 1000, 150, 0.5, 20, np.random.default_rng(11)
    run = li.Run(n=n, steps=steps, step_size=eta, noise=QUIET, batching=batching, loss=LOSS)
    shape = (20_000, steps)
    drawn = (
        rng.binomial(removed, 0.02, shape)
        if type(batching) is li.Poisson
        else rng.hypergeometric(removed, n - removed, 20, shape)
    )
    apart = drawn @ (eta * PULL / 20 * (1 - eta * RIDGE) ** np.arange(steps - 1, -1, -1.0))
    found = distances(run, removed)
    worst = removed * PULL / 20 / RIDGE
    assert apart.max() < found[1e-7] <= found[1e-9] <= found[1e-12] < 0.5 * worst


def _chance(batching, count):
    if type(batching) is li.Poisson:
        return math.comb(2, count) * batching.rate**count * (1 - batching.rate) ** (2 - count)
    return (
        math.comb(2, count) * math.comb(N - 2, batching.size - count) / math.comb(N, batching.size)
    )


def claimed(training, removed):
    """The distance that the bound starts from: nearly all of it is left after one tiny step."""
    tiny = li.Run(
        n=training.n,
        steps=1,
        step_size=1e-9,
        noise=QUIET,
        start=li.GaussianStart(1.0),
        loss=training.loss,
    )
    return forgotten_curve(training, (Continued(tiny, removed),)).mu


@pytest.mark.parametrize("batching", [li.FullBatch(), li.Cyclic(8), li.Cyclic(7)])
def test_distances_by_brute_force(batching):
    """Logistic regression on random and on hostile records, with and without some of them, in plain
    NumPy."""
    rng, n, steps, eta = np.random.default_rng(5), 40, 60, 1.5
    loss, nearest = li.Logistic(row_norm=1.0, ridge=0.05, intercept=0.0), 0.0
    run = li.Run(n=n, steps=steps, step_size=eta, noise=QUIET, batching=batching, loss=loss)
    for trial in range(20):
        x, y = rng.normal(size=(n, 3)), rng.integers(0, 2, n)
        removed = rng.choice(n, int(rng.integers(1, 6)), replace=False)
        if trial % 2:  # all pull one way
            x[removed], y[removed] = [0.0, 0.0, 1.0], 1
        x /= np.linalg.norm(x, axis=1, keepdims=True)
        bound, theta = claimed(run, len(removed)), np.zeros((2, 3))
        for k in range(steps):
            first = k % run.blocks * int(run.divisor)
            batch = np.arange(first, min(n, first + int(run.divisor)))
            for world in range(2):
                kept = np.setdiff1d(batch, removed) if world else batch
                residual = 1 / (1 + np.exp(-x[kept] @ theta[world])) - y[kept]
                theta[world] -= eta * (x[kept].T @ residual / run.divisor + 0.05 * theta[world])
        apart = np.linalg.norm(theta[0] - theta[1])
        assert apart <= bound
        nearest = max(nearest, float(apart / bound))
    assert nearest > 1 / 6, "hostile records come near"


def test_minimisers_by_brute_force():
    from scipy.optimize import minimize

    rng, n = np.random.default_rng(6), 30
    loss = li.Logistic(row_norm=1.0, ridge=0.3, intercept=0.0)
    exactly = RidgeMinimiser(n=n, loss=loss, residual=1e-9)
    for _ in range(10):
        x, y, count = rng.normal(size=(n, 2)), rng.integers(0, 2, n), int(rng.integers(1, 5))
        x[:count], y[:count] = [0.0, 1.0], 1
        x /= np.linalg.norm(x, axis=1, keepdims=True)

        def objective(theta, first, x=x, y=y):
            score = x[first:] @ theta
            gradient = x[first:].T @ (1 / (1 + np.exp(-score)) - y[first:]) / n + 0.3 * theta
            return (
                np.logaddexp(0, score) - y[first:] * score
            ).sum() / n + 0.15 * theta @ theta, gradient

        one, two = (
            minimize(objective, np.zeros(2), (first,), jac=True, options={"gtol": 1e-9}).x
            for first in (0, count)
        )
        apart, bound = np.linalg.norm(one - two), claimed(exactly, count)
        assert bound / 4 <= apart <= bound


def test_a_bounded_domain_starts_anew():
    """Hundreds of removed records move a training by no more than the diameter of its domain."""
    ball = li.domains.Ball(1.0)
    run = li.Run(
        n=400, steps=50, step_size=0.5, noise=QUIET, domain=ball, loss=replace(LOSS, ridge=0.0)
    )
    after = replace(run, steps=1, start=li.GaussianStart(2.0))
    assert forgotten_curve(run, (Continued(after, 300),)).mu == pytest.approx(2 / 2.0, rel=1e-6)
    elsewhere = replace(after, domain=li.domains.Ball(2.0))
    assert forgotten_curve(run, (Continued(elsewhere, 300),)).mu > 5


def test_noise_of_the_training_helps_and_never_hurts():
    rng = np.random.default_rng(7)
    noisy = described(rng, 20, li.Cyclic(2), noisy=1)
    after = described(rng, 6, li.FullBatch(), start=0.3)
    one, two = (
        forgotten_curve(run, (Continued(after, 1),)).mu
        for run in (noisy, replace(noisy, noise=QUIET))
    )
    assert one < two
    silent = replace(after, noise=li.GradientNoise((0.0,) * 6))
    longer = replace(
        after, steps=12, step_size=tuple(after.step_sizes) * 2, noise=li.GradientNoise((0.0,) * 12)
    )
    noisier = replace(longer, noise=li.GradientNoise((*(0.0,) * 6, *(0.3,) * 6)))
    before, same, less = (
        forgotten_curve(noisy, (Continued(run, 1),)).mu for run in (silent, longer, noisier)
    )
    assert before == pytest.approx(same, rel=1e-9), (
        "steps without noise change what was hidden into what is hidden"
    )
    assert less < before


def test_what_is_skipped_of_a_long_training_is_bounded(monkeypatch):
    from lastiterate.analysis import restarted_sampling

    rng = np.random.default_rng(8)
    run = replace(described(rng, 40, li.Cyclic(2), noisy=0), step_size=0.3, noise=QUIET)
    after = described(rng, 3, li.FullBatch(), start=0.3)
    whole = forgotten_curve(run, (Continued(after, 2),)).mu
    monkeypatch.setattr(restarted_sampling, "LONGEST", 9)
    assert whole <= forgotten_curve(run, (Continued(after, 2),)).mu <= 2 * whole


def test_curve_of_a_preparation_is_composed():
    part = li.PrivateMean(noise_multiplier=20.0, row_norm=1.0)
    run = li.Run(n=N, steps=8, step_size=0.5, noise=QUIET, loss=LOSS, preprocessing=(part,))
    after = li.Run(n=N, steps=3, step_size=0.5, noise=QUIET, start=li.GaussianStart(1.0), loss=LOSS)
    (found,), (plain,) = (
        Unlearning(one, (Continued(after, 2),)).curves
        for one in (run, replace(run, preprocessing=()))
    )
    assert found.mu == pytest.approx(math.hypot(plain.mu, 2 * PULL / 20), rel=1e-6)


REFUSED = {
    "momentum": dict(optimizer=li.HeavyBall(0.9)),
    "all iterates": dict(release="all"),
    "a network": dict(loss=li.KnownConstants(), clip=1.0),
    "calibration": None,
}


@pytest.mark.parametrize("why", REFUSED)
def test_what_is_not_known_to_forget_is_refused(why):
    run = li.Run(n=N, steps=8, step_size=0.5, noise=li.GradientNoise(1.0), loss=LOSS)
    after = replace(run, steps=2)
    if REFUSED[why] is None:
        loss = li.Logistic(ridge=0.1)
        run = replace(run, loss=loss, probability_calibration=li.Calibration(noise_multiplier=50.0))
        after = replace(run, probability_calibration=None)
    else:
        run = replace(run, **REFUSED[why])
    with pytest.raises(li.NotCertified, match="nothing says that this training forgets"):
        Unlearning(run, (Continued(after, 1),))


def test_description_and_certificate_survive_json():
    rng = np.random.default_rng(9)
    exactly = RidgeMinimiser(n=N, loss=LOSS, residual=1e-3)
    for training in (exactly, described(rng, 4, li.Permuted(2))):
        subject = Unlearning(
            training,
            (
                Continued(described(rng, 3, li.Cyclic(2)), 1),
                Continued(described(rng, 2, li.FullBatch()), 2),
            ),
        )
        assert Unlearning.from_dict(subject.description()) == subject and subject.removed == 3
        stored = Certificate(subject).to_dict(1e-5)
        assert Certificate.check(stored).holds and stored["adjacency"] == "forgotten"
        jsonschema.validate(stored, SCHEMA)
        assert stored["stated"]["unit"]["rows"] == 3 and stored["epsilon_replace_one"] is None
        fewer = subject.description()
        fewer["requests"][0]["removed"] = 0
        with pytest.raises(li.InputError, match="removed"):
            Unlearning.from_dict(fewer)
        changed = stored | {"epsilon": stored["epsilon"] * 0.99}
        assert not Certificate.check(changed).holds

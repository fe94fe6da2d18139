"""One training run: right trainers stand, broken ones are refuted, and the numbers are those of the
guesses."""

import json
from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import linprog
from scipy.special import ndtr, ndtri
from scipy.stats import binom
from typer.testing import CliRunner

import lastiterate as li
from benchmarks.audit.bugs import noise
from lastiterate.audit import audit_one_run, one_run_epsilon
from lastiterate.audit.one_run import GAUSSIAN, _guesses, gaussian_mu, shares_of_move, trainer
from lastiterate.audit.report import BUG, CEILING, NO_CONTRADICTION, OTHER
from lastiterate.audit.statistics import EPSILONS, impossible, of_deltas
from lastiterate.cli import app
from lastiterate.curves.gaussian import Gdp
from lastiterate.engine import Trainer
from lastiterate.errors import InputError

LOSS = li.HuberRidge(row_norm=1.0, residual_clip=1.0, ridge=0.2, intercept=0.5)
BASE = li.Run(n=400, steps=12, step_size=li.Constant(0.5), noise=li.GradientNoise(0.5), loss=LOSS)
BALL = li.domains.Ball(100.0)
SMALL = 1e-10  # the test's delta term, about n delta, must lie below the failure probability


def calibrated(epsilon, delta=1e-5, **changes):
    return li.calibrate(replace(BASE, **changes), epsilon=epsilon, delta=delta).run


RIGHT = {
    "full batch": {},
    "cyclic": {"batching": li.Cyclic(80)},
    "permuted": {"batching": li.Permuted(80)},
    "poisson": {"batching": li.Poisson(0.2), "adjacency": "add-remove", "clip": 1.0},
    "momentum, in a ball": {"optimizer": li.Nesterov(), "domain": BALL},
    "logistic": {"loss": li.Logistic(row_norm=1.0, ridge=0.1)},
    "softmax": {"loss": li.Softmax(classes=3, row_norm=1.0, ridge=0.1, intercept=0.0)},
    "all iterates": {"release": "all"},
}


@pytest.mark.parametrize("name", RIGHT)
def test_right_trainers_stand_and_leak_what_they_may(name):
    report = audit_one_run(calibrated(6.0, SMALL, **RIGHT[name]), failure=1e-6, delta=SMALL, seed=3)
    assert report.lower <= report.upper == pytest.approx(6.0, rel=1e-3)
    assert report.verdict in (NO_CONTRADICTION, CEILING)
    assert report.correct > 0.55 * report.guesses, "at epsilon 6 most inclusions can be guessed"


def test_the_bound_is_that_of_the_right_guesses():
    report = audit_one_run(
        calibrated(3.0), canaries=300, guesses=60, failure=0.1, delta=1e-4, seed=5
    )
    left = (1 - GAUSSIAN) * 0.1  # what the Gaussian bound leaves of the failure probability
    assert report.lower == one_run_epsilon(report.correct, 60, 300, 1e-4, left)
    assert report.ceiling == one_run_epsilon(60, 60, 300, 1e-4, left) > report.lower
    assert report == audit_one_run(
        calibrated(3.0), canaries=300, guesses=60, failure=0.1, delta=1e-4, seed=5
    )
    assert report != audit_one_run(
        calibrated(3.0), canaries=300, guesses=60, failure=0.1, delta=1e-4, seed=6
    )


def test_without_noise_every_canary_is_guessed_and_nothing_is_certified():
    report = audit_one_run(replace(BASE, noise=li.GradientNoise(0.0)), guesses=400, seed=1)
    assert report.correct == report.guesses == 400 and report.lower == report.ceiling
    assert json.loads(report.to_json())["upper"] is None


def test_a_trainer_that_ignores_the_data_is_guessed_by_chance():
    run = calibrated(3.0, n=2000)

    def blind(features, target, keys, absent):
        return Trainer(run).fit_many(np.zeros_like(features), target, keys, absent=range(run.n))

    report = audit_one_run(run, guesses=2000, seed=3, train=blind)
    assert abs(report.correct - 1000) < 5 * np.sqrt(500) and report.lower == 0


@pytest.mark.parametrize(
    "patch", [noise.NOISE_ONCE, noise.DIVIDED_TWICE], ids=["noise once", "divided twice"]
)
def test_broken_trainers_are_refuted_by_one_run(patched, patch):
    run = calibrated(1.0, SMALL, loss=replace(LOSS, intercept=0.0), n=1000)
    patched(*patch)
    report = audit_one_run(run, failure=1e-6, delta=SMALL, seed=6)
    assert report.refuted and report.verdict == BUG and report.lower > report.upper


def test_the_number_of_guesses_is_the_best_of_those_considered():
    few, many = _guesses(1000, 8.0, 1e-5, 0.05), _guesses(1000, 1.0, 1e-5, 0.05)
    assert few < many, "a private run is guessed by many weak guesses, a leaky one by few sure ones"


@pytest.mark.parametrize(
    "changes",
    [{}, {"loss": li.KnownConstants(li.LossFacts()), "clip": 1.0}],
    ids=["rows", "network"],
)
def test_half_the_noise_is_refuted_by_one_run(changes):
    run = calibrated(1.0, n=1000, **changes)
    weak = replace(run, noise=li.GradientNoise(run.first_noise / 2))
    for described, refuted in ((run, False), (weak, True)):

        def train(features, target, keys, absent, described=described):
            return trainer(described, features.shape[1])(features, target, keys, absent=absent)

        report = audit_one_run(run, seed=3, train=train)
        assert report.refuted == refuted and report.lower < report.upper, (
            "only the Gaussian bound shows it"
        )
        assert (report.lower_gaussian > report.upper) == refuted
        assert report.verdict == (OTHER if refuted else NO_CONTRADICTION), (
            "other laws may seem larger"
        )


def test_the_gaussian_bound_holds_as_often_as_it_says_and_shows_half_of_epsilon_1():
    rng, mu, repetitions = np.random.default_rng(0), 0.26805, 400  # epsilon 1 at delta 1e-5
    for shares in (np.ones(1000), np.repeat([1.0, -0.9, 0.5, 0.0], 250)):
        found = []
        for _ in range(repetitions):
            present = rng.random(1000) < 0.5
            found.append(
                gaussian_mu(
                    3.0 + 2 * (mu * shares * present + rng.normal(size=1000)), present, shares, 0.04
                )
            )
        assert (np.array(found) > mu).sum() <= 0.04 * repetitions + 4 * np.sqrt(
            0.04 * 0.96 * repetitions
        )
        assert Gdp(float(np.median(found))).epsilon(1e-5) > (
            0.5 if shares.all() and shares.min() > 0 else 0.3
        )


def test_scores_of_another_law_have_no_gaussian_bound():
    rng = np.random.default_rng(1)
    present = rng.random(1000) < 0.5
    noise = rng.normal(size=1000)
    for scores in (present + rng.standard_cauchy(1000), (1 + present) * noise, 1.0 * present):
        assert gaussian_mu(scores, present, np.ones(1000), 0.05) is None
    assert gaussian_mu(present + noise, present, np.ones(1000), 0.05) > 0.7


def test_shares_are_those_of_the_blocks():
    run = calibrated(1.0, n=400, batching=li.Cyclic(100), steps=6, loss=replace(LOSS, ridge=0.0))
    assert shares_of_move(run).reshape(4, 100).T.tolist() == [[1.0, 1.0, 0.5, 0.5]] * 100


@pytest.mark.parametrize(("epsilon", "delta"), [(0.5, 0.0), (1.0, 0.05)])
def test_right_guesses_are_as_likely_as_the_curve_allows(epsilon, delta):
    """The largest probability of so many right guesses is that of a linear program over all their
    distributions."""
    records, guesses = 7, 5

    def allowed(y):
        return max(0.0, (y - delta) * np.exp(-epsilon), 1 - delta - np.exp(epsilon) * (1 - y))

    for correct in range(3, guesses + 1):
        j = np.arange(guesses + 1)
        rows, bounds = [], []
        for i in range(1, guesses + 1):
            right, wrong = (
                np.where(j >= i, j, 0) / records,
                np.where(j >= i - 1, guesses - j, 0) / records,
            )
            rows += [right * np.exp(-epsilon) - wrong, right * np.exp(epsilon) - wrong]
            bounds += [delta * np.exp(-epsilon), np.exp(epsilon) + delta - 1]
        found = linprog(-1.0 * (j >= correct), rows, bounds, [np.ones(guesses + 1)], [1.0])
        assert not impossible(allowed, correct, guesses, records, -found.fun - 1e-6)
        assert impossible(allowed, correct, guesses, records, -found.fun + 1e-6)


def test_a_whole_curve_is_contradicted_no_earlier_than_its_own_guesses_allow():
    deltas = np.array([Gdp(0.5).delta(float(epsilon)) for epsilon in EPSILONS])
    for correct in (560, 600, 620, 640):
        chance = float(binom.sf(correct - 1, 1000, ndtr(0.25)))  # every record on its own
        assert not impossible(of_deltas(deltas), correct, 1000, 1000, chance)
    one = float(ndtr(0.25))
    assert not impossible(lambda y: ndtr(ndtri(y) - 0.5), 1, 1, 1, one - 1e-6)
    assert impossible(lambda y: ndtr(ndtri(y) - 0.5), 1, 1, 1, one + 1e-6)
    assert impossible(of_deltas(deltas), 900, 1000, 1000, 0.01)
    assert not impossible(of_deltas(deltas), 650, 1000, 1000, 0.01)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (
            lambda: audit_one_run(replace(BASE, adjacency="replace-one")),
            "adjacency must be zero-out or add-remove",
        ),
        (lambda: audit_one_run(BASE, canaries=401), "canaries must lie within 1 .. 400, got 401"),
        (lambda: audit_one_run(BASE, canaries=3), "canaries are too few for any statement"),
        (lambda: audit_one_run(BASE, guesses=500), "guesses must satisfy"),
        (lambda: audit_one_run(BASE, failure=1.0), "failure must lie strictly between 0 and 1"),
        (lambda: audit_one_run(BASE, train=lambda x, y, keys: x), "train takes no absent="),
    ],
)
def test_bad_input(call, sentence):
    with pytest.raises(InputError, match=sentence):
        call()


def test_the_command(tmp_path):
    file = tmp_path / "run.json"
    file.write_text(json.dumps(calibrated(6.0).to_dict()))
    runner = CliRunner()
    told = runner.invoke(app, ["audit", str(file), "--attack", "one-run", "--seed", "2"])
    assert (
        told.exit_code == 0
        and "in or out with probability 1/2" in told.output
        and CEILING in told.output
    )
    body = json.loads(
        runner.invoke(
            app, ["audit", str(file), "--attack", "one-run", "--seed", "2", "--json"]
        ).stdout
    )
    assert body["attack"] == "one-run" and body["upper"] == pytest.approx(6.0, rel=1e-3)
    refused = runner.invoke(
        app, ["audit", str(file), "--attack", "one-run", "--plot", str(tmp_path / "roc.svg")]
    )
    assert refused.exit_code == 2 and "has no meaning for the attack 'one-run'" in " ".join(
        refused.output.split()
    )

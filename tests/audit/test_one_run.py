"""One training run: right trainers stand, broken ones are refuted, and the numbers are those of the guesses."""

import json
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

import lastiterate as li
from benchmarks.audit.bugs import noise
from lastiterate.audit import audit_one_run, one_run_epsilon
from lastiterate.audit.one_run import _guesses
from lastiterate.audit.outcome import BUG, CEILING, NO_CONTRADICTION
from lastiterate.cli import app
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
    "momentum, in a ball": {"update": li.Nesterov(), "domain": BALL},
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
    report = audit_one_run(calibrated(3.0), canaries=300, guesses=60, failure=0.1, delta=1e-4, seed=5)
    assert report.lower == one_run_epsilon(report.correct, 60, 300, 1e-4, 0.1)
    assert report.ceiling == one_run_epsilon(60, 60, 300, 1e-4, 0.1) > report.lower
    assert report == audit_one_run(calibrated(3.0), canaries=300, guesses=60, failure=0.1, delta=1e-4, seed=5)
    assert report != audit_one_run(calibrated(3.0), canaries=300, guesses=60, failure=0.1, delta=1e-4, seed=6)


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


@pytest.mark.parametrize("patch", [noise.NOISE_ONCE, noise.DIVIDED_TWICE], ids=["noise once", "divided twice"])
def test_broken_trainers_are_refuted_by_one_run(patched, patch):
    run = calibrated(1.0, SMALL, loss=replace(LOSS, intercept=0.0), n=1000)
    patched(*patch)
    report = audit_one_run(run, failure=1e-6, delta=SMALL, seed=6)
    assert report.refuted and report.verdict == BUG and report.lower > report.upper


def test_the_number_of_guesses_is_the_best_of_those_considered():
    few, many = _guesses(1000, 8.0, 1e-5, 0.05), _guesses(1000, 1.0, 1e-5, 0.05)
    assert few < many, "a private run is guessed by many weak guesses, a leaky one by few sure ones"


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: audit_one_run(replace(BASE, adjacency="replace-one")), "adjacency must be zero-out or add-remove"),
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
    assert told.exit_code == 0 and "in or out with probability 1/2" in told.output and CEILING in told.output
    body = json.loads(runner.invoke(app, ["audit", str(file), "--attack", "one-run", "--seed", "2", "--json"]).stdout)
    assert body["attack"] == "one-run" and body["upper"] == pytest.approx(6.0, rel=1e-3)
    refused = runner.invoke(app, ["audit", str(file), "--attack", "one-run", "--plot", str(tmp_path / "roc.svg")])
    assert refused.exit_code == 2 and "has no meaning for the attack 'one-run'" in " ".join(refused.output.split())

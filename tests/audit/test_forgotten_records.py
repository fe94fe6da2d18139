"""Forgotten against never seen: honest models pass, and bugs of the removal are refuted."""

from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

import lastiterate as li
from lastiterate.accounting.certificate import Certificate
from lastiterate.accounting.unlearning import Unlearning
from lastiterate.analysis.unlearning import Continued
from lastiterate.audit import unlearning_attack
from lastiterate.audit.unlearning_attack import audit_forgetting, records
from lastiterate.cli import app
from lastiterate.planning.unlearning_plans import least_noise
from lastiterate.release import unlearning
from lastiterate.run.methods import RidgeMinimiser

LOGISTIC = li.Logistic(row_norm=1.0, ridge=0.05, intercept=0.0)
HUBER = li.HuberRidge(row_norm=1.0, residual_clip=1.0, ridge=0.05, intercept=0.0)
QUIET = li.Run(
    n=200,
    steps=60,
    step_size=1.0,
    noise=li.GradientNoise(0.0),
    batching=li.Permuted(20),
    loss=LOGISTIC,
)
NOISY = li.Run(
    n=200, steps=30, step_size=0.5, noise=li.GradientNoise(0.02), batching=li.Cyclic(50), loss=HUBER
)
HONEST = unlearning.zero_removed
TRAININGS = {
    "minimiser": RidgeMinimiser(n=200, loss=LOGISTIC, residual=1e-6),
    "permuted": QUIET,
    "noisy": NOISY,
}


def certificate(training, epsilon=1.0):
    """Two requests, whose steps are many, so that a record that is still there shows."""
    steps = li.Run(
        n=200,
        steps=120,
        step_size=0.5,
        noise=li.GradientNoise(0.0),
        batching=li.Cyclic(50),
        loss=training.loss,
    )
    done = ()
    for removed in (6, 4):
        std = least_noise(training, done, removed, steps, epsilon, 1e-5)
        done = (*done, Continued(replace(steps, start=li.GaussianStart(std)), removed))
    return Certificate(Unlearning(training, done))


def attacked(found, trials=400):
    return audit_forgetting(found, trials=trials, pilot=150, seed=3)


@pytest.mark.parametrize("what", TRAININGS)
def test_honest_models_are_not_refuted(what):
    report = attacked(certificate(TRAININGS[what]))
    assert (
        not report.refuted
        and report.lower <= report.upper <= 1.0
        and report.adjacency == "forgotten"
    )
    assert "forgetting" in dict(report.rows())["at most, certified"]


def test_on_clamped_residuals_the_attack_is_sharp():
    """The exact law attains the bound there, so that a large epsilon is seen."""
    after = li.Run(
        n=200,
        steps=4,
        step_size=0.5,
        noise=li.GradientNoise(0.0),
        start=li.GaussianStart(0.1),
        loss=HUBER,
    )
    training = li.Run(n=200, steps=40, step_size=0.5, noise=li.GradientNoise(0.0), loss=HUBER)
    found = Certificate(Unlearning(training, (Continued(after, 10),)))
    report = attacked(found, trials=1000)
    assert not report.refuted and report.lower > 0.5 * min(report.upper, report.ceiling)


def skipped(rows, target, removed, n):
    """The removal is left out."""
    return rows, target, []


def half(rows, target, removed, n):
    """Only the first half of the list is read."""
    return HONEST(rows, target, removed[: len(removed) // 2], n)


@pytest.mark.parametrize("bug", [skipped, half])
@pytest.mark.parametrize("what", TRAININGS)
def test_a_bug_that_skips_the_removal_is_refuted(what, bug, monkeypatch):
    monkeypatch.setattr(unlearning, "zero_removed", bug)
    report = attacked(certificate(TRAININGS[what]))
    assert report.refuted and report.verdict.startswith("BUG")


def test_noise_that_is_left_out_is_refuted(monkeypatch):
    honest = unlearning_attack.Trainer
    monkeypatch.setattr(
        unlearning_attack, "Trainer", lambda run: honest(replace(run, start=li.FixedStart()))
    )
    assert attacked(certificate(TRAININGS["permuted"])).refuted


def test_made_up_records_pull_with_their_largest_gradient():
    found = certificate(QUIET).subject
    rows, target = records(found)
    assert (np.linalg.norm(rows, axis=1) == 1.0).all() and target.sum() == found.removed == 10


def test_the_command_attacks_a_folder(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 2))
    run = li.Run(n=200, steps=20, step_size=1.0, noise=li.GradientNoise(0.0), loss=LOGISTIC)
    model = li.forget(
        (run, np.zeros((1, 3))),
        x,
        (x[:, 0] > 0).astype(int),
        remove=[1, 2],
        epsilon=1.0,
        delta=1e-5,
        seed=0,
    )
    model.save(tmp_path / "m")
    found = CliRunner().invoke(
        app, ["audit", str(tmp_path / "m"), "--trials", "300", "--seed", "1"]
    )
    assert found.exit_code == 0 and "never saw them" in " ".join(found.output.split()), found.output
    refused = CliRunner().invoke(app, ["audit", str(tmp_path / "m"), "--attack", "replay"])
    assert refused.exit_code == 2 and "--attack has no meaning" in refused.output

"""The solver of perturbed objectives: as near to the minimiser as its bound says, and exactly the
noise described."""

import math
from dataclasses import replace

import jax
import numpy as np
import pytest

import lastiterate as li
from lastiterate.analysis import perturbed_objective
from lastiterate.engine import Trainer, key_from_seed, keys_from_seed
from lastiterate.engine.linear_gradients import AT_ONCE
from lastiterate.engine.random import NOISE, gaussian, stream
from lastiterate.run.methods import KEPT, contraction, last_noise, linear_term, look_ahead

N = 60
RNG = np.random.default_rng(3)
X, Y = RNG.normal(size=(N, 3)), RNG.integers(0, 3, N)
X[0] *= 1e6  # rows are clipped


def run_of(classes, steps, **more):
    loss = (
        li.Logistic(ridge=0.02, intercept=0.5)
        if classes == 2
        else li.Softmax(classes=classes, ridge=0.02, cap=0.3)
    )
    method = li.ObjectivePerturbation(4 * loss.outputs, 1e-9)
    return li.Run(
        n=N,
        steps=steps,
        step_size=0.9 / loss.facts().smooth.value,
        loss=loss,
        method=method,
        noise=li.NoiseMultiplier(0.8),
        **more,
    )


def drawn(run, key, shape):
    with jax.enable_x64(True):
        noise = stream(key, NOISE)
        return linear_term(run) * np.asarray(gaussian(noise, 0, shape)), np.asarray(
            gaussian(noise, 1, shape)
        )


def gradient(run, theta, rows, target, term):
    """Of the mean objective, written down independently."""
    found = run.loss.ridge * theta + term / N
    for row, label in zip(rows, target, strict=True):
        scores = theta @ row
        if isinstance(run.loss, li.Logistic):
            residual = 1 / (1 + np.exp(-scores)) - label
        else:
            p = np.exp(scores - scores.max())
            p /= p.sum()
            residual = (p - np.eye(len(p))[label]) * min(
                1.0, run.loss.cap / max(1 - p[label], 1e-300)
            )
        found = found + np.outer(residual, row) / N
    return found


def prepared(run):
    rows = (
        X.astype(np.float64) * np.minimum(1, run.loss.row_norm / np.linalg.norm(X, axis=1))[:, None]
    )
    return np.column_stack((rows, np.full(N, run.loss.intercept)))


@pytest.mark.parametrize("classes", [2, 3])
def test_the_solver_ends_within_its_bound(classes):
    key, target = key_from_seed(5), np.minimum(Y, classes - 1)
    long = run_of(classes, 3000)
    shape = (long.loss.outputs, 4)
    term, _ = drawn(long, key, shape)
    best = Trainer(long).fit(X, target, key)
    assert (
        np.abs(gradient(long, best, prepared(long), target, term)).max() < 3e-7
    )  # rows are clipped in float32
    assert np.linalg.norm(best) <= perturbed_objective.radius(long)
    errors = []
    for steps in (5, 20, 60, 150, 300):
        run = run_of(classes, steps)
        found = Trainer(run).fit(X, target, key)
        errors.append(np.linalg.norm(found - best))
        assert errors[-1] <= perturbed_objective.distance(run)
    assert errors[-1] < 1e-2 * errors[0] and perturbed_objective.distance(long) < 1e-6
    assert 0 < perturbed_objective.floor(long) < perturbed_objective.first_gap(long)


def test_noise_on_the_minimiser_is_added_as_described():
    quiet = run_of(2, 400)
    loud = replace(quiet, method=replace(quiet.method, last=0.7))
    key, target = key_from_seed(1), np.minimum(Y, 1)
    _, last = drawn(loud, key, (1, 4))
    moved = Trainer(loud).fit(X, target, key) - Trainer(quiet).fit(X, target, key)
    assert moved == pytest.approx(last_noise(loud.method, loud) * last, rel=1e-6)
    smooth = loud.loss.facts().fact("smooth")
    assert last_noise(loud.method, loud) == pytest.approx(
        0.7 * 0.8 * math.hypot(1, 0.5) / (N * smooth)
    )


def test_many_models_and_an_absent_record():
    run, target = run_of(2, 200), np.minimum(Y, 1)
    keys = keys_from_seed(7, 8)
    rows = X.astype(np.float32)
    many = Trainer(run).fit_many(rows, target, keys, absent=(4,))
    assert (many.reshape(8, -1).std(axis=0) > 0.02).all(), "every model has a term of its own"
    for key, one in zip(keys[:2], many, strict=False):
        assert Trainer(run).fit(rows, target, key, absent=(4,)) == pytest.approx(
            one, rel=1e-9, abs=1e-12
        )
        term, _ = drawn(run, key, (1, 4))
        missing = prepared(run)
        missing[4] = 0.0
        assert np.abs(gradient(run, one, missing, target, term)).max() < 1e-5


def test_the_width_must_be_the_described_one():
    with pytest.raises(li.InputError, match="parameters must be the model's 4, got 5"):
        Trainer(replace(run_of(2, 10), method=li.ObjectivePerturbation(5))).fit(X, np.minimum(Y, 1))


def test_accelerated_steps_contract_whatever_the_errors_are():
    """The inequality that the bound rests on, on quadratics whose gradients are off by a vector of
    length e."""
    rng = np.random.default_rng(8)
    run = run_of(2, 1)
    smooth, strong, step = run.loss.facts().fact("smooth"), run.loss.ridge, run.first_step
    a, ahead, worst = contraction(run), look_ahead(run), 0.0
    for error in (0.0, 1e-6, 1e-2):
        curvature = np.exp(rng.uniform(math.log(strong), math.log(smooth), 6))
        curvature[[0, -1]] = strong, smooth
        best = rng.normal(size=6)
        here = before = np.zeros(6)
        gap = (curvature * best**2).sum() / 2 + KEPT * strong / 2 * (best**2).sum()
        each = error**2 / (2 * (1 / step - smooth)) + error**2 / (2 * (1 - KEPT) * strong)
        for _ in range(300):
            point = here + ahead * (here - before)
            off = here - best
            off = error * off / max(np.linalg.norm(off), 1e-300)
            here, before = point - step * (curvature * (point - best) - off), here
            forward = before + (here - before) / a
            now = (curvature * (here - best) ** 2).sum() / 2 + KEPT * strong / 2 * (
                (forward - best) ** 2
            ).sum()
            assert now <= (1 - a) * gap + each + 1e-15
            worst, gap = max(worst, now / ((1 - a) * gap + each)), now
    assert worst > 0.5


def test_sums_are_no_longer_than_the_bound_counts():
    assert AT_ONCE <= perturbed_objective.SUMMED

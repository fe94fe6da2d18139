"""Weighted contributions: as long as the bounds say, in the ratios that were asked for, whatever the parameters."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lastiterate as li
from lastiterate.engine import execute, seeded_key
from lastiterate.engine.calibration_queries import Queries
from lastiterate.engine.exact_sums import ExactLinear, grid_of, on_grid
from lastiterate.engine.gradients import Linear

WEIGHTS = {2: (0.2, 1.0), 3: (1.0, 0.05, 0.4)}
LOSSES = [li.Logistic(class_weights=WEIGHTS[2]), li.Logistic(cap=0.2, class_weights=WEIGHTS[2]),
          li.Softmax(classes=3, class_weights=WEIGHTS[3]), li.Softmax(classes=3, cap=0.3, class_weights=WEIGHTS[3])]
SUMS = ("plain", "exact", "moved")


def contributions(run: li.Run, sums: str, target: np.ndarray) -> np.ndarray:
    """Norms of single records' contributions, (k draws of parameters, records)."""
    loss, rng = run.loss, np.random.default_rng(5)
    rows = rng.normal(size=(len(target), 4))
    rows *= loss.row_norm / np.linalg.norm(rows, axis=1, keepdims=True)
    rows = np.column_stack((rows, np.full(len(target), loss.intercept)))
    found = []
    with jax.enable_x64(True):
        for scale in (0.0, 1.0, 30.0):
            theta = jnp.asarray(rng.normal(size=(loss.outputs, 5)) * scale)
            labels = jnp.asarray(target.astype(np.int32))
            if sums == "exact":
                model = ExactLinear.of(run, grid := grid_of(run))
                given = on_grid(rows.astype(np.float32), loss, grid)
            else:
                model, given = Linear(loss, run.clip, exact=True), rows
            longest = jnp.asarray(run.facts().fact("sensitivity"))
            chunks = [(jnp.asarray(given[i:i + 1]), labels[i:i + 1]) for i in range(len(target))]
            found.append([float(jnp.linalg.norm(
                model.moved_sum(theta, -theta, longest, chunk) if sums == "moved" else model.chunk_sum(theta, chunk)))
                for chunk in chunks])
    return np.array(found)


@pytest.mark.parametrize("clip", [None, 0.3])
@pytest.mark.parametrize("sums", SUMS)
@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: f"{loss.outputs} {loss.cap}")
def test_contributions_are_within_the_sensitivity_and_in_the_ratios(loss: li.Logistic, sums: str, clip: float | None
                                                                    ) -> None:
    run = li.Run(n=60, steps=12, step_size=0.3, noise=li.GradientNoise(0.05), loss=loss, clip=clip)
    classes, target = loss.target_classes, np.arange(30) % loss.target_classes
    found, plain = (contributions(replace(run, loss=replace(loss, class_weights=weights)), sums, target)
                    for weights in (loss.class_weights, None))
    assert (found <= run.facts().fact("sensitivity")).all()
    weights = np.array(WEIGHTS[classes])[target]
    coarse = 0.05 if sums == "exact" else 1e-9
    np.testing.assert_allclose(found, plain * weights, rtol=1e-9, atol=coarse)
    assert (plain[1:, weights < 1] > 1.5 * found[1:, weights < 1]).any()


def test_a_weight_above_one_would_exceed_the_sensitivity() -> None:
    """What the refusal of such weights keeps out: a description that is made around it contributes too much."""
    loss = li.Logistic(class_weights=(1.0, 0.5))
    object.__setattr__(loss, "class_weights", (2.0, 1.0))
    run = li.Run(n=60, steps=12, step_size=0.3, noise=li.GradientNoise(0.05), clip=0.3)
    object.__setattr__(run, "loss", loss)
    assert contributions(run, "plain", np.zeros(30, int)).max() > 1.9 * run.facts().fact("sensitivity")


@pytest.mark.parametrize("classes", [2, 3])
def test_vectors_of_a_calibration_are_weighted_and_within_one(classes: int) -> None:
    loss = li.Logistic(class_weights=WEIGHTS[2]) if classes == 2 else li.Softmax(classes=3, class_weights=WEIGHTS[3])
    rng, outputs = np.random.default_rng(3), loss.outputs
    weights, target = rng.normal(size=(outputs, 5)), np.arange(90) % classes
    scores = rng.normal(size=(90, outputs)) * 4
    both = [Queries(one, weights) for one in (loss, replace(loss, class_weights=None))]
    found, plain = (one.vectors(scores, target, one.start) for one in both)
    assert np.linalg.norm(plain, axis=1).max() <= 1
    np.testing.assert_allclose(found, plain * np.array(WEIGHTS[classes])[target][:, None])


def test_a_small_weight_moves_answers_to_the_other_class() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(4000, 3)).astype(np.float32) / 2
    y = (rng.random(4000) < 1 / (1 + np.exp(-2 * x[:, 0]))).astype(int)
    run = li.Run(n=4000, steps=60, step_size=1.0, noise=li.GradientNoise(1e-4), loss=li.Logistic(row_norm=2.0))
    found = []
    for weights in (None, (0.2, 1.0), (1.0, 0.2)):
        weighted = replace(run, loss=replace(run.loss, class_weights=weights))
        model = execute(weighted, x, y, seeded_key(0))
        score = np.column_stack((x, np.full(4000, run.loss.intercept))) @ model.weights[0]
        found.append((score > 0).mean())
    assert found[2] < 0.2 < found[0] < 0.8 < found[1]

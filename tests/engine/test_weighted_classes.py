"""Weighted contributions: as long as the bounds say, in the ratios that were asked for, whatever
the parameters."""

import copy
import json
import pickle
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lastiterate as li
from lastiterate.engine import execute, key_from_seed
from lastiterate.engine.exact_gradients import ExactRecords, RecordGrid
from lastiterate.engine.exact_linear import ExactLinear, grid_of, round_to_grid
from lastiterate.engine.linear_gradients import Linear
from lastiterate.engine.network import fit_network, prepare_loop
from lastiterate.engine.probability_calibration import Queries

WEIGHTS = {2: (0.2, 1.0), 3: (1.0, 0.05, 0.4)}
LOSSES = [
    li.Logistic(class_weights=WEIGHTS[2]),
    li.Logistic(cap=0.2, class_weights=WEIGHTS[2]),
    li.Softmax(classes=3, class_weights=WEIGHTS[3]),
    li.Softmax(classes=3, cap=0.3, class_weights=WEIGHTS[3]),
]
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
                given = round_to_grid(rows.astype(np.float32), loss, grid)
            else:
                model, given = Linear(loss, run.clip, exact=True), rows
            longest = jnp.asarray(run.facts().fact("sensitivity"))
            chunks = [
                (jnp.asarray(given[i : i + 1]), labels[i : i + 1]) for i in range(len(target))
            ]
            found.append(
                [
                    float(
                        jnp.linalg.norm(
                            model.sum_differences(theta, -theta, longest, chunk)
                            if sums == "moved"
                            else model.chunk_sum(theta, chunk)
                        )
                    )
                    for chunk in chunks
                ]
            )
    return np.array(found)


@pytest.mark.parametrize("clip", [None, 0.3])
@pytest.mark.parametrize("sums", SUMS)
@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: f"{loss.outputs} {loss.cap}")
def test_contributions_are_within_the_sensitivity_and_in_the_ratios(
    loss: li.Logistic, sums: str, clip: float | None
) -> None:
    run = li.Run(n=60, steps=12, step_size=0.3, noise=li.GradientNoise(0.05), loss=loss, clip=clip)
    classes, target = loss.target_classes, np.arange(12) % loss.target_classes
    found, plain = (
        contributions(replace(run, loss=replace(loss, class_weights=weights)), sums, target)
        for weights in (loss.class_weights, None)
    )
    assert (found <= run.facts().fact("sensitivity")).all()
    weights = np.array(WEIGHTS[classes])[target]
    coarse = 0.05 if sums == "exact" else 1e-9
    np.testing.assert_allclose(found, plain * weights, rtol=1e-9, atol=coarse)
    assert (plain[1:, weights < 1] > 1.5 * found[1:, weights < 1]).any()


def test_a_weight_above_one_would_exceed_the_sensitivity() -> None:
    """What the refusal of such weights keeps out: a description that is made around it contributes
    too much."""
    loss = li.Logistic(class_weights=(1.0, 0.5))
    object.__setattr__(loss, "class_weights", (2.0, 1.0))
    run = li.Run(n=60, steps=12, step_size=0.3, noise=li.GradientNoise(0.05), clip=0.3)
    object.__setattr__(run, "loss", loss)
    assert contributions(run, "plain", np.zeros(30, int)).max() > 1.9 * run.facts().fact(
        "sensitivity"
    )


@pytest.mark.parametrize("classes", [2, 3])
def test_vectors_of_a_calibration_are_weighted_and_within_one(classes: int) -> None:
    loss = (
        li.Logistic(class_weights=WEIGHTS[2])
        if classes == 2
        else li.Softmax(classes=3, class_weights=WEIGHTS[3])
    )
    rng, outputs = np.random.default_rng(3), loss.outputs
    weights, target = rng.normal(size=(outputs, 5)), np.arange(90) % classes
    scores = rng.normal(size=(90, outputs)) * 4
    both = [
        Queries(one, weights, one.row_norm) for one in (loss, replace(loss, class_weights=None))
    ]
    found, plain = (one.vectors(scores, target, one.start) for one in both)
    assert np.linalg.norm(plain, axis=1).max() <= 1
    np.testing.assert_allclose(found, plain * np.array(WEIGHTS[classes])[target][:, None])


def test_a_small_weight_moves_answers_to_the_other_class() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(4000, 3)).astype(np.float32) / 2
    y = (rng.random(4000) < 1 / (1 + np.exp(-2 * x[:, 0]))).astype(int)
    run = li.Run(
        n=4000,
        steps=60,
        step_size=1.0,
        noise=li.GradientNoise(1e-4),
        loss=li.Logistic(row_norm=2.0),
    )
    found = []
    for weights in (None, (0.2, 1.0), (1.0, 0.2)):
        weighted = replace(run, loss=replace(run.loss, class_weights=weights))
        model = execute(weighted, x, y, key_from_seed(0))
        score = np.column_stack((x, np.full(4000, run.loss.intercept))) @ model.weights[0]
        found.append((score > 0).mean())
    assert found[2] < 0.2 < found[0] < 0.8 < found[1]


FIRST = {
    "a": np.random.default_rng(7).normal(size=(5, 4)).astype(np.float32),
    "b": np.ones((3, 5), np.float32) / 4,
}
OWN = li.Run(
    n=30,
    steps=2,
    step_size=0.3,
    noise=li.GradientNoise(0.05),
    clip=0.3,
    loss=li.KnownConstants(class_weights=WEIGHTS[3]),
)


def own_loss(params: dict, x: jax.Array, y: jax.Array) -> jax.Array:
    return -jax.nn.log_softmax(params["b"] @ jnp.tanh(params["a"] @ x))[y]


@pytest.mark.parametrize(
    "batching", [li.Cyclic(10), li.Poisson(0.3)], ids=["single precision", "double precision"]
)
@pytest.mark.parametrize("exactly", [False, True])
def test_a_network_sums_clipped_gradients_times_weights(
    exactly: bool, batching: li.Cyclic | li.Poisson
) -> None:
    """Beyond the clip too: a record of class c is as long as the clip times the weight of c, and no
    longer."""
    rng, target = np.random.default_rng(2), np.arange(30) % 3
    x = rng.normal(size=(30, 4)).astype(np.float32) * np.repeat([0.01, 1.0, 30.0], 10)[:, None]
    sums = []
    with jax.enable_x64(True):
        for weights in (WEIGHTS[3], None):
            run = replace(OWN, batching=batching, loss=li.KnownConstants(class_weights=weights))
            loop, theta, _ = prepare_loop(run, own_loss, FIRST, (x, target))
            model = loop.objective
            if exactly:
                grid = RecordGrid.of(run)
                model = ExactRecords(
                    model.loss,
                    model.form,
                    run.clip,
                    grid.places,
                    grid.most_squared,
                    model.most,
                    weights=model.weights,
                )
            one = jax.jit(model.chunk_sum)
            given = jnp.asarray(x), jnp.asarray(target)
            sums.append([np.asarray(one(theta, (*given, jnp.arange(30) == i))) for i in range(30)])
            total = np.asarray(one(theta, (*given, jnp.ones(30, bool))))
            np.testing.assert_allclose(total, np.sum(sums[-1], axis=0), atol=1e-6)
    found, plain = map(np.array, sums)
    counted = np.array(WEIGHTS[3])[target]
    np.testing.assert_allclose(found, plain * counted[:, None], rtol=1e-5, atol=1e-6)
    lengths = np.linalg.norm(found, axis=1)
    assert (lengths <= 0.3 * counted + 1e-6).all() and (lengths[20:] > 0.29 * counted[20:]).all()


def test_weights_of_a_network_are_in_its_description_and_its_certificate(tmp_path: Path) -> None:
    data = np.random.default_rng(2).normal(size=(30, 4)).astype(np.float32), np.arange(30) % 3
    run = replace(OWN, loss=li.KnownConstants())
    model = li.train(
        run,
        data,
        model=FIRST,
        loss=own_loss,
        class_weight={0: 10, 1: 0.5, 2: 4},
        delta=1e-3,
        seed=0,
    )
    assert (
        model.run.loss.class_weights == WEIGHTS[3]
        and li.Run.from_json(model.run.to_json()) == model.run
    )
    assert model.certificate.epsilon(1e-3) == li.account(run).epsilon(1e-3)
    model.save(tmp_path / "model")
    written = json.loads((tmp_path / "model" / "certificate.json").read_text())
    assert written["run"]["loss"]["class_weights"] == list(WEIGHTS[3])
    assert copy.copy(run).loss == run.loss and pickle.loads(pickle.dumps(model.run)) == model.run
    with jax.enable_x64(True):
        known = [
            fit_network(one, own_loss, FIRST, data, key_from_seed(0))["a"]
            for one in (model.run, run)
        ]
    np.testing.assert_array_equal(model.params["a"], known[0])
    assert np.abs(known[1] - known[0]).max() > 1e-5


NO_CLASS = {
    "one-hot": np.eye(3)[np.arange(30) % 3],
    "numbers": np.linspace(0, 1, 30),
    "others": np.arange(30),
    "negative": np.arange(30) - 1,
    "missing": None,
}


@pytest.mark.parametrize("second", NO_CLASS.values(), ids=[*NO_CLASS])
def test_weights_are_refused_where_records_have_no_class(second: np.ndarray | None) -> None:
    x = np.ones((30, 4), np.float32)
    data = (x,) if second is None else (x, second)
    with pytest.raises(li.InputError, match="class ind"):
        li.train(
            OWN,
            data,
            model=FIRST,
            loss=lambda p, x, *y: ((p["a"] @ x).sum() + p["b"].sum()) ** 2,
            delta=1e-3,
        )


def test_weights_of_a_run_are_refused_beside_constants_and_other_weights() -> None:
    with pytest.raises(li.InputError, match="constants"):
        li.KnownConstants(li.LossFacts(smooth=1.0), class_weights=(1.0, 0.5))
    with pytest.raises(li.InputError, match="largest must be 1"):
        li.KnownConstants(class_weights=(0.5, 0.5))
    data = np.ones((30, 4), np.float32), np.arange(30) % 3
    for given, why in (
        ({0: 1, 1: 2, 2: 3}, "must be that of the run"),
        ("balanced", "private labels"),
        ({1: 1, 2: 5, 3: 4}, "the classes are 0, 1, 2"),
    ):
        with pytest.raises(li.InputError, match=why):
            li.train(OWN, data, model=FIRST, loss=own_loss, class_weight=given, delta=1e-3)
    with pytest.raises(li.InputError, match="is for classes"):
        li.train(replace(OWN, loss=li.HuberRidge()), data, class_weight={0: 1, 1: 2}, delta=1e-3)

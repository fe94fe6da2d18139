"""Adversary instantiation on tiny images: its parts against closed forms, and what it shows and
does not show."""

import math
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.signal import correlate
from scipy.special import logsumexp

import lastiterate as li
from lastiterate.audit import weights_after
from lastiterate.audit.networks import observe
from lastiterate.audit.statistics import find_ceiling
from lastiterate.engine import Trainer, key_from_seed, keys_from_seed
from lastiterate.engine.network import fit_network, prepare_loop
from lastiterate.errors import InputError
from lastiterate_papers.deepfool import fool_all
from lastiterate_papers.finished_cells import Cells
from lastiterate_papers.langevin_network import (
    convolved,
    langevin_run,
    lenet_logits,
    lenet_loss,
    lenet_parameters,
    with_prior,
)
from lastiterate_papers.network_adversary import (
    Effort,
    ImageModel,
    ImageNeighbours,
    attack_network,
    instantiate,
)

N = 24
RUN = li.Run(
    n=N,
    steps=60,
    step_size=li.Constant(0.3),
    noise=li.GradientNoise(1e-3),
    batching=li.Cyclic(4),
    adjacency="replace-one",
)
FEW = Effort(trials=12, pilot=10, batch_models=8, seed=1)


def logits(params, image):
    """One convolution of 3 x 3 and a dense layer on images (1, 8, 8)."""
    return params["dense"] @ jax.nn.relu(convolved(image, params["w"], params["b"])).ravel()


def loss(params, image, label):
    return -jax.nn.log_softmax(logits(params, image))[label]


def model():
    rng = np.random.default_rng(0)  # not JAX's, which would compile while tests are collected
    return ImageModel(
        logits,
        loss,
        {
            "w": np.float32(0.3) * rng.standard_normal((3, 1, 3, 3), np.float32),
            "b": np.zeros(3, np.float32),
            "dense": np.float32(0.1) * rng.standard_normal((3, 108), np.float32),
        },
    )


MODEL = model()
CLIPPED = langevin_run(N, 2, step_size=0.05, clip=0.2)
FREE = replace(MODEL, loss=with_prior(loss, N))
"""One clipped program for the tests in which something is certified; noise is an argument of it."""


def drawn_images():
    """Three classes, each with a bright bar of its own; pixels within 0 .. 1."""
    rng = np.random.default_rng(0)
    labels = np.arange(N, dtype=np.int32) % 3
    images = rng.uniform(0, 0.3, (N, 1, 8, 8))
    for place, label in enumerate(labels):
        images[place, 0, :, 2 * label : 2 * label + 2] += 0.6
    return images.astype(np.float32), labels


IMAGES, LABELS = drawn_images()


@pytest.fixture(scope="module")
def neighbours():
    return instantiate(
        RUN, MODEL, IMAGES, LABELS, low=0.0, high=1.0, models=8, batch_models=8
    )  # as FEW


# the parts


def test_lenet_is_the_usual_network():
    with jax.default_prng_impl(
        "unsafe_rbg"
    ):  # other random bits, whose program is compiled in a third of the time
        params, others = map(jax.jit(lenet_parameters), (3, 4))
    assert sum(leaf.size for leaf in jax.tree.leaves(params)) == 61_706
    x = image = np.random.default_rng(2).normal(size=(1, 32, 32)).astype(np.float32)
    layers = jax.tree.map(np.asarray, params)
    for name in ("conv1", "conv2", "conv3"):
        kernels = layers[name]["w"], layers[name]["b"]
        x = np.stack([correlate(x, w, "valid")[0] + b for w, b in zip(*kernels, strict=True)]).clip(
            0
        )
        if name != "conv3":
            x = x.reshape(len(x), x.shape[1] // 2, 2, -1, 2).max(axis=(2, 4))
    x = (layers["dense1"]["w"] @ x.ravel() + layers["dense1"]["b"]).clip(0)
    expected = layers["dense2"]["w"] @ x + layers["dense2"]["b"]
    found, lost = jax.jit(lambda *given: (lenet_logits(*given), lenet_loss(*given, jnp.int32(4))))(
        params, image
    )
    assert found == pytest.approx(expected, abs=1e-5)
    assert lost == pytest.approx(logsumexp(expected) - expected[4], abs=1e-5)
    assert not np.array_equal(others["dense2"]["w"], params["dense2"]["w"])


def linear(params, image):
    return params["w"] @ image + params["b"]


def test_deepfool_on_a_linear_model_is_the_nearest_boundary():
    params = {
        "w": jnp.array([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]], jnp.float32),
        "b": jnp.array([0.0, -1.5, 0.0], jnp.float32),
    }
    image = np.array(
        [1.0, 1.0], np.float32
    )  # logits 1, -0.5, -1: boundaries at 1.5 / sqrt 2 and at 2 / 2
    found, said = fool_all(linear, jax.tree.map(lambda a: a[None], params), image, 0, -5.0, 5.0)
    assert said.tolist() == [2]
    assert found == pytest.approx([1 - 1.02, 1.0], abs=1e-3), (
        "1 along the first axis, and the overshoot"
    )


def test_deepfool_goes_on_until_all_models_are_fooled():
    """Two half-planes with corners between them: the image must leave both."""
    w = jnp.array([[[1.0, 0.0], [0.0, 0.0]], [[0.0, 1.0], [0.0, 0.0]]], jnp.float32)
    models = {"w": w, "b": jnp.zeros((2, 2), jnp.float32)}
    found, said = fool_all(linear, models, np.array([1.0, 0.4], np.float32), 0, -1.0, 1.0)
    assert said.tolist() == [1, 1]
    assert found == pytest.approx([0, -0.6], abs=0.02), (
        "along the diagonal, to just beyond the second boundary"
    )


def test_deepfool_stays_in_the_range_or_says_that_it_cannot():
    models = {
        "w": jnp.array([[[1.0, 0.0], [0.0, 0.0]]], jnp.float32),
        "b": jnp.zeros((1, 2), jnp.float32),
    }
    image = np.array([1.0, 0.4], np.float32)
    with pytest.raises(InputError, match="cannot be made adversarial in 20 moves: 1 of 1 models"):
        fool_all(linear, models, image, 0, 0.1, 1.0, most=20)
    with pytest.raises(InputError, match=r"must lie within the pixel range 0 \.\. 0\.5"):
        fool_all(linear, models, image, 0, 0.0, 0.5)


def squared(params, row):
    return (1 - params["t"] @ row) ** 2


@pytest.mark.parametrize("batching", [li.Cyclic(4), li.Permuted(4), li.Reshuffled(4)])
def test_a_look_is_the_last_iterate_of_the_shorter_run(batching):
    run = replace(
        RUN, steps=15, batching=batching, noise=li.GradientNoise(tuple(np.linspace(0.1, 0.5, 15)))
    )
    params, data = {"t": jnp.ones(3, jnp.float32)}, (np.linspace(-1, 1, 3 * N).reshape(N, 3) ** 2,)
    with jax.enable_x64(True):
        loop, first, arranged = prepare_loop(run, squared, params, data)
        found = observe(loop, first, arranged, keys_from_seed(3, 2), [4, 15], lambda theta: theta)
        for place, steps in enumerate((4, 15)):
            short = prepare_loop(run.truncate(steps), squared, params, data)
            assert found[:, place] == pytest.approx(
                short[0].many(*short[1:], keys_from_seed(3, 2)), abs=1e-6
            )


@pytest.mark.parametrize("batching", [li.Cyclic(4), li.Permuted(4)])
def test_linear_models_are_looked_at_like_shorter_runs(batching):
    run = li.Run(
        n=N,
        steps=15,
        step_size=0.5,
        noise=li.GradientNoise(0.1),
        batching=batching,
        loss=li.Logistic(row_norm=1.0, ridge=0.1),
    )
    x, y = np.random.default_rng(0).normal(size=(N, 3)), np.arange(N) % 2
    found = weights_after(run, x, y, keys_from_seed(3, 2), [4, 15])
    for place, steps in enumerate((4, 15)):
        assert found[:, place] == pytest.approx(
            Trainer(run.truncate(steps)).fit_many(x, y, keys_from_seed(3, 2))
        )
    with pytest.raises(InputError, match="depends on how long"):
        weights_after(replace(run, method=li.TailAverage()), x, y, keys_from_seed(3, 2), [4])


def test_langevin_run_is_sgld():
    """One step without noise, and the noise: lr/2 (n mean gradient + theta) and sqrt(lr)."""
    run = replace(langevin_run(8, 3, step_size=0.02), steps=1)
    assert (langevin_run(8, 3).steps, run.adjacency) == (6, "replace-one")
    lr = 2 * 0.02 / 8
    assert run.first_step * run.first_noise == pytest.approx(math.sqrt(lr))
    still, theta = (
        replace(run, noise=li.GradientNoise(0.0)),
        {"t": jnp.array([1.0, -2.0], jnp.float32)},
    )
    data = np.arange(16, dtype=np.float32).reshape(8, 2)
    found = fit_network(
        still, with_prior(lambda p, x: p["t"] @ x, 8), theta, (data,), key_from_seed(0)
    )
    expected = np.array([1.0, -2.0]) - lr / 2 * (8 * data[:4].mean(axis=0) + np.array([1.0, -2.0]))
    assert found["t"] == pytest.approx(expected, rel=1e-5)


# the attack


def test_the_crafted_record_keeps_its_label_and_range(neighbours):
    assert neighbours.labels[neighbours.record] == neighbours.original != neighbours.adversarial
    assert (neighbours.with_record >= 0).all() and (neighbours.with_record <= 1).all()
    same = np.delete(np.arange(N), neighbours.record)
    assert np.array_equal(neighbours.with_record[same], IMAGES[same])


def test_without_noise_the_data_sets_are_separated(neighbours):
    reports = attack_network(RUN, MODEL, neighbours, effort=FEW, checkpoints=[6, 60], failure=0.05)
    expected = find_ceiling(12, 0.025, 1e-5)
    assert [report.lower for report in reports] == pytest.approx([expected] * 2)
    assert [report.ceiling for report in reports] == pytest.approx([expected] * 2), (
        "the failure probability is split"
    )
    assert reports[0].failure == 0.025
    assert reports[0].verdict.startswith("nothing certifies"), "no clip: no constant is known"


def test_under_much_noise_nothing_shows_and_all_is_reproducible(neighbours):
    run = replace(CLIPPED, noise=li.GradientNoise(2.0))
    first, again = (
        attack_network(run, FREE, neighbours, effort=FEW, checkpoints=[6, 12]) for _ in range(2)
    )
    assert all(report.lower == 0 < report.upper < math.inf for report in first)
    assert first == again
    assert np.array_equal(first[0].scores, again[0].scores)
    other = attack_network(run, FREE, neighbours, effort=replace(FEW, seed=2), checkpoints=[6, 12])
    assert not np.array_equal(first[0].scores, other[0].scores)


def test_resumes_from_finished_batches(tmp_path, neighbours):
    done, about = [], {"item": "adversary"}
    ask = partial(attack_network, RUN, MODEL, neighbours, effort=FEW, checkpoints=[6])
    cells = Cells.of(tmp_path, about)
    whole = ask(cells=cells, progress=lambda *told: done.append(told[:2]))
    assert done == [(8, 44), (16, 44), (22, 44), (30, 44), (38, 44), (44, 44)]
    lines = cells.path.read_text().splitlines(keepends=True)
    cells.path.write_text("".join(lines[:3]) + lines[3][:20])
    again = ask(cells=Cells.of(tmp_path, about))
    assert np.array_equal(again[0].scores, whole[0].scores)
    assert len(cells.path.read_text().splitlines()) == len(lines) + 1, "a line that was cut off"


def test_a_clipped_run_is_certified_above_the_bound(neighbours):
    reports = attack_network(CLIPPED, FREE, neighbours, effort=FEW)
    assert len(reports) == 2
    assert [report.upper for report in reports] == sorted(report.upper for report in reports)
    assert all(report.lower <= report.upper < math.inf and not report.refuted for report in reports)


# bad input


UNTRAINED = replace(RUN, step_size=li.Constant(1e-9))  # the program of RUN


def unlikely():
    """Labels that the first parameters do not give."""
    return jax.vmap(partial(logits, MODEL.params))(IMAGES).argmin(axis=1).astype(np.int32)


def other_images(*places):
    images = IMAGES.copy()
    images[list(places)] += 0.01
    return images


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (lambda: Effort(trials=9), "trials must be at least 10 models per data set, got 9"),
        (lambda: Effort(pilot=3), "pilot must be at least 10 models per data set, got 3"),
        (lambda: Effort(batch_models=0), "batch_models must be an integer >= 1, got 0"),
        (
            lambda: ImageNeighbours(IMAGES, other_images(2, 5), LABELS, 2, 0),
            "must differ in one record, not in 2",
        ),
        (
            lambda: ImageNeighbours(IMAGES, IMAGES, LABELS, 2, 0),
            "must differ in one record, not in 0",
        ),
        (
            lambda: ImageNeighbours(IMAGES, other_images(2), LABELS, 5, 0),
            "must be the one in which the data sets differ",
        ),
        (
            lambda: ImageNeighbours(IMAGES, other_images(2), LABELS, 2, 2),
            "must be another class than the record's label",
        ),
        (lambda: ImageNeighbours(IMAGES, IMAGES[:3], LABELS, 2, 0), "must have the same shape"),
        (
            lambda: instantiate(RUN, MODEL, IMAGES, LABELS, low=0.0, high=0.5),
            "images must lie within the pixel range 0 .. 0.5",
        ),
        (
            lambda: instantiate(
                replace(RUN, adjacency="zero-out"), MODEL, IMAGES, LABELS, low=0.0, high=1.0
            ),
            "adjacency must be 'replace-one'",
        ),
        (
            lambda: instantiate(RUN, MODEL, IMAGES, LABELS, low=0.0, high=1.0, record=N),
            "record must lie within 0 .. 23, got 24",
        ),
        (
            lambda: instantiate(
                UNTRAINED,
                MODEL,
                IMAGES,
                unlikely(),
                low=0.0,
                high=1.0,
                record=0,
                models=8,
                batch_models=8,
            ),
            "do not all know the label of record 0",
        ),
    ],
)
def test_bad_input_is_one_sentence(ask, said):
    with pytest.raises(InputError) as caught:
        ask()
    assert said in str(caught.value)
    assert str(caught.value).endswith(".") and "\n" not in str(caught.value)


@pytest.mark.parametrize("checkpoints", [[], [0, 3], [6, 6], [9, 6], [61]])
def test_checkpoints_increase_within_the_run(neighbours, checkpoints):
    with pytest.raises(InputError, match=r"must be increasing numbers of steps within 1 \.\. 60"):
        attack_network(RUN, MODEL, neighbours, effort=FEW, checkpoints=checkpoints)


def test_a_diverging_run_is_refused(neighbours):
    run = replace(RUN, step_size=li.Constant(1e30))
    with pytest.raises(InputError, match="makes models diverge;"):
        attack_network(run, MODEL, neighbours, effort=FEW, checkpoints=[6, 60])

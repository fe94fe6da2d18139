"""The quick trainer of many LeNet5: gradients, clips and steps are the run's, and its noise is
normal."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from scipy import stats

from lastiterate.audit import fit_networks
from lastiterate.engine import keys_from_seed
from lastiterate_papers.langevin_network import (
    SHAPES,
    langevin_run,
    lenet_logits,
    lenet_loss,
    with_prior,
)
from lastiterate_papers.lenet_chains import chains, clipped_sums, normal, patches_of, streams
from lastiterate_papers.network_adversary import (
    Effort,
    ImageModel,
    ImageNeighbours,
    attack_network,
)

N = 6
DRAWN = np.random.default_rng(5)
PARAMS = {
    name: {
        "w": DRAWN.uniform(-1, 1, shape).astype(np.float32)
        / np.sqrt(np.prod(shape[1:]), dtype=np.float32),
        "b": np.float32(0.1) * DRAWN.uniform(-1, 1, shape[:1]).astype(np.float32),
    }
    for name, shape in SHAPES.items()
}
"""Parameters like the first ones, and none of XLA's programs to draw them."""
START, WHOLE = ravel_pytree(PARAMS)
SIZE = len(START)
SUMS = jax.jit(clipped_sums)


@pytest.fixture(scope="module")
def data():
    """Images with even borders, where many places of a maximum are equal, and labels."""
    rng = np.random.default_rng(0)
    images = rng.normal(size=(N, 1, 32, 32)).astype(np.float32)
    images[:, :, :9] = -0.4
    return images, rng.integers(0, 10, N).astype(np.int32)


@jax.jit
def slope(theta, image, label):
    """The gradient of one record's loss: a program for one record compiles sooner than one for all
    of them."""
    return jax.grad(lambda theta: with_prior(lenet_loss, N)(WHOLE(theta), image, label))(theta)


def slopes(theta, images, labels):
    return np.array(
        [slope(theta, *record) for record in zip(images, labels, strict=True)], np.float64
    )


@pytest.fixture(scope="module")
def records(data):
    """Parameters of two models, (2, size), and the gradient of every record's loss at them, (2, N,
    size)."""
    thetas = (START + np.random.default_rng(1).normal(0, 0.05, (2, SIZE))).astype(np.float32)
    return thetas, np.array([slopes(theta, *data) for theta in thetas])


@pytest.mark.parametrize("clip", [np.inf, 0.2, 6.0])
def test_sums_are_those_of_clipped_gradients(data, records, clip):
    """Of a batch that is not full; 6 lies between the norms of these records."""
    images, labels = data
    thetas, gradients = records
    real, norms = np.array([1, 1, 1, 1, 1, 0], np.uint8), np.linalg.norm(gradients, axis=2)
    assert norms.min() < 6 < norms.max()
    theirs = (gradients * (real * np.minimum(1, clip / norms))[:, :, None]).sum(1)
    ours = SUMS(thetas, patches_of(images), labels, real, 1 / N, clip)
    assert np.linalg.norm(theirs - ours, axis=1).max() < 1e-5 * np.linalg.norm(theirs, axis=1).min()


def test_a_gradient_that_is_no_number_counts_as_0(data, records):
    images, broken = data[0], data[0].copy()
    broken[0] = np.inf
    found, alone = (
        SUMS(records[0], patches_of(part), data[1], real, 1 / N, 1.0)
        for part, real in ((broken, np.ones(N, np.uint8)), (images, np.arange(N, dtype=np.uint8)))
    )
    np.testing.assert_allclose(found, alone, atol=1e-6)


def test_steps_without_noise_are_those_of_the_run(data):
    """Three steps over blocks in public order, looked at after one and after three, against the
    same steps in NumPy."""
    run = replace(
        langevin_run(N, 2, clip=1.0), steps=3, noise=replace(langevin_run(N, 1).noise, sigma=0.0)
    )
    ours = fit_networks(
        run,
        with_prior(lenet_loss, N),
        PARAMS,
        data,
        keys_from_seed(0, 2),
        checkpoints=[1, 3],
        many=lambda *given: chains(PARAMS, 1 / N, *given),
    )
    found = np.concatenate([np.reshape(leaf, (2, 2, -1)) for leaf in jax.tree.leaves(ours)], axis=2)
    theta, kept = np.asarray(START), []
    for block in (slice(0, 4), slice(4, 6), slice(0, 4)):
        gradients = slopes(theta, data[0][block], data[1][block])
        norms = np.linalg.norm(gradients, axis=1, keepdims=True)
        assert norms.min() > 1, "every record is clipped"
        moved = run.first_step * (gradients * np.minimum(1, 1.0 / norms)).sum(axis=0) / run.divisor
        theta = (theta - moved).astype(np.float32)
        kept.append(theta)
    for model in found:  # both start alike, and draw nothing
        np.testing.assert_allclose(model, [kept[0], kept[2]], atol=2e-6)
    assert np.abs(kept[0] - START).max() > 1e-4 and np.abs(kept[2] - kept[0]).max() > 1e-4


def test_noise_is_normal_and_its_scale_the_runs(data):
    words = streams(keys_from_seed(3, 2), 20_001)
    first, second = (np.asarray(normal(jnp.asarray(next(words)), 20_001)) for _ in range(2))
    every = np.concatenate([first.ravel(), second.ravel()])
    assert stats.kstest(every, "norm").pvalue > 1e-3
    assert (
        abs(np.mean(every**4) - 3) < 0.25
        and np.abs(np.corrcoef(np.concatenate([first, second])) - np.eye(4)).max() < 0.04
    )
    half = first[:, :10_001], first[:, 10_000:]  # the two numbers of a pair
    assert abs(np.corrcoef(half[0].ravel(), half[1].ravel())[0, 1]) < 0.04
    run = replace(
        langevin_run(N, 2), steps=1
    )  # two models and two blocks: the shapes, and the program, of the above
    kept = [
        chains(
            PARAMS,
            1 / N,
            replace(run, noise=noise),
            data,
            keys_from_seed(4, 2),
            [1],
            lambda theta: theta,
        )
        for noise in (run.noise, replace(run.noise, sigma=0.0))
    ]
    spread = (kept[0] - kept[1]).std()
    assert spread == pytest.approx((2 * run.first_step / N) ** 0.5, rel=0.02)


def test_an_attack_is_made_on_the_models_of_another_trainer(data):
    """A trainer that shows the record is caught; its answers come from no network."""
    images, labels = data
    moved = images.copy()
    moved[-1] += 1
    pair = ImageNeighbours(images, moved, labels, N - 1, (int(labels[-1]) + 1) % 10)

    def shows(run, given, keys, checkpoints, look):
        shifted = np.asarray(START) * (3.0 if given[0][-1, 0, 0, 0] > 0 else 1.0)
        return np.stack([look(jnp.asarray([shifted] * len(keys)))] * len(checkpoints), axis=1)

    model = ImageModel(lenet_logits, with_prior(lenet_loss, N), PARAMS, shows)
    (report,) = attack_network(
        langevin_run(N, 1), model, pair, effort=Effort(40, 10, 25), checkpoints=[2]
    )
    assert report.lower > 1

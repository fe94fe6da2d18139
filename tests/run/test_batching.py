"""Every batching's sampler draws what its plain reference draws."""

from typing import Any, get_args

import jax
import numpy as np
import pytest

from lastiterate.engine import keys_from_seed
from lastiterate.engine.samplers import sampler_of
from lastiterate.run.batching import Batching, Poisson

N, SIZE, PASSES = 7, 3, 2000
KINDS = get_args(Batching)


def reference(batching: Any) -> np.ndarray:
    """Which records the batches of passes hold, by the reference; (passes, blocks, n)."""
    rng = np.random.default_rng(0)
    held = np.zeros((PASSES, batching.blocks(N), N), bool)
    for each in held:
        for row, records in zip(each, batching.draws(N, rng), strict=True):
            row[records] = True
            assert row.sum() == len(records)  # no record twice
    return held


def compiled(batching: Any) -> np.ndarray:
    """The same by the compiled sampler, each pass with a key of its own."""
    sampler = sampler_of(batching, N, 4)
    layout, eye = sampler.layout, np.eye(N)
    if layout.flat:
        data = eye
    else:
        data = np.zeros((layout.slots, N))
        data[layout.slot(np.arange(N))] = eye
        data = data.reshape(layout.blocks, layout.chunks, layout.rows, N)

    def one(key: Any) -> jax.Array:
        arranged = sampler.arrange(jax.numpy.asarray(data), key)
        total = lambda rows: rows.sum(0)  # noqa: E731
        return jax.numpy.stack(
            [sampler.batch_sum(total, arranged, key, k) for k in range(sampler.blocks)]
        )

    with jax.enable_x64(True):
        return np.asarray(jax.jit(jax.vmap(one))(keys_from_seed(0, PASSES)))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.word)
def test_the_sampler_draws_as_its_reference(kind: Any) -> None:
    batching = kind.of_size(N, SIZE)
    known, drawn = reference(batching), compiled(batching)
    assert set(np.unique(drawn)) <= {0.0, 1.0}
    if batching.drawn == "never":
        np.testing.assert_array_equal(drawn, known)
    if batching.drawn != "each step":
        assert (drawn.sum(1) == 1).all() and (known.sum(1) == 1).all()  # once in every pass
    if batching.block_sizes(N) is not None:
        np.testing.assert_array_equal(drawn.sum(2), known.sum(2))
    far = 6 * np.sqrt(0.5 / PASSES)  # six standard deviations of a difference of frequencies
    np.testing.assert_allclose(drawn.mean(0), known.mean(0), atol=far)
    together = [np.einsum("pbi,pbj->bij", held, held) / PASSES for held in (drawn, known * 1.0)]
    np.testing.assert_allclose(*together, atol=far)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.word)
def test_what_a_batching_answers_is_what_its_reference_draws(kind: Any) -> None:
    batching = kind.of_size(N, SIZE)
    held = reference(batching)
    low, high = (share * batching.divisor(N) for share in batching.shares(N))
    assert held.sum(2).min() >= low - 1e-9 and held.sum(2).max() <= high + 1e-9
    block, sizes = batching.block_of(N), batching.block_sizes(N)
    assert (block is None) == (batching.drawn != "never")
    if block is not None:
        assert (held == (np.arange(batching.blocks(N))[:, None] == block)).all()
    if sizes is not None:
        np.testing.assert_array_equal(held.sum(2), np.tile(sizes, (PASSES, 1)))
    likely = batching.place_probabilities(N)
    if batching.drawn == "each step":
        likely = np.array([batching.inclusion_probability(N)])
    if likely is not None:
        np.testing.assert_allclose(held.mean((0, 2)), likely, atol=0.02)


def test_poisson_batches_of_a_size_have_its_rate() -> None:
    assert Poisson.of_size(10, 3) == Poisson(0.3)

"""Noise that is drawn for several steps at once: every step gets its own, wherever the steps around
it are cut."""

from dataclasses import replace

import jax
import numpy as np
import pytest

import lastiterate as li
from lastiterate.engine import Trainer, keys_from_seed, random, sampler_interface
from lastiterate.engine import noise as noise_ahead
from lastiterate.engine.noise import LONGEST, NoiseAhead, steps_ahead
from lastiterate.engine.random import NOISE, ORDER, PAIRS, bits, gaussian, normals, stream
from lastiterate.engine.streaming.buffers import Arrays
from lastiterate.engine.streaming.execution import execute_streaming

pytestmark = pytest.mark.usefixtures("as_users_have_them")  # bits

N, STEPS = 4, 2 * LONGEST + 3
X, Y = np.zeros((N, 2), np.float32), np.zeros(N)
ABSENT = range(N)
RUN = li.Run(
    n=N, steps=STEPS, step_size=0.5, noise=li.GradientNoise(1.0), loss=li.HuberRidge(ridge=0.0)
)
KEYS = keys_from_seed(3, 2)


def drawn(key: np.ndarray) -> np.ndarray:
    """Noise of every step, one at a time."""
    with jax.enable_x64(True):
        own = stream(key, NOISE)
        return np.array([gaussian(own, k, (1, 3)) for k in range(STEPS)])


@pytest.fixture(scope="module")
def walks() -> np.ndarray:
    """All iterates of both keys where no record has a gradient, (2, T, 1, 3)."""
    return np.array([-0.5 * drawn(key).cumsum(0) for key in KEYS])


@pytest.mark.parametrize("batching", [li.Cyclic(1), li.Reshuffled(1)], ids=["cyclic", "reshuffled"])
def test_every_step_adds_its_own_noise(batching: object, walks: np.ndarray) -> None:
    run = replace(RUN, batching=batching)
    # of all iterates the last is one: where passes are cut no other noise is drawn for it alone
    for each in (run, replace(run, release="all"))[isinstance(batching, li.Reshuffled) :]:
        wanted = walks if each.release == "all" else walks[:, -1]
        np.testing.assert_allclose(
            Trainer(each).fit(X, Y, KEYS[0], absent=ABSENT), wanted[0], atol=1e-12
        )
        np.testing.assert_allclose(
            Trainer(each).fit_many(X, Y, KEYS, absent=ABSENT), wanted, atol=1e-12
        )


@pytest.mark.parametrize("numbers", [1, 3 * 2 * 5], ids=["one step", "five steps"])
def test_many_models_draw_for_as_many_steps_as_memory_lets_them(
    numbers: int, walks: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    """23 steps: several draws of five, and a part of one."""
    monkeypatch.setattr(noise_ahead, "MODELS_AT_ONCE", numbers)
    found = Trainer(replace(RUN, steps=23)).fit_many(X, Y, KEYS, absent=ABSENT)
    np.testing.assert_allclose(found, walks[:, 22], atol=1e-12)


def test_records_in_pieces_are_given_the_same_noise(walks: np.ndarray) -> None:
    run = replace(
        RUN, batching=li.Cyclic(1), loss=li.HuberRidge(ridge=0.0, intercept=0.0)
    )  # gradients of 0
    np.testing.assert_allclose(
        execute_streaming(run, Arrays((X, Y)), KEYS[0]).weights, walks[0, -1], atol=1e-12
    )


def test_a_step_beyond_what_was_drawn_is_drawn() -> None:
    with jax.enable_x64(True):
        ahead, wanted = NoiseAhead.normal(KEYS[0], (1, 3)), drawn(KEYS[0])
        for k in (0, 1, LONGEST - 1, LONGEST, LONGEST + 1, 5, STEPS - 1):
            noise, end = ahead.at(k)
            assert (
                int(noise.first) <= k < end <= min(int(noise.first) + len(noise.units), k + LONGEST)
            )
            assert np.array_equal(noise.units[k - noise.first], wanted[k])


@pytest.mark.parametrize("pairs", [PAIRS, 9], ids=["together", "one step of a model at a time"])
@pytest.mark.parametrize("shape", [(7,), (2, 5), (1, 18), (3, 2, 4)])
def test_noise_of_many_steps_and_models_is_that_of_every_step(
    shape: tuple[int, ...], pairs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(noise_ahead, "PAIRS", pairs)
    with jax.enable_x64(True):
        keys, many = np.asarray(keys_from_seed(1, 5)), min(4, steps_ahead(shape))
        every = np.array(
            [[gaussian(key, step, shape) for step in range(3, 3 + many)] for key in keys]
        )
        assert np.array_equal(noise_ahead.normal(keys[1], 3, many, shape), every[1])
        assert np.array_equal(noise_ahead.normal_of_models(keys, 3, many, shape), every)


def test_numbers_beyond_one_draw_are_those_of_their_step() -> None:
    shape = (2 * PAIRS + 3,)
    with jax.enable_x64(True):
        wanted = np.array([normals(key, 3, shape[0]) for key in KEYS])
        assert steps_ahead(shape) == 1 and np.array_equal(
            noise_ahead.normal(KEYS[0], 3, 1, shape)[0], wanted[0]
        )
        assert np.array_equal(noise_ahead.normal_of_models(KEYS, 3, 1, shape)[:, 0], wanted)


@pytest.mark.parametrize("pairs", [PAIRS, PAIRS // 8], ids=["for users", "in most tests"])
@pytest.mark.parametrize("count", [1, 7, 2 * PAIRS, 4 * PAIRS + 3])
def test_what_is_drawn_beside_the_asked_numbers_changes_none(
    count: int, pairs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(random, "PAIRS", pairs)
    with jax.enable_x64(True):
        assert np.array_equal(normals(KEYS[0], 3, count), gaussian(KEYS[0], 3, (count,)))


@pytest.mark.parametrize(
    "n, first, last", [(1, 0, 3), (7, 4, 9), (2 * sampler_interface.FEWEST + 1, 2, 4)]
)
def test_words_of_a_pass_are_those_of_its_own_stream(n: int, first: int, last: int) -> None:
    found = list(sampler_interface.words(KEYS[0], first, last, n))
    with jax.enable_x64(True):
        order = stream(KEYS[0], ORDER)
        assert np.array_equal(
            found, [bits(stream(order, number), 0, n) for number in range(first, last)]
        )


def test_padded_sizes_are_few_and_little_above() -> None:
    sizes = {count: sampler_interface.pad_size(count, 64) for count in range(1, 4096)}
    assert len(set(sizes.values())) < 60 and {sizes[count] for count in range(1, 65)} == {64}
    assert all(count <= size <= count * 1.13 for count, size in sizes.items() if count >= 64)

"""Noise that is drawn for several steps at once: every step gets its own, wherever the steps around it are cut."""

from dataclasses import replace

import jax
import numpy as np
import pytest

import lastiterate as li
from lastiterate.engine import Trainer, noise_ahead, seeded_keys
from lastiterate.engine.gaussian_noise import NOISE, gaussian, stream
from lastiterate.engine.noise_ahead import LONGEST, NoiseAhead
from lastiterate.engine.streaming.devices import Arrays
from lastiterate.engine.streaming.streamed_linear import execute_streaming

N, STEPS = 4, 2 * LONGEST + 3
X, Y = np.zeros((N, 2), np.float32), np.zeros(N)
ABSENT = range(N)
RUN = li.Run(n=N, steps=STEPS, step_size=0.5, noise=li.GradientNoise(1.0), loss=li.HuberRidge(ridge=0.0))
KEYS = seeded_keys(3, 2)


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
    for each in (run, replace(run, release="all")):
        wanted = walks if each.release == "all" else walks[:, -1]
        np.testing.assert_allclose(Trainer(each).fit(X, Y, KEYS[0], absent=ABSENT), wanted[0], atol=1e-12)
        np.testing.assert_allclose(Trainer(each).fit_many(X, Y, KEYS, absent=ABSENT), wanted, atol=1e-12)


@pytest.mark.parametrize("numbers", [1, 3 * 2 * 5], ids=["one step", "five steps"])
def test_many_models_draw_for_as_many_steps_as_memory_lets_them(numbers: int, walks: np.ndarray,
                                                                monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noise_ahead, "MODELS_AT_ONCE", numbers)
    np.testing.assert_allclose(Trainer(RUN).fit_many(X, Y, KEYS, absent=ABSENT), walks[:, -1], atol=1e-12)


def test_records_in_pieces_are_given_the_same_noise(walks: np.ndarray) -> None:
    run = replace(RUN, batching=li.Cyclic(1), loss=li.HuberRidge(ridge=0.0, intercept=0.0))  # gradients of 0
    np.testing.assert_allclose(execute_streaming(run, Arrays((X, Y)), KEYS[0]).weights, walks[0, -1], atol=1e-12)


def test_a_step_beyond_what_was_drawn_is_drawn() -> None:
    with jax.enable_x64(True):
        ahead, wanted = NoiseAhead.normal(KEYS[0], (1, 3)), drawn(KEYS[0])
        for k in (0, 1, LONGEST - 1, LONGEST, LONGEST + 1, 5, STEPS - 1):
            noise, end = ahead.at(k)
            assert int(noise.first) <= k < end == int(noise.first) + len(noise.units)
            assert np.array_equal(noise.units[k - noise.first], wanted[k])

"""Gaussian draws: their law, in the middle and in the tails, and the bits that rare ones take."""

import inspect
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import kstest

from lastiterate.engine import key_from_seed, public_random, random
from lastiterate.engine.random import (
    FARTHEST,
    ROUND,
    STREAM_ROUNDS,
    cos_sin,
    encrypt,
    gaussian,
    normal_pairs,
    small_and_long,
)

pytestmark = pytest.mark.usefixtures("as_users_have_them")  # bits


def test_noise_is_standard_normal_with_room_in_the_tails():
    with jax.enable_x64(True):
        draws = np.asarray(gaussian(key_from_seed(2), 0, (200_001,)))
        halves = draws[:100_001], draws[100_001:]
        ends = np.array([0, 2**63, 2**64 - 1], dtype=np.uint64)
        pairs = np.array(
            [
                normal_pairs(
                    lambda number, second=word: (
                        jnp.where(number == 0, jnp.asarray(ends), jnp.uint64(0)),
                        jnp.full(3, second, "uint64"),
                    )
                )
                for word in ends
            ]
        )
    assert draws.dtype == np.float64 and kstest(draws, "norm").pvalue > 1e-6
    # the two numbers of a pair: same law each, no correlation of values or of sizes, and an even
    # angle
    x, y = halves[0][:100_000], halves[1]
    assert abs(np.mean(x * y)) < 5 / np.sqrt(1e5) and abs(
        np.corrcoef(x**2, y**2)[0, 1]
    ) < 5 / np.sqrt(1e5)
    assert kstest(np.arctan2(y, x), "uniform", (-np.pi, 2 * np.pi)).pvalue > 1e-6
    assert kstest(np.exp(-(x**2 + y**2) / 2), "uniform").pvalue > 1e-6
    # words of zeros give the largest radius, finite and of probability 2^-969; the largest word the
    # smallest
    radius = np.sqrt((pairs**2).sum(1))
    assert np.isfinite(pairs).all() and radius[:, 2].max() < 1e-7
    assert radius[:, 0].min() > 36.4 and 36.6 < radius[:, 0].max() < FARTHEST
    assert np.allclose(radius[:, 1], np.sqrt(2 * np.log(2)), rtol=1e-12)


def test_many_draws_are_those_of_blocks_in_a_row(monkeypatch):
    with jax.enable_x64(True):
        whole = np.asarray(gaussian(key_from_seed(5), 4, (2_001,)))
        monkeypatch.setattr(random, "AT_A_TIME", 64)
        parts = np.asarray(inspect.unwrap(gaussian)(key_from_seed(5), 4, (2_001,)))
    assert np.array_equal(whole, parts) and len(np.unique(whole)) == 2_001


@pytest.mark.parametrize("zeros_before", [0, 1, 2, 9, 14])
def test_small_uniform_numbers_have_all_their_bits(zeros_before):
    """The number whose binary digits are words of zeros, a small word, and a word of random bits:
    exactly."""
    small, last, ones = 2**31 + 12345, 0x9E3779B97F4A7C15, 2**64 - 1
    digits = [0] * zeros_before + [small, *[last] * STREAM_ROUNDS]
    with jax.enable_x64(True):
        table = jnp.asarray(
            [
                [digit, enough, half]
                for digit, enough, half in zip(
                    digits, [2**32, *[ones] * 40], [2**63, *[ones] * 40], strict=False
                )
            ],
            "uint64",
        )
        found, other = map(
            np.asarray, small_and_long(lambda k: (table[k], jnp.full(3, k + 7, "uint64")))
        )
    used = digits[: min(zeros_before + 2, STREAM_ROUNDS)]
    exact = sum(Fraction(digit, 2 ** (64 * (i + 1))) for i, digit in enumerate(used))
    assert found[0] == pytest.approx(float(exact), rel=2.0**-52, abs=0)
    assert (found[1:] == [2.0**-32, 0.5]).all(), "numbers of enough bits stay as they are"
    assert (other == 7).all(), "angles come from the first round"


def test_rare_draws_take_bits_of_their_own(monkeypatch):
    """A first word of zeros is followed by blocks of the counter that nothing else uses."""
    asked = []

    def watched(key, first, second):
        asked.append((first, second))
        one, two = encrypt(key, first, second)
        return jnp.where(first < ROUND, jnp.uint64(0), one), two

    with jax.enable_x64(True):
        monkeypatch.setattr(random, "encrypt", watched)
        key = jnp.asarray(key_from_seed(1))
        with jax.disable_jit():
            drawn = np.asarray(gaussian(key, 3, (7,)))
        blocks = [np.asarray(part) for part in asked[0]], [np.asarray(part) for part in asked[1]]
        word = np.asarray(encrypt(key, *(jnp.asarray(part) for part in blocks[1]))[0])
    assert len(asked) == 2 and all((block[1] == 3).all() for block in blocks)
    assert (blocks[0][0] == range(4)).all() and (
        blocks[1][0] == ROUND + np.arange(4, dtype=np.uint64)
    ).all()
    u = np.array([float(Fraction(int(part), 2**128)) for part in word])
    np.testing.assert_allclose(
        np.hypot(drawn[:3], drawn[4:]), np.sqrt(-2 * np.log(u))[:3], rtol=1e-12
    )


def test_one_rare_draw_among_others_takes_bits_and_the_others_stay():
    """Of one program's draws the smallest decides whether words follow, and they are read by it
    alone."""
    words = [np.array([0, 2**63, 2**40], np.uint64), np.array([2**62, 2**61, 2**61], np.uint64)]
    with jax.enable_x64(True):
        u = np.asarray(
            small_and_long(lambda number: (jnp.asarray(words)[number], jnp.zeros(3, jnp.uint64)))[0]
        )
        plain = np.asarray(
            small_and_long(
                lambda number: (jnp.asarray(words)[number][1:], jnp.zeros(2, jnp.uint64))
            )[0]
        )
    assert u.tolist() == [2.0**62 * 2.0**-128, 0.5, 2.0**-24] and plain.tolist() == [0.5, 2.0**-24]


def test_every_quadrant_of_the_noise_is_reached():
    second = np.arange(4, dtype=np.uint64) + np.uint64(12345 << 40)
    with jax.enable_x64(True):
        x, y = normal_pairs(lambda number: (jnp.full(4, 2**60, "uint64"), jnp.asarray(second)))
        angle = np.linspace(-np.pi / 4, np.pi / 4, 2001)
        cos, sin = map(np.asarray, cos_sin(jnp.asarray(angle)))
    assert np.ptp(np.hypot(x, y)) < 1e-12
    turns = np.sort(np.arctan2(y, x))
    assert np.allclose(np.diff(turns), np.pi / 2, atol=1e-12)
    assert np.abs(cos - np.cos(angle)).max() < 3e-16 and np.abs(sin - np.sin(angle)).max() < 3e-16


def test_public_numbers_of_numpy_are_those_of_the_engine():
    """Prediction draws cosine features without JAX; programs compiled without fused
    multiplications differ in the last bit."""
    for seed, count in ((0, 1), (1, 3), (2, 65_537), (3, 2 * random.PAIRS + 1)):
        key = key_from_seed(seed)
        assert np.array_equal(random.host_stream(key, seed), public_random.stream(key, seed))
        with jax.enable_x64(True):
            even = np.asarray(random.uniform(key, seed, count))
        assert np.array_equal(even, public_random.uniform(key, seed, count))
        drawn = public_random.normals(key, seed, count)
        assert np.abs(drawn - random.normals(key, seed, count)).max() < 4e-15
    first = np.array([0, 2**31, 2**33, 5, 2**63], np.uint64)
    words = np.stack([first, *([np.array([0, 1, 9, 2**40, 3], np.uint64)] * STREAM_ROUNDS)])
    second = np.arange(5, dtype=np.uint64) * np.uint64(2**62 + 77)
    with jax.enable_x64(True):
        table, other = jnp.asarray(words), jnp.asarray(second)
        expected = np.array(normal_pairs(lambda number: (table[number], other)))
    rare = public_random.normal_pairs(lambda number: (words[number], second))
    assert np.abs(np.array(rare) - expected).max() < 4e-15 and np.abs(expected).max() > 20

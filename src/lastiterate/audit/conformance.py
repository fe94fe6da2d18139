"""Check facts that hold with certainty for a correct trainer, the generator of random bits
included."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import jax
import numpy as np

from lastiterate.audit import attacks
from lastiterate.audit.canaries import DataSet, Neighbours, execute
from lastiterate.audit.exact_distribution import ROWS, TARGET, P, compare, noise_p, quadratic_run
from lastiterate.audit.scores import sides, train_in_batches
from lastiterate.engine import Trainer, keys_from_seed
from lastiterate.engine.random import FEW, encrypt
from lastiterate.engine.trainer import Diverged
from lastiterate.errors import InputError
from lastiterate.run.domains import AffineBall, Ball, Box, Everywhere, Simplex
from lastiterate.run.measured_smoothness import without_preparation
from lastiterate.run.methods import snapshots_of
from lastiterate.run.run import Run
from lastiterate.run.step_sizes import FixedStart

# Whether random bits are those of Threefry-4x32-20, which is written out again here, in the audit's
# own code.  No attack on released numbers distinguishes a cipher with fewer rounds, or another
# rotation, from the right one; who knows the difference may. Source: Salmon, Moraes, Dror, Shaw
# 2011, table 2, and the key schedule of Threefish (section 4).

WORDS = "the random bits are not those of Threefry-4x32-20"
ROTATIONS = ((10, 26), (11, 21), (13, 27), (23, 5), (6, 20), (17, 11), (25, 10), (18, 20))
COUNTS = (3, FEW + 1)
"""Blocks at once: the engine has a program for few and one for many."""
SEED = 19


def cipher_violations() -> tuple[str, ...]:
    """In words, if a block of the engine's is another than it should be."""
    rng, keys = np.random.default_rng(SEED), np.asarray(keys_from_seed(SEED, len(COUNTS)))
    for key, count in zip(keys, COUNTS, strict=True):
        first, second = rng.integers(0, 2**64, (2, count), np.uint64)
        with jax.enable_x64(True):
            blocks: list[np.ndarray] = [np.asarray(part) for part in encrypt(key, first, second)]  # pyright: ignore
        if not all(
            np.array_equal(one, two)
            for one, two in zip(blocks, threefry(key, first, second), strict=True)
        ):
            return (WORDS,)
    return ()


def threefry(
    key: np.ndarray, first: np.ndarray, second: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Both halves of every block, uint64, as the paper has it; ``key``: four words of 32 bits."""
    words = [
        part.astype(np.uint32) for pair in (first, second) for part in (pair, pair >> np.uint64(32))
    ]
    schedule = [
        *key.astype(np.uint32),
        np.bitwise_xor.reduce(key.astype(np.uint32)) ^ np.uint32(0x1BD11BDA),
    ]
    with np.errstate(over="ignore"):
        words = [word + part for word, part in zip(words, schedule, strict=False)]
        for number in range(20):
            left, right = ROTATIONS[number % 8]
            words[0], words[2] = words[0] + words[1], words[2] + words[3]
            one, three = (
                _rotate_left(words[1], left) ^ words[0],
                _rotate_left(words[3], right) ^ words[2],
            )
            words[1], words[3] = three, one
            if number % 4 == 3:
                group = number // 4 + 1
                words = [word + schedule[(group + place) % 5] for place, word in enumerate(words)]
                words[3] = words[3] + np.uint32(group)
    return _join_words(words[0], words[1]), _join_words(words[2], words[3])


def _join_words(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    return low.astype(np.uint64) | high.astype(np.uint64) << np.uint64(32)


def _rotate_left(word: np.ndarray, bits: int) -> np.ndarray:
    return word << np.uint32(bits) | word >> np.uint32(32 - bits)


# Whether what an audit executes is what a user executes: facts that hold with certainty for a right
# trainer.  A right trainer's ``fit`` and ``fit_many`` answer one key with one model; a record that
# is absent leaves no trace; what is released lies in the domain; and two fits without a key differ,
# from each other and from models of guessed keys.

SAME = 1e-5
"""Relative distance below which two models are the same: sums of another shape round differently,
by 1.2e-6 where five thousand equal rows were added in single precision."""
JUNK = 3.0
"""What stands in the row of a record that is absent."""
REPLAYED = 2
PLACES = 40
"""Fractional bits of a draw that single precision does not have beyond 2^-16, and double precision
has up to 2^12."""
NOISE_SEED = 17
SNAPSHOTS = 4000
"""Models whose distribution is tested where steps follow snapshots."""


def violations(run: Run, pair: Neighbours, size: int) -> tuple[str, ...]:
    """What does not hold of the run's steps (private preparation is left out), in words; ``size``:
    models at once."""
    run = replace(without_preparation(run), rows_per_record=1)
    return tuple(words for words, holds in CHECKS.items() if not holds(run, pair, size))


def _one_model(run: Run, pair: Neighbours, size: int) -> bool:
    """``fit`` and ``fit_many`` under one key, on both data sets."""
    keys = keys_from_seed(11, 1)

    def fit(
        features: np.ndarray, target: np.ndarray, keys: np.ndarray, absent: tuple[int, ...] = ()
    ) -> np.ndarray:
        return Trainer(run).fit(features, target, keys[0], absent=absent)[None]

    for data_set in (pair.with_record, pair.without_record):
        try:
            one = execute(run, data_set, fit, keys)
            many = train_in_batches(run, data_set, Trainer(run).fit_many, keys, size)
        except Diverged:  # nothing is released
            continue
        scale = max(float(np.abs(many).max()), 1e-300)
        if one.shape != many.shape or not np.abs(one - many).max() <= SAME * scale:
            return False
    return True


def _no_trace(run: Run, pair: Neighbours, size: int) -> bool:
    """Another row and answer of an absent record, and the same model."""
    empty = pair.without_record
    if empty.absent is None:
        return True
    features, target = empty.features.copy(), empty.target.copy()
    features[empty.absent], target[empty.absent] = JUNK, 1
    keys = keys_from_seed(12, 1)
    one, two = (
        train_in_batches(run, data_set, Trainer(run).fit_many, keys, size)
        for data_set in (empty, DataSet(features, target, empty.absent))
    )
    return np.array_equal(one, two, equal_nan=True)


def _fresh(run: Run, pair: Neighbours, size: int) -> bool:
    """Two fits without a key, neither of them from a key that can be guessed; without noise all are
    alike."""
    if not noisy(run):
        return True
    try:
        present, without = attacks.scores(run, pair, REPLAYED, size=size)
    except InputError:
        return True
    return not (present.any() or without.any())


def noisy(run: Run) -> bool:
    """Whether two keys give two models."""
    return not run.method.noisy_steps or bool(run.noise_stds.any())


def _inside(run: Run, pair: Neighbours, size: int) -> bool:
    keys = keys_from_seed(13, size)
    return all(inside(run, execute(run, part, Trainer(run).fit_many, keys)) for part in sides(pair))


def _noise_as_described(run: Run, pair: Neighbours, size: int) -> bool:
    """Where later steps take noise back, the noise of all steps together has the described
    covariance: a strategy that is another one shows in no single step, and need not show on any
    pair."""
    if run.decided_noise.independent:
        return True
    try:
        return noise_p(quadratic_run(run), NOISE_SEED) > P
    except InputError:  # no distribution is written out for its update
        return True


def _law_of_snapshots(run: Run, pair: Neighbours, size: int) -> bool:
    """Check that variance-reduced steps follow their distribution on squared error: a bug that
    stays within its clip shows on no pair."""
    return snapshots_of(run.method) is None or compare(run, models=SNAPSHOTS, seed=NOISE_SEED).holds


def _fine_noise(run: Run, pair: Neighbours, size: int) -> bool:
    """The noise of a first step alone, in units of its deviation, is no multiple of 2^-``PLACES``:
    draws in single precision are, and whoever knows what they were added to reads off whether a
    guess of it is right."""
    try:
        small = replace(quadratic_run(run), start=FixedStart()).truncate(1)
    except InputError:
        return True
    released = Trainer(small).fit_many(0 * ROWS, 0 * TARGET, keys_from_seed(NOISE_SEED, size))
    draws = released[released != 0] / (small.first_step * small.first_noise or 1.0) * 2.0**PLACES
    return draws.size == 0 or bool((np.abs(draws - np.round(draws)) < 2.0**-8).mean() < 0.5)


CHECKS: dict[str, Callable[[Run, Neighbours, int], bool]] = {
    "fit and fit_many give two models under one key": _one_model,
    "the row of an absent record changes the model": _no_trace,
    "a fit's key can be guessed": _fresh,
    "a released model lies outside of the domain": _inside,
    "the noise has fewer binary places than double precision holds": _fine_noise,
    "the noise of all steps has another covariance than the described one": _noise_as_described,
    "what follows snapshots has another law on squared error than the described one": _law_of_snapshots,
}


def inside(run: Run, released: np.ndarray) -> bool:
    """Whether finite released parameters (models, ...) lie in the run's domain, up to rounding."""
    flat = released.reshape(-1, int(np.prod(released.shape[-2:])))
    flat = flat[np.isfinite(flat).all(axis=1)]
    slack = 1e-9
    match run.domain:
        case Everywhere():
            return True
        case Ball(radius):
            return bool((np.linalg.norm(flat, axis=1) <= radius * (1 + slack)).all())
        case Box(low, high):
            return bool(((flat >= low - slack) & (flat <= high + slack)).all())
        case Simplex(total):
            return bool(
                (flat >= -slack).all()
                and (np.abs(flat.sum(1) - total) <= slack * max(total, 1.0)).all()
            )
        case AffineBall(radius):
            normals, offsets = np.asarray(run.domain.normals), np.asarray(run.domain.offsets)
            on = np.abs(flat @ normals.T - offsets) <= slack * (1 + np.abs(offsets))
            return bool(on.all() and (np.linalg.norm(flat, axis=1) <= radius * (1 + slack)).all())
        case _:
            raise InputError("domain", "is not known to audits", type(run.domain).__name__)

"""What the low bits of released numbers show: of noise in single precision whose record it was, of
ours nothing seen.

One step from 0 on a public start: a released number is the mean gradient plus noise, times the
step. Whoever knows all records but one subtracts what either data set would give, and looks whether
the rest lies on the grid of the draws.
"""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

import lastiterate as li
from benchmarks.audit.bugs.noise import of_unit
from lastiterate.audit import conformance, worst_case
from lastiterate.audit.canaries import execute
from lastiterate.engine import Trainer, keys_from_seed

MODELS, PLACES = 4000, 40
RUN = li.Run(
    n=6,
    steps=1,
    step_size=0.37,
    noise=li.GradientNoise(0.61),
    loss=li.HuberRidge(row_norm=1.0, residual_clip=1.0, ridge=0.0, intercept=0.5),
)
PAIR = worst_case(RUN)
FINE = conformance.CHECKS["the noise has fewer binary places than double precision holds"]
"""In every default audit."""
SINGLE = of_unit(lambda k, unit: unit.astype(jnp.float32).astype(jnp.float64))


def models() -> tuple[np.ndarray, np.ndarray]:
    """Released numbers (2 MODELS, p) of both data sets, and which they are of."""
    both = [
        execute(RUN, data, Trainer(RUN).fit_many, keys).reshape(MODELS, -1)
        for data, keys in zip(
            (PAIR.with_record, PAIR.without_record),
            np.split(keys_from_seed(1, 2 * MODELS), 2),
            strict=True,
        )
    ]
    return np.concatenate(both), np.repeat([True, False], MODELS)


def off_grid(released: np.ndarray) -> np.ndarray:
    """How far the noise would lie from the grid of single precision if either data set was the one,
    (2, models)."""
    silent = Trainer(replace(RUN, noise=li.GradientNoise(0.0)))
    found = []
    for data in (PAIR.with_record, PAIR.without_record):
        middle = execute(RUN, data, silent.fit_many, keys_from_seed(1, 1)).ravel()
        draws = (released - middle) / (0.37 * 0.61) * 2.0**PLACES
        found.append(np.abs(draws - np.round(draws)).max(axis=1))
    return np.array(found)


def test_single_precision_tells_whose_model_it_is(patched) -> None:
    """From every model; and the audit of any run says so."""
    patched(*SINGLE)
    released, present = models()
    near = off_grid(released)
    assert ((near[0] < near[1]) == present).mean() > 0.999
    assert not FINE(RUN, PAIR, 64)


def test_the_same_attack_sees_nothing_in_double_precision() -> None:
    """Not a proof: of 8,000 models, neither the grid nor any low bit of a released number goes with
    the data set."""
    released, present = models()
    near = off_grid(released)
    chance = 5 * 0.5 / np.sqrt(2 * MODELS)  # five standard deviations
    assert abs(((near[0] < near[1]) == present).mean() - 0.5) < chance
    words = released.view(np.uint64)
    for column in words.T:
        for bit in range(24):
            assert (
                abs(
                    (((column >> np.uint64(bit)) & np.uint64(1)).astype(bool) == present).mean()
                    - 0.5
                )
                < chance
            )
    assert FINE(RUN, PAIR, 64)


@pytest.mark.parametrize("places", [12, 20])
def test_low_bits_are_those_of_uniform_words(places: int) -> None:
    """The last bits of a released number, seen together: no value comes more often than it should."""
    released, present = models()
    last = (released.view(np.uint64)[:, 0] >> np.uint64(places - 12)) & np.uint64(63)
    for part in (present, ~present):
        counts = np.bincount(last[part].astype(int), minlength=64)
        assert ((counts - MODELS / 64) ** 2).sum() / (MODELS / 64) < 63 + 7 * np.sqrt(126)

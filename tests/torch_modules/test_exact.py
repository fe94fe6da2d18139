"""Modules on exact sums: the same whole numbers as the JAX engine's, with the same noise; folders
read back."""

from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch

import lastiterate as li
from lastiterate.audit import runner
from lastiterate.engine.exact_gradients import RecordGrid
from lastiterate.engine.random import key_from_seed
from lastiterate.errors import InputError
from lastiterate.torch import Grouped
from lastiterate.torch.module_training import fit_module, prepare
from lastiterate.torch.record_gradients import to_theta
from lastiterate.torch.records import take_records
from lastiterate.torch.released_module import exactly

RNG = np.random.default_rng(1)
N = 18
X, Y = RNG.normal(size=(N, 1, 5, 5)).astype(np.float32), RNG.integers(0, 3, N)
RUN = li.Run(
    n=N, steps=4, step_size=0.3, noise=li.GradientNoise(1e-8), clip=0.5, batching=li.Reshuffled(6)
)
LOSS = torch.nn.functional.cross_entropy


def module() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, 2, 3), torch.nn.Tanh(), torch.nn.Flatten(), torch.nn.Linear(18, 3)
    )


@pytest.mark.parametrize("speeds", [{"": 1.0}, {"0": 9.0, "3": 0.5}], ids=str)
def test_sums_are_those_of_whole_numbers_below_the_clip(speeds: dict) -> None:
    prepared, _ = exactly(
        prepare(RUN, Grouped(module(), speeds), LOSS, (X * 5, Y)), key_from_seed(0)
    )
    device = torch.device("cpu")
    theta = to_theta(prepared.initial, device)
    constants, unit = (
        prepared.summed.parameters.copy_constants(torch.float32),
        Fraction(RecordGrid.of(RUN).step),
    )

    def total(numbers: list[int]) -> list[Fraction]:
        part = take_records(prepared.records, torch.tensor(numbers), device)
        return [
            Fraction(float(v)) / unit for v in prepared.summed.chunk_sum(theta, constants, part)
        ]

    each = [total([i]) for i in range(N)]
    assert all(v.denominator == 1 for one in each for v in one)
    lengths = [sum(v * v for v in one) * unit**2 for one in each]
    assert Fraction("0.999") * Fraction(RUN.clip) ** 2 < max(lengths) <= Fraction(RUN.clip) ** 2
    # sums are exact; a record's own numbers may be rounded otherwise where other records lie beside
    # it
    whole = total(list(range(N)))
    assert (
        max(
            abs(a - b) * unit for a, b in zip(whole, map(sum, zip(*each, strict=True)), strict=True)
        )
        < 1e-5
    )
    assert all(v.denominator == 1 for v in whole)


def test_runs_follow_real_arithmetic_and_are_saved(tmp_path: Path) -> None:
    plain = fit_module(RUN, module(), LOSS, (X, Y), key_from_seed(2))[1]
    found = fit_module(
        RUN, module(), LOSS, (X, Y), key_from_seed(2), executed_as=exactly, microbatch=4
    )[1]
    np.testing.assert_allclose(found, plain, atol=2e-5)
    every = fit_module(
        replace(RUN, release="all"),
        module(),
        LOSS,
        (X, Y),
        key_from_seed(2),
        executed_as=exactly,
        microbatch=4,
    )[1]
    np.testing.assert_array_equal(every[-1], found)
    model = li.train(
        replace(RUN, noise=None),
        (X, Y),
        model=module(),
        loss=LOSS,
        epsilon=3.0,
        delta=1e-6,
        secure_noise=True,
    )
    model.save(tmp_path / "m")
    assert li.verify(tmp_path / "m").holds
    with pytest.raises(InputError, match="this release has exact noise"):
        runner.read(tmp_path / "m")
    again = li.load(tmp_path / "m", like=module())
    np.testing.assert_array_equal(again.predict(X), model.predict(X))
    assert any("not proved" in text for text in again.certificate.all_caveats())

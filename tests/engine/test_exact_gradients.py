"""Networks on exact sums: whole numbers checked record by record, real arithmetic followed, folders
read."""

import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lastiterate as li
from lastiterate.engine import key_from_seed
from lastiterate.engine.checkpoint import Checkpoint, Key
from lastiterate.engine.exact_gradients import ExactRecords, RecordGrid, fit_network_exactly
from lastiterate.engine.network import fit_network
from lastiterate.engine.parameters import Form

RNG = np.random.default_rng(0)
N, D = 24, 4
X, Y = RNG.normal(size=(N, D)).astype(np.float32), RNG.integers(0, 3, N)
FIRST = {
    "a": RNG.normal(size=(5, D)).astype(np.float32),
    "b": RNG.normal(size=(3, 5)).astype(np.float32),
    "c": np.zeros(3, np.float32),
}
RUN = li.Run(
    n=N, steps=6, step_size=0.3, noise=li.GradientNoise(1e-8), clip=0.5, batching=li.Permuted(8)
)


def loss(params: dict, row: jax.Array, label: jax.Array) -> jax.Array:
    return -jax.nn.log_softmax(params["b"] @ jnp.tanh(params["a"] @ row) + params["c"])[label]


def objective(run: li.Run, given=loss) -> ExactRecords:
    grid = RecordGrid.of(run)
    return ExactRecords(given, Form.of(FIRST), run.clip, grid.places, grid.most_squared, 32)


def test_sums_are_those_of_whole_numbers_below_the_clip() -> None:
    with jax.enable_x64(True):
        model = objective(RUN)
        theta = model.form.vector(FIRST) * 3
        total = jax.jit(model.chunk_sum)
        real = np.ones(N, np.uint8)
        found = np.asarray(total(theta, (X * 4, Y, real)))
        each = [
            np.asarray(total(theta, (X * 4, Y, (np.arange(N) == i).astype(np.uint8))))
            for i in range(N)
        ]
    unit = Fraction(2) ** -model.places
    whole = [[Fraction(float(v)) / unit for v in one] for one in each]
    assert all(v.denominator == 1 for one in whole for v in one)
    assert all(sum(v * v for v in one) * unit**2 <= Fraction(RUN.clip) ** 2 for one in whole)
    assert max(float(np.linalg.norm(one)) for one in each) > 0.999 * RUN.clip
    with jax.enable_x64(True):  # what is longer than the grid allows counts as none
        assert not np.asarray(replace(model, most_squared=1).chunk_sum(theta, (X, Y, real))).any()
    assert [sum(column) for column in zip(*whole, strict=True)] == [
        Fraction(float(v)) / unit for v in found
    ]


def test_gradients_that_are_no_numbers_count_as_none() -> None:
    def broken(params: dict, row: jax.Array, label: jax.Array) -> jax.Array:
        return jnp.where(label == 2, jnp.inf, 1.0) * (params["b"].sum() * row[0])

    with jax.enable_x64(True):
        model = objective(RUN, broken)
        found = np.asarray(model.chunk_sum(model.form.vector(FIRST), (X, Y, np.ones(N, np.uint8))))
        kept = np.asarray(
            model.chunk_sum(model.form.vector(FIRST), (X, Y, (Y != 2).astype(np.uint8)))
        )
    assert (found == kept).all() and np.abs(found).max() > 0


@pytest.mark.parametrize("n, clip, std", [(50, 1.0, 0.1), (10**6, 0.01, 1e-3), (10**5, 300.0, 5.0)])
def test_no_sum_can_leave_the_exact_numbers(n: int, clip: float, std: float) -> None:
    run = replace(RUN, n=n, clip=clip, noise=li.GradientNoise(std), batching=li.FullBatch())
    grid = RecordGrid.of(run)
    assert (
        n * clip + 20 * std * n
    ) * 2.0**grid.places <= 2**51 and clip * 2.0**grid.places <= 2**30
    unit = Fraction(grid.step) ** 2
    assert grid.most_squared * unit <= Fraction(clip) ** 2 < (grid.most_squared + 1) * unit
    with pytest.raises(li.InputError, match="grid"):
        RecordGrid.of(replace(run, noise=li.GradientNoise(1e12)))
    with pytest.raises(li.InputError, match="clip"):
        RecordGrid.of(replace(run, clip=None))


def test_runs_follow_real_arithmetic_and_resume(tmp_path: Path, interrupted: Any) -> None:
    run = replace(RUN, batching=li.Reshuffled(8))
    plain = fit_network(run, loss, FIRST, (X, Y), key_from_seed(3))
    found = fit_network_exactly(run, loss, FIRST, (X, Y), key_from_seed(3), microbatch=5)
    for name in FIRST:
        np.testing.assert_allclose(found[name], plain[name], atol=2e-5)
    with interrupted(3) as progress:
        fit_network_exactly(
            run,
            loss,
            FIRST,
            (X, Y),
            key_from_seed(3),
            microbatch=5,
            progress=progress,
            checkpoint=Checkpoint(tmp_path / "c", Key(bytes(32)), 0.0),
        )
    again = fit_network_exactly(
        run,
        loss,
        FIRST,
        (X, Y),
        key_from_seed(3),
        microbatch=5,
        checkpoint=Checkpoint(tmp_path / "c", Key(bytes(32)), 0.0),
    )
    assert all((again[name] == found[name]).all() for name in FIRST)


def test_networks_with_exact_noise_are_trained_saved_and_verified(tmp_path: Path) -> None:
    run = replace(RUN, noise=None)
    model = li.train(
        run, (X, Y), model=FIRST, loss=loss, epsilon=3.0, delta=1e-6, secure_noise=True
    )
    assert 2.99 < model.certificate.epsilon(1e-6) <= 3.0
    model.save(tmp_path / "m")
    assert li.verify(tmp_path / "m").holds
    found = li.load(tmp_path / "m", like=FIRST)
    assert all((found.params[name] == model.params[name]).all() for name in FIRST)
    described = json.loads((tmp_path / "m" / "model.json").read_text())
    assert described["kind"] == "exact-network"
    (tmp_path / "m" / "model.json").write_text(json.dumps(described | {"kind": "network"}))
    with pytest.raises(li.InputError, match="about a run"):
        li.load(tmp_path / "m")
    with pytest.raises(li.NotCertified):
        li.train(
            replace(run, clip=None), (X, Y), model=FIRST, loss=loss, epsilon=3.0, secure_noise=True
        )

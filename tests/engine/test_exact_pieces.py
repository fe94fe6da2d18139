"""Exact sums have the same bits in memory, in pieces and on several devices."""

import math
import os
import subprocess
import sys
from dataclasses import replace
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lastiterate as li
from lastiterate.engine import key_from_seed
from lastiterate.engine.exact_linear import (
    ChunkSums,
    ExactLinear,
    execute_exactly,
    grid_of,
    round_to_grid,
)
from lastiterate.engine.exact_noise import draws_of
from lastiterate.engine.exact_residuals import (
    DIGITS,
    INPUT,
    compute_residuals,
    compute_scores,
    round_parameters,
    score_records,
)
from lastiterate.engine.exact_residuals import _exponential as exponential
from lastiterate.engine.linear_gradients import arrange, residuals
from lastiterate.engine.streaming.buffers import Arrays
from lastiterate.engine.streaming.execution import execute_streaming

N = 203
LOSSES = {
    "logistic": li.Logistic(row_norm=1.0, ridge=1e-2),
    "capped": li.Softmax(classes=3, cap=0.4, row_norm=2.0),
    "softmax": li.Softmax(classes=3, row_norm=2.0, ridge=1e-2),
    "weighted": li.Softmax(classes=3, class_weights=(1.0, 0.3, 0.7)),
    "huber": li.HuberRidge(row_norm=1.0, residual_clip=0.5),
}
RUNS = {
    "blocks": dict(batching=li.Cyclic(40)),
    "allocated": dict(batching=li.RandomAllocation(64), clip=0.3),
    "sorted": dict(batching=li.Permuted(37), preprocessing=(li.PrivateMean(1.0, 2.0),)),
    "whole": dict(optimizer=li.HeavyBall(0.9)),
}


def run_of(loss, **more):
    return li.Run(
        **(dict(n=N, steps=9, step_size=0.3, noise=li.GradientNoise(0.05), loss=loss) | more)
    )


def records(loss, d=5, n=N):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, d)).astype(np.float32)
    y = rng.uniform(-1, 1, n) if isinstance(loss, li.HuberRidge) else rng.integers(0, 2, n)
    return x, y


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_pieces_give_the_bits_of_memory(loss, name):
    run, (x, y) = run_of(loss, **RUNS[name]), records(loss)

    class Uneven(Arrays):
        def pieces(self, most, first=0):
            return super().pieces(min(most, 17), first)

    whole = execute_exactly(run, x, y, key_from_seed(3))
    pieces = execute_streaming(run, Uneven((x, y)), key_from_seed(3), exact=True)
    assert pieces.weights.tobytes() == whole.weights.tobytes()
    assert [part.tobytes() for part in pieces.released] == [
        part.tobytes() for part in whole.released
    ]
    other = execute_streaming(run, Arrays((x, y)), key_from_seed(4), exact=True)
    assert (other.weights != whole.weights).all()


@pytest.mark.parametrize("batching", [li.FullBatch(), li.Cyclic(40), li.Permuted(40)], ids=str)
def test_records_are_read_once_for_all_epochs(batching):
    run, (x, y) = run_of(LOSSES["softmax"], batching=batching), records(LOSSES["softmax"])
    run, read = replace(run, steps=6 * run.blocks), []

    class Counted(Arrays):
        dear = True

        def pieces(self, most, first=0):
            for piece in super().pieces(most, first):
                read.append(len(piece[0]))
                yield piece

    execute_streaming(run, Counted((x, y)), key_from_seed(3), exact=True)
    assert N <= sum(read) < 1.1 * N


def test_every_step_adds_its_own_noise_once():
    """Each iterate follows from the one before, the exact sum of its batch, and the draws of its
    step."""
    loss = LOSSES["softmax"]
    run, (x, y), key = run_of(loss, release="all", steps=4), records(loss), key_from_seed(3)
    grid, size = grid_of(run), (3, 6)
    iterates = execute_exactly(run, x, y, key).weights
    rows, labels = arrange(run, x, y)
    rows = round_to_grid(rows.reshape(-1, 6), loss, grid)
    sums, draws = ChunkSums(ExactLinear.of(run, grid)), draws_of(run, grid.step, key)
    theta, seen = np.zeros(size), []
    for k, after in enumerate(iterates):
        noise = draws(k, k + 1, 1, size)[0]
        mean = (sums(theta, (rows, labels.ravel())) + noise) / N
        np.testing.assert_allclose(
            after, theta - 0.3 * (mean + loss.ridge * theta), rtol=0, atol=1e-12
        )
        theta = after
        seen.append(noise / N)
    assert 0.03 < np.std(seen) < 0.07 and len({part.tobytes() for part in seen}) == 4


@pytest.mark.parametrize("classes", [2, 3])
def test_calibrated_probabilities_have_the_same_bits(classes):
    loss = li.Logistic() if classes == 2 else li.Softmax(classes=3)
    run, (x, y) = run_of(loss, probability_calibration=li.Calibration(5.0)), records(loss)
    whole = execute_exactly(run, x, y, key_from_seed(3)).weights
    plain = replace(run, probability_calibration=None)
    assert (execute_exactly(plain, x, y, key_from_seed(3)).weights != whole).any()
    pieces = execute_streaming(run, Arrays((x, y)), key_from_seed(3), exact=True).weights
    assert pieces.tobytes() == whole.tobytes()


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_no_place_changes_a_record(loss):
    """The sum over a chunk is that of its records alone, in any order and any company; a shape in
    which the order of floating-point sums follows from the place."""
    run, (x, y) = run_of(loss, n=257), records(loss, 511, 257)
    grid = grid_of(run)
    rows = round_to_grid(
        np.column_stack([x / 30, np.full(257, loss.intercept)]).astype(np.float32), loss, grid
    )
    theta = np.random.default_rng(1).normal(size=(loss.outputs, 512)) * 9
    y = y.astype(np.float32 if isinstance(loss, li.HuberRidge) else np.int32)
    sums = ChunkSums(ExactLinear.of(run, grid))
    whole = sums(theta, (rows, y))
    order = np.random.default_rng(2).permutation(257)
    assert sums(theta, (rows[order], y[order])).tobytes() == whole.tobytes()
    parts = np.split(order, (1, 3, 70, 200))
    added = sum(sums(theta, (rows[part], y[part])) for part in parts)
    assert added.tobytes() == whole.tobytes()
    longer = [np.concatenate([part] * 5) for part in (rows, y)]  # several chunks
    assert (sums(theta, tuple(longer)) == 5 * whole).all()


def test_scores_are_sums_without_rounding():
    """Against fractions, at parameters of all sizes; and close to the parameters' own scores."""
    rng = np.random.default_rng(3)
    places, norm = 20, 1
    rows = np.trunc(rng.normal(size=(9, 40)) * 2.0**places / 8) * 2.0**-places
    rows *= np.minimum(1, 1.9 / np.linalg.norm(rows, axis=1))[:, None]
    rows = np.trunc(rows * 2.0**places) * 2.0**-places
    for size in (1.0, 1e-250, 1e-9, 1e9, 1e290):
        theta = rng.normal(size=(3, 40)) * size
        whole, scale = round_parameters(np, theta, places, norm)
        assert (whole == np.trunc(whole)).all() and math.frexp(float(scale))[0] == 0.5
        most = max(
            sum(abs(Fraction(float(a)) * Fraction(float(b))) for a, b in zip(one, row, strict=True))
            for one in whole
            for row in rows
        )
        assert most * 2**places <= 2**53
        found = compute_scores(np, theta, rows, places, norm)
        for i, one in enumerate(whole):
            for j, row in enumerate(rows):
                exact = sum(
                    Fraction(float(a)) * Fraction(float(b)) for a, b in zip(one, row, strict=True)
                )
                assert Fraction(float(found[i, j])) == exact * Fraction(float(scale))
        np.testing.assert_allclose(found, theta @ rows.T, atol=2e-7 * size)
        with jax.enable_x64(True):
            assert np.asarray(compute_scores(jnp, theta, rows, places, norm)).tobytes() == (
                found.tobytes()
            )
        np.testing.assert_array_equal(score_records(theta, rows, places, norm), found.T)


@pytest.mark.parametrize("places", [4, 20])
def test_the_largest_sum_is_not_rounded(places):
    """Rows along parameters of equal size, which Cauchy's inequality is an equation for."""
    d, norm = 64, 1
    row = np.full((1, d), 2.0**norm / 8)
    theta = np.full((1, d), 1 - 2.0**-30) * 2.0**7
    whole, _ = round_parameters(np, theta, places, norm)
    assert 2.0**52 < whole.sum() * float(row[0, 0]) * 2.0**places <= 2.0**53


def test_residuals_beyond_their_bound_count_as_none():
    loss = LOSSES["softmax"]
    run, (x, y) = run_of(loss), records(loss)
    grid = grid_of(run)
    rows = round_to_grid(np.column_stack([x / 9, np.ones(N)]).astype(np.float32), loss, grid)
    model, theta = ExactLinear.of(run, grid), np.ones((3, 6))
    chunk = rows, y.astype(np.int32)
    assert ChunkSums(model)(theta, chunk).any()
    assert not ChunkSums(replace(model, most_squared=np.int64(0)))(theta, chunk).any()


def test_exponentials_are_those_of_the_reals():
    x = np.concatenate([np.linspace(0, 64, 20_001), [0, 2.0**-INPUT, 0.5, math.log(2), 64]])
    units = np.floor(x * 2.0**INPUT).astype(np.int64)
    with jax.enable_x64(True):
        found = np.asarray(exponential(jnp.asarray(units))) / 2.0**DIGITS
    np.testing.assert_allclose(found, np.exp(-units / 2.0**INPUT), rtol=0, atol=2e-9)
    assert found[0] <= 1 and (found >= 0).all()


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_residuals_are_those_of_the_loss(loss):
    rng = np.random.default_rng(5)
    scores = rng.normal(size=(loss.outputs, 500)) * 8
    target = records(loss, n=500)[1].astype(
        np.float32 if isinstance(loss, li.HuberRidge) else np.int32
    )
    with jax.enable_x64(True):
        found = np.asarray(compute_residuals(loss, jnp.asarray(scores), jnp.asarray(target)))
        plain = np.asarray(residuals(loss, jnp.asarray(scores), jnp.asarray(target)))
        np.testing.assert_allclose(found, plain, rtol=0, atol=1e-8)
        for bad in (np.nan, np.inf):
            scores[0, 7] = bad
            found = np.asarray(compute_residuals(loss, jnp.asarray(scores), jnp.asarray(target)))
            assert not found[:, 7].any() and np.isfinite(found).all()


DEVICES = """
import numpy as np, jax, lastiterate as li
from lastiterate.engine import key_from_seed
from lastiterate.engine.exact_linear import execute_exactly
assert len(jax.devices()) == 3
rng = np.random.default_rng(0)
x, y = rng.normal(size=(2100, 4)).astype(np.float32), rng.integers(0, 3, 2100)
run = li.Run(n=2100, steps=3, step_size=0.3, noise=li.GradientNoise(0.05), loss=li.Softmax(classes=3))
put, used = jax.device_put, set()
jax.device_put = lambda value, device=None: used.add(device) or put(value, device)
model = li.train(run, (x, y), seed=1, devices=3, delta=1e-5, secure_noise=True)
assert used == set(jax.devices())
alone = li.train(run, (x, y), seed=1, delta=1e-5, secure_noise=True)
assert model.released.weights.tobytes() == alone.released.weights.tobytes()
assert model.certificate.to_json(1e-5) == alone.certificate.to_json(1e-5)
print("done")
"""


def test_three_devices_give_the_bits_of_one():
    flags = "--xla_force_host_platform_device_count=3 --xla_backend_optimization_level=0"
    ran = subprocess.run(
        [sys.executable, "-c", DEVICES],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "XLA_FLAGS": flags},
    )
    assert ran.returncode == 0 and ran.stdout.split()[-1] == "done", ran.stderr[-2000:]


def test_sources_train_with_exact_noise(tmp_path):
    """A saved model of pieces is one of exact noise, and its certificate holds."""
    loss = LOSSES["logistic"]
    x, y = records(loss)
    run = run_of(loss, batching=li.Cyclic(40), noise=li.NoiseMultiplier(4.0))
    model = li.train(run, Arrays((x, y)), seed=1, delta=1e-5, secure_noise=True)
    whole = li.train(run, (x, y), seed=1, delta=1e-5, secure_noise=True)
    assert model.released.weights.tobytes() == whole.released.weights.tobytes()
    model.save(tmp_path / "model")
    assert li.load(tmp_path / "model").form == "exact" and li.verify(tmp_path / "model")


def test_a_stopped_run_resumes_with_the_same_bits(kept, interrupted):
    loss = LOSSES["softmax"]
    x, y = records(loss)
    run = run_of(loss, batching=li.Cyclic(40))
    how = dict(seed=1, delta=1e-5, secure_noise=True)
    whole = li.train(run, (x, y), **how).released.weights
    with interrupted(4) as progress:
        li.train(run, Arrays((x, y)), progress=progress, **how, **kept)
    again = li.train(run, Arrays((x, y)), **how, **kept).released.weights
    assert again.tobytes() == whole.tobytes()

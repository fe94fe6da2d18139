"""Networks on exact sums: whole numbers checked record by record, real arithmetic followed, folders
read."""

import json
import tracemalloc
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
from lastiterate.engine.exact_gradients import (
    ExactRecords,
    RecordGrid,
    RecordSums,
    fit_network_exactly,
)
from lastiterate.engine.exact_noise import draws_of
from lastiterate.engine.network import fit_network, prepare_loop
from lastiterate.engine.parameters import Form
from lastiterate.engine.streaming import execution
from lastiterate.engine.streaming.buffers import Arrays
from lastiterate.engine.streaming.execution import fit_streaming, shares
from lastiterate.engine.streaming.sorting import Passes
from lastiterate.jax import private

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


# Records that come in pieces.

M, WIDTH = 61, 67
ROWS, LABELS = RNG.normal(size=(M, D)).astype(np.float32), RNG.integers(0, 3, M)
WIDE = {
    "a": RNG.normal(size=(WIDTH, D)).astype(np.float32),
    "b": RNG.normal(size=(3, WIDTH)).astype(np.float32) / 8,
    "c": np.zeros(3, np.float32),
}
LONG = replace(RUN, n=M, noise=li.GradientNoise(0.01), steps=9)
BATCHINGS = [
    li.FullBatch(),
    li.Cyclic(15),
    li.Permuted(15),
    li.Reshuffled(15),
    li.RandomAllocation(15),
    li.BallsInBins(15),
]


class Uneven(Arrays):
    """Pieces that cut chunks anywhere."""

    dear = True

    def pieces(self, most: int, first: int = 0) -> Any:
        return super().pieces(min(most, 7), first)


def same_bits(one: dict, other: dict) -> bool:
    return all(one[name].tobytes() == other[name].tobytes() for name in one)


@pytest.fixture
def small(monkeypatch: Any) -> None:
    """Calls, shares and buckets of a few records."""
    monkeypatch.setattr("lastiterate.engine.exact_gradients.AT_ONCE", 240)
    monkeypatch.setattr("lastiterate.engine.streaming.execution.AT_ONCE", 240)
    monkeypatch.setattr("lastiterate.engine.streaming.sorting.BUCKET", 300)


@pytest.mark.parametrize("batching", BATCHINGS, ids=str)
def test_pieces_give_the_bits_of_memory(batching: Any, small: None) -> None:
    """Chunks of 4 records, several of which are summed in one call, the last one of fewer."""
    run, source = replace(LONG, batching=batching), Uneven((ROWS, LABELS))
    given = dict(key=key_from_seed(3), microbatch=4)
    whole = fit_network_exactly(run, loss, WIDE, (ROWS, LABELS), **given)
    found = fit_streaming(run, loss, WIDE, source, exact=True, **given)
    assert same_bits(found, whole)
    other = fit_streaming(run, loss, WIDE, source, exact=True, key=key_from_seed(4), microbatch=4)
    assert not same_bits(other, whole)


@pytest.mark.parametrize("batching", [li.Cyclic(15), li.Permuted(15)], ids=str)
def test_draws_and_optimizers_have_the_bits_of_memory(batching: Any, small: None) -> None:
    def shaken(key: jax.Array, row: jax.Array) -> jax.Array:
        return row + jax.random.normal(key, row.shape)

    optax = pytest.importorskip("optax")
    run = replace(
        LONG,
        batching=batching,
        noise=li.GradientNoise(1e-8),
        augmentation=li.RecordAugmentation("shaken", 2),
        step_size=1.0,
        optimizer=li.PostProcessing(),
    )
    given = dict(key=key_from_seed(3), augment=shaken, optimizer=optax.adam(0.1), microbatch=4)
    whole = fit_network_exactly(run, loss, WIDE, (ROWS, LABELS), **given)
    found = fit_streaming(run, loss, WIDE, Uneven((ROWS, LABELS)), exact=True, **given)
    assert same_bits(found, whole)
    plain = fit_network(run, loss, WIDE, (ROWS, LABELS), **given)
    np.testing.assert_allclose(plain["a"], whole["a"], atol=1e-3)


@pytest.mark.parametrize("batching", [*BATCHINGS, li.Poisson(0.2)], ids=str)
def test_records_are_vectorised_where_their_order_is_public_alone(batching: Any) -> None:
    """Anywhere else a record's place in a chunk follows from a draw, or from how pieces come."""
    run = replace(LONG, batching=batching)
    plain = prepare_loop(run, loss, WIDE, (ROWS, LABELS))[0].objective
    summed = RecordSums.of(run, plain, (ROWS, LABELS))
    assert summed.objective.alone == (type(batching) not in (li.FullBatch, li.Cyclic))


@pytest.mark.parametrize("parts", [1, 2, 3])
def test_chunks_of_public_batches_are_never_parted(parts: int, small: None) -> None:
    """Of all processes every record is in one share, in its place of its chunk."""
    run, found = replace(LONG, batching=li.Cyclic(15), steps=5), dict[int, list[np.ndarray]]()
    for part in range(parts):
        source = Uneven((np.arange(M, dtype=np.float32)[:, None] * np.ones(D, np.float32), LABELS))
        passes = Passes(run, source, lambda piece: piece, key_from_seed(0), part=(part, parts))
        step = 0
        for last, piece in shares(passes, 0, 4):
            rows = np.zeros(0) if piece is None else piece[0][:, 0].astype(int)
            found.setdefault(step, []).extend(np.split(rows, range(4, len(rows), 4)))
            step += last
        assert step == 5
    begin = 0
    for step in range(5):
        chunks = sorted((each.tolist() for each in found[step] if len(each)), key=min)
        size = sum(map(len, chunks))
        assert chunks == [[*range(begin + i, begin + min(i + 4, size))] for i in range(0, size, 4)]
        begin += size
    assert begin == M


def test_runs_on_pieces_keep_chunks_together(monkeypatch: Any) -> None:
    asked, plain = [], execution.shares
    monkeypatch.setattr(execution, "shares", lambda *given: asked.append(given[2]) or plain(*given))
    run = replace(LONG, batching=li.Cyclic(15), steps=2)
    fit_streaming(run, loss, WIDE, Uneven((ROWS, LABELS)), exact=True, microbatch=4)
    assert asked == [4]


def test_every_step_adds_its_own_noise_once() -> None:
    """Each iterate follows from the one before, the exact sum of its batch and its step's draws."""
    run, key = replace(LONG, batching=li.FullBatch(), release="all", steps=4), key_from_seed(3)
    every = fit_network_exactly(run, loss, WIDE, (ROWS, LABELS), key)
    draws = draws_of(run, RecordGrid.of(run).step, key)
    with jax.enable_x64(True):
        model = replace(objective(run), form=Form.of(WIDE), most=M)
        theta, seen = np.asarray(model.form.vector(WIDE)), []
        for k in range(4):
            noise = draws(k, k + 1, 1, theta.shape)[0]
            chunk = ROWS, LABELS, np.ones(M, np.uint8)
            theta = theta - 0.3 * (np.asarray(model.chunk_sum(theta, chunk)) + noise) / M
            after = model.form.vector(jax.tree.map(lambda a, k=k: a[k], every))
            np.testing.assert_allclose(after, theta, rtol=0, atol=1e-6)
            seen.append(noise / M)
    assert 0.008 < np.std(seen) < 0.012 and len({part.tobytes() for part in seen}) == 4


def test_sources_train_networks_with_exact_noise(
    tmp_path: Path, kept: Any, interrupted: Any
) -> None:
    run = replace(LONG, noise=li.NoiseMultiplier(8.0), batching=li.Cyclic(15))
    given = dict(model=WIDE, loss=loss, seed=1, delta=1e-5, secure_noise=True)
    whole = li.train(run, (ROWS, LABELS), **given)
    with interrupted(4) as progress:
        li.train(run, Uneven((ROWS, LABELS)), progress=progress, **given, **kept)
    found = li.train(run, Uneven((ROWS, LABELS)), **given, **kept)
    assert same_bits(found.params, whole.params)
    assert found.certificate.to_json(1e-5) == whole.certificate.to_json(1e-5)
    found.save(tmp_path / "m")
    assert li.load(tmp_path / "m", like=WIDE).form == "exact-network"
    assert li.verify(tmp_path / "m").holds
    with interrupted(4) as progress:
        li.train(run, Uneven((ROWS, LABELS)), progress=progress, **given, **kept)
    with pytest.raises(li.InputError, match="checkpoint"):  # plain sums of another arithmetic
        li.train(run, Uneven((ROWS, LABELS)), **{**given, "secure_noise": False}, **kept)


@pytest.mark.parametrize("release", ["last", "all"])
def test_a_loop_of_ones_own_makes_the_same_steps(release: Any) -> None:
    run = replace(LONG, noise=li.NoiseMultiplier(8.0), batching=li.Cyclic(15), release=release)
    given = dict(seed=1, delta=1e-5, secure_noise=True)
    whole = li.train(run, (ROWS, LABELS), model=WIDE, loss=loss, **given).params
    held = (ROWS, LABELS)
    for records in [held] + [Uneven(held)] * (release == "last"):  # sources release no others
        pair = private(run, loss, **given)
        state, done = pair.init(WIDE, records), 0
        while state.done < state.steps:
            state, done = pair.update(state), done + 1
            if release == "all":
                one = pair.parameters(state)
                assert same_bits(one, jax.tree.map(lambda a, k=done: a[k - 1], whole))
        assert done == run.steps and same_bits(pair.release(state).params, whole)


def test_memory_does_not_grow_with_the_records() -> None:
    """Records of 80 MB that a function makes are summed in a fraction of that."""
    n, d = 100_000, 200

    def make(first: int, count: int) -> Any:
        each = np.arange(first, first + count, dtype=np.float32)
        return np.sin(np.add.outer(each, np.arange(d, dtype=np.float32))), each

    def square(params: jax.Array, row: jax.Array, number: jax.Array) -> jax.Array:
        return (row @ params - jnp.cos(number)) ** 2

    run = replace(LONG, n=n, steps=2, batching=li.FullBatch(), noise=li.GradientNoise(1e-3))
    source, first = li.data.Generated(n, make), np.zeros(d, np.float32)
    tracemalloc.start()
    try:
        found = fit_streaming(run, square, first, source, exact=True, key=key_from_seed(0))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < n * d * 4 / 4 and np.isfinite(found).all()

"""Records that come in pieces: the same draws, the same noise and the same model as in memory, and
nothing on disk."""

import os
import signal
import subprocess
import sys
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest

import lastiterate as li
from lastiterate.engine import execute, key_from_seed
from lastiterate.engine.checkpoint import Checkpoint, Key
from lastiterate.engine.linear_gradients import hidden
from lastiterate.engine.network import fit_network
from lastiterate.engine.noise import ahead
from lastiterate.engine.random import bits, words_between
from lastiterate.engine.samplers import TABLE
from lastiterate.engine.streaming import buffers, scratch, sorting
from lastiterate.engine.streaming.buffers import Shape
from lastiterate.engine.streaming.execution import (
    Rows,
    execute_streaming,
    fit_streaming,
    iterate_streaming,
)
from lastiterate.engine.streaming.scratch import Scratch
from lastiterate.engine.streaming.sorting import Cuts, Passes, SortedSource, SortOrder, batch_counts
from lastiterate.engine.streaming.source import RecordForm, check_streams, count_records, regroup
from lastiterate.engine.streaming.steps import iterate_buffers
from lastiterate.errors import InputError
from tiers import unless

N, D = 103, 3
RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(N, D)).astype(np.float32), RNG.integers(0, 3, N)
COMMON = dict(
    n=N,
    steps=17,
    step_size=0.3,
    noise=li.GradientNoise(0.01),
    loss=li.Softmax(classes=3, ridge=1e-2),
)
BATCHINGS = [
    li.FullBatch(),
    li.Cyclic(20),
    li.Permuted(20),
    li.Reshuffled(20),
    li.RandomAllocation(20),
    li.BallsInBins(20),
]
PRELUDE = dict(
    preprocessing=(li.PrivateMean(1.0, 2.0), li.TopEigenvalue(1.0)),
    step_size=li.RelativeToSmooth(1.0),
    noise=li.NoiseMultiplier(1.0),
)
CORRELATED = dict(noise=li.Correlated(1.0, 7, decay=0.5))
WHITENED = dict(
    preprocessing=(li.PrivateMean(1.0, 2.0), li.PrivateCovariance(1.0, row_norm=1.0)),
    optimizer=li.HeavyBall(0.5),
    step_size=li.StableSteps((0.3,) * 17),
    loss=li.Softmax(classes=3, row_norm=1.5),
    noise=li.NoiseMultiplier(1.0),
)
MORE = {"plain": {}, "preprocessing": PRELUDE, "correlated": CORRELATED, "whitened": WHITENED}


@dataclass(frozen=True)
class Held:
    """Arrays as a source; ``dear`` ones are kept in a scratch file."""

    arrays: tuple = (X, Y)
    dear: bool = False

    def __len__(self):
        return len(self.arrays[0])

    def pieces(self, most, first=0):
        for begin in range(first, len(self), most):
            yield tuple(part[begin : begin + most] for part in self.arrays)

    def fingerprint(self):
        return iter(self.arrays)


@pytest.fixture
def small(monkeypatch):
    """Pieces, buckets, pages and buffers of a few records, so that every boundary is crossed."""
    monkeypatch.setattr("lastiterate.engine.streaming.source.AT_ONCE", 150)
    monkeypatch.setattr("lastiterate.engine.streaming.sorting.SCATTERED", 150)
    monkeypatch.setattr(sorting, "BUCKET", 300)
    monkeypatch.setattr(sorting, "BUFFERS", 2000)
    monkeypatch.setattr(sorting, "WORDS", 32)
    monkeypatch.setattr(buffers, "BUFFER", 1500)
    monkeypatch.setattr(buffers, "PAGE", 400)
    monkeypatch.setattr("lastiterate.engine.streaming.scratch.PAGE", 100)


def test_every_batching_streams_or_is_refused():
    assert {type(batching) for batching in BATCHINGS} == {kind for kind in TABLE if kind.streams}
    for kind in (kind for kind in TABLE if not kind.streams):
        run = li.Run(batching=kind(0.1) if kind is li.Poisson else kind(5), **COMMON)
        with pytest.raises(InputError, match="needs random access"):
            execute_streaming(run, Held(), key_from_seed(0))
    objective = li.ObjectivePerturbation(3 * (D + 1), 0.3)
    with pytest.raises(InputError, match="must add noise to every step's gradient"):
        check_streams(
            SimpleNamespace(
                rows_per_record=1, batching=li.FullBatch(), method=objective, release="last"
            )
        )
    with pytest.raises(InputError, match="must be 'last' where records are read in pieces"):
        execute_streaming(
            li.Run(batching=li.Cyclic(5), **COMMON, release="all"), Held(), key_from_seed(0)
        )


CELLS = [(name, batching) for name in MORE for batching in BATCHINGS]
WITH = {
    "preprocessing": (li.Cyclic, li.Permuted),
    "correlated": (li.FullBatch, li.RandomAllocation),
    "whitened": (li.Cyclic, li.RandomAllocation),
}
"""Batchings that are streamed with it always, one in order and one that is sorted; without both all
are."""


@pytest.mark.parametrize(
    "name, batching",
    unless(lambda cell: isinstance(cell[1], WITH.get(cell[0], object)), CELLS),
    ids=str,
)
def test_the_model_is_the_one_of_a_run_in_memory(name, batching, small, tmp_path):
    """To the rounding of another order of compiled operations; a single record elsewhere moves it
    by 1e-3."""
    more = MORE[name]
    dear = bool(more) == (batching.streams != "in order")  # kept in a scratch file, or read anew
    run = li.Run(**COMMON | more, batching=batching)
    held, found = (
        execute(run, X, Y, key_from_seed(3)),
        execute_streaming(run, Held(dear=dear), key_from_seed(3), folder=tmp_path),
    )
    single = type(batching) is li.Reshuffled and not hidden(
        run
    )  # other orders in a block, sums of single precision
    np.testing.assert_allclose(found.weights, held.weights, rtol=0, atol=1e-7 if single else 1e-13)
    for one, other in zip(found.released, held.released, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12)
    other = execute_streaming(run, Held((np.roll(X, 1, 0), Y)), key_from_seed(3))
    assert np.abs(other.weights - held.weights).max() > 1e-4
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "batching", [li.Cyclic(20), li.BallsInBins(20), li.RandomAllocation(20)], ids=str
)
def test_rows_are_arranged_once_where_there_is_space(batching, small, monkeypatch):
    """They are read again from a scratch file, bit for bit; where that would take too much space,
    from the source."""
    run, found, reads = li.Run(**COMMON, batching=batching), [], []

    class Counted(Held):
        def pieces(self, most, first=0):
            for piece in Held.pieces(self, most, first):
                reads[-1] += len(piece[0]) * (most > 1)
                yield piece

    for free in (10**12, 0):
        monkeypatch.setattr(
            scratch.shutil, "disk_usage", lambda _, free=free: SimpleNamespace(free=free)
        )
        reads.append(0)
        found.append(execute_streaming(run, Counted(), key_from_seed(3)).weights)
    assert reads[0] == N and reads[1] == {"once": 1}.get(batching.drawn, 3) * N
    np.testing.assert_array_equal(found[0], found[1])


@pytest.mark.parametrize(
    "batching", [li.Cyclic(20), li.Permuted(20), li.RandomAllocation(20)], ids=str
)
def test_records_that_change_in_the_last_pass_are_never_released(batching, small):
    run, asked = li.Run(**COMMON, batching=batching), []

    class Changing(Held):
        def check(self):
            asked.append(len(asked))
            if asked[-1] == last[0]:
                raise InputError("data file", "changed while it was read")

    last = [-1]
    execute_streaming(run, Changing(), key_from_seed(3))
    assert len(asked) >= 3, "in every pass, and at the end"
    last[0], asked[:] = len(asked) - 1, []
    with pytest.raises(InputError, match="changed"):
        execute_streaming(run, Changing(), key_from_seed(3))


def test_pieces_of_any_size_give_the_same_bits(small):
    """Only the chunks of a batch decide the order of sums, not the pieces that a source comes in."""
    run, found = li.Run(**COMMON, batching=li.RandomAllocation(20)), []
    for most in (1, 7, 1000):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("lastiterate.engine.streaming.sorting.SCATTERED", 20 * most)
            found.append(execute_streaming(run, Held(), key_from_seed(3)).weights)
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])


def loss(params, row, label):
    return -jax.nn.log_softmax(jax.numpy.tanh(row @ params["in"]) @ params["out"])[label]


NETWORK = dict(n=N, steps=9, step_size=0.3, noise=li.GradientNoise(0.01), clip=1.0)


@pytest.mark.parametrize("batching", [li.FullBatch(), li.Permuted(20), li.Reshuffled(20)], ids=str)
@pytest.mark.parametrize("size", [50, 1500], ids="buffers of {} bytes".format)
def test_single_steps_are_those_of_the_whole_run(batching, size, small, monkeypatch):
    """Where a buffer holds several steps, and where a step takes several buffers."""
    monkeypatch.setattr(buffers, "BUFFER", size)
    run, first = li.Run(**NETWORK, batching=batching), {"in": np.ones((D, 4)), "out": np.eye(4, 3)}
    given = run, loss, first, Held(), key_from_seed(3)
    steps, done = iterate_streaming(*given, microbatch=8, by_step=True), []
    try:
        while True:
            done.append(next(steps).done)
    except StopIteration as end:
        found = end.value
    assert done == [*range(10)]
    whole = fit_streaming(*given, microbatch=8)
    assert all(np.array_equal(found[name], whole[name]) for name in first)


def test_networks_are_the_ones_of_a_run_in_memory(small):
    first = {"in": RNG.normal(size=(D, 4)).astype(np.float32), "out": np.zeros((4, 3), np.float32)}
    run = li.Run(**NETWORK, batching=li.RandomAllocation(20))
    held = fit_network(run, loss, first, (X, Y), key_from_seed(3), microbatch=8)
    found = fit_streaming(run, loss, first, Held(), key_from_seed(3), microbatch=8)
    for name in first:
        np.testing.assert_allclose(found[name], held[name], rtol=0, atol=1e-6)
    assert np.abs(found["out"]).max() > 0.01


@pytest.mark.parametrize(
    "more", [{}, CORRELATED, WHITENED], ids=["plain", "correlated", "whitened"]
)
@pytest.mark.parametrize(
    "batching", [li.Cyclic(20), li.Permuted(20), li.RandomAllocation(20)], ids=str
)
def test_a_resumed_run_releases_the_same_bits(batching, more, small, tmp_path, interrupted):
    run, path, key = li.Run(**COMMON | more, batching=batching), tmp_path / "c", Key(bytes(32))
    whole = execute_streaming(run, Held(), key_from_seed(5)).weights
    for step in (2, 8, 15):  # in the first pass, in a later one, in the last one
        with interrupted(step) as progress:
            execute_streaming(run, Held(), key_from_seed(5), progress, Checkpoint(path, key, 0.0))
    checkpoint = Checkpoint(path, key, 0.0)
    found = execute_streaming(run, Held(), key_from_seed(5), None, checkpoint).weights
    np.testing.assert_array_equal(found, whole)
    with pytest.raises(InputError, match="other data"):
        execute_streaming(run, Held((X + 1, Y)), key_from_seed(5), None, Checkpoint(path, key, 0.0))


def test_words_of_a_range_are_those_of_the_whole():
    with jax.enable_x64(True):
        for count in (1, 6, 101):
            whole = np.asarray(bits(key_from_seed(2), 5, count))
            for first in (0, count // 2 - 1, count // 2):
                part = np.asarray(words_between(key_from_seed(2), 5, count, max(0, first), 3))
                np.testing.assert_array_equal(
                    part[: count - max(0, first)], whole[max(0, first) : max(0, first) + 3]
                )


@pytest.mark.parametrize("end", [None, 4, 97])
def test_sorting_is_a_stable_sort_by_words(end, small, tmp_path):
    order = SortOrder(key_from_seed(1), N, end)
    words = np.concatenate(list(order.words()))
    assert len(set(words.tolist())) <= (N if end is None else end)
    found = SortedSource(RecordForm.of((X, Y)), order, tmp_path)
    found.fill(Held().pieces(9))
    expected = np.argsort(words, kind="stable")
    for first in (0, 1, 40, N - 1, N):
        rows = [piece[0] for piece in found.pieces(first)]
        np.testing.assert_array_equal(np.concatenate(rows or [X[:0]]), X[expected][first:])
    if end is not None:
        np.testing.assert_array_equal(found.sizes, np.bincount(words.astype(int), minlength=end))
    found.close()


@pytest.mark.parametrize("end", [None, 7])
def test_every_process_knows_what_all_of_them_sort(end, small):
    order, size = SortOrder(key_from_seed(4), N, end), 20
    words = np.concatenate(list(order.words()))
    ranks = np.argsort(np.argsort(words, kind="stable"))
    batch, process = (ranks // size if end is None else words.astype(int)), np.arange(N) // 35
    expected = [
        [((batch == b) & (process == p)).sum() for b in range(6 if end is None else end)]
        for p in range(3)
    ]
    np.testing.assert_array_equal(batch_counts(order, size, 3), expected)
    same = Cuts(np.array([5, 9], np.uint64), np.array([3, 0]))  # equal words on both sides of a cut
    np.testing.assert_array_equal(
        same.batch(np.array([5, 5, 9, 4], np.uint64), np.array([2, 3, 0, 9])), [0, 1, 2, 0]
    )


@pytest.mark.parametrize("batching", BATCHINGS, ids=str)
def test_processes_share_every_batch(batching, small, tmp_path):
    """The records of a batch, each in one process; the same chunks in each of them."""
    run, steps = li.Run(**COMMON, batching=batching), []
    for parts in (1, 3):
        found, marks = dict[int, list[float]](), []
        for part in range(parts):
            passes = Passes(
                run,
                Held(),
                Rows(run, ()),
                np.asarray(key_from_seed(1)),
                tmp_path,
                True,
                (part, parts),
            )
            marks.append([])
            for made in iterate_buffers(passes, Shape(4, 8, 8, part, parts), 0):
                marks[-1].append(
                    (made.steps[: made.used].tolist(), made.ends[: made.used].tolist())
                )
                for step, rows in zip(made.steps, made.records[0][: made.used], strict=False):
                    found.setdefault(int(step), []).extend(rows[rows[:, -1] != 0][:, 0].tolist())
            passes.close()
        assert all(mark == marks[0] for mark in marks)
        steps.append({step: sorted(rows) for step, rows in found.items()})
    assert (
        steps[0] == steps[1]
        and len(steps[0]) == run.steps
        and sum(map(len, steps[0].values())) > 2 * N
    )


def test_regrouping_keeps_every_record():
    for rows in (1, 5, N, 2 * N):
        found = list(regroup(Held().pieces(7), rows))
        assert [len(piece[0]) for piece in found[:-1]] == [rows] * (len(found) - 1)
        np.testing.assert_array_equal(np.concatenate([piece[1] for piece in found]), Y)


def test_scratch_is_ciphertext_without_a_name(tmp_path):
    content = b"a record that nobody else may read" * 10
    with closing(Scratch(2, 1000, tmp_path)) as file:
        file.write(0, content)
        file.write(1, content)
        assert not list(tmp_path.iterdir())
        raw = os.pread(file._file, 5000, 0)
        assert content[:8] not in raw and raw[:350] != raw[1016:1366], (
            "pages of equal content differ"
        )
        assert file.read(1) == content
        with pytest.raises(AssertionError):
            file.write(1, content)
        os.pwrite(file._file, bytes([raw[20] ^ 1]), 20)
        with pytest.raises(InputError, match="damaged"):
            file.read(0)
        with closing(Scratch(3, 1000, tmp_path, instead=file)) as other:
            other.write(1, content)
            assert other.read(1) == content
            assert os.pread(other._file, 350, 1016) != raw[1016:1366], (
                "a key of its own: nonces begin anew"
            )
            with pytest.raises(InputError, match="damaged"):
                file.read(1)


def test_a_full_disk_is_one_sentence(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    for name in ("posix_fallocate", "pwrite"):
        with monkeypatch.context() as patch:
            patch.setattr(scratch.os, name, full)
            with pytest.raises(InputError, match=r"scratch needs .* GB of free space") as error:
                execute_streaming(
                    li.Run(**COMMON, batching=li.Permuted(20)),
                    Held(),
                    key_from_seed(0),
                    folder=tmp_path,
                )
        assert str(error.value).count(".") <= 3 and not list(tmp_path.iterdir())
    with pytest.raises(InputError, match="must be a folder"):
        Scratch(1, 1, tmp_path / "missing")


KILLED = """
import os, sys, time
import numpy as np
import lastiterate as li
from lastiterate.engine.streaming.execution import execute_streaming
from pathlib import Path
from types import SimpleNamespace
n = 5000
def make(first, count):
    return np.tile(np.frombuffer(b"PLAINREC", np.float32), (count, 20)), np.zeros(count, np.int64)
run = li.Run(n=n, steps=100, step_size=1e-18, noise=li.GradientNoise(1.0), batching=li.RandomAllocation(500),
             loss=li.Logistic(row_norm=1e8, ridge=0.1))
def tick(done, steps, seconds):
    print("training", flush=True)
    time.sleep(60)
execute_streaming(run, li.data.Generated(n, make), None, tick, None, Path(sys.argv[1]))
"""


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="looks into /proc")
def test_a_killed_run_leaves_nothing(tmp_path):
    """While it runs its scratch files hold no record in the clear; when it is killed they are gone."""
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, str(tmp_path)], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == b"training\n"
        files = [
            Path(f"/proc/{process.pid}/fd/{name}") for name in os.listdir(f"/proc/{process.pid}/fd")
        ]
        held = [file for file in files if str(tmp_path) in os.readlink(file)]
        assert held and all("(deleted)" in os.readlink(file) for file in held)
        for file in held:
            raw = file.read_bytes()
            assert len(raw) > 100_000 and b"PLAINREC" not in raw
        process.send_signal(signal.SIGKILL)
    assert not list(tmp_path.iterdir())


def test_the_next_item_is_made_in_advance_and_errors_arrive():
    made = []

    def items():
        for i in range(5):
            made.append(i)
            yield i
        raise ValueError("at the end")

    every = ahead(items())
    assert next(every) == 0
    with pytest.raises(ValueError, match="at the end"):
        list(every)
    stopped = ahead(items())
    next(stopped)
    stopped.close()
    assert len(made) <= 7, "one item in advance, not all of them"


def test_data_of_another_length_are_refused():
    @dataclass(frozen=True)
    class Shorter(Held):
        def pieces(self, most, first=0):
            yield from list(Held.pieces(self, 10, first))[:-1]

    run = li.Run(**COMMON, batching=li.Cyclic(20))
    with pytest.raises(InputError, match="must hold 103 records in every pass"):
        execute_streaming(run, Shorter(), key_from_seed(0))
    with pytest.raises(InputError, match="n = 103"):
        execute_streaming(run, Held((X[:50], Y[:50])), key_from_seed(0))
    with pytest.raises(InputError, match="NaN"):
        execute_streaming(
            run, Held((np.where(np.arange(N)[:, None] == 90, np.nan, X), Y)), key_from_seed(0)
        )


@pytest.mark.parametrize("odd", [0, 57, N - 1])
@pytest.mark.parametrize(
    "kind", [lambda x: x.astype(int), lambda x: x.astype(np.float64), lambda x: x[:, :2]]
)
def test_no_record_decides_how_others_are_read(odd, kind):
    """One that comes as whole numbers would have what stands behind the point cut off in all others
    of a batch."""

    @dataclass(frozen=True)
    class Odd(Held):
        def pieces(self, most, first=0):
            for i in range(first, N):
                yield kind(X[i : i + 1]) if i == odd else X[i : i + 1], Y[i : i + 1]

    run = li.Run(
        n=N,
        steps=12,
        step_size=0.3,
        clip=1.0,
        batching=li.Cyclic(20),
        noise=li.NoiseMultiplier(1.0),
    )
    for source in (Odd(), Odd(dear=True)):
        with pytest.raises(InputError, match="one precision and shape for every record"):
            fit_streaming(run, lambda w, x, y: (x @ w[: len(x)] - y) ** 2, np.zeros(D), source)
    with pytest.raises(InputError, match="as many of each"):
        list(count_records(Held((X, Y[:-1])), N))

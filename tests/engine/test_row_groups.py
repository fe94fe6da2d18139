"""Several processes on one Parquet file: each reads the row groups of its own records, once, and
they release the model of one process."""

import os
import shutil
import subprocess
import sys
from io import FileIO
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import lastiterate as li
from cli.test_train_on_a_cluster import find_port
from lastiterate.data.record_source import EncodedSource
from lastiterate.data.schema import Schema
from lastiterate.engine import key_from_seed
from lastiterate.engine.streaming.scratch import again_and_again
from lastiterate.engine.streaming.sorting import Passes, move_cursor
from lastiterate.engine.streaming.source import Cursor, first_record, own_records
from lastiterate.errors import InputError
from lastiterate.release import data_file, file_training
from lastiterate.release.training_request import Algorithm, Budget, Processes, TrainingRequest
from tiers import unless

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
N, COLUMNS, GROUP, SLACK = 160_000, 8, 4096, 800_000
SCHEMA = {
    "target": "y",
    "classes": ["0", "1"],
    "columns": {f"c{i}": {"kind": "number", "low": -4, "high": 4} for i in range(COLUMNS)},
}


class CountedFile(FileIO):
    """A file that counts the bytes that are read of it."""

    total = 0

    def read(self, size=-1):
        content = super().read(size)
        CountedFile.total += len(content)
        return content


def count_bytes():
    """Let every Parquet file count the bytes that are read of it."""
    real = pq.ParquetFile
    pq.ParquetFile = lambda path, **more: real(pa.PythonFile(CountedFile(path), "r"), **more)


@pytest.fixture
def counted(monkeypatch):
    monkeypatch.setattr(pq, "ParquetFile", pq.ParquetFile)
    count_bytes()


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    """A folder of two Parquet files, of row groups of several sizes."""
    folder = tmp_path_factory.mktemp("data") / "parts"
    folder.mkdir()
    rng = np.random.default_rng(0)
    x = rng.normal(size=(N, COLUMNS)).clip(-4, 4)
    y = (x[:, 0] + x[:, 1] > 0).astype(str)
    columns = {f"c{i}": x[:, i] for i in range(COLUMNS)} | {"y": np.where(y == "True", "1", "0")}
    table = pa.table(columns)
    for name, (begin, end), group in (
        ("a", (0, 100_000), GROUP),
        ("b", (100_000, N), 2 * GROUP),
    ):
        pq.write_table(
            table.slice(begin, end - begin),
            folder / f"{name}.parquet",
            row_group_size=group,
            use_dictionary=False,
            compression=None,
        )
    return folder


def copy_with_rows_exchanged(parts, folder, rows):
    """Copy the folder with records 1 and 1 + ``rows`` exchanged: its sizes and footers stay."""
    folder.mkdir()
    shutil.copy(parts / "b.parquet", folder)
    table, order = pq.read_table(parts / "a.parquet"), np.arange(100_000)
    order[[1, 1 + rows]] = 1 + rows, 1
    pq.write_table(
        table.take(order),
        folder / "a.parquet",
        row_group_size=GROUP,
        use_dictionary=False,
        compression=None,
    )
    assert (folder / "a.parquet").stat().st_size == (parts / "a.parquet").stat().st_size


def open_source(folder):
    return li.data.stream(folder, SCHEMA)


def describe(batching, **more):
    loss = li.Logistic(row_norm=2.0, ridge=0.1)
    return li.Run(n=N, steps=10, step_size=0.5, loss=loss, batching=batching, **more)


def test_reading_begins_with_the_row_group_of_the_first_record(parts, counted):
    source = open_source(parts)
    whole = np.concatenate([rows for rows, _ in source.pieces(3000)])
    size = source.stream.watched.size
    for first in (0, 1, GROUP - 1, GROUP, 99_999, 100_000, 100_001, N - 1):
        CountedFile.total = 0
        start = source.find_start(first)
        rows = np.concatenate([rows for rows, _ in source.pieces(3000, first)])
        np.testing.assert_array_equal(rows, whole[first:])
        assert start <= first < start + 2 * GROUP
        assert CountedFile.total < size * (N - start) / N + SLACK
    assert source.find_start(N) == N


@pytest.mark.parametrize("count", [1, 2, 4])
def test_a_process_sorts_and_copies_its_own_row_groups(parts, counted, count):
    """Together they have every record once."""
    run, source = describe(li.Reshuffled(16000), preprocessing=(li.PrivateMean(1.0, 2.0),)), []
    seen = []
    for part in range(count):
        source = open_source(parts)
        first_record(source)
        CountedFile.total = 0
        with_copy = again_and_again(run, source, None, True, (part, count))
        passes = Passes(
            run, with_copy.source, lambda piece: piece, key_from_seed(0), part=(part, count)
        )
        sorted_ = passes._sort(key_from_seed(1))
        seen += [rows[:, 0] for rows, _ in sorted_.pieces()]
        own = np.diff(own_records(N, part, count))[0] / N
        assert CountedFile.total < source.stream.watched.size * (own + 2 * GROUP / N) + SLACK
        sorted_.close()
        with_copy.close()
    whole = np.concatenate([rows[:, 0] for rows, _ in open_source(parts).pieces(3000)])
    np.testing.assert_array_equal(np.sort(np.concatenate(seen)), np.sort(whole))


def test_shares_of_batches_in_public_order_are_read_in_one_pass(parts, counted):
    """A cursor skips records of others in a row group that it has begun, and begins again behind
    those that it need not read."""
    source = open_source(parts)
    passes = SimpleNamespace(source=source)
    whole = np.concatenate([rows for rows, _ in source.pieces(3000)])
    one = SimpleNamespace(pieces=lambda first: source.pieces(500, first))
    for size, share in ((1000, 500), (40_000, 8000)):
        CountedFile.total, at, cursor = 0, 0, Cursor(one.pieces(0))
        for begin in range(0, N, size):
            cursor, at = move_cursor(passes, one, cursor, at, begin), begin + share
            rows = np.concatenate([rows for rows, _ in cursor.take(share)])
            np.testing.assert_array_equal(rows, whole[begin : begin + share])
        most = 1.2 if size == 1000 else 0.4
        assert CountedFile.total < source.stream.watched.size * most + SLACK


def test_copies_of_a_file_have_another_identity(parts, tmp_path):
    """An equal identity spares the comparison of bytes, so that it must not be that of a copy."""
    own = open_source(parts).file_identity
    assert own and own == open_source(parts).file_identity
    shutil.copytree(parts, tmp_path / "copy")  # with the times of the last change
    assert open_source(tmp_path / "copy").file_identity != own


class Several(Processes):
    count = 2


def test_files_with_row_groups_are_read_in_pieces_by_several_processes(parts):
    """Unless something needs all rows in memory."""
    order = TrainingRequest(
        data=str(parts),
        budget=Budget(1.0),
        schema=Schema.from_dict(SCHEMA),
        algorithm=Algorithm("permuted-sgd"),
    )
    file = data_file.open_file(order.data, order.schema)
    file = file.map_rows(file.schema, test=None, row_norm=None)
    bound = data_file.MemoryBound(room=1e12)

    def in_pieces(order):
        return file_training._limit_memory(order, file, bound)[1].in_pieces

    assert isinstance(file.table, EncodedSource) and not in_pieces(order)
    from dataclasses import replace

    order = replace(order, processes=Several())
    assert in_pieces(order)
    assert not in_pieces(replace(order, report_accuracy=0.1))


TOGETHER = """
import sys
rank, count, port, folder, reference, copy = int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:]
from dataclasses import replace
import jax, numpy as np
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize("127.0.0.1:" + port, count, rank)
import lastiterate as li
from engine import test_row_groups as tests
from lastiterate.release.composition_reminder import Reminder
Reminder.warn_about_seed = lambda *_: None  # reads all records, for a seed
tests.count_bytes()
size = sum(part.stat().st_size for part in tests.Path(folder).iterdir())
held = np.load(reference)
for name, batching in tests.BATCHINGS.items():
    source, tests.CountedFile.total = tests.open_source(folder), 0
    model = li.train(tests.describe(batching), source, epsilon=1.0, seed=3, devices=count)
    np.testing.assert_allclose(model.released.weights, held[name], rtol=0, atol=1e-12)
    assert tests.CountedFile.total < size * (1 / count + 0.07) + tests.SLACK, (name, tests.CountedFile.total / size)
try:
    li.train(tests.describe(li.FullBatch()), tests.open_source(copy), epsilon=1.0, devices=count)
except li.InputError as error:
    assert str(error).startswith("data must be the same in every process"), error
    print("equal", flush=True)
import os
jax.distributed.shutdown()
os._exit(0)
"""
BATCHINGS = {"full": li.FullBatch(), "permuted": li.Permuted(16000), "bins": li.BallsInBins(16000)}


@pytest.mark.parametrize("count", unless(lambda count: count == 2, [2, 4]))
def test_processes_read_their_shares_and_release_the_model_of_one(parts, tmp_path, count):
    """Secret batches are the same draws, so that what a process reads follows from its rank alone."""
    held = {
        name: li.train(describe(batching), open_source(parts), epsilon=1.0, seed=3).released.weights
        for name, batching in BATCHINGS.items()
    }
    np.savez(tmp_path / "one.npz", **held)
    for rank in range(count):
        copy_with_rows_exchanged(parts, tmp_path / str(rank), rank)
    tests = Path(__file__).parents[1]
    paths = [str(tests), str(tests.parent), str(Path(li.__file__).parents[1])]
    words = [sys.executable, "-c", TOGETHER]
    port = find_port()
    job = [
        subprocess.Popen(
            [
                *words,
                str(rank),
                str(count),
                port,
                parts,
                tmp_path / "one.npz",
                tmp_path / str(rank),
            ],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(count)
    ]
    said = [process.communicate(timeout=500) for process in job]
    assert all(out.splitlines()[-1:] == ["equal"] for out, _ in said), [
        err[-300:] for _, err in said
    ]


def test_records_of_others_are_not_in_a_copy(parts):
    run = describe(li.Permuted(16000), preprocessing=(li.PrivateMean(1.0, 2.0),))
    copy = again_and_again(run, open_source(parts), None, True, (1, 2))
    first, end = own_records(N, 1, 2)
    rows = np.concatenate([rows for rows, _ in copy.source.pieces(3000, first)])
    assert len(rows) == end - first
    for begin, stop in pairwise((0, GROUP, first)):
        with pytest.raises(AssertionError):
            list(copy.source.pieces(stop - begin, begin))
    copy.close()
    with pytest.raises(InputError, match="must have the run's n"):
        again_and_again(describe(li.Permuted(16000)), open_source(parts / "a.parquet"), None)

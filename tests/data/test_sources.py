"""Files that are read piece by piece: the same numbers and the same refusals as whole tables."""

import csv
import gzip
import os

import numpy as np
import pytest

import lastiterate as li
from lastiterate.data import Schema, encode, read_table
from lastiterate.data.record_source import EncodedSource, open_stream, streams
from lastiterate.errors import InputError

pa = pytest.importorskip("pyarrow")
from pyarrow import parquet  # noqa: E402

N = 53
RNG = np.random.default_rng(0)
COLUMNS = {
    "a": RNG.normal(size=N).astype(np.float32),
    "b": RNG.integers(-5, 6, N),
    "c": np.array(["u", "v", "w"])[RNG.integers(0, 3, N)],
    "unused": np.array(["x, y", 'say "z"\nor'] * 27)[:N],
    "y": RNG.integers(0, 2, N),
}
ENTRIES = {
    "a": {"kind": "number", "low": -2, "high": 2, "missing": 0.5},
    "b": {"kind": "number", "low": -5, "high": 5},
    "c": {"kind": "category", "values": ["u", "v"], "outside": "zero"},
    "unused": {"kind": "ignore"},
}
FACTS = {"target": "y", "classes": ["0", "1"], "source": "made up", "columns": ENTRIES}
SCHEMA = Schema.from_dict(FACTS)
ARRAY = Schema.from_dict({"target": "y", "classes": ["0", "1"], "array": {"low": -2, "high": 2}})


def write_csv(path, columns=COLUMNS):
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "wt", newline="") as file:
        csv.writer(file).writerows([list(columns), *zip(*columns.values(), strict=True)])


def write_parts(folder, columns=COLUMNS):
    folder.mkdir(exist_ok=True)
    for number, part in enumerate(np.array_split(np.arange(N), 3)):
        table = pa.table(
            {name: pa.array(np.asarray(values)[part].tolist()) for name, values in columns.items()}
        )
        parquet.write_table(table, folder / f"part-{number}.parquet", row_group_size=7)


def write_npy(path, columns=COLUMNS):
    np.save(path, np.stack([columns["a"], columns["b"]], 1))
    np.save(path.with_name("d.labels.npy"), np.asarray(columns["y"]))


def write_idx(path, columns=COLUMNS):
    def idx(code, values):
        return (
            bytes([0, 0, code, values.ndim])
            + b"".join(size.to_bytes(4, "big") for size in values.shape)
            + values.tobytes()
        )

    path.write_bytes(idx(0x0D, np.stack([columns["a"], columns["b"]], 1).astype(">f4")))
    path.with_name("t-labels-idx1-ubyte").write_bytes(
        idx(0x08, np.asarray(columns["y"]).astype(np.uint8))
    )


KINDS = {
    "d.csv": (write_csv, SCHEMA),
    "d.csv.gz": (write_csv, SCHEMA),
    "parts": (write_parts, SCHEMA),
    "d.npy": (write_npy, ARRAY),
    "t-images-idx3-ubyte": (write_idx, ARRAY),
}


@pytest.fixture(params=KINDS)
def kind(request, tmp_path):
    write, schema = KINDS[request.param]
    return tmp_path / request.param, write, schema


def collected(source, most, first=0):
    pieces = list(source.pieces(most, first))
    assert all(1 <= len(piece[0]) <= most for piece in pieces)
    return [np.concatenate(parts) for parts in zip(*pieces, strict=True)]


def test_pieces_are_the_table(kind):
    path, write, schema = kind
    write(path)
    whole, source = encode(read_table(path, schema), schema), li.data.stream(path, schema)
    assert streams(path) and len(source) == N and source.form.width == whole[0].shape[1]
    for most, first in ((1, 0), (7, 0), (1000, 0), (5, 20), (1000, N - 1)):
        for one, other in zip(collected(source, most, first), whole, strict=True):
            np.testing.assert_array_equal(one, other[first:])
            assert one.dtype == other.dtype


FAULTS = {
    "a label": {"y": np.where(np.arange(N) == 40, 7, COLUMNS["y"])},
    "a missing value": {"b": [None if i == 40 else int(b) for i, b in enumerate(COLUMNS["b"])]},
    "other text": {"b": ["12 or so" if i == 40 else str(b) for i, b in enumerate(COLUMNS["b"])]},
}


@pytest.mark.parametrize("fault", FAULTS)
def test_refusals_are_the_ones_of_the_table(kind, fault):
    """The same sentence, with the record's number in the whole file."""
    path, write, schema = kind
    if fault != "a label" and schema is ARRAY:
        return
    write(path, COLUMNS | FAULTS[fault])
    with pytest.raises(InputError) as whole:
        encode(read_table(path, schema), schema)
    with pytest.raises(InputError) as found:
        collected(li.data.stream(path, schema), 6)
    assert str(found.value) == str(whole.value) and "41" in str(whole.value)


def test_missing_numbers_are_filled_alike(tmp_path):
    holed = COLUMNS | {"a": [None if i % 5 == 0 else float(a) for i, a in enumerate(COLUMNS["a"])]}
    for name in ("d.csv", "parts"):
        KINDS[name][0](tmp_path / name, holed)
        whole = encode(read_table(tmp_path / name, SCHEMA), SCHEMA)
        np.testing.assert_array_equal(
            collected(li.data.stream(tmp_path / name, SCHEMA), 4)[0], whole[0]
        )
        assert (whole[0][::5, 0] == np.float32(0.25)).all()


def test_a_file_that_changes_is_noticed(kind):
    """Before a pass, and while it goes on."""
    path, write, schema = kind
    write(path)
    source = li.data.stream(path, schema)
    pieces = source.pieces(10)
    next(pieces)
    first = next(iter(source.stream.watched.paths))
    state = first.stat()
    os.utime(first, ns=(state.st_atime_ns, state.st_mtime_ns + 1))
    for reading in (pieces, source.pieces(10)):
        with pytest.raises(InputError, match="changed while it was read"):
            list(reading)
    with pytest.raises(InputError, match="changed while it was read"):
        source.check()


@pytest.mark.parametrize("cut", [0.3, 0.95])
def test_files_that_were_cut_off_are_refused(kind, cut):
    path, write, schema = kind
    write(path)
    file = path / "part-1.parquet" if path.is_dir() else path
    content = file.read_bytes()
    file.write_bytes(content[: int(cut * len(content))])
    with pytest.raises(InputError) as error:
        found = collected(li.data.stream(path, schema), 10)
        assert path.suffix == ".csv" and len(found[0]) < N, (
            "CSV cut off behind a record looks like a shorter file"
        )
        raise InputError("a shorter", "file")
    assert "\n" not in str(error.value)


def test_folders_of_other_columns_and_other_kinds_are_refused(tmp_path):
    write_parts(tmp_path / "parts")
    parquet.write_table(pa.table({"a": [1.0]}), tmp_path / "parts" / "part-9.parquet")
    with pytest.raises(InputError, match="same columns"):
        li.data.stream(tmp_path / "parts", SCHEMA)
    (tmp_path / "x.npz").write_bytes(b"PK")
    with pytest.raises(InputError, match="piece by piece"):
        open_stream(tmp_path / "x.npz")
    write_csv(tmp_path / "d.csv")
    with pytest.raises(InputError, match="schema is needed"):
        li.data.stream(tmp_path / "d.csv")


def test_arrays_without_a_schema_are_as_they_lie(tmp_path):
    images = RNG.integers(0, 255, (N, 4, 3)).astype(np.uint8)
    np.save(tmp_path / "d.npy", images)
    (found,) = collected(li.data.stream(tmp_path / "d.npy"), 8)
    np.testing.assert_array_equal(found, images)
    with pytest.raises(InputError, match="row by row"):
        np.save(tmp_path / "f.npy", np.asfortranarray(images))
        li.data.stream(tmp_path / "f.npy")


def test_generated_records(tmp_path):
    source = li.data.Generated(N, lambda first, count: (np.arange(first, first + count),))
    np.testing.assert_array_equal(collected(source, 9, 3)[0], np.arange(3, N))
    with pytest.raises(InputError, match="a tuple of arrays of 9 records"):
        list(li.data.Generated(N, lambda first, count: (np.zeros(3),)).pieces(9))


def test_the_digest_is_of_the_files_and_the_schema(tmp_path):
    write_npy(tmp_path / "d.npy")
    found = open_stream(tmp_path / "d.npy")
    other = Schema.from_dict(
        {"target": "y", "classes": ["0", "1"], "array": {"low": -3, "high": 2}}
    )
    one, two = (
        b"".join(part.tobytes() for part in EncodedSource(found, schema).fingerprint())
        for schema in (ARRAY, other)
    )
    assert one != two and (tmp_path / "d.npy").read_bytes() in one


@pytest.mark.parametrize(
    "change",
    [
        lambda packed: packed[:-8] + bytes([packed[-8] ^ 1]) + packed[-7:],
        lambda packed: packed[:-8],
        lambda packed: packed + gzip.compress(b"more"),
        lambda packed: packed + b"more",
    ],
)
@pytest.mark.parametrize("name", ["t-images-idx3-ubyte", "t-labels-idx1-ubyte"])
def test_a_packed_file_is_read_to_its_end(tmp_path, change, name):
    """Its checksum stands behind the last record."""
    write_idx(tmp_path / "t-images-idx3-ubyte")
    for each in ("t-images-idx3-ubyte", "t-labels-idx1-ubyte"):
        packed = gzip.compress((tmp_path / each).read_bytes())
        (tmp_path / each).write_bytes(change(packed) if each == name else packed)
    for reading in (read_table, lambda path: list(li.data.stream(path, ARRAY).pieces(10))):
        with pytest.raises(InputError, match="data file must"):
            reading(tmp_path / "t-images-idx3-ubyte")


def test_another_file_in_its_place_is_noticed(kind, tmp_path):
    """Though it has the same size and the same time of last change."""
    path, write, schema = kind
    write(path)
    source = li.data.stream(path, schema)
    first = next(iter(source.stream.watched.paths))
    os.link(first, tmp_path / "old")  # so that its number is not given away again
    state, content = first.stat(), first.read_bytes()
    (tmp_path / "new").write_bytes(content)
    os.utime(tmp_path / "new", ns=(state.st_atime_ns, state.st_mtime_ns))
    (tmp_path / "new").replace(first)
    with pytest.raises(InputError, match="changed while it was read"):
        source.check()


def test_parts_without_records_and_of_other_types(tmp_path):
    """In memory as in pieces: 3 of one type and 3.00 of another would be two persons."""
    folder = tmp_path / "parts"
    write_parts(folder)
    none = parquet.read_table(folder / "part-1.parquet").slice(0, 0)
    parquet.write_table(none, folder / "part-1b.parquet")
    whole = encode(read_table(folder, SCHEMA), SCHEMA)
    for found, expected in zip(collected(li.data.stream(folder, SCHEMA), 10), whole, strict=True):
        np.testing.assert_array_equal(found, expected)
    parquet.write_table(
        none.set_column(1, "b", none["b"].cast(pa.decimal128(19, 0))), folder / "part-1b.parquet"
    )
    for reading in (read_table, lambda path: li.data.stream(path, SCHEMA)):
        with pytest.raises(InputError, match=r"of the same types, got 'part-1b\.parquet'"):
            reading(folder)

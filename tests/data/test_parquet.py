"""Parquet: the same cells as CSV, so the same schema and the same numbers."""

import datetime
import decimal
import sys
import tomllib

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lastiterate.data import Schema, encode, encode_features, read_table, schema_template
from lastiterate.data.data_frames import frame_table
from lastiterate.data.parquet import cells_of, read_types
from lastiterate.data.record_source import estimate_memory, stream
from lastiterate.errors import InputError
from lastiterate.release.units import Units

CSV = "age,job,note,label\n20,cook,a,yes\n60.5,,b,no\n,clerk,c,yes\n120,cook,d,no\n"
SCHEMA = Schema.from_dict(
    {
        "target": "label",
        "classes": ["no", "yes"],
        "columns": {
            "age": {"kind": "number", "low": 0, "high": 100, "missing": 50},
            "job": {"kind": "category", "values": ["clerk", "cook"], "missing": "zero"},
            "note": {"kind": "ignore"},
        },
    }
)
COLUMNS = {
    "age": [20.0, 60.5, None, 120.0],
    "job": pa.array(["cook", None, "clerk", " cook "]).dictionary_encode(),
    "note": list("abcd"),
    "label": ["yes", "no", "yes", "no"],
}


def write(path, columns, **how):
    pq.write_table(pa.table(columns), path, **how)
    return path


@pytest.mark.parametrize("compression", ["none", "snappy", "zstd"])
def test_same_as_csv(tmp_path, compression):
    (tmp_path / "t.csv").write_text(CSV)
    path = write(tmp_path / "t.parquet", COLUMNS, compression=compression, row_group_size=3)
    found, same = read_table(path), read_table(tmp_path / "t.csv")
    assert found.names == same.names and found.cells == same.cells
    for a, b in zip(encode(found, SCHEMA), encode(same, SCHEMA), strict=True):
        np.testing.assert_array_equal(a, b)
    stated = schema_template(path)
    assert stated == schema_template(
        tmp_path / "t.csv",
        columns=",".join(f"{name}:{kind}" for name, kind in read_types(path).items()),
    ), "a Parquet file states its types"


@pytest.mark.parametrize(
    "array, cells",
    [
        (pa.array([3, None, -4], pa.int8()), ["3", "", "-4"]),
        (pa.array([2**64 - 1], pa.uint64()), ["18446744073709551615"]),
        (pa.array([1.0, float("nan"), None, 0.1, -2.5e30]), ["1", "", "", "0.1", "-2.5e+30"]),
        (pa.array([1e300, float("inf")]), ["1e+300", "inf"]),
        (pa.array([0.1], pa.float32()), ["0.1"]),
        (pa.array(np.array([0.5, 2], dtype=np.float16)), ["0.5", "2"]),
        (pa.array([True, None, False]), ["True", "", "False"]),
        (pa.array([" a ", "", None], pa.large_string()), ["a", "", ""]),
        (pa.array([decimal.Decimal("1.50"), None]), ["1.50", ""]),
        (pa.array([datetime.date(2020, 2, 29), None]), ["2020-02-29", ""]),
        (
            pa.array([datetime.datetime(2020, 2, 29, 1, 2, 3)], pa.timestamp("s")),
            ["2020-02-29 01:02:03.000"],
        ),
        (pa.array([datetime.time(1, 2, 3)], pa.time32("s")), ["01:02:03.000"]),
        (pa.array([None, None]), ["", ""]),
        (pa.array([7, None, 7]).dictionary_encode(), ["7", "", "7"]),
        (pa.array(["b", None, "a"]).dictionary_encode(), ["b", "", "a"]),
    ],
    ids=str,
)
def test_cells(tmp_path, array, cells):
    assert read_table(write(tmp_path / "t.parquet", {"x": array})).cells == {"x": cells}


@pytest.mark.parametrize("ask", [None, lambda question, choices: ""])
def test_types_fill_a_schema_in(tmp_path, ask):
    day = datetime.datetime(2020, 12, 31, 10, 30)
    path = write(
        tmp_path / "t.parquet",
        {
            "day": pa.array([day.date()] * 2),
            "far": pa.array([day] * 2, pa.date64()),
            "when": pa.array([day] * 2),
            "here": pa.array([day] * 2, pa.timestamp("ms", "UTC")),
            "smokes": [True, False],
            "sick": [False, True],
        },
    )
    days = {
        name: {"kind": "date", "first": "2020-01-01", "last": "2020-12-31"}
        for name in ("day", "far", "when", "here")
    }
    plain = schema_template(path)
    assert plain.count('kind = "date"') == 4 and schema_template(path, sample=path) == plain
    schema = Schema.from_dict(tomllib.loads(schema_template(path, like={"columns": days}, ask=ask)))
    rows, target = encode(read_table(path), schema)
    assert schema.classes == ("False", "True") and target.tolist() == [0, 1]
    assert (rows[:, [0, 20, 40, 60]] == 1).all() and rows[:, -2:].tolist() == [[0, 1], [1, 0]]


def test_infinite_numbers_are_clipped(tmp_path):
    column = {"age": {"kind": "number", "low": 0, "high": 100}}
    schema = Schema.from_dict({"target": "y", "classes": ["0", "1"], "columns": column})
    path = write(tmp_path / "t.parquet", {"age": [float("inf"), float("-inf")], "y": [0, 1]})
    assert encode(read_table(path), schema)[0].tolist() == [[1], [-1]]


def test_categories_whose_values_arrow_cannot_cast():
    """As polars hands its categories over, in pieces with lists of values of their own."""
    pieces = [
        pa.DictionaryArray.from_arrays(
            pa.array(codes, pa.uint32()), pa.array(values, pa.string_view())
        )
        for codes, values in (([1, None, 0], ["a", " b "]), ([0, 0], ["c"]))
    ]
    assert cells_of("x", pieces[0]) == ["b", "", "a"]
    assert cells_of("x", pa.chunked_array(pieces)) == ["b", "", "a", "c", "c"]


@pytest.mark.parametrize(
    "array",
    [
        pa.array([[1.0, 2.0]]),
        pa.array([[1.0, 2.0]], pa.list_(pa.float32(), 2)),
        pa.array([{"a": 1}]),
        pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int32())),
        pa.array([b"bytes"]),
        pa.array([b"by"], pa.binary(2)),
        pa.array([datetime.timedelta(1)]),
        pa.array([0], pa.timestamp("s", tz="Nowhere/Bad")),
    ],
    ids=lambda array: str(array.type),
)
def test_columns_that_are_no_cells(tmp_path, array):
    """They are refused with a way out: the schema ignores them, in every way of reading."""
    path = write(tmp_path / "t.parquet", {"age": [1], "note": array, "label": ["no"]})
    remedy = "" if "Nowhere" in str(array.type) else '.*say kind = "ignore"'
    with pytest.raises(InputError, match="column 'note'" + remedy) as caught:
        read_table(path)
    assert "\n" not in str(caught.value)
    entry = tomllib.loads(schema_template(path))["columns"]["note"]
    assert entry == {"kind": "ignore"}
    schema = Schema.from_dict(
        {
            "target": "label",
            "classes": ["no", "yes"],
            "columns": {"age": {"kind": "number", "low": 0, "high": 1}, "note": entry},
        }
    )
    assert encode(read_table(path, schema), schema)[0].tolist() == [[1.0]]
    pieces = list(stream(path, schema).pieces(1))
    assert [rows.tolist() for rows, _ in pieces] == [[[1.0]]]
    assert estimate_memory(path) > 0
    frame = pq.read_table(path).drop_columns(["label"])
    assert encode_features(frame_table(frame, schema), schema).tolist() == [[1.0]]


def test_tables_that_are_none(tmp_path):
    with pytest.raises(InputError, match="one record"):
        read_table(write(tmp_path / "a.parquet", {"x": pa.array([], pa.int32())}))
    pq.write_table(
        pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["x", " x"]),
        tmp_path / "b.parquet",
    )
    with pytest.raises(InputError, match="twice"):
        read_table(tmp_path / "b.parquet")
    (tmp_path / "c.parquet").write_text(CSV)
    with pytest.raises(InputError, match="complete Parquet"):
        read_table(tmp_path / "c.parquet")


def test_times_without_a_known_zone(tmp_path):
    with pytest.raises(InputError, match=r"column 'when'.*written as text.*Nowhere") as caught:
        read_table(
            write(
                tmp_path / "t.parquet", {"when": pa.array([0], pa.timestamp("s", tz="Nowhere/Bad"))}
            )
        )
    assert "\n" not in str(caught.value)


def test_the_first_bytes_count(tmp_path):
    path = write(tmp_path / "t.parquet", COLUMNS)
    path.write_bytes(b"PARX" + path.read_bytes()[4:])  # pyarrow looks at the last bytes only
    with pytest.raises(InputError, match="starts with PAR1"):
        read_table(path)


def test_folder_names_are_no_columns(tmp_path):
    (tmp_path / "year=2020").mkdir()
    assert read_table(write(tmp_path / "year=2020" / "t.parquet", {"x": [1, 2]})).names == ("x",)


def test_without_pyarrow(tmp_path, monkeypatch):
    path = write(tmp_path / "t.parquet", COLUMNS)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(InputError, match=r"pip install lastiterate\[parquet\]") as caught:
        read_table(path)
    assert "\n" not in str(caught.value)


def test_damage(tmp_path, refused_when_cut):
    refused_when_cut(write(tmp_path / "t.parquet", COLUMNS))


def test_checksums_are_compared(tmp_path):
    path = write(tmp_path / "t.parquet", {"x": ["some text that is easily found"]}, compression="none",
                 use_dictionary=False, write_page_checksum=True, write_statistics=False)  # fmt: skip
    data = path.read_bytes()
    assert data.count(b"easily") == 1
    path.write_bytes(data.replace(b"easily", b"hardly"))
    with pytest.raises(InputError, match="complete Parquet"):
        read_table(path)


def test_numbers_that_a_schema_names_are_kept_as_numbers(tmp_path):
    """What the schema makes of them is what it makes of their text; a folder of parts, and rows of
    units, too."""
    columns = {
        "age": [20.0, None, float("nan"), 120.0, float("inf"), 1e-300],
        "count": pa.array([1, None, 3, 2**40, -5, 0]),
        "single": pa.array([0.1, 0.2, None, 5, 6, 7], pa.float32()),
        "truth": [True, False, None, True, True, False],
        "who": list("aabbbb"),
        "y": [0.5, 1.5, 2.5, 3.0, 0.1, 9],
    }
    numbers = {
        name: {"kind": "number", "low": 0, "high": 100, "missing": 50}
        for name in ("age", "count", "single")
    }
    schema = Schema.from_dict(
        {
            "target": "y",
            "target_range": [0, 3],
            "columns": numbers
            | {
                "truth": {
                    "kind": "category",
                    "values": ["True"],
                    "missing": "zero",
                    "outside": "zero",
                },
                "who": {"kind": "ignore"},
            },
        }
    )
    whole = write(tmp_path / "t.parquet", columns)
    (tmp_path / "parts").mkdir()
    for number, (begin, many) in enumerate(((0, 2), (2, 4))):
        pq.write_table(
            pa.table(columns).slice(begin, many), tmp_path / "parts" / f"{number}.parquet"
        )
    wanted = encode(read_table(whole), schema)
    for path in (whole, tmp_path / "parts"):
        table = read_table(path, schema)
        assert {name: type(cells) for name, cells in table.cells.items()} == {
            "age": np.ndarray,
            "count": np.ndarray,
            "single": np.ndarray,
            "truth": list,
            "who": list,
            "y": np.ndarray,
        }
        for found, one in zip(encode(table, schema), wanted, strict=True):
            np.testing.assert_array_equal(found, one)
    of_units = [
        encode(Units("who", 2).limit_rows(read_table(whole, known), schema)[0], schema)
        for known in (None, schema)
    ]
    np.testing.assert_array_equal(of_units[0][0], wanted[0][:4])
    np.testing.assert_array_equal(of_units[0][0], of_units[1][0])

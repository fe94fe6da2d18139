"""One form of a cell for all formats: a data frame, its CSV file, its Parquet file and its arrays
give one model."""

import datetime
import decimal
import re
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lastiterate.data import Category, Numeric, Schema, Table, encode, encode_features, read_table
from lastiterate.data.columns import MISSING, Date
from lastiterate.data.data_frames import frame_table
from lastiterate.data.schema import column_from
from lastiterate.data.table import canonical_text, number_text, to_doubles
from lastiterate.errors import InputError
from lastiterate.release.data_file import open_file
from lastiterate.release.forget_file import Request, _locate_records
from lastiterate.release.units import Units, canonical_identifiers, identifiers, select_unit_rows

DAY = datetime.datetime(2021, 3, 1)
TIME = datetime.datetime(2021, 3, 1, 4, 5, 6, 120_000)
WRITTEN = {
    **{
        kind: (pa.array([1, None, 2], kind), ["1.0", "", "2.0"], ("1", "2"))
        for kind in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
    },
    "Int64": (pa.array([1, None, 2], "int64"), ["1", "", "2"], ("1", "2")),
    "float64": (pa.array([1.0, None, 0.1]), ["1.0", "", "0.1"], ("1", "0.1")),
    "Float64": (pa.array([1.5, None, float("nan")]), ["1.5", "", "NaN"], ("1.5",)),
    "float32": (
        pa.array([0.1, None, 16777216], "float32"),
        ["0.1", "", "1.6777216e+07"],
        ("0.1", "16777216"),
    ),
    "float16": (pa.array(np.array([0.1, 2], np.float16)), ["0.1", "2.0"], ("0.1", "2")),
    "large": (
        pa.array([1e16, 1e-7, 1e300]),
        ["1e+16", "1e-07", "1e+300"],
        ("10000000000000000", "1e-7", "1e+300"),
    ),
    "infinite": (
        pa.array([float("inf"), float("-inf"), 1]),
        ["inf", "-inf", "1.0"],
        ("inf", "-inf", "1"),
    ),
    "bool": (pa.array([True, False, None]), ["True", "False", ""], ("True", "False")),
    "boolean of R": (pa.array([True, False, None]), ["TRUE", "FALSE", "NA"], ("True", "False")),
    "string": (pa.array(["a", None, "007"]), ["a", "", "007"], ("a", "007")),
    "string of numbers": (pa.array(["1.10", "2", " 3 "]), ["1.10", "2", "3"], ("1.1", "2", "3")),
    "object": (pa.array(["1", "x", None]), ["1", "x", "None"], ("1", "x")),
    "category": (pa.array(["a", None, "b"]).dictionary_encode(), ["a", "", "b"], ("a", "b")),
    "category of numbers": (
        pa.array([1.0, None, 2.5]).dictionary_encode(),
        ["1.0", "", "2.5"],
        ("1", "2.5"),
    ),
    "Decimal": (
        pa.array([decimal.Decimal("1.50"), None, decimal.Decimal("2.00")]),
        ["1.50", "", "2.00"],
        ("1.5", "2"),
    ),
    **{
        f"datetime64 {unit}": (
            pa.array([DAY, TIME, None], pa.timestamp(unit)),
            ["2021-03-01 00:00:00.000", "2021-03-01 04:05:06.120000", ""],
            ("2021-03-01", "2021-03-01 04:05:06.12"),
        )
        for unit in ("ms", "us", "ns")
    },
    "datetime64 of days": (
        pa.array([DAY, None], pa.timestamp("ns")),
        ["2021-03-01", ""],
        ("2021-03-01",),
    ),
    "datetime64 with a zone": (
        pa.array([DAY, TIME], pa.timestamp("us", "UTC")),
        ["2021-03-01 00:00:00+00:00", "2021-03-01 04:05:06.120000+00:00"],
        ("2021-03-01 00:00:00+00:00", "2021-03-01 04:05:06.12+00:00"),
    ),
    "date": (pa.array([DAY.date(), None]), ["2021-03-01", ""], ("2021-03-01",)),
}
"""A column, its cells as pandas writes them in a CSV file (integers with a gap are floats), and its
categories."""


def files(folder, array, texts):
    """The same column with a target behind it, as CSV, as Parquet and in memory."""
    (folder / "t.csv").write_text("x,y\n" + "".join(f"{text},a\n" for text in texts))
    table = pa.table({"x": array, "y": ["a"] * len(array)})
    pq.write_table(table, folder / "t.parquet")
    return [read_table(folder / "t.csv", header=True), read_table(folder / "t.parquet"), table]


def rows(schema, forms):
    return [
        encode_features(
            frame_table(one, schema) if isinstance(one, pa.Table) else one, schema
        ).tolist()
        for one in forms
    ]


@pytest.mark.parametrize("kind", WRITTEN)
def test_a_category_is_the_same_in_all_formats(tmp_path, kind):
    array, texts, values = WRITTEN[kind]
    for listed in (
        values,
        tuple(text for text in texts if text.lower() not in ("", "nan", "na", "none")),
    ):
        schema = Schema((Category("x", listed, missing="indicator"),), classes=("a", "b"))
        csv, parquet, frame = rows(schema, files(tmp_path, array, texts))
        assert csv == parquet == frame and np.sum(csv) == len(array), (
            "every cell is a category, or missing"
        )


@pytest.mark.parametrize("kind", WRITTEN)
def test_an_identifier_is_the_same_in_all_formats(tmp_path, kind):
    array, texts, _ = WRITTEN[kind]
    csv, parquet, _ = files(tmp_path, array, texts)
    found = []
    for table in (csv, parquet):
        try:
            found.append(canonical_identifiers("ids", table.cells["x"]))
        except InputError as error:
            found.append(str(error))
    assert found[0] == found[1] and ("may be rounded" in found[0]) == (kind in ("float32", "large"))


@pytest.mark.parametrize(
    "kind",
    [
        kind
        for kind in WRITTEN
        if not any(word in kind for word in ("date", "object"))
        and kind not in ("string", "category")
    ],
)
def test_a_number_is_the_same_in_all_formats(tmp_path, kind):
    array, texts, _ = WRITTEN[kind]
    schema = Schema((Numeric("x", -3, 1e8, missing="indicator"),), classes=("a", "b"))
    csv, parquet, frame = rows(schema, [*files(tmp_path, array, texts)])
    assert csv == parquet == frame == rows(schema, [read_table(tmp_path / "t.parquet", schema)])[0]


@pytest.mark.parametrize("kind", [kind for kind in WRITTEN if "date" in kind])
def test_a_day_is_the_same_in_all_formats(tmp_path, kind):
    array, texts, _ = WRITTEN[kind]
    schema = Schema(
        (Date("x", "2000-01-01", "2030-01-01", missing="indicator"),), classes=("a", "b")
    )
    csv, parquet, frame = rows(schema, files(tmp_path, array, texts))
    assert csv == parquet == frame


@pytest.mark.parametrize("kind", [kind for kind in WRITTEN if kind != "boolean of R"])
def test_a_label_is_the_same_in_all_formats(tmp_path, kind):
    array, texts, values = WRITTEN[kind]
    kept = [i for i, text in enumerate(texts) if text.lower() not in ("", "nan", "none")]
    (tmp_path / "t.csv").write_text("x,y\n" + "".join(f"1,{texts[i]}\n" for i in kept))
    pq.write_table(
        pa.table({"x": [1] * len(kept), "y": array.take(pa.array(kept))}), tmp_path / "t.parquet"
    )
    schema = Schema((Numeric("x", 0, 1),), classes=(*values, "another"))
    found = [
        encode(read_table(tmp_path / name), schema)[1].tolist() for name in ("t.csv", "t.parquet")
    ]
    assert found[0] == found[1] == list(range(len(kept)))


def test_pandas_writes_what_is_compared(tmp_path):
    pandas = pytest.importorskip("pandas")
    for kind in (
        "int8",
        "uint64",
        "Int64",
        "float64",
        "Float64",
        "float32",
        "large",
        "infinite",
        "bool",
        "string",
        "category",
        "Decimal",
        "datetime64 us",
        "datetime64 ns",
        "datetime64 of days",
        "datetime64 with a zone",
    ):
        array, _, values = WRITTEN[kind]
        frame = pandas.DataFrame({"x": array.to_pandas(), "y": "a"})
        frame.to_csv(tmp_path / "t.csv", index=False)
        frame.to_parquet(tmp_path / "t.parquet")
        schema = Schema(
            (Category("x", values, missing="indicator"),), target="y", classes=("a", "b")
        )
        found = [
            encode_features(table, schema).tolist()
            for table in (
                read_table(tmp_path / "t.csv", schema),
                read_table(tmp_path / "t.parquet"),
                frame_table(frame, schema),
                frame_table({"x": frame["x"].to_numpy(), "y": ["a"] * len(frame)}, schema),
            )
        ]
        assert found[0] == found[1] == found[2] == found[3], kind


def test_types_of_pandas_that_arrow_has_not_are_what_a_file_has_of_them(tmp_path):
    pandas = pytest.importorskip("pandas")
    ages = pandas.Series([20, 50, 70, None])
    for column, values in (
        (pandas.period_range("2026-01", periods=4, freq="M"), ["2026-01", "2026-02", "2026-03"]),
        (pandas.period_range("2026-01-30", periods=4, freq="D"), ["2026-01-30", "2026-02-01"]),
        (pandas.cut(ages, [0, 40, 60, 100]), ["(0.0, 40.0]", "(0, 40]", "(40, 60]"]),
        (pandas.interval_range(0, 4), ["(0, 1]", "(2, 3]"]),
        (pandas.arrays.SparseArray([0, 1, 0, 2]), ["0", "1"]),
    ):
        frame = pandas.DataFrame({"x": column, "y": "a"})
        frame.to_csv(tmp_path / "t.csv", index=False)
        schema = Schema(
            (Category("x", values, outside="zero", missing="indicator"),), classes=("a", "b")
        )
        rows = encode_features(frame_table(frame, schema), schema)
        assert (
            rows.tolist()
            == encode_features(read_table(tmp_path / "t.csv", schema), schema).tolist()
        )
        assert rows.any()


@pytest.mark.parametrize("value", [[1, 2], {"a": 1}, b"x", {1}, 1j, object()])
@pytest.mark.parametrize("kind", ["ignore", "id"])
def test_a_column_that_is_not_used_may_hold_anything(value, kind):
    schema = Schema.from_dict(
        {
            "target": "y",
            "classes": ["a", "b"],
            "columns": {"x": {"kind": "number", "low": 0, "high": 1}, "z": {"kind": kind}},
        }
    )
    table = frame_table({"z": [value, None], "x": [0, 1]}, schema)
    assert encode_features(table, schema).tolist() == [[-1.0], [1.0]] and len(table) == 2
    if not isinstance(value, complex) and type(value) is not object:
        used = schema.from_dict(schema.to_dict() | {"columns": {"z": {"kind": "text"}}})
        with pytest.raises(InputError, match=f"{type(value).__name__}.*spread.*kind = .ignore"):
            frame_table({"z": [value, None]}, used)


def test_declared_values_come_first():
    """A category of the name of a mark is one, and so are two versions that are one number."""
    schema = Schema(
        (Category("x", ("NA", "1.1", "1.10", "true"), outside="zero", missing="zero"),),
        classes=("a", "b"),
    )
    cells = ["NA", "1.1", "1.10", "1.100", "n/a", "true", "True"]
    found = encode_features(frame_table({"x": cells}, schema), schema)
    assert found.argmax(axis=1)[:3].tolist() == [0, 1, 2] and not found[3:5].any()
    assert found[5:].argmax(axis=1).tolist() == [3, 3]
    assert column_from("c", {"kind": "category", "values": [1, 2.0, 2.5, True]}).values == (
        "1",
        "2",
        "2.5",
        "True",
    )


def test_numbers_of_any_precision_are_their_shortest_text():
    rng = np.random.default_rng(0)
    for kind, bits in ((np.float32, np.uint32), (np.float16, np.uint16)):
        drawn = rng.integers(0, 2 ** (8 * np.dtype(bits).itemsize), 20_000).astype(bits).view(kind)
        values = np.concatenate(
            [
                drawn,
                rng.normal(0, 100, 2000).astype(kind),
                rng.normal(0, 9, 2000).round(2).astype(kind),
                np.array([0.1, 0, 16777217, 123456789, 1e10, 1e-45, np.inf, -np.inf, np.nan], kind),
            ]
        )
        np.testing.assert_array_equal(to_doubles(values), [float(str(one)) for one in values])
    schema = Schema((Numeric("x0", 0, 3),), classes=("0", "1"))
    single, double = (
        frame_table(np.array([[0.1], [2.7]], kind), schema) for kind in (np.float32, np.float64)
    )
    np.testing.assert_array_equal(encode_features(single, schema), encode_features(double, schema))


def test_every_float_has_one_form():
    rng = np.random.default_rng(1)
    for value in (rng.normal(0, 1, 2000) * 10.0 ** rng.integers(-20, 25, 2000)).tolist():
        form = canonical_text(repr(value))
        assert float(form) == value and canonical_text(form) == form == canonical_text(
            number_text(value)
        )
        assert canonical_text(f"{value:.25e}") == canonical_text(
            str(decimal.Decimal(f"{value:.25e}"))
        )


@pytest.mark.parametrize(
    "text",
    ["007", "+7", "12e4", "1e16", "-", ".", "", "e5", "0x1f", "1_0", "1,5", "2021-3-1", "7 7"],
)
def test_what_no_program_writes_for_a_number_is_text(text):
    assert canonical_text(text) == text


@pytest.mark.parametrize(
    ("ids", "found"),
    [
        (["7", "7.0", "7.00", "8"], ["7", "7", "7", "8"]),
        (["007", "008"], ["007", "008"]),
        (["+7", "a"], ["+7", "a"]),
        (["12e4", "120000"], ["12e4", "120000"]),
        (["9007199254740991.0"], ["9007199254740991"]),
        (["9007199254740993", "9007199254740992"], ["9007199254740993", "9007199254740992"]),
        (["NA", " x "], ["", "x"]),
        (["007", "7"], "in one way"),
        (["7.0", "07"], "in one way"),
        (["+7", "7"], "in one way"),
        (["07", "007"], "one"),
        (["-07", "-7"], "in one way"),
        (["00.5", "0.5"], "in one way"),
        (["1e+16"], "may be rounded"),
        (["2.5e+30"], "may be rounded"),
        (["9007199254740992.0"], "may be rounded"),
    ],
)
def test_one_person_has_one_identifier_or_is_refused(ids, found):
    if isinstance(found, list):
        assert canonical_identifiers("unit", ids) == found
        return
    with pytest.raises(InputError, match=found) as error:
        canonical_identifiers("unit", ids)
    assert not any(one in str(error.value) for one in ids if len(one) > 3), "no identifier is shown"
    with pytest.raises(InputError, match=found):
        select_unit_rows(np.array(ids), 1)


def test_rows_of_a_person_are_counted_together_however_they_are_written(tmp_path):
    assert select_unit_rows(np.array(["7", "7.0", "8", "7"]), 2).tolist() == [
        True,
        True,
        True,
        False,
    ]
    assert identifiers(np.array(["7", "7.0"])).tolist() == ["7", "7"]
    (tmp_path / "t.csv").write_text("who,x,y\n7,1,a\n7.0,1,a\n7.00,1,a\n8,1,b\n")
    schema = Schema.from_dict(
        {
            "target": "y",
            "classes": ["a", "b"],
            "columns": {"who": {"kind": "ignore"}, "x": {"kind": "number", "low": 0, "high": 1}},
        }
    )
    assert len(Units("who", 1).limit_rows(read_table(tmp_path / "t.csv", schema), schema)[0]) == 2
    file = open_file(str(tmp_path / "t.csv"), schema, units=Units("who", 2))
    file = file.map_rows(schema, test=None, row_norm=None)
    assert file.count == 2 and len(file.table) == 3


def test_the_marks_of_missing_cells_are_those_of_pandas():
    marks = [
        "#N/A",
        "#N/A N/A",
        "#NA",
        "-1.#IND",
        "-1.#QNAN",
        "-NaN",
        "-nan",
        "1.#IND",
        "1.#QNAN",
        "<NA>",
        "N/A",
        "NA",
        "NULL",
        "NaN",
        "None",
        "n/a",
        "nan",
        "null",
        "",
        "?",
        "NaT",
    ]
    schema = Schema(
        (
            Numeric("n", 0, 1, missing="indicator"),
            Category("c", ("x",), missing="indicator"),
            Date("d", "2020-01-01", "2021-01-01", missing="indicator"),
        ),
        classes=("a", "b"),
    )
    found = encode_features(frame_table(dict.fromkeys("ncd", marks), schema), schema)
    names = schema.form().names
    assert found[:, [names.index(name) for name in ("n=missing", "c=(missing)", "d=missing")]].all()
    if "pandas" in sys.modules:
        from pandas._libs.parsers import STR_NA_VALUES

        assert set(STR_NA_VALUES) <= set(marks)


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        ("7", [0, 1]),
        ("7.0\n8", [0, 1, 2]),
        ("8.00", [2]),
        ("NA", "1 of 1 lines do not"),
        ("07", "do not"),
        ("7\n07", "in one way"),
        ("1e+16", "may be rounded"),
    ],
)
def test_all_records_of_an_identifier_are_forgotten_however_it_is_written(tmp_path, lines, found):
    (tmp_path / "t.csv").write_text("who,x\n7,1\n7.0,1\n8,1\nNA,2\n")
    (tmp_path / "ids.txt").write_text(lines)
    asked = Request(
        model=tmp_path, data="t.csv", remove=tmp_path / "ids.txt", epsilon=1.0, ids="who"
    )
    texts = read_table(tmp_path / "t.csv")
    numbers = Table(("who",), {"who": np.array([7, 7, 8, np.nan])})
    for table in (texts, numbers):
        if isinstance(found, list):
            assert _locate_records(asked, table, 4, None).tolist() == found
            continue
        with pytest.raises(InputError, match=found):
            _locate_records(asked, table, 4, None)


def test_the_documentation_lists_the_marks():
    page = (Path(__file__).parents[2] / "docs/guides/data.md").read_text()
    listed = page.split("in capitals or not, one of")[1].split("If the schema lists")[0]
    assert {mark.lower() for mark in re.findall(r"`([^`]+)`", listed)} | {""} == MISSING

"""Files with decimal commas, and with days that begin with the day or the month."""

import csv
import json
import tomllib
import warnings
from datetime import date
from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import lastiterate as li
from lastiterate.cli import app
from lastiterate.data import (
    Ignore,
    Numeric,
    Schema,
    encode,
    encode_features,
    read_table,
    schema_template,
)
from lastiterate.data.data_frames import frame_table
from lastiterate.data.record_source import stream
from lastiterate.errors import InputError, RowProtectionWarning
from lastiterate.estimators import DPHuberRidge, base

PLAIN = "weight,day,cost\n1234.5,2025-04-15,20.25\n-0.5,2025-12-01,7\n1000000,2025-01-31,1e1\n"
COMMAS = "weight;day;cost\n1.234,5;15.04.2025;20,25\n-0,5;1.12.2025;7\n1.000.000;31-1-2025;1e1\n"
MONTHS = (
    COMMAS.replace("15.04.2025", "4/15/2025").replace("1.12.", "12/1/").replace("31-1-", "1/31/")
)
ENTRIES = {
    "target": "cost",
    "target_range": [0, 100],
    "columns": {
        "weight": {"kind": "number", "low": -1, "high": 2e6},
        "day": {"kind": "date", "first": "2025-01-01", "last": "2025-12-31"},
    },
}


def schema(**more):
    return Schema.from_dict(ENTRIES | more)


@pytest.mark.parametrize("text, dates", [(COMMAS, "day.month.year"), (MONTHS, "month/day/year")])
def test_numbers_and_days_are_those_of_a_plain_file(tmp_path, text, dates):
    (tmp_path / "plain.csv").write_text(PLAIN)
    (tmp_path / "t.csv").write_text(text)
    wanted = encode(read_table(tmp_path / "plain.csv", schema()), schema())
    ours = schema(decimal=",", dates=dates)
    table = read_table(tmp_path / "t.csv", ours)
    pieces = [
        np.concatenate(parts)
        for parts in zip(*stream(tmp_path / "t.csv", ours).pieces(2), strict=True)
    ]
    frame = {name: cells for name, cells in table.cells.items() if name != "cost"}
    for found in (encode(table, ours), pieces):
        assert all(np.array_equal(a, b) for a, b in zip(found, wanted, strict=True))
    assert np.array_equal(encode_features(frame_table(frame, ours), ours), wanted[0])
    assert Schema.from_dict(ours.to_dict()) == ours != schema()


@pytest.mark.parametrize(
    "cell, value",
    [
        ("1.234.567,5", 1234567.5),
        ("1 234,5", 1234.5),
        ("1\u202f234", 1234.0),
        (",5", 0.5),
        ("+3,", 3.0),
        ("1,5e3", 1500.0),
        ("7", 7.0),
        ("TRUE", 1.0),
    ],
)
def test_a_number_with_a_comma(cell, value):
    ours = schema(decimal=",")
    found = encode_features(frame_table({"weight": [cell], "day": ["2025-06-01"]}, ours), ours)
    column = ours.columns[0]
    assert column.from_unit(found[:, 0])[0] == pytest.approx(value, rel=1e-4, abs=0.2)


@pytest.mark.parametrize(
    "cell", ["1.5", "1.23", "1,234.5", "1.2345,6", "12,3,4", "a.b", "1.234.56"]
)
def test_what_may_be_another_number_is_refused_and_not_shown(cell):
    ours = schema(decimal=",")
    with pytest.raises(
        InputError, match=r"decimal comma, and holds other text in record 2;"
    ) as refused:
        encode_features(frame_table({"weight": ["1", cell], "day": ["2025-06-01"] * 2}, ours), ours)
    assert cell not in str(refused.value).replace("1.234,5", "")


@pytest.mark.parametrize("cell", ["31.02.2025", "13.14.2025", "1.2.25", "2025.1.2", "1.2.2025x"])
def test_what_is_no_day_is_refused(cell):
    ours = schema(dates="day.month.year")
    with pytest.raises(InputError, match=r"must hold days .*record 1; .*dates = .day\.month"):
        encode_features(frame_table({"weight": [1.0], "day": [cell]}, ours), ours)


def test_cells_of_other_files_stay_as_they_are():
    """Numbers of arrays have no comma, and ISO days one order."""
    ours = schema(decimal=",", dates="month/day/year")
    for day in ("2025-06-01", np.datetime64("2025-06-01")):
        cells = {"weight": np.array([1.5]), "day": np.array([day])}
        assert np.array_equal(
            encode_features(frame_table(cells, ours), ours),
            encode_features(frame_table(cells, schema()), schema()),
        )


def test_refusals_name_the_entry_that_helps_and_a_model_keeps_it(tmp_path):
    rows = [f"1.{i:03d},5;{1 + i % 28}.4.2025;{i % 90},5" for i in range(100)]
    (tmp_path / "t.csv").write_text("weight;day;cost\n" + "\n".join(rows) + "\n")
    plain = schema()
    for match, more in ((r'decimal = ","', {}), (r'dates = "day.month.year"', {"decimal": ","})):
        with pytest.raises(InputError, match=match):
            encode(read_table(tmp_path / "t.csv", plain), schema(**more))

    def call(*words):
        found = CliRunner().invoke(app, [str(word) for word in words])
        return found.exit_code, found.output

    kinds = "weight:number,day:date,cost:number"
    written = ("--decimal", ",", "--dates", "day.month.year")
    code, out = call("schema", tmp_path / "t.csv", "--columns", kinds, *written)
    assert code == 0 and 'decimal = ","' in out and 'dates = "day.month.year"' in out
    for ends in ('"?", "?"', "0, 100"), ('low = "?"', "low = 0"), ('high = "?"', "high = 3000"):
        out = out.replace(*ends)
    out = out.replace('first = "?"', 'first = "2025-01-01"').replace(
        'last = "?"', 'last = "2025-12-31"'
    )
    (tmp_path / "t.toml").write_text(out)
    train = ("train", tmp_path / "t.csv", "--epsilon", 3, "--algorithm", "noisy-gd")
    assert call(*train, "--out", tmp_path / "m")[0] == 0
    assert li.load(tmp_path / "m").schema.dates == "day.month.year"
    assert call("verify", tmp_path / "m")[0] == 0
    code, found = call("predict", tmp_path / "m", tmp_path / "t.csv")
    assert code == 0 and len(found.splitlines()) == 101
    like = schema_template(tmp_path / "t.csv", like=tomllib.loads(out))
    assert (
        tomllib.loads(like)["decimal"] == "," and tomllib.loads(like)["dates"] == "day.month.year"
    )


@pytest.mark.parametrize(
    "flag, value", [("decimal", ";"), ("dates", "iso"), ("dates", "2025-01-01")]
)
def test_other_spellings_are_refused(tmp_path, flag, value):
    (tmp_path / "t.csv").write_text(PLAIN)
    with pytest.raises(InputError, match=f"schema: {flag} must be"):
        schema(**{flag: value})
    found = CliRunner().invoke(app, ["schema", str(tmp_path / "t.csv"), f"--{flag}", value])
    assert found.exit_code == 2 and f"--{flag} must be one of" in " ".join(found.output.split())


def test_a_header_over_such_cells_is_found_and_a_public_sample_read(tmp_path):
    (tmp_path / "t.csv").write_text("a;b;c\n1,5;x;y\n2,5;y;z\n")
    text = schema_template(tmp_path / "t.csv", sample=tmp_path / "t.csv", decimal=",")
    assert tomllib.loads(text)["columns"]["a"]["kind"] == "number"
    (tmp_path / "t.csv").write_text("a;b\n1.2.2025;x\n2.2.2025;y\n")
    assert 'columns."a"' in schema_template(tmp_path / "t.csv")


@pytest.mark.parametrize("kind", ["number", "count"])
def test_a_misspelt_entry_is_named_before_what_it_leaves_open(kind):
    entries = {"kind": kind, "lwo": 18, "hihg": 90}
    facts = {"target": "y", "classes": ["a", "b"], "columns": {"age": entries}}
    with pytest.raises(InputError) as refused:
        Schema.from_dict(facts)
    low = "low, " if kind == "number" else ""
    assert str(refused.value) == (
        f"column 'age' has an entry that columns of kind '{kind}' have not, got 'lwo'; "
        f"entries of kind '{kind}': {low}high, "
        "outside, missing, scale."
    )


@pytest.mark.parametrize(("values", "said"), [(["?"], False), (["a", "?"], True)])
def test_question_marks_as_cells_are_spoken_of_where_there_are_any(tmp_path, values, said):
    (tmp_path / "s.toml").write_text(
        'target = "y"\nclasses = ["a", "b"]\n[columns.job]\nkind = "category"\n'
        f"values = {json.dumps(values)}\n"
    )
    with pytest.raises(InputError, match="leaves public facts open") as refused:
        Schema.read(tmp_path / "s.toml")
    assert ("get a place of their own" in str(refused.value)) == said


def test_a_target_of_another_kind_is_told_what_to_become():
    schema = Schema((Ignore("days"), Numeric("age", 0, 90)), classes=("a", "b"), target="y")
    with pytest.raises(InputError, match=r"predicted, and days is of kind ignore; in the schema"):
        schema.with_target("days")
    with pytest.raises(InputError, match=r"add it to the schema, or name one of age"):
        schema.with_target("dasy")


def test_a_public_sample_tells_days_and_free_text_from_categories(tmp_path):
    """Identifiers without a space stay categories, and so does a text that comes twice."""
    rows = [
        ("day", "note", "code", "town", "age", "y"),
        ("2026-01-31", "has a cough", "a1", "New York", "1", "no"),
        ("2025-12-01", "feels well", "a2", "New York", "2", "yes"),
    ]
    with (tmp_path / "t.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    text = schema_template(str(tmp_path / "t.csv"), sample=str(tmp_path / "t.csv"))
    columns = tomllib.loads(text)["columns"]
    assert {name: entry["kind"] for name, entry in columns.items()} == {
        "day": "date",
        "note": "text",
        "code": "category",
        "town": "category",
        "age": "number",
    }


def _columns_of_numbers():
    """The numbers 1.125, 1000 and -0.5 as numbers of every kind that a table in memory may hold."""
    numbers = [1.125, 1000, -0.5]
    yield "a list", numbers
    yield "objects", np.array(numbers, dtype=object)
    yield "Decimals", [Decimal("1.125"), Decimal(1000), Decimal("-0.5")]
    yield "scalars of NumPy", [np.float64(1.125), np.int64(1000), np.float32(-0.5)]
    yield "text next to numbers", ["1,125", 1000, np.float64(-0.5)]
    yield "pandas", pd.DataFrame({"weight": pd.Series([1.125, 1000, -0.5], dtype=object)})["weight"]
    yield "categories", pa.array([1.125, 1000.0, -0.5]).dictionary_encode()
    yield "decimals of Arrow", pa.array([Decimal("1.125"), Decimal(1000), Decimal("-0.5")])


@pytest.mark.parametrize("kind, column", [pytest.param(*c, id=c[0]) for c in _columns_of_numbers()])
def test_a_decimal_comma_is_a_matter_of_texts_and_numbers_keep_their_value(kind, column, tmp_path):
    ours = schema(decimal=",", dates="day.month.year")
    days = ["15.04.2025", date(2025, 12, 1), "2025-01-31"]
    frame = {"weight": column, "day": days}
    wanted = encode_features(
        frame_table(
            {"weight": [1.125, 1000.0, -0.5], "day": ["2025-04-15", "2025-12-01", "2025-01-31"]},
            schema(),
        ),
        schema(),
    )
    assert np.array_equal(encode_features(frame_table(frame, ours), ours), wanted)
    if kind == "text next to numbers":
        return  # no column of a file holds both
    cells = column if isinstance(column, pa.Array) else pa.array([Decimal(str(x)) for x in column])
    table = pa.table({"weight": cells, "day": ["15.04.2025", "1.12.2025", "31.1.2025"]})
    path = tmp_path / "t.parquet"
    pq.write_table(table.append_column("cost", pa.array(["20,25", "7", "1"])), path)
    rows, target = encode(read_table(path, ours), ours)
    assert np.array_equal(rows, wanted) and target == pytest.approx([-0.595, -0.86, -0.98])
    pieces = [np.concatenate(part) for part in zip(*stream(path, ours).pieces(2), strict=True)]
    assert np.array_equal(pieces[0], wanted) and np.array_equal(pieces[1], target)


def test_a_target_of_numbers_keeps_its_value_under_a_decimal_comma(tmp_path):
    ours, costs = schema(decimal=","), [Decimal("1.125"), Decimal("20.25")]
    days = ["2025-04-15", "2025-12-01"]
    pq.write_table(
        pa.table({"weight": [1.0, 2.0], "day": days, "cost": costs}), tmp_path / "t.parquet"
    )
    _, target = encode(read_table(tmp_path / "t.parquet", ours), ours)
    assert target == pytest.approx([-0.9775, -0.595])


def test_a_model_predicts_the_same_for_a_list_and_an_array_under_a_decimal_comma():
    facts = {
        "target_range": [0, 4],
        "decimal": ",",
        "columns": {"size": {"kind": "number", "low": 0, "high": 4}},
    }
    x = np.linspace(0, 4, 400)
    model = DPHuberRidge(schema=facts, random_state=0).fit({"size": x.tolist()}, x)
    found = [model.predict({"size": given}) for given in ([1.125], np.array([1.125]), ["1,125"])]
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("cell", ["-", "k.A.", "4o", ",", "1_0", "1,2,3"])
def test_refusals_of_numbers_follow_the_decimal_of_the_schema(cell):
    for decimal, said, unsaid in (
        (",", ('write 1.234,5 or 1234,5, or train without decimal = ","',), "30.5 and not"),
        (".", ("write 1000 and not 1,000", 'or train with decimal = ","'), "1.234,5"),
    ):
        ours = schema(decimal=decimal)
        with pytest.raises(InputError, match="other text in record 2;") as caught:
            encode_features(
                frame_table({"weight": ["1", cell], "day": ["2025-01-31"] * 2}, ours), ours
            )
        text = str(caught.value)
        assert all(part in text for part in said) and unsaid not in text
        assert 'an empty cell, "?", NA' in text and 'mark, such as "-", as an empty cell' in text


@pytest.mark.parametrize("mark", ["", "?", "NA", "NaN", "null", "None"])
@pytest.mark.parametrize("decimal, dates", [(",", "day.month.year"), (".", "year-month-day")])
def test_the_marks_that_a_refusal_names_are_missing_values(mark, decimal, dates):
    facts = {
        "target_range": [0, 1],
        "columns": {
            "weight": {"kind": "number", "low": 0, "high": 2, "missing": 1},
            "day": ENTRIES["columns"]["day"] | {"missing": "indicator"},
        },
    }
    ours = Schema.from_dict(facts | {"decimal": decimal, "dates": dates})
    rows = encode_features(frame_table({"weight": [mark], "day": [mark]}, ours), ours)
    assert rows[0, 0] == 0


@pytest.mark.parametrize(
    "dates, cell, example",
    [
        ("day.month.year", "01.02.25", "31.01.2026"),
        ("day.month.year", "31.02.2025", "31.01.2026"),
        ("month/day/year", "31/01/2025", "01/31/2026"),
        ("month/day/year", "-", "01/31/2026"),
    ],
)
def test_refusals_of_days_follow_the_dates_of_the_schema(dates, cell, example):
    ours = schema(dates=dates)
    with pytest.raises(InputError, match="other text in record 1;") as caught:
        encode_features(frame_table({"weight": ["1"], "day": [cell]}, ours), ours)
    text = str(caught.value)
    assert f"days such as {example}" in text and "the year has four digits" in text
    assert f'another order than dates = "{dates}"' in text and "such as 2026-01-31" not in text


def test_a_public_sample_is_read_as_the_file_writes_days_and_numbers(tmp_path):
    (tmp_path / "s.csv").write_text("w;day;us;c\n1.234,5;01.02.2023;1;x\n-2,0;28.2.2023;1.5;y\n")
    ours, found = {"decimal": ",", "dates": "day.month.year"}, []
    for sample, known in ((ours, None), ({}, ours), ({}, None)):
        text = schema_template(
            tmp_path / "s.csv", sample=tmp_path / "s.csv", like=known, target="c", **sample
        )
        columns = tomllib.loads(text)["columns"]
        found.append([columns[name]["kind"] for name in ("w", "day", "us")])
    read, unread = ["number", "date", "number"], ["category", "category", "number"]
    assert found == [read, read, unread]


def test_check_reads_a_file_without_a_header_as_train_does(tmp_path):
    (tmp_path / "h.csv").write_text("0,0,a\n" + "1,0,b\n0,1,a\n" * 20)
    (tmp_path / "h.toml").write_text(
        'target = "y"\nclasses = ["a", "b"]\nheader = ["p", "q", "y"]\n[columns]\n'
        'p = { kind = "number", low = 0, high = 1 }\nq = { kind = "number", low = 0, high = 1 }\n'
    )
    for more in ((), ("--schema", str(tmp_path / "h.toml"))):
        done = CliRunner().invoke(app, ["check", str(tmp_path / "h.csv"), *more])
        assert done.exit_code == 0 and "fits the schema" in done.output, done.output
    out = tmp_path / "m"
    called = ["train", str(tmp_path / "h.csv"), "--epsilon", "8", "--out", str(out)]
    assert CliRunner().invoke(app, called).exit_code == 0 and (out / "model.json").exists()
    done = CliRunner().invoke(app, ["check", str(tmp_path / "no.csv"), *more])
    assert done.exit_code == 2


def test_check_reports_no_fault_of_a_text_column_that_is_none(tmp_path):
    (tmp_path / "t.toml").write_text(
        'target = "y"\nclasses = ["a", "b"]\n[columns]\nn = { kind = "text" }\n'
        'd = { kind = "date", first = "2020-01-01", last = "2025-01-01" }\n'
    )
    columns = {"d": [1, 2, 3] * 10, "n": ["some words"] * 30, "y": ["a", "b", "a"] * 10}
    pq.write_table(pa.table(columns), tmp_path / "t.parquet")
    done = CliRunner().invoke(app, ["check", str(tmp_path / "t.parquet")])
    assert done.exit_code == 1 and "column 'd' must hold days" in done.output
    assert done.output.count("\n- ") == 1 and "'n'" not in done.output


def test_a_fit_says_once_that_it_protects_single_rows_of_a_table_with_ids(monkeypatch):
    monkeypatch.setattr(base, "_warned", False)
    facts = {
        "target_range": [0, 1],
        "columns": {"pid": {"kind": "id"}, "a": {"kind": "number", "low": 0, "high": 1}},
    }
    a = np.linspace(0, 1, 400)
    table = {"pid": (np.arange(400) // 2).tolist(), "a": a}
    settings: dict = dict(algorithm="noisy-gd", epsilon=2.0)
    with pytest.warns(RowProtectionWarning, match=r"units=table\['pid'\]\) protects all rows"):
        DPHuberRidge(schema=facts, **settings).fit(table, a)
    monkeypatch.setattr(base, "_warned", False)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RowProtectionWarning)
        fitted = DPHuberRidge(schema=facts, rows_per_unit=2, **settings)
        fitted.fit(table, a, units=pd.DataFrame(table)["pid"])  # the way out
        assert fitted.certificate_.unit == "pid"
        monkeypatch.setattr(base, "_warned", True)
        DPHuberRidge(schema=facts, **settings).fit(table, a)

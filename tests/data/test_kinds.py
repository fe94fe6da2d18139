"""Kinds of columns beyond numbers and categories: logarithms, counts, days, text, ids, and values
that are missing."""

import datetime
import tomllib

import numpy as np
import pytest

from lastiterate import InputError
from lastiterate.data import Schema, Table, encode_features, schema_template
from lastiterate.data.columns import Date, Numeric, Words
from lastiterate.data.schema import column_from

TOML = """
target = "y"
classes = ["0", "1"]
[columns.income]
kind = "number"
low = 0
high = 999
scale = "log"
missing = "indicator"
[columns.visits]
kind = "count"
high = 15
[columns.day]
kind = "date"
first = 2020-01-01
last = "2020-12-31"
missing = "indicator"
[columns.who]
kind = "id"
[columns.job]
kind = "category"
values = ["cook"]
missing = "indicator"
"""


def table(**changed):
    cells = {
        "income": ["0", "999", "NA"],
        "visits": ["0", "15", "3"],
        "day": ["2020-01-01", "2020-12-31 10:30", ""],
        "who": ["a", "b", "c"],
        "job": ["cook", "?", "cook"],
    } | changed
    return Table(tuple(cells), cells)


def schema():
    return Schema.from_dict(tomllib.loads(TOML))


def test_every_kind_becomes_what_it_says():
    found, form = encode_features(table(), schema()), schema().form()
    assert found.shape == (3, form.width) == (3, 2 + 1 + 2 + 12 + 7 + 2)
    named = {name: found[:, i].tolist() for i, name in enumerate(form.names)}
    assert named["income"] == [-1, 1, 0] and named["income=missing"] == [0, 0, 1]
    assert named["visits"] == [-1, 1, 0], "log(1 + 3) lies half-way between log 1 and log 16"
    assert named["day"] == [-1, 1, 0] and named["day=missing"] == [0, 0, 1]
    assert named["day.month=jan"] == [1, 0, 0] and named["day.month=dec"] == [0, 1, 0]
    assert named["day.weekday=wed"] == [1, 0, 0] and named["day.weekday=thu"] == [0, 1, 0]
    assert named["job=(missing)"] == [0, 1, 0] and not any("who" in name for name in form.names)
    assert (
        form.norm == pytest.approx(np.sqrt(6)) and np.linalg.norm(found, axis=1).max() <= form.norm
    )


def test_days_are_those_of_the_calendar():
    column = Date("d", "1900-01-01", "2100-01-01")
    rng = np.random.default_rng(0)
    days = [
        datetime.date(1900, 1, 1) + datetime.timedelta(int(k)) for k in rng.integers(0, 73_000, 300)
    ]
    rows = encode_features(
        Table(("d",), {"d": [day.isoformat() for day in days]}),
        Schema((column,), classes=("0", "1")),
    )
    assert rows[:, 1:13].argmax(axis=1).tolist() == [day.month - 1 for day in days]
    assert rows[:, 13:].argmax(axis=1).tolist() == [day.weekday() for day in days]


def test_a_schema_of_every_kind_reads_back():
    again = Schema.from_dict(schema().to_dict())
    assert again == schema() and again.columns[1] == Numeric("visits", 0, 15, scale="log")


@pytest.mark.parametrize("low", [-5.0, 0.0, 2.0])
def test_scales_are_monotone_and_invertible(low):
    for scale in ("linear", "log"):
        column, values = Numeric("a", low, 1e6, scale=scale), np.linspace(low, 1e6, 1000)
        found = column.to_unit(values)
        assert found[0] == -1 and found[-1] == pytest.approx(1) and (np.diff(found) > 0).all()
        assert np.allclose(column.from_unit(found), values)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (
            {"day": ["2020-13-01"] * 3},
            "must hold days such as 2026-01-31, and holds other text in record 1; correct the cell",
        ),
        ({"day": ["31.12.2020"] * 3}, "must hold days"),
        ({"day": ["2020-01-01x"] * 3}, "must hold days"),
        ({"visits": ["0", "", "1"]}, "has a missing value in record 2; fill the cell"),
        (
            {"income": ["high", "1", "2"]},
            "must hold numbers, and holds other text in record 1; correct the cell",
        ),
    ],
)
def test_cells_that_do_not_fit_are_one_sentence(changed, words):
    with pytest.raises(InputError) as error:
        encode_features(table(**changed), schema())
    said = str(error.value)
    assert words in said and "2020-13" not in said and "high" not in said


def test_days_outside_are_clipped_or_refused():
    for outside, day in (("clip", "2031-05-05"), ("clip", "1031-05-05")):
        rows = encode_features(
            Table(("d",), {"d": [day]}),
            Schema((Date("d", "2020-01-01", "2020-12-31", outside),), classes=("0", "1")),
        )
        assert abs(rows[0, 0]) == 1 and rows[0, 5] == 1, "the month is that of the day itself"
    with pytest.raises(InputError, match="must lie from 2020-01-01"):
        encode_features(
            Table(("d",), {"d": ["2031-05-05"]}),
            Schema((Date("d", "2020-01-01", "2020-12-31", "refuse"),), classes=("0", "1")),
        )


def test_bad_facts_are_refused():
    for make in (
        lambda: Numeric("a", 0, 1, scale="exp"),
        lambda: Numeric("a", 0, 1, missing="zero"),
        lambda: Date("d", "2020-01-01", "2019-01-01"),
        lambda: Date("d", "soon", "2019-01-01"),
        lambda: Date("d", "2020-01-01", "2021-01-01", missing="zero"),
        lambda: Numeric("a", 1e15, 1e15 + 0.125, scale="log"),
    ):
        with pytest.raises(InputError):
            make()


@pytest.mark.parametrize("values", ["ab", [["a"], "b"], [{"a": 1}], [None]])
def test_categories_are_a_list_of_single_values(values):
    with pytest.raises(InputError, match="values must be a list of categories"):
        column_from("c", {"kind": "category", "values": values})


def test_text_asks_for_a_map():
    with pytest.raises(InputError, match="holds text"):
        encode_features(Table(("t",), {"t": ["a"]}), Schema((Words("t"),), classes=("0", "1")))


def test_the_wizard_asks_what_each_kind_needs(tmp_path):
    (tmp_path / "t.csv").write_text("income,visits,day,who,note,job,y\n")
    answers = {
        "predicted": "y",
        "facts come from": "the law",
        "every class": "0,1",
        "income: number": "number",
        "income: its": "0..999",
        "income: are a few": "yes",
        "income: may": "yes",
        "visits: number": "count",
        "visits: the largest": "15",
        "visits: may": "no",
        "day: number": "date",
        "day: its": "2020-01-01..2020-12-31",
        "day: may": "yes",
        "who: number": "id",
        "note: number": "text",
        "job: number": "category",
        "job: every": "cook",
        "job: may": "yes",
    }
    asked = []

    def ask(question, choices):
        asked.append(question)
        return next(answer for start, answer in answers.items() if start in question)

    found = Schema.from_dict(tomllib.loads(schema_template(tmp_path / "t.csv", ask=ask)))
    assert len(asked) == len(answers)
    by_name = {column.name: column for column in found.columns}
    ours = {column.name: column for column in schema().columns}
    assert all(by_name[name] == ours[name] for name in ("income", "visits", "day", "who"))
    assert by_name["job"].missing == "indicator" and by_name["note"] == Words("note")


def test_an_id_is_not_what_is_predicted():
    from lastiterate.data.schema_template import template

    assert 'target = "outcome"' in template({"age": "?", "outcome": "category", "person": "id"})
    assert 'target = "b"' in template({"a": "id", "b": "ignore"})


@pytest.mark.parametrize(
    "entry, value",
    [("columns", "?"), ("columns", []), ("array", "?"), ("header", "?"), ("source", [])],
)
def test_a_question_mark_stands_for_what_is_listed_and_for_no_table(entry, value):
    with pytest.raises(InputError, match=f"^schema: {entry} must be"):
        Schema.from_dict({"target": "y", "classes": ["a", "b"], entry: value})
    with pytest.raises(InputError, match="open, got 'classes'"):
        Schema.from_dict({"target": "y", "classes": "?"})

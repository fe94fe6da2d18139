"""Schemas, readers and encoding: public facts only, and one sentence for everything that is wrong."""

import gzip
import io
import json
import tomllib
from functools import partial

import numpy as np
import pandas as pd
import pytest

from lastiterate.data import (
    BUNDLED,
    Array,
    Category,
    Ignore,
    Numeric,
    Schema,
    Table,
    encode,
    encode_features,
    load_bundled,
    read_table,
    schema_template,
    split,
    stream,
)
from lastiterate.errors import InputError
from lastiterate.limits import limit_unpacking
from lastiterate.release.data_file import schema_for
from lastiterate.release.units import Units
from support import call

CSV = "age,job,note,label\n20,cook,a,yes\n60,,b,no\n?,clerk,c,yes\n120,cook,d,no\n"
TOML = """
target = "label"
classes = ["no", "yes"]
source = "the questionnaire"
[columns.age]
kind = "number"
low = 0
high = 100
missing = 50
[columns.job]
kind = "category"
values = ["clerk", "cook"]
missing = "zero"
[columns.note]
kind = "ignore"
"""


@pytest.fixture
def files(tmp_path):
    (tmp_path / "t.csv").write_text(CSV)
    (tmp_path / "s.toml").write_text(TOML)
    return tmp_path


def test_encoding(files):
    X, y = encode(read_table(files / "t.csv"), Schema.read(files / "s.toml"))
    assert X.dtype == np.float32
    np.testing.assert_allclose(X, [[-0.6, 0, 1], [0.2, 0, 0], [0.0, 1, 0], [1.0, 0, 1]], atol=1e-6)
    assert list(y) == [1, 0, 1, 0]
    (files / "new.csv").write_text("age,job,note\n30,cook,z\n")
    assert encode_features(read_table(files / "new.csv"), Schema.read(files / "s.toml")).shape == (
        1,
        3,
    )


def test_schema_round_trip(files):
    schema = Schema.read(files / "s.toml")
    assert Schema.from_dict(schema.to_dict()) == schema
    for name in BUNDLED:
        own = load_bundled(name)[1]
        assert Schema.from_dict(own.to_dict()) == own


@pytest.mark.parametrize(
    "old, new, word",
    [
        (
            "120,cook",
            "120,pilot",
            "column 'job' has an unknown category in record 4; correct the cell, or train with",
        ),
        ("120,cook", "12O,cook", "column 'age'.*numbers"),
        ("120,cook", '"30,5",cook', "numbers.*30.5 and not 30,5; or train with"),
        (
            "120,cook",
            "infinite,cook",
            "numbers, and holds other text in record 4; correct the cell",
        ),
        ("120,cook", "1_0,cook", "column 'age'.*numbers"),
        ("20,cook,a,yes", "20,cook,a,maybe", "target 'label'"),
        ("20,cook,a,yes", "20,cook,a", "4 cells.*3 in record 1"),
        ("120,cook,d,no\n", '120,cook,d,"no', "CSV table.*cut off"),
        ("age,job", "years,job", "column.*'age'"),
        (
            "age,job,note,label",
            "HIV,cook,a,yes",
            "no column that the schema describes; .*header = ",
        ),
        (
            "age,job,note,label",
            "HIV,HIV,a,yes",
            "twice in its header, in columns 1 and 2; .*header = ",
        ),
        (CSV, "", "header"),
        (CSV, CSV.split("\n")[0], "header"),
        ("job,note", "age,note", "twice"),
        ("\n20,", "\n1,000,", "cells in every record, and has 5 in record 1; .*quotation marks"),
        ("\n20,", '\n"1,000",', "numbers, and holds other text in record 1;"),
        ("60,,b,no\n", "60,,b,no\n\n", "0 in record 3.*be empty"),
        (CSV, CSV.split("\n", 1)[1], "no column that the schema describes; .*header = "),
    ],
)
def test_bad_tables(files, old, new, word):
    (files / "t.csv").write_text(CSV.replace(old, new))
    schema = Schema.read(files / "s.toml")
    with pytest.raises(InputError, match=word) as caught:
        encode(read_table(files / "t.csv", schema), schema)
    assert "\n" not in str(caught.value) and "HIV" not in str(caught.value)


def test_a_first_row_that_is_no_header_is_not_shown(files):
    (files / "t.csv").write_text("HIV,cook,a,yes\n" * 3)
    with pytest.raises(InputError, match="no column that the schema describes") as unit:
        Units("person", 2).limit_rows(
            read_table(files / "t.csv", header=True), Schema.read(files / "s.toml")
        )
    with pytest.raises(InputError, match="must name columns of the file, got 'age'") as kinds:
        schema_template(files / "t.csv", columns="age:number", header=True)
    assert "HIV" not in f"{unit.value} {kinds.value}"


def test_a_text_may_be_long(tmp_path):
    path, text = tmp_path / "t.csv", "word " * 30_000
    path.write_text(f"note,label\n{text},a\n")
    assert read_table(path, header=True).cells["note"] == [text.strip()]
    path.write_text(f'note,label\n"{text * 120},a\n')
    with pytest.raises(
        InputError, match=r"field larger than field limit .16777216.*quotation mark be missing"
    ):
        read_table(path)


@pytest.mark.parametrize(
    "old, new, word",
    [
        ("missing = 50\n", "", "column 'age'.*missing.*fill the cell, or train with"),
        (
            "high = 100",
            'high = 100\noutside = "refuse"',
            r"\[0, 100\].*correct the cell, or train with",
        ),
        ("low = 0", 'low = "?"', "open, got 'age: low'"),
        ("low = 0\nhigh = 100", "", "open, got 'age: low; age: high'"),
        ('values = ["clerk", "cook"]', 'values = ["?"]', "open, got 'job: values'"),
        ('values = ["clerk", "cook"]', 'values = ["clerk", "?"]', "open, got 'job: values'"),
        ('classes = ["no", "yes"]', 'classes = ["no", "?"]', "open, got 'classes'"),
        ('classes = ["no", "yes"]', 'target_range = [0, "?"]', "open, got 'target_range'"),
        ("high = 100", "high = 0", "low must lie below"),
        ("low = 0\nhigh = 100", "low = -1e308\nhigh = 1e308", "finite distance"),
        ('missing = "zero"', 'missing = "guess"', "column 'job': missing"),
        ('kind = "ignore"', 'kind = "text"', "kind"),
        (
            'classes = ["no", "yes"]',
            'classes = ["yes"]',
            "^schema: classes must list .*two different",
        ),
        ('classes = ["no", "yes"]', "", "classes"),
        (
            '[columns.note]\nkind = "ignore"',
            "",
            "does not describe.*'note'; leave it out of the file, or train",
        ),
        ('target = "label"', 'target = "x"', "'label'|--target"),
        ('missing = "zero"', 'missing = "zero"\ncolour = 1', "have not"),
        ("low = 0", "low = 0\nlow = 1", "TOML"),
    ],
)
def test_bad_schemas(files, old, new, word):
    (files / "s.toml").write_text(TOML.replace(old, new))
    with pytest.raises(InputError, match=word) as caught:
        encode(read_table(files / "t.csv"), Schema.read(files / "s.toml"))
    assert "\n" not in str(caught.value)


def test_a_saved_model_may_have_a_category_of_that_name():
    schema = Schema((Category("job", ("cook", "?")),), classes=("no", "?"))
    assert Schema.from_dict(schema.to_dict()) == schema


def test_template_measures_nothing(files):
    (files / "t.csv").write_text(
        "income,town,label\n98765.4321,Atlantis,rich\n12345.6,Elsewhere,poor\n"
    )
    text = schema_template(files / "t.csv")
    assert not any(
        secret in text for secret in ("98765", "12345", "Atlantis", "Elsewhere", "rich", "poor")
    )
    (files / "s.toml").write_text(text)
    with pytest.raises(InputError, match="open, got 'classes; income: kind; town: kind'"):
        Schema.read(files / "s.toml")
    (files / "t.csv").write_text("income,town,label\nx,1,rich\n")
    assert schema_template(files / "t.csv") == text, "one cell more or less changes nothing"


def test_templates_by_flags_by_a_sample_and_by_another_schema(files):
    (files / "public.csv").write_text("age,job,note,label\n33,cook,a,yes\n?,clerk,b,no\n")
    by_flags = schema_template(files / "t.csv", columns="age:number,job:category,note:ignore")
    assert [by_flags.count(f'kind = "{kind}"') for kind in ("number", "category", "ignore")] == [
        1,
        1,
        1,
    ]
    sampled = schema_template(files / "t.csv", sample=files / "public.csv")
    assert sampled.count('kind = "number"') == 1 and sampled.count('kind = "category"') == 2
    assert not any(word in sampled for word in ("33", "cook", "clerk"))
    like = schema_template(files / "t.csv", like=tomllib.loads(TOML))
    assert Schema.from_dict(tomllib.loads(like)) == Schema.read(files / "s.toml")
    for columns, word in (
        ("age", None),
        ("age:prose", "with the kinds"),
        ("age:number,age:number", "once"),
        ("years:number", "must name columns of the file"),
    ):
        if word is None:
            assert 'kind = "?"' in schema_template(files / "t.csv", columns=columns)
            continue
        with pytest.raises(InputError, match=word):
            schema_template(files / "t.csv", columns=columns)


def test_a_file_without_a_header(files):
    body = CSV.split("\n", 1)[1]
    (files / "bare.csv").write_text(body)
    for attempt in (
        lambda: read_table(files / "bare.csv"),
        lambda: schema_template(files / "bare.csv"),
    ):
        with pytest.raises(InputError, match="must begin with a header") as caught:
            attempt()
        assert "cook" not in str(caught.value) and "120" not in str(caught.value), (
            "no record is printed"
        )
    with pytest.raises(InputError, match="columns must name the columns in order"):
        schema_template(files / "bare.csv", header=False)
    names = "age:number,job:category,note:ignore,label"
    text = schema_template(
        files / "bare.csv", columns=names, header=False, like=tomllib.loads(TOML)
    )
    schema = Schema.from_dict(tomllib.loads(text))
    assert schema.header == ("age", "job", "note", "label")
    table = read_table(files / "bare.csv", schema)
    (files / "new.csv").write_text("30,cook,z\n")
    assert encode_features(read_table(files / "new.csv", schema), schema).shape == (1, 3)
    for one, two in zip(
        encode(table, schema), encode(read_table(files / "t.csv"), schema), strict=True
    ):
        np.testing.assert_array_equal(one, two)
    for header in (["age", "age"], ["age", "years"]):
        with pytest.raises(InputError, match="header must name every column once"):
            Schema.from_dict({**tomllib.loads(TOML), "header": header})


def test_answers_of_a_person_fill_a_schema_in(files):
    answers = {
        "Which": "",
        "label: every": "no, yes",
        "Where": "a law",
        "age: number": "number",
        "age: its": "0..100",
        "age: are": "",
        "age: may": "",
        "job: may": "no",
        "job: number": "category",
        "job: every": "clerk, cook",
        "note: number": "ignore",
    }
    text = schema_template(
        files / "t.csv",
        ask=lambda question, _: next(
            answer for start, answer in answers.items() if question.startswith(start)
        ),
    )
    schema = Schema.from_dict(tomllib.loads(text.replace('missing = "refuse"', "missing = 50")))
    assert encode(read_table(files / "t.csv"), schema)[0].shape == (4, 3)


def test_another_target(files):
    schema = Schema.read(files / "s.toml")
    age = schema.with_target("age")
    assert age.target_range == (0.0, 100.0) and not age.classes and age.with_target("age") is age
    job = schema.with_target("job")
    assert job.classes == ("clerk", "cook") and Ignore("label") in job.columns
    for name in ("note", "years"):
        with pytest.raises(InputError, match="target must be a column that"):
            schema.with_target(name)


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        ({"scale": "log"}, r"scale = \"log\" in \[columns.paid\].*TransformedTargetRegressor"),
        ({"kind": "count"}, r"write scale = \"linear\" there.*log_paid"),
        ({"outside": "refuse"}, r"training clips targets to the range.*outside = \"clip\""),
        ({"missing": 5}, ""),
        ({"kind": "count", "scale": "linear"}, ""),
    ],
)
def test_a_target_refuses_what_its_column_says_in_vain(tmp_path, entries, said):
    """Training takes targets as they are, clipped; none of these entries would change anything."""
    column = {"kind": "number", "low": 1, "high": 100} | entries
    if column["kind"] == "count":
        del column["low"]
    columns = {"age": {"kind": "number", "low": 0, "high": 100}, "paid": column}
    schema = Schema.from_dict({"target": "y", "classes": ["a", "b"], "columns": columns})
    if not said:
        assert schema.with_target("paid").regression
        return
    with pytest.raises(InputError, match=f"target 'paid' cannot .*{said}"):
        schema.with_target("paid")
    (tmp_path / "t.csv").write_text("age,paid,y\n30,10,a\n")
    lines = [
        'target = "y"',
        'classes = ["a", "b"]',
        *(
            line
            for name, entry in columns.items()
            for line in (
                f"[columns.{name}]",
                *(f"{key} = {json.dumps(value)}" for key, value in entry.items()),
            )
        ),
    ]
    (tmp_path / "t.toml").write_text("\n".join(lines))
    for command, *more in (
        ["check"],
        ["train", "--epsilon", 1, "--out", tmp_path / "m"],
    ):
        found = call(command, tmp_path / "t.csv", "--target", "paid", *more)
        assert found[0] == 2 and "'paid' cannot" in " ".join((found[2]).split())
        assert not (tmp_path / "m").exists()
    labels = schema_for(str(tmp_path / "t.csv"), None, target="paid", classes="1,2", model=None)
    assert labels is not None and labels.classes == ("1", "2"), "labels have no scale"


@pytest.mark.parametrize("separator", [";", "\t", "|"])
def test_separators_come_from_the_header(files, separator):
    (files / "u.csv").write_text(CSV.replace(",", separator))
    assert read_table(files / "u.csv").cells == read_table(files / "t.csv").cells


def test_packed_files_and_their_limit(files):
    (files / "t.csv.gz").write_bytes(gzip.compress(CSV.encode()))
    assert read_table(files / "t.csv.gz").cells == read_table(files / "t.csv").cells
    (files / "cut.csv.gz").write_bytes(gzip.compress(CSV.encode())[:-9])
    with pytest.raises(InputError, match="complete gzip file"):
        read_table(files / "cut.csv.gz")
    np.savez_compressed(files / "a.npz", X=np.zeros((100, 100)), y=np.zeros(100))
    with limit_unpacking(50):
        with pytest.raises(
            InputError, match=r"must not unpack to more than 50 bytes.*raise the limit"
        ):
            read_table(files / "t.csv.gz")
        with pytest.raises(InputError, match="more than 50 bytes"):
            read_table(files / "a.npz")
    assert len(read_table(files / "a.npz")) == 100, "as before"
    with pytest.raises(InputError, match="must be a number of bytes"), limit_unpacking(0):
        pass


def test_a_category_with_very_many_values_is_refused_before_memory_ends(monkeypatch):
    values = tuple(f"v{i}" for i in range(20_000))
    schema = Schema(
        (Category("code", values), Numeric("x", 0.0, 1.0)), target="y", classes=("a", "b")
    )
    table = Table(("code", "x", "y"), {"code": ["v7", "v19999"], "x": ["0", "1"], "y": ["a", "b"]})
    found = encode(table, schema)[0]
    assert (
        found.shape == (2, schema.form().width) == (2, 20_001)
        and found[1, 19_999] == found[0, 7] == 1
    )
    monkeypatch.setattr("os.sysconf", lambda name: 600)
    with pytest.raises(InputError, match="schema makes 20001 features of 2 records") as caught:
        encode(table, schema)
    assert "v7" not in str(caught.value)


def test_standard_input(monkeypatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(CSV.encode())))
    assert len(read_table("-")) == 4


@pytest.mark.parametrize(
    ("cell", "value"),
    [("1e400", 1.0), ("-1e400", -1.0), ("1e39", 1.0), ("inf", 1.0), ("-Infinity", -1.0)],
)
def test_a_number_beyond_the_range_is_clipped_however_large(files, cell, value):
    (files / "t.csv").write_text(CSV.replace("120,cook", f"{cell},cook"))
    schema = Schema.read(files / "s.toml")
    assert encode(read_table(files / "t.csv"), schema)[0][3, 0] == value
    X = np.array([[float(cell)], [1.0]])
    np.savez(files / "a.npz", X=X, y=[0, 1])
    array = Schema.from_dict({"classes": ["0", "1"], "array": {"low": 0, "high": 10}})
    assert encode(read_table(files / "a.npz"), array)[0][0, 0] == value
    for kind in (np.float32, np.float64):
        with np.errstate(over="ignore"):  # 1e39 is infinite in single precision
            np.savez(files / "a.npz", X=np.ones((2, 1)), y=np.array([float(cell), 1.0], kind))
        regression = Schema.from_dict({"target_range": [0, 10], "array": {"low": 0, "high": 10}})
        assert encode(read_table(files / "a.npz"), regression)[1][0] == value
    from lastiterate.data.data_frames import frame_table

    for column in ([float(cell)], np.array([float(cell)]), np.array([float(cell)], object), [cell]):
        one = Schema((Numeric("x", 0.0, 1.0),), classes=("a", "b"))
        assert encode_features(frame_table({"x": column}, one), one)[0, 0] == value


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"columns": 3}, "columns must be tables"),
        ({"classes": "yes"}, "classes must be a list"),
        ({"target": 4}, "target must be the name"),
        ({"target_range": ["a", 2]}, "two numbers"),
        ({"array": [1]}, "array must be a table"),
        ({"header": [1]}, "list of names"),
        ({"classes": [["a"], "b"]}, "labels"),
        ({"columns": {"age": 7}}, "must be a table such as"),
        ({"columns": {"age": {"kind": "category", "values": 4}}}, "list"),
        ({"columns": {"age": {"kind": ["x"]}}}, "kind"),
    ],
)
def test_wrong_types_in_a_schema(change, word):
    with pytest.raises(InputError, match=word) as caught:
        Schema.from_dict({**tomllib.loads(TOML), **change})
    assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match="table of entries"):
        Schema.from_dict([1])
    with pytest.raises(InputError, match="readable file"):
        Schema.read(".")


def test_archives(tmp_path):
    X, y = np.arange(12.0).reshape(4, 3), np.array([0, 1, 1, 0])
    np.savez(tmp_path / "a.npz", X=X, y=y)
    schema = Schema.from_dict(
        {"target": "y", "classes": ["0", "1"], "array": {"low": 0, "high": 10}}
    )
    features, target = encode(read_table(tmp_path / "a.npz"), schema)
    np.testing.assert_allclose(features, np.clip(X / 5 - 1, -1, 1), atol=1e-6)
    assert list(target) == [0, 1, 1, 0]
    refuse = Schema.from_dict(
        {"classes": ["0", "1"], "array": {"low": 0, "high": 10, "outside": "refuse"}}
    )
    with pytest.raises(InputError, match="'x2'"):
        encode(read_table(tmp_path / "a.npz"), refuse)
    data = (tmp_path / "a.npz").read_bytes()
    for cut in (0, 40, len(data) // 2, len(data) - 30):
        (tmp_path / "b.npz").write_bytes(data[:cut])
        with pytest.raises(InputError, match="complete"):
            read_table(tmp_path / "b.npz")
    np.savez(tmp_path / "c.npz", X=np.where(X > 5, np.nan, X), y=y)
    with pytest.raises(InputError, match="NaN"):
        read_table(tmp_path / "c.npz")
    np.savez(tmp_path / "d.npz", X=X, y=y[:2])
    with pytest.raises(InputError, match="4 rows"):
        read_table(tmp_path / "d.npz")
    for name in ("nowhere.csv", "t.xlsx"):
        with pytest.raises(InputError, match="data file"):
            read_table(tmp_path / name)


def test_bundled_sets():
    for name in BUNDLED:
        table, schema = load_bundled(name)
        X, y = encode(table, schema)
        assert np.abs(X).max() <= 1 and len(X) == len(y) and schema.source
        train, test = split(len(X), seed=1)
        assert not set(train) & set(test) and len(train) + len(test) == len(X)
    table, schema = load_bundled("diabetes")
    low = np.array([c.low for c in schema.columns])
    high = np.array([c.high for c in schema.columns])
    assert (table.array >= low).all() and (table.array <= high).all()


FACTS_OF_NUMPY = {
    "target": "y",
    "classes": np.array(["no", "yes"]),
    "columns": {
        "age": {"kind": "number", "low": np.float32(0.1), "high": np.int64(100)},
        "rate": {
            "kind": "number",
            "low": np.float64(0),
            "high": np.uint8(1),
            "missing": np.int32(1),
        },
        "code": {"kind": "category", "values": np.array([1, 2])},
        "town": {"kind": "category", "values": pd.Series(["a", "b"]), "outside": np.str_("zero")},
        "size": {"kind": "category", "values": pd.Index([1.5, 2.5])},
        "day": {
            "kind": "date",
            "first": np.datetime64("2020-01-01"),
            "last": pd.Timestamp("2025-12-31"),
        },
    },
}
FACTS_OF_PYTHON = {
    "target": "y",
    "classes": ["no", "yes"],
    "columns": {
        "age": {"kind": "number", "low": 0.1, "high": 100},
        "rate": {"kind": "number", "low": 0.0, "high": 1, "missing": 1},
        "code": {"kind": "category", "values": [1, 2]},
        "town": {"kind": "category", "values": ["a", "b"], "outside": "zero"},
        "size": {"kind": "category", "values": [1.5, 2.5]},
        "day": {"kind": "date", "first": "2020-01-01", "last": "2025-12-31"},
    },
}


def test_a_schema_of_numpys_values_is_that_of_pythons():
    made, wanted = Schema.from_dict(FACTS_OF_NUMPY), Schema.from_dict(FACTS_OF_PYTHON)
    assert made == wanted and json.dumps(made.to_dict()) == json.dumps(wanted.to_dict())
    for entry, value in (
        ("classes", ("no", "yes")),
        ("classes", pd.Series(["no", "yes"])),
        ("classes", [np.str_("no"), "yes"]),
    ):
        assert Schema.from_dict(FACTS_OF_PYTHON | {entry: value}) == wanted
    ends = {"target": "y", "columns": FACTS_OF_PYTHON["columns"], "target_range": [0, 2]}
    for value in (np.array([0, 2]), (np.float64(0), 2), pd.Series([0, 2])):
        assert Schema.from_dict(ends | {"target_range": value}) == Schema.from_dict(ends)
    array = {"classes": [0, 1], "array": {"low": np.uint8(0), "high": np.int64(9), "shape": (2, 2)}}
    assert Schema.from_dict(array).array == Array(0, 9, shape=(2, 2))
    for value in (np.array(3), np.array([[0, 2]]), np.array([])):
        with pytest.raises(InputError):
            Schema.from_dict(ends | {"target_range": value})
    with pytest.raises(InputError, match="classes"):
        Schema.from_dict(FACTS_OF_PYTHON | {"classes": np.array([])})


def test_readers_take_what_holds_a_schema(tmp_path):
    facts = {"target": "y", "classes": ["no", "yes"], "columns": FACTS_OF_PYTHON["columns"]}
    facts["columns"] = {name: facts["columns"][name] for name in ("age", "rate")}
    toml, path = tmp_path / "members.toml", tmp_path / "members.csv"
    toml.write_text(
        'target = "y"\nclasses = ["no", "yes"]\n[columns]\n'
        'age = { kind = "number", low = 0.1, high = 100 }\n'
        'rate = { kind = "number", low = 0, high = 1, missing = 1 }\n'
    )
    path.write_text("age,rate,y\n30,0.5,no\n40,,yes\n")
    schema = Schema.from_dict(facts)
    wanted = encode(read_table(path, schema), schema)
    for given in (toml, str(toml), facts):
        table = read_table(path, given)
        pieces = [np.concatenate(part) for part in zip(*stream(path, given).pieces(1), strict=True)]
        for found in (encode(table, given), pieces, (encode_features(table, given), wanted[1])):
            assert all(np.array_equal(a, b) for a, b in zip(found, wanted, strict=True))
    for wrong in (3, ["age"]):
        for use in (partial(read_table, path), partial(encode, table), partial(stream, path)):
            with pytest.raises(InputError, match="schema must be a Schema, its dictionary, or the"):
                use(wrong)
    for use in (encode, encode_features):
        with pytest.raises(InputError, match="table must be what read_table returns, got 'str'"):
            use("members.csv", schema)

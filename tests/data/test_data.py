"""Schemas, readers and encoding: public facts only, and one sentence for everything that is wrong."""

import numpy as np
import pytest

from lastiterate.data import BUNDLED, Schema, encode, encode_features, load_bundled, read_table, schema_template, split
from lastiterate.errors import InputError

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
    assert encode_features(read_table(files / "new.csv"), Schema.read(files / "s.toml")).shape == (1, 3)


def test_schema_round_trip(files):
    schema = Schema.read(files / "s.toml")
    assert Schema.from_dict(schema.to_dict()) == schema
    for name in BUNDLED:
        own = load_bundled(name)[1]
        assert Schema.from_dict(own.to_dict()) == own


@pytest.mark.parametrize(
    "old, new, word",
    [
        ("120,cook", "120,pilot", "column 'job'.*unknown category"),
        ("120,cook", "12O,cook", "column 'age'.*numbers"),
        ("20,cook,a,yes", "20,cook,a,maybe", "target 'label'"),
        ("20,cook,a,yes", "20,cook,a", "4 cells.*3 in record 1"),
        ("120,cook,d,no\n", '120,cook,d,"no', "CSV table.*cut off"),
        ("age,job", "years,job", "column.*'age'"),
        (CSV, "", "header"),
        (CSV, CSV.split("\n")[0], "header"),
        ("job,note", "age,note", "twice"),
        ("\n20,", "\ninf,", "finite"),
    ],
)
def test_bad_tables(files, old, new, word):
    (files / "t.csv").write_text(CSV.replace(old, new))
    with pytest.raises(InputError, match=word) as caught:
        encode(read_table(files / "t.csv"), Schema.read(files / "s.toml"))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "old, new, word",
    [
        ("missing = 50\n", "", "column 'age'.*missing"),
        ("high = 100", 'high = 100\noutside = "refuse"', r"\[0, 100\]"),
        ("low = 0", 'low = "?"', "column 'age': low.*public fact"),
        ("low = 0\n", "", "column 'age': low"),
        ('values = ["clerk", "cook"]', 'values = ["?"]', "column 'job': values"),
        ("high = 100", "high = 0", "low must lie below"),
        ("low = 0\nhigh = 100", "low = -1e308\nhigh = 1e308", "finite distance"),
        ('missing = "zero"', 'missing = "guess"', "column 'job': missing"),
        ('kind = "ignore"', 'kind = "text"', "kind"),
        ('classes = ["no", "yes"]', 'classes = ["yes"]', "two different"),
        ('classes = ["no", "yes"]', "", "classes"),
        ('[columns.note]\nkind = "ignore"', "", "does not describe.*'note'"),
        ('target = "label"', 'target = "x"', "'label'|--target"),
        ('missing = "zero"', 'missing = "zero"\ncolour = 1', "does not exist"),
        ("low = 0", "low = 0\nlow = 1", "TOML"),
    ],
)
def test_bad_schemas(files, old, new, word):
    (files / "s.toml").write_text(TOML.replace(old, new))
    with pytest.raises(InputError, match=word) as caught:
        encode(read_table(files / "t.csv"), Schema.read(files / "s.toml"))
    assert "\n" not in str(caught.value)


def test_template_measures_nothing(files):
    (files / "t.csv").write_text("income,town,label\n98765.4321,Atlantis,rich\n12345.6,Elsewhere,poor\n")
    text = schema_template(files / "t.csv")
    assert not any(secret in text for secret in ("98765", "12345", "Atlantis", "Elsewhere", "rich", "poor"))
    assert '[columns."income"]' in text and "number" in text and "category" in text
    (files / "s.toml").write_text(text)
    with pytest.raises(InputError, match="public fact"):
        Schema.read(files / "s.toml")


def test_archives(tmp_path):
    X, y = np.arange(12.0).reshape(4, 3), np.array([0, 1, 1, 0])
    np.savez(tmp_path / "a.npz", X=X, y=y)
    schema = Schema.from_dict({"target": "y", "classes": ["0", "1"], "array": {"low": 0, "high": 10}})
    features, target = encode(read_table(tmp_path / "a.npz"), schema)
    np.testing.assert_allclose(features, np.clip(X / 5 - 1, -1, 1), atol=1e-6)
    assert list(target) == [0, 1, 1, 0]
    refuse = Schema.from_dict({"classes": ["0", "1"], "array": {"low": 0, "high": 10, "outside": "refuse"}})
    with pytest.raises(InputError, match="'x2'"):
        encode(read_table(tmp_path / "a.npz"), refuse)
    data = (tmp_path / "a.npz").read_bytes()
    for cut in (0, 40, len(data) // 2, len(data) - 30):
        (tmp_path / "b.npz").write_bytes(data[:cut])
        with pytest.raises(InputError, match="complete"):
            read_table(tmp_path / "b.npz")
    np.savez(tmp_path / "c.npz", X=np.where(X > 5, np.nan, X), y=y)
    with pytest.raises(InputError, match="finite"):
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

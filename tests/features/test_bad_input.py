"""What does not fit is one sentence and exit code 2, before anything is charged or written."""

import re

import pytest
from typer.testing import CliRunner

from lastiterate.cli import app
from lastiterate.data import Schema
from lastiterate.ledger.ledger import Ledger
from lastiterate.planning.planner import consider
from lastiterate.planning.task import Task
from lastiterate.release.linear_plans import FeatureChoice, RowAlternative, choose_features
from lastiterate.release.training_request import Budget

SCHEMA = """
target = "y"
classes = ["0", "1"]
[columns.a]
kind = "number"
low = 0
high = 1
outside = "{outside}"
[columns.c]
kind = "category"
values = ["u", "v"]
"""


@pytest.fixture
def files(tmp_path):
    (tmp_path / "d.csv").write_text("a,c,y\n" + "0.25,u,0\n0.75,v,1\n" * 100)
    (tmp_path / "s.toml").write_text(SCHEMA.format(outside="clip"))
    assert (
        call(
            "ledger",
            "make",
            tmp_path / "l.db",
            "--dataset",
            "d",
            "--epsilon",
            "9",
            "--delta",
            "1e-4",
            "--unit",
            "a row",
            "--adjacency",
            "zero-out",
        ).exit_code
        == 0
    )
    return tmp_path


def call(*words):
    return CliRunner().invoke(app, list(map(str, words)))


@pytest.mark.parametrize(
    ("features", "change", "words"),
    [
        ("words", None, "has nothing to map: words is for columns of text"),
        ("curves,bins", None, "nothing left to map for bins: curves maps"),
        ("scattering", None, "has nothing to map: scattering is for arrays, such as images"),
        ("curve", None, "must be plain, or maps"),
        ("curves,curves", None, "must be plain, or maps"),
        ("plain,words", None, "plain is what a column gets that no map takes: leave it out"),
        ("curves", ('kind = "number"', 'kind = "text"\nx = 1'), "have not"),
        ("curves", ("low = 0", 'low = 0\nscale = "cubic"'), 'scale must be "linear" or "log"'),
        (
            "plain",
            ('kind = "number"\nlow = 0\nhigh = 1\noutside = "clip"', 'kind = "text"'),
            "holds text",
        ),
    ],
)
def test_maps_that_do_not_fit(files, features, change, words):
    if change is not None:
        text = (files / "s.toml").read_text()
        assert change[0] in text
        (files / "s.toml").write_text(text.replace(*change))
    before = Ledger(files / "l.db").head()
    found = call(
        "train",
        files / "d.csv",
        "--schema",
        files / "s.toml",
        "--epsilon",
        1,
        "--features",
        features,
        "--ledger",
        files / "l.db",
        "--dataset",
        "d",
        "--out",
        files / "m",
    )
    said = " ".join(found.output.split())
    assert found.exit_code == 2 and words in said and "Traceback" not in said
    assert not (files / "m").exists()
    assert Ledger(files / "l.db").head() == before, "nothing was charged"


def test_values_beyond_the_public_ends_are_named_by_their_record(files):
    (files / "s.toml").write_text(SCHEMA.format(outside="refuse"))
    (files / "d.csv").write_text((files / "d.csv").read_text() + "17.5,u,0\n")
    found = call(
        "train",
        files / "d.csv",
        "--schema",
        files / "s.toml",
        "--epsilon",
        1,
        "--features",
        "curves",
        "--out",
        files / "m",
    )
    said = " ".join(found.output.split())
    assert (
        found.exit_code == 2
        and "must lie in [0, 1]" in said
        and "record 201" in said
        and "17.5" not in said
    )
    assert not (files / "m").exists()


def test_the_plan_says_why_rows_are_as_they_are(files):
    found = call(
        "train",
        files / "d.csv",
        "--schema",
        files / "s.toml",
        "--epsilon",
        8,
        "--explain-plan",
        "--out",
        files / "m",
    )
    assert found.exit_code == 0, found.output
    said = " ".join(found.output.split())
    assert "features: curves: numbers as 8 hat functions" in said and "records times mu" in said
    rows = re.search(
        r"add (\S+) to the log loss with 10 numbers in a row, and (\S+) with 3 \(plain\): 10 numbers "
        r"are worth it in any case\.\s",
        said,
    )
    assert rows and 0 < float(rows[1]) < float(rows[2]), (
        "three numbers alone lose what rows' lengths say"
    )
    wide, few = Task(1500, 80, 2, 2**0.5), RowAlternative(3, 2**0.5, "plain")
    best = consider(wide, epsilon=1.0, delta=1e-5).best
    said = FeatureChoice(Schema.read(files / "s.toml"), "plain", "", few).compare_costs(
        wide, best, Budget(1.0, 1e-5)
    )
    rows = re.search(
        r"add (\S+) to .* with 80 .* (\S+) with 3 \(plain\): 80 numbers are .* than (\S+)$",
        said,
    )
    assert rows and float(rows[1]) > float(rows[2]) > 0
    assert float(rows[3]) == pytest.approx(float(rows[1]) - float(rows[2]), rel=0.3), (
        "of two digits"
    )
    few = choose_features(Schema.read(files / "s.toml"), "auto", (2,), 200, Budget(0.3, 1e-5))
    assert few.schema.features == () and few.other == RowAlternative(10, 2**0.5, "curves"), (
        "which is said in their place"
    )

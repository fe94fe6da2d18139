"""``lastiterate schema`` as a newcomer types it: flags, a wizard, and files without a header."""

import numpy as np
import pytest
from typer.testing import CliRunner

from lastiterate.cli import app
from lastiterate.data import Schema

RNG = np.random.default_rng(0)
ADULT = "39, State-gov, 77516, Bachelors, <=50K\n50, Private, 83311, Masters, >50K\n"


def call(*args, text=None):
    result = CliRunner().invoke(app, [str(a) for a in args], input=text)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, " ".join(result.stderr.split())


@pytest.fixture
def csv(tmp_path):
    rows = [
        f"{age},{job},{'yes' if age > 50 else 'no'}"
        for age, job in zip(
            RNG.integers(18, 90, 300), RNG.choice(["cook", "clerk"], 300), strict=True
        )
    ]
    (tmp_path / "my.csv").write_text("age,job,sick\n" + "\n".join(rows) + "\n")
    return tmp_path


def test_the_wizard_leads_to_a_model_and_reads_no_cell(csv):
    answers = "sick\nno, yes\na questionnaire\nnumber\n18..90\nno\n\ncategory\ncook, clerk\nyes\n"
    code, out, err = call(
        "schema", csv / "my.csv", "--wizard", "--out", csv / "my.toml", text=answers
    )
    assert code == 0 and "complete" in out, err
    assert "cook" not in err and "Which column is predicted" in err
    code, out, err = call(
        "train",
        csv / "my.csv",
        "--schema",
        csv / "my.toml",
        "--epsilon",
        "3",
        "--algorithm",
        "noisy-gd",
        "--out",
        csv / "m",
    )
    assert code == 0, err
    assert call("verify", csv / "m")[0] == 0
    code, _, err = call(
        "train", csv / "my.csv", "--epsilon", "3", "--algorithm", "noisy-gd", "--out", csv / "found"
    )
    assert code == 0 and (csv / "found").is_dir(), "my.toml is the schema of my.csv"


def test_the_wizard_asks_again_where_an_answer_cannot_be_read(csv):
    """Nothing that was said before is lost to a slip of the hand."""
    answers = "sick\nno\nno, yes\na questionnaire\nnumber\n18-90\n90..18\n18..90\nno\n\ncategory\ncook, clerk\nyes\n"
    code, out, err = call(
        "schema", csv / "my.csv", "--wizard", "--out", csv / "my.toml", text=answers
    )
    assert code == 0 and "complete" in out, err
    assert "must be at least two" in err and "must be a number; a range is two of them" in err
    assert "must be two ends, the lower one first, got '90..18'" in " ".join(err.split())
    assert Schema.read(csv / "my.toml").columns[0].high == 90


def test_kinds_by_flag_and_another_schema(csv):
    code, out, _ = call("schema", csv / "my.csv", "--columns", "age:number,job:category")
    assert code == 0 and out.count('kind = "number"') == out.count('kind = "category"') == 1
    assert (
        "may stay as it is" not in out and "may stay as it is" in call("schema", csv / "my.csv")[1]
    )
    (csv / "old.toml").write_text(
        'target = "sick"\nclasses = ["no", "yes"]\n[columns.age]\nkind = "number"\nlow = 1\n'
        'high = 9\n[columns.job]\nkind = "ignore"\n'
    )
    code, out, _ = call(
        "schema", csv / "my.csv", "--like", csv / "old.toml", "--out", csv / "new.toml"
    )
    assert code == 0 and "1 public facts" in " ".join(out.split())
    assert Schema.read(csv / "new.toml").columns == Schema.read(csv / "old.toml").columns
    code, _, err = call("schema", csv / "my.csv", "--columns", "age:prose")
    assert code == 2 and "--columns must be NAME:KIND" in err


def test_records_are_never_taken_for_names(csv):
    (csv / "adult.data").write_text(ADULT)
    (csv / "adult.csv").write_text(ADULT)
    for command in (["schema", csv / "adult.csv"], ["train", csv / "adult.csv", "--epsilon", "1"]):
        code, out, err = call(*command)
        if command[0] == "train":
            assert code == 2 and "lastiterate schema" in err and "77516" not in err, (
                "which looks at the first row"
            )
            continue
        assert code == 2 and "must begin with a header" in err
        assert (
            "lastiterate schema FILE --header no --columns NAME:KIND,... makes a schema" in err
        ), "and that is how"
        assert "77516" not in out + err and "Masters" not in out + err
    names = "age:number,work:ignore,weight:ignore,education:category,income"
    code, out, err = call("schema", csv / "adult.csv", "--no-header", "--columns", names)
    assert code == 0 and 'header = ["age", "work", "weight", "education", "income"]' in out, err
    code, _, err = call("schema", csv / "adult.csv", "--no-header")
    assert (
        code == 2
        and "--columns must name the columns in order" in err
        and "--columns NAME:KIND" in err
    )


def test_other_targets_and_bundled_sets(csv):
    (csv / "s.toml").write_text(
        'target = "sick"\nclasses = ["no", "yes"]\n[columns.age]\nkind = "number"\nlow = 18\n'
        'high = 90\n[columns.job]\nkind = "category"\nvalues = ["cook", "clerk"]\n'
    )
    code, _, err = call(
        "train",
        csv / "my.csv",
        "--schema",
        csv / "s.toml",
        "--target",
        "age",
        "--epsilon",
        "3",
        "--out",
        csv / "age",
    )
    assert code == 0, err
    code, _, err = call(
        "train", csv / "my.csv", "--schema", csv / "s.toml", "--target", "years", "--epsilon", "3"
    )
    assert code == 2 and "--target must be a column that the schema describes" in err
    code, _, err = call(
        "train", csv / "my.csv", "--schema", csv / "s.toml", "--classes", "yes", "--epsilon", "3"
    )
    assert code == 2 and err.startswith(
        "error: --classes must list at least two different public labels, got ['yes']"
    )
    (csv / "one.toml").write_text((csv / "s.toml").read_text().replace('["no", "yes"]', '["yes"]'))
    code, _, err = call("train", csv / "my.csv", "--schema", csv / "one.toml", "--epsilon", "3")
    assert code == 2 and err.startswith("error: schema: classes must list at least two")
    for flag, value in (("--target", "x0"), ("--classes", "a,b")):
        code, _, err = call("train", "iris", "--epsilon", "3", flag, value)
        assert code == 2 and err.startswith(f"error: {flag} cannot be combined with a bundled set")
    code, _, err = call("train", csv / "my.csv", "--schema", ".", "--epsilon", "3")
    assert code == 2 and "--schema must be a readable file" in err
    code, _, err = call(
        "train", csv / "my.csv", "--schema", csv / "s.toml", "--model", "svm", "--epsilon", "3"
    )
    assert code == 2 and "logistic, huber-ridge, bayes-linear" in err

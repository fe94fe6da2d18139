"""``lastiterate schema`` as a newcomer types it: flags, a wizard, and files without a header."""

import numpy as np
import pytest

from lastiterate.data import Schema
from lastiterate.errors import InputError
from support import call

RNG = np.random.default_rng(0)
ADULT = "39, State-gov, 77516, Bachelors, <=50K\n50, Private, 83311, Masters, >50K\n"


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


@pytest.mark.parametrize(
    "kind, line",
    [
        ("number", 'target_range = ["?", "?"]'),
        ("count", 'target_range = [0, "?"]'),
        ("category", 'classes = ["?"]'),
    ],
)
def test_the_kind_of_the_target_says_what_it_needs(csv, kind, line):
    flags = ("schema", csv / "my.csv", "--target", "age", "--columns", f"age:{kind},sick:ignore")
    code, _, _ = call(*flags, "--out", csv / "my.toml")
    text = (csv / "my.toml").read_text()
    assert code == 0 and sum(one.startswith(line) for one in text.splitlines()) == 1
    assert text.count("classes = ") + text.count("target_range = ") == (
        1 if kind != "category" else 2
    )
    opened = "classes" if kind == "category" else "target_range"
    with pytest.raises(InputError, match=f"open, got '{opened}; job: kind'"):
        Schema.read(csv / "my.toml")


def test_a_target_of_another_kind_is_refused_with_a_way_out(csv):
    flags = ("schema", csv / "my.csv", "--columns", "sick:date")
    code, _, err = call(*flags)
    assert code == 2 and "--columns must call the target a number, a count or a category" in err
    assert "got 'sick:date'; name another --target COLUMN, or give it one of these kinds" in err
    assert call(*flags, "--target", "age")[0] == 0
    assert call("schema", csv / "my.csv", "--columns", "sick:category")[0] == 0


def test_a_column_of_another_schema_that_is_predicted_now_keeps_its_facts(csv):
    (csv / "old.toml").write_text(
        'target = "sick"\nclasses = ["no", "yes"]\n[columns.age]\nkind = "number"\nlow = 1\n'
        'high = 9\n[columns.job]\nkind = "category"\nvalues = ["cook", "clerk"]\n'
    )
    like = ("schema", csv / "my.csv", "--like", csv / "old.toml", "--columns", "sick:ignore")
    assert "target_range = [1, 9]" in call(*like, "--target", "age")[1]
    assert 'classes = ["cook", "clerk"]' in call(*like, "--target", "job")[1]
    assert 'target_range = ["?", "?"]' in call(*like[:-1], "sick:number")[1]


@pytest.mark.parametrize(
    "flags, said",
    [
        ((), "0..1000"),
        ((), "regression\n0..1000"),
        ((), "number\n0-1000\n0...1000\n0..1000"),
        ((), "0-1000\n0..1000"),
        (("--columns", "age:number"), "0..1000"),
        (("--columns", "age:count"), "0, 1000\n0..1000"),
    ],
)
def test_the_wizard_takes_a_number_to_predict(csv, flags, said):
    answers = f"Age\n{said}\na law\nCategory\ncook, clerk\nN\nignore\n"
    code, out, err = call(
        "schema", csv / "my.csv", "--wizard", *flags, "--out", csv / "w.toml", text=answers
    )
    assert code == 0 and "complete" in out, err
    found = Schema.read(csv / "w.toml")
    assert (found.target, found.target_range) == ("age", (0.0, 1000.0))


@pytest.mark.parametrize(
    "yes, no", [("yes", "no"), ("y", "n"), ("Y", "N"), ("Yes", "NO"), ("YES", "")]
)
def test_the_wizard_takes_yes_and_no_in_short(csv, yes, no):
    answers = f"sick\nno, yes\na law\nnumber\n18..90\n{yes}\n{no}\ncategory\na\n{yes}\n"
    code, _, err = call("schema", csv / "my.csv", "--wizard", "--out", csv / "w.toml", text=answers)
    assert code == 0, err
    age, job = Schema.read(csv / "w.toml").columns
    assert (age.scale, age.missing, job.missing) == ("log", "refuse", "indicator")
    code, _, err = call(
        "schema",
        csv / "my.csv",
        "--wizard",
        text=answers.replace("18..90", "1..9").replace(f"\n{yes}\n{no}", f"\nperhaps\n{yes}\n{no}"),
    )
    assert code == 0 and "one of: yes, no" in err


def test_kinds_by_flag_and_another_schema(csv):
    code, out, _ = call("schema", csv / "my.csv", "--columns", "age:number,job:category")
    assert code == 0 and out.count('kind = "number"') == out.count('kind = "category"') == 1
    assert 'outside = "refuse"   # or "zero"' in out
    assert '"outside" and "missing" hold for files to predict, too' in out
    assert (
        "has to be filled in" not in out
        and "has to be filled in" in call("schema", csv / "my.csv")[1]
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


@pytest.mark.parametrize("index", [None, "visit"], ids=["no name", "a name"])
def test_an_index_of_pandas_is_no_column(index, tmp_path):
    """It is the last column of a file, and the target was the last one that is read."""
    pandas = pytest.importorskip("pandas")
    ages = RNG.integers(18, 90, 300)
    frame = pandas.DataFrame({"age": ages, "sick": np.where(ages > 50, "yes", "no")})
    frame = frame[ages > 20].rename_axis(index)
    file, schema = tmp_path / "t.parquet", tmp_path / "t.toml"
    frame.to_parquet(file)
    code, out, err = call("schema", file)
    name = index or "__index_level_0__"
    assert code == 0 and 'target = "sick"' in out, err
    assert f'[columns."{name}"]\nkind = "ignore"' in out.replace(
        f"columns.{name}", f'columns."{name}"'
    )
    filled = out.replace('classes = ["?"]', 'classes = ["no", "yes"]')
    filled = filled.replace('low = "?"', "low = 0").replace('high = "?"', "high = 100")
    schema.write_text(filled.replace('source = "?"', 'source = "a questionnaire"'))
    code, _, err = call(
        "train",
        file,
        "--schema",
        schema,
        "--epsilon",
        "3",
        "--algorithm",
        "noisy-gd",
        "--out",
        tmp_path / "model",
    )
    assert code == 0, err


def test_damaged_notes_of_pandas_are_no_error(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    table = pyarrow.table({"age": [1.0, 2.0], "sick": ["yes", "no"]})
    for note in (b"{", b"[]", b'{"index_columns": 3}', b'{"index_columns": [{"kind": "range"}]}'):
        parquet.write_table(
            table.replace_schema_metadata({b"pandas": note}), tmp_path / "t.parquet"
        )
        code, out, err = call("schema", tmp_path / "t.parquet")
        assert code == 0 and 'target = "sick"' in out, err

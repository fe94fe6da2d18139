"""``lastiterate plan`` and ``train --explain-plan``: what was considered, in words, without any
data."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lastiterate.cli import app
from lastiterate.run.run import Run

runner = CliRunner()
ASKED = ["plan", "--n", "2000", "--features", "20", "--epsilon", "1"]


def test_the_plans_are_shown_and_the_chosen_run_is_written(tmp_path: Path) -> None:
    out = tmp_path / "run.json"
    result = runner.invoke(app, [*ASKED, "--delta", "1e-6", "--out", str(out)])
    assert result.exit_code == 0, result.output
    for word in ("accelerated", "plain", "permuted", "chosen:", "shifted-interpolation-permuted 1"):
        assert word in result.output
    run = Run.from_dict(json.loads(out.read_text()))
    assert run.n == 2000
    again = runner.invoke(app, ["account", str(out), "--delta", "1e-6", "--json"])
    assert json.loads(again.output)["epsilon"] <= 1.0
    refused = runner.invoke(app, [*ASKED, "--out", str(out)])
    assert refused.exit_code == 2 and "must not exist yet" in refused.stderr


def test_a_stream_is_planned_with_what_reads_piece_by_piece() -> None:
    result = runner.invoke(
        app, [*ASKED[:1], "--n", "3000000", *ASKED[3:], "--stream", "--time-budget", "600"]
    )
    assert result.exit_code == 0, result.output
    assert "cyclic" in result.output and "objective" not in result.output, (
        "a minimiser reads all records at once"
    )


def test_a_plan_for_persons_costs_the_ledger_what_train_is_charged(tmp_path: Path) -> None:
    """Single rows of a person are charged as a group: many times as much, and plan says so."""
    ledger, schema, out = tmp_path / "b.db", tmp_path / "v.toml", tmp_path / "m"
    data = tmp_path / "v.csv"
    rows = (f"p{i // 3},{i % 100 / 100},{'yes' if i % 100 > 50 else 'no'}" for i in range(600))
    data.write_text("\n".join(("person,a,ill", *rows, "")))
    schema.write_text(
        'target = "ill"\nclasses = ["no", "yes"]\nsource = "s"\n'
        '[columns.person]\nkind = "id"\n[columns.a]\nkind = "number"\nlow = 0\nhigh = 1\n'
    )
    made = ["ledger", "make", str(ledger), "--dataset", "v", "--unit", "person"]
    made += ["--rows-per-unit", "3", "--epsilon", "3", "--delta", "1e-5"]
    assert runner.invoke(app, made).exit_code == 0
    asked = ["--schema", str(schema), "--epsilon", "1", "--delta", "1e-6", "--ledger", str(ledger)]
    units = ["--unit", "person", "--rows-per-unit", "3"]
    spent = ledger.read_bytes()
    group = runner.invoke(app, ["plan", "--n", "600", *asked])
    assert "Single rows are planned, and one person has at most 3 of them" in group.output
    told = "--unit person, with --n counting by person, costs less (--rows-per-unit 3 uses all rows"
    assert told in " ".join(group.output.split())
    more = [*asked[:2], "--epsilon", "1.5", *asked[4:]]
    refused = runner.invoke(app, ["train", str(data), *more])
    said = " ".join(refused.output.split())
    assert refused.exit_code == 2 and ledger.read_bytes() == spent
    cause = (
        "as a group of 3, because the ledger is per person and nothing says whose a row is: add "
    )
    assert cause + "--unit person, where --rows-per-unit 3 uses all rows of each;" in said
    other = str(shutil.copy(ledger, tmp_path / "other.db"))
    one_row = [*more[:-1], other, "--unit", "person", "--out", str(tmp_path / "one")]
    one_row += ["--algorithm", "noisy-gd"]
    assert runner.invoke(app, ["train", str(data), *one_row]).exit_code == 0, "--unit is enough"
    offered = said.partition("; or --epsilon ")[2].split()[0]
    copy = shutil.copy(ledger, tmp_path / "copy.db")
    again = [*more[:3], offered, *more[4:-1], str(copy)]
    fits = ["train", str(data), *again, "--out", str(tmp_path / "rows")]
    assert runner.invoke(app, fits).exit_code == 0, "the offered epsilon fits"
    person = runner.invoke(app, ["plan", "--n", "200", *asked, *units, "--json"])
    plan = json.loads(person.output)["plans"][0]
    assert person.exit_code == 0 and ledger.read_bytes() == spent, "nothing is charged"
    rows_as_group = json.loads(runner.invoke(app, ["plan", "--n", "600", *asked, "--json"]).output)
    assert plan["ledger_share"] < 0.2 < 0.9 < rows_as_group["plans"][0]["ledger_share"]
    trained = runner.invoke(app, ["train", str(data), *asked, *units, "--out", str(out)])
    assert trained.exit_code == 0, trained.output
    run = json.loads((out / "certificate.json").read_text())["run"]
    assert Run.from_dict(run) == Run.from_dict(plan["run"]), "the plan is what train executes"
    left = json.loads(runner.invoke(app, ["ledger", "show", str(ledger), "--json"]).output)
    taken = 1 - left["datasets"][0]["left"]["squared mu"]
    assert taken == pytest.approx(plan["ledger_share"], rel=1e-6)


@pytest.mark.parametrize(("flags", "word"), [
    (["--rows-per-unit", "3"], "--rows-per-unit needs the column"),
    (["--unit", "p", "--rows-per-unit", "0"], "--rows-per-unit"),
    (["--unit", "p", "--rows-per-unit", "2", "--stream"], "--rows-per-unit must be 1 with --stream"),
    (["--time-budget", "0"], "--time-budget"), (["--classes", "1"], "classes"), (["--row-norm", "-1"], "--row-norm"),
    (["--epsilon", "nan"], "epsilon"), (["--delta", "2"], "--delta"), (["--adjacency", "near"], "adjacency"),
])  # fmt: skip
def test_bad_input_is_one_sentence(flags: list[str], word: str) -> None:
    result = runner.invoke(app, [*ASKED, *flags])
    assert result.exit_code == 2
    assert word in result.stderr and "Traceback" not in result.stderr


def test_training_explains_its_plan(tmp_path: Path) -> None:
    flags = [
        "train",
        "iris",
        "--epsilon",
        "3",
        "--explain-plan",
        "--time-budget",
        "5",
        "--out",
        str(tmp_path / "m"),
    ]
    result = runner.invoke(app, flags)
    assert result.exit_code == 0, result.output
    assert "plans considered" in result.output and "chosen:" in result.output
    assert "log loss" in result.output and "accuracy" in result.output


def test_roots_of_features_travel_with_the_model(tmp_path: Path) -> None:
    import lastiterate as li

    flags = ["train", "iris", "--epsilon", "3", "--features", "sqrt", "--out", str(tmp_path / "m")]
    result = runner.invoke(app, flags)
    assert result.exit_code == 0, result.output
    model = li.load(tmp_path / "m")
    assert any(type(part).__name__ == "SquareRoots" for part in model.run.preprocessing)
    assert runner.invoke(app, ["verify", str(tmp_path / "m")]).exit_code == 0
    refused = runner.invoke(app, [*flags[:-1], str(tmp_path / "n"), "--algorithm", "noisy-gd"])
    assert refused.exit_code == 2 and "is for the automatic plan" in refused.stderr


@pytest.mark.parametrize("n", ["0", "-3", "1000000000001"])
@pytest.mark.parametrize("more", [[], ["--delta", "1e-5"], ["--stream"], ["--classes", "0"]])
def test_a_number_of_records_out_of_range_is_refused(n: str, more: list[str]) -> None:
    refused = runner.invoke(app, [*ASKED, "--n", n, *more])
    assert refused.exit_code == 2 and isinstance(refused.exception, SystemExit)
    assert f"--n must be an integer between 1 and 1000000000000, got {n}." in " ".join(
        refused.stderr.split()
    )


def test_a_schema_without_a_number_of_records_is_one_sentence(tmp_path: Path) -> None:
    schema = tmp_path / "t.toml"
    schema.write_text(
        'target = "y"\nclasses = ["a", "b"]\n[columns.x]\nkind = "number"\nlow = 0\nhigh = 1\n'
    )
    for more in (["--schema", str(schema)], ["--features", "3"]):
        result = runner.invoke(app, ["plan", "--epsilon", "1", *more])
        assert result.exit_code == 2 and "--n is needed" in result.stderr, result.stderr


TABLE = """target = "y"
classes = ["no", "yes"]
[columns.x]
kind = "number"
low = 0
high = 100
[columns.note]
kind = "text"
"""


def test_names_of_features_are_planned_with_a_schema(tmp_path: Path) -> None:
    """As ``train --features`` takes them; another meaning than the number of columns."""
    schema = tmp_path / "t.toml"
    schema.write_text(TABLE)
    asked = ["plan", "--n", "5000", "--epsilon", "1", "--schema", str(schema)]
    shown = {}
    for names in ("words", "curves,words"):
        result = runner.invoke(app, [*asked, "--features", names])
        assert result.exit_code == 0, result.stderr
        shown[names] = next(line for line in result.output.splitlines() if "features:" in line)
    assert "words" in shown["words"] and "curves" not in shown["words"]
    assert "curves" in shown["curves,words"]
    refused = runner.invoke(app, [*asked, "--features", "nonsense"])
    assert refused.exit_code == 2 and "--features" in refused.stderr and "words" in refused.stderr
    refused = runner.invoke(app, [*asked, "--features", "30"])
    assert refused.exit_code == 2 and "or name maps such as curves" in refused.stderr


@pytest.mark.parametrize("given", ["words", "2.5", "-3"])
def test_features_without_a_schema_say_both_meanings(given: str, tmp_path: Path) -> None:
    refused = runner.invoke(app, ["plan", "--n", "5000", "--epsilon", "1", "--features", given])
    said = " ".join(refused.stderr.split())
    assert refused.exit_code == 2 and "valid integer" not in said
    assert "must be the number of columns, or with a schema the names of maps" in said
    assert "such as --features 30, or add --schema FILE" in said

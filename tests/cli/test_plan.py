"""``lastiterate plan`` and ``train --explain-plan``: what was considered, in words, without any
data."""

from __future__ import annotations

import json
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


@pytest.mark.parametrize(("flags", "word"), [
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

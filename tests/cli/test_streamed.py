"""Files that do not fit in memory: train reads them piece by piece, says so, and charges the same."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from lastiterate.cli import app
from lastiterate.release import data_file

SCHEMA = 'target = "y"\nclasses = ["0", "1"]\n' + "".join(
    f'[columns.{name}]\nkind = "number"\nlow = -3\nhigh = 3\n' for name in "ab"
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 2)).round(3)
    with open(tmp_path / "d.csv", "w", newline="") as out:
        csv.writer(out).writerows(
            [["a", "b", "y"], *([*row, int(sum(row) > 0)] for row in x.tolist())]
        )
    (tmp_path / "s.toml").write_text(SCHEMA)
    return tmp_path / "d.csv"


def train(file: Path, out: str, *more: str) -> tuple[int, dict, str]:
    args = [
        "train",
        str(file),
        "--schema",
        str(file.with_name("s.toml")),
        "--epsilon",
        "4",
        "--algorithm",
        "cyclic-dp-sgd",
        "--batch",
        "cyclic:50",
        "--json",
        "--out",
        str(file.with_name(out)),
        *more,
    ]
    result = CliRunner().invoke(app, args)
    return (
        result.exit_code,
        json.loads(result.stdout) if result.exit_code == 0 else {},
        result.stderr,
    )


def test_train_chooses_pieces_by_itself_and_says_so(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, whole, said = train(file, "whole")
    assert code == 0 and "piece by piece" not in said, said
    monkeypatch.setattr(data_file, "free_memory", lambda: 1e4)
    code, found, said = train(file, "pieces", "--scratch", str(file.parent))
    assert code == 0 and (
        "the file is read piece by piece: its rows need about 8.16e-05 GB of memory, and a quarter "
        "of the free memory is 2.5e-06 GB; --memory BYTES allows more" in said
    )
    one, other = (
        json.loads((file.with_name(name) / "certificate.json").read_text())
        for name in ("whole", "pieces")
    )
    assert one["run"] == other["run"] and found["epsilon"] == whole["epsilon"]
    assert not list(file.parent.glob(".lastiterate*"))
    code, _, said = train(file, "more", "--memory", "1GB")
    assert code == 0 and "piece by piece" not in said


def test_a_stated_bound_of_memory_is_kept(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By reading in pieces, or by a refusal of what needs all rows at once."""
    monkeypatch.setattr(data_file, "PROGRAM", 10**9 - 10**4)
    code, _, said = train(file, "pieces", "--memory", "1GB")
    assert code == 0 and "--memory 1000000000 leaves them 1e-05 GB" in said
    for more, reason in (
        (["--secure-noise"], "secure_noise"),
        (["--report-accuracy", "0.9"], "report_accuracy"),
    ):
        code, _, said = train(file, "model", "--memory", "1GB", *more)
        assert code == 2 and said.count("error:") == 1, said
        assert "--memory must be at least 1 GB, since rows are held in memory with" in said
        assert reason in said and not file.with_name("model").exists()
    for text in ("100MB", "much", "1XB", "-2GB"):
        code, _, said = train(file, "model", "--memory", text)
        assert code == 2 and "--memory" in said and said.count("error:") == 1


@pytest.mark.parametrize("more", [["--secure-noise"], ["--report-accuracy", "0.9"]], ids=str)
def test_what_needs_all_rows_has_them_where_no_bound_is_stated(
    file: Path, monkeypatch: pytest.MonkeyPatch, more: list[str]
) -> None:
    monkeypatch.setattr(data_file, "free_memory", lambda: 1e4)
    code, _, said = train(file, "model", *more)
    assert code == 0 and "piece by piece" not in said, said


def test_an_algorithm_that_reads_at_random_is_not_read_in_pieces(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data_file, "free_memory", lambda: 1e4)
    other = ["--algorithm", "poisson-dp-sgd", "--batch", "poisson:0.1"]
    code, _, said = train(file, "model", *other)
    assert code == 0 and "piece by piece" not in said, said
    code, _, said = train(file, "other", "--stream", *other)
    assert code == 2 and "random access" in said


@pytest.mark.parametrize("more", [["--secure-noise"]], ids=str)
def test_what_needs_all_records_at_once_is_refused(file: Path, more: list[str]) -> None:
    code, _, said = train(file, "model", "--stream", *more)
    assert code == 2 and said.count("error:") == 1 and not file.with_name("model").exists()


def test_rows_of_units_are_the_same_in_pieces(file: Path) -> None:
    """One row of each person, and several, which are charged as a group."""
    rows = file.read_text().splitlines()
    named = [f"who,{rows[0]}", *(f"{i // 3},{row}" for i, row in enumerate(rows[1:]))]
    file.write_text("\n".join(named) + "\n")
    schema = file.with_name("s.toml")
    schema.write_text(schema.read_text() + '[columns.who]\nkind = "id"\n')
    for most, numbers in (("1", [134, 134]), ("2", [134, 267])):
        found = []
        for name, more in (("whole", []), ("pieces", ["--stream"])):
            code, model, said = train(
                file, name + most, "--unit", "who", "--rows-per-unit", most, *more
            )
            assert code == 0, said
            assert "who" in said or "who" in json.dumps(model)
            found.append(json.loads((file.with_name(name + most) / "certificate.json").read_text()))
        assert [one["run"]["n"] for one in found] == numbers

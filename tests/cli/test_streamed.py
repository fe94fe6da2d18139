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
    monkeypatch.setattr(data_file, "memory", lambda: 1e4)
    code, found, said = train(file, "pieces", "--scratch", str(file.parent))
    assert (
        code == 0
        and "read piece by piece: they need about" in said
        and "this machine has 1e-05 GB" in said
    )
    one, other = (
        json.loads((file.with_name(name) / "certificate.json").read_text())
        for name in ("whole", "pieces")
    )
    assert one["run"] == other["run"] and found["epsilon"] == whole["epsilon"]
    assert not list(file.parent.glob(".lastiterate*"))


@pytest.mark.parametrize("more", [["--unit", "a"], ["--secure-noise"]], ids=str)
def test_what_needs_all_records_at_once_is_refused(file: Path, more: list[str]) -> None:
    code, _, said = train(file, "model", "--stream", *more)
    assert code == 2 and said.count("error:") == 1 and not file.with_name("model").exists()

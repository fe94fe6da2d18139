"""Files that do not fit in memory: train reads them piece by piece, says so, and charges the same."""

import csv
import io
import json
import os
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

import lastiterate as li
from lastiterate.cli import app
from lastiterate.data import Schema
from lastiterate.engine.streaming import scratch
from lastiterate.ledger import GaussianFilter, Ledger
from lastiterate.release import data_file, file_training
from lastiterate.release.pipeline import progress_bars
from lastiterate.release.training_request import Algorithm, Budget, TrainingRequest

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
    for more in ([], ["--secure-noise"]):
        code, _, said = train(file, "pieces" + "".join(more), "--memory", "1GB", *more)
        assert code == 0 and "--memory 1000000000 leaves them 1e-05 GB" in said
    code, _, said = train(file, "model", "--memory", "1GB", "--report-accuracy", "0.9")
    assert code == 2 and said.count("error:") == 1, said
    assert "--memory must be at least 1 GB, since rows are held in memory with" in said
    assert "report_accuracy" in said and not file.with_name("model").exists()
    for text in ("100MB", "much", "1XB", "-2GB"):
        code, _, said = train(file, "model", "--memory", text)
        assert code == 2 and "--memory" in said and said.count("error:") == 1


@pytest.mark.parametrize("more", [["--report-accuracy", "0.9"]], ids=str)
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


def test_exact_noise_has_the_bits_of_memory_in_pieces(file: Path) -> None:
    order = TrainingRequest(
        data=str(file),
        budget=Budget(4.0),
        schema=Schema.read(file.with_name("s.toml")),
        algorithm=Algorithm("cyclic-dp-sgd", li.Cyclic(50)),
        exact=True,
        seed=5,
    )
    whole, pieces = (
        file_training.fit_file(replace(order, stream=stream)).model for stream in (False, True)
    )
    assert pieces.released.weights.tobytes() == whole.released.weights.tobytes()
    code, _, said = train(file, "model", "--stream", "--secure-noise")
    assert code == 0, said
    assert li.load(file.with_name("model")).form == "exact" and li.verify(file.with_name("model"))


@pytest.mark.parametrize("more", [["--report-accuracy", "0.9"]], ids=str)
def test_what_needs_all_records_at_once_is_refused(file: Path, more: list[str]) -> None:
    code, _, said = train(file, "model", "--stream", *more)
    assert code == 2 and said.count("error:") == 1 and not file.with_name("model").exists()


def test_a_scratch_folder_that_is_none_is_refused_before_the_charge(file: Path) -> None:
    ledger = file.with_name("l")
    Ledger(ledger).add("d", unit="row", adjacency="zero-out", filter=GaussianFilter(9.0))
    before = ledger.read_bytes()
    paid = ["--ledger", str(ledger), "--dataset", "d", "--stream", "--scratch", "nowhere"]
    code, _, said = train(file, "model", *paid)
    assert code == 2 and "--scratch must be a folder that can be written to" in said
    assert ledger.read_bytes() == before and not file.with_name("model").exists()


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


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "pieces"])
def test_progress_in_records_is_told_where_their_number_is_public(file: Path, stream: bool) -> None:
    told: list[tuple[int, int]] = []
    order = TrainingRequest(
        data=str(file),
        budget=Budget(4.0),
        schema=Schema.read(file.with_name("s.toml")),
        algorithm=Algorithm("cyclic-dp-sgd", li.Cyclic(50)),
        stream=stream,
        rows_progress=lambda done, count: told.append((done, count)),
    )
    file_training.fit_file(order)
    assert told and {count for _, count in told} == {400} and max(told) == (400, 400)
    told.clear()
    hidden = replace(order, budget=Budget(4.0, adjacency="add-remove", n=500), stream=False)
    hidden = replace(hidden, algorithm=Algorithm("poisson-dp-sgd", li.Poisson(0.1)))
    file_training.fit_file(hidden)
    assert not told, "the number of records is private"


def test_records_are_counted_on_terminals_alone() -> None:
    for terminal in (True, False):
        shown = Console(file=io.StringIO(), force_terminal=terminal)
        with progress_bars("training", shown) as (_, rows):
            assert (rows is not None) == terminal
            if rows is not None:
                rows(3, 7)
        assert ("reading records" in shown.file.getvalue()) == terminal


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "pieces"])
def test_what_is_shown_follows_from_public_numbers_alone(
    file: Path, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    """Two files of as many records with other values: the same words on the screen."""
    monkeypatch.setattr(data_file, "free_memory", lambda: 1e4 if stream else 1e12)
    said = []
    for number in range(2):
        code, _, err = train(file, f"model{number}")
        assert code == 0
        said.append(re.sub(r"\d+:\d\d:\d\d", "TIME", err))
        rows = file.read_text().splitlines()
        file.write_text("\n".join([rows[0], *(f"1.5,-2.25,{row[-1]}" for row in rows[1:])]) + "\n")
    assert said[0] == said[1]


@pytest.mark.parametrize("nameless", [True, False], ids=["opened without", "unlinked"])
def test_rows_on_a_disk_are_encrypted_and_have_no_name(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nameless: bool
) -> None:
    """Also while they are written, and after a failure or Ctrl-C in the middle."""
    if not nameless:
        monkeypatch.delattr(os, "O_TMPFILE", raising=False)
    folder = tmp_path / "scratch"
    folder.mkdir()
    kept: list[bytes] = []
    writing = scratch.Scratch.write

    def write(self: scratch.Scratch, page: int, content: bytes) -> None:
        writing(self, page, content)
        assert not list(folder.iterdir()) and not list(file.parent.glob("**/.lastiterate*"))
        assert os.fstat(self._file).st_nlink == 0 and os.fstat(self._file).st_mode & 0o077 == 0
        held = os.pread(self._file, os.fstat(self._file).st_size, 0)
        assert bytes(content)[:64] not in held
        kept.append(held)
        if stop is not None:
            raise stop

    monkeypatch.setattr(scratch.Scratch, "write", write)
    for name, stop in (("a", None), ("b", KeyboardInterrupt()), ("c", OSError(28, "full"))):
        code, _, _ = train(file, name, "--stream", "--scratch", str(folder))
        assert (code == 0) == (stop is None) and kept
        assert not list(folder.iterdir()) and file.with_name(name).exists() == (stop is None)


def test_a_private_number_of_records_is_not_said(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under add-remove a refusal for want of memory is the same for files of other lengths."""
    monkeypatch.setattr(data_file, "PROGRAM", 10**9 - 10**4)
    more = ["--memory", "1GB", "--adjacency", "add-remove", "--n", "500"]
    more += ["--algorithm", "poisson-dp-sgd", "--batch", "poisson:0.1"]
    said = []
    for _ in range(2):
        code, _, err = train(file, "model", *more)
        assert code == 2 and "--memory must be more, since rows are held in memory" in err
        said.append(err)
        file.write_text("\n".join(file.read_text().splitlines()[:-50]) + "\n")
    assert said[0] == said[1]

"""A process that is killed at any step of its ending: the same command ends it, and charges nothing
more."""

import os
import shutil
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lastiterate as li
from lastiterate.cli import train
from lastiterate.engine import checkpoint
from lastiterate.ledger import GaussianFilter, Ledger, database, ledger
from lastiterate.release import ledger_charge, linear_model
from support import call

FIT = [
    "train",
    "iris",
    "--epsilon",
    "1",
    "--algorithm",
    "noisy-gd",
    "--time-budget",
    "1",
    "--no-calibrated",
]
LEDGER, CHECKPOINT = (
    ["--ledger", "book", "--dataset", "d"],
    ["--checkpoint", "kept", "--checkpoint-key", "key"],
)
COMMANDS = {
    "train": [*FIT, "--out", "m", *LEDGER, *CHECKPOINT],
    "train without a ledger": [*FIT, "--out", "m", *CHECKPOINT],
    "train without a checkpoint": [*FIT, "--out", "m", *LEDGER],
    "train into a folder of its choice": [*FIT, *LEDGER],
    "tune": [
        "tune",
        "iris",
        "--epsilon",
        "1",
        "--algorithms",
        "noisy-gd,cyclic-dp-sgd",
        "--mean-runs",
        "1.5",
        "--time-budget",
        "1",
        "--out",
        "m",
        *LEDGER,
    ],
    "forget": [
        "forget",
        "before",
        "iris",
        "--remove",
        "ids",
        "--epsilon",
        "1",
        "--out",
        "m",
        *LEDGER,
    ],
}


def prepared(at: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with a ledger and a key, which the process is in."""
    at.mkdir()
    monkeypatch.chdir(at)
    Path("key").write_text("0f" * 32)
    Path("key").chmod(0o600)
    Path("ids").write_text("3\n")
    Ledger(Path("book")).add(
        "d", unit="row", adjacency="zero-out", filter=GaussianFilter.of(8.0, 1e-4)
    )


def states(words: list[str], at: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Run a command, and copy its folder behind every step of its ending that changes the disk."""
    copies: list[Path] = []
    ending = False

    def copied() -> None:
        if ending:
            copies.append(at.with_name(f"killed-{len(copies)}"))
            shutil.copytree(at, copies[-1])

    def then(call: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any, **more: Any) -> Any:
            result = call(*args, **more)
            copied()
            return result

        return called

    @contextmanager
    def transaction(connection: Any) -> Any:
        with database.transaction(connection):
            yield
        copied()

    def committed(*args: Any) -> Path:
        nonlocal ending
        ending = True
        return plain(*args)

    plain = train.save_and_finish
    with monkeypatch.context() as patch:
        for name in ("link", "replace", "rename", "unlink"):
            patch.setattr(os, name, then(getattr(os, name)))
        patch.setattr(ledger, "transaction", transaction)
        patch.setattr(train, "save_and_finish", committed)
        assert call(*words)[0] == 0
    return copies


def whole(name: str, words: list[str]) -> None:
    """Assert that one model was released, that it is complete, and that nothing else is there."""
    folders = [Path("m")] if "--out" in words else list(Path("models").iterdir())
    assert len(folders) == 1
    checked = li.verify(folders[0])
    assert checked.holds and not checked.uncovered and (folders[0] / "report.html").is_file()
    assert not Path("kept").exists() and not list(Path().rglob("*.part"))
    if "--ledger" in words:
        (line,) = [
            line
            for line in Ledger(Path("book")).total().releases
            if line.purpose == name.split()[0] and line.number > ("before" in words)
        ]
        assert line.state == "released" and Ledger(Path("book")).verify() == ()


@pytest.mark.parametrize("name", COMMANDS)
def test_the_same_command_ends_what_was_killed(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = COMMANDS[name]
    prepared(tmp_path / "whole", monkeypatch)
    if name == "forget":
        assert (
            call(
                "train",
                "iris",
                "--epsilon",
                "2",
                "--algorithm",
                "forgetting-sgd",
                "--time-budget",
                "1",
                "--out",
                "before",
                "--no-calibrated",
                *LEDGER,
            )[0]
            == 0
        )
    found = states(words, tmp_path / "whole", monkeypatch)
    whole(name, words)
    model = sorted(Path().rglob("weights.safetensors"))[-1].read_bytes()
    unfinished = list[Path]()
    for killed in found:
        monkeypatch.chdir(killed)
        kept, listed = Path("kept").exists(), has_page(folder_of(words))
        if kept or (folder_of(words).exists() and "--checkpoint" not in words and not listed):
            unfinished.append(killed)
        elif "--out" in words and listed:
            assert "must not exist yet" in call(*words).err
    assert len(unfinished) >= 2
    for killed in unfinished if name == "train" else (unfinished[0], unfinished[-1]):
        monkeypatch.chdir(killed)
        there = folder_of(words).exists() and "--ledger" in words
        if there and "--checkpoint" not in words and "--out" in words:
            refused(words, monkeypatch)
        with monkeypatch.context() as patch:
            if there:
                patch.setattr(
                    linear_model, "execute", lambda *_, **__: pytest.fail("it was trained again")
                )
            code, _, said = call(*words)
        assert code == 0 and ("nothing was trained or charged again" in said) == there, said
        whole(name, words)
        assert sorted(Path().rglob("weights.safetensors"))[-1].read_bytes() == model


def folder_of(words: list[str]) -> Path:
    return Path("m" if "--out" in words else "models/iris-1")


def has_page(folder: Path) -> bool:
    return folder.exists() and '"report.html"' in (folder / "manifest.json").read_text()


def refused(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Assert that another command, and the same one on other records, say that the folder is taken."""
    before = Ledger(Path("book")).total()
    code, _, said = call(*words, "--epsilon", "0.5")
    assert code == 2 and "must not exist yet" in said
    with monkeypatch.context() as patch:
        patch.setattr(ledger_charge, "compute_keyed_digest", lambda *_: "0" * 64)
        code, _, said = call(*words)
    assert code == 2 and (
        "for another model name another folder" in said or words[0] == "forget"
    ), said
    assert Ledger(Path("book")).total() == before


class Killed(BaseException):
    pass


def test_a_call_of_train_ends_what_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model was in memory alone: the same bits come out again, and the line is the same."""
    prepared(tmp_path / "whole", monkeypatch)
    run = li.Run(
        n=60, steps=30, step_size=0.3, batching=li.Permuted(20), loss=li.Logistic(ridge=1e-2)
    )
    rng = np.random.default_rng(0)
    data, models = (
        (rng.uniform(-1, 1, (60, 4)).astype(np.float32), rng.integers(0, 2, 60)),
        list[bytes](),
    )
    asked: dict[str, Any] = dict(
        epsilon=1.0, delta=1e-6, ledger="book", dataset="d", checkpoint="kept", checkpoint_key="key"
    )

    def killed(*_: object) -> None:
        raise Killed

    def released(ledger: Ledger, token: str, model: str) -> None:
        models.append(model.encode())
        plain(ledger, token, model)

    plain = Ledger.release
    monkeypatch.setattr(Ledger, "release", released)
    for place, name in ((checkpoint, "remove"), (Ledger, "release"), (checkpoint, "remove")):
        with monkeypatch.context() as patch:
            patch.setattr(place, name, killed)
            with pytest.raises(Killed):
                li.train(run, data, **asked)
        assert Path("kept").exists()
    li.train(run, data, **asked)
    (line,) = Ledger(Path("book")).total().releases
    assert (
        line.state == "released"
        and not Path("kept").exists()
        and len(set(models)) == 1
        and len(models) == 3
    )
    assert Ledger(Path("book")).verify() == ()

"""Every writer on a disk that fails: the old file, or none, nothing half written, and one sentence."""

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lastiterate as li
from lastiterate import atomic_files
from lastiterate.audit.scores import Results
from lastiterate.cli.app import emit
from lastiterate.engine import checkpoint
from lastiterate.errors import InputError
from lastiterate.report.plots import figure_for, save_figure
from support import call

RUN = li.Run(n=60, steps=30, step_size=0.3, batching=li.Permuted(20), loss=li.Logistic(ridge=1e-2))


@pytest.fixture(scope="module")
def trained() -> Any:
    rng = np.random.default_rng(0)
    data = rng.uniform(-1, 1, (60, 4)).astype(np.float32), rng.integers(0, 2, 60)
    return li.train(RUN, data, epsilon=1.0, delta=1e-6)


@pytest.fixture
def folder(trained: Any, tmp_path: Path) -> Path:
    """A model folder with its page, and images."""
    trained.save(tmp_path / "m")
    code, _, said = call("report", tmp_path / "m")
    assert (code, said) == (0, "")
    np.save(tmp_path / "images.npy", np.zeros((2, 8, 8), np.uint8))
    return tmp_path


def command(*words: str) -> Callable[[Path], None]:
    """Return what runs a command on files of a folder, and raises its error."""

    def run(at: Path) -> None:
        code, _, said = call(*(word.replace("AT", str(at)) for word in words))
        if code:
            assert code == 2 and said.startswith("error: ") and said.count("error:") == 1
            raise OSError(said)

    return run


def key(at: Path) -> Path:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    form = (
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    if not (at / "key.pem").exists():
        (at / "key.pem").write_bytes(ec.generate_private_key(ec.SECP256R1()).private_bytes(*form))
    return at / "key.pem"


def picture(at: Path) -> None:
    made, axes = figure_for(at / "p.png")
    axes.plot([1, 2])
    save_figure(made, at / "p.png")


def seal(at: Path) -> None:
    checkpoint.seal(at / "c", checkpoint.Key(bytes(32)), checkpoint.Owner("", ""), 1, b"state")


WRITERS: dict[str, Callable[[Path], None]] = {
    "text": lambda at: emit("text", at / "t"),
    "schema": command("schema", "AT/images.npy", "--out", "AT/s.toml"),
    "export": command("export", "AT/m", "--format", "model-card", "--out", "AT/card.md"),
    "sacro": command("export", "AT/m", "--format", "sacro", "--out", "AT/sacro"),
    "report": command("report", "AT/m", "--out", "AT/page.html"),
    "report in its place": command("report", "AT/m", "--force"),
    "sign": lambda at: command("sign", "AT/m", "--key", str(key(at)))(at),
    "features": command("features", "AT/images.npy", "--out", "AT/f.npz"),
    "picture": picture,
    "results": lambda at: Results(at / "r", {"seed": 1}).store(0, 0, np.zeros(3)),
    "checkpoint": seal,
    "model": lambda at: li.load(at / "m").save(at / "copy"),
}


def contents(at: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(at)): path.read_bytes() if path.is_file() else b""
        for path in at.rglob("*")
    }


def failing(*_: object, **__: object) -> Any:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class Full:
    """A file that takes a few bytes and then no more."""

    def __init__(self, file: Any) -> None:
        self.file = file

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)

    def __enter__(self) -> "Full":
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()

    def write(self, content: Any) -> int:
        self.file.write(bytes(content)[:3])
        return failing()


STEPS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "write": lambda patch: patch.setattr(
        os, "fdopen", lambda *args, opened=os.fdopen: Full(opened(*args))
    ),
    "fsync": lambda patch: patch.setattr(os, "fsync", failing),
    "rename": lambda patch: (
        [patch.setattr(os, name, failing) for name in ("link", "replace", "rename")] and None
    ),
}


@pytest.mark.parametrize("name", WRITERS)
def test_a_full_disk_leaves_what_was_there(name: str, folder: Path) -> None:
    if name == "sign":
        pytest.importorskip("model_signing")
    write = WRITERS[name]
    key(folder)
    before = contents(folder)
    for step, fail in STEPS.items():
        with pytest.MonkeyPatch.context() as patch:
            fail(patch)
            with pytest.raises((OSError, InputError), match="No space left on device") as told:
                write(folder)
        assert "private key" not in str(told.value) and ".part" not in str(told.value), step
        assert contents(folder) == before, step
    write(folder)
    after = contents(folder)
    assert name == "report in its place" or len(after) > len(before)
    assert not any(".part" in path for path in after)
    assert li.verify(folder / "m").holds and not li.verify(folder / "m").uncovered


def test_a_line_that_finds_no_space_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    results = Results(tmp_path / "r", {"seed": 1})
    results.store(0, 0, np.zeros(3))
    before = (tmp_path / "r").read_bytes()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", failing)
        with pytest.raises(OSError, match="No space left"):
            results.store(1, 0, np.ones(3))
    assert (tmp_path / "r").read_bytes() == before
    results.store(1, 0, np.ones(3))
    assert Results(tmp_path / "r", {"seed": 1}).get(1, 0, 3) is not None


@pytest.mark.parametrize("links", [True, False])
def test_a_new_file_replaces_nothing(
    links: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without(*_: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    if not links:
        monkeypatch.setattr(os, "link", without)
    (tmp_path / "theirs").write_text("theirs")
    (tmp_path / "nowhere").symlink_to(tmp_path / "gone")
    for name in ("theirs", "nowhere"):
        with pytest.raises(FileExistsError):
            atomic_files.write_file(tmp_path / name, b"ours", new=True)
    atomic_files.write_file(tmp_path / "new", b"ours", new=True)
    atomic_files.write_file(tmp_path / "theirs", b"ours")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()} == {
        "theirs": b"ours",
        "new": b"ours",
    }
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "command",
    [
        ["train", "iris", "--epsilon", "1"],
        ["forget", "m", "iris", "--remove", "r", "--epsilon", "1"],
    ],
    ids=lambda words: words[0],
)
def test_a_link_that_leads_nowhere_is_noticed_before_training(
    command: list[str], tmp_path: Path
) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "gone")
    code, _, said = call(*command, "--out", tmp_path / "link")
    assert code == 2 and "must not exist yet" in said and not (tmp_path / "gone").exists()


def test_what_a_killed_writer_left_is_removed_by_the_next_one(tmp_path: Path) -> None:
    """But not the draft of one that is alive."""
    child = (
        "import sys; from pathlib import Path; from lastiterate.atomic_files import whole_file\n"
        "with whole_file(Path(sys.argv[1])) as file:\n"
        "    print('open', flush=True); sys.stdin.read()"
    )
    running = subprocess.Popen(
        [sys.executable, "-c", child, str(tmp_path / "f")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert running.stdout is not None and running.stdout.readline() == "open\n"
    atomic_files.write_file(tmp_path / "f", b"first")
    assert len(list(tmp_path.iterdir())) == 2
    running.send_signal(signal.SIGKILL)
    running.communicate()
    atomic_files.write_file(tmp_path / "f", b"second")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"f": b"second"}


def test_help_on_a_full_disk_is_one_sentence() -> None:
    with open("/dev/full", "w") as output:
        done = subprocess.run(
            [sys.executable, "-m", "lastiterate", "train", "--help"],
            stdout=output,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert (
        done.returncode == 2
        and done.stderr == "error: output must be writable, got No space left on device\n"
    )

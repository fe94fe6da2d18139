"""Nothing leaks on the way: two neighbouring data sets, killed writers, exceptions from everywhere."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import traceback
import warnings
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from typer.testing import CliRunner

import lastiterate as li
from lastiterate.cli import app
from lastiterate.data import record_source
from lastiterate.engine import trainer
from lastiterate.errors import ExposureWarning
from lastiterate.ledger import GaussianFilter, Ledger
from lastiterate.release import (
    composition_reminder,
    data_file,
    file_training,
    folder,
    linear_model,
    signatures,
)
from lastiterate.release.training_request import Budget, TrainingRequest

SCHEMA = """
target = "outcome"
classes = ["no", "yes"]
[columns.age]
kind = "number"
low = 0
high = 120
[columns.ward]
kind = "category"
values = ["a", "b", "c"]
"""
SECRET = "73.0912345"
"""A value of one record; if it, or a part of it, is seen anywhere it has leaked."""


def write(path: Path, record: str) -> Path:
    rng = np.random.default_rng(0)
    lines = [
        f"{rng.integers(20, 90)}.5,{rng.choice(list('abc'))},{rng.choice(['no', 'yes'])}"
        for _ in range(40)
    ]
    path.write_text("\n".join(["age,ward,outcome", *lines, record]) + "\n")
    return path


def fit(home: Path, record: str, *more: str, child: bool) -> tuple[int, bytes, bytes]:
    """Exit code and both outputs of one fit, in a folder of its own, with the same names in it."""
    home.mkdir()
    write(home / "data.csv", record)
    (home / "schema.toml").write_text(SCHEMA)
    words = [
        "train",
        "data.csv",
        "--schema",
        "schema.toml",
        "--epsilon",
        "2",
        "--algorithm",
        "permuted-sgd",
        "--out",
        "model",
        *more,
    ]
    if child:
        run = subprocess.run(
            [sys.executable, "-m", "lastiterate", *words],
            cwd=home,
            capture_output=True,
            env=os.environ | {"COLUMNS": "100"},
        )
        return run.returncode, run.stdout, run.stderr
    with contextlib.chdir(home):
        found = CliRunner(env={"COLUMNS": "100"}).invoke(app, words)
    return found.exit_code, found.stdout_bytes, found.stderr_bytes


def without_time(output: bytes) -> list[bytes]:
    return [
        line for line in output.splitlines() if b":" not in line
    ]  # a progress bar ends with times


@pytest.mark.parametrize(
    "more, child", [((), False), (("--adjacency", "replace-one", "--explain-plan"), True)]
)
def test_neighbouring_data_sets_look_alike(
    tmp_path: Path, more: tuple[str, ...], child: bool
) -> None:
    """Once as two processes, with all that a process prints, and once within this one."""
    one = fit(tmp_path / "1", f"{SECRET},a,yes", *more, child=child)
    two = fit(tmp_path / "2", "21.5,c,no", *more, child=child)
    assert (
        one[0] == two[0] == 0 and one[1] == two[1] and without_time(one[2]) == without_time(two[2])
    )
    files = [
        sorted(path.relative_to(home) for path in home.rglob("*"))
        for home in (tmp_path / "1", tmp_path / "2")
    ]
    assert files[0] == files[1]
    for name in ("weights.safetensors", "model.json", "certificate.json"):
        a, b = ((tmp_path / number / "model" / name) for number in "12")
        assert a.stat().st_size == b.stat().st_size and a.stat().st_mode & 0o777 == 0o600
        if name == "model.json":
            assert a.read_bytes() == b.read_bytes()
        if name == "certificate.json":
            told = [
                {
                    key: value
                    for key, value in json.loads(file.read_text()).items()
                    if key not in ("weights_sha256", "content_sha256")
                }
                for file in (a, b)
            ]
            assert told[0] == told[1]
        assert SECRET[:6].encode() not in a.read_bytes()
    assert SECRET[:6].encode() not in one[1] + one[2]


def estimator(x: np.ndarray, y: np.ndarray, home: Path) -> Any:
    run = li.Run(
        n=40,
        steps=20,
        step_size=0.3,
        batching=li.Permuted(10),
        loss=li.Logistic(row_norm=2.0, ridge=1e-2),
        noise=li.NoiseMultiplier(1.0),
    )
    return (
        li.estimators.DPLogisticRegression(
            epsilon=1.0,
            delta=1e-3,
            classes=[0, 1],
            run=run,
            verbose=1,
            ledger=made_ledger(home),
            dataset="d",
        )
        .fit(x, y)
        .fitted_
    )


def network(x: np.ndarray, y: np.ndarray, home: Path, **more: Any) -> Any:
    run = li.Run(n=40, steps=20, step_size=0.3, batching=li.Permuted(10), clip=0.5)
    return li.train(
        run,
        (x, y),
        model={"w": np.zeros(3), "b": np.zeros(1)},
        epsilon=2.0,
        delta=1e-3,
        loss=lambda p, row, label: (row @ p["w"] + p["b"][0] - label) ** 2,
        ledger=made_ledger(home),
        progress=lambda done, steps, _: print(f"{done} of {steps}"),
        **more,
    )


def exact(x: np.ndarray, y: np.ndarray, home: Path) -> Any:
    return network(x, y, home, secure_noise=True)


def made_ledger(home: Path) -> Path:
    Ledger(home / "l").add(
        "d", unit="record", adjacency="zero-out", filter=GaussianFilter(9.0, 1e-6)
    )
    return home / "l"


@pytest.mark.parametrize("fitted", [estimator, network, exact])
def test_neighbouring_fits_in_python_look_alike(
    tmp_path: Path,
    fitted: Any,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One record exchanged, for one far beyond the others: the same output, warnings, log, files,
    ledger."""
    rng, seen = np.random.default_rng(0), list[Any]()
    jax.devices()  # which says once what it does not find
    x, y = rng.normal(size=(40, 3)), rng.integers(0, 2, 40)
    for number, record in enumerate((x[5], np.array([float(SECRET), 1e39, -1e-30]))):
        home, data, answers = tmp_path / str(number), x.copy(), y.copy()
        home.mkdir()
        data[5], answers[5] = record, number
        monkeypatch.setattr(composition_reminder, "REMINDER", composition_reminder.Reminder())
        caplog.clear()
        with warnings.catch_warnings(record=True) as warned, caplog.at_level("INFO"):
            warnings.simplefilter("always")
            folder = fitted(data, answers, home).save(home / "m")
        said = [re.sub(r"\d+\.\d s", "", text) for text in capfd.readouterr()]
        stored = json.loads((folder / "certificate.json").read_text())
        hashes = {name for name in stored if name.endswith("_sha256") and name != "model_sha256"}
        line = Ledger(home / "l").total().releases[0]
        with Ledger(home / "l").path.open("rb") as file:
            content = file.read()
        assert SECRET[:6] not in "".join(said) and SECRET[:6].encode() not in content
        seen.append(
            (
                said,
                [str(one.message) for one in warned],
                caplog.messages,
                {path.name: path.stat().st_size for path in folder.iterdir()},
                (folder / "model.json").read_bytes(),
                {k: v for k, v in stored.items() if k not in hashes},
                (line.run, line.curve, line.costs, line.state),
                len(content),
            )
        )
    assert seen[0] == seen[1]


def test_the_number_of_steps_and_of_stretches_is_the_same(tmp_path: Path) -> None:
    run = li.Run(
        n=41, steps=37, step_size=0.3, batching=li.Permuted(10), loss=li.Logistic(ridge=1e-2)
    )
    seen = []
    for shift in (0.0, 1.0):
        rng, ticks = np.random.default_rng(0), list[tuple[int, int]]()
        x, y = rng.uniform(-1, 1, (41, 3)), rng.integers(0, 2, 41)
        x[5] += shift
        li.train(
            run,
            (x, y),
            epsilon=1.0,
            progress=lambda done, steps, _, ticks=ticks: ticks.append((done, steps)),
        )
        seen.append(ticks)
    assert seen[0] == seen[1]


def said_about(error: BaseException) -> str:
    """Everything that a traceback shows, causes and suppressed contexts included."""
    return "".join(traceback.format_exception(error)) + repr(error.__cause__)


@pytest.mark.parametrize(
    "record",
    [
        f"{SECRET}x,a,yes",
        f"999{SECRET},a,yes",
        f"{SECRET},q{SECRET},yes",
        f"{SECRET},a,{SECRET}",
        f"{SECRET},a",
        f'{SECRET},"a,yes',
    ],
)
def test_refused_records_are_not_quoted(tmp_path: Path, record: str) -> None:
    text = SCHEMA.replace("high = 120", 'high = 120\noutside = "refuse"')
    text = text.replace("values =", 'outside = "refuse"\nvalues =')
    (tmp_path / "s.toml").write_text(text)
    found = CliRunner().invoke(
        app,
        [
            "train",
            str(write(tmp_path / "d.csv", record)),
            "--schema",
            str(tmp_path / "s.toml"),
            "--epsilon",
            "1",
            "--out",
            str(tmp_path / "m"),
        ],
    )
    assert found.exit_code == 2 and "error:" in found.output and SECRET[:6] not in found.output
    with pytest.raises(li.InputError) as error:
        schema = li.data.Schema.read(tmp_path / "s.toml")
        file_training.fit_file(
            TrainingRequest(data=str(tmp_path / "d.csv"), budget=Budget(1.0), schema=schema)
        )
    assert SECRET[:6] not in said_about(error.value)
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize(
    "place",
    [
        (trainer.Trainer, "fit_arranged"),
        (linear_model, "execute"),
        (record_source, "encode_tables"),
        (data_file, "open_table"),
        (folder, "write"),
    ],
)
def test_exceptions_inside_show_no_values(
    tmp_path: Path, place: tuple[object, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What raises far inside, with records in its arguments and local variables, shows none of
    them."""

    def broken(*arguments: object, **named: object) -> None:
        local = (arguments, named)
        raise RuntimeError(f"broken with {len(local)} variables around")

    (tmp_path / "s.toml").write_text(SCHEMA)
    write(tmp_path / "d.csv", f"{SECRET},a,yes")
    monkeypatch.setattr(*place, broken)
    found = CliRunner().invoke(
        app,
        [
            "train",
            str(tmp_path / "d.csv"),
            "--schema",
            str(tmp_path / "s.toml"),
            "--epsilon",
            "1",
            "--algorithm",
            "permuted-sgd",
            "--out",
            str(tmp_path / "m"),
        ],
    )
    assert found.exit_code == 1 and isinstance(found.exception, RuntimeError)
    assert SECRET[:6] not in found.output + said_about(found.exception)
    assert not list(tmp_path.glob(".m-*")) and not (tmp_path / "m").exists()


CHILD = """
import os, signal, sys
from pathlib import Path
import lastiterate as li
from lastiterate.release import folder

model, left = li.load(sys.argv[1]), None
model.save(Path(sys.argv[2]) / "first")  # imports what a save imports

def counted(name):
    kept = getattr(os, name)
    def call(*arguments, **named):
        global left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return kept(*arguments, **named)
    setattr(os, name, call)

for name in ("open", "fsync", "rename", "mkdir"):
    counted(name)
threads = Path("/proc/self/task")
assert not threads.exists() or len(list(threads.iterdir())) == 1, "a fork beside other threads may wait for ever"
for left in range(int(sys.argv[3])):  # a process of its own for each moment, which has imported everything already
    if not (process := os.fork()):
        model.save(Path(sys.argv[2]) / str(left) / "m")
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]))
"""
POINTS = 40
"""More than there are calls in a save: the last are not killed."""


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[int]]:
    """Folders in which a save was killed at its first, second, ... call, and how the processes
    ended."""
    home, rng = tmp_path_factory.mktemp("killed"), np.random.default_rng(0)
    run = li.Run(
        n=40, steps=5, step_size=0.3, batching=li.Permuted(10), loss=li.Logistic(ridge=1e-2)
    )
    li.train(run, (rng.uniform(-1, 1, (40, 3)), rng.integers(0, 2, 40)), epsilon=1.0).save(
        home / "whole"
    )
    for point in range(POINTS):
        (home / str(point)).mkdir()
    command = [sys.executable, "-c", CHILD, str(home / "whole"), str(home), str(POINTS)]
    said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300).stdout
    return home, [int(code) for code in said.split()]


def test_a_writer_is_killed_at_every_call(killed: tuple[Path, list[int]]) -> None:
    codes = killed[1]
    saved = codes.index(0)
    assert codes == [-signal.SIGKILL] * saved + [0] * (POINTS - saved) and saved >= 8


@pytest.mark.parametrize("point", range(POINTS))
def test_a_killed_writer_leaves_nothing_that_verifies(
    killed: tuple[Path, list[int]], point: int
) -> None:
    home, code = killed[0] / str(point), killed[1][point]
    out = home / "m"
    left = [path for path in home.iterdir() if path != out]
    if code == 0:
        assert out.exists() and not left
    elif out.exists():  # killed behind the last rename: the model is whole
        assert li.verify(out).holds
    for path in left:
        with pytest.raises(li.InputError):
            li.verify(path)
        with pytest.raises(li.InputError):
            li.load(path)
    folder.clean(out)
    assert [path for path in home.iterdir() if path != out] == []


def test_what_would_be_dumped_is_warned_about(monkeypatch: pytest.MonkeyPatch) -> None:
    import resource

    monkeypatch.setattr(resource, "getrlimit", lambda which: (0, 0))
    for name in (*signatures.VARIABLES, "XLA_FLAGS"):
        monkeypatch.delenv(name, raising=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        signatures.warn_of_dumps()
    monkeypatch.setattr(resource, "getrlimit", lambda which: (10, 10))
    monkeypatch.setenv("XLA_FLAGS", "--xla_dump_to=/somewhere")
    monkeypatch.setenv("JAX_DUMP_IR_TO", "/somewhere")
    with pytest.warns(ExposureWarning, match="JAX_DUMP_IR_TO.*xla_dump_.*core dump"):
        signatures.warn_of_dumps()

"""An interrupted run that is resumed releases the bits of a whole one. The exhaustive tier kills 50
times."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import fields
from io import StringIO
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from safetensors.numpy import load

import lastiterate as li
from lastiterate.engine import execute, key_from_seed
from lastiterate.engine.checkpoint import Checkpoint, Key, Owner, unseal
from lastiterate.engine.network import fit_network
from lastiterate.errors import InputError
from tiers import size

KILLS = size(3, 50, "KILLS")
KEY = Key(bytes(range(32)))
COMMON = dict(
    n=60, steps=40, step_size=0.3, noise=li.GradientNoise(0.05), loss=li.Logistic(ridge=1e-2)
)
RUNS = {
    "full": li.Run(**COMMON),
    "cyclic": li.Run(batching=li.Cyclic(16), **COMMON),
    "permuted": li.Run(batching=li.Permuted(16), **COMMON),
    "reshuffled": li.Run(batching=li.Reshuffled(16), **COMMON),
    "fixed": li.Run(batching=li.FixedSize(16), **COMMON),
    "poisson": li.Run(batching=li.Poisson(0.2), **COMMON),
    "bins": li.Run(batching=li.BallsInBins(16), **COMMON),
    "nesterov": li.Run(optimizer=li.Nesterov(), **COMMON),
    "heavy ball": li.Run(optimizer=li.HeavyBall(0.5), **COMMON),
    "snapshots": li.Run(
        **COMMON
        | {
            "noise": li.NoiseMultiplier(1.0),
            "method": li.VarianceReduced(7, 1.0),
            "batching": li.Poisson(0.2),
        }
    ),
    "correlated": li.Run(
        batching=li.Cyclic(16), **COMMON | {"noise": li.Correlated(1.0, 7, decay=0.5)}
    ),
    "preprocessing": li.Run(preprocessing=(li.PrivateMean(2.0, 1.0),), **COMMON),
}


def records() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.normal(size=(60, 5)).astype(np.float32), rng.integers(0, 2, 60)


@pytest.mark.parametrize("name", RUNS)
def test_a_resumed_run_releases_the_same_bits(name: str, tmp_path: Path, interrupted: Any) -> None:
    run, (x, y), path = RUNS[name], records(), tmp_path / "c"
    whole = execute(run, x, y, key_from_seed(5)).weights
    for at in (3, 17, 30):
        with interrupted(at) as progress:
            execute(run, x, y, key_from_seed(5), progress, Checkpoint(path, KEY, 0.0))
        assert path.exists()
    checkpoint = Checkpoint(path, KEY, 0.0)
    assert (
        execute(run, x, y, key_from_seed(5), None, checkpoint).weights.tobytes() == whole.tobytes()
    )
    checkpoint.finish()
    assert os.listdir(tmp_path) == []


def test_a_checkpoint_is_due_when_its_seconds_are_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr("lastiterate.engine.checkpoint.time.monotonic", lambda: now)
    run, (x, y) = RUNS["nesterov"], records()
    checkpoint, due = Checkpoint(tmp_path / "c", KEY, 60.0), list[bool]()
    execute(run, x, y, key_from_seed(5), None, checkpoint)
    for seconds in (0.0, 59.0, 60.0):
        now = 1000.0 + seconds
        due.append(checkpoint.due)
    assert due == [False, False, True]


def test_a_resumed_network_releases_the_same_bits(tmp_path: Path, interrupted: Any) -> None:
    x, y = records()
    run = li.Run(
        n=60,
        steps=20,
        step_size=0.3,
        noise=li.GradientNoise(0.05),
        clip=1.0,
        batching=li.Permuted(16),
        loss=li.KnownConstants(li.LossFacts()),
    )
    first = {"a": np.ones((5, 3), np.float32), "b": np.ones(3, np.float32)}

    def loss(params: dict, row: jax.Array, label: jax.Array) -> jax.Array:
        return ((jax.nn.tanh(row @ params["a"]) @ params["b"] - label) ** 2).sum()

    whole = fit_network(run, loss, first, (x, y), key_from_seed(1))
    with interrupted(9) as progress:
        fit_network(
            run,
            loss,
            first,
            (x, y),
            key_from_seed(1),
            progress=progress,
            checkpoint=Checkpoint(tmp_path / "c", KEY, 0.0),
        )
    with pytest.raises(InputError, match="other data"):
        fit_network(
            run,
            loss,
            first,
            (x, y + 1),
            key_from_seed(1),
            checkpoint=Checkpoint(tmp_path / "c", KEY),
        )
    other = first | {"b": np.zeros(3, np.float32)}
    with pytest.warns(UserWarning, match="it continues from its own"):
        found = fit_network(
            run,
            loss,
            other,
            (x, y),
            key_from_seed(1),
            checkpoint=Checkpoint(tmp_path / "c", KEY, 0.0),
        )
    assert all((found[name] == whole[name]).all() for name in whole)


def test_a_checkpoint_knows_its_run_its_data_its_key_and_its_line(
    tmp_path: Path, interrupted: Any
) -> None:
    run, (x, y), path = RUNS["permuted"], records(), tmp_path / "c"
    with interrupted(5) as progress:
        execute(run, x, y, None, progress, Checkpoint(path, KEY, 0.0, token="t"))
    kept = path.read_bytes()
    changed = x.copy()
    changed[7, 2] += 1e-3
    for other, rows, key, token, words in (
        (RUNS["full"], x, KEY, "t", "another run"),
        (run, changed, KEY, "t", "other data"),
        (run, x, Key(bytes(32)), "t", "is not the one"),
        (run, x, KEY, "s", "another line"),
    ):
        with pytest.raises(InputError, match=words):
            execute(other, rows, y, None, None, Checkpoint(path, key, token=token))
    with pytest.raises(InputError, match="seed"):
        execute(run, x, y, key_from_seed(9), None, Checkpoint(path, KEY, token="t"))
    assert path.read_bytes() == kept  # nothing started anew
    path.write_bytes(kept[:200] + bytes([kept[200] ^ 1]) + kept[201:])
    with pytest.raises(InputError, match="checkpoint"):
        execute(run, x, y, None, None, Checkpoint(path, KEY, token="t"))


class Counted:
    """A ledger's line, in memory."""

    def __init__(self) -> None:
        self.digests, self.numbers = list[str](), list[int]()

    def begin(self, digest: str, write: Callable[[], None]) -> None:
        self.digests.append(digest)
        self.note(1, write)

    def note(self, number: int, write: Callable[[], None]) -> None:
        write()
        self.numbers.append(number)

    def resume(self, digest: str, number: int) -> None:
        self.digests.append(digest)
        if number < self.numbers[-1]:
            raise InputError("checkpoint", "was rolled back")


def test_a_ledger_hears_of_every_checkpoint_and_of_the_noise(
    tmp_path: Path, interrupted: Any
) -> None:
    run, (x, y), path, line = RUNS["full"], records(), tmp_path / "c", Counted()
    for stops in (5, 20):
        with interrupted(stops) as progress:
            execute(run, x, y, None, progress, Checkpoint(path, KEY, 0.0, line=line))
        if stops == 5:
            old = path.read_bytes()
    assert line.numbers == list(range(1, len(line.numbers) + 1)) and len(
        line.digests
    ) == 2 == 1 + len({*line.digests})
    path.write_bytes(old)
    with pytest.raises(InputError, match="rolled back"):
        execute(run, x, y, None, None, Checkpoint(path, KEY, line=line))
    whole = execute(run, x, y, None, None, Checkpoint(path, KEY))
    path.write_bytes(
        old
    )  # without a ledger a replayed copy is not seen, and reproduces the same bits
    assert (execute(run, x, y, None, None, Checkpoint(path, KEY)).weights == whole.weights).all()


@pytest.mark.parametrize("changed", ["nothing", "seed", "data", "key"])
def test_the_digest_of_a_beginning_knows_its_noise_and_its_data(
    changed: str, tmp_path: Path, interrupted: Any
) -> None:
    digests = list[str]()
    for what in ("nothing", changed):
        (x, y), line = records(), Counted()
        with interrupted(5) as progress:
            execute(
                RUNS["full"],
                x + (what == "data"),
                y,
                key_from_seed(4 + (what == "seed")),
                progress,
                Checkpoint(
                    tmp_path / f"c{len(digests)}",
                    Key(bytes(32)) if what == "key" else KEY,
                    line=line,
                ),
            )
        digests += line.digests
    assert (digests[0] == digests[1]) == (changed == "nothing")


def test_all_iterates_are_not_checkpointed(tmp_path: Path) -> None:
    x, y = records()
    with pytest.raises(InputError, match="last iterate"):
        execute(li.Run(release="all", **COMMON), x, y, None, None, Checkpoint(tmp_path / "c", KEY))
    assert os.listdir(tmp_path) == []


CHILD = """
import sys
import numpy as np
import lastiterate as li
from pathlib import Path
from typing import Any
from lastiterate.engine import execute, key_from_seed
from lastiterate.engine.checkpoint import Checkpoint
from lastiterate.engine.checkpoint import Key

rng = np.random.default_rng(1)
x, y = rng.normal(size=(400, 30)).astype(np.float32), rng.integers(0, 2, 400)
run = li.Run(n=400, steps=4000, step_size=0.3, noise=li.GradientNoise(0.05), batching=li.Reshuffled(20),
             loss=li.Logistic(ridge=1e-2))
checkpoint = Checkpoint(Path(sys.argv[1]), Key(bytes(range(32))), 0.0) if sys.argv[1] != "-" else None
print("ready", flush=True)
print(execute(run, x, y, key_from_seed(3), lambda *_: None, checkpoint).weights.tobytes().hex(), flush=True)
"""


def child(path: "Path | str") -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", CHILD, str(path)], stdout=subprocess.PIPE, text=True
    )


def secrets_in(path: Path) -> list[bytes]:
    """The eight bytes of every parameter that a checkpoint holds, and those of its key."""
    header = path.read_bytes()[12:]
    told = json.loads(header[: header.index(b"}") + 1])
    arrays = load(unseal(path, KEY, Owner(*(told[field.name] for field in fields(Owner))))[1])
    found = [
        array.reshape(-1)[i : i + 1].tobytes()
        for name, array in arrays.items()
        if array.dtype == np.float64
        for i in range(array.size)
    ]
    return [*found, arrays["key"].tobytes()[:8], arrays["key"].tobytes()[8:]]


def test_killed_runs_go_on_and_leave_nothing_readable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with redirect_stdout(StringIO()) as said, monkeypatch.context() as patch:
        patch.setattr(sys, "argv", ["-c", "-"])
        exec(CHILD, {})  # whole, and here: the bits of a process of its own
    whole = said.getvalue().splitlines()[1]
    path, chance, kills, scanned = tmp_path / "c", random.Random(os.urandom(8)), 0, 0
    while kills < KILLS:
        running = child(path)
        assert running.stdout is not None and running.stdout.readline() == "ready\n"
        time.sleep(chance.uniform(0.0, 2.0))
        running.send_signal(signal.SIGKILL)
        told = running.communicate()[0]
        kills += 1
        content = b"".join(file.read_bytes() for file in tmp_path.iterdir())
        scanned += len(content)
        if path.exists():
            assert not any(part in content for part in secrets_in(path) if part != bytes(8))
        if told:  # it had released before it was killed
            path.unlink(missing_ok=True)
    print(
        f"{kills} kills, {scanned} bytes scanned"
    )  # figures for benchmarks/RESULTS.md, with pytest -s
    assert child(path).communicate()[0].splitlines()[1] == whole
    assert all(file == path or file.suffix == ".part" for file in tmp_path.iterdir())

"""A full disk, a folder that somebody else took, a target that cannot be: noticed before training,
or survived."""

import errno
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import lastiterate as li
from lastiterate.ledger import Ledger
from lastiterate.release import folder, linear_model
from lastiterate.release.ledger_charge import Charging
from lastiterate.theorems import TABLE
from support import call

TRAIN = ["train", "iris", "--epsilon", "3", "--time-budget", "2"]


@pytest.fixture
def untrained(monkeypatch):
    """Training is an error."""

    def refuse(*_, **__):
        raise AssertionError("records were read")

    monkeypatch.setattr(linear_model, "fit", refuse)


def test_a_full_disk_is_noticed_before_training(tmp_path, monkeypatch, untrained):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    ledger = tmp_path / "ledger.db"
    assert (
        call(
            "ledger",
            "make",
            ledger,
            "--dataset",
            "d",
            "--unit",
            "row",
            "--epsilon",
            5,
            "--delta",
            1e-4,
        )[0]
        == 0
    )
    code, out, err = call(*TRAIN, "--out", tmp_path / "m", "--ledger", ledger, "--dataset", "d")
    assert (
        code == 2
        and not out
        and f"{tmp_path / 'm'} must be writable, got No space left on device" in err
    )
    assert [path.name for path in tmp_path.iterdir()] == ["ledger.db"]
    charged = json.loads(call("ledger", "show", ledger, "--json")[1])["datasets"][0]["releases"]
    assert charged == [], "nothing was spent"


@pytest.mark.skipif(sys.platform != "linux", reason="limits of Linux")
def test_a_limit_on_files_is_noticed_before_training(tmp_path):
    """As the system says it: files of at most 100 kB, which hold no reservation."""
    code = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000)); "
        "from pathlib import Path; from lastiterate.release.folder import reserve_space; "
        "reserve_space(Path(sys.argv[1]), 200_000)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "m")], capture_output=True, text=True
    )
    assert done.returncode == 1 and "File too large" in done.stderr and not list(tmp_path.iterdir())


def test_a_target_below_a_file_is_noticed_before_training(tmp_path, untrained):
    (tmp_path / "file").write_text("")
    code, _, err = call(*TRAIN, "--out", tmp_path / "file" / "m")
    assert code == 2 and "file must be writable, got" in err


def test_what_is_reserved_is_enough_and_given_back(tmp_path, monkeypatch):
    sizes = []
    original = folder.reserve_space

    def watched(where, size):
        sizes.append(size)
        held = original(where, size)
        assert (held / "reserved").stat().st_size == size
        return held

    monkeypatch.setattr(folder, "reserve_space", watched)
    assert call(*TRAIN, "--out", tmp_path / "m")[0] == 0
    assert sizes[0] >= sum(path.stat().st_size for path in (tmp_path / "m").iterdir())
    assert [path.name for path in tmp_path.iterdir()] == ["m"]
    monkeypatch.setattr(linear_model, "fit", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        call(*TRAIN, "--out", tmp_path / "n")
    assert [path.name for path in tmp_path.iterdir()] == ["m"], "after a failure as well"


@pytest.mark.parametrize("how", ["full", "lost race"])
def test_a_model_that_cannot_be_written_survives_elsewhere(tmp_path, monkeypatch, how):
    out, elsewhere = tmp_path / "out" / "m", tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(elsewhere))
    original = folder.os.fsync

    def full(file):
        if Path(os.readlink(f"/proc/self/fd/{file}")).is_relative_to(tmp_path / "out"):
            raise OSError(errno.ENOSPC, "No space left on device")
        original(file)

    fitted = linear_model.fit

    def slow(*args, **kwargs):
        out.mkdir()
        (out / "theirs").write_text("")
        return fitted(*args, **kwargs)

    if how == "full":
        monkeypatch.setattr(folder.os, "fsync", full)
    else:
        monkeypatch.setattr(linear_model, "fit", slow)
    code, shown, err = call(*TRAIN, "--out", out)
    place = Path(re.search(r"the model was saved at (\S+): move it", err)[1])
    assert code == 2 and place.is_relative_to(elsewhere) and li.verify(place).holds
    assert ("No space left" if how == "full" else "must not exist yet") in err
    assert place.name in shown and not list(out.parent.glob(".m-*")), "nothing half written is left"


@pytest.mark.parametrize("other", ["released", "gone"])
def test_what_the_ledger_refuses_is_not_written(tmp_path, monkeypatch, other):
    """A line that is over has no second model; a ledger that is away costs no model that was paid
    for."""
    path, remember = tmp_path / "ledger.db", Charging.remember
    call("ledger", "make", path, "--dataset", "d", "--unit", "row", "--epsilon", 5, "--delta", 1e-4)

    def last(charging, data):
        remember(charging, data)
        if other == "released":
            Ledger(path).release(Ledger(path).total().releases[0].token, "f" * 64)
        else:
            path.rename(tmp_path / "away")

    monkeypatch.setattr(Charging, "remember", last)
    code, out, err = call(
        *TRAIN, "--out", tmp_path / "out" / "m", "--ledger", path, "--dataset", "d"
    )
    assert code == 2 and not out and err.count("error:") == 1
    if other == "released":
        assert "as released" in err and not list((tmp_path / "out").iterdir())
    else:
        assert (
            f"complete, at {tmp_path / 'out' / 'm'}" in err
            and li.verify(tmp_path / "out" / "m").holds
        )


def test_json_of_train_plan_and_predict(tmp_path):
    code, out, _ = call(*TRAIN, "--json", "--out", tmp_path / "m")
    body = json.loads(out)
    assert (
        code == 0 and body["epsilon"] <= 3 < body["replace_one_epsilon"] and body["delta"] == 1e-5
    )
    assert (
        body["model"] == str(tmp_path / "m")
        and 0 < body["test_score"] <= 1
        and body["run"]["n"] == 120
    )
    model = li.load(tmp_path / "m")
    assert body["run"]["steps"] == model.run.steps and body["plan"] and body["theorem"] in TABLE
    assert body["epsilon"] == model.certificate.epsilon(1e-5) and len(out) < 3000, (
        "the folder has the rest"
    )
    (tmp_path / "s.toml").write_text(
        'target = "y"\nclasses = ["a", "b", "c"]\n[columns.x]\nkind = "number"\nlow = 0\n'
        'high = 1\n[columns.z]\nkind = "category"\nvalues = ["p", "q", "r"]\n'
    )
    asked = ["plan", "--n", 200, "--epsilon", 1, "--time-budget", 2, "--json"]
    plans = json.loads(call(*asked, "--schema", tmp_path / "s.toml")[1])
    assert plans == json.loads(
        call(*asked, "--features", 4, "--classes", 3, "--row-norm", 2**0.5)[1]
    )
    assert (
        plans["chosen"] == plans["plans"][0]["plan"]
        and "composition-gdp" in plans["plans"][0]["epsilon_by_theorem"]
    )
    code, _, err = call(*asked, "--schema", tmp_path / "s.toml", "--classes", 3)
    assert code == 2 and "--classes cannot be combined with a schema" in err
    assert call(*asked)[2].startswith("error: --features is needed")
    import numpy as np

    np.save(tmp_path / "new.npy", np.random.default_rng(0).random((3, 4)))
    rows = json.loads(call("predict", tmp_path / "m", tmp_path / "new.npy", "--json")[1])
    assert len(rows) == 3 and all(
        set(row) == {"prediction", *(f"probability_{i}" for i in range(3))} for row in rows
    )
    assert all(
        row["prediction"] in "012" and abs(sum(list(row.values())[1:]) - 1) < 1e-4 for row in rows
    )


def test_the_limit_of_packed_files_is_a_flag(tmp_path):
    import gzip

    (tmp_path / "x.csv.gz").write_bytes(gzip.compress(b"a,b,y\n" + b"1,2,no\n3,4,yes\n" * 100))
    code, _, err = call("schema", tmp_path / "x.csv.gz", "--unpacked-limit", 0)
    assert code == 2 and "--unpacked-limit must be a number of bytes" in err
    code, _, err = call(
        "schema",
        tmp_path / "x.csv.gz",
        "--from-public-sample",
        tmp_path / "x.csv.gz",
        "--unpacked-limit",
        100,
    )
    assert (
        code == 2 and "must not unpack to more than 100 bytes" in err and "--unpacked-limit" in err
    )
    assert (
        call("schema", tmp_path / "x.csv.gz", "--from-public-sample", tmp_path / "x.csv.gz")[0] == 0
    )

"""What terminal users try first: versions, help, JSON, exit codes, interruptions, full disks."""

import json
import os
import subprocess
import sys

import pytest

import lastiterate
from lastiterate.cli.app import reports_errors
from lastiterate.theorems import TABLE
from support import call

RUN = ["--n", "5000", "--steps", "100", "--step-size", "0.02", "--batch", "cyclic:500"]


def test_version_and_help():
    assert call("--version")[1].strip() == f"lastiterate {lastiterate.__version__}"
    assert call("-h")[0] == 0 and call("train", "-h")[1] == call("train", "--help")[1]


def test_a_run_that_nothing_certifies_exits_with_1():
    code, out, _ = call("account", *RUN, "--noise-std", "0.1")
    assert code == 1 and "no theorem certifies" in out
    code, out, _ = call("account", *RUN, "--noise-std", "0.1", "--json")
    assert code == 1 and json.loads(out)["epsilon"] is None
    assert call("account", *RUN, "--noise-multiplier", "3", "--clip", "1")[0] == 0


def test_calibrate_names_a_multiplier_and_finds_steps_without_being_given_any():
    code, out, err = call("calibrate", *RUN, "--clip", "1", "--epsilon", "3")
    assert code == 0 and "100 steps with noise multiplier" in out, err
    found = float(out.split("noise multiplier ")[1].split(",")[0])
    assert call("account", *RUN, "--clip", "1", "--noise-multiplier", found * 1.0001)[0] == 0
    code, out, err = call(
        "calibrate",
        "--n",
        5000,
        "--step-size",
        "0.02",
        "--field",
        "steps",
        "--clip",
        "1",
        "--noise-multiplier",
        "20",
        "--epsilon",
        "3",
    )
    assert code == 0 and not out.startswith("1 steps"), err


def test_theorems_as_json():
    rows = json.loads(call("theorems", "--json")[1])
    assert [row["name"] for row in rows] == list(TABLE) and all(
        row["assumptions"] and row["citation"] for row in rows
    )
    assert json.loads(call("theorems", "pabi-convex", "--json")[1])[0]["name"] == "pabi-convex"


def test_an_interrupted_command_says_so():
    @reports_errors
    def command():
        raise KeyboardInterrupt

    with pytest.raises(Exception) as caught:  # typer's Exit
        command()
    assert caught.value.exit_code == 130


def test_an_interrupted_process_ends_without_pythons_own_end(monkeypatch):
    """Compiled steps may still run: taking the interpreter down beneath them crashed, with another
    exit code."""
    ended = []
    monkeypatch.setattr("os._exit", ended.append)
    monkeypatch.setattr("lastiterate.cli.app", _stopped)
    lastiterate.cli.main()
    assert ended == [130]


def _stopped():
    raise SystemExit(130)


def test_a_delta_that_promises_little_is_warned_of():
    with pytest.warns(lastiterate.errors.BudgetWarning, match=r"delta = 0.01 exceeds 1/n = 0.0002"):
        assert (
            call("account", *RUN, "--noise-multiplier", "3", "--clip", "1", "--delta", "0.01")[0]
            == 0
        )


def test_warnings_and_closed_pipes_in_a_terminal():
    """As a user has them: a sentence without a line of code, and silence where the reader has seen
    enough."""
    account = [
        sys.executable,
        "-m",
        "lastiterate",
        "account",
        *RUN,
        "--noise-multiplier",
        "3",
        "--clip",
        "1",
    ]
    done = subprocess.run([*account, "--delta", "0.01", "--json"], capture_output=True, text=True)
    assert (
        done.returncode == 0
        and done.stderr.startswith("warning: delta = 0.01 exceeds")
        and done.stderr.count("\n") == 1
        and json.loads(done.stdout)
    )
    ended = subprocess.run(
        [
            "bash",
            "-c",
            '"$@" | head -c 1; exit ${PIPESTATUS[0]}',
            "bash",
            sys.executable,
            "-m",
            "lastiterate",
            "theorems",
            "--json",
        ],
        capture_output=True,
        text=True,
    )
    assert ended.returncode in (0, 141) and ended.stderr == "" and ended.stdout == "["


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="a device of Linux")
def test_a_full_disk_is_one_sentence():
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "lastiterate", "schema", "/dev/null/x.csv"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert done.returncode == 2 and "Traceback" not in done.stderr
    code = (
        "from lastiterate.cli.app import emit, reports_errors\n"
        "@reports_errors\ndef f():\n    emit('x' * 100, None)\nf()"
    )
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-c", code], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert "must be writable" in done.stderr and "No space left" in done.stderr

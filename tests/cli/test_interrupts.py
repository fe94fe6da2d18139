"""Ctrl-C at random moments: exit code 130, one sentence, nothing half-written; every command, every
time.

``LASTITERATE_INTERRUPTS=200`` draws 200 moments of each command instead of one.
"""

import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import lastiterate as li
from lastiterate import interrupts
from lastiterate.ledger import GaussianFilter, Ledger
from lastiterate.release.verification import verify
from tiers import size

MOMENTS = size(1, 20, "INTERRUPTS")
RUN = li.Run(
    n=60,
    steps=20,
    step_size=0.3,
    noise=li.GradientNoise(0.05),
    loss=li.Logistic(row_norm=1.0, intercept=0.5),
)
COMMANDS = {
    name: line.split()
    for name, line in {
        "train": "train breast_cancer --epsilon 1 --algorithm cyclic-dp-sgd --batch cyclic:99 "
        "--out model --ledger book "
        "--checkpoint kept --checkpoint-every 0",
        "stream": "train rows.csv --schema rows.toml --stream --epsilon 1 --algorithm "
        "cyclic-dp-sgd --batch cyclic:300 "
        "--scratch . --out model",
        "tune": "tune breast_cancer --epsilon 2 --algorithms noisy-gd,cyclic-dp-sgd --mean-runs 4 "
        "--out model "
        "--ledger book",
        "audit": "audit run.json --trials 600 --batch-models 100 --results scores",
        "papers": "papers chourasia-tightness --quick --out items",
    }.items()
}
SCHEMA = 'target = "y"\nclasses = ["0", "1"]\n[columns.a]\nkind = "number"\nlow = 0\nhigh = 1\n'


@pytest.fixture
def folder(tmp_path):
    rng = np.random.default_rng(0)
    rows = [f"{a:.4f},{int(a + rng.normal() / 4 > 0.5)}" for a in rng.random(3000)]
    (tmp_path / "rows.csv").write_text("\n".join(["a,y", *rows]) + "\n")
    (tmp_path / "rows.toml").write_text(SCHEMA)
    (tmp_path / "run.json").write_text(RUN.to_json())
    return tmp_path


def started(name, folder):
    """The command in a process of its own, from the moment on at which it takes signals."""
    if "book" in COMMANDS[name]:
        Ledger(folder / "book").add(
            "rows", unit="a row", adjacency="zero-out", filter=GaussianFilter.of(5000.0, 1e-3)
        )
    environment = {**os.environ, "LASTITERATE_CHECKPOINT_KEY": "5a" * 32}
    process = subprocess.Popen(
        [sys.executable, "-m", "lastiterate", *COMMANDS[name]],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env=environment,
    )
    while len(os.listdir(f"/proc/{process.pid}/task")) < 2 and process.poll() is None:
        time.sleep(0.001)
    return process


def ignored(process):
    """Whether everything is done and told: then a signal is ignored, while Python ends."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    return bool(int(re.search(r"SigIgn:\s*(\w+)", status)[1], 16) >> (signal.SIGINT - 1) & 1)


def emptied(folder):
    """Only what the command was given."""
    for path in folder.iterdir():
        if path.name not in ("rows.csv", "rows.toml", "run.json"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def whole(name, folder, out, err):
    """What is wrong with what an interrupted command said and left; empty where nothing is."""
    said = [
        line
        for line in re.split(r"[\r\n]", re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", err))
        if line.strip()
    ]
    sentences = [line for line in said if line.startswith("interrupted: ")]
    reported = name == "audit" and "interrupted: 600 models per data set were planned" in " ".join(
        out.split()
    )
    found = [] if len(sentences) == (not reported) else [f"sentences: {sentences}"]
    found += ["a traceback"] * (
        "Traceback" in err or "Exception ignored" in err or "Aborted" in err
    )
    model, book = folder / "model", folder / "book"
    left = {path.name for path in folder.iterdir()} - {
        "rows.csv",
        "rows.toml",
        "run.json",
        "book",
        "model",
        "kept",
        "scores",
        "items",
    }
    found += [f"left: {left}"] * bool(left)
    if model.exists():
        found += list(verify(model).problems)
        found += ["no report"] * (not (model / "report.html").exists())
        found += ["says that nothing was released"] * (
            "the model is complete, at model" not in sentences[0]
        )
        found += ["a checkpoint of a finished run"] * (folder / "kept").exists()
    elif not reported and name not in ("papers",):
        found += ["does not say that nothing was released"] * (
            "nothing was released" not in sentences[0]
            and not (name == "audit" and "no model was counted yet" in sentences[0])
        )
    if book.exists():
        ledger = Ledger(book)
        states = [release.state for release in ledger.total("rows").releases]
        found += [
            *ledger.verify(),
            *[f"ledger: {states}"]
            * (
                states not in (["released"] if model.exists() else [[], ["touched"]][bool(states)],)
            ),
        ]
    for path in (folder / "items").glob("*") if (folder / "items").exists() else ():
        found += [f"left: {path.name}"] * (".part" in path.name)
    return found


@pytest.mark.skipif(
    not Path("/proc/self/task").exists(), reason="looks at the threads of a process"
)
@pytest.mark.parametrize("name", COMMANDS)
def test_control_c_at_random_moments(name, folder):
    takes, wrong, late = 5.0, list[tuple[str, list[str], str]](), 0  # on a quick machine
    if MOMENTS > 1:
        process, began = started(name, folder), time.perf_counter()
        _, err = process.communicate()
        assert process.returncode == 0, err
        takes = time.perf_counter() - began
    draw, done = random.Random(f"{name} {MOMENTS}"), 0
    while done < MOMENTS:
        emptied(folder)
        process = started(name, folder)
        began, at = time.perf_counter(), draw.uniform(0, takes)
        try:
            process.wait(at)
        except subprocess.TimeoutExpired:
            told = ignored(process)
            process.send_signal(signal.SIGINT)
        else:
            process.communicate()
            takes = min(takes, time.perf_counter() - began)
            continue  # it was quicker than that: no moment
        out, err = process.communicate()
        if told:
            late += 1
            assert process.returncode == 0
            continue
        problems = [f"code {process.returncode}"] * (process.returncode != 130) or whole(
            name, folder, out, err
        )
        wrong += [(f"{at:.2f} of {takes:.2f} s", problems, err[-2000:])] if problems else []
        done += 1
    print(
        f"{name}: {done - len(wrong)} of {done} moments over {takes:.1f} s; {late} came when all "
        f"was done"
    )
    assert not wrong, wrong


LOST = """
import gc, sys, time
from lastiterate import interrupts
from lastiterate.cli.app import app, reports_errors
import lastiterate.cli

class Late:
    def __del__(self):
        print("here", flush=True)
        until = time.perf_counter() + 1.5
        while time.perf_counter() < until:
            pass

@app.command("lose")
@reports_errors
def lose():
    Late()
    MORE

sys.argv = ["lastiterate", "lose"]
interrupts.handle_interrupts()
lastiterate.cli.main()
print("went on to its end")
"""


def arrived(process):
    """Wait until the process has been given its signal: two of them that wait for a busy machine
    are one."""
    while process.poll() is None:
        status = Path(f"/proc/{process.pid}/status").read_text()
        if not int(re.search(r"ShdPnd:\s*(\w+)", status)[1], 16) >> (signal.SIGINT - 1) & 1:
            return
        time.sleep(0.001)


def pressed(script, *, times=1):
    """What a process says that gets SIGINT once it said "here"."""
    command = [sys.executable, "-c", script]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "here\n"
    time.sleep(0.3)  # it is where it said it would go
    began = time.perf_counter()
    for _ in range(times):
        process.send_signal(signal.SIGINT)
        arrived(process)
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err, time.perf_counter() - began


@pytest.mark.parametrize(
    "more",
    ["time.sleep(3600)", "interrupts.check()", "raise RuntimeError('what a library made of it')"],
)
def test_a_control_c_that_lands_where_errors_are_lost_is_raised_again(more):
    code, out, err, _ = pressed(LOST.replace("MORE", more))
    assert (code, out, err) == (130, "", "interrupted: nothing was released\n")


LOADING = """
    import ml_dtypes
    from importlib.machinery import ExtensionFileLoader as Loader

    def load(self, module, execute=Loader.exec_module):
        Loader.exec_module = execute
        print("here", flush=True)
        until = time.perf_counter() + 1.5
        while time.perf_counter() < until:
            pass
        execute(self, module)
        print("loaded", flush=True)

    Loader.exec_module = load
    from jaxlib import xla_client
"""


def test_a_compiled_module_is_loaded_before_a_control_c_is_raised():
    """jaxlib's modules crash where they are made and not executed."""
    script = LOST.replace("    Late()\n", LOADING).replace("MORE", "time.sleep(3600)")
    code, out, err, _ = pressed(script)
    assert (code, out, err) == (130, "loaded\n", "interrupted: nothing was released\n")


BUSY = """
import hashlib
from contextlib import nullcontext
from pathlib import Path
from lastiterate import interrupts
from lastiterate.cli.app import app, reports_errors
import lastiterate.cli, sys

interrupts.PATIENCE = PATIENCE_
interrupts.unfinished.add(Path("DRAFT"))

@app.command("busy")
@reports_errors
def busy():
    with HOW:
        print("here", flush=True)
        hashlib.pbkdf2_hmac("sha256", b"", b"", 2**31 - 1)  # minutes in which Python runs no handler

sys.argv = ["lastiterate", "busy"]
interrupts.handle_interrupts()
lastiterate.cli.main()
"""


@pytest.mark.parametrize(
    "times,patience,how",
    [(2, 60, "nullcontext()"), (2, 60, "interrupts.later()"), (1, 0.2, "nullcontext()")],
)
def test_compiled_code_that_goes_on_is_left(times, patience, how, tmp_path):
    (tmp_path / "draft").mkdir()
    script = (
        BUSY.replace("PATIENCE_", str(patience))
        .replace("DRAFT", str(tmp_path / "draft"))
        .replace("HOW", how)
    )
    code, out, err, took = pressed(script, times=times)
    assert (code, out, err) == (130, "", "interrupted: nothing was released\n") and took < 20
    assert not (tmp_path / "draft").exists()


def test_a_control_c_is_asked_for_until_it_is_noticed(monkeypatch):
    """A signal between the interpreter's last look and a system call that waits ends no wait."""
    state, asked = interrupts._State(), []
    state.pending = True
    monkeypatch.setattr(interrupts, "_now", state)
    monkeypatch.setattr(interrupts, "_ask_again", lambda: asked.append(state.own))
    pauses = iter(range(100))

    def pause(_):
        at = next(pauses)
        state.own = 0 if at == 3 else state.own  # the first signal is delivered
        state.noticed = 1 if at == 6 else state.noticed

    monkeypatch.setattr(interrupts.time, "sleep", pause)
    interrupts._ask_until_noticed()
    assert asked == [1, 1] and next(pauses) == 7
    state.pending = False  # it was answered
    interrupts._ask_until_noticed()
    assert asked == [1, 1] and next(pauses) == 8


def test_work_within_other_work_does_not_name_the_outcome():
    """An audit trains by the public calls, whose ledgers are none of the command's."""
    with interrupts.listen():
        interrupts.say("no model was counted yet")
        with interrupts.keep_outcome():
            interrupts.say("the ledger keeps the charge")
            assert interrupts.outcome() == "no model was counted yet"
        assert interrupts.outcome() == "no model was counted yet"
        interrupts.say("done")
        assert interrupts.outcome() == "done"


def test_programs_that_use_the_library_keep_their_handlers():
    before = signal.getsignal(signal.SIGINT), sys.unraisablehook
    from lastiterate import interrupts

    with interrupts.later():
        interrupts.check()
    interrupts.say("anything")
    interrupts.say(interrupts.NOTHING)
    assert (
        signal.getsignal(signal.SIGINT),
        sys.unraisablehook,
    ) == before and not interrupts.is_pending()
    state = "print(signal.getsignal(signal.SIGINT) is signal.default_int_handler, threading.active_count())"
    found = [
        subprocess.run(
            [sys.executable, "-c", f"{first}import signal, threading; {state}"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split()
        for first in ("", "import lastiterate, lastiterate.cli, lastiterate.engine; ")
    ]
    assert found[0] == found[1] and found[1][1] == "1", (
        "a job in the background may ignore the signal from the start"
    )

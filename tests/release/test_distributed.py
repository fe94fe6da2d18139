"""Processes that one call starts, here and on a local cluster of Ray."""

import re
import subprocess
import sys
import threading
from importlib.util import find_spec
from pathlib import Path

import jax
import numpy as np
import pytest

import lastiterate as li
from lastiterate.engine import job as engine_job
from lastiterate.ledger import GaussianFilter, Ledger
from lastiterate.release import distributed, jax_processes
from tiers import unless

needs_ray = pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed")
HOW = ["2", pytest.param("ray:2", marks=needs_ray)]
PAGE = Path(__file__).parents[2] / "docs" / "guides" / "train-on-a-cluster.md"
LINES = re.findall(r"^lastiterate (.*--processes .*)$", PAGE.read_text(encoding="utf-8"), re.M)
RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 3))
Y = (X[:, 0] > 0).astype(int)
RUN = li.Run(
    n=60,
    steps=4,
    step_size=0.5,
    loss=li.Logistic(row_norm=2.0, ridge=0.1),
    batching=li.Permuted(20),
)


@pytest.fixture(autouse=True)
def found(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(Path(li.__file__).parents[1]))


@pytest.mark.parametrize("how", HOW)
def test_the_model_is_that_of_one_process(tmp_path, how):
    """One charge and one folder; what one process refuses is refused here."""
    book = Ledger(tmp_path / "book")
    book.add("d", unit="record", adjacency="zero-out", filter=GaussianFilter(9.0))
    given = dict(epsilon=2.0, delta=1e-4, seed=5)
    more = dict(ledger="book", out="model")
    made = li.distributed.train(RUN, (X, Y), processes=how, **given, **more)
    alone = li.train(RUN, (X, Y), **given)
    np.testing.assert_allclose(made.released.weights, alone.released.weights, rtol=0, atol=1e-12)
    assert li.verify("model") and [line.state for line in book.total("d").releases] == ["released"]
    if how == "2":
        with pytest.raises(li.InputError, match=r"out must not exist"):
            li.distributed.train(RUN, (X, Y), processes=how, **given, **more)


@pytest.mark.parametrize("how", [*unless(lambda _: False, ["2"]), HOW[1]])
def test_a_command_is_started_in_all_processes(tmp_path, how):
    (line,) = [line for line in LINES if f" {how.replace('2', '4')} " in line]
    ran = subprocess.run(
        [
            sys.executable,
            "-m",
            "lastiterate",
            *line.replace(" 4 ", " 2 ").replace(":4", ":2").split(),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.count("epsilon 3 at") == 1 and "Gloo" not in ran.stdout
    assert li.verify(tmp_path / "model")


def test_arguments_that_cannot_be_followed_are_refused(monkeypatch):
    for wrong in ("several", "1", "ray", "ray:", "ray:one", "-2"):
        with pytest.raises(li.InputError, match="processes must be a number of at least 2"):
            distributed.start(wrong, ["never"])
    with pytest.raises(li.InputError, match="devices is not for processes that are started here"):
        li.distributed.train(RUN, (X, Y), processes=2, devices=2)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(li.InputError, match=r"got 'ray:2'; pip install lastiterate\[ray\]"):
        distributed.start("ray:2", ["never"])


def test_a_command_shows_the_first_process_and_why_another_failed(monkeypatch, capsys):
    ended = {
        "2": [(2, b"", b"error: a process, no longer answers.\n"), (2, b"", b"error: a disk.\n")],
        "3": [(0, b"a model\n", b"a bar\n"), (0, b"", b"a word\n")],
        "4": [(2, b"", b"error: one.\n"), (2, b"", b"error: one.\n")],
        "5": [(2, b"", b"error: process 1 ended: a key; so.\n"), (2, b"", b"error: a key.\n")],
    }
    monkeypatch.setattr(distributed, "start", lambda how, words: ended[how])
    assert [distributed.run_command(how, []) for how in ended] == [2, 0, 2, 2]
    out, told = capsys.readouterr()
    assert out == "a model\n" and told.count("process 1: error: a disk.\n") == 1
    assert "a word" not in told and told.count("error: one.") == 1
    assert told.count("a key") == 1


class Table:
    """JAX's table, of one process."""

    def __init__(self, **words):
        self.words = {f"lastiterate/{key}": word for key, word in words.items()}

    def key_value_set(self, key, value):
        if key in self.words:
            raise RuntimeError("ALREADY_EXISTS")
        self.words[key] = value

    def key_value_try_get(self, key):
        return self.words[key]

    def blocking_key_value_get(self, key, milliseconds):
        assert milliseconds >= 1
        return self.words[key]


@pytest.fixture
def job(monkeypatch):
    """Make the table of a job, and say which process of three this one is."""

    def begin(rank, lost_another=False, **words):
        table = Table(**words)
        monkeypatch.setattr(engine_job, "_read_job", lambda: (table, rank, 3))
        monkeypatch.setattr(engine_job._job, "lost_another", lost_another)
        monkeypatch.setattr(engine_job, "OFTEN", 0.01)
        return table

    return begin


def test_the_word_of_the_process_that_ended_first_stays(job):
    table = job(2)
    engine_job.tell_end("a disk is full.")
    assert table.words == {"lastiterate/ended": "2 a disk is full.", "lastiterate/followed/2": ""}
    job(1, ended="2 a disk is full.")
    engine_job.tell_end("another word")
    assert engine_job._read_job()[0].words["lastiterate/ended"] == "2 a disk is full."
    table = job(1, lost_another=True)
    engine_job.tell_end("devices stopped")
    assert table.words == {}, "it ends because of another one, and the table may be lost"
    table = job(0, lost_another=True, ended="2 a disk is full.")
    engine_job.tell_end("processes must all continue")
    assert table.words["lastiterate/ended"] == "2 a disk is full."
    assert "lastiterate/leaving" in table.words, "the others end before it"


@pytest.mark.parametrize("rank", [0, 1])
def test_the_first_process_says_why_another_one_ended(job, rank):
    job(rank, ended="2 a disk is full.")
    with pytest.raises(li.InputError) as refused, engine_job.explain_loss():
        raise ValueError("Gloo all-reduce failed")
    said = "process 2 ended: a disk is full; nothing was released"
    assert (said in str(refused.value)) == (rank == 0)
    assert (jax_processes.STOPPED in str(refused.value)) == (rank == 1)
    assert engine_job._job.lost_another


def test_a_table_that_does_not_answer_holds_nobody_up(job, monkeypatch):
    table, never = job(1), threading.Event()
    monkeypatch.setattr(engine_job, "LAST_WAIT", 0.05)
    monkeypatch.setattr(table, "key_value_set", lambda *_: never.wait(60))
    engine_job.tell_end("a disk is full.")
    assert not never.is_set() and table.words == {}
    never.set()
    monkeypatch.setattr(engine_job, "_read_job", lambda: 1 / 0)
    engine_job.tell_end("a disk is full.")
    engine_job.follow_first()
    assert engine_job.find_ended() is None
    ended = []
    monkeypatch.setattr(jax.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(engine_job, "tell_end", lambda why: 1 / 0)
    monkeypatch.setattr(jax_processes.os, "_exit", ended.append)
    with pytest.raises(ZeroDivisionError):
        jax_processes.leave_job(3)
    assert ended == [3]


def test_a_process_follows_the_first_one_when_it_leaves(job, monkeypatch):
    ended, left, stops = [], threading.Event(), []
    table = job(1)
    monkeypatch.setattr(engine_job.os, "_exit", lambda code: (ended.append(code), left.set()))
    monkeypatch.setattr(engine_job.atexit, "register", stops.append)
    engine_job.follow_first()
    assert not left.wait(0.1) and ended == []
    table.key_value_set("lastiterate/leaving", "")
    assert left.wait(30) and ended[0] == 2 and "lastiterate/followed/1" in table.words
    stops[0]()
    assert not any(thread.name == "follow-first" for thread in threading.enumerate())

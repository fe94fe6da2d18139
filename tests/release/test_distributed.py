"""Processes that one call starts, here and on a local cluster of Ray."""

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

import lastiterate as li
from lastiterate.ledger import GaussianFilter, Ledger
from lastiterate.release import distributed
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

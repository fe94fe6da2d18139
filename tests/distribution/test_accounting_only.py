"""Accounting, verifying and reporting without JAX, scikit-learn, matplotlib and cryptography, as
docs/installation.md installs it; what needs one of them is refused in a sentence."""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import lastiterate as li
from lastiterate.errors import FULL_INSTALLATION, name_missing_library, refuse_missing_library
from lastiterate.ledger import GaussianFilter, Ledger

ROOT = Path(__file__).parents[2]
GOLDEN = max(
    (ROOT / "tests" / "golden").glob("released-*"),
    key=lambda folder: [int(number) for number in folder.name.partition("-")[2].split(".")],
)
DECLARED = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["dependencies"]
ABSENT = {*FULL_INSTALLATION, "joblib", "optax", "equinox", "torch", "pandas", "pyarrow", "onnx"}
RUN = "--n 1000 --steps 20 --step-size 0.1 --clip 1 --noise-multiplier 9 --batch permuted:100"

CHILD = """
import json, sys
from importlib.abc import MetaPathFinder

class Absent(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {absent}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Absent())
{body}
"""
COMMANDS = """
import lastiterate
lastiterate.__version__ = "later"  # the folders are of an earlier version
from typer.testing import CliRunner
from lastiterate.cli import app

for line in sys.stdin.read().splitlines():
    done = CliRunner().invoke(app, line.split())
    wrong = done.exception if not isinstance(done.exception, SystemExit) else None
    print(json.dumps([done.exit_code, " ".join(done.output.split()), repr(wrong)]))
"""


def run_child(body, given="", place=None):
    """Run Python without the libraries of ``ABSENT``; what it prints."""
    code = CHILD.format(absent=sorted(ABSENT), body=body)
    source = {"PYTHONPATH": str(Path(li.__file__).parents[1])}  # of these sources, from any folder
    done = subprocess.run(
        [sys.executable, "-c", code],
        input=given,
        capture_output=True,
        text=True,
        cwd=place,
        env=os.environ | source,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def call(place, *lines):
    """Run commands in one such process: exit code, output, and an error that nobody foresaw."""
    printed = run_child(COMMANDS, "\n".join(lines), place).splitlines()
    return [json.loads(line) for line in printed if line.startswith("[")]


@pytest.fixture
def place(tmp_path):
    for kind in ("linear", "exact", "network", "selected", "unlearned", "sample"):
        shutil.copytree(GOLDEN / kind, tmp_path / kind)
    shutil.copy(GOLDEN / "ledger", tmp_path / "ledger")
    (tmp_path / "rows.csv").write_text("a,b,y\n0.5,0.1,1\n-0.5,0.2,0\n")
    return tmp_path


def test_the_page_leaves_out_what_is_absent_here():
    """The two lines of the page install every requirement but the four that accounting never
    imports."""
    names = {re.match(r"[\w-]+", text)[0].lower() for text in DECLARED}
    page = (ROOT / "docs" / "installation.md").read_text("utf-8")
    installed = re.search(
        r"^pip install (numpy .*)\npip install --no-deps lastiterate$", page, re.M
    )
    assert installed
    assert names - {*installed[1].split()} == {"jax", "scikit-learn", "matplotlib", "cryptography"}
    assert {name.lower() for name in FULL_INSTALLATION.values()} == names - {*installed[1].split()}


NEED_NONE = [
    "--version",
    f"account {RUN}",
    "account --n 1000 --steps 20 --noise-multiplier 3 --clip 1 --step-size 0.1"
    " --batch poisson:0.1 --adjacency add-remove --json",
    "calibrate --n 1000 --steps 20 --step-size 0.1 --clip 1 --epsilon 1",
    "theorems random-allocation-pld",
    "plan --n 1000 --features 20 --epsilon 1",
    "verify linear/certificate.json",
    *(f"verify {kind}" for kind in ("linear", "exact", "selected", "unlearned", "sample")),
    "verify network",
    "report linear --out linear.html",
    "report network --out network.html",
    "export linear --to model-card --out card.md",
    "ledger make mine --dataset d --unit record --epsilon 1 --delta 1e-5",
    "ledger show ledger",
    "ledger verify ledger",
    "schema rows.csv --out rows.toml",
    "papers",
]
NEED_ONE = {
    "train digits --epsilon 1 --out m --ledger ledger --dataset survey": "JAX",
    "tune digits --epsilon 1 --out m": "JAX",
    "audit linear --trials 10": "JAX",
    "check rows.csv --schema missing.toml": "JAX",
    f"account {RUN} --plot picture.png": "matplotlib",
}


def test_commands_that_account_verify_and_report_need_none_of_them(place):
    found = dict(zip(NEED_NONE, call(place, *NEED_NONE), strict=True))
    for line, (code, said, wrong) in found.items():
        assert code == 0 and wrong == "None", (line, said, wrong)
    assert (place / "linear.html").stat().st_size > 20_000
    unread = "whether the weights make a model, for JAX is not installed"
    assert [line for line, (_, said, _) in found.items() if unread in said] == ["verify network"]


def test_what_needs_one_of_them_says_so_and_writes_nothing(place):
    before = {path: path.read_bytes() for path in place.rglob("*") if path.is_file()}
    found = call(place, *NEED_ONE)
    for (line, library), (code, said, _) in zip(NEED_ONE.items(), found, strict=True):
        assert code == 2, (line, said)
        assert said.endswith(
            f"error: {library} is needed for this and is not installed; "
            "the full installation has it: pip install lastiterate."
        ), (line, said)
    assert {path: path.read_bytes() for path in place.rglob("*") if path.is_file()} == before


def test_python_says_the_same_and_charges_nothing(place):
    Ledger(place / "book").add("d", unit="record", adjacency="zero-out", filter=GaussianFilter(4.0))
    head = Ledger(place / "book").head()
    said = run_child(
        """
import numpy as np
import lastiterate as li
x = np.zeros((100, 2))
run = li.Run(n=100, steps=2, step_size=0.5, noise=li.NoiseMultiplier(9.0), loss=li.Logistic())
print(li.account(run).epsilon(1e-5) > 0)
print(li.load("linear").predict(x[:1]).shape)
from lastiterate.report import explore
print(explore.answer(explore.DEFAULT, rows="curves")["epsilon"] > 0, len(explore.page()) > 10_000)
for work in (
    lambda: li.train(run, (x, x[:, 0] > 0), delta=1e-5, ledger="book", dataset="d"),
    lambda: __import__("lastiterate.engine").engine.execute,
):
    try:
        work()
    except (ImportError, li.InputError) as error:
        print(error)
""",
        place=place,
    )
    sentence = "JAX is needed for this and is not installed; the full installation has it: "
    assert said.splitlines() == [
        "True",
        "(1,)",
        "True True",
        *[f"{sentence}pip install lastiterate."] * 2,
    ]
    assert Ledger(place / "book").head() == head


def test_modules_of_others_are_not_explained_away():
    assert name_missing_library(ModuleNotFoundError("no", name="jax.numpy")) == "JAX"
    assert name_missing_library(ModuleNotFoundError("no", name="mine")) is None
    assert name_missing_library(ModuleNotFoundError("no")) is None
    assert "scikit-learn is needed" in str(refuse_missing_library("scikit-learn"))

"""Predictions of a linear model where it is used: few imports, blocks of a file, forms of output."""

import subprocess
import sys

import numpy as np
import pytest

from lastiterate import accounting, written_certificate
from lastiterate.accounting.certificate import LATE, SUBJECTS
from support import call

HEAVY = {"jax", "scipy", "sklearn", "cryptography"}
ROOMS = ("accounting", "curves", "theorems", "analysis", "planning", "ledger", "bayes")

SCHEMA = """
target = "y"
classes = ["no", "yes"]
[columns.who]
kind = "id"
[columns.age]
kind = "number"
low = 0
high = 90
missing = 30
[columns.dose]
kind = "number"
low = -1
high = 1
missing = "indicator"
[columns.town]
kind = "category"
values = ["Ulm", "Bonn", "1", "Köln, West"]
outside = "zero"
missing = "indicator"
[columns.seen]
kind = "date"
first = "2020-01-01"
last = "2024-12-31"
missing = "indicator"
"""


def records(n, seed=0):
    """Columns of ``n`` synthetic records as text cells, missing marks among them."""
    random = np.random.default_rng(seed)

    def mark(cells, marks):
        return [str(random.choice(marks)) if random.random() < 0.1 else str(cell) for cell in cells]

    days = np.datetime64("2019-06-01") + random.integers(0, 2500, n).astype("timedelta64[D]")
    towns = ["Ulm", "Bonn", "1", "1.0", "Köln, West", "Oslo"]
    return {
        "who": [f"p{i}" for i in range(n)],
        "age": mark(np.round(random.normal(45, 30, n), 1), ["", "NA", "n/a"]),
        "dose": mark(random.normal(size=n), ["", "null", "NaN"]),
        "town": mark(random.choice(towns, n), ["", "?"]),
        "seen": mark(days, ["", "None"]),
        "y": [str(label) for label in random.choice(["no", "yes"], n)],
    }


def write_csv(path, columns):
    import csv

    with path.open("w", newline="", encoding="utf-8") as file:
        out = csv.writer(file, lineterminator="\n")
        out.writerow(columns)
        out.writerows(zip(*columns.values(), strict=True))
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a table, its schema, and models of different maps."""
    place = tmp_path_factory.mktemp("serving")
    write_csv(place / "d.csv", records(300))
    (place / "d.toml").write_text(SCHEMA)
    train = ["train", place / "d.csv", "--epsilon", "2"]
    for features in ("plain", "curves", "bins", "curves,gated"):
        code, _, err = call(*train, "--features", features, "--out", place / features)
        assert code == 0, err
    return place


@pytest.mark.parametrize("features", ["plain", "curves", "bins", "curves,gated"])
def test_predictions_import_neither_jax_nor_scipy_nor_the_accounting(folder, features):
    code = (
        "import sys\nfrom lastiterate.__main__ import main\n"
        f"sys.argv = ['lastiterate', 'predict', {str(folder / features)!r}, "
        f"{str(folder / 'd.csv')!r}]\n"
        "try:\n    main()\nexcept SystemExit as left:\n    assert not left.code\n"
        f"heavy = {HEAVY!r} & sys.modules.keys()\n"
        f"heavy |= {{one for one in sys.modules if one.startswith(tuple('lastiterate.' + r for r in {ROOMS!r}))}}\n"
        "sys.exit(', '.join(sorted(heavy)) or 0)"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith("who,prediction,probability_no,probability_yes\np0,")


def test_loading_in_python_is_as_light(folder):
    code = (
        "import sys, numpy as np, lastiterate as li\n"
        f"model = li.load({str(folder / 'plain')!r})\n"
        "assert len(model.predict(np.zeros((3, 29), np.float32))) == 3\n"
        f"sys.exit(', '.join({HEAVY!r} & sys.modules.keys()) or 0)"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr


def test_every_subject_of_a_certificate_has_its_entry():
    assert set(written_certificate.ENTRIES) == {*SUBJECTS, *LATE}
    assert accounting.certificate.entry_of is written_certificate.entry_of

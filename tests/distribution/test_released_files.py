"""Files of earlier versions are read for ever: folders of every kind, ledgers and checkpoints, in
tests/golden/released-VERSION (certificates: tests/accounting/test_format.py, checker/corpus)."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import lastiterate as li
from golden.make_released import FIRST, describe_model
from lastiterate.engine.checkpoint import Key, Owner, token_of, unseal
from lastiterate.ledger import Ledger
from lastiterate.release.model_kinds import KINDS

VERSIONS = sorted((Path(__file__).parents[1] / "golden").glob("released-*"))
EXPECTED = {folder: json.loads((folder / "expected.json").read_text()) for folder in VERSIONS}
FOLDERS = [folder / kind for folder in VERSIONS for kind in EXPECTED[folder]["models"]]


def test_every_kind_of_folder_has_an_example_of_every_version():
    """Kinds of torch are left out: their folders are networks whose names come from torch."""
    assert VERSIONS
    kinds = {json.loads((folder / "model.json").read_text())["kind"] for folder in FOLDERS}
    torch = {name for name, kind in KINDS.items() if kind.module.startswith("lastiterate.torch")}
    assert kinds >= ({*KINDS, "exact"} - torch)


@pytest.mark.parametrize(
    "folder", FOLDERS, ids=lambda folder: f"{folder.parent.name}-{folder.name}"
)
def test_a_folder_of_an_earlier_version_verifies_and_predicts(folder, monkeypatch):
    monkeypatch.setattr(li, "__version__", "later")  # a later one may sum tails more closely
    stated = EXPECTED[folder.parent]["models"][folder.name]
    assert li.verify(folder).holds
    model = li.load(folder, like=FIRST if folder.name == "network" else None)
    found = describe_model(model, folder.name)
    assert found["delta"] == stated["delta"]
    # a later version may prove less of a loss, and never more, without a note under Security
    assert 0 < found["epsilon"] <= stated["epsilon"] * (1 + 1e-9)
    if isinstance(stated["says"], dict):
        assert found["says"] == stated["says"]
    else:
        np.testing.assert_allclose(found["says"], stated["says"], rtol=1e-12)


@pytest.mark.parametrize("folder", VERSIONS, ids=lambda folder: folder.name)
def test_a_ledger_of_an_earlier_version_goes_on(folder, tmp_path):
    stated = EXPECTED[folder]["ledger"]
    book = Ledger(shutil.copy(folder / "ledger", tmp_path / "ledger"))
    total = book.total()
    assert book.verify(stated["head"]) == () and book.head() == stated["head"]
    assert list(total.spent) == stated["spent"]
    assert [release.token for release in total.releases] == stated["tokens"]
    x = np.random.default_rng(0).uniform(-0.7, 0.7, (50, 2))
    run = li.Run(n=50, steps=2, step_size=0.5, noise=li.NoiseMultiplier(9.0), loss=li.Logistic())
    li.train(run, (x, x[:, 0] > 0), delta=1e-5, ledger=book.path, dataset="survey", seed=0)
    assert book.verify(stated["head"]) == () and len(book.total().releases) == 2


@pytest.mark.parametrize("folder", VERSIONS, ids=lambda folder: folder.name)
def test_a_checkpoint_of_an_earlier_version_is_opened(folder):
    stated, file = EXPECTED[folder]["checkpoint"], folder / "checkpoint"
    key, owner = Key(bytes.fromhex(stated["key"])), Owner(**stated["owner"])
    assert token_of(file) == owner.token
    assert unseal(file, key, owner) == (stated["number"], b"a state of seven steps")

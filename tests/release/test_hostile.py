"""A law in small: mutated certificates and model folders are refused in a sentence, or say what
follows from their run.

As many as wanted: ``python tools/fuzz_models.py``.
"""

import json
import random
from collections import Counter

import numpy as np
import pytest

import lastiterate as li
from lastiterate.release.file_training import fit_file
from lastiterate.release.training_request import Budget, TrainingRequest
from oracles.json_mutations import mutated
from oracles.model_fuzz import certificate_outcome, folder_outcome, forge, short
from tiers import size

RUN = li.Run(
    n=40, steps=5, step_size=0.5, batching=li.Cyclic(10), loss=li.Softmax(classes=3, ridge=0.01)
)
RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(40, 2)), RNG.integers(0, 3, 40)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return fitted(tmp_path_factory.mktemp("models"))


def fitted(home):
    """One folder of every kind, with and without a schema."""
    network = li.Run(n=40, steps=2, step_size=0.1, clip=1.0)
    models = {
        "linear": li.train(RUN, (X, Y), epsilon=5.0),
        "file": fit_file(TrainingRequest(data="iris", budget=Budget(3.0, time_budget=2.0))).model,
        "sample": fit_file(TrainingRequest(data="diabetes", budget=Budget(5.0), model="bayes-linear")).model,
        "network": li.train(network, (X,), model={"w": np.zeros(2), "b": [np.zeros(1)]}, epsilon=5.0,
                            loss=lambda p, x: (p["w"] @ x + p["b"][0][0]) ** 2),
    }  # fmt: skip
    return {name: model.save(home / name) for name, model in models.items()}


@pytest.mark.parametrize(
    "name, count",
    [
        ("linear", size(200, 400, "MUTANTS")),
        ("network", size(150, 300, "MUTANTS")),
        ("sample", size(150, 300, "MUTANTS")),
    ],
    ids=["linear", "network", "sample"],
)
def test_mutated_certificates(folders, tmp_path, name, count):
    text, rng = (folders[name] / "certificate.json").read_text(), random.Random(17)
    assert certificate_outcome(text, tmp_path / "c.json") == "holds"
    found = Counter()
    while found.total() < count:
        changed = mutated(text, rng)
        if short(changed):
            found[
                certificate_outcome(
                    forge(changed) if rng.random() < 0.7 else changed, tmp_path / "c.json"
                )
            ] += 1
    assert found["refused"] > count / 10 and found["does not hold"] > count / 10, found
    assert found["holds"] < count / 5, "mutations that change nothing are rare"


@pytest.mark.parametrize(
    "name, count", [("linear", 300), ("file", 300), ("sample", 200), ("network", 200)]
)
def test_mutated_model_folders(folders, tmp_path, name, count):
    rng = random.Random(23)
    found = Counter(folder_outcome(folders[name], rng, tmp_path / "m") for _ in range(count))
    assert found["refused"] > count / 3 and found["loaded"] > 0, found


def test_forged_texts_have_fitting_hashes(folders):
    text = (folders["linear"] / "certificate.json").read_text()
    assert forge(text) and json.loads(forge(text)) == json.loads(text), (
        "an unchanged certificate is its own forgery"
    )

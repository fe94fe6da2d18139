"""Write the files that a version releases: `python tests/golden/make_released.py`, once a version.

The folder `released-VERSION` has a small model folder of every kind, a ledger and a checkpoint, and
`expected.json` says what they hold. tests/distribution reads all of them: a later version never
writes the folder of an earlier one again.
"""

import json
import tempfile
from dataclasses import asdict
from pathlib import Path

import numpy as np

import lastiterate as li
from lastiterate.data import Schema
from lastiterate.engine.checkpoint import Key, Owner, seal
from lastiterate.estimators import DPLogisticRegression, DPSearchCV
from lastiterate.ledger import GaussianFilter, Ledger
from lastiterate.release.file_training import fit_file
from lastiterate.release.training_request import Budget, TrainingRequest

FIRST = {"w": np.zeros(2), "b": np.array(0.0)}
"""First parameters of the network."""
ROWS = np.array([[0.5, 0.1], [-0.5, 0.2], [0.1, -0.6]])
"""Rows whose predictions are written down."""
SCHEMA = """target = "y"
target_range = [0.0, 10.0]

[columns.a]
kind = "number"
low = 0.0
high = 1.0
"""
CHECKPOINT_KEY = Key(bytes(range(32)))
OWNER = Owner("run", "data", "token", "program", "software")


def draw_records() -> tuple[np.ndarray, np.ndarray]:
    """Return 200 synthetic records of two columns and their classes."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-0.7, 0.7, (200, 2))
    return x, (x[:, 0] > 0).astype(int)


def squared_loss(parameters, x, y):
    """The loss of the network, which is a line."""
    return (x @ parameters["w"] + parameters["b"] - y) ** 2


def sample_posterior():
    """Return a posterior sample of synthetic records, by way of a file."""
    rng = np.random.default_rng(1)
    a = rng.random(400)
    lines = [f"{value:.6f},{5 + 2 * value:.6f}" for value in a]
    with tempfile.TemporaryDirectory() as place:
        (Path(place) / "data.csv").write_text("a,y\n" + "\n".join(lines) + "\n")
        (Path(place) / "schema.toml").write_text(SCHEMA)
        return fit_file(
            TrainingRequest(
                data=str(Path(place) / "data.csv"),
                budget=Budget(8.0, 1e-5),
                schema=Schema.read(Path(place) / "schema.toml"),
                model="bayes-linear",
            )
        ).model


def train_models(ledger: Path):
    """Return one small model of every kind that needs no torch."""
    x, y = draw_records()
    run = li.Run(
        n=200,
        steps=5,
        step_size=0.5,
        noise=li.NoiseMultiplier(12.0),
        batching=li.Permuted(40),
        loss=li.Logistic(ridge=0.05),
        preprocessing=(li.PrivateMean(20.0, 1.0),),
    )
    exact = li.Run(
        n=200, steps=4, step_size=0.5, noise=li.NoiseMultiplier(12.0), loss=li.Logistic(ridge=0.05)
    )
    net = li.Run(
        n=200,
        steps=4,
        step_size=0.1,
        noise=li.NoiseMultiplier(8.0),
        batching=li.Poisson(0.1),
        clip=1.0,
        loss=li.KnownConstants(li.LossFacts()),
    )
    linear = li.train(run, (x, y), delta=1e-5, ledger=ledger, dataset="survey", seed=1)
    search = DPSearchCV(
        DPLogisticRegression(epsilon=1.0, row_norm=1.0, classes=[0, 1]),
        {"row_norm": [0.5, 1.0]},
        epsilon=2.0,
    )
    return {
        "linear": linear,
        "exact": li.train(exact, (x, y), delta=1e-5, secure_noise=True),
        "network": li.train(net, (x, y), model=FIRST, loss=squared_loss, delta=1e-5, seed=2),
        "selected": search.fit(x, y).fitted_,
        "unlearned": li.forget(linear, x, y, remove=[3], epsilon=4.0, delta=1e-5, seed=3),
        "sample": sample_posterior(),
    }


def describe_model(model, kind: str):
    """Return what a model's folder must say in every later version."""
    rows = ROWS[:, :1] if kind == "sample" else ROWS
    said = (
        {name: np.asarray(value).tolist() for name, value in sorted(model.params.items())}
        if kind == "network"
        else np.asarray(model.predict(rows)).tolist()
    )
    return {"delta": model.delta, "epsilon": model.certificate.epsilon(model.delta), "says": said}


def main() -> None:
    folder = Path(__file__).parent / f"released-{li.__version__}"
    folder.mkdir()
    book = Ledger(folder / "ledger")
    book.add("survey", unit="record", adjacency="zero-out", filter=GaussianFilter(4.0))
    models = train_models(folder / "ledger")
    for kind, model in models.items():
        model.save(folder / kind)
    seal(folder / "checkpoint", CHECKPOINT_KEY, OWNER, 7, b"a state of seven steps")
    expected = {
        "models": {kind: describe_model(model, kind) for kind, model in models.items()},
        "ledger": {
            "head": book.head(),
            "spent": list(book.total().spent),
            "tokens": [release.token for release in book.total().releases],
        },
        "checkpoint": {"key": bytes(range(32)).hex(), "owner": asdict(OWNER), "number": 7},
    }
    (folder / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")


if __name__ == "__main__":
    main()

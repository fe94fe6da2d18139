"""Add-remove: how many records there are is private, so that nothing but the weights follows from
it."""

import json
import re

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import lastiterate as li
from lastiterate.cli import app
from lastiterate.engine import execute
from lastiterate.errors import InputError, NotCertified
from lastiterate.estimators import DPHuberRidge, DPLogisticRegression, DPSearchCV
from lastiterate.ledger import GaussianFilter, Ledger
from lastiterate.run.preprocessing import PrivateMean

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(131, 3)), RNG.integers(0, 2, 131)
N = 100
"""The number that the runs state: the data have more, fewer, and one more or fewer."""
BATCHINGS = (li.Poisson(0.2), li.RandomAllocation(20))
LENGTHS = (1, 99, 100, 101, 131)


def described(batching, **more):
    fields = dict(
        n=N,
        steps=6,
        step_size=0.1,
        batching=batching,
        clip=0.5,
        adjacency="add-remove",
        loss=li.Logistic(row_norm=1.0),
    )
    return li.Run(**(fields | more))


def kept(folder):
    """What a folder says beside the weights: all of its files, without hashes of weights, and the
    day."""
    kinds = (".json", ".html", ".md", ".bib")
    text = {path.name: path.read_text() for path in folder.iterdir() if path.suffix in kinds}
    return {name: re.sub(r"[0-9a-f]{64}", "HASH", body) for name, body in text.items()}


@pytest.mark.parametrize("batching", BATCHINGS, ids=lambda one: type(one).__name__)
@pytest.mark.parametrize("count", LENGTHS)
def test_records_are_read_as_they_are_and_divided_by_the_nominal_n(batching, count):
    """Every record in every batch, hardly any noise: a step is what NumPy says, whatever the number
    of records."""
    whole = li.Poisson(1.0) if isinstance(batching, li.Poisson) else li.RandomAllocation(N)
    run = described(whole, noise=li.GradientNoise(1e-9), steps=1, step_size=1.0, clip=None)
    rows = X[:count] * np.minimum(1, 1 / np.linalg.norm(X[:count], axis=1))[:, None]
    rows = np.column_stack((rows, np.full(count, run.loss.intercept)))
    expected = -((0.5 - Y[:count])[:, None] * rows).sum(0) / N
    found = execute(run, X[:count], Y[:count]).weights[0]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("count", (99, 101, 131))
def test_a_preparation_is_divided_by_the_nominal_n(count):
    """A mean, and the full gradients of snapshots."""
    run = described(
        li.Poisson(1.0),
        noise=li.GradientNoise(1e-9),
        steps=1,
        preprocessing=(PrivateMean(1e-9, 10.0),),
    )
    (mean,) = execute(run, X[:count], Y[:count]).released
    np.testing.assert_allclose(mean, X[:count].sum(0) / N, rtol=1e-4, atol=1e-6)
    method = li.VarianceReduced(2, 1.0)
    snapshots = described(
        li.Poisson(1.0),
        noise=li.NoiseMultiplier(1e-9),
        steps=1,
        step_size=1.0,
        clip=None,
        method=method,
    )
    plain = described(
        li.Poisson(1.0), noise=li.GradientNoise(1e-9), steps=1, step_size=1.0, clip=None
    )
    found, wanted = (execute(one, X[:count], Y[:count]).weights for one in (snapshots, plain))
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("batching", BATCHINGS, ids=lambda one: type(one).__name__)
def test_both_neighbours_say_the_same(batching, tmp_path, monkeypatch):
    """The same noise on both data sets: every byte is compared but the weights and hashes of them."""
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "0")
    said, shown = [], []
    for count in LENGTHS[1:]:
        book, steps = Ledger(tmp_path / f"l{count}"), []
        book.add("d", unit="row", adjacency="add-remove", filter=GaussianFilter(3.0, 1e-6))
        model = li.train(
            described(batching),
            (X[:count], Y[:count]),
            epsilon=1.0,
            delta=1e-5,
            seed=1,
            ledger=book,
            progress=lambda done, steps_in_all, seconds, into=steps: into.append(
                (done, steps_in_all)
            ),
        )
        line = book.total().releases[0]
        said.append(
            (
                kept(model.save(tmp_path / f"m{count}")),
                line.run,
                line.curve,
                line.costs,
                line.purpose,
                steps,
                repr(model),
                model.certificate.explain(1e-5),
            )
        )
        shown.append(model.released.weights)
    assert all(one == said[0] for one in said[1:])
    assert not any((shown[0] == other).all() for other in shown[1:])
    assert f'"n": {N}' in said[0][0]["model.json"] or f'"n":{N}' in said[0][0]["model.json"]


@pytest.mark.parametrize("batching", BATCHINGS, ids=lambda one: type(one).__name__)
@pytest.mark.parametrize("count", (99, 100, 131))
def test_networks_and_modules(batching, count):
    """Losses written with JAX and modules of torch: sums over the records that are there, over the
    nominal n."""
    whole = li.Poisson(1.0) if isinstance(batching, li.Poisson) else li.RandomAllocation(N)
    run = described(
        whole,
        noise=li.GradientNoise(2e-5),
        steps=1,
        step_size=1.0,
        clip=5.0,
        loss=li.KnownConstants(li.LossFacts()),
    )
    data = X[:count].astype(np.float32), Y[:count].astype(np.float32)
    expected = (data[0] * data[1][:, None]).sum(0) / N
    found = li.train(
        run,
        data,
        model={"w": np.zeros(3)},
        loss=lambda p, x, y: -y * jnp.dot(p["w"], x),
        delta=1e-5,
    )
    np.testing.assert_allclose(found.params["w"], expected, rtol=1e-4, atol=3e-4)
    module = torch.nn.Linear(3, 1, bias=False)
    torch.nn.init.zeros_(module.weight)
    found = li.train(run, data, model=module, loss=lambda output, y: -y * output[0], delta=1e-5)
    np.testing.assert_allclose(found.state["weight"][0], expected, rtol=1e-4, atol=3e-4)
    items = torch.utils.data.TensorDataset(*map(torch.from_numpy, data))
    li.train(run, items, model=module, loss=lambda output, y: -y * output[0], delta=1e-5)


def test_what_would_follow_from_the_number_of_records_is_refused():
    run = described(li.RandomAllocation(20))
    with pytest.raises(
        InputError, match="data must be in the memory of one device under add-remove"
    ):
        li.train(run, (X, Y), epsilon=1.0, delta=1e-5, devices=2)
    with pytest.raises(NotCertified, match="add-remove"):
        li.train(run, (X, Y), epsilon=1.0, delta=1e-5, secure_noise=True)
    model = li.train(run, (X, Y), epsilon=1.0, delta=1e-5)
    with pytest.raises(InputError, match="model must not be trained under add-remove"):
        model.private_score(X, Y, epsilon=1.0)
    for wrong in ((X, Y[:-1]), (X[:0], Y[:0])):
        with pytest.raises(InputError, match="must have"):
            li.train(run, wrong, epsilon=1.0, delta=1e-5)
    zeroed = described(li.RandomAllocation(20), adjacency="zero-out")
    with pytest.raises(InputError, match="must have the run's n = 100 rows"):
        li.train(zeroed, (X, Y), epsilon=1.0, delta=1e-5)


@pytest.mark.parametrize("kind", [DPLogisticRegression, DPHuberRidge])
def test_estimators_ask_for_a_public_n(kind):
    more = dict(classes=(0, 1)) if kind is DPLogisticRegression else dict(target_range=(0, 1))
    rows, target = RNG.normal(size=(301, 2)), RNG.integers(0, 2, 301)
    asked = dict(epsilon=1.0, row_norm=2.0, adjacency="add-remove", random_state=0, **more)
    with pytest.raises(InputError, match="n must be stated under add-remove"):
        kind(**asked).fit(rows, target)
    with pytest.raises(InputError, match="n is for add-remove"):
        kind(**(asked | dict(adjacency="zero-out")), n=250).fit(rows, target)
    one, two = (
        kind(**asked, n=250, algorithm="allocation-sgd").fit(rows[:m], target[:m])
        for m in (300, 301)
    )
    assert one.run_ == two.run_ and one.run_.n == 250 and one.delta_ == two.delta_
    with pytest.raises(InputError, match="stream must be False under add-remove"):
        kind(**asked, n=250, stream=True).fit(rows, target)


def test_a_search_keeps_places():
    estimator = DPLogisticRegression(row_norm=2.0, classes=(0, 1), adjacency="add-remove", n=100)
    with pytest.raises(InputError, match="adjacency"):
        DPSearchCV(estimator, {"row_norm": [1.0, 2.0]}, epsilon=1.0).fit(X, Y)


@pytest.mark.parametrize("algorithm", ["automatic", "allocation-sgd", "poisson-dp-sgd"])
def test_the_command_line_trains_both_neighbours_alike(algorithm, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "d.toml").write_text(
        'target = "y"\nclasses = ["no", "yes"]\nsource = "synthetic"\n[columns.a]\n'
        'kind = "number"\nlow = -1\nhigh = 1\n'
    )
    cells = [f"{value:.3f},{'yes' if value > 0 else 'no'}" for value in np.sin(np.arange(301))]
    folders, screens = [], []
    for count in (301, 300):
        (tmp_path / "d.csv").write_text("\n".join(["a,y", *cells[:count]]) + "\n")
        words = [
            "train",
            "d.csv",
            "--epsilon",
            "1",
            "--adjacency",
            "add-remove",
            "--algorithm",
            algorithm,
        ]
        words += ["--out", "m"]
        found = CliRunner().invoke(app, words)
        assert found.exit_code == 2 and "--n must be stated under add-remove" in " ".join(
            found.output.split()
        )
        found = CliRunner().invoke(app, [*words, "--n", "280"])
        assert found.exit_code == 0, found.output
        screens.append(re.sub(r"\d+:\d\d:\d\d|[0-9a-f]{64}", "", found.output))
        assert CliRunner().invoke(app, ["verify", "m"]).exit_code == 0
        assert json.loads((tmp_path / "m" / "certificate.json").read_text())["run"]["n"] == 280
        folders.append(tmp_path / "m")
        folders[-1] = kept(folders[-1].rename(tmp_path / f"m{count}"))
    assert screens[0] == screens[1]
    for name, text in folders[0].items():
        one, two = (
            re.sub(r"<h3>a: .*?</figure>", "", given, flags=re.DOTALL)
            for given in (text, folders[1][name])
        )
        assert re.sub(r"-?\d+\.\d+(e-?\d+)?", "", one) == re.sub(r"-?\d+\.\d+(e-?\d+)?", "", two), (
            name
        )
        assert name == "report.html" or text == folders[1][name]
    found = CliRunner().invoke(
        app,
        [
            "train",
            "d.csv",
            "--epsilon",
            "1",
            "--adjacency",
            "add-remove",
            "--n",
            "280",
            "--algorithm",
            "permuted-sgd",
            "--out",
            "n",
        ],
    )
    assert (
        found.exit_code == 2
        and "defined for Poisson batches and random allocation only" in found.output
    )

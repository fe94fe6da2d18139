"""A posterior sample from a file to a folder and back, also from the command line."""

import json
import shutil

import numpy as np
import pytest
from typer.testing import CliRunner

import lastiterate as li
from lastiterate.bayes import (
    ClippedRows,
    LinearModel,
    LinearPosterior,
    RatioDomain,
    least_prior,
    sample_posterior,
)
from lastiterate.bayes.linear import ridge_curve
from lastiterate.cli import app
from lastiterate.data import BUNDLED, Schema, encode, encode_features, load_bundled, read_table
from lastiterate.errors import InputError
from lastiterate.release.file_training import fit_file
from lastiterate.release.posterior import GUESSES, FittedSample, plan_sample, with_constant
from lastiterate.release.prediction import prediction_rows
from lastiterate.release.training_request import Budget, TrainingRequest

SCHEMA = """
target = "y"
target_range = [0.0, 10.0]

[columns.a]
kind = "number"
low = 0.0
high = 1.0

[columns.b]
kind = "number"
low = -1.0
high = 1.0
"""


@pytest.fixture
def files(tmp_path):
    rng = np.random.default_rng(0)
    a, b = rng.random(3000), rng.uniform(-1, 1, 3000)
    y = 2 + 6 * a + b
    rows = "\n".join(f"{i:.6f},{j:.6f},{k:.6f}" for i, j, k in zip(a, b, y, strict=True))
    (tmp_path / "data.csv").write_text("a,b,y\n" + rows + "\n")
    (tmp_path / "new.csv").write_text("a,b\n0.5,0.0\n1.0,1.0\n")
    (tmp_path / "schema.toml").write_text(SCHEMA)
    return tmp_path


def fitted(files):
    schema = Schema.read(files / "schema.toml")
    return fit_file(
        TrainingRequest(
            data=str(files / "data.csv"),
            budget=Budget(8.0, 1e-6),
            schema=schema,
            model="bayes-linear",
        )
    )


def test_file_to_folder_to_predictions(files):
    made = fitted(files)
    made.model.save(files / "model")
    again = li.load(str(files / "model"))
    certificate, domain = again.certificate, again.certificate.subject.problem.domain
    assert li.verify(files / "model").holds and made.test_score is None
    assert certificate == made.model.certificate and certificate.epsilon(1e-6) <= 8.0
    assert (
        certificate.adjacency == "zero-out"
        and certificate.with_adjacency("replace-one").epsilon(1e-6) <= 8.0
    )
    assert domain.n == 3000 and domain.features == 3
    header, rows = prediction_rows(again, str(files / "new.csv"))
    features = encode_features(read_table(str(files / "new.csv")), again.schema)
    design = with_constant(features, 2**0.5)
    assert again.predict(features) == pytest.approx(
        5 + 5 * np.clip(design @ made.model.value, -1, 1)
    )
    assert header == ["prediction"] and [float(x) for (x,) in rows] == pytest.approx(
        again.predict(features), rel=1e-4
    )
    assert (design[:, -1] == 1).all() and np.linalg.norm(design, axis=1).max() <= domain.row_norm


def test_what_was_changed_is_noticed(files):
    fitted(files).model.save(files / "model")
    for name in ("weights.safetensors", "model.json"):
        copy = files / ("copy-" + name)
        shutil.copytree(files / "model", copy)
        (copy / name).write_bytes((copy / name).read_bytes() + b" ")
        assert any(name in problem for problem in li.verify(copy).problems)
        with pytest.raises(InputError, match=name):
            li.load(copy)
    body = json.loads((files / "model" / "certificate.json").read_text())
    (files / "model" / "certificate.json").write_text(json.dumps(body | {"epsilon": 0.1}))
    assert len(li.verify(files / "model").problems) == 3
    with pytest.raises(InputError, match="content hash"):
        li.load(files / "model")


def test_a_sample_of_one_coefficient_travels(tmp_path):
    problem = LinearPosterior(LinearModel(), RatioDomain(n=3000, ratio=2.0, spread=0.5))
    x = np.linspace(0.5, 1.0, 3000)
    drawn = sample_posterior(problem, x, 2 * x)
    made = FittedSample(proof=drawn.certificate, delta=1e-5, problem=problem, value=drawn.value)
    again = li.load(made.save(tmp_path / "m"))
    assert again.predict([1.0, 3.0]) == pytest.approx([made.value[0], 3 * made.value[0]])
    assert (
        again.certificate == made.certificate
        and again.problem == problem
        and "one sample" in repr(again)
    )
    with pytest.raises(InputError, match="for networks"):
        li.load(tmp_path / "m", like=np.zeros(1))


def test_the_plan_keeps_the_budget_and_looks_at_all_guesses():
    domain = ClippedRows(n=3000, features=3, row_norm=1.7)
    model = plan_sample(domain, epsilon=1.0, delta=1e-6)
    assert ridge_curve(model, domain).epsilon(1e-6) <= 1.0 and model.noise_precision in GUESSES
    assert GUESSES[0] < model.noise_precision < GUESSES[-1], "the best guess is not at an end"

    def risk(m):
        total = m.prior_precision + m.noise_precision * 3000 * 1.7**2 / 3
        return (m.prior_precision / total) ** 2 / 4 + 1.7**2 / total

    others = [least_prior(domain, epsilon=1.0, delta=1e-6, noise_precision=b) for b in GUESSES]
    assert risk(model) == min(map(risk, others))


def test_the_command_line(files):
    out = str(files / "out")
    told = CliRunner().invoke(
        app, ["train", "diabetes", "--model", "bayes-linear", "--epsilon", "4", "--out", out]
    )
    assert told.exit_code == 0, told.output
    assert (
        "one exact posterior sample" in told.output
        and "R^2" in told.output
        and "replace-one" in told.output
    )
    certificate = li.read_certificate((files / "out" / "certificate.json").read_text())
    assert certificate.epsilon(1e-5) <= 4
    assert certificate.subject.problem.domain.n < len(encode(*load_bundled("diabetes"))[0])
    assert "diabetes" in BUNDLED
    refused = (
        (["digits"], "range of numbers"),
        (["diabetes", "--test", "x.csv", "--test-is-public"], "--test"),
        (["diabetes", "--adjacency", "add-remove"], "--n must be stated under add-remove"),
        (["diabetes", "--delta", "2"], "--delta"),
    )
    for args, words in refused:
        told = CliRunner().invoke(
            app, ["train", *args, "--model", "bayes-linear", "--epsilon", "4", "--out", out + "2"]
        )
        assert told.exit_code == 2 and words in told.output, told.output
        assert not (files / "out2").exists()


def test_the_commands_know_posterior_folders(tmp_path):
    from typer.testing import CliRunner

    from lastiterate.cli import app

    def called(*arguments):
        return CliRunner().invoke(app, [*map(str, arguments)])

    where = tmp_path / "model"
    made = called("train", "diabetes", "--epsilon", 5, "--model", "bayes-linear", "--out", where)
    assert made.exit_code == 0, made.output
    for path in (where, where / "certificate.json"):
        found = called("verify", path)
        assert found.exit_code == 0 and "holds: epsilon" in found.output
    weights = where / "weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    assert called("verify", where).exit_code == 1
    both = called(
        "train", "diabetes", "--epsilon", 5, "--model", "bayes-linear", "--algorithm", "noisy-gd"
    )
    assert both.exit_code == 2 and "cannot be combined with bayes-linear" in both.stderr

"""--algorithm, --batch and --prox on the command line."""

import json

import pytest
from typer.testing import CliRunner

import lastiterate as li
from lastiterate.accounting.certificate_subject import count_curve
from lastiterate.cli import app
from lastiterate.errors import InputError


def called(*arguments):
    return CliRunner().invoke(app, [*map(str, arguments)])


def test_a_named_algorithm_is_trained_and_its_certificate_holds(tmp_path):
    out = tmp_path / "model"
    found = called(
        "train", "wine", "--epsilon", 4, "--algorithm", "cyclic-dp-sgd", "--batch", "cyclic:20", "--prox",
        "group-lasso:0.01", "--cap", 0.2, "--explain-plan", "--out", out,
    )  # fmt: skip
    assert found.exit_code == 0, found.output
    assert "no plans were considered" in found.output and "Cyclic" in found.output
    (certificate,) = (json.loads(path.read_text()) for path in out.glob("cert*.json"))
    assert certificate["run"]["batching"] == {"type": "Cyclic", "size": 20}
    assert certificate["run"]["prox"] == {"type": "GroupLasso", "weight": 0.01, "axis": 0}
    assert certificate["run"]["loss"]["cap"] == 0.2 and certificate["run"]["clip"] is None
    assert called("verify", out).exit_code == 0


def test_a_method_without_noise_at_every_step_has_its_report(tmp_path):
    """Effects of columns ask for the noise in a weight, which only a method of noisy steps has
    before it runs."""
    out = tmp_path / "model"
    found = called("train", "diabetes", "--epsilon", 8, "--algorithm", "dp-svrg", "--out", out)
    assert found.exit_code == 0, found.output
    assert "could not be written" not in found.output and (out / "report.html").is_file()


def test_a_model_is_complete_where_its_report_cannot_be_made(tmp_path, monkeypatch):
    def refused(subject):
        raise InputError("effects", "cannot be drawn", None, "draw fewer")

    monkeypatch.setattr("lastiterate.report.page.page", refused)
    out = tmp_path / "model"
    found = called("train", "wine", "--epsilon", 4, "--algorithm", "permuted-sgd", "--out", out)
    assert found.exit_code == 0 and "its report could not be written" in found.output
    assert called("verify", out).exit_code == 0


def test_an_accuracy_that_is_paid_for_is_shown(tmp_path):
    out = tmp_path / "model"
    found = called(
        "train",
        "breast_cancer",
        "--epsilon",
        8,
        "--algorithm",
        "objective-perturbation",
        "--report-accuracy",
        0.5,
        "--out",
        out,
        "--json",
    )
    assert found.exit_code == 0, found.output
    body = json.loads(found.output[found.output.index("{") :])
    (accuracy,) = body["accuracies"]
    assert (
        accuracy["records"] == 46
        and accuracy["apart"]
        and accuracy["low"] <= accuracy["value"] <= accuracy["high"]
    )
    assert (
        body["epsilon"] <= 8
        and body["run"]["n"] == 409
        and body["theorem"] == "objective-perturbation"
    )
    assert called("verify", out).exit_code == 0


def test_persons_of_several_rows_may_be_on_both_sides(tmp_path):
    """Rows are held out, so a person may be trained on and counted: both costs add, and are the
    person's."""
    rows = (
        f"p{i // 3},{i * 7 % 100 / 100},{'yes' if i * 7 % 100 > 50 else 'no'}" for i in range(900)
    )
    (tmp_path / "visits.csv").write_text("\n".join(("person,a,ill", *rows, "")))
    (tmp_path / "visits.toml").write_text(
        'target = "ill"\nclasses = ["no", "yes"]\nsource = "s"\n'
        '[columns.person]\nkind = "id"\n[columns.a]\nkind = "number"\nlow = 0\nhigh = 1\n'
    )
    out, visits = tmp_path / "model", tmp_path / "visits.csv"
    flags = ("--unit", "person", "--rows-per-unit", 3, "--report-accuracy", 0.5)
    asked = ("--algorithm", "noisy-gd", *flags, "--out", out)
    found = called("train", visits, "--epsilon", 1, *asked)
    assert found.exit_code == 2 and "--report-accuracy must buy an accuracy" in found.stderr
    assert "got 0.5; leave it out and score on a public file; nothing was charged" in found.stderr
    found = called("train", visits, "--epsilon", 6, *asked)
    said = " ".join(found.output.replace("│", " ").split())
    assert found.exit_code == 0 and "3 rows" in said and "longer ones" not in said, found.output
    assert "counted" in said and "on 90 private records" in said
    assert "they, or other rows of the same person, may be trained on" in said
    (count,) = (
        run := li.Run.from_dict(json.loads((out / "certificate.json").read_text())["run"])
    ).counts
    assert not count.apart and run.rows_per_unit == 3
    moved = count_curve(count, run, run.adjacency).mu * count.noise_multiplier
    assert 3 <= moved < 3.1
    assert called("verify", out).exit_code == 0


@pytest.mark.parametrize(
    "flags, word",
    [
        (
            ["--threshold", "5%"],
            "between 0 and 1, got '5%'; write 0.05 for 5 %, or costs such as 1:20",
        ),
        (["--report-accuracy", "1.5"], "--report-accuracy must lie between"),
        (
            ["--report-accuracy", "0.1", "--secure-noise"],
            "--report-accuracy is for the linear models",
        ),
        (
            ["--algorithm", "objective-perturbation", "--batch", "cyclic:5"],
            "--batch must be left out",
        ),
        (
            ["--algorithm", "dp-svrg", "--batch", "cyclic:5"],
            "--batch must be Poisson where steps follow snapshots",
        ),
        (
            ["--algorithm", "dp-svrg", "--secure-noise"],
            "--algorithm must not be dp-svrg with secure_noise",
        ),
        (["--algorithm", "adam"], "--algorithm must be one of"),
        (["--batch", "cyclic:5"], "--batch needs an algorithm"),
        (["--prox", "l1:0.1"], "--prox needs an algorithm"),
        (["--cap", "0.1"], "--cap needs an algorithm"),
        (["--algorithm", "permuted-sgd", "--cap", "1.5"], "--cap must lie between"),
        (["--algorithm", "noisy-gd", "--prox", "l1"], "--prox must be"),
        (["--algorithm", "noisy-gd", "--prox", "elastic-net:1"], "--prox must be"),
        (["--algorithm", "noisy-gd", "--prox", "l1:-1"], "--prox must be a finite number > 0"),
        (["--algorithm", "noisy-gd", "--batch", "cyclic:9999"], "--batch cannot exceed n"),
    ],
)
def test_bad_flags_are_one_sentence_and_write_nothing(flags, word, tmp_path):
    out = tmp_path / "model"
    found = called("train", "wine", "--epsilon", 1, *flags, "--out", out)
    assert found.exit_code == 2 and word in found.stderr and not out.exists()


def test_account_knows_proximal_terms():
    flags = ["--n", 1000, "--steps", 100, "--step-size", 0.5, "--noise-multiplier", 5, "--clip", 1, "--batch",
             "cyclic:100", "--delta", 1e-5]  # fmt: skip
    plain, l1 = (called("account", *flags, *more, "--json") for more in ([], ["--prox", "l1:0.1"]))
    assert plain.exit_code == l1.exit_code == 0
    one, two = json.loads(plain.output), json.loads(l1.output)
    assert one["epsilon"] == two["epsilon"] and two["run"]["prox"] == {"type": "L1", "weight": 0.1}


def test_steps_relative_to_a_smoothness_need_its_measurement():
    found = called(
        "account",
        "--n",
        100,
        "--steps",
        10,
        "--lipschitz",
        1,
        "--smooth",
        1,
        "--noise-std",
        1,
        "--step-size",
        "relative:1.9",
        "--trust-constants",
    )
    assert found.exit_code == 2 and "needs a TopEigenvalue" in " ".join(found.output.split())


def test_a_noisy_accuracy_of_a_number_names_its_own_option(tmp_path):
    asked = ["--epsilon", 1, "--report-accuracy", 0.1, "--out", tmp_path / "m"]
    found = called("train", "diabetes", *asked)
    assert found.exit_code == 2 and not (tmp_path / "m").exists()
    said = " ".join(found.stderr.split())
    assert "--report-accuracy is for classes, and this target is a number, got 0.1; leave" in said

"""The command line from end to end, on real files and on bad ones."""

import csv
import io
import json
import shutil
import subprocess
import sys

import numpy as np
import pytest

import lastiterate as li
from lastiterate.accounting.certificate_json import content_hash
from lastiterate.data import load_bundled
from lastiterate.engine.trainer import Trainer
from lastiterate.release import folder as artefact
from lastiterate.report.execution_section import execution
from lastiterate.report.exports import model_card
from lastiterate.report.subject import read as read_report_source
from support import call

RUN = [
    "--n",
    "5000",
    "--steps",
    "100",
    "--step-size",
    "0.02",
    "--sigma",
    "0.02",
    "--sensitivity",
    "4",
    "--smooth",
    "4",
    "--strong",
    "1",
]


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """A csv file with a schema, from the breast cancer set's first five columns."""
    folder = tmp_path_factory.mktemp("data")
    found, schema = load_bundled("breast_cancer")
    with (folder / "t.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["a", "b", "c", "d", "e", "sick"])
        writer.writerows(
            [*row[:5], ["yes", "no"][label]]
            for row, label in zip(found.array, found.answers, strict=True)
        )
    text = 'target = "sick"\nclasses = ["no", "yes"]\nsource = "published"\n'
    for name, column in zip("abcde", schema.columns, strict=False):
        text += f'[columns.{name}]\nkind = "number"\nlow = {column.low}\nhigh = {column.high}\n'
    (folder / "s.toml").write_text(text)
    return folder


@pytest.fixture(scope="module")
def model(table):
    code, out, _ = call(
        "train",
        table / "t.csv",
        "--schema",
        table / "s.toml",
        "--epsilon",
        "4",
        "--out",
        table / "model",
    )
    assert code == 0 and "epsilon 4" in out and "replace-one" in out
    said = " ".join(out.replace("│", " ").split())
    assert "every step counts in full, as if all iterates were published; certified is" in said
    assert (
        "iterates, gradients, noise, seed stay secret" in said and "could be published" not in said
    )
    hint = "accuracy was not measured, and a rare class may never be predicted: --test FILE"
    shows = "--test-is-public shows it; --class-weight or --threshold may help"
    assert f"rare classes {hint} {shows}" in said
    assert "test accuracy" not in out, "nothing about the user's own data is shown"
    return table / "model"


def test_a_threshold_is_a_public_choice_and_ids_stand_beside_predictions(model, table):
    plain, low = (
        list(
            csv.DictReader(
                io.StringIO(call("predict", model, table / "t.csv", "--ids", "a", *more)[1])
            )
        )
        for more in ((), ("--threshold", "0.1"))
    )
    given = [row["a"] for row in csv.DictReader((table / "t.csv").open())]
    assert list(low[0]) == ["a", "prediction", "probability_no", "probability_yes"]
    assert [row["a"] for row in low] == given
    assert [row["prediction"] for row in low] == [
        "yes" if float(row["probability_yes"]) >= 0.1 else "no" for row in low
    ]
    assert [row["prediction"] for row in low] != [row["prediction"] for row in plain]
    code, out, _ = call("predict", model, table / "t.csv", "--ids", "a", "--json")
    first = json.loads(out)[0]
    assert code == 0 and first["a"] == given[0] and isinstance(first["probability_yes"], float)
    assert (
        call("predict", model, table / "t.csv", "--ids", "a", "--json", "--probabilities")[1] == out
    )
    for wrong, words in (
        (("--threshold", "1.5"), "--threshold must lie between"),
        (("--ids", "nobody"), "--ids must be"),
    ):
        code, _, err = call("predict", model, table / "t.csv", *wrong)
        assert code == 2 and words in " ".join(err.split())


def test_costs_are_told_as_a_probability_and_refused_for_scores_that_only_rank(
    model, table, tmp_path
):
    code, out, err = call("predict", model, table / "t.csv", "--threshold", "1:9")
    assert code == 0 and "costs 1:9: yes from probability 0.1 on, else no" in " ".join(err.split())
    assert out == call("predict", model, table / "t.csv", "--threshold", "0.1")[1]
    assert call("predict", model, table / "t.csv", "--threshold", "0.1")[2] == ""
    asked = ["train", table / "t.csv", "--schema", table / "s.toml", "--epsilon", "4"]
    ranks = tmp_path / "ranks"
    words = "must be one number here: costs (a false alarm 1, a miss 9) speak of calibrated"
    for flags, remedy in (
        (("--algorithm", "forgetting-sgd"), "use --algorithm automatic"),
        (("--no-calibrated",), "use --calibrated"),
    ):
        code, _, err = call(*asked, *flags, "--threshold", "1:9", "--out", ranks)
        assert code == 2 and f"--threshold {words}" in " ".join(err.split())
        assert f"{remedy}, or state --threshold 0.1, a place" in " ".join(err.split())
        assert not ranks.exists()
    assert call(*asked, *flags, "--threshold", "0.1", "--out", ranks)[0] == 0
    code, out, err = call("predict", ranks, table / "t.csv", "--threshold", "1:9")
    assert code == 2 and out == "" and words in " ".join(err.split())
    assert "nothing more; state --threshold 0.1, a place" in " ".join(err.split())
    assert call("predict", ranks, table / "t.csv", "--threshold", "0.1")[0] == 0


def test_weights_and_a_threshold_are_asked_for_once_and_kept(table, tmp_path):
    """The folder's threshold is used without being named again; an id of the schema stands beside
    predictions."""
    text = (
        (table / "s.toml")
        .read_text()
        .replace('[columns.a]\nkind = "number"', '[columns.a]\nkind = "id"\n#')
    )
    text = "\n".join(line for line in text.split("\n") if not line.startswith("#"))
    lines = text.split("[columns.b]")[0].split("[columns.a]")
    schema = lines[0] + '[columns.a]\nkind = "id"\n[columns.b]' + text.split("[columns.b]")[1]
    (tmp_path / "s.toml").write_text(schema)
    options = [
        "train",
        table / "t.csv",
        "--schema",
        tmp_path / "s.toml",
        "--epsilon",
        "4",
        "--algorithm",
        "noisy-gd",
    ]
    weights = "--class-weight", "no=1,yes=3"
    with pytest.warns(UserWarning, match="both move predictions to one class"):
        code, _, err = call(*options, *weights, "--threshold", "1:9", "--out", tmp_path / "m")
    assert code == 2 and "state --threshold 0.25, " in " ".join(err.split())
    with pytest.warns(UserWarning, match="both move predictions to one class"):
        code, out, _ = call(*options, *weights, "--threshold", "0.1", "--out", tmp_path / "m")
    assert code == 0 and "no 0.3333, yes 1 (scaled so that" in " ".join(out.split())
    run = json.loads((tmp_path / "m" / "model.json").read_text())["run"]
    assert run["loss"]["class_weights"] == [1 / 3, 1.0]
    subject = read_report_source(tmp_path / "m")
    card = model_card(subject)["README.md"]
    assert "- class weights in training: no: 0.333333, yes: 1\n- predicts: yes from " in card
    assert '- "tabular"\n' in card
    assert "<td>no: 0.333333, yes: 1</td>" in execution(subject)
    rows = list(csv.DictReader(io.StringIO(call("predict", tmp_path / "m", table / "t.csv")[1])))
    assert list(rows[0]) == ["a", "prediction", "probability_no", "probability_yes"]
    assert [row["prediction"] for row in rows] == [
        "yes" if float(row["probability_yes"]) >= 0.1 else "no" for row in rows
    ]
    half = list(
        csv.DictReader(
            io.StringIO(call("predict", tmp_path / "m", table / "t.csv", "--threshold", "0.5")[1])
        )
    )
    assert [row["prediction"] for row in rows] != [row["prediction"] for row in half]
    for wrong, words in (
        (("--class-weight", "balanced"), "--class-weight must be LABEL=WEIGHT"),
        (("--class-weight", "yes=5"), "and has none for 'no'; give it 1 to count it as it is"),
        (("--class-weight", "yes=5,No=1"), "none for anything else, got 'No'; the classes are no"),
        (("--class-weight", "yes=0,no=1"), "got {'no': 1.0, 'yes': 0.0}"),
        (("--class-weight", "no=1,yes=x"), "--class-weight must be a finite number"),
        (("--threshold", "1:2:3"), "--threshold must be a finite number"),
        (("--threshold", "0"), "--threshold must lie between"),
    ):
        code, _, err = call(*options, *wrong, "--out", tmp_path / "bad")
        assert code == 2 and words in " ".join(err.split()) and not (tmp_path / "bad").exists()


def test_predict(model, table):
    code, out, _ = call("predict", model, table / "t.csv")
    rows = list(csv.DictReader(io.StringIO(out)))
    truth = [row["sick"] for row in csv.DictReader((table / "t.csv").open())]
    assert code == 0 and len(rows) == len(truth)
    assert (
        np.mean([row["prediction"] == label for row, label in zip(rows, truth, strict=True)]) > 0.8
    )
    assert all(
        abs(float(r["probability_no"]) + float(r["probability_yes"]) - 1) < 1e-5 for r in rows
    )
    assert sorted(p.name for p in model.iterdir()) == [
        "certificate.json",
        "manifest.json",
        "model.json",
        "report.html",
        "weights.safetensors",
    ]


def test_public_test_file(table, tmp_path):
    train = [
        "train",
        table / "t.csv",
        "--schema",
        table / "s.toml",
        "--epsilon",
        "4",
        "--test",
        table / "t.csv",
    ]
    code, _, err = call(*train, "--out", tmp_path / "m")
    assert code == 2 and "--test-is-public" in err and not (tmp_path / "m").exists()
    code, out, _ = call(*train, "--test-is-public", "--out", tmp_path / "m")
    assert code == 0 and "test accuracy" in out
    code, _, err = call(*train[:-2], "--test-is-public", "--out", tmp_path / "other")
    said = " ".join(err.replace("│", " ").split())
    assert code == 2 and not (tmp_path / "other").exists()
    assert "--test-is-public speaks of a test file, and none is given; name it with --test" in said


@pytest.mark.parametrize("delta", ["0.5", "0.7", "1", "0", "nan", "x"])
def test_a_delta_is_refused_once_for_all(table, tmp_path, delta):
    asked = ("--schema", table / "s.toml", "--epsilon", "4", "--delta", delta)
    code, _, err = call("train", table / "t.csv", *asked, "--out", tmp_path / "m")
    said = " ".join(err.replace("│", " ").split())
    assert code == 2 and "--delta must be auto or a number above 0 and below 0.5" in said


def edit(path, **change):
    body = json.loads(path.read_text())
    for key, value in change.items():
        target = body
        *way, last = key.split("__")
        for step in way:
            target = target[step]
        target[last] = value
    body["content_sha256"] = content_hash(body)  # a forger would do the same
    path.write_text(json.dumps(body))


@pytest.mark.parametrize(
    "forge",
    [
        lambda m: (m / "weights.safetensors").write_bytes(
            (m / "weights.safetensors").read_bytes()[:-1] + b"\x01"
        ),
        lambda m: (m / "weights.safetensors").unlink(),
        lambda m: (m / "model.json").write_text(
            (m / "model.json").read_text().replace('"no"', '"nope"')
        ),
        lambda m: edit(m / "certificate.json", epsilon=3.0),
        lambda m: edit(m / "certificate.json", delta=1e-9),
        lambda m: edit(m / "certificate.json", run__steps=3),
        lambda m: edit(m / "certificate.json", run__noise__z=50.0),
        lambda m: edit(m / "certificate.json", theorem="langevin-lsi"),
        lambda m: edit(m / "certificate.json", caveats=[]),
        lambda m: edit(m / "certificate.json", epsilon_replace_one=4.0),
        lambda m: edit(
            m / "certificate.json", epsilon=float("-inf"), epsilon_replace_one=float("-inf")
        ),
        lambda m: edit(m / "certificate.json", epsilon_at_least=float("inf")),
        lambda m: edit(m / "certificate.json", verdicts=[]),
        lambda m: edit(m / "certificate.json", signed_by="an authority"),
        lambda m: edit(m / "certificate.json", format=99),
        lambda m: edit(m / "certificate.json", delta="1e-5"),
        lambda m: edit(
            m / "certificate.json",
            caveats="".join(json.loads((m / "certificate.json").read_text())["caveats"]),
        ),
        lambda m: (m / "certificate.json").write_text(
            (m / "certificate.json").read_text().replace('"library"', '"libary"')
        ),
    ],
    ids=range(18),
)
def test_verify_finds_every_forgery(model, tmp_path, forge):
    copy = tmp_path / "m"
    shutil.copytree(model, copy)
    assert call("verify", copy)[0] == 0 and call("verify", copy / "certificate.json")[0] == 0
    forge(copy)
    code, out, _ = call("verify", copy)
    assert (code == 1 and "does not hold" in out) or code == 2, (
        "2 where the edited run contradicts itself"
    )


@pytest.mark.parametrize("text", ["", "{", "[]", '{"run": {}}', '{"epsilon": 1}'])
def test_verify_refuses_damaged_certificates(model, tmp_path, text):
    copy = tmp_path / "m"
    shutil.copytree(model, copy)
    (copy / "certificate.json").write_text(text)
    code, _, err = call("verify", copy)
    assert code == 2 and err.startswith("error:")


def test_nothing_is_half_written(table, tmp_path, monkeypatch):
    def broken(*args, **kwargs):
        raise OSError(28, "disk full", str(args[0]))

    monkeypatch.setattr(artefact.os, "rename", broken)
    train = ["train", table / "t.csv", "--schema", table / "s.toml", "--epsilon", "4"]
    code, _, err = call(*train, "--out", tmp_path / "m")
    assert code == 2 and "disk full; nothing was released" in err
    assert not list(tmp_path.iterdir())


def test_bundled_set_shows_both_accuracies(tmp_path):
    code, out, _ = call(
        "train", "iris", "--epsilon", "3", "--algorithm", "noisy-gd", "--out", tmp_path / "m"
    )
    assert code == 0 and "public data (0." in out
    assert call("train", "iris", "--epsilon", "3", "--out", tmp_path / "m")[0] == 2, (
        "never replaces a model"
    )
    code, out, _ = call(
        "train",
        "diabetes",
        "--epsilon",
        "3",
        "--model",
        "huber-ridge",
        "--algorithm",
        "noisy-gd",
        "--out",
        tmp_path / "r",
    )
    assert code == 0 and "R^2" in out
    assert call("verify", tmp_path / "r")[0] == 0
    code, _, err = call("predict", tmp_path / "r", "new.csv", "--probabilities")
    assert code == 2 and "--probabilities are those of classes" in err


def test_account_json_and_text():
    code, out, _ = call("account", *RUN, "--json", "--trust-constants")
    body = json.loads(out)
    assert (
        code == 0 and body["theorem"] == "shifted-interpolation" and body["evidence"] == "ASSUMED"
    )
    assert body["epsilon_at_least"] <= body["epsilon"] <= body["epsilon_replace_one"]
    assert {
        "epsilon",
        "delta",
        "adjacency",
        "theorem",
        "evidence",
        "verdicts",
        "run",
        "caveats",
    } <= set(body)
    assert {"theorem", "kind", "applies", "epsilon", "evidence", "reasons"} == set(
        body["verdicts"][0]
    )
    assert any("conditional on" in text for text in body["caveats"])
    code, out, _ = call("account", *RUN, "--json")
    assert code == 1 and json.loads(out)["epsilon"] is None, (
        "constants given as flags are not enough by themselves"
    )
    code, out, _ = call("account", *RUN)
    assert code == 1 and "--trust-constants" in out


def test_run_files(tmp_path):
    out = json.loads(call("account", *RUN, "--json", "--trust-constants")[1])
    (tmp_path / "run.json").write_text(json.dumps(out["run"]))
    again = json.loads(call("account", tmp_path / "run.json", "--json", "--trust-constants")[1])
    assert again["epsilon"] == out["epsilon"]
    assert call("account", tmp_path / "run.json", "--n", "3")[0] == 2
    (tmp_path / "run.json").write_text(json.dumps(out))
    code, _, err = call("account", tmp_path / "run.json")
    assert code == 2 and "this is a certificate" in err and "verify" in err
    (tmp_path / "run.json").write_bytes(b"\xff")
    assert call("account", tmp_path / "run.json")[0] == 2


FLAGS = [
    ["--batch", "cyclic:500"],
    ["--batch", "permuted:500"],
    ["--batch", "fixed:500"],
    ["--batch", "bins:500"],
    ["--batch", "poisson:0.1", "--adjacency", "add-remove"],
    ["--start", "gaussian:0.0282842712474619"],
    ["--radius", "1"],
    ["--clip", "1"],
    ["--momentum", "nesterov"],
    ["--momentum", "heavy-ball:0.9"],
    ["--release", "all"],
    ["--adjacency", "replace-one"],
    ["--lipschitz", "2"],
    ["--log-sobolev", "5"],
]


@pytest.mark.parametrize("flags", FLAGS, ids=" ".join)
def test_every_flag(flags):
    code, out, _ = call("account", *RUN, *flags, "--trust-constants", "--json")
    assert code == 0 and json.loads(out)["epsilon"] > 0


def test_other_descriptions(tmp_path):
    (tmp_path / "steps.txt").write_text("\n".join(["0.1"] * 10))
    for flags in (
        ["--step-size", f"@{tmp_path / 'steps.txt'}", "--noise-std", "0.1"],
        [
            "--step-size",
            "inverse-decay:2,0.1",
            "--noise-multiplier",
            "3",
            "--weak-convexity",
            "0.1",
        ],
    ):
        code, out, _ = call(
            "account",
            "--n",
            "100",
            "--steps",
            "10",
            "--lipschitz",
            "1",
            "--smooth",
            "1",
            *flags,
            "--trust-constants",
            "--json",
        )
        assert code == 0 and json.loads(out)["epsilon"] > 0


def test_calibrate():
    base = [
        "calibrate",
        "--n",
        "6000",
        "--step-size",
        "0.5",
        "--lipschitz",
        "1",
        "--smooth",
        "1",
        "--strong",
        "0",
        "--batch",
        "permuted:300",
        "--epsilon",
        "1",
        "--delta",
        "1e-6",
        "--trust-constants",
        "--json",
    ]
    body = json.loads(call(*base, "--steps", "1000", "--noise-multiplier", "1")[1])
    assert 0.999 < body["epsilon"] <= 1 and body["run"]["noise"]["z"] == pytest.approx(
        7.0, abs=0.01
    )
    more = json.loads(
        call(*base, "--steps", "1", "--noise-multiplier", "10", "--field", "steps")[1]
    )
    assert more["epsilon"] <= 1 and more["run"]["steps"] > 1500
    code, _, err = call(
        "calibrate", "--n", "6", "--steps", "3", "--step-size", "1", "--epsilon", "1"
    )
    assert code == 2 and "no theorem certifies this run" in err and "--clip" in err


def test_plot(tmp_path):
    code, _, _ = call("account", *RUN, "--trust-constants", "--plot", tmp_path / "e.png")
    assert code == 0 and (tmp_path / "e.png").read_bytes()[:4] == b"\x89PNG"
    assert call("account", *RUN, "--plot", tmp_path / "e.txt")[0] == 2


def test_theorems():
    code, out, _ = call("theorems")
    assert code == 0 and "composition-gdp" in out.replace("\n", "")
    code, out, _ = call("theorems", "langevin-strongly-convex")
    out = " ".join(out.split())
    assert code == 0 and "Corollary 1" in out and "exp(-lambda eta K / 2)" in out
    assert "Regime:" in " ".join(call("theorems", "bounded-domain-convex")[1].split())
    assert "the library dp-accounting" in call("theorems", "poisson-pld")[1].replace("\n", " ")
    assert call("theorems", "nonsense")[0] == 2


def test_a_run_that_nothing_certifies(tmp_path):
    sgld = [
        "--n",
        "500",
        "--steps",
        "9",
        "--step-size",
        "0.1",
        "--sigma",
        "0.1",
        "--smooth",
        "1",
        "--strong",
        "0",
    ]
    code, out, _ = call("account", *sgld, "--trust-constants")
    out = " ".join(out.split())
    assert (
        code == 1
        and out.count("Heller and Fetaya 2023") == 1
        and "release a sample of the exact posterior" in out
    )
    assert "epsilon -" not in out and "does not apply" not in out
    body = json.loads(call("account", *sgld, "--trust-constants", "--json")[1])
    assert body["epsilon"] is None and "Heller" in body["verdicts"][0]["reasons"][0]
    for delta in ("0", "1", "2", "nan"):
        for more in ([], ["--json"]):
            code, _, err = call("account", *sgld, "--delta", delta, *more)
            assert code == 2 and "delta must lie strictly between 0 and 1" in err


def test_picture_of_a_theorem(tmp_path):
    code, out, _ = call("theorems", "pabi-convex", "--plot", tmp_path / "t.png")
    assert code == 0 and (tmp_path / "t.png").read_bytes()[:4] == b"\x89PNG"
    run = json.loads(out[out.index("{") :])
    (tmp_path / "run.json").write_text(json.dumps(run))
    body = json.loads(call("account", tmp_path / "run.json", "--trust-constants", "--json")[1])
    assert any(v["theorem"] == "pabi-convex" and v["applies"] for v in body["verdicts"]), (
        "the run that is shown"
    )
    code, _, err = call("theorems", "--plot", tmp_path / "u.png")
    assert code == 2 and "name of a theorem" in err and not (tmp_path / "u.png").exists()


@pytest.mark.parametrize(
    "args, word",
    [
        (["train", "t.csv", "--epsilon", "1"], "lastiterate schema"),
        (["train", "digits", "--epsilon", "0"], "epsilon"),
        (["train", "digits", "--epsilon", "1", "--delta", "2"], "--delta"),
        (["train", "none.csv", "--epsilon", "1"], "existing"),
        (["train", "x.parquet", "--epsilon", "1"], "existing"),
        (["schema", "none.csv"], "existing"),
        (["train", "digits", "--epsilon", "1", "--model", "huber-ridge"], "--model"),
        (
            ["train", "digits", "--epsilon", "1", "--test", "t.csv", "--test-is-public"],
            "kept for testing",
        ),
        (["predict", "nowhere", "t.csv"], "model"),
        (["verify", "nowhere"], "existing"),
        (["account", "--n", "10"], "--steps"),
        (["account", "--n", "x", "--steps", "1", "--step-size", "1"], "--n"),
        (
            ["account", "--n", "9", "--steps", "ten", "--step-size", "1"],
            "--steps must be an integer",
        ),
        (["account", *RUN, "--batch", "weekly"], "--batch"),
        (["account", *RUN, "--noise-std", "1"], "noise"),
        (["account", *RUN, "--start", "warm"], "--start"),
        (["account", *RUN, "--delta", "1"], "delta"),
        (["account", *RUN, "--step-size", "-1"], "--step-size"),
        (["account", *RUN, "--momentum", "big"], "--momentum"),
        (["calibrate", *RUN, "--epsilon", "-1"], "epsilon"),
        (["account", "none.json"], "existing"),
        (
            ["train", "digits", "--epsilon", "1", "--devices", "0"],
            "--devices must be a positive integer, got 0",
        ),
        (
            ["train", "digits", "--epsilon", "1", "--checkpoint-every", "nan"],
            "--checkpoint-every must be a number of",
        ),
        (
            ["train", "digits", "--epsilon", "1", "--statement", "none.toml"],
            "--statement must be an existing file",
        ),
        (["tune", "digits", "--epsilon", "1", "--mean-runs", "0"], "--mean-runs must exceed 1"),
        (
            ["tune", "t.csv", "--epsilon", "1", "--unit", "id", "--rows-per-unit", "7"],
            "--rows-per-unit must be 1 for tune, whose scores count one row of each person, got 7",
        ),
        (["tune", "digits", "--epsilon", "1", "--algorithms", "zz"], "--algorithms must be one of"),
        (
            ["tune", "digits", "--epsilon", "1", "--row-norms", "0,1"],
            "--row-norms must be a positive number",
        ),
        (
            ["tune", "digits", "--epsilon", "-1"],
            "--epsilon must be a positive number, at most 1000, got -1",
        ),
        (
            ["tune", "digits", "--epsilon", "1"],
            "candidates must be at least two different ones, got 1; give --row-norms 0.5,1,2, several",
        ),
        (
            ["tune", "digits", "--epsilon", "1", "--row-norms", "1,1"],
            "candidates must be at least two different ones, got 1",
        ),
        (["sign", "nowhere", "--key", "none"], "model must be a folder that train wrote"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(table, tmp_path, monkeypatch, args, word):
    shutil.copy(table / "t.csv", tmp_path)
    monkeypatch.chdir(tmp_path)
    code, _, err = call(*args)
    assert code == 2 and word in err and "Traceback" not in err and "training" not in err
    assert [p.name for p in tmp_path.iterdir()] == ["t.csv"]


@pytest.mark.parametrize(
    ("args", "word"),
    [
        (["--seed", "-1"], "--seed must be an integer"),
        (["--law", "--seed", "-1"], "--seed must be an integer"),
        (["--plot", "none/x.png"], "--plot must lie in an existing folder"),
        (["--results", "none/x"], "--results must lie in an existing folder"),
    ],
)
def test_an_audit_is_refused_before_any_model_is_trained(tmp_path, monkeypatch, args, word):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Trainer, "fit_many", lambda *_, **__: pytest.fail("models were trained"))
    (tmp_path / "run.json").write_text(
        li.Run(
            n=20, steps=2, step_size=0.1, noise=li.GradientNoise(5.0), loss=li.Logistic()
        ).to_json()
    )
    code, _, err = call("audit", "run.json", *args)
    assert (
        code == 2
        and err.startswith(f"error: {word}")
        and [p.name for p in tmp_path.iterdir()] == ["run.json"]
    )


def test_bounds_of_0_are_reported_without_a_picture(tmp_path):
    """A logarithmic axis has no place for them."""
    run = li.Run(n=60, steps=64, step_size=0.1, noise=li.GradientNoise(1e30), loss=li.Logistic())
    (tmp_path / "run.json").write_text(run.to_json())
    code, _, err = call("report", tmp_path / "run.json", "--out", tmp_path / "r.html")
    assert code == 0 and "0 in double precision" in (tmp_path / "r.html").read_text(), err


def test_the_package_runs_as_a_module():
    done = subprocess.run(
        [sys.executable, "-m", "lastiterate", "theorems"], capture_output=True, text=True
    )
    assert done.returncode == 0 and "composition-gdp" in done.stdout, done.stderr


def test_cards_have_at_most_15_lines(tmp_path):
    """The first line is the answer; the frame is not counted."""
    code, out, _ = call("train", "digits", "--epsilon", "1", "--out", tmp_path / "m")
    lines = [line for line in out.splitlines() if line.startswith("│")]
    assert code == 0 and 10 < len(lines) <= 15 and "epsilon" in lines[0]
    described = ("--n", "1000", "--batch", "allocation:100", "--steps", "100", "--step-size", ".5")
    code, out, _ = call("account", *described, "--noise-multiplier", "2", "--clip", "1")
    assert code == 0 and len(out.splitlines()) <= 15 and out.startswith("epsilon 2.169 at delta")

"""What leaves for registries, hubs and checkers: read back by their own readers, and never a record in it."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest
import yaml
from huggingface_hub import ModelCard
from typer.testing import CliRunner

import lastiterate as li
from lastiterate import cli
from lastiterate.accounting.cite import entry
from lastiterate.data.schema import Schema
from lastiterate.report import exports
from lastiterate.report.subject import read
from lastiterate.report.yaml_text import dump
from lastiterate.theorems import TABLE

HOSTILE = 'a: b\n---\n"quote" \\ # !tag *x &y {z} \u2028\u0085\x07 <script> yes'
SECRET = 0.731728315
AUDIT = {"attack": "projection", "trials": 2000, "failure": 0.05, "delta": 1e-5, "lower": 0.4, "ceiling": 5.5,
         "refuted": False, "verdict": "no contradiction", "rates": [{"fpr_upper": 0.2, "fnr_upper": 0.7}]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    rng = np.random.default_rng(0)
    x = np.append(rng.normal(size=(59, 3)), [[SECRET] * 3], axis=0)
    run = li.Run(n=60, steps=20, step_size=0.5, noise=li.NoiseMultiplier(12.0), loss=li.Logistic(ridge=0.05))
    schema = Schema.from_dict({"target": "y", "classes": ["no", "yes"], "source": "manual", "columns": {
        "a": {"kind": "number", "low": 0, "high": 1}, "id": {"kind": "ignore"},
        HOSTILE: {"kind": "category", "values": ["p", "q"]}}})
    model = li.train(run, (x, rng.integers(0, 2, 60)), delta=1e-5, statement={"purpose": HOSTILE, "contact": "dpo"})
    where = replace(model, schema=schema).save(tmp_path_factory.mktemp("e") / "m")
    (where / "audit.json").write_text(json.dumps(AUDIT))
    return where


def made(folder, form):
    return exports.FORMATS[form](read(folder))


def body_of(folder):
    return json.loads((folder / "certificate.json").read_text())


@pytest.mark.parametrize("form", list(exports.FORMATS))
def test_no_record_and_no_weight_is_exported(folder, form):
    from safetensors.numpy import load

    text = "".join(made(folder, form).values())
    weights = load((folder / "weights.safetensors").read_bytes())["weights"].ravel()
    assert str(SECRET)[:8] not in text and not any(f"{value:.5f}"[:7] in text for value in np.abs(weights))


def test_the_model_card_is_read_by_its_hub(folder):
    text = made(folder, "model-card")["README.md"]
    card, body = ModelCard(text), body_of(folder)
    found = card.data.to_dict()
    assert found["differential_privacy"] == {"epsilon": body["epsilon"], "delta": 1e-5, "adjacency": "zero-out",
                                             "certificate_sha256": body["content_sha256"]}
    assert found["library_name"] == "lastiterate" and "<script>" not in card.text
    assert "of 100 times instead of 50" in card.text and card.text.count("\n# ") + card.text.startswith("# ") <= 2
    assert "(the releaser's statement)" in card.text


def test_the_registrys_entry_has_its_third_tier(folder):
    found, body = yaml.safe_load(made(folder, "registry")["deployment.yaml"]), body_of(folder)
    deployment = found["deployment"]
    assert found["tier"] == 3 and set(deployment) == {"product", "dp_flavor", "privacy_loss", "model", "accounting",
                                                      "implementation", "resources"}
    assert deployment["privacy_loss"]["privacy_parameters"] == {"epsilon": body["epsilon"], "delta": 1e-5}
    assert deployment["dp_flavor"]["name"] == "Approximate DP"
    assert HOSTILE.split("\u2028")[0] in deployment["product"]["intended_use"]


def test_the_attestation_binds_the_weights_to_the_certificate(folder):
    import hashlib

    found = json.loads(made(folder, "scai")["scai.json"])
    digests = {one["name"]: one["digest"]["sha256"] for one in found["subject"]}
    for name in ("weights.safetensors", "model.json"):
        assert digests[name] == hashlib.sha256((folder / name).read_bytes()).hexdigest()
    assert found["_type"] == "https://in-toto.io/Statement/v1"
    assert found["predicateType"] == "https://in-toto.io/attestation/scai/v0.3"
    private, audited = found["predicate"]["attributes"]
    assert private["evidence"]["digest"]["sha256"] == hashlib.sha256((folder / "certificate.json").read_bytes()
                                                                     ).hexdigest()
    assert private["conditions"]["epsilon"] == body_of(folder)["epsilon"] and audited["conditions"]["lower"] == 0.4


def test_the_output_checkers_folder(folder, tmp_path):
    done = CliRunner().invoke(cli.app, ["export", str(folder), "--format", "sacro", "--out", str(tmp_path / "s")])
    assert done.exit_code == 0 and sorted(p.name for p in (tmp_path / "s").iterdir()) == ["report.json", "target.yaml"]
    target = yaml.safe_load((tmp_path / "s" / "target.yaml").read_text())
    features = {int(key): value for key, value in target["features"].items()}
    assert [one["indices"] for one in features.values()] == [[0], [1, 2]] and features[1]["encoding"] == "onehot"
    assert target["X_train_path"] == target["proba_test_path"] == "" and np.isnan(target["generalisation_error"])
    report = json.loads((tmp_path / "s" / "report.json").read_text())
    assert report["metadata"]["global_metrics"]["lower"] == 0.4
    assert report["attack_experiment_logger"]["attack_instance_logger"]["instance_0"]["fpr_upper"] == 0.2


def test_references_are_those_of_the_theorems(folder):
    text = made(folder, "bibtex")["references.bib"]
    body = body_of(folder)
    assert f"@misc{{{body['theorem']}," in text and text.count("{") - text.count("\\{") == text.count("}") - text.count(
        "\\}")
    assert "author = {Bok and Su and Altschuler}" in text and "year = {2024}" in text
    for theorem in TABLE.values():
        made_of = entry(theorem.name, theorem.citation)
        assert made_of.startswith(f"@misc{{{theorem.name},\n") and "title = {" in made_of
    assert "author" not in entry("k", "this project, docs/theorems/x (on A, B: C 2020)")


@pytest.mark.parametrize(
    "value",
    [
        1e-5,
        1.0,
        1e300,
        123456.789,
        5,
        True,
        None,
        "yes",
        "1e-5",
        "null",
        "- a",
        "",
        HOSTILE,
        "\u00e9\U0001f600",
        [],
        {},
        ["a", {"b": [1, 2]}],
        {"x y": {"z": "w"}},
    ],
)
def test_yaml_reads_back(value):
    again = yaml.safe_load(dump({"k": value}))["k"]
    wanted = value if not isinstance(value, str) else re.sub("[\u2028\x07]", "\N{REPLACEMENT CHARACTER}", value)
    assert again == wanted and type(again) is type(wanted)


def test_what_does_not_verify_is_not_exported(folder, tmp_path):
    import shutil

    copy = shutil.copytree(folder, tmp_path / "c")
    (copy / "model.json").write_text((copy / "model.json").read_text() + " ")
    for arguments, said in ((["--format", "scai"], "must verify"), (["--format", "pdf"], "--format must be one of")):
        done = CliRunner().invoke(cli.app, ["export", str(copy), *arguments])
        assert done.exit_code == 2 and said in done.output
    done = CliRunner().invoke(cli.app, ["export", str(folder), "--format", "sacro"])
    assert done.exit_code == 2 and "--out is needed" in done.output

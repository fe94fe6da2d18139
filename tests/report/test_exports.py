"""What leaves for registries, hubs and checkers: read back by their own readers, and never a record
in it."""

import json
import re
import tomllib
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import yaml
from huggingface_hub import ModelCard
from typer.testing import CliRunner

import lastiterate as li
from lastiterate import cli
from lastiterate.accounting import certificate_json
from lastiterate.accounting.certificate_json import entry
from lastiterate.accounting.certificate_subject import RECORD, format_rounded_up
from lastiterate.data.schema import Schema
from lastiterate.ledger.quote import Quote
from lastiterate.release.folder import HASHES
from lastiterate.report import exports, guideline_sheets
from lastiterate.report.exports import dump
from lastiterate.report.subject import read
from lastiterate.theorems import TABLE

HOSTILE = 'a: b\n---\n"quote" \\ # !tag *x &y {z} \u2028\u0085\x07 <script> yes'
SECRET = 0.731728315
AUDIT = {
    "attack": "projection",
    "trials": 2000,
    "failure": 0.05,
    "delta": 1e-5,
    "lower": 0.4,
    "ceiling": 5.5,
    "refuted": False,
    "verdict": "no contradiction",
    "rates": [{"fpr_upper": 0.2, "fnr_upper": 0.7}],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    rng = np.random.default_rng(0)
    x = np.append(rng.normal(size=(59, 3)), [[SECRET] * 3], axis=0)
    run = li.Run(
        n=60, steps=20, step_size=0.5, noise=li.NoiseMultiplier(12.0), loss=li.Logistic(ridge=0.05)
    )
    schema = Schema.from_dict(
        {
            "target": "y",
            "classes": ["no", "yes"],
            "source": "manual",
            "columns": {
                "a": {"kind": "number", "low": 0, "high": 1},
                "id": {"kind": "ignore"},
                HOSTILE: {"kind": "category", "values": ["p", "q"]},
            },
        }
    )
    model = li.train(
        run,
        (x, rng.integers(0, 2, 60)),
        delta=1e-5,
        statement={"purpose": HOSTILE, "contact": "dpo"},
    )
    where = replace(model, schema=schema).save(tmp_path_factory.mktemp("e") / "m")
    (where / "audit.json").write_text(json.dumps(AUDIT))
    return where


def made(folder, form):
    return exports.FORMATS[form](read(folder))


def body_of(folder):
    return json.loads((folder / "certificate.json").read_text())


@pytest.mark.parametrize("form", list(exports.FORMATS))
def test_no_record_and_no_weight_to_its_last_digits_is_exported(folder, form):
    from safetensors.numpy import load

    text = "".join(made(folder, form).values())
    weights = load((folder / "weights.safetensors").read_bytes())["weights"].ravel()
    assert str(SECRET)[:8] not in text
    assert not any(
        np.format_float_positional(value, precision=6, fractional=False, trim="k") in text
        for value in np.abs(weights)
    )  # effects on a card have three digits


def test_the_model_card_is_read_by_its_hub(folder):
    text = made(folder, "model-card")["README.md"]
    card, body = ModelCard(text), body_of(folder)
    found = card.data.to_dict()
    assert found["differential_privacy"] == {
        "epsilon": body["epsilon"],
        "delta": 1e-5,
        "adjacency": "zero-out",
        "certificate_sha256": body["content_sha256"],
    }
    assert found["library_name"] == "lastiterate" and "<script>" not in card.text
    assert (
        "of 100 times instead of 50" in card.text
        and card.text.count("\n# ") + card.text.startswith("# ") <= 2
    )
    assert "(the releaser's statement)" in card.text


def test_the_registrys_entry_has_its_third_tier(folder):
    found, body = yaml.safe_load(made(folder, "registry")["deployment.yaml"]), body_of(folder)
    deployment = found["deployment"]
    assert found["tier"] == 3 and set(deployment) == {
        "product",
        "dp_flavor",
        "privacy_loss",
        "model",
        "accounting",
        "implementation",
        "resources",
    }
    assert deployment["privacy_loss"]["privacy_parameters"] == {
        "epsilon": body["epsilon"],
        "delta": 1e-5,
    }
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
    assert (
        private["evidence"]["digest"]["sha256"]
        == hashlib.sha256((folder / "certificate.json").read_bytes()).hexdigest()
    )
    assert (
        private["conditions"]["epsilon"] == body_of(folder)["epsilon"]
        and audited["conditions"]["lower"] == 0.4
    )


def test_the_output_checkers_folder(folder, tmp_path):
    done = CliRunner().invoke(
        cli.app, ["export", str(folder), "--format", "sacro", "--out", str(tmp_path / "s")]
    )
    assert done.exit_code == 0 and sorted(p.name for p in (tmp_path / "s").iterdir()) == [
        "report.json",
        "target.yaml",
    ]
    target = yaml.safe_load((tmp_path / "s" / "target.yaml").read_text())
    features = {int(key): value for key, value in target["features"].items()}
    assert [one["indices"] for one in features.values()] == [[0], [1, 2]] and features[1][
        "encoding"
    ] == "onehot"
    assert (
        target["X_train_path"] == target["proba_test_path"] == ""
        and "generalisation_error" not in target
    )
    report = json.loads((tmp_path / "s" / "report.json").read_text())
    assert report["metadata"]["global_metrics"]["lower"] == 0.4
    assert (
        report["attack_experiment_logger"]["attack_instance_logger"]["instance_0"]["fpr_upper"]
        == 0.2
    )


def test_references_are_those_of_the_theorems(folder):
    text = made(folder, "bibtex")["references.bib"]
    body = body_of(folder)
    assert f"@misc{{{body['theorem']}," in text and text.count("{") - text.count(
        "\\{"
    ) == text.count("}") - text.count("\\}")
    assert "author = {Bok and Su and Altschuler}" in text and "year = {2024}" in text
    for theorem in TABLE.values():
        made_of = entry(theorem.name, theorem.citation)
        assert made_of.startswith(f"@misc{{{theorem.name},\n") and "title = {" in made_of
    assert "author" not in entry("k", "this project, docs/theorems/x (on A, B: C 2020)")


def test_a_citation_cites(folder):
    root = Path(__file__).parents[2]
    text, stated = (
        made(folder, "bibtex")["references.bib"],
        yaml.safe_load((root / "CITATION.cff").read_text()),
    )
    declared = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    assert (
        f"author = {{{{{certificate_json.AUTHORS}}}}}" in text
        and f"year = {{{certificate_json.YEAR}}}" in text
    )
    assert f"version = {{{li.__version__}}}" in text
    assert (
        stated["title"] == certificate_json.TITLE
        and stated["authors"] == [{"name": certificate_json.AUTHORS}] == declared["authors"]
    )
    assert "version" not in stated and declared["dynamic"] == ["version"], "it has one place"
    assert stated["license"] == declared["license"]
    assert (
        stated["date-released"].year == certificate_json.YEAR and stated["cff-version"] == "1.2.0"
    )


def test_the_models_card_is_valid_cyclonedx(folder):
    """Against the official schema, where the package that carries it is installed."""
    from jsonschema import Draft7Validator
    from referencing import Registry, Resource

    found = json.loads(made(folder, "cyclonedx")["bom.cdx.json"])
    (model,) = found["components"]
    listed = {
        one["name"].removeprefix("lastiterate:"): one["value"]
        for one in model["modelCard"]["properties"]
    }
    assert (
        float(listed["epsilon"]) >= body_of(folder)["epsilon"] and listed["adjacency"] == "zero-out"
    )
    assert {one["content"] for one in model["hashes"]} == {
        body_of(folder)[name] for name in HASHES.values()
    }
    assert made(folder, "cyclonedx") == made(folder, "cyclonedx")
    place = find_spec("cyclonedx")
    if place is None:
        pytest.skip("cyclonedx-python-lib is not installed")
    home = Path(place.submodule_search_locations[0]) / "schema" / "_res"
    schemas = [
        json.loads((home / f"{name}.SNAPSHOT.schema.json").read_text())
        for name in ("bom-1.7", "jsf-0.82", "spdx", "cryptography-defs")
        if (home / f"{name}.SNAPSHOT.schema.json").is_file()
    ]
    registry = Registry().with_resources(
        [(one["$id"], Resource.from_contents(one)) for one in schemas]
    )
    validator = Draft7Validator(schemas[0], registry=registry)
    assert [error.message for error in validator.iter_errors(found)] == []
    model["modelCard"]["considerations"]["risk"] = "x"
    assert list(validator.iter_errors(found)), "an entry that the schema does not know is found"


def test_the_models_card_is_valid_spdx(folder):
    """Read by the classes that SPDX makes of its own shapes."""
    text = made(folder, "spdx")["model.spdx.json"]
    found = {each["type"]: each for each in json.loads(text)["@graph"]}
    listed = {one["key"]: one["value"] for one in found["ai_AIPackage"]["ai_hyperparameter"]}
    assert float(listed["epsilon"]) >= body_of(folder)["epsilon"]
    spdx = pytest.importorskip("spdx_python_model").v3_0_1
    objects = spdx.SHACLObjectSet()
    spdx.JSONLDDeserializer().deserialize_data(json.loads(text), objects)
    (package,) = objects.foreach_type("ai_AIPackage")
    assert package.software_primaryPurpose.endswith("model") and len(package.verifiedUsing) == 2
    assert not [
        link for link in objects.missing_ids if not str(link).startswith("https://spdx.org/")
    ]
    wrong = json.loads(text)
    next(each for each in wrong["@graph"] if each["type"] == "ai_AIPackage")["ai_autonomyType"] = (
        "perhaps"
    )
    with pytest.raises((ValueError, TypeError)):
        spdx.JSONLDDeserializer().deserialize_data(wrong, spdx.SHACLObjectSet())


@pytest.mark.parametrize(
    "form, rows",
    [
        ("nist", guideline_sheets.NIST),
        ("edpb", guideline_sheets.EDPB),
        ("w3c", guideline_sheets.W3C),
    ],
)
def test_evidence_sheets_answer_every_question_and_say_whose_answer_it_is(folder, form, rows):
    (text,) = made(folder, form).values()
    lines = [line for line in text.splitlines() if line.startswith("| ")][1:]
    assert len(lines) == len(rows) and all(
        re.split(r"(?<!\\)\|", line)[3].strip() for line in lines
    )
    assert (
        f"epsilon {format_rounded_up(body_of(folder)['epsilon'])}" in text
        and "<script>" not in text
    )
    assert {row.whose for row in rows} <= {
        guideline_sheets.OURS,
        guideline_sheets.THEIRS,
        guideline_sheets.BOTH,
        guideline_sheets.RELEASER,
        guideline_sheets.AUDITOR,
        guideline_sheets.WITH_AUDIT,
    }
    silent = "".join(
        exports.FORMATS[form](
            replace(
                read(folder),
                audit=None,
                body={
                    key: value
                    for key, value in read(folder).body.items()
                    if key not in ("word", "software")
                },
            )
        ).values()
    )
    assert "not stated by the releaser" in silent or "not recorded" in silent


def test_sheets_name_what_lies_outside_of_a_quoted_ledger(folder):
    subject = read(folder)
    (text,) = made(folder, "nist").values()
    assert "; unit in practice: not stated" in text and "; other releases: not stated" in text
    quote = SimpleNamespace(dataset="ward", together="budget: all", problems=())
    (text,) = exports.nist(replace(subject, ledger=quote)).values()
    assert "ledger of ward: budget: all" in text
    assert "; other releases outside of this ledger: not stated by the releaser" in text
    quote.problems = ("line 2 was changed",)
    (text,) = exports.nist(replace(subject, ledger=quote)).values()
    assert "does not hold: line 2 was changed" in text and "budget: all" not in text


UNIT = {
    "rows": 4,
    "name": "patient",
    "words": "one unit (patient) with at most 4 rows of the training data",
}


def of_units(subject, **more):
    """The subject as if its guarantee were for patients with up to 4 rows."""
    stated = subject.body["stated"] | {"unit": UNIT}
    return replace(subject, body=subject.body | {"stated": stated}, **more)


def test_who_recorded_the_software_is_named(folder):
    """No certificate derives it: the process that trained wrote it down."""
    (text,) = made(folder, "nist").values()
    (said,) = (line for line in text.splitlines() if "where randomness is from" in line)
    assert said.split(" | ")[1] == "the releaser's process" and "nobody can check it: " in said
    (text,) = made(folder, "edpb").values()
    (said,) = (line for line in text.splitlines() if line.startswith("| state-of-the-art"))
    assert said.split(" | ")[1] == "whoever ran the audit"


@pytest.mark.parametrize("form", ["edpb", "w3c", "sacro", "scai"])
def test_an_audit_is_told_with_what_it_left_out(folder, form):
    """Also where its file is of a version that did not write what was not attacked."""
    whole = "the protection of one patient with all of its rows (at most 4)"
    generic = "the protection of a unit (such as a person) with all of its rows: the models differ"
    for more in ({}, {"not_attacked": [f"{generic} in one record"]}):
        audit = AUDIT | more | {"not_executed": ["rows_per_record (4)"]}
        audit |= {"upper": 0.93334, "upper_whole": 0.9999}
        made_of = of_units(read(folder), audit=audit)
        text = "".join(exports.FORMATS[form](made_of).values()).replace("\\_", "_")
        for said in (
            "not executed: rows_per_record (4)",
            f"not attacked: {whole}",
            "certified for what was executed: epsilon 0.9334 at delta 1e-05",
        ):
            assert said in text, said
        assert "such as a person" not in text
    text = "".join(exports.FORMATS[form](of_units(read(folder))).values())
    assert f"not attacked: {whole}" in text, "an audit that says nothing of it"
    text = "".join(exports.FORMATS[form](read(folder)).values())
    assert "not attacked" not in text and "not executed" not in text, "it protects records"
    quiet = AUDIT | {"not_executed": [], "not_attacked": []}
    text = "".join(exports.FORMATS[form](of_units(read(folder), audit=quiet)).values())
    assert "not attacked" not in text, "units were attacked as a whole"


def test_no_epsilon_is_without_its_delta_or_of_another_unit(folder):
    (text,) = exports.edpb(of_units(read(folder))).values()
    other = format_rounded_up(body_of(folder)["epsilon_replace_one"])
    versions = "two versions of one patient's rows (at most 4) (replace-one)"
    assert f"{versions}: epsilon {other} at delta 1e-05" in text
    assert "of used units (patient) at 1 % false positives" in text and "records" not in (
        next(line for line in text.splitlines() if line.startswith("| reconstruction"))
    )
    (text,) = exports.edpb(read(folder)).values()
    assert f"two versions of one record (replace-one): epsilon {other} at delta 1e-05" in text
    assert "epsilon of at least 0.4 at delta 1e-05 was shown" in text
    (text,) = exports.nist(read(folder)).values()
    assert f"under replace-one epsilon {other} at delta 1e-05" in text


@pytest.mark.parametrize("form", ["sacro", "registry"])
def test_output_checkers_read_the_unit_and_the_other_releases(folder, form):
    """Two models that differ only in whom they protect have entries that differ."""
    row, person = read(folder), of_units(read(folder))
    assert exports.FORMATS[form](row) != exports.FORMATS[form](person)
    text = "".join(exports.FORMATS[form](person).values())
    assert person.body["stated"]["unit"]["words"] in text.replace("\\", "")
    assert "other releases about the same people add up" in text


@pytest.mark.parametrize("form", ["model-card", "edpb", "w3c"])
def test_odds_of_one_model_name_the_other_releases(folder, form):
    """A ledger that has others gives the odds of all together; without one the reader is told."""
    subject = read(folder)

    def told(**more):
        text = "".join(exports.FORMATS[form](replace(subject, **more)).values())
        return text[text.index("times instead of 50.") :].replace("\n", "").split("50.")[1]

    alone = "This is for this model alone"
    assert told().strip().startswith(f"{alone}: other releases about the same people add up.")
    quote = Quote(
        "ward",
        "row",
        subject.body["adjacency"],
        3,
        "2026-01-01",
        "",
        4,
        (),
        "budget",
        (),
        total="epsilon 3 at delta 1e-05",
        right=0.8101,
    )
    words = told(ledger=quote).strip().replace("\\", "")
    assert words.startswith(
        f"{alone}. For all 4 releases of ward together, the budget is epsilon 3 at delta 1e-05 "
        f"({subject.body['adjacency']}), and such a guess is right at most 82 of 100 times."
    )
    words = told(ledger=replace(quote, unproven=True, unit="patient")).replace("\\", "")
    assert "the budget for a single row is epsilon 3" in words
    assert "; no total is known for a patient." in words
    words = told(ledger=replace(quote, adjacency="replace-one")).replace("\\", "")
    assert "(replace-one), and a guess which of two versions of your record was used is " in words
    assert "the only release charged to ward so far" in told(ledger=replace(quote, releases=1))
    broken = told(ledger=replace(quote, problems=("line 2 was changed",)))
    assert (
        "delta 1e-05 (zero-out), and such" not in broken
        and "other releases about the same people" in broken
    )


def test_reviewers_read_what_is_not_protected(folder):
    """Not what must stay secret: that is the curator's part."""
    (text,) = made(folder, "w3c").values()
    rows = {
        line.split(" | ")[0][2:]: line.split(" | ")[2]
        for line in text.splitlines()
        if " | " in line
    }
    answer = rows["what is not protected"]
    for part in (
        "what the model says about people in general",
        "every other number that is public",
        "somebody with more than one row, who is protected less",
        "further fits on the same data compose",
    ):
        assert part in answer
    assert "gradients" not in answer
    assert "gradients" in rows["who is trusted with raw data, and with noise"]
    subject = read(folder)
    named = subject.body["stated"] | {"unit": {"name": "pid", "rows": 1, "words": "one unit (pid)"}}
    bounded = exports.w3c(replace(subject, body=subject.body | {"stated": named}))
    assert "protected less" not in "".join(bounded.values()), "further rows never reach training"


@pytest.mark.parametrize("form", ["model-card", "nist", "edpb"])
def test_readers_of_a_sheet_learn_whose_word_the_ranges_are(folder, form):
    (text,) = made(folder, form).values()
    assert "taken on trust: ranges and classes are public" in text
    assert "nobody read them off the data; source: manual (the releaser's statement)" in text
    (silent,) = exports.FORMATS[form](replace(read(folder), schema=None)).values()
    assert "no schema is in this release" in silent


def test_the_data_set_is_not_named_after_the_folder(folder):
    target = yaml.safe_load(made(folder, "sacro")["target.yaml"])
    assert target["dataset_name"] == "not stated by the releaser"
    quote = SimpleNamespace(dataset="ward 7, 2025", problems=("line 1",))
    charged = exports.sacro(replace(read(folder), ledger=quote))["target.yaml"]
    assert yaml.safe_load(charged)["dataset_name"] == "ward 7, 2025"


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
    wanted = (
        value
        if not isinstance(value, str)
        else re.sub("[\u2028\x07]", "\N{REPLACEMENT CHARACTER}", value)
    )
    assert again == wanted and type(again) is type(wanted)


def test_what_does_not_verify_is_not_exported(folder, tmp_path):
    import shutil

    copy = shutil.copytree(folder, tmp_path / "c")
    (copy / "model.json").write_text((copy / "model.json").read_text() + " ")
    for arguments, said in (
        (["--format", "scai"], "must verify"),
        (["--to", "onnx", "--out", str(tmp_path / "m.onnx")], "must verify"),
        (["--format", "pdf"], "--to must be one of"),
    ):
        done = CliRunner().invoke(cli.app, ["export", str(copy), *arguments])
        assert done.exit_code == 2 and said in done.output
    done = CliRunner().invoke(cli.app, ["export", str(folder), "--format", "sacro"])
    assert done.exit_code == 2 and "--out is needed" in done.output


def test_a_model_leaves_as_one_file_that_verifies(folder, tmp_path):
    export = ["export", str(folder), "--to", "onnx"]
    done = CliRunner().invoke(cli.app, export)
    assert done.exit_code == 2 and "--out is needed for a model" in done.output
    where = str(tmp_path / "m.onnx")
    done = CliRunner().invoke(cli.app, [*export, "--out", where])
    said = " ".join(done.output.split())
    assert done.exit_code == 0 and said.endswith("is written (the model for other runtimes)")
    sheet = ["export", str(folder), "--to", "nist", "--out", str(tmp_path / "nist.md")]
    done = CliRunner().invoke(cli.app, sheet)
    assert " ".join(done.output.split()).endswith("nist.md is written (NIST SP 800-226)")
    done = CliRunner().invoke(cli.app, ["verify", where])
    assert done.exit_code == 0
    said = " ".join(done.output.split())
    assert "graph, weights, model and certificate agree" in said
    assert "not covered: the metadata's manifest_sha256 and model_card" in said


def test_a_hub_folder_verifies_and_shows_its_card(folder, tmp_path):
    where = tmp_path / "hub"
    done = CliRunner().invoke(
        cli.app, ["export", str(folder), "--to", "huggingface", "--out", str(where)]
    )
    assert done.exit_code == 0
    assert li.verify(where).holds and not li.verify(where).uncovered
    assert ModelCard.load(where / "README.md").data.library_name == "lastiterate"
    (where / "README.md").write_text("epsilon 0.1")
    assert "README.md is not the file" in li.verify(where).problems[0]


@pytest.mark.parametrize(
    "unit, caveats, level",
    [
        ({"rows": 1, "words": "one record: a row"}, [], "record-level"),
        ({"rows": 3, "words": "one unit with at most 3 rows"}, [], "user-level"),
        ({"rows": 1, "words": "one author with at most 1 row", "name": "author"}, [], "user-level"),
        ({"rows": 1, "words": "one record"}, [RECORD.format(4)], "user-level"),
    ],
)
def test_the_registry_says_whether_records_or_persons_are_protected(folder, unit, caveats, level):
    subject = read(folder)
    stated = subject.body["stated"] | {"unit": unit}
    body = subject.body | {"stated": stated, "caveats": caveats}
    found = yaml.safe_load(exports.registry(replace(subject, body=body))["deployment.yaml"])
    assert found["deployment"]["privacy_loss"]["privacy_unit"] == level


def test_a_releaser_s_unit_stands_beside_the_derived_one(folder, tmp_path):
    """And never in its place: it may be wider than what the run protects."""
    words = body_of(folder)["stated"]["unit"]["words"]
    model = li.load(folder).with_statement({"unit": "one patient with all admissions"})
    wider = model.save(tmp_path / "m")
    for where in (folder, wider):
        assert words in "".join(made(where, "registry").values())
    assert "one patient with all admissions (the releaser's statement)" in "".join(
        made(wider, "registry").values()
    )

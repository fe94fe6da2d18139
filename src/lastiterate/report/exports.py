"""A release in the forms that registries, hubs and output checkers read."""

from __future__ import annotations

import json
import math
import uuid
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

from lastiterate.accounting.certificate_subject import format_rounded_up, name_record_unit
from lastiterate.data.schema import Schema
from lastiterate.errors import InputError
from lastiterate.features.map_registry import describe_maps, maps_from
from lastiterate.features.record_fields import Choice
from lastiterate.markup import plain
from lastiterate.release.folder import (
    CERTIFICATE,
    HASHES,
    MANIFEST,
    MODEL,
    PAGE,
    WEIGHTS,
    format_manifest,
    read_files,
)
from lastiterate.report.execution_section import describe_class_weights
from lastiterate.report.figures import effects_as_markdown
from lastiterate.report.guarantee_section import describe_typed_facts
from lastiterate.report.guideline_sheets import (
    UNSTATED,
    certificate_digest,
    claim,
    cyclonedx,
    edpb,
    line,
    nist,
    read_statement_entry,
    read_statement_list,
    spdx,
    w3c,
)
from lastiterate.report.page_parts import (
    describe_audit_gaps,
    describe_neighbours,
    describe_releases_together,
    is_record,
    odds,
    percent,
)
from lastiterate.report.subject import ReportSource
from lastiterate.run.adjacency import convertible

# YAML for the documents that are exported: mappings, lists and scalars, every text in double
# quotes.  What is written reads back the same with any reader of YAML 1.1 or 1.2; no text can
# become another value or a tag.


def dump(value: dict[str, Any]) -> str:
    """Return a block of YAML for a mapping; keys are texts or integers."""
    return "\n".join(_lines(value, 0)) + "\n"


def _lines(value: object, depth: int) -> list[str]:
    """The entries of a mapping or list; none of anything else."""
    pad, out, pairs = "  " * depth, list[str](), list[tuple[str, object]]()
    if isinstance(value, dict):
        pairs = [
            (f"{_key(key)}:", inner)
            for key, inner in cast("dict[str | int, object]", value).items()
        ]
    elif isinstance(value, list | tuple):
        pairs = [("-", inner) for inner in cast("Sequence[object]", value)]
    for head, inner in pairs:
        below = _lines(inner, depth + 1)
        out += [f"{pad}{head}", *below] if below else [f"{pad}{head} {scalar(inner)}"]
    return out


def _key(key: str | int) -> str:
    return str(key) if isinstance(key, int) else scalar(key) if not key.isidentifier() else key


def scalar(value: object) -> str:
    """One value on one line."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case float() if math.isfinite(value):
            text = repr(value)
            return text.replace("e", ".0e") if "e" in text and "." not in text else text
        case float():
            return ".nan" if math.isnan(value) else ".inf" if value > 0 else "-.inf"
        case dict():
            return "{}"
        case list() | tuple():
            return "[]"
        case _:
            return '"' + "".join(map(_character, plain(str(value)))) + '"'


def _character(letter: str) -> str:
    if letter in '"\\':
        return "\\" + letter
    if letter == "\n":
        return "\\n"
    if letter.isprintable():
        return letter
    return f"\\U{ord(letter):08x}"


# A release in the forms that registries, hubs and output checkers read; certificates in, texts out.
# **Guarantee:** what is exported follows from the certificate, the model's public description, the
# releaser's statement and an audit's report; a model card also says what the released weights make
# of each column. No record and no prediction is in it.

SCAI = "https://in-toto.io/attestation/scai/v0.3"
STATEMENT = "https://in-toto.io/Statement/v1"


def model_card(subject: ReportSource) -> dict[str, str]:
    """A Hugging Face model card: front matter and text."""
    body, stated = subject.body, subject.body["stated"]
    weights = describe_class_weights(subject)
    head = dump(
        {
            "library_name": "lastiterate",
            "tags": ["differential-privacy"] + ["tabular"] * (subject.schema is not None),
            "differential_privacy": {
                "epsilon": body["epsilon"],
                "delta": body["delta"],
                "adjacency": body["adjacency"],
                "certificate_sha256": body["content_sha256"],
            },
        }
    )
    rates = [
        f"| {row['false_positive_rate']:.1%} | {percent(row['at_most'])} % |"
        for row in stated["true_positive_rates"]
    ]
    deltas = [
        f"| {row['delta']:g} | {format_rounded_up(row['epsilon'])} |"
        for row in stated["guarantees"]
    ]
    parts = [
        f"# {line(subject.name)}",
        "",
        "## Privacy",
        "",
        line(odds(stated["right_guesses"], body["adjacency"], stated["unit"]["rows"])),
        line(describe_releases_together(subject)),
        "",
        f"**{claim(subject)}**",
        "",
        f"- protected unit: {line(stated['unit']['words'])}",
        f"- neighbours: {line(describe_neighbours(subject))}",
        *(f"- class weights in training: {line(text)}" for text in (weights,) if text),
        *(f"- predicts: {line(text)}" for text in (subject.predicts,) if text),
        "",
        "| delta | epsilon at most |",
        "|---|---|",
        *deltas,
        "",
        "| false-positive rate | true-positive rate at most |",
        "|---|---|",
        *rates,
        "",
        "## Caveats",
        "",
        *(f"- {line(text)}" for text in body["caveats"]),
        "",
        "## Must stay secret",
        "",
        *(f"- {line(text)}" for text in stated["secret"]),
        "",
        "## The releaser's statement",
        "",
        f"- purpose: {line(read_statement_entry(subject, 'purpose', 'not stated'))}",
        f"- trained by: {line(read_statement_entry(subject, 'trained_by', 'not stated'))}",
        f"- contact: {line(read_statement_entry(subject, 'contact', 'not stated'))}",
        f"- taken on trust: {line(describe_typed_facts(subject))}",
        *_records(subject),
        "",
        *effects_as_markdown(subject),
        "## How to check it",
        "",
        "`lastiterate verify` on this folder derives every number again. SHA-256 of the weights: "
        f"`{body['weights_sha256']}`.",
        "",
    ]
    return {"README.md": f"---\n{head}---\n" + "\n".join(parts)}


def _records(subject: ReportSource) -> list[str]:
    """How records become rows, where the schema says it."""
    if subject.schema is None:
        return []
    return [
        "- records become rows by: "
        f"{line(describe_maps(maps_from(subject.schema.get('features', ()))))}"
    ]


def registry(subject: ReportSource) -> dict[str, str]:
    """An entry of the third tier of OpenDP's deployments registry."""
    body, stated = subject.body, subject.body["stated"]
    mechanisms = (
        "noisy gradient descent"
        if "noise" in stated
        else "one exact posterior sample"
        if "problem" in body
        else "private selection of a model"
    )
    entry = {
        "status": "Draft",
        "tier": 3,
        "deployment": {
            "product": {
                "name": subject.name,
                "data_curators": [
                    read_statement_entry(
                        subject, "trained_by", read_statement_entry(subject, "contact")
                    )
                ],
                "intended_use": read_statement_entry(subject, "purpose"),
                "data_product_type": "Machine learning model",
                "description": read_statement_entry(
                    subject, "note", f"a model released with {claim(subject)}"
                ),
            },
            "dp_flavor": _flavour(subject),
            "privacy_loss": _loss(subject),
            "model": {
                "model_name": "Central",
                "release_type": "One release",
                "data_source_type": "Static",
                "access_type": "Non-interactive",
                "actors": "a trusted curator trains; the adversary sees the "
                "released model, its certificate and all public numbers",
            },
            "accounting": {
                "post_processing": "anything computed from the released model",
                "composition": "; ".join(
                    [
                        *stated["charged"],
                        *(f"not charged: {text}" for text in stated["not_charged"]),
                        describe_releases_together(subject),
                    ]
                ),
            },
            "implementation": {
                "pre_processing_eda_hyperparameter_tuning": "; ".join(
                    read_statement_list(subject, "not_charged")
                )
                or UNSTATED,
                "mechanisms": f"{mechanisms}, {body.get('theorem') or 'a proof of its own'}",
                "justification": "; ".join(body["caveats"]),
            },
            "resources": {
                "sources": f"{CERTIFICATE}, SHA-256 {certificate_digest(subject)}; lastiterate "
                f"verify derives it "
                "again"
            },
        },
    }
    return {"deployment.yaml": dump(entry)}


def _flavour(subject: ReportSource) -> dict[str, str]:
    """What is guaranteed, of which data."""
    adjacency, rows = subject.body["adjacency"], subject.body["stated"]["unit"]["rows"]
    kept = "every number of the run, the schema"
    facts = [
        f"{one['fact']} [{one['source']}]" for one in read_statement_list(subject, "public_facts")
    ]
    return {
        "name": "Approximate DP",
        "input_metric": adjacency,
        "bound_on_input_distance": f"1 unit ({rows} rows)",
        "output_measure": "hockey-stick divergence, both directions",
        "bound_on_output_distance": claim(subject),
        "data_domain": "; ".join(facts) or UNSTATED,
        "unprotected_quantities": kept
        + (", the number of records" if convertible(adjacency, "zero-out") else ""),
    }


def _loss(subject: ReportSource) -> dict[str, Any]:
    """How much, for whom."""
    body, unit = subject.body, subject.body["stated"]["unit"]
    by_record = is_record(unit) and not name_record_unit(body["caveats"])
    return {
        "privacy_unit": "record-level" if by_record else "user-level",
        "privacy_unit_description": "; ".join(
            dict.fromkeys((unit["words"], read_statement_entry(subject, "unit", unit["words"])))
        ),
        "privacy_parameters": {"epsilon": body["epsilon"], "delta": body["delta"]},
        "privacy_parameters_description": "; ".join(
            f"epsilon {format_rounded_up(row['epsilon'])} at delta {row['delta']:g}"
            for row in body["stated"]["guarantees"]
        ),
    }


def scai(subject: ReportSource) -> dict[str, str]:
    """An in-toto statement with the predicate SCAI: attributes of the weights, the certificate
    their evidence."""
    body, stated = subject.body, subject.body["stated"]
    evidence = {
        "name": CERTIFICATE,
        "digest": {"sha256": certificate_digest(subject)},
        "mediaType": "application/json",
    }
    attributes = [
        {
            "attribute": "DIFFERENTIALLY_PRIVATE",
            "evidence": evidence,
            "conditions": {
                "epsilon": body["epsilon"],
                "delta": body["delta"],
                "adjacency": body["adjacency"],
                "unit": stated["unit"],
                "theorem": body.get("theorem"),
                "rests_on": sorted({fact["evidence"] for fact in stated["rests_on"]}),
                "caveats": body["caveats"],
            },
        }
    ]
    if subject.audit is not None:
        attributes.append(
            {
                "attribute": "PRIVACY_AUDITED",
                "evidence": evidence,
                "conditions": {
                    name: subject.audit[name]
                    for name in (
                        "attack",
                        "trials",
                        "failure",
                        "delta",
                        "lower",
                        "ceiling",
                        "refuted",
                        "verdict",
                    )
                }
                | {"gaps": describe_audit_gaps(subject)},
            }
        )
    subjects = [
        {"name": name, "digest": {"sha256": body[entry]}}
        for name, entry in HASHES.items()
        if body.get(entry)
    ]
    made = {
        "_type": STATEMENT,
        "subject": subjects,
        "predicateType": SCAI,
        "predicate": {
            "attributes": attributes,
            "producer": {
                "name": body["library"],
                "uri": "pkg:pypi/lastiterate@" + body["library"].split(" ")[-1],
            },
        },
    }
    return {"scai.json": json.dumps(made, indent=2) + "\n"}


def sacro(subject: ReportSource) -> dict[str, str]:
    """SACRO-ML's ``target.yaml`` and a report of results, with no model and no array: nothing of a
    record."""
    arrays = [
        f"{part}_{kind}"
        for kind in ("train", "test", "orig", "train_orig", "test_orig")
        for part in ("X", "y")
    ]
    target = {
        "dataset_name": UNSTATED if subject.ledger is None else subject.ledger.dataset,
        "dataset_module_path": "",
        "features": _features(subject),
        "safemodel": [_disclosure(subject)],
        "model_type": "",
        "model_name": "lastiterate",
        "model_params": {},
        **{f"{name}_path": "" for name in [*arrays, "proba_train", "proba_test"]},
    }
    audit = subject.audit or {}
    instances = {f"instance_{i}": rate for i, rate in enumerate(audit.get("rates", []))}
    report = {
        "log_id": str(uuid.uuid5(uuid.NAMESPACE_OID, subject.body["content_sha256"])),
        "log_time": datetime.now(UTC).strftime("%d/%m/%Y %H:%M:%S"),
        "metadata": {
            "attack_name": f"lastiterate {audit.get('attack', 'certificate')}",
            "attack_params": {
                name: audit[name] for name in ("trials", "failure", "delta") if name in audit
            },
            "global_metrics": {
                name: audit[name]
                for name in ("lower", "ceiling", "refuted", "verdict")
                if name in audit
            }
            | ({"gaps": describe_audit_gaps(subject)} if audit else {})
            | _disclosure(subject),
            "target_model": "lastiterate",
            "target_model_params": {},
            "target_train_params": {},
        },
        "attack_experiment_logger": {"attack_instance_logger": instances},
    }
    return {"target.yaml": dump(target), "report.json": json.dumps(report, indent=2) + "\n"}


def _disclosure(subject: ReportSource) -> dict[str, Any]:
    body = subject.body
    return {
        "guarantee": claim(subject),
        "protected_unit": body["stated"]["unit"]["words"],
        "releases": describe_releases_together(subject),
        "epsilon": body["epsilon"],
        "delta": body["delta"],
        "adjacency": body["adjacency"],
        "certificate_sha256": body["content_sha256"],
    }


def _features(subject: ReportSource) -> dict[int, dict[str, Any]]:
    """Columns in the order of the encoding, from the schema; empty where there is none."""
    columns: dict[int, dict[str, Any]] = {}
    if subject.schema is None or subject.schema.get("array"):
        return columns
    form, start = Schema.from_dict(subject.schema).form(), 0
    for field, one, width in form.parts:
        encoding = (
            one.name if one is not None else "onehot" if isinstance(field, Choice) else "float32"
        )
        columns[len(columns)] = {
            "name": field.name,
            "indices": list(range(start, start + width)),
            "encoding": encoding,
        }
        start += width
    return columns


def references(subject: ReportSource) -> dict[str, str]:
    """BibTeX of every theorem used."""
    return {"references.bib": subject.certified.cite()}


FORMATS: dict[str, Callable[[ReportSource], dict[str, str]]] = {
    "model-card": model_card,
    "registry": registry,
    "scai": scai,
    "sacro": sacro,
    "bibtex": references,
    "nist": nist,
    "edpb": edpb,
    "w3c": w3c,
    "cyclonedx": cyclonedx,
    "spdx": spdx,
}
"""Names of formats, and what makes their files: name to text."""


def onnx_file(subject: ReportSource, folder: Path) -> dict[str, bytes]:
    """The model for other runtimes, its release and its card within."""
    from lastiterate.release.onnx_model import to_onnx

    files = read_files(folder) | {MANIFEST: (folder / MANIFEST).read_bytes()}
    return {"model.onnx": to_onnx(files, {"model_card": model_card(subject)["README.md"]})}


def hub_folder(subject: ReportSource, folder: Path) -> dict[str, bytes]:
    """The folder with its card as README.md, as the Hugging Face Hub shows it; it verifies."""
    names = (WEIGHTS, MODEL, CERTIFICATE, PAGE)
    files = {name: (folder / name).read_bytes() for name in names if (folder / name).is_file()}
    files["README.md"] = model_card(subject)["README.md"].encode()
    return files | {MANIFEST: format_manifest(files)}


def mlflow_folder(subject: ReportSource, folder: Path) -> dict[str, bytes]:
    """A folder for MLflow: a python function with signature and example, the release within."""
    from lastiterate.release.mlflow_model import to_mlflow

    return to_mlflow(read_files(folder))


def safetensors_file(subject: ReportSource, folder: Path) -> dict[str, bytes]:
    """The weights as one safetensors file, the release in its metadata; for every kind of model."""
    from lastiterate.release.verification import to_safetensors

    return {"model.safetensors": to_safetensors(read_files(folder))}


def skops_file(subject: ReportSource, folder: Path) -> dict[str, bytes]:
    """An estimator of scikit-learn as a skops file, which holds the release."""
    from lastiterate.estimators.released_estimators import to_skops

    return {"model.skops": to_skops(read_files(folder))}


def joblib_file(subject: ReportSource, folder: Path) -> dict[str, bytes]:
    """An estimator of scikit-learn as a joblib file, which holds the release."""
    from lastiterate.estimators.released_estimators import to_joblib

    return {"model.joblib": to_joblib(read_files(folder))}


MODEL_FORMATS: dict[str, Callable[[ReportSource, Path], dict[str, bytes]]] = {
    "onnx": onnx_file,
    "mlflow": mlflow_folder,
    "huggingface": hub_folder,
    "safetensors": safetensors_file,
    "skops": skops_file,
    "sklearn": joblib_file,
}
"""Formats that hold the model itself."""
ENDINGS = {"skops": ".skops", "sklearn": ".joblib"}
"""Of files that are verified by their ending."""
ALL_FORMATS = {**FORMATS, **MODEL_FORMATS}


def export_files(subject: ReportSource, form: str, folder: Path) -> dict[str, bytes]:
    """The files of a format, by name; refused where others would read differential privacy of every
    record from it."""
    limit = subject.certified.subject.limit
    if limit and form != "bibtex":
        raise InputError(
            "format",
            "states the differential privacy of every record, which this certificate does not: "
            + limit,
            form,
            "hand on the folder with its page instead",
        )
    if form in MODEL_FORMATS:
        return MODEL_FORMATS[form](subject, folder)
    return {name: text.encode() for name, text in FORMATS[form](subject).items()}

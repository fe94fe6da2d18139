"""Bills of materials: the model and its guarantee in CycloneDX 1.7 (``modelCard``) and SPDX 3 (AI profile).

Both are made of the certificate, so that the same release gives the same bytes.
"""

from __future__ import annotations

import json
import uuid
from typing import Any

from lastiterate.accounting.wording import rounded_up
from lastiterate.markup import plain
from lastiterate.release.folder import HASHES
from lastiterate.release.software import WRITTEN
from lastiterate.report.exported_text import UNSTATED, certificate_digest, claim, stated_by_releaser
from lastiterate.report.subject import Subject
from lastiterate.run.strict_json import is_list, is_object

SPDX_CONTEXT = "https://spdx.org/rdf/3.0.1/spdx-context.jsonld"


def _day(subject: Subject) -> str:
    """When the certificate was written, as both forms write a time; the start of the epoch where nobody recorded it."""
    return f"{subject.software.get(WRITTEN, '1970-01-01')}T00:00:00Z"


def _serial(subject: Subject) -> str:
    return str(uuid.uuid5(uuid.NAMESPACE_OID, subject.body["content_sha256"]))


def _version(subject: Subject) -> str:
    return subject.body["library"].split(" ")[-1]


def _guarantee(subject: Subject) -> dict[str, str]:
    """What a reader looks for by name."""
    body, stated = subject.body, subject.body["stated"]
    return {"epsilon": rounded_up(body["epsilon"]), "delta": f"{body['delta']:g}", "adjacency": body["adjacency"],
            "unit": stated["unit"]["words"], "theorem": body.get("theorem") or "a proof of its own",
            "certificate_content_sha256": body["content_sha256"],
            "certificate_file_sha256": certificate_digest(subject)}


def cyclonedx(subject: Subject) -> dict[str, str]:
    """CycloneDX 1.7: a machine-learning model with its card; every text is a text."""
    body = subject.body
    hashes = [{"alg": "SHA-256", "content": body[entry]} for entry in HASHES.values() if body.get(entry)]
    score = stated_by_releaser(subject, "accuracy")
    metrics = [{"type": "accuracy, counted with noise that epsilon pays for", "value": f"{accuracy.value:.4g}",
                "confidenceInterval": {"lowerBound": f"{accuracy.low:.4g}", "upperBound": f"{accuracy.high:.4g}"},
                **({"slice": accuracy.group} if accuracy.group else {})}
               for accuracy in subject.accuracies] or ([] if score == UNSTATED else [{"type": "score", "value": score}])
    risk = {"name": "somebody learns from the model whether a record was used",
            "mitigationStrategy": f"differential privacy: {claim(subject)}"}
    card = {"modelParameters": {"approach": {"type": "supervised"}},
            "quantitativeAnalysis": {"performanceMetrics": metrics}, "considerations": {
                "useCases": [stated_by_releaser(subject, "purpose")], "technicalLimitations": body["caveats"],
                "ethicalConsiderations": [risk]},
            "properties": [{"name": f"lastiterate:{name}", "value": value}
                           for name, value in _guarantee(subject).items()]}
    made = {"$schema": "http://cyclonedx.org/schema/bom-1.7.schema.json", "bomFormat": "CycloneDX",
            "specVersion": "1.7", "serialNumber": f"urn:uuid:{_serial(subject)}", "version": 1,
            "metadata": {"timestamp": _day(subject), "tools": {"components": [
                {"type": "library", "name": "lastiterate", "version": _version(subject)}]}},
            "components": [{"type": "machine-learning-model", "bom-ref": "model", "name": subject.name,
                            "version": body["content_sha256"][:12], "hashes": hashes, "modelCard": card}]}
    return {"bom.cdx.json": _text(made)}


def spdx(subject: Subject) -> dict[str, str]:
    """SPDX 3.0.1 with the AI profile, as JSON-LD."""
    base, body = f"urn:uuid:{_serial(subject)}", subject.body
    info = {"type": "CreationInfo", "@id": "_:creation", "specVersion": "3.0.1", "created": _day(subject),
            "createdBy": [f"{base}#tool"]}
    tool = {"type": "SoftwareAgent", "spdxId": f"{base}#tool", "creationInfo": "_:creation",
            "name": f"lastiterate {_version(subject)}"}
    scores = [{"type": "DictionaryEntry", "key": "accuracy", "value": str(score)} for score in subject.accuracies]
    package: dict[str, Any] = {
        "type": "ai_AIPackage", "spdxId": f"{base}#model", "creationInfo": "_:creation", "name": subject.name,
        "software_packageVersion": body["content_sha256"][:12], "software_primaryPurpose": "model",
        "software_downloadLocation": f"{base}#not-published", "releaseTime": _day(subject),
        "suppliedBy": f"{base}#tool", "comment": f"differentially private: {claim(subject)}",
        "ai_informationAboutTraining": f"trained by: {stated_by_releaser(subject, 'trained_by')}; "
                                       + "; ".join(body["stated"]["charged"]),
        "ai_informationAboutApplication": stated_by_releaser(subject, "purpose"),
        "ai_limitation": "; ".join(body["caveats"]), "ai_metric": scores,
        "ai_hyperparameter": [{"type": "DictionaryEntry", "key": name, "value": value}
                              for name, value in _guarantee(subject).items()],
        "ai_typeOfModel": ["released with a certificate of differential privacy"],
        "verifiedUsing": [{"type": "Hash", "algorithm": "sha256", "hashValue": body[entry]}
                          for entry in HASHES.values() if body.get(entry)]}
    package = {key: value for key, value in package.items() if value != []}
    document = {"type": "SpdxDocument", "spdxId": f"{base}#document", "creationInfo": "_:creation",
                "profileConformance": ["core", "software", "ai"], "rootElement": [package["spdxId"]],
                "element": [package["spdxId"], tool["spdxId"]]}
    return {"model.spdx.json": _text({"@context": SPDX_CONTEXT, "@graph": [info, tool, document, package]})}


def _text(made: dict[str, Any]) -> str:
    """JSON without characters that no document may hold."""
    def clean(value: object) -> Any:
        if is_object(value):
            return {key: clean(inner) for key, inner in value.items()}
        if is_list(value):
            return [clean(inner) for inner in value]
        return plain(value) if isinstance(value, str) else value

    return json.dumps(clean(made), indent=2) + "\n"

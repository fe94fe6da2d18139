"""Bills of materials (CycloneDX, SPDX) and evidence sheets for guidelines."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from lastiterate.accounting.certificate_subject import (
    format_rounded_down,
    format_rounded_up,
    name_record_unit,
)
from lastiterate.markup import plain
from lastiterate.release.folder import HASHES
from lastiterate.release.signatures import WRITTEN
from lastiterate.report.guarantee_section import describe_typed_facts
from lastiterate.report.page_parts import (
    describe_audit_gaps,
    describe_neighbours,
    describe_releases_together,
    describe_versions,
    name_protected_group,
    odds,
    percent,
)
from lastiterate.report.subject import ReportSource
from lastiterate.run.adjacency import records_moved
from lastiterate.run.serialization import is_list, is_object

# Texts that several forms of export share: the guarantee in a line, what the releaser states, one
# line of Markdown.

UNSTATED = "not stated by the releaser"


def claim(subject: ReportSource) -> str:
    """The guarantee in one line."""
    body = subject.body
    return f"epsilon {format_rounded_up(body['epsilon'])} at delta {body['delta']:g} ({body['adjacency']})"


def read_statement_entry(subject: ReportSource, name: str, default: str = UNSTATED) -> str:
    """An entry of the releaser's statement, said to be one."""
    said = subject.statement.get(name)
    return default if said is None else f"{said} (the releaser's statement)"


def read_statement_list(subject: ReportSource, name: str) -> list[Any]:
    """A list of the releaser's statement."""
    return subject.statement.get(name, [])


def line(text: str) -> str:
    """A text as one line of Markdown that is nothing but text."""
    safe = " ".join(plain(str(text)).split())
    return "".join(f"\\{letter}" if letter in "\\`*_{}[]<>#|!~&" else letter for letter in safe)


def certificate_digest(subject: ReportSource) -> str:
    """SHA-256 of the certificate as it was written."""
    return hashlib.sha256(subject.text.encode()).hexdigest()


# Bills of materials: the model and its guarantee in CycloneDX 1.7 (``modelCard``) and SPDX 3 (AI
# profile).  Both are made of the certificate, so that the same release gives the same bytes.

SPDX_CONTEXT = "https://spdx.org/rdf/3.0.1/spdx-context.jsonld"


def _day(subject: ReportSource) -> str:
    """When the certificate was written, as both forms write a time; the start of the epoch where
    nobody recorded it."""
    return f"{subject.software.get(WRITTEN, '1970-01-01')}T00:00:00Z"


def _serial(subject: ReportSource) -> str:
    return str(uuid.uuid5(uuid.NAMESPACE_OID, subject.body["content_sha256"]))


def _version(subject: ReportSource) -> str:
    return subject.body["library"].split(" ")[-1]


def _guarantee(subject: ReportSource) -> dict[str, str]:
    """What a reader looks for by name."""
    body, stated = subject.body, subject.body["stated"]
    return {
        "epsilon": format_rounded_up(body["epsilon"]),
        "delta": f"{body['delta']:g}",
        "adjacency": body["adjacency"],
        "unit": stated["unit"]["words"],
        "theorem": body.get("theorem") or "a proof of its own",
        "certificate_content_sha256": body["content_sha256"],
        "certificate_file_sha256": certificate_digest(subject),
    }


def cyclonedx(subject: ReportSource) -> dict[str, str]:
    """CycloneDX 1.7: a machine-learning model with its card; every text is a text."""
    body = subject.body
    hashes = [
        {"alg": "SHA-256", "content": body[entry]} for entry in HASHES.values() if body.get(entry)
    ]
    score = read_statement_entry(subject, "accuracy")
    metrics = [
        {
            "type": "accuracy, counted with noise that epsilon pays for",
            "value": f"{accuracy.value:.4g}",
            "confidenceInterval": {
                "lowerBound": f"{accuracy.low:.4g}",
                "upperBound": f"{accuracy.high:.4g}",
            },
            **({"slice": accuracy.group} if accuracy.group else {}),
        }
        for accuracy in subject.accuracies
    ] or ([] if score == UNSTATED else [{"type": "score", "value": score}])
    risk = {
        "name": "somebody learns from the model whether a record was used",
        "mitigationStrategy": f"differential privacy: {claim(subject)}",
    }
    card = {
        "modelParameters": {"approach": {"type": "supervised"}},
        "quantitativeAnalysis": {"performanceMetrics": metrics},
        "considerations": {
            "useCases": [read_statement_entry(subject, "purpose")],
            "technicalLimitations": body["caveats"],
            "ethicalConsiderations": [risk],
        },
        "properties": [
            {"name": f"lastiterate:{name}", "value": value}
            for name, value in _guarantee(subject).items()
        ],
    }
    made = {
        "$schema": "http://cyclonedx.org/schema/bom-1.7.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.7",
        "serialNumber": f"urn:uuid:{_serial(subject)}",
        "version": 1,
        "metadata": {
            "timestamp": _day(subject),
            "tools": {
                "components": [
                    {"type": "library", "name": "lastiterate", "version": _version(subject)}
                ]
            },
        },
        "components": [
            {
                "type": "machine-learning-model",
                "bom-ref": "model",
                "name": subject.name,
                "version": body["content_sha256"][:12],
                "hashes": hashes,
                "modelCard": card,
            }
        ],
    }
    return {"bom.cdx.json": _text(made)}


def spdx(subject: ReportSource) -> dict[str, str]:
    """SPDX 3.0.1 with the AI profile, as JSON-LD."""
    base, body = f"urn:uuid:{_serial(subject)}", subject.body
    info = {
        "type": "CreationInfo",
        "@id": "_:creation",
        "specVersion": "3.0.1",
        "created": _day(subject),
        "createdBy": [f"{base}#tool"],
    }
    tool = {
        "type": "SoftwareAgent",
        "spdxId": f"{base}#tool",
        "creationInfo": "_:creation",
        "name": f"lastiterate {_version(subject)}",
    }
    scores = [
        {"type": "DictionaryEntry", "key": "accuracy", "value": str(score)}
        for score in subject.accuracies
    ]
    package: dict[str, Any] = {
        "type": "ai_AIPackage",
        "spdxId": f"{base}#model",
        "creationInfo": "_:creation",
        "name": subject.name,
        "software_packageVersion": body["content_sha256"][:12],
        "software_primaryPurpose": "model",
        "software_downloadLocation": f"{base}#not-published",
        "releaseTime": _day(subject),
        "suppliedBy": f"{base}#tool",
        "comment": f"differentially private: {claim(subject)}",
        "ai_informationAboutTraining": f"trained by: {read_statement_entry(subject, 'trained_by')}; "
        + "; ".join(body["stated"]["charged"]),
        "ai_informationAboutApplication": read_statement_entry(subject, "purpose"),
        "ai_limitation": "; ".join(body["caveats"]),
        "ai_metric": scores,
        "ai_hyperparameter": [
            {"type": "DictionaryEntry", "key": name, "value": value}
            for name, value in _guarantee(subject).items()
        ],
        "ai_typeOfModel": ["released with a certificate of differential privacy"],
        "verifiedUsing": [
            {"type": "Hash", "algorithm": "sha256", "hashValue": body[entry]}
            for entry in HASHES.values()
            if body.get(entry)
        ],
    }
    package = {key: value for key, value in package.items() if value != []}
    document = {
        "type": "SpdxDocument",
        "spdxId": f"{base}#document",
        "creationInfo": "_:creation",
        "profileConformance": ["core", "software", "ai"],
        "rootElement": [package["spdxId"]],
        "element": [package["spdxId"], tool["spdxId"]],
    }
    return {
        "model.spdx.json": _text(
            {"@context": SPDX_CONTEXT, "@graph": [info, tool, document, package]}
        )
    }


def _text(made: dict[str, Any]) -> str:
    """JSON without characters that no document may hold."""

    def clean(value: object) -> Any:
        if is_object(value):
            return {key: clean(inner) for key, inner in value.items()}
        if is_list(value):
            return [clean(inner) for inner in value]
        return plain(value) if isinstance(value, str) else value

    return json.dumps(clean(made), indent=2) + "\n"


# Evidence for guidelines: each question, what the certificate answers, and what remains the
# organisation's.  The questions are in our words; the documents they are from are named, and
# prevail. Answers are made of the certificate, an audit's report and the releaser's statement
# alone, and each says which of them it is from.

OURS, THEIRS, BOTH = "the certificate", "the organisation", "both"
RELEASER, AUDITOR = "the releaser's process", "whoever ran the audit"
WITH_AUDIT = f"{OURS}, and {AUDITOR}"


class Row(NamedTuple):
    """``asked``: the question; ``answer``: to it, from a subject; ``whose``: who has to answer for
    it."""

    asked: str
    whose: str
    answer: Callable[[ReportSource], str]


def _sheet(
    title: str, source: str, rows: tuple[Row, ...], subject: ReportSource, name: str
) -> dict[str, str]:
    answered = [
        f"| {line(row.asked)} | {row.whose} | {line(row.answer(subject))} |" for row in rows
    ]
    parts = [
        f"# {title}: {line(subject.name)}",
        "",
        source,
        "",
        f"The certificate claims **{line(claim(subject))}**. Content hash "
        f"`{subject.body['content_sha256']}`; the "
        "command `lastiterate verify` derives every number of it again.",
        "",
        "| question | answered by | answer |",
        "|---|---|---|",
        *answered,
        "",
    ]
    return {name: "\n".join(parts)}


def _privacy(subject: ReportSource) -> str:
    other = subject.body["epsilon_replace_one"]
    if other is None or records_moved(subject.body["adjacency"]) != 1:
        return claim(subject)
    return (
        f"{claim(subject)}; under replace-one epsilon {format_rounded_up(other)} at delta "
        f"{subject.body['delta']:g}"
    )


def _unit(subject: ReportSource) -> str:
    stated = subject.body["stated"]
    return (
        f"{stated['unit']['words']}; neighbours: {describe_neighbours(subject)}; unit in practice: "
        + read_statement_entry(subject, "unit")
    )


def _mechanism(subject: ReportSource) -> str:
    theorem, stated = subject.body.get("theorem"), subject.body["stated"]
    noise = stated.get("noise", {}).get("kind")
    return "; ".join(
        [
            f"theorem {theorem}" if theorem else "a proof of its own",
            *([f"noise: {noise}"] if noise else []),
            *([f"batches: {stated['batches']['kind']}"] if "batches" in stated else []),
        ]
    )


def _facts(subject: ReportSource) -> str:
    kinds = sorted({fact["evidence"].lower() for fact in subject.body["stated"]["rests_on"]})
    return (
        f"rests on {', '.join(kinds) or 'no'} facts; caveats: {'; '.join(subject.body['caveats'])}"
    )


def _software(subject: ReportSource) -> str:
    said = "; ".join(f"{name}: {text}" for name, text in subject.software.items())
    return f"recorded by the process that trained, and nobody can check it: {said or 'nothing'}"


def _composition(subject: ReportSource) -> str:
    quote, stated = subject.ledger, subject.body["stated"]
    if quote is None:
        ledger = "no ledger was quoted"
    elif quote.problems:
        ledger = f"the ledger of {quote.dataset} does not hold: {quote.problems[0]}"
    else:
        ledger = f"ledger of {quote.dataset}: {quote.together}"
    said = [
        f"{name.replace('_', ' ')}: {'; '.join(map(str, lines))}"
        for name in ("charged", "not_charged")
        if (lines := read_statement_list(subject, name))
    ]
    here = f"charged here: {'; '.join(stated['charged'])}"
    others = "other releases" if quote is None else "other releases outside of this ledger"
    return "; ".join([here, ledger, *(said or [f"{others}: {UNSTATED}"])])


def _collection(subject: ReportSource) -> str:
    facts = "; ".join(
        f"{one['fact']} [{one['source']}]" for one in read_statement_list(subject, "public_facts")
    )
    return (
        f"not covered by any theorem; taken on trust: {describe_typed_facts(subject)}; other "
        f"sources of public facts: {facts or UNSTATED}"
    )


def _utility(subject: ReportSource) -> str:
    overall = any(not each.group for each in subject.accuracies)
    hidden = ("one overall accuracy does not show whether a rare class is ever predicted",)
    said = "; ".join([*map(str, subject.accuracies), *(hidden if overall else ())])
    return said or read_statement_entry(subject, "accuracy")


def _not_protected(subject: ReportSource) -> str:
    """Return what a reader may learn in spite of the guarantee."""
    stated = subject.body["stated"]
    unit = stated["unit"]
    bounded = "name" in unit  # further rows of a unit never reached the training
    record = name_record_unit(subject.body["caveats"])
    several = "more than one row" if unit["rows"] == 1 else f"more than {unit['rows']} rows"
    several = f"several records, each of them {record}" if record else several
    return "; ".join(
        [
            "what the model says about people in general, with or without one person's data",
            "the run, the schema and every other number that is public",
            *([] if bounded else [f"somebody with {several}, who is protected less"]),
            "leaks of the data themselves, and of what must stay secret",
            *stated["not_charged"],
        ]
    )


def _describe_trust(subject: ReportSource) -> str:
    return (
        "the curator, with both; nobody who reads the release is. For the curator: "
        f"{_secret(subject)}"
    )


def _secret(subject: ReportSource) -> str:
    return "; ".join(subject.body["stated"]["secret"])


def _membership(subject: ReportSource) -> str:
    stated = subject.body["stated"]
    rates = [
        f"{percent(row['at_most'])} % of used {name_protected_group(stated['unit'], many=True)} at "
        f"{100 * row['false_positive_rate']:g} % "
        f"false positives"
        for row in stated["true_positive_rates"]
    ]
    right = odds(stated["right_guesses"], subject.body["adjacency"], stated["unit"]["rows"])
    return (
        f"bounded for every attack, whatever it knows: {right} {describe_releases_together(subject)} "
        f"A test finds at most "
        f"{', '.join(rates)}. "
        f"{_audit(subject)}"
    )


def _audit(subject: ReportSource) -> str:
    audit = subject.audit
    if audit is None:
        return "No audit was given."
    return (
        f"Audit ({audit['attack']}, {audit['trials']:g} models): epsilon of at least "
        f"{format_rounded_down(audit['lower'])} at delta {audit['delta']:g} was shown; "
        + "; ".join([audit["verdict"], *describe_audit_gaps(subject)])
        + "."
    )


def _checks(subject: ReportSource) -> str:
    return f"lastiterate verify derives every number again. {_audit(subject)}"


def _versions(subject: ReportSource) -> str:
    other = subject.body["epsilon_replace_one"]
    if other is None:
        return "not bounded by this certificate"
    return (
        f"inferring a value is bounded as telling apart two versions of "
        f"{describe_versions(subject)} (replace-one): epsilon "
        f"{format_rounded_up(other)} at delta {subject.body['delta']:g}. What follows from the "
        "model about people in general is not bounded. No audit tried it."
    )


def _reconstruction(subject: ReportSource) -> str:
    unit = subject.body["stated"]["unit"]
    one, many = name_protected_group(unit), name_protected_group(unit, many=True)
    return (
        f"bounded as far as it distinguishes {many}: the chance of any outcome changes by at most "
        f"the guarantee when {one} does; content that many {many} share is not protected. No audit "
        "tried it."
    )


def _constant_text(text: str) -> Callable[[ReportSource], str]:
    return lambda _: text


NIST = (
    Row("privacy parameters", OURS, _privacy),
    Row("unit of privacy", BOTH, _unit),
    Row("mechanism", OURS, _mechanism),
    Row("utility, and for whom it is lower", BOTH, _utility),
    Row("correctness of the implementation", BOTH, _facts),
    Row("software, and where randomness is from", RELEASER, _software),
    Row(
        "side channels, floating point",
        BOTH,
        _constant_text(
            "see the caveats above; time and memory of training are not "
            "bounded, and refusals go to the data holder alone"
        ),
    ),
    Row("composition with other releases", BOTH, _composition),
    Row(
        "trust model",
        BOTH,
        _constant_text(
            "central: a trusted curator holds the data and trains; readers of the release are "
            "not trusted"
        ),
    ),
    Row("what must stay secret", BOTH, _secret),
    Row(
        "security and access control of the data",
        THEIRS,
        _constant_text("not covered: for the organisation to describe"),
    ),
    Row("exposure by collection", THEIRS, _collection),
)
EDPB = (
    Row("purpose and context", THEIRS, partial(read_statement_entry, name="purpose")),
    Row("membership inference", WITH_AUDIT, _membership),
    Row("attribute inference", BOTH, _versions),
    Row("reconstruction of training data, model inversion", BOTH, _reconstruction),
    Row(
        "exfiltration, regurgitation through queries",
        BOTH,
        _constant_text(
            "queries to the released model are post-processing: they add nothing to the guarantee, "
            "however many. Leaks of "
            "the data, of logs or of anything that must stay secret are not covered"
        ),
    ),
    Row("choice, minimisation and preparation of the data", THEIRS, _collection),
    Row("state-of-the-art tests", AUDITOR, _audit),
    Row("documentation", OURS, _facts),
    Row("other releases of the same data", BOTH, _composition),
    Row(
        "whether the model is anonymous",
        THEIRS,
        _constant_text(
            "not answered: the opinion asks for an assessment case by case, with all means "
            "reasonably likely to be used"
        ),
    ),
)
W3C = (
    Row("who or what is protected, and over which time", BOTH, _unit),
    Row("how strongly", OURS, _privacy),
    Row("what that means for a person", WITH_AUDIT, _membership),
    Row(
        "who is trusted with raw data, and with noise",
        BOTH,
        _describe_trust,
    ),
    Row("what happens over several releases", BOTH, _composition),
    Row("how useful the result is", BOTH, _utility),
    Row("where noise is added, and by which mechanism", OURS, _mechanism),
    Row("what is not protected", OURS, _not_protected),
    Row("how it can be checked", WITH_AUDIT, _checks),
)


def nist(subject: ReportSource) -> dict[str, str]:
    """NIST SP 800-226, from the tip of its pyramid to its base."""
    return _sheet(
        "Evidence for NIST SP 800-226",
        "Guidelines for Evaluating Differential Privacy Guarantees (NIST "
        "Special Publication 800-226, March 2025): the parts of its pyramid, from the tip to the "
        "base, and "
        "whose answer each is.",
        NIST,
        subject,
        "nist-sp-800-226.md",
    )


def edpb(subject: ReportSource) -> dict[str, str]:
    """EDPB Opinion 28/2024: what is bounded, what was tried, what is not covered."""
    return _sheet(
        "Evidence for EDPB Opinion 28/2024",
        "European Data Protection Board, Opinion 28/2024 on certain "
        "data protection aspects related to the processing of personal data in the context of AI "
        "models (17 "
        "December 2024): what the certificate bounds, what the audit tried, what neither covers. "
        "This is "
        "evidence for an assessment, not one.",
        EDPB,
        subject,
        "edpb-opinion-28-2024.md",
    )


def w3c(subject: ReportSource) -> dict[str, str]:
    """The dimensions of W3C's considerations for reviewers."""
    return _sheet(
        "Answers for reviewers",
        "W3C Privacy Working Group, Considerations for Reviewing Differential "
        "Privacy Systems (for Non-Differential Privacy Experts), draft note of February 2026: its "
        "dimensions, as questions in our words.",
        W3C,
        subject,
        "w3c-reviewers.md",
    )

"""What a report is about: a model folder, a certificate or a run, read and verified before anything
is shown."""

# pyright: basic
# what JSON holds is checked here, not known
from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from lastiterate.accounting.certificate import Certificate, account
from lastiterate.accounting.certificate_json import CheckResult
from lastiterate.curves.curve import Curve
from lastiterate.errors import InputError
from lastiterate.ledger.ledger import Ledger
from lastiterate.ledger.quote import Quote, quote_line
from lastiterate.release import folder as folders
from lastiterate.release.column_effects import Effect, column_effects
from lastiterate.release.fitted_linear import FittedLinear
from lastiterate.release.folder import SIGNATURE
from lastiterate.release.ledger_charge import hash_of
from lastiterate.release.model_kinds import kind_of
from lastiterate.release.noisy_accuracy import Accuracy
from lastiterate.release.released_model import ReleasedModel
from lastiterate.release.verification import verify, verify_folder
from lastiterate.run import serialization
from lastiterate.run.facts import Evidence
from lastiterate.run.run import Run

AUDIT = "audit.json"
"""A file of this name in a model folder is what ``lastiterate audit --json`` printed."""


@dataclass(frozen=True, eq=False)
class ReportSource:
    """``body``: the certificate as written, ``text`` its very bytes; ``certificate``: derived
    again, where it holds.

    ``weights``: name of the file that its hash is of. ``audit``: a report of an audit, which
    nothing checks. ``schema``: the public facts of the data. ``described``: a run that nobody has
    executed. ``ledger``: the line that it was charged to. ``accuracies``: those that noisy counts
    paid for. ``signed``: whether a signature is in the same folder. ``predicts``: the threshold in
    words, where a model has one.
    """

    name: str
    body: dict[str, Any]
    text: str
    checked: CheckResult
    certificate: Certificate | None = None
    weights: str | None = None
    audit: dict[str, Any] | None = None
    schema: dict[str, Any] | None = None
    described: bool = False
    ledger: Quote | None = None
    effects: tuple[Effect, ...] = ()
    accuracies: tuple[Accuracy, ...] = ()
    signed: bool = False
    predicts: str = ""

    @property
    def delta(self) -> float:
        return self.body["delta"]

    @property
    def statement(self) -> dict[str, Any]:
        """The releaser's statement in addition to the numbers; nothing in it is derived."""
        return self.body.get("word") or {}

    @property
    def software(self) -> dict[str, str]:
        """What the process that trained recorded of itself."""
        return self.body.get("software") or {}

    @property
    def certified(self) -> Certificate:
        """The certificate, which parts of a page are made of where it holds; ``InputError`` where
        it does not."""
        if self.certificate is None:
            raise InputError(
                "certificate", "does not hold", next(iter(self.checked.problems), None)
            )
        return self.certificate

    @property
    def run(self) -> Run | None:
        """The run that is certified, where there is one."""
        return self.certified.subject.run

    @cached_property
    def curve(self) -> Curve | None:
        """The curve that certifies (the best one at delta), or ``None``."""
        return self.certified.best_curve(self.delta)

    @property
    def refuted(self) -> bool:
        """Whether an audit contradicts the certificate."""
        if self.audit is None:
            return False
        return self.audit["refuted"] is True or self.audit["lower"] > self.certified.epsilon(
            self.audit["delta"]
        )


def read(
    path: str | Path,
    *,
    audit: str | Path | None = None,
    delta: float = 1e-5,
    min_evidence: Evidence = Evidence.ENFORCED,
    ledger: str | Path | Ledger | None = None,
    page: bool = True,
) -> ReportSource:
    """The subject at ``path``: a model folder, a certificate, or a run (accounted for at ``delta``
    on facts of ``min_evidence``). ``ledger``: the file that a model was charged to, whose line is
    quoted. ``page``: whether the page in a folder must be the one that its list has."""
    subject = _read(path, audit=audit, delta=delta, min_evidence=min_evidence, page=page)
    return subject if ledger is None else _with_quote(subject, ledger)


def read_verified(
    folder: Path,
    checked: CheckResult,
    *,
    audit: Path | None = None,
    ledger: Path | None = None,
    releases: int | None = None,
) -> list[ReportSource]:
    """The subject of a folder of which ``checked`` is the verification; once more with the audit
    in the folder, if there is one and no other is given.

    ``releases``: how many charges of the ledger the quote counts; by default all.
    """
    alone = _of_stored(folders.read(folder), checked, audit)
    if ledger is not None:
        alone = replace(alone, ledger=_quote(alone, ledger, releases))
    if audit is not None or not (folder / AUDIT).is_file():
        return [alone]
    try:
        return [replace(alone, audit=_audit(folder / AUDIT, alone.certified)), alone]
    except InputError:  # no page can be made of it
        return [alone]


def subject_of_release(
    stored: folders.StoredModel, model: ReleasedModel, ledger: Ledger | None = None
) -> ReportSource:
    """The subject of a folder that was just written: nothing of it is read back, and every number
    is derived again as ``verify`` does."""
    checked = Certificate.check(stored.certificate)
    problems = (*stored.damage(), *checked.problems)
    subject = _of_stored(stored, replace(checked, problems=problems), None, model)
    return subject if ledger is None else _with_quote(subject, ledger)


def _with_quote(subject: ReportSource, ledger: str | Path | Ledger) -> ReportSource:
    """The subject with its ledger's line, where it holds."""
    if not subject.checked.holds:
        return subject
    return replace(subject, ledger=_quote(subject, ledger))


def _quote(
    subject: ReportSource, ledger: str | Path | Ledger, releases: int | None = None
) -> Quote:
    """The line of the subject's weights, if it is about what is certified."""
    book = ledger if isinstance(ledger, Ledger) else Ledger(Path(ledger))
    quote = quote_line(book, subject.body.get("weights_sha256") or "", releases)
    if quote.run != hash_of(subject.certified.subject.describe_charge()):
        raise InputError(
            "ledger",
            "has a line of these weights that is about another run",
            quote.number,
            "the certificate or the ledger was changed",
        )
    return quote


def _read(
    path: str | Path, *, audit: str | Path | None, delta: float, min_evidence: Evidence, page: bool
) -> ReportSource:
    place = folders.to_path(path, "path")
    if place.is_dir():
        if audit is None and (place / AUDIT).is_file():
            audit = place / AUDIT
        return _of_stored(folders.read(place), verify_folder(place, page=page), audit)
    body = serialization.read(place, "run or certificate")
    if isinstance(body, dict) and "content_sha256" in body:
        return _of(
            place.name, body, place.read_text(encoding="utf-8"), verify(place), audit, None, None
        )
    certificate = account(Run.from_dict(body), min_evidence=min_evidence)
    text = certificate.to_json(delta)
    subject = _of(
        place.name,
        json.loads(text),
        text,
        CheckResult((), None, delta),
        audit,
        None,
        None,
        certificate,
    )
    return replace(subject, described=True)


def _of_stored(
    stored: folders.StoredModel,
    checked: CheckResult,
    audit: str | Path | None,
    model: ReleasedModel | None = None,
) -> ReportSource:
    """``model``: where it is at hand."""
    made = _of(
        stored.path.resolve().name,
        stored.certificate,
        stored.text,
        checked,
        audit,
        folders.WEIGHTS,
        stored.model.get("schema"),
        None if model is None else model.certificate,
    )
    if not made.checked.holds:
        return made
    if model is None:
        kind = kind_of(stored.model, stored.certificate)
        model = kind.read(stored, None) if kind.find_missing_library() is None else None
    linear = model if isinstance(model, FittedLinear) else None
    return replace(
        made,
        signed=(stored.path / SIGNATURE).is_file(),
        accuracies=() if linear is None else linear.accuracies,
        predicts=getattr(getattr(model, "answers", None), "about_threshold", ""),
        effects=() if linear is None or made.schema is None else column_effects(linear),
    )


def _of(
    name: str,
    body: dict[str, Any],
    text: str,
    checked: CheckResult,
    audit: str | Path | None,
    weights: str | None,
    schema: object,
    certificate: Certificate | None = None,
) -> ReportSource:
    if not checked.holds:
        return ReportSource(name, body, text, checked)
    derived = Certificate.from_dict(body) if certificate is None else certificate
    if (
        body["format"] == 1
    ):  # what it states is derived, so that it can be shown for an old certificate as well
        body = body | {"stated": json.loads(json.dumps(derived.to_dict(body["delta"])["stated"]))}
    return ReportSource(
        name,
        body,
        text,
        checked,
        derived,
        weights if body.get("weights_sha256") else None,
        _audit(audit, derived),
        schema if isinstance(schema, dict) else None,
    )


NUMBERS = ("trials", "failure", "delta", "lower", "ceiling")


def _audit(path: str | Path | None, certificate: Certificate) -> dict[str, Any] | None:
    """An audit's report as ``lastiterate audit --json`` prints it; anything else is refused, and
    one of another run."""
    if path is None:
        return None
    report = serialization.read(Path(path), "audit")
    if (
        not isinstance(report, dict)
        or not isinstance(report.get("refuted"), bool)
        or not all(
            isinstance(report.get(name), int | float) and not isinstance(report.get(name), bool)
            for name in NUMBERS
        )
        or not all(isinstance(report.get(name), str) for name in ("attack", "verdict"))
    ):
        raise InputError("audit", "must be what lastiterate audit --json printed", str(path))
    if report.get("run_sha256", own := hash_of(certificate.subject.describe_charge())) != own:
        raise InputError(
            "audit", "is of another run than the certificate's", str(path), "audit this one"
        )
    if not all(
        isinstance(texts, list) and all(isinstance(text, str) for text in texts)
        for texts in (report.get(name, []) for name in ("not_executed", "not_attacked"))
    ) or not all(
        report.get(name) is None or type(report[name]) in (int, float)
        for name in ("upper", "upper_whole")
    ):
        raise InputError("audit", "must be what lastiterate audit --json printed", str(path))
    rates = report.get("rates", [])
    if not isinstance(rates, list) or not all(
        isinstance(rate, dict)
        and all(
            isinstance(rate.get(name), int | float) and 0 <= rate[name] <= 1
            for name in ("fpr_upper", "fnr_upper")
        )
        for rate in rates
    ):
        raise InputError("audit", "must hold error rates between 0 and 1", str(path))
    return report | {"rates": rates}

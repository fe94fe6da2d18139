"""A certificate: what it is about, the numbers that follow, and the words and the JSON that state
them."""

# arguments are checked because callers are not
# pyright: reportUnnecessaryIsInstance=false
from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any, TypeVar, final

from lastiterate.accounting import document, explain, guarantee
from lastiterate.accounting.accounted_run import AccountedRun
from lastiterate.accounting.comparison import Checked, differences, proper_delta
from lastiterate.accounting.document import bibtex
from lastiterate.accounting.exact_noise import ExactRun
from lastiterate.accounting.guarantee import Guarantee
from lastiterate.accounting.selection import Selection
from lastiterate.accounting.subjects import Subject, as_unit_name
from lastiterate.accounting.unlearning import Unlearning
from lastiterate.errors import InputError, NotCertified
from lastiterate.run import serialization
from lastiterate.run.facts import Evidence
from lastiterate.run.run import Run, check_described

SUBJECTS: dict[str, type[Subject]] = {
    kind.entry: kind for kind in (AccountedRun, ExactRun, Selection, Unlearning)
}
"""What a written certificate can be about, by the entry that describes it; ``register`` adds
others."""
LATE = {"problem": "lastiterate.bayes.subject"}
"""Entries whose kind of subject is registered when its module is imported."""


Kind = TypeVar("Kind", bound=Subject)


def register(kind: type[Kind]) -> type[Kind]:
    """Add a kind of subject; an entry that is taken is refused."""
    if SUBJECTS.setdefault(kind.entry, kind) is not kind:
        raise InputError("entry", "must be of one kind of subject", kind.entry)
    return kind


def entry_of(stored: Mapping[str, Any]) -> str:
    """The entry that says what a written certificate is about; one that says two things, or none,
    is refused."""
    entries = [entry for entry in dict.fromkeys((*SUBJECTS, *LATE)) if entry in stored]
    if len(entries) != 1:
        raise InputError(
            "certificate",
            "must be one that lastiterate wrote: about a run, or a posterior's problem",
            " and ".join(entries) or None,
        )
    return entries[0]


@final
@dataclass(frozen=True, repr=False)
class Certificate(Guarantee):
    """The privacy of one release: ``epsilon(delta)``, ``best(delta)``, ``explain(delta)``,
    ``verify()``.

    ``verdicts``: one per theorem, with the facts it used or why it fails. ``caveats``: what no
    theorem covers.

    **Guarantee:** ``epsilon(delta)`` is an upper bound under the subject's adjacency, if what it
    describes was executed as described and its facts of evidence below ``ENFORCED`` (if any were
    admitted) are true.
    """

    @classmethod
    def derived(cls, stored: dict[str, Any]) -> Certificate:
        """What follows from what is written; nothing is compared yet."""
        entry = entry_of(stored)
        if entry not in SUBJECTS:
            import_module(LATE[entry])
        return cls(SUBJECTS[entry].read(stored), unit=_unit_of(stored))

    @classmethod
    def check(cls, stored: dict[str, Any]) -> Checked:
        """Derive the facts again and recompute everything from the subject; compare with what is
        written.

        A certificate that was re-issued as a whole cannot be distinguished from an honest one
        without a signature.
        """
        delta, fresh = proper_delta(stored), cls.derived(stored)
        try:
            fresh.check_lower_bounds(delta)
        except NotCertified as contradiction:
            return Checked((str(contradiction),), stored.get("epsilon"), delta)
        return Checked(
            tuple(differences(stored, fresh, delta)),
            stored.get("epsilon"),
            delta,
            fresh.condition,
            limit=fresh.subject.limit,
        )

    @classmethod
    def from_dict(cls, stored: dict[str, Any]) -> Certificate:
        """The certificate that is written, derived again; refused when what is written differs."""
        delta, fresh = proper_delta(stored), cls.derived(stored)
        if problems := differences(stored, fresh, delta):
            raise InputError("certificate", "does not hold", problems[0], "ask for the original")
        own = fresh.all_caveats()
        return replace(fresh, caveats=tuple(text for text in stored["caveats"] if text not in own))

    @classmethod
    def from_json(cls, text: str | bytes) -> Certificate:
        """The certificate written in ``text`` (JSON); ``InputError`` when anything in it does not
        follow."""
        stored = serialization.loads(text, "certificate")
        if not isinstance(stored, dict):
            raise InputError(
                "certificate",
                "must be one that lastiterate wrote, a JSON object",
                type(stored).__name__,
            )
        return cls.from_dict(stored)  # pyright: ignore[reportUnknownArgumentType]

    def why_not(self) -> str:
        """Why nothing certifies the run: every reason, and the theorems it concerns."""
        return explain.why_not(self)

    def nearest(self) -> str:
        """What the theorem lacks that comes nearest to certifying the run."""
        return explain.nearest(self)

    def explain(self, delta: float, *, all: bool = False) -> str:
        """The answer in words: epsilon, what a record is, the theorem and its conditions, what else
        applies.

        ``all``: also the theorems that do not apply, and why.
        """
        return explain.in_words(self, delta, all)

    def cite(self) -> str:
        """BibTeX of what the certificate rests on, and of the theorems whose lower bounds it is
        compared with."""
        return bibtex(*self.subject.sources())

    def __repr__(self) -> str:
        names, words = len(self.certifying), self.subject.words
        said = (
            f"{names} of {len(self.verdicts)} theorems certify it"
            if names
            else "no theorem certifies it"
        )
        return f"<Certificate of {words.short}: {said if self.verdicts else words.by}>"

    def _repr_html_(self) -> str:
        return explain.for_notebooks(self)

    def rows(self, delta: float) -> list[dict[str, Any]]:
        """One JSON-ready row per theorem (``epsilon`` is ``None`` where it fails or is infinite)."""
        return guarantee.rows(self, delta)

    def answer(self, delta: float) -> dict[str, Any]:
        """What ``lastiterate account --json`` prints."""
        return document.answer(self, delta)

    def to_dict(self, delta: float, *, files: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The certificate as it is stored; ``content_sha256`` covers everything else, ``files`` a
        model's hashes."""
        return document.document(self, delta, files or {})

    def to_json(self, delta: float) -> str:
        """``to_dict`` as JSON text."""
        return json.dumps(self.to_dict(delta), indent=2)

    def verify(self) -> bool:
        """Whether accounting the subject again, by the whole table, gives the same."""
        held, fresh = self.subject, self.subject.fresh()
        return fresh.verdicts == held.verdicts and fresh.curves == held.curves


def _unit_of(stored: Mapping[str, Any]) -> str:
    """What a written certificate calls its unit; "" where a record is a row."""
    match stored.get("stated"):
        case {"unit": {"name": str(name)}} if as_unit_name(name) == name:
            return name
        case {"unit": {"name": name}}:
            raise InputError(
                "certificate", "must call its unit by a printable name", type(name).__name__
            )
        case _:
            return ""


read_certificate = Certificate.from_json


def account(run: Run, *, at_least: Evidence = Evidence.ENFORCED) -> Certificate:
    """Every theorem's verdict on ``run``; certificates rest on facts of evidence ``at_least`` or
    stronger.

    Looks at public numbers only. Where no theorem certifies the run, epsilon is infinite and
    ``why_not()`` lists the reasons. Errors: ``InputError`` where the run's noise is still to be
    calibrated, or is no ``Run``.

    **Guarantee:** only theorems of kind ``upper`` or ``exact`` whose assumptions all hold can
    certify.
    """
    if not isinstance(at_least, Evidence):
        raise InputError(
            "at_least",
            "must be an Evidence",
            at_least,
            "use lastiterate.Evidence.ENFORCED or ASSUMED",
        )
    check_described(run)
    certificate = Certificate(AccountedRun(run, at_least))
    _ = certificate.verdicts  # what cannot be accounted is refused here
    return certificate

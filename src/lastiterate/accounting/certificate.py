"""Certificates: their subject, the numbers that follow, and their words and JSON."""

# arguments are checked because callers are not
# pyright: reportUnnecessaryIsInstance=false
from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any, TypeVar, final

from lastiterate import plugins
from lastiterate.accounting import document, explain, guarantee
from lastiterate.accounting.accounted_run import AccountedRun
from lastiterate.accounting.certificate_subject import (
    CertificateSubject,
    name_protected,
    to_unit_name,
)
from lastiterate.accounting.document import bibtex
from lastiterate.accounting.exact_run import ExactRun
from lastiterate.accounting.guarantee import Guarantee
from lastiterate.accounting.private_selection import Selection
from lastiterate.accounting.unlearning import Unlearning
from lastiterate.accounting.verification import (
    CheckResult,
    differences,
    list_uncompared,
    proper_delta,
)
from lastiterate.errors import InputError, NotCertified
from lastiterate.lazy import RenamedAttribute, accept_old_names
from lastiterate.run import serialization
from lastiterate.run.facts import Evidence
from lastiterate.run.run import Run, check_described
from lastiterate.written_certificate import entry_of

SUBJECTS: dict[str, type[CertificateSubject]] = {
    kind.entry: kind for kind in (AccountedRun, ExactRun, Selection, Unlearning)
}
"""Kinds of subjects of a written certificate, by the entry that describes them; ``register`` adds
others."""
LATE = {"problem": "lastiterate.bayes.posterior_subject"}
"""Entries whose kind of subject is registered when its module is imported."""


Kind = TypeVar("Kind", bound=CertificateSubject)


def register(kind: type[Kind]) -> type[Kind]:
    """Add a kind of subject; an entry that is taken is refused."""
    if SUBJECTS.setdefault(kind.entry, kind) is not kind:
        raise InputError("entry", "must be of one kind of subject", kind.entry)
    return kind


@final
@dataclass(frozen=True, repr=False)
class Certificate(Guarantee):
    """The privacy guarantee of one release, with all that it follows from.

    `account`, `calibrate` and `train` return it. Its numbers are derived from its ``subject`` each
    time; none are stored.

    Parameters
    ----------
    subject : Subject
        Object of the certificate: a run and the evidence asked for, a selection among candidates,
        an unlearning, or a posterior sample.
    caveats : tuple of str, default ()
        Notes of the executor on what no theorem covers.
    unit : str, default ""
        Name of the protected unit, such as "patient"; empty where every record is its own unit.

    See Also
    --------
    account : Certify a run whose noise is stated.
    verify : Derive a written certificate again.

    Notes
    -----
    **Guarantee:** ``epsilon(delta)`` is an upper bound under the subject's adjacency. It holds if
    the release was executed as described, and if facts of weaker evidence than ``ENFORCED`` are
    true where some were admitted. ``explain(delta)`` names the theorem, and ``cite()`` its source.

    Examples
    --------
    >>> import lastiterate as li
    >>> run = li.Run(
    ...     n=1000, steps=20, step_size=0.5, noise=li.NoiseMultiplier(50.0), loss=li.Logistic()
    ... )
    >>> certificate = li.account(run)
    >>> certificate.epsilon(1e-6) > certificate.epsilon(1e-5)
    True
    >>> certificate.verify(), certificate.adjacency
    (True, 'zero-out')
    >>> li.Certificate.from_json(certificate.to_json(1e-5)) == certificate
    True
    """

    derived = RenamedAttribute("from_stored")

    @classmethod
    def from_stored(cls, stored: dict[str, Any]) -> Certificate:
        """Derive a certificate from what is written, and compare nothing yet.

        Parameters
        ----------
        stored : dict
            Certificate as ``to_dict`` writes it.

        Returns
        -------
        Certificate
            Certificate of the written subject.
        """
        entry = entry_of(stored)
        if "plugins" in stored:
            plugins.check_named(stored["plugins"])
        if entry not in SUBJECTS:
            import_module(LATE[entry])
        return cls(SUBJECTS[entry].read(stored), unit=_unit_of(stored))

    @classmethod
    def check(cls, stored: dict[str, Any]) -> CheckResult:
        """Derive a written certificate again and compare every number with the written one.

        A certificate that was issued again as a whole cannot be distinguished from an honest one
        without a signature.

        Parameters
        ----------
        stored : dict
            Certificate as ``to_dict`` writes it.

        Returns
        -------
        Checked
            Problems that were found; empty where the certificate holds.
        """
        delta, fresh = proper_delta(stored), cls.from_stored(stored)
        try:
            replace(fresh, subject=fresh.subject.with_lower_bounds()).check_lower_bounds(delta)
        except NotCertified as contradiction:
            return CheckResult((str(contradiction),), stored.get("epsilon"), delta)
        described = fresh.subject.describe_unit(fresh.unit)
        return CheckResult(
            tuple(differences(stored, fresh, delta)),
            stored.get("epsilon"),
            delta,
            fresh.condition,
            list_uncompared(stored),
            limit=fresh.subject.limit,
            adjacency=fresh.adjacency,
            epsilon_replace_one=stored.get("epsilon_replace_one"),
            unit=fresh.unit,
            rows=described["rows"],
            protects=name_protected(described, stored.get("caveats")),
            plugins=_list_marks(stored, fresh),
        )

    @classmethod
    def from_dict(cls, stored: dict[str, Any]) -> Certificate:
        """Read a written certificate, and derive it again.

        Parameters
        ----------
        stored : dict
            Certificate as ``to_dict`` writes it.

        Returns
        -------
        Certificate
            Certificate of the written subject.

        Raises
        ------
        InputError
            If anything that is written does not follow from the subject.
        """
        delta, fresh = proper_delta(stored), cls.from_stored(stored)
        if problems := differences(stored, fresh, delta):
            raise InputError("certificate", "does not hold", problems[0], "ask for the original")
        own = fresh.all_caveats()
        return replace(fresh, caveats=tuple(text for text in stored["caveats"] if text not in own))

    @classmethod
    def from_json(cls, text: str | bytes) -> Certificate:
        """Read a certificate from JSON text, and derive it again.

        `lastiterate.read_certificate` is this function.

        Parameters
        ----------
        text : str or bytes
            JSON text as ``to_json`` writes it.

        Returns
        -------
        Certificate
            Certificate of the written subject.

        Raises
        ------
        InputError
            If anything that is written does not follow from the subject.

        Examples
        --------
        >>> import lastiterate as li
        >>> run = li.Run(n=100, steps=5, step_size=0.1, clip=1.0, noise=li.NoiseMultiplier(9.0))
        >>> text = li.account(run).to_json(1e-5)
        >>> li.read_certificate(text).run == run
        True
        """
        stored = serialization.loads(text, "certificate")
        if not isinstance(stored, dict):
            raise InputError(
                "certificate",
                "must be one that lastiterate wrote, a JSON object",
                type(stored).__name__,
            )
        return cls.from_dict(stored)  # pyright: ignore[reportUnknownArgumentType]

    def why_not(self) -> str:
        """Explain why no theorem certifies the run.

        Returns
        -------
        str
            Every reason, with the theorems that it concerns.
        """
        return explain.explain_refusal(self)

    def nearest(self) -> str:
        """Name the missing assumption of the theorem that comes nearest to certifying the run.

        Returns
        -------
        str
            One sentence.
        """
        return explain.nearest(self)

    def explain(self, delta: float, *, all: bool = False) -> str:
        """Explain the guarantee in words.

        Parameters
        ----------
        delta : float
            Delta at which epsilon is stated.
        all : bool, default False
            Whether to list also theorems that do not apply, with the reasons.

        Returns
        -------
        str
            Epsilon, the meaning of a record, the theorem with its conditions, and other bounds.
        """
        return explain.explain_in_words(self, delta, all)

    def cite(self) -> str:
        """Cite the sources of the certificate.

        Returns
        -------
        str
            BibTeX of the theorems used, and of the lower bounds that they are compared with.
        """
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
        return explain.render_html(self)

    def rows(self, delta: float) -> list[dict[str, Any]]:
        """Return one JSON-ready row per theorem.

        Parameters
        ----------
        delta : float
            Delta at which epsilon is stated.

        Returns
        -------
        list of dict
            Rows in the order of the theorems; ``epsilon`` is ``None`` where a theorem fails or its
            epsilon is infinite.
        """
        return guarantee.rows(self, delta)

    def answer(self, delta: float) -> dict[str, Any]:
        """Return the result that ``lastiterate account --json`` prints.

        Parameters
        ----------
        delta : float
            Delta at which epsilon is stated.

        Returns
        -------
        dict
            JSON-ready result.
        """
        return document.answer(self, delta)

    def to_dict(self, delta: float, *, files: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return the certificate as files store it.

        Parameters
        ----------
        delta : float
            Delta at which epsilon is stated.
        files : mapping of str to object, optional
            Hashes of a model's files, by name.

        Returns
        -------
        dict
            JSON-ready certificate; its ``content_sha256`` covers every other entry.
        """
        return document.document(self, delta, files or {})

    def to_json(self, delta: float) -> str:
        """Return the certificate as JSON text.

        Parameters
        ----------
        delta : float
            Delta at which epsilon is stated.

        Returns
        -------
        str
            JSON text that `read_certificate` reads.
        """
        return json.dumps(self.to_dict(delta), indent=2)

    def verify(self) -> bool:
        """Check that accounting the subject again gives the same verdicts and curves.

        Returns
        -------
        bool
            Whether it does.
        """
        held, fresh = self.subject, self.subject.fresh()
        return fresh.verdicts == held.verdicts and fresh.curves == held.curves


def _list_marks(stored: Mapping[str, Any], fresh: Certificate) -> tuple[str, ...]:
    """List the marks of plug-ins: those that follow, and those that the executor added."""
    written = stored.get("caveats")
    listed = written if serialization.is_list(written) else []
    added = [text for text in listed if isinstance(text, str) and plugins.is_mark(text)]
    return tuple(dict.fromkeys((*(part.words for part in fresh.subject.outside), *added)))


def _unit_of(stored: Mapping[str, Any]) -> str:
    """Return the name of a written certificate's unit; "" where every record is its own unit."""
    match stored.get("stated"):
        case {"unit": {"name": str(name)}} if to_unit_name(name) == name:
            return name
        case {"unit": {"name": name}}:
            raise InputError(
                "certificate", "must call its unit by a printable name", type(name).__name__
            )
        case _:
            return ""


read_certificate = Certificate.from_json


@accept_old_names("account", at_least="min_evidence")
def account(run: Run, *, min_evidence: Evidence = Evidence.ENFORCED) -> Certificate:
    """Certify a described run with every theorem whose assumptions hold.

    It reads public numbers only. Where no theorem certifies the run, epsilon is infinite and
    ``why_not()`` of the certificate lists the reasons.

    Parameters
    ----------
    run : Run
        Description of the run, with its noise stated.
    min_evidence : Evidence, default Evidence.ENFORCED
        Weakest evidence of the facts that a certificate may rest on.

    Returns
    -------
    Certificate
        Verdicts of all theorems, with their epsilon and delta.

    Raises
    ------
    InputError
        If ``run`` is no `Run`, or its noise is still to be calibrated.

    See Also
    --------
    calibrate : Find the least noise for a budget.

    Notes
    -----
    **Guarantee:** only theorems of kind ``upper`` or ``exact`` whose assumptions all hold can
    certify. docs/guides/which-theorem says which theorem covers which run.

    Examples
    --------
    >>> import lastiterate as li
    >>> run = li.Run(
    ...     n=1000, steps=20, step_size=0.5, noise=li.NoiseMultiplier(50.0), loss=li.Logistic()
    ... )
    >>> certificate = li.account(run)
    >>> certificate.epsilon(1e-5) < 1, certificate.best(1e-5).theorem.kind
    (True, 'upper')
    """
    if not isinstance(min_evidence, Evidence):
        raise InputError(
            "min_evidence",
            "must be an Evidence",
            min_evidence,
            "use lastiterate.Evidence.ENFORCED or ASSUMED",
        )
    check_described(run)
    certificate = Certificate(AccountedRun(run, min_evidence))
    _ = certificate.verdicts  # what cannot be accounted is refused here
    return certificate

"""Certificates: their subject, the numbers that follow, and their words and JSON."""

# arguments are checked because callers are not
# pyright: reportUnnecessaryIsInstance=false

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any, TypeVar, final

from lastiterate import plugins
from lastiterate.accounting import certificate_json, explain, guarantee
from lastiterate.accounting.accounted_run import AccountedRun, ExactRun
from lastiterate.accounting.certificate_json import (
    CheckResult,
    bibtex,
    differences,
    list_uncompared,
    proper_delta,
)
from lastiterate.accounting.certificate_subject import (
    CertificateSubject,
    calibration_curve,
    curves_of_preprocessing,
    name_protected,
    to_unit_name,
    with_later_parts,
)
from lastiterate.accounting.guarantee import Guarantee
from lastiterate.accounting.private_selection import Selection
from lastiterate.accounting.unlearning import Unlearning
from lastiterate.certificate_statement import entry_of
from lastiterate.curves.curve import BestOf, Curve, Grouped, WithFailure
from lastiterate.curves.gaussian import Gdp, GdpMixture
from lastiterate.curves.selection import WorstOf
from lastiterate.errors import InputError, NotCertified
from lastiterate.lazy import RenamedAttribute, accept_old_names
from lastiterate.run import serialization
from lastiterate.run.facts import Evidence
from lastiterate.run.run import Run, check_described

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
        return certificate_json.answer(self, delta)

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
        return certificate_json.document(self, delta, files or {})

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


# Executed noise ends 36 standard deviations from 0: what a release says whose guarantee needs
# longer draws.
#
# Let all draws of a release be pairs of normals without those of a radius beyond R. A pair of a step
# is moved by s_i standard deviations where the data differ. With P and Q the distributions of the
# proofs, and a the probability (the same for both) that no draw is too long, the executed
# distributions are those of draws that are not, and for every event E
#
#     P'(E) - e^eps Q'(E) <= (delta(eps) + Pr_P[no draw is too long, but some moved pair lies outside
#     of Q's]) / a.
#
# A pair that is moved by s does so with probability at most e^{-(R - s)^2/2} - e^{-R^2/2}: by
# convexity at most 4.5 R s e^{-R^2/2} up to s = 2.5/R, and above at most (s/m)^2 e^{-(R - m)^2/2} for
# s <= m < R - 1/4, as (R - s) s > 2 there (R >= 10). So T steps that are moved by at most m each, of
# N pairs each, lose at most
#
#     T (4.5 R m sqrt(N) e^{-R^2/2} + e^{-(R - m)^2/2}).

REACH = 36.6
"""Radius up to which every pair of draws is distributed as the normal distribution says: the
generator's last 2^-969 lie beyond 36.65."""
SHARE = 0.01
"""Part of delta that may be lost: enforced sensitivities are counted 1 % too long, which is worth
more."""
PAIRS = 2.0**32
"""More than a step draws."""


def delta_beyond_support(certificate: Certificate, delta: float) -> float:
    """Return an upper bound on the delta that is lost because executed noise ends at ``REACH``."""
    run = certificate.run
    lost = run.steps * lost_by_one(_farthest_step(certificate, delta))
    lost += sum(lost_by_one(_mu(curve)) for curve in curves_of_preprocessing(run))
    if run.probability_calibration is not None:
        lost += run.probability_calibration.rounds * lost_by_one(_mu(calibration_curve(run)))
    alone = replace(run, probability_calibration=None)
    return lost + sum(
        lost_by_one(_mu(with_later_parts(Gdp(0.0), replace(alone, counts=(count,)))))
        for count in run.counts
    )


def lost_by_one(moved: float, reach: float = REACH) -> float:
    """Return the delta lost by one step whose draws hide ``moved`` and end at ``reach``.

    Both are standard deviations.
    """
    if moved >= reach - 0.25:
        return 1.0
    return 4.5 * reach * moved * math.sqrt(PAIRS) * math.exp(-(reach**2) / 2) + math.exp(
        -((reach - moved) ** 2) / 2
    )


def support_caveats(certificate: Certificate, delta: float) -> tuple[str, ...]:
    """Return the caveats of a release whose guarantee needs longer draws than the generator has.

    They hold public numbers only.
    """
    return _caveats(delta_beyond_support(certificate, delta), delta)


def caveats_of_one(moved: float, delta: float) -> tuple[str, ...]:
    """Return the same for one value that is released with noise."""
    return _caveats(lost_by_one(moved), delta)


def _caveats(lost: float, delta: float) -> tuple[str, ...]:
    if lost <= SHARE * delta:
        return ()
    worst = min(1.0, lost * (1 + 1e-3))
    return (
        "executed draws of noise end at 36 standard deviations, but a record is hidden by longer "
        f"ones: delta is "
        f"up to {worst:.3g} larger than {delta:g}; use more noise in every step, or "
        f"secure_noise=True",
    )


def _farthest_step(certificate: Certificate, delta: float) -> float:
    """Return the most standard deviations that a step's noise hides.

    For steps without noise, the later steps hide them.
    """
    run = certificate.run
    if not run.method.noisy_steps or float(run.noise_stds.min()) > 0:
        return run.method.farthest_draw(run)
    best = certificate.best(delta)
    return math.inf if best is None or not isinstance(best.bound, Curve) else _mu(best.bound)


def _mu(curve: Curve) -> float:
    """Return mu of the farthest Gaussian mechanism in ``curve``; infinite for anything else."""
    match curve:
        case Gdp(mu):
            return mu
        case GdpMixture(_, mus):
            return max(mus)
        case WithFailure():
            return _mu(curve.curve)
        case Grouped(one, size):  # a sum moves at most so many times as far
            return size * _mu(one)
        case BestOf() | WorstOf():
            return max(_mu(part) for part in curve.curves)
        case _:
            return math.inf

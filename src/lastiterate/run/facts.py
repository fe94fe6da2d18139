"""Facts: constants with their evidence, and those of a loss that hold after clipping, too."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields, replace
from enum import IntEnum
from typing import final

from lastiterate.errors import InputError
from lastiterate.run.serialization import normalise_fields
from lastiterate.run.validation import RANGE

# Facts.


class Evidence(IntEnum):
    """The strength of a fact, from the caller's word to a proof.

    A conclusion is as strong as the weakest fact that it rests on. From weak to strong:

    - ``ASSUMED``: the caller's word.
    - ``TESTED``: survived a search for a counterexample.
    - ``PAID``: measured on the private data by a mechanism that the certificate accounts for.
    - ``ENFORCED``: made true by the run itself, such as by clipping.
    - ``PROVED``: follows from other facts by a cited lemma.

    Parameters
    ----------
    value : int
        Number of a level, from 1 to 5.

    Examples
    --------
    >>> import lastiterate as li
    >>> li.Evidence.ASSUMED < li.Evidence.ENFORCED
    True
    >>> li.Evidence.PAID.satisfies(li.Evidence.ENFORCED)
    True
    """

    ASSUMED = 1  #: the caller's word
    TESTED = 2  #: survived a search for a counterexample
    #: measured on the private data by a mechanism whose curve and failure are part of the
    #: certificate
    PAID = 3
    ENFORCED = 4  #: made true by what the run itself does (clip records, project, draw batches)
    PROVED = 5  #: follows from other facts by a cited lemma

    def satisfies(self, asked: Evidence) -> bool:
        """Return whether it is good enough where ``asked`` is; paid counts as enforced."""
        return self >= asked or (self is Evidence.PAID and asked is Evidence.ENFORCED)


@final
@dataclass(frozen=True)
class Fact:
    """A constant that holds for every data set and every neighbour of it, with its reason.

    Parameters
    ----------
    value : float
        The number.
    why : str, default "given by the caller"
        Reason why it holds.

    Raises
    ------
    InputError
        If ``value`` is not a number.

    Notes
    -----
    **Guarantee:** callers can only make ``ASSUMED`` facts. The library's own derivations make
    stronger ones, and only for the loss that they are derived for.

    Examples
    --------
    >>> import lastiterate as li
    >>> li.Fact(2.0, "bounded by the sensor").evidence.name
    'ASSUMED'
    """

    value: float
    why: str = "given by the caller"
    evidence: Evidence = field(default=Evidence.ASSUMED, init=False)

    def __post_init__(self) -> None:
        normalise_fields(self)
        if math.isnan(self.value):
            raise InputError(
                "a fact's value", "must be a number", self.value, "give the constant itself"
            )

    @property
    def json_type(self) -> str:
        """Name of the type in JSON.

        Evidence above ``TESTED`` is derived again by whoever reads, and never written.
        """
        return TestedFact.__name__ if self.evidence is Evidence.TESTED else type(self).__name__


@final
@dataclass(frozen=True)
class TestedFact:
    """The JSON form of a fact that survived a search for a counterexample."""

    value: float
    why: str

    def stands_for(self) -> Fact:
        """The fact that is described."""
        return mint(Fact(self.value, self.why).value, Evidence.TESTED, self.why)


def mint(value: float, evidence: Evidence, why: str) -> Fact:
    """A fact of any strength; for derivations inside this library only."""
    fact = Fact(float(value), why)
    object.__setattr__(fact, "evidence", evidence)
    return fact


def downgrade_fact(fact: Fact) -> Fact:
    """Return a fact with the evidence that it keeps when a caller passes it to another loss.

    A fact that a run enforced, a measurement paid for or a lemma proved holds for that run only:
    for another loss it is the caller's statement. A fact for which a search found no
    counterexample keeps that evidence and says what was searched.
    """
    return (
        fact
        if fact.evidence <= Evidence.TESTED
        else Fact(fact.value, f"given by the caller; elsewhere: {fact.why}")
    )


def weakest(*facts: Fact) -> Evidence:
    """Evidence of a conclusion drawn from ``facts`` (``PROVED`` when there are none)."""
    return min((fact.evidence for fact in facts), default=Evidence.PROVED)


# Constants of a loss.

CHUNK = 256
"""Records whose gradients the trainer may add in float32 before it continues in float64."""


FLOAT_SLACK = 1.25 * 2.0**-7
"""Relative allowance of enforced sensitivities for float32 arithmetic.

Gradients are summed in float32 over chunks of at most 256 records, and the chunks in float64. A
neighbour differs in one chunk, whose two computed sums are each within gamma_256 * 256 L of the
exact ones (Higham 2002, section 3.1: gamma_m = m u / (1 - m u), u = 2^-24, any order of summation):
together less than 2^-7 (1 + 2^-15) L. Residuals are computed to a few u of their bound, and float64
sums to n 2^-53; the remaining quarter of the allowance is more than both.
"""


@final
@dataclass(frozen=True, kw_only=True)
class LossFacts:
    """Constants of a loss, for every batch and for any set of zeroed records.

    A plain number becomes an ``ASSUMED`` fact; ``None`` means unknown.

    Parameters
    ----------
    sensitivity : Fact or float, optional
        Largest Euclidean change of the summed data gradient between neighbouring data sets, under
        the adjacency of the run.
    lipschitz : Fact or float, optional
        Bound on the norm of one record's data gradient.
    smooth : Fact or float, optional
        Upper bound on the Hessian of the objective.
    strong : Fact or float, optional
        Lower bound on the Hessian of the objective. A value above the ridge may hold for the two
        neighbouring data sets alone.
    weak_convexity : Fact or float, optional
        Number m with Hessian >= -m; it may exceed ``smooth``. Where neither is stated the Hessian
        is at least -``smooth``.
    log_sobolev : Fact or float, optional
        Constant c such that all distributions on the tracing diffusion of both neighbours satisfy a
        log-Sobolev inequality (Chourasia et al. 2021, Definition 3.2).
    hoelder : Fact or float, optional
        Number H with |g(x) - g(y)| <= H |x - y|^l for every record's data gradient g.
    hoelder_exponent : Fact or float, optional
        Exponent l within (0, 1] of the same inequality.

    Raises
    ------
    InputError
        If a number is out of range, or two numbers contradict one another.

    See Also
    --------
    lastiterate.audit.falsify : Search for counterexamples of stated constants.

    Examples
    --------
    >>> import lastiterate as li
    >>> facts = li.LossFacts(lipschitz=1.0, smooth=4.0)
    >>> facts.fact("smooth"), facts.fact("strong")
    (4.0, 0.0)
    """

    sensitivity: Fact | float | None = None
    lipschitz: Fact | float | None = None
    smooth: Fact | float | None = None
    strong: Fact | float | None = None
    weak_convexity: Fact | float | None = None
    log_sobolev: Fact | float | None = None
    hoelder: Fact | float | None = None
    hoelder_exponent: Fact | float | None = None

    def __post_init__(self) -> None:
        normalise_fields(self)
        for item in fields(self):
            value = getattr(self, item.name)
            if type(value) is float:
                object.__setattr__(
                    self, item.name, value := Fact(value, f"{item.name} given by the caller")
                )
            if value is not None and not (value.value == 0 or RANGE[0] <= value.value <= RANGE[1]):
                raise InputError(
                    item.name,
                    f"must be 0 or lie within {RANGE[0]:g} .. {RANGE[1]:g}",
                    value.value,
                    "choose other units",
                )
        if self.fact("strong") > self.fact("smooth", math.inf):
            raise InputError(
                "strong",
                f"cannot exceed smooth = {self.fact('smooth'):g}",
                self.fact("strong"),
                "a Hessian's lower bound lies below its upper bound",
            )
        if self.strong is not None and self.fact("weak_convexity") > 0:
            raise InputError(
                "weak_convexity",
                "must be absent or 0 where strong is stated",
                self.fact("weak_convexity"),
                "keep the one that holds",
            )
        if (self.hoelder is None) != (self.hoelder_exponent is None):
            raise InputError("hoelder", "and hoelder_exponent belong together", None, "state both")
        if not 0 < self.fact("hoelder_exponent", 1.0) <= 1:
            raise InputError(
                "hoelder_exponent", "must lie in (0, 1]", self.fact("hoelder_exponent")
            )

    def fact(self, name: str, default: float = 0.0) -> float:
        """Return the value of a constant, or ``default`` where it is unknown.

        Parameters
        ----------
        name : str
            Name of the constant.
        default : float, default 0.0
            Value of an unknown constant.

        Returns
        -------
        float
            The value.
        """
        fact = getattr(self, name)
        return default if fact is None else float(fact.value)


def downgrade_facts(facts: LossFacts) -> LossFacts:
    """``facts`` as the word of whoever hands them over: none of them stronger than ``TESTED``."""
    known = {item.name: getattr(facts, item.name) for item in fields(facts)}
    return replace(
        facts, **{name: downgrade_fact(fact) for name, fact in known.items() if fact is not None}
    )


def facts_after_clipping(facts: LossFacts, *, scalar_residual: bool) -> LossFacts:
    """Facts that survive per-example clipping.

    A clamped scalar residual is the gradient of a convex function that is as smooth as before, and
    a clip that never acts changes nothing. Otherwise the clipped field need not be a gradient field
    at all: curvature statements are dropped, and only the exact constant of the clipped step
    (``bound_clipped_step``) remains.
    """
    return (
        facts if scalar_residual else replace(facts, smooth=None, strong=None, weak_convexity=None)
    )


def find_fact(facts: object, name: str) -> Fact | None:
    """A constant of the run as a fact, if it is known."""
    fact = getattr(facts, name)
    assert fact is None or isinstance(fact, Fact)
    return fact


def require_fact(facts: object, name: str) -> Fact:
    """Return a constant that an assumption found to be known."""
    fact = find_fact(facts, name)
    assert fact is not None, name
    return fact

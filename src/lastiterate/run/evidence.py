"""How well a number is known: a fact carries its value, its evidence and the reason."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import IntEnum
from typing import final

from lastiterate.errors import InputError
from lastiterate.run.fields import settle


class Evidence(IntEnum):
    """How well a fact is known; a conclusion is as strong as the weakest fact it rests on.

    From weak to strong: ``ASSUMED`` (the caller's word), ``TESTED`` (survived a search for a counterexample), ``PAID``
    (measured on the private data by a mechanism that the certificate accounts for), ``ENFORCED`` (made true by what
    the run does), ``PROVED`` (follows from other facts by a cited lemma).
    """

    ASSUMED = 1  #: the caller's word
    TESTED = 2  #: survived a search for a counterexample
    PAID = 3  #: measured on the private data by a mechanism whose curve and failure are part of the certificate
    ENFORCED = 4  #: made true by what the run itself does (clip rows, project, draw batches)
    PROVED = 5  #: follows from other facts by a cited lemma

    def satisfies(self, asked: Evidence) -> bool:
        """Whether it is good enough where ``asked`` is: what was paid for counts as enforced."""
        return self >= asked or (self is Evidence.PAID and asked is Evidence.ENFORCED)


@final
@dataclass(frozen=True)
class Fact:
    """A number ``value`` that holds for every data set and every neighbour of it, and ``why``.

    **Guarantee:** the constructor can only make ``ASSUMED`` facts; stronger ones are minted by the
    library's own derivations, and say nothing about a loss that they are handed over with (``as_given``).
    """

    value: float
    why: str = "given by the caller"
    evidence: Evidence = field(default=Evidence.ASSUMED, init=False)

    def __post_init__(self) -> None:
        settle(self)
        if math.isnan(self.value):
            raise InputError("a fact's value", "must be a number", self.value, "give the constant itself")

    @property
    def json_type(self) -> str:
        """Its "type" in JSON. What is stronger than tested is derived again by whoever reads, and never written."""
        return TestedFact.__name__ if self.evidence is Evidence.TESTED else type(self).__name__


@final
@dataclass(frozen=True)
class TestedFact:
    """How a fact that survived a search for a counterexample is written in JSON."""

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


def as_given(fact: Fact) -> Fact:
    """What is left of a fact that somebody hands over.

    What a run enforced, a measurement paid for or a lemma proved holds there. Beside another loss it is the caller's
    word; that a search found no counterexample remains so, and what was searched is said.
    """
    return fact if fact.evidence <= Evidence.TESTED else Fact(fact.value, f"given by the caller; elsewhere: {fact.why}")


def weakest(*facts: Fact) -> Evidence:
    """Evidence of a conclusion drawn from ``facts`` (``PROVED`` when there are none)."""
    return min((fact.evidence for fact in facts), default=Evidence.PROVED)

"""Certificates on disk: read back, derived again from their run, compared with what is written."""

# pyright: basic
# what JSON holds is checked here, not known
from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

from lastiterate.accounting.certificate import Certificate, account
from lastiterate.accounting.derived import differences
from lastiterate.accounting.form import COMMON, FORMATS
from lastiterate.accounting.written import statement
from lastiterate.errors import InputError
from lastiterate.run import strict_json
from lastiterate.run.evidence import Evidence
from lastiterate.run.run import Run

DERIVED = ("epsilon", "epsilon_replace_one", "epsilon_at_least", "adjacency", "theorem", "evidence", "verdicts", "run")
OTHERS = {*COMMON, "at_least"}


@dataclass(frozen=True)
class Checked:
    """Outcome of a verification: the problems found (none when it holds), what was claimed, on what condition, and what
    of a folder nobody vouches for (``uncovered``)."""

    problems: tuple[str, ...]
    epsilon: float | None
    delta: float | None
    condition: str = ""
    uncovered: tuple[str, ...] = ()

    @property
    def holds(self) -> bool:
        return not self.problems


def check(stored: dict[str, Any]) -> Checked:
    """Derive the facts again and recompute everything from the run; compare with what is written.

    A certificate that was re-issued as a whole cannot be distinguished from an honest one without a signature.
    """
    fresh, delta = _derived(stored)
    problems = _compare(stored, fresh, delta)
    return Checked(tuple(problems), stored.get("epsilon"), delta, fresh.condition)


def restore(stored: dict[str, Any]) -> Certificate:
    """The certificate that is written, derived again from its run; refused when what is written differs."""
    fresh, delta = _derived(stored)
    problems = _compare(stored, fresh, delta)
    if problems:
        raise InputError("certificate", "does not hold", problems[0], "ask for the original")
    return replace(fresh, caveats=tuple(t for t in stored["caveats"] if t not in fresh.all_caveats()))


def read_certificate(text: str | bytes) -> Certificate:
    """The certificate written in ``text`` (JSON); ``InputError`` when anything in it does not follow from its run."""
    stored = strict_json.loads(text, "certificate")
    if not isinstance(stored, dict):
        raise InputError("certificate", "must be a JSON object", type(stored).__name__)
    return restore(stored)


def _derived(stored: dict[str, Any]) -> tuple[Certificate, float]:
    delta, evidence = stored.get("delta"), stored.get("at_least")
    if not isinstance(delta, float) or not 0 < delta < 1:
        raise _incomplete("delta", delta)
    if not isinstance(evidence, str) or evidence not in Evidence.__members__:
        raise _incomplete("at_least", evidence)
    return _as_known_then(stored, account(Run.from_dict(stored.get("run")), at_least=Evidence[evidence])), delta


def _as_known_then(stored: dict[str, Any], certificate: Certificate) -> Certificate:
    """For a certificate of an older format: by the theorems that it lists, for later ones were not known when it was
    written.

    **Guarantee:** fewer theorems certify no less than they did, so nothing is believed that does not follow.
    """
    listed = stored.get("verdicts")
    if stored.get("format") not in FORMATS[:-1] or not isinstance(listed, list):
        return certificate
    names = {row.get("theorem") for row in listed if isinstance(row, dict)}
    return replace(certificate, verdicts=tuple(v for v in certificate.verdicts if v.theorem.name in names))


def _incomplete(entry: str, value: Any) -> InputError:
    return InputError("certificate", f"must be one that lastiterate wrote, with a proper {entry!r}", value)


def _compare(stored: dict[str, Any], certificate: Certificate, delta: float) -> list[str]:
    """Everything that follows from the run must be what is written, and nothing else may be written."""
    fresh = json.loads(json.dumps(certificate.answer(delta)))
    return differences(stored, fresh, "run", DERIVED, OTHERS, "run",
                       lambda: json.loads(json.dumps(statement(certificate, delta))))

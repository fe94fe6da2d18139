"""The kinds of certificates: what each speaks of, how it is checked, how it is read back.

A certificate says what it certifies under one of these entries; one that says two things, or none, is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lastiterate.accounting import exact_steps, selection, stored
from lastiterate.accounting.stored import Checked
from lastiterate.bayes import posterior_certificate as posterior
from lastiterate.errors import InputError


@dataclass(frozen=True)
class Statement:
    """``check`` compares what is written with what follows; ``restore`` gives the certificate back, or refuses."""

    check: Callable[[dict[str, Any]], Checked]
    restore: Callable[[dict[str, Any]], Any]


STATEMENTS = {
    "run": Statement(stored.check, stored.restore),
    "problem": Statement(posterior.check, posterior.restore),
    "exact_run": Statement(exact_steps.check, exact_steps.restore),
    "selection": Statement(selection.check, selection.restore),
}


def subject_of(certificate: dict[str, Any]) -> str:
    """The entry that says what a certificate is about: "run" or "problem"."""
    found = [entry for entry in STATEMENTS if entry in certificate]
    if len(found) != 1:
        raise InputError("certificate", "must be one that lastiterate wrote: about a run, or a posterior's problem",
                         " and ".join(found) or None)
    return found[0]


@dataclass(frozen=True, eq=False)
class Written:
    """A certificate as it lies in a folder: derived again, and compared, when somebody asks for it."""

    body: dict[str, Any]

    def derived(self) -> Any:
        return STATEMENTS[subject_of(self.body)].restore(self.body)

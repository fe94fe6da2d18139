"""Written certificates that are derived again as a whole from one entry of theirs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from lastiterate.accounting.form import FORMATS, completed, form_problems, looser, same
from lastiterate.errors import InputError
from lastiterate.run.older import in_todays_words


def proper_delta(stored: dict[str, Any]) -> float:
    """The delta that is written, or an error."""
    delta = stored.get("delta")
    if not isinstance(delta, float) or not 0 < delta < 1:
        raise InputError("certificate", "must be one that lastiterate wrote, with a proper 'delta'", delta)
    return delta


def differences(stored: dict[str, Any], wanted: dict[str, Any], entry: str, derived: Iterable[str],
                others: Iterable[str], source: str, stated: Callable[[], dict[str, Any]]) -> list[str]:
    """What of a written certificate is not ``wanted``, which was derived again from its ``entry``.

    The entries ``derived`` must be equal, and ``others`` may be there. ``source``: what ``entry`` describes, as a word.
    A caveat may be added, and none may be missing. ``stated``: what formats from 2 on state beside, computed only
    where it is.
    """
    known = stored | {entry: completed(in_todays_words(stored.get(entry)), wanted[entry])}
    if stored.get("format") in FORMATS[:-1]:
        known, wanted = _without_reasons(known), _without_reasons(wanted)
    problems = [f"{key} is not what follows from the {source}" for key in derived
                if not same(known.get(key), wanted[key], larger=looser(stored))]
    problems += [f"unknown entry {key!r}" for key in sorted(set(stored) - set(derived) - set(others))]
    caveats = stored.get("caveats")
    listed = caveats if isinstance(caveats, list) and all(isinstance(text, str) for text in caveats) else []  # pyright: ignore
    problems += [f"the caveat {text!r} is missing" for text in wanted["caveats"] if text not in listed]
    return problems + form_problems(stored, stated, source)


def _without_reasons(body: dict[str, Any]) -> dict[str, Any]:
    """Without the sentences that say why theorems fail: a later version may word them otherwise."""
    verdicts = body.get("verdicts")
    if not isinstance(verdicts, list):
        return body
    return body | {"verdicts": [{**row, "reasons": []} if isinstance(row, dict) else row
                                for row in verdicts]}  # pyright: ignore


def added_caveats(stored: dict[str, Any], own: Iterable[str], problems: list[str]) -> tuple[str, ...]:
    """Caveats that were written beside a certificate's ``own``; refused where there are ``problems``."""
    if problems:
        raise InputError("certificate", "does not hold", problems[0], "ask for the original")
    known = set(own)
    return tuple(text for text in stored["caveats"] if text not in known)

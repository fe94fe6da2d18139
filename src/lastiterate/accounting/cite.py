"""Citations of what a certificate rests on, as BibTeX made from the theorems' own rows."""

from __future__ import annotations

import re
from collections.abc import Iterable

from lastiterate.theorems.theorem import Theorem

TITLE = "lastiterate: differentially private training with hidden iterates"
AUTHORS = "The lastiterate authors"
YEAR = 2026
"""What a citation of the library says; CITATION.cff says the same."""
OTHERS = {
    "exact": "Canonne, Kamath, Steinke: The discrete Gaussian for differential privacy, NeurIPS 2020, Theorem 4",
    "selection": "Papernot, Steinke: Hyperparameter tuning with Renyi differential privacy, ICLR 2022, Theorems 2, 6",
    "forgetting": "Bok, Su, Altschuler: Shifted interpolation for differential privacy, ICML 2024 (arXiv:2403.00278)",
}
"""Sources of certificates that no row of the table gives."""


def bibtex(theorems: Iterable[Theorem], others: Iterable[str] = ()) -> str:
    """One entry per theorem, its key the theorem's name, and one for the library."""
    entries = [entry(theorem.name, theorem.citation) for theorem in theorems]
    return "\n".join([*entries, *(entry(name, OTHERS[name]) for name in others), library()])


def library() -> str:
    """The library's own entry."""
    from lastiterate import __version__

    return "\n".join(["@software{lastiterate,", f"  author = {{{{{AUTHORS}}}}},", f"  title = {{{TITLE}}},",
                      f"  year = {{{YEAR}}},", f"  version = {{{__version__}}},", "}", ""])


def entry(key: str, citation: str) -> str:
    """``Authors: Title, where (year), place`` as an entry; what has another form becomes its title."""
    authors, colon, rest = citation.partition(": ")
    if not colon or re.search(r"[(/]|^[a-z]", authors):
        authors, rest = "", citation
    year = re.search(r"\b(?:19|20)\d\d\b", citation)
    lines = [f"@misc{{{key},"]
    if authors:
        lines.append(f"  author = {{{_plain(' and '.join(re.split(r', | and ', authors)))}}},")
    lines.append(f"  title = {{{_plain(rest)}}},")
    if year:
        lines.append(f"  year = {{{year[0]}}},")
    return "\n".join([*lines, "}", ""])


def _plain(text: str) -> str:
    return re.sub(r"([#$%&_{}])", r"\\\1", text)

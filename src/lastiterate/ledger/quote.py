"""What a ledger says about one released model, for its release document."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from lastiterate.accounting.wording import rounded_up
from lastiterate.errors import InputError
from lastiterate.ledger.ledger_lines import Total
from lastiterate.ledger.store import Ledger


@final
@dataclass(frozen=True)
class Quote:
    """The line of a released model, and the budget that it belongs to.

    ``run``: hash of what was certified. ``left``: name and share of each dimension of the budget that all releases
    together have not spent. ``together``: what holds for all of them. ``problems``: of the ledger, as ``verify`` finds.
    """

    dataset: str
    unit: str
    adjacency: str
    number: int
    day: str
    run: str
    releases: int
    left: tuple[tuple[str, float], ...]
    together: str
    problems: tuple[str, ...]


def quoted(ledger: Ledger, weights_sha256: str) -> Quote:
    """The line whose model has these weights; refused where the ledger has none."""
    problems = ledger.verify()
    for name in ledger.datasets():
        total = ledger.total(name)
        for release in total.releases:
            if release.model == weights_sha256:
                counting = [other.number for other in total.releases if other.state != "cancelled"]
                place = sum(number <= release.number for number in counting)  # numbers run through all data sets
                left = tuple(zip(total.filter.dimensions, total.left, strict=True))
                return Quote(total.dataset, total.unit, total.adjacency, place, release.day, release.run,
                             len(counting), left, together(total), problems)
    raise InputError("ledger", "must have a line of this model", str(ledger.path),
                     "name the ledger that it was charged to")


def together(total: Total) -> str:
    """What holds for all releases of a data set together, at a few values of delta; for single rows alone, said so,
    where lines are not known to protect a unit."""
    curve, said = total.filter.total(), list[str]()
    for delta in (1e-4, 1e-5, 1e-6, 1e-8):
        epsilon = curve.epsilon(delta)
        if epsilon < 1e3:
            said.append(f"epsilon {rounded_up(epsilon)} at delta {delta:g}")
    within = ", ".join(said) if said else "no epsilon below 1000"
    if not total.unproven:
        return f"together within {within}"
    listed = ", ".join(map(str, total.unproven))
    return (f"no total is known for a {total.unit}: releases {listed} are not known to protect more than a row; for a "
            f"single row {within}")

"""The theorems that speak of small drawn runs (``lastiterate.testing.exact_distributions``)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import lastiterate as li
from lastiterate.testing.exact_distributions import needs_absence
from lastiterate.theorems import TABLE
from lastiterate.theorems.theorem import Applies, match


def applied(name, run):
    """The bound of the theorem ``name``, which must apply to ``run``."""
    found = match(TABLE[name], run)
    assert isinstance(found, Applies), found
    return found.bound


EVERYWHERE, FIXED = li.domains.Everywhere(), li.FixedStart()


def about(*kinds, domain=EVERYWHERE, starts=(FIXED,), strong=0.5):
    """The names of upper theorems that apply to quadratics, sensitivity stated, of one of these
    batchings."""
    facts = li.LossFacts(sensitivity=1.0, smooth=1.0, strong=strong)
    return {
        theorem.name
        for theorem in TABLE.values()
        for kind, start in product(kinds, starts)
        if theorem.kind == "upper"
        and isinstance(
            match(
                theorem,
                li.Run(
                    n=6,
                    steps=7,
                    step_size=li.Constant(0.5),
                    noise=li.Langevin(0.5),
                    batching=kind.of_size(6, 2),
                    domain=domain,
                    start=start,
                    loss=li.KnownConstants(facts),
                ),
            ),
            Applies,
        )
    }


def uppers(run, bends, wanted) -> Iterator[tuple[str, object]]:
    """The upper bounds that speak of these records, of rows of which more runs are ``wanted``."""
    for name, theorem in TABLE.items():
        if (
            theorem.kind != "upper"
            or not wanted(name)
            or (needs_absence(theorem) and bends[0] != 0)
        ):
            continue
        if isinstance(found := match(theorem, run), Applies):
            yield name, found.curve

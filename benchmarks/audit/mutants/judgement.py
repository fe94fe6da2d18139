"""What a change of the sources does to what cases show, judged against the unchanged sources.

``leaks``: a record moves what is released further, in standard deviations of its noise, than under
the unchanged sources with the same keys; or data are refused, or models not finite, because of a
record. The certificate is not asked: where it has room, such a change may stay within it. ``other
law``: the distribution differs otherwise. ``other bits``: what comes out differs, and its
distribution does not visibly. Spreads are estimates: what is called a leak lies more than ``MORE``
(of many models) or ``MUCH_MORE`` (of few) above.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.stats import ks_2samp

ORDER = ("leaks", "other law", "other bits", "fails", "same", "not executed")
"""From the worst to the best."""
MORE, MUCH_MORE, ENOUGH, LIKELY = 1.08, 1.7, 1000, 1e-9
SAME = 1e-7


def judged(reference: Any, found: Any) -> tuple[str, float]:
    """The word, and how many times further a record moves the released numbers than it should."""
    if isinstance(found, str) or isinstance(reference, str):
        return ("same" if found == reference else "fails"), 1.0
    sides = [tuple(isinstance(side, str) for side in pair) for pair in found["pairs"]]
    before = [tuple(isinstance(side, str) for side in pair) for pair in reference["pairs"]]
    if any(one != two for (one, two), old in zip(sides, before, strict=True) if (one, two) != old):
        return "leaks", np.inf
    if isinstance(found["many"], str) or sides != before or _shapes(found) != _shapes(reference):
        return "fails", 1.0
    if _same(reference, found):
        return "same", 1.0
    finite = [
        [np.isfinite(side).all() for side in pair if not isinstance(side, str)]
        for pair in found["pairs"]
    ]
    if any(len(set(pair)) > 1 for pair in finite):
        return "leaks", np.inf
    if not all(map(all, finite)) or not np.isfinite(found["many"]).all():
        return "fails", 1.0  # what is not finite is not released
    ratio = moved(found) / max(moved(reference), 1e-12)
    most = MORE if len(found["many"]) > ENOUGH else MUCH_MORE
    if not ratio <= most:
        return "leaks", float(ratio)
    differs = any(
        ks_2samp(one, two).pvalue < LIKELY
        for one, two in zip(found["many"].T, reference["many"].T, strict=True)
    )
    return ("other law" if differs else "other bits"), float(ratio)


def moved(shown: Any) -> float:
    """How far a record moves the released numbers at most, in standard deviations of their noise."""
    many = shown["many"]
    whole = len(many) > ENOUGH
    spread = (
        np.cov(many.T).reshape(many.shape[1], -1) if whole else np.diag(many.var(axis=0, ddof=1))
    )
    values, vectors = np.linalg.eigh(spread)
    scale = np.sqrt(np.maximum(values, 1e-9 * max(values.max(), 1e-300)))
    found = [
        np.abs((one - two) @ vectors / scale)
        for one, two in shown["pairs"]
        if not isinstance(one, str)
    ]
    # where few models say what the noise is, a typical key: the largest of a few would be chance
    each = [
        np.linalg.norm(part, axis=1).max() if whole else np.median(part.max(axis=1))
        for part in found
    ]
    return float(max(each, default=0.0))


def _shapes(shown: Any) -> list[Any]:
    return [np.shape(shown["many"]), *(np.shape(side) for pair in shown["pairs"] for side in pair)]


def _same(one: Any, two: Any) -> bool:
    every = [
        (one["many"], two["many"]),
        *(
            (a, b)
            for p, q in zip(one["pairs"], two["pairs"], strict=True)
            for a, b in zip(p, q, strict=True)
        ),
    ]
    return all(
        a == b if isinstance(a, str) else np.allclose(a, b, rtol=SAME, atol=SAME * np.abs(a).max())
        for a, b in every
    )

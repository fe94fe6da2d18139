"""What a certificate claims, as error rates that it excludes; and the threshold of an attack that contradicts it most.

An (eps, delta) claim excludes error rates p, q when 1 - min(e^eps p + q, p + e^eps q) > delta. Pilot models show where
that is furthest from chance: in standard errors of the pilot, so that rare events and frequent ones compare.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lastiterate.accounting.certificate import Certificate

EPSILONS = np.concatenate(([0.0], np.geomspace(0.02, 14.0, 60)))
"""Where curves are read; any of them may refute, and none is chosen on the models that count."""
INNER, EXTREME = 120, 12
"""Thresholds that are looked at: quantiles of the pilot, and its most extreme scores on both sides."""


@dataclass(frozen=True, eq=False)
class Claim:
    """The certified delta at ``EPSILONS``, the smallest of all curves that certify; 1 where nothing does."""

    deltas: np.ndarray

    @classmethod
    def of(cls, certificate: Certificate) -> Claim:
        return cls(np.array([certificate.delta(float(epsilon)) for epsilon in EPSILONS]))

    def refuted(self, fpr: float, fnr: float) -> float | None:
        """An epsilon at which upper bounds on both error rates contradict the claim; ``None`` if they do not."""
        excess = self._excess(np.array([fpr]), np.array([fnr]))[0] - 1e-12
        return float(EPSILONS[int(excess.argmax())]) if excess.max() > 0 else None

    def distances(self, fpr: np.ndarray, fnr: np.ndarray, pilot: int) -> np.ndarray:
        """How far rates of a pilot lie beyond the claim, in standard errors; negative where they do not."""
        grown = np.exp(EPSILONS)
        spread = [fpr * (1 - fpr) / pilot, fnr * (1 - fnr) / pilot]
        errors = [np.sqrt(grown**2 * a[:, None] + b[:, None]) for a, b in (spread, spread[::-1])]
        needed = [1 - grown * a[:, None] - b[:, None] for a, b in ((fpr, fnr), (fnr, fpr))]
        return np.max([(one - self.deltas) / error for one, error in zip(needed, errors, strict=True)], axis=(0, 2))

    def _excess(self, fpr: np.ndarray, fnr: np.ndarray) -> np.ndarray:
        grown = np.exp(EPSILONS)
        forth, back = (grown * a[:, None] + b[:, None] for a, b in ((fpr, fnr), (fnr, fpr)))
        return 1 - np.minimum(forth, back) - self.deltas


def best_threshold(claim: Claim, present: np.ndarray, without: np.ndarray) -> tuple[float, float]:
    """The threshold of pilot scores that contradicts the claim most, and by how many standard errors."""
    one, two = np.sort(np.nan_to_num(present)), np.sort(np.nan_to_num(without))
    both = np.sort(np.concatenate((one, two)))
    ends = [part[piece] for part in (one, two) for piece in (slice(None, EXTREME), slice(-EXTREME, None))]
    cuts = np.unique(np.concatenate((np.quantile(both, np.linspace(0.005, 0.995, INNER)), *ends)))
    # atoms on either side, and half way between two scores, where nothing may lie
    cuts = np.unique(np.concatenate((cuts, np.nextafter(cuts, -np.inf), (cuts[1:] + cuts[:-1]) / 2)))
    fpr = (len(two) - np.searchsorted(two, cuts, side="right") + 0.5) / (len(two) + 1)
    fnr = (np.searchsorted(one, cuts, side="right") + 0.5) / (len(one) + 1)
    distances = claim.distances(fpr, fnr, min(len(one), len(two)))
    equal = np.flatnonzero(distances >= distances.max() - 1e-9 * abs(distances.max()))
    best = int(equal[len(equal) // 2])
    return float(cuts[best]), float(distances[best])

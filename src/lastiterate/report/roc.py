"""The picture of an audit: error rates of the attack, and the region that the certificate allows."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lastiterate.accounting.certificate import Certificate
from lastiterate.report.plots import figure_for
from lastiterate.report.style import drawn_as, dressed

if TYPE_CHECKING:
    from lastiterate.audit.outcome import AuditReport


def forbidden(certificate: Certificate, fpr: np.ndarray, points: int = 60) -> np.ndarray:
    """The largest true positive rate that the certified curves leave at each false positive rate, both directions.

    For every epsilon: TPR <= e^eps FPR + delta(eps), and TPR <= 1 - e^-eps (1 - delta(eps) - FPR).
    """
    epsilons = np.concatenate(([0.0], np.geomspace(1e-3, 12.0, points)))
    best = np.ones_like(fpr)
    for epsilon in epsilons:
        delta = certificate.delta(float(epsilon))
        best = np.minimum(best, math.exp(epsilon) * fpr + delta)
        best = np.minimum(best, 1 - math.exp(-epsilon) * (1 - delta - fpr))
    return np.clip(best, 0.0, 1.0)


def curve_of(report: AuditReport, points: int = 400) -> tuple[np.ndarray, np.ndarray]:
    """False and true positive rates of the report's scores over all thresholds."""
    assert report.scores is not None
    present, without = (np.sort(np.asarray(part)) for part in report.scores)
    cuts = np.unique(np.quantile(np.concatenate((present, without)), np.linspace(0, 1, points)))
    cuts = np.concatenate(([-np.inf], cuts))
    above = [1 - np.searchsorted(part, cuts, side="right") / len(part) for part in (without, present)]
    return above[0], above[1]


def receiver_curve(report: AuditReport, certificate: Certificate, path: Path) -> Any:
    """The attack's curve, its confidence bounds, and what lies beyond the certificate; returns the figure."""
    made, axes = figure_for(path)
    fpr = np.concatenate(([0.0], np.geomspace(1e-5, 1.0, 300)))
    axes.fill_between(fpr, forbidden(certificate, fpr), 1.0, color="black", alpha=0.12, linewidth=0,
                      label="excluded by the certificate")
    axes.plot(fpr, forbidden(certificate, fpr), **drawn_as("certified"), label="certified bound (upper)")
    axes.plot(fpr, fpr, **drawn_as("chance"), label="chance")
    axes.plot(*curve_of(report), **drawn_as("audit", marker=None), label=f"attack: {report.attack} (measured)")
    for index, rate in enumerate(report.rates):
        corner = rate.fpr_upper, 1 - rate.fnr_upper
        axes.plot(*corner, "^", markersize=7, color="black",
                  label=f"reached (lower), wrong with probability {report.failure:g}" if index == 0 else None)
    dressed(axes, "false-positive rate (share of models without the record)",
            "true-positive rate (share of models with it)", report.verdict)
    axes.set(xlim=(0, 1), ylim=(0, 1))
    axes.legend(fontsize=8, frameon=False, loc="lower right")
    made.savefig(path, dpi=150)
    return made

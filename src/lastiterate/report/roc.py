"""The picture of an audit: error rates of the attack, and the region that the certificate allows."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lastiterate.accounting.certificate import Certificate
from lastiterate.curves.lower_bound import LowerBound
from lastiterate.report.plots import figure_for, save_figure
from lastiterate.report.style import drawn_as, dressed

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from lastiterate.audit.outcome import AuditReport

NAMED = 0.05
"""Attacks this far from chance are named in the picture."""


def forbidden(certificate: Certificate, fpr: np.ndarray, points: int = 60) -> np.ndarray:
    """The largest true positive rate that the certified curves leave at each false positive rate, both directions.

    For every epsilon: TPR <= e^eps FPR + delta(eps), and TPR <= 1 - e^-eps (1 - delta(eps) - FPR).
    """
    return _within(certificate.delta, fpr, points)


def reached(certificate: Certificate, fpr: np.ndarray, points: int = 60) -> np.ndarray | None:
    """The true positive rate that the best attack has on the worst loss of the run's class, where its exact law is
    known: no certificate can lie below it. ``None`` where no theorem says.
    """
    exact = [verdict.bound for verdict in certificate.verdicts if isinstance(verdict.bound, LowerBound)]
    curves = [_within(bound.delta, fpr, points) for bound in exact]
    return np.max(curves, axis=0) if curves else None


def _within(delta_of: Callable[[float], float], fpr: np.ndarray, points: int) -> np.ndarray:
    """The trade-off curve of a function delta(epsilon), both directions of the test."""
    best = np.ones_like(fpr)
    for epsilon in np.concatenate(([0.0], np.geomspace(1e-3, 12.0, points))):
        delta = delta_of(float(epsilon))
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


def _boxes(axes: Axes, report: AuditReport) -> None:
    """Every attack's rates, and the box that reaches to their confidence bounds: its far corner is what is proved."""
    from matplotlib.patches import Rectangle

    first = True
    for one in report.seen:
        rate = one.rates[0]
        at = rate.false_positives / report.trials, 1 - rate.false_negatives / report.trials
        corner = rate.fpr_upper, 1 - rate.fnr_upper
        axes.add_patch(Rectangle((at[0], corner[1]), corner[0] - at[0], at[1] - corner[1], fill=False, linewidth=0.8,
                                 edgecolor="black"))
        axes.plot(*at, "o", markersize=3, color="black")  # pyright: ignore
        axes.plot(*corner, "^", markersize=6, color="black",  # pyright: ignore
                  label=f"each attack (dot) and what it proves (triangle),\nall but with probability {report.failure:g}"
                  if first else None)
        if at[1] - at[0] > NAMED:
            axes.annotate(one.attack, at, fontsize=7, xytext=(4, 4), textcoords="offset points")  # pyright: ignore
        first = False


def receiver_curve(report: AuditReport, certificate: Certificate, path: Path) -> Any:
    """The favourite's curve, every attack's confidence box, what lies beyond the certificate, and what the exact law of
    the worst loss reaches; returns the figure."""
    made, axes = figure_for(path)
    fpr = np.concatenate(([0.0], np.geomspace(1e-5, 1.0, 300)))
    axes.fill_between(fpr, forbidden(certificate, fpr), 1.0, color="black", alpha=0.12, linewidth=0,
                      label="excluded by the certificate")
    axes.plot(fpr, forbidden(certificate, fpr), **drawn_as("certified"), label="certified bound (upper)")
    exact = reached(certificate, fpr)
    if exact is not None:
        axes.plot(fpr, exact, **drawn_as("lower", marker=None), label="exact, on the worst loss of the class (lower)")
    axes.plot(fpr, fpr, **drawn_as("chance"), label="chance")
    axes.plot(*curve_of(report), **drawn_as("audit", marker=None), label=f"attack: {report.attack} (measured)")
    _boxes(axes, report)
    dressed(axes, "false-positive rate (share of models without the record)",
            "true-positive rate (share of models with it)", report.verdict)
    axes.set(xlim=(0, 1), ylim=(0, 1))
    axes.legend(fontsize=8, frameon=False, loc="lower right")
    save_figure(made, path)
    return made

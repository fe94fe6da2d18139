"""Executed noise ends 36 standard deviations from 0: what a release says whose guarantee needs
longer draws.

Let all draws of a release be pairs of normals without those of a radius beyond R. A pair of a step
is moved by s_i standard deviations where the data differ. With P and Q the distributions of the
proofs, and a the probability (the same for both) that no draw is too long, the executed
distributions are those of draws that are not, and for every event E

    P'(E) - e^eps Q'(E) <= (delta(eps) + Pr_P[no draw is too long, but some moved pair lies outside
    of Q's]) / a.

A pair that is moved by s does so with probability at most e^{-(R - s)^2/2} - e^{-R^2/2}: by
convexity at most 4.5 R s e^{-R^2/2} up to s = 2.5/R, and above at most (s/m)^2 e^{-(R - m)^2/2} for
s <= m < R - 1/4, as (R - s) s > 2 there (R >= 10). So T steps that are moved by at most m each, of
N pairs each, lose at most

    T (4.5 R m sqrt(N) e^{-R^2/2} + e^{-(R - m)^2/2}).
"""

from __future__ import annotations

import math
from dataclasses import replace

from lastiterate.accounting.certificate import Certificate
from lastiterate.accounting.extra_charges import (
    calibration_curve,
    curves_of_preprocessing,
    with_later_parts,
)
from lastiterate.curves.curve import BestOf, Curve, Grouped, WithFailure
from lastiterate.curves.gaussian import Gdp, GdpMixture
from lastiterate.curves.selection import WorstOf

REACH = 36.6
"""Radius up to which every pair of draws is distributed as the normal distribution says: the
generator's last 2^-969 lie beyond 36.65."""
SHARE = 0.01
"""Part of delta that may be lost: enforced sensitivities are counted 1 % too long, which is worth
more."""
PAIRS = 2.0**32
"""More than a step draws."""


def delta_beyond_support(certificate: Certificate, delta: float) -> float:
    """Return an upper bound on the delta that is lost because executed noise ends at ``REACH``."""
    run = certificate.run
    lost = run.steps * lost_by_one(_farthest_step(certificate, delta))
    lost += sum(lost_by_one(_mu(curve)) for curve in curves_of_preprocessing(run))
    if run.probability_calibration is not None:
        lost += run.probability_calibration.rounds * lost_by_one(_mu(calibration_curve(run)))
    alone = replace(run, probability_calibration=None)
    return lost + sum(
        lost_by_one(_mu(with_later_parts(Gdp(0.0), replace(alone, counts=(count,)))))
        for count in run.counts
    )


def lost_by_one(moved: float, reach: float = REACH) -> float:
    """Return the delta lost by the draws of one step, which together hide ``moved`` standard
    deviations and end at ``reach`` of them."""
    if moved >= reach - 0.25:
        return 1.0
    return 4.5 * reach * moved * math.sqrt(PAIRS) * math.exp(-(reach**2) / 2) + math.exp(
        -((reach - moved) ** 2) / 2
    )


def support_caveats(certificate: Certificate, delta: float) -> tuple[str, ...]:
    """Return the caveats of a release whose guarantee needs longer draws than the generator has;
    they hold public numbers only."""
    return _caveats(delta_beyond_support(certificate, delta), delta)


def caveats_of_one(moved: float, delta: float) -> tuple[str, ...]:
    """Return the same for one value that is released with noise."""
    return _caveats(lost_by_one(moved), delta)


def _caveats(lost: float, delta: float) -> tuple[str, ...]:
    if lost <= SHARE * delta:
        return ()
    worst = min(1.0, lost * (1 + 1e-3))
    return (
        "executed draws of noise end at 36 standard deviations, but a record is hidden by longer "
        f"ones: delta is "
        f"up to {worst:.3g} larger than {delta:g}; use more noise in every step, or "
        f"secure_noise=True",
    )


def _farthest_step(certificate: Certificate, delta: float) -> float:
    """Return the most standard deviations that a step's noise hides; for steps without noise, the
    later steps hide them."""
    run = certificate.run
    if not run.method.noisy_steps or float(run.noise_stds.min()) > 0:
        return run.method.farthest_draw(run)
    best = certificate.best(delta)
    return math.inf if best is None or not isinstance(best.bound, Curve) else _mu(best.bound)


def _mu(curve: Curve) -> float:
    """Return mu of the farthest Gaussian mechanism in ``curve``; infinite where there is anything
    else."""
    match curve:
        case Gdp(mu):
            return mu
        case GdpMixture(_, mus):
            return max(mus)
        case WithFailure():
            return _mu(curve.curve)
        case Grouped(one, size):  # a sum moves at most so many times as far
            return size * _mu(one)
        case BestOf() | WorstOf():
            return max(_mu(part) for part in curve.curves)
        case _:
            return math.inf

"""Find the least exact noise that a budget allows."""

from __future__ import annotations

import math

from lastiterate.accounting.budgets import check_budget, check_within
from lastiterate.accounting.calibration import out_of_reach, scale_noise, with_kind_of_noise, with_unit_noise
from lastiterate.accounting.certificate import Certificate
from lastiterate.accounting.exact_steps import ExactRun, preparation_squared
from lastiterate.curves.renyi import Rdp
from lastiterate.curves.roots import smallest_true
from lastiterate.errors import InputError
from lastiterate.run.run import Run, check_run
from lastiterate.theorems.composition_gdp import composition_mu

LARGEST = 1e60
"""The inverse of the smallest Renyi slope that is looked for: less than any budget and any unit of rows allows."""


def calibrate_exactly(run: Run, *, epsilon: float, delta: float) -> Certificate:
    """Return the certificate of this schedule with the least exact noise that keeps (epsilon, delta)."""
    check_run(run)
    check_budget(epsilon, delta, run.n)
    unit = with_unit_noise(with_kind_of_noise(run))
    ExactRun(unit)  # says why not
    rows = run.rows_per_unit

    def kept(inverse: float) -> bool:
        curve = Rdp.linear(1 / inverse)
        return (curve.group(rows) if rows > 1 else curve).epsilon(delta) <= epsilon

    inverse = smallest_true(kept, 1e-9, LARGEST, 1e-9)
    if math.isinf(inverse):
        raise out_of_reach(epsilon, delta)
    slope = 1 / inverse
    left = 2 * slope / (1 + 1e-9) - preparation_squared(run)
    if left <= 0:
        raise InputError("epsilon", "does not suffice for the preparation alone", epsilon,
                         "give its parts more noise, or ask for a larger epsilon")
    certificate = Certificate(ExactRun(scale_noise(unit, composition_mu(unit) / math.sqrt(left) * (1 + 1e-9))))
    check_within(certificate, epsilon, delta)
    return certificate

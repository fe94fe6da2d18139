"""Operations on every kind of curve: several mechanisms on the same data, and curves read back from
JSON."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any, cast

from lastiterate.curves.allocation import AllocationPld, SecretBins
from lastiterate.curves.curve import UP, BestOf, Curve, EpsDelta, Exchanged, Grouped, WithFailure
from lastiterate.curves.delayed_shifts import AllocatedShifts, DelayedShifts
from lastiterate.curves.dominating_pair import WithGaussian
from lastiterate.curves.gaussian import Gdp, GdpMixture
from lastiterate.curves.perturbed_minimum import PerturbedObjective
from lastiterate.curves.renyi import Rdp, SampledRenyi, renyi_sum
from lastiterate.curves.sampled_batches import FixedSizeSteps, Pld
from lastiterate.curves.selection import NegativeBinomial, PoissonRuns, Selected, WorstOf
from lastiterate.errors import InputError
from lastiterate.run import serialization


def compose(*curves: Curve) -> Curve:
    """One curve for several mechanisms on the same data, run one after the other, chosen
    adaptively.

    All curves must hold for the same adjacency. mu adds in squares (Dong, Roth and Su 2022,
    Corollary 3.3), single (epsilon, delta) points add, a Gaussian mechanism joins a sampled one's
    distribution, other pairs add their Renyi divergences. Errors: ``InputError`` for an (epsilon,
    delta) point with a curve of another kind.
    """
    if not curves:
        return Gdp(0.0)
    total = curves[0]
    for curve in curves[1:]:
        total = _pair(total, curve)
    return total


def _pair(one: Curve, two: Curve) -> Curve:
    one, two = (curve.table() if isinstance(curve, SampledRenyi) else curve for curve in (one, two))
    match one, two:
        case BestOf(), _:
            return BestOf(tuple(_pair(curve, two) for curve in one.curves))
        case _, BestOf():
            return BestOf(tuple(_pair(one, curve) for curve in two.curves))
        case WorstOf(), _:
            return WorstOf(tuple(_pair(curve, two) for curve in one.curves))
        case _, WorstOf():
            return WorstOf(tuple(_pair(one, curve) for curve in two.curves))
        case WithFailure(), _:
            return _add_failure(_pair(one.curve, two), one.failure)
        case _, WithFailure():
            return _add_failure(_pair(one, two.curve), two.failure)
        case Gdp(), Gdp():
            return Gdp(math.hypot(one.mu, two.mu) * UP)
        case (GdpMixture(), Gdp()) | (Gdp(), GdpMixture()):
            mixture, single = (one, two) if isinstance(one, GdpMixture) else (two, one)
            assert isinstance(mixture, GdpMixture) and isinstance(single, Gdp)
            return GdpMixture(
                mixture.weights, tuple(math.hypot(mu, single.mu) * UP for mu in mixture.mus)
            )
        case (WithGaussian() | PerturbedObjective() as exact, Gdp(mu)) | (
            Gdp(mu),
            WithGaussian() | PerturbedObjective() as exact,
        ):
            return exact.with_gaussian(mu)
        case EpsDelta(), EpsDelta():
            return EpsDelta(
                (one.at_epsilon + two.at_epsilon) * UP, min(1.0, one.at_delta + two.at_delta)
            )
        case (EpsDelta(), _) | (_, EpsDelta()):
            if (one if isinstance(one, EpsDelta) else two).rdp(2.0) == math.inf:
                raise InputError(
                    "curves",
                    "with a single (epsilon, delta) point compose only with one another",
                    type(two if isinstance(one, EpsDelta) else one).__name__,
                    "convert the other first",
                )
        case _:
            pass
    return renyi_sum(one, two)


def _add_failure(curve: Curve, failure: float) -> WithFailure:
    """``curve`` with one more probability of failure."""
    if isinstance(curve, WithFailure):
        curve, failure = curve.curve, min(1.0, (curve.failure + failure) * UP)
    return WithFailure(curve, failure)


KINDS: dict[str, type] = {
    kind.__name__: kind
    for kind in (
        Gdp,
        GdpMixture,
        Rdp,
        EpsDelta,
        Pld,
        SampledRenyi,
        SecretBins,
        FixedSizeSteps,
        AllocationPld,
        DelayedShifts,
        AllocatedShifts,
        PerturbedObjective,
        BestOf,
        WorstOf,
        WithFailure,
        Exchanged,
        Grouped,
        Selected,
        NegativeBinomial,
        PoissonRuns,
    )
}
"""Classes of which a stored curve consists."""
STORED: dict[str, type | tuple[type, ...]] = {
    "float": (float, int),
    "int": int,
    "bool": bool,
    "Curve": Curve,
    "Runs": (NegativeBinomial, PoissonRuns),
}
"""Types of fields, by their annotations."""
DEEPEST = 64
"""Levels of curves and lists in each other that are read."""


def curve_from_dict(data: object) -> Curve:
    """The curve that ``to_dict`` described; ``InputError`` for anything else."""
    try:
        curve = serialization.decode(data, "curve", KINDS, DEEPEST)
    except TypeError as error:  # a curve compares its numbers when it is made
        raise InputError("curve", "must have fields of their types", str(error)) from None
    if not isinstance(curve, Curve):
        raise InputError(
            "curve", "must be a JSON object with the type of a curve", type(curve).__name__
        )
    _check_fields(curve)
    return curve


def _check_fields(described: object) -> None:
    """Refuse what is not of the type of its field, and numbers below 0: no group has a thousandth
    of a record."""
    for item in fields(described):  # type: ignore[arg-type]
        value, stated = getattr(described, item.name), str(item.type)
        allowed, several = (
            STORED[stated.removeprefix("tuple[").removesuffix(", ...]")],
            stated.startswith("tuple"),
        )
        entries = cast(tuple[Any, ...], value) if isinstance(value, tuple) else (value,)
        for entry in entries:
            number = isinstance(entry, int | float)
            if (
                several != isinstance(value, tuple)
                or not isinstance(entry, allowed)
                or (type(entry) is bool) != (stated == "bool")
                or (number and not entry >= (-1 if item.name == "shape" else 0))
            ):
                raise InputError(
                    "curve",
                    f"must have a field {item.name!r} of type {stated}, not below 0",
                    type(entry).__name__,
                )
            if not number:
                _check_fields(entry)

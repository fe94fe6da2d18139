"""What a certificate is about, and the curve of all of it: steps, preparation, calibration,
counts, groups, exchanges."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from flint import arb

from lastiterate_check import others
from lastiterate_check.balls import Best, Curve, Exchanged, Failing, Gaussian, Renyi, Worst, up
from lastiterate_check.run import (
    SLACK,
    STRENGTH,
    WORDS,
    BadInput,
    Fact,
    NotCovered,
    Run,
    number,
    whole,
)
from lastiterate_check.theorems import (
    CONDITIONS,
    TABLE,
    THEOREMS,
    Fails,
    Theorem,
    composition,
    facts_used,
)

Lines = list[str]
CHEAP = (
    "composition-gdp",
    "correlated-gdp",
    "shifted-interpolation",
    "shifted-interpolation-permuted",
    "shifted-interpolation-reshuffled",
    "shifted-interpolation-bins",
    "shifted-interpolation-allocated",
    "bounded-domain-convex",
    "lipschitz-bounded-domain",
    "poisson-pld",
    "random-allocation-pld",
    "balls-in-bins-pld",
    "fixed-size-amplified",
    "variance-reduction",
    "langevin-strongly-convex",
    "langevin-squared-norm",
    "sgld-strongly-convex",
    "sgld-strongly-convex-batch",
    "objective-perturbation",
    "langevin-lsi",
    "sgld-lsi",
    "composition-langevin",
    "hoelder-bounded-domain",
    "restarted-poisson-pld",
    "restarted-allocation-pld",
    "restarted-fixed-size",
    "delayed-shifts-poisson",
    "delayed-shifts-allocated",
    "delayed-shifts-fixed-size",
)
"""Theorems in the order in which they are tried where a number may rest on any of them."""


def certified(theorem: Theorem, run: Run, at_least: str, lines: Lines) -> Curve:
    """The curve of one record by one theorem, every condition looked at."""
    words = [TABLE["conditions"][name] for name in theorem.assumes]
    for name, (said, _) in zip(theorem.assumes, words, strict=True):
        if not CONDITIONS[name](run):
            raise Fails(said)
    for fact in facts_used(theorem, run):
        if STRENGTH.index(fact.evidence) < STRENGTH.index(at_least) and fact.evidence != "PAID":
            raise Fails(
                f"evidence {at_least}: {fact.why or 'a constant'} is {WORDS[fact.evidence]}"
            )
    curve = theorem.curve(run)
    lines += [f"  assumes {said}: {whence}" for said, whence in words]
    lines += [
        f"  rests on {fact.value:.6g}, {fact.why}: {WORDS[fact.evidence]}"
        for fact in dict.fromkeys(facts_used(theorem, run))
    ]
    return curve


def measurements(run: Run) -> tuple[float, float, Lines]:
    """mu of everything that is measured on records beside the steps, for one row, and what may
    fail."""
    square, failure, lines = arb(0), 0.0, []
    moved = {
        "PrivateMean": arb(run.moved),
        "PrivateTargetMean": arb(run.moved),
        "CosineFeatures": arb(run.moved),
        "PrivateCovariance": arb(run.moved).sqrt(),
        "TopEigenvalue": arb(1),
    }
    for part in run.prelude:
        kind = part.get("type")
        if kind in ("SquareRoots", "UnitRows"):
            continue
        if kind not in moved:
            raise NotCovered(f"a preparation of the kind {kind}")
        mu = moved[kind] * (1 + SLACK) / number(part, "noise_multiplier")
        lines.append(f"  preparation {kind}: a Gaussian mechanism, mu = {up(mu):.6g}")
        square += mu**2
        if kind == "TopEigenvalue":  # twice where drawn batches follow from it by a second bound
            failure += number(part, "failure", 1e-8) * (
                1 if run.kind in ("FullBatch", "Cyclic", "Permuted") else 2
            )
    fit = run.calibration
    if fit is not None and fit.get("type") == "Calibration":
        mu = arb(run.moved) * (1 + SLACK) / number(fit, "noise_multiplier")
        lines.append(
            f"  calibration of probabilities: Gaussian mechanisms, mu = {up(mu):.6g} together"
        )
        square += mu**2
    elif fit is not None and fit.get("type") != "AssumedSlope":
        raise NotCovered(f"a calibration of the kind {fit.get('type')}")
    return up(square.sqrt()) if square > 0 else 0.0, failure, lines


def counted(run: Run, curve: Curve, lines: Lines) -> Curve:
    """With noisy counts: they add, or stand apart where a record is trained on or counted, never
    both."""
    beside, apart = arb(0), arb(0)
    for count in run.counts:
        moved = arb(run.moved).sqrt() if count.get("type") == "NoisyGroups" else arb(1)
        if count.get("type") not in ("NoisyCount", "NoisyGroups"):
            raise NotCovered(f"counts of the kind {count.get('type')}")
        mu = moved * (1 + SLACK) / number(count, "noise_multiplier")
        lines.append(f"  a noisy count: a Gaussian mechanism, mu = {up(mu):.6g}")
        if count.get("drawn") == "apart":
            if whole(run.body, "rows_per_unit", 1) > 1 or run.adjacency == "add-remove":
                raise NotCovered("counts apart from the training where a unit may be in both parts")
            apart += mu**2
        else:
            beside += mu**2
    if beside > 0:
        curve = curve.with_gaussian(up(beside.sqrt()))
    return Worst([curve, Gaussian((apart + beside).sqrt())]) if apart > 0 else curve


def of_run(
    body: dict[str, Any],
    name: str,
    adjacency: str | None,
    at_least: str,
    lines: Lines,
    split: bool = False,
) -> Curve:
    """The curve of a run's release by the theorem of that name, for its protected unit."""
    if name not in THEOREMS:
        raise NotCovered(f"the theorem {name}")
    theorem, run = THEOREMS[name], Run(body, adjacency, rows_per_unit=1)
    size = whole(body, "rows_per_unit", 1)
    check_combination(run)
    if run.moved == 2 and (split or "single" in theorem.assumes):
        if run.constants.get("sensitivity") is not None:
            raise Fails("a bound on one record's contribution, not on an exchange")
        zeroed = Run(body, "zero-out", rows_per_unit=1)
        _no_curvature_of_records(theorem, zeroed)
        curve: Curve = Exchanged(_with_parts(theorem, zeroed, at_least, lines))
        lines.append(
            "  an exchange is one record removed and one added: the best split of both orders"
        )
    else:
        curve = _with_parts(theorem, run, at_least, lines)
    if size > 1:
        _no_curvature_of_records(theorem, run)
        curve = curve.group(size)
        lines.append(f"  a unit has up to {size} rows: group privacy")
    return curve


def _with_parts(theorem: Theorem, run: Run, at_least: str, lines: Lines) -> Curve:
    curve = certified(theorem, run, at_least, lines)
    mu, failure, said = measurements(run)
    lines += said
    if mu > 0:
        curve = curve.with_gaussian(mu)
    return counted(run, Failing(curve, failure) if failure else curve, lines)


def _no_curvature_of_records(theorem: Theorem, run: Run) -> None:
    """With some records zeroed only what follows from the loss's form holds: stated curvature is
    the records' own."""
    stated = [
        run.constants[x].value
        for x in ("strong", "weak_convexity", "log_sobolev")
        if x in run.constants
    ]
    if (
        theorem.geometry
        and run.loss["type"] == "Abstract"
        and not run.relative
        and any(x > 0 for x in stated)
    ):
        raise Fails("curvature that does not come from records that may be zeroed")


def check_combination(run: Run) -> None:
    """Refuse what a run may not combine, where a guarantee would depend on it."""
    measured = [part.get("type") for part in run.prelude]
    if run.relative and (
        measured[-1:] != ["TopEigenvalue"]
        or run.prox is not None
        or math.isfinite(run.diameter)
        or run.noise["type"] == "Langevin"
        or run.part("start", "Fixed")["type"] != "Fixed"
    ):
        raise BadInput("run.step_size: relative to a smoothness that the run does not measure last")
    if run.schedule["type"] == "StableSteps" and (
        measured[-1:] != ["PrivateCovariance"] or not run.update or run.noise["type"] == "Langevin"
    ):
        raise BadInput("run.step_size: stable steps need a PrivateCovariance last and heavy ball")
    if run.release not in ("last", "all"):
        raise BadInput("run.release: must be last or all")


def exact(body: dict[str, Any], adjacency: str | None, lines: Lines) -> Curve:
    """Discrete Gaussian noise on exact sums: Renyi divergence alpha mu^2/2 of composition
    (Canonne et al. 2020)."""
    run = Run(body, adjacency, rows_per_unit=1)
    theorem = THEOREMS["composition-gdp"]
    if (
        run.adjacency == "add-remove"
        or run.counts
        or any(part["type"] in ("TopEigenvalue", "CosineFeatures") for part in run.prelude)
    ):
        raise NotCovered("exact noise with this preparation, with counts or under add-remove")
    certified(theorem, run, "ENFORCED", lines)
    mu, _, said = measurements(run)
    lines += said
    curve = Renyi(up((arb(composition(run).mu) ** 2 + arb(mu) ** 2) / 2))
    size = whole(body, "rows_per_unit", 1)
    return curve.group(size) if size > 1 else curve


def selection(body: dict[str, Any], adjacency: str | None, at_least: str, lines: Lines) -> Curve:
    """The best of a random number of runs: every candidate, and its score, by its best theorem."""
    score = Renyi(up(1 / (2 * arb(number(body, "score_noise")) ** 2)))
    parts: list[Curve] = []
    for candidate in body["candidates"]:
        found = [curve for _, curve in by_any(candidate, adjacency, at_least, CHEAP)]
        if not found:
            raise NotCovered("a candidate that no theorem certifies")
        parts.append(Best(found) if len(found) > 1 else found[0])
    lines.append(f"  {len(parts)} candidates, each by its best theorem")
    return others.selected(Worst([*parts, score]), body["law"])


def by_any(body: dict[str, Any], adjacency: str | None, at_least: str, names: tuple[str, ...]):
    """(name, curve) of every theorem that speaks of a run, one after the other."""
    for name in names:
        try:
            yield name, of_run(body, name, adjacency, at_least, [])
        except (Fails, NotCovered, NotImplementedError):
            continue


def curve_of(
    stored: dict[str, Any], adjacency: str | None, lines: Lines, split: bool = False
) -> Curve:
    """The curve of what a certificate is about, by the theorem that it names.

    ``split``: an exchange as one record removed and another one added, whatever the theorem.
    """
    at_least = stored.get("at_least", "ENFORCED")
    if at_least not in STRENGTH:
        raise BadInput("at_least: must be one of " + ", ".join(STRENGTH))
    if "run" in stored:
        name = stored.get("theorem")
        if not isinstance(name, str):
            raise NotCovered("a certificate of a run that names no theorem")
        lines.append(f"{name}: {THEOREMS[name].source if name in THEOREMS else ''}")
        return of_run(stored["run"], name, adjacency, at_least, lines, split)
    if "exact_run" in stored:
        lines.append("discrete Gaussian noise: Canonne, Kamath, Steinke 2020, Theorem 4")
        return exact(stored["exact_run"], adjacency, lines)
    if "selection" in stored:
        lines.append("private selection: Papernot, Steinke 2022, Theorems 2 and 6")
        return selection(stored["selection"], adjacency, at_least, lines)
    if "problem" in stored:
        lines.append("an exact posterior sample: docs/theorems/posterior-sample, ridge-posterior")
        return others.posterior(stored["problem"], adjacency or stored.get("adjacency"))
    if "unlearning" in stored:
        lines.append("forgotten records: docs/theorems/forgetting")
        return others.forgotten(stored["unlearning"], lines)
    raise BadInput(
        "certificate: must be about a run, an exact run, a selection, a problem or forgetting"
    )


Speaks = Callable[[], Curve]
__all__ = ["Fact", "by_any", "curve_of", "of_run"]

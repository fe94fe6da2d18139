"""What a certificate is about, and the curve of all of it: steps, preparation, calibration,
counts, groups, exchanges."""

from __future__ import annotations

import math
from collections.abc import Iterator

from flint import arb

from lastiterate_check import mechanisms
from lastiterate_check.curves import Best, Curve, Exchanged, Failing, Gaussian, Renyi, up
from lastiterate_check.run import SLACK, TABLE, BadInput, Body, Fails, NotCovered, Run, number
from lastiterate_check.theorems import CONDITIONS, CURVES, THEOREMS, facts_used

Lines = list[str]
UNKNOWN = (Fails, NotCovered, NotImplementedError)
"""How a theorem says that it does not speak of a run, or this program that it does not."""
FREE = ("SquareRoots", "UnitRows", "AssumedSlope")
"""Parts that release nothing: maps of single records, and a stated number."""


def certified(theorem: Body, run: Run, at_least: str, lines: Lines) -> Curve:
    """The curve of one record by one theorem, every condition looked at."""
    words, known = TABLE["batches"], TABLE["evidence"]
    if run.kind not in theorem.get("batches", words):
        raise Fails(" or ".join(words[kind][0] for kind in theorem["batches"]))
    said = [words[run.kind][:2]]
    for name in theorem["assumes"].split():
        said.append(TABLE["conditions"][name])
        if not CONDITIONS[name](run):
            raise Fails(said[-1][0])
    facts, rank = facts_used(theorem, run), list(known).index
    for fact in facts:
        if rank(fact.evidence) < rank(at_least) and fact.evidence != "PAID":
            raise Fails(f"evidence {at_least}: {fact.why or 'it'} is {known[fact.evidence]}")
    curve = CURVES[theorem["curve"]](run)
    lines += [f"  assumes {what}: {whence}" for what, whence in said]
    lines += [f"  rests on {f.value:.6g}, {f.why}: {known[f.evidence]}" for f in facts]
    return curve


def measured(run: Run, part: Body, lines: Lines) -> arb:
    """Return mu^2 of one part that is measured on records in addition to the steps, for one row."""
    kind = part.get("type")
    if kind in FREE:
        return arb(0)
    if kind not in TABLE["measured"]:
        raise NotCovered(f"a part of the kind {kind}")
    moved = arb(run.moved) ** arb(TABLE["measured"][kind])
    mu = moved * (1 + SLACK) / number(part, "noise_multiplier")
    lines.append(f"  {kind}: Gaussian mechanisms, mu = {up(mu):.6g} together")
    return mu**2


def with_measurements(run: Run, curve: Curve, lines: Lines) -> Curve:
    """With the preparation, the calibration of probabilities and noisy counts.

    A record is trained on or counted, never both, where counts stand apart.
    """
    parts = [*run.prelude, *([run.calibration] if run.calibration else [])]
    square = sum((measured(run, part, lines) for part in parts), arb(0))
    failure = 0.0
    for part in run.prelude:
        if part.get("type") == "TopEigenvalue":  # twice where drawn batches need a second bound
            twice = run.kind not in ("FullBatch", "Cyclic", "Permuted")
            failure += number(part, "failure", 1e-8) * (1 + twice)
    included, apart = arb(0), arb(0)
    for count in run.counts:
        if count.get("drawn") == "apart":
            if run.unit_rows > 1 or run.adjacency == "add-remove":
                raise NotCovered("counts apart from the training where a unit may be in both parts")
            apart += measured(run, count, lines)
        else:
            included += measured(run, count, lines)
    curve = Failing(curve, failure) if failure else curve
    if square + included > 0:
        curve = curve.with_gaussian(up((square + included).sqrt()))
    return Best([curve, Gaussian((apart + included).sqrt())], max) if apart > 0 else curve


def of_run(
    body: Body, name: str, adjacency: str | None, at_least: str, lines: Lines, split: bool = False
) -> Curve:
    """The curve of a run's release by the theorem of that name, for its protected unit."""
    if name not in THEOREMS:
        raise NotCovered(f"the theorem {name}")
    theorem, run = THEOREMS[name], Run(body, adjacency)
    lines.append(f"{name}: {theorem['source']}")
    check_combination(run)
    exchanged = run.moved == 2 and (split or "single" in theorem["assumes"])
    if exchanged and "sensitivity" in run.constants:
        raise Fails("a bound on one record's contribution, not on an exchange")
    known = [run.constants.get(x) for x in ("strong", "weak_convexity", "log_sobolev")]
    stated = run.loss["type"] == "Abstract" and not run.relative
    if (
        (exchanged or run.unit_rows > 1)
        and theorem.get("geometry")
        and stated
        and any(fact is not None and fact.value > 0 for fact in known)
    ):  # with some records zeroed only what follows from the loss's form holds
        raise Fails("curvature that does not come from records that may be zeroed")
    one = Run(body, "zero-out") if exchanged else run
    curve = with_measurements(one, certified(theorem, one, at_least, lines), lines)
    if exchanged:
        lines.append("  an exchange is a record removed and one added: the best split of both")
        curve = Exchanged(curve)
    if run.unit_rows > 1:
        lines.append(f"  a unit has up to {run.unit_rows} rows: group privacy")
    return curve.group(run.unit_rows)


def check_combination(run: Run) -> None:
    """Refuse what a run may not combine, where a guarantee would depend on it."""
    last = run.prelude[-1].get("type") if run.prelude else None
    bound = run.prox is not None or math.isfinite(run.diameter) or run.start["type"] != "Fixed"
    if run.relative and (last != "TopEigenvalue" or bound or run.noise["type"] == "Langevin"):
        raise BadInput("run.step_size: relative to a smoothness that the run does not measure last")
    if run.release not in ("last", "all"):
        raise BadInput("run.release: must be last or all")


def exact(body: Body, adjacency: str | None, lines: Lines) -> Curve:
    """Discrete Gaussian noise on exact sums: Renyi divergence alpha mu^2/2 of composition
    (Canonne et al. 2020)."""
    run = Run(body, adjacency)
    kinds = {part.get("type") for part in run.prelude}
    if run.adjacency == "add-remove" or run.counts or kinds & {"TopEigenvalue", "CosineFeatures"}:
        raise NotCovered("exact noise with this preparation, with counts or under add-remove")
    curve = certified(THEOREMS["composition-gdp"], run, "ENFORCED", lines)
    mu = with_measurements(run, curve, lines).mu
    return Renyi(up(arb(mu) ** 2 / 2)).group(run.unit_rows)


def selection(body: Body, adjacency: str | None, at_least: str, lines: Lines) -> Curve:
    """The best of a random number of runs: every candidate, and its score, by its best theorem."""
    parts: list[Curve] = [Renyi(up(1 / (2 * arb(number(body, "score_noise")) ** 2)))]
    for candidate in body["candidates"]:
        found = list(by_any(candidate, adjacency, at_least))
        if not found:
            raise NotCovered("a candidate that no theorem certifies")
        parts.append(Best(found))
    lines.append(f"  {len(parts) - 1} candidates, each by its best theorem")
    return mechanisms.selected(Best(parts, max), body["law"])


def by_any(body: Body, adjacency: str | None, at_least: str) -> Iterator[Curve]:
    """Curves by every theorem that speaks of a run, one after the other."""
    for name in THEOREMS:
        try:
            yield of_run(body, name, adjacency, at_least, [])
        except UNKNOWN:
            continue


def curve_of(stored: Body, adjacency: str | None, lines: Lines, split: bool = False) -> Curve:
    """The curve of what a certificate is about, by the theorem that it names.

    ``split``: an exchange as one record removed and another one added, whatever the theorem.
    """
    at_least = stored.get("at_least", "ENFORCED")
    if at_least not in TABLE["evidence"]:
        raise BadInput("at_least: must be one of " + ", ".join(TABLE["evidence"]))
    if "run" in stored:
        name = stored.get("theorem")
        if not isinstance(name, str):
            raise NotCovered("a certificate of a run that names no theorem")
        return of_run(stored["run"], name, adjacency, at_least, lines, split)
    if "exact_run" in stored:
        lines.append("discrete Gaussian noise: Canonne, Kamath, Steinke 2020, Theorem 4")
        return exact(stored["exact_run"], adjacency, lines)
    if "selection" in stored:
        lines.append("private selection: Papernot, Steinke 2022, Theorems 2 and 6")
        return selection(stored["selection"], adjacency, at_least, lines)
    if "unlearning" in stored:
        lines.append("forgotten records: docs/theorems/forgetting")
        return mechanisms.forgotten(stored["unlearning"], lines)
    if "problem" in stored:
        raise NotCovered("a sample of a posterior")
    raise BadInput("certificate: must be about a run, an exact run, a selection or forgetting")

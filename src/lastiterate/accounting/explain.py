"""A certificate in words: the answer first, then what it rests on, then what else is known."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from lastiterate.curves.curve import check_delta
from lastiterate.markup import Markup, table, tag
from lastiterate.run.adjacency import records_moved
from lastiterate.run.evidence import Evidence
from lastiterate.theorems.theorem import Applies, by_reason

if TYPE_CHECKING:
    from lastiterate.accounting.certificate import Certificate

NEIGHBOURS = {
    "zero-out": "one record's contribution is set to zero; the number of records is public",
    "replace-one": "one record is exchanged for any other; the number of records is public",
    "add-remove": "one record is added or removed",
}
UNIT = "A record is one row of the training data: somebody with several rows is protected as a group of that many."


def units(rows: int) -> str:
    """What a record is not, where epsilon speaks of units of several rows."""
    return f"epsilon is for a unit of at most {rows} rows, by group privacy; holds if no unit has more rows in the data"


CAVEATS = (
    "covers this release only: further fits on the same data compose",
    "noise and steps have double precision; the proofs are about real numbers",
    "intermediate iterates, gradients, noise and its seed must stay secret",
)


class Text(str):
    """Lines of text that an interactive session shows as they are."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def rounded_up(value: float | None) -> str:
    """A number rounded up in its last shown digit, or a dash."""
    if value is None or not math.isfinite(value):
        return "-"
    if value == 0:
        return "0"
    scale = 10.0 ** (math.floor(math.log10(value)) - 3)
    return f"{math.ceil(value / scale * (1 - 1e-12)) * scale:.4g}"


def rounded_down(value: float) -> str:
    """A number rounded down in its last shown digit."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    scale = 10.0 ** (math.floor(math.log10(value)) - 3)
    return f"{math.floor(value / scale) * scale:.4g}"


def headline(certificate: Certificate, delta: float) -> str:
    """The answer in a sentence or two; the reasons where nothing certifies the run."""
    best = certificate.best(delta)
    if best is None or not math.isfinite(certificate.epsilon(delta)):
        return why_not(certificate)
    text = (f"epsilon {rounded_up(certificate.epsilon(delta))} at delta {delta:g} ({certificate.run.adjacency}), "
            f"by {best.theorem.name}")
    lower = certificate.lower(delta)
    return text + (f"; and no less than {rounded_down(lower)} for the worst loss in this class." if lower > 0 else ".")


def in_words(certificate: Certificate, delta: float, every: bool = False) -> Text:
    """The answer, what a record and a neighbour is, the theorem, its conditions, and the other theorems that apply.

    ``every``: also the theorems that do not apply, every reason once.
    """
    check_delta(delta)
    lines = [headline(certificate, delta)]
    if math.isfinite(certificate.epsilon(delta)):
        lines += _meaning(certificate, delta)
    lines += _others(certificate, delta)
    failing = {v.theorem.name: v.reasons for v in certificate.verdicts if v.reasons}
    if failing and every:
        lines += ["Theorems that do not apply:", by_reason(failing)]
    elif failing:
        lines.append(f"{len(failing)} theorems do not apply: explain(delta, all=True) says why.")
    return Text("\n".join(lines))


def _meaning(certificate: Certificate, delta: float) -> list[str]:
    adjacency, best = certificate.run.adjacency, certificate.best(delta)
    assert best is not None and best.evidence is not None
    rows = max(certificate.run.rows_per_unit, certificate.run.rows_per_record)
    lines = [f"Neighbours ({adjacency}): {NEIGHBOURS[adjacency]}. {UNIT}"] if rows == 1 else [
        f"Neighbours ({adjacency}): {NEIGHBOURS[adjacency]}, for all rows of one unit, {rows} at most."]
    if records_moved(adjacency) == 1:
        other = certificate.replace_one_epsilon(delta)
        lines.append(f"Under replace-one: epsilon {rounded_up(other)}." if math.isfinite(other)
                     else "Under replace-one nothing is claimed.")
    lines.append(f"Theorem: {best.theorem.citation}, on {best.evidence.name.lower()} facts.")
    if condition := conditional_on(certificate):
        lines.append(condition[0].upper() + condition[1:] + ".")
    return lines


def _others(certificate: Certificate, delta: float) -> list[str]:
    best = certificate.best(delta)
    rows = [row for row in certificate.rows(delta) if row["applies"]
            and (best is None or row["theorem"] != best.theorem.name)]
    if not rows:
        return []
    shown = [f"  {row['theorem']} ({row['kind']}, {row['evidence'].lower()} facts): {_charged(row)}"
             for row in sorted(rows, key=_by_epsilon)]
    return ["Other theorems that apply:" if best is not None else "Theorems that apply:", *shown]


def _by_epsilon(row: dict[str, Any]) -> float:
    return math.inf if row["epsilon"] is None else row["epsilon"]


def _charged(row: dict[str, Any]) -> str:
    if row["epsilon"] is None:
        return "epsilon is infinite"
    return f"epsilon >= {rounded_down(row['epsilon'])}" if row["kind"] == "lower" else \
        f"epsilon {rounded_up(row['epsilon'])}"


def for_notebooks(certificate: Certificate) -> Markup:
    """What a notebook shows: the answer at a delta that fits n, and the theorems that apply."""
    delta = min(1e-5, 10.0 ** -math.ceil(math.log10(10 * certificate.run.n)))
    best, other = certificate.best(delta), certificate.replace_one_epsilon(delta)
    head = tag("p", tag("strong", headline(certificate, delta).splitlines()[0]))
    if best is None:
        return tag("div", head, tag("pre", why_not(certificate)))
    rows: list[tuple[object, object]] = [
        ("neighbours", f"{certificate.adjacency}: {NEIGHBOURS[certificate.adjacency]}"),
        ("under replace-one", f"epsilon {rounded_up(other)}" if math.isfinite(other) else "nothing is claimed"),
        ("rests on", conditional_on(certificate) or f"{best.evidence.name.lower() if best.evidence else 'no'} facts"),
        ("run", f"{certificate.run.steps} steps on {certificate.run.n} records, "
                f"{type(certificate.run.batching).__name__}")]
    listed = sorted((row for row in certificate.rows(delta) if row["applies"]), key=_by_epsilon)
    theorems = table(
        [(f"{row['theorem']} ({row['kind']}, {row['evidence'].lower()})", _charged(row)) for row in listed]
    )
    return tag("div", head, table(rows), tag("details", tag("summary", "theorems that apply"), theorems))


def why_not(certificate: Certificate) -> str:
    """Why nothing certifies the run: every reason, and the theorems it concerns."""
    found = {verdict.theorem.name: verdict.refusal(certificate.at_least) for verdict in certificate.verdicts
             if verdict.theorem.kind in ("upper", "exact")}
    return "no theorem certifies this run:\n" + by_reason(found)


def conditional_on(certificate: Certificate) -> str:
    """What the certificate takes on somebody's word ("" for nothing)."""
    used = {fact for v in certificate.certifying if isinstance(v.result, Applies) for fact in v.result.facts}
    weak = sorted(f"{fact.why} ({fact.value:g})" for fact in used if not fact.evidence.satisfies(Evidence.ENFORCED))
    return "conditional on: " + "; ".join(weak) if weak else ""

"""A certificate in words, and what each secret saves compared with composition."""

from __future__ import annotations

import math
from typing import Any

from lastiterate.accounting.certificate_subject import (
    NEIGHBOURS,
    UNNAMED,
    Text,
    format_rounded_down,
    format_rounded_up,
)
from lastiterate.accounting.guarantee import Guarantee, rows
from lastiterate.curves.curve import check_delta
from lastiterate.markup import Markup, table, tag
from lastiterate.plugins import mark
from lastiterate.run.adjacency import says_exchanges
from lastiterate.run.run import Run
from lastiterate.theorems.theorem import Violated, check_method, group_by_reason


def headline(certificate: Guarantee, delta: float) -> str:
    """The answer in a sentence or two; what is missing most nearly where nothing is certified."""
    if not math.isfinite(certificate.epsilon(delta)):
        said = _nearest_reasons(certificate)
        return f"no theorem certifies this run.\nNearest is {said}" if said else NOTHING
    best = certificate.best(delta)
    by = certificate.subject.words.by if best is None else f"by {best.theorem.name}"
    if best is not None and best.theorem.mark:
        by += f" ({best.theorem.mark})"
    epsilon, other = certificate.epsilon(delta), certificate.replace_one_epsilon(delta)
    known = format_rounded_up(other) if math.isfinite(other) else "unknown"
    exchanged = "" if other == epsilon else f"; replace-one {known}"
    text = (
        f"epsilon {format_rounded_up(epsilon)} at delta {delta:g} "
        f"({certificate.adjacency}{exchanged}), {by}"
    )
    lower = certificate.lower(delta)
    return text + (
        f"; and no less than {format_rounded_down(lower)} for the worst loss in this class."
        if lower > 0
        else "."
    )


def explain_in_words(certificate: Guarantee, delta: float, every: bool = False) -> Text:
    """The answer, what a record and a neighbour is, what it rests on, and the other theorems that
    apply, or (where no theorem of the table is asked) the caveats.

    ``every``: also the theorems that do not apply, every reason once.
    """
    check_delta(delta)
    certificate.check_lower_bounds(delta)
    lines = [headline(certificate, delta)]
    if math.isfinite(certificate.epsilon(delta)):
        lines += _explain_meaning(certificate, delta)
    if not certificate.verdicts:
        return Text("\n".join([*lines, *(f"- {text}" for text in certificate.all_caveats())]))
    lines += _others(certificate, delta)
    failing = {v.theorem.name: v.reasons for v in certificate.verdicts if v.reasons}
    if every and not math.isfinite(certificate.epsilon(delta)):
        lines.append(explain_refusal(certificate))
    elif failing and every:
        lines += ["Theorems that do not apply:", group_by_reason(failing)]
    elif failing:
        lines.append(f"{len(failing)} theorems do not apply: explain(delta, all=True) says why.")
    return Text("\n".join(lines))


def _explain_meaning(certificate: Guarantee, delta: float) -> list[str]:
    adjacency, best, run = certificate.adjacency, certificate.best(delta), certificate.subject.run
    most = 1 if run is None else max(run.rows_per_unit, run.rows_per_record)
    protected = certificate.subject.describe_unit(certificate.unit)["words"]
    lines = (
        [f"Neighbours ({adjacency}): {NEIGHBOURS[adjacency]}. Protected is {protected}."]
        if most == 1
        else [
            f"Neighbours ({adjacency}): {NEIGHBOURS[adjacency]}, for all rows of one unit"
            + (f" ({name})" if (name := certificate.unit) not in ("", UNNAMED) else "")
            + f", {most} at most."
        ]
    )
    if says_exchanges(adjacency):
        other = certificate.replace_one_epsilon(delta)
        lines.append(
            f"Under replace-one: epsilon {format_rounded_up(other)}."
            if math.isfinite(other)
            else "Under replace-one nothing is claimed."
        )
    if best is not None and best.evidence is not None:
        lines.append(f"Theorem: {best.theorem.citation}, on {best.evidence.name.lower()} facts.")
    lines += certificate.subject.because(delta)
    if condition := certificate.condition:
        lines.append(condition[0].upper() + condition[1:] + ".")
    return lines


def _others(certificate: Guarantee, delta: float) -> list[str]:
    best = certificate.best(delta)
    others = [
        row
        for row in rows(certificate, delta)
        if row["applies"] and (best is None or row["theorem"] != best.theorem.name)
    ]
    if not others:
        return []
    shown = [
        f"  {row['theorem']} ({row['kind']}, {row['evidence'].lower()} facts{_by(row)}): "
        f"{_format_charge(row)}"
        for row in sorted(others, key=_by_epsilon)
    ]
    return ["Other theorems that apply:" if best is not None else "Theorems that apply:", *shown]


def _by(row: dict[str, Any]) -> str:
    """The mark of a plug-in's theorem."""
    return f", {mark(row['by'])}" if "by" in row else ""


def _by_epsilon(row: dict[str, Any]) -> float:
    return math.inf if row["epsilon"] is None else row["epsilon"]


def _format_charge(row: dict[str, Any]) -> str:
    if row["epsilon"] is None:
        return "epsilon is infinite"
    return (
        f"epsilon >= {format_rounded_down(row['epsilon'])}"
        if row["kind"] == "lower"
        else f"epsilon {format_rounded_up(row['epsilon'])}"
    )


def render_html(certificate: Guarantee) -> Markup:
    """Render a notebook's view: the answer at a delta that fits n, and the theorems that apply."""
    if not certificate.verdicts:
        return tag("pre", explain_in_words(certificate, 1e-5))
    delta = min(1e-5, 10.0 ** -math.ceil(math.log10(10 * certificate.run.n)))
    best, other = certificate.best(delta), certificate.replace_one_epsilon(delta)
    head = tag("p", tag("strong", headline(certificate, delta).splitlines()[0]))
    if best is None:
        return tag("div", head, tag("pre", explain_refusal(certificate)))
    facts: list[tuple[object, object]] = [
        ("neighbours", f"{certificate.adjacency}: {NEIGHBOURS[certificate.adjacency]}"),
        (
            "under replace-one",
            f"epsilon {format_rounded_up(other)}" if math.isfinite(other) else "nothing is claimed",
        ),
        (
            "rests on",
            certificate.condition
            or f"{best.evidence.name.lower() if best.evidence else 'no'} facts",
        ),
        (
            "run",
            f"{certificate.run.steps} steps on {certificate.run.n} records, "
            f"{type(certificate.run.batching).__name__}",
        ),
    ]
    listed = sorted((row for row in rows(certificate, delta) if row["applies"]), key=_by_epsilon)
    theorems = table(
        [
            (
                f"{row['theorem']} ({row['kind']}, {row['evidence'].lower()}{_by(row)})",
                _format_charge(row),
            )
            for row in listed
        ]
    )
    return tag(
        "div", head, table(facts), tag("details", tag("summary", "theorems that apply"), theorems)
    )


NOTHING = "no theorem certifies this run"
NEAREST = 3  #: theorems that a sentence speaks of


def explain_refusal(certificate: Guarantee) -> str:
    """Why nothing certifies the run: every reason, and the theorems it concerns."""
    refusals = {
        verdict.theorem.name: verdict.refusal(certificate.min_evidence)
        for verdict in certificate.verdicts
        if verdict.theorem.kind in ("upper", "exact")
    }
    return f"{NOTHING}:\n" + group_by_reason(refusals)


def nearest(certificate: Guarantee) -> str:
    """Why those theorems about the run's method fail that lack least, in one sentence."""
    said = _nearest_reasons(certificate)
    if not said:
        return explain_refusal(certificate)
    return f"{NOTHING} ({said}); account(run).why_not() says it of all"


def _nearest_reasons(certificate: Guarantee) -> str:
    """The theorems about the run's method that lack least, and what each lacks; empty without any."""
    refusals = {
        verdict.theorem.name: verdict.refusal(certificate.min_evidence)
        for verdict in certificate.verdicts
        if verdict.theorem.kind in ("upper", "exact")
        and not any(
            isinstance(checked, Violated)
            for checked in check_method(verdict.theorem, certificate.run)
        )
    }
    if not refusals:
        return ""
    unenforced = [verdict.theorem.name for verdict in certificate.verdicts if not verdict.reasons]
    if held := {name: refusals[name] for name in unenforced if name in refusals}:
        refusals = held  # their assumptions hold, by facts that nothing enforces
    least, firsts = min(map(len, refusals.values())), dict[tuple[str, ...], str]()
    for name, reasons in refusals.items():
        if len(reasons) == least:
            firsts.setdefault(reasons, name)
    return "; ".join(
        f"{name}: {', and '.join(reasons)}" for reasons, name in list(firsts.items())[:NEAREST]
    )


# The price of composition.

COMPOSITION = "composition-gdp"


def composition_epsilon(certificate: Guarantee, delta: float) -> float:
    """Return epsilon of plain composition for the same run, as if every batch and every iterate
    were known."""
    verdicts = [v for v in certificate.certifying if v.theorem.name == COMPOSITION]
    return min((certificate.curve(v).epsilon(delta) for v in verdicts), default=math.inf)


def secrets(run: Run) -> str:
    """Describe what the batches of a run keep secret ("" for nothing)."""
    if run.batching.drawn == "never":
        return ""
    blocks = "the blocks" if run.blocks > 1 else "the batches"
    what = (
        blocks
        if run.batching.independent or run.batching.drawn == "each step"
        else "the order of the records"
    )
    return (
        what
        + {
            "once": "",
            "each pass": ", drawn again in every epoch,",
            "each step": ", drawn again at every step,",
        }[run.batching.drawn]
    )


def explain_gain(certificate: Guarantee, delta: float) -> str:
    """One sentence: what composition would charge for the same run, and which secrecy makes it cost
    less."""
    best = certificate.best(delta)
    assert best is not None
    if (beyond := certificate.run.method.beyond_composition) is not None:
        return beyond.format(secret=secrets(certificate.run))
    hidden = any(assumption.name == "last_iterate_only" for assumption in best.theorem.assumptions)
    kept = [
        part
        for part in (secrets(certificate.run), "the iterates before the last one" if hidden else "")
        if part
    ]
    charged = format_rounded_up(certificate.epsilon(delta))
    if (
        best.theorem.name == COMPOSITION
        or not kept
        or not certificate.run.decided_noise.independent
    ):
        who = "composition" if best.theorem.name == COMPOSITION else best.theorem.name
        return (
            f"{who} charges epsilon {charged}: every step counts in full, as if all iterates were "
            "published; certified is the release of the final model alone"
        )
    composed = composition_epsilon(certificate, delta)
    says = (
        f"charge epsilon {format_rounded_up(composed)}"
        if math.isfinite(composed)
        else "promise nothing"
    )
    return f"composition would {says}; because {' and '.join(kept)} stay secret, it is {charged}"

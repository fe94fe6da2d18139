"""Every theorem's verdict, what the guarantee rests on, what must stay secret."""

from __future__ import annotations

from typing import Any

from lastiterate.analysis.paid_smoothness import as_accounted
from lastiterate.markup import Markup, tag
from lastiterate.report.changes import opening
from lastiterate.report.frames import bullets, folded, section
from lastiterate.report.subject import Subject
from lastiterate.report.words import LADDER, number
from lastiterate.theorems import TABLE
from lastiterate.theorems.theorem import Broken, examined


def verdicts(subject: Subject) -> Markup:
    """Every theorem: what it says, or why it fails and which change would make it apply."""
    title = "4. Every theorem's verdict"
    listed: list[dict[str, Any]] | None = subject.body.get("verdicts")
    if listed is None or subject.run is None:
        return section(title, tag("p", "This kind of release has a proof of its own; see the caveats."))
    ordered = sorted(enumerate(listed), key=lambda pair: (not pair[1]["applies"], pair[1]["epsilon"] or 0.0))
    applies = [pair for pair in ordered if pair[1]["applies"]]
    fails = [pair for pair in ordered if not pair[1]["applies"]]
    caption = "Upper bounds can certify; lower bounds say what no analysis can beat; claimed ones are unproved or " \
        "refuted, and never certify"
    return section(title, [
        _table(subject, applies, "rests on", caption) if applies else tag("p", "No theorem applies to this run."),
        folded(f"{len(fails)} theorems do not apply: why, and which single change would make them",
               _table(subject, fails, "why, and what would change it", None)) if fails else ""])


def _table(subject: Subject, pairs: list[tuple[int, dict[str, Any]]], last: str, caption: str | None) -> Markup:
    rows = [tag("tr", tag("th", row["theorem"], scope="row"), tag("td", row["kind"]),
                tag("td", _verdict_number(i, row), class_="num"), tag("td", _verdict_words(subject, row)))
            for i, row in pairs]
    head = tag("tr", [tag("th", name, scope="col") for name in ("theorem", "kind", "epsilon", last)])
    return tag("table", "" if caption is None else tag("caption", caption), tag("thead", head), tag("tbody", rows),
               class_="verdicts")


def _verdict_number(i: int, row: dict[str, Any]) -> object:
    if not row["applies"]:
        return "-"
    shown = number(f"verdicts.{i}.epsilon", row["epsilon"], down=row["kind"] == "lower")
    return ["at least ", shown] if row["kind"] == "lower" else shown


def _verdict_words(subject: Subject, row: dict[str, Any]) -> object:
    if row["applies"]:
        return f"{row['evidence'].lower()} facts"
    theorem, run = TABLE[row["theorem"]], subject.run
    assert run is not None
    change = opening(theorem, run)
    broken = sum(isinstance(checked, Broken) for checked in examined(theorem, as_accounted(run)))
    opened = f"One change would make it apply: {change}." if change else \
        f"No single change that was tried makes it apply ({broken} conditions fail)."
    return [tag("ul", [tag("li", reason) for reason in row["reasons"]]), opened]


def evidence(subject: Subject) -> Markup:
    """What the guarantee rests on, the strongest evidence first."""
    rests = subject.body["stated"]["rests_on"]
    entries: list[Markup] = []
    for rung, meaning in LADDER.items():
        facts = [(i, fact) for i, fact in enumerate(rests) if fact["evidence"] == rung]
        listed = [tag("li", f"{fact['what']}: ", number(f"stated.rests_on.{i}.value", fact["value"],
                                                       f"{fact['value']:.6g}" if fact["value"] is not None else None))
                  for i, fact in facts]
        entries.append(tag("li", tag("strong", rung.lower()), f" ({meaning}): ",
                           tag("ul", listed) if listed else "nothing", class_=rung.lower()))
    return section("5. What it rests on", tag("ul", entries, class_="ladder"), class_="screen")


def secrets(subject: Subject) -> Markup:
    """What must stay secret, and what no theorem covers."""
    stated = subject.body["stated"]
    return section("6. What must stay secret, and what is not covered", [
        tag("h3", "Must stay secret"), bullets(stated["secret"]), tag("h3", "Charged"), bullets(stated["charged"]),
        tag("h3", "Not charged"), bullets(stated["not_charged"]), tag("h3", "Caveats"),
        bullets(subject.body["caveats"])], class_="screen")

"""What a test can find out, and epsilon over steps."""

from __future__ import annotations

from typing import Any

from lastiterate.accounting.unlearning import Unlearning
from lastiterate.accounting.wording import rounded_down, rounded_up
from lastiterate.markup import Markup, tag
from lastiterate.report import browser, charts, protocol, series
from lastiterate.report.charts import Axis, Series
from lastiterate.report.forgetting_picture import over_passes
from lastiterate.report.frames import folded, section
from lastiterate.report.subject import Subject
from lastiterate.report.words import number, share


def tradeoff(subject: Subject, *, moving: bool = True) -> Markup:
    """What a test that looks at the release can find out. ``moving``: with the slider, and what an audit found."""
    title = "2. What a test can find out"
    tests, stated = browser.tests_of(subject), subject.body["stated"]
    if not tests:
        return section(title, tag("p", "Nothing is certified, so nothing is excluded."))
    upper = ((0.0, tests[0].at_most), *((test.rate, test.at_most) for test in tests))
    lines = [Series("excluded above: certified bound", "certified", upper, shade="above"),
             Series("chance", "chance", ((0.0, 0.0), (1.0, 1.0)))]
    reached = [(test.rate, test.at_least) for test in tests if test.at_least is not None]
    if reached:
        lines.insert(1, Series("reached by some loss of the class (exact witness)", "lower", tuple(reached)))
    audited = [(rate["fpr_upper"], 1 - rate["fnr_upper"]) for rate in (subject.audit or {}).get("rates", [])]
    if audited:
        lines.append(Series("audit, with its confidence", "audit", tuple(audited), marks=True))
    picture = charts.chart(
        "True-positive rate over false-positive rate", "The line of the certified bound: no test lies above it. The "
        "table below has the numbers.", Axis("false-positive rate (share of unused records that a test flags)", 0, 1),
        Axis("true-positive rate (share of used records)", 0, 1), lines, name="tradeoff")
    slider = tag("p", tag("label", "False-positive rate: ", for_="rate"), tag(
        "input", type="range", id="rate", min=0, max=len(tests) - 1, step=1, value=len(tests) // 2), class_="noprint")
    said = tag("output", "", id="rate-said", for_="rate", aria_live="polite")
    table = _rates(stated["true_positive_rates"])
    return section(title, [picture, slider, tag("p", said), table, _audited(subject)] if moving else [picture, table],
                   class_="half")


def _rates(stated: list[dict[str, Any]]) -> Markup:
    """The numbers of the certified line."""
    def cell(name: str, row: dict[str, Any]) -> Markup:
        rate = row["false_positive_rate"]
        return tag("td", number(f"{name}.false_positive_rate", rate, f"{100 * rate:g} %"), class_="num")

    rows = [tag("tr", cell(name, row), tag("td", share(f"{name}.at_most", row["at_most"]), class_="num"))
            for name, row in ((f"stated.true_positive_rates.{i}", row) for i, row in enumerate(stated))]
    return tag("table", tag("caption", "No test of whether a record was used does better, whatever it knows"),
               tag("thead", tag("tr", tag("th", "false-positive rate", scope="col", class_="num"),
                                tag("th", "true-positive rate at most", scope="col", class_="num"))),
               tag("tbody", rows))


def _audited(subject: Subject) -> Markup:
    audit = subject.audit
    fixed = protocol.said(subject.body, audit)
    if audit is None:
        return tag("div", tag("p", "No audit was given for this report.", class_="soft"), fixed)
    paragraph = tag(
        "p",
        f"Audit ({audit['attack']}, {audit['trials']:g} models per data set): {audit['verdict']}. It showed "
        f"epsilon of at least {rounded_down(audit['lower'])} at delta {audit['delta']:g}, and could have "
        f"shown {rounded_up(audit['ceiling'])}; wrong with probability at most {audit['failure']:g}. The "
        "audit's numbers are the word of whoever ran it.",
        class_="word",
    )
    return tag("div", paragraph, fixed)


STYLES = {"last iterate": "last iterate", "sampling": "sampling", "composition": "composition", "lower bound": "lower"}


def steps(subject: Subject) -> Markup:
    """Epsilon over steps."""
    title = "3. Epsilon over steps"
    if isinstance(subject.certified.subject, Unlearning):
        return over_passes(subject.certified.subject, subject.delta)
    if not subject.certified.verdicts:
        return section(title, tag("p", "This release has one guarantee as a whole; it is not accounted step by step."))
    lines = series.over_steps(subject.certified, subject.delta)
    if not any(line.kind == "upper" for line in lines):
        return section(title, tag("p", "Nothing certifies this run at any number of steps."))
    values = [epsilon for line in lines for epsilon in line.epsilons if epsilon > 0]
    if not values:
        return section(title, tag("p", "Every bound on epsilon is 0 in double precision, at every number of steps."))
    run = subject.certified.run
    x, y = (
        Axis("steps", 1, max(2, run.steps), log=True),
        Axis(f"epsilon at delta = {subject.delta:g}", min(values) / 1.3, max(values) * 1.3, log=True),
    )
    drawn = [Series(line.name if line.kind == "upper" else "some loss of the class leaks this much", STYLES[line.name],
                    tuple(zip(map(float, line.steps), line.epsilons, strict=True)),
                    shade="below" if line.kind == "lower" else None) for line in lines]
    picture = charts.chart("Epsilon over the number of steps", "Upper bounds of composition, sampling and the last "
                           "iterate, above the lower bound; the run stops at its last step.", x, y, drawn, name="steps",
                           stop=(run.steps, f"this run: {run.steps}"))
    counts = sorted({count for line in lines for count in line.steps})
    cells = [tag("tr", tag("th", f"{count}", scope="row", class_="num"), [
        tag("td", _at(line, count), class_="num") for line in lines]) for count in counts]
    table = folded("The numbers of this picture", tag(
        "table", tag("thead", tag("tr", tag("th", "steps", scope="col", class_="num"), [
            tag("th", line.name, scope="col", class_="num") for line in lines])), tag("tbody", cells)))
    return section(title, [picture, table], class_="half")


def _at(line: series.Line, count: int) -> str:
    epsilon = dict(zip(line.steps, line.epsilons, strict=True)).get(count)
    return "-" if epsilon is None else rounded_down(epsilon) if line.kind == "lower" else rounded_up(epsilon)

"""The figures of a report: trade-offs, epsilon over steps, effects of columns, forgetting."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from lastiterate.accounting.certificate import Certificate
from lastiterate.accounting.certificate_subject import format_rounded_down, format_rounded_up
from lastiterate.accounting.unlearning import Unlearning
from lastiterate.data.columns import Words
from lastiterate.markup import Markup, tag
from lastiterate.release.column_effects import Effect
from lastiterate.report import charts, execution_section, page_parts
from lastiterate.report.charts import Axis, Series, chart
from lastiterate.report.guideline_sheets import line
from lastiterate.report.page_parts import fold, make_table, number, section, share
from lastiterate.report.subject import ReportSource
from lastiterate.run.run import Run

# Effects of columns, as pictures and as a table: post-processing of the released weights.

MOST = 30
"""Columns that are drawn."""
DIGITS = {"": 4, "year": 6}
"""Of a place, by its unit."""


def effects(subject: ReportSource) -> Markup | str:
    """Every column's effect, the largest first, with the noise's own band."""
    ranked = subject.effects
    if not ranked:
        return ""
    several = (
        " Of several classes each score counts against the mean of all." if ranked[0].answer else ""
    )
    parts: list[Markup] = [
        tag(
            "p",
            "How the score changes with each column, the largest change first. It is against the "
            "mean of the column that the run released with noise. Where it released none, a number "
            f"is against the middle of its public range. The band is {_describe_band(ranked[0])}: what "
            "stays within it around 0 may be noise. Nothing here looks at a record, so that it costs no privacy; it "
            "shows associations, not causes." + several,
        )
    ]
    for place, effect in enumerate(ranked[:MOST]):
        parts += [
            tag("h3", f"{_name(effect)}: {effect.size:.3g} from the smallest to the largest"),
            _table(effect) if effect.labels else _picture(effect, f"effect-{place}"),
        ]
        if effect.missing is not None:
            parts.append(tag("p", f"where it is missing: {_numbers(*effect.missing)}"))
    if len(ranked) > MOST:
        parts.append(
            tag("p", f"{len(ranked) - MOST} smaller effects are not drawn.", class_="soft")
        )
    if texts := texts_of(subject):
        parts.append(
            tag(
                "p",
                f"Not drawn: {', '.join(texts)}. Text becomes numbers by a hash, each of which "
                f"counts "
                "many words, so that no word has an effect of its own.",
                class_="soft",
            )
        )
    return section("What the model learned of each column", parts, class_="screen")


def _describe_band(effect: Effect) -> str:
    """Return what the bands of a model's effects are."""
    return (
        "two standard deviations of the run's own noise, as large as it is for a value that no "
        "record has"
        if effect.bounded
        else "twice the root mean square of all weights, and the noise of a value that few records "
        "have may be larger"
    )


def _name(effect: Effect) -> str:
    """The column, and of several classes which one its effect speaks for."""
    return f"{effect.column}, {effect.answer}" if effect.answer else effect.column


def effects_as_markdown(subject: ReportSource) -> list[str]:
    """Lines of a table with every column's effect, the largest first; none where there are no
    effects."""
    if not subject.effects:
        return []
    rows = [
        f"| {line(_name(one))} | {one.size:.3g} | {_find_extreme(one, min)} | {_find_extreme(one, max)} | ± "
        f"{max(one.band):.2g} |"
        for one in subject.effects[:MOST]
    ]
    said = (
        [f"Not shown: {line(', '.join(texts))} (text).", ""] if (texts := texts_of(subject)) else []
    )
    return [
        "## What the model learned of each column",
        "",
        "How the score changes with each column, against the mean of the column that the run "
        "released with noise, else the middle of its public range; where it is lowest and highest; "
        f"{_describe_band(subject.effects[0])}. "
        "Computed from the released weights alone; associations, not causes.",
        "",
        "| column | change | lowest | highest | noise |",
        "|---|---|---|---|---|",
        *rows,
        "",
        *said,
    ]


def _find_extreme(
    effect: Effect, end: Callable[[list[tuple[float, str]]], tuple[float, str]]
) -> str:
    """The smallest or largest effect, and where it is."""
    names = effect.labels or [
        f"{effect.unit} {float(f'{place:.{DIGITS[effect.unit]}g}'):.12g}".strip()
        for place in effect.places
    ]
    every = list(zip(effect.change, names, strict=True))
    if effect.missing is not None:
        every.append((effect.missing[0], "(missing)"))
    change, where = end(every)
    return f"{change:+.3g} at {line(where)}"


def texts_of(subject: ReportSource) -> list[str]:
    """Columns of text, which have no effects that could be shown."""
    return [
        name
        for name, one in (subject.schema or {}).get("columns", {}).items()
        if one.get("kind") == Words.kind
    ]


def _picture(effect: Effect, name: str) -> Markup:
    middle, band = effect.change, effect.band
    low = tuple((x, y - b) for x, y, b in zip(effect.places, middle, band, strict=True))
    high = tuple((x, y + b) for x, y, b in zip(effect.places, middle, band, strict=True))
    values = [y for _, y in (*low, *high)]
    lines = [
        Series("effect on the score", "certified", tuple(zip(effect.places, middle, strict=True))),
        Series("two standard deviations of the noise", "chance", low),
        Series("", "chance", high),
    ]
    across = Axis(
        f"{effect.column} ({effect.unit})" if effect.unit else effect.column,
        effect.places[0],
        effect.places[-1],
        effect.origin is not None,
        effect.origin or 0.0,
    )
    return chart(
        f"Effect of {_name(effect)}",
        f"The score changes by {max(middle) - min(middle):.3g} over its public range.",
        across,
        Axis("score", min(values), max(values)),
        lines,
        name=name,
    )


def _table(effect: Effect) -> Markup:
    rows = sorted(
        zip(effect.labels, effect.change, effect.band, strict=True), key=lambda row: -row[1]
    )
    return make_table([(label, _numbers(change, band)) for label, change, band in rows])


def _numbers(change: float, band: float) -> str:
    return f"{change:+.3g} ± {band:.2g}"


# Forgetting: epsilon over the passes without the removed records.

POINTS = 24
"""Numbers of steps at which epsilon is computed."""


def chart_passes(subject: Unlearning, delta: float) -> Markup:
    """Chart epsilon of stopping after fewer of the last request's steps, and of retraining."""
    last = subject.requests[-1]
    counts = sorted({max(1, round(last.run.steps ** (i / (POINTS - 1)))) for i in range(POINTS)})
    points = [
        (count / last.run.blocks, epsilon)
        for count in counts
        if math.isfinite(epsilon := epsilon_after(subject, count).epsilon(delta)) and epsilon > 0
    ]
    if not points:
        return section(
            "3. Epsilon over epochs", tag("p", "Nothing is certified at any number of epochs.")
        )
    training, lines = (
        subject.training,
        [Series("certified, stopping there", "certified", tuple(points))],
    )
    retraining = training.steps / training.blocks if isinstance(training, Run) else None
    low, high = min(e for _, e in points) / 2, max(e for _, e in points) * 2
    if retraining is not None:
        lines.append(
            Series(
                "retraining: nothing of the records remains from its last epoch on",
                "chance",
                ((retraining, low), (retraining, high)),
            )
        )
    ends = [passes for passes, _ in points] + ([] if retraining is None else [retraining])
    picture = charts.chart(
        "Epsilon over epochs without the removed records",
        "The certified bound if the steps had ended there, and "
        "where training from the beginning would have ended.",
        Axis("epochs", min(ends), 1.01 * max(ends), log=True),
        Axis(f"epsilon at delta = {delta:g}", low, high, log=True),
        lines,
        name="passes",
        stop=(last.run.steps / last.run.blocks, "this request"),
    )
    rows = [
        tag(
            "tr",
            tag("th", f"{passes:.3g}", scope="row", class_="num"),
            tag("td", format_rounded_up(epsilon), class_="num"),
        )
        for passes, epsilon in points
    ]
    head = tag("tr", [tag("th", name, scope="col", class_="num") for name in ("epochs", "epsilon")])
    table = fold(
        "The numbers of this picture", tag("table", tag("thead", head), tag("tbody", rows))
    )
    return section(
        "3. Epsilon over epochs",
        [tag("p", _why(last.run)), tag("p", f"Compared with {subject.reference}."), picture, table],
    )


def epsilon_after(subject: Unlearning, steps: int) -> Certificate:
    """What would be certified after the first ``steps`` steps of the last request."""
    *before, last = subject.requests
    return Certificate(
        replace(subject, requests=(*before, replace(last, run=last.run.truncate(steps))))
    )


def _why(run: Run) -> str:
    if run.largest_noise == 0:
        return (
            "All of the noise was added before the first step. Steps after it do not change "
            "epsilon: they take the "
            "noise away again wherever the loss is curved, and the accuracy comes back."
        )
    return (
        "Steps bring both models closer together, and the noise of each hides a part of the rest."
    )


# The trade-off of tests, and epsilon over steps.


def tradeoff(subject: ReportSource, *, moving: bool = True) -> Markup:
    """What a test that looks at the release can find out. ``moving``: with the slider, and what an
    audit found."""
    title = "2. What a test can find out"
    tests, stated = page_parts.tests_of(subject), subject.body["stated"]
    if not tests:
        return section(title, tag("p", "Nothing is certified, so nothing is excluded."))
    members = page_parts.name_protected_group(stated["unit"], many=True)
    upper = ((0.0, tests[0].at_most), *((test.rate, test.at_most) for test in tests))
    lines = [
        Series("excluded above: certified bound", "certified", upper, shade="above"),
        Series("chance", "chance", ((0.0, 0.0), (1.0, 1.0))),
    ]
    reached = [(test.rate, test.at_least) for test in tests if test.at_least is not None]
    if reached:
        lines.insert(
            1, Series("reached by some loss of the class (exact witness)", "lower", tuple(reached))
        )
    audited = [
        (rate["fpr_upper"], 1 - rate["fnr_upper"])
        for rate in (subject.audit or {}).get("rates", [])
    ]
    if audited:
        lines.append(Series("audit, with its confidence", "audit", tuple(audited), marks=True))
    picture = charts.chart(
        "True-positive rate over false-positive rate",
        "The line of the certified bound: no test lies above it. The table below has the numbers.",
        Axis(f"false-positive rate (share of unused {members} that a test flags)", 0, 1),
        Axis(f"true-positive rate (share of used {members})", 0, 1),
        lines,
        name="tradeoff",
    )
    slider = tag(
        "p",
        tag("label", "False-positive rate: ", for_="rate"),
        tag(
            "input",
            type="range",
            id="rate",
            min=0,
            max=len(tests) - 1,
            step=1,
            value=len(tests) // 2,
        ),
        class_="noprint",
    )
    said = tag("output", "", id="rate-said", for_="rate", aria_live="polite")
    table = _rates(stated["true_positive_rates"], stated["unit"])
    return section(
        title,
        [picture, slider, tag("p", said, class_="noprint"), table, _audit_section(subject)]
        if moving
        else [picture, table],
        class_="half",
    )


def _rates(stated: list[dict[str, Any]], unit: dict[str, Any]) -> Markup:
    """The numbers of the certified line."""

    def cell(name: str, row: dict[str, Any]) -> Markup:
        rate = row["false_positive_rate"]
        return tag(
            "td", number(f"{name}.false_positive_rate", rate, f"{100 * rate:g} %"), class_="num"
        )

    used = (
        "a record was" if page_parts.is_record(unit) else f"{page_parts.name_versions(unit)} were"
    )
    rows = [
        tag(
            "tr", cell(name, row), tag("td", share(f"{name}.at_most", row["at_most"]), class_="num")
        )
        for name, row in ((f"stated.true_positive_rates.{i}", row) for i, row in enumerate(stated))
    ]
    return tag(
        "table",
        tag(
            "caption",
            f"No test of whether {used} used does better, whatever it knows",
        ),
        tag(
            "thead",
            tag(
                "tr",
                tag("th", "false-positive rate", scope="col", class_="num"),
                tag("th", "true-positive rate at most", scope="col", class_="num"),
            ),
        ),
        tag("tbody", rows),
    )


NO_AUDIT = "No audit was given for this report."


def _audit_section(subject: ReportSource) -> Markup:
    audit = subject.audit
    fixed = execution_section.render_protocol(subject.body, audit)
    if audit is None:
        return tag("div", tag("p", NO_AUDIT, class_="soft"), fixed)
    paragraph = tag(
        "p",
        f"Audit ({audit['attack']}, {audit['trials']:g} models per data set): {audit['verdict']}. "
        f"It showed "
        f"epsilon of at least {format_rounded_down(audit['lower'])} at delta {audit['delta']:g}, and "
        f"could have "
        f"shown {format_rounded_up(audit['ceiling'])}; wrong with probability at most "
        f"{audit['failure']:g}. The "
        "audit's numbers are the word of whoever ran it.",
        class_="word",
    )
    gaps = page_parts.describe_audit_gaps(subject)
    return tag("div", paragraph, page_parts.bullets(gaps) if gaps else "", fixed)


STYLES = {
    "last iterate": "last iterate",
    "sampling": "sampling",
    "composition": "composition",
    "lower bound": "lower",
}


def steps(subject: ReportSource) -> Markup:
    """Epsilon over steps."""
    title = "3. Epsilon over steps"
    if isinstance(subject.certified.subject, Unlearning):
        return chart_passes(subject.certified.subject, subject.delta)
    if not subject.certified.verdicts:
        return section(
            title,
            tag(
                "p", "This release has one guarantee as a whole; it is not accounted step by step."
            ),
        )
    lines = charts.chart_steps(subject.certified, subject.delta)
    if not any(line.kind == "upper" for line in lines):
        return section(title, tag("p", "Nothing certifies this run at any number of steps."))
    values = [epsilon for line in lines for epsilon in line.epsilons if epsilon > 0]
    if not values:
        return section(
            title,
            tag("p", "Every bound on epsilon is 0 in double precision, at every number of steps."),
        )
    run = subject.certified.run
    x, y = (
        Axis("steps", 1, max(2, run.steps), log=True),
        Axis(
            f"epsilon at delta = {subject.delta:g}", min(values) / 1.3, max(values) * 1.3, log=True
        ),
    )
    drawn = [
        Series(
            line.name if line.kind == "upper" else "some loss of the class leaks this much",
            STYLES[line.name],
            tuple(zip(map(float, line.steps), line.epsilons, strict=True)),
            shade="below" if line.kind == "lower" else None,
        )
        for line in lines
    ]
    picture = charts.chart(
        "Epsilon over the number of steps",
        "Upper bounds of composition, sampling and the last "
        "iterate, above the lower bound; the run stops at its last step.",
        x,
        y,
        drawn,
        name="steps",
        stop=(run.steps, f"this run: {run.steps}"),
    )
    counts = sorted({count for line in lines for count in line.steps})
    cells = [
        tag(
            "tr",
            tag("th", f"{count}", scope="row", class_="num"),
            [tag("td", _position(line, count), class_="num") for line in lines],
        )
        for count in counts
    ]
    table = fold(
        "The numbers of this picture",
        tag(
            "table",
            tag(
                "thead",
                tag(
                    "tr",
                    tag("th", "steps", scope="col", class_="num"),
                    [tag("th", line.name, scope="col", class_="num") for line in lines],
                ),
            ),
            tag("tbody", cells),
        ),
    )
    return section(title, [picture, table], class_="half")


def _position(line: charts.Line, count: int) -> str:
    epsilon = dict(zip(line.steps, line.epsilons, strict=True)).get(count)
    return (
        "-"
        if epsilon is None
        else format_rounded_down(epsilon)
        if line.kind == "lower"
        else format_rounded_up(epsilon)
    )

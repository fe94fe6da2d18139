"""What a model learned of every column, as pictures and as a table: post-processing of the released weights."""

from __future__ import annotations

from collections.abc import Callable

from lastiterate.data.columns import Words
from lastiterate.markup import Markup, tag
from lastiterate.release.column_effects import Effect
from lastiterate.report.charts import Axis, Series, chart
from lastiterate.report.exported_text import line
from lastiterate.report.frames import listed, section
from lastiterate.report.subject import Subject

MOST = 30
"""Columns that are drawn."""


def effects(subject: Subject) -> Markup | str:
    """Every column's effect, the largest first, with the noise's own band."""
    ranked = subject.effects
    if not ranked:
        return ""
    several = " Of several classes each score counts against the mean of all." if ranked[0].answer else ""
    parts: list[Markup] = [tag("p", "How the score changes with each column, against the mean of all records (released "
                               "with noise), the largest change first. The band is two standard deviations of the "
                               "run's own noise: what stays within it around 0 may be noise. Nothing here looks at a "
                               "record, so that it costs no privacy; it shows associations, not causes." + several)]
    for number, effect in enumerate(ranked[:MOST]):
        parts += [tag("h3", f"{_name(effect)}: {effect.size:.3g} from the smallest to the largest"),
                  _table(effect) if effect.labels else _picture(effect, f"effect-{number}")]
        if effect.missing is not None:
            parts.append(tag("p", f"where it is missing: {_numbers(*effect.missing)}"))
    if len(ranked) > MOST:
        parts.append(tag("p", f"{len(ranked) - MOST} smaller effects are not drawn.", class_="soft"))
    if texts := texts_of(subject):
        parts.append(tag("p", f"Not drawn: {', '.join(texts)}. Text becomes numbers by a hash, each of which counts "
                         "many words, so that no word has an effect of its own.", class_="soft"))
    return section("What the model learned of each column", parts, class_="screen")


def _name(effect: Effect) -> str:
    """The column, and of several classes which one its effect speaks for."""
    return f"{effect.column}, {effect.answer}" if effect.answer else effect.column


def effects_as_markdown(subject: Subject) -> list[str]:
    """Lines of a table with every column's effect, the largest first; none where there are no effects."""
    if not subject.effects:
        return []
    rows = [f"| {line(_name(one))} | {one.size:.3g} | {_at(one, min)} | {_at(one, max)} | ± {max(one.band):.2g} |"
            for one in subject.effects[:MOST]]
    said = [f"Not shown: {line(', '.join(texts))} (text).", ""] if (texts := texts_of(subject)) else []
    return ["## What the model learned of each column", "", "How the score changes with each column, against the mean "
            "of all records; where it is lowest and highest; two standard deviations of the run's own noise, at most. "
            "Computed from the released weights alone; associations, not causes.", "",
            "| column | change | lowest | highest | noise |", "|---|---|---|---|---|", *rows, "", *said]


def _at(effect: Effect, end: Callable[[list[tuple[float, str]]], tuple[float, str]]) -> str:
    """The smallest or largest effect, and where it is."""
    names = effect.labels or [f"{float(f'{place:.4g}'):.12g}" for place in effect.places]
    every = list(zip(effect.change, names, strict=True))
    if effect.missing is not None:
        every.append((effect.missing[0], "(missing)"))
    change, where = end(every)
    return f"{change:+.3g} at {line(where)}"


def texts_of(subject: Subject) -> list[str]:
    """Columns of text, which have no effects that could be shown."""
    return [name for name, one in (subject.schema or {}).get("columns", {}).items() if one.get("kind") == Words.kind]


def _picture(effect: Effect, name: str) -> Markup:
    middle, band = effect.change, effect.band
    low = tuple((x, y - b) for x, y, b in zip(effect.places, middle, band, strict=True))
    high = tuple((x, y + b) for x, y, b in zip(effect.places, middle, band, strict=True))
    values = [y for _, y in (*low, *high)]
    lines = [Series("effect on the score", "certified", tuple(zip(effect.places, middle, strict=True))),
             Series("two standard deviations of the noise", "chance", low), Series("", "chance", high)]
    across = Axis(effect.column, effect.places[0], effect.places[-1], effect.origin is not None, effect.origin or 0.0)
    return chart(f"Effect of {_name(effect)}", f"The score changes by {max(middle) - min(middle):.3g} over its public "
                 "range.", across, Axis("score", min(values), max(values)), lines, name=name)


def _table(effect: Effect) -> Markup:
    rows = sorted(zip(effect.labels, effect.change, effect.band, strict=True), key=lambda row: -row[1])
    return listed([(label, _numbers(change, band)) for label, change, band in rows])


def _numbers(change: float, band: float) -> str:
    return f"{change:+.3g} ± {band:.2g}"

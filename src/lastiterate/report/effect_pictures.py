"""Pictures of what a model learned of every column: post-processing of the released weights."""

from __future__ import annotations

from lastiterate.markup import Markup, tag
from lastiterate.release.column_effects import Effect
from lastiterate.report.charts import Axis, Series, chart
from lastiterate.report.frames import listed, section
from lastiterate.report.subject import Subject

MOST = 30
"""Columns that are drawn."""


def effects(subject: Subject) -> Markup | str:
    """Every column's effect, the largest first, with the noise's own band."""
    found = subject.effects
    if not found:
        return ""
    several = " Of several classes each score counts against the mean of all." if found[0].answer else ""
    parts: list[Markup] = [tag("p", "How the score changes with each column, against the mean of all records (released "
                               "with noise), the largest change first. The band is two standard deviations of the "
                               "run's own noise: what stays within it around 0 may be noise. Nothing here looks at a "
                               "record, so that it costs no privacy; it shows associations, not causes." + several)]
    for number, effect in enumerate(found[:MOST]):
        parts += [tag("h3", f"{_name(effect)}: {effect.size:.3g} from the smallest to the largest"),
                  _table(effect) if effect.labels else _picture(effect, f"effect-{number}")]
    if len(found) > MOST:
        parts.append(tag("p", f"{len(found) - MOST} smaller effects are not drawn.", class_="soft"))
    return section("What the model learned of each column", parts, class_="screen")


def _name(effect: Effect) -> str:
    """The column, and of several classes which one its effect speaks for."""
    return f"{effect.column}, {effect.answer}" if effect.answer else effect.column


def _picture(effect: Effect, name: str) -> Markup:
    middle, band = effect.change, effect.band
    low = tuple((x, y - b) for x, y, b in zip(effect.places, middle, band, strict=True))
    high = tuple((x, y + b) for x, y, b in zip(effect.places, middle, band, strict=True))
    values = [y for _, y in (*low, *high)]
    lines = [Series("effect on the score", "certified", tuple(zip(effect.places, middle, strict=True))),
             Series("two standard deviations of the noise", "chance", low), Series("", "chance", high)]
    return chart(f"Effect of {_name(effect)}", f"The score changes by {effect.size:.3g} over its public range.",
                 Axis(effect.column, effect.places[0], effect.places[-1]), Axis("score", min(values), max(values)),
                 lines, name=name)


def _table(effect: Effect) -> Markup:
    rows = sorted(zip(effect.labels, effect.change, effect.band, strict=True), key=lambda row: -row[1])
    return listed([(label, f"{change:+.3g} ± {band:.2g}") for label, change, band in rows])

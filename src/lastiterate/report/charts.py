"""Charts as SVG: legible in grey, for colour-blind readers and on paper, with a text for those who listen."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lastiterate.markup import Markup, tag
from lastiterate.report.style import STYLES

LEAST, FEW = 3, 8
"""Ticks that a logarithmic axis has at least; decades that have one each."""
WIDE, HIGH = 640, 340
LEFT, RIGHT, TOP, BOTTOM = 62, 16, 14, 46


@dataclass(frozen=True)
class Axis:
    """A linear or logarithmic axis; ``ticks`` are values with a label each.

    ``origin``: what logarithms count from, below ``low``.
    """

    label: str
    low: float
    high: float
    log: bool = False
    origin: float = 0.0

    def place(self, value: float, start: float, end: float) -> float:
        """Where ``value`` lies between two pixels."""
        if self.log:
            low, high, at = (math.log(one - self.origin) for one in (self.low, self.high, max(value, self.low)))
        else:
            low, high, at = self.low, self.high, value
        part = (at - low) / (high - low) if high > low else 0.0
        return start + (end - start) * min(max(part, 0.0), 1.0)

    def ticks(self) -> list[float]:
        """Round values within the axis: at least two, at most a dozen."""
        if self.log and self.origin:  # round distances from the lower end, which has one itself
            apart = self.high - self.low
            ticks = Axis("", 1.0 if apart > LEAST else apart / 100, apart, log=True).ticks()
            return [self.low, *(self.low + one for one in ticks)]
        if self.log:
            first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
            for parts in ((1,), (1, 3), (1, 2, 5), range(1, 10)):
                every = max(1, (last - first) // FEW)
                ticks = [float(f"{part}e{k}") for k in range(first, last + 1, every) for part in parts
                         if self.low * (1 - 1e-9) <= float(f"{part}e{k}") <= self.high * (1 + 1e-9)]
                if len(ticks) >= LEAST:
                    return ticks
        raw = (self.high - self.low) / 5
        size = 10.0 ** math.floor(math.log10(raw)) if raw > 0 else 1.0
        stride = next(size * k for k in (1, 2, 5, 10) if size * k >= raw * (1 - 1e-9))
        first, last = math.ceil(self.low / stride - 1e-9), math.floor(self.high / stride + 1e-9)
        return [stride * k for k in range(first, last + 1)]


@dataclass(frozen=True)
class Series:
    """A line with a style of its own (see ``style.STYLES``), or points alone."""

    name: str
    style: str
    points: tuple[tuple[float, float], ...]
    shade: str | None = None  #: "above" or "below"
    marks: bool = False


def chart(title: str, description: str, x: Axis, y: Axis, series: Sequence[Series], *, name: str,
          stop: tuple[float, str] | None = None) -> Markup:
    """One picture. ``stop``: a vertical line with its text."""
    right, bottom = WIDE - RIGHT, HIGH - BOTTOM
    parts: list[Markup] = [tag("title", title, id=f"{name}-title"), tag("desc", description, id=f"{name}-desc")]

    def at(point: tuple[float, float]) -> str:
        return f"{x.place(point[0], LEFT, right):.1f},{y.place(point[1], bottom, TOP):.1f}"

    for line in series:
        if line.shade and line.points:
            edge = TOP if line.shade == "above" else bottom
            ends = [f"{x.place(line.points[i][0], LEFT, right):.1f},{edge}" for i in (-1, 0)]
            parts.append(tag("polyline", points=" ".join([*map(at, line.points), *ends]), class_="shade"))
    for value in y.ticks():
        h = y.place(value, bottom, TOP)
        parts += [tag("line", x1=LEFT, x2=right, y1=f"{h:.1f}", y2=f"{h:.1f}", class_="grid"),
                  tag("text", f"{value:g}", x=LEFT - 6, y=f"{h + 4:.1f}", text_anchor="end")]
    for value in x.ticks():
        w = x.place(value, LEFT, right)
        parts += [tag("line", x1=f"{w:.1f}", x2=f"{w:.1f}", y1=bottom, y2=bottom + 5, class_="axis"),
                  tag("text", f"{value:g}", x=f"{w:.1f}", y=bottom + 18, text_anchor="middle")]
    parts += [tag("line", x1=LEFT, x2=right, y1=bottom, y2=bottom, class_="axis"),
              tag("line", x1=LEFT, x2=LEFT, y1=TOP, y2=bottom, class_="axis"),
              tag("text", x.label, x=(LEFT + right) / 2, y=HIGH - 8, text_anchor="middle", class_="label"),
              tag("text", y.label, x=14, y=(TOP + bottom) / 2, text_anchor="middle", class_="label",
                  transform=f"rotate(-90 14 {(TOP + bottom) / 2})")]
    if stop is not None:
        w = x.place(stop[0], LEFT, right)
        parts += [tag("line", x1=f"{w:.1f}", x2=f"{w:.1f}", y1=TOP, y2=bottom, class_="stop"),
                  tag("text", stop[1], x=f"{w - 5:.1f}", y=TOP + 12, text_anchor="end")]
    for line in series:
        parts.append(_drawn(line, at))
    parts.append(tag("line", id=f"{name}-cursor", x1=LEFT, x2=LEFT, y1=TOP, y2=bottom, class_="cursor",
                     visibility="hidden"))
    picture = tag("svg", parts, viewBox=f"0 0 {WIDE} {HIGH}", role="img", id=name,
                  aria_labelledby=f"{name}-title {name}-desc", data_left=LEFT, data_right=right)
    return tag("figure", picture, _legend(series))


def _drawn(line: Series, at: Callable[[tuple[float, float]], str]) -> Markup:
    look = STYLES[line.style]
    places = [at(point) for point in line.points]
    spread = places if line.marks else places[::6] if look.dots else []
    dots = [tag("circle", cx=p.split(",")[0], cy=p.split(",")[1], r=4 if line.marks else 2.6, fill=look.colour,
                class_="mark" if line.marks else None) for p in spread]
    drawn = [] if line.marks else [tag("polyline", points=" ".join(places), fill="none", stroke=look.colour,
                                       stroke_width=look.width, stroke_dasharray=look.dash or None)]
    return tag("g", drawn, dots)


def _legend(series: Sequence[Series]) -> Markup:
    entries: list[Markup] = []
    for line in series:
        if not line.name:  # the other edge of a band
            continue
        look = STYLES[line.style]
        sample = tag("line", x1=0, x2=34, y1=6, y2=6, stroke=look.colour, stroke_width=look.width,
                     stroke_dasharray=look.dash or None)
        dot = tag("circle", cx=17, cy=6, r=4 if line.marks else 2.6, fill=look.colour)
        inner = [dot] if line.marks else [sample, dot] if look.dots else [sample]
        entries.append(tag("li", tag("svg", inner, viewBox="0 0 34 12", class_="key", aria_hidden="true"), line.name))
    return tag("ul", entries, class_="legend")

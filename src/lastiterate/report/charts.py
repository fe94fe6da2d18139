"""Charts as SVG: their numbers, their style, legible in grey and for screen readers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lastiterate.accounting.certificate import Certificate, account
from lastiterate.accounting.tradeoff_summary import true_positive_rate
from lastiterate.curves.curve import Curve
from lastiterate.curves.lower_bound import LowerBound
from lastiterate.errors import InputError
from lastiterate.markup import Markup, tag
from lastiterate.theorems.theorem import FAMILIES, Applies, Kind

if TYPE_CHECKING:
    from matplotlib.axes import Axes


# One style for every picture: what is certified, reached, assumed or measured differs in dash and
# marker, not in colour alone.  The colours are those of Okabe and Ito (2008), which colour-blind
# readers can distinguish; in grey their lightness and the dashes differ.


@dataclass(frozen=True)
class LineStyle:
    """``dash``: lengths of strokes and gaps in pixels ("" for a whole line). ``marker``:
    matplotlib's name."""

    colour: str
    dash: str = ""
    width: float = 2.0
    marker: str = ""

    @property
    def dots(self) -> bool:
        return bool(self.marker)

    @property
    def lines(self) -> Any:
        """The dash as matplotlib takes it."""
        parts = [float(part) / self.width for part in self.dash.split()]
        return (0, tuple(parts)) if parts else "-"


STYLES = {
    "certified": LineStyle("#0072b2", width=2.6),
    "other upper": LineStyle("#56b4e9", "9 3", 1.6),
    "composition": LineStyle("#d55e00", "3 3", 1.8),
    "sampling": LineStyle("#009e73", "10 3 2 3", 1.8),
    "last iterate": LineStyle("#0072b2", width=2.4),
    "lower": LineStyle("#000000", "6 4", 1.8, "^"),
    "assumed": LineStyle("#cc79a7", "1 3", 2.0, "x"),
    "claimed": LineStyle("#cc79a7", "1 3", 1.6),
    "audit": LineStyle("#e69f00", width=1.8, marker="o"),
    "chance": LineStyle("#777777", "2 4", 1.2),
}
"""How each meaning looks."""
FONT = 10


def dress_axes(axes: Axes, x: str, y: str, title: str = "") -> None:
    """Labels with units, a light grid, no box: the same on all of matplotlib's pictures."""
    axes.set(xlabel=x, ylabel=y)
    axes.grid(True, color="#dddddd", linewidth=0.6)  # pyright: ignore
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    if title:
        axes.set_title(title, loc="left", fontsize=FONT)  # pyright: ignore


def style_line(style: str, **more: object) -> dict[str, Any]:
    """The keywords with which matplotlib draws a line of that meaning."""
    look = STYLES[style]
    return {
        "color": look.colour,
        "linestyle": look.lines,
        "linewidth": look.width,
        "marker": look.marker or None,
        "markersize": 4,
        "markevery": 0.1,
    } | more


# Charts as SVG: legible in grey, for colour-blind readers and on paper, with a text for those who
# listen.

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
            low, high, at = (
                math.log(one - self.origin) for one in (self.low, self.high, max(value, self.low))
            )
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
                ticks = [
                    float(f"{part}e{k}")
                    for k in range(first, last + 1, every)
                    for part in parts
                    if self.low * (1 - 1e-9) <= float(f"{part}e{k}") <= self.high * (1 + 1e-9)
                ]
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


def chart(
    title: str,
    description: str,
    x: Axis,
    y: Axis,
    series: Sequence[Series],
    *,
    name: str,
    stop: tuple[float, str] | None = None,
) -> Markup:
    """One picture. ``stop``: a vertical line with its text."""
    right, bottom = WIDE - RIGHT, HIGH - BOTTOM
    parts: list[Markup] = [
        tag("title", title, id=f"{name}-title"),
        tag("desc", description, id=f"{name}-desc"),
    ]

    def at(point: tuple[float, float]) -> str:
        return f"{x.place(point[0], LEFT, right):.1f},{y.place(point[1], bottom, TOP):.1f}"

    for line in series:
        if line.shade and line.points:
            edge = TOP if line.shade == "above" else bottom
            ends = [f"{x.place(line.points[i][0], LEFT, right):.1f},{edge}" for i in (-1, 0)]
            parts.append(
                tag("polyline", points=" ".join([*map(at, line.points), *ends]), class_="shade")
            )
    for value in y.ticks():
        h = y.place(value, bottom, TOP)
        parts += [
            tag("line", x1=LEFT, x2=right, y1=f"{h:.1f}", y2=f"{h:.1f}", class_="grid"),
            tag("text", f"{value:g}", x=LEFT - 6, y=f"{h + 4:.1f}", text_anchor="end"),
        ]
    for value in x.ticks():
        w = x.place(value, LEFT, right)
        parts += [
            tag("line", x1=f"{w:.1f}", x2=f"{w:.1f}", y1=bottom, y2=bottom + 5, class_="axis"),
            tag("text", f"{value:g}", x=f"{w:.1f}", y=bottom + 18, text_anchor="middle"),
        ]
    parts += [
        tag("line", x1=LEFT, x2=right, y1=bottom, y2=bottom, class_="axis"),
        tag("line", x1=LEFT, x2=LEFT, y1=TOP, y2=bottom, class_="axis"),
        tag(
            "text", x.label, x=(LEFT + right) / 2, y=HIGH - 8, text_anchor="middle", class_="label"
        ),
        tag(
            "text",
            y.label,
            x=14,
            y=(TOP + bottom) / 2,
            text_anchor="middle",
            class_="label side",
            transform=f"rotate(-90 14 {(TOP + bottom) / 2})",
        ),
    ]
    if stop is not None:
        w = x.place(stop[0], LEFT, right)
        parts += [
            tag("line", x1=f"{w:.1f}", x2=f"{w:.1f}", y1=TOP, y2=bottom, class_="stop"),
            tag("text", stop[1], x=f"{w - 5:.1f}", y=TOP + 12, text_anchor="end"),
        ]
    for line in series:
        parts.append(_draw_line(line, at))
    parts.append(
        tag(
            "line",
            id=f"{name}-cursor",
            x1=LEFT,
            x2=LEFT,
            y1=TOP,
            y2=bottom,
            class_="cursor",
            visibility="hidden",
        )
    )
    picture = tag(
        "svg",
        parts,
        viewBox=f"0 0 {WIDE} {HIGH}",
        role="img",
        id=name,
        aria_labelledby=f"{name}-title {name}-desc",
        data_left=LEFT,
        data_right=right,
    )
    return tag("figure", picture, _legend(series))


def _draw_line(line: Series, at: Callable[[tuple[float, float]], str]) -> Markup:
    look = STYLES[line.style]
    places = [at(point) for point in line.points]
    spread = places if line.marks else places[::6] if look.dots else []
    dots = [
        tag(
            "circle",
            cx=p.split(",")[0],
            cy=p.split(",")[1],
            r=4 if line.marks else 2.6,
            fill=look.colour,
            class_="mark" if line.marks else None,
        )
        for p in spread
    ]
    drawn = (
        []
        if line.marks
        else [
            tag(
                "polyline",
                points=" ".join(places),
                fill="none",
                stroke=look.colour,
                stroke_width=look.width,
                stroke_dasharray=look.dash or None,
            )
        ]
    )
    return tag("g", drawn, dots)


def _legend(series: Sequence[Series]) -> Markup:
    entries: list[Markup] = []
    for line in series:
        if not line.name:  # the other edge of a band
            continue
        look = STYLES[line.style]
        sample = tag(
            "line",
            x1=0,
            x2=34,
            y1=6,
            y2=6,
            stroke=look.colour,
            stroke_width=look.width,
            stroke_dasharray=look.dash or None,
        )
        dot = tag("circle", cx=17, cy=6, r=4 if line.marks else 2.6, fill=look.colour)
        inner = [dot] if line.marks else [sample, dot] if look.dots else [sample]
        entries.append(
            tag(
                "li",
                tag("svg", inner, viewBox="0 0 34 12", class_="key", aria_hidden="true"),
                line.name,
            )
        )
    return tag("ul", entries, class_="legend")


# The numbers of a report's pictures: the trade-off of tests, and epsilon over steps.

RATES = tuple(
    sorted(
        {
            *(10 ** (-4 + i / 8) for i in range(32)),
            0.001,
            0.01,
            0.1,
            *(i / 20 for i in range(3, 20)),
            1.0,
        }
    )
)
"""False-positive rates at which a report states what a test can reach."""
GRID = tuple(i / 16 for i in range(200))
"""Epsilons at which a lower bound is read, 0 first."""
COUNTS = 12
"""Numbers of steps at which a report accounts for the run."""


@dataclass(frozen=True)
class Test:
    """At ``rate`` false positives: what no test exceeds, and what some test reaches for the worst
    loss of the class."""

    rate: float
    at_most: float
    at_least: float | None


def tests(curve: Curve, lower: LowerBound | None, delta: float) -> tuple[Test, ...]:
    """Certified and reached true-positive rates at all of ``RATES``."""
    deltas = None if lower is None else [lower.delta(epsilon) for epsilon in GRID]
    return tuple(
        Test(
            rate,
            1.0 if rate == 1 else true_positive_rate(curve, rate, delta),
            None if deltas is None else bound_power(deltas, rate),
        )
        for rate in RATES
    )


def bound_power(deltas: list[float], rate: float) -> float:
    """A true-positive rate that the best test has at least, given lower bounds ``deltas`` on its
    delta at ``GRID``.

    The best rate is the least of e^epsilon rate + delta(epsilon) over all epsilon. Between two
    points of the grid the first term is at least its left value and the second at least its right
    one; left of 0, where slopes are below 1, the test that is best at 0 and the one that always
    says yes give (1 - delta(0)) rate + delta(0).
    """
    pairs = zip(GRID, (*deltas[1:], 0.0), strict=True)
    least = min(math.exp(epsilon) * rate + after for epsilon, after in pairs)
    return max(rate, min(least, (1 - deltas[0]) * rate + deltas[0]) * (1 - 1e-9))


def strongest(certificate: Certificate, delta: float) -> LowerBound | None:
    """The lower bound that says most at ``delta``."""
    bounds = [
        v.result.bound
        for v in certificate.verdicts
        if isinstance(v.result, Applies) and isinstance(v.result.bound, LowerBound)
    ]
    return max(bounds, key=lambda bound: bound.epsilon(delta), default=None)


@dataclass(frozen=True)
class Line:
    """Epsilon over steps, where it is finite: of a theorem, of the best of a family, or of the best
    lower bound."""

    name: str
    kind: Kind
    steps: tuple[int, ...]
    epsilons: tuple[float, ...]


def chart_steps(certificate: Certificate, delta: float) -> tuple[Line, ...]:
    """One line per family, and one of what some loss of the class leaks, up to the run's own number
    of steps."""
    run = certificate.run
    counts = COUNTS // 2 if certificate.expensive else COUNTS
    grid = sorted({max(1, round(run.steps ** (i / (counts - 1)))) for i in range(counts)})
    lines: dict[str, dict[int, float]] = {}
    for count in grid:
        try:
            at = (
                certificate
                if count == run.steps
                else account(run.truncate(count), min_evidence=certificate.min_evidence)
            )
        except InputError:  # no statement about that few steps: the line begins later
            continue
        for verdict in at.certifying:
            line, epsilon = (
                lines.setdefault(verdict.theorem.family, {}),
                at.curve(verdict).epsilon(delta),
            )
            if math.isfinite(epsilon):
                line[count] = min(line.get(count, math.inf), epsilon)
        if 0 < (lower := at.lower(delta)) < math.inf:  # infinite before the first noise
            lines.setdefault("lower bound", {})[count] = lower
    order = [name for name in (*FAMILIES, "lower bound") if lines.get(name)]
    return tuple(
        Line(
            name,
            "lower" if name == "lower bound" else "upper",
            tuple(lines[name]),
            tuple(lines[name].values()),
        )
        for name in order
    )

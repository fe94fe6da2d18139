"""One style for every picture: what is certified, reached, assumed or measured differs in dash and marker, not in
colour alone.

The colours are those of Okabe and Ito (2008), which colour-blind readers can distinguish; in grey their lightness and
the dashes differ.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class Look:
    """``dash``: lengths of strokes and gaps in pixels ("" for a whole line). ``marker``: matplotlib's name."""

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
    "certified": Look("#0072b2", width=2.6),
    "other upper": Look("#56b4e9", "9 3", 1.6),
    "composition": Look("#d55e00", "3 3", 1.8),
    "sampling": Look("#009e73", "10 3 2 3", 1.8),
    "last iterate": Look("#0072b2", width=2.4),
    "lower": Look("#000000", "6 4", 1.8, "^"),
    "assumed": Look("#cc79a7", "1 3", 2.0, "x"),
    "claimed": Look("#cc79a7", "1 3", 1.6),
    "audit": Look("#e69f00", width=1.8, marker="o"),
    "chance": Look("#777777", "2 4", 1.2),
}
"""How each meaning looks."""
FONT = 10


def dressed(axes: Axes, x: str, y: str, title: str = "") -> None:
    """Labels with units, a light grid, no box: the same on all of matplotlib's pictures."""
    axes.set(xlabel=x, ylabel=y)
    axes.grid(True, color="#dddddd", linewidth=0.6)  # pyright: ignore
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    if title:
        axes.set_title(title, loc="left", fontsize=FONT)  # pyright: ignore


def drawn_as(style: str, **more: object) -> dict[str, Any]:
    """The keywords with which matplotlib draws a line of that meaning."""
    look = STYLES[style]
    return {"color": look.colour, "linestyle": look.lines, "linewidth": look.width, "marker": look.marker or None,
            "markersize": 4, "markevery": 0.1} | more

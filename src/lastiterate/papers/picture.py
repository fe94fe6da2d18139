"""The panels of an item as one PNG; matplotlib is imported when a picture is asked for."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence

from lastiterate.errors import InputError
from lastiterate.papers.item import Panel
from lastiterate.report.style import drawn_as, dressed

MARKERS = ("", "o", "s", "D", "v", "P", "X", "*", "<", ">")
"""For further lines of one meaning."""


def drawn(panels: Sequence[Panel], dpi: int = 100) -> bytes:
    """All panels side by side, at most three in a line, as PNG."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise InputError("papers", "needs matplotlib for its pictures", None, "pip install matplotlib") from None
    across = min(3, max(1, len(panels)))
    down = math.ceil(max(1, len(panels)) / across)
    figure = Figure(figsize=(1.2 + 4.6 * across, 3.7 * down), layout="constrained")
    for place, panel in enumerate(panels):
        axes = figure.add_subplot(down, across, place + 1)
        used: dict[str, int] = {}
        for trace in panel.traces:
            count = used[trace.style] = used.get(trace.style, -1) + 1
            more = {"marker": MARKERS[count % len(MARKERS)]} if count else {}
            axes.plot(trace.x, trace.y, label=trace.label, **drawn_as(trace.style, **more))
        dressed(axes, panel.x_name, panel.y_name, panel.title)
        axes.set_xscale("log" if panel.log_x else "linear")
        axes.set_yscale("log" if panel.log_y else "linear")
        if len(panel.traces) > 1:
            axes.legend(frameon=False, fontsize=7)
    held = io.BytesIO()
    figure.savefig(held, format="png", dpi=dpi, metadata={"Software": None})
    return held.getvalue()

"""A finished item as two files, NAME.png and NAME.json; a failed one leaves neither, only its
finished cells."""

from __future__ import annotations

import io
import json
import math
import os
import time
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lastiterate
from lastiterate import interrupts
from lastiterate.errors import InputError
from lastiterate.report import STYLES, dress_axes, style_line
from lastiterate_papers import real_data
from lastiterate_papers.finished_cells import Cells, check_writable, discard, writing
from lastiterate_papers.item import Item, Panel, Result, Row, Trace, Work

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import XAxis, YAxis
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Cost:
    """What an item took, cells of interrupted runs included: wall clock, and processor time over
    all cores."""

    seconds: float
    processor: float


def made(item: Item, work: Work, folder: Path | None = None) -> tuple[Result, Cost]:
    """Run an item: its result and what it took. ``folder``: where finished cells are kept until the
    result is written.

    Errors: ``InputError`` where its data are not there or damaged, or ``folder`` cannot be written,
    before any work.
    """
    if missing := item.missing(work.data_dir):
        raise InputError(
            "data_dir",
            f"must hold {', '.join(missing)} for {item.name}",
            str(work.data_dir or "none"),
            "name the folder that holds it",
        )
    if folder is not None:
        check_writable(folder)
    real_data.check(work.data_dir, (*item.data, *item.optional))
    cells = Cells() if folder is None else Cells.of(folder, asked(item, work))
    before = Cost(cells.seconds, cells.processor)
    began, spent = time.perf_counter(), time.process_time()
    result = item.run(replace(work, cells=cells))
    return result, Cost(
        before.seconds + time.perf_counter() - began, before.processor + time.process_time() - spent
    )


def asked(item: Item, work: Work) -> dict[str, Any]:
    """What must be the same for a finished item, or a finished cell of it, to be kept."""
    files, folder = (*item.data, *item.optional), work.data_dir
    data = {} if folder is None else {name: _checksum(folder / name) for name in files}
    return {
        "item": item.name,
        "quick": work.quick,
        "seed": work.seed,
        "data": data,
        "given": dict(work.given),
        "version": lastiterate.__version__,
        "source": _source(),
    }


def _checksum(path: Path) -> str:
    """Of a file's bytes; empty where it is not there."""
    return f"{zlib.crc32(path.read_bytes()):08x}" if path.is_file() else ""


@lru_cache(maxsize=1)
def _source() -> str:
    """A checksum of the modules of both packages, which a version's number cannot distinguish while
    they change."""
    found = 0
    for root in (Path(lastiterate.__file__).parent, Path(__file__).parent):
        for path in sorted(root.rglob("*.py")):
            found = zlib.crc32(
                path.read_bytes(), zlib.crc32(path.relative_to(root).as_posix().encode(), found)
            )
    return f"{found:08x}"


def as_json(item: Item, work: Work, result: Result, cost: Cost) -> dict[str, Any]:
    """Return everything about a finished item, JSON-ready; ``null`` represents numbers that are not
    finite."""
    rows = [_row(row) for row in result.rows]
    return {
        **asked(item, work),
        "paper": item.paper,
        "title": item.title,
        "status": result.status,
        "finding": item.found(rows),
        "rows": rows,
        "settings": result.settings,
        "notes": list(result.notes),
        "panels": _finite([asdict(panel) for panel in result.panels]),
        "seconds": round(cost.seconds, 2),
        "processor_seconds": round(cost.processor, 2),
    }


def _row(row: Row) -> dict[str, Any]:
    return _finite(
        {
            "what": row.what,
            "published": row.published,
            "relation": row.relation,
            "ours": row.ours,
            "difference": row.difference,
            "tolerance": row.tolerance,
            "agrees": row.agrees,
            "unit": row.unit,
        }
    )


def _finite(value: object) -> Any:
    match value:
        case float():
            return value if math.isfinite(value) else None
        case dict():
            return {key: _finite(part) for key, part in value.items()}
        case list() | tuple():
            return [_finite(part) for part in value]
        case _:
            return value


def places(folder: Path, name: str) -> tuple[Path, Path]:
    """Picture and numbers of an item."""
    return folder / f"{name}.png", folder / f"{name}.json"


def write(folder: Path, item: Item, work: Work, result: Result, cost: Cost) -> tuple[Path, Path]:
    """Write both files under other names, then rename them, the numbers last: they say that an item
    is finished.

    Then its cells are removed."""
    text = json.dumps(as_json(item, work, result, cost), indent=1, allow_nan=False) + "\n"
    picture = drawn(result.panels)
    found = places(folder, item.name)
    parts = [path.with_name(f".{path.name}.part-{os.getpid()}") for path in found]
    interrupts.unfinished.update(parts)
    with writing(folder), interrupts.later():
        folder.mkdir(parents=True, exist_ok=True)
        try:
            parts[0].write_bytes(picture)
            parts[1].write_text(text, encoding="utf-8")
            for part, path in zip(parts, found, strict=True):
                os.replace(part, path)
        finally:
            for part in parts:
                part.unlink(missing_ok=True)
        discard(folder, item.name)
        interrupts.say(f"{item.name} is written to {folder}")
    return found


def kept(folder: Path, item: Item, work: Work) -> dict[str, Any] | None:
    """The numbers of an item that was finished with the same settings, ``None`` if it was not."""
    picture, numbers = places(folder, item.name)
    try:
        found = json.loads(numbers.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    wanted = asked(item, work)
    same = isinstance(found, dict) and {key: found.get(key) for key in wanted} == wanted
    return found if same and picture.is_file() else None


# The panels as one PNG, legends below the axes; matplotlib is imported when a picture is asked for.

MARKERS = ("", "o", "s", "D", "v", "P", "X", "*", "<", ">")
"""For further lines of one meaning."""
WIDTH, HEIGHT = 4.8, 3.6
"""Of one panel, in inches, without its legend."""
LEGEND = 8
FEW = 6
"""Values of an axis that have a tick each."""


def drawn(panels: Sequence[Panel], dpi: int = 100, most: int = 3) -> bytes:
    """All panels side by side, at most so many in a line, as PNG."""
    held = io.BytesIO()
    arranged(panels, most).savefig(held, format="png", dpi=dpi, metadata={"Software": None})
    return held.getvalue()


def arranged(panels: Sequence[Panel], most: int = 3) -> Any:
    """The figure of ``drawn``: no legend covers a line; panels whose legends are the same share
    one."""
    from matplotlib.figure import Figure

    across = min(most, max(1, len(panels)))
    down = math.ceil(max(1, len(panels)) / across)
    below = max([_lines(panel.traces, WIDTH)[0] for panel in panels], default=0)
    alike = len(panels) > 1 and len({tuple(map(_meaning, panel.traces)) for panel in panels}) == 1
    lines = _lines(panels[0].traces, WIDTH * across)[0] if alike else below * down
    figure = Figure(
        figsize=(1.0 + WIDTH * across, HEIGHT * down + 0.18 * lines), layout="constrained"
    )
    grid = [part for row in figure.subfigures(down, across, squeeze=False) for part in row]
    for panel, part in zip(panels, grid, strict=False):
        _draw(part.add_subplot(), panel)
        if not alike:
            _explain(part, part.axes[0], panel.traces, WIDTH)
    if alike:
        _explain(figure, grid[0].axes[0], panels[0].traces, WIDTH * across)
    return figure


def _meaning(trace: Trace) -> tuple[str, str]:
    return trace.label, trace.style


def _lines(traces: Sequence[Trace], width: float) -> tuple[int, int]:
    """Lines and columns of a legend on so many inches; (0, 0) where there is one trace only."""
    if len(traces) < 2:
        return 0, 0
    longest = max(len(trace.label) for trace in traces)
    columns = max(1, min(len(traces), int(width / (0.5 + 0.062 * longest))))
    lines = math.ceil(len(traces) / columns)
    return lines, math.ceil(len(traces) / lines)


def _explain(figure: Figure, axes: Axes, traces: Sequence[Trace], width: float) -> None:
    """A legend below the axes of a figure."""
    lines, columns = _lines(traces, width)
    if lines:
        figure.legend(
            *axes.get_legend_handles_labels(),
            loc="outside lower center",
            ncols=columns,
            frameon=False,
            fontsize=LEGEND,
            handlelength=2.4,
            columnspacing=1.4,
        )


def _draw(axes: Axes, panel: Panel) -> None:
    """Draw the lines of a panel; with names, points next to one another above each name."""
    used: dict[str, int] = {}
    for place, trace in enumerate(panel.traces):
        count = used[trace.style] = used.get(trace.style, -1) + 1
        seen = sum(math.isfinite(value) for value in trace.y)
        marker = MARKERS[count % len(MARKERS)] or STYLES[trace.style].marker
        thin_above = 2.5 - STYLES[trace.style].width / 10  # where lines coincide both are seen
        look: dict[str, Any] = {
            "marker": marker or (MARKERS[1] if seen == 1 else None),
            "zorder": thin_above,
        }
        if len(trace.x) <= 2 * FEW:
            look["markevery"] = 1  # every marker: lines of few points show where those are
        shift = 0.0
        if panel.names:
            look |= {"marker": marker or MARKERS[1 + place], "linestyle": "none", "markersize": 7}
            shift = 0.1 * (place - (len(panel.traces) - 1) / 2)
        axes.plot(
            [x + shift for x in trace.x],
            trace.y,
            label=trace.label,
            **style_line(trace.style, **look),
        )
    dress_axes(axes, panel.x_name, panel.y_name, panel.title)
    _scaled(axes.xaxis, (x for trace in panel.traces for x in trace.x), panel.log_x)
    _scaled(axes.yaxis, (y for trace in panel.traces for y in trace.y), panel.log_y)
    if panel.names:
        axes.set_xlim(0.5, len(panel.names) + 0.5)
        axes.set_xticks(range(1, len(panel.names) + 1), panel.names)


def _scaled(axis: XAxis | YAxis, values: Iterable[float], log: bool) -> None:
    """Set ticks that can be read: plain numbers, none over another, and no offset at the axis."""
    from matplotlib import ticker

    numbers = sorted({value for value in values if math.isfinite(value) and (value > 0 or not log)})
    axis.axes.set(**{f"{axis.axis_name}scale": "log" if log else "linear"})
    if not log:
        axis.set_major_formatter(ticker.ScalarFormatter(useOffset=False))
        if axis.axis_name == "x" and all(float(value).is_integer() for value in numbers):
            axis.set_major_locator(ticker.MaxNLocator("auto", integer=True, steps=(1, 2, 5, 10)))
        return
    axis.set_minor_formatter(ticker.NullFormatter())
    if not numbers:
        return
    wide = numbers[-1] / numbers[0]
    apart = min((high / low for low, high in pairwise(numbers)), default=math.inf)
    if axis.axis_name == "x" and len(numbers) <= FEW and apart > max(1.15, wide**0.12):
        axis.set_major_locator(ticker.FixedLocator(numbers))
    elif wide < 3:
        axis.set_major_locator(ticker.MaxNLocator(6))
    elif wide < 100:
        axis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
    else:
        return
    axis.set_major_formatter(ticker.FuncFormatter(lambda value, _: plain(value)))


def plain(value: float) -> str:
    """A number of a tick: 2000, 0.05, 1e-5."""
    return f"{value:g}".replace("e+0", "e").replace("e-0", "e-").replace("e+", "e")

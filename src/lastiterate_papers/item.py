"""An item of ``lastiterate papers``: what a paper published, what we compute, and how far the two
are apart."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

from lastiterate.errors import InputError
from lastiterate_papers.finished_cells import Cells

Status = Literal["matches", "restored", "differs", "not published", "data not at hand"]
Relation = Literal["=", "<=", ">="]
Progress = Callable[[str], None]
"""Gets a few words on what is being done; never a number that depends on private data."""


@dataclass(frozen=True)
class Row:
    """One value, as ``published`` and as ``ours``.

    ``published``: ``None`` where the paper gives no number; where it gives a formula, the formula
    evaluated on the item's settings. ``relation``: of ours to it, as the paper says.
    ``tolerance``: absolute. ``unit``: of all of them; none for a pure number (an epsilon, a
    divergence, a ratio).
    """

    what: str
    ours: float
    published: float | None = None
    tolerance: float = 0.0
    relation: Relation = "="
    unit: str = ""

    @property
    def difference(self) -> float | None:
        """Ours minus published."""
        return None if self.published is None else self.ours - self.published

    @property
    def agrees(self) -> bool | None:
        """Whether ours is what was published; ``None`` where nothing was. A value that is not
        finite never agrees."""
        off = self.difference
        if off is None:
            return None
        within = {
            "=": abs(off) <= self.tolerance,
            "<=": off <= self.tolerance,
            ">=": off >= -self.tolerance,
        }
        return math.isfinite(off) and within[self.relation]


def shown(value: float | None, unit: str = "", digits: int = 4) -> str:
    """A value as a reader gets it; empty where there is none, which a number that is not finite
    counts as."""
    if value is None:
        return ""
    text = f"{value:.{digits}g}"
    return (
        f"{value:,.0f} {unit}".rstrip()
        if "e" in text and 1 <= abs(value) < 1e9
        else f"{text} {unit}".rstrip()
    )


def near(what: str, ours: float, published: float, relative: float) -> Row:
    """A row whose tolerance is a part of the published value."""
    return Row(what, ours, published, relative * abs(published))


@dataclass(frozen=True)
class Setting:
    """A number that a caller may choose with ``--set``: its default, where it must lie, whether it
    must be whole."""

    default: float
    low: float = -math.inf
    high: float = math.inf
    whole: bool = False

    def check(self, name: str, value: float) -> None:
        """Refuse a value that the item could not be made with."""
        if not self.low <= value <= self.high or (self.whole and value != int(value)):
            kind = "an integer" if self.whole else "a number"
            raise InputError(
                "--set", f"must give {name} {kind} from {self.low:g} to {self.high:g}", f"{value:g}"
            )


@dataclass(frozen=True)
class Trace:
    """One line of a picture; ``style``: its meaning, a key of ``report.style.STYLES``."""

    label: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    style: str = "certified"


def traced(
    x: Sequence[float], named: Mapping[str, Sequence[float]], *styles: str
) -> tuple[Trace, ...]:
    """A line for every name over the same x; as many names as there are ``styles``."""
    return tuple(
        Trace(name, tuple(x), tuple(y), style)
        for (name, y), style in zip(named.items(), styles, strict=True)
    )


@dataclass(frozen=True)
class Panel:
    """One pair of axes. ``names``: labels of x = 1, 2, ...; then no line joins the points."""

    title: str
    x_name: str
    y_name: str
    traces: tuple[Trace, ...]
    log_x: bool = False
    log_y: bool = False
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Result:
    """What an item found. ``settings``: every number that it rests on. ``notes``: what a reader
    must know: which settings were not published, why a value differs, what is not compared.
    ``restored``: no number of it is printed."""

    rows: tuple[Row, ...]
    panels: tuple[Panel, ...]
    settings: dict[str, Any] = field(default_factory=dict[str, Any])
    notes: tuple[str, ...] = ()
    restored: bool = False

    @property
    def status(self) -> Status:
        """The status, by the rows alone: a single one that disagrees makes an item differ.
        ``matches`` is for numbers that a text prints; where ``published`` represents formulas that
        we restored or evaluate, it is ``restored``."""
        said = [row.agrees for row in self.rows if row.agrees is not None]
        if not said or not all(said):
            return "differs" if said else "not published"
        return "restored" if self.restored else "matches"


@dataclass(frozen=True)
class Work:
    """How an item is run. ``quick``: reduced sizes. ``data_dir``: real data, ``None`` where there
    are none. ``given``: the item's own settings, by name, its defaults included. ``cells``:
    finished pieces of its work."""

    quick: bool = True
    seed: int = 0
    data_dir: Path | None = None
    progress: Progress = lambda _: None
    given: Mapping[str, float] = field(default_factory=dict[str, float])
    cells: Cells = field(default_factory=Cells)

    def cell(self, name: str, make: Callable[[], Any]) -> Any:
        """A piece of the item's work, kept from an interrupted run or made now; it must rest on
        nothing but the item, its settings, seed and data. What it is shows as progress."""
        self.progress(name)
        return self.cells.get(name, make)

    def number(self, name: str) -> float:
        """One of the item's own settings."""
        return self.given[name]

    def size(self, quick: int, full: int) -> int:
        """A size that depends on ``quick``."""
        return quick if self.quick else full


@dataclass(frozen=True)
class Item:
    """``name``: a slug, stable for ever. ``status``: what the full run finds (with data, where it
    needs them).

    ``finding``: one sentence on the result; ``[name]`` in it is replaced by our value in the row of
    that name. ``data``: files below ``--data-dir`` that it needs, ``optional``: that it reads where
    they are. ``settings``: numbers that a caller may choose, by name. ``minutes``: of processor
    time that it takes in full, where that is long; measured or estimated, on one core.
    """

    name: str
    paper: str
    title: str
    status: Status
    run: Callable[[Work], Result]
    data: tuple[str, ...] = ()
    settings: Mapping[str, Setting] = field(default_factory=dict[str, Setting])
    optional: tuple[str, ...] = ()
    finding: str = ""
    minutes: int = 0

    @property
    def beyond(self) -> bool:
        """Whether it is of another text than the four that the project began with."""
        return not self.name.startswith(("chourasia-", "ryffel-", "kong-ribero-", "heller-fetaya-"))

    def found(self, rows: Sequence[Mapping[str, Any]]) -> str:
        """The finding with the values of ``rows``, as they stand in the JSON file.

        Errors: ``KeyError`` where it names a row that is not there."""
        values = {row["what"]: shown(row["ours"], row.get("unit", "")) for row in rows}
        return re.sub(r"\[([^]]+)\]", lambda match: values[match[1]], self.finding)

    def work(self, work: Work, chosen: Mapping[str, float]) -> Work:
        """The work with the settings chosen, the others by default."""
        for name, value in chosen.items():
            if name not in self.settings:
                known = ", ".join(self.settings) or "none"
                raise InputError("--set", f"must name a setting of {self.name} ({known})", name)
            self.settings[name].check(name, value)
        return replace(
            work, given={**{name: each.default for name, each in self.settings.items()}, **chosen}
        )

    def missing(self, data_dir: Path | None) -> tuple[str, ...]:
        """Files it needs that are not there."""
        if data_dir is None:
            return self.data
        return tuple(name for name in self.data if not (data_dir / name).is_file())

    def status_with(self, data_dir: Path | None) -> Status:
        """The status to list: without its data an item says nothing."""
        return "data not at hand" if self.missing(data_dir) else self.status


def by_name(items: Sequence[Item], name: str) -> Item:
    """The item of that name."""
    for item in items:
        if item.name == name:
            return item
    near = get_close_matches(name, [item.name for item in items], 3, 0.4)
    meant = "perhaps " + " or ".join(near) + "; " if near else ""
    raise InputError(
        "item",
        f"must be one of the {len(items)} items",
        name,
        f"{meant}lastiterate papers lists them",
    )

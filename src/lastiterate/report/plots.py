"""Pictures of certificates: pure functions from what was accounted to a file."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

from lastiterate.accounting.certificate import Certificate, account
from lastiterate.atomic_files import SHARED, write_file
from lastiterate.curves.lower_bound import LowerBound
from lastiterate.errors import InputError
from lastiterate.report.examples import example
from lastiterate.report.series import Line, family
from lastiterate.report.style import drawn_as, dressed
from lastiterate.run.evidence import Evidence
from lastiterate.theorems.theorem import Applies, Kind, Theorem

MARKERS = ("o", "s", "D", "v", "P", "X", "*", "<", ">")
"""For the second line of one meaning and those after it."""
WIDE = 10
"""Bounds that differ by more than this factor are drawn on a logarithmic axis, so that the best ones can be seen."""


def figure_for(path: Path) -> tuple[Any, Any]:
    """A figure and its axes without a display; matplotlib is an extra."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise InputError("plot", "needs matplotlib", None, "pip install matplotlib") from None
    if path.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise InputError("plot", "must end in .png, .svg or .pdf", path.name)
    if not path.parent.is_dir():
        raise InputError("plot", "must lie in an existing folder", str(path), "make the folder first")
    made = Figure(figsize=(7, 4.2), layout="constrained")
    return made, made.add_subplot()


def save_figure(made: Any, path: Path) -> None:
    """Draw a figure and write it whole, in the form that the name of its file says."""
    drawn = BytesIO()
    made.savefig(drawn, dpi=150, format=path.suffix.lower()[1:])
    write_file(path, drawn.getvalue(), mode=SHARED)


def lines(certificate: Certificate, delta: float, points: int = 40) -> tuple[Line, ...]:
    """Epsilon after k steps for every theorem that applies, k on a geometric grid up to the run's own number."""
    run = certificate.run
    if not run.for_any_length:
        raise InputError("plot", "needs a schedule that is defined for any number of steps", None,
                         "use a constant step size or inverse-decay")
    counts = sorted({max(1, round(run.steps ** (i / (points - 1)))) for i in range(points)})
    by_name: dict[str, tuple[Kind, list[int], list[float]]] = {}
    for count in counts:
        at = account(replace(run, steps=count), at_least=certificate.at_least)
        for verdict in at.verdicts:
            if isinstance(verdict.result, Applies):
                bound = verdict.result.bound
                epsilon = (bound if isinstance(bound, LowerBound) else at.curve(verdict)).epsilon(delta)
                if math.isfinite(epsilon):
                    _, steps, epsilons = by_name.setdefault(verdict.theorem.name, (verdict.theorem.kind, [], []))
                    steps.append(count)
                    epsilons.append(epsilon)
    return tuple(Line(name, kind, tuple(steps), tuple(y)) for name, (kind, steps, y) in by_name.items())


def envelope(drawn: Sequence[Line]) -> Line | None:
    """The largest of the lower bounds at every number of steps: what some loss of the class is known to leak."""
    known: dict[int, float] = {}
    for line in drawn:
        if line.kind in ("lower", "exact"):
            for count, epsilon in zip(line.steps, line.epsilons, strict=True):
                known[count] = max(known.get(count, 0.0), epsilon)
    if not known:
        return None
    steps = tuple(sorted(known))
    return Line("some loss of the class leaks this much", "lower", steps, tuple(known[count] for count in steps))


def meaning(certificate: Certificate, line: Line) -> str:
    """The style that a theorem's line is drawn in: what it charges for, or that it certifies nothing here."""
    if line.kind == "claimed":
        return "claimed"
    if line.kind == "lower":
        return "lower"
    weak = not certificate.verdict(line.name).certifies(Evidence.ENFORCED)
    return "assumed" if weak else family(line.name)


def said_of(certificate: Certificate, line: Line) -> str:
    """A line's name in the legend, and what it is if it is not an upper bound on enforced facts."""
    sense = meaning(certificate, line)
    mark = {"claimed": "claimed, certifies nothing", "lower": "lower", "assumed": "upper, assumed"}
    return f"{line.name} ({mark.get(sense, 'upper')})"


def epsilon_over_steps(certificate: Certificate, delta: float, path: Path, *, stress: str | None = None,
                       points: int = 40) -> Any:
    """The picture of ``lines`` above the shaded region where no bound on the class can lie; returns the figure.

    ``stress``: the theorem to draw in front; the others fade.
    """
    drawn = lines(certificate, delta, points)
    made, axes = figure_for(path)
    floor = envelope(drawn)
    if floor is not None:
        axes.fill_between(floor.steps, floor.epsilons, alpha=0.15, color="black", linewidth=0, label=floor.name)
    dressed(axes, "steps", f"epsilon at delta = {delta:g} (nats)", f"{certificate.run.adjacency} adjacency")
    seen: Counter[str] = Counter()
    for line in drawn:
        front, fades, look = line.name == stress, stress is not None and line.name != stress, meaning(certificate, line)
        more: dict[str, Any] = {"linewidth": 2.6, "zorder": 3} if front else {"alpha": 0.5 if fades else 1.0}
        if seen[look]:  # lines of one meaning differ in their markers
            more["marker"] = MARKERS[seen[look] % len(MARKERS)]
        seen[look] += 1
        axes.plot(line.steps, line.epsilons, **drawn_as(look, **more), label=said_of(certificate, line))
    axes.set(xscale="log", ylim=(0, None))
    tops = [max(line.epsilons) for line in drawn if line.kind != "lower" and max(line.epsilons) > 0]
    if tops and max(tops) > WIDE * min(tops):
        axes.set(yscale="log", ylim=(min(min(filter(None, line.epsilons), default=1.0) for line in drawn) / 2, None))
    axes.legend(fontsize=8, frameon=False)
    save_figure(made, path)
    return made


def theorem_over_steps(theorem: Theorem, delta: float, path: Path, points: int = 40) -> Certificate:
    """The picture of one theorem on its example run, in front of the others that apply; returns what was accounted."""
    certificate = account(example(theorem), at_least=Evidence.ASSUMED)
    epsilon_over_steps(certificate, delta, path, stress=theorem.name, points=points)
    return certificate

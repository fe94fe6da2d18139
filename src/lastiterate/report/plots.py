"""Pictures of certificates and audits."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lastiterate.accounting.certificate import Certificate, account
from lastiterate.atomic_files import SHARED, write_file
from lastiterate.curves.lower_bound import LowerBound
from lastiterate.errors import InputError
from lastiterate.report.charts import Line, dress_axes, style_line
from lastiterate.run.facts import Evidence
from lastiterate.theorems import TABLE
from lastiterate.theorems.theorem import Applies, Kind, Theorem

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from lastiterate.audit.report import AuditReport

# Pictures of certificates: pure functions from what was accounted to axes, and to a file.

SIZE = 7, 4.2
"""Inches of a picture."""
MARKERS = ("o", "s", "D", "v", "P", "X", "*", "<", ">")
"""For the second line of one meaning and those after it."""
WIDE = 10
"""Bounds that differ by more than this factor are drawn on a logarithmic axis, so that the best
ones can be seen."""


def figure_for(path: Path) -> tuple[Any, Any]:
    """A figure and its axes without a display."""
    from matplotlib.figure import Figure

    if path.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise InputError("plot", "must end in .png, .svg or .pdf", path.name)
    if not path.parent.is_dir():
        raise InputError(
            "plot", "must lie in an existing folder", str(path), "make the folder first"
        )
    made = Figure(figsize=SIZE, layout="constrained")
    return made, made.add_subplot()


def axes_for(path: str | Path | None, ax: object) -> Any:
    """The axes to draw on: the caller's, those of the figure of a file, or of a new figure that a
    notebook shows."""
    from matplotlib.axes import Axes

    if ax is not None and not isinstance(ax, Axes):
        raise InputError(
            "ax", "must be axes of matplotlib", type(ax).__name__, "leave it out for a new figure"
        )
    made = None if path is None else figure_for(Path(path))[1]  # refuses a bad name
    if ax is not None or made is not None:
        return made if ax is None else ax
    from matplotlib import pyplot

    return pyplot.subplots(figsize=SIZE, layout="constrained")[1]  # pyright: ignore


def save_figure(made: Any, path: Path) -> None:
    """Draw a figure and write it whole, in the form that the name of its file says."""
    drawn = BytesIO()
    made.savefig(drawn, dpi=150, format=path.suffix.lower()[1:])
    write_file(path, drawn.getvalue(), mode=SHARED)


def lines(certificate: Certificate, delta: float, points: int = 40) -> tuple[Line, ...]:
    """Epsilon after k steps for every theorem that applies, k on a geometric grid up to the run's
    own number."""
    run = certificate.run
    if not run.for_any_length:
        raise InputError(
            "plot",
            "needs a schedule that is defined for any number of steps",
            None,
            "use a constant step size or inverse-decay",
        )
    counts = sorted({max(1, round(run.steps ** (i / (points - 1)))) for i in range(points)})
    by_name: dict[str, tuple[Kind, list[int], list[float]]] = {}
    for count in counts:
        at = account(replace(run, steps=count), min_evidence=certificate.min_evidence)
        for verdict in at.verdicts:
            if isinstance(verdict.result, Applies):
                bound = verdict.result.bound
                epsilon = (bound if isinstance(bound, LowerBound) else at.curve(verdict)).epsilon(
                    delta
                )
                if math.isfinite(epsilon):
                    _, steps, epsilons = by_name.setdefault(
                        verdict.theorem.name, (verdict.theorem.kind, [], [])
                    )
                    steps.append(count)
                    epsilons.append(epsilon)
    return tuple(
        Line(name, kind, tuple(steps), tuple(y)) for name, (kind, steps, y) in by_name.items()
    )


def envelope(drawn: Sequence[Line]) -> Line | None:
    """The largest of the lower bounds at every number of steps: what some loss of the class is
    known to leak."""
    known: dict[int, float] = {}
    for line in drawn:
        if line.kind in ("lower", "exact"):
            for count, epsilon in zip(line.steps, line.epsilons, strict=True):
                known[count] = max(known.get(count, 0.0), epsilon)
    if not known:
        return None
    steps = tuple(sorted(known))
    return Line(
        "some loss of the class leaks this much",
        "lower",
        steps,
        tuple(known[count] for count in steps),
    )


def style_of(certificate: Certificate, line: Line) -> str:
    """The style that a theorem's line is drawn in: what it charges for, or that it certifies
    nothing here."""
    if line.kind == "claimed":
        return "claimed"
    if line.kind == "lower":
        return "lower"
    weak = not certificate.verdict(line.name).certifies(Evidence.ENFORCED)
    return "assumed" if weak else TABLE[line.name].family


def label_of(certificate: Certificate, line: Line) -> str:
    """A line's name in the legend, and what it is if it is not an upper bound on enforced facts."""
    sense = style_of(certificate, line)
    mark = {"claimed": "claimed, certifies nothing", "lower": "lower", "assumed": "upper, assumed"}
    return f"{line.name} ({mark.get(sense, 'upper')})"


def epsilon_over_steps(
    certificate: Certificate,
    delta: float,
    path: str | Path | None = None,
    *,
    ax: Axes | None = None,
    stress: str | None = None,
    points: int = 40,
) -> Axes:
    """Draw what every theorem certifies after k steps, and the region that no bound can enter.

    Parameters
    ----------
    certificate : Certificate
        Certificate of a run whose step sizes are defined for any number of steps.
    delta : float
        Delta at which epsilon is drawn.
    path : path, optional
        File to write too: .png, .svg or .pdf.
    ax : matplotlib.axes.Axes, optional
        Axes to draw on; by default those of a new figure.
    stress : str, optional
        Name of a theorem to draw in front; the others fade.
    points : int, default 40
        Numbers of steps, on a geometric grid.

    Returns
    -------
    matplotlib.axes.Axes
        The axes, with a figure that notebooks show.

    Raises
    ------
    InputError
        If the file or the axes are none, or the step sizes are for one number of steps only.

    Examples
    --------
    >>> import matplotlib
    >>> matplotlib.use("agg")
    >>> import lastiterate as li
    >>> from lastiterate.report import epsilon_over_steps
    >>> run = li.Run(
    ...     n=500, steps=20, step_size=0.5, noise=li.NoiseMultiplier(9.0), loss=li.Logistic(ridge=0.01)
    ... )
    >>> epsilon_over_steps(li.account(run), 1e-5, points=3).get_xlabel()
    'steps'
    """
    drawn = lines(certificate, delta, points)
    axes = axes_for(path, ax)
    floor = envelope(drawn)
    if floor is not None:
        axes.fill_between(
            floor.steps, floor.epsilons, alpha=0.15, color="black", linewidth=0, label=floor.name
        )
    dress_axes(
        axes,
        "steps",
        f"epsilon at delta = {delta:g} (nats)",
        f"{certificate.run.adjacency} adjacency",
    )
    seen: Counter[str] = Counter()
    for line in drawn:
        front, fades, look = (
            line.name == stress,
            stress is not None and line.name != stress,
            style_of(certificate, line),
        )
        more: dict[str, Any] = (
            {"linewidth": 2.6, "zorder": 3} if front else {"alpha": 0.5 if fades else 1.0}
        )
        if seen[look]:  # lines of one meaning differ in their markers
            more["marker"] = MARKERS[seen[look] % len(MARKERS)]
        seen[look] += 1
        axes.plot(
            line.steps, line.epsilons, **style_line(look, **more), label=label_of(certificate, line)
        )
    axes.set(xscale="log", ylim=(0, None))
    tops = [max(line.epsilons) for line in drawn if line.kind != "lower" and max(line.epsilons) > 0]
    if tops and max(tops) > WIDE * min(tops):
        axes.set(
            yscale="log",
            ylim=(min(min(filter(None, line.epsilons), default=1.0) for line in drawn) / 2, None),
        )
    axes.legend(fontsize=8, frameon=False)
    if path is not None:
        save_figure(axes.figure, Path(path))
    return axes


def theorem_over_steps(
    theorem: Theorem,
    delta: float,
    path: str | Path | None = None,
    *,
    ax: Axes | None = None,
    points: int = 40,
) -> Axes:
    """The picture of one theorem on its example run, in front of the others that apply."""
    certificate = account(theorem.example, min_evidence=Evidence.ASSUMED)
    return epsilon_over_steps(certificate, delta, path, ax=ax, stress=theorem.name, points=points)


# The picture of an audit: error rates of the attack, and the region that the certificate allows.

NAMED = 0.05
"""Attacks this far from chance are named in the picture."""


def forbidden(certificate: Certificate, fpr: np.ndarray, points: int = 60) -> np.ndarray:
    """The largest true positive rate that the certified curves leave at each false positive rate,
    both directions.

    For every epsilon: TPR <= e^eps FPR + delta(eps), and TPR <= 1 - e^-eps (1 - delta(eps) - FPR).
    """
    return _within(certificate.delta, fpr, points)


def attack_power(certificate: Certificate, fpr: np.ndarray) -> np.ndarray | None:
    """The true positive rate that the best attack has on the worst loss of the run's class, where
    its exact law is known: no certificate can lie below it. ``None`` where no theorem says.
    """
    exact = [
        verdict.bound for verdict in certificate.verdicts if isinstance(verdict.bound, LowerBound)
    ]
    curves = [_within(bound.delta, fpr, 60) for bound in exact]
    return np.max(curves, axis=0) if curves else None


def _within(delta_of: Callable[[float], float], fpr: np.ndarray, points: int) -> np.ndarray:
    """The trade-off curve of a function delta(epsilon), both directions of the test."""
    best = np.ones_like(fpr)
    for epsilon in np.concatenate(([0.0], np.geomspace(1e-3, 12.0, points))):
        delta = delta_of(float(epsilon))
        best = np.minimum(best, math.exp(epsilon) * fpr + delta)
        best = np.minimum(best, 1 - math.exp(-epsilon) * (1 - delta - fpr))
    return np.clip(best, 0.0, 1.0)


def curve_of(report: AuditReport, points: int = 400) -> tuple[np.ndarray, np.ndarray]:
    """False and true positive rates of the report's scores over all thresholds."""
    assert report.scores is not None
    present, without = (np.sort(np.asarray(part)) for part in report.scores)
    cuts = np.unique(np.quantile(np.concatenate((present, without)), np.linspace(0, 1, points)))
    cuts = np.concatenate(([-np.inf], cuts))
    above = [
        1 - np.searchsorted(part, cuts, side="right") / len(part) for part in (without, present)
    ]
    return above[0], above[1]


def _boxes(axes: Axes, report: AuditReport) -> None:
    """Every attack's rates, and the box that reaches to their confidence bounds: its far corner is
    what is proved."""
    from matplotlib.patches import Rectangle

    first = True
    for one in report.seen:
        rate = one.rates[0]
        at = rate.false_positives / report.trials, 1 - rate.false_negatives / report.trials
        corner = rate.fpr_upper, 1 - rate.fnr_upper
        axes.add_patch(
            Rectangle(
                (at[0], corner[1]),
                corner[0] - at[0],
                at[1] - corner[1],
                fill=False,
                linewidth=0.8,
                edgecolor="black",
            )
        )
        axes.plot(*at, "o", markersize=3, color="black")  # pyright: ignore
        axes.plot(  # pyright: ignore
            *corner,
            "^",
            markersize=6,
            color="black",
            label="each attack (dot) and what it proves (triangle),\nall but with probability "
            f"{report.failure:g}"
            if first
            else None,
        )
        if at[1] - at[0] > NAMED:
            axes.annotate(one.attack, at, fontsize=7, xytext=(4, 4), textcoords="offset points")  # pyright: ignore
        first = False


def receiver_curve(
    report: AuditReport,
    certificate: Certificate,
    path: str | Path | None = None,
    *,
    ax: Axes | None = None,
) -> Axes:
    """Draw the error rates of an audit's attacks, and the region that the certificate excludes.

    Parameters
    ----------
    report : AuditReport
        What `lastiterate.audit.audit` returned, with its scores.
    certificate : Certificate
        Certificate of the audited run.
    path : path, optional
        File to write too: .png, .svg or .pdf.
    ax : matplotlib.axes.Axes, optional
        Axes to draw on; by default those of a new figure.

    Returns
    -------
    matplotlib.axes.Axes
        The axes, with a figure that notebooks show.

    Raises
    ------
    InputError
        If the file or the axes are none, or the report holds no scores.

    Examples
    --------
    >>> import matplotlib
    >>> matplotlib.use("agg")
    >>> import lastiterate as li
    >>> from lastiterate.report import receiver_curve
    >>> run = li.Run(n=20, steps=2, step_size=0.5, noise=li.NoiseMultiplier(2.0), loss=li.Logistic())
    >>> found = li.audit.audit(run, delta=1e-5, trials=20, attack="projection")
    >>> receiver_curve(found, li.account(run)).get_ylabel()
    'true-positive rate (share of models with it)'
    """
    if report.scores is None:
        raise InputError(
            "report", "must hold the scores of its models", None, "draw what audit returned"
        )
    axes = axes_for(path, ax)
    fpr = np.concatenate(([0.0], np.geomspace(1e-5, 1.0, 300)))
    axes.fill_between(
        fpr,
        forbidden(certificate, fpr),
        1.0,
        color="black",
        alpha=0.12,
        linewidth=0,
        label="excluded by the certificate",
    )
    axes.plot(
        fpr, forbidden(certificate, fpr), **style_line("certified"), label="certified bound (upper)"
    )
    exact = attack_power(certificate, fpr)
    if exact is not None:
        axes.plot(
            fpr,
            exact,
            **style_line("lower", marker=None),
            label="exact, on the worst loss of the class (lower)",
        )
    axes.plot(fpr, fpr, **style_line("chance"), label="chance")
    axes.plot(
        *curve_of(report),
        **style_line("audit", marker=None),
        label=f"attack: {report.attack} (measured)",
    )
    _boxes(axes, report)
    dress_axes(
        axes,
        "false-positive rate (share of models without the record)",
        "true-positive rate (share of models with it)",
        report.verdict,
    )
    axes.set(xlim=(0, 1), ylim=(0, 1))
    axes.legend(fontsize=8, frameon=False, loc="lower right")
    if path is not None:
        save_figure(axes.figure, Path(path))
    return axes

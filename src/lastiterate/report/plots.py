"""Pictures of certificates: pure functions from what was accounted to a file."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

from lastiterate.accounting import account
from lastiterate.certificate import Certificate
from lastiterate.errors import InputError
from lastiterate.schedules import GradientNoise, Steps
from lastiterate.theorem import Applies


def figure_for(path: Path) -> tuple[Any, Any]:
    """A figure and its axes without a display; matplotlib is an extra."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise InputError("--plot", "needs matplotlib", None, "pip install 'lastiterate[plot]'") from None
    if path.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise InputError("--plot", "must end in .png, .svg or .pdf", path.name)
    made = Figure(figsize=(7, 4.2), layout="constrained")
    return made, made.add_subplot()


def epsilon_over_steps(certificate: Certificate, delta: float, path: Path, points: int = 40) -> None:
    """Epsilon after k steps for every theorem that applies, above what the worst quadratic of the class has."""
    run = certificate.run
    listed = isinstance(run.noise, GradientNoise) and isinstance(run.noise.std, tuple)
    if listed or isinstance(run.step_size, Steps):
        raise InputError("--plot", "needs a schedule that is defined for any number of steps", None,
                         "use a constant step size or inverse-decay")
    made, axes = figure_for(path)
    counts = sorted({max(1, round(run.steps ** (i / (points - 1)))) for i in range(points)})
    found: dict[str, tuple[str, list[tuple[int, float]]]] = {}
    for count in counts:
        at = account(replace(run, steps=count), at_least=certificate.at_least)
        for verdict in at.verdicts:
            if isinstance(verdict.result, Applies):
                curve = verdict.result.curve if verdict.theorem.kind == "lower" else at.curve(verdict)
                epsilon = curve.epsilon(delta)
                if math.isfinite(epsilon):
                    rows = found.setdefault(verdict.theorem.name, (verdict.theorem.kind, []))[1]
                    rows.append((count, epsilon))
    for name, (kind, rows) in found.items():
        x, y = zip(*rows, strict=True)
        if kind == "lower":
            axes.fill_between(x, y, alpha=0.12, color="black", linewidth=0)
        axes.plot(x, y, "--" if kind == "lower" else "-", label=f"{name} ({kind})", linewidth=1.4)
    axes.set(xlabel="steps", ylabel=f"epsilon at delta = {delta:g}", xscale="log", ylim=(0, None))
    axes.set_title(f"{run.adjacency} adjacency", loc="left", fontsize=10)
    axes.legend(fontsize=8, frameon=False)
    made.savefig(path, dpi=150)

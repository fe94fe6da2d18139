"""How close a model that forgot is to one that never saw the records, over the passes without them."""

from __future__ import annotations

import math
from dataclasses import replace

from lastiterate.accounting.certificate import Certificate
from lastiterate.accounting.unlearning import Unlearning
from lastiterate.accounting.wording import rounded_up
from lastiterate.markup import Markup, tag
from lastiterate.report import charts
from lastiterate.report.charts import Axis, Series
from lastiterate.report.frames import folded, section
from lastiterate.run.run import Run

POINTS = 24
"""Numbers of steps at which epsilon is computed."""


def over_passes(subject: Unlearning, delta: float) -> Markup:
    """Epsilon of stopping after fewer of the last request's steps, and of training anew."""
    last = subject.requests[-1]
    counts = sorted({max(1, round(last.run.steps ** (i / (POINTS - 1)))) for i in range(POINTS)})
    points = [(count / last.run.blocks, epsilon) for count in counts
                if math.isfinite(epsilon := stopped(subject, count).epsilon(delta)) and epsilon > 0]
    if not points:
        return section("3. Epsilon over passes", tag("p", "Nothing is certified at any number of passes."))
    training, lines = subject.training, [Series("certified, stopping there", "certified", tuple(points))]
    anew = training.steps / training.blocks if isinstance(training, Run) else None
    low, high = min(e for _, e in points) / 2, max(e for _, e in points) * 2
    if anew is not None:
        lines.append(Series("training anew: nothing is left from its last pass on", "chance",
                            ((anew, low), (anew, high))))
    ends = [passes for passes, _ in points] + ([] if anew is None else [anew])
    picture = charts.chart(
        "Epsilon over passes without the removed records", "The certified bound if the steps had ended there, and "
        "where training from the beginning would have ended.", Axis("passes over the data", min(ends), 1.01 * max(ends),
        log=True), Axis(f"epsilon at delta = {delta:g}", low, high, log=True), lines, name="passes",
        stop=(last.run.steps / last.run.blocks, "this request"))
    rows = [tag("tr", tag("th", f"{passes:.3g}", scope="row", class_="num"),
                tag("td", rounded_up(epsilon), class_="num")) for passes, epsilon in points]
    head = tag("tr", [tag("th", name, scope="col", class_="num") for name in ("passes", "epsilon")])
    table = folded("The numbers of this picture", tag("table", tag("thead", head), tag("tbody", rows)))
    return section("3. Epsilon over passes", [tag("p", _why(last.run)), tag("p", f"Compared with {subject.reference}."),
                                              picture, table])


def stopped(subject: Unlearning, steps: int) -> Certificate:
    """What would be certified after the first ``steps`` steps of the last request."""
    *before, last = subject.requests
    return Certificate(replace(subject, requests=(*before, replace(last, run=last.run.shortened(steps)))))


def _why(run: Run) -> str:
    if run.largest_noise == 0:
        return ("All of the noise was added before the first step. Steps after it do not change epsilon: they take the "
                "noise away again wherever the loss is curved, and the accuracy comes back.")
    return "Steps bring both models closer together, and the noise of each hides a part of what is left."

"""Heller and Fetaya 2023, Figures 2 and 3: can an attack see one image in a LeNet5 trained by SGLD?"""

from __future__ import annotations

import math

import numpy as np

from lastiterate.papers import real
from lastiterate.papers.heller_fetaya import PAPER
from lastiterate.papers.item import Item, Panel, Result, Row, Trace, Work

MEAN, STD, DELTA = 0.1307, 0.3081, 1e-5
LOW, HIGH = -MEAN / STD, (1 - MEAN) / STD
SETTINGS = {"n": 0.0, "passes": 0.0, "trials": 0.0}
"""0: the size that --quick or the full run has; n = 60000, passes = 10, trials = 200 is about the paper's."""


def images_of(work: Work, part: str, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Images (n, 1, 32, 32), normalised by public numbers, and labels."""
    pixels, labels = real.mnist_images(work.data_dir, part, n)
    padded = np.pad(pixels.reshape(-1, 1, 28, 28), ((0, 0), (0, 0), (2, 2), (2, 2)))
    return ((padded / 255 - MEAN) / STD).clip(LOW, HIGH).astype(np.float32), labels.astype(np.int32)


def attacked(work: Work, clip: float | None) -> Result:
    """The attack after every pass: a lower bound on epsilon, the certificate's upper bound, test accuracy."""
    from lastiterate.audit import (
        Effort,
        ImageModel,
        attack_network,
        instantiate,
        langevin_run,
        lenet_logits,
        lenet_loss,
        lenet_parameters,
        with_prior,
    )

    n = int(work.number("n")) or work.size(300, 2000)
    passes, trials = int(work.number("passes")) or work.size(4, 10), int(work.number("trials")) or work.size(20, 100)
    images, labels = images_of(work, "train", n)
    model = ImageModel(lenet_logits, with_prior(lenet_loss, n), lenet_parameters(work.seed))
    run = langevin_run(n, passes, clip=clip)
    work.progress("crafting a record")
    pair = instantiate(langevin_run(n, passes), model, images, labels, low=LOW, high=HIGH, seed=work.seed,
                       models=work.size(2, 30), batch_models=30)
    effort = Effort(trials, work.size(10, 50), 30, work.seed)
    reports = attack_network(run, model, pair, effort=effort, delta=DELTA, progress=lambda done, of, _, left:
                             work.progress(f"{done} of {of} models, {left:.0f} s left"))
    rows = list[Row]()
    for place, report in enumerate(reports, 1):
        rows += [Row(f"{place} passes: epsilon at least", report.lower), Row(f"{place} passes: could have shown",
                                                                             report.ceiling)]
        if math.isfinite(report.upper):
            rows.append(Row(f"{place} passes: epsilon at most, all steps charged", report.upper))
    rows.append(Row("largest epsilon shown", max(report.lower for report in reports)))
    x = tuple(range(1, len(reports) + 1))
    traces = [Trace("at least", x, tuple(report.lower for report in reports), "audit"),
              Trace("the most it could show", x, tuple(report.ceiling for report in reports), "chance")]
    if clip is not None:
        traces.append(Trace("at most", x, tuple(report.upper for report in reports), "composition"))
    return Result(tuple(rows), (Panel(f"n = {n}", "passes", f"epsilon at {DELTA:g}", tuple(traces), False,
                                      clip is not None),),
                  {"n": n, "passes": passes, "models per data set": trials, "batch": 4, "clip": clip, "delta": DELTA,
                   "adjacency": "replace-one", "step": "lr n / 2 = 1/240, temperature 1/n"},
                  ("The values that the figures draw are not in the text at hand. The paper's size is n = 60000 "
                   "(--set n=60000); here it is reduced, with the same step.",
                   "Statements after all passes hold together with probability 95 %.",
                   "In their clipped run the prior's gradient stands outside the clip, here within it." if clip else
                   "Unclipped SGLD has no certificate: nothing bounds a gradient."))


def figure_2(work: Work) -> Result:
    """SGLD without clipping."""
    return attacked(work, None)


def figure_3(work: Work) -> Result:
    """SGLD clipped to 0.2 (their appendix E)."""
    return attacked(work, 0.2)


ITEMS = (
    Item("heller-fetaya-fig2", PAPER, "Figure 2: an attack on SGLD over passes, MNIST and LeNet5", "not published",
         figure_2, real.MNIST, SETTINGS),
    Item("heller-fetaya-fig3", PAPER, "Figure 3: the same on clipped SGLD, beside its certificate", "not published",
         figure_3, real.MNIST, SETTINGS),
)

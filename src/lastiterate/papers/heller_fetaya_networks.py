"""Heller and Fetaya 2023, Figures 2 and 3: can an attack see one image in a LeNet5 trained by SGLD?"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from lastiterate.papers import real
from lastiterate.papers.heller_fetaya import PAPER
from lastiterate.papers.item import Item, Panel, Result, Row, Trace, Work
from lastiterate.run.run import Run

if TYPE_CHECKING:
    from lastiterate.audit import ImageModel, ImageNeighbours

MEAN, STD, DELTA = 0.1307, 0.3081, 1e-5
LOW, HIGH = -MEAN / STD, (1 - MEAN) / STD
STEP, TESTED = 1 / 240, 500
SETTINGS = {"n": 0.0, "passes": 0.0, "trials": 0.0, "step": 0.0}
"""0: the size that --quick or the full run has; n = 60000, passes = 10, trials = 200 is about the paper's."""


@dataclass(frozen=True, eq=False)
class Attack:
    """Sizes of the experiment, the images, and the model that is attacked."""

    n: int
    passes: int
    trials: int
    pilot: int
    crafting: int
    step: float
    images: np.ndarray
    labels: np.ndarray
    seed: int

    @classmethod
    def of(cls, work: Work) -> Attack:
        """By the item's settings; ``--quick`` takes fewer records, models and passes, and longer steps."""
        n = int(work.number("n")) or work.size(200, 2000)
        chosen = (int(work.number("passes")) or work.size(8, 10), int(work.number("trials")) or work.size(24, 100),
                  work.size(12, 50), work.size(6, 30), work.number("step") or (4 * STEP if work.quick else STEP))
        return cls(n, *chosen, *images_of(work, "train", n), work.seed)

    @property
    def checkpoints(self) -> list[int]:
        """Passes after which models are looked at: all, or four of them where they are few."""
        return [*range(1, self.passes + 1)] if self.trials >= 100 else [
            p for p in range(1, self.passes + 1) if p % max(1, self.passes // 4) == 0]

    def run(self, clip: float | None) -> Run:
        """SGLD, clipped or not."""
        from lastiterate.audit import langevin_run

        return langevin_run(self.n, self.passes, step_size=self.step, clip=clip)

    @property
    def model(self) -> ImageModel:
        """LeNet5 with the prior's share in every record's loss."""
        from lastiterate.audit import ImageModel, lenet_logits, lenet_loss, lenet_parameters, with_prior

        return ImageModel(lenet_logits, with_prior(lenet_loss, self.n), lenet_parameters(self.seed))

    def crafted(self) -> tuple[list[float], int, int]:
        """A record of the wrong class for models of unclipped SGLD: its pixels, its place, and that class."""
        from lastiterate.audit import instantiate

        pair = instantiate(self.run(None), self.model, self.images, self.labels, low=LOW, high=HIGH, seed=self.seed,
                           models=self.crafting, batch_models=30)
        return pair.with_record[pair.record].ravel().tolist(), pair.record, pair.adversarial

    def neighbours(self, pixels: list[float], record: int, adversarial: int) -> ImageNeighbours:
        """The two data sets with and without the crafted record."""
        from lastiterate.audit import ImageNeighbours

        present = self.images.copy()
        present[record] = np.asarray(pixels, np.float32).reshape(present.shape[1:])
        return ImageNeighbours(self.images, present, self.labels, record, adversarial)

    def accuracies(self, clip: float | None, test: np.ndarray, answers: np.ndarray) -> list[float]:
        """Test accuracy in per cent after the checkpoints, the mean of three models."""
        import jax
        import jax.numpy as jnp

        from lastiterate.audit.adversarial_image import all_logits
        from lastiterate.audit.checkpoints import looked_at
        from lastiterate.engine import seeded_keys
        from lastiterate.engine.network import Form, prepared

        model, run = self.model, self.run(clip)
        form, found = Form.of(model.params), list[float]()
        with jax.enable_x64(True):
            loop, first, data = prepared(run, model.loss, model.params, (self.images, self.labels))
            keys = jnp.asarray(seeded_keys(self.seed + 1, 3))
            after = [run.blocks * passes for passes in self.checkpoints]
            thetas = looked_at(loop, first, data, keys, after, lambda theta: theta)
            for place in range(len(after)):
                trained = jax.vmap(lambda theta: form.whole(form.arrays(theta, exact=False)))(thetas[:, place])
                said = all_logits(model, trained, test).argmax(axis=2)
                found.append(100 * float((said == answers[:, None]).mean()))
        return found


def images_of(work: Work, part: str, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Images (n, 1, 32, 32), normalised by public numbers, and labels."""
    pixels, labels = real.mnist_images(work.data_dir, part, n)
    padded = np.pad(pixels.reshape(-1, 1, 28, 28), ((0, 0), (0, 0), (2, 2), (2, 2)))
    return ((padded / 255 - MEAN) / STD).clip(LOW, HIGH).astype(np.float32), labels.astype(np.int32)


def attacked(work: Work, clip: float | None) -> Result:
    """The attack over passes: a lower bound on epsilon, the certificate's upper bound, test accuracy."""
    from lastiterate.audit import Effort, attack_network

    this = Attack.of(work)
    pair = this.neighbours(*work.cell("crafting a record", this.crafted))
    run, after = this.run(clip), this.checkpoints
    reports = attack_network(
        run, this.model, pair, effort=Effort(this.trials, this.pilot, 30, work.seed), delta=DELTA,
        checkpoints=[run.blocks * passes for passes in after], results=work.cells.beside("models"),
        progress=lambda done, of, _, left: work.progress(f"{done} of {of} models, {left:.0f} s left"))
    test = images_of(work, "t10k", TESTED)
    right = {"this run": work.cell("test accuracy", partial(this.accuracies, clip, *test))}
    if clip is not None:
        right["SGLD, not clipped"] = work.cell("test accuracy, not clipped", partial(this.accuracies, None, *test))
    rows = list[Row]()
    for place, (passes, report) in enumerate(zip(after, reports, strict=True)):
        rows += [Row(f"{passes} passes: epsilon at least", report.lower),
                 Row(f"{passes} passes: could have shown", report.ceiling)]
        if math.isfinite(report.upper):
            rows.append(Row(f"{passes} passes: epsilon at most, certified", report.upper))
        rows += [Row(f"{passes} passes: test accuracy, %, {name}", values[place]) for name, values in right.items()]
    rows.append(Row("largest epsilon shown", max(report.lower for report in reports)))
    traces = [Trace("at least", tuple(after), tuple(report.lower for report in reports), "audit"),
              Trace("the most it could show", tuple(after), tuple(report.ceiling for report in reports), "chance")]
    if clip is not None:
        traces.append(Trace("at most", tuple(after), tuple(report.upper for report in reports), "composition"))
    styles = ("certified", "other upper")
    accuracy = tuple(Trace(name, tuple(after), tuple(values), style)
                     for (name, values), style in zip(right.items(), styles, strict=False))
    return Result(tuple(rows), (Panel(f"n = {this.n}", "passes", f"epsilon at {DELTA:g}", tuple(traces)),
                                Panel(f"n = {this.n}", "passes", "test accuracy, %", accuracy)),
                  {"n": this.n, "passes": this.passes, "models per data set": this.trials, "pilot": this.pilot,
                   "crafting": this.crafting, "batch": 4, "clip": clip, "delta": DELTA, "adjacency": "replace-one",
                   "step": this.step, "temperature": 1 / this.n}, _notes(this, clip))


def _notes(this: Attack, clip: float | None) -> tuple[str, ...]:
    longer = "the same step" if this.step == STEP else f"a step {this.step / STEP:g} times theirs"
    return ("The values that the figures draw are not in the text at hand. The paper's size is n = 60000 "
            f"(--set n=60000); here it is reduced, with {longer} (lr n / 2).",
            "Statements after all passes that are shown hold together with probability 95 %.",
            "As in their appendix E the attack shows nothing of the clipped run, whose accuracy is lower. In their "
            "clipped run the prior's gradient stands outside the clip, here within it." if clip else
            "Unclipped SGLD has no certificate: nothing bounds a gradient.")


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

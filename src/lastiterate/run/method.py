"""How the released parameters come about: the questions that every method answers, and plain noisy descent."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, final

from lastiterate.run.derived_fields import Described


class ReleaseMethod(ABC):
    """The questions that every method answers.

    ``noisy_steps``: whether every step adds noise to its mean gradient, of a size that is known beforehand: what
    ``noise_stds`` gives. ``hides_way``: whether what is visited before the end has no noise, and no guarantee.
    ``charges_way``: whether every iterate counts as released, whatever is released. ``averaged``: whether what is
    released is an average of iterates.
    """

    noisy_steps: ClassVar[bool] = False
    hides_way: ClassVar[bool] = False
    charges_way: ClassVar[bool] = False
    averaged: ClassVar[bool] = False

    @property
    def model_parameters(self) -> int | None:
        """How many parameters the model has, where the method has to know."""
        return None

    @abstractmethod
    def check(self, run: Described) -> None:
        """Refuse what the method cannot be combined with."""

    @abstractmethod
    def gradient_evaluations(self, run: Described) -> float:
        """Expected gradients of records that the run computes."""

    @abstractmethod
    def farthest_draw(self, run: Described) -> float:
        """How many standard deviations of one draw of noise hide a record, at most; infinite where a draw is silent."""

    @abstractmethod
    def stated_noise(self, run: Described) -> dict[str, Any]:
        """The noise in numbers, JSON-ready: kind, same_every_step, std_of_mean_gradient, multiplier."""

    @abstractmethod
    def words(self, run: Described) -> str:
        """The run in one line: steps, records, batches, noise."""

    @abstractmethod
    def calibrated(self, run: Described) -> str:
        """The noise that was found for a run, in one line."""

    @property
    def beyond_composition(self) -> str | None:
        """Why composition has nothing to charge for, where it has not."""
        return None


class NoisySteps(ReleaseMethod):
    """What methods answer alike that step along noisy mean gradients."""

    noisy_steps: ClassVar[bool] = True

    def check(self, run: Described) -> None:
        """Nothing is refused: every field is a part of a step."""

    def gradient_evaluations(self, run: Described) -> float:
        return run.steps * run.batching.expected_batch(run.n)

    def farthest_draw(self, run: Described) -> float:
        """A silent step is hidden by those behind it: no draw of its own."""
        least = float(run.noise_stds.min())
        if not least > 0:
            return float("inf")
        together = run.rows_per_unit * run.decided_noise.largest_sum(run.blocks, run.steps)
        return together * run.facts().fact("sensitivity", float("inf")) / (run.divisor * least)

    def stated_noise(self, run: Described) -> dict[str, Any]:
        return {"kind": type(run.noise).__name__, "same_every_step": run.same_noise,
                "std_of_mean_gradient": run.largest_noise,
                "multiplier": run.largest_noise * run.divisor / run.noise_unit if run.noise_unit else None}

    def words(self, run: Described) -> str:
        assert run.noise is not None
        stated = run.noise.words or f"noise std {run.largest_noise:.4g} on the mean gradient{_of_steps(run)}"
        return f"{run.steps} steps on {run.n} records, {type(run.batching).__name__}, {stated}"

    def calibrated(self, run: Described) -> str:
        unit = run.noise_unit
        multiplier = "" if not unit else f"noise multiplier {run.largest_noise * run.divisor / unit:.6g}, "
        return (f"{run.steps} steps with {multiplier}standard deviation {run.largest_noise:.6g} per coordinate of the "
                f"mean gradient{_of_steps(run)}")


@final
@dataclass(frozen=True)
class Descent(NoisySteps):
    """Steps along noisy mean gradients, of which the last iterate is released: what most runs do."""


def _of_steps(run: Described) -> str:
    """What the noise that is shown is, where steps differ in it."""
    return "" if run.same_noise else " (the largest of all steps)"

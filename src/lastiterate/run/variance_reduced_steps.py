"""Variance-reduced steps: what they may be combined with, and the numbers that proof and trainer share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, final

from lastiterate.errors import InputError
from lastiterate.run.batching import Poisson
from lastiterate.run.combined import allow, multiplier_of, only_single_rows
from lastiterate.run.derived_fields import Described
from lastiterate.run.fields import settle
from lastiterate.run.losses import HuberRidge, Logistic, Softmax
from lastiterate.run.method import ReleaseMethod
from lastiterate.run.noise import NoiseMultiplier
from lastiterate.run.step_sizes import RelativeToSmooth
from lastiterate.run.validate import executable, whole


@final
@dataclass(frozen=True)
class VarianceReduced(ReleaseMethod):
    """Variance-reduced steps on a linear model (DP-SVRG): their noise shrinks with the way since the last snapshot.

    Step k = 0, ``every``, 2 ``every``, ... takes a snapshot: the mean gradient of all n records at the iterate, with
    noise of standard deviation ``snapshot`` z L / n per coordinate, which it follows. All other steps follow the same
    noisy mean, and the mean over a batch of what every record's gradient has moved since: vectors that are clipped to
    c = min(2 L, beta |theta - snapshot|), with noise of z c / divisor. z is the run's ``NoiseMultiplier``, L and beta
    are the loss's Lipschitz constant and the smoothness of its data term (docs/theorems/variance-reduction).
    """

    every: int
    snapshot: float
    charges_way: ClassVar[bool] = True

    def __post_init__(self) -> None:
        settle(self)
        whole("every", self.every, least=2, most=10**9)
        executable("snapshot", self.snapshot)

    def check(self, run: Described) -> None:
        """A bound on what a gradient moves needs a known, smooth loss."""
        allow(run, "where steps follow snapshots", "a capped loss (cap=) needs no clip", loss=(
            Logistic, Softmax, HuberRidge), batching=(Poisson,), clip=(type(None),), update=(type(None),),
            noise=(NoiseMultiplier, type(None)))
        if type(run.step_size) is RelativeToSmooth:
            raise InputError("step_size", "must be stated where steps follow snapshots", "RelativeToSmooth",
                             "use Constant, InverseDecay or Steps")
        only_single_rows(run, "where steps follow snapshots", "use rows_per_unit, for group privacy")

    def taken(self, run: Described) -> int:
        """How many snapshots a run takes."""
        return -(-run.steps // self.every)

    def gradient_evaluations(self, run: Described) -> float:
        """All records' at a snapshot, two for every record of a batch between them."""
        taken = self.taken(run)
        return taken * run.n + 2 * (run.steps - taken) * run.batching.expected_batch(run.n)

    def snapshot_multiplier(self, run: Described) -> float:
        """Noise on a snapshot's summed gradient, in units of the Lipschitz constant."""
        return self.snapshot * multiplier_of(run)

    def difference_multiplier(self, run: Described) -> float:
        """Noise on a sum of gradient differences, in units of their clip."""
        return multiplier_of(run)

    def farthest_draw(self, run: Described) -> float:
        assert run.noise_unit is not None
        moved = run.rows_per_unit * run.facts().fact("sensitivity", float("inf")) / run.noise_unit
        return moved / min(self.difference_multiplier(run), self.snapshot_multiplier(run))

    def stated_noise(self, run: Described) -> dict[str, Any]:
        """The deviation is that of a snapshot; between them it shrinks with the parameters' way."""
        return {"kind": type(self).__name__, "same_every_step": False, "multiplier": self.difference_multiplier(run),
                "std_of_mean_gradient": self.snapshot_multiplier(run) * run.facts().fact("lipschitz") / run.n}

    def words(self, run: Described) -> str:
        return (f"{run.steps} steps on {run.n} records, {type(run.batching).__name__}, a snapshot every {self.every} "
                f"steps, multiplier {self.snapshot_multiplier(run):.4g}, between them "
                f"{self.difference_multiplier(run):.4g}")

    def calibrated(self, run: Described) -> str:
        return (f"{run.steps} steps, noise multiplier {self.snapshot_multiplier(run):.6g} at every snapshot and "
                f"{self.difference_multiplier(run):.6g} of a difference's clip between them")

    @property
    def beyond_composition(self) -> str:
        return ("composition has no single noise to charge for: between snapshots it follows the parameters; every "
                "step counts, and that {secret} stay secret is part of the price")


def moved_smooth(run: Described) -> float:
    """beta: how far a record's data gradient moves, at most, per unit of the parameters' way."""
    return run.loss.facts().fact("smooth") - run.loss.ridge

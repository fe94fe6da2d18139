"""Runs with variance-reduced steps: what they may be combined with, and the numbers that proof and trainer share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lastiterate.errors import InputError
from lastiterate.run.batching import Poisson
from lastiterate.run.losses import HuberRidge, Logistic, Softmax
from lastiterate.run.noise import SnapshotNoise
from lastiterate.run.step_sizes import RelativeToSmooth

if TYPE_CHECKING:
    from lastiterate.run.run import Run


def check_snapshots(run: Run) -> None:
    """Refuse what snapshots cannot be combined with: a bound on what a gradient moves needs a known, smooth loss."""
    if type(run.noise) is not SnapshotNoise:
        return
    for name, value, allowed in (("loss", run.loss, (Logistic, Softmax, HuberRidge)),
                                 ("batching", run.batching, (Poisson,)), ("clip", run.clip, (type(None),)),
                                 ("momentum", run.momentum, (type(None),))):
        if type(value) not in allowed:
            names = " or ".join("None" if kind is type(None) else kind.__name__ for kind in allowed)
            raise InputError(name, f"must be {names} where steps follow snapshots", type(value).__name__,
                             "a capped loss (cap=) needs no clip")
    if type(run.step_size) is RelativeToSmooth:
        raise InputError("step_size", "must be stated where steps follow snapshots", "RelativeToSmooth",
                         "use Constant, InverseDecay or Steps")


def snapshots(run: Run) -> int:
    """How many snapshots a run takes."""
    return -(-run.steps // _noise(run).every)


def snapshot_multiplier(run: Run) -> float:
    """Noise on a snapshot's summed gradient, in units of the Lipschitz constant."""
    noise = _noise(run)
    return noise.snapshot * noise.z


def difference_multiplier(run: Run) -> float:
    """Noise on a sum of gradient differences, in units of their clip."""
    return _noise(run).z


def moved_smooth(run: Run) -> float:
    """beta: how far a record's data gradient moves, at most, per unit of the parameters' way."""
    return run.loss.facts().fact("smooth") - run.loss.ridge


def evaluations(run: Run) -> float:
    """Expected gradients of records that a run computes: a batch's at every step; where steps follow snapshots, n for
    each of these, and two for every record of a batch between them."""
    batch = run.batching.expected_batch(run.n)
    if type(run.noise) is not SnapshotNoise:
        return run.steps * batch
    taken = snapshots(run)
    return taken * run.n + 2 * (run.steps - taken) * batch


def _noise(run: Run) -> SnapshotNoise:
    assert isinstance(run.noise, SnapshotNoise)
    return run.noise

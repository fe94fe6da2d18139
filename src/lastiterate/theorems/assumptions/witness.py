"""What an exact law of a loss of the class needs: steps whose maps it knows."""

from __future__ import annotations

from lastiterate.analysis.witness_losses import curvature, unequal_batches
from lastiterate.run.facts import known
from lastiterate.run.run import Run
from lastiterate.theorems.theorem import Assumption, Broken, Held


def _idle_clip(run: Run) -> Held | Broken:
    idle = run.clip is None or curvature(run)[1] == 0 or known(run.facts(), "smooth") is not None
    return Held() if idle else Broken(
        "the witness keeps its gradients below the clip only when clipping leaves the loss as it is")


idle_clip = Assumption("idle_clip", "no clipping that can act on curved data terms", _idle_clip)


def _public_curvature(run: Run) -> Held | Broken:
    drawn = run.batching.sizes == "random" or run.batching.drawn == "each pass"
    return Held() if not (drawn and curvature(run)[1] > 0 and unequal_batches(run)) else Broken(
        "curvature in the records makes the steps of batches of different sizes differ: state strong convexity by a "
        "ridge of the loss, outside the records")


public_curvature = Assumption("public_curvature", "curvature that does not depend on who is in which batch",
                              _public_curvature)

"""What variance-reduced steps need."""

from __future__ import annotations

from lastiterate.run.by_method import snapshots_of
from lastiterate.run.facts import known
from lastiterate.run.run import Run
from lastiterate.theorems.theorem import Assumption, Broken, Held


def _snapshots(run: Run) -> Held | Broken:
    if snapshots_of(run) is None:
        return Broken("it speaks of steps that follow noisy snapshots and differences to them: use "
                      "method=VarianceReduced(...)")
    sensitivity = known(run.facts(), "sensitivity")
    assert sensitivity is not None, "linear models have one"
    return Held((sensitivity,))


snapshots_taken = Assumption("snapshots_taken", "steps that follow noisy gradients at snapshots, and noisy differences "
                             "to them over Poisson batches", _snapshots, of_method=True)

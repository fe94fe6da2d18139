"""What a step is compiled for, and the numbers that it is given."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax

from lastiterate.engine.objective import Objective
from lastiterate.engine.prox import executed
from lastiterate.engine.samplers import sampler_of
from lastiterate.engine.samplers.sampler import Sampler
from lastiterate.engine.structure import Described
from lastiterate.engine.variance_reduced import Reduction, reduction_of
from lastiterate.run.momentum import Momentum
from lastiterate.run.penalties import Prox
from lastiterate.run.run import Run
from lastiterate.run.starts import Start


@jax.tree_util.register_pytree_node_class
@dataclass(frozen=True)
class StepProgram:
    """A run on a model as its steps need it: the key of compiled programs is its structure alone.

    Step sizes and noise are given apart (``Schedule``); all other numbers (divisor, clip, ridge, radius, weights,
    rates, momentum) are leaves. Runs that differ in numbers only, on data of equal shapes, share a program.
    """

    sampler: Sampler
    objective: Objective
    divisor: float
    domain: Any
    prox: Prox | None
    momentum: Momentum | None
    start: Start
    reduction: Reduction | None = None

    @classmethod
    def of(cls, run: Run, objective: Objective) -> StepProgram:
        """The program of ``run``."""
        return cls(sampler_of(run.batching, run.n, objective.most), objective, run.divisor, executed(run.domain),
                   run.prox, run.momentum, run.start, reduction_of(run))

    def tree_flatten(self) -> tuple[tuple[Any, ...], None]:
        described = (self.domain, self.prox, self.momentum, self.start, self.reduction)
        return (self.sampler, self.objective, self.divisor, *map(Described, described)), None

    @classmethod
    def tree_unflatten(cls, _: None, held: Any) -> StepProgram:
        sampler, objective, divisor, *described = held
        return cls(sampler, objective, divisor, *(one.value for one in described))

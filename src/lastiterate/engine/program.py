"""What a step is compiled for, and the numbers that it is given."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax

from lastiterate.engine.methods import averaged_by, followed_by
from lastiterate.engine.methods.running_mean import RunningMean
from lastiterate.engine.noise_recursion import NoiseRecursion
from lastiterate.engine.objective import Objective
from lastiterate.engine.prox import executed
from lastiterate.engine.samplers import sampler_of
from lastiterate.engine.samplers.sampler import Sampler
from lastiterate.engine.structure import Described
from lastiterate.run.penalties import Prox
from lastiterate.run.run import Run
from lastiterate.run.starts import Start
from lastiterate.run.update_rule import UpdateRule


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
    rule: UpdateRule
    start: Start
    recursion: NoiseRecursion | None = None  #: of noise that later steps take back in part
    follows: Any = None  #: what steps follow in place of a batch's sum with the run's own noise (``methods``)
    average: RunningMean | None = None  #: of iterates, released in the place of the last one
    copies: int = 0  #: keys of every record that the objective is given in the place of its number, where it brings one

    @classmethod
    def of(cls, run: Run, objective: Objective, rule: UpdateRule | None = None) -> StepProgram:
        """The program of ``run``; ``rule``: what a description names and does not hold, a caller's optimizer."""
        return cls(sampler_of(run.batching, run.n, objective.most), objective, run.divisor, executed(run.domain),
                   run.prox, rule or run.rule, run.start, NoiseRecursion.of(run), followed_by(run), averaged_by(run),
                   0 if run.record_draws is None else run.record_draws.copies)

    def tree_flatten(self) -> tuple[tuple[Any, ...], int]:
        described = (self.domain, self.prox, self.rule, self.start, self.follows, self.average)
        return (self.sampler, self.objective, self.divisor, self.recursion, *map(Described, described)), self.copies

    @classmethod
    def tree_unflatten(cls, copies: int, held: tuple[Any, ...]) -> StepProgram:
        sampler, objective, divisor, recursion, *described = held
        domain, prox, rule, start, follows, average = (one.value for one in described)
        return cls(sampler, objective, divisor, domain, prox, rule, start, recursion, follows, average, copies)

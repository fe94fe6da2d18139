"""The one change of a run after which a theorem that fails would apply: tried, not guessed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from lastiterate.analysis.paid_smoothness import as_accounted
from lastiterate.errors import InputError
from lastiterate.run.batching import (
    BallsInBins,
    Cyclic,
    FixedSize,
    FullBatch,
    Permuted,
    Poisson,
    RandomAllocation,
    Reshuffled,
)
from lastiterate.run.correlated_noise import Correlated
from lastiterate.run.domains import Ball, Everywhere
from lastiterate.run.losses import Abstract
from lastiterate.run.noise import GradientNoise, Langevin
from lastiterate.run.run import Run
from lastiterate.run.starts import Fixed, GaussianStart
from lastiterate.run.step_sizes import Constant
from lastiterate.theorems.theorem import Broken, Theorem, examined

RIDGE = 0.01
"""The ridge that is tried where a loss has none."""
Change = tuple[str, Callable[[], Run]]


def changes(run: Run) -> Iterator[Change]:
    """Changes of one field, the smaller ones first; some cannot be made of every run."""
    loss = run.loss
    yield "release the last iterate only", lambda: replace(run, release="last")
    yield "leave momentum out", lambda: replace(run, update=None)
    yield "leave the gradient clip out", lambda: replace(run, clip=None)
    yield "clip every record's gradient (at 1)", lambda: replace(run, clip=1.0)
    yield "use one step size", lambda: replace(run, step_size=Constant(run.first_step))
    smooth = loss.facts().fact("smooth")
    if smooth > 0:
        yield "shorten the step to 1/smooth", lambda: replace(run, step_size=Constant(1 / smooth))
    for word, wanted in (("account for zero-out", "zero-out"), ("account for replace-one", "replace-one")):
        yield word, lambda wanted=wanted: replace(run, adjacency=wanted)
    if type(loss) is not Abstract and not loss.ridge:
        yield f"add a ridge of {RIDGE:g}", lambda: replace(run, loss=replace(loss, ridge=RIDGE))
    size = max(1, min(int(run.divisor), run.n - 1))
    size = size if size < run.n - 1 or run.n < 20 else run.n // 10
    kinds = (FullBatch(), Cyclic(size), Permuted(size), Reshuffled(size), RandomAllocation(size), BallsInBins(size),
             FixedSize(size), Poisson(max(1e-9, size / run.n)))
    for kind in kinds:
        shown = ":".join([kind.word, *(f"{value:g}" for value in vars(kind).values())])
        yield f"draw batches as {shown}", lambda kind=kind: replace(run, batching=kind)
    yield "use Langevin noise of one temperature", lambda: replace(run, noise=Langevin(max(1e-6, run.temperature**0.5)))
    yield "let every step's noise be independent", lambda: replace(run, noise=GradientNoise(run.largest_noise))
    yield "let later steps take noise back", lambda: replace(run, noise=_taken_back(run))
    yield "project onto a ball of radius 1", lambda: replace(run, domain=Ball(1.0))
    yield "leave the projection out", lambda: replace(run, domain=Everywhere())
    yield "leave the penalty's proximal map out", lambda: replace(run, prox=None)
    yield "start at a fixed point", lambda: replace(run, start=Fixed())
    yield "start at a Gaussian point", lambda: replace(run, start=GaussianStart(1.0))


def _taken_back(run: Run) -> Correlated:
    """Correlated noise of the same draws, its band a pass or a tenth of the run."""
    if not run.noise_unit:
        raise InputError("noise", "has nothing to be a multiple of", None, "clip every record's gradient")
    return Correlated(run.largest_noise * run.divisor / run.noise_unit, run.blocks if run.blocks > 1 else
                      max(2, min(run.steps // 10, 100)))


def opening(theorem: Theorem, run: Run) -> str | None:
    """The first change of one field after which all assumptions of ``theorem`` hold; ``None`` where none does."""
    for words, made in changes(run):
        try:
            other = made()
            read = as_accounted(other)
            if other != run and not any(isinstance(checked, Broken) for checked in examined(theorem, read)):
                return words
        except InputError:  # that change cannot be made of this run
            continue
    return None

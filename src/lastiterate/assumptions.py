"""The vocabulary of assumptions that theorems choose from."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lastiterate.adjacency import records_moved
from lastiterate.clipping import clipped_step_lipschitz, step_lipschitz
from lastiterate.errors import InputError
from lastiterate.evidence import Fact
from lastiterate.run import Run, data_term_ridge
from lastiterate.schedules import (
    BallsInBins,
    Constant,
    Cyclic,
    Everywhere,
    Fixed,
    FixedSize,
    FullBatch,
    GaussianStart,
    Langevin,
    Permuted,
    Poisson,
    Reshuffled,
    Steps,
)
from lastiterate.subsampled import installed
from lastiterate.theorem import Assumption, Broken, Held


def _plain(name: str, needs: str, holds: Callable[[Run], bool], reason: str) -> Assumption:
    return Assumption(name, needs, lambda run: Held() if holds(run) else Broken(reason))


def known(facts: Any, name: str) -> Fact | None:
    """A constant of the run as a fact, if it is known."""
    found = getattr(facts, name)
    assert found is None or isinstance(found, Fact)
    return found


UNCLIPPED_SGLD = (
    "nothing bounds what one record does to a step of Langevin dynamics without clipping, and before it has converged "
    "it can leak without bound even where the exact posterior is private (Heller and Fetaya 2023, arXiv:2110.05057): "
    "clip per-example gradients (--clip), or keep the parameters in a bounded domain where the loss has a known "
    "Lipschitz constant (--radius, --lipschitz), or release a sample of the exact posterior instead"
)
"""Why no theorem certifies unclipped SGLD, and what would help."""


def _sensitivity(run: Run) -> Held | Broken:
    fact = known(run.facts(), "sensitivity")
    if fact is None and isinstance(run.noise, Langevin):
        return Broken(UNCLIPPED_SGLD)
    if fact is None:
        return Broken("the gradient's sensitivity is unknown: clip per-example gradients (--clip), or state "
                      "--sensitivity or --lipschitz")
    return Held((fact,))


def _noise(run: Run) -> Held | Broken:
    try:
        run.noise_std(0)
    except InputError as error:
        return Broken(str(error))
    return Held()


known_sensitivity = Assumption("known_sensitivity", "a bound on how far one record moves the summed gradient",
                               _sensitivity)
known_noise = Assumption("known_noise", "a noise level that the description determines", _noise)
last_iterate_only = _plain("last_iterate_only", "only the last iterate is released", lambda run: run.release == "last",
                           "it speaks of the last iterate only, and this run releases all of them")
no_momentum = _plain("no_momentum", "no momentum", lambda run: run.momentum is None,
                     "the proof covers plain steps, and this run uses momentum")
full_batch = _plain("full_batch", "full batches", lambda run: isinstance(run.batching, FullBatch),
                    "it is proved for full batches only: use --batch full")
public_order = _plain("public_order", "full batches, or blocks in a public order",
                      lambda run: isinstance(run.batching, FullBatch | Cyclic),
                      "it needs full batches or cyclic blocks in public order")
secret_blocks = _plain("secret_blocks", "a record's block is drawn once, secretly and independently of the data",
                       lambda run: isinstance(run.batching, Permuted | BallsInBins),
                       "it averages over a secret place of the record: use --batch permuted:B")
fresh_permutations = _plain("fresh_permutations", "a fresh secret permutation of the records in every pass",
                            lambda run: isinstance(run.batching, Reshuffled),
                            "it averages over places that are drawn anew in every pass: use --batch reshuffled:B")
poisson_batches = _plain("poisson_batches", "Poisson batches", lambda run: isinstance(run.batching, Poisson),
                         "it is proved for Poisson batches: use --batch poisson:Q")
not_replace_one = _plain("not_replace_one", "a record is zeroed, added or removed, not replaced",
                         lambda run: records_moved(run.adjacency) == 1,
                         "no dominating pair is proved for Poisson batches under replace-one: account zero-out, "
                         "replace-one follows by group privacy")
constant_step = _plain("constant_step", "a constant step size", lambda run: isinstance(run.step_size, Constant),
                       "it is proved for a constant step size")


def _dp_accounting(_: Run) -> Held | Broken:
    return Held() if installed() else Broken("it needs the library dp-accounting: pip install 'lastiterate[poisson]'")


dp_accounting_installed = Assumption("dp_accounting_installed", "the library dp-accounting (lastiterate[poisson])",
                                     _dp_accounting)


def _langevin(run: Run) -> Held | Broken:
    if not (isinstance(run.noise, Langevin) or run.constant):
        return Broken("it needs the same temperature sigma^2 at every step: use --sigma")
    noise = _noise(run)
    if isinstance(noise, Held) and temperature(run) <= 0:
        return Broken("the run adds no noise: use --sigma")
    return noise


langevin_noise = Assumption("langevin_noise", "one temperature > 0: noise sqrt(2 step) sigma on the iterate", _langevin)
everywhere = _plain("everywhere", "no constraint on the parameters", lambda run: isinstance(run.domain, Everywhere),
                    "it is proved without a domain, and this run projects")
fixed_start = _plain("fixed_start", "a fixed start", lambda run: isinstance(run.start, Fixed),
                     "it is proved for a fixed start: use --start fixed")
sampled_batches = _plain("sampled_batches", "m < n records drawn afresh at every step",
                         lambda run: isinstance(run.batching, FixedSize) and run.batching.size < run.n,
                         "it speaks of batches drawn afresh: use --batch fixed:M with M < n")
counted_batches = _plain("counted_batches", "batches of a public size, in an order that does not depend on the data",
                         lambda run: isinstance(run.batching, FullBatch | Cyclic | Permuted | Reshuffled | FixedSize),
                         "it needs batches of a public size: use --batch full, cyclic:B, permuted:B, reshuffled:B or "
                         "fixed:B")
constant_schedule = _plain("constant_schedule", "the same step size and noise at every step",
                           lambda run: run.constant,
                           "it is proved for one step size and one noise level at every step")
bounded_domain = _plain("bounded_domain", "iterates projected on a domain of known diameter",
                        lambda run: math.isfinite(run.domain.diameter()),
                        "it needs a bounded domain of known diameter: use --radius")
not_resampled = _plain("not_resampled", "no batches drawn afresh at every step",
                       lambda run: not isinstance(run.batching, Poisson | FixedSize | Reshuffled),
                       "batches drawn afresh need a sampling theorem")

resampled = _plain("resampled", "batches drawn afresh at every step",
                   lambda run: isinstance(run.batching, Poisson | FixedSize),
                   "it speaks of batches drawn afresh: use --batch poisson:Q or fixed:B")
flat_losses = _plain("flat_losses", "linear losses are in the class: no strong convexity",
                     lambda run: run.facts().fact("strong") == 0 and data_term_ridge(run.loss) == 0,
                     "its worst case is linear, and this class is strongly convex")


def _bounded_gradient(run: Run) -> Held | Broken:
    lipschitz, ridge = known(run.facts(), "lipschitz"), data_term_ridge(run.loss)
    if lipschitz is None:
        return Broken("no bound on a record's gradient is known: clip per-example gradients (--clip), or state "
                      "--lipschitz")
    if ridge > 0 and longest_step(run) * ridge > 2:
        return Broken(f"step * ridge must be at most 2 (ridge {ridge:g})")
    return Held((lipschitz,))


bounded_gradient = Assumption("bounded_gradient", "every record's gradient is bounded (clipping suffices)",
                              _bounded_gradient)


def _hoelder_gradient(run: Run) -> Held | Broken:
    facts = run.facts()
    hoelder, exponent, lipschitz = (known(facts, name) for name in ("hoelder", "hoelder_exponent", "lipschitz"))
    if hoelder is None or exponent is None:
        return Broken("no Hoelder constant of the gradients is known: state --hoelder and --hoelder-exponent")
    return Held((hoelder, exponent) if lipschitz is None else (hoelder, exponent, lipschitz))


hoelder_gradient = Assumption("hoelder_gradient", "every record's gradient is Hoelder continuous", _hoelder_gradient)


@dataclass(frozen=True)
class StepMap:
    """Bounds on the Hessian of a step's data term, the ridge outside it, and whether per-example clips can act."""

    ridge: float
    lowest: float
    highest: float
    clipped: bool
    facts: tuple[Fact, ...]

    def lipschitz(self, step: float) -> float:
        """Lipschitz constant of one step's map, for every data set."""
        if not self.clipped:
            return step_lipschitz(step, self.ridge + self.lowest, self.ridge + self.highest)
        shrink = 1 - step * self.ridge
        if shrink <= 0:
            # the decomposition into a shrunk clipped step needs step * ridge < 1; by the triangle inequality instead
            return abs(shrink) + step * max(abs(self.lowest), abs(self.highest))
        return shrink * clipped_step_lipschitz(step / shrink, self.lowest, self.highest)


def step_map(run: Run, shares: tuple[float, float] | None = None) -> StepMap | None:
    """What is known about the map of every step; ``None`` when no smoothness constant is known.

    The constants speak of means over records. A step divides its batch's sum by a public number, so that a short block
    has less curvature than they say, and a bin that many records fell into has more. ``shares``: the fewest and the
    most records of a batch over that number, if not the run's own.
    """
    given = run.loss.facts()
    smooth, strong, weak = (known(given, name) for name in ("smooth", "strong", "weak_convexity"))
    if smooth is None:
        return None
    ridge = data_term_ridge(run.loss)
    lowest = -smooth.value  # |Hessian| <= smooth is all that is known without a statement on convexity
    used = (smooth,)
    if strong is not None:
        lowest, used = strong.value - ridge, (smooth, strong)
    elif weak is not None:
        lowest, used = max(lowest, -weak.value), (smooth, weak)
    clipped = run.clip is not None and known(run.facts(), "smooth") is None
    fewest, most = run.shares if shares is None else shares
    return StepMap(ridge, lowest * (fewest if lowest > 0 else most), (smooth.value - ridge) * most, clipped, used)


def _lipschitz_step(run: Run) -> Held | Broken:
    found = step_map(run)
    if found is None:
        return Broken("the step's Lipschitz constant is unknown: state --smooth (with --strong 0 for a convex loss), "
                      "or use a loss that derives it")
    return Held(found.facts)


lipschitz_step = Assumption("lipschitz_step", "a smooth loss: each step's map has a known Lipschitz constant",
                            _lipschitz_step)


def _strong(run: Run) -> Held | Broken:
    facts = run.facts()
    smooth, strong = known(facts, "smooth"), known(facts, "strong")
    if run.clip is not None and smooth is None:
        return Broken("per-example clipping of this loss destroys strong convexity and smoothness: clip rows instead")
    if smooth is None or strong is None or strong.value <= 0:
        return Broken("it needs a strongly convex, smooth loss: add a ridge, or state --strong and --smooth")
    return Held((smooth, strong))


strongly_convex = Assumption("strongly_convex", "a strongly convex, smooth loss", _strong)


def longest_step(run: Run) -> float:
    """The largest step size of the run."""
    return max(run.step_size.values) if isinstance(run.step_size, Steps) else run.step_size.at(0)


def _short_step(run: Run) -> Held | Broken:
    smooth = known(run.facts(), "smooth")
    if smooth is None:
        return Broken("the step cannot be compared with 1/smooth: state --smooth")
    longest = longest_step(run)
    if longest * smooth.value >= 1:
        return Broken(f"the step size {longest:g} must lie below 1/smooth = {1 / smooth.value:g}")
    return Held((smooth,))


short_step = Assumption("short_step", "step < 1/smooth", _short_step)


def temperature(run: Run) -> float:
    """sigma^2 of a run whose noise is sqrt(2 step) sigma N(0, I) on the iterate at every step."""
    if isinstance(run.noise, Langevin):
        return run.noise.sigma**2
    return run.step_size.at(0) * run.noise_std(0) ** 2 / 2


def _gibbs_start(run: Run) -> Held | Broken:
    strong = known(run.facts(), "strong")
    if strong is None or strong.value <= 0:
        return Broken("the start N(0, 2 sigma^2 / strong) needs a strongly convex loss")
    noise = _noise(run)
    if isinstance(noise, Broken):
        return noise
    wanted = math.sqrt(2 * temperature(run) / strong.value)
    std = run.start.std if isinstance(run.start, GaussianStart) else 0.0
    if not math.isclose(std, wanted, rel_tol=1e-9):
        return Broken(f"the start must be Gaussian with std sqrt(2 sigma^2 / strong) = {wanted:.6g}: "
                      f"use --start gaussian:{wanted!r}")
    return Held((strong,))


gibbs_start = Assumption("gibbs_start", "start N(0, 2 sigma^2 / strong), projected on the domain", _gibbs_start)


def _squared_norm(run: Run) -> Held | Broken:
    facts = run.facts()
    smooth, strong = known(facts, "smooth"), known(facts, "strong")
    if smooth is None or strong is None or strong.value <= 0 or smooth.value != strong.value:
        return Broken("it is proved for the squared norm |theta - x|^2 / 2 only, where smooth = strong")
    if run.step_size.at(0) * smooth.value >= 2:
        return Broken(f"the step size must lie below 2/smooth = {2 / smooth.value:g}")
    return Held((smooth, strong))


squared_norm = Assumption("squared_norm", "the squared norm loss: smooth = strong, step < 2/smooth", _squared_norm)


def log_sobolev_constant(run: Run) -> tuple[float, tuple[Fact, ...]] | None:
    """A log-Sobolev constant of every law on the tracing diffusion: given, or by Lemma 5 of Chourasia et al."""
    given = known(run.facts(), "log_sobolev")
    if given is not None:
        return (given.value, (given,)) if given.value > 0 else None
    checks = [assumption.check(run) for assumption in (langevin_noise, strongly_convex, short_step, gibbs_start)]
    if any(isinstance(check, Broken) for check in checks):
        return None
    strong = known(run.facts(), "strong")
    assert strong is not None
    facts = tuple(fact for check in checks if isinstance(check, Held) for fact in check.facts)
    return strong.value / (2 * temperature(run)), facts


def _log_sobolev(run: Run) -> Held | Broken:
    found = log_sobolev_constant(run)
    if found is None:
        return Broken("no log-Sobolev constant is known: state --log-sobolev, or meet Lemma 5 (strongly convex, "
                      "step < 1/smooth, start N(0, 2 sigma^2 / strong))")
    return Held(found[1])


log_sobolev = Assumption("log_sobolev", "a log-Sobolev constant of every law on the tracing diffusion", _log_sobolev)

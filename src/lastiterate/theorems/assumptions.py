"""The conditions that theorems choose from, each checkable on a run."""

from __future__ import annotations

import math
from collections.abc import Callable

from lastiterate.analysis.perturbed_objective import distance
from lastiterate.analysis.shifts import longest_weakly_convex_step
from lastiterate.analysis.step_map import step_map
from lastiterate.analysis.witnesses import curvature, unequal_batches
from lastiterate.curves.subsampling import is_installed
from lastiterate.run.adjacency import convertible, records_moved
from lastiterate.run.domains import Everywhere
from lastiterate.run.facts import Evidence, find_fact
from lastiterate.run.methods import minimiser_of
from lastiterate.run.noise import Correlated
from lastiterate.run.preprocessing import PrivateMean, PrivateTargetMean
from lastiterate.run.probability_calibration import private_calibration
from lastiterate.run.run import Run
from lastiterate.run.updates import HeavyBall, Nesterov
from lastiterate.theorems.theorem import Assumption, Satisfied, Violated

# Release, noise, batches and domain.


def _plain(name: str, needs: str, holds: Callable[[Run], bool], reason: str) -> Assumption:
    return Assumption(name, needs, lambda run: Satisfied() if holds(run) else Violated(reason))


UNCLIPPED_SGLD = (
    "nothing bounds what one record does to a step of Langevin dynamics without clipping, and "
    "before it has converged "
    "it can leak without bound even where the exact posterior is private (Heller and Fetaya 2023, "
    "arXiv:2110.05057, "
    "Theorem IV.1; lastiterate.bayes.breach builds an example): clip per-example gradients "
    "(clip=C), or keep the "
    "parameters in a bounded domain where the loss has a known Lipschitz constant (domain=Ball(R), "
    "lipschitz=L), or "
    "release a sample of the exact posterior instead (lastiterate.bayes.sample_posterior)"
)
"""Why no theorem certifies unclipped SGLD, and what would help."""


def _sensitivity(run: Run) -> Satisfied | Violated:
    fact = find_fact(run.facts(), "sensitivity")
    if fact is None and run.noise is not None and run.noise.temperature is not None:
        return Violated(UNCLIPPED_SGLD)
    if fact is None:
        return Violated(
            "the gradient's sensitivity is unknown: clip per-example gradients (clip=C), or state "
            "sensitivity=S or lipschitz=L"
        )
    return Satisfied((fact,))


def _noise(run: Run) -> Satisfied | Violated:
    assert run.noise is not None
    missing = run.noise.explain_undetermined(run.noise_unit)
    return Satisfied() if missing is None else Violated(missing)


known_sensitivity = Assumption(
    "known_sensitivity", "a bound on how far one record moves the summed gradient", _sensitivity
)
noisy_steps = Assumption(
    "noisy_steps",
    "noise on the mean gradient of every step, of a size that is known before it",
    lambda run: (
        Satisfied()
        if run.method.noisy_steps
        else Violated(
            "it speaks of steps that each have noise of a known size: use method=NoisySGD()"
        )
    ),
    of_method=True,
)
known_noise = Assumption("known_noise", "a noise level that the description determines", _noise)
independent_noise = _plain(
    "independent_noise",
    "noise of every step that is independent of all other steps'",
    lambda run: run.decided_noise.independent,
    "the proof adds up steps whose noise is independent, and this run's later steps take noise "
    "back: use noise=NoiseMultiplier(z)",
)
correlated_noise = _plain(
    "correlated_noise",
    "correlated noise: later steps take back a part of it",
    lambda run: not run.decided_noise.independent,
    "it speaks of noise that later steps take back: use noise=Correlated(z, band)",
)
NOISY_STEPS = (noisy_steps, known_sensitivity, known_noise, independent_noise)
"""The assumptions of nearly every theorem about steps."""
last_iterate_only = _plain(
    "last_iterate_only",
    "only the last iterate is released",
    lambda run: run.release == "last",
    "it speaks of the last iterate only, and this run releases all of them",
)
plain_updates = Assumption(
    "plain_updates",
    "no momentum and no other update rule",
    lambda run: (
        Satisfied()
        if run.optimizer is None
        else Violated(
            f"the proof covers plain steps, and this run's update rule is {run.optimizer.word}"
        )
    ),
)


def _linear_response(run: Run) -> Satisfied | Violated:
    if run.optimizer is not None and not isinstance(run.optimizer, HeavyBall | Nesterov):
        return Violated(
            f"it speaks of linear update rules, and {run.optimizer.word} is none: use "
            "optimizer=HeavyBall(beta) or optimizer=Nesterov()"
        )
    first = run.preprocessing[0] if run.preprocessing else None
    more = (
        run.optimizer is not None
        or isinstance(run.decided_noise, Correlated)
        or isinstance(first, PrivateMean | PrivateTargetMean)
        or run.probability_calibration is not None
    )
    return (
        Satisfied()
        if more
        else Violated("plain steps without noisy means have linear-witness and quadratic-witness")
    )


linear_response = Assumption(
    "linear_response",
    "heavy ball, Nesterov's momentum, correlated noise, a noisy mean or a public factor",
    _linear_response,
)
not_averaged = _plain(
    "not_averaged",
    "the last iterate itself, no average of iterates",
    lambda run: not run.method.averaged,
    "what hides in the last iterate shows in an average of all: use method=NoisySGD()",
)
released_as_left = _plain(
    "released_as_left",
    "weights that are released as the last step leaves them",
    lambda run: run.probability_calibration is None,
    "a calibration changes the weights that the last step leaves",
)
released_up_to_scale = _plain(
    "released_up_to_scale",
    "weights that are released as the last step leaves them, or with a public factor",
    lambda run: private_calibration(run.probability_calibration) is None,
    "a measured calibration changes the weights that the last step leaves",
)
full_batch = _plain(
    "full_batch",
    "full batches",
    lambda run: run.batching.drawn == "never" and run.blocks == 1,
    "it is proved for full batches only: use batching=FullBatch()",
)
public_order = _plain(
    "public_order",
    "full batches, or blocks in a public order",
    lambda run: run.batching.drawn == "never",
    "it needs full batches or cyclic blocks in public order",
)
secret_blocks = _plain(
    "secret_blocks",
    "a record's block is drawn once, secretly and independently of the data",
    lambda run: run.batching.drawn == "once" and not run.batching.independent,
    "it averages over a secret place of the record: use batching=Permuted(b)",
)
secret_bins = _plain(
    "secret_bins",
    "every record falls into one of the batches secretly and independently, once",
    lambda run: run.batching.drawn == "once" and run.batching.independent,
    "it is proved for secret independent bins: use batching=BallsInBins(b)",
)
fresh_permutations = _plain(
    "fresh_permutations",
    "a fresh secret permutation of the records in every pass",
    lambda run: run.batching.drawn == "each pass" and not run.batching.independent,
    "it averages over places that are drawn anew in every pass: use batching=Reshuffled(b)",
)
fresh_blocks = _plain(
    "fresh_blocks",
    "every record in one of the batches of a pass, secretly, independently, and again in every pass",
    lambda run: run.batching.drawn == "each pass" and run.batching.independent,
    "it is proved for secret blocks that are drawn anew in every pass: use "
    "batching=RandomAllocation(b)",
)
counted_records = _plain(
    "counted_records",
    "a public number of records",
    lambda run: convertible(run.adjacency, "zero-out"),
    "it counts how many records share a block, which add-remove leaves open: account zero-out",
)
poisson_batches = _plain(
    "poisson_batches",
    "Poisson batches",
    lambda run: run.batching.drawn == "each step" and run.batching.independent,
    "it is proved for Poisson batches: use batching=Poisson(q)",
)
not_replace_one = _plain(
    "not_replace_one",
    "a record is zeroed, added or removed, not replaced",
    lambda run: records_moved(run.adjacency) == 1,
    "no dominating pair is proved for these batches under replace-one, and a sensitivity that is "
    "stated for exchanges says nothing about one record: state lipschitz, or account zero-out",
)
constant_step = _plain(
    "constant_step",
    "a constant step size",
    lambda run: run.step_size.constant,
    "it is proved for a constant step size",
)


def _dp_accounting(_: Run) -> Satisfied | Violated:
    return (
        Satisfied()
        if is_installed()
        else Violated("it needs the library dp-accounting: pip install dp-accounting")
    )


dp_accounting_installed = Assumption(
    "dp_accounting_installed", "the library dp-accounting", _dp_accounting
)
everywhere = _plain(
    "everywhere",
    "no constraint on the parameters, no proximal term",
    lambda run: type(run.domain) is Everywhere and run.prox is None,
    "it is proved for steps alone, and this run moves their results",
)
no_prox = _plain(
    "no_prox",
    "no proximal term",
    lambda run: run.prox is None,
    "it is proved for projections, and this run has a proximal term",
)
fixed_start = _plain(
    "fixed_start",
    "a fixed start",
    lambda run: run.start.std == 0,
    "it is proved for a fixed start: use start=FixedStart()",
)
sampled_batches = _plain(
    "sampled_batches",
    "m < n records, drawn again at every step",
    lambda run: (
        run.batching.drawn == "each step" and run.batching.sizes == "equal" and run.divisor < run.n
    ),
    "it speaks of batches drawn afresh: use batching=FixedSize(m) with m < n",
)
counted_batches = _plain(
    "counted_batches",
    "batches of a public size, in an order that does not depend on the data",
    lambda run: run.batching.sizes != "random",
    "it needs batches of a public size: use batching=FullBatch(), batching=Cyclic(b), "
    "batching=Permuted(b), batching=Reshuffled(b) or batching=FixedSize(b)",
)
constant_schedule = _plain(
    "constant_schedule",
    "the same step size and noise at every step",
    lambda run: run.constant,
    "it is proved for one step size and one noise level at every step",
)
bounded_domain = _plain(
    "bounded_domain",
    "iterates projected on a domain of known diameter",
    lambda run: math.isfinite(run.domain.diameter()),
    "it needs a bounded domain of known diameter: use domain=Ball(R)",
)
kept_places = _plain(
    "kept_places",
    "a record in the same place of every pass",
    lambda run: run.batching.drawn in ("never", "once"),
    "it follows a record that takes part in the same place of every pass: use "
    "batching=FullBatch(), "
    "batching=Cyclic(b), batching=Permuted(b) or batching=BallsInBins(b)",
)
not_resampled = _plain(
    "not_resampled",
    "no batches that are drawn again at every step",
    lambda run: run.batching.drawn in ("never", "once"),
    "batches drawn afresh need a sampling theorem",
)
drawn_anew = _plain(
    "drawn_anew",
    "a record's batch is drawn again at every step or in every pass",
    lambda run: run.batching.drawn in ("each step", "each pass"),
    "it speaks of batches that are drawn again and again: use batching=Poisson(q), "
    "batching=FixedSize(b), batching=Reshuffled(b) or batching=RandomAllocation(b)",
)

POISSON_STEPS = (*NOISY_STEPS, poisson_batches, not_replace_one, dp_accounting_installed)
"""The assumptions of bounds for Poisson batches."""


# The geometry of a step.


def _has_bounded_gradient(run: Run) -> Satisfied | Violated:
    lipschitz, ridge = find_fact(run.facts(), "lipschitz"), run.loss.ridge
    if lipschitz is None:
        return Violated(
            "no bound on a record's gradient is known: clip per-example gradients (clip=C), or "
            "state "
            "lipschitz=L"
        )
    if ridge > 0 and run.longest_step * ridge > 2:
        return Violated(f"step * ridge must be at most 2 (ridge {ridge:g})")
    return Satisfied((lipschitz,))


bounded_gradient = Assumption(
    "bounded_gradient",
    "every record's gradient is bounded (clipping suffices)",
    _has_bounded_gradient,
)


def _hoelder_gradient(run: Run) -> Satisfied | Violated:
    facts = run.facts()
    hoelder, exponent, lipschitz = (
        find_fact(facts, name) for name in ("hoelder", "hoelder_exponent", "lipschitz")
    )
    if hoelder is None or exponent is None:
        return Violated(
            "no Hoelder constant of the gradients is known: state hoelder=H and hoelder_exponent=a"
        )
    return Satisfied((hoelder, exponent) if lipschitz is None else (hoelder, exponent, lipschitz))


hoelder_gradient = Assumption(
    "hoelder_gradient", "every record's gradient is Hoelder continuous", _hoelder_gradient
)


def _lipschitz_step(run: Run) -> Satisfied | Violated:
    curvature = step_map(run)
    if curvature is None:
        return Violated(
            "the step's Lipschitz constant is unknown: state smooth=M (with strong=0 for a convex "
            "loss), "
            "or use a loss that derives it"
        )
    return Satisfied(curvature.facts)


lipschitz_step = Assumption(
    "lipschitz_step",
    "a smooth loss: each step's map has a known Lipschitz constant",
    _lipschitz_step,
)


def _has_unmeasured_smoothness(run: Run) -> Satisfied | Violated:
    smooth = find_fact(run.loss.facts(), "smooth")
    if smooth is not None and smooth.evidence is Evidence.PAID:
        return Violated(
            "a measured smoothness speaks of whole batches, and the proof needs that of one "
            "record: give the "
            "step size itself"
        )
    return Satisfied()


unmeasured_smoothness = Assumption(
    "unmeasured_smoothness",
    "a smoothness that holds for every single record",
    _has_unmeasured_smoothness,
)


def _convex(run: Run) -> Satisfied | Violated:
    facts = run.facts()
    smooth, strong, weak = (
        find_fact(facts, name) for name in ("smooth", "strong", "weak_convexity")
    )
    if run.clip is not None and smooth is None:
        return Violated(
            "per-example clipping of this loss makes steps expand even where it is convex: clip "
            "rows instead"
        )
    flat = strong if strong is not None else weak if weak is not None and weak.value == 0 else None
    if smooth is None or flat is None:
        return Violated(
            "it needs a convex, smooth loss: state smooth=M and strong=0, or use a loss that "
            "derives them"
        )
    return Satisfied((smooth, flat))


convex = Assumption("convex", "a convex, smooth loss", _convex)


def _strong(run: Run) -> Satisfied | Violated:
    facts = run.facts()
    smooth, strong = find_fact(facts, "smooth"), find_fact(facts, "strong")
    if run.clip is not None and smooth is None:
        return Violated(
            "per-example clipping of this loss destroys strong convexity and smoothness: clip rows "
            "instead"
        )
    if smooth is None or strong is None or strong.value <= 0:
        return Violated(
            "it needs a strongly convex, smooth loss: add a ridge, or state strong=m and smooth=M"
        )
    return Satisfied((smooth, strong))


strongly_convex = Assumption("strongly_convex", "a strongly convex, smooth loss", _strong)


def at_most(run: Run, limit: float, what: str, held: Satisfied) -> Satisfied | Violated:
    """``held`` if no step exceeds ``limit``, which ``what`` names."""
    longest = run.longest_step
    return (
        held
        if longest <= limit
        else Violated(f"the step size {longest:g} must be at most {what} = {limit:g}")
    )


def _short_step(run: Run) -> Satisfied | Violated:
    smooth = find_fact(run.facts(), "smooth")
    if smooth is None:
        return Violated("the step cannot be compared with 1/smooth: state smooth=M")
    longest = run.longest_step
    if longest * smooth.value >= 1:
        return Violated(f"the step size {longest:g} must lie below 1/smooth = {1 / smooth.value:g}")
    return Satisfied((smooth,))


short_step = Assumption("short_step", "step < 1/smooth", _short_step)


def _nonexpansive(run: Run) -> Satisfied | Violated:
    smooth = find_fact(run.facts(), "smooth")
    if smooth is None:
        return Violated("the step cannot be compared with 2/smooth: state smooth=M")
    return at_most(
        run, 2 / smooth.value if smooth.value > 0 else math.inf, "2/smooth", Satisfied((smooth,))
    )


nonexpansive_step = Assumption("nonexpansive_step", "step <= 2/smooth", _nonexpansive)


def _is_contracting(run: Run) -> Satisfied | Violated:
    smooth, strong = find_fact(run.facts(), "smooth"), find_fact(run.facts(), "strong")
    if smooth is None or strong is None or strong.value <= 0:
        return Violated(
            "the step cannot be compared with 2/(strong + smooth): state strong=m and smooth=M"
        )
    return at_most(
        run, 2 / (strong.value + smooth.value), "2/(strong + smooth)", Satisfied((smooth, strong))
    )


contracting_step = Assumption("contracting_step", "step <= 2/(strong + smooth)", _is_contracting)


# Objective perturbation.

LONGEST = 16 / 17
"""Steps of the solver times smooth: the remainder of 1/step absorbs errors of gradients."""


def _is_perturbed(run: Run) -> Satisfied | Violated:
    if minimiser_of(run.method) is None:
        return Violated(
            "it speaks of a random linear term of the objective, whose minimiser is released: use "
            "method=ObjectivePerturbation(...)"
        )
    return Satisfied()


def _is_solved(run: Run) -> Satisfied | Violated:
    if minimiser_of(run.method) is None:
        return Violated("it needs a solver that finds the minimiser of a perturbed objective")
    facts = run.loss.facts()
    smooth, strong, lipschitz = (
        find_fact(facts, name) for name in ("smooth", "strong", "lipschitz")
    )
    assert smooth is not None and strong is not None and lipschitz is not None
    if strong.value <= 0:
        return Violated(
            "without a ridge the perturbed objective may have no minimiser: add a ridge to the loss"
        )
    if run.first_step * smooth.value > LONGEST:
        return Violated(
            f"the solver's steps must be at most 16/17 of 1/smooth = {1 / smooth.value:.4g}"
        )
    if not math.isfinite(distance(run)):
        return Violated(
            "double precision cannot bound the solver's error with so small a ridge: use a larger "
            "one"
        )
    return Satisfied((lipschitz, smooth, strong))


perturbed_objective = Assumption(
    "perturbed_objective",
    "a random linear term of a classifier's objective, and its minimiser released",
    _is_perturbed,
    of_method=True,
)
solved_objective = Assumption(
    "solved_objective", "a ridge, and steps of the solver below 16/17 of 1/smooth", _is_solved
)


# Weakly convex losses: Proposition 2.1 of Kong and Ribero (2025).

PAPER = (
    "Kong, Ribero: Privacy of the last iterate in cyclically-traversed DP-SGD on nonconvex "
    "composite losses, "
    "2025 (arXiv:2407.05237v3)"
)


def _weakly_convex_step(run: Run) -> Satisfied | Violated:
    curvature = step_map(run)
    if curvature is None:
        return Violated(
            "the step cannot be compared with 1/(M + m): state smooth=M, and strong=0 or "
            "weak_convexity=m"
        )
    limit, step = longest_weakly_convex_step(curvature), run.first_step
    if step > limit:
        what = "1/(2 (M + m)), because clips can act" if curvature.clipped else "1/(M + m)"
        return Violated(
            f"the step size {step:g} must be at most {what}, here {limit:g} (Hessians between -m "
            f"and M)"
        )
    return Satisfied(curvature.facts)


weakly_convex_step = Assumption(
    "weakly_convex_step",
    "a smooth loss, Hessian in [-m, M], step <= 1/(M + m), half of it where clips can act",
    _weakly_convex_step,
)


# Exact distributions of lower bounds.


def _idle_clip(run: Run) -> Satisfied | Violated:
    idle = (
        run.clip is None or curvature(run)[1] == 0 or find_fact(run.facts(), "smooth") is not None
    )
    return (
        Satisfied()
        if idle
        else Violated(
            "the witness keeps its gradients below the clip only when clipping leaves the loss as "
            "it is"
        )
    )


idle_clip = Assumption("idle_clip", "no clipping that can act on curved data terms", _idle_clip)


def _public_curvature(run: Run) -> Satisfied | Violated:
    drawn = run.batching.sizes == "random" or run.batching.drawn == "each pass"
    return (
        Satisfied()
        if not (drawn and curvature(run)[1] > 0 and unequal_batches(run))
        else Violated(
            "curvature in the records makes the steps of batches of different sizes differ: state "
            "strong convexity by a "
            "ridge of the loss, outside the records"
        )
    )


public_curvature = Assumption(
    "public_curvature", "curvature that does not depend on who is in which batch", _public_curvature
)

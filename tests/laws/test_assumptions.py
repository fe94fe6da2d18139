"""Every assumption of a theorem on both sides of its condition, with the facts that it rests on."""

import math
from dataclasses import replace

import pytest

import lastiterate as li
from lastiterate.run.facts import FLOAT_SLACK, Evidence, mint
from lastiterate.run.losses import loss_from_facts
from lastiterate.theorems import assumptions, diffusion_assumptions, iteration, other_methods
from lastiterate.theorems.diffusion_assumptions import find_constant, log_sobolev_constant
from lastiterate.theorems.theorem import Assumption, Satisfied

ASSUMPTIONS = {
    assumption.name: assumption
    for module in (assumptions, diffusion_assumptions, iteration, other_methods)
    for assumption in vars(module).values()
    if isinstance(assumption, Assumption)
}
N, STEPS = 12, 6


def constants(evidence=Evidence.ASSUMED, **facts):
    """A loss that is known by these constants, of one evidence."""
    minted = {name: mint(value, evidence, "a test") for name, value in facts.items()}
    return loss_from_facts(li.LossFacts(**minted))


def run_of(**changes):
    settings = dict(
        n=N,
        steps=STEPS,
        step_size=0.5,
        noise=li.GradientNoise(1.0),
        loss=constants(lipschitz=1.0, smooth=1.0, strong=0.0),
    )
    return li.Run(**settings | changes)


BATCHINGS = {
    "FullBatch": li.FullBatch(),
    "one block": li.Cyclic(N),
    "Cyclic": li.Cyclic(6),
    "Permuted": li.Permuted(6),
    "Reshuffled": li.Reshuffled(6),
    "FixedSize": li.FixedSize(6),
    "all of them": li.FixedSize(N),
    "BallsInBins": li.BallsInBins(6),
    "RandomAllocation": li.RandomAllocation(6),
    "Poisson": li.Poisson(0.5),
}
PUBLIC = {"FullBatch", "one block", "Cyclic"}
ONCE = {"Permuted", "BallsInBins"}
COUNTED = {"Permuted", "Reshuffled", "FixedSize", "all of them"}


ADMITTED = {
    "full_batch": {"FullBatch", "one block"},
    "public_order": PUBLIC,
    "secret_blocks": {"Permuted"},
    "secret_bins": {"BallsInBins"},
    "fresh_permutations": {"Reshuffled"},
    "fresh_blocks": {"RandomAllocation"},
    "poisson_batches": {"Poisson"},
    "sampled_batches": {"FixedSize"},
    "counted_batches": PUBLIC | COUNTED,
    "kept_places": PUBLIC | ONCE,
    "not_resampled": PUBLIC | ONCE,
    "drawn_anew": set(BATCHINGS) - PUBLIC - ONCE,
}


@pytest.mark.parametrize(("name", "admitted"), ADMITTED.items())
def test_batchings_that_a_theorem_admits(name, admitted):
    held = {
        kind
        for kind, batching in BATCHINGS.items()
        if isinstance(ASSUMPTIONS[name].check(run_of(batching=batching)), Satisfied)
    }
    assert held == admitted


ASSUMED_SMOOTH = constants(lipschitz=1.0, smooth=1.0)
NOTHING = li.KnownConstants()
CURVED = constants(lipschitz=1.0, smooth=4.0, strong=0.5)
IDLE = constants(Evidence.ENFORCED, lipschitz=1.0, smooth=4.0, strong=0.5)
WEAK = constants(lipschitz=1.0, smooth=3.0, weak_convexity=1.0)
HOELDER = {"hoelder": 2.0, "hoelder_exponent": 0.5}
CENTRED, UNIT = li.PrivateMean(2.0, 1.0), li.UnitRows()
LINEAR = dict(loss=li.Logistic(intercept=0.0), noise=li.NoiseMultiplier(2.0))
CALIBRATED = dict(loss=li.Logistic(), noise=li.NoiseMultiplier(2.0))
SLOPE, FIT = li.AssumedSlope(0.5), li.Calibration(10.0)
BALL, PENALTY = li.domains.Ball(1.0), li.penalties.L1(0.1)


def solver(ridge=0.04, product=0.5, n=N, steps=STEPS):
    """The changes that make a run of objective perturbation, its steps times smooth ``product``."""
    loss = li.Logistic(ridge=ridge, intercept=0.0)
    return dict(
        n=n,
        steps=steps,
        loss=loss,
        step_size=product / loss.facts().fact("smooth"),
        noise=li.NoiseMultiplier(2.0),
        method=li.ObjectivePerturbation(2),
    )


def of_steps(size, loss):
    return dict(step_size=size, loss=loss)


GIBBS = dict(loss=CURVED, noise=li.Langevin(0.5), start=li.GaussianStart(1.0), step_size=0.2)
SNAPSHOTS = dict(
    loss=li.Logistic(intercept=0.0),
    noise=li.NoiseMultiplier(2.0),
    batching=li.Poisson(0.5),
    method=li.VarianceReduced(3, 10.0),
)

CASES = [
    ("known_sensitivity", {}, (1.0,)),
    ("known_sensitivity", {"noise": li.Langevin(0.1)}, (1.0,)),
    ("known_sensitivity", {"adjacency": "replace-one"}, (2.0,)),
    ("known_sensitivity", {"loss": NOTHING}, "the gradient's sensitivity is unknown"),
    (
        "known_sensitivity",
        {"loss": NOTHING, "noise": None},
        "the gradient's sensitivity is unknown",
    ),
    ("known_sensitivity", {"loss": NOTHING, "noise": li.Langevin(0.1)}, "without clipping"),
    ("noisy_steps", {}, ()),
    ("noisy_steps", solver(), "use method=NoisySGD()"),
    ("known_noise", {}, ()),
    ("known_noise", {"noise": li.NoiseMultiplier(2.0)}, ()),
    ("known_noise", {"noise": li.NoiseMultiplier(2.0), "loss": NOTHING}, "needs a clip"),
    ("independent_noise", {}, ()),
    ("independent_noise", {"noise": li.Correlated(2.0, 3)}, "later steps take noise back"),
    ("correlated_noise", {}, "it speaks of noise that later steps take back"),
    ("correlated_noise", {"noise": li.Correlated(2.0, 3)}, ()),
    ("last_iterate_only", {}, ()),
    ("last_iterate_only", {"release": "all"}, "releases all of them"),
    ("plain_updates", {}, ()),
    ("plain_updates", {"optimizer": li.HeavyBall(0.9)}, "update rule is"),
    ("linear_response", {}, "plain steps without noisy means"),
    ("linear_response", {"optimizer": li.HeavyBall(0.9)}, ()),
    ("linear_response", {"optimizer": li.Nesterov()}, ()),
    ("linear_response", {"optimizer": li.Adam()}, "it speaks of linear update rules"),
    ("linear_response", {"noise": li.Correlated(2.0, 3)}, ()),
    ("linear_response", LINEAR | {"preprocessing": (CENTRED,)}, ()),
    ("linear_response", LINEAR | {"preprocessing": (UNIT,)}, "plain steps without noisy means"),
    ("linear_response", LINEAR | {"preprocessing": (UNIT, CENTRED)}, "plain steps without"),
    ("linear_response", CALIBRATED | {"probability_calibration": SLOPE}, ()),
    ("not_averaged", {}, ()),
    ("not_averaged", {"method": li.TailAverage(0.5)}, "average of all"),
    ("released_as_left", CALIBRATED, ()),
    ("released_as_left", CALIBRATED | {"probability_calibration": SLOPE}, "a calibration changes"),
    ("released_as_left", CALIBRATED | {"probability_calibration": FIT}, "a calibration changes"),
    ("released_up_to_scale", CALIBRATED, ()),
    ("released_up_to_scale", CALIBRATED | {"probability_calibration": SLOPE}, ()),
    ("released_up_to_scale", CALIBRATED | {"probability_calibration": FIT}, "a measured"),
    ("counted_records", {}, ()),
    ("counted_records", {"adjacency": "replace-one"}, ()),
    ("counted_records", {"adjacency": "add-remove", "batching": li.Poisson(0.5)}, "zero-out"),
    ("not_replace_one", {}, ()),
    ("not_replace_one", {"adjacency": "replace-one"}, "under replace-one"),
    ("not_replace_one", {"adjacency": "add-remove", "batching": li.Poisson(0.5)}, ()),
    ("constant_step", {}, ()),
    ("constant_step", {"step_size": (0.5,) * STEPS}, "a constant step size"),
    ("constant_step", {"noise": li.GradientNoise((1.0,) * STEPS)}, ()),
    ("constant_schedule", {}, ()),
    ("constant_schedule", {"step_size": (0.5,) * STEPS}, "one step size and one noise level"),
    ("constant_schedule", {"noise": li.GradientNoise((1.0,) * STEPS)}, "one step size and"),
    ("everywhere", {}, ()),
    ("everywhere", {"domain": BALL}, "this run moves their results"),
    ("everywhere", {"prox": PENALTY}, "this run moves their results"),
    ("no_prox", {"domain": BALL}, ()),
    ("no_prox", {"prox": PENALTY}, "a proximal term"),
    ("fixed_start", {}, ()),
    ("fixed_start", {"start": li.GaussianStart(1.0)}, "a fixed start"),
    ("fixed_start", {"start": li.GaussianStart(0.1)}, "a fixed start"),
    ("bounded_domain", {"domain": BALL}, ()),
    ("bounded_domain", {}, "a bounded domain"),
    ("bounded_gradient", {"step_size": 50.0}, (1.0,)),
    ("bounded_gradient", {"loss": NOTHING}, "no bound on a record's gradient"),
    ("bounded_gradient", {"loss": NOTHING, "clip": 3.0}, (3.0,)),
    ("bounded_gradient", of_steps(0.5, li.Logistic(ridge=4.0, intercept=0.0)), (1.0,)),
    ("bounded_gradient", of_steps(0.5, li.Logistic(ridge=4.001, intercept=0.0)), "at most 2"),
    ("bounded_gradient", of_steps(0.5, li.Logistic(ridge=5.0, intercept=0.0)), "(ridge 5)"),
    ("bounded_gradient", of_steps(5.0, li.Logistic(ridge=0.5, intercept=0.0)), "(ridge 0.5)"),
    (
        "bounded_gradient",
        of_steps((0.1,) * 5 + (0.5,), li.Logistic(ridge=5.0, intercept=0.0)),
        "at most 2",
    ),
    ("hoelder_gradient", {}, "no Hoelder constant"),
    ("hoelder_gradient", {"loss": constants(sensitivity=1.0, **HOELDER)}, (2.0, 0.5)),
    ("hoelder_gradient", {"loss": constants(lipschitz=3.0, **HOELDER)}, (2.0, 0.5, 3.0)),
    ("lipschitz_step", {}, (1.0, 0.0)),
    ("lipschitz_step", {"loss": ASSUMED_SMOOTH}, (1.0,)),
    ("lipschitz_step", {"loss": constants(strong=0.0)}, "Lipschitz constant is unknown"),
    ("unmeasured_smoothness", {}, ()),
    ("unmeasured_smoothness", {"loss": NOTHING}, ()),
    ("unmeasured_smoothness", {"loss": IDLE}, ()),
    ("unmeasured_smoothness", {"loss": constants(Evidence.PAID, smooth=1.0)}, "a measured"),
    ("convex", {}, (1.0, 0.0)),
    ("convex", {"loss": CURVED}, (4.0, 0.5)),
    ("convex", {"loss": constants(smooth=4.0, weak_convexity=0.0)}, (4.0, 0.0)),
    ("convex", {"loss": WEAK}, "it needs a convex, smooth loss"),
    ("convex", {"loss": ASSUMED_SMOOTH}, "it needs a convex, smooth loss"),
    ("convex", {"loss": constants(strong=0.5)}, "it needs a convex, smooth loss"),
    ("convex", {"loss": CURVED, "clip": 1.0}, "per-example clipping"),
    ("convex", {"loss": IDLE, "clip": 1.0}, (4.0, 0.5)),
    ("strongly_convex", {"loss": CURVED}, (4.0, 0.5)),
    ("strongly_convex", {}, "it needs a strongly convex"),
    ("strongly_convex", {"loss": constants(strong=0.5)}, "it needs a strongly convex"),
    ("strongly_convex", {"loss": ASSUMED_SMOOTH}, "it needs a strongly convex"),
    ("strongly_convex", {"loss": CURVED, "clip": 1.0}, "per-example clipping"),
    ("strongly_convex", {"loss": IDLE, "clip": 1.0}, (4.0, 0.5)),
    ("short_step", of_steps(0.24, CURVED), (4.0,)),
    ("short_step", of_steps(0.25, CURVED), "below 1/smooth = 0.25"),
    ("short_step", of_steps(0.4, CURVED), "the step size 0.4 must"),
    ("short_step", of_steps((0.1,) * 5 + (0.4,), CURVED), "the step size 0.4 must"),
    ("short_step", {"loss": constants(strong=0.0)}, "state smooth=M"),
    ("nonexpansive_step", of_steps(0.5, CURVED), (4.0,)),
    ("nonexpansive_step", of_steps(math.nextafter(0.5, 1), CURVED), "2/smooth = 0.5"),
    ("nonexpansive_step", of_steps(0.7, CURVED), "the step size 0.7 must be at most 2/smooth"),
    ("nonexpansive_step", of_steps(2.5, ASSUMED_SMOOTH), "2/smooth = 2"),
    ("nonexpansive_step", of_steps(1e9, constants(smooth=0.0)), (0.0,)),
    ("nonexpansive_step", {"loss": constants(strong=0.0)}, "state smooth=M"),
    ("contracting_step", of_steps(1.0, constants(smooth=1.5, strong=0.5)), (1.5, 0.5)),
    ("contracting_step", of_steps(1.001, constants(smooth=1.5, strong=0.5)), "smooth) = 1"),
    ("contracting_step", of_steps(1.3, constants(smooth=1.5, strong=0.5)), "size 1.3 must"),
    ("contracting_step", {}, "cannot be compared with 2/(strong + smooth)"),
    ("contracting_step", {"loss": ASSUMED_SMOOTH}, "cannot be compared with"),
    ("contracting_step", {"loss": constants(strong=0.5)}, "cannot be compared with"),
    ("perturbed_objective", solver(), ()),
    ("perturbed_objective", {}, "use method=ObjectivePerturbation"),
    ("solved_objective", solver(), (1.0, 0.29, 0.04)),
    ("solved_objective", solver(product=0.941), (1.0, 0.29, 0.04)),
    ("solved_objective", solver(product=0.942), "16/17 of 1/smooth = 3.448"),
    ("solved_objective", solver(product=0.9411, ridge=9.75), (1.0, 10.0, 9.75)),
    ("solved_objective", solver(product=1.4, ridge=9.75), "1/smooth = 0.1"),
    ("solved_objective", solver(ridge=0.0), "without a ridge"),
    ("solved_objective", solver(ridge=1e-9, n=10**12), "double precision cannot bound"),
    ("solved_objective", {}, "it needs a solver"),
    ("weakly_convex_step", of_steps(0.25, WEAK), (3.0, 1.0)),
    ("weakly_convex_step", of_steps(0.2501, WEAK), "0.2501 must be at most 1/(M + m), here 0.25"),
    ("weakly_convex_step", of_steps(0.125, WEAK) | {"clip": 1.0}, (3.0, 1.0)),
    (
        "weakly_convex_step",
        of_steps(0.13, WEAK) | {"clip": 1.0},
        "because clips can act, here 0.125",
    ),
    ("weakly_convex_step", {"loss": constants(strong=0.0)}, "cannot be compared with 1/(M + m)"),
    ("idle_clip", {"loss": CURVED}, ()),
    ("idle_clip", {"clip": 1.0}, ()),
    ("idle_clip", {"clip": 1.0, "loss": CURVED}, "keeps its gradients below the clip"),
    ("idle_clip", {"clip": 1.0, "loss": IDLE}, ()),
    ("public_curvature", {"loss": CURVED}, ()),
    ("public_curvature", {"loss": CURVED, "batching": li.Permuted(5)}, ()),
    ("public_curvature", {"loss": CURVED, "batching": li.Reshuffled(6)}, ()),
    ("public_curvature", {"loss": CURVED, "batching": li.Reshuffled(5)}, "outside the records"),
    ("public_curvature", {"loss": CURVED, "batching": li.BallsInBins(6)}, "outside the records"),
    ("public_curvature", {"loss": CURVED, "batching": li.Poisson(0.5)}, "outside the records"),
    ("public_curvature", {"batching": li.Poisson(0.5)}, ()),
    ("langevin_noise", {}, ()),
    ("langevin_noise", {"noise": li.Langevin(0.2), "step_size": (0.5,) * STEPS}, ()),
    ("langevin_noise", {"noise": li.GradientNoise((1.0,) * STEPS)}, "the same temperature"),
    ("langevin_noise", {"noise": li.Langevin(0.0)}, "adds no noise"),
    ("langevin_noise", {"noise": li.NoiseMultiplier(2.0), "loss": NOTHING}, "needs a clip"),
    ("gibbs_start", GIBBS, (0.5,)),
    ("gibbs_start", GIBBS | {"start": li.GaussianStart(1 + 1e-12)}, "sigma^2 / strong) = 1:"),
    ("gibbs_start", GIBBS | {"start": li.GaussianStart(1 - 1e-12)}, "sigma^2 / strong) = 1:"),
    ("gibbs_start", GIBBS | {"start": li.FixedStart()}, "sigma^2 / strong) = 1:"),
    ("gibbs_start", GIBBS | {"noise": li.Langevin(2.0)}, "sigma^2 / strong) = 4:"),
    ("gibbs_start", GIBBS | {"loss": ASSUMED_SMOOTH}, "needs a strongly convex loss"),
    ("gibbs_start", {}, "needs a strongly convex loss"),
    (
        "gibbs_start",
        GIBBS | {"noise": li.NoiseMultiplier(2.0), "loss": constants(strong=0.5)},
        "needs a clip",
    ),
    ("squared_norm", of_steps(0.49, constants(smooth=4.0, strong=4.0)), (4.0, 4.0)),
    ("squared_norm", of_steps(0.5, constants(smooth=4.0, strong=4.0)), "2/smooth = 0.5"),
    ("squared_norm", of_steps(0.7, constants(smooth=4.0, strong=4.0)), "2/smooth = 0.5"),
    ("squared_norm", of_steps(1.9, constants(smooth=0.6, strong=0.6)), (0.6, 0.6)),
    ("squared_norm", {"loss": CURVED}, "the squared norm"),
    ("squared_norm", {"loss": ASSUMED_SMOOTH}, "the squared norm"),
    ("squared_norm", {"loss": constants(strong=0.5)}, "the squared norm"),
    ("squared_norm", {"loss": constants(smooth=0.0, strong=0.0)}, "the squared norm"),
    ("log_sobolev", {"loss": constants(log_sobolev=0.3)}, (0.3,)),
    ("log_sobolev", GIBBS, (4.0, 0.5, 4.0, 0.5)),
    ("log_sobolev", {}, "no log-Sobolev constant is known"),
    ("bounded_step", of_steps(0.25, WEAK), (1.0,)),
    ("bounded_step", {"loss": constants(smooth=1.0, sensitivity=1.0), "domain": BALL}, (1.0, 1.0)),
    ("bounded_step", {"loss": constants(sensitivity=1.0)}, "it needs a bound on a record's"),
    ("bounded_step", {"loss": constants(smooth=1.0, strong=0.0)}, "it needs a bound on a record's"),
    ("snapshots_taken", SNAPSHOTS, (1 + FLOAT_SLACK,)),
    ("snapshots_taken", {}, "use method=VarianceReduced"),
]


@pytest.mark.parametrize(("name", "changes", "held"), CASES)
def test_conditions_on_both_sides(name, changes, held):
    """``held``: the values of the facts that it rests on, or a part of the reason why it fails."""
    result = ASSUMPTIONS[name].check(run_of(**changes))
    if isinstance(held, str):
        assert not isinstance(result, Satisfied) and held in result.reason
    else:
        assert isinstance(result, Satisfied)
        assert tuple(fact.value for fact in result.facts) == pytest.approx(held, rel=1e-12)


def test_every_assumption_has_a_case_on_both_sides():
    sides = {(name, isinstance(held, str)) for name, _, held in CASES}
    given = {name for name, _ in sides}
    assert {(name, side) for name in given for side in (True, False)} == sides
    assert set(ASSUMPTIONS) - given - set(ADMITTED) == {"dp_accounting_installed"}


@pytest.mark.parametrize(
    "change",
    [
        {"noise": li.Langevin(0.0)},
        {"loss": ASSUMED_SMOOTH},
        {"step_size": 0.25},
        {"start": li.GaussianStart(1.1)},
    ],
)
def test_a_constant_of_the_diffusion_needs_all_four_conditions(change):
    """Lemma 5 of Chourasia et al. 2021: one temperature, strong convexity, a short step, and the
    right start."""
    run = run_of(**GIBBS)
    assert find_constant(run) == pytest.approx(0.5 / (2 * 0.5**2), rel=1e-14)
    assert log_sobolev_constant(replace(run, **change)) is None


def test_a_stated_constant_of_the_diffusion_counts_first():
    for value in (0.3, 5.0):
        stated = constants(log_sobolev=value, smooth=4.0, strong=0.5, lipschitz=1.0)
        assert find_constant(run_of(**GIBBS | {"loss": stated})) == value
    stated = constants(log_sobolev=0.0, smooth=4.0, strong=0.5, lipschitz=1.0)
    assert log_sobolev_constant(run_of(**GIBBS | {"loss": stated})) is None

"""What descriptions answer: batches, step sizes, noise, losses, and what a run derives from them."""

import math
from dataclasses import replace

import numpy as np
import pytest

import lastiterate as li
from lastiterate import InputError
from lastiterate.run.batching import Batches
from lastiterate.run.losses import Objective
from lastiterate.run.noise import Perturbation
from lastiterate.run.step_sizes import RelativeToSmooth, Schedule
from oracles.descriptions import BASE, PARTS

BATCHINGS = [part for part in PARTS.values() if isinstance(part, Batches)]
MEASURED = RelativeToSmooth | li.StableSteps  # steps that follow what the preparation releases
SCHEDULES = [
    part for part in PARTS.values() if isinstance(part, Schedule) and not isinstance(part, MEASURED)
]
NOISES = [part for part in PARTS.values() if isinstance(part, Perturbation)]
N = 64


def drawn_sizes(batching, rng):
    """Numbers of records in the batches of one pass, straight from the definition of the batching."""
    match batching:
        case li.FullBatch():
            return [N]
        case li.Cyclic(size) | li.Permuted(size) | li.Reshuffled(size):
            return [min(size, N - first) for first in range(0, N, size)]
        case li.FixedSize(size):
            return [size]
        case li.BallsInBins(size) | li.RandomAllocation(size):
            return np.bincount(rng.integers(0, -(-N // size), N), minlength=-(-N // size)).tolist()
        case li.Poisson(rate):
            return [int((rng.random(N) < rate).sum())]


@pytest.mark.parametrize("batching", BATCHINGS, ids=lambda part: type(part).__name__)
def test_batches_answer_what_their_definition_says(batching):
    rng = np.random.default_rng(3)
    passes = [drawn_sizes(batching, rng) for _ in range(2000)]
    sizes = np.array(passes)
    divisor, (fewest, most) = batching.divisor(N), batching.shares(N)
    assert batching.blocks(N) == sizes.shape[1]
    assert sizes.min() >= fewest * divisor - 1e-9 and sizes.max() <= most * divisor + 1e-9
    assert {
        "equal": (sizes == divisor).all(),
        "random": sizes.std() > 0,
        "last shorter": (sizes[:, :-1] == divisor).all() and (sizes[:, -1] < divisor).all(),
    }[batching.sizes]
    assert sizes[:, 0].mean() == pytest.approx(batching.expected_batch(N), rel=0.02)
    probabilities, chance = batching.place_probabilities(N), batching.inclusion_probability(N)
    if batching.drawn in ("once", "each pass"):
        assert probabilities.shape == (
            batching.blocks(N),
        ) and probabilities.sum() == pytest.approx(1)
        assert sizes.mean(axis=0) / N == pytest.approx(probabilities, rel=0.05)
    else:
        assert probabilities is None
    assert (chance is not None) == (batching.drawn == "each step")
    assert chance is None or chance == pytest.approx(batching.expected_batch(N) / N)
    assert bool(batching.secret) == (batching.drawn != "never")


def test_what_is_secret_and_drawn():
    drawn = {type(part).__name__: part.drawn for part in BATCHINGS}
    assert (
        drawn["FullBatch"] == drawn["Cyclic"] == "never"
        and drawn["Permuted"] == drawn["BallsInBins"] == "once"
    )
    assert drawn["Reshuffled"] == "each pass" == drawn["RandomAllocation"]
    assert drawn["FixedSize"] == drawn["Poisson"] == "each step"
    assert {type(part) for part in BATCHINGS if part.independent} == {
        li.BallsInBins,
        li.RandomAllocation,
        li.Poisson,
    }
    assert not any(part.independent for part in BATCHINGS if part.sizes != "random"), (
        "independent draws vary in number"
    )


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda part: type(part).__name__)
def test_schedules_say_every_step_once(schedule):
    whole = schedule.sizes(0, 3)
    assert whole.shape == (3,) and not whole.flags.writeable
    for first in range(3):
        assert (schedule.sizes(first, 3) == whole[first:]).all() and (
            schedule.sizes(0, first) == whole[:first]
        ).all()
    assert schedule.constant == (np.ptp(whole) == 0) and (
        not schedule.falls or (np.diff(whole) <= 0).all()
    )
    assert math.fsum(whole) <= schedule.total(3) <= whole.sum() * 1.1
    run = replace(BASE, step_size=schedule)
    assert (run.first_step, run.longest_step) == (whole[0], whole.max()) and (
        run.step_sizes == whole
    ).all()
    assert run.total_time == schedule.total(3)


@pytest.mark.parametrize("noise", NOISES, ids=lambda part: type(part).__name__)
@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda part: type(part).__name__)
def test_noise_says_every_step_once(noise, schedule):
    run = replace(BASE, noise=noise, step_size=schedule, clip=0.7, batching=li.Cyclic(20))
    eta = schedule.sizes(0, 3)
    expected = {
        li.GradientNoise: np.array([0.1, 0.2, 0.3]),
        li.Langevin: 0.1 * np.sqrt(2 / eta),
        li.NoiseMultiplier: np.full(3, 2.0 * 0.7 / 20),
        li.Correlated: np.full(3, 2.0 * 0.7 / 20),
    }[type(noise)]
    assert (
        run.noise_stds == pytest.approx(expected, rel=1e-15)
        and run.first_noise == run.noise_stds[0]
    )
    assert run.same_noise == (np.ptp(run.noise_stds) == 0)
    doubled = replace(run, noise=noise.scale_by(2.0))
    assert doubled.noise_stds == pytest.approx(2 * expected, rel=1e-15)
    assert type(noise.with_unit()) is type(noise)


OTHERS = {
    "minimiser": dict(loss=li.Logistic(ridge=0.1), method=li.ObjectivePerturbation(6)),
    "snapshots": dict(
        loss=li.Logistic(), batching=li.Poisson(0.1), method=li.VarianceReduced(3, 1.5)
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_methods_without_noise_of_every_step_do_not_say_its_size(name):
    run = replace(BASE, clip=None, noise=li.NoiseMultiplier(2.0), **OTHERS[name])
    for ask in ("noise_stds", "first_noise", "largest_noise", "temperature"):
        with pytest.raises(InputError, match="no size that is known before every step"):
            getattr(run, ask)
    assert not run.method.noisy_steps and math.isfinite(run.method.farthest_draw(run))
    assert not run.same_noise and not run.constant and run.noise.temperature is None


def test_a_billion_equal_steps_are_one_number():
    for noise in (li.GradientNoise(0.1), li.Langevin(0.1), li.NoiseMultiplier(1.0)):
        run = replace(BASE, steps=10**9, noise=noise)
        assert run.step_sizes.strides == run.noise_stds.strides == (
            0,
        ) and run.step_sizes.shape == (10**9,)
        assert (
            run.step_sizes[-1] == 0.1 and run.longest_step == run.first_step == 0.1 and run.constant
        )


def test_changing_schedules_are_looked_at_one_by_one_and_so_have_an_end():
    with pytest.raises(
        InputError, match="schedule that changes must be an integer between 1 and 10000000"
    ):
        replace(BASE, steps=10**7 + 1, step_size=li.InverseDecay(1.0, 0.1))
    assert replace(BASE, steps=10**7, step_size=li.InverseDecay(1.0, 0.1)).first_step == 0.5


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda part: type(part).__name__)
@pytest.mark.parametrize("noise", NOISES, ids=lambda part: type(part).__name__)
def test_the_first_steps_are_a_run(noise, schedule):
    run = replace(BASE, noise=noise, step_size=schedule)
    short = run.truncate(2)
    assert short.steps == 2 and (short.step_sizes == run.step_sizes[:2]).all()
    assert (short.noise_stds == run.noise_stds[:2]).all() and replace(run, noise=None).truncate(
        2
    ).noise is None


def test_losses_answer():
    losses = {type(part).__name__: part for part in PARTS.values() if isinstance(part, Objective)}
    assert {name: loss.outputs for name, loss in losses.items()} == {
        "Logistic": 1,
        "Softmax": 3,
        "HuberRidge": 1,
        "KnownConstants": None,
    }
    assert {name: loss.target_classes for name, loss in losses.items()} == {
        "Logistic": 2,
        "Softmax": 3,
        "HuberRidge": 0,
        "KnownConstants": None,
    }
    assert {name for name, loss in losses.items() if loss.scalar_residual} == {
        "Logistic",
        "HuberRidge",
    }
    assert losses["KnownConstants"].ridge == 0.0 and losses["Logistic"].ridge == 0.1
    facts = replace(BASE, clip=0.01, loss=li.Softmax(classes=3)).facts()
    assert facts.smooth is None and facts.lipschitz.value == 0.01, (
        "a clipped vector keeps no curvature"
    )
    facts = replace(BASE, clip=0.01, loss=li.Logistic()).facts()
    assert facts.smooth is not None and facts.lipschitz.value == 0.01, "a clamped number does"


def test_noise_that_is_not_decided_yet():
    open_run = replace(BASE, noise=None)
    assert (
        li.Run.from_json(open_run.to_json())
        == open_run
        == li.Run(n=100, steps=3, step_size=0.1, clip=1.0)
    )
    with pytest.raises(
        InputError, match=r"^noise is not decided yet; calibrate the run, or state its noise\.$"
    ):
        li.account(open_run)
    with pytest.raises(InputError, match="not decided"):
        _ = open_run.noise_stds
    with pytest.raises(InputError, match="not decided"):
        li.calibrate(open_run, epsilon=1.0, delta=1e-5, field="steps")
    by_clip = li.calibrate(open_run, epsilon=1.0, delta=1e-5)
    assert type(by_clip.run.noise) is li.NoiseMultiplier and by_clip.epsilon(1e-5) <= 1.0
    assert by_clip == li.calibrate(
        replace(BASE, noise=li.NoiseMultiplier(3.0)), epsilon=1.0, delta=1e-5
    )
    given = replace(open_run, clip=None, loss=li.KnownConstants(li.LossFacts(sensitivity=2.0)))
    trusted = li.calibrate(given, epsilon=1.0, delta=1e-5, min_evidence=li.Evidence.ASSUMED)
    assert type(trusted.run.noise) is li.GradientNoise and trusted.epsilon(1e-5) <= 1.0
    assert (
        type(
            li.calibrate(
                replace(open_run, clip=None, loss=li.Logistic()), epsilon=1.0, delta=1e-5
            ).run.noise
        )
        is li.NoiseMultiplier
    )


@pytest.mark.parametrize(
    "given", [{"lipschitz": 0.01}, {"sensitivity": 0.01}, {"lipschitz": 0.01, "sensitivity": 0.02}]
)
def test_an_assumed_constant_never_displaces_the_clip(given):
    """The certificate rests on what the run enforces, and names what it does not rest on."""
    run = li.Run(
        n=1000,
        steps=10,
        step_size=0.5,
        clip=1.0,
        noise=li.NoiseMultiplier(5.0),
        loss=li.KnownConstants(li.LossFacts(**given)),
    )
    fact = run.facts().sensitivity
    assert fact.evidence is li.Evidence.ENFORCED and 1 < fact.value < 1.01
    assert (
        "(the smaller, 0.01, is assumed and not used)" in fact.why or "0.02, is assumed" in fact.why
    )
    plain = replace(run, loss=li.KnownConstants())
    for min_evidence in (li.Evidence.ENFORCED, li.Evidence.ASSUMED):
        assert (
            li.account(run, min_evidence=min_evidence).epsilon(1e-5)
            == li.account(plain).epsilon(1e-5)
            < math.inf
        )


def test_of_constants_of_one_evidence_the_smaller_counts_and_names_the_larger():
    loss, assumed = (
        li.Logistic(row_norm=0.5, intercept=0.0),
        li.LossFacts(lipschitz=3.0, sensitivity=2.0),
    )
    assert li.Run(n=9, steps=1, step_size=0.5, clip=1.0, loss=loss).facts().lipschitz.value == 0.5
    assert li.Run(n=9, steps=1, step_size=0.5, clip=0.1, loss=loss).facts().lipschitz.value == 0.1
    fact = li.Run(n=9, steps=1, step_size=0.5, loss=li.KnownConstants(assumed)).facts().sensitivity
    assert (fact.value, fact.evidence) == (
        2.0,
        li.Evidence.ASSUMED,
    ) and "(the larger, 3, is not used)" in fact.why

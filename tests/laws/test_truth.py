"""No upper bound below the exact law, no lower bound above it: drawn runs inside each theorem's
regime."""

import math
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import lastiterate as li
from lastiterate.run.facts import find_fact, mint
from lastiterate.run.losses import loss_from_facts
from lastiterate.testing.exact_distributions import exact_mu
from lastiterate.theorems import TABLE
from lastiterate.theorems.theorem import Applies, Fails, Violated, match
from oracles.drawn import applied
from oracles.gaussian import hidden_place_delta
from tiers import size

DRAWS = size(300, 1000, "DRAWS")
EDGES = {"one step": 0.1, "step at 2/smooth": 0.1, "no curvature": 0.2, "batch = n": 0.1}


def draw(rng, *, batched=True, langevin=False):
    """A run on quadratics: its arrays, and a curvature inside its class."""
    smooth = float(rng.uniform(0.2, 4))
    flat = rng.random() < EDGES["no curvature"]
    strong = 0.0 if flat else float(rng.uniform(0.01, 1)) * smooth
    steps = 1 if rng.random() < EDGES["one step"] else int(rng.integers(1, 40))
    eta = (
        2
        / smooth
        * (0.999 if rng.random() < EDGES["step at 2/smooth"] else float(rng.uniform(0.01, 0.99)))
    )
    n = int(rng.integers(1, 30))
    b = n if not batched or rng.random() < EDGES["batch = n"] else int(rng.integers(1, n + 1))
    varied = not langevin and rng.random() < 0.5
    etas = rng.uniform(0.2, 1, steps) * eta if varied else np.full(steps, eta)
    stds = rng.uniform(0.1, 1, steps) if varied else np.full(steps, float(rng.uniform(0.1, 1)))
    noise = (
        li.GradientNoise(tuple(map(float, stds))) if varied else li.GradientNoise(float(stds[0]))
    )
    if langevin:
        noise = li.Langevin(float(stds[0]))
        stds = noise.sigma * np.sqrt(2 / etas)
    sensitivity = float(rng.uniform(0.5, 3))
    run = li.Run(
        n=n,
        steps=steps,
        step_size=li.StepSchedule(tuple(map(float, etas))) if varied else li.Constant(eta),
        noise=noise,
        batching=li.FullBatch() if b == n else li.Cyclic(b),
        loss=li.KnownConstants(li.LossFacts(sensitivity=sensitivity, smooth=smooth, strong=strong)),
    )
    curvature = strong if rng.random() < 0.5 else float(rng.uniform(strong, smooth))
    return run, etas, stds, curvature


def shifts(run, place):
    """The record pulls with its full sensitivity, in a fixed direction, in the steps that meet it."""
    unit = run.facts().sensitivity.value / run.divisor
    return np.where(np.arange(run.steps) % run.blocks == place, unit, 0.0)


def exact_of(run, etas, stds, curvature):
    """mu of the worst place, for a fixed start."""
    return max(exact_mu(curvature, etas, stds, shifts(run, place)) for place in range(run.blocks))


@pytest.mark.parametrize(
    "name, regime",
    [("quadratic-witness", {}), ("langevin-lower-bound", {"batched": False, "langevin": True})],
)
def test_lower_bounds_are_attained(name, regime):
    rng = np.random.default_rng(7)
    checked = 0
    for _ in range(DRAWS):
        run, etas, stds, _ = draw(rng, **regime)
        result = match(TABLE[name], run)
        if isinstance(result, Fails):
            continue
        checked += 1
        # the witness is the quadratic of curvature ``strong`` of the class
        exact = exact_of(run, etas, stds, run.facts().strong.value)
        assert result.bound.mu <= exact * (1 + 1e-12)
        assert result.bound.mu <= applied("shifted-interpolation", run).mu
    assert checked > DRAWS / 5


BASE = dict(
    n=100,
    steps=10,
    step_size=li.Constant(0.5),
    noise=li.Langevin(0.1),
    start=li.GaussianStart(math.sqrt(0.02)),
    loss=li.KnownConstants(li.LossFacts(sensitivity=1.0, smooth=1.0, strong=1.0)),
)
BREAKS = {
    "known_sensitivity": {"loss": li.KnownConstants(li.LossFacts(smooth=1.0, strong=1.0))},
    "known_noise": {"noise": li.NoiseMultiplier(1.0)},
    "last_iterate_only": {"release": "all"},
    "plain_updates": {"optimizer": li.HeavyBall(0.5)},
    "not_averaged": {"method": li.TailAverage()},
    "released_as_left": {
        "probability_calibration": li.Calibration(5.0),
        "loss": li.Logistic(ridge=0.1),
    },
    "released_up_to_scale": {
        "probability_calibration": li.Calibration(5.0),
        "loss": li.Logistic(ridge=0.1),
    },
    "linear_response": {"optimizer": None},
    "no_prox": {"prox": li.penalties.L1(0.1)},
    "full_batch": {"batching": li.Cyclic(10)},
    "public_order": {"batching": li.FixedSize(10)},
    "not_resampled": {"batching": li.FixedSize(10)},
    "secret_blocks": {"batching": li.Cyclic(10)},
    "constant_step": {"step_size": li.InverseDecay(2.0, 0.1)},
    "langevin_noise": {"noise": li.GradientNoise(tuple([0.1] * 10))},
    "everywhere": {"domain": li.domains.Ball(1.0)},
    "fixed_start": {"start": li.GaussianStart(0.3)},
    "gibbs_start": {"start": li.GaussianStart(0.3)},
    "lipschitz_step": {"loss": li.KnownConstants(li.LossFacts(sensitivity=1.0))},
    "strongly_convex": {
        "loss": li.KnownConstants(li.LossFacts(sensitivity=1.0, smooth=1.0, strong=0.0))
    },
    "short_step": {"step_size": li.Constant(1.0)},
    "squared_norm": {
        "loss": li.KnownConstants(li.LossFacts(sensitivity=1.0, smooth=1.0, strong=0.5))
    },
    "log_sobolev": {"start": li.GaussianStart(0.3)},
    "idle_clip": {"clip": 0.5},
    "sampled_batches": {"batching": li.FixedSize(100)},
    "counted_batches": {"batching": li.BallsInBins(10)},
    "contracting_step": {"step_size": li.Constant(1.001)},
    "constant_schedule": {"noise": li.GradientNoise(tuple([0.1] * 10))},
    "bounded_domain": {"domain": li.domains.Box(-1.0, 1.0)},
    "weakly_convex_step": {"step_size": li.Constant(1.001)},
    "convex": {
        "loss": li.KnownConstants(li.LossFacts(sensitivity=1.0, smooth=1.0, weak_convexity=0.1))
    },
    "nonexpansive_step": {"step_size": li.Constant(2.001)},
    "bounded_step": {"loss": li.KnownConstants(li.LossFacts(sensitivity=1.0))},
    "fresh_permutations": {"batching": li.Permuted(10)},
    "bounded_gradient": {"loss": li.KnownConstants(li.LossFacts(sensitivity=1.0))},
    "hoelder_gradient": {"loss": li.KnownConstants(li.LossFacts(sensitivity=1.0, lipschitz=1.0))},
    "drawn_anew": {"batching": li.Permuted(10)},
    "poisson_batches": {"batching": li.FixedSize(10)},
    "secret_bins": {"batching": li.Permuted(10)},
    "counted_records": {"adjacency": "add-remove"},
    "fresh_blocks": {"batching": li.BallsInBins(10)},
    "public_curvature": {"batching": li.BallsInBins(10)},
    "linear-witness: public_curvature": {"batching": li.Poisson(0.1)},
    "not_replace_one": {"adjacency": "replace-one"},
    "perturbed_objective": {"method": li.NoisySGD()},
    "solved_objective": {"step_size": li.Constant(3.0)},
    "snapshots_taken": {"method": li.NoisySGD()},
    "unmeasured_smoothness": {
        "loss": loss_from_facts(
            li.LossFacts(
                sensitivity=1.0, smooth=mint(1.0, li.Evidence.PAID, "measured"), strong=1.0
            )
        )
    },
    "independent_noise": {"noise": li.Correlated(1.0, 2)},
    "correlated_noise": {"noise": li.NoiseMultiplier(1.0)},
    "correlated-gdp: known_noise": {"noise": li.Correlated(1.0, 2)},
    "kept_places": {"batching": li.FixedSize(10)},
    "dp_accounting_installed": {},  # broken by hiding the library
}
ROUGH = li.KnownConstants(li.LossFacts(lipschitz=1.0, hoelder=1.0, hoelder_exponent=0.5))
SCALED = li.KnownConstants(li.LossFacts(sensitivity=1.0, lipschitz=1.0, smooth=1.0, strong=1.0))
"""A loss that a noise multiplier is a multiple of something for."""
NEEDS = {
    "linear_response": {"optimizer": li.HeavyBall(0.5)},
    "correlated_noise": {"noise": li.Correlated(1.0, 2), "loss": SCALED},
    "fixed_start": {"start": li.FixedStart()},
    "secret_blocks": {"batching": li.Permuted(10)},
    "sampled_batches": {"batching": li.FixedSize(10)},
    "bounded_domain": {"domain": li.domains.Ball(1.0)},
    "fresh_permutations": {"batching": li.Reshuffled(10)},
    "poisson_batches": {"batching": li.Poisson(0.1)},
    "secret_bins": {"batching": li.BallsInBins(10)},
    "fresh_blocks": {"batching": li.RandomAllocation(10)},
    "drawn_anew": {"batching": li.FixedSize(10)},
    "bounded_gradient": {"loss": ROUGH},
    "hoelder_gradient": {"loss": ROUGH},
    "perturbed_objective": {
        "noise": li.NoiseMultiplier(1.0),
        "method": li.ObjectivePerturbation(6),
        "loss": li.Logistic(ridge=0.1),
        "start": li.FixedStart(),
    },
    "snapshots_taken": {
        "noise": li.NoiseMultiplier(1.0),
        "method": li.VarianceReduced(3, 1.0),
        "loss": li.Logistic(),
        "batching": li.Poisson(0.1),
    },
}
IMPLIES = {
    "known_sensitivity": {"bounded_step", "hoelder_gradient"},
    "correlated-gdp: known_sensitivity": {"known_noise"},
    "known_noise": {
        "langevin_noise",
        "gibbs_start",
        "log_sobolev",
        "bounded_gradient",
        "hoelder_gradient",
    },
    "langevin_noise": {"gibbs_start", "log_sobolev"},
    "independent_noise": {"langevin_noise", "gibbs_start", "log_sobolev"},
    "no_prox": {"everywhere"},
    "perturbed_objective": {"solved_objective"},
    "strongly_convex": {"gibbs_start", "contracting_step"},
}
"""Assumptions that cannot be stated without the broken one; every other one must still hold."""


@pytest.mark.parametrize(
    "theorem, assumption",
    [(t.name, a) for t in TABLE.values() for a in t.assumptions],
    ids=lambda x: x if isinstance(x, str) else x.name,
)
def test_each_assumption_has_a_run_that_breaks_it(theorem, assumption, monkeypatch):
    good = dict(BASE)
    for asked in TABLE[theorem].assumptions:
        good |= NEEDS.get(asked.name, {})
    assert isinstance(match(TABLE[theorem], li.Run(**good)), Applies)
    if assumption.name == "dp_accounting_installed":
        monkeypatch.setitem(sys.modules, "dp_accounting", None)
    if assumption.name == "noisy_steps":
        return assert_only_noisy_steps(theorem, li.Run(**good))
    change = BREAKS.get(f"{theorem}: {assumption.name}", BREAKS[assumption.name])
    if assumption.name == "known_noise":
        change = change | {
            "loss": li.KnownConstants(li.LossFacts(sensitivity=1.0, smooth=1.0, strong=1.0))
        }
    if (
        assumption.name == "independent_noise"
        and find_fact(good["loss"].facts(), "lipschitz") is None
    ):
        change = change | {"loss": SCALED}
    run = li.Run(**good | change)
    fails = {
        asked.name for asked in TABLE[theorem].assumptions if isinstance(asked.check(run), Violated)
    }
    assert assumption.name in fails and fails <= {assumption.name} | IMPLIES.get(
        f"{theorem}: {assumption.name}", IMPLIES.get(assumption.name, set())
    ), fails
    broken = match(TABLE[theorem], run)
    if assumption.name == "not_replace_one" and run.loss.facts().sensitivity is None:
        zeroed = match(TABLE[theorem], replace(run, adjacency="zero-out"))
        assert isinstance(broken, Applies) and broken.curve == zeroed.curve.replace_one_curve(), (
            "one out, one in"
        )
        return
    assert isinstance(broken, Fails)
    assert all(len(reason) > 20 for reason in broken.reasons)


def assert_only_noisy_steps(theorem, run):
    """No description has such a method beside all else that a row asks for: it is put there past
    the checks."""
    object.__setattr__(run, "method", li.VarianceReduced(3, 1.0))
    broken = match(TABLE[theorem], run)
    assert (
        isinstance(broken, Fails)
        and len(broken.reasons) == 1
        and "method=NoisySGD()" in broken.reasons[0]
    )


def test_a_row_that_names_no_method_cannot_be_written():
    row = TABLE["composition-gdp"]
    with pytest.raises(TypeError, match="which methods it speaks of"):
        replace(row, assumptions=tuple(asked for asked in row.assumptions if not asked.of_method))


def test_clipping_that_rotates_gradients_drops_curvature():
    """Softmax with per-example clipping: no strong convexity, and the exact expansion of the
    clipped step."""
    loss = li.Softmax(classes=3, row_norm=1.0, ridge=0.1, intercept=0.0)
    run = li.Run(
        n=100,
        steps=10,
        step_size=li.Constant(1.0),
        noise=li.Langevin(0.1),
        clip=0.5,
        loss=loss,
        start=li.GaussianStart(math.sqrt(0.2)),
    )
    assert run.facts().strong is None and run.facts().smooth is None
    assert isinstance(match(TABLE["langevin-strongly-convex"], run), Fails)
    clipped = applied("shifted-interpolation", run).mu
    free = li.Run(**{**{f: getattr(run, f) for f in run.__dataclass_fields__}, "clip": None})
    scale = run.facts().sensitivity.value / free.facts().sensitivity.value
    assert clipped > applied("shifted-interpolation", free).mu * scale * (1 + 1e-6), (
        "it expands, so shifts cost more"
    )
    binary = li.Run(
        **{**{f: getattr(run, f) for f in run.__dataclass_fields__}, "loss": li.Logistic(ridge=0.1)}
    )
    assert binary.facts().strong is not None, "a clamped scalar residual keeps convexity"


def test_witness_accounts_for_a_random_start():
    rng = np.random.default_rng(21)
    for _ in range(100):
        run, etas, stds, _ = draw(rng)
        std = float(rng.uniform(0.1, 2))
        strong = run.facts().strong.value
        run = replace(run, start=li.GaussianStart(std))
        if run.shares[0] < 1:
            continue
        factor = np.concatenate(([1.0], np.cumprod((1 - etas * strong)[::-1])))[
            ::-1
        ]  # later products, R_0 first
        variance = ((etas * stds * factor[1:]) ** 2).sum() + (std * factor[0]) ** 2
        exact = max(
            abs((shifts(run, j) * etas * factor[1:]).sum()) for j in range(run.blocks)
        ) / math.sqrt(variance)
        found = applied("quadratic-witness", run).mu
        assert found == pytest.approx(exact, rel=1e-11)


def test_no_published_theorem_loses_an_assumption():
    text = (Path(__file__).parents[1] / "golden" / "theorems.toml").read_text()
    for name, published in tomllib.loads(text).items():
        asked = {assumption.name for assumption in TABLE[name].assumptions}
        assert asked == set(published["assumptions"]), name


def test_domains_are_priced_by_their_diameter():
    assert li.domains.Ball(1.5).diameter() == 3.0 and li.domains.Everywhere().diameter() == math.inf
    assert li.domains.Box(-1.0, 2.0, 4).diameter() == pytest.approx(6.0)
    assert li.domains.Box(-1.0, 2.0).diameter() == math.inf, "without a dimension nothing is known"
    # one step on linear losses from anywhere: a bounded domain of diameter D restarts at D, never
    # below one shift
    run = li.Run(
        n=10,
        steps=1000,
        step_size=li.Constant(0.5),
        noise=li.GradientNoise(0.3),
        domain=li.domains.Ball(0.2),
        loss=li.KnownConstants(li.LossFacts(sensitivity=1.0, smooth=1.0, strong=0.0)),
    )
    s, v = 0.05, 0.15**2
    best = min((0.4 + k * s) ** 2 / (k * v) for k in range(1, 1001))
    assert applied("shifted-interpolation", run).mu == pytest.approx(math.sqrt(best), rel=1e-9)


def test_permuted_witness_is_the_exact_mixture_and_lies_below_the_bound():
    rng = np.random.default_rng(8)
    near = []
    for _ in range(90):
        run, etas, stds, _ = draw(rng)
        if run.blocks == 1:
            continue
        run = replace(run, batching=li.Permuted(run.batching.size))
        if (etas * run.facts().strong.value > 1).any() or run.shares[0] < 1:
            continue  # alternating signs, a short block: not the exact mixture
        counts = [min(run.batching.size, run.n - j * run.batching.size) for j in range(run.blocks)]
        mus = [
            exact_mu(run.facts().strong.value, etas, stds, shifts(run, j))
            for j in range(run.blocks)
        ]
        lower, upper = (
            applied("quadratic-witness", run),
            applied("shifted-interpolation-permuted", run),
        )
        for epsilon in (0.0, 0.5, 2.0):
            exact = hidden_place_delta(epsilon, np.array(counts) / run.n, mus)
            assert lower.delta(epsilon) == pytest.approx(exact, rel=1e-5, abs=2e-7)
        for delta in (1e-2, 1e-6):
            assert lower.epsilon(delta) <= upper.epsilon(delta)
            found = lower.epsilon(delta)
            if found > 0:
                assert (
                    hidden_place_delta(found, np.array(counts) / run.n, mus)
                    >= delta * (1 - 1e-3) - 1e-9
                )
                near.append(found / upper.epsilon(delta))
    assert max(near) > 0.95

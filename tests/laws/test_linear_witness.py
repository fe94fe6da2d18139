"""The lower bound for batches drawn afresh: below the exact mixture, near it, and below what
certifies."""

import math
import tomllib
from dataclasses import replace
from math import comb
from pathlib import Path

import numpy as np
import pytest

import lastiterate as li
from lastiterate.curves.lower_bound import Largest
from lastiterate.run.facts import FLOAT_SLACK
from lastiterate.testing.exact_distributions import deltas
from lastiterate.theorems import TABLE, witnesses
from lastiterate.theorems.theorem import Fails, match
from oracles.gaussian import hidden_place_delta
from tiers import size

GOLDEN = tomllib.loads((Path(__file__).parents[1] / "golden" / "poisson.toml").read_text())


def run_of(steps=20, rate=0.3, z=0.5, n=100, **more):
    settings = dict(
        n=n,
        steps=steps,
        step_size=li.Constant(0.7),
        noise=li.NoiseMultiplier(z),
        batching=li.Poisson(rate),
        loss=li.KnownConstants(li.LossFacts(lipschitz=1.5, smooth=1.0, strong=0.0)),
    )
    return li.Run(**settings | more)


def witness(run):
    return match(TABLE["linear-witness"], run).bound


def test_published_setting():
    row = GOLDEN["linear_witness"]
    run = run_of(row["steps"], row["rate"], row["noise_multiplier"], 10_000)
    found = witness(run).epsilon(row["delta"])
    assert row["epsilon"] - 2e-4 < found <= row["epsilon"] + 5e-5
    assert li.account(run, min_evidence=li.Evidence.ASSUMED).lower(row["delta"]) == found


@pytest.mark.parametrize(
    "steps, rate, z",
    [(1, 0.3, 0.5), (20, 0.3, 1.2), (50, 0.05, 0.8), (7, 1.0, 3.0), (30, 0.9, 2.0)],
)
def test_below_the_exact_mixture_and_near_it(steps, rate, z):
    m = 1 / (z * math.sqrt(steps))
    weights = [comb(steps, k) * rate**k * (1 - rate) ** (steps - k) for k in range(steps + 1)]
    mus = [k * m for k in range(steps + 1)]
    curve = witness(run_of(steps, rate, z))
    for epsilon in (0.0, 0.4, 1.5):
        exact = hidden_place_delta(epsilon, weights, mus)
        assert exact * (1 - 1e-6) - 1e-8 <= curve.delta(epsilon) <= exact + 2e-8


def test_never_above_what_certifies():
    rng = np.random.default_rng(5)
    for _ in range(size(3, 6, "WITNESSES")):
        run = run_of(
            int(rng.integers(1, 200)), float(rng.uniform(0.01, 0.9)), float(rng.uniform(0.4, 3))
        )
        found, delta = li.account(run, min_evidence=li.Evidence.ASSUMED), 10 ** rng.uniform(-7, -2)
        assert 0 <= found.lower(delta) <= found.epsilon(delta)
        fixed = li.account(replace(run, batching=li.FixedSize(7)), min_evidence=li.Evidence.ASSUMED)
        assert 0 <= fixed.lower(delta) <= fixed.epsilon(delta)


def test_units_of_the_gradient():
    """The mean shift is eta L K / b, whatever noise convention, start and kind of batch describe
    the run."""
    run = run_of(rate=0.25, z=2.0)
    pair = witness(run)
    assert max(pair.mus) == pytest.approx(20 / (2.0 * math.sqrt(20)))
    assert witness(replace(run, batching=li.FixedSize(25))) == pair
    assert witness(replace(run, noise=li.GradientNoise(2.0 * 1.5 / 25))).mus == pytest.approx(
        pair.mus
    )
    eta, std = 0.7, 2.0 * 1.5 / 25
    wide = witness(replace(run, start=li.GaussianStart(0.3)))
    assert max(wide.mus) == pytest.approx(
        20 * eta * 1.5 / 25 / math.sqrt(20 * (eta * std) ** 2 + 0.09)
    )
    given = replace(
        run,
        loss=li.KnownConstants(li.LossFacts(sensitivity=0.5, lipschitz=1.5)),
        noise=li.GradientNoise(std),
    )
    assert max(witness(given).mus) == pytest.approx(max(pair.mus) / 3)
    fixed = replace(
        given, loss=li.KnownConstants(li.LossFacts(sensitivity=0.5)), batching=li.FixedSize(25)
    )
    assert max(witness(fixed).mus) == pytest.approx(max(pair.mus) / 3), (
        "the record's own gradient; others have none"
    )
    clipped = replace(given, loss=li.KnownConstants(), clip=1.5)
    assert max(witness(clipped).mus) == pytest.approx(max(pair.mus)) and FLOAT_SLACK > 0.005, (
        "no slack in a lower bound"
    )
    silent = witness(replace(run, noise=li.GradientNoise(0.0)))
    assert silent.epsilon(1e-5) == math.inf and silent.delta(3.0) == pytest.approx(1 - 0.75**20)
    weak = replace(run, loss=li.KnownConstants(li.LossFacts(lipschitz=0.2, smooth=1.0, strong=0.0)))
    assert witness(replace(weak, noise=li.GradientNoise(0.0))).epsilon(1e-5) == math.inf, (
        "however short the gradient"
    )
    assert (
        witness(
            replace(run, loss=li.KnownConstants(li.LossFacts(sensitivity=0.0, lipschitz=1.0)))
        ).epsilon(1e-5)
        == 0
    )
    assert witness(replace(run, release="all")) == pair


def test_replaced_records():
    """The neighbour's record has the opposite gradient and draws of its own law: K m against -K m."""
    run = run_of(200, 0.02, 0.8, 1000, adjacency="replace-one")
    m = 1 / (0.8 * math.sqrt(200))
    weights = [comb(200, k) * 0.02**k * 0.98 ** (200 - k) for k in range(40)]
    worlds = [[(w, sign * k * m, 1.0) for k, w in enumerate(weights)] for sign in (1, -1)]
    for delta in (1e-3, 1e-5):
        epsilon = witness(run).epsilon(delta)
        assert deltas([epsilon], *worlds)[0] == pytest.approx(delta, rel=1e-4)
    assert epsilon == pytest.approx(2.9567, abs=1e-4)
    assert (
        witness(run).opposed == 1
        and witness(replace(run, adjacency="zero-out")).epsilon(1e-5) < epsilon
    )


def test_ridges_and_what_they_leave():
    """A ridge forgets early draws; curvature in the records of random batches has no exact law
    here."""
    flat, ridged = (witness(run_of(loss=li.Logistic(ridge=ridge))) for ridge in (0.0, 0.3))
    assert 0 < ridged.epsilon(1e-4) < flat.epsilon(1e-4)
    curved = li.KnownConstants(li.LossFacts(lipschitz=1.0, smooth=1.0, strong=0.3))
    refused = match(TABLE["linear-witness"], run_of(loss=curved))
    assert isinstance(refused, Fails) and "curvature in the records" in refused.reasons[0]
    equal = replace(
        run_of(),
        loss=li.KnownConstants(li.LossFacts(sensitivity=1.0, smooth=1.0, strong=0.3)),
        noise=li.GradientNoise(0.1),
        batching=li.FixedSize(10),
    )
    assert witness(equal).epsilon(1e-4) > 0, "batches of one size have one curvature"


@pytest.mark.parametrize(
    "kind, factor",
    [("Poisson", 0.99), ("FixedSize", 0.99), ("Reshuffled", 0.995), ("RandomAllocation", 0.995)],
)
def test_long_runs_with_a_ridge(kind, factor):
    """Against a simulation of the draws, within its error."""
    n, steps, step = 50, 2000, 0.5
    batching = li.Poisson(0.1) if kind == "Poisson" else getattr(li, kind)(5)
    ridge = (1 - factor) / step
    run = li.Run(
        n=n,
        steps=steps,
        step_size=li.Constant(step),
        noise=li.GradientNoise(0.6),
        batching=batching,
        loss=li.Logistic(row_norm=1.0, intercept=0.0, ridge=ridge),
    )
    rng = np.random.default_rng(9)
    later = factor ** np.arange(steps)[::-1]
    if kind in ("Poisson", "FixedSize"):
        sums = (rng.random((20_000, steps)) < 0.1) @ later
    else:
        places = rng.integers(0, 10, (20_000, steps // 10)) + np.arange(0, steps, 10)
        sums = later[places].sum(1)
    mus = sums * step / 5 / (step * 0.6 * math.sqrt((later**2).sum()))
    found = witness(run)
    assert np.dot(found.weights, found.mus) == pytest.approx(mus.mean(), rel=1e-2)
    assert np.dot(found.weights, found.mus) <= mus.mean() + 4 * mus.std() / math.sqrt(mus.size)
    counts, edges = np.histogram(mus, 300)
    worlds = [
        (c / mus.size, m, 1.0) for c, m in zip(counts, (edges[1:] + edges[:-1]) / 2, strict=True)
    ]
    for epsilon in (0.2, 0.6):
        simulated = deltas([epsilon], worlds, [(1.0, 0.0, 1.0)], 4001)[0]
        assert found.delta(epsilon) == pytest.approx(simulated, rel=0.04)


def test_schedules_that_vary():
    """Steps one by one, or in classes of similar weight, against the constant schedule that they
    spell out."""
    for batching in (li.Poisson(0.2), li.FixedSize(20), li.Reshuffled(25), li.RandomAllocation(25)):
        run = run_of(
            90, batching=batching, loss=li.Logistic(ridge=0.2), noise=li.GradientNoise(0.05)
        )
        listed = replace(run, step_size=li.StepSchedule((0.7,) * 90))
        one, other = witness(run), witness(listed)
        assert one.epsilon(1e-4) == pytest.approx(other.epsilon(1e-4), rel=1e-2)
        overshooting = replace(run, step_size=li.Constant(6.0))
        spelled = replace(run, step_size=li.StepSchedule((6.0,) * 90))
        assert isinstance(witness(overshooting), Largest)
        assert witness(overshooting).epsilon(1e-3) == pytest.approx(
            witness(spelled).epsilon(1e-3), rel=2e-2, abs=1e-6
        )
    many = run_of(3000, rate=0.02, loss=li.Logistic(ridge=0.01), noise=li.GradientNoise(0.3))
    listed = replace(many, step_size=li.StepSchedule((0.7,) * 3000))
    one, other = witness(many).epsilon(1e-4), witness(listed).epsilon(1e-4)
    assert 0.97 * one < other <= one * (1 + 1e-3)


def test_passes_that_end_early():
    """A pass cut short is in with the probability of its blocks; linear losses without a ridge
    count participations."""
    run = run_of(
        7, batching=li.Reshuffled(25), noise=li.GradientNoise(0.1)
    )  # 4 blocks: a pass, and 3 of the next
    pair, unit = witness(run), 0.7 * 1.5 / 25 / (0.7 * 0.1 * math.sqrt(7))
    atoms = {
        round(mu / unit, 6): w for w, mu in zip(pair.weights, pair.mus, strict=True) if w > 1e-9
    }
    assert atoms == pytest.approx({1.0: 0.25, 2.0: 0.75})
    short = witness(replace(run, n=90))  # the last block holds 15 of 90
    atoms = {
        round(mu / unit, 6): w for w, mu in zip(short.weights, short.mus, strict=True) if w > 1e-9
    }
    assert atoms == pytest.approx({1.0: 1 / 6, 2.0: 5 / 6})
    first = witness(replace(run, steps=3))
    assert sorted(w for w in first.weights if w > 1e-9) == pytest.approx([0.25, 0.75])
    whole = witness(replace(run, steps=8))
    assert whole.mus == pytest.approx([2 * unit * math.sqrt(7 / 8)] * len(whole.mus))


def test_no_statement_beyond_what_is_looked_at(monkeypatch):
    run = run_of(40, loss=li.Logistic(ridge=0.2), noise=li.GradientNoise((0.1,) * 40))
    monkeypatch.setattr(witnesses, "LONGEST", 40)
    assert witness(run).epsilon(1e-3) > 0
    monkeypatch.setattr(witnesses, "LONGEST", 39)
    assert witness(run).epsilon(1e-3) == 0
    constant = replace(run, noise=li.GradientNoise(0.1))
    assert witness(constant).epsilon(1e-3) > 0, "constant schedules are doubled"
    assert witness(replace(constant, step_size=li.Constant(5.0))).epsilon(1e-3) == 0
    overflows = run_of(
        3000, step_size=li.Constant(1.9e4), loss=li.Logistic(ridge=1.0), noise=li.GradientNoise(0.1)
    )
    assert witness(overflows).epsilon(1e-3) == 0
    assert witness(run_of(10**9, rate=1e-4, z=2.0, n=10**6)).epsilon(1e-6) > 0


@pytest.mark.parametrize("batching", [li.Cyclic(20), li.Permuted(20), li.RandomAllocation(20)])
def test_positions_without_a_shift_claim_nothing(batching):
    """Where rounding leaves no trace of a record, no number is stated."""
    run = run_of(batching=batching)
    bound = witnesses._bound_positions(run, np.zeros(run.blocks))
    assert bound.epsilon(1e-5) == 0 and bound.delta(0.0) == 0
    one = witnesses._bound_positions(run, np.eye(run.blocks)[0])
    assert one.epsilon(1e-5) > 0 and 0 < one.delta(0.0) < 0.5

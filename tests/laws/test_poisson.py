"""Poisson batches against exact laws of one and two steps, quadrature, and dp-accounting's own
numbers."""

import json
import math
import pickle
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import lastiterate as li
from lastiterate.analysis.restarted_sampling import levels
from lastiterate.curves import subsampling
from lastiterate.curves.composition import compose, curve_from_dict
from lastiterate.curves.curve import BestOf, Grouped
from lastiterate.curves.gaussian import Gdp, GdpMixture
from lastiterate.curves.renyi import Rdp, SampledRenyi
from lastiterate.curves.sampled_batches import Pld
from lastiterate.errors import InputError
from lastiterate.run.facts import FLOAT_SLACK
from lastiterate.theorems import TABLE
from lastiterate.theorems.theorem import Applies, Fails, match
from oracles.sampled import one_step, renyi, two_steps
from tiers import size

GOLDEN = tomllib.loads((Path(__file__).parents[1] / "golden" / "poisson.toml").read_text())
LOSS = li.KnownConstants(li.LossFacts(lipschitz=1.0, smooth=1.0, strong=0.0))


def run_of(rate=0.01, z=1.0, steps=10_000, **more):
    settings = dict(
        n=10_000,
        steps=steps,
        step_size=li.Constant(0.1),
        noise=li.NoiseMultiplier(z),
        batching=li.Poisson(rate),
        loss=LOSS,
        release="all",  # what composition says, which rows about the last iterate may undercut
    )
    return li.Run(**settings | more)


def curve_of(name, run):
    return match(TABLE[name], run).curve


def test_the_accountants_own_numbers():
    row = GOLDEN["accountants"]
    run = run_of(row["rate"], row["noise_multiplier"], row["steps"])
    assert round(curve_of("poisson-rdp", run).epsilon(row["delta"]), 3) == row["rdp"]
    assert round(curve_of("poisson-pld", run).epsilon(row["delta"]), 3) == row["pld"]
    found = li.account(run, min_evidence=li.Evidence.ASSUMED)
    assert found.best(1e-5).theorem.name == "poisson-pld"
    assert found.epsilon(1e-5) < 10 < found.replace_one_epsilon(1e-5) < 30, (
        "replace-one by group privacy"
    )
    assert "which records each batch holds must stay secret" in found.all_caveats()


@pytest.mark.parametrize("row", GOLDEN["peers"]["rows"], ids=lambda r: f"q{r['rate']}-{r['steps']}")
def test_no_epsilon_is_above_dp_accounting_s(row):
    """But for what rounding may take from a delta, which their numbers leave out."""
    curve = Pld(row["rate"], (row["z"],), (row["steps"],))
    assert curve.epsilon(row["delta"]) <= 1.007 * row["epsilon"]


@pytest.mark.parametrize(
    "row", GOLDEN["multipliers"]["rows"], ids=lambda r: f"eps{r['epsilon']}-l{r['blocks']}"
)
def test_noise_that_a_budget_needs(row):
    delta = GOLDEN["multipliers"]["delta"]
    run = run_of(1 / row["blocks"], 1.0, row["blocks"] * row["passes"])
    found = li.calibrate(run, epsilon=row["epsilon"], delta=delta, min_evidence=li.Evidence.ASSUMED)
    assert 0.999 * row["epsilon"] < found.epsilon(delta) <= row["epsilon"] and found.certifies(
        row["epsilon"], delta
    )
    assert found.run.noise.z == pytest.approx(row["z"], rel=3e-3, abs=0.005), (
        "a finer grid than the source's"
    )


@pytest.mark.parametrize(
    "rate, z", [(0.01, 1.0), (0.3, 0.7), (0.5, 3.0), (1e-3, 0.4), (0.05, 8.0), (0.9, 1.3)]
)
def test_one_step_lies_above_its_exact_curve_and_near_it(rate, z):
    curve = Pld(rate, (z,), (1,))
    for epsilon in (0.0, 1e-3, 0.05, 0.5, 2.0):
        exact = float(max(one_step(epsilon, rate, z)))
        assert exact <= curve.delta(epsilon) <= exact * (1 + 3e-3) + 2e-5 * rate / z + 1e-9


@pytest.mark.parametrize("rate, z", [(0.1, (1.0, 1.0)), (0.3, (0.7, 1.4)), (0.6, (2.0, 5.0))])
def test_two_steps_lie_above_their_exact_curve_and_near_it(rate, z):
    curve = Pld(rate, (z[0],), (2,)) if z[0] == z[1] else Pld(rate, z, (1, 1))
    for epsilon in (0.0, 0.1, 0.7, 2.0):
        exact = two_steps(epsilon, rate, *z)
        assert exact - 1e-9 <= curve.delta(epsilon) <= exact * (1 + 1e-3) + 1e-6


@pytest.mark.parametrize("steps, mu", [(10, 1.0), (10_000, 1.0), (10_000, 4.0), (100_000, 0.5)])
def test_long_compositions_lie_above_the_exact_gaussian(steps, mu):
    """At rate 1 the composition is mu-Gaussian-DP exactly."""
    curve = Pld(1.0, (math.sqrt(steps) / mu,), (steps,))
    for epsilon in (0.0, 0.5, 2.0, 4.0):
        exact = Gdp(mu).delta(epsilon)
        assert exact <= curve.delta(epsilon) <= exact * (1 + 3e-3) + 1e-7


def test_both_orders_are_covered():
    """At small epsilons and rates near 1 neither order always wins; the larger one counts."""
    for rate, z in ((0.9, 0.5), (0.5, 1.0)):
        forth, back = one_step(np.array([0.0, 0.3, 1.0]), rate, z)
        for i, epsilon in enumerate((0.0, 0.3, 1.0)):
            assert Pld(rate, (z,), (1,)).delta(epsilon) >= max(forth[i], back[i])


@pytest.mark.parametrize("rate, z", [(0.01, 1.0), (0.2, 0.8), (0.6, 2.0)])
def test_renyi_lies_above_quadrature_and_near_it(rate, z):
    curve = SampledRenyi(rate, (z,), (3,))
    for alpha in (1.5, 2.0, 7.3, 20.0):
        exact = 3 * renyi(alpha, rate, z)
        assert exact * (1 - 1e-9) <= curve.rdp(alpha)
        whole = alpha == int(
            alpha
        )  # at fractional orders dp-accounting adds absolute values of an alternating series
        assert curve.rdp(alpha) <= (exact * (1 + 1e-6) + 1e-9 if whole else 2 * exact)
        mine = Pld(rate, (z,), (3,)).rdp(alpha)
        assert exact * (1 - 1e-9) <= mine and (
            mine == pytest.approx(curve.rdp(alpha), rel=1e-6) or not whole
        )


def test_the_distribution_never_beats_what_renyi_allows_by_hand():
    """Pld <= Rdp in epsilon: the exact composition is never worse, and a coarse grid is never
    better than 0.1 %."""
    rng = np.random.default_rng(4)
    for _ in range(size(5, 12, "BY_HAND")):
        rate, z, steps = (
            10 ** rng.uniform(-3, -0.3),
            10 ** rng.uniform(-0.3, 1),
            int(10 ** rng.uniform(0, 3)),
        )
        fine, delta = Pld(rate, (z,), (steps,)), 10 ** rng.uniform(-7, -3)
        assert (
            fine.epsilon(delta)
            <= SampledRenyi(rate, (z,), (steps,)).epsilon(delta) * (1 + 1e-9) + 1e-9
        )
        assert fine.coarser().epsilon(delta) >= fine.epsilon(delta) * (1 - 1e-3) - 1e-9
        assert fine.coarser().coarser().epsilon(delta) >= fine.epsilon(delta)


def test_noise_multiplier_of_a_step():
    run = run_of(0.02, 1.5, 10)
    assert levels(run) == ((pytest.approx(1.5), 10),)
    clipped = replace(run, clip=0.5, loss=li.KnownConstants())
    assert levels(clipped)[0][0] == pytest.approx(1.5 / (1 + FLOAT_SLACK)), (
        "room for single precision"
    )
    std = replace(
        run, noise=li.GradientNoise(0.03), loss=li.KnownConstants(li.LossFacts(sensitivity=2.0))
    )
    assert levels(std)[0][0] == pytest.approx(0.03 * 200 / 2)
    varied = replace(run, steps=4, noise=li.GradientNoise((0.03, 0.01, 0.03, 0.03)))
    assert levels(varied) == ((pytest.approx(2.0), 1), (pytest.approx(6.0), 3))
    nothing = replace(run, loss=li.KnownConstants(li.LossFacts(sensitivity=0.0, lipschitz=1.0)))
    assert levels(nothing) is None
    assert curve_of("poisson-rdp", nothing) == curve_of("poisson-pld", nothing) == Gdp(0.0)


def test_many_noises_are_rounded_down():
    stds = tuple(0.01 * (1 + k / 50) for k in range(200))
    run = run_of(0.02, 1.0, 200, noise=li.GradientNoise(stds))
    found = levels(run)
    assert 10 < len(found) <= 65 and sum(count for _, count in found) == 200
    assert (
        subsampling.merge_levels(found, 5)[0][0] == found[0][0]
        and len(subsampling.merge_levels(found, 5)) == 5
    )
    kept = sorted(z for z, count in found for _ in range(count))
    exact = sorted(std * 200 for std in stds)
    assert all(0.95 * b <= a <= b * (1 + 1e-12) for a, b in zip(kept, exact, strict=True))
    few = run_of(
        0.02, 1.0, 5, noise=li.GradientNoise(stds[::40])
    )  # Renyi's table takes a while for every kind of step
    assert (
        curve_of("poisson-pld", few).epsilon(1e-5)
        < curve_of("poisson-rdp", few).epsilon(1e-5)
        < math.inf
    )


def test_a_step_without_noise_certifies_nothing():
    run = run_of(0.02, 1.0, 3, noise=li.GradientNoise((0.1, 0.0, 0.1)))
    for name in ("poisson-pld", "poisson-rdp"):
        assert curve_of(name, run).epsilon(1e-5) == math.inf and curve_of(name, run).delta(3.0) == 1
    nothing = replace(run, loss=li.KnownConstants(li.LossFacts(sensitivity=0.0)))
    assert curve_of("poisson-pld", nothing).epsilon(1e-5) == 0


def test_all_iterates_and_momentum_are_covered_replace_one_by_exchange():
    run = run_of(steps=100)
    for change in ({"release": "all"}, {"optimizer": li.Nesterov()}, {"adjacency": "add-remove"}):
        assert curve_of("poisson-pld", replace(run, **change)) == curve_of("poisson-pld", run)
    result = match(TABLE["poisson-pld"], replace(run, adjacency="replace-one"))
    assert (
        isinstance(result, Applies)
        and result.curve == curve_of("poisson-pld", run).replace_one_curve()
    )
    given = li.KnownConstants(li.LossFacts(sensitivity=2.0))
    assert isinstance(
        match(TABLE["poisson-pld"], replace(run, adjacency="replace-one", loss=given)), Fails
    )


def test_without_the_library_the_verdict_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    for name in ("poisson-rdp", "poisson-pld"):
        result = match(TABLE[name], run_of(steps=100))
        assert isinstance(result, Fails) and "pip install dp-accounting" in result.reasons[0]
    assert (
        li.account(run_of(steps=100), min_evidence=li.Evidence.ASSUMED).best(1e-5).theorem.name
        == "composition-gdp"
    )


def test_composition_with_a_private_mean():
    curve = Pld(0.05, (1.0,), (50,))
    both = compose(curve, Gdp(0.5))
    assert both == compose(Gdp(0.5), curve) and both.mu == pytest.approx(0.5)
    assert curve.epsilon(1e-5) < both.epsilon(1e-5) < curve.epsilon(5e-6) + Gdp(0.5).epsilon(5e-6)
    assert compose(both, Gdp(1.2)).mu == pytest.approx(1.3)
    # a Gaussian step is Poisson-sampled with rate 1: composition by either road is the same
    # mechanism
    full = compose(Pld(1.0, (2.0,), (1,)), Gdp(1.0))
    assert (
        Gdp(math.hypot(0.5, 1.0)).epsilon(1e-5)
        <= full.epsilon(1e-5)
        <= Gdp(math.hypot(0.5, 1.0)).epsilon(1e-5) + 1e-3
    )
    other = compose(curve, GdpMixture((0.5, 0.5), (0.1, 0.2)))
    assert isinstance(other, Rdp) and other.rdp(4.0) >= curve.rdp(4.0)
    paid = run_of(0.05, 1.0, 50, preprocessing=(li.PrivateMean(2.0, 1.0),))
    free = replace(paid, preprocessing=())
    assert li.account(paid, min_evidence=li.Evidence.ASSUMED).epsilon(1e-5) > curve_of(
        "poisson-pld", free
    ).epsilon(1e-5)


def test_group_privacy_is_the_triangle_inequality():
    curve = Gdp(0.7)
    twice = Grouped(curve, 2)
    assert twice.delta(1.0) == pytest.approx(curve.delta(0.5) * (1 + math.exp(0.5)), rel=1e-9)
    assert twice.delta(twice.epsilon(1e-6)) <= 1e-6
    assert Gdp(1.4).epsilon(1e-6) <= twice.epsilon(1e-6), (
        "the exact group curve of this one is Gdp(1.4)"
    )
    assert twice.rdp(4.0) >= Gdp(1.4).rdp(4.0) and twice.group(2).size == 4
    sampled = Pld(0.05, (2.0,), (50,))
    assert sampled.epsilon(1e-6) < sampled.group(2).epsilon(1e-6) < 4 * sampled.epsilon(1e-6)


def test_json_and_pickle_round_trips():
    curves = (
        Pld(0.1, (1.0, 2.0), (3, 4), mu=0.5),
        SampledRenyi(0.1, (1.0, 2.0), (3, 4)),
        Grouped(Gdp(1.0), 3),
        Pld(0.1, (1.0,), (3,)).group(2),
    )
    for curve in curves:
        again = curve_from_dict(json.loads(json.dumps(curve.to_dict())))
        assert again == curve and again.epsilon(1e-5) == curve.epsilon(1e-5)
        assert pickle.loads(pickle.dumps(curve)) == curve
    assert BestOf(curves[:1]).coarser() == BestOf((replace(curves[0], coarse=True),))
    cheapest = curves[0].coarser().coarser()
    assert cheapest.coarser() == cheapest and isinstance(cheapest, Rdp), (
        "composed with a Gaussian: a table"
    )
    for bad in (dict(rate=0.0), dict(counts=(0,)), dict(multipliers=(1.0, 2.0)), dict(mu=-1.0)):
        with pytest.raises(InputError):
            Pld(**dict(rate=0.1, multipliers=(1.0,), counts=(3,)) | bad)
    for bad in (0.0, 1.0):
        with pytest.raises(InputError):
            Pld(0.1, (1.0,), (3,)).epsilon(bad)
    with pytest.raises(InputError):
        Pld(0.1, (1.0,), (3,)).delta(-1.0)


def test_tiny_deltas_follow_renyi():
    run = run_of()
    exact, renyi = curve_of("poisson-pld", run), curve_of("poisson-rdp", run)
    for delta in (1e-9, 1e-20):  # where rounding could hide that much
        assert exact.epsilon(1e-6) < exact.epsilon(delta) <= renyi.epsilon(delta) * (1 + 1e-8)


@pytest.mark.parametrize(
    "rate, z, steps", [(1e-9, 1.0, 1000), (0.1, 1e60, 5), (0.5, 1e-3, 5), (0.01, 5.0, 10**9)]
)
def test_odd_numbers_get_a_number_or_no_statement(rate, z, steps):
    for curve in (Pld(rate, (z,), (steps,)), SampledRenyi(rate, (z,), (steps,))):
        assert curve.epsilon(1e-5) >= 0 and 0 <= curve.delta(1.0) <= 1


def test_a_certificate_is_recomputed():
    run = run_of(0.05, 2.0, 50, clip=1.0)
    found = li.account(run)
    again = li.read_certificate(found.to_json(1e-5))
    assert again.epsilon(1e-5) == found.epsilon(1e-5) and again.verify()


def test_calibrating_steps_and_a_prelude():
    run = run_of(0.01, 1.0, 100, preprocessing=(li.PrivateMean(5.0, 1.0),))
    found = li.calibrate(run, epsilon=2.0, delta=1e-5, min_evidence=li.Evidence.ASSUMED)
    assert 1.99 < found.epsilon(1e-5) <= 2.0
    longest = li.calibrate(
        run, epsilon=2.0, delta=1e-5, field="steps", min_evidence=li.Evidence.ASSUMED
    )
    assert longest.epsilon(1e-5) <= 2.0
    more = li.account(
        replace(longest.run, steps=math.ceil(longest.run.steps * 1.01)),
        min_evidence=li.Evidence.ASSUMED,
    )
    assert more.epsilon(1e-5) > 2.0


def test_the_longest_run_is_the_longest():
    """One step more is no longer certified: the search in real numbers used to stop at 200."""
    run = run_of(0.04, 1.6, 50, clip=1.0)
    longest = li.calibrate(run, epsilon=1.7, delta=1e-5, field="steps")
    assert longest.run.steps == 201 and longest.certifies(1.7, 1e-5)
    assert not li.account(replace(longest.run, steps=202)).certifies(1.7, 1e-5)


def test_the_allowance_grows_with_the_steps():
    short, long = (subsampling.allowance(((1.0, n),), 0.01, 1e-4) for n in (10, 10**6))
    assert 1e-10 < short < 1e-9 < 1e-7 < long < 1e-6

"""correlated-gdp: the sensitivity of the draws by brute force, exact laws, choices that follow the
past, refusals."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.special import ndtr

import lastiterate as li
from lastiterate import InputError
from lastiterate.analysis.shifts import shift_in_draws, shift_of_any_signs, shift_of_equal_signs
from lastiterate.curves.gaussian import Gdp
from lastiterate.run.facts import FLOAT_SLACK
from lastiterate.run.run import DESCRIPTIONS
from lastiterate.theorems import TABLE
from lastiterate.theorems.theorem import Applies, Fails, match
from oracles.cancelling import added, matrix

ROW = TABLE["correlated-gdp"]
OWN = (ROW.name, "linear-response-witness")  # the second: tests/laws/test_lower.py
BASE = li.Run(
    n=12, steps=10, step_size=0.1, clip=1.0, batching=li.Cyclic(3), noise=li.Correlated(2.0, 5)
)


def worst_signs(c, blocks):
    """The largest |C u|^2 over places and signs of the contributions."""
    steps = len(c)
    return max(
        float(((c[:, np.arange(j, steps, blocks)] @ np.array(signs)) ** 2).sum())
        for j in range(min(blocks, steps))
        for signs in itertools.product((-1.0, 1.0), repeat=len(range(j, steps, blocks)))
    )


def drawn(rng, signed):
    decay = 0.0 if signed or rng.random() < 0.5 else float(rng.uniform(0, 1))
    rest = rng.uniform(-1 if signed else 0, 1, int(rng.integers(0, 7)))
    rest *= 0.9 / max(np.abs(rest).sum(), 0.9)  # stable whatever the signs
    return li.Correlated(1.0, (1.0, *rest.tolist()), decay=decay)


@pytest.mark.parametrize("signed", [False, True])
def test_the_draws_are_moved_by_the_worst_signs(signed):
    """Any steps and blocks: a last pass that is cut, fewer steps than blocks, one block (full
    batches)."""
    rng, near = np.random.default_rng(5), []
    for _ in range(300):
        steps, blocks = int(rng.integers(1, 12)), int(rng.integers(1, 7))
        noise = drawn(rng, signed)
        c = matrix(noise, steps)
        assert np.allclose(c[:, 0][: noise.column(steps).size], noise.column(steps), atol=1e-12)
        gram = np.abs(c.T @ c)
        stated = max(gram[j::blocks, j::blocks].sum() for j in range(min(blocks, steps)))
        found = shift_in_draws(noise, blocks, steps) ** 2
        assert found == pytest.approx(stated, rel=1e-12)
        true = worst_signs(c, blocks)
        assert true <= found * (1 + 1e-12)
        near.append(true / found)
    assert min(near) > (1 - 1e-12 if not signed else 0.3), "attained where no entry is negative"
    assert max(near) > 1 - 1e-12


def test_the_shortcut_for_equal_signs_agrees():
    rng = np.random.default_rng(6)
    for _ in range(300):
        steps, blocks = int(rng.integers(1, 60)), int(rng.integers(1, 20))
        column = rng.uniform(0, 1, int(rng.integers(1, steps + 1)))
        assert shift_of_equal_signs(column, blocks, steps) == pytest.approx(
            shift_of_any_signs(column, blocks, steps), rel=1e-12
        )


@pytest.mark.parametrize(("adjacency", "moved"), [("zero-out", 1), ("replace-one", 2)])
@pytest.mark.parametrize(
    "batching", [li.FullBatch(), li.Cyclic(5), li.Permuted(5), li.BallsInBins(5)]
)
def test_mu_is_s_over_z(batching, adjacency, moved):
    """12 records in blocks of 5, 5 and 2, ten steps: the first block takes part four times."""
    run = replace(BASE, batching=batching, adjacency=adjacency)
    found = match(ROW, run)
    assert isinstance(found, Applies)
    c = matrix(run.noise, 10)
    s = np.linalg.norm(c[:, :: batching.blocks(12)].sum(axis=1))
    slack = 1 + FLOAT_SLACK
    assert (
        found.curve.mu == pytest.approx(moved * s / 2.0 * slack, rel=1e-9)
        and found.curve.mu >= moved * s / 2.0
    )
    assert li.account(run).best(1e-5).theorem is ROW
    every = match(
        ROW, replace(run, release="all", optimizer=li.HeavyBall(0.9), domain=li.domains.Ball(1.0))
    )
    assert every.curve == found.curve


def test_a_band_of_one_is_noise_of_its_own_at_every_step():
    alone = li.account(replace(BASE, noise=li.Correlated(2.0, 1)))
    plain = li.account(replace(BASE, noise=li.NoiseMultiplier(2.0), optimizer=li.HeavyBall(0.5)))
    assert alone.best(1e-5).bound.mu == pytest.approx(plain.best(1e-5).bound.mu, rel=1e-9)


def test_exact_law_of_all_iterates():
    """Constant contributions, all gradients seen: N(C Delta, z^2 I) against N(0, z^2 I), in either
    order."""
    rng = np.random.default_rng(8)
    for _ in range(50):
        steps, blocks, z = (
            int(rng.integers(1, 15)),
            int(rng.integers(1, 5)),
            float(rng.uniform(0.5, 5)),
        )
        noise = li.Correlated(z, int(rng.integers(1, 8)))
        run = li.Run(
            n=blocks,
            steps=steps,
            step_size=0.1,
            batching=li.Cyclic(1),
            noise=noise,
            release="all",
            loss=li.KnownConstants(li.LossFacts(lipschitz=1.0)),
        )
        spread = np.linalg.inv(matrix(noise, steps)) * z
        covariance = spread @ spread.T
        mus = []
        for j in range(min(blocks, steps)):
            delta = (np.arange(steps) % blocks == j).astype(float)
            mus.append(math.sqrt(delta @ np.linalg.solve(covariance, delta)))
        assert match(ROW, run).curve.mu == pytest.approx(max(mus), rel=1e-9)
        assert match(ROW, run).curve.mu >= max(mus) * (1 - 1e-13)


def test_signs_that_follow_the_past():
    """Two participations, the second of a sign that depends on the first noisy sum: never beyond
    the curve, both orders; the worst rule is the constant one."""
    y = np.linspace(-40, 40, 20001)
    for c1, z, epsilon in itertools.product((0.3, -0.4, 0.9), (1.0, 3.0), (0.1, 1.0)):
        noise = li.Correlated(z, (1.0, c1))
        curve = Gdp(shift_in_draws(noise, 1, 2) / z)
        worst = 0.0
        for threshold, low, high in itertools.product(
            (-2.0, -0.3, 0.0, 0.5, 3.0, 99.0), (-1, 1), (-1, 1)
        ):
            second = c1 + np.where(y < threshold, low, high)
            for order in (1, -1):
                worst = max(worst, _hockey_stick(y, second, z, epsilon, order))
        assert worst <= curve.delta(epsilon) * (1 + 1e-6)
        assert worst == pytest.approx(curve.delta(epsilon), rel=1e-4), (
            "one of the rules has the constant worst signs"
        )


def _hockey_stick(y, second, z, epsilon, order):
    """delta(epsilon) of (y_1, y_2): y_1 moved by 1, then y_2 by ``second`` (y_1), in units of z; by
    quadrature."""
    ratio = (y - 0.5) / z**2 * order
    base = np.exp(-((y - (1.0 if order > 0 else 0.0)) ** 2) / (2 * z**2)) / (
        z * math.sqrt(2 * math.pi)
    )
    mu = np.maximum(np.abs(second) / z, 1e-12)
    left = epsilon - ratio  # what the second draw must make up for
    delta = ndtr(mu / 2 - left / mu) - np.exp(np.minimum(left, 700)) * ndtr(-mu / 2 - left / mu)
    return float(np.trapezoid(base * delta, y))


@pytest.mark.parametrize(
    "theorem",
    [theorem for theorem in TABLE.values() if theorem.name not in OWN],
    ids=lambda theorem: theorem.name,
)
def test_no_other_row_speaks_of_correlated_noise(theorem):
    """Every other row's own run, its noise taken back in part: the row must not apply, whether it
    bounds above or below."""
    run = theorem.example
    asked = {assumption.name for assumption in theorem.assumptions}
    if not run.noisy_steps:
        with pytest.raises(InputError, match="noise"):
            replace(run, noise=li.Correlated(2.0, 5))
        return
    assert "independent_noise" in asked
    clipped = run if run.noise_unit else replace(run, clip=1.0)
    for noise in (li.Correlated(2.0, 5), li.Correlated(2.0, 1), li.Correlated(2.0, 1, decay=0.9)):
        found = match(theorem, replace(clipped, noise=noise))
        assert isinstance(found, Fails) and any(
            "take noise back" in reason for reason in found.reasons
        )


def test_a_correlated_run_is_certified_by_its_own_row_alone():
    """All batchings, adjacencies, domains, updates and losses: any other row that applies is a
    defect."""
    losses = (
        li.Logistic(ridge=0.1),
        li.Softmax(classes=3),
        li.HuberRidge(),
        li.KnownConstants(li.LossFacts(lipschitz=1.0, smooth=1.0, strong=0.1)),
    )
    kept = 0
    for batching, loss, clip, update, domain in itertools.product(
        (
            kind(3)
            if kind not in (li.FullBatch, li.Poisson)
            else kind(*(0.2,) * (kind is li.Poisson))
            for kind in DESCRIPTIONS["batching"]
        ),
        losses,
        (None, 0.5),
        (None, li.HeavyBall(0.5)),
        (li.domains.Everywhere(), li.domains.Ball(1.0)),
    ):
        for adjacency in batching.adjacencies:
            run = replace(
                BASE,
                batching=batching,
                loss=loss,
                clip=clip,
                optimizer=update,
                domain=domain,
                adjacency=adjacency,
            )
            applies = {
                name for name, theorem in TABLE.items() if isinstance(match(theorem, run), Applies)
            }
            certifies = {"correlated-gdp"} if batching.drawn in ("never", "once") else set()
            assert applies - {"linear-response-witness"} == certifies
            kept += bool(certifies)
    assert kept == 4 * 4 * 2 * 2 * 2 * 2


def test_sampled_batches_are_refused_with_a_reason():
    for batching in (li.Poisson(0.2), li.FixedSize(3), li.RandomAllocation(3), li.Reshuffled(3)):
        (reason,) = match(ROW, replace(BASE, batching=batching)).reasons
        assert reason.startswith(
            "it follows a record that takes part in the same place of every pass"
        )
        with pytest.raises(li.NotCertified, match="same place of every pass"):
            li.calibrate(replace(BASE, batching=batching), epsilon=1.0, delta=1e-5)


def test_calibration_is_a_division():
    found = li.calibrate(BASE, epsilon=1.0, delta=1e-5).run.noise
    mu = match(ROW, replace(BASE, noise=found)).curve.mu
    assert Gdp(mu * (1 - 1e-5)).epsilon(1e-5) < 1.0 and Gdp(mu).epsilon(1e-5) <= 1.0
    assert found.z * mu == pytest.approx(shift_in_draws(found, 4, 10) * (1 + FLOAT_SLACK), rel=1e-9)


def test_units_of_several_rows_and_stated_sensitivities():
    one, three = (li.account(replace(BASE, rows_per_unit=rows)).best(1e-5).bound for rows in (1, 3))
    assert three.mu == pytest.approx(3 * one.mu, rel=1e-9)
    stated = replace(
        BASE, clip=None, loss=li.KnownConstants(li.LossFacts(lipschitz=1.0, sensitivity=0.5))
    )
    assert match(ROW, stated).curve.mu == pytest.approx(one.mu / 2 / (1 + FLOAT_SLACK), rel=1e-9)
    assert match(ROW, replace(BASE, noise=li.Correlated(0.0, 3))).curve.epsilon(1e-5) == math.inf
    silent = replace(stated, loss=li.KnownConstants(li.LossFacts(lipschitz=1.0, sensitivity=0.0)))
    assert (
        match(ROW, silent).curve
        == match(ROW, replace(silent, noise=li.Correlated(0.0, 3))).curve
        == Gdp(0.0)
    )


def test_how_far_one_draw_is_moved():
    """The row sums of C at the record's steps, for the caveat about draws that end."""
    rng = np.random.default_rng(9)
    for _ in range(50):
        steps, blocks, noise = (
            int(rng.integers(1, 15)),
            int(rng.integers(1, 5)),
            drawn(rng, rng.random() < 0.5),
        )
        c = np.abs(matrix(noise, steps))
        true = max(c[:, j::blocks].sum(axis=1).max() for j in range(min(blocks, steps)))
        assert noise.largest_sum(blocks, steps) == pytest.approx(true, rel=1e-12)
    assert li.NoiseMultiplier(2.0).largest_sum(3, 10) == 1.0
    assert BASE.method.farthest_draw(BASE) == pytest.approx(
        BASE.noise.largest_sum(4, 10) / 2.0 * (1 + FLOAT_SLACK)
    )


def test_noise_that_would_grow_is_refused():
    for band in ((1.0, 1.0), (1.0, -1.5), (1.0, 0.2, 1.3), (1.0, math.nan)):
        with pytest.raises(InputError, match="grows from step to step"):
            li.Correlated(1.0, band)
    for noise in (
        li.Correlated(1.0, 2000),
        li.Correlated(1.0, (1.0, 0.99)),
        li.Correlated(1.0, 30, decay=1.0),
    ):
        inverse = added(noise, 300)
        assert np.sqrt((inverse**2).sum(axis=1)).max() <= (1 + noise.decay) * noise.spread < 20
        assert np.abs(inverse).sum(axis=1).max() <= noise.reach(300)


@pytest.mark.parametrize(
    ("band", "decay", "message"),
    [
        ((2.0, 1.0), 0.0, "must begin with 1"),
        (0, 0.0, "band"),
        ((), 0.0, "band"),
        (10**4 + 1, 0.0, "band"),
        (3, 1.1, "decay"),
        (3, -0.1, "decay"),
        ((1.0, -0.2), 0.5, "no negative|negative numbers"),
        (2.5, 0.0, "integer"),
    ],
)
def test_what_a_band_can_be(band, decay, message):
    with pytest.raises(InputError, match=message):
        li.Correlated(1.0, band, decay=decay)


def test_a_power_is_a_number_of_coefficients():
    assert li.Correlated(1.0, 4).entries == pytest.approx((1, 1 / 2, 3 / 8, 5 / 16), rel=1e-15)
    assert li.Correlated(1.0, 4, 0.25).entries == pytest.approx(
        (1, 1 / 4, 5 / 32, 15 / 128), rel=1e-15
    )
    for band, power in ((4, 0.0), (4, 1.0), ((1.0, 0.5), 0.6)):
        with pytest.raises(InputError, match="power"):
            li.Correlated(1.0, band, power)


def test_longer_runs_than_columns_are_looked_at_are_refused():
    with pytest.raises(InputError, match="steps of correlated noise"):
        replace(BASE, steps=10**7 + 1)


def test_it_is_read_back_as_it_was_written():
    for noise in (li.Correlated(2.0, 7), li.Correlated(2.0, (1.0, 0.5, 0.25), decay=0.3)):
        run = replace(BASE, noise=noise)
        assert li.Run.from_json(run.to_json()) == run and run.truncate(4).noise == noise
    with pytest.raises(InputError, match="needs a clip"):
        _ = replace(BASE, clip=None).noise_stds

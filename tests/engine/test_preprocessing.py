"""Private preparation as it is executed: what is released about rows, and what rows become."""

import json
from dataclasses import replace
from fractions import Fraction

import jax
import numpy as np
import pytest

import lastiterate as li
from lastiterate.accounting.certificate_subject import curves_of_preprocessing
from lastiterate.audit.runner import auditable
from lastiterate.engine import Trainer, execute, key_from_seed, scores
from lastiterate.engine.exact_linear import execute_exactly
from lastiterate.engine.linear_gradients import arrange, places
from lastiterate.engine.linear_model import rows_of_batches
from lastiterate.engine.preprocessing import (
    PARTS,
    compute_whitening,
    cosines,
    directions,
    execution_of,
    noisy_cosines,
    noisy_moments,
    noisy_target_mean,
    prepare_rows,
    release_eigenvalue,
    short_rows,
    top_eigenvalue,
    unit_rows,
    whiten_rows,
    with_cosines,
)
from lastiterate.engine.preprocessing import UNIT as COVARIANCE_UNIT
from lastiterate.run.preprocessing import CosineFeatures, PrivateTargetMean, SquareRoots, columns
from lastiterate.run.run import DESCRIPTIONS

RNG = np.random.default_rng(5)
N, D = 120, 4
X = (RNG.normal(size=(N, D)) * [3, 1, 0.3, 0.1] + [1, 0, 0, 0]).astype(np.float32)
Y = RNG.integers(0, 3, N)
QUIET = 1e-6
UNIT, CLIPPED = li.PrivateCovariance(1.0, 0.5), li.PrivateCovariance(1.0, 0.5, row_norm=2.5)


def test_every_described_part_can_be_executed_and_nothing_else():
    assert set(PARTS) == set(DESCRIPTIONS["preprocessing"])
    with pytest.raises(li.InputError, match="cannot execute"):
        execution_of(object())


@pytest.mark.parametrize("intercept", [0.1, 1 / 3, 0.7, 1e-3])
@pytest.mark.parametrize("row_norm", [1e-4, 0.01, 1.0])
def test_rows_with_their_intercept_have_the_norm_that_bounds_are_computed_with(row_norm, intercept):
    """In exact fractions: single precision has numbers just above 0.1 and 0.7."""
    loss = li.Logistic(row_norm=row_norm, intercept=intercept)
    run = li.Run(n=N, steps=1, step_size=0.1, loss=loss)
    arranged = arrange(run, 100 * X, Y % 2)[0].reshape(-1, D + 1)[:N]
    read = np.concatenate(
        [part for batch in rows_of_batches(run, 100 * X, (), None) for part in batch]
    )
    largest = Fraction(row_norm) ** 2 + Fraction(intercept) ** 2
    for rows in (arranged, read):
        assert len(rows) == N and np.all(rows[:, -1] >= np.float32(intercept) * (1 - 1e-7))
        for row in rows.tolist():
            assert sum(Fraction(value) ** 2 for value in row) <= largest


def test_unit_rows_never_exceed_one():
    rows = RNG.normal(size=(3000, 30)) * 10.0 ** RNG.integers(-30, 30, size=(3000, 1))
    rows[0] = 0
    found = unit_rows(rows)
    norms = np.linalg.norm(found.astype(np.float64), axis=1)
    assert (
        found.dtype == np.float32
        and norms[0] == 0
        and norms.max() <= 1
        and norms[1:].min() > 1 - 2e-6
    )
    for norm in (1e-5, 0.3, 3.0, 7e4):
        short = short_rows(replace(CLIPPED, row_norm=norm), rows).astype(np.float64)
        assert 1 - 2e-6 < np.linalg.norm(short, axis=1).max() <= 1
        inside = np.linalg.norm(rows, axis=1) < 0.99 * norm
        np.testing.assert_allclose(short[inside], rows[inside] / norm, rtol=1e-6, atol=1e-37)


@pytest.mark.parametrize("beside", [0.0, 1e-101, 1e-300, 1e150], ids=str)
def test_what_becomes_of_a_row_is_no_matter_of_the_rows_beside_it(beside):
    """On rows whose rounding to float32 is nearly a tie: another order of operations would move
    hundreds of them."""
    second = RNG.uniform(0.05, 0.4, 20_000)
    single = (COVARIANCE_UNIT / np.sqrt(1 + second**2)).astype(np.float32)
    tie = (single.astype(float) + np.nextafter(single, np.float32(2))) / 2
    first = second * tie / np.sqrt((COVARIANCE_UNIT - tie) * (COVARIANCE_UNIT + tie))
    near = (first[:, None] + np.arange(-6, 7) * np.spacing(first)[:, None]).ravel()
    rows = np.column_stack((near, np.repeat(second, 13)))
    another = np.array([[beside, 0.0]])
    rounded = unit_rows(rows)[:, 0].reshape(-1, 13)
    assert (rounded.min(axis=1) < rounded.max(axis=1)).mean() > 0.3, "ties are near"
    for found in (
        unit_rows(np.vstack((rows, another)))[:-1],
        unit_rows(np.vstack((another, rows)))[1:],
    ):
        np.testing.assert_array_equal(found, unit_rows(rows))
    np.testing.assert_array_equal(unit_rows(rows[:7]), unit_rows(rows)[:7])


def test_noise_on_moments_is_spherical_in_the_isometric_coordinates():
    """400 draws, with room of 4 to 5 standard deviations: of entries together 1.8%, of one 3.5%, of
    a covariance 0.28. An entry off the diagonal that is drawn as those on it has 41% and 4.0 too
    much."""
    part = replace(UNIT, noise_multiplier=2.0)
    drawn = np.array([noisy_moments([], D, part, key_from_seed(seed)) for seed in range(400)])
    np.testing.assert_array_equal(drawn, drawn.transpose(0, 2, 1))
    wanted = np.full((D, D), 2 / np.sqrt(2))
    np.fill_diagonal(wanted, 2.0)
    np.testing.assert_allclose(drawn.std(axis=0), wanted, rtol=0.17)
    for entries in (np.eye(D, dtype=bool), np.triu(np.ones((D, D), bool), 1)):
        np.testing.assert_allclose(drawn[:, entries].std(), wanted[entries][0], rtol=0.07)
    coordinates = np.concatenate(
        (np.diagonal(drawn, axis1=1, axis2=2), np.sqrt(2) * drawn[:, *np.triu_indices(D, 1)]),
        axis=1,
    )
    np.testing.assert_allclose(np.cov(coordinates.T), 4 * np.eye(10), atol=1.2)


@pytest.mark.parametrize("part", [UNIT, CLIPPED], ids=["divided", "clipped"])
@pytest.mark.parametrize(
    "who", [7, int(np.linalg.norm(X, axis=1).argmax())], ids=["one", "the longest"]
)
def test_one_row_moves_the_moments_by_its_own_outer_product(part, who):
    key, other = key_from_seed(1), X.copy()
    other[who] = 0
    moved = noisy_moments([X], D, part, key) - noisy_moments([other], D, part, key)
    short = X[who].astype(np.float64) / np.linalg.norm(X[who].astype(np.float64))
    if part is CLIPPED:
        short *= min(1.0, np.linalg.norm(X[who]) / 2.5)
    np.testing.assert_allclose(moved, np.outer(short, short), atol=6e-6)
    assert np.linalg.norm(moved) <= 1
    np.testing.assert_allclose(
        noisy_moments([X[:50], X[50:]], D, part, key), noisy_moments([X], D, part, key)
    )


def test_whitening_flattens_the_spectrum_and_trusts_no_direction_below_the_noise():
    quiet, loud = replace(UNIT, noise_multiplier=QUIET), replace(UNIT, noise_multiplier=100.0 * N)
    moments = noisy_moments([X], D, quiet, key_from_seed(2))
    before = np.linalg.eigvalsh(moments / N)
    half = compute_whitening(quiet, moments, N)
    np.testing.assert_allclose(
        np.linalg.eigvalsh(half @ (moments / N) @ half), before[-1], rtol=1e-4
    )
    np.testing.assert_allclose(compute_whitening(loud, moments, N), np.eye(D), atol=0.01)
    negative = compute_whitening(li.PrivateCovariance(1.0, 0.35), -moments, N)
    assert np.isfinite(negative).all() and (np.linalg.eigvalsh(negative) > 0).all()
    assert np.linalg.norm(whiten_rows(quiet, X, half).astype(np.float64), axis=1).max() <= 1


def test_rows_that_are_clipped_keep_their_lengths_and_have_a_mean_square_of_one():
    quiet = replace(CLIPPED, noise_multiplier=QUIET)
    matrix = compute_whitening(quiet, noisy_moments([X], D, quiet, key_from_seed(2)), N)
    rows = whiten_rows(quiet, X, matrix).astype(np.float64)
    assert (rows**2).sum(1).mean() == pytest.approx(1.0, rel=1e-4)
    np.testing.assert_allclose(rows.T @ rows / N, np.eye(D) / D, atol=1e-4)
    np.testing.assert_allclose(rows, short_rows(quiet, X).astype(float) @ matrix, atol=1e-5)
    assert np.linalg.norm(rows, axis=1).max() > 1.5, (
        "the loss's row_norm clips them, and nothing before"
    )
    loud, nothing = replace(CLIPPED, noise_multiplier=0.5 * N), np.zeros((D, D))
    # mean squares below the noise's part in them, z sqrt d / n = 1, count as that: no row is blown
    # up by it
    np.testing.assert_allclose(
        np.linalg.eigvalsh(compute_whitening(loud, nothing, N)), 1.0, rtol=1e-6
    )
    assert np.isfinite(compute_whitening(loud, -np.eye(D), N)).all()


def test_cosine_features_are_bounded_and_approximate_a_gaussian_kernel():
    part = CosineFeatures(1.0, count=4000, bandwidth=0.8, weight=0.5, seed=3)
    found, unit = cosines(part, X), unit_rows(X).astype(np.float64)
    assert (
        found.shape == (N, 4000)
        and np.linalg.norm(found, axis=1).max() <= part.longest == 0.5 * 2**0.5
    )
    apart = ((unit[:, None] - unit[None]) ** 2).sum(2)
    np.testing.assert_allclose(found @ found.T / 0.25, np.exp(-apart / (2 * 0.8**2)), atol=0.08)
    assert directions(part, D)[0].std() == pytest.approx(1 / 0.8, rel=0.02)
    assert (cosines(replace(part, seed=4), X) != found).any() and (cosines(part, X) == found).all()


def test_cosine_features_of_a_seed_stay_what_they_are():
    """Stored models have the seed alone: another version must make the same directions of it."""
    part = CosineFeatures(1.0, count=3, bandwidth=0.5, weight=0.5, seed=7)
    matrix, phases = directions(part, 2)
    kept = [
        [-2.435143916451687, -0.947286239486239, 0.4958423380989532],
        [-3.8522618500301884, 1.529360725400764, 2.8584674499106453],
    ]
    np.testing.assert_allclose(matrix, kept, rtol=1e-12)
    np.testing.assert_allclose(
        phases, [1.0905782766767886, 4.671182325682524, 2.4840994192740378], rtol=1e-12
    )
    found = cosines(part, np.array([[0.6, 0.8]], np.float32))
    np.testing.assert_allclose(
        found, 0.5 * (2 / 3) ** 0.5 * np.cos([[0.6, 0.8]] @ matrix + phases), atol=1e-5
    )


def test_one_row_moves_the_mean_of_cosine_features_by_its_own():
    part, key = CosineFeatures(2.0, count=64), key_from_seed(1)
    one, two = noisy_cosines([X], N, part, key), noisy_cosines([X[:40], X[41:]], N, part, key)
    np.testing.assert_allclose((one - two) * N, cosines(part, X[40:41])[0], atol=1e-12)
    drawn = np.array([noisy_cosines([], N, part, key_from_seed(seed)) for seed in range(60)])
    assert drawn.std() == pytest.approx(2.0 * part.longest / N, rel=0.05)
    assert li.account(
        li.Run(
            n=N,
            steps=1,
            step_size=1.0,
            loss=li.Logistic(),
            noise=li.NoiseMultiplier(1e6),
            preprocessing=(part,),
        )
    ).curve("composition-gdp").mu == pytest.approx(0.5, rel=1e-2)


def test_rows_become_wider_by_cosine_features():
    part = CosineFeatures(QUIET, count=6)
    run = li.Run(
        n=N,
        steps=5,
        step_size=0.5,
        noise=li.NoiseMultiplier(0.0),
        loss=li.Softmax(classes=3, intercept=0.2),
        preprocessing=(li.PrivateMean(QUIET, 2.0), part, li.PrivateCovariance(QUIET, 0.25)),
    )
    model = execute(run, X, Y, key_from_seed(3))
    assert model.weights.shape == (3, D + 6 + 1) == (3, columns(run.preprocessing, D) + 1)
    mean, phi, matrix = model.released
    centred = X * np.minimum(1, 2 / np.linalg.norm(X, axis=1))[:, None] - mean
    wide = with_cosines(part, centred, phi)
    np.testing.assert_allclose(wide[:, D:].mean(axis=0), 0, atol=1e-5)
    rows = whiten_rows(run.preprocessing[-1], wide, matrix).astype(np.float64)
    np.testing.assert_allclose(
        scores(run, model, X),
        rows @ model.weights[:, :-1].T + 0.2 * model.weights[:, -1],
        rtol=1e-5,
        atol=1e-6,
    )
    plain = li.Run(n=N, steps=5, step_size=0.5, noise=li.NoiseMultiplier(0.0), loss=run.loss)
    np.testing.assert_allclose(
        Trainer(plain).fit(rows, Y, key_from_seed(3)), model.weights, rtol=1e-4, atol=1e-6
    )


def test_a_run_applies_its_parts_in_order_in_training_and_prediction():
    run = li.Run(
        n=N,
        steps=4,
        step_size=0.5,
        noise=li.NoiseMultiplier(0.0),
        loss=li.Softmax(classes=3, intercept=0.2),
        preprocessing=(li.PrivateMean(QUIET, 2.0), li.PrivateCovariance(QUIET, 0.35)),
    )
    model = execute(run, X, Y, key_from_seed(3))
    mean, matrix = model.released
    clipped = X * np.minimum(1, 2 / np.linalg.norm(X, axis=1))[:, None]
    np.testing.assert_allclose(mean, clipped.mean(0), atol=1e-5)
    unit = (clipped - mean) / np.linalg.norm(clipped - mean, axis=1)[:, None]
    values, vectors = np.linalg.eigh(unit.T @ unit / N)
    np.testing.assert_allclose(
        matrix, (vectors * (values / values[-1]) ** -0.35) @ vectors.T, rtol=1e-3, atol=1e-3
    )
    rows = unit @ matrix
    rows /= np.linalg.norm(rows, axis=1)[:, None]
    np.testing.assert_allclose(prepare_rows(X, run.preprocessing, model.released), rows, atol=1e-4)
    found = rows @ model.weights[:, :-1].T + 0.2 * model.weights[:, -1]
    np.testing.assert_allclose(scores(run, model, X), found, atol=1e-3)
    only = replace(run, preprocessing=(li.PrivateMean(QUIET, 2.0), li.UnitRows()))
    np.testing.assert_allclose(
        prepare_rows(X, only.preprocessing, (mean, np.zeros(0))), unit, atol=1e-5
    )


@pytest.mark.parametrize("batching", [li.FullBatch(), li.RandomAllocation(30)])
def test_whitened_rows_are_clipped_by_the_loss_in_training_and_prediction(batching):
    run = li.Run(
        n=N,
        steps=8,
        step_size=0.5,
        noise=li.NoiseMultiplier(0.0),
        batching=batching,
        loss=li.Softmax(classes=3, row_norm=1.5, intercept=0.3),
        preprocessing=(li.PrivateMean(QUIET, 2.0), li.PrivateCovariance(QUIET, 0.35, row_norm=1.0)),
    )
    key = key_from_seed(3)
    model = execute(run, X, Y, key)
    mean, matrix = model.released
    centred = X * np.minimum(1, 2 / np.linalg.norm(X, axis=1))[:, None] - mean
    rows = centred * np.minimum(1, 1 / np.linalg.norm(centred, axis=1))[:, None] @ matrix
    norms = np.linalg.norm(rows, axis=1)
    assert (norms > 1.5).any() and (norms < 1.0).any()
    rows *= np.minimum(1, 1.5 / norms)[:, None]
    np.testing.assert_allclose(
        scores(run, model, X),
        rows @ model.weights[:, :-1].T + 0.3 * model.weights[:, -1],
        atol=1e-4,
    )
    plain = replace(run, preprocessing=())
    np.testing.assert_allclose(
        Trainer(plain).fit(rows.astype(np.float32), Y, key), model.weights, atol=1e-4
    )


@pytest.mark.parametrize(
    "batching", [li.FullBatch(), li.Cyclic(50), li.Permuted(50), li.Reshuffled(50)]
)
def test_the_executed_steps_follow_what_was_measured(batching):
    loss = li.Softmax(classes=3, intercept=0.2)
    run = li.Run(
        n=N,
        steps=6,
        step_size=li.RelativeToSmooth(1.5),
        noise=li.NoiseMultiplier(0.1),
        batching=batching,
        loss=loss,
        preprocessing=(li.PrivateMean(QUIET, 2.0), li.TopEigenvalue(QUIET, 1e-6, 1e-3)),
    )
    key = key_from_seed(4)
    model = execute(run, X, Y, key)
    (eigenvalue,) = model.released[-1]
    rows = np.column_stack((prepare_rows(X, run.preprocessing, model.released), np.full(N, 0.2)))
    rows[:, :-1] *= np.minimum(1, 1 / np.linalg.norm(rows[:, :-1], axis=1))[:, None]
    if isinstance(batching, li.Permuted):
        with jax.enable_x64(True):
            rows = rows[np.argsort(np.asarray(places(run, key)))]
    fixed = isinstance(batching, li.Cyclic | li.Permuted)
    blocks = [rows[i : i + 50] for i in range(0, N, 50)] if fixed else [rows]
    top = max(np.linalg.eigvalsh(block.T @ block)[-1] for block in blocks)
    assert eigenvalue == pytest.approx(top, rel=1e-4)
    assert eigenvalue >= top * (1 - 2.0**-18), "rows are clipped to a little less"
    done = run.with_top_eigenvalue(float(eigenvalue), D + 1)
    if not isinstance(batching, li.Reshuffled):
        assert done.first_step == pytest.approx(1.5 / (0.5 * top / run.divisor), rel=1e-3)
    else:
        assert done.first_step < 1.5 / (0.5 * top / N), (
            "a drawn batch may have more curvature than the mean of all"
        )
    plain = replace(done, preprocessing=run.preprocessing[:-1])
    np.testing.assert_array_equal(model.weights, _weights(plain, model, key))


def _weights(run, model, key):
    return Trainer(run).fit(X, Y, key, released=model.released[:-1])


def test_the_released_eigenvalue_is_shifted_noisy_and_clamped():
    # 400 draws: the mean within 4 standard deviations of it, a fifteenth of the shift; the
    # deviation within 4.5
    drawn = np.array(
        [release_eigenvalue(10.0, 2.0, 3.0, 0.5, 1e9, key_from_seed(s)) for s in range(400)]
    )
    assert drawn.mean() == pytest.approx(16.0, abs=0.4) and drawn.std() == pytest.approx(
        2.0, rel=0.16
    )
    assert release_eigenvalue(10.0, 1e9, 5.0, 0.5, 12.0, key_from_seed(0)) == 12.0
    assert release_eigenvalue(0.0, 1.0, -1e6, 0.5, 12.0, key_from_seed(0)) == 0.5


def test_eigenvalues_of_batches_are_the_largest():
    parts = [[X[:30], X[30:50]], [X[50:]]]
    wanted = max(
        np.linalg.eigvalsh(block.astype(float).T @ block)[-1] for block in (X[:50], X[50:])
    )
    assert wanted <= top_eigenvalue(parts) <= wanted * (1 + 1e-8)
    run = li.Run(
        n=N,
        steps=1,
        step_size=1.0,
        noise=li.NoiseMultiplier(1.0),
        batching=li.Cyclic(50),
        loss=li.Softmax(classes=3),
    )
    found = [np.concatenate(list(batch)) for batch in rows_of_batches(run, X, (), None)]
    assert [len(batch) for batch in found] == [50, 50, 20]


@pytest.mark.parametrize("row_norm", [None, 1.0])
@pytest.mark.parametrize("by", [execute, execute_exactly])
def test_a_record_that_is_absent_is_in_no_sum_of_the_preparation(by, row_norm):
    """A row of zeros stands for no record only until a mean is taken from it: what is left of it
    would be -mean."""
    parts = (
        PrivateTargetMean(1e-5),
        li.PrivateMean(1e-5, 2.0),
        li.PrivateCovariance(1e-5, 0.35, row_norm),
    )
    run = li.Run(
        n=N,
        steps=2,
        step_size=0.1,
        noise=li.NoiseMultiplier(1.0),
        loss=li.HuberRidge(row_norm=1.5),
        preprocessing=parts,
    )
    target, gone = np.linspace(-1, 1, N), (17,)
    answer, mean, matrix = by(run, X, target, key_from_seed(0), absent=gone).released
    there = np.delete(X, gone, axis=0).astype(float)
    there = there * np.minimum(1, 2 / np.linalg.norm(there, axis=1))[:, None]
    np.testing.assert_allclose(answer, np.delete(target, gone).sum() / N, atol=1e-4)
    np.testing.assert_allclose(mean, there.sum(0) / N, atol=1e-4)
    short = short_rows(parts[2], there - mean).astype(float)
    np.testing.assert_allclose(
        matrix, compute_whitening(parts[2], short.T @ short, N), rtol=2e-3, atol=2e-3
    )
    other = X.copy()
    other[17] = 7.0
    again = by(run, other, target, key_from_seed(0), absent=gone).released
    for one, two in zip(again, (answer, mean, matrix), strict=True):
        np.testing.assert_array_equal(one, two)


def test_an_absent_record_is_in_no_eigenvalue():
    run = li.Run(
        n=N,
        steps=2,
        step_size=li.RelativeToSmooth(1.0),
        noise=li.NoiseMultiplier(1.0),
        loss=li.Logistic(),
        preprocessing=(li.PrivateMean(QUIET, 2.0), li.TopEigenvalue(QUIET)),
    )
    rows = [
        np.concatenate(list(batch)) for batch in rows_of_batches(run, X, (X.mean(0),), None, (3,))
    ]
    assert not rows[0][3].any() and rows[0][[2, 4]].any(axis=1).all() and len(rows[0]) == N


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_rows_that_are_divided_by_their_norms_are_finite(value):
    rows = X.copy()
    rows[3, 1] = value
    for parts in (
        (li.UnitRows(),),
        (li.PrivateCovariance(5.0),),
        (SquareRoots(), li.PrivateCovariance(5.0)),
        (CosineFeatures(5.0, 16),),
    ):
        run = li.Run(
            n=N,
            steps=2,
            step_size=0.1,
            noise=li.NoiseMultiplier(5.0),
            loss=LOSS,
            preprocessing=parts,
        )
        with pytest.raises(li.InputError, match="must be finite numbers"):
            execute(run, rows, Y, key_from_seed(0))


def test_runs_of_before_are_written_as_they_were():
    """Their hashes stand in certificates, checkpoints and ledgers."""
    before = '{"type": "PrivateCovariance", "noise_multiplier": 3.0, "power": 0.35}'
    assert json.loads(stable(preprocessing=(li.PrivateCovariance(3.0),)).to_json())["prelude"] == [
        json.loads(before)
    ]
    later = stable(preprocessing=(li.PrivateCovariance(3.0, row_norm=2.0),))
    assert (
        '"row_norm": 2.0' in later.to_json()
        and li.Run.from_dict(json.loads(later.to_json())) == later
    )


def stable(**changes):
    return li.Run(
        **(
            {
                "n": N,
                "steps": 6,
                "step_size": li.StableSteps((5e4,) * 5 + (1e3,)),
                "clip": 0.1,
                "loss": LOSS,
                "noise": li.NoiseMultiplier(0.1),
                "optimizer": li.HeavyBall(0.9),
                "preprocessing": (li.PrivateMean(QUIET, 2.0), li.PrivateCovariance(QUIET, 0.35)),
            }
            | changes
        )
    )


LOSS = li.Softmax(classes=3, intercept=0.2)


def test_stable_steps_of_rows_with_lengths_follow_their_mean_square():
    run = stable(
        loss=replace(LOSS, row_norm=9.0),
        preprocessing=(li.PrivateMean(QUIET, 2.0), li.PrivateCovariance(QUIET, 0.35, row_norm=3.0)),
    )
    model = execute(run, X, Y, key_from_seed(6))
    rows = prepare_rows(X, run.preprocessing, model.released).astype(np.float64)
    done = run.with_eigenvalues(np.linalg.eigvalsh(model.released[1]).tolist())
    exact = np.linalg.eigvalsh(rows.T @ rows / N)[-1]
    assert done.first_step == pytest.approx(2 * 1.9 / (0.5 * (exact + 0.04)), rel=1e-3)


def test_stable_steps_follow_the_released_second_moments():
    run, key = stable(), key_from_seed(6)
    model = execute(run, X, Y, key)
    rows = prepare_rows(X, run.preprocessing, model.released).astype(np.float64)
    top = 1 / (np.linalg.eigvalsh(model.released[1]) ** (2 - 1 / 0.35)).sum()
    exact = np.linalg.eigvalsh(rows.T @ rows / N)[-1]
    assert top == pytest.approx(exact, rel=0.3), "rows are divided by their norms after M"
    done = run.with_eigenvalues(np.linalg.eigvalsh(model.released[1]).tolist())
    first = 2 * 1.9 / (0.5 * (top + 0.04))
    assert done.first_step == pytest.approx(first, rel=1e-6)
    assert done.step_sizes[-1] == pytest.approx(first / 50, rel=1e-6), "all are scaled alike"
    np.testing.assert_array_equal(model.weights, Trainer(done).fit(X, Y, key, None, model.released))
    assert np.abs(model.weights).max() < 10 * first, (
        "steps of the stated length would be a hundred times longer"
    )
    short = replace(run, step_size=li.StableSteps((0.1,) * 6))
    assert short.with_eigenvalues([1.0] * D).step_sizes.tolist() == [0.1] * 6
    assert run.truncate(2).step_size == li.StableSteps(
        (5e4, 5e4)
    ) and run.total_time == pytest.approx(2.51e5)


def test_stable_steps_are_accounted_without_their_lengths():
    run = stable(batching=li.RandomAllocation(12))
    found = li.account(run)
    assert {v.theorem.name for v in found.certifying} == {
        "composition-gdp",
        "random-allocation-pld",
    }
    shorter = li.account(replace(run, step_size=li.StableSteps((1e-3,) * 6)))
    assert shorter.epsilon(1e-5) == found.epsilon(1e-5)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"preprocessing": (li.PrivateCovariance(1.0), li.PrivateMean(1.0, 1.0))},
            "as the last part of the preprocessing",
        ),
        ({"preprocessing": ()}, "needs a PrivateCovariance"),
        ({"optimizer": None}, "optimizer must be HeavyBall"),
        ({"optimizer": li.Nesterov()}, "optimizer must be HeavyBall"),
        ({"noise": li.Langevin(1.0)}, "must not depend on"),
        ({"loss": li.KnownConstants()}, "must be a linear model's"),
        ({"steps": 5}, "one value for each of 5 steps"),
    ],
)
def test_stable_steps_are_refused_where_a_guarantee_would_depend_on_them(changes, words):
    with pytest.raises(li.InputError, match=words):
        stable(**changes)


def test_targets_are_centred_by_a_noisy_mean_of_clipped_targets():
    targets = np.concatenate((np.full(N - 20, 0.5), np.full(20, 9.0))).astype(np.float32)
    part = PrivateTargetMean(30.0, 1.0)
    # 400 draws: both within 4.5 standard deviations; without the clip the mean would be 1.3 more
    drawn = np.array(
        [noisy_target_mean((targets,), N, part, key_from_seed(s))[0] for s in range(400)]
    )
    assert drawn.mean() == pytest.approx((0.5 * (N - 20) + 20) / N, abs=0.056), "clipped to 1"
    assert drawn.std() == pytest.approx(30 / N, rel=0.16)
    one = targets.copy()
    one[0] = 0.0
    quiet = PrivateTargetMean(1.0, 1.0)
    moved = [noisy_target_mean((t,), N, quiet, key_from_seed(1))[0] * N for t in (targets, one)]
    assert moved[0] - moved[1] == pytest.approx(0.5)


def test_predictions_add_the_mean_of_the_targets():
    run = li.Run(
        n=N,
        steps=40,
        step_size=0.5,
        noise=li.NoiseMultiplier(0.0),
        loss=li.HuberRidge(residual_clip=0.1),
        preprocessing=(PrivateTargetMean(QUIET, 2.0), li.PrivateMean(QUIET, 2.0)),
    )
    targets = (0.7 + 0.05 * X[:, 0] / 3).astype(np.float32)
    model = execute(run, X, targets, key_from_seed(3))
    (mean,), rows = (
        model.released[0],
        prepare_rows(X, run.preprocessing, model.released).astype(np.float64),
    )
    assert mean == pytest.approx(targets.mean(), abs=1e-4)
    rows *= np.minimum(1, 1 / np.linalg.norm(rows, axis=1))[:, None]
    np.testing.assert_allclose(
        scores(run, model, X)[:, 0],
        rows @ model.weights[0, :-1] + model.weights[0, -1] + mean,
        atol=1e-5,
    )
    assert np.abs(scores(run, model, X)[:, 0] - targets).mean() < 0.03
    without = replace(run, preprocessing=run.preprocessing[1:])
    moved = Trainer(without).fit(
        X, targets - np.float32(mean), key_from_seed(3), None, model.released[1:]
    )
    np.testing.assert_allclose(model.weights, moved, atol=1e-6)


def test_a_target_mean_is_paid_for_and_for_regressions_only():
    run = li.Run(
        n=N,
        steps=4,
        step_size=0.5,
        noise=li.NoiseMultiplier(10.0),
        loss=li.HuberRidge(),
        preprocessing=(PrivateTargetMean(5.0),),
    )
    moved = {
        adjacency: curves_of_preprocessing(replace(run, adjacency=adjacency))[0].mu
        for adjacency in ("zero-out", "replace-one")
    }
    assert moved["zero-out"] == pytest.approx(0.2, rel=0.02) and moved["zero-out"] >= 0.2
    assert moved["replace-one"] == pytest.approx(2 * moved["zero-out"])
    with pytest.raises(li.InputError, match="targets of a regression only"):
        replace(run, loss=li.Logistic())
    with pytest.raises(li.InputError, match="one PrivateTargetMean"):
        replace(run, preprocessing=run.preprocessing * 2)


def test_an_audit_reads_the_steps_as_they_are_stated():
    found = auditable(stable())
    assert found.run.preprocessing == () and found.run.step_sizes[0] == 5e4
    assert {text.split()[0] for text in found.lacking} == {"preprocessing", "step_size"}


def test_an_audit_takes_the_public_smoothness_for_a_measured_one():
    loss = li.Softmax(classes=3, cap=0.1)
    run = li.Run(
        n=N,
        steps=6,
        step_size=li.RelativeToSmooth(1.5),
        noise=li.NoiseMultiplier(1.0),
        loss=loss,
        preprocessing=(li.PrivateMean(QUIET, 2.0), li.TopEigenvalue(QUIET)),
    )
    found = auditable(run)
    assert found.run.preprocessing == () and found.run.first_step == 1.5 / loss.facts().fact(
        "smooth"
    )
    assert {text.split()[0] for text in found.lacking} == {"preprocessing", "step_size"}


def test_roots_are_maps_of_single_records_with_a_public_norm():
    rows = np.array([[4.0, -9.0, 0.0, 1.0], [0.0, 0.0, 0.0, 0.0]])
    run = li.Run(
        n=N,
        steps=2,
        step_size=0.1,
        noise=li.NoiseMultiplier(1.0),
        loss=li.Logistic(),
        preprocessing=(SquareRoots(), li.PrivateMean(QUIET, 2.0)),
    )
    np.testing.assert_allclose(
        prepare_rows(rows, run.preprocessing[:1], (np.zeros(0),)), [[2, -3, 0, 1], [0, 0, 0, 0]]
    )
    assert len(curves_of_preprocessing(run)) == 1, "free"
    mean = execute(run, X, Y % 2, key_from_seed(1)).released[1]
    roots = np.sign(X) * np.sqrt(np.abs(X))
    roots *= np.minimum(1, 2 / np.linalg.norm(roots, axis=1))[:, None]
    np.testing.assert_allclose(mean, roots.mean(0), atol=1e-4)
    huge = X.astype(np.float64)
    huge[3] = 1e80
    assert np.isfinite(execute(run, huge, Y % 2, key_from_seed(1)).weights).all(), (
        "whether it trains tells of no record"
    )
    with pytest.raises(li.InputError, match="finite"):
        execute(run, np.where(X > 2, np.nan, X), Y % 2, key_from_seed(1))

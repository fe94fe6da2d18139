"""Exact sums and exact noise: whole numbers checked against Python's, the executed law, and resumed
runs."""

import math
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lastiterate as li
from lastiterate.accounting.accounted_run import ExactRun
from lastiterate.accounting.noise_calibration import calibrate_exactly
from lastiterate.curves.renyi import Rdp
from lastiterate.engine import exact_linear, execute, key_from_seed
from lastiterate.engine.checkpoint import Checkpoint, Key
from lastiterate.engine.exact_linear import (
    ExactLinear,
    Grid,
    exact_mean,
    exact_moments,
    exact_target_mean,
    execute_exactly,
    grid_of,
    moment_places,
    residual_norm,
    round_to_grid,
    row_places,
    whole_rows,
)
from lastiterate.engine.exact_noise import FINEST, DiscreteGaussian, draws_of, preparation_bits
from lastiterate.engine.linear_gradients import residuals
from lastiterate.engine.preprocessing import clip_rows
from lastiterate.engine.random import Bits, derive_key
from lastiterate.run.preprocessing import CosineFeatures, PrivateTargetMean, SquareRoots, UnitRows
from lastiterate.theorems.composition import composition_mu

LOSSES = [
    li.Logistic(row_norm=1.5, ridge=1e-2),
    li.Softmax(classes=3, row_norm=2.0),
    li.HuberRidge(residual_clip=0.5),
    li.Logistic(cap=0.3),
    li.Softmax(classes=3, cap=0.4),
]


def run_of(loss: object, **more: object) -> li.Run:
    return li.Run(
        **(dict(n=60, steps=12, step_size=0.3, noise=li.GradientNoise(0.05), loss=loss) | more)
    )


def records(loss: object) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x = (rng.normal(size=(60, 5)) * 3).astype(np.float32)
    return x, rng.uniform(-1, 1, 60) if isinstance(loss, li.HuberRidge) else rng.integers(0, 2, 60)


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: repr(loss)[:40])
def test_sums_are_those_of_whole_numbers(loss: object) -> None:
    """Every record's gradient recomputed alone and added as Python integers; each has norm at most
    L, exactly."""
    run = run_of(loss)
    grid, (x, y) = grid_of(run), records(loss)
    with jax.enable_x64(True):
        rows = round_to_grid(
            np.column_stack([x / 8, np.full(60, loss.intercept)]).astype(np.float32), loss, grid
        )
        model = ExactLinear.of(run, grid)
        theta = (
            np.random.default_rng(1).normal(size=(3 if isinstance(loss, li.Softmax) else 1, 6)) * 5
        )
        target = jnp.asarray(y if isinstance(loss, li.HuberRidge) else y.astype(np.int32))
        found = np.asarray(model.chunk_sum(theta, (jnp.asarray(rows), target)))
        total = np.zeros(theta.shape, dtype=object)
        bound = (Fraction(loss.row_norm) ** 2 + Fraction(loss.intercept) ** 2) * Fraction(
            residual_norm(loss)
        ) ** 2
        for i in range(60):
            one = np.asarray(
                model.chunk_sum(theta, (jnp.asarray(rows[i : i + 1]), target[i : i + 1]))
            )
            whole = [[int(Fraction(float(v)) / Fraction(grid.step)) for v in line] for line in one]
            assert all(Fraction(float(v)) % Fraction(grid.step) == 0 for v in one.ravel())
            squared = sum(v * v for line in whole for v in line) * Fraction(grid.step) ** 2
            assert squared <= bound * (1 + Fraction(1, 2**50))
            total = total + np.array(whole, dtype=object)
        assert [
            [int(Fraction(float(v)) / Fraction(grid.step)) for v in line] for line in found
        ] == total.tolist()
        plain = np.asarray(
            residuals(loss, jnp.asarray(theta) @ rows.astype(float).T, target)
        ) @ rows.astype(float)
        assert np.abs(found - plain).max() < 60 * 2.0**-grid.residuals * np.abs(rows).max()


def test_rows_round_toward_zero_and_are_checked() -> None:
    grid, loss = Grid(6, 10, 1), li.Logistic(row_norm=1.0, intercept=0.3)
    rows = np.array([[0.999, -0.03, 0.3], [-0.999, 0.031, 0.3], [0.8, 0.8, 0.3]], np.float32)
    found = round_to_grid(rows, loss, grid)
    assert (np.abs(found) <= np.abs(rows)).all() and (found * 64 == np.trunc(found * 64)).all()
    assert (found[2] == 0).all() and (found[:2] != 0).any(
        axis=1
    ).all()  # too long a row counts as none
    below = li.Logistic(row_norm=1.0, intercept=0.5 - 2.0**-40)  # single precision knows it as 0.5
    assert (
        round_to_grid(np.array([[0.0, below.intercept]], np.float32), below, grid)[0, 1]
        == 0.5 - 2.0**-6
    )


def test_noise_is_a_multiple_of_the_grid_with_the_runs_deviation() -> None:
    run = run_of(LOSSES[0], n=500, noise=li.GradientNoise(tuple(0.01 * (k + 1) for k in range(12))))
    grid = grid_of(run)
    draws = draws_of(run, grid.step, key_from_seed(0))(3, 6, 8, (4, 5000))
    assert (draws / grid.step == np.trunc(draws / grid.step)).all() and (draws[3:] == 0).all()
    for k in (3, 4, 5):
        assert draws[k - 3].std() == pytest.approx(float(run.noise_stds[k]) * run.divisor, rel=0.03)
    sigma = float(run.noise_stds[3]) * run.divisor / grid.step
    assert Rdp.linear(1 / (2 * sigma**2)).rdp(2.0) > 0 and DiscreteGaussian(sigma).sigma == sigma


@pytest.mark.parametrize("n", [50, 5000, 10**6])
def test_no_sum_can_leave_the_exact_numbers(n: int) -> None:
    for loss in LOSSES:
        run = run_of(loss, n=n)
        grid = grid_of(run)
        most = n * math.hypot(loss.row_norm, loss.intercept) * residual_norm(loss) + 20 * 0.05 * n
        assert most / grid.step <= 2**52 and grid.rows + grid.residuals > 20
    with pytest.raises(li.InputError, match="grid"):
        grid_of(run_of(li.Logistic(row_norm=2.0**22)))


@pytest.mark.parametrize("places", range(18, 28))
def test_squares_of_wide_residuals_stay_whole_numbers_of_64_bits(places: int) -> None:
    """Long residuals take coarser grids, or are refused before anything is drawn."""
    run = run_of(
        li.HuberRidge(row_norm=1.0, residual_clip=1.01 * 2.0**places),
        n=20,
        noise=li.GradientNoise(1.0),
    )
    if places > 25:
        with pytest.raises(li.InputError, match="residual clips"):
            grid_of(run)
        return
    assert ExactLinear.of(run, grid_of(run)).most_squared < 2**62
    x = np.random.default_rng(0).normal(size=(20, 4))
    assert np.isfinite(execute_exactly(run, x, np.full(20, 1e9), key_from_seed(0)).weights).all()


@pytest.mark.parametrize(
    "batching",
    [
        li.FullBatch(),
        li.Cyclic(16),
        li.Permuted(16),
        li.Reshuffled(16),
        li.FixedSize(16),
        li.Poisson(0.2),
        li.BallsInBins(16),
        li.RandomAllocation(16),
    ],
    ids=lambda batching: type(batching).__name__,
)
def test_runs_are_executed_close_to_real_arithmetic(
    batching: object, tmp_path: Path, interrupted: Any
) -> None:
    """With almost no noise the exact run follows the same steps in float64; a resumed run has the
    same bits."""
    run = run_of(LOSSES[0], batching=batching, noise=li.GradientNoise(1e-9))
    x, y = records(LOSSES[0])
    found = execute_exactly(run, x, y, key_from_seed(2)).weights
    plain = execute(run, x, y, key_from_seed(2)).weights
    assert np.abs(found - plain).max() < 2e-4

    def kept() -> Checkpoint:
        return Checkpoint(tmp_path / "c", Key(bytes(32)), 0.0)

    with interrupted(6) as progress:
        execute_exactly(run, x, y, key_from_seed(2), progress, kept())
    again = execute_exactly(run, x, y, key_from_seed(2), None, kept())
    assert again.weights.tobytes() == found.tobytes()


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: repr(loss)[:40])
def test_clipped_gradients_keep_the_clip_as_whole_numbers(loss: object) -> None:
    run = run_of(loss, clip=0.2)
    grid, (x, y) = grid_of(run), records(loss)
    with jax.enable_x64(True):
        rows = round_to_grid(
            np.column_stack([x / 8, np.full(60, loss.intercept)]).astype(np.float32), loss, grid
        )
        model = ExactLinear.of(run, grid)
        theta = (
            np.random.default_rng(1).normal(size=(3 if isinstance(loss, li.Softmax) else 1, 6)) * 5
        )
        target = jnp.asarray(y if isinstance(loss, li.HuberRidge) else y.astype(np.int32))
        one = jax.jit(lambda row, answer: model.chunk_sum(theta, (row, answer)))
        norms = []
        for i in range(60):
            found = np.asarray(one(jnp.asarray(rows[i : i + 1]), target[i : i + 1])).ravel()
            assert sum(Fraction(float(v)) ** 2 for v in found) <= Fraction(run.clip) ** 2
            norms.append(math.sqrt((found**2).sum()))
        barred = replace(
            model, clip_squared=0.0
        )  # what is longer than the grid allows counts as none
        assert not np.asarray(barred.chunk_sum(theta, (jnp.asarray(rows), target))).any()
        free = np.asarray(residuals(loss, jnp.asarray(theta) @ rows.astype(float).T, target))
        lengths = np.linalg.norm(free, axis=0) * np.linalg.norm(rows.astype(float), axis=1)
        np.testing.assert_allclose(
            norms, np.minimum(lengths, run.clip), atol=3 * 2.0**-grid.residuals * 2
        )


PARTS = {
    "mean": (li.PrivateMean(1e-9, 1.0),),
    "covariance": (li.PrivateCovariance(1e-9, 0.3),),
    "clipped": (li.PrivateCovariance(1e-9, 0.3, row_norm=0.6),),
    "both": (li.PrivateMean(1e-9, 2.0), UnitRows(), li.PrivateCovariance(1e-9)),
    "roots": (SquareRoots(),),
}


@pytest.mark.parametrize("parts", PARTS)
def test_preparation_is_that_of_real_arithmetic(parts: str) -> None:
    run, (x, y) = (
        run_of(LOSSES[0], noise=li.GradientNoise(1e-9), preprocessing=PARTS[parts]),
        records(LOSSES[0]),
    )
    found, plain = (
        execute_exactly(run, x, y, key_from_seed(2)),
        execute(run, x, y, key_from_seed(2)),
    )
    assert len(found.released) == len(plain.released)
    for one, other in zip(found.released, plain.released, strict=True):
        np.testing.assert_allclose(one, other, atol=2e-3)
    assert np.abs(found.weights - plain.weights).max() < 2e-3


@pytest.mark.parametrize("norm", [0.3, 1.0, 1.5, 2.0, 3.0, 100.0])
def test_a_row_has_the_finest_places_that_its_norm_allows(norm: float) -> None:
    """A longer row has fewer places, so that all squared norms fit into the same integers."""
    places, finest = row_places(2, norm, 1e-6), exact_linear.FINEST
    assert places <= finest and norm * 2.0**places <= 2.0**finest
    assert places == finest or norm * 2.0 ** (places + 1) > 2.0**finest


def test_the_norm_of_a_gradient_is_checked_after_it_was_clipped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A clip that rounds up by one unit is found: squares are integers, and the bound is none."""
    run = run_of(LOSSES[0], clip=0.25)
    grid = grid_of(run)
    units, longest = np.array([[3, 1, 0, 2, 5, 1]]), 1000
    rows = jnp.asarray((units * 2.0**-grid.rows).astype(np.float32))
    # the bound is just below that of a residual of one more unit
    bound = float((longest + 1) ** 2 * (units**2).sum() - 1)
    exact = replace(ExactLinear.of(run, grid), clip_squared=bound)

    def sum_of(whole: int) -> float:
        monkeypatch.setattr(ExactLinear, "_clip", lambda *_: jnp.full((1, 1), float(whole)))
        with jax.enable_x64(True):
            chunk = (rows, jnp.ones(1, jnp.int32))
            return float(jnp.abs(exact.chunk_sum(jnp.zeros((1, 6)), chunk)).sum())

    assert sum_of(longest) > 0 and sum_of(longest + 1) == 0


def test_preparation_is_a_whole_number_with_its_noise() -> None:
    """Each released sum is a multiple of the grid; its noise has the deviations that are certified,
    off the diagonal 1/sqrt 2; one row moves it by no more than its norm, exactly."""
    rows = np.random.default_rng(3).normal(size=(50, 6)).astype(np.float32)
    z, places = 3.0, moment_places(50, 3.0)
    clean = exact_moments(
        [rows], 50, 6, li.PrivateCovariance(1e-12 + FINEST / 4.0**places), Bits(bytes(32), 0)
    )
    many = np.stack(
        [
            exact_moments([rows], 50, 6, li.PrivateCovariance(z), Bits(bytes(32), i))
            for i in range(400)
        ]
    )
    assert (many * 4.0**places == np.trunc(many * 4.0**places)).all() and (
        many == many.swapaxes(1, 2)
    ).all()
    noise = many - clean
    on, off = (
        np.diagonal(noise, axis1=1, axis2=2),
        noise[:, np.triu_indices(6, 1)[0], np.triu_indices(6, 1)[1]],
    )
    assert on.std() == pytest.approx(z, rel=0.05) and off.std() == pytest.approx(
        z / math.sqrt(2), rel=0.05
    )
    for norm in (1.0, 0.75):
        whole = whole_rows(clip_rows(rows * 3, norm), norm, 20)
        lengths = [sum(Fraction(int(v)) ** 2 for v in row) for row in whole]
        assert max(lengths) <= Fraction(norm) ** 2 * 4**20 < 1.01 * float(max(lengths))
    assert not whole_rows(
        np.full((1, 2), 0.8, np.float32), 1.0, 20
    ).any()  # too long a row counts as none
    for values in (
        [2.0**12, 2.0**12],
        [np.nan, 0.1],
        [np.inf, 0.1],
        [1e30, 0.0],
    ):  # whose squares int64 does not hold
        assert not whole_rows(np.array([values]), 1.0, 20).any()
    part = li.PrivateMean(2.0, 1.5)
    means = np.stack([exact_mean([rows], 50, 6, part, Bits(bytes(32), i)) for i in range(300)])
    assert means.std(axis=0).mean() * 50 == pytest.approx(3.0, rel=0.05)
    ends = [
        exact_target_mean(
            [np.linspace(-3, 3, 50)], 50, PrivateTargetMean(2.0, 0.5), Bits(bytes(32), i)
        )[0]
        for i in range(400)
    ]
    assert np.std(ends) * 50 == pytest.approx(1.0, rel=0.15) and abs(np.mean(ends)) < 4 * 0.02 / 20


@pytest.mark.parametrize(
    "batching",
    [li.FullBatch(), li.Permuted(16), li.Reshuffled(16), li.RandomAllocation(16)],
    ids=lambda batching: type(batching).__name__,
)
def test_all_iterates_end_with_the_last(batching: object) -> None:
    run = run_of(LOSSES[0], batching=batching, steps=11)
    x, y = records(LOSSES[0])
    found = execute_exactly(replace(run, release="all"), x, y, key_from_seed(2)).weights
    assert (
        found.shape[0] == 11
        and (found[-1] == execute_exactly(run, x, y, key_from_seed(2)).weights).all()
    )
    short = execute_exactly(replace(run, steps=7), x, y, key_from_seed(2)).weights
    assert (found[6] == short).all()


def test_preparation_is_paid_for_with_noise_of_its_own() -> None:
    run = run_of(
        LOSSES[0],
        noise=None,
        adjacency="replace-one",
        preprocessing=(li.PrivateMean(9.0, 1.0), UnitRows(), li.PrivateCovariance(7.0)),
    )
    found, bare = (
        calibrate_exactly(r, epsilon=2.0, delta=1e-6) for r in (run, replace(run, preprocessing=()))
    )
    assert found.epsilon(1e-6) <= 2.0 and found.run.first_noise > bare.run.first_noise
    spent = composition_mu(found.run) ** 2 + (2 / 9) ** 2 + 2 / 7**2
    assert (
        found.curve().rdp(3.0) == pytest.approx(3 * spent / 2, rel=0.02)
        and found.curve().rdp(3.0) >= 3 * spent / 2
    )
    assert len(found.to_dict(1e-6)["stated"]["charged"]) == 3
    with pytest.raises(li.InputError, match="preparation alone"):
        calibrate_exactly(
            replace(run, preprocessing=(li.PrivateMean(0.1, 1.0),)), epsilon=1.0, delta=1e-6
        )
    two = calibrate_exactly(replace(run, rows_per_unit=2), epsilon=8.0, delta=1e-6)
    assert 7.99 < two.epsilon(1e-6) <= 8.0 and any("unit" in text for text in two.all_caveats())
    key = np.asarray(key_from_seed(0))
    words = [preparation_bits(key, part).words(4).tolist() for part in (0, 1)]
    words += [Bits(derive_key(key.tobytes(), "exact noise"), k).words(4).tolist() for k in (0, 1)]
    assert len({tuple(word) for word in words}) == 4


def test_what_is_not_executed_exactly_is_refused() -> None:
    x, y = records(LOSSES[0])
    run = run_of(
        LOSSES[0], preprocessing=(li.TopEigenvalue(1.0),), step_size=li.RelativeToSmooth(1.0)
    )
    with pytest.raises(li.InputError, match="top eigenvalue"):
        execute_exactly(run, x, y)
    with pytest.raises(li.InputError, match="cosine features"):
        grid_of(run_of(LOSSES[0], preprocessing=(CosineFeatures(1.0),)))
    with pytest.raises(li.NotCertified, match="add-remove"):
        ExactRun(run_of(LOSSES[0], batching=li.Poisson(0.2), adjacency="add-remove"))


def test_the_certificate_is_the_discrete_gaussians(tmp_path: Path) -> None:
    run = run_of(LOSSES[0], batching=li.Permuted(20), noise=None)
    found = calibrate_exactly(run, epsilon=1.0, delta=1e-6)
    assert 0.9999 < found.epsilon(1e-6) <= 1.0
    assert found.curve().rdp(3.0) == pytest.approx(3 * composition_mu(found.run) ** 2 / 2)
    assert not any("double precision" in text for text in found.all_caveats())
    assert any("not proved" in text for text in found.all_caveats())
    for bad in (
        run_of(li.KnownConstants(li.LossFacts(lipschitz=1.0))),
        run_of(LOSSES[0], noise=li.GradientNoise(0.0)),
    ):
        with pytest.raises((li.NotCertified, li.InputError)):
            ExactRun(bad)


def test_models_with_exact_noise_are_trained_saved_and_verified(tmp_path: Path) -> None:
    import json

    from typer.testing import CliRunner

    from lastiterate.cli import app

    x, y = records(LOSSES[0])
    run = run_of(LOSSES[0], batching=li.Permuted(20), noise=None)
    model = li.train(run, (x, y), epsilon=2.0, delta=1e-6, secure_noise=True)
    model.save(tmp_path / "m")
    assert (
        li.verify(tmp_path / "m").holds
        and (li.load(tmp_path / "m").predict(x) == model.predict(x)).all()
    )
    assert li.load(tmp_path / "m").certificate.epsilon(1e-6) <= 2.0
    stored = json.loads((tmp_path / "m" / "certificate.json").read_text())
    for change in (dict(epsilon=0.1), dict(caveats=[])):
        (tmp_path / "m" / "certificate.json").write_text(json.dumps(stored | change))
        assert not li.verify(tmp_path / "m").holds
    (tmp_path / "m" / "certificate.json").write_text(json.dumps(stored | dict(more=1)))
    with pytest.raises(li.InputError, match=r"certificate\.schema\.json"):
        li.verify(tmp_path / "m")
    words = ["train", "iris", "--epsilon", "4", "--secure-noise", "--out", str(tmp_path / "n")]
    found = CliRunner().invoke(app, [*words, "--algorithm", "permuted-sgd"])
    assert found.exit_code == 0 and "exact discrete Gaussian" in found.output, found.output
    assert li.verify(tmp_path / "n").holds

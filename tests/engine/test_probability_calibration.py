"""Noisy Newton rounds after the last step: what a record adds to them, what neighbours move, and
what is released."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize

import lastiterate as li
from lastiterate.engine import (
    exact_linear,
    key_from_seed,
    keys_from_seed,
    linear_model,
    preprocessing,
    probability_calibration,
)
from lastiterate.engine.exact_linear import exact_rounds, execute_exactly
from lastiterate.engine.linear_model import execute, execute_units
from lastiterate.engine.preprocessing import TrainedWeights, scores
from lastiterate.engine.probability_calibration import (
    OF_ONE,
    OF_SEVERAL,
    Queries,
    calibrate_weights,
    make_rounds,
)
from lastiterate.engine.streaming.buffers import Arrays
from lastiterate.engine.streaming.execution import execute_streaming
from lastiterate.errors import InputError
from lastiterate.release.units import unit_records
from lastiterate.run.measured_smoothness import typical_norm

OUTPUTS = (1, 2, 3, 10)


def queries(outputs, seed=0, columns=5):
    rng = np.random.default_rng(seed)
    loss = li.Logistic(row_norm=1.5) if outputs == 1 else li.Softmax(classes=outputs, row_norm=1.5)
    return Queries(loss, rng.normal(size=(outputs, columns + 1)), loss.row_norm)


def adversarial(found, rng, records=300):
    """Scores, class indices and parameters at the edges of what can happen: far scores, sure and
    split chances."""
    outputs = len(found.weights)
    far = (
        rng.choice([-1e9, -1.0, -0.999, 0.0, 0.5, 1.0, 1e9], size=(records, outputs)) * found.reach
    )
    values = np.where(
        rng.random((records, 1)) < 0.5, far, rng.normal(size=(records, outputs)) * found.reach
    )
    parameters = rng.choice([-40.0, -1.0, 0.0, 0.3, 1.0, 40.0], size=found.parameters)
    return values + found.biases, rng.integers(0, max(2, outputs), records), parameters


def longest(outputs, tries=60):
    """The longest vector that a search finds."""
    rng, found = np.random.default_rng(outputs), queries(outputs)
    return max(
        float(np.linalg.norm(found.vectors(*adversarial(found, rng)), axis=1).max())
        for _ in range(tries)
    )


@pytest.mark.parametrize("outputs", OUTPUTS)
def test_no_record_adds_more_than_one(outputs):
    assert 0.99 < longest(outputs) <= 1


def test_scores_reach_as_far_as_rows_typically_are_long():
    """A reach in bounds of rows, which clipped rows seldom come near, would leave the slope three
    times the noise."""
    run = li.Run(
        n=60, steps=1, step_size=0.1, loss=li.Logistic(row_norm=3.0), noise=li.NoiseMultiplier(1.0)
    )
    parts = li.PrivateCovariance(9.0), li.PrivateCovariance(9.0, row_norm=2.0)
    found = [
        typical_norm(replace(run, preprocessing=preprocessing))
        for preprocessing in ((), parts[:1], parts[1:])
    ]
    assert found == [3.0, 3.0, 1.0]
    weights = np.ones((1, 5))
    assert Queries(run.loss, weights, 1.0).reach == pytest.approx(2.5 * 2 / 4**0.5)
    assert Queries(run.loss, weights, 3.0).reach == pytest.approx(
        3 * Queries(run.loss, weights, 1.0).reach
    )


@pytest.mark.parametrize("outputs", OUTPUTS)
def test_gradient_and_hessian_each_keep_their_bound_and_attain_it(outputs):
    rng, found, most = np.random.default_rng(outputs), queries(outputs), np.zeros(2)
    for _ in range(200):
        vectors = found.vectors(*adversarial(found, rng, 50))
        parts = vectors[:, : found.parameters], vectors[:, found.parameters :]
        most = np.maximum(most, [np.linalg.norm(part, axis=1).max() for part in parts])
    quarter = (OF_ONE if outputs == 1 else OF_SEVERAL) / 4
    assert most[0] <= 1 and most[1] <= quarter and most[0] > 0.99 and most[1] > 0.95 * quarter


MUTANTS = {
    "scores are not clipped": lambda patch: patch.setattr(
        probability_calibration.np, "clip", lambda values, *_: values
    ),
    "rows are longer": lambda patch: patch.setattr(
        probability_calibration.math, "sqrt", lambda value: value**0.5 / 1.2
    ),
    "the vector is longer": lambda patch: patch.setattr(probability_calibration, "UNIT", 1.1),
}


@pytest.mark.parametrize("outputs", OUTPUTS)
@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_broken_sensitivity_is_noticed(outputs, mutant, monkeypatch):
    MUTANTS[mutant](monkeypatch)
    assert longest(outputs) > 1


def test_the_bounds_hold_for_any_vectors_that_are_no_further_apart_than_one():
    rng, most, joint = np.random.default_rng(0), 0.0, 0.0
    for _ in range(4000):
        points = rng.normal(size=(rng.integers(2, 8), rng.integers(1, 8))) * rng.choice(
            [1.0, 0.1, 0.01], size=1
        )
        points /= np.linalg.norm(points[:, None] - points, axis=2).max()
        chance = rng.dirichlet(np.full(len(points), rng.choice([0.1, 1.0, 10.0])))
        centred = points - chance @ points
        squared = np.linalg.norm((centred * chance[:, None]).T @ centred) ** 2
        gradient = ((chance @ points - points) ** 2).sum(axis=1).max()
        most, joint = max(most, squared), max(joint, gradient + OF_SEVERAL**2 * squared)
    assert 0.249**2 < most <= 0.25**2 * (1 + 1e-12) and 0.99 < joint <= 1 + 1e-12
    r = np.linspace(1e-6, 1, 10**6, endpoint=False)
    golden = (1 + 5**0.5) / 2
    assert OF_ONE**2 <= golden**5 == pytest.approx(((1 + r) / (r**2 * (1 - r))).min(), rel=1e-9)


def log_loss(found, parameters, values, target):
    """The log loss that a record's derivatives are of, written with JAX."""
    reached = (values - found.biases) / found.reach
    if len(found.weights) == 1:
        score = (jnp.clip(reached[0], -1, 1) * parameters[0] + parameters[1]) / jnp.sqrt(2)
        return jnp.logaddexp(0, score) - target * score
    middle = (reached.max() + reached.min()) / 2
    each = (jnp.clip(reached - middle, -1, 1) / jnp.sqrt(2) * parameters[0] + parameters[1:]) / 2
    return jax.nn.logsumexp(each) - each[target]


@pytest.mark.parametrize("outputs", OUTPUTS)
def test_vectors_hold_the_derivatives_of_the_log_loss(outputs):
    rng, found = np.random.default_rng(1), queries(outputs)
    values, target = (
        rng.normal(size=(40, outputs)) * found.reach,
        rng.integers(0, max(2, outputs), 40),
    )
    parameters = rng.normal(size=found.parameters)
    gradient, hessian = found.derivatives(found.vectors(values, target, parameters).sum(axis=0))
    with jax.enable_x64(True):

        def total(w):
            return jax.vmap(lambda one, y: log_loss(found, w, one, y))(
                jnp.asarray(values), jnp.asarray(target)
            ).sum()

        both = jax.jit(lambda w: (jax.grad(total)(w), jax.hessian(total)(w)))(parameters)
        assert np.allclose(both[0], gradient, rtol=1e-5, atol=1e-6)
        assert np.allclose(both[1], hessian, rtol=1e-5, atol=1e-6)


def moved_squared(run, weights, one, others, noisy_key):
    """The sum over rounds of the squared distance between two data sets' sums in deviations of the
    noise, both after the same releases; the largest for any of the ``others``."""
    sums = {}

    def recorded(name, base):
        def noisy(number, std, size, slices):
            parts = list(slices)
            sums[name, number] = sum(part.sum(axis=0) for part in parts) / std
            return base(number, std, size, iter(parts))

        return noisy

    released = {}

    def first(number, std, size, slices):
        released[number] = make_rounds(noisy_key)(number, std, size, slices)
        return released[number]

    calibrate_weights(run, weights, lambda: iter([one]), recorded("one", first))
    moved = []
    for other in others:
        calibrate_weights(
            run,
            weights,
            partial(iter, [other]),
            recorded("other", lambda number, *_: released[number]),
        )
        moved.append(
            sum(
                float(np.square(sums["one", r] - sums["other", r]).sum())
                for r in range(run.probability_calibration.rounds)
            )
        )
    return max(moved)


@pytest.mark.parametrize("adjacency", ["zero-out", "replace-one"])
@pytest.mark.parametrize("outputs", OUTPUTS)
def test_neighbours_move_all_rounds_by_no_more_than_is_charged(outputs, adjacency):
    found, rng, worst = queries(outputs, 3), np.random.default_rng(3), 0.0
    run = li.Run(
        n=7,
        steps=1,
        step_size=0.1,
        noise=li.NoiseMultiplier(1.0),
        loss=found.loss,
        adjacency=adjacency,
        probability_calibration=li.Calibration(0.3),
    )
    charged = (
        run.probability_calibration.sensitivity(adjacency)
        / run.probability_calibration.noise_multiplier
    )
    for key in keys_from_seed(
        0, 10
    ):  # six neighbours of each data set: its noise is most of the work
        values, target, _ = adversarial(found, rng, run.n)
        others = []
        for i in range(6):
            kept = np.delete(values, i, axis=0), np.delete(target, i)
            if adjacency == "replace-one":
                changed = adversarial(found, rng, 1)
                kept = np.vstack((changed[0], kept[0])), np.append(changed[1], kept[1])
            others.append(kept)
        worst = max(worst, moved_squared(run, found.weights, (values, target), others, key))
    assert 0.1 < worst**0.5 / charged <= 1


@pytest.mark.parametrize("make", [make_rounds, lambda key: exact_rounds(20, key)])
def test_the_noise_of_every_round_is_the_described_one_and_its_own(make):
    """80 keys: 640 numbers of every round, each figure within 5 of its standard deviations. Noise
    of another deviation is seen from 15% on, and rounds that share their noise are correlated by 1.
    """
    stds, drawn = li.Calibration(3.0).stds, []
    for key in keys_from_seed(1, 80):
        noisy = make(key)
        drawn.append([noisy(r, std, 8, iter([np.zeros((2, 8))])) for r, std in enumerate(stds)])
    standard = np.array(drawn) / stds[:, None]  # (keys, rounds, 8)
    assert np.abs(standard.mean(axis=(0, 2))).max() < 5 / 25
    assert np.abs(standard.std(axis=(0, 2)) - 1).max() < 5 / 36
    flat = standard.reshape(len(drawn), -1)
    assert np.abs(np.corrcoef(flat.T) - np.eye(flat.shape[1])).max() < 0.6
    assert sum(stds**-2.0) == pytest.approx(1 / 9)


N, COLUMNS = 4000, 4


def made(classes=2, seed=0, n=N):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, COLUMNS)) / 4
    each = x @ rng.normal(size=(COLUMNS, classes)) * 3 + np.linspace(0, 1.5, classes)
    return x, (each + rng.gumbel(size=each.shape)).argmax(axis=1)


def described(classes=2, z=1e-3, **more):
    loss = li.Logistic() if classes == 2 else li.Softmax(classes=classes)
    return li.Run(
        **dict(
            n=N,
            steps=60,
            step_size=4.0,
            clip=0.3,
            loss=loss,
            noise=li.NoiseMultiplier(0.1),
            probability_calibration=li.Calibration(z),
        )
        | more
    )


def loss_of(run, model, x, y):
    found = scores(run, model, x)
    found = np.column_stack((np.zeros(len(found)), found)) if found.shape[1] == 1 else found
    return float((np.log(np.exp(found).sum(1)) - found[np.arange(len(y)), y]).mean())


@pytest.mark.parametrize("classes", [2, 4])
def test_with_hardly_any_noise_the_best_slope_and_biases_are_found(classes):
    (x, y), run = made(classes), described(classes)
    plain = execute(replace(run, probability_calibration=None), x, y, key_from_seed(1))
    model = execute(run, x, y, key_from_seed(1))
    size = len(plain.weights)

    def other(values):
        weights = plain.weights * values[0]
        weights[:, -1] = values[1:]
        return loss_of(run, TrainedWeights(weights), x, y)

    best = minimize(other, np.append(1.0, plain.weights[:, -1]), method="BFGS").fun
    assert loss_of(run, model, x, y) <= best + 2e-3 < loss_of(run, plain, x, y)
    ratio = model.weights[:, :-1] / plain.weights[:, :-1]
    assert np.ptp(ratio) < 1e-9 and ratio[0, 0] > 0, "one slope for all"
    assert model.weights.shape == (size, COLUMNS + 1)


def test_noise_alone_neither_turns_answers_around_nor_overflows():
    x, y = made()
    for key in keys_from_seed(2, 8):
        run = described(z=1e6)
        model = execute(run, x, y, key)
        plain = execute(replace(run, probability_calibration=None), x, y, key)
        assert np.isfinite(model.weights).all()
        slope = model.weights[0, 0] / plain.weights[0, 0]
        assert 0.02 * (1 - 1e-9) <= slope <= 50 * (1 + 1e-9)


@pytest.mark.parametrize("outputs", [1, 3])
def test_weights_whose_squares_overflow_are_refused(outputs):
    """Such a run diverged; its scores have no reach, and what was made of them were no numbers."""
    weights = np.full((outputs, 5), 1e160)
    run = described(outputs if outputs > 1 else 2)
    with pytest.raises(InputError, match="makes the run diverge"):
        calibrate_weights(run, weights, lambda: iter(()), make_rounds(key_from_seed(0)))


def test_records_in_pieces_are_calibrated_like_those_in_memory():
    (x, y), run = made(3), described(3, z=5.0)
    here = execute(run, x, y, key_from_seed(4))
    pieces = execute_streaming(run, Arrays((x, y)), key_from_seed(4))
    assert np.allclose(here.weights, pieces.weights, rtol=1e-6, atol=1e-9)
    assert not np.allclose(here.weights, execute(run, x, y, key_from_seed(5)).weights, rtol=1e-3)


def test_an_absent_record_adds_nothing():
    (x, y), run = made(), described(z=5.0)
    x[:3], y[:3] = 0, 0
    without = execute(replace(run, n=N), x, y, key_from_seed(4), absent=(0, 1, 2))
    assert not np.array_equal(without.weights, execute(run, x, y, key_from_seed(4)).weights)
    plain = execute(
        replace(run, probability_calibration=None), x, y, key_from_seed(4), absent=(0, 1, 2)
    )
    kept = slice(3, None)
    alone = calibrate_weights(
        run,
        plain.weights,
        lambda: iter([(scores(run, plain, x[kept]), y[kept])]),
        make_rounds(key_from_seed(4)),
    )
    assert np.allclose(without.weights, alone, rtol=1e-9)


@pytest.mark.parametrize("executed", [execute, execute_exactly])
@pytest.mark.parametrize(
    "batching", [li.FullBatch(), li.Cyclic(30), li.Permuted(30), li.RandomAllocation(30)]
)
def test_every_record_is_scored_once_as_steps_read_it(batching, executed, monkeypatch):
    """Batches put records into other places, with empty ones between them; rows are longer than is
    allowed."""
    (x, y), absent, seen, told = made(3, n=1100), (2, 700), [], []
    run = described(3, n=1100, steps=2, batching=batching, loss=li.Softmax(classes=3, row_norm=0.3))
    x[list(absent)] = y[list(absent)] = 0
    monkeypatch.setattr(
        linear_model if executed is execute else exact_linear,
        "calibrate_weights",
        lambda run, weights, scored, noisy: (seen.extend(scored()), told.append(noisy), weights)[2],
    )
    model = executed(run, x, y, key_from_seed(6), absent=absent)
    kept = np.delete(np.arange(1100), absent)
    np.testing.assert_allclose(
        np.vstack([values for values, _ in seen]),
        scores(run, model, x[kept]),
        rtol=1e-12,
        atol=0 if executed is execute else 1e-5,  # of rows on a grid
    )
    np.testing.assert_array_equal(np.concatenate([target for _, target in seen]), y[kept])
    rounds = (
        make_rounds(key_from_seed(6))
        if executed is execute
        else exact_rounds(1100, key_from_seed(6))
    )
    first = [noisy(0, 0.1, 6, iter([np.zeros((1, 6))])) for noisy in (told[0], rounds)]
    np.testing.assert_array_equal(*first)
    assert first[0].all(), "the noise of the run's own key"


def test_every_row_of_a_unit_is_scored_once(monkeypatch):
    (x, y), seen, unit = made(n=50), [], np.repeat(np.arange(25), 2)
    x, y, unit = x[1:], y[1:], unit[1:]
    run = described(n=25, steps=2, batching=li.Permuted(4), rows_per_record=2)
    monkeypatch.setattr(
        linear_model,
        "calibrate_weights",
        lambda run, weights, scored, noisy: (seen.extend(scored()), weights)[1],
    )
    model = execute_units(run, unit_records((x, y), unit, 2), key_from_seed(6))
    found = np.column_stack(
        (np.vstack([values for values, _ in seen]), np.concatenate([one for _, one in seen]))
    )
    expected = np.column_stack((scores(run, model, x), y))
    expected = np.vstack((expected[:1], expected))  # the first unit's one row has both places
    np.testing.assert_allclose(
        *(np.sort(both.view(complex).ravel()) for both in (found, expected)), rtol=1e-12
    )


def test_a_unit_adds_the_mean_of_its_rows(monkeypatch):
    (x, y), loss = made(n=60), li.Logistic()
    unit = np.repeat(np.arange(20), 3)
    run = li.Run(
        n=20,
        steps=5,
        step_size=0.5,
        clip=0.3,
        loss=loss,
        noise=li.NoiseMultiplier(0.1),
        rows_per_record=3,
        probability_calibration=li.Calibration(2.0),
    )
    sums = []
    keep = preprocessing.each_sum
    monkeypatch.setattr(
        preprocessing,
        "each_sum",
        lambda slices, f: (sums.append(part := list(slices)), keep(iter(part), f))[1],
    )
    li.train(run, (x, y), unit=unit, seed=1)
    each = np.vstack(sums[0])
    assert len(sums) == 4 and len(each) == 60
    assert np.linalg.norm(each, axis=1).max() <= 1 / 3, "three places share the bound of one record"


def test_exact_rounds_are_near_rounded_ones_and_on_a_grid():
    vectors = np.random.default_rng(0).normal(size=(50, 6))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True) * 1.001
    found = exact_rounds(50, key_from_seed(0))(0, 0.01, 6, iter([vectors]))
    assert np.abs(found - vectors.sum(axis=0)).max() < 0.06
    assert np.array_equal(found * 2.0**30, np.trunc(found * 2.0**30))


def test_a_vector_longer_than_1_counts_as_none_in_exact_rounds():
    """Noise of .01 stays below .1; the vector is 1.5 long, and its norm is checked on integers."""
    found = exact_rounds(2, key_from_seed(0))(0, 0.01, 2, iter([np.array([[1.2, 0.9], [0.6, 0]])]))
    assert np.abs(found - [0.6, 0]).max() < 0.1


REFUSED = {
    "linear classifiers": dict(loss=li.HuberRidge()),
    "intercept": dict(loss=li.Logistic(intercept=0.0)),
    "at most 100 classes": dict(loss=li.Softmax(classes=101)),
    "must be 'last'": dict(release="all"),
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_cannot_be_calibrated_is_refused(words):
    with pytest.raises(InputError, match=words):
        described(**REFUSED[words])


@pytest.mark.parametrize("wrong", [0.0, -1.0, float("nan"), "5"])
def test_bad_noise_is_refused(wrong):
    with pytest.raises(InputError, match="noise_multiplier"):
        li.Calibration(wrong)
    with pytest.raises(InputError, match="rounds"):
        li.Calibration(1.0, rounds=0)


@pytest.mark.parametrize("classes", [2, 3])
def test_a_public_factor_multiplies_scores_and_changes_no_answer(classes):
    rng = np.random.default_rng(classes)
    x, y = rng.normal(size=(60, 4)), rng.integers(0, classes, 60)
    loss = li.Logistic(row_norm=2.0) if classes == 2 else li.Softmax(classes=classes, row_norm=2.0)
    run = li.Run(n=60, steps=5, step_size=0.5, noise=li.NoiseMultiplier(1.0), loss=loss)
    plain, scaled = (
        scores(one, execute(one, x, y, key_from_seed(3)), x)
        for one in (run, replace(run, probability_calibration=li.AssumedSlope(0.37)))
    )
    np.testing.assert_allclose(scaled, 0.37 * plain, rtol=1e-6)


@pytest.mark.parametrize("slope", [0.0, -1.0, 1.5, float("nan")])
def test_a_factor_that_turns_answers_around_or_makes_them_steeper_is_refused(slope):
    with pytest.raises(InputError, match="slope must"):
        li.AssumedSlope(slope)

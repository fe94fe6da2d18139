"""Records that are units of several rows: against a network of the same loss, exact bounds, what is
certified."""

import math
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lastiterate as li
from lastiterate.accounting.private_selection import Selection
from lastiterate.data.columns import Ignore
from lastiterate.data.schema import Schema
from lastiterate.data.table import Table
from lastiterate.engine import key_from_seed
from lastiterate.engine.exact_linear import grid_of
from lastiterate.engine.linear_gradients import Linear, UnitRecords
from lastiterate.engine.linear_model import (
    execute_units,
    make_release,
    measurable,
    prepare_privately,
    release_by_units,
)
from lastiterate.engine.network import fit_network
from lastiterate.release.tuning import law_of
from lastiterate.release.units import Units, select_unit_rows, unit_records
from lastiterate.run.preprocessing import CosineFeatures, UnitRows

RNG = np.random.default_rng(0)
UNITS, PLACES, D = 20, 3, 4
WHO = np.array(
    [7 * (i % UNITS) % UNITS for i in range(50)] + [3, 3, 3]
)  # 1 to 6 rows each, of which 3 are used
X = RNG.normal(size=(53, D)) * 0.4
Y = RNG.integers(0, 2, 53)
LOSS = li.Logistic(row_norm=1.0, ridge=1e-2)
RUN = li.Run(
    n=UNITS, steps=9, step_size=0.5, noise=li.GradientNoise(0.01), loss=LOSS, rows_per_record=PLACES
)
DATA = unit_records((X, Y), WHO, PLACES)
COUNTS = np.array([min(PLACES, (unit == WHO).sum()) for unit in dict.fromkeys(WHO.tolist())])
EMPTY = UnitRecords(DATA.rows, DATA.target, np.arange(PLACES) < COUNTS[:, None])
"""The same with places that stay empty, as those of a unit that is set to zero do."""


@pytest.mark.parametrize("data", [DATA, EMPTY], ids=["full", "empty"])
@pytest.mark.parametrize(
    "change, weights",
    [
        ({"batching": li.Permuted(6), "clip": 0.2}, (0.2, 1.0)),
        ({"batching": li.Poisson(0.3), "optimizer": li.HeavyBall(0.5)}, None),
    ],
    ids=str,
)
def test_a_unit_is_the_mean_over_its_places(
    change: dict, weights: tuple[float, ...] | None, data: UnitRecords
) -> None:
    """Of rows that are clipped and then weighted by their classes, each by its own."""
    run = replace(RUN, **change)

    def loss(theta: jax.Array, present: jax.Array, rows: jax.Array, labels: jax.Array) -> jax.Array:
        lengths = jnp.linalg.norm(rows, axis=1, keepdims=True)
        rows = jnp.concatenate(
            (rows / jnp.maximum(lengths, 1), jnp.full((PLACES, 1), LOSS.intercept)), 1
        )
        scores = rows @ theta[0]
        found = jnp.logaddexp(0, scores) - labels * scores
        if run.clip is not None:  # of every row's gradient, which is residual times row
            sizes = jnp.abs(jax.nn.sigmoid(scores) - labels) * jnp.linalg.norm(rows, axis=1)
            found = found * jax.lax.stop_gradient(jnp.minimum(1, run.clip / sizes))
        found = found if weights is None else found * jnp.asarray(weights)[labels.astype(int)]
        return (present * found).sum() / PLACES

    plain = replace(
        run, loss=li.KnownConstants(li.LossFacts(lipschitz=9.0)), rows_per_record=1, clip=None
    )
    own = replace(run, loss=replace(LOSS, ridge=0.0, class_weights=weights))
    found = execute_units(own, data, key_from_seed(4)).weights
    theirs = fit_network(
        plain,
        loss,
        np.zeros((1, D + 1)),
        (data.present.astype(float), data.rows, data.target.astype(float)),
        key_from_seed(4),
    )
    np.testing.assert_allclose(found, theirs, atol=2e-6)


def test_no_unit_adds_more_than_one_row_could() -> None:
    with jax.enable_x64(True):
        for clip, bound in ((None, math.hypot(1.0, LOSS.intercept)), (0.3, 0.3)):
            model, theta = (
                Linear(LOSS, clip, True, PLACES),
                jnp.asarray(RNG.normal(size=(1, D + 1)) * 30),
            )
            unit = X[:48] / np.linalg.norm(X[:48], axis=1, keepdims=True)
            rows = np.column_stack((unit, np.full(48, LOSS.intercept))).reshape(16, PLACES, D + 1)
            labels = RNG.integers(0, 2, (16, PLACES))
            sums = [
                np.asarray(model.chunk_sum(theta, (rows[i : i + 1], labels[i : i + 1])))
                for i in range(16)
            ]
            assert max(np.linalg.norm(one) for one in sums) <= bound * (1 + 1e-12)
            same = (
                np.broadcast_to(rows[:, :1], rows.shape),
                np.broadcast_to(labels[:, :1], labels.shape),
            )
            most = max(
                np.linalg.norm(model.chunk_sum(theta, (same[0][i : i + 1], same[1][i : i + 1])))
                for i in range(16)
            )
            assert most > 0.9 * bound  # equal rows add as much as one row may
            assert np.abs(model.chunk_sum(theta, (rows * 0, labels))).max() == 0


def test_preparation_is_a_units_own() -> None:
    parts = (li.PrivateMean(2.0, 1.5), UnitRows(), li.PrivateCovariance(3.0))
    run, many = replace(RUN, preprocessing=parts), 300
    flat = EMPTY.flat[0]
    assert len(flat) < UNITS * PLACES
    clipped = flat / np.maximum(1, np.linalg.norm(flat, axis=1, keepdims=True) / 1.5)
    clean = clipped.sum(0) / PLACES / UNITS
    found = np.stack(
        [
            prepare_privately(
                replace(run, preprocessing=parts[:1]),
                measurable(run, EMPTY),
                release_by_units(PLACES, make_release(key_from_seed(i))),
            )[0]
            for i in range(many)
        ]
    )
    deviation = 2.0 * 1.5 / UNITS
    assert np.abs(found.mean(0) - clean).max() < 4 * deviation / math.sqrt(many)
    assert (found - clean).std() == pytest.approx(deviation, rel=0.06)
    quiet = tuple(replace(p, noise_multiplier=1e-9) for p in (parts[0], parts[2]))
    released = prepare_privately(
        replace(run, preprocessing=(quiet[0], UnitRows(), quiet[1])),
        measurable(run, EMPTY),
        release_by_units(PLACES, make_release(key_from_seed(0))),
    )
    unit = (clipped - clean) / np.linalg.norm(clipped - clean, axis=1, keepdims=True)
    values, vectors = np.linalg.eigh(unit.T @ unit)
    np.testing.assert_allclose(
        released[2], (vectors * (values / values.max()) ** -0.35) @ vectors.T, atol=1e-3
    )


def test_units_keep_their_places_and_rows_their_order() -> None:
    assert DATA.rows.shape == (UNITS, PLACES, D)
    assert DATA.present.all() and COUNTS.min() == 2 < COUNTS.max() == PLACES
    order = list(dict.fromkeys(WHO.tolist()))
    for place, unit in enumerate(order):
        own = X[unit == WHO][:PLACES]
        np.testing.assert_array_equal(DATA.rows[place], np.resize(own, (PLACES, D)))
    other = np.where(order[4] == WHO, 99, WHO)  # another person in the same lines of the file
    np.testing.assert_array_equal(unit_records((X, Y), other, PLACES).rows, DATA.rows)


@pytest.mark.parametrize("names", [["a", "a\0", "b"], ["a\0", "b"], [1, "1", "b"]])
def test_no_unit_stands_for_another(names: list[str]) -> None:
    """An array takes "a" and "a\\0" for one unit: a row would be kept or dropped by what another
    unit has."""
    # blanks at the ends are no part of an identifier, in any format
    assert select_unit_rows(["a", "b\n", "a", "b"], 1).tolist() == [True, True, False, False]
    with pytest.raises(li.InputError, match="unit must be text alone"):
        select_unit_rows(names, 1)
    with pytest.raises(li.InputError, match="unit must be text alone"):
        Units("who", 1).limit_rows(
            Table(("who",), {"who": names}), Schema((Ignore("who"),), classes=("0", "1"))
        )


def test_certificates_speak_of_units(tmp_path: Path) -> None:
    run = replace(RUN, noise=None, batching=li.Permuted(5))
    model = li.train(run, (X, Y), unit=WHO, epsilon=2.0, delta=1e-3)
    single = li.calibrate(replace(run, rows_per_record=1), epsilon=2.0, delta=1e-3)
    group = li.calibrate(
        replace(run, n=53, rows_per_record=1, rows_per_unit=PLACES), epsilon=2.0, delta=1e-3
    )
    assert model.run.first_noise == single.run.first_noise
    assert model.run.first_noise * UNITS < 0.8 * group.run.first_noise * 53 * PLACES
    stated = model.certificate.to_dict(1e-3)["stated"]["unit"]
    assert stated["rows"] == PLACES and "batches draw units" in stated["words"]
    assert f"all rows of one unit, {PLACES} at most" in model.certificate.explain(1e-3)
    model.save(tmp_path / "m")
    assert (
        li.verify(tmp_path / "m").holds
        and (li.load(tmp_path / "m").predict(X) == model.predict(X)).all()
    )


@pytest.mark.parametrize(
    "change, word",
    [
        ({"rows_per_unit": 2}, "rows_per_unit must be 1"),
        ({"loss": li.KnownConstants()}, "linear models"),
        ({"preprocessing": (li.TopEigenvalue(1.0),)}, "top eigenvalue"),
        ({"preprocessing": (CosineFeatures(1.0),)}, "cosine features"),
        ({"rows_per_record": 0}, "rows_per_record"),
    ],
    ids=str,
)
def test_units_as_records_are_refused_where_nothing_executes_them(change: dict, word: str) -> None:
    with pytest.raises(li.InputError, match=word):
        replace(RUN, **change)


def test_units_are_needed_and_counted() -> None:
    for more, word in (
        ({}, "must be given where records are units"),
        ({"unit": np.arange(53)}, "n = 20 units"),
    ):
        with pytest.raises(li.InputError, match=word):
            li.train(RUN, (X, Y), **more)
    with pytest.raises(li.InputError, match="says who a row belongs to"):
        li.engine.execute(RUN, X, Y)
    with pytest.raises(li.InputError, match="secure_noise"):
        grid_of(RUN)
    with pytest.raises(li.InputError, match="held out"):
        Selection((RUN,), law_of(5.0), 10, 1.0)

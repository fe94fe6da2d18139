"""Gates: which half spaces a record lies in, from its own row alone, the same everywhere, and what
a model learns."""

import json

import numpy as np
import pytest

import lastiterate as li
from lastiterate import InputError
from lastiterate.data import Category, Numeric, Schema, encode_features
from lastiterate.data.data_frames import frame_table
from lastiterate.estimators import DPLogisticRegression
from lastiterate.features import Gated
from lastiterate.features.column_maps import RowForm, directions
from lastiterate.features.map_registry import maps_from, maps_named, to_data
from lastiterate.features.record_fields import Grid, Number, Record, Text
from lastiterate.release.column_effects import column_effects

ROW = Record(("a", "b", "c"), 2.0)
STORED = [[1164.0, -551.0, -206.0], [-245.0, -1419.0, 527.0]]


def test_rows_are_the_row_in_every_open_half_space():
    one, x = Gated(5, seed=3), np.random.default_rng(0).uniform(-1, 1, (50, 3)).astype(np.float32)
    longer = np.column_stack((x, np.ones(50)))
    is_open = longer @ directions(3, 4, 5) >= 0
    parts = one.rows(ROW, x).reshape(50, 6, 4)
    roots = np.sqrt(1 + is_open.sum(axis=1))[:, None]
    assert np.allclose(parts[:, 0], longer / roots, rtol=1e-6)
    assert np.allclose(parts[:, 1:], is_open[:, :, None] * (longer / roots)[:, None], rtol=1e-6)
    assert 0 < is_open.sum() < 250
    assert np.allclose(
        np.linalg.norm(parts, axis=(1, 2)), np.linalg.norm(longer, axis=1), rtol=1e-6
    )


def test_gates_are_standard_normal_and_do_not_change():
    found = directions(0, 300, 40) / 1024
    assert (
        abs(found.mean()) < 0.03
        and abs(found.std() - 1) < 0.03
        and np.abs(np.corrcoef(found.T)).max() <= 1 + 1e-9
    )
    assert directions(7, 3, 2).T.tolist() == STORED, "a model that was released reads these gates"
    assert not np.array_equal(directions(1, 300, 40), directions(0, 300, 40))


def test_no_order_of_sums_moves_a_gate():
    """Rows that lie on a gate's border but for rounding, alone and among others, and added up
    backwards."""
    rng, width = np.random.default_rng(1), 400
    one = Gated(32)
    rows = rng.integers(-8, 9, (300, width)).astype(np.float32) / 8
    gates = directions(0, width, 32)
    rows[:, 0] -= ((rows.astype(np.float64) @ gates[:, 0]) / gates[0, 0]).astype(
        np.float32
    )  # near a gate's border
    together = one.open_gates(rows)
    assert np.array_equal(together, np.concatenate([one.open_gates(row[None]) for row in rows]))
    places = np.rint(np.clip(rows[:20].astype(float), -8, 8) * 2**20)
    exact = [
        [sum(int(a) * int(g) for a, g in zip(row, gate, strict=True)) >= 0 for gate in gates.T[:2]]
        for row in places
    ]
    assert np.array_equal(together[:20, :2], exact)


@pytest.mark.parametrize("entry", [0.0, -0.0, 1.0, -1.0, 3e38, -3e38, 1e-38, np.nan, np.inf])
def test_no_row_is_longer_than_the_public_norm(entry):
    form = RowForm((Number("a", indicator=True), Number("b"), Grid("g", (4, 4))), (Gated(9),))
    values = [np.full(5, entry), np.full(5, entry), np.full((5, 16), entry, dtype=np.float32)]
    rows = form.rows(values).astype(np.float64)
    assert form.norm == pytest.approx(np.sqrt(1 + 1 + 16 + 1)) and rows.shape == (5, 10 * 20)
    assert np.isfinite(rows).all() and np.linalg.norm(rows, axis=1).max() <= form.norm * (1 + 2e-6)


def test_gates_look_at_what_other_maps_made():
    number = (Number("a"), Number("b"))
    stacked, plain = (
        RowForm(number, maps_named("gated,curves")),
        RowForm(number, maps_named("curves")),
    )
    values = [np.linspace(-1, 1, 9)] * 2
    first = stacked.rows(values).reshape(9, 33, -1)[:, 0]
    inner = plain.rows(values)
    assert np.allclose(first[:, :-1] / first[:, -1:], inner, atol=1e-6)
    assert stacked.width == 33 * (plain.width + 1) and stacked.norm == pytest.approx(np.sqrt(3))
    assert stacked.names[:2] == ("a~0", "a~1") and stacked.names[-1] == "1|gate31"


def test_as_many_gates_as_records_and_budget_carry():
    ten = tuple(Number(f"a{i}") for i in range(10))
    found = [
        Gated.for_budget(ten, resolved).count
        for resolved in (0.0, 80.0, 200.0, 400.0, 1e9, float("inf"))
    ]
    assert found == [4, 4, 8, 16, 32, 32]
    assert Gated.for_budget((*ten, Text("t")), 1e9).count == 4


def test_what_does_not_fit_is_one_sentence():
    for wrong in ({"count": 0}, {"count": 10**5}, {"count": 2.5}, {"seed": -1}, {"seed": "x"}):
        with pytest.raises(InputError, match=r"of gates|Gated\."):
            Gated(**wrong)
    with pytest.raises(InputError, match="at most 65536 numbers"):
        RowForm((Grid("x", (300, 300)),), (Gated(),)).width  # noqa: B018
    with pytest.raises(InputError, match="holds text"):
        RowForm((Text("t"),), (Gated(),)).width  # noqa: B018
    with pytest.raises(InputError, match="name a map once"):
        Schema((Numeric("a", 0, 1),), classes=("0", "1"), features=(Gated(), Gated(3)))
    assert maps_from(json.loads(json.dumps(to_data((Gated(3, 4),))))) == (Gated(3, 4),)


def test_a_model_learns_what_a_sum_of_columns_cannot(tmp_path):
    """Whether two numbers have the same sign; the map travels with the model."""
    rng = np.random.default_rng(2)
    schema = Schema(
        (Numeric("a", 0, 10), Numeric("b", -3, 3), Category("c", ("u", "v"))), classes=("0", "1")
    )
    cells = {
        "a": rng.uniform(0, 10, 4000),
        "b": rng.uniform(-3, 3, 4000),
        "c": rng.choice(["u", "v"], 4000),
    }
    y = ((cells["a"] > 5) == (cells["b"] > 0)).astype(int)
    gated = DPLogisticRegression(
        epsilon=3.0, delta=1e-5, schema=schema, features="gated", algorithm="noisy-gd"
    )
    assert gated.fit(cells, y).score(cells, y) > 0.85, (
        "where no sum of effects of columns exceeds 0.6"
    )
    assert column_effects(gated.fitted_) == (), "a number's effect depends on the others"
    again = li.load(gated.fitted_.save(tmp_path / "m"))
    assert again.schema == gated.fitted_.schema and again.schema.features == (Gated(32),)
    rows = encode_features(frame_table(cells, again.schema), again.schema)
    assert np.array_equal(again.scores(rows), gated.fitted_.scores(rows))
    signs = (np.asarray(again.scores(rows)).ravel() > 0).astype(int)
    assert np.array_equal(signs, gated.predict(cells))
    assert li.verify(tmp_path / "m").holds

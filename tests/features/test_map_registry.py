"""Public maps: what holds for every row of the table, whatever the values, and how a map travels
with a model."""

import itertools
import json
from dataclasses import dataclass, fields

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lastiterate import InputError
from lastiterate.features.column_maps import RecordMap, RowForm
from lastiterate.features.map_registry import (
    TABLE,
    automatic_maps,
    describe_maps,
    maps_from,
    maps_named,
    to_data,
)
from lastiterate.features.record_fields import Choice, Field, Grid, Number, Record, Text

MEMBERS = sorted(TABLE)
FIELDS = (
    Number("a"),
    Number("b", indicator=True),
    Choice("c", ("x", "y", "z")),
    Grid("g", (8, 8)),
    Grid("h", (9, 8, 3)),
    Text("t"),
    Record(tuple("abcdefg"), 2.0),
)
FEW = {"patches": {"filters": 12, "axes": 40}}
"""Sizes for rows, where a map's own ones take long."""
HOSTILE = [np.nan, np.inf, -np.inf, 1e308, -1e308, 1e-310, -0.0, 0.0, 1.0, -1.0, 0.3, 5.0]
TEXTS = [
    "",
    " ",
    "\0",
    "a",
    "a a a a",
    "ß" * 3000,
    "drop table; --",
    "\U0001f600 \u202e",
    "1e999",
    "the cat sat",
]


def made(name: str, **sizes: int) -> tuple[RecordMap, list[Field]]:
    one = TABLE[name](**sizes)
    return one, [field for field in FIELDS if isinstance(field, one.takes)]


def values_of(field: Field, numbers: list[float], texts: list[str], n: int):
    match field:
        case Number():
            return np.resize(np.array(numbers), n)
        case Choice(_, labels):
            return np.arange(n) % (len(labels) + 1) - 1
        case Grid() | Record():
            return np.resize(np.array(numbers, dtype=np.float32), (n, field.width))
        case _:
            return [texts[i % len(texts)] for i in range(n)]


@pytest.mark.filterwarnings("ignore:overflow encountered")
@settings(deadline=None, max_examples=3)
@given(
    st.lists(
        st.lists(st.floats() | st.sampled_from(HOSTILE), min_size=1, max_size=9),
        min_size=9,
        max_size=9,
    ),
    st.lists(st.text(), min_size=1),
)
def test_rows_are_at_most_as_long_as_the_public_norm(pools, texts):
    """Nine lists of numbers an example: a call of the scattering takes as long for one image as
    for a hundred."""
    for name in MEMBERS:
        one, taken = made(name, **FEW.get(name, {}))
        for field in taken:
            form = RowForm((field,), (one,))
            parts = [values_of(field, pool, texts + TEXTS, 13) for pool in (*pools, HOSTILE)]
            values = (
                [*itertools.chain(*parts)] if isinstance(parts[0], list) else np.concatenate(parts)
            )
            rows = form.rows([values])
            assert rows.shape == (130, form.width) and np.isfinite(rows).all()
            assert np.linalg.norm(rows.astype(np.float64), axis=1).max() <= form.norm * (1 + 2e-6)


@pytest.mark.parametrize("names", ["plain", "curves", "bins"])
def test_the_public_norm_is_reached(names):
    """A smaller one would be sound, as rows are cut to it, and would lose what the columns say."""
    form = RowForm(FIELDS[:3], maps_named(names))
    (row,) = form.rows([np.array([1.0]), np.array([np.nan]), np.array([0])]).astype(np.float64)
    assert form.norm == pytest.approx(np.sqrt(3), rel=1e-12) and np.linalg.norm(
        row
    ) == pytest.approx(form.norm)


@pytest.mark.filterwarnings("ignore:overflow encountered")
@pytest.mark.parametrize("name", MEMBERS)
def test_a_row_depends_on_no_other_record(name):
    one, taken = made(name, **FEW.get(name, {}))
    rng = np.random.default_rng(0)
    for field in taken:
        form = RowForm((field,), (one,))
        values = values_of(field, [*HOSTILE, *rng.uniform(-1, 1, 20)], TEXTS, 40)
        whole = form.rows([values])
        some = range(
            0, 40, 8 if isinstance(field, Grid) else 1
        )  # a call takes as long for one image as for all
        alone = np.concatenate([form.rows([values[i : i + 1]]) for i in some])
        assert np.array_equal(whole[some], alone)
        order = rng.permutation(40)
        mixed = form.rows(
            [[values[i] for i in order] if isinstance(values, list) else values[order]]
        )
        assert np.array_equal(whole[order], mixed)


@pytest.mark.parametrize("name", MEMBERS)
def test_maps_are_descriptions(name):
    one, taken = made(name)
    assert (
        maps_from(json.loads(json.dumps(to_data((one,)))))
        == (one,)
        == maps_named(name)
        == maps_from([name])
    )
    assert one.words() in describe_maps((one,))
    for field in taken:
        assert len(one.names(field)) == one.width(field) == len(set(one.names(field)))
    with pytest.raises(InputError, match="unknown field"):
        maps_from([to_data((one,))[0] | {"more": 1}])
    for item in fields(one):
        with pytest.raises(InputError):
            type(one)(**{item.name: "three"})


def test_only_maps_of_the_table_are_maps():
    from lastiterate.data import Numeric, Schema

    @dataclass(frozen=True)
    class Longer(TABLE["curves"]):
        def norm(self, field):
            return 0.1

    for wrong in (
        (Longer(),),
        [TABLE["curves"]()],
        (TABLE["curves"](), TABLE["curves"](3)),
        ("curves",),
    ):
        with pytest.raises(InputError, match="features"):
            Schema((Numeric("a", 0, 1),), classes=("0", "1"), features=wrong)
    for wrong in ("curve", "plain,curves", "curves,curves", ""):
        with pytest.raises(InputError, match="must be plain, or maps"):
            maps_named(wrong)
    for wrong in (3, [{"type": "Number"}], [3], {"type": "Curves"}):
        with pytest.raises(InputError):
            maps_from(wrong)


def test_a_map_without_a_field_is_refused():
    with pytest.raises(InputError, match="has nothing to map: curves"):
        RowForm((Choice("c", ("x", "y")),), maps_named("curves"))


def test_text_needs_a_map():
    with pytest.raises(InputError, match="holds text"):
        RowForm((Text("t"),)).width  # noqa: B018


def test_curves_are_continuous_partitions_of_unit_length():
    one = TABLE["curves"](5)
    at = np.linspace(-1, 1, 401)
    rows = one.rows(Number("a"), at)
    assert np.allclose(np.linalg.norm(rows, axis=1), 1)
    assert np.abs(np.diff(rows, axis=0)).max() < 0.03, (
        "a small change of the number is a small change of the row"
    )
    assert np.array_equal(rows[[0, 100, 200, 300, 400]], np.eye(5, dtype=np.float32)), (
        "knots are unit vectors"
    )
    assert ((rows > 0).sum(axis=1) <= 2).all()
    missing = one.rows(Number("a", indicator=True), np.array([np.nan, 0.0]))
    assert np.array_equal(missing, [[0, 0, 0, 0, 0, 1], [0, 0, 1, 0, 0, 0]])


def test_how_many_numbers_follows_records_and_budget():
    numbers = (Number("a"), Number("b"), Choice("c", ("x", "y")))
    for resolved, maps in (
        (100.0, ()),
        (150.0, (TABLE["curves"](8),)),
        (2000.0, (TABLE["curves"](12),)),
    ):
        assert automatic_maps(numbers, resolved) == maps
    assert maps_named("curves", numbers, 20.0) == (TABLE["curves"](8),), (
        "asked for, it is as small as it can be"
    )
    text = (Text("t"), Choice("c", ("x", "y")))
    wide = [
        automatic_maps(text, resolved)[0].buckets
        for resolved in (0.0, 1e3, 3e3, 1e4, 1e9, float("inf"))
    ]
    assert wide == [256, 256, 512, 2048, 4096, 4096]
    assert automatic_maps((Choice("c", ("x", "y")), Grid("g", (4, 4))), 1e9) == ()


def test_words_tell_texts_apart_and_share_what_they_share():
    one = TABLE["words"](512)
    texts = [
        "the quick brown fox",
        "the quick brown fox",
        "a slow green turtle",
        "quick brown foxes",
        "",
    ]
    rows = one.rows(Text("t"), texts)
    close = rows @ rows.T
    assert (
        close[0, 1] == pytest.approx(1)
        and close[0, 3] > 0.4 > abs(close[0, 2])
        and not rows[4].any()
    )


@pytest.mark.filterwarnings("ignore:overflow encountered")
def test_fields_without_a_map_keep_their_norm_too():
    for field in (field for field in FIELDS if not isinstance(field, Text)):
        form = RowForm((field,))
        rows = form.rows([values_of(field, HOSTILE, TEXTS, 13)])
        assert np.isfinite(rows).all() and rows.shape == (13, field.width)
        assert np.linalg.norm(rows.astype(np.float64), axis=1).max() <= form.norm * (1 + 2e-6)

"""ONNX graphs of linear models: from the cells of a table to labels and probabilities.

Every step of a prediction has its operators here, in the same order and precision. What training
and ``predict`` would refuse cannot stop a graph: the output ``refused`` marks such records.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

import numpy as np

from lastiterate.data.cell_values import Positions
from lastiterate.data.columns import (
    INDICATOR,
    MISSING,
    Array,
    Category,
    Column,
    Date,
    Numeric,
    Words,
)
from lastiterate.data.schema import Schema
from lastiterate.data.table import canonical_text, is_time
from lastiterate.engine import preprocessing as executed
from lastiterate.engine.preprocessing import ROW_SHRINK
from lastiterate.errors import InputError
from lastiterate.features import column_maps as maps
from lastiterate.features import patch_responses as filtered
from lastiterate.features import scattering as images
from lastiterate.features.column_maps import SLACK, RowForm
from lastiterate.features.patches import Patches, basis_of
from lastiterate.features.record_fields import Field, Grid, Number
from lastiterate.run import preprocessing as parts

if TYPE_CHECKING:
    pass  # pyright: ignore

from lastiterate.release.onnx_values import BOOL, DOUBLE, INT, SINGLE, TEXT, Graph, Value

# From cells to the values of fields.


@dataclass(frozen=True, eq=False)
class Numbers:
    """Numbers (N, 1) in [-1, 1], and where they are missing."""

    scaled: Value
    missing: Value


def _numbers(graph: Graph, column: Numeric) -> tuple[Numbers, ...]:
    given = graph.input(column.name, DOUBLE)
    missing = given.is_nan()
    if column.missing == "refuse":
        graph.refused.append(missing)
    fill = column.low if isinstance(column.missing, str) else float(column.missing)
    filled = given.where(missing, fill)
    if not isinstance(column.missing, str):
        missing = filled.is_nan()
    if column.outside == "refuse":
        graph.refused.append((filled < column.low) | (filled > column.high))
    low, high = float(column.low), float(column.high)
    kept = filled.clip(low, high)
    if column.scale == "linear":
        return (Numbers((kept - low) / (high - low) * 2.0 - 1.0, missing),)
    way = kept.then("Log") - math.log(low) if low > 0 else (kept - low + 1.0).then("Log")
    way = way / (math.log(high) - math.log(low) if low > 0 else math.log1p(high - low))
    return (Numbers((way * 2.0 - 1.0).clip(-1.0, 1.0), missing),)


NUMBER = r"-?(0|[1-9][0-9]{0,7})(\.[0-9]{0,7})?"
"""Numbers whose decimal places a double keeps apart."""


def _choices(graph: Graph, column: Category) -> tuple[Value, ...]:
    """A 1 for the value of a cell: as it is written, or by its canonical form."""
    if any(is_time(value) for value in column.values):
        raise InputError(
            "model",
            f"must have no category that is a time of day, as column {column.name!r} has",
            None,
            "ONNX cannot read all ways of writing it; use lastiterate predict",
        )
    cell = graph.input(column.name, TEXT)
    exact = cell.equal([column.values])
    listed = exact.any()
    forms = Positions(column.values).forms
    found = [exact]
    numeric = {at: float(form) for form, at in forms.items() if re.fullmatch(NUMBER, form)}
    words = {at: form for form, at in forms.items() if form.lower() != form or form == "inf"}
    words = {at: form for at, form in words.items() if canonical_text(form.lower()) == form}
    if numeric:
        wanted = np.full((1, len(column.values)), np.nan)
        wanted[0, list(numeric)] = list(numeric.values())
        is_written = cell.matches(NUMBER)
        number = cell.where(~is_written, "0").to(DOUBLE)
        found.append(number.equal(wanted) & is_written & ~listed)
    for at, form in words.items():
        place = np.arange(len(column.values))[None] == at
        spelt = cell.matches(f"(?i:{'inf(inity)?' if form == 'inf' else re.escape(form)})")
        found.append(spelt & graph.constant(place, BOOL) & ~listed)
    chosen = reduce(Value.__or__, found)
    known = chosen.any()
    missing = _is_missing(cell) & ~known
    for rule, where in ((column.missing, missing), (column.outside, ~known & ~missing)):
        if rule == "refuse":
            graph.refused.append(where)
    rows = chosen.to(SINGLE)
    return (graph.join([rows, missing.to(SINGLE)]) if column.missing == INDICATOR else rows,)


def _is_missing(cell: Value) -> Value:
    return cell.matches(f"(?i:{'|'.join(re.escape(mark) for mark in sorted(MISSING))})")


BEFORE = np.cumsum([0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30])
LENGTHS = np.array([31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31])


def _days(graph: Graph, column: Date) -> tuple[Numbers | Value, ...]:
    """The place of a day between the ends, its month and its weekday."""
    cell = graph.input(column.name, TEXT)
    written = cell.matches("[0-9]{4}-[0-9]{2}-[0-9]{2}([ T].*)?")
    text = cell.where(~written, "0001-01-01")
    for mark in " T":
        text = text.then("StringSplit", delimiter=mark, maxsplit=1).take([0], axis=2).reshape(-1, 1)
    split = text.then("StringSplit", delimiter="-", maxsplit=2).to(INT).reshape(-1, 3)
    year, month, day = (split.columns(at, at + 1) for at in range(3))
    at = (month - 1).clip(0, 11).reshape(-1)
    leap = (year % 4).equal(0) & (~(year % 100).equal(0) | (year % 400).equal(0))
    length = graph.constant(LENGTHS, INT).take(at, 0).reshape(-1, 1)
    length = length + (leap & month.equal(2)).to(INT)
    valid = written & (year > 0) & (month > 0) & (month < 13) & (day > 0) & ~(day > length)
    past = year - 1
    number = past * 365 + past // 4 - past // 100 + past // 400 + day
    number = number + graph.constant(BEFORE, INT).take(at, 0).reshape(-1, 1)
    number = number + (leap & (month > 2)).to(INT)
    missing, (low, high) = _is_missing(cell) & ~valid, column.ends
    refused = [~valid & ~missing]
    if column.missing == "refuse":
        refused.append(missing)
    if column.outside == "refuse":
        refused.append(valid & ((number < low) | (number > high)))
    graph.refused += refused
    scaled = (number.where(~valid, low).clip(low, high) - low).to(DOUBLE) / float(high - low)
    twelve, seven = np.arange(1, 13)[None], np.arange(7)[None]
    return (
        Numbers(scaled * 2.0 - 1.0, ~valid),
        (month.equal(twelve) & valid).to(SINGLE),
        (((number + 6) % 7).equal(seven) & valid).to(SINGLE),  # day 1 is a Monday
    )


def _array(graph: Graph, array: Array, width: int) -> Value:
    """Numbers (N, width) in [-1, 1]; what is no number stays so."""
    given = graph.input("x", SINGLE, width).to(DOUBLE)
    if array.outside == "refuse":
        graph.refused.append(((given < array.low) | (given > array.high)).any())
    low, high = float(array.low), float(array.high)
    scaled = (given.clip(low, high) - low) / (high - low) * 2.0 - 1.0
    return scaled.where(given.is_nan(), np.nan).to(SINGLE)


Given = Numbers | Value


def _values(graph: Graph, column: Column) -> tuple[Given, ...]:
    match column:
        case Numeric():
            return _numbers(graph, column)
        case Category():
            return _choices(graph, column)
        case Date():
            return _days(graph, column)
        case Words():
            raise InputError(
                "model",
                f"must have no column of text, as {column.name!r} is",
                None,
                "ONNX has no operator that hashes words as training did; use lastiterate predict, or "
                "export --to mlflow",
            )
        case _:
            return ()


# From the values of fields to rows, by themselves or through public maps.


def _field_rows(given: Given, field: Field) -> Value:
    """The numbers of a field that no map speaks of."""
    if isinstance(given, Numbers):
        number = given.scaled.where(given.missing, 0.0).to(SINGLE)
        return _with_missing(number, given, field)
    if isinstance(field, Grid):
        rows = given.where(given.is_nan(), 0.0)
        return rows if field.longest is None else _shorten(rows, field.norm)
    return given


def _with_missing(rows: Value, given: Numbers, field: Field) -> Value:
    keeps = isinstance(field, Number) and field.indicator
    return rows.graph.join([rows, given.missing.to(SINGLE)]) if keeps else rows


def _shorten(rows: Value, longest: float) -> Value:
    """Rows scaled down to a norm where they are longer."""
    exact = rows.to(DOUBLE)
    norm = (exact * exact).sum().then("Sqrt")
    short = exact / norm.then("Max", 1e-300) * longest
    return rows.where(norm > longest * SLACK, short.to(SINGLE))


def _curves(one: maps.Curves, given: Given, field: Field) -> Value:
    knots = np.arange(one.knots, dtype=np.float64)
    numbers = given.scaled if isinstance(given, Numbers) else given.to(DOUBLE)
    missing = given.missing if isinstance(given, Numbers) else numbers.is_nan()
    place = (numbers.where(missing, 0.0).clip(-1.0, 1.0) + 1.0) / 2.0 * float(one.knots - 1)
    apart = (place.reshape(-1, field.width if isinstance(given, Value) else 1, 1) - knots).then(
        "Abs"
    )
    hats = (apart * -1.0 + 1.0).then("Max", 0.0)
    hats = hats / (hats * hats).sum(2).then("Sqrt")
    if isinstance(given, Value):
        return hats.to(SINGLE).reshape(-1, one.width(field))
    rows = hats.reshape(-1, one.knots).where(given.missing, 0.0).to(SINGLE)
    return _with_missing(rows, given, field)


def _bins(one: maps.Bins, given: Given, field: Field) -> Value:
    assert isinstance(given, Numbers)
    number = given.scaled.where(given.missing, 0.0).clip(-1.0, 1.0)
    place = ((number + 1.0) / 2.0 * float(one.count)).to(INT).then("Min", one.count - 1)
    inside = place.equal(np.arange(one.count)[None]) & ~given.missing
    return _with_missing(inside.to(SINGLE), given, field)


def _gate(one: maps.Gated, given: Given, field: Field) -> Value:
    assert isinstance(given, Value)
    graph, wide = given.graph, field.width + 1
    ones = (given.columns(0, 1) * 0.0) + 1.0
    rows = graph.join([given, ones])
    whole = (rows.to(DOUBLE).clip(-maps.LARGEST, maps.LARGEST) * maps.ENTRIES).then("Round")
    gates = (whole @ maps.directions(one.seed, wide, one.count)) >= 0.0
    open_parts = graph.join([ones, gates.to(SINGLE)])
    scaled = open_parts / open_parts.sum().then("Sqrt")
    products = scaled.reshape(-1, one.count + 1, 1) * rows.reshape(-1, 1, wide)
    return products.reshape(-1, (one.count + 1) * wide)


def _map_rows(one: maps.RecordMap, given: Given, field: Field) -> Value:
    match one:
        case maps.Curves():
            return _curves(one, given, field)
        case maps.Bins():
            return _bins(one, given, field)
        case maps.Gated():
            return _gate(one, given, field)
        case images.Scattering():
            assert isinstance(given, Value)
            assert isinstance(field, Grid)
            return _scatter(one, given, field)
        case Patches():
            assert isinstance(given, Value)
            assert isinstance(field, Grid)
            return _patches(one, given, field)
        case _:
            raise InputError(
                "model",
                f"must have features that ONNX can calculate, not {one.name}",
                None,
                "use lastiterate predict",
            )


def encode(graph: Graph, schema: Schema, shape: tuple[int, ...] | None = None) -> Value:
    """Rows (N, width) float32 of the cells of a record; ``shape``: of a record of an array."""
    form: RowForm = schema.form(shape)
    if schema.array is not None:
        grid = form.fields[0]
        given: list[Given] = [_array(graph, schema.array, math.prod(grid.shape))]  # pyright: ignore
    else:
        given = [value for column in schema.columns for value in _values(graph, column)]
    for level in form.levels:
        rows = [
            _field_rows(value, field) if one is None else _map_rows(one, value, field)
            for (field, one, _), value in zip(level, given, strict=True)
        ]
        given = [graph.join(rows)]
    assert isinstance(given[0], Value)
    return given[0]


# The public maps of images: ``lastiterate.features.scattering`` and ``patches`` say what they are.


def _planes(given: Value, field: Grid) -> Value:
    """Pixels (N * channels, height, width) in [0, 1], averaged down where they are many."""
    graph, (height, width, _) = given.graph, images.check_shape(field.shape)
    pixels = ((given + 1.0) / 2.0).where(given.is_nan(), 0.0).clip(0.0, 1.0)
    planes = pixels.reshape(-1, *field.shape)
    if len(field.shape) == 3 and field.shape[2] <= images.COLOURS:
        planes = graph.node("Transpose", planes, perm=[0, 3, 1, 2])
    planes = planes.reshape(-1, height, width)
    block = min(height, width) // images.WORKING_SIDE
    if block >= 2:
        down, across = (images.cell_means(side, side // block) for side in (height, width))
        planes = graph.constant(down, SINGLE) @ (planes @ across.T)
    return planes


def _patches(one: Patches, given: Value, field: Grid) -> Value:
    graph, recipe = given.graph, one.recipe(field.shape)
    basis = basis_of(recipe)
    planes = _planes(given, field) * 255.0
    planes = planes.reshape(-1, recipe.channels, recipe.height, recipe.width)
    numbers, (down, across) = len(basis.filters), recipe.positions
    every = np.eye(numbers).reshape(numbers, recipe.patch, recipe.patch, recipe.channels)
    kernels = graph.constant(np.moveaxis(every, 3, 1), SINGLE)  # one number of a patch for each
    found = graph.node("Conv", planes, kernels).reshape(-1, numbers, down * across)
    centred = found - found.sum() / float(numbers)
    spread = ((centred * centred).sum() / float(numbers) + filtered.FLAT).then("Sqrt")
    products = graph.constant(basis.filters.T, SINGLE) @ (centred / spread)
    sizes = (1, basis.filters.shape[1], down * across)
    parts = [
        (products * sign - filtered.THRESHOLD).then("Max", 0.0).reshape(-1, *sizes)
        for sign in (1.0, -1.0)
    ]
    weights = [np.kron(*means) for means in filtered.grid_means(recipe)]
    means = (graph.join(parts) @ np.concatenate(weights).T).then("Sqrt")
    grids, first = list[Value](), 0
    for side in recipe.grids:
        here = means.columns(first, first + side**2, axis=3)
        grids.append(_fold_mirrored(recipe, here, side))
        first += side**2
    rows = grids[0].reshape(-1, 2 * recipe.filters * recipe.cells**2)
    if basis.layer is not None:
        again = _second_layer(basis.layer, grids[1])
        rows = graph.join([rows, again, _colours(recipe, basis, planes)])
    rows, axes = rows - basis.centre, basis.axes[: one.axes]
    blocks = filtered.axis_blocks(recipe.parts, len(axes))
    along = [
        rows.columns(inside.start, inside.stop) @ axes[places, inside].T
        for places, inside in blocks
        if len(places)
    ]
    order = np.argsort(np.concatenate([places for places, _ in blocks]))
    rows = graph.join(along).take(order, axis=1)
    exact = rows.to(DOUBLE)
    return (exact / (exact * exact).sum().then("Sqrt")).to(SINGLE)


def _fold_mirrored(recipe: filtered.Recipe, means: Value, side: int) -> Value:
    """Roots (N, side * side, 2 * filters) of means (N, 2, filters, side * side), those of mirrored
    filters turned and averaged in."""
    filters = recipe.filters
    means = means.reshape(-1, 2, 1 + recipe.mirrored, filters, side, side)
    if recipe.mirrored:
        plain, mirrored = (means.columns(at, at + 1, axis=2) for at in range(2))
        turned = mirrored.take(np.arange(side)[::-1], axis=5)
        means = (plain + turned) / 2.0
    means = means.reshape(-1, 2, filters, side, side)
    means = means.graph.node("Transpose", means, perm=[0, 3, 4, 1, 2])
    return means.reshape(-1, side**2, 2 * filters)


def _second_layer(layer: filtered.Layer, windows: Value) -> Value:
    graph, kept = windows.graph, layer.whiten.shape[1]
    found = (windows - layer.centre) @ layer.whiten
    found = found / ((found * found).sum(2) / float(kept) + 1e-9).then("Sqrt")
    products = found @ layer.filters
    means = [
        (products * sign - filtered.THRESHOLD).then("Max", 0.0).sum(1) / float(filtered.WINDOWS**2)
        for sign in (1.0, -1.0)
    ]
    return graph.join([one.reshape(-1, layer.filters.shape[1]) for one in means]).then("Sqrt")


def _colours(recipe: filtered.Recipe, basis: filtered.Basis, planes: Value) -> Value:
    """``patches.compare_colours``, of planes (N, channels, height, width)."""
    graph, colours, cells = planes.graph, basis.colours, recipe.cells
    assert colours is not None
    down, across = filtered.colour_means(recipe)
    half = graph.constant(down, SINGLE) @ (planes @ across.T)
    half = half.reshape(-1, recipe.channels, len(down) * len(across))
    light = half.sum() / float(recipe.channels)
    given = graph.join([light / filtered.LIGHT, (half - light) / filtered.TINT])
    squares = np.square(colours).sum(axis=1, keepdims=True)
    near = (graph.constant(2 * colours, SINGLE) @ given - squares) * filtered.NARROW
    largest = graph.node("ReduceMax", near, graph.constant([1], INT), keepdims=1)
    shares = (near - largest).then("Exp")
    shares = shares / shares.sum()
    found = (shares @ filtered.colour_cells(recipe).T).then("Sqrt")
    found = found.reshape(-1, len(colours), cells, cells)
    if recipe.mirrored:
        found = (found + found.take(np.arange(cells)[::-1], axis=3)) / 2.0
    found = graph.node("Transpose", found, perm=[0, 2, 3, 1])
    return found.reshape(-1, len(colours) * cells**2)


def _scatter(one: images.Scattering, given: Value, field: Grid) -> Value:
    planes = _planes(given, field)
    sides = images.check_shape(field.shape)[:2]
    block = max(1, min(sides) // images.WORKING_SIDE)
    sizes = (sides[0] // block, sides[1] // block)
    cells = one.cells_of(field.shape)
    rows = _logarithms(one, planes, sizes, cells)
    if one.mirrored:
        turned = planes.take(np.arange(sizes[1])[::-1], axis=2)
        rows = (rows + _logarithms(one, turned, sizes, cells)) / 2.0
    rows = rows.reshape(-1, one.features(field.shape))
    exact = rows.to(DOUBLE)
    return (exact / (exact * exact).sum().then("Sqrt")).to(SINGLE)


def _logarithms(one: images.Scattering, planes: Value, sides: tuple[int, int], cells: int) -> Value:
    """Centred logarithms (N * channels, coefficients, cells, cells) of planes."""
    graph = planes.graph
    whole = [(side // 2**one.scales + 2) * 2**one.scales for side in sides]
    first = [(full - side) // 2 for full, side in zip(whole, sides, strict=True)]
    last = [whole[i] - side - first[i] for i, side in enumerate(sides)]
    edges = graph.constant([0, *first, 0, *last], INT)
    padded = graph.node("Pad", planes, edges, mode="reflect").reshape(-1, 1, *whole)
    means = list[Value]()
    for every, fields in _absolute_fields(padded, (whole[0], whole[1]), one.scales, one.angles):
        weights = [
            images.window_means(side, full, every, one.scales, cells)
            for side, full in zip(sides, whole, strict=True)
        ]
        means.append(graph.constant(weights[0].T, SINGLE) @ (fields @ weights[1]))
    centre = images.CENTRE[images.orders(one.scales, one.angles)][:, None, None]
    return (graph.join(means) * images.STEEP + 1.0).then("Log") - centre


def _absolute_fields(
    planes: Value, shape: tuple[int, int], scales: int, angles: int
) -> list[tuple[int, Value]]:
    """``scattering.absolute_fields``, of values (N, 1, height, width)."""
    found, spectrum = [(1, planes)], _fourier(planes.reshape(-1, 1, *shape, 1))
    for first in range(scales):
        outer = _filter(spectrum, images.thin_wavelets(shape, first, angles, 1), 2**first, angles)
        found.append((2**first, outer))
        if first + 1 == scales:
            continue
        small = (shape[0] >> first, shape[1] >> first)
        inner = _fourier(outer.reshape(-1, angles, *small, 1))
        for second in range(first + 1, scales):
            for wavelet in images.thin_wavelets(shape, second, angles, 2**first):
                found.append(
                    (2**second, _filter(inner, wavelet[None], 2 ** (second - first), angles))
                )
    return found


def _fourier(fields: Value, inverse: int = 0) -> Value:
    """Transforms over both sides of fields (..., height, width, 1 or 2), complex as pairs."""
    graph = fields.graph
    for axis in (2, 3):
        at = graph.constant(axis, INT)
        node_inputs = (fields, Value(graph, "", INT), at)
        fields = graph.node("DFT", *node_inputs, inverse=inverse)
    return fields


def _filter(spectrum: Value, wavelets: np.ndarray, every: int, channels: int) -> Value:
    """|field * wavelet| at each ``every``-th pixel, (N, channels, height, width)."""
    _, height, width = wavelets.shape
    product = spectrum * wavelets[..., None]
    thin = (height // every, width // every)
    if every > 1:  # taking each k-th pixel folds the transform
        folds = product.reshape(-1, every, thin[0], every, thin[1], 2)
        product = folds.sum(3).sum(1) / float(every**2)
    product = _fourier(product.reshape(-1, 1, *thin, 2), inverse=1)
    return (product * product).sum(4).then("Sqrt").reshape(-1, channels, *thin)


# From rows to scores, as the preparation of the run changes them.


def unit_rows(rows: Value) -> Value:
    """Rows divided by their norms; those of norm 0 stay 0."""
    exact = rows.to(DOUBLE)
    largest = exact.then("Abs").then("ReduceMax", _axes(rows), keepdims=1).then("Max", 1e-300)
    exact = exact / largest
    norm = (exact * exact).sum().then("Sqrt").then("Max", 1e-300)
    return (exact * (norm.of(executed.UNIT) / norm)).to(SINGLE)


def _axes(rows: Value) -> Value:
    return rows.graph.constant([1], INT)


def clip_rows(rows: Value, row_norm: float) -> Value:
    """Rows scaled down to a norm."""
    single = rows.to(SINGLE)
    exact = single.to(DOUBLE)
    norm = (exact * exact).sum().then("Sqrt").then("Max", 1e-300)
    return (exact * (norm.of(row_norm * ROW_SHRINK) / norm).then("Min", 1.0)).to(SINGLE)


def clip_exactly(rows: Value, row_norm: float) -> Value:
    """Rows in double precision scaled down to a norm; their squares neither overflow nor vanish."""
    axes = rows.graph.constant([1], INT)
    top = rows.graph.node("ReduceMax", rows.then("Abs"), axes, keepdims=1)
    scaled = rows / top.where(top.equal(0.0), 1.0)
    inner = (scaled * scaled).sum().then("Sqrt")
    longer = (top * inner) > row_norm
    return rows.where(longer, scaled / inner.then("Max", 1.0) * row_norm)


def prepare_rows(rows: Value, part: parts.Preparation, released: np.ndarray, width: int) -> Value:
    """The rows after one part of the preparation; ``width``: of theirs before it."""
    match part:
        case parts.PrivateMean():
            return clip_rows(rows, part.row_norm) - released
        case parts.SquareRoots():
            exact = rows.to(DOUBLE)
            return (exact.then("Sign") * exact.then("Abs").then("Sqrt")).to(SINGLE)
        case parts.UnitRows():
            return unit_rows(rows)
        case parts.CosineFeatures():
            unit = unit_rows(rows)
            directions, phases = executed.directions(part, width)
            scale = part.weight * math.sqrt(2 / part.count) * (1 - 1e-9)
            waves = (unit.to(DOUBLE) @ directions + phases).then("Cos") * scale - released
            return rows.graph.join([unit, waves.to(SINGLE)])
        case parts.PrivateCovariance():
            if part.row_norm is None:
                return unit_rows(unit_rows(rows).to(DOUBLE) @ released)
            short = (clip_rows(rows, part.row_norm).to(DOUBLE) / part.row_norm).to(SINGLE)
            return (short.to(DOUBLE) @ released).to(SINGLE)
        case parts.TopEigenvalue() | parts.PrivateTargetMean():
            return rows

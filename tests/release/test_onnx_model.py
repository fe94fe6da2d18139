"""ONNX files: the answers of ``predict`` in another runtime, and a release that can be verified."""

from __future__ import annotations

import hashlib
import json
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import lastiterate as li
from lastiterate.data.schema import Schema
from lastiterate.errors import InputError
from lastiterate.features import Scattering, SchemaTransformer
from lastiterate.features.map_registry import to_data
from lastiterate.release.linear_model import FittedLinear
from lastiterate.release.onnx_model import to_onnx
from lastiterate.release.score_meaning import Labels, Range

RNG = np.random.default_rng(0)
COLUMNS: dict[str, Any] = {
    "age": {"kind": "number", "low": 0, "high": 100, "missing": "indicator"},
    "pay": {"kind": "count", "high": 1e5, "missing": 10},
    "dose": {"kind": "number", "low": 1, "high": 50, "scale": "log"},
    "city": {"kind": "category", "values": ["Rom", "Oslo", "na"], "missing": "indicator"},
    "code": {"kind": "category", "values": ["1", "2.5", "007", "True"], "outside": "zero"},
    "seen": {"kind": "date", "first": "2020-01-01", "last": "2026-12-31", "missing": "indicator"},
    "who": {"kind": "id"},
}
ROWS = 60


def pick(*cells: str) -> list[str]:
    return [str(cell) for cell in RNG.choice(cells, ROWS)]


TABLE: dict[str, list[Any]] = {
    "age": [*np.where(RNG.random(ROWS) < 0.2, np.nan, RNG.uniform(-20, 120, ROWS))],
    "pay": [*np.where(RNG.random(ROWS) < 0.2, np.nan, RNG.uniform(0, 2e5, ROWS))],
    "dose": [*RNG.uniform(0, 60, ROWS)],
    "city": pick("Rom", "Oslo", "na", "", "NULL", "?"),
    "code": pick("1", "1.0", "1.00", "2.5", "2.50", "007", "7", "true", "TRUE", "12", "x", "1e0"),
    "seen": pick(
        "2020-01-01",
        "2024-02-29",
        "2026-12-31",
        "1999-12-31",
        "2030-05-05 10:30",
        "2023-03-01T09",
        "",
    ),
    "who": pick("p1", "p2"),
}
INPUTS = {"age": float, "pay": float, "dose": float, "city": str, "code": str, "seen": str}


def make_model(
    rows: np.ndarray, target: np.ndarray, schema: Schema | None, **more: Any
) -> FittedLinear:
    """A model of a few steps; ``more``: of its run."""
    classes = 0 if target.dtype.kind == "f" else int(target.max()) + 1
    norm = float(np.linalg.norm(rows, axis=1).max()) * 0.8  # some rows are clipped
    loss: Any = (
        li.HuberRidge(row_norm=norm, ridge=0.1)
        if not classes
        else li.Logistic(row_norm=norm, ridge=0.1)
        if classes == 2
        else li.Softmax(classes=classes, row_norm=norm, ridge=0.1)
    )
    run = li.Run(n=len(rows), steps=3, step_size=0.05, loss=loss, **more)
    with warnings.catch_warnings(
        action="ignore"
    ):  # of a run that is short and of an epsilon that is large
        model = li.train(run, (rows, target), epsilon=15.0, delta=1e-5, seed=1)
    assert isinstance(model, FittedLinear)
    answers = (
        model.answers
        if schema is None
        else Labels(schema.classes, more.get("threshold"))
        if schema.classes
        else Range(*schema.target_range)  # pyright: ignore[reportOptionalIterable]
    )
    return replace(model, schema=schema, answers=answers)


def score(content: bytes, **inputs: np.ndarray) -> dict[str, Any]:
    session = onnxruntime.InferenceSession(content)
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, inputs), strict=True))


def reseal(model: Any) -> None:
    """Write the hash of a graph that was altered, as a forger would."""
    entry = next(one for one in model.metadata_props if one.key == "lastiterate.graph_sha256")
    bare = onnx.ModelProto()
    bare.CopyFrom(model)
    bare.ClearField("metadata_props")
    entry.value = hashlib.sha256(bare.SerializeToString(deterministic=True)).hexdigest()


def cells(table: dict[str, list[Any]]) -> dict[str, np.ndarray]:
    return {
        name: np.array(table[name], np.float64 if kind is float else object)[:, None]
        for name, kind in INPUTS.items()
    }


def table_schema(features: list[str] | None = None, **more: Any) -> Schema:
    facts: dict[str, Any] = {"target": "ill", "columns": COLUMNS, "features": features or []}
    return Schema.from_dict(facts | (more or {"classes": ["no", "yes"]}))


def column_schema(name: str = "a", **column: Any) -> Schema:
    return Schema.from_dict({"target": "y", "classes": ["n", "y"], "columns": {name: column}})


def written(model: FittedLinear, folder: Path) -> bytes:
    return model.to_onnx(folder / "made.onnx").read_bytes()


MAPS: dict[str, Any] = {
    "plain": [],
    "curves": ["curves"],
    "bins": ["bins"],
    "gated": ["gated"],
    "curves and gates": ["curves", "gated"],
}


@pytest.mark.parametrize("maps", MAPS.values(), ids=MAPS)
def test_a_table_s_cells_get_the_answers_of_predict(maps: list[str], tmp_path: Path) -> None:
    schema = table_schema(maps)
    rows = SchemaTransformer(schema).fit_transform(TABLE)
    model = make_model(rows, np.arange(ROWS) % 2, schema)
    found = score(written(model, tmp_path), **cells(TABLE))
    assert not found["refused"].any()
    assert found["label"].tolist() == model.predict(rows).tolist()
    np.testing.assert_allclose(found["probabilities"], model.probabilities(rows), atol=1e-7)


PARTS: dict[str, tuple[Any, ...]] = {
    "mean": (li.PrivateMean(noise_multiplier=5.0, row_norm=1.0),),
    "roots of unit rows": (li.UnitRows(), li.SquareRoots()),
    "covariance": (li.PrivateCovariance(noise_multiplier=5.0),),
    "covariance of clipped rows": (li.PrivateCovariance(noise_multiplier=5.0, row_norm=1.0),),
    "cosines": (li.CosineFeatures(noise_multiplier=5.0, count=16),),
    "several": (
        li.PrivateMean(noise_multiplier=5.0, row_norm=2.0),
        li.UnitRows(),
        li.TopEigenvalue(noise_multiplier=5.0),
    ),
}


@pytest.mark.parametrize("parts", PARTS.values(), ids=PARTS)
def test_rows_are_prepared_as_the_run_prepared_them(parts: tuple[Any, ...], tmp_path: Path) -> None:
    rows = RNG.normal(size=(ROWS, 5)).astype(np.float32)
    rows[0] = 0
    model = make_model(rows, np.arange(ROWS) % 3, None, preprocessing=parts)
    found = score(written(model, tmp_path), x=rows)
    assert found["label"].tolist() == model.predict(rows).tolist()
    np.testing.assert_allclose(found["probabilities"], model.probabilities(rows), atol=1e-7)


def test_rows_that_are_no_numbers_are_marked(tmp_path: Path) -> None:
    rows = RNG.normal(size=(ROWS, 5)).astype(np.float32)
    content = written(make_model(rows, np.arange(ROWS) % 2, None), tmp_path)
    rows[1, 2], rows[3, 0] = np.nan, np.inf
    found = score(content, x=rows)
    assert np.flatnonzero(found["refused"]).tolist() == [1, 3]
    assert np.isnan(found["probabilities"][[1, 3]]).all()


def test_a_regression_predicts_in_its_range(tmp_path: Path) -> None:
    schema = table_schema(target_range=[0.0, 30.0])
    rows = SchemaTransformer(schema).fit_transform(TABLE)
    part = li.PrivateTargetMean(noise_multiplier=2.0)
    model = make_model(rows, RNG.uniform(-1, 1, ROWS), schema, preprocessing=(part,))
    found = score(written(model, tmp_path), **cells(TABLE))
    np.testing.assert_allclose(found["prediction"], model.predict(rows), atol=1e-6)


def test_the_threshold_decides(tmp_path: Path) -> None:
    rows = RNG.normal(size=(ROWS, 5)).astype(np.float32)
    model = make_model(rows, np.arange(ROWS) % 2, None)
    middle = float(np.median(model.probabilities(rows)[:, 1]))
    model = replace(model, answers=Labels((3, 7), middle))
    found = score(written(model, tmp_path), x=rows)
    assert set(found["label"]) == {3, 7}
    assert found["label"].tolist() == model.predict(rows).tolist()


@pytest.mark.parametrize(
    ("shape", "mirrored"),
    [((8, 12), False), ((9, 8, 3), False), ((2, 8, 8), True), ((70, 64), False)],
)
def test_images_become_scattering_coefficients(
    shape: tuple[int, ...], mirrored: bool, tmp_path: Path
) -> None:
    facts = {
        "target": "y",
        "classes": ["a", "b", "c"],
        "array": {"low": 0.0, "high": 255.0, "shape": list(shape)},
        "features": to_data((Scattering(mirrored=mirrored),)),
    }
    schema, pixels = Schema.from_dict(facts), RNG.uniform(-10, 300, (9, int(np.prod(shape))))
    rows = SchemaTransformer(schema).fit_transform(pixels)
    model = make_model(rows, np.arange(9) % 3, schema)
    found = score(written(model, tmp_path), x=pixels.astype(np.float32))
    np.testing.assert_allclose(found["probabilities"], model.probabilities(rows), atol=2e-6)
    assert found["label"].tolist() == model.predict(rows).tolist()
    for change, holds in ((1e-7, True), (1e-3, False)):  # another machine's rounding, and a forgery
        altered = onnx.load(tmp_path / "made.onnx")
        wavelets = next(one for one in altered.graph.initializer if one.data_type == 1)
        values = onnx.numpy_helper.to_array(wavelets) * np.float32(1 + change)
        wavelets.raw_data = values.tobytes()
        onnx.save(altered, tmp_path / "altered.onnx")
        assert not li.verify(tmp_path / "altered.onnx").holds
        reseal(altered)
        onnx.save(altered, tmp_path / "altered.onnx")
        assert li.verify(tmp_path / "altered.onnx").holds == holds


@pytest.mark.usefixtures("few_pictures")
@pytest.mark.parametrize("more", [{"full": True}, {}, {"mirrored": False, "full": True}])
@pytest.mark.parametrize("shape", [(8, 12), (9, 8, 3), (2, 8, 8), (70, 64)])
def test_images_become_responses_to_patches(
    shape: tuple[int, ...], more: dict[str, bool], tmp_path: Path
) -> None:
    facts = {
        "target": "y",
        "classes": ["a", "b", "c"],
        "array": {"low": 0.0, "high": 255.0, "shape": list(shape)},
        "features": [{"type": "Patches", "filters": 12, "axes": 40} | more],
    }
    schema, pixels = Schema.from_dict(facts), RNG.uniform(-10, 300, (9, int(np.prod(shape))))
    pixels[0] = 7.0
    rows = SchemaTransformer(schema).fit_transform(pixels)
    model = make_model(rows, np.arange(9) % 3, schema)
    found = score(written(model, tmp_path), x=pixels.astype(np.float32))
    np.testing.assert_allclose(found["probabilities"], model.probabilities(rows), atol=1e-5)
    assert found["label"].tolist() == model.predict(rows).tolist()
    assert li.verify(tmp_path / "made.onnx").holds


@pytest.mark.parametrize("more", [{}, {"norm": 3.0}, {"features": ["curves"], "shape": [2, 3]}])
def test_arrays_are_read_as_they_are(more: dict[str, Any], tmp_path: Path) -> None:
    array = {"low": -4.0, "high": 4.0} | {k: v for k, v in more.items() if k != "features"}
    facts = {"target": "y", "classes": ["a", "b", "c"], "array": array}
    schema = Schema.from_dict(facts | {"features": more.get("features", [])})
    values = RNG.normal(size=(ROWS, 6)).astype(np.float32) * 2
    rows = SchemaTransformer(schema).fit_transform(values)
    model = make_model(rows, np.arange(ROWS) % 3, schema)
    found = score(written(model, tmp_path), x=values)
    assert found["label"].tolist() == model.predict(rows).tolist()
    np.testing.assert_allclose(found["probabilities"], model.probabilities(rows), atol=1e-6)


REFUSED: dict[str, tuple[dict[str, Any], list[Any], list[int]]] = {
    "missing number": ({"kind": "number", "low": 0, "high": 9}, [1.0, np.nan], [1]),
    "number outside": (
        {"kind": "number", "low": 0, "high": 9, "outside": "refuse"},
        [9.0, 9.5, -1.0],
        [1, 2],
    ),
    "unknown category": ({"kind": "category", "values": ["a", "2"]}, ["a", "2.0", "b", ""], [2, 3]),
    "no day": (
        {"kind": "date", "first": "2020-01-01", "last": "2020-12-31", "outside": "refuse"},
        [
            "2020-02-29",
            "2021-02-29",
            "2020-13-01",
            "",
            "x",
            "2019-12-31",
            "2020-00-10",
            "2020-04-31",
        ],
        [1, 2, 3, 4, 5, 6, 7],
    ),
}


@pytest.mark.parametrize(("column", "given", "marked"), REFUSED.values(), ids=REFUSED)
def test_what_predict_refuses_is_marked(
    column: dict[str, Any], given: list[Any], marked: list[int], tmp_path: Path
) -> None:
    schema = column_schema(**column)
    good = [cell for place, cell in enumerate(given) if place not in marked]
    rows = SchemaTransformer(schema).fit_transform({"a": good * 10})
    content = written(make_model(rows, np.arange(len(rows)) % 2, schema), tmp_path)
    kind = np.float64 if isinstance(given[0], float) else object
    found = score(content, a=np.array(given, kind)[:, None])
    assert np.flatnonzero(found["refused"]).tolist() == marked
    assert [found["label"][place] for place in marked] == [""] * len(marked)
    assert np.isnan(found["probabilities"][marked]).all()
    for place in marked:  # the same cells stop predict
        with pytest.raises(InputError):
            SchemaTransformer(schema).fit_transform({"a": [given[place]]})


def test_every_day_of_four_centuries_has_its_place(tmp_path: Path) -> None:
    schema = column_schema(kind="date", first="1800-01-01", last="2200-12-31")
    days = np.arange("1800-01-01", "2201-01-01", 13, dtype="datetime64[D]").astype(str)
    rows = SchemaTransformer(schema).fit_transform({"a": days.tolist()})
    model = make_model(rows, np.arange(len(rows)) % 2, schema)
    found = score(written(model, tmp_path), a=days.astype(object)[:, None])
    np.testing.assert_allclose(found["probabilities"], model.probabilities(rows), atol=1e-9)


def test_outputs_make_room_for_columns_of_their_names(tmp_path: Path) -> None:
    schema = column_schema("label", kind="number", low=0, high=1)
    rows = SchemaTransformer(schema).fit_transform({"label": [0.0, 1.0] * 5})
    content = written(make_model(rows, np.arange(10) % 2, schema), tmp_path)
    found = score(content, label=np.array([[0.0], [1.0]]))
    assert list(found) == ["label_", "probabilities", "refused"]


def test_no_file_is_replaced_and_no_network_is_written(tmp_path: Path) -> None:
    rows = RNG.normal(size=(ROWS, 5))
    model = make_model(rows, np.arange(ROWS) % 2, None)
    with pytest.raises(InputError, match="file must not exist yet"):
        model.to_onnx(written(model, tmp_path) and tmp_path / "made.onnx")
    run = li.Run(n=ROWS, steps=2, step_size=0.1, clip=1.0)
    network = li.train(
        run,
        (rows, rows[:, 0]),
        model={"w": np.zeros(5)},
        loss=lambda model, x, y: (x @ model["w"] - y) ** 2,
        epsilon=5.0,
        delta=1e-5,
        seed=2,
    )
    with pytest.raises(InputError, match="must be a linear one"):
        network.to_onnx(tmp_path / "network.onnx")
    assert not (tmp_path / "network.onnx").exists()


def test_text_and_times_are_refused_with_the_way_out(tmp_path: Path) -> None:
    schema = column_schema(kind="category", values=["2020-01-01 10:30:00", "b"])
    rows = SchemaTransformer(schema).fit_transform({"a": ["b"] * 10})
    model = make_model(rows, np.arange(10) % 2, schema)
    with pytest.raises(InputError, match=r"time of day.*lastiterate predict"):
        written(model, tmp_path)


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder and its ONNX file."""
    folder = tmp_path_factory.mktemp("release")
    schema = table_schema()
    rows = SchemaTransformer(schema).fit_transform(TABLE)
    made = make_model(rows, np.arange(ROWS) % 2, schema)
    made.save(folder / "model")
    Path(folder, "model.onnx").write_bytes(to_onnx(made.files()))
    return folder


def test_the_file_carries_its_release(release: Path) -> None:
    found = onnx.load(release / "model.onnx")
    texts = {one.key: one.value for one in found.metadata_props}
    certificate = (release / "model/certificate.json").read_text()
    assert texts["lastiterate.certificate.json"] == certificate
    assert texts["lastiterate.epsilon"] == json.dumps(json.loads(certificate)["epsilon"])
    assert texts["lastiterate.adjacency"] == "zero-out"
    assert texts["lastiterate.unit"] == "one row"
    checked = li.verify(release / "model.onnx")
    assert checked.holds
    assert checked.epsilon == li.verify(release / "model").epsilon


def alter_weight(model: Any) -> None:
    weights = max(model.graph.initializer, key=lambda one: len(one.raw_data))
    changed = bytearray(weights.raw_data)
    changed[6] ^= 1
    weights.raw_data = bytes(changed)


def alter_entry(name: str, old: str, new: str) -> Any:
    def change(model: Any) -> None:
        entry = next(one for one in model.metadata_props if one.key == f"lastiterate.{name}")
        assert old in entry.value
        entry.value = entry.value.replace(old, new, 1)

    return change


def alter_node(model: Any) -> None:
    node = next(node for node in model.graph.node if node.op_type == "Softmax")
    node.input[0] = model.graph.node[0].output[0]


def alter_operator(model: Any) -> None:
    """Another meaning of an operator that the graph uses."""
    node = onnx.helper.make_node("Neg", ["a"], ["b"])
    opset = onnx.helper.make_opsetid("", 20)
    model.functions.append(onnx.helper.make_function("", "Softmax", ["a"], ["b"], [node], [opset]))


def alter_operators(model: Any) -> None:
    model.opset_import[0].version = 21


def alter_twice(model: Any) -> None:
    """A second epsilon, which some readers show and others do not."""
    model.metadata_props.insert(
        0, onnx.StringStringEntryProto(key="lastiterate.epsilon", value="0.1")
    )


ALTERED: dict[str, tuple[Any, str]] = {
    "weight": (alter_weight, "the graph is not the one"),
    "two epsilons": (alter_twice, "two entries of one name"),
    "operator": (alter_operator, "the graph is not the one"),
    "operators": (alter_operators, "the graph is not the one"),
    "node": (alter_node, "the graph is not the one"),
    "epsilon beside the certificate": (alter_entry("epsilon", "4", "3"), "epsilon of the metadata"),
    "certificate": (alter_entry("certificate.json", '"steps": 3', '"steps": 2'), "content hash"),
    "schema": (alter_entry("model.json", '"Rom"', '"Bonn"'), "model.json is not the file"),
}


@pytest.mark.parametrize(("alter", "problem"), ALTERED.values(), ids=ALTERED)
def test_an_altered_file_does_not_verify(
    alter: Any, problem: str, release: Path, tmp_path: Path
) -> None:
    model = onnx.load(release / "model.onnx")
    alter(model)
    reseal(model)
    onnx.save(model, tmp_path / "model.onnx")
    checked = li.verify(tmp_path / "model.onnx")
    assert not checked.holds
    assert any(problem in found for found in checked.problems)


def test_entries_of_others_are_named(release: Path, tmp_path: Path) -> None:
    model = onnx.load(release / "model.onnx")
    model.metadata_props.append(onnx.StringStringEntryProto(key="epsilon", value="0.1"))
    onnx.save(model, tmp_path / "model.onnx")
    checked = li.verify(tmp_path / "model.onnx")
    assert checked.holds
    assert checked.uncovered == ("the metadata's epsilon and manifest_sha256",)


def test_a_strange_file_is_refused(release: Path, tmp_path: Path) -> None:
    bare = onnx.ModelProto(ir_version=10).SerializeToString()
    written = Path(release, "model.onnx").read_bytes()
    no_text = written.replace(b'{\n  "format"', b'{\xff\xff "format"')
    assert no_text != written
    for content in (b"no model", b"", bare, no_text):
        Path(tmp_path, "a.onnx").write_bytes(content)
        with pytest.raises(InputError, match="must be an ONNX file that lastiterate wrote"):
            li.verify(tmp_path / "a.onnx")

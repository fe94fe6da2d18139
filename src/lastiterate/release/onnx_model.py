"""Models as ONNX files that carry their release: one file to score with, and to verify."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lastiterate import __version__, limits
from lastiterate.accounting.certificate_json import CheckResult
from lastiterate.bayes.posterior_subject import RidgePosterior
from lastiterate.engine.linear_gradients import linear_loss
from lastiterate.engine.preprocessing import target_offset
from lastiterate.errors import InputError
from lastiterate.release import folder as folders
from lastiterate.release import verification
from lastiterate.release.fitted_linear import FittedLinear
from lastiterate.release.model_kinds import LINEAR, SAMPLED, SELECTED, UNLEARNED, kind_of
from lastiterate.release.onnx_graph import clip_exactly, clip_rows, encode, prepare_rows
from lastiterate.release.onnx_values import (
    BATCH,
    BOOL,
    DOUBLE,
    INT,
    OPSET,
    SINGLE,
    TEXT,
    Graph,
    Value,
)
from lastiterate.release.posterior import FittedSample
from lastiterate.release.released_model import SelfContainedModel
from lastiterate.release.score_meaning import Answers, Labels, Range
from lastiterate.run import serialization

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, ValueInfoProto  # pyright: ignore

PREFIX = "lastiterate."
CALCULATED = (LINEAR, SELECTED, UNLEARNED, SAMPLED)
"""Kinds of models whose graph is made here."""


def build_graph(model: SelfContainedModel, precision: np.dtype[Any] = SINGLE) -> GraphProto:
    """The calculation of ``model.predict``: an input (N, 1) for every column that the schema uses,
    or ``x`` (N, d) of a ``precision`` for an array; outputs ``label`` and ``probabilities``, or
    ``prediction``, and ``refused``."""
    from onnx import helper  # pyright: ignore

    schema = model.schema
    names = frozenset[str]() if schema is None else frozenset(c.name for c in schema.columns)
    graph = Graph(names)
    width = model.features
    if schema is None:
        rows = graph.input("x", precision, width)
        rows = rows.to(SINGLE) if isinstance(model, FittedLinear) else rows
        graph.refused.append((rows - rows).is_nan().any())  # infinity less itself is no number
    else:
        flat = schema.array is not None and schema.array.shape is None  # and without maps
        rows = encode(graph, schema, (width,) if flat else None)
    if isinstance(model, FittedLinear):
        outputs = model.released.weights.shape[0]
        made = _answers(graph, model.answers, _score_linear(model, rows), outputs)
    else:
        assert isinstance(model, FittedSample)
        made = _answers(graph, model.answers, _score_sample(model, rows.to(DOUBLE)), 1)
    outputs = list["ValueInfoProto"]()
    inputs = {one.name for one in graph.inputs}
    for name, (value, shape) in made.items():
        while name in inputs:
            name += "_"
        graph.nodes.append(helper.make_node("Identity", [value.name], [name]))
        kind = helper.np_dtype_to_tensor_dtype(value.kind)
        outputs.append(helper.make_tensor_value_info(name, kind, shape))
    return helper.make_graph(
        graph.nodes, "model", graph.inputs, outputs, list(graph.constants.values())
    )


def _score_linear(model: FittedLinear, rows: Value) -> Value:
    """Scores (N, k) of rows in single precision."""
    run, weights, width = model.run, model.released.weights, model.features
    loss = linear_loss(run)
    for part, released in zip(run.preprocessing, model.released.released, strict=False):
        rows = prepare_rows(rows, part, released, width)
        width += part.added
    rows = clip_rows(rows, loss.row_norm).to(DOUBLE)
    scores = rows @ weights[:, :-1].T + loss.intercept * weights[:, -1]
    return scores + target_offset(run, model.released.released)


def _score_sample(model: FittedSample, rows: Value) -> Value:
    """Scores (N, 1) of rows in double precision."""
    if model.column is not None:
        rows = clip_exactly(rows, model.column)
        rows = rows.graph.join([rows, rows.columns(0, 1) * 0.0 + 1.0])
    elif isinstance(model.problem, RidgePosterior):
        rows = clip_exactly(rows, model.problem.domain.row_norm)
    return rows @ model.value[:, None]


def _answers(
    graph: Graph, answers: Answers, scores: Value, outputs: int
) -> dict[str, tuple[Value, list[str | int]]]:
    """The outputs by name, each with its shape."""
    some = scores.columns(0, 1)
    none = (some * 0.0) > 1.0
    refused = none
    for each in graph.refused:
        refused |= each
    if isinstance(answers, Labels):
        if outputs == 1:
            scores = graph.join([some * 0.0, some])
        chances = scores.then("Softmax", axis=1).where(refused, np.nan)
        if answers.threshold is None:
            place = chances.then("ArgMax", axis=1, keepdims=0, kind=INT)
        else:
            place = (chances.columns(1, 2) >= answers.threshold).to(INT).reshape(-1)
        values = np.asarray(answers.values)
        kind = {"U": TEXT, "b": BOOL, "f": DOUBLE}.get(values.dtype.kind, INT)
        label = graph.constant(values, kind).take(place, 0)
        if kind == TEXT:
            label = label.where(refused.reshape(-1), "")
        shown = {
            "label": (label, [BATCH]),
            "probabilities": (chances, [BATCH, len(values)]),
        }
    else:
        if isinstance(answers, Range):
            some = (some.clip(-1.0, 1.0) + 1.0) * (answers.high - answers.low) / 2.0 + answers.low
        number = some.where(refused, np.nan).reshape(-1)
        shown = {"prediction": (number, [BATCH])}
    return {**shown, "refused": (refused.reshape(-1), [BATCH])}  # pyright: ignore


def build_model(model: SelfContainedModel) -> ModelProto:
    """The whole file but its metadata."""
    from onnx import helper  # pyright: ignore

    return helper.make_model(
        build_graph(model, SINGLE if isinstance(model, FittedLinear) else DOUBLE),
        opset_imports=[helper.make_opsetid(name, number) for name, number in OPSET.items()],
        ir_version=10,
        producer_name="lastiterate",
        producer_version=__version__,
    )


def to_onnx(files: Mapping[str, bytes], notes: Mapping[str, str] | None = None) -> bytes:
    """Return an ONNX file that predicts as the model of a release does, and carries it.

    Its metadata hold the three files of the release, epsilon, delta, neighbours and unit;
    ``notes``: more texts by name. ``lastiterate verify`` reads them.

    Errors: models of other kinds, and those whose features ONNX cannot calculate (hashed words).
    """
    check_library()
    model = verification.load_files(files)
    if not isinstance(model, SelfContainedModel):
        raise InputError(
            "model",
            "must be a linear one or a posterior sample",
            model.form,
            "in Python a PyTorch module has to_onnx(FILE, x), x being public records, and a JAX "
            "network to_stablehlo(FOLDER, x, forward)",
        )
    return seal(build_model(model), files, notes)


def seal(
    made: ModelProto, files: Mapping[str, bytes], notes: Mapping[str, str] | None = None
) -> bytes:
    """Put a release into the metadata of an ONNX model, and return the file."""
    from onnx import checker, helper  # pyright: ignore

    texts = _facts(files) | {
        folders.WEIGHTS: base64.b64encode(files[folders.WEIGHTS]).decode(),
        folders.MODEL: files[folders.MODEL].decode(),
        folders.CERTIFICATE: files[folders.CERTIFICATE].decode(),
    }
    if folders.MANIFEST in files:
        texts["manifest_sha256"] = folders.sha256(files[folders.MANIFEST])
    texts["graph_sha256"] = _hash_graph(made)
    texts |= dict(notes or {})
    helper.set_model_props(made, {PREFIX + name: text for name, text in texts.items()})
    checker.check_model(made)  # pyright: ignore[reportUnknownMemberType]
    return _content(made)


def _facts(files: Mapping[str, bytes]) -> dict[str, str]:
    """What the certificate says, for programs that read a model's metadata alone."""
    text = files[folders.CERTIFICATE]
    return folders.state_privacy(serialization.loads(text, folders.CERTIFICATE))


def _hash_graph(model: ModelProto) -> str:
    """The hash of the file without its metadata, by which a changed graph is found."""
    from onnx import ModelProto  # pyright: ignore

    bare = ModelProto()
    bare.CopyFrom(model)
    bare.ClearField("metadata_props")
    return folders.sha256(_content(bare))


def verify_onnx(path: Path) -> CheckResult:
    """Verify the release in an ONNX file, and that its graph is the one of the certified model.

    The nodes of a PyTorch module come from its code: of those only the weights are compared.
    """
    check_library()
    from google.protobuf.message import DecodeError  # pyright: ignore
    from onnx import ModelProto  # pyright: ignore

    found = ModelProto()
    try:
        found.ParseFromString(limits.content(path, "model", limits.FOLDER))
        entries = [(one.key, one.value) for one in found.metadata_props]
        texts = {key.removeprefix(PREFIX): text for key, text in entries if key.startswith(PREFIX)}
        files = {name: texts[name].encode() for name in folders.FILES}
        files[folders.WEIGHTS] = base64.b64decode(texts[folders.WEIGHTS], validate=True)
    except (KeyError, ValueError, AttributeError, TypeError, DecodeError):  # text that is none
        raise InputError(
            "model",
            "must be an ONNX file that lastiterate wrote, with its release in the metadata",
            str(path),
            "lastiterate export MODEL_DIR --to onnx writes one",
        ) from None
    checked = verification.verify_files(files)
    if not checked.holds:
        return checked
    stored = folders.parse(files)
    kind = kind_of(stored.model, stored.certificate)
    model = verification.load_files(files) if kind in CALCULATED else None
    problems = [
        f"the entry {name} of the metadata is not what the certificate says"
        for name, text in _facts(files).items()
        if texts.get(name) != text
    ]
    if len(dict(entries)) < len(entries):  # readers differ in which of the two they show
        problems.append("the metadata have two entries of one name")
    graph = _hash_graph(found)
    if isinstance(model, SelfContainedModel):
        problems += _compare_graph(found, model)
        uncovered = list(checked.uncovered)
    else:
        problems += _compare_weights(found, stored.tensors())
        uncovered = [*checked.uncovered, NODES]
    if not problems and texts.get("graph_sha256", graph) != graph:
        problems.append("the graph is not the one whose hash the metadata state")
    strange = {key for key, _ in entries if not key.startswith(PREFIX)}
    notes = sorted(set(texts) - set(files) - {*_facts(files), "graph_sha256"} | strange)
    uncovered += [f"the metadata's {' and '.join(notes)}"] if notes else []
    return replace(checked, problems=tuple(problems), uncovered=tuple(uncovered))


NODES = (
    "whether the graph calculates with the certified weights alone: its nodes and other arrays come "
    "from the module's code"
)


def _compare_weights(found: ModelProto, tensors: Mapping[str, np.ndarray]) -> list[str]:
    """Which certified arrays are not in the graph under their names, as they are."""
    from onnx import numpy_helper  # pyright: ignore

    there = {one.name: one for one in found.graph.initializer}
    changed = [
        name
        for name, array in tensors.items()
        if name not in there
        or tuple(there[name].dims) != array.shape
        or not np.array_equal(np.asarray(numpy_helper.to_array(there[name]), array.dtype), array)
    ]
    if len(there) < len(found.graph.initializer):
        return ["the graph has two arrays of one name"]
    return [f"the array {name} is not the one that was certified" for name in changed]


def _compare_graph(found: ModelProto, model: SelfContainedModel) -> list[str]:
    """Whether the graph is the one that is made of a model: operators follow from it."""
    other = found.producer_version != __version__
    found.ClearField("metadata_props")
    made = build_model(model)
    _forgive_rounding(found.graph, made.graph)
    if _content(found) == _content(made):
        return []
    return [
        "the graph is not the one of the certified model"
        + f", as version {__version__} writes it" * other
    ]


def _forgive_rounding(found: GraphProto, made: GraphProto) -> None:
    """Take constants in single precision for those that this machine makes, where they are as close
    as rounding: wavelets come from a Fourier transform. Weights are in double precision."""
    from onnx import TensorProto, numpy_helper  # pyright: ignore

    for there, here in zip(found.initializer, made.initializer, strict=False):
        if here.data_type != TensorProto.FLOAT:
            continue
        if (there.name, there.data_type, there.dims) == (here.name, here.data_type, here.dims):
            a, b = (numpy_helper.to_array(one) for one in (there, here))
            if np.abs(a - b).max(initial=0.0) <= 1e-6 * np.abs(b).max(initial=0.0):
                there.CopyFrom(here)


def _content(model: ModelProto) -> bytes:
    return model.SerializeToString(deterministic=True)


def check_library() -> None:
    try:
        import onnx  # noqa: F401  # pyright: ignore
    except ModuleNotFoundError:
        raise InputError(
            "onnx", "is needed to write and read ONNX files", None, "pip install lastiterate[onnx]"
        ) from None

"""Converters with which skl2onnx turns pipelines that hold these estimators into ONNX graphs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from lastiterate.errors import InputError
from lastiterate.estimators.classifier import DPLogisticRegression
from lastiterate.estimators.pipelines import SchemaTransformer
from lastiterate.estimators.regressor import DPHuberRidge
from lastiterate.release.linear_model import FittedLinear
from lastiterate.release.onnx_values import BATCH, DOUBLE, OPSET, SINGLE
from lastiterate.release.score_meaning import Labels

if TYPE_CHECKING:
    from onnx import ModelProto  # pyright: ignore

PROBABILITIES = {"zipmap": [True, False, "columns"], "nocl": [True, False]}
"""Options of skl2onnx for the outputs of classifiers."""


def register_onnx_converters() -> None:
    """Make `DPLogisticRegression` and `DPHuberRidge` known to skl2onnx.

    A pipeline that ends in one of them then converts with ``skl2onnx.to_onnx``, which needs opset
    20. Of a search convert its ``best_estimator_``.
    Labels are those of ``predict``, probabilities are in single precision. The file holds no
    certificate: hand on the folder of ``fitted_.save`` with it, or write a single estimator by
    ``fitted_.to_onnx``, which does.

    Raises
    ------
    InputError
        If skl2onnx is not installed.

    See Also
    --------
    lastiterate.verify : Check the release that ``fitted_.to_onnx`` writes.

    Examples
    --------
    >>> from lastiterate.estimators import register_onnx_converters
    >>> register_onnx_converters()  # doctest: +SKIP
    """
    try:
        from skl2onnx import update_registered_converter  # pyright: ignore
    except ModuleNotFoundError:
        raise InputError(
            "skl2onnx", "is needed to convert pipelines", None, "pip install lastiterate[onnx]"
        ) from None

    for kind in (DPLogisticRegression, DPHuberRidge):
        update_registered_converter(
            kind,
            f"Lastiterate{kind.__name__}",
            _describe_outputs,
            _convert,
            overwrite=True,
            options=None if kind is DPHuberRidge else PROBABILITIES,
        )
    update_registered_converter(
        SchemaTransformer,
        "LastiterateSchemaTransformer",
        _refuse_tables,
        _convert,
        overwrite=True,
    )


def _refuse_tables(_operator: Any) -> None:
    """Refuse the step that makes rows of a table: skl2onnx's graph would label what it refuses."""
    raise InputError(
        "pipeline",
        "must have no SchemaTransformer to be converted by skl2onnx",
        None,
        "pipeline[-1].fitted_.to_onnx(FILE) reads the rows that pipeline[:-1].transform(table) "
        "makes; an estimator that was trained with schema= writes a file that reads the table's "
        "columns by fitted_.to_onnx(FILE)",
    )


def _read_model(estimator: Any) -> FittedLinear:
    """The model of a fitted estimator on rows."""
    model: FittedLinear = estimator.fitted_
    if model.schema is not None:
        raise InputError(
            "estimator",
            "must be one of rows here: a schema makes rows of columns by itself",
            type(estimator).__name__,
            "write it with fitted_.to_onnx(FILE), which reads the table's columns",
        )
    return model


def _describe_outputs(operator: Any) -> None:
    """Types and shapes, as skl2onnx asks for them."""
    from skl2onnx.common import data_types as types  # pyright: ignore

    model, rows = _read_model(operator.raw_operator), operator.inputs[0].get_first_dimension()
    if not isinstance(model.answers, Labels):
        operator.outputs[0].type = types.FloatTensorType([rows, 1])
        return
    texts = isinstance(model.answers.values[0], str)
    labels = types.StringTensorType if texts else types.Int64TensorType  # true and 1.0 are 1
    operator.outputs[0].type = labels([rows])
    operator.outputs[1].type = types.FloatTensorType([rows, len(model.answers.values)])


def _convert(scope: Any, operator: Any, container: Any) -> None:
    """Put the nodes of a model into the graph of a pipeline."""
    from skl2onnx.common.data_types import DoubleTensorType  # pyright: ignore
    from skl2onnx.helpers.integration import add_onnx_graph  # pyright: ignore

    if container.target_opset < OPSET[""]:
        raise InputError(
            "target_opset",
            f"must be at least {OPSET['']}",
            container.target_opset,
            f'skl2onnx.to_onnx(..., target_opset={{"": {OPSET[""]}, "ai.onnx.ml": 3}})',
        )
    double = isinstance(operator.inputs[0].type, DoubleTensorType)
    estimator = operator.raw_operator
    positions: np.ndarray | None = getattr(estimator, "_positions", None)
    made = _build_model(_read_model(estimator), DOUBLE if double else SINGLE, positions)
    add_onnx_graph(scope, operator, container, made)


def _build_model(
    model: FittedLinear, kind: np.dtype[Any], positions: np.ndarray | None
) -> ModelProto:
    """A model with the outputs that skl2onnx knows; its probabilities have the order of
    ``classes_``, of which ``positions`` says where the model has each."""
    from onnx import TensorProto, helper  # pyright: ignore

    from lastiterate.release.onnx_model import build_graph

    graph = build_graph(model, kind)
    label, classes = graph.output[0], isinstance(model.answers, Labels)
    if classes and label.type.tensor_type.elem_type in (TensorProto.BOOL, TensorProto.DOUBLE):
        graph.node.append(helper.make_node("Cast", [label.name], ["number"], to=TensorProto.INT64))
        label.CopyFrom(helper.make_tensor_value_info("number", TensorProto.INT64, [BATCH]))
    numbers = graph.output[int(classes)]
    name, single = numbers.name, f"{numbers.name}_single"
    graph.node.append(helper.make_node("Cast", [name], [single], to=TensorProto.FLOAT))
    if positions is not None:
        graph.initializer.append(
            helper.make_tensor("ascending", TensorProto.INT64, [len(positions)], positions)
        )
        graph.node.append(helper.make_node("Gather", [single, "ascending"], ["sorted"], axis=1))
        single = "sorted"
    made = helper.make_tensor_value_info(single, TensorProto.FLOAT, [BATCH, None])
    if not classes:
        graph.node.append(helper.make_node("Unsqueeze", [single, "one"], ["column"]))
        graph.initializer.append(helper.make_tensor("one", TensorProto.INT64, [1], [1]))
        made = helper.make_tensor_value_info("column", TensorProto.FLOAT, [BATCH, 1])
    numbers.CopyFrom(made)
    for i, node in enumerate(graph.node):  # skl2onnx asks for names
        node.name = f"lastiterate{i}"
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid(*it) for it in OPSET.items()]
    )

"""Values of ONNX graphs, which are calculated with like arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from onnx import NodeProto, TensorProto, ValueInfoProto  # pyright: ignore

OPSET = {"": 20, "ai.onnx.ml": 3}
BATCH = "N"
TEXT, BOOL, INT = np.dtype(object), np.dtype(bool), np.dtype(np.int64)
SINGLE, DOUBLE = np.dtype(np.float32), np.dtype(np.float64)


@dataclass(eq=False)
class Graph:
    """Nodes in the order of calculation; ``taken``: names that no value of its own may have."""

    taken: frozenset[str] = frozenset()
    nodes: list[NodeProto] = field(default_factory=list["NodeProto"])
    inputs: list[ValueInfoProto] = field(default_factory=list["ValueInfoProto"])
    constants: dict[tuple[str, tuple[int, ...], bytes], TensorProto] = field(
        default_factory=dict[tuple[str, tuple[int, ...], bytes], "TensorProto"]
    )
    refused: list[Value] = field(default_factory=list["Value"])

    def name(self, number: int, kind: str) -> str:
        found = f"{kind}{number}"
        return found if found not in self.taken else self.name(number, f"{kind}_")

    def input(self, name: str, kind: np.dtype[Any], width: int = 1) -> Value:
        """An input (N, width)."""
        from onnx import helper  # pyright: ignore

        self.inputs.append(
            helper.make_tensor_value_info(
                name, helper.np_dtype_to_tensor_dtype(kind), [BATCH, width]
            )
        )
        return Value(self, name, kind)

    def constant(self, array: Any, kind: np.dtype[Any]) -> Value:
        from onnx import helper, numpy_helper  # pyright: ignore

        array = np.asarray(array, kind)
        raw = repr(array.tolist()).encode() if kind == TEXT else array.tobytes()
        key = (str(kind), array.shape, raw)
        if key not in self.constants:
            name = self.name(len(self.constants), "constant")
            self.constants[key] = (
                helper.make_tensor(
                    name,
                    helper.np_dtype_to_tensor_dtype(kind),
                    array.shape,
                    [text.encode() for text in array.ravel()],
                )
                if kind == TEXT
                else numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name)
            )
        return Value(self, self.constants[key].name, kind)

    def node(
        self, operator: str, *inputs: Value, kind: np.dtype[Any] | None = None, **attributes: Any
    ) -> Value:
        """Add an operator; ``kind``: of its result, that of its first input by default."""
        from onnx import helper  # pyright: ignore

        made = self.name(len(self.nodes), "value")
        outputs = (
            [made, self.name(len(self.nodes), "pieces")] if operator == "StringSplit" else [made]
        )
        self.nodes.append(
            helper.make_node(operator, [value.name for value in inputs], outputs, **attributes)
        )
        return Value(self, made, inputs[0].kind if kind is None else kind)

    def join(self, values: Sequence[Value], axis: int = 1) -> Value:
        return values[0] if len(values) == 1 else self.node("Concat", *values, axis=axis)


@dataclass(frozen=True, eq=False)
class Value:
    """What a node makes. Numbers in a calculation with it become constants of its own kind."""

    graph: Graph
    name: str
    kind: np.dtype[Any]

    def of(self, other: Any) -> Value:
        return other if isinstance(other, Value) else self.graph.constant(other, self.kind)

    def then(self, operator: str, *others: Any, **more: Any) -> Value:
        return self.graph.node(operator, self, *(self.of(other) for other in others), **more)

    def to(self, kind: np.dtype[Any]) -> Value:
        from onnx import helper  # pyright: ignore

        if kind == self.kind:
            return self
        return self.then("Cast", kind=kind, to=helper.np_dtype_to_tensor_dtype(kind))

    def __add__(self, other: Any) -> Value:
        return self.then("Add", other)

    def __sub__(self, other: Any) -> Value:
        return self.then("Sub", other)

    def __mul__(self, other: Any) -> Value:
        return self.then("Mul", other)

    def __truediv__(self, other: Any) -> Value:
        return self.then("Div", other)

    def __floordiv__(self, other: int) -> Value:
        assert self.kind == INT  # of numbers from 0 on, where rounding down is rounding to 0
        return self.then("Div", other)

    def __mod__(self, other: int) -> Value:
        return self.then("Mod", other)

    def __matmul__(self, other: Any) -> Value:
        return self.then("MatMul", other)

    def __lt__(self, other: Any) -> Value:
        return self.then("Less", other, kind=BOOL)

    def __gt__(self, other: Any) -> Value:
        return self.then("Greater", other, kind=BOOL)

    def __ge__(self, other: Any) -> Value:
        return self.then("GreaterOrEqual", other, kind=BOOL)

    def __and__(self, other: Value) -> Value:
        return self.then("And", other)

    def __or__(self, other: Value) -> Value:
        return self.then("Or", other)

    def __invert__(self) -> Value:
        return self.then("Not")

    def equal(self, other: Any) -> Value:
        return self.then("Equal", other, kind=BOOL)

    def matches(self, pattern: str) -> Value:
        """Whether a text is such a one as a whole."""
        return self.then("RegexFullMatch", pattern=f"(?s:{pattern})", kind=BOOL)

    def is_nan(self) -> Value:
        return self.then("IsNaN", kind=BOOL)

    def where(self, condition: Value, other: Any) -> Value:
        """``other`` where the condition holds, else the value."""
        return self.graph.node("Where", condition, self.of(other), self, kind=self.kind)

    def clip(self, low: float, high: float) -> Value:
        return self.then("Max", low).then("Min", high)

    def sum(self, axis: int = 1) -> Value:
        axes = self.graph.constant([axis], INT)
        return self.graph.node("ReduceSum", self, axes, keepdims=1)

    def any(self) -> Value:
        """Whether one of a row (N, k) is true, (N, 1)."""
        return self.to(INT).sum() > 0

    def reshape(self, *shape: int) -> Value:
        return self.graph.node("Reshape", self, self.graph.constant(shape, INT), kind=self.kind)

    def take(self, positions: Any, axis: int) -> Value:
        at = positions if isinstance(positions, Value) else self.graph.constant(positions, INT)
        return self.graph.node("Gather", self, at, kind=self.kind, axis=axis)

    def columns(self, first: int, last: int, axis: int = 1) -> Value:
        ends = (self.graph.constant([end], INT) for end in (first, last, axis))
        return self.graph.node("Slice", self, *ends)

"""Per-record gradients of a module, clipped and summed, and the loss of one record."""

# pyright: reportMissingImports=false

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch.distributions import Distribution
from torch.func import functional_call, grad, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

from lastiterate.engine.exact_gradients import SHRINK, SUMMABLE, RecordGrid
from lastiterate.errors import InputError
from lastiterate.run.facts import CHUNK
from lastiterate.run.validation import Weights
from lastiterate.torch.layers import Layer, LayerTap, NoOwnRules
from lastiterate.torch.parameter_contributions import TINY, Contribution, Stored
from lastiterate.torch.parameters import HostWeights, Parameters, State
from lastiterate.torch.randomness import DrawnRecords
from lastiterate.torch.recorded_operations import RecordedComputation
from lastiterate.torch.records import without_batch

# The loss of one record: what torch's own losses ask of a batch, asked of one record.

CLASSES = (
    (torch.nn.CrossEntropyLoss, torch.nn.NLLLoss, torch.nn.MultiMarginLoss),
    (F.cross_entropy, F.nll_loss, F.multi_margin_loss),
)
"""Losses whose target is the index of a class: modules, functions."""

BINARY = (
    (torch.nn.BCEWithLogitsLoss, torch.nn.BCELoss, torch.nn.SoftMarginLoss),
    (F.binary_cross_entropy_with_logits, F.binary_cross_entropy, F.soft_margin_loss),
)
"""Losses whose target has the type and the shape of the output."""

PROBABILITIES = ((torch.nn.BCELoss,), (F.binary_cross_entropy,))
"""Losses that end a run on the record whose output or target is outside of [0, 1]."""

LEAST_LOGARITHM = -100.0
"""The least logarithm of a probability, as in ``torch.nn.BCELoss``."""


@contextmanager
def skip_distribution_checks() -> Iterator[None]:
    """Switch the checks of ``torch.distributions`` off: they end a run on a value of a record, by
    which it could be recognised, and are not vectorised."""
    before = Distribution._validate_args
    Distribution.set_default_validate_args(False)
    try:
        yield
    finally:
        Distribution.set_default_validate_args(before)


def record_loss(loss: Any, output: Any, rest: tuple[Any, ...]) -> Any:
    """The loss of one record without its batch axis, as torch's batches take it.

    Torch takes labels of shape (n,) for outputs (n, classes), and targets (n, 1) of a type for
    outputs (n, 1) of the same type. Labels (n, 1), targets (n,) and integers as targets are taken
    as well, where the loss is one of torch's own.
    """
    with skip_distribution_checks():
        return _of_record(loss, output, rest)


def _of_record(loss: Any, output: Any, rest: tuple[Any, ...]) -> Any:
    if (
        len(rest) != 1
        or not isinstance(output, torch.Tensor)
        or not isinstance(rest[0], torch.Tensor)
    ):
        return loss(output, *rest)
    target = rest[0]
    if is_one_of(loss, CLASSES):
        if not target.is_floating_point() and target.shape == (1,) and output.dim() == 1:
            target = target[0]
    elif is_one_of(loss, BINARY):
        if target.shape != output.shape and target.numel() == 1 == output.numel():
            target = target.reshape(output.shape)
        target = target.to(output.dtype)
        if is_one_of(loss, PROBABILITIES) and target.shape == output.shape:
            return binary_cross_entropy(loss, output, target)
    return loss(output, target)


def is_one_of(loss: Any, kinds: tuple[tuple[type, ...], tuple[Any, ...]]) -> bool:
    """Whether ``loss`` is a module of these types without hooks, or one of these functions with
    arguments filled in."""
    modules, functions = kinds
    if type(loss) in modules:
        return not loss._forward_hooks and not loss._forward_pre_hooks
    function = loss.func if isinstance(loss, partial) else loss
    return any(function is one for one in functions)


def binary_cross_entropy(
    loss: Any, probabilities: torch.Tensor, target: torch.Tensor
) -> torch.Tensor:
    """``torch.nn.BCELoss`` without its checks of values.

    **Guarantee:** no value of a record ends the run, by which the record could be recognised: what
    is not finite counts as 0.
    """
    given: dict[str, Any] = vars(loss) | loss._buffers if isinstance(loss, torch.nn.Module) else {}
    given |= loss.keywords if isinstance(loss, partial) else {}
    values = -(target * _logarithm(probabilities) + (1 - target) * _logarithm(1 - probabilities))
    if given.get("weight") is not None:
        values = values * given["weight"]
    match given.get("reduction", "mean"):
        case "mean":
            return values.mean()
        case "sum":
            return values.sum()
        case _:
            return values


def _logarithm(numbers: torch.Tensor) -> torch.Tensor:
    """The logarithm, at least ``LEAST_LOGARITHM``; where there is none that, with gradient 0."""
    proper = numbers > 0
    logarithms = torch.where(proper, numbers, 1.0).log().clamp(min=LEAST_LOGARITHM)
    return torch.where(proper, logarithms, LEAST_LOGARITHM)


# A mean over a batch of one record divides by that record's own weight: a loss that takes one
# trains as if no class had a weight. A loss module of the caller or a lambda hides the call, so it
# is looked for where the loss is tried on a synthetic record.


WEIGHTED = {
    F.cross_entropy: ("input", "target", "weight", "size_average", "ignore_index", "reduce"),
    F.nll_loss: ("input", "target", "weight", "size_average", "ignore_index", "reduce"),
}
"""Functions whose mean divides by the weights of classes, and their arguments by position."""


class FindsWeightedMeans(TorchFunctionMode):
    """Refuses, while it is active, a mean over one label whose classes have weights."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func in WEIGHTED:
            names = (*WEIGHTED[func], "reduction")
            given = dict(zip(names, args, strict=False)) | (kwargs or {})
            target = given["target"]
            alone = target.numel() == 1 and not target.is_floating_point()
            if given.get("weight") is not None and alone and _takes_mean(given):
                raise class_weight_error()
        return func(*args, **(kwargs or {}))


def _takes_mean(given: dict[str, Any]) -> bool:
    """Whether a loss takes the mean of its labels, by its new argument or by the two old ones."""
    average, reduce = given.get("size_average"), given.get("reduce")
    if average is None and reduce is None:
        return given.get("reduction", "mean") == "mean"
    return average is not False and reduce is not False


def class_weight_error() -> InputError:
    """The refusal of class weights that a mean over one record divides out."""
    return InputError(
        "loss",
        "must not take a mean where classes have weights: of one record it is divided by that "
        "record's own weight",
        None,
        'write reduction="sum" next to the weights, or leave them out of the loss and write '
        "class_weight= of train",
    )


# Tensors that a forward pass may read and not write. Records that are vectorised share the memory
# of what is trained: what one of them wrote there all others would read.


class WriteGuard:
    """Tensors by name, from now on.

    **Guarantee:** ``check`` refuses whatever was written to one of them, the same numbers too:
    torch counts what writes in place, and no number is looked at, so that the refusal follows from
    no record.
    """

    def __init__(self, named: Mapping[str, torch.Tensor]) -> None:
        self._named, self._versions = named, [tensor._version for tensor in named.values()]

    def check(self) -> None:
        for (name, tensor), version in zip(self._named.items(), self._versions, strict=True):
            if tensor._version != version:
                raise write_error(name)


def write_error(name: str) -> InputError:
    """The refusal of a forward pass that writes to the tensor of this name."""
    return InputError(
        "model",
        "must not write to its parameters or buffers in a forward pass",
        name,
        "freeze a part with running statistics with .eval(), set max_norm=None of an embedding, and "
        "leave out other code that writes",
    )


# Sums of clipped per-record gradients of a module. Every record passes through the module alone:
# ``vmap`` over records, each with a batch axis of length 1. That alone does not keep records apart,
# because a function may bring its own rule for ``vmap``, which is given all of them: such functions
# are refused (``own_rules``), and on synthetic records vectorised gradients must be those of each
# record alone (``modules``). One backward pass is enough for norms and sums (Bu, Wang, Zha, Karypis
# 2023, arXiv:2210.00038), by what each layer leaves behind (``contributions``). Of convolutions and
# of linear layers on sequences the gradients are materialised by one batched matrix product: a
# second, weighted pass would add terms of one record, one for each place, whose norms no clip
# bounds, and so the rounding of single precision would be bounded by nothing.


Loss = Callable[..., torch.Tensor]
"""``loss(output, *rest of the record)``: one number for one record."""
Measured = tuple[dict[str, Contribution], torch.Tensor]
CLIP_SHRINK = 1 - 2.0**-18
"""Gradients are scaled to this fraction of the clip: more than rounding the scaled entries can add.
"""


@dataclass(frozen=True, eq=False)
class PerRecord:
    """A module, its loss of one record, and what is trained of it; ``layers`` are those without
    stored gradients.

    ``exact``: everything is float64. ``wide``: sums are, whatever the precision of the gradients.

    **Guarantee:** every record's gradient is a function of the parameters and of that record alone,
    is scaled to norm at most ``clip`` by its own computed norm (summed in float64), and counts as 0
    where it is not finite, without a clip too: if it ended the run instead, one record could be
    recognised by that. Chunks of at most ``CHUNK`` records are added in at least single precision,
    term by term no longer than the clip (see ``FLOAT_SLACK``).
    """

    module: torch.nn.Module
    loss: Loss
    parameters: Parameters
    layers: tuple[Layer, ...]
    clip: float | None
    exact: bool
    wide: bool = False
    drawing: DrawnRecords | None = None  #: what records draw; then the last part of each is its key
    weights: Weights = (
        None  #: of classes, which multiply clipped gradients; a record's second part is its class
    )
    repeated: RecordedComputation | None = None  #: of chunks of one form, one after the other
    host: HostWeights | None = None  #: where the parameters lie there and fit on no device

    @property
    def dtype(self) -> torch.dtype:
        return self.parameters.precision(exact=self.exact)

    @property
    def device(self) -> torch.device:
        """Where gradients are computed."""
        return self.parameters.device if self.host is None else self.host.device

    @cached_property
    def slots(self) -> dict[str, str]:
        """Every place of the module that holds a tensor, once, and the name that the tensor goes
        by.

        A part that a module holds under two names is one place: torch would put a tensor back there
        that it had put in.
        """
        parts = [
            (f"{prefix}.{own}" if prefix else own, tensor)
            for prefix, part in self.module.named_modules()
            for own, tensor in (*part._parameters.items(), *part._buffers.items())
            if tensor is not None
        ]
        names = {id(tensor): name for name, tensor in reversed(parts)}
        return {place: names[id(tensor)] for place, tensor in parts}

    def call(self, named: State, args: object, given: dict[str, Any]) -> Any:
        """What the module answers with these tensors; it is as before afterwards."""
        every = {place: named[name] for place, name in self.slots.items()}
        with skip_distribution_checks():
            return functional_call(self.module, every, args, given, tie_weights=False)

    def value(self, named: State, record: tuple[Any, ...]) -> torch.Tensor:
        """One record's loss, the mean over its copies; ``named``: all tensors of the module."""
        if self.drawing is None:
            return self._of_copy(named, record)
        return self.drawing.mean(record, lambda each: self._of_copy(named, each))

    def take_record(self, record: tuple[Any, ...]) -> tuple[Any, ...]:
        """One record as the module and the loss take it; of several copies the first."""
        return record if self.drawing is None else self.drawing.first_form(record)

    def _of_copy(self, named: State, record: tuple[Any, ...]) -> torch.Tensor:
        first, *rest = record
        output = self.call(named, *arguments(first))
        return record_loss(self.loss, without_batch(output), tuple(rest))

    def chunk_sum(
        self,
        theta: torch.Tensor,
        constants: State,
        records: tuple[Any, ...],
        real: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Sum of the clipped gradients of the records (m, ...) that are ``real`` (all of them:
        None), (size,) float64.

        With ``real`` it can be vectorised over ``theta``.
        """
        sums = self.iterate_sums(
            self.parameters.tensors(theta, self.dtype), constants, records, real
        )
        return torch.cat([each.to(theta.device, torch.float64) for _, each in sums])

    def sums(
        self,
        trained: State,
        constants: State,
        records: tuple[Any, ...],
        real: torch.Tensor | None = None,
        used: int | None = None,
    ) -> State:
        """``iterate_sums`` by name."""
        return dict(self.iterate_sums(trained, constants, records, real, used))

    def iterate_sums(
        self,
        trained: State,
        constants: State,
        records: tuple[Any, ...],
        real: torch.Tensor | None = None,
        used: int | None = None,
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """Names and sums, (entries,) each, in the run's own units, one after the other in the order
        of the parameters; ``used``: of the first so many records only."""
        records = tree_map(lambda a: a.to(self.device), records)
        real = None if real is None else real.to(self.device)
        gradients, squares = self._measure_gradients(trained, constants, records)
        # what is not clipped is added as it is, so that sums of so many must be numbers of that
        # precision
        most = torch.finfo(self.dtype).max / (2 * CHUNK) if self.clip is None else math.inf
        counted = among(torch.isfinite(squares) & (squares.sqrt() <= most), real, used)
        bound = math.inf if self.clip is None else self.clip * CLIP_SHRINK
        scale = torch.clamp(bound / torch.clamp(squares.sqrt(), min=1e-300), max=1.0)
        scale = self.weight_scale(scale, records)
        scale = torch.where(counted & (scale >= TINY), scale, 0.0)
        first = len(counted) if used is None else used
        kept = first if real is None and bool(counted[:first].all()) else counted[:first]
        for name, factor in self.scales.items():
            total = gradients.pop(name).total(scale, kept, wide=self.wide)
            yield name, total if factor == 1 else total.to(torch.float64) * factor

    def weight_scale(self, scale: torch.Tensor, records: tuple[Any, ...]) -> torch.Tensor:
        """What clips scale records by, (m,) float64, times the weight of each record's class, at
        most 1."""
        if self.weights is None:
            return scale
        return (
            scale
            * torch.tensor(self.weights, dtype=torch.float64, device=scale.device)[
                records[1].long()
            ]
        )

    @cached_property
    def scales(self) -> dict[str, float]:
        """The run's parameters are w / scale: their gradient is scale times that by w, and its norm
        is what is clipped."""
        return dict(zip(self.parameters.names, self.parameters.scales, strict=True))

    def contributions(
        self, trained: State, constants: State, records: tuple[Any, ...]
    ) -> dict[str, Contribution]:
        """Per-record gradients of the records (m, ...), by the module's own parameters."""
        return self._measure_gradients(trained, constants, records)[0]

    def _measure_gradients(
        self, trained: State, constants: State, records: tuple[Any, ...]
    ) -> Measured:
        """Per-record gradients, and their squared norms in the run's own units, (m,) float64."""
        compute = (
            self._gradients if self.repeated is None else partial(self.repeated, self._gradients)
        )
        if self.host is not None:
            trained, constants = self.host.place(trained), self.host.place(constants)
            records = tree_map(lambda a: a.to(self.device), records)
        tracked = WriteGuard(constants | trained)
        found = compute(trained, constants, cast_records(records, self.dtype))
        tracked.check()
        return found

    def _gradients(self, trained: State, constants: State, records: tuple[Any, ...]) -> Measured:
        slopes, each, inputs = self._slopes(trained, constants, records)
        gradients: dict[str, Contribution] = {name: Stored(values) for name, values in each.items()}
        copies = 1 if self.drawing is None else self.drawing.copies
        apart = None if self.host is None else copies
        for layer in self.layers:
            pair = [cast_like(given[layer.names[0]], self.dtype) for given in (inputs, slopes)]
            if self.drawing is None:
                gradients |= layer.contributions(pair[0], pair[1], apart)
            else:
                pair = [values.flatten(0, 1) for values in pair]
                of_copies = layer.contributions(pair[0], pair[1], apart)
                gradients |= {name: each.merge_copies(copies) for name, each in of_copies.items()}
        squares = [gradients[name].squares() * factor**2 for name, factor in self.scales.items()]
        return gradients, torch.stack(squares).sum(0)

    def _slopes(
        self, trained: State, constants: State, records: tuple[Any, ...]
    ) -> tuple[State, State, State]:
        """Derivatives by what layers answer, by all other parameters, and what layers were given:
        of every record."""
        tapped = {name for layer in self.layers for name in layer.names}
        count, device = tree_leaves(records)[0].shape[0], next(iter(trained.values())).device
        rest = {
            name: tensor.expand(count, *tensor.shape)
            for name, tensor in trained.items()
            if name not in tapped
        }
        axes = (count,) if self.drawing is None else (count, self.drawing.copies)
        zeros = {
            layer.names[0]: torch.zeros(*axes, *layer.output_shape, dtype=self.dtype, device=device)
            for layer in self.layers
        }
        held = {name: tensor for name, tensor in trained.items() if name in tapped}

        def one(zeros: State, rest: State, record: tuple[Any, ...]) -> tuple[torch.Tensor, State]:
            with LayerTap(held, self.layers, zeros, self.host) as tap:
                first, *others = record
                output = self.call(constants | held | rest, *arguments(first))
            return record_loss(self.loss, without_batch(output), tuple(others)), tap.inputs

        whole = one if self.drawing is None else self.drawing.average_copies(one)

        def total(zeros: State, rest: State) -> tuple[torch.Tensor, State]:
            losses, inputs = vmap(whole)(zeros, rest, records)
            return losses.sum(), inputs

        with NoOwnRules(), pretend_compiling():
            (slopes, each), inputs = grad(total, argnums=(0, 1), has_aux=True)(zeros, rest)
        return slopes, each, inputs


def among(good: torch.Tensor, real: torch.Tensor | None, used: int | None) -> torch.Tensor:
    """Which records count, (m,): good ones that are ``real``, among the first ``used``."""
    good = good if real is None else real & good
    return good if used is None else good & (torch.arange(len(good), device=good.device) < used)


def arguments(first: Any) -> tuple[Any, Any]:
    """Positional and named arguments of the module for one record, with a batch axis of length 1."""
    if isinstance(first, dict):
        return (), {name: tensor.unsqueeze(0) for name, tensor in first.items()}
    return tuple(
        tensor.unsqueeze(0) for tensor in (first if isinstance(first, tuple) else (first,))
    ), {}


def cast_records(records: object, dtype: torch.dtype) -> Any:
    """Records whose floating-point tensors are as precise as the parameters."""
    return tree_map(lambda a: cast_like(a, dtype), records)


def cast_like(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Floating-point numbers in that precision; all others as they are."""
    return values.to(dtype) if values.is_floating_point() else values


@contextmanager
def pretend_compiling() -> Iterator[None]:
    """``torch.compiler.is_compiling()`` says yes: like a trace, vectorised code takes the same way
    for all records, and libraries that ask leave shortcuts out that depend on numbers, such as the
    one for a mask that hides nothing."""
    before = torch.compiler._is_compiling_flag
    torch.compiler._is_compiling_flag = True
    try:
        yield
    finally:
        torch.compiler._is_compiling_flag = before


class full_precision:
    """Matrix products as exact as their type says, no automatic casts, kernels that repeat;
    whatever is set outside.

    **Guarantee:** sums of single precision are single precision: TF32 and bfloat16 have 10 and 7
    bits, more error than ``FLOAT_SLACK`` holds. What a kernel adds in which order is the same every
    time.
    """

    def __init__(self, device: torch.device) -> None:
        self._within = torch.autocast(device.type, enabled=False), sdpa_kernel(SDPBackend.MATH)

    def __enter__(self) -> None:
        cudnn = torch.backends.cudnn
        self._before = (
            torch.get_float32_matmul_precision(),
            cudnn.allow_tf32,
            cudnn.deterministic,
            cudnn.benchmark,
        )
        torch.set_float32_matmul_precision("highest")
        cudnn.allow_tf32, cudnn.deterministic, cudnn.benchmark = False, True, False
        self._stack = ExitStack()
        for each in self._within:
            self._stack.enter_context(each)

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)
        cudnn = torch.backends.cudnn
        torch.set_float32_matmul_precision(self._before[0])
        _, cudnn.allow_tf32, cudnn.deterministic, cudnn.benchmark = self._before


def to_theta(point: np.ndarray, device: torch.device) -> torch.Tensor:
    """Parameters as the loop holds them, on the module's device."""
    return torch.from_numpy(np.array(point)).to(device)


@dataclass(frozen=True, eq=False)
class ExactRecords(PerRecord):
    """``PerRecord`` on a grid.

    **Guarantee:** a chunk's sum is the exact sum of one vector per record, of norm at most the
    clip, each a function of that record and of the parameters alone; gradients that are not finite,
    or beyond the clip, count as 0.
    """

    grid: RecordGrid = RecordGrid(0, 0)

    def iterate_sums(
        self,
        trained: State,
        constants: State,
        records: tuple[Any, ...],
        real: torch.Tensor | None = None,
        used: int | None = None,
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """Names and sums of the rounded gradients, (entries,) float64, multiples of the grid."""
        assert self.clip is not None
        gradients = self.contributions(trained, constants, records)
        flat = torch.cat(
            [
                gradients[name].each() * factor
                for name, factor in zip(self.parameters.names, self.parameters.scales, strict=True)
            ],
            dim=1,
        )
        squares = flat.square().sum(1)
        counted = among(torch.isfinite(squares), real, used)
        factor = torch.clamp(self.clip * SHRINK / torch.clamp(squares.sqrt(), min=1e-300), max=1.0)
        factor = self.weight_scale(factor, records)
        whole = (
            torch.where(counted[:, None], flat * factor[:, None], 0.0)
            .mul(2.0**self.grid.places)
            .trunc()
        )
        within = (whole.square().sum(1) < SUMMABLE) & (
            whole.long().square().sum(1) <= self.grid.most_squared
        )
        total = torch.where(within[:, None], whole, 0.0).sum(0) * self.grid.step
        yield from zip(self.parameters.names, total.split(self.parameters.sizes), strict=True)

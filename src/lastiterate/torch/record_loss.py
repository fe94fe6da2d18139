"""The loss of one record: what torch's own losses ask of a batch, asked of one record."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch.distributions import Distribution
from torch.overrides import TorchFunctionMode

from lastiterate.errors import InputError

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
def unchecked_distributions() -> Iterator[None]:
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
    with unchecked_distributions():
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

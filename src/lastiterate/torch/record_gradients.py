"""Gradients of made-up records: vectorised ones must be those that every record has alone."""

# pyright: reportMissingImports=false
from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch.utils._pytree import tree_map

from lastiterate.errors import InputError
from lastiterate.torch.coarse_arithmetic import LEAST, Coarsest, Rounding
from lastiterate.torch.gradient_sums import PerRecord, in_precision
from lastiterate.torch.padded_lookups import Padded
from lastiterate.torch.parameters import State
from lastiterate.torch.record_positions import drawn

COARSE = 0.5
"""How far, of their length, gradients may be moved by rounding to half precision."""
BESIDE = 3
"""Made-up records that are vectorised together."""
POINTS = 8
"""Parameters at which a gradient is looked at before it is taken for one that no record moves."""
LOUD = 2.0**10
"""By how much other records are multiplied, to show what a record gets of them in its last bits."""


def made_up(records: tuple[Any, ...], dtype: torch.dtype, make: Callable[[torch.Tensor], torch.Tensor], count: int, *,
            varied: bool = False) -> Any:
    """``count`` records of the same shapes and types: integers are 0, or 0 and 1 where they are ``varied``, by
    turns or at random, all else is what ``make`` fills in."""

    def one(values: torch.Tensor) -> torch.Tensor:
        if not values.is_floating_point():
            integers = torch.zeros((count, *values.shape[1:]), dtype=values.dtype)
            if varied and integers.dim() > 1:  # of several, some are 0 in every record, and some 1
                return torch.randint(0, 2, integers.shape, generator=torch.Generator().manual_seed(3)).to(values.dtype)
            integers[1::2] = 1 if varied else 0
            return integers
        return make(torch.zeros((count, *values.shape[1:]), dtype=dtype))

    return tree_map(one, records)


def normal(values: torch.Tensor) -> torch.Tensor:
    return torch.randn(values.shape, dtype=values.dtype, generator=torch.Generator().manual_seed(0))


def _of_both_signs(values: torch.Tensor) -> torch.Tensor:
    """Normal numbers; none is negative in every other record, for losses that take logarithms or roots."""
    numbers = normal(values)
    numbers[::2] = numbers[::2].abs()
    return numbers


def check_alone(summed: PerRecord, theta: torch.Tensor, constants: State, records: tuple[Any, ...]) -> float:
    """Refuse a module or a loss that mixes records when it is vectorised: on made-up records every gradient must be
    the one that the record has alone, computed without ``vmap``; beside the first parameters, where none is 0 by
    chance. How far, relatively, rounding may move a gradient."""
    trained = {name: tensor.detach() for name, tensor in summed.parameters.tensors(drawn(theta), summed.dtype).items()}
    for varied in (True, False) if theta.device.type == "cpu" else (False,):  # elsewhere a bad index ends the process
        several = made_up(records, summed.dtype, _of_both_signs, BESIDE, varied=varied)
        several = tree_map(lambda a: a.to(theta.device), several)
        try:
            with Coarsest() as seen, Rounding() as short:
                alone = [_alone(summed, trained, constants, tree_map(lambda a, at=i: a[at], several))
                         for i in range(BESIDE)]
            break
        except (RuntimeError, IndexError) as error:
            if not varied:
                raise InputError("model", "and its loss must have a gradient on one made-up record", said(error),
                                 "where torch asks for contiguous tensors, call .contiguous() before it") from error
    if summed.exact:
        seen.check_double(rounded=short.seen)
    try:
        with Padded() as lookups:
            together = replace(summed, layers=()).contributions(trained, constants, several)
    except RuntimeError as error:
        raise InputError("model", "must be one that torch.func.vmap takes, without random numbers or changes in place",
                         said(error), "lastiterate.torch.private_version(module) exchanges recurrent layers; a "
                         "smaller microbatch is for what checkpointed layers are") from None
    lookups.check()
    for i, one in enumerate(alone if not seen.coarse else ()):
        size = max(float(slope.abs().max()) if slope.numel() else 0.0 for slope in one.values())
        for name, slope in one.items() if math.isfinite(size) else ():
            if not torch.allclose(together[name].each()[i], slope, rtol=LEAST, atol=LEAST * size / 10 + 1e-9):
                raise _mixing(summed)
    if seen.coarse:  # rounding turns units on and off
        wanted = torch.cat([one[name] for one in alone for name in one])
        given = torch.cat([together[name].each()[i] for i, one in enumerate(alone) for name in one])
        if float((given - wanted).norm()) > COARSE * float(wanted.norm()):
            raise _mixing(summed)
    if seen.coarse or theta.device.type == "cpu":  # elsewhere sums may have another order every time
        _check_bits(summed, trained, constants, several)
    return seen.tolerance


def _check_bits(summed: PerRecord, trained: State, constants: State, several: object) -> None:
    """Refuse a record whose gradient at one place has other bits beside its own copies than beside loud records: what
    a kernel adds in which order depends on shapes and places alone, never on the numbers."""
    plain = replace(summed, layers=())
    for place in (0, BESIDE - 1):
        own = tree_map(lambda a, at=place: a[at:at + 1].expand_as(a).contiguous(), several)
        loud = tree_map(lambda a, b, at=place: torch.cat([
            a[:at] * LOUD, b[at:at + 1], a[at + 1:] * LOUD]) if a.is_floating_point() else a, several, own)
        one, two = (plain.contributions(trained, constants, records) for records in (own, loud))
        for name in one:
            if not torch.equal(one[name].each()[place].nan_to_num(), two[name].each()[place].nan_to_num()):
                raise _mixing(summed)


def _mixing(summed: PerRecord) -> InputError:
    return InputError("model", "must treat every record alone, and a record's gradient depends on those that it is "
                      "vectorised with", type(summed.module).__name__, "look for functions with a vmap of their own")


def _alone(summed: PerRecord, trained: State, constants: State, record: tuple[Any, ...]) -> dict[str, torch.Tensor]:
    """One record's gradients by name, (entries,) float64, without ``vmap``."""
    leaves = {name: tensor.clone().requires_grad_() for name, tensor in trained.items()}
    with torch.enable_grad():
        value = summed.value(constants | leaves, in_precision(record, summed.dtype))
        slopes = torch.autograd.grad(value, list(leaves.values()), allow_unused=True) if value.requires_grad else \
            [None] * len(leaves)
    return {name: (torch.zeros_like(leaf) if slope is None else slope).double().reshape(-1)
            for (name, leaf), slope in zip(leaves.items(), slopes, strict=True)}


def constant_gradients(summed: PerRecord, theta: torch.Tensor, constants: State, records: tuple[Any, ...]) -> list[str]:
    """Parameters by which all made-up records have one gradient, bit for bit, at several points."""
    def remaining(varied: bool) -> list[str]:
        several = made_up(records, summed.dtype, _of_both_signs, BESIDE, varied=varied)
        several, names = tree_map(lambda a: a.to(theta.device), several), list(summed.parameters.names)
        for which in range(POINTS):
            if names:
                at = {name: tensor.detach() for name, tensor
                      in summed.parameters.tensors(drawn(theta, which), summed.dtype).items()}
                first, *rest = (_alone(summed, at, constants, tree_map(lambda a, i=i: a[i], several))
                                for i in range(BESIDE))
                names = [name for name in names if all(torch.equal(first[name], other[name]) for other in rest)]
        return names

    try:
        return remaining(theta.device.type == "cpu")  # elsewhere a bad index ends the process
    except (RuntimeError, IndexError):  # some integer must be 0
        return remaining(False)


def said(error: Exception) -> str:
    """The first line of what torch says: about made-up records, so that it shows none."""
    return str(error).splitlines()[0][:120]

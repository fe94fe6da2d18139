"""A module with the parts exchanged that mix records or draw random numbers."""

# pyright: reportMissingImports=false
from __future__ import annotations

import copy
from typing import NamedTuple

import torch

from lastiterate.errors import InputError
from lastiterate.torch.modules import FUSED, MIXING, RANDOM, SPREAD, check_hooks, check_whole
from lastiterate.torch.unrolled import UnrolledRecurrence

MOST_GROUPS, LEAST_CHANNELS = 32, 4
"""Groups of a normalisation at most, and channels in one of them at least (Wu and He 2018 have 32 and 16)."""


class PrivateVersion(NamedTuple):
    """A copy of a module that ``train`` takes, and what was changed, a line for every part."""

    module: torch.nn.Module
    changed: tuple[str, ...]


def private_version(module: torch.nn.Module) -> PrivateVersion:
    """A copy without batch normalisation, dropout, recurrent kernels and copies to several devices; the module itself
    stays as it is.

    Batch normalisation becomes group normalisation within a record, with the same weights and biases and without the
    statistics of other records that it had collected: a net that was trained with them answers otherwise, and is
    looked at on public records first. Dropout is switched off, instance normalisation collects no statistics.
    LSTM, GRU and RNN become the same layers of ordinary operations, whose parameters have the same names: outputs are
    equal to rounding, and a state dictionary of one is one of the other.
    Errors: what is no module; a lazy part that has seen no batch yet; a module of which other processes hold a part;
    hooks on gradients, which a copy would lose.
    """
    if not isinstance(module, torch.nn.Module):
        raise InputError("module", "must be a torch.nn.Module", type(module).__name__, "give the module itself")
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if isinstance(tensor, torch.nn.UninitializedParameter | torch.nn.UninitializedBuffer):
            raise InputError("module", "must have parts that have seen a batch", name,
                             "run a lazy module on a made-up batch first")
    changed = list[str]()
    if isinstance(module, SPREAD):
        changed.append(f"{type(module).__name__}: the module inside of it")
        module = module.module
    check_whole(module)
    check_hooks(module)
    own = copy.deepcopy(module)
    done = dict[int, torch.nn.Module]()
    for name, part in list(own.named_modules(remove_duplicate=False)):
        if id(part) not in done:
            done[id(part)] = new = _exchanged(part)
            if (said := _said(part, new)) is not None:
                changed.append(f"{name or 'the module'}: {said}")
        if done[id(part)] is not part:
            parent, _, last = name.rpartition(".")
            if name:
                setattr(own.get_submodule(parent), last, done[id(part)])
            else:
                own = done[id(part)]
    return PrivateVersion(own, tuple(changed))


def _exchanged(part: torch.nn.Module) -> torch.nn.Module:
    """What stands in the place of a part."""
    if isinstance(part, FUSED) and type(part) in FUSED:  # a subclass may do anything else
        return UnrolledRecurrence(part)
    return _grouped(part) if isinstance(part, MIXING) else part


def _said(part: torch.nn.Module, new: torch.nn.Module) -> str | None:
    """What was changed about a part, which is changed where it may stay."""
    if isinstance(new, torch.nn.GroupNorm) and new is not part:
        return f"{type(part).__name__} is GroupNorm({new.num_groups}, {new.num_channels})"
    if isinstance(new, UnrolledRecurrence) and isinstance(part, FUSED):
        dropped = ", without its dropout" if part.dropout > 0 and part.num_layers > 1 else ""
        return f"{type(part).__name__} is made of ordinary operations, one time step after the other{dropped}"
    if isinstance(part, torch.nn.modules.instancenorm._InstanceNorm) and part.track_running_stats:
        part.track_running_stats, part.running_mean, part.running_var = False, None, None
        return f"{type(part).__name__} collects no statistics"
    if isinstance(part, RANDOM) and part.training:
        part.eval()
        return f"{type(part).__name__} is switched off"
    return None


def _grouped(part: torch.nn.Module) -> torch.nn.GroupNorm:
    """Group normalisation in the place of batch normalisation; of one number for a channel, over all of them."""
    assert isinstance(part, MIXING)
    channels = part.num_features
    alone = isinstance(part, torch.nn.BatchNorm1d)
    groups = 1 if alone else max(g for g in range(1, MOST_GROUPS + 1)
                                 if channels % g == 0 and (g == 1 or channels // g >= LEAST_CHANNELS))
    norm = torch.nn.GroupNorm(groups, channels, part.eps, affine=part.affine)
    if part.affine:
        norm.weight, norm.bias = part.weight, part.bias
    return norm.train(part.training)

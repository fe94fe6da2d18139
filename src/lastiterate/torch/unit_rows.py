"""Modules whose records are units of several rows, such as an author's texts: a unit's gradient is that of a mean."""

# pyright: reportMissingImports=false
from __future__ import annotations

from typing import Any

import torch
from torch.func import vmap
from torch.utils._pytree import tree_leaves, tree_map

from lastiterate.errors import InputError
from lastiterate.release.protected_units import UnitLoss
from lastiterate.torch.gradient_sums import Loss
from lastiterate.torch.module_outputs import by_record


class PerUnit(torch.nn.Module):
    """``module`` on units: what it takes and answers has an axis of rows behind that of records.

    Of its answers those for each row remain, in tuples and dictionaries; it is what ``train`` takes beside a
    ``UnitLoss``, and ``.module`` is the module itself.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        if not isinstance(module, torch.nn.Module):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InputError("module", "must be a torch.nn.Module", type(module).__name__)
        self.module = module

    def forward(self, *inputs: object, **named: object) -> Any:
        units, rows = tree_leaves((inputs, named))[0].shape[:2]
        inputs, named = tree_map(lambda given: given.flatten(0, 1), (inputs, named))
        return by_record(self.module(*inputs, **named), units * rows, lambda tensor: tensor.unflatten(0, (units, rows)))


def loss_of(loss: Loss | UnitLoss) -> Loss:
    """The loss of a record: of ``UnitLoss`` the mean over the rows that are there, as ``loss(output, present, *rest)``;
    any other as it is."""
    if not isinstance(loss, UnitLoss):
        return loss

    def mean(output: object, present: torch.Tensor, *rest: object) -> torch.Tensor:
        if present.shape != (loss.rows,):
            raise ValueError(f"present must be {loss.rows} numbers for each unit, not {tuple(present.shape)}")
        each = vmap(loss.loss)(output, *rest)
        return torch.where(present > 0, each, 0.0).sum() / loss.rows

    return mean

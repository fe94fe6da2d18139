# pyright: reportMissingImports=false
"""A run on a module as audits train it: many models at once, one per key."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from lastiterate.errors import InputError
from lastiterate.run.run import Run
from lastiterate.torch.module_training import prepare
from lastiterate.torch.parameters import Grouped


def trainer(run: Run, model: torch.nn.Module | Grouped, loss: Any) -> Callable[..., np.ndarray]:
    """What ``lastiterate.audit.audit(run, train=...)`` attacks: (features, target, keys, absent) -> (models, size).

    Released parameters come as one vector per model, in the order of the module's trained parameters. ``absent``:
    records whose gradients are zeroed. The module's parameters and loss are those of training, and so is the code.
    """
    if run.release == "all":
        raise InputError("release", "must be 'last' for audits of modules", run.release, "audit the last iterate")

    def train(features: Any, target: Any, keys: Any, absent: Sequence[int] = ()) -> np.ndarray:
        return prepare(run, model, loss, (features, target)).many(keys, tuple(absent))

    return train


class Stand(torch.nn.Module):
    """-<parameters, record>: every record has the gradient that it is made of (see ``lastiterate.audit.networks``)."""

    def __init__(self, shapes: dict[str, tuple[int, ...]]) -> None:
        super().__init__()
        for name, shape in shapes.items():
            self.register_parameter(name, torch.nn.Parameter(torch.zeros(shape)))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        flat = torch.cat([part.reshape(-1) for part in self.parameters()])
        return -(rows * flat).sum(-1)


def stand_in(run: Run, shapes: dict[str, tuple[int, ...]]) -> Callable[..., np.ndarray]:
    """The trainer of modules on a loss whose gradients are the records: for audits of a released module's run."""
    return trainer(run, Stand(shapes), lambda out, _: out.sum())

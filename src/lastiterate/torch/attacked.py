# pyright: reportMissingImports=false
"""A run on a module as audits train it: many models at once, one per key."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from lastiterate.audit.neighbours import Neighbours
from lastiterate.audit.public_ways import Executed, Public
from lastiterate.errors import InputError
from lastiterate.release.fitted import Fitted
from lastiterate.run.run import Run
from lastiterate.torch.module_training import prepare
from lastiterate.torch.parameters import Grouped
from lastiterate.torch.released import FittedModule

CLOSE = 1e-5
"""Relative distance below which two models of single precision are the same."""


def trainer(run: Run, model: torch.nn.Module | Grouped, loss: object) -> Callable[..., np.ndarray]:
    """What ``lastiterate.audit.audit(run, train=...)`` attacks: (features, target, keys, absent) -> (models, size).

    Released parameters come as one vector per model, in the order of the module's trained parameters. ``absent``:
    records whose gradients are zeroed. The module's parameters and loss are those of training, and so is the code.
    """
    if run.release == "all":
        raise InputError("release", "must be 'last' for audits of modules", run.release, "audit the last iterate")

    def train(features: np.ndarray, target: np.ndarray, keys: np.ndarray, absent: Sequence[int] = ()) -> np.ndarray:
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


def stand_in(run: Run, shapes: dict[str, tuple[int, ...]]) -> Executed:
    """The trainer of modules on a loss whose gradients are the records, for audits of a released module's run; and
    ``train`` on the same module, as users call it."""
    def numbers(model: Fitted) -> np.ndarray:
        assert isinstance(model, FittedModule)
        return np.concatenate([model.state[name].double().numpy().ravel() for name in shapes])

    def call(pair: Neighbours) -> Public:
        data = (np.asarray(pair.with_record.features, np.float32), np.asarray(pair.with_record.target, np.float32))
        return Public(run, data, numbers, {"model": Stand(shapes), "loss": _itself, "microbatch": 2}, CLOSE)

    return Executed(trainer(run, Stand(shapes), _itself), call)


def _itself(out: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    """Of one record, what the module says of it."""
    return out.sum()

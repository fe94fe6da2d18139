# pyright: reportMissingImports=false
"""A run on a module as audits train it: many models at once, one per key."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from lastiterate.errors import InputError
from lastiterate.run.run import Run
from lastiterate.torch.parameters import Grouped
from lastiterate.torch.training import prepare


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

"""A run on a module as audits train it: many models at once, each with noise of its own key."""

# pyright: reportMissingImports=false
from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from lastiterate.audit.canaries import Neighbours
from lastiterate.audit.end_to_end import AuditedTrainer, PublicTrainer
from lastiterate.errors import InputError
from lastiterate.release.released_model import ReleasedModel
from lastiterate.run.run import Run
from lastiterate.run.updates import PostProcessing
from lastiterate.torch.module_optimizer import Make
from lastiterate.torch.module_training import prepare
from lastiterate.torch.parameters import Grouped
from lastiterate.torch.released_module import FittedModule, name_optimizer
from lastiterate.torch.trial_training import check_optimizer

CLOSE = 1e-5
"""Relative distance below which two models of single precision are the same."""


def trainer(
    run: Run,
    model: torch.nn.Module | Grouped,
    loss: object,
    *,
    optimizer: Make | None = None,
) -> Callable[..., np.ndarray]:
    """Return the trainer of a module, for ``lastiterate.audit.audit(run, train=...)``.

    Parameters
    ----------
    run : Run
        Run that releases the last iterate.
    model : torch.nn.Module or Grouped
        Module with its first parameters.
    loss : callable
        ``loss(output, *rest)`` of one record.
    optimizer : callable, optional
        Function from parameters to an optimizer or scheduler, as for `lastiterate.train`; the
        optimizer of the run is then ``PostProcessing``, as in the certificate of such a model.

    Returns
    -------
    callable
        ``train(features, target, keys, absent)``: released parameters as an array (models, size),
        in the order of the module's trained parameters. Gradients of the records ``absent`` are
        zeroed.

    Raises
    ------
    InputError
        If the run releases every iterate, or has another optimizer.

    Examples
    --------
    >>> import numpy as np
    >>> import torch
    >>> import lastiterate as li
    >>> from lastiterate.engine import keys_from_seed
    >>> from lastiterate.torch import trainer
    >>> run = li.Run(n=8, steps=2, step_size=0.1, clip=1.0, noise=li.NoiseMultiplier(1.0))
    >>> train = trainer(run, torch.nn.Linear(3, 2), torch.nn.functional.cross_entropy)
    >>> train(np.ones((8, 3), np.float32), np.zeros(8, int), keys_from_seed(0, 4)).shape
    (4, 8)
    """
    if run.release == "all":
        raise InputError(
            "release", "must be 'last' for audits of modules", run.release, "audit the last iterate"
        )
    if optimizer is not None:
        name = name_optimizer(optimizer, model)
        if type(run.optimizer) is not PostProcessing:
            raise InputError(
                "optimizer of the run",
                "must be PostProcessing where optimizer= makes the steps, so that the certificate is "
                "of them",
                type(run.optimizer).__name__,
                f"calibrate and audit replace(run, optimizer=lastiterate.PostProcessing({name!r}))",
            )
        check_optimizer(run, model, optimizer)

    def train(
        features: np.ndarray, target: np.ndarray, keys: np.ndarray, absent: Sequence[int] = ()
    ) -> np.ndarray:
        made = prepare(run, model, loss, (features, target), optimizer=optimizer)
        return made.many(keys, tuple(absent))

    return train


class StandInModule(torch.nn.Module):
    """-<parameters, record>: every record has the gradient that it is made of (see
    ``lastiterate.audit.networks``)."""

    def __init__(self, shapes: dict[str, tuple[int, ...]]) -> None:
        super().__init__()
        for name, shape in shapes.items():
            self.register_parameter(name, torch.nn.Parameter(torch.zeros(shape)))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        flat = torch.cat([part.reshape(-1) for part in self.parameters()])
        return -(rows * flat).sum(-1)


def stand_in(run: Run, shapes: dict[str, tuple[int, ...]]) -> AuditedTrainer:
    """The trainer of modules on a loss whose gradients are the records, for audits of a released
    module's run; and ``train`` on the same module, as users call it."""

    def numbers(model: ReleasedModel) -> np.ndarray:
        assert isinstance(model, FittedModule)
        return np.concatenate([model.state[name].double().numpy().ravel() for name in shapes])

    def call(pair: Neighbours) -> PublicTrainer:
        data = (
            np.asarray(pair.with_record.features, np.float32),
            np.asarray(pair.with_record.target, np.float32),
        )
        return PublicTrainer(
            run,
            data,
            numbers,
            {"model": StandInModule(shapes), "loss": _itself, "microbatch": 2},
            CLOSE,
        )

    return AuditedTrainer(trainer(run, StandInModule(shapes), _itself), call)


def _itself(out: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    """Of one record, what the module says of it."""
    return out.sum()

"""What is refused before a run on a module is paid for, by the module, the loss and the shapes of records."""

# pyright: reportMissingImports=false
from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from lastiterate.engine.coupled_decay import coupled
from lastiterate.engine.drawing_loss import blaming
from lastiterate.engine.prepare import batches_move, hidden_state
from lastiterate.engine.record_loss import check_classes
from lastiterate.errors import InputError
from lastiterate.run.domains import Everywhere
from lastiterate.run.run import Run
from lastiterate.run.starts import GaussianStart
from lastiterate.torch.drawing_checks import drawing_of, with_blank_keys
from lastiterate.torch.gradient_sums import PerRecord, as_theta, full_precision
from lastiterate.torch.graphs import identity
from lastiterate.torch.module_optimizer import Make, ModuleOptimizer
from lastiterate.torch.modules import check_parts, settled
from lastiterate.torch.parameters import Grouped, Parameters
from lastiterate.torch.record_drawing import Augment
from lastiterate.torch.record_tensors import (
    blank,
    check_items,
    check_lengths,
    numpy_targets,
    records_in,
    whole,
)


def checked(run: Run, model: torch.nn.Module | Grouped, microbatch: int | None) -> Parameters:
    """What is trained; errors that need no data are found here, before anything is paid."""
    module = model.module if isinstance(model, Grouped) else model
    if run.prelude:
        raise InputError("prelude", "prepares the rows of linear models only", type(run.prelude[0]).__name__,
                         "leave it out")
    if microbatch is not None and (isinstance(microbatch, bool) or not isinstance(microbatch, int) or microbatch < 1):
        raise InputError("microbatch", "must be a positive whole number", microbatch)
    check_parts(module, drawing=run.record_draws is not None)
    parameters = Parameters.of(model)
    if set(parameters.scales) != {1.0} and (run.prox is not None or not isinstance(run.domain, Everywhere)):
        raise InputError("speeds", "must be 1 where the run has a domain or a penalty", None,
                         "they speak of the parameters themselves")
    if isinstance(run.start, GaussianStart) and parameters.vector(module).any():
        raise InputError("model", "must have parameters 0 where the run starts at random", None, "or use start=Fixed()")
    return parameters


def on_made_up(run: Run, model: torch.nn.Module | Grouped, loss: Any, parameters: Parameters,
               records: tuple[Any, ...], augment: Augment | None) -> tuple[np.ndarray, PerRecord, tuple[Any, ...]]:
    """The first parameters, the sums of a module and a loss that were tried on made-up records, and records of the form
    that they take: of ``records`` shapes and types count."""
    check_classes(run, numpy_targets(records))
    module = model.module if isinstance(model, Grouped) else model
    initial = parameters.vector(module)
    summed = PerRecord(module, loss, parameters, (), run.clip, hidden_state(run), batches_move(run),
                       weights=run.loss.class_weights)
    drawing = drawing_of(run, module, augment, records, summed.dtype)
    formed = records if drawing is None else with_blank_keys(records)
    summed = replace(summed, drawing=drawing)
    with full_precision(parameters.device):
        theta = as_theta(initial, parameters.device)
        plain = replace(summed, drawing=None if drawing is None else replace(drawing, augment=None))
        with blaming(augment, lambda: settled(plain, formed, theta)):
            return initial, settled(summed, formed, theta), formed


def check_fits(run: Run, model: torch.nn.Module | Grouped, loss: object, data: object, microbatch: int | None, *,
               kept: bool = False, optimizer: Make | None = None, augment: Augment | None = None) -> None:
    """Refuse what cannot be trained, by the shapes of the records alone: before a record is read, or paid for.

    ``kept``: refuse too what a checkpoint would not know again.

    Shapes of a Dataset, or of records that are read in pieces, are known once one is read: after they are paid for.
    """
    parameters = checked(run, model, microbatch)
    module = model.module if isinstance(model, Grouped) else model
    rule = ModuleOptimizer.of(optimizer, parameters, parameters.vector(module), coupled=coupled(run),
                              steps=run.steps)
    if kept and rule is not None:
        rule.identity(run.steps)
    if isinstance(data, torch.utils.data.Dataset):
        check_items(data, records_in(data, run.n) if run.nominal else run.n)
    if isinstance(data, torch.utils.data.TensorDataset):
        data = data.tensors
    data = whole(data)
    if isinstance(data, tuple) and len(data) > 0:
        records = blank(data)
        check_lengths(data, records_in(data, run.n) if run.nominal else run.n)
        initial, summed, records = on_made_up(run, model, loss, parameters, records, augment)
        if kept:
            identity(summed, as_theta(initial, parameters.device), records)

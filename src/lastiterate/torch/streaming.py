"""A described run, executed on a module and on records that come in pieces."""

# pyright: reportMissingImports=false
from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path

import jax
import numpy as np
import torch

from lastiterate.engine.checkpoint import Checkpoint
from lastiterate.engine.gaussian_noise import ORDER, Key, fresh_key, stream
from lastiterate.engine.streaming.kept import again_and_again
from lastiterate.engine.streaming.numbered_source import numbered
from lastiterate.engine.streaming.passes import Passes
from lastiterate.engine.streaming.record_source import Piece, Source
from lastiterate.engine.streaming.streamed_external import execute_streamed
from lastiterate.engine.streaming.streamed_network import checked
from lastiterate.engine.trainer import Progress
from lastiterate.run.run import Run
from lastiterate.torch.effect import check_constants
from lastiterate.torch.gradient_sums import full_precision
from lastiterate.torch.module_optimizer import Make
from lastiterate.torch.module_training import prepare
from lastiterate.torch.parameters import Grouped, Parameters
from lastiterate.torch.record_drawing import Augment
from lastiterate.torch.record_tensors import tensors_of


def fit_in_pieces(run: Run, model: torch.nn.Module | Grouped, loss: object, source: Source, key: Key | None = None, *,
                  microbatch: int | None = None, progress: Progress | None = None, checkpoint: Checkpoint | None = None,
                  folder: Path | None = None, optimizer: Make | None = None,
                  augment: Augment | None = None) -> tuple[Parameters, np.ndarray]:
    """As ``fit_module``, on a source's records; ``folder``: for scratch files (see ``Scratch``).

    **Guarantee:** that of ``fit_module``, with the draws and noise of a run in memory with this key.
    """
    prepared = prepare(run, model, loss, source, microbatch, optimizer, augment)
    summed = prepared.summed
    device, constants = summed.parameters.device, summed.parameters.fixed(summed.dtype)
    if checkpoint is not None:
        key = checkpoint.begin(run, (*source.digested(), prepared.initial), key, prepared.identity)
    key = fresh_key() if key is None else key
    with jax.enable_x64(True):
        order = np.asarray(stream(key, ORDER))

    again = prepared.again_and_again

    def sums(point: np.ndarray, piece: Piece, keys: np.ndarray | None) -> np.ndarray:
        part = replace(again, records=tensors_of(piece))
        return part.total(point, constants, torch.arange(len(piece[0])), None, keys)

    with closing(again_and_again(run, source, folder)) as records, \
            closing(Passes(run, numbered(run, records.source), partial(checked, run), order, folder)) as passes, \
            full_precision(device), torch.no_grad():
        theta = execute_streamed(prepared.loop, prepared.initial, sums, passes, key, progress, checkpoint)
    check_constants(summed, constants)
    return summed.parameters, theta

"""Networks and other losses of one record, on records that come in pieces."""

from __future__ import annotations

import hashlib
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from lastiterate.engine.checkpoint import Checkpoint
from lastiterate.engine.drawing_loss import Augment
from lastiterate.engine.gaussian_noise import ORDER, Key, fresh_key, stream
from lastiterate.engine.network import identity, objective_of
from lastiterate.engine.optimizer_rule import GradientTransformation, rule_of
from lastiterate.engine.parameter_form import Form
from lastiterate.engine.process import check_process
from lastiterate.engine.record_labels import LabelCheck
from lastiterate.engine.record_loss import RecordLoss, check_classes, check_finite
from lastiterate.engine.streaming.devices import Devices
from lastiterate.engine.streaming.kept import again_and_again
from lastiterate.engine.streaming.numbered_source import numbered
from lastiterate.engine.streaming.passes import Passes
from lastiterate.engine.streaming.record_source import Piece, Source, first_record
from lastiterate.engine.streaming.steps import StreamLoop
from lastiterate.engine.trainer import Progress
from lastiterate.run.run import Run


def fit_streaming(run: Run, loss: RecordLoss, params: object, source: Source, key: Key | None = None, *,
                  microbatch: int | None = None, progress: Progress | None = None, checkpoint: Checkpoint | None = None,
                  folder: Path | None = None, devices: int = 1,
                  optimizer: GradientTransformation | None = None, augment: Augment | None = None) -> Any:
    """Execute ``run`` on ``loss(params, *record)``; the last parameters, structured like ``params``.

    As ``fit_network``, with records that come in pieces. ``folder``: for scratch files (see ``Scratch``).
    ``devices``: how many share every chunk (see ``Devices``).

    **Guarantee:** exactly the run that is accounted, with the draws and noise of a run in memory with this key.
    """
    check_process()
    with jax.enable_x64(True):
        objective = objective_of(run, loss, params, first_record(source), microbatch, augment)
        labels = LabelCheck(loss, objective.form, objective.exact) if run.record_draws is None else None
        initial, rule = objective.form.vector(params), rule_of(optimizer, objective.form, params)
        shared = Devices(devices)
        shared.check_checkpoint(checkpoint)
        shared.check_records(run.n)
        alone = checkpoint is None and shared.part[1] == 1
        known = "" if alone else identity(objective, first_record(source), rule)
        if checkpoint is not None:
            key = checkpoint.begin(run, (*source.digested(), np.asarray(initial)), key, known)
        key = shared.same_key(fresh_key() if key is None else key, run.to_json(), f"{devices} devices", known,
                              hashlib.sha256(np.asarray(initial).tobytes()).hexdigest())
        order = np.asarray(stream(key, ORDER))
        with closing(again_and_again(run, source, folder)) as records, \
                closing(Passes(run, numbered(run, records.source), partial(with_flags, run, labels), order, folder,
                               part=shared.part)) as passes:
            theta = StreamLoop(run, objective, shared, rule).execute(initial, passes, key, progress, checkpoint)
        form = Form.of(params)
        return form.whole(form.released(theta))


def checked(run: Run, piece: Piece) -> Piece:
    """Records of finite numbers, of classes that have weights, as they are."""
    for part in piece:
        check_finite(part)
    check_classes(run, piece)
    return piece


def with_flags(run: Run, labels: LabelCheck | None, piece: Piece) -> Piece:
    """Records, and behind them that they are no empty slots."""
    if labels is not None:
        labels(piece)
    return (*checked(run, piece), np.ones(len(piece[0]), np.uint8))

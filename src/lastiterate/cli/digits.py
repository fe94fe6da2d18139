"""``lastiterate audit RUN.json --attack adversarial-record``: one adversarial image among the bundled digits."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from lastiterate.audit import AuditReport, Effort, ImageModel, attack_network, instantiate
from lastiterate.audit.audited_run import Subject
from lastiterate.data.bundled import load_bundled
from lastiterate.errors import InputError


def on_digits(subject: Subject, trials: int | None, failure: float, delta: float, seed: int | None) -> AuditReport:
    """One adversarial image among the bundled digits, for a linear softmax model trained by the run."""
    run = subject.run
    table, _ = load_bundled("digits")
    assert table.array is not None and table.answers is not None
    pixels, labels = (table.array / 16).astype(np.float32), table.answers.astype(np.int32)
    if not 2 <= run.n <= len(labels):
        raise InputError("n", f"must lie within 2 .. {len(labels)}, the bundled digits", run.n,
                         "or use lastiterate.audit.attack_network on images of your own")
    images = pixels[:run.n].reshape(-1, 1, 8, 8)

    def logits(params: Any, image: Any) -> Any:
        return params["out"] @ image.ravel()

    def loss(params: object, image: object, label: object) -> Any:
        return -jax.nn.log_softmax(logits(params, image))[label]

    model = ImageModel(logits, loss, {"out": np.zeros((10, 64), np.float32)})
    start = 0 if seed is None else seed
    pair = instantiate(run, model, images, labels[:run.n], low=0.0, high=1.0, seed=start)
    count = 100 if trials is None else trials
    effort = Effort(trials=count, pilot=max(count // 2, 10), seed=start)
    return attack_network(run, model, pair, effort=effort, checkpoints=[run.steps], failure=failure, delta=delta,
                          at_least=subject.at_least)[0]

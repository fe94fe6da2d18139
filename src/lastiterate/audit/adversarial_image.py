"""Two image sets that differ in one record, which was made adversarial for models that never saw it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import jax
import numpy as np

from lastiterate.audit.checkpoints import Many, fit_networks
from lastiterate.audit.deepfool import Logits, fool_all
from lastiterate.audit.neighbours import is_replace_one
from lastiterate.engine import seeded_keys
from lastiterate.engine.traced import quick
from lastiterate.errors import InputError
from lastiterate.run.run import Run

AT_ONCE = 32
"""Images whose logits are computed at once, for all models."""


@dataclass(frozen=True)
class ImageModel:
    """``logits(params, image)``, ``loss(params, image, label)`` of one record, and the public first parameters.

    ``many``: what trains many such networks, where it is not the library's trainer; it is then what is attacked.
    """

    logits: Logits
    loss: Callable[..., jax.Array]
    params: Any
    many: Many | None = None


@dataclass(frozen=True, eq=False)
class ImageNeighbours:
    """``with_record`` holds the crafted image where ``without_record`` holds the original; labels (n,) are shared."""

    without_record: np.ndarray
    with_record: np.ndarray
    labels: np.ndarray
    record: int
    adversarial: int  #: the class that models which never saw the crafted image take it for

    def __post_init__(self) -> None:
        if self.without_record.shape != self.with_record.shape or len(self.labels) != len(self.without_record):
            raise InputError("neighbours", "must have the same shape",
                             (self.without_record.shape, self.with_record.shape, self.labels.shape))
        differing = np.flatnonzero((self.without_record != self.with_record).reshape(len(self.labels), -1).any(axis=1))
        if differing.size != 1:
            raise InputError("neighbours", f"must differ in one record, not in {differing.size}",
                             [int(place) for place in differing[:5]], "neighbours differ in a single record")
        if int(differing[0]) != self.record:
            raise InputError("record", f"must be the one in which the neighbours differ, {int(differing[0])}",
                             self.record)
        if self.adversarial == self.original:
            raise InputError("adversarial", "must be another class than the record's label", self.adversarial)

    @property
    def original(self) -> int:
        """The record's label."""
        return int(self.labels[self.record])

    @property
    def about(self) -> str:
        """In words."""
        moved = float(np.linalg.norm(self.with_record[self.record] - self.without_record[self.record]))
        return (f"record {self.record} of class {self.original}, moved by {moved:.3g} to look like "
                f"{self.adversarial}, replaces the original")

    @property
    def pair(self) -> np.ndarray:
        """The crafted image and the original, (2, ...)."""
        return np.stack([self.with_record[self.record], self.without_record[self.record]])


def check_replace_one(run: Run) -> None:
    """Refuse a run that is accounted under another adjacency than these neighbours have."""
    if not is_replace_one(run):
        raise InputError("adjacency", "must be 'replace-one': the crafted image replaces a record", run.adjacency,
                         "account the run under replace-one")


def instantiate(run: Run, model: ImageModel, images: np.ndarray, labels: np.ndarray, *, low: float, high: float,
                record: int | None = None, models: int = 30, batch_models: int = 30, seed: int = 0) -> ImageNeighbours:
    """Train ``models`` on the images (n, ...), and move one of them until all say another class (Heller, Fetaya 2023).

    ``record``: which (default: the last whose label all models know; where blocks are read in order, later steps hide
    it least). ``low``, ``high``: the range of pixels. The record keeps its label.
    """
    check_replace_one(run)
    if models < 1:
        raise InputError("models", "must be a whole number >= 1", models, "30 is the paper's number")
    if not ((low <= images) & (images <= high)).all():
        raise InputError("images", f"must lie within the pixel range {low:g} .. {high:g}",
                         (float(np.min(images)), float(np.max(images))), "state the range after normalisation")
    if record is not None and not 0 <= record < len(labels):
        raise InputError("record", f"must lie within 0 .. {len(labels) - 1}", record)
    trained = fit_networks(run, model.loss, model.params, (images, labels), seeded_keys(seed, models),
                           batch_models=batch_models, many=model.many)
    record = _known(model, trained, images, labels, record)
    crafted, said = fool_all(model.logits, trained, images[record], int(labels[record]), low, high)
    present = np.array(images)
    present[record] = crafted
    values, votes = np.unique(said, return_counts=True)
    return ImageNeighbours(np.asarray(images), present, np.asarray(labels), record, int(values[votes.argmax()]))


def all_logits(model: ImageModel, trained: object, images: np.ndarray) -> np.ndarray:
    """Logits (images, models, classes); leaves of ``trained`` have the models as their first axis."""
    def one(image: jax.Array) -> jax.Array:
        return jax.vmap(lambda params: quick(model.logits)(params, image))(trained)  # pyright: ignore

    return np.asarray(cast(jax.Array, jax.lax.map(one, images, batch_size=min(AT_ONCE, len(images)))))  # pyright: ignore


def _known(model: ImageModel, trained: object, images: np.ndarray, labels: np.ndarray, record: int | None) -> int:
    """The record that is to be changed: all models must know its label."""
    places = np.arange(len(labels)) if record is None else np.array([record])
    said = all_logits(model, trained, images[places]).argmax(axis=2)
    agreed = np.flatnonzero((said == labels[places][:, None]).all(axis=1))
    if agreed.size == 0:
        which = "of any record" if record is None else f"of record {record}"
        raise InputError("models", f"do not all know the label {which}", None, "train longer, or take fewer models")
    return int(places[agreed[-1]])

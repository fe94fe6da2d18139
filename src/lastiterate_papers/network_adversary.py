"""Attack a network with one adversarial image among neighbouring image sets."""

# pyright: basic

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

import lastiterate as li
from lastiterate.audit import AuditReport, fit_networks
from lastiterate.engine import keys_from_seed
from lastiterate.errors import InputError
from lastiterate_papers.deepfool import Logits, fool_all
from lastiterate_papers.finished_cells import Cells

# what JAX makes of functions has no types

Many = Callable[..., np.ndarray]
"""A trainer of many networks (see ``lenet_chains.chains``)."""
Progress = Callable[[int, int, float, float], None]
"""Called with models done, models in all, models a minute, seconds left."""

# Two image sets that differ in one record, which was made adversarial for models that never saw it.

AT_ONCE = 32
"""Images whose logits are computed at once, for all models."""


@dataclass(frozen=True)
class ImageModel:
    """A network on images, for audits.

    Parameters
    ----------
    logits : callable
        ``logits(params, image)`` of one image, written with JAX.
    loss : callable
        ``loss(params, image, label)`` of one record, written with JAX.
    params : nested arrays
        Public first parameters.
    many : callable, optional
        Trainer of many networks instead of the library's; it is then attacked.

    See Also
    --------
    instantiate : Make neighbours for it.

    Examples
    --------
    >>> import jax
    >>> import numpy as np
    >>> from lastiterate_papers.network_adversary import ImageModel
    >>> def logits(params, image):
    ...     return params @ image.ravel()
    >>> def loss(params, image, label):
    ...     return -jax.nn.log_softmax(logits(params, image))[label]
    >>> ImageModel(logits, loss, np.zeros((2, 4), np.float32)).params.shape
    (2, 4)
    """

    logits: Logits
    loss: Callable[..., jax.Array]
    params: Any
    many: Many | None = None


@dataclass(frozen=True, eq=False)
class ImageNeighbours:
    """Two image sets, one of which holds a crafted image instead of the original.

    Parameters
    ----------
    without_record : numpy.ndarray, shape (n, ...)
        Images with the original.
    with_record : numpy.ndarray, shape (n, ...)
        Images with the crafted one.
    labels : numpy.ndarray, shape (n,)
        Labels of both sets.
    record : int
        Position of the image.
    adversarial : int
        Class that models predict for the crafted image if they never saw it.

    Raises
    ------
    InputError
        If the sets differ in more than the record.

    See Also
    --------
    instantiate : Make them.

    Examples
    --------
    >>> import numpy as np
    >>> from lastiterate_papers.network_adversary import ImageNeighbours
    >>> original, crafted = np.zeros((2, 4, 4)), np.zeros((2, 4, 4))
    >>> crafted[1] = 0.1
    >>> pair = ImageNeighbours(original, crafted, np.array([0, 1]), record=1, adversarial=0)
    >>> pair.original
    1
    """

    without_record: np.ndarray
    with_record: np.ndarray
    labels: np.ndarray
    record: int
    adversarial: int  #: the class that models which never saw the crafted image take it for

    def __post_init__(self) -> None:
        if self.without_record.shape != self.with_record.shape or len(self.labels) != len(
            self.without_record
        ):
            raise InputError(
                "neighbours",
                "must have the same shape",
                (self.without_record.shape, self.with_record.shape, self.labels.shape),
            )
        moved = self.without_record != self.with_record
        differing = np.flatnonzero(moved.reshape(len(self.labels), -1).any(axis=1)).tolist()
        if len(differing) != 1:
            raise InputError("neighbours", f"must differ in one record, not in {len(differing)}")
        if differing != [self.record]:
            raise InputError("record", "must be the one in which the data sets differ", self.record)
        if self.adversarial == self.original:
            raise InputError(
                "adversarial", "must be another class than the record's label", self.adversarial
            )

    @property
    def original(self) -> int:
        """The record's label."""
        return int(self.labels[self.record])

    @property
    def about(self) -> str:
        """In words."""
        moved = float(
            np.linalg.norm(self.with_record[self.record] - self.without_record[self.record])
        )
        return (
            f"record {self.record} of class {self.original}, moved by {moved:.3g} to look like "
            f"{self.adversarial}, replaces the original"
        )

    @property
    def pair(self) -> np.ndarray:
        """The crafted image and the original, (2, ...)."""
        return np.stack([self.with_record[self.record], self.without_record[self.record]])


def check_replace_one(run: li.Run) -> None:
    """Refuse a run that is accounted under another adjacency than these neighbours have."""
    if run.adjacency != "replace-one":
        raise InputError(
            "adjacency",
            "must be 'replace-one': the crafted image replaces a record",
            run.adjacency,
            "account the run under replace-one",
        )


def instantiate(
    run: li.Run,
    model: ImageModel,
    images: np.ndarray,
    labels: np.ndarray,
    *,
    low: float,
    high: float,
    record: int | None = None,
    models: int = 30,
    batch_models: int = 30,
    seed: int = 0,
) -> ImageNeighbours:
    """Craft an image that models which never saw it misclassify, and make neighbours of it.

    Parameters
    ----------
    run : Run
        Run under "replace-one".
    model : ImageModel
        Network.
    images : numpy.ndarray, shape (n, ...)
        Images.
    labels : numpy.ndarray, shape (n,)
        Labels.
    low : float
        Lowest value of a pixel.
    high : float
        Highest value of a pixel.
    record : int, optional
        Position of the image; by default the last one whose label all models know.
    models : int, default 30
        Number of models that must be fooled.
    batch_models : int, default 30
        Number of models trained at once.
    seed : int, default 0
        Seed of the models.

    Returns
    -------
    ImageNeighbours
        Images with and without the crafted one, which keeps its label.

    Raises
    ------
    InputError
        If a value is out of range, or the models do not all know a label.

    See Also
    --------
    attack_network : Attack the run on them.

    Notes
    -----
    Source: Heller and Fetaya 2023, section V.

    Examples
    --------
    >>> import jax
    >>> import numpy as np
    >>> import lastiterate as li
    >>> from lastiterate_papers.network_adversary import ImageModel, instantiate
    >>> def logits(params, image):
    ...     return params @ image.ravel()
    >>> def loss(params, image, label):
    ...     return -jax.nn.log_softmax(logits(params, image))[label]
    >>> model = ImageModel(logits, loss, np.zeros((2, 4), np.float32))
    >>> labels = np.arange(12) % 2
    >>> images = np.float32([[[0.5, 0.5], [0.0, 0.0]], [[1.0, 1.0], [1.0, 1.0]]])[labels]
    >>> noise = li.GradientNoise(1e-3)
    >>> run = li.Run(n=12, steps=20, step_size=0.5, noise=noise, adjacency="replace-one")
    >>> pair = instantiate(run, model, images, labels, low=0.0, high=1.0, models=3)
    >>> pair.original != pair.adversarial
    True
    """
    check_replace_one(run)
    if models < 1:
        raise InputError("models", "must be an integer >= 1", models, "30 is the paper's number")
    if not ((low <= images) & (images <= high)).all():
        raise InputError(
            "images",
            f"must lie within the pixel range {low:g} .. {high:g}",
            (float(np.min(images)), float(np.max(images))),
            "state the range after normalisation",
        )
    if record is not None and not 0 <= record < len(labels):
        raise InputError("record", f"must lie within 0 .. {len(labels) - 1}", record)
    trained = fit_networks(
        run,
        model.loss,
        model.params,
        (images, labels),
        keys_from_seed(seed, models),
        batch_models=batch_models,
        many=model.many,
    )
    record = _choose_record(model, trained, images, labels, record)
    crafted, said = fool_all(model.logits, trained, images[record], int(labels[record]), low, high)
    present = np.array(images)
    present[record] = crafted
    values, votes = np.unique(said, return_counts=True)
    return ImageNeighbours(
        np.asarray(images), present, np.asarray(labels), record, int(values[votes.argmax()])
    )


def all_logits(model: ImageModel, trained: object, images: np.ndarray) -> np.ndarray:
    """Return the logits of many networks on images.

    Parameters
    ----------
    model : ImageModel
        Network.
    trained : nested arrays
        Parameters, with the networks along the first axis.
    images : numpy.ndarray, shape (n, ...)
        Images.

    Returns
    -------
    numpy.ndarray, shape (n, models, classes)
        Logits.

    Examples
    --------
    >>> import numpy as np
    >>> from lastiterate_papers.network_adversary import ImageModel, all_logits
    >>> model = ImageModel(lambda params, image: params @ image.ravel(), None, None)
    >>> all_logits(model, np.zeros((3, 2, 4), np.float32), np.ones((5, 2, 2), np.float32)).shape
    (5, 3, 2)
    """

    def one(image: jax.Array) -> jax.Array:
        return jax.vmap(lambda params: model.logits(params, image))(trained)  # pyright: ignore

    return np.asarray(
        cast(jax.Array, jax.lax.map(one, images, batch_size=min(AT_ONCE, len(images))))
    )  # pyright: ignore


def _choose_record(
    model: ImageModel, trained: object, images: np.ndarray, labels: np.ndarray, record: int | None
) -> int:
    """The record that is to be changed: all models must know its label."""
    places = np.arange(len(labels)) if record is None else np.array([record])
    said = all_logits(model, trained, images[places]).argmax(axis=2)
    agreed = np.flatnonzero((said == labels[places][:, None]).all(axis=1))
    if agreed.size == 0:
        which = "of any record" if record is None else f"of record {record}"
        raise InputError(
            "models",
            f"do not all know the label {which}",
            None,
            "train longer, or take fewer models",
        )
    return int(places[agreed[-1]])


# Adversary instantiation for networks (Heller, Fetaya 2023, section V; Nasr et al. 2021): can one
# record be seen?  Models are trained on both neighbours. Each is known by four numbers: its logits
# of the adversarial and of the original class on the crafted image and on the original one.
# Standardised, they go into a linear classifier that was fitted on other models; its errors give
# the lower bound (their equations 10 to 12), after every number of passes.

NAME = "adversarial-record"
LEAST = 10
"""Models per data set, at least, to fit the classifier and to count its errors."""


@dataclass(frozen=True)
class Effort:
    """The number of models of an attack on a network.

    Parameters
    ----------
    trials : int, default 100
        Number of counted models per data set, at least 10.
    pilot : int, default 50
        Number of further models per data set that fit the classifier, at least 10.
    batch_models : int, default 10
        Number of models trained at once, which bounds memory.
    seed : int, default 0
        Seed of the models.

    Raises
    ------
    InputError
        If a value is out of range.

    Examples
    --------
    >>> from lastiterate_papers.network_adversary import Effort
    >>> Effort(trials=20).pilot
    50
    """

    trials: int = 100
    pilot: int = 50
    batch_models: int = 10
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("trials", "pilot"):
            if getattr(self, name) < LEAST:
                raise InputError(
                    name, f"must be at least {LEAST} models per data set", getattr(self, name)
                )
        if self.batch_models < 1:
            raise InputError("batch_models", "must be an integer >= 1", self.batch_models)

    def keys(self, data_set: int) -> Any:
        """Return one key per model of a data set (0 or 1), the pilot's first."""
        words = np.random.SeedSequence([self.seed, 1 + data_set]).generate_state(1)
        return keys_from_seed(int(words[0]) & 0x7FFFFFFF, self.pilot + self.trials)


def attack_network(
    run: li.Run,
    model: ImageModel,
    neighbours: ImageNeighbours,
    *,
    effort: Effort | None = None,
    checkpoints: Sequence[int] | None = None,
    failure: float = 0.05,
    delta: float = 1e-5,
    cells: Cells | None = None,
    min_evidence: li.Evidence = li.Evidence.ENFORCED,
    progress: Progress | None = None,
) -> list[AuditReport]:
    """Attack a network's run on crafted neighbours, after several numbers of steps.

    Parameters
    ----------
    run : Run
        Run under "replace-one".
    model : ImageModel
        Network.
    neighbours : ImageNeighbours
        Images with and without the crafted one.
    effort : Effort, optional
        Number of models.
    checkpoints : sequence of int, optional
        Increasing numbers of steps; by default the end of every epoch.
    failure : float, default 0.05
        Probability that any statement of the reports is wrong, split evenly over them.
    delta : float, default 1e-5
        Delta at which epsilon is stated.
    cells : Cells, optional
        Finished batches of models, to resume from.
    min_evidence : Evidence, default li.Evidence.ENFORCED
        Weakest evidence of the facts that the certificates may rest on.
    progress : callable, optional
        Function that is called from time to time.

    Returns
    -------
    list of AuditReport
        One report per number of steps, each about the run of that length.

    Raises
    ------
    InputError
        If a value is out of range, or the models are too few for any statement.

    See Also
    --------
    instantiate : Make the neighbours.

    Notes
    -----
    **Guarantee:** all reports hold together except with probability ``failure``. Sources: Heller
    and Fetaya 2023, section V; Nasr et al. 2021.

    Examples
    --------
    >>> import jax
    >>> import numpy as np
    >>> import lastiterate as li
    >>> from lastiterate_papers.network_adversary import Effort, ImageModel, ImageNeighbours, attack_network
    >>> def logits(params, image):
    ...     return params @ image.ravel()
    >>> def loss(params, image, label):
    ...     return -jax.nn.log_softmax(logits(params, image))[label]
    >>> model = ImageModel(logits, loss, np.zeros((2, 4), np.float32))
    >>> labels = np.arange(12) % 2
    >>> images = np.float32([[[0.5, 0.5], [0.0, 0.0]], [[1.0, 1.0], [1.0, 1.0]]])[labels]
    >>> crafted = images.copy()
    >>> crafted[11] = images[0]
    >>> pair = ImageNeighbours(images, crafted, labels, record=11, adversarial=0)
    >>> noise = li.GradientNoise(1e-3)
    >>> run = li.Run(n=12, steps=20, step_size=0.5, noise=noise, adjacency="replace-one")
    >>> effort = Effort(trials=10, pilot=10)
    >>> report, = attack_network(run, model, pair, effort=effort, checkpoints=[20], failure=0.4)
    >>> report.upper, report.refuted
    (inf, False)
    """
    check_replace_one(run)
    effort = Effort() if effort is None else effort
    checkpoints = _check_checkpoints(run, checkpoints)
    share = failure / len(checkpoints)
    models = _Models(run, model, neighbours, effort, checkpoints, cells or Cells(), progress)
    present, without = models.features(0), models.features(1)
    reports = list[AuditReport]()
    for place, steps in enumerate(checkpoints):
        scores = score_models(present[:, place], without[:, place], effort.pilot)
        reports.append(
            AuditReport.from_scores(
                li.account(run.truncate(steps), min_evidence=min_evidence),
                *scores,
                attack=NAME,
                neighbours=neighbours.about,
                failure=share,
                delta=delta,
                pilot=effort.pilot,
                seed=effort.seed,
            )
        )
    return reports


def score_models(
    present: np.ndarray, without: np.ndarray, pilot: int
) -> tuple[np.ndarray, np.ndarray]:
    """Scores of the models behind the pilot's, positive where the crafted image seems present;
    features (models, 4)."""
    from sklearn.linear_model import LogisticRegression  # pyright: ignore
    from sklearn.pipeline import make_pipeline  # pyright: ignore
    from sklearn.preprocessing import StandardScaler  # pyright: ignore

    rule = cast(Any, make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)))
    rule.fit(np.concatenate([present[:pilot], without[:pilot]]), np.repeat([1, 0], pilot))
    return rule.decision_function(present[pilot:]), rule.decision_function(without[pilot:])


def _check_checkpoints(run: li.Run, checkpoints: Sequence[int] | None) -> list[int]:
    """Numbers of steps, increasing; by default the end of every pass, and of the run."""
    if checkpoints is None:
        return sorted({*range(run.blocks, run.steps, run.blocks), run.steps})
    counts = [int(steps) for steps in checkpoints]
    if not counts or counts[0] < 1 or counts[-1] > run.steps or counts != sorted(set(counts)):
        raise InputError(
            "checkpoints", f"must be increasing numbers of steps within 1 .. {run.steps}", counts
        )
    return counts


@dataclass
class _Models:
    """The models of an attack, trained batch by batch, of which the features alone are kept."""

    run: li.Run
    model: ImageModel
    neighbours: ImageNeighbours
    effort: Effort
    checkpoints: list[int]
    cells: Cells
    progress: Progress | None
    _began: float = field(default_factory=time.perf_counter)
    _done: int = 0

    def features(self, data_set: int) -> np.ndarray:
        """Features (models, checkpoints, 4) of one data set: 0 with the crafted image, 1 with the
        original."""
        pair, keys = self.neighbours.pair, self.effort.keys(data_set)
        images = self.neighbours.without_record if data_set else self.neighbours.with_record
        classes = np.array([self.neighbours.adversarial, self.neighbours.original])

        @jax.jit  # pyright: ignore
        def look(trained: Any) -> jax.Array:
            def one(params: Any) -> jax.Array:
                return jnp.concatenate(
                    [self.model.logits(params, image)[classes] for image in pair]
                )

            return jax.vmap(jax.vmap(one))(trained)

        def train(part: np.ndarray) -> Any:
            trained = fit_networks(
                self.run,
                self.model.loss,
                self.model.params,
                (images, self.neighbours.labels),
                part,
                checkpoints=self.checkpoints,
                many=self.model.many,
            )
            found = np.asarray(look(trained), np.float64)
            if not np.isfinite(found).all():
                raise InputError(
                    "step_size", "makes models diverge", None, "attack a run with a smaller one"
                )
            return found.tolist()

        parts = list[list[Any]]()
        for begin in range(0, len(keys), self.effort.batch_models):
            part = keys[begin : begin + self.effort.batch_models]
            name = f"models {begin} to {begin + len(part)} of data set {data_set}"
            parts.append(self.cells.get(name, partial(train, part)))
            self._report(len(part), 2 * len(keys))
        return np.concatenate([np.array(part, np.float64) for part in parts])

    def _report(self, count: int, models: int) -> None:
        self._done += count
        if self.progress is not None:
            speed = self._done / (time.perf_counter() - self._began)
            self.progress(self._done, models, 60 * speed, (models - self._done) / speed)

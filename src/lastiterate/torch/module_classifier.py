"""A torch module in scikit-learn's protocol: fit, predict, predict_proba, score, in a pipeline like
any other step."""

# pyright: reportMissingImports=false
from __future__ import annotations

import copy
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from lastiterate.accounting.certificate import Certificate
from lastiterate.errors import InputError
from lastiterate.estimators.base import public_labels, refuse, restore_on_error, seed_of
from lastiterate.estimators.file_estimators import check_no_mapping, check_targets, hide_values
from lastiterate.estimators.meta_estimators import OwnSeed
from lastiterate.estimators.pipelines import (
    list_handed_tables,
    warn_of_learned_steps,
    warn_of_predictions,
)
from lastiterate.lazy import RenamedAttribute, rename_arguments
from lastiterate.ledger.ledger import Ledger
from lastiterate.release.composition_reminder import recognise_by
from lastiterate.release.training import train
from lastiterate.run.batching import RandomAllocation
from lastiterate.run.run import Run
from lastiterate.run.validation import check_integer, check_kept
from lastiterate.torch.parameters import Grouped
from lastiterate.torch.released_module import FittedModule, predict_module


class DPNetClassifier(ClassifierMixin, OwnSeed, BaseEstimator):
    """A private classifier that trains a torch module, with scikit-learn's interface.

    Parameters
    ----------
    module : torch.nn.Module, Grouped or callable
        Module with one output for each class, chosen without the data and copied; or a function of
        the shape of a record and the number of classes that makes one.
    epsilon : float, default 1.0
        Budget of a fit, in natural logarithms.
    delta : float or "auto", default "auto"
        Budget of a fit; "auto" is a power of ten of at most 1/(10 n).
    run : Run, optional
        Run to execute, with the least noise that the budget allows. By default it has ``epochs``
        epochs with clipped gradients, and `RandomAllocation` batches of about ``batch_size``.
    clip : float, default 1.0
        Clipping norm of one record's gradient, for the default run.
    batch_size : int, default 256
        Expected number of records in a batch, for the default run.
    epochs : int, default 20
        Number of epochs, for the default run.
    step_size : float, default 0.5
        Step size, for the default run.
    classes : sequence, optional
        Public labels. ``None`` takes them from ``y``, with a warning and a caveat.
    microbatch : int, optional
        Number of records whose gradients are in memory at once.
    random_state : int or RandomState, optional
        Seed for tests only; it becomes a caveat.
    ledger : Ledger or path, optional
        Ledger that every fit is charged to before it begins.
    dataset : str, optional
        Name of the data set in the ledger.
    **unsupported : object
        Refused, such as ``optimizer``, which `lastiterate.train` takes.

    Attributes
    ----------
    fitted_ : FittedModule
        Released model; ``fitted_.save(folder)`` writes it.
    module_ : torch.nn.Module
        Trained module.
    certificate_ : Certificate
        Certificate; ``certificate_.epsilon(delta_)`` is at most ``epsilon``.
    run_ : Run
        Accounted and executed run.
    delta_ : float
        Delta of the budget.
    classes_ : numpy.ndarray, shape (k,)
        Labels, ascending.

    See Also
    --------
    lastiterate.train : Train any loss and data.

    Notes
    -----
    **Guarantee:** the certificate covers one fit. Every fit spends its budget again: repeated fits,
    grid searches and cross-validation on one data set compose, and a ``RepeatedFitWarning`` says so
    once per process.

    Examples
    --------
    >>> import numpy as np
    >>> import torch
    >>> from lastiterate.torch import DPNetClassifier
    >>> X = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32)
    >>> y = (X[:, 0] > 0).astype(int)
    >>> net = DPNetClassifier(torch.nn.Linear(3, 2), batch_size=20, epochs=2, classes=[0, 1])
    >>> net = net.fit(X, y)
    >>> net.predict(X).shape, net.certificate_.epsilon(net.delta_) <= 1.0
    ((60,), True)
    """

    passes = RenamedAttribute("epochs")

    def __init__(
        self,
        module: torch.nn.Module | Grouped | Callable[..., torch.nn.Module],
        *,
        epsilon: float = 1.0,
        delta: Any = "auto",
        run: Run | None = None,
        clip: float = 1.0,
        batch_size: int = 256,
        epochs: int = 20,
        step_size: float = 0.5,
        classes: object = None,
        microbatch: int | None = None,
        random_state: int | None = None,
        ledger: Ledger | str | Path | None = None,
        dataset: str | None = None,
        **unsupported: object,
    ) -> None:
        if "optimizer" in unsupported:
            raise InputError(
                "optimizer",
                "is not for DPNetClassifier, which trains by plain steps of step_size",
                None,
                "lastiterate.train(run, (x, y), model=module, loss=..., optimizer=...) takes it",
            )
        for name in unsupported:
            raise TypeError(f"DPNetClassifier got an unexpected keyword argument {name!r}")
        self.module = module
        self.epsilon = epsilon
        self.delta = delta
        self.run = run
        self.clip = clip
        self.batch_size = batch_size
        self.epochs = epochs
        self.step_size = step_size
        self.classes = classes
        self.microbatch = microbatch
        self.random_state = random_state
        self.ledger = ledger
        self.dataset = dataset

    @restore_on_error
    def fit(self, X: Any, y: Any, progress: Any = None, **unsupported: Any) -> DPNetClassifier:
        """Train on records X (n, ...) and labels y (n,); ``progress(steps_done, steps, seconds)``
        as in ``train``."""
        refuse(unsupported)
        warn_of_learned_steps(self)
        handed = list_handed_tables(self, X)
        check_kept("X", (X, y))
        check_no_mapping(X, "give an array of records")
        with hide_values("X or y"):
            X, y = validate_data(
                self, X, y, dtype=_precision(X), allow_nd=True, ensure_min_samples=2
            )
        check_targets(y, "or train a regression with lastiterate.train")
        caveats: list[str] = []
        self.classes_ = public_labels(self.classes, np.unique(y), caveats)
        if len(self.classes_) < 2:
            raise InputError(
                "classes",
                "must hold at least 2 labels",
                len(self.classes_),
                "pass the public labels with classes=",
            )
        module = self._make_module(X.shape[1:])
        plain = module.module if isinstance(module, Grouped) else module
        X = _as_taken(X, plain)
        self._check_answers(plain, X)
        with recognise_by(*handed):
            model = train(
                self._describe_run(len(X)),
                (X, np.searchsorted(self.classes_, y)),
                model=module,
                loss=torch.nn.functional.cross_entropy,
                epsilon=self.epsilon,
                delta=None if self.delta == "auto" else self.delta,
                seed=seed_of(self.random_state),
                microbatch=self.microbatch,
                progress=progress,
                ledger=self.ledger,
                dataset=self.dataset,
            )
        assert isinstance(model, FittedModule)
        self.fitted_ = model.with_caveats(*caveats)
        return self

    def _make_module(self, shape: tuple[int, ...]) -> torch.nn.Module | Grouped:
        made = self.module
        if not isinstance(made, torch.nn.Module | Grouped | type) and callable(made):
            made = made(shape, len(self.classes_))
        if isinstance(made, type):
            raise InputError(
                "module",
                "must be a torch.nn.Module, or a function that makes one",
                f"the class {made.__name__}",
                "give an instance",
            )
        if not isinstance(made, torch.nn.Module | Grouped):
            raise InputError(
                "module",
                "must be a torch.nn.Module, or a function that makes one",
                type(made).__name__,
            )
        return made

    def _check_answers(self, module: torch.nn.Module, X: np.ndarray) -> None:
        """Refuse another number of outputs than of classes, by a record of zeros; what it cannot
        take ``train`` says."""
        try:
            answer = predict_module(copy.deepcopy(module), np.zeros_like(X[:1]), 1)
        except InputError:
            return
        self._check_outputs(answer)

    def _check_outputs(self, scores: Any) -> None:
        if np.shape(scores)[1:] != (len(self.classes_),):
            raise InputError(
                "module",
                f"must have one output for each of {len(self.classes_)} classes",
                np.shape(scores)[1:],
            )

    def _describe_run(self, n: int) -> Run:
        if self.run is not None:
            return self.run
        check_integer("batch_size", self.batch_size)
        check_integer("epochs", self.epochs)
        size = min(self.batch_size, n)
        steps = self.epochs * math.ceil(n / size)
        return Run(
            n=n,
            steps=steps,
            step_size=self.step_size,
            clip=self.clip,
            batching=RandomAllocation(size),
        )

    def decision_function(self, X: ArrayLike) -> np.ndarray:
        """The module's outputs, (n, classes); for two classes the second one's over the first
        one's, (n,)."""
        scores = self._outputs(X)
        return scores[:, 1] - scores[:, 0] if scores.shape[1] == 2 else scores

    def predict_proba(self, X: ArrayLike) -> np.ndarray:
        """The softmax of the outputs (n, classes); not calibrated."""
        scores = self._outputs(X)
        scores = np.exp(scores - scores.max(1, keepdims=True))
        return scores / scores.sum(1, keepdims=True)

    def predict(self, X: ArrayLike) -> np.ndarray:
        """The most probable label of every record."""
        places = self._outputs(X).argmax(1)
        return self.classes_[places]

    def _outputs(self, X: Any) -> np.ndarray:
        check_is_fitted(self, "fitted_")
        warn_of_predictions()
        check_kept("X", X)
        with hide_values("X"):
            records = validate_data(self, X, reset=False, dtype=_precision(X), allow_nd=True)
        records = _as_taken(records, self.module_)
        scores = self.fitted_.predict(np.asarray(records)).astype(np.float64)
        self._check_outputs(scores)
        return scores

    @property
    def certificate_(self) -> Certificate:
        """The certificate of the released model."""
        return self.fitted_.certificate

    @property
    def run_(self) -> Run:
        """The run that was accounted and executed."""
        return self.fitted_.run

    @property
    def delta_(self) -> float:
        """Where epsilon is stated."""
        return self.fitted_.delta

    @property
    def module_(self) -> torch.nn.Module:
        """The trained module."""
        assert self.fitted_.module is not None
        return self.fitted_.module

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.non_deterministic = self.random_state is None
        return tags


def _precision(X: object) -> Any:
    """Return the type of the features: integers stay integers until it is known what the module
    does with them; all others get single precision."""
    return np.int64 if isinstance(X, np.ndarray) and X.dtype.kind in "iu" else np.float32


def _as_taken(X: object, module: torch.nn.Module) -> np.ndarray:
    """Return integers unchanged where the module has a table to look them up in, and in single
    precision elsewhere."""
    looks = any(
        isinstance(part, torch.nn.Embedding | torch.nn.EmbeddingBag) for part in module.modules()
    )
    return np.asarray(X) if looks else np.asarray(X, dtype=np.float32)


rename_arguments(DPNetClassifier, passes="epochs")

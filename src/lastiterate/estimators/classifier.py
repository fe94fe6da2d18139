"""Private logistic and softmax regression."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import ClassifierMixin  # pyright: ignore
from sklearn.utils.multiclass import check_classification_targets  # pyright: ignore

from lastiterate.errors import InputError
from lastiterate.estimators.base import PrivateLinear, public_labels
from lastiterate.estimators.file_estimators import check_length, checked
from lastiterate.estimators.pipelines import as_schema, labels_of, warn_of_learned_steps
from lastiterate.ledger.store import Ledger
from lastiterate.planning.planner import TIME_BUDGET
from lastiterate.release.predictions import Labels, picked, threshold_of
from lastiterate.run.run import Run
from lastiterate.run.validation import check_kept


class DPLogisticRegression(ClassifierMixin, PrivateLinear):
    """Logistic (two classes) or softmax regression with differential privacy and nothing to tune.

    Parameters
    ----------
    epsilon, delta : the budget; ``delta="auto"`` is a power of ten at most 1/(10 n). Natural logarithms.
    row_norm : public bound on the Euclidean norm of a row, which must be given; longer rows are scaled down to it.
    classes : the public labels; ``None`` takes them from ``y``, with a warning and a caveat.
    adjacency : "zero-out" (one record's contribution set to zero, n public), "replace-one", or "add-remove" (one record
        is there or not, and how many there are is private), for which ``n`` is needed.
    n : for add-remove alone: the public number that stands for how many records there are. Batches, noise, delta and
        the certificate follow from it, and nothing from how many rows X has; choose one without counting them.
    random_state : a seed, only for tests; it becomes a caveat on the certificate. By default 128 bits from the system.
    time_budget : seconds that a fit may take, estimated on two cores; a longer one lets the planner consider more.
    run : a Run to execute instead of a plan, with the least noise that the budget allows; rows are not centred, and the
        row_norm of the run's loss counts, and the one above may be left out.
    ledger, dataset : a ledger file (``lastiterate ledger make``) that every fit is charged to, and the data set's name
        in it; a fit that the budget does not hold is refused before it begins.
    verbose : 1 prints steps and time (never anything that depends on the data).
    features : "auto", names of public maps of records that a schema is needed for ("curves", "words"), "plain", "sqrt"
        for roots of the features' sizes, or "fourier" for random cosine features beside them; a public choice
        (docs/guides/planning).
    schema : a Schema or its TOML file: ``fit`` takes a data frame, its maps make rows, and it says ``row_norm``,
        and ``classes`` unless it leaves them open.
    algorithm : "automatic", or one of the names that ``lastiterate train --algorithm`` takes.
    report_accuracy : part of the budget mu^2 that a noisy count of right answers costs, such as 0.05, on a tenth of the
        records, which are not trained on; ``fitted_.accuracies`` has it with an interval; the certificate covers it.
    calibrated : whether plans and named algorithms spend 5 % of mu^2 on probabilities that are frequencies, by noisy
        Newton rounds on slope and intercepts, where n and the budget carry them (docs/theorems/probabilities), and
        scores times a public factor elsewhere. A given ``run`` says so itself (``Run(calibration=)``).
    threshold : of two classes, the probability from which on the second is predicted, or the public costs (a, m) of a
        false alarm and of a miss, which make it a / (a + m); by default the more probable class is predicted. It costs
        no privacy, and is kept in the model's folder.
    class_weight : a public dictionary from every label to what its records count, of which only ratios matter; each
        contribution is clipped first and then weighted by at most 1, so that the bounds on a record hold. Predictions
        and probabilities are those of the weighted records: where probabilities shall be frequencies, set a
        ``threshold`` instead. "balanced" would count private labels. A given ``run`` says so in its loss.
    stream : rows are read in pieces, as ``lastiterate train --stream`` reads them: for ``np.load(file, mmap_mode="r")``
        that does not fit in memory. Batches that need random access are refused.

    Attributes
    ----------
    fitted_ : the released model; ``fitted_.save(folder)`` writes it, ``lastiterate.load(folder)`` reads it back.
    certificate_ : Certificate; ``certificate_.epsilon(delta_)`` is at most ``epsilon``.
    run_ : the Run that was accounted and executed.
    choice_ : ``choice_.plans`` were considered, by predicted risk; ``choice_.best`` was executed (None with ``run``).
    classes_, coef_, intercept_ : as in scikit-learn, for rows that no bound clips; ``model_.weights`` always.

    **Guarantee:** every fit spends its budget anew: repeated fits, grid searches and
    cross-validation on one data set compose; a ``RepeatedFitWarning`` says so, once per process.
    """

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float | Literal["auto"] = "auto",
        row_norm: float | None = None,
        classes: object = None,
        adjacency: str = "zero-out",
        random_state: int | None = None,
        time_budget: float = TIME_BUDGET,
        run: Run | None = None,
        ledger: Ledger | str | Path | None = None,
        dataset: str | None = None,
        verbose: int = 0,
        features: str = "auto",
        algorithm: str = "automatic",
        report_accuracy: float | None = None,
        schema: object = None,
        calibrated: bool = True,
        threshold: object = None,
        class_weight: object = None,
        stream: bool = False,
        n: int | None = None,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.row_norm = row_norm
        self.classes = classes
        self.adjacency = adjacency
        self.random_state = random_state
        self.time_budget = time_budget
        self.run = run
        self.ledger = ledger
        self.dataset = dataset
        self.verbose = verbose
        self.features = features
        self.algorithm = algorithm
        self.report_accuracy = report_accuracy
        self.schema = schema
        self.calibrated = calibrated
        self.threshold = threshold
        self.class_weight = class_weight
        self.stream = stream
        self.n = n

    def _fit(self, X: Any, y: Any, progress: object, unsupported: dict[str, Any]) -> None:
        if self.schema is not None:
            self._fit_table(X, y, progress, unsupported)
            return
        warn_of_learned_steps(self)
        check_kept("X", (X, y))
        rows, labels, watched = checked(self, X, y)
        with warnings.catch_warnings():  # one that counts the labels of private records
            warnings.filterwarnings("ignore", message="The number of unique classes")
            check_classification_targets(labels)
        caveats: list[str] = []
        self.classes_ = public_labels(self.classes, np.unique(labels), caveats)
        if len(self.classes_) < 2:
            raise InputError(
                "classes",
                "must hold at least 2 labels; this classifier cannot train when only one class "
                "is present",
                len(self.classes_),
                "pass the public labels with classes=",
            )
        answers = self._answers(tuple(self.classes_.tolist()))
        self._train(
            rows,
            np.searchsorted(self.classes_, labels),
            len(self.classes_),
            answers,
            caveats,
            progress,
            unsupported,
            watched,
        )

    def _fit_table(
        self, table: ArrayLike, y: ArrayLike, progress: object, unsupported: dict[str, Any]
    ) -> None:
        """Train on a table by the schema, whose classes are the labels."""
        schema, labels, target = labels_of(as_schema(self.schema, self.classes), self.classes, y)
        rows = self._mapped(table, schema)
        check_length(rows, target)
        self.classes_ = labels
        answers = self._answers(self.transformer_.schema_.classes)
        self._train(rows, target, len(labels), answers, [], progress, unsupported)

    def _answers(self, labels: tuple[Any, ...]) -> Labels:
        """The labels, with the threshold of two."""
        return Labels(labels, threshold_of(self.threshold, len(labels)))

    def decision_function(self, X: ArrayLike) -> np.ndarray:
        """Scores: (n,) for two classes, (n, classes) otherwise."""
        rows = self._rows(X)
        scores = self.fitted_.scores(rows)
        return scores[:, 0] if len(self.classes_) == 2 else scores

    def predict_proba(self, X: ArrayLike) -> np.ndarray:
        """Probabilities (n, classes): the softmax of the linear scores.

        They are calibrated where the run is (``calibrated=True``, or ``Run(calibration=)``).
        Without it scores are too steep, and their log loss can be worse than that of one constant
        for all rows: they rank rows, and nothing more. A public factor (``AssumedSlope``), where
        records are too few to measure one, makes them less so.
        """
        rows = self._rows(X)
        return self.fitted_.probabilities(rows)

    def predict_log_proba(self, X: ArrayLike) -> np.ndarray:
        """Natural logarithms of ``predict_proba`` (n, classes)."""
        return np.log(self.predict_proba(X))

    def predict(self, X: ArrayLike) -> np.ndarray:
        """The most probable label of every row, or by the ``threshold``."""
        chances = self.predict_proba(X)
        return self.classes_[picked(chances, threshold_of(self.threshold, len(self.classes_)))]

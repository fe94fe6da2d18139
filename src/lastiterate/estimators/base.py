"""What the estimators share: scikit-learn's protocol, public labels, refusals, seeds."""

from __future__ import annotations

import sys
import warnings
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any, ClassVar, Concatenate, Literal, ParamSpec, Self, TypeVar, cast

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator  # pyright: ignore
from sklearn.utils import check_random_state, estimator_html_repr  # pyright: ignore
from sklearn.utils.validation import check_is_fitted, validate_data  # pyright: ignore

from lastiterate.accounting.certificate import Certificate
from lastiterate.data.data_frames import frame_table
from lastiterate.data.file_stream import FileSnapshot
from lastiterate.data.schema import Schema
from lastiterate.engine import TrainedWeights
from lastiterate.engine.preprocessing import keeps_lengths
from lastiterate.errors import InputError, RowProtectionWarning, outside
from lastiterate.estimators.file_estimators import (
    check_no_mapping,
    data_of,
    hide_values,
    plain_labels,
)
from lastiterate.estimators.meta_estimators import OwnSeed, check_recoded, show_labels_of_codes
from lastiterate.estimators.pipelines import (
    SchemaTransformer,
    list_handed_tables,
    list_outer_schemas,
    warn_of_learned_steps,
    warn_of_predictions,
    write_fit_of_units,
)
from lastiterate.ledger.ledger import Ledger
from lastiterate.planning.planner import Choice
from lastiterate.planning.task import FeatureMap, Task
from lastiterate.release.composition_reminder import recognise_by
from lastiterate.release.jax_processes import warn_of_launcher
from lastiterate.release.ledger_charge import make_charging
from lastiterate.release.linear_model import FittedLinear
from lastiterate.release.linear_plans import choose_features, part_of, plan_for_units, warn_of_noise
from lastiterate.release.model_kinds import LINEAR
from lastiterate.release.pipeline import finish, notebook_progress
from lastiterate.release.score_meaning import Answers, Labels
from lastiterate.release.training_request import Algorithm, Budget, TrainingRequest
from lastiterate.release.units import KeptUnits, find_id_columns
from lastiterate.run.adjacency import has_fixed_size
from lastiterate.run.losses import KnownConstants
from lastiterate.run.preprocessing import (
    PrivateCovariance,
    PrivateMean,
    PrivateTargetMean,
    TopEigenvalue,
)
from lastiterate.run.run import Run
from lastiterate.run.validation import check_kept, relative_weights

# What a fit refuses, and what a refused one leaves behind.

Given = ParamSpec("Given")
Fitted = TypeVar("Fitted")


class AbsentMethod:
    """A method of scikit-learn's estimators that these do not have: ``hasattr`` is false, and
    asking says why."""

    def __init__(self, why: str) -> None:
        self._why = why

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        raise AttributeError(self._why)


def restore_on_error(
    fit: Callable[Concatenate[Any, Given], Fitted],
) -> Callable[Concatenate[Any, Given], Fitted]:
    """Wrap ``fit`` so that an error leaves the estimator as it was: it never holds labels of one
    fit together with weights of another."""

    @wraps(fit)
    def whole(estimator: object, *given: Given.args, **named: Given.kwargs) -> Fitted:
        before = dict(vars(estimator))
        try:
            return fit(estimator, *given, **named)
        except BaseException:
            vars(estimator).clear()
            vars(estimator).update(before)
            raise

    return whole


WHY_NOT = {
    "sample_weight": "a weight would multiply what one record contributes beyond the bound that "
    "the noise hides: leave it out; class_weight= of a classifier weighs public classes",
    "coef_init": "first parameters that were fitted on the data would have to be paid for",
    "intercept_init": "first parameters that were fitted on the data would have to be paid for",
    "unit": "say whose every row is with units=",
    "groups": "say whose every row is with units=",
    "units": "make a person the record of a network: units_as_records, UnitLoss and PerUnit "
    "(docs/guides/several-rows)",
}
"""What scikit-learn's estimators take and these refuse."""
REFUSED_METADATA: dict[str, Any] = {"sample_weight": None}
"""Metadata of scikit-learn that ``fit`` knows and refuses."""


def refuse(unsupported: dict[str, Any], taken: str = "X, y and progress") -> None:
    """Refuse arguments of ``fit`` that privacy does not allow, or that do not exist; ``taken``:
    those that it takes."""
    for name, value in unsupported.items():
        if value is not None:
            raise InputError(
                name, "is not supported", None, WHY_NOT.get(name, f"fit takes {taken}")
            )


# The seed of a fit, from what scikit-learn calls a random state.


def seed_of(random_state: Any) -> int | None:
    """Draw a seed from an integer or a generator of NumPy; ``None`` for 128 bits from the
    system."""
    if random_state is None:
        return None
    try:
        return int(check_random_state(random_state).randint(2**31))
    except ValueError:
        raise InputError(
            "random_state",
            "must be None, an integer from 0 to 2^32 - 1, or a RandomState of NumPy",
            random_state,
        ) from None


# What the estimators share: scikit-learn's protocol around a fitted linear model.

UNWATCHED = FileSnapshot.of()


class PrivateLinear(OwnSeed, BaseEstimator):
    """Budget handling, training and the released state; subclasses add targets and predictions.

    After ``fit``: ``fitted_`` is the released model (``fitted_.save(folder)``), ``certificate_``,
    ``run_`` and ``delta_`` are its own, ``choice_`` the plans that were considered.
    """

    __metadata_request__fit: ClassVar[dict[str, Any]] = REFUSED_METADATA
    """A router that is asked for it hands it on, and ``fit`` says why not."""
    epsilon: float
    delta: float | Literal["auto"]
    row_norm: float | None
    adjacency: str
    random_state: int | None
    time_budget: float
    run: Run | None
    ledger: Ledger | str | Path | None
    dataset: str | None
    verbose: int
    features: str
    schema: object
    algorithm: str
    report_accuracy: float | None = None
    calibrated: bool = False
    class_weight: Any = None
    stream: bool = False
    n: int | None = None
    rows_per_unit: int = 1

    @restore_on_error
    def fit(
        self,
        X: Any,
        y: Any,
        progress: object = None,
        units: object = None,
        **unsupported: object,
    ) -> Self:
        """Train on rows and labels or targets, or on a table with a schema.

        Parameters
        ----------
        X : array_like, shape (n, d)
            Private rows, or a table with a schema.
        y : array_like, shape (n,)
            Private labels or targets.
        progress : callable, optional
            ``progress(steps_done, steps, seconds)``, called from time to time.
        units : array_like, shape (n,), optional
            Identifier of the person of every row, integers or text. The certificate then
            protects all rows of a person together, and the first ``rows_per_unit`` of them are
            used, as with ``lastiterate train --unit``. The certificate calls them by the name of a
            named column.
        **unsupported : object
            Arguments of scikit-learn that privacy forbids, such as ``sample_weight``; all are
            refused.

        Returns
        -------
        object
            The fitted estimator.

        Raises
        ------
        InputError
            If input is bad or the budget does not suffice; the estimator stays as it was.
        """
        refuse(unsupported, "X, y, progress and units")
        protected = self._limit_rows(units)
        warn_of_launcher()
        with recognise_by(*([] if self.stream else list_handed_tables(self, X))):
            self._fit(X, y, progress, protected)
        return self

    @abstractmethod
    def _fit(self, X: Any, y: Any, progress: object, protected: KeptUnits | None) -> None:
        """Check the answers, make rows and train."""

    def _limit_rows(self, units: object) -> KeptUnits | None:
        """The rows that are used of every person; ``None`` where a record is a row.

        Errors: a number of rows without persons, rows that are streamed, and another number than
        that of a given run.
        """
        rows = self.rows_per_unit
        rows = int(rows) if isinstance(rows, np.integer) else rows
        if units is None:
            if rows != 1:
                raise InputError(
                    "rows_per_unit",
                    "above 1 needs units=, which says whose each row is",
                    rows,
                    "give fit units=, one identifier per row",
                )
            warn_of_single_rows(self, list_outer_schemas(self))
            return None
        if self.stream:
            raise InputError(
                "units",
                "cannot be bounded where rows are streamed",
                None,
                "hold the rows in memory (stream=False), or write a file with one row of each "
                "person first (lastiterate.select_unit_rows)",
            )
        if isinstance(self.run, Run):
            rows = max(self.run.rows_per_unit, self.run.rows_per_record)
            if self.rows_per_unit not in (1, rows):
                raise InputError(
                    "rows_per_unit", f"must be that of the run, {rows}", self.rows_per_unit
                )
        return KeptUnits.limit_rows(units, rows)

    def _train(
        self,
        features: np.ndarray,
        target: np.ndarray,
        classes: int,
        answers: Answers,
        caveats: list[str],
        progress: object,
        protected: KeptUnits | None,
        watched: FileSnapshot = UNWATCHED,
    ) -> None:
        part = part_of(self.features) if self.schema is None else self._part
        self.check_public(part)
        labels = answers.values if isinstance(answers, Labels) else ()
        if self.stream and not has_fixed_size(self.adjacency):
            raise InputError(
                "stream",
                "must be False under add-remove: what is read in pieces is cut by the number "
                "of records, which nothing may follow from",
                True,
            )
        n = self._budget.public_n(len(features))
        task = Task(
            n,
            features.shape[1],
            classes,
            self.public_row_norm(),
            rows_per_unit=1 if protected is None else protected.units.rows,
            feature_map=part,
            calibrated=self.calibrated,
            class_weights=relative_weights(self.class_weight, labels),
        )
        charging = make_charging(
            ledger=self.ledger, dataset=self.dataset, purpose=type(self).__name__
        )
        charging.of_units, charging.described = protected is not None, self.run is not None
        order = TrainingRequest(
            data=data_of(self, features, target, watched),
            budget=self._budget,
            algorithm=Algorithm(self.algorithm, run=self.run),
            report_accuracy=self.report_accuracy,
            stream=self.stream,
            units=None if protected is None else protected.units,
            unit=None if protected is None else protected.who,
            charging=charging,
            answers=answers,
            schema=None if self.schema is None else self.transformer_.schema_,
            threshold=getattr(self, "threshold", None),
            caveats=tuple(caveats),
        )
        order = plan_for_units(order, task, charging.allowance())
        warn_of_noise(order.choice)
        seed, shown = seed_of(self.random_state), self._progress(progress)
        model = finish(LINEAR, replace(order, seed=seed, progress=shown))
        assert isinstance(model, FittedLinear)
        self.fitted_: FittedLinear = model
        self.choice_: Choice | None = order.choice
        self.delta_ = order.delta
        self.n_iter_ = self.run_.steps

    def check_public(self, part: FeatureMap) -> None:
        """Refuse public choices that contradict a given run.

        Parameters
        ----------
        part : str
            Map of the features that the preparation of a plan applies.

        Raises
        ------
        InputError
            If ``run`` or ``calibrated`` is of another type, or ``features`` contradicts the run.
        """
        if not isinstance(self.run, Run | None):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InputError("run", "must be a Run", self.run, "leave it out for a plan")
        if self.run is not None and part != "plain":
            raise InputError(
                "features",
                "must be 'plain' where a run is given",
                self.features,
                "put SquareRoots() into the run's preprocessing",
            )
        if not isinstance(self.calibrated, bool):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InputError("calibrated", "must be True or False", self.calibrated)
        if self.run is not None and self.class_weight is not None:
            raise InputError(
                "class_weight",
                "must be left out where a run is given",
                None,
                "put class_weights into the run's loss",
            )

    def public_row_norm(self) -> float:
        """Return the bound on the norm of a row: the run's, or the stated one.

        Returns
        -------
        float
            Bound.

        Raises
        ------
        InputError
            If neither is stated.
        """
        if self.run is not None:
            return float(getattr(self.run.loss, "row_norm", 1.0))
        if self.row_norm is None and self.schema is not None:
            return self.transformer_.row_norm_
        if self.row_norm is None:
            raise InputError(
                "row_norm",
                "must be given: a public bound on the Euclidean norm of a row",
                None,
                "longer rows are scaled down to it, and most of a fit is lost if it is far from "
                "their "
                "norms; features scaled to [-1, 1] have at most the square root of their number, "
                "and "
                "a schema= says it by itself",
            )
        return self.row_norm

    partial_fit = AbsentMethod(
        "partial_fit does not exist: every call would be a release of its own, and a record that "
        "is "
        "fitted twice would pay twice; li.train(checkpoint=) resumes a long fit"
    )

    @property
    def certificate_(self) -> Certificate:
        """The certificate of the released model."""
        return self._released.certificate

    @property
    def run_(self) -> Run:
        """The run that was accounted and executed."""
        return self._released.run

    @property
    def model_(self) -> TrainedWeights:
        """Weights and what the private preparation released."""
        return self._released.released

    @property
    def coef_(self) -> np.ndarray:
        """Weights of the features, (1, d) or (classes, d) for classifiers and (d,) for regression.

        For rows that no bound clips, ``X @ coef_.T + intercept_`` are the scores; what longer rows
        are multiplied by is smaller for them. Preparations that divide all rows by their norms, or
        clip most, have no such form.
        """
        return self._linear_form()[0]

    @property
    def intercept_(self) -> Any:
        """What is added to ``X @ coef_.T``: (1,) or (classes,) for classifiers, a number for
        regression."""
        return self._linear_form()[1]

    def _linear_form(self) -> tuple[np.ndarray, Any]:
        model = self._released
        assert not isinstance(model.run.loss, KnownConstants)
        slopes, offset = (
            model.released.weights[:, :-1],
            model.run.loss.intercept * model.released.weights[:, -1],
        )
        for part, value in reversed(
            list(zip(model.run.preprocessing, model.released.released, strict=True))
        ):
            if isinstance(part, PrivateMean):
                offset = offset - slopes @ np.asarray(value, np.float64)
            elif isinstance(part, PrivateCovariance) and keeps_lengths(part, value):
                assert part.row_norm is not None
                slopes = slopes @ np.asarray(value, np.float64).T / part.row_norm
            elif isinstance(part, PrivateTargetMean):
                offset = offset + np.asarray(value, np.float64)
            elif not isinstance(part, TopEigenvalue):
                raise AttributeError(
                    "coef_ and intercept_ do not exist where rows are divided by their norms, or "
                    f"most are clipped: {self._show_effects()}"
                )
        return slopes, offset

    def _show_effects(self) -> str:
        """What says how scores follow from columns where there are no coefficients."""
        if self.schema is None:
            return "give a schema=, and fitted_.effects() says what each of its columns changes"
        return (
            "fitted_.effects() has how the score changes with each column of numbers or "
            "categories, and the noise in it"
        )

    def _progress(self, given: object) -> Any:
        """The caller's function, or with ``verbose`` lines of steps and time; never anything about
        the data."""
        if np.ndim(cast(Any, given)) == 1:  # the third argument of scikit-learn's own estimators
            refuse({"sample_weight": given})
        if given is not None and not callable(given):
            raise InputError(
                "progress",
                "must be a function of steps done, steps in all and seconds",
                type(given).__name__,
                "write verbose=True for lines of steps and time",
            )
        if given is not None or not self.verbose:
            return given

        def print_progress(done: int, steps: int, seconds: float) -> None:
            print(f"{done} of {steps} steps, {seconds:.1f} s", file=sys.stderr)

        return notebook_progress(type(self).__name__) or print_progress

    @property
    def _released(self) -> FittedLinear:
        if "fitted_" not in vars(self):
            raise AttributeError(f"this {type(self).__name__} is not fitted")
        return self.fitted_

    @property
    def _budget(self) -> Budget:
        return Budget(self.epsilon, self.delta, self.adjacency, self.time_budget, self.n)

    def _map_rows(
        self, table: ArrayLike, schema: Schema, protected: KeptUnits | None
    ) -> np.ndarray:
        """Rows of a table by its schema, and by the maps that it, the caller or the data's shape
        names."""
        if self.stream:
            raise InputError(
                "stream",
                "must be False with a schema, whose tables are held in memory",
                True,
                "lastiterate train --stream reads files by their schema",
            )
        warn_of_learned_steps(self)
        if protected is None:
            warn_of_single_rows(self, [schema])
        cells = frame_table(table, schema)
        budget = self._budget
        choice = choose_features(
            schema,
            self.features,
            cells.shape or (len(cells.names),),
            budget.public_n(len(cells) if protected is None else protected.count),
            budget,
        )
        self._part: FeatureMap = choice.part
        self.transformer_ = SchemaTransformer(choice.schema).fit(table)
        self.n_features_in_ = self.transformer_.n_features_in_
        vars(self).pop("feature_names_in_", None)
        if "feature_names_in_" in vars(self.transformer_):
            self.feature_names_in_ = self.transformer_.feature_names_in_
        return np.asarray(self.transformer_.transform(table))

    def _rows(self, features: Any) -> np.ndarray:
        check_is_fitted(self, "fitted_")
        warn_of_predictions()
        if self.schema is not None:
            return np.asarray(self.transformer_.transform(features))
        check_kept("X", features)
        check_no_mapping(
            features, "give columns in the order that fit saw, one row for each record"
        )
        with hide_values("X"):
            return np.asarray(
                validate_data(self, features, reset=False, dtype=[np.float64, np.float32])
            )

    def _html_repr(self) -> str:
        """scikit-learn's diagram, and below it the privacy of a fitted model."""
        shown = str(estimator_html_repr(self))
        return shown + self.fitted_.privacy_html() if "fitted_" in vars(self) else shown

    def __getstate__(self) -> dict[str, Any]:
        """The state of pickles and skops files: the released model, without the other plans."""
        state = cast("dict[str, Any]", super().__getstate__())
        return state | ({"choice_": None} if "choice_" in state else {})

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string = tags.input_tags.categorical = tags.input_tags.allow_nan = (
            self.schema is not None
        )
        tags.non_deterministic = self.random_state is None
        return tags


# Rows of persons.

_warned = False


def warn_of_single_rows(estimator: object, schemas: list[Schema]) -> None:
    """Warn, once per process, where a schema names a column of identifiers and nobody says that
    whoever they identify is protected."""
    global _warned
    ids = next((found for one in schemas if (found := find_id_columns(one))), None)
    if ids is None or _warned:
        return
    _warned = True
    calls = " or ".join(write_fit_of_units(estimator, column) for column in ids)
    one = len(ids) == 1
    called = f"{ids[0]!r} an id" if one else f"{' and '.join(map(repr, ids))} ids"
    whose = f"one {ids[0]}" if one else "a person, whichever column names the person,"
    warnings.warn(
        f"this fit protects single rows, and the schema calls {called}: "
        f"{calls} protects all rows of {whose} together; by default the first row of each is used, "
        "rows_per_unit= of the estimator takes more",
        RowProtectionWarning,
        stacklevel=outside(),
    )


# The public labels of a classifier: given, or taken from the data.

CLASSES_CAVEAT = "the set of labels was taken from the data and is treated as public"


def public_labels(classes: Any, seen: np.ndarray, caveats: list[str]) -> np.ndarray:
    """The public label set: given, or taken from the data with a warning and a caveat."""
    if classes is None:
        warnings.warn(
            "classes=None: the labels found in y are treated as public; pass classes= to avoid it",
            UserWarning,
            stacklevel=outside(),
        )
        caveats.append(CLASSES_CAVEAT)
        return seen
    if isinstance(classes, str | bytes) or np.ndim(classes) != 1:
        raise InputError(
            "classes", "must be a sequence of labels", classes, "write them as a list: [0, 1]"
        )
    labels = np.unique(plain_labels("classes", np.asarray(classes)))
    if len(labels) < np.size(classes):
        raise InputError("classes", "must name every label once", classes)
    check_known(seen, labels)
    return labels


def _are_numbers(labels: np.ndarray) -> bool:
    """Whether public labels (k,) are texts of numbers."""
    try:
        labels.astype(np.float64)
    except ValueError:
        return False
    return True


def find_positions(classes: Any, labels: np.ndarray) -> np.ndarray:
    """Return the position of every ascending label in the list that states the public ``classes``,
    (k,); their own where none does."""
    if classes is None:
        return np.arange(len(labels))
    return np.unique(plain_labels("classes", np.asarray(classes)), return_index=True)[1]


def check_known(seen: np.ndarray, labels: np.ndarray) -> None:
    """Refuse labels of private records that are not among the public ones."""
    if np.setdiff1d(seen, labels).size:
        check_recoded(seen, labels, in_schema=False)
        if labels.dtype.kind == "U" and seen.dtype.kind in "biuf" and not _are_numbers(labels):
            raise InputError(
                "y",
                "must hold only the public classes, which are texts",
                f"{seen.dtype} numbers",
                f"give labels as classes= writes them: {show_labels_of_codes(labels)}",
            )
        raise InputError(
            "y",
            "must hold only the public classes",
            None,
            "add the missing label to classes=, with labels of the type that y has",
        )

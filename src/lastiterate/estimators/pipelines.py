"""scikit-learn pipelines around an estimator, and data frames to bounded rows by a schema."""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from types import FrameType
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike
from sklearn import get_config  # pyright: ignore
from sklearn.base import (  # pyright: ignore
    BaseEstimator,  # pyright: ignore
    TransformerMixin,
)
from sklearn.pipeline import Pipeline  # pyright: ignore
from sklearn.utils import get_tags  # pyright: ignore

from lastiterate.data.cell_values import Positions
from lastiterate.data.data_frames import frame_table
from lastiterate.data.encoding import encode_features, form_of, keep_schema, label_text
from lastiterate.data.schema import Schema, read_schema
from lastiterate.errors import InputError, outside
from lastiterate.estimators.meta_estimators import (
    check_callers,
    check_recoded,
    learner_from_predictions,
    show_labels_of_codes,
)
from lastiterate.features.column_maps import RowForm
from lastiterate.features.map_registry import PLAIN, maps_named
from lastiterate.release.linear_plans import AUTO, IN_RUN
from lastiterate.release.score_meaning import Range

# A warning where something of scikit-learn's around an estimator learns from the private rows and
# is not paid for.

DEPTH = 60
"""Callers that are looked at."""
LEARNERS = (
    "CalibratedClassifierCV",
    "TunedThresholdClassifierCV",
    "StackingClassifier",
    "StackingRegressor",
)
"""Estimators that learn something of their own of the rows that they hand on, or of their targets.
"""


def _states_categories(step: Any) -> bool:
    return not isinstance(step.categories, str) and (
        step.min_frequency is None and step.max_categories is None
    )


LEARN_NOTHING: dict[str, Callable[[Any], bool]] = {
    "GaussianRandomProjection": lambda step: step.n_components != "auto",
    "MissingIndicator": lambda step: step.features == "all",
    "OneHotEncoder": _states_categories,
    "OrdinalEncoder": _states_categories,
    "PolynomialFeatures": lambda step: True,
    "RBFSampler": lambda step: not isinstance(step.gamma, str),
    "SimpleImputer": lambda step: (
        step.strategy == "constant"
        and step.fill_value is not None
        and step.keep_empty_features
        and not step.add_indicator
    ),
    "SkewedChi2Sampler": lambda step: True,
    "SparseRandomProjection": lambda step: step.n_components != "auto",
    "SplineTransformer": lambda step: not isinstance(step.knots, str),
}
"""Transformers of scikit-learn that need ``fit``, and where it keeps nothing but parameters, and the
names, number and types of columns."""
PUBLIC_STEPS = (
    "steps with stated values do not learn, such as OneHotEncoder(categories=[...]) or "
    "SimpleImputer(strategy='constant', fill_value=0, keep_empty_features=True), and public ranges "
    "in a schema (SchemaTransformer) take the place of scaling"
)


class UnpaidStepWarning(UserWarning):
    """What was learned from private rows around an estimator is not covered by its certificate."""


def warn_of_learned_steps(estimator: object) -> None:
    """Name the steps of the pipelines that are fitting ``estimator``, and what else is, that learn
    from rows.

    Whether a step learns is what it says itself (scikit-learn's tag ``requires_fit``). Steps that
    were applied outside a pipeline cannot be noticed. Errors: who is fitting it makes the
    certificate false (``check_callers``).
    """
    check_callers(estimator)
    for caller in _list_outer_estimators(estimator):
        if not type(caller).__module__.startswith(("sklearn.", "lastiterate.")):
            warnings.warn(
                f"{type(caller).__name__} is fitting the estimator: the certificate holds only if "
                f"it hands "
                "on every record once, with weight 1, and learns nothing from them",
                UnpaidStepWarning,
                stacklevel=outside(),
            )
    names = list(
        dict.fromkeys(
            name
            for caller in _list_outer_estimators(estimator)
            for name in _list_other_learners(caller)
        )
    )
    if names:
        steps = (
            PUBLIC_STEPS if set(names) - set(LEARNERS) else "fit it on public rows, or leave it out"
        )
        warnings.warn(
            f"the certificate does not cover {', '.join(names)}: what it learned from the private "
            f"rows was not paid for; {steps}",
            UnpaidStepWarning,
            stacklevel=outside(),
        )


def warn_of_predictions() -> None:
    """Name what scikit-learn is fitting on predictions of an estimator that is fitted, such as a
    frozen one."""
    name = learner_from_predictions()
    if name is not None:
        warnings.warn(
            f"the certificate does not cover {name}: what it learns from predictions on private "
            f"rows is not "
            "paid for; fit it on public rows",
            UnpaidStepWarning,
            stacklevel=outside(),
        )


def _list_outer_estimators(estimator: object) -> Iterator[Any]:
    """Estimators that are fitting ``estimator``, one inside of the other; of pipelines those whose
    last step it is."""
    inside = {id(estimator)}
    frame: FrameType | None = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    for _ in range(DEPTH):
        if frame is None:
            return
        caller = frame.f_locals.get("self")
        if isinstance(caller, BaseEstimator) and id(caller) not in inside:
            if not isinstance(caller, Pipeline) or id(caller.steps[-1][1]) in inside:  # pyright: ignore
                yield caller
            inside.add(id(caller))
        frame = frame.f_back


def _list_other_learners(caller: Any) -> Iterator[str]:
    """What learns of the rows besides the estimator that ``caller`` is fitting."""
    if isinstance(caller, Pipeline):
        for name, step in cast("list[tuple[str, object]]", caller.steps[:-1]):  # pyright: ignore
            yield from _list_learners(name, step)
    elif type(caller).__name__ == "TransformedTargetRegressor":
        yield from _list_learners("the target's transformer", caller.transformer)
    elif type(caller).__name__ in LEARNERS:
        yield type(caller).__name__


def _list_learners(name: str, step: object) -> Iterator[str]:
    """The step itself, or those of its parts, that learn."""
    for part, one in _list_parts(name, step):
        if one is not None and not isinstance(one, str) and _learns(one):
            yield part


def _learns(step: Any) -> bool:
    """Whether ``fit`` of a transformer keeps anything of the values of the rows."""
    known = type(step).__module__.startswith("sklearn.")
    learns_nothing = LEARN_NOTHING.get(type(step).__name__) if known else None
    return get_tags(step).requires_fit and not (learns_nothing and learns_nothing(step))


def list_outer_schemas(estimator: object) -> list[Schema]:
    """Schemas of the steps before ``estimator`` in the pipelines that are fitting it."""
    steps = [
        part
        for caller in _list_outer_estimators(estimator)
        if isinstance(caller, Pipeline)
        for name, step in cast("list[tuple[str, object]]", caller.steps[:-1])  # pyright: ignore
        for _, part in _list_parts(name, step)
        if isinstance(part, SchemaTransformer)
    ]
    return [vars(step).get("schema_") or to_schema(step.schema) for step in steps]


def list_handed_tables(estimator: object, table: object) -> list[object]:
    """What ``estimator`` is fitted on, and what the outermost estimator that is fitting it was given."""
    given, inside = [table], {id(estimator)}
    frame: FrameType | None = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    for _ in range(DEPTH):
        if frame is None:
            break
        caller, found = frame.f_locals.get("self"), frame.f_locals.get("X")
        if isinstance(caller, BaseEstimator) and id(caller) not in inside and found is not None:
            given[1:] = [found]
            inside.add(id(caller))
        frame = frame.f_back
    return given


def write_fit_of_units(estimator: object, column: str) -> str:
    """The outermost call of ``fit`` that reaches the estimator with ``units``."""
    pipelines = [one for one in _list_outer_estimators(estimator) if isinstance(one, Pipeline)]
    steps, first = "".join(f"{one.steps[-1][0]}__" for one in reversed(pipelines)), ""  # pyright: ignore
    if steps and get_config()["enable_metadata_routing"]:
        steps, first = "", "set_fit_request(units=True) of the last step and "
    return f"{first}fit(X, y, {steps}units=table[{column!r}])"


def _list_parts(name: str, step: object) -> Iterator[tuple[str, object]]:
    """The step itself, or the parts that it has, each with its name."""
    inner = (
        [
            (f"{name}.{part[0]}", part[1])
            for attribute in ("steps", "transformers", "transformer_list")
            for part in vars(step).get(attribute, ())
        ]
        + [(f"{name}.remainder", one) for one in [vars(step).get("remainder")] if one is not None]
        if not isinstance(step, str) and step is not None
        else []
    )
    if inner:
        for part, one in inner:
            yield from _list_parts(part, one)
    else:
        yield name, step


PREDICTING = ("predict", "predict_proba", "predict_log_proba", "decision_function", "score")
"""Methods of estimators that read records after training."""
FITTING = ("fit", "fit_transform")
FOLDS = ("_fit_and_score", "_fit_and_predict")
"""Functions of scikit-learn that train models and predict with them."""


def _say_for_use(error: InputError) -> InputError:
    """The refusal of a table with the remedies of its use: training, prediction, or either one."""
    kept, clause = keep_schema(error, "X"), "for a trained model rewrite X, not the schema"
    if kept is error:
        return error
    said = error.with_clause(clause)
    frame: FrameType | None = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame is not None:
        name = frame.f_code.co_name
        if name in FOLDS or (name in FITTING and _is_estimator(frame)):
            return error
        if name in PREDICTING and _is_estimator(frame):
            said = kept
        frame = frame.f_back
    return said


def _is_estimator(frame: FrameType) -> bool:
    return isinstance(frame.f_locals.get("self"), BaseEstimator)


# Data frames to bounded rows by a public schema, as a transformer of scikit-learn that learns
# nothing.


class SchemaTransformer(TransformerMixin, BaseEstimator):
    """A transformer from tables to bounded rows by public facts, which learns nothing.

    Parameters
    ----------
    schema : Schema, dict or path
        Schema, its ``to_dict``, or its TOML file.
    features : str, optional
        Names of public maps, such as "curves", in place of the schema's own.

    Attributes
    ----------
    row_norm_ : float
        Public bound on the norm of every row, for ``DPLogisticRegression(row_norm=)``.
    schema_ : Schema
        Schema with its maps.
    form_ : RowForm
        Fields, maps, names and norm of the rows.
    feature_names_in_ : numpy.ndarray of str
        Names of the columns.
    n_features_in_ : int
        Number of columns.

    Notes
    -----
    **Guarantee:** a row depends on its own record and on the schema only, and its norm is at most
    ``row_norm_``. ``fit`` looks at the names of the columns and at no value.

    Examples
    --------
    >>> from lastiterate.features import SchemaTransformer
    >>> facts = {
    ...     "target": "ill",
    ...     "classes": ["no", "yes"],
    ...     "columns": {"age": {"kind": "number", "low": 0, "high": 100, "outside": "clip"}},
    ... }
    >>> rows = SchemaTransformer(facts).fit_transform({"age": [0, 50, 120]})
    >>> rows.tolist()
    [[-1.0], [0.0], [1.0]]
    """

    def __init__(self, schema: object, features: str | None = None) -> None:
        self.schema = schema
        self.features = features

    def fit(self, X: ArrayLike, y: ArrayLike | None = None) -> SchemaTransformer:
        """Check the columns of a table, and read no value.

        Parameters
        ----------
        X : data frame, dict of str to sequence, or array_like
            Table: pandas, polars or pyarrow, columns by name, or an array.
        y : array_like, optional
            Ignored.

        Returns
        -------
        SchemaTransformer
            The fitted transformer.

        Raises
        ------
        InputError
            If the schema refuses the columns.
        """
        schema = to_schema(self.schema)
        if self.features in (AUTO, *IN_RUN) and self.features != PLAIN:
            raise InputError(
                "features",
                "must name public maps here, or be plain or None",
                self.features,
                "DPLogisticRegression(schema=) knows a budget and takes the others",
            )
        self.schema_ = (
            schema if self.features is None else replace(schema, features=maps_named(self.features))
        )
        table = frame_table(X, self.schema_)
        self.schema_ = self.schema_.with_shape(table.shape)
        form = form_of(table, self.schema_)
        self.row_norm_, self.n_features_in_ = form.norm, len(table.names)
        vars(self).pop("feature_names_in_", None)
        if not isinstance(X, np.ndarray):  # an array's columns have no names
            self.feature_names_in_ = np.array(table.names, dtype=object)
        self._shape = table.shape
        return self

    def transform(self, X: ArrayLike) -> np.ndarray:
        """Return the rows of a table; ``fit`` may be left out.

        Parameters
        ----------
        X : data frame, dict of str to sequence, or array_like
            Table with the columns of the schema.

        Returns
        -------
        numpy.ndarray, shape (n, d)
            Rows as float32, of norm at most ``row_norm_``.

        Raises
        ------
        InputError
            If the schema refuses columns or cells.
        """
        if "schema_" not in vars(self):
            made = SchemaTransformer(self.schema, self.features)
            try:
                return made.fit(X)._encode(X)
            except InputError as error:
                raise _say_for_use(error) from None
        try:
            return self._encode(X)
        except InputError as error:
            raise _say_for_use(error) from None

    def _encode(self, X: ArrayLike) -> np.ndarray:
        """The rows of a table by the schema of ``fit``."""
        table = frame_table(X, self.schema_)
        if not len(table):
            raise InputError("X", "must hold at least one record", None, "give it a row")
        if (
            table.shape is not None
            and self._shape is not None
            and math.prod(table.shape) != math.prod(self._shape)
        ):
            raise InputError(
                "X",
                f"must have {math.prod(self._shape)} features, as in fit",
                math.prod(table.shape),
            )
        return encode_features(table, self.schema_)

    @property
    def form_(self) -> RowForm:
        """Fields, maps, names and norm of the rows."""
        self._require_fitted()
        return self.schema_.form(self._shape or (self.n_features_in_,))

    def get_feature_names_out(self, input_features: Sequence[str] | None = None) -> np.ndarray:
        """Return the names of the numbers in a row.

        Parameters
        ----------
        input_features : sequence of str, optional
            Names of the columns, to be compared with those of ``fit``.

        Returns
        -------
        numpy.ndarray of str
            Names, one per number.
        """
        self._require_fitted()
        seen = vars(self).get("feature_names_in_")
        if input_features is not None and (
            len(input_features) != self.n_features_in_
            or (seen is not None and list(input_features) != list(seen))
        ):
            raise ValueError("input_features is not equal to feature_names_in_")
        return np.array(self.form_.names, dtype=object)

    def _require_fitted(self) -> None:
        from sklearn.utils.validation import check_is_fitted  # pyright: ignore

        check_is_fitted(self, "schema_")

    def __sklearn_tags__(self) -> Any:
        tags = cast(Any, super().__sklearn_tags__())
        columns = not isinstance(self.schema, Schema) or self.schema.array is None
        tags.input_tags.allow_nan = tags.input_tags.string = tags.input_tags.categorical = columns
        tags.requires_fit = False  # nothing is learned: only names of columns are looked at
        tags.transformer_tags.preserves_dtype = ["float32"]
        tags.no_validation = True
        return tags


def to_schema(given: object, classes: object = None) -> Schema:
    """A schema from what holds one; ``classes``: for one that leaves its own open."""
    texts = () if classes is None else tuple(map(label_text, cast("Sequence[object]", classes)))
    return read_schema(given, texts)


def labels_of(schema: Schema, classes: Any, y: Any) -> tuple[np.ndarray, np.ndarray]:
    """The schema's classes in its order as labels of the kind of ``y``; and the class index of
    every record (n,).

    Errors: a schema without classes, ``classes`` that are not its own, labels that it does not
    list.
    """
    if schema.regression:
        raise InputError(
            "schema",
            "must have classes where labels are learned",
            None,
            "use DPHuberRidge for numbers",
        )
    if classes is not None and sorted(map(label_text, classes)) != sorted(schema.classes):
        raise InputError("classes", "must be those of the schema", list(classes), "leave them out")
    given = np.asarray(y)
    if given.ndim == 2 and given.shape[1] == 1:  # a data frame of one column
        given = y = given[:, 0]
    if given.ndim != 1:
        raise InputError(
            "y",
            "must be one label for each record",
            given.shape,
            "give one column, such as y[:, 0]",
        )
    # each entry of a list as it is, whatever the other entries are
    each = cast("Sequence[object]", y if isinstance(y, list | tuple) else given.tolist())
    kind = (
        given.dtype if given.dtype.kind != "O" else np.asarray(each).dtype
    )  # of objects what they are
    labels = np.array(schema.classes)
    if kind.kind in "biuf":
        names = {"True": 1, "False": 0}
        try:
            labels = np.array([float(names.get(label, label)) for label in schema.classes]).astype(
                kind
            )
        except ValueError:
            check_recoded(given, labels, in_schema=True)
            raise InputError(
                "y",
                "must hold only the classes of the schema, which are texts",
                f"{kind} numbers",
                f"give labels as the schema writes them: {show_labels_of_codes(labels)}",
            ) from None
    target = Positions(schema.classes).of(map(label_text, each))
    if (target < 0).any():
        check_recoded(given, labels, in_schema=True)
        raise InputError(
            "y",
            "must hold only the classes of the schema",
            None,
            "correct the labels or the schema",
        )
    return labels, target


def range_of(schema: Schema, target_range: tuple[float, float] | None) -> Range:
    """The target's public range. Errors: a schema with classes, or with another range than the one
    given."""
    if schema.target_range is None:
        raise InputError(
            "schema",
            "must have a target_range where numbers are learned",
            None,
            "use DPLogisticRegression for classes",
        )
    low, high = map(float, schema.target_range)
    if target_range is not None and tuple(map(float, target_range)) != (low, high):
        raise InputError(
            "target_range",
            f"must be that of the schema, {low:g} to {high:g}",
            target_range,
            "leave it out where y has the schema's units; of a transformed y, such as a logarithm, "
            "write the range into the schema",
        )
    return Range(low, high)

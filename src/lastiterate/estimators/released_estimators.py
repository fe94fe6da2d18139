"""Released models as estimators of scikit-learn, and the skops and joblib files that hold one."""

from __future__ import annotations

import io
import itertools
import json
import pickle
import pickletools
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn, cast

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import (  # pyright: ignore
    BaseEstimator,
    ClassifierMixin,
    RegressorMixin,
)
from sklearn.utils.validation import check_array  # pyright: ignore

from lastiterate import limits
from lastiterate.accounting.certificate import Certificate
from lastiterate.accounting.certificate_json import CheckResult
from lastiterate.errors import InputError
from lastiterate.estimators.file_estimators import check_no_mapping, hide_values
from lastiterate.estimators.pipelines import SchemaTransformer, warn_of_predictions
from lastiterate.release import folder as folders
from lastiterate.release import verification
from lastiterate.release.fitted_linear import FittedLinear
from lastiterate.release.released_model import ReleasedModel, SelfContainedModel
from lastiterate.release.score_meaning import Labels

# A released model behind scikit-learn's protocol: it predicts, and nothing trains it again.


class ReleasedEstimator(BaseEstimator):
    """A released model as an estimator; subclasses say what it predicts."""

    model: SelfContainedModel

    def __init__(self, model: SelfContainedModel) -> None:
        self.model = model

    def fit(self, X: object, y: object = None, **given: object) -> NoReturn:
        """Refuse: the model is released, and another fit would be another release.

        Parameters
        ----------
        X : object
            Ignored.
        y : object, optional
            Ignored.
        **given : object
            Ignored.

        Raises
        ------
        InputError
            Always.
        """
        raise InputError(
            "fit",
            "is not for a released model, which stays as its certificate says",
            None,
            "fit DPLogisticRegression or DPHuberRidge: a new release with a budget of its own",
        )

    def predict(self, X: Any) -> np.ndarray:
        """Predict as ``lastiterate predict`` does.

        Parameters
        ----------
        X : array_like, shape (m, d)
            Rows, or a table with the columns of the model's schema.

        Returns
        -------
        numpy.ndarray, shape (m,)
            Labels or numbers.
        """
        return self._check_model().predict(self._rows(X))

    @property
    def fitted_(self) -> SelfContainedModel:
        """The released model, as other estimators call it."""
        return self._check_model()

    @property
    def certificate_(self) -> Certificate:
        """The certificate of the released model."""
        return self._check_model().certificate

    def _rows(self, X: Any) -> np.ndarray:
        warn_of_predictions()
        if self.model.schema is not None:
            return SchemaTransformer(self.model.schema).transform(X)
        check_no_mapping(X, "give columns in the order of the training rows")
        with hide_values("X"):
            kinds: Any = [np.float64, np.float32]
            return np.asarray(cast(Any, check_array(X, dtype=kinds)))

    def _check_model(self) -> SelfContainedModel:
        check_kind(self.model, type(self))
        return self.model

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def __getstate__(self) -> dict[str, Any]:
        """The files of the model's folder: the very ones that it was read from, where it was."""
        files, source = vars(self).get("_source", (None, None))
        return {"files": files if source is self.model else _select(self.model.files())}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Read the files, which refuses what does not fit its certificate."""
        files = _select(state["files"])
        model = verification.load_files(files)
        check_kind(model, type(self))
        self.model = cast(SelfContainedModel, model)
        self._source = files, model

    def __sklearn_tags__(self) -> Any:
        tags = cast(Any, super().__sklearn_tags__())
        columns = self.model.schema is not None and self.model.schema.array is None
        tags.input_tags.string = tags.input_tags.categorical = tags.input_tags.allow_nan = columns
        tags.requires_fit = False
        return tags


class ReleasedClassifier(ClassifierMixin, ReleasedEstimator):
    """A released model of classes as an estimator of scikit-learn, whatever trained it.

    Parameters
    ----------
    model : FittedLinear
        Released linear model of classes, such as ``lastiterate.load`` gives.

    Attributes
    ----------
    classes_ : numpy.ndarray
        Labels in ascending order.
    certificate_ : Certificate
        Certificate of the model.
    fitted_ : FittedLinear
        The model.

    See Also
    --------
    ReleasedRegressor : The same for numbers.

    Notes
    -----
    **Guarantee:** predictions are those of the released model. ``fit`` refuses: it would be another
    release.

    Examples
    --------
    >>> import numpy as np
    >>> from lastiterate.estimators import DPLogisticRegression, ReleasedClassifier
    >>> X = np.random.default_rng(0).normal(size=(200, 3))
    >>> y = (X[:, 0] > 0).astype(int)
    >>> trained = DPLogisticRegression(row_norm=2.0, classes=[0, 1]).fit(X, y)
    >>> released = ReleasedClassifier(trained.fitted_)
    >>> bool((released.predict(X) == trained.predict(X)).all())
    True
    """

    @property
    def classes_(self) -> np.ndarray:
        """Labels in ascending order, (k,)."""
        return np.sort(self._labels())

    def predict_proba(self, X: ArrayLike) -> np.ndarray:
        """Return the probabilities of the classes.

        Parameters
        ----------
        X : array_like, shape (m, d)
            Rows, or a table with the columns of the model's schema.

        Returns
        -------
        numpy.ndarray, shape (m, k)
            Probabilities, in the order of ``classes_``.
        """
        order, rows = np.argsort(self._labels()), self._rows(X)
        return cast(FittedLinear, self.model).probabilities(rows)[:, order]

    def _labels(self) -> np.ndarray:
        """Labels in the order of the model."""
        model = cast(FittedLinear, self._check_model())
        return np.asarray(cast(Labels, model.answers).values)


class ReleasedRegressor(RegressorMixin, ReleasedEstimator):
    """A released model of numbers as an estimator of scikit-learn, whatever trained it.

    Parameters
    ----------
    model : FittedLinear or FittedSample
        Released linear model of numbers, or a posterior sample, such as ``lastiterate.load`` gives.

    Attributes
    ----------
    certificate_ : Certificate
        Certificate of the model.
    fitted_ : FittedLinear or FittedSample
        The model.

    See Also
    --------
    ReleasedClassifier : The same for classes.

    Notes
    -----
    **Guarantee:** predictions are those of the released model. ``fit`` refuses: it would be another
    release.

    Examples
    --------
    >>> import numpy as np
    >>> from lastiterate.estimators import DPHuberRidge, ReleasedRegressor
    >>> X = np.random.default_rng(0).normal(size=(200, 3))
    >>> trained = DPHuberRidge(row_norm=2.0, target_range=(-3, 3)).fit(X, X[:, 0])
    >>> released = ReleasedRegressor(trained.fitted_)
    >>> bool((released.predict(X) == trained.predict(X)).all())
    True
    """


def kind_for(model: ReleasedModel) -> type[ReleasedEstimator]:
    """The class of estimators for a released model; those that need the caller's code are refused."""
    if not isinstance(model, SelfContainedModel):
        raise InputError(
            "model",
            "must be a linear one or a posterior sample: the forward pass of networks and modules "
            "is your code, which no file of scikit-learn carries",
            model.form,
            "export it as safetensors or huggingface, or in Python with to_stablehlo or to_onnx",
        )
    labels = isinstance(getattr(model, "answers", None), Labels)
    return ReleasedClassifier if labels else ReleasedRegressor


def check_kind(model: object, kind: type[ReleasedEstimator]) -> None:
    """Refuse a model that an estimator of ``kind`` does not predict with."""
    if not isinstance(model, ReleasedModel):
        raise InputError(
            "model",
            "must be a released model",
            type(model).__name__,
            "write lastiterate.load(FOLDER), or fitted_ of an estimator",
        )
    right = kind_for(model)
    if not issubclass(kind, right):
        raise InputError("model", f"is one for {right.__name__}", kind.__name__)


# The files. Both are made of the files of a release alone, the same bytes every time, so that
# one that is verified is made again and compared: nothing in it is executed or interpreted.


def to_skops(files: Mapping[str, bytes]) -> bytes:
    """Return a skops file with the estimator of a release: the files of the release by name, and
    what skops makes of them."""
    kind = kind_for(verification.load_files(files))
    files, numbers = _select(files), itertools.count()

    def describe(made: type, loader: str, **more: Any) -> dict[str, Any]:
        return {
            "__class__": made.__name__,
            "__module__": made.__module__,
            "__loader__": loader,
            **more,
            "__id__": next(numbers),
        }

    def describe_dict(entries: dict[str, Any]) -> dict[str, Any]:
        keys = describe(list, "ListNode", content=[describe(str, "TypeNode") for _ in entries])
        return describe(dict, "DictNode", content=entries, key_types=keys)

    contents = {name: describe(bytes, "BytesNode", file=name) for name in files}
    state = describe_dict({"files": describe_dict(contents)})
    schema = describe(kind, "ObjectNode", content=state) | {"protocol": PROTOCOL}
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as file:
        for name, content in (*files.items(), (SCHEMA, json.dumps(schema, indent=2))):
            member = zipfile.ZipInfo(name)
            member.create_system = 3  # the same on every system
            file.writestr(member, content)
    return packed.getvalue()


def to_joblib(files: Mapping[str, bytes]) -> bytes:
    """Return a joblib file, which is a pickle, with the estimator of a release."""
    kind = kind_for(verification.load_files(files))
    made = kind.__new__(kind)
    made.__setstate__({"files": files})  # it keeps the very files
    return pickle.dumps(made, protocol=4)


SCHEMA, PROTOCOL = "schema.json", 1
"""The member of a skops file that says which types it makes of the others, and its form."""


def _select(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """The three files of a release and their list."""
    three = {name: files[name] for name in sorted(folders.FILES)}
    return three | {folders.MANIFEST: folders.format_manifest(three)}


def verify_skops(path: Path) -> CheckResult:
    """Verify the release in a skops file, and that the file is the one that is made of it."""
    return _verify(path, "skops", _read_skops, to_skops)


def verify_joblib(path: Path) -> CheckResult:
    """Verify the release in a joblib file, and that the file is the one that is made of it.

    **Guarantee:** nothing in the file is executed.
    """
    return _verify(path, "sklearn", _read_joblib, to_joblib)


Files = Mapping[str, bytes]


def _verify(
    path: Path, form: str, read: Callable[[bytes], Files], make: Callable[[Files], bytes]
) -> CheckResult:
    """Verify a file of a form of ``lastiterate export``."""
    content = limits.content(path, "model", limits.FOLDER)
    try:
        files = _select(read(content))
    except Exception:  # the formats' parsers raise several kinds on damaged bytes
        raise InputError(
            "model",
            f"must be a {path.suffix[1:]} file that lastiterate wrote, with its release in it",
            str(path),
            f"lastiterate export MODEL_DIR --to {form} writes one, and so does "
            f"fitted_.to_{form}(FILE) of a fitted estimator",
        ) from None
    checked = verification.verify_files(files)
    if not checked.holds or make(files) == content:
        return checked
    return replace(checked, problems=(OTHER,))


OTHER = (
    "the file is not the one that is made of the release in it: it holds more, or other code; do "
    "not load it"
)


def _read_skops(content: bytes) -> dict[str, bytes]:
    file = zipfile.ZipFile(io.BytesIO(content))
    if sum(one.file_size for one in file.infolist()) > len(content):
        raise ValueError  # packed, to an unknown size
    return {name: file.read(name) for name in folders.FILES}


def _read_joblib(content: bytes) -> dict[str, bytes]:
    """The bytes in a pickle by the text before each; ``pickletools`` executes nothing."""
    files, name = dict[str, bytes](), ""
    for _, argument, _ in pickletools.genops(content):
        if isinstance(argument, str):
            name = argument
        elif isinstance(argument, bytes):
            files[name] = argument
    return files


def explain_loading(path: Path) -> str:
    """Say how a file of ``to_skops`` or ``to_joblib`` is read."""
    if path.suffix == ".joblib":
        return (
            f"joblib.load({str(path)!r}) reads it, and executes whatever such a file says: "
            "lastiterate verify first, it executes nothing"
        )
    with zipfile.ZipFile(path) as file:
        schema = json.loads(file.read(SCHEMA))
    trusted = f"{schema['__module__']}.{schema['__class__']}"
    return f"skops.io.load({str(path)!r}, trusted=[{trusted!r}]) reads it"


def list_trusted_types() -> list[str]:
    """Return the types of this library that a skops file of its estimators holds.

    Returns
    -------
    list of str
        For ``trusted=`` of ``skops.io.load``. A file that ``lastiterate export --to skops`` wrote
        holds ``ReleasedClassifier`` or ``ReleasedRegressor`` and no other; estimators with a
        ``run=`` hold the types of its parts as well.

    See Also
    --------
    ReleasedClassifier : A released model as an estimator.

    Examples
    --------
    >>> from lastiterate.estimators import list_trusted_types
    >>> len(list_trusted_types())
    9
    """
    return [
        "lastiterate.data.schema.Schema",
        "lastiterate.estimators.classifier.DPLogisticRegression",
        "lastiterate.estimators.grid_search.DPSearchCV",
        "lastiterate.estimators.pipelines.SchemaTransformer",
        "lastiterate.estimators.regressor.DPHuberRidge",
        "lastiterate.estimators.released_estimators.ReleasedClassifier",
        "lastiterate.estimators.released_estimators.ReleasedRegressor",
        "lastiterate.release.fitted_linear.FittedLinear",
        "lastiterate.release.fitted_linear.FittedSelected",
    ]

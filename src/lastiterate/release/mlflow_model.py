"""Models as MLflow's python functions, with the release inside: to serve, to register, to verify."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from lastiterate import __version__
from lastiterate.accounting.certificate_json import CheckResult
from lastiterate.data.columns import Category, Date, Numeric
from lastiterate.data.data_frames import frame_table
from lastiterate.data.encoding import encode_features, keep_schema
from lastiterate.errors import InputError
from lastiterate.release import folder as folders
from lastiterate.release import verification
from lastiterate.release.released_model import ReleasedModel, SelfContainedModel
from lastiterate.release.score_meaning import Labels

if TYPE_CHECKING:
    import pandas  # pyright: ignore
    from mlflow.models import ModelSignature  # pyright: ignore

PREFIX, DATA = "privacy.", "model"


class Scorer:
    """A model as MLflow calls it: tables or arrays in, predictions and probabilities out."""

    def __init__(self, model: SelfContainedModel) -> None:
        self.model = model

    def predict(self, data: object, params: Mapping[str, object] | None = None) -> pandas.DataFrame:
        """A column ``prediction``, and one ``probability_LABEL`` for each class."""
        import pandas  # pyright: ignore

        model, schema = self.model, self.model.schema
        if schema is None or schema.array is not None:
            data = np.asarray(cast(Any, data))
        try:
            rows = data if schema is None else encode_features(frame_table(data, schema), schema)
        except InputError as error:
            raise keep_schema(error, "the table") from None
        rows = cast("np.ndarray", rows)
        made: dict[str, Any] = {"prediction": model.predict(rows)}
        labels = _labels(model)
        if labels is not None:
            chances = cast(Any, model).probabilities(rows).T
            names = [f"probability_{label}" for label in labels]
            made |= dict(zip(names, chances, strict=True))
        return pandas.DataFrame(made)


def _load_pyfunc(path: str) -> Scorer:  # pyright: ignore[reportUnusedFunction]  # MLflow calls it
    return Scorer(_load(path))


def _load(folder: str | Path) -> SelfContainedModel:
    model = verification.load(folder)
    if not isinstance(model, SelfContainedModel):
        raise InputError(
            "model",
            "must be a linear one or a posterior sample",
            model.form,
            "write networks with MLflow's own flavour for them, and the folder as an artifact",
        )
    return model


def _state_privacy(folder: str | Path) -> dict[str, str]:
    certificate = folders.read(folder).certificate
    return {PREFIX + name: text for name, text in folders.state_privacy(certificate).items()}


def describe_for_mlflow(folder: str | Path) -> dict[str, Any]:
    """Arguments for ``mlflow.pyfunc.save_model`` and ``log_model``: loader, files, signature, an
    example of public values, requirements, and epsilon, delta, neighbours and unit as metadata."""
    _check_library()
    model = _load(folder)
    return {
        "loader_module": __name__,
        "data_path": str(folder),
        "signature": _make_signature(model),
        "input_example": _make_example(model),
        "pip_requirements": [f"lastiterate[mlflow]=={__version__}"],
        "metadata": _state_privacy(folder),
    }


def to_mlflow(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return the files of an MLflow model that predicts as the model of a release does, and
    holds it; by path within the new folder.

    Errors: models of other kinds.
    """
    _check_library()
    import mlflow.pyfunc  # pyright: ignore

    with tempfile.TemporaryDirectory() as parent:
        copied, where = Path(parent, DATA), Path(parent, "made")
        copied.mkdir()
        files = {name: files[name] for name in folders.FILES}
        for name, content in (files | {folders.MANIFEST: folders.format_manifest(files)}).items():
            (copied / name).write_bytes(content)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about integers, of which the signature has none
            cast(Any, mlflow).pyfunc.save_model(str(where), **describe_for_mlflow(copied))
        names = sorted(path for path in where.rglob("*") if path.is_file())
        return {path.relative_to(where).as_posix(): path.read_bytes() for path in names}


def verify_mlflow(place: Path) -> CheckResult:
    """Verify the release in an MLflow model, and that MLflow loads it and nothing else."""
    _check_library()
    import mlflow.models  # pyright: ignore

    try:
        found = cast(Any, mlflow).models.Model.load(str(place))
        loads: dict[str, Any] = dict(found.flavors["python_function"])
        inner = place / str(loads["data"])
        if loads["loader_module"] != __name__ or not inner.resolve().is_relative_to(
            place.resolve()
        ):
            raise KeyError
    except Exception:  # its parser raises several kinds
        raise InputError(
            "model",
            "must be an MLflow model that lastiterate wrote",
            str(place),
            "lastiterate export MODEL_DIR --to mlflow writes one",
        ) from None
    checked = verification.verify_folder(inner)
    if not checked.holds:
        return checked
    expected = _state_privacy(inner)
    stated = dict(found.metadata or {})
    problems = [
        f"{verification.MLMODEL}: {name} is not what the certificate says"
        for name, text in expected.items()
        if stated.get(name) != text
    ]
    if found.signature != _make_signature(_load(inner)):
        problems.append(f"{verification.MLMODEL}: the signature is not that of the certified model")
    if set(found.flavors) != {"python_function"} or loads.get("code"):
        problems.append(f"{verification.MLMODEL}: it loads other code than the certified model")
    known = {
        place / verification.MLMODEL,
        *(inner / name for name in (*folders.FILES, folders.MANIFEST)),
    }
    others = {path for path in place.rglob("*") if not path.is_dir()} - known
    names = sorted(path.relative_to(place).as_posix() for path in others)
    entries = sorted(set(stated) - set(expected))
    uncovered = [*names, *(f"the metadata's {name}" for name in entries)]
    return replace(checked, problems=tuple(problems), uncovered=(*checked.uncovered, *uncovered))


def _make_signature(model: SelfContainedModel) -> ModelSignature:
    """Columns that the schema uses, of any type, since the model reads every form of a cell that
    training reads; arrays as they are. Predictions have the type of the labels."""
    from mlflow.models import ModelSignature  # pyright: ignore
    from mlflow.types import ColSpec, DataType, TensorSpec  # pyright: ignore
    from mlflow.types import Schema as Signature  # pyright: ignore
    from mlflow.types.schema import AnyType  # pyright: ignore

    if model.schema is None or model.schema.array is not None:
        inputs = Signature([TensorSpec(np.dtype(np.float64), (-1, *_shape(model)))])
    else:
        columns = [column.name for column in model.schema.columns if column.fields]
        inputs = Signature([ColSpec(AnyType(), name) for name in columns])
    labels = _labels(model)
    if labels is None:
        return ModelSignature(inputs, Signature([ColSpec(DataType.double, "prediction")]))
    kinds = {"U": DataType.string, "b": DataType.boolean, "f": DataType.double}
    kind = kinds.get(np.asarray(labels).dtype.kind, DataType.long)
    chances = [ColSpec(DataType.double, f"probability_{label}") for label in labels]
    return ModelSignature(inputs, Signature([ColSpec(kind, "prediction"), *chances]))


def _labels(model: SelfContainedModel) -> tuple[str | int | float, ...] | None:
    answers = getattr(model, "answers", None)
    return answers.values if isinstance(answers, Labels) else None


def _shape(model: SelfContainedModel) -> tuple[int, ...]:
    """Of one record of an array."""
    schema = model.schema
    if schema is not None and schema.array is not None and schema.array.shape is not None:
        return schema.array.shape
    return (model.features,)


def _make_example(model: SelfContainedModel) -> Any:
    """One record of public values: the middles of ranges, the first of categories."""
    import pandas  # pyright: ignore

    schema = model.schema
    if schema is None or schema.array is not None:
        low = 0.0 if schema is None or schema.array is None else schema.array.low
        return np.full((1, *_shape(model)), low)
    return pandas.DataFrame(
        {one.name: [_example_value(one)] for one in schema.columns if one.fields}
    )


def _example_value(column: object) -> object:
    if isinstance(column, Numeric):
        return (column.low + column.high) / 2
    if isinstance(column, Category):
        return column.values[0]
    return column.first if isinstance(column, Date) else "some words"


def _check_library() -> None:
    try:
        import mlflow  # noqa: F401  # pyright: ignore
        import pandas  # noqa: F401  # pyright: ignore
    except ModuleNotFoundError:
        raise InputError(
            "mlflow",
            "is needed to write and read MLflow models",
            None,
            "pip install lastiterate[mlflow]",
        ) from None


def log_to_mlflow(model: ReleasedModel, name: str, options: Mapping[str, Any]) -> Any:
    """See ``ReleasedModel.log_to_mlflow``."""
    _check_library()
    import mlflow  # pyright: ignore

    with tempfile.TemporaryDirectory() as parent:
        described = describe_for_mlflow(model.save(Path(parent, DATA)))
        tags = {**described["metadata"], **options.get("tags", {})}
        log = cast(Any, mlflow).pyfunc.log_model
        made = log(name=name, **described, **{**options, "tags": tags})
    mlflow.set_tags(tags)
    return made

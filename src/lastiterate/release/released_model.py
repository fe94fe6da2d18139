"""What all released models have in common: a certificate, predictions, a folder."""

from __future__ import annotations

import tempfile
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from lastiterate.atomic_files import SHARED, is_taken, write_file, write_folder
from lastiterate.certificate_statement import check_statement
from lastiterate.data.schema import Schema
from lastiterate.errors import InputError
from lastiterate.lazy import RenamedAttribute
from lastiterate.markup import tag
from lastiterate.release import folder as folders
from lastiterate.release.signatures import EXACT, GENERATOR, ProvenanceRecord, record_provenance

if TYPE_CHECKING:
    from lastiterate.accounting.certificate import Certificate


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class ReleasedModel(ABC):
    """A released model. ``delta``: at which its folder states epsilon; ``schema``: how records of a
    file become rows; ``statement``: the releaser's own (see
    ``lastiterate.certificate_statement.check_statement``); ``exact``: whether the certificate
    covers the arithmetic as well.

    **Guarantee:** ``certificate`` speaks of the very run whose last iterate this is. That of a
    loaded model is derived again from its run when it is asked for, and refused where it differs
    from what is written.
    """

    kind: ClassVar[str]
    exact_kind: ClassVar[str] = ""
    proof: Certificate | ProvenanceRecord
    delta: float
    schema: Schema | None = None
    statement: dict[str, Any] | None = None
    exact: bool = False
    generator: ClassVar[str] = GENERATOR

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            """Say what scores a model that has no ``private_score``."""
            said = f"{type(self).__name__!r} object has no attribute {name!r}"
            if name == "private_score":
                said += (
                    ": it scores linear models only; compare predict with the labels of public "
                    "records, and release nothing that was computed on private ones"
                )
            raise AttributeError(said)

    @cached_property
    def certificate(self) -> Certificate:
        return (
            self.proof.to_certificate() if isinstance(self.proof, ProvenanceRecord) else self.proof
        )

    @property
    def conditions(self) -> tuple[str, ...]:
        """What the certificate says of this fit besides."""
        return ()

    @property
    def form(self) -> str:
        """How a folder calls its kind of model."""
        return self.exact_kind if self.exact else self.kind

    @abstractmethod
    def predict(self, x: Any) -> np.ndarray:
        """One prediction for every record of ``x``."""

    @abstractmethod
    def contents(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """What a folder holds: the entries of model.json that this kind needs, and the arrays by
        name."""

    @abstractmethod
    def summary(self) -> str:
        """A few words for ``repr``."""

    def save(self, folder: str | Path) -> Path:
        """Write a folder that ``load`` and ``lastiterate verify`` read; it must not exist yet."""
        return self.store(folder).path

    def files(self) -> dict[str, bytes]:
        """The files of the folder that ``save`` writes, by name."""
        model, tensors = self.contents()
        schema = None if self.schema is None else self.schema.to_dict()
        model = (
            {"kind": self.form, "schema": schema}
            | model
            | ({"exact_run": model["run"]} if self.exact else {})
        )
        recorded: dict[str, Any] = {
            "software": record_provenance(EXACT if self.exact else self.generator)
        }
        recorded |= {} if self.statement is None else {"word": check_statement(self.statement)}
        return folders.pack_files(tensors, model, self.certificate, self.delta, recorded)

    def store(self, folder: str | Path) -> folders.StoredModel:
        """``save``, and what was written."""
        folders.free(
            folder,
            remedy="the model is still in this process: save it under another name; "
            "train(..., out=) looks before it trains",
        )
        files = self.files()
        try:
            return folders.write(folder, files)
        except (FileExistsError, FileNotFoundError, NotADirectoryError, PermissionError) as error:
            raise InputError(
                "folder",
                "must be one that can be made",
                f"{folder} ({error.strerror})",
                "save it in another one: nothing was written",
            ) from None

    def to_onnx(self, file: str | Path) -> Path:
        """Write an ONNX file that predicts as the model does and carries its release.

        ``lastiterate.verify`` reads it. Errors: a file that exists, networks and modules, and
        features that ONNX cannot calculate (hashed words).
        """
        return self._write(file, "", "lastiterate.release.onnx_model", "to_onnx")

    def to_safetensors(self, file: str | Path) -> Path:
        """Write the weights as one safetensors file that carries the release in its metadata.

        ``lastiterate.verify`` reads it. Errors: a file that exists, and one without the ending
        .safetensors.
        """
        return self._write(
            file, ".safetensors", "lastiterate.release.verification", "to_safetensors"
        )

    def to_skops(self, file: str | Path) -> Path:
        """Write an estimator of scikit-learn that predicts as the model does, as a skops file that
        carries the release.

        ``skops.io.load(file, trusted=lastiterate.estimators.list_trusted_types())`` reads it, and
        ``lastiterate.verify``. Errors: a file that exists, one without the ending .skops, and
        networks and modules, whose forward pass is the caller's code.
        """
        return self._write(file, ".skops", "lastiterate.estimators.released_estimators", "to_skops")

    def to_sklearn(self, file: str | Path) -> Path:
        """Write an estimator of scikit-learn that predicts as the model does, as a joblib file that
        carries the release.

        ``joblib.load`` reads it, which executes whatever a file says: ``lastiterate.verify`` says
        before that, without loading it, whether it is of this library alone. Errors: a file that
        exists, one without the ending .joblib, and networks and modules.
        """
        return self._write(
            file, ".joblib", "lastiterate.estimators.released_estimators", "to_joblib"
        )

    def _write(self, file: str | Path, ending: str, module: str, function: str) -> Path:
        """Write the file that a function of a module makes of the release."""
        where = folders.check_ending("file", folders.to_path(file, "file"), ending)
        if is_taken(where):
            raise InputError("file", "must not exist yet", str(where), "choose another name")
        content = getattr(import_module(module), function)(self.files())
        write_file(where, content, new=True, mode=SHARED)
        return where

    def to_mlflow(self, folder: str | Path) -> Path:
        """Write an MLflow model that predicts as the model does and holds its release.

        ``lastiterate.verify`` reads it. Errors: a folder that exists, and networks and modules.
        """
        make = import_module("lastiterate.release.mlflow_model").to_mlflow
        where = folders.free(folder)
        write_folder(where, make(self.files()))
        return where

    def to_huggingface(self, folder: str | Path) -> Path:
        """Write a folder for the Hugging Face Hub: the model's own with its card as README.md.

        ``lastiterate.load`` and ``lastiterate.verify`` read it. Errors: a folder that exists, and a
        model whose certificate is not about every record.
        """
        exports = import_module("lastiterate.report.exports")
        where = folders.free(folder)
        with tempfile.TemporaryDirectory() as parent:
            saved = self.save(Path(parent, where.name))
            subject = import_module("lastiterate.report.subject").read(saved)
            write_folder(where, exports.export_files(subject, "huggingface", saved))
        return where

    def log_to_mlflow(self, name: str, **options: Any) -> Any:
        """Log the MLflow model to the active run, with epsilon, delta, neighbours and unit as tags
        of the run and of the model; ``options``: more of ``mlflow.pyfunc.log_model``."""
        return import_module("lastiterate.release.mlflow_model").log_to_mlflow(self, name, options)

    saying = RenamedAttribute("with_statement")

    def with_statement(self, statement: dict[str, Any]) -> Self:
        """The same model with the releaser's statement, which ``save`` writes into the certificate."""
        return replace(self, statement=check_statement(statement))

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.summary()}>"

    def _repr_html_(self) -> str:
        return tag("p", f"{type(self).__name__}: {self.summary()}") + self.privacy_html()

    def privacy_html(self) -> str:
        """What notebooks show of the certificate: epsilon, delta, and who is protected."""
        from lastiterate.accounting.certificate_subject import format_rounded_up

        certificate, run = self.certificate, getattr(self, "run", None)
        rows = 1 if run is None else max(run.rows_per_unit, run.rows_per_record)
        unit = f"{certificate.unit or 'unit'} with at most {rows} rows" if rows > 1 else ""
        neighbours = f"{certificate.adjacency}, one {unit or certificate.unit or 'record'}"
        epsilon = format_rounded_up(certificate.epsilon(self.delta))
        return tag("p", f"epsilon {epsilon} at delta {self.delta:g} ({neighbours})")


class SelfContainedModel(ReleasedModel):
    """A released model whose folder says all of it, so that a pickle needs no more."""

    @property
    @abstractmethod
    def features(self) -> int:
        """Numbers in a row that it predicts for."""

    def __getstate__(self) -> dict[str, Any]:
        """The files of its folder: a pickle or a skops file holds those, and no code."""
        return {"files": dict(sorted(self.files().items()))}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Read the files again, which refuses what does not fit its certificate."""
        loaded = import_module("lastiterate.release.verification").load_files(state["files"])
        if type(loaded) is not type(self):
            raise InputError("model", f"must be a {self.kind} one", loaded.kind)
        vars(self).update(vars(loaded))

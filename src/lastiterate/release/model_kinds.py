"""The kinds of released models: what ``train`` is given for each, and who reads its folder."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, cast

from lastiterate.certificate_statement import entry_of
from lastiterate.errors import InputError, name_missing_library, refuse_missing_library
from lastiterate.release.folder import StoredModel
from lastiterate.release.released_model import ReleasedModel

if TYPE_CHECKING:
    from lastiterate.engine.random import Key
    from lastiterate.engine.step_iterator import Steps
    from lastiterate.release.training_request import Processes, TrainingRequest


class ModelBackend(Protocol):
    """What the module of a kind defines."""

    def knows(self, model: object) -> bool:
        """Whether this is what ``train`` is given for the kind; of kinds that it makes."""
        ...

    def name_optimizer(self, optimizer: object, model: object) -> str:
        """What a certificate calls an optimizer of this model; of kinds that take one."""
        ...

    def join_processes(self, model: Any) -> tuple[Processes, Any]:
        """The processes that train this model together, and the model inside of their replicas; of
        kinds that have ``processes``."""
        ...

    def draws(self, model: object, loss: object, augment: object) -> list[str]:
        """What draws random numbers for every record, by name; of kinds that ``train`` makes."""
        ...

    def check(self, order: TrainingRequest) -> TrainingRequest:
        """Refuse what the kind cannot execute, by the form of its data; the order as ``fit`` takes
        it."""
        ...

    def fit(self, order: TrainingRequest, key: Key | None) -> ReleasedModel:
        """Execute what was checked and paid for."""
        ...

    def iterate(self, order: TrainingRequest, key: Key | None) -> Steps[ReleasedModel]:
        """``fit`` in pauses, for a loop of the caller's own; of kinds that have one."""
        ...

    def read(self, stored: StoredModel, like: object) -> ReleasedModel:
        """The model in a folder; of its proof, what is written counts."""
        ...


@dataclass(frozen=True)
class ModelKind:
    """``subject``: what its certificates are about, "run" or "problem". ``trained``: whether
    ``train`` makes it.

    ``containers``: whether it takes records in other containers than a tuple of arrays.
    ``streams``: whether it takes records that are read in pieces. ``shared``: whether several
    devices may share its batches, and ``processes``: several processes that a launcher of torch
    started. ``tables``: whether its records are rows of numbers, by which
    repeated fits are recognised. ``exactly``: how a folder calls such a model with exact noise,
    whose certificates are about an "exact_run" (``None``: there is none). ``reader``: the module
    that reads its folder, where ``module`` needs more than predictions do.
    """

    name: str
    module: str
    subject: str = "run"
    trained: bool = True
    containers: bool = False
    streams: bool = False
    shared: bool = False
    processes: bool = False
    tables: bool = False
    exactly: str | None = None
    reader: str | None = None

    def read(self, stored: StoredModel, like: object) -> ReleasedModel:
        exact = stored.model.get("kind") != self.name
        if exact and stored.model.get("run") != stored.model.get("exact_run"):
            raise InputError(
                "model", "must describe the run of its certificate", None, "train again"
            )
        reader = self.load() if self.reader is None else import_module(self.reader)
        return replace(reader.read(stored, like), exact=exact)

    def find_missing_library(self) -> str | None:
        """Return the library that reading such a model needs, where it is not installed."""
        try:
            import_module(self.reader or self.module)
        except ModuleNotFoundError as error:
            library = error.name if error.name in LATE else name_missing_library(error)
            if library is None:
                raise
            return library
        return None

    def load(self) -> ModelBackend:
        """Return the module that makes such a model; a missing library is refused."""
        try:
            return cast(ModelBackend, import_module(self.module))
        except ModuleNotFoundError as error:
            if error.name in LATE:
                raise InputError(
                    "model",
                    f"is a {error.name} one, and needs that library",
                    None,
                    f"pip install lastiterate[{error.name}]",
                ) from None
            if (library := name_missing_library(error)) is None:
                raise
            raise refuse_missing_library(library) from None


# One row each. Another package (``LATE`` has the one for PyTorch) adds its row with ``register``
# when it is imported, which happens when such a model turns up: nothing here needs it. The module
# of a kind is loaded when a model of its kind turns up, so that checking a folder needs no engine.

LINEAR = ModelKind(
    "linear",
    "lastiterate.release.linear_model",
    streams=True,
    shared=True,
    tables=True,
    exactly="exact",
    reader="lastiterate.release.fitted_linear",
)


SELECTED = ModelKind(
    "selected",
    "lastiterate.release.tuning",
    "selection",
    trained=False,
    tables=True,
    reader="lastiterate.release.fitted_linear",
)


SAMPLED = ModelKind(
    "posterior-sample", "lastiterate.release.posterior", "problem", trained=False, tables=True
)


UNLEARNED = ModelKind(
    "unlearned",
    "lastiterate.release.unlearning",
    "unlearning",
    trained=False,
    streams=True,
    reader="lastiterate.release.fitted_linear",
)


NETWORK = ModelKind(
    "network",
    "lastiterate.release.network_model",
    streams=True,
    shared=True,
    exactly="exact-network",
)


KINDS = {kind.name: kind for kind in (LINEAR, NETWORK, SELECTED, UNLEARNED, SAMPLED)}


LATE = {"torch": "lastiterate.torch", "exact-torch": "lastiterate.torch"}
"""Name of a kind (the first is also the library's) and the package that registers it, which such
models need."""


def register(kind: ModelKind) -> None:
    """Add a kind of model; a name that is taken is refused."""
    if kind.name in KINDS and KINDS[kind.name] != kind:
        raise InputError("kind", "must have a name of its own", kind.name)
    KINDS[kind.name] = kind


def kind_for(model: object) -> ModelKind:
    """The row that knows what ``train`` is given as ``model``, later rows first; anything else is
    refused."""
    for library, package in LATE.items():
        if library in sys.modules:
            import_module(package)
    row = next(
        (kind for kind in reversed(KINDS.values()) if kind.trained and kind.load().knows(model)),
        None,
    )
    if row is None:
        raise InputError(
            "model",
            "must be a nested structure of NumPy or JAX arrays",
            type(model).__name__,
            "models of other libraries need their package to be imported first (of torch, give a "
            "torch.nn.Module itself and loss(output, *rest)), and a number is an array as "
            "np.array(0.0)",
        )
    return row


def kind_of(model: dict[str, Any], certificate: dict[str, Any]) -> ModelKind:
    """The row for what a folder holds; unknown kinds, and another certificate than the kind has,
    are refused."""
    name = model.get("kind")
    if isinstance(name, str) and name in LATE:
        import_module(LATE[name])
    names = {
        form: kind
        for kind in KINDS.values()
        for form in (kind.name, kind.exactly)
        if form is not None
    }
    if not isinstance(name, str) or name not in names:
        raise InputError(
            "model",
            "must be of a known kind: " + ", ".join(names),
            name,
            "it may need another package to be imported",
        )
    kind = names[name]
    subject = kind.subject if name == kind.name else "exact_run"
    if entry_of(certificate) != subject:
        raise InputError(
            "certificate",
            f"must be about a {subject} where the model is a {name}",
            entry_of(certificate),
        )
    return kind

"""The kinds of released models, one row each: what ``train`` is given for it, and who reads its folder.

Another package (``LATE`` has the one for PyTorch) adds its row with ``register`` when it is imported, which happens
when such a model turns up: nothing here needs it. The module of a kind defines ``knows(model)``, ``fit_order(order)``
and ``read(stored, like)``; it is loaded when a model of its kind turns up, so that checking a folder needs no engine.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from lastiterate.accounting.certificate import Certificate, entry_of
from lastiterate.errors import InputError
from lastiterate.release.charging import Custody
from lastiterate.release.fitted import Fitted
from lastiterate.release.folder import Stored


@dataclass(frozen=True)
class Order:
    """What ``train`` was asked to execute: the certificate's run on these data, the certificate stated at ``delta``.

    ``scratch``: the folder of scratch files, where data are read in pieces. ``devices``: how many share every batch.
    ``unit``: who a row belongs to.
    """

    certificate: Certificate
    data: Any
    model: Any
    loss: Any
    delta: float
    seed: int | None = None
    microbatch: int | None = None
    progress: Callable[[int, int, float], None] | None = None
    custody: Custody = field(default_factory=Custody)
    scratch: Path | None = None
    devices: int = 1
    unit: Any = None


@dataclass(frozen=True)
class Kind:
    """``subject``: what its certificates are about, "run" or "problem". ``trained``: whether ``train`` makes it.

    ``containers``: whether it takes records in other containers than a tuple of arrays. ``streams``: whether it takes
    records that are read in pieces. ``shared``: whether several devices may share its batches. ``exactly``: the kind
    that is trained with exact noise instead.
    """

    name: str
    module: str
    subject: str = "run"
    trained: bool = True
    containers: bool = False
    streams: bool = False
    shared: bool = False
    exactly: str | None = None

    def knows(self, model: Any) -> bool:
        """Whether this is what ``train`` is given for the kind."""
        return self._home.knows(model)

    def fit(self, order: Order) -> Fitted:
        return self._home.fit_order(order)

    def read(self, stored: Stored, like: Any) -> Fitted:
        return self._home.read(stored, like)

    @property
    def missing(self) -> str | None:
        """The library of this kind of model, where it is not installed."""
        try:
            import_module(self.module)
        except ModuleNotFoundError as error:
            if error.name not in LATE:
                raise
            return error.name
        return None

    @property
    def _home(self) -> Any:
        library = self.missing
        if library is not None:
            raise InputError("model", f"is a {library} one, and needs that library", None,
                             f"pip install lastiterate[{library}]")
        return import_module(self.module)


KINDS = {kind.name: kind for kind in (
    Kind("linear", "lastiterate.release.linear", streams=True, shared=True, exactly="exact"),
    Kind("network", "lastiterate.release.trained_network", streams=True, shared=True, exactly="exact-network"),
    Kind("exact-network", "lastiterate.release.exact_network", "exact_run", trained=False),
    Kind("exact", "lastiterate.release.exact_linear", "exact_run", trained=False),
    Kind("selected", "lastiterate.release.tuning", "selection", trained=False),
    Kind("posterior-sample", "lastiterate.release.posterior", "problem", trained=False),
)}


def is_source(data: Any) -> bool:
    """Whether ``data`` are records that are read in pieces, such as ``lastiterate.data.stream`` gives."""
    return all(hasattr(data, name) for name in ("pieces", "digested", "dear", "__len__"))


LATE = {"torch": "lastiterate.torch", "exact-torch": "lastiterate.torch"}
"""Name of a kind (the first is also the library's) and the package that registers it; such models exist only beside
it."""


def register(kind: Kind) -> None:
    """Add a kind of model; a name that is taken is refused."""
    if kind.name in KINDS and KINDS[kind.name] != kind:
        raise InputError("kind", "must have a name of its own", kind.name)
    KINDS[kind.name] = kind


def kind_for(model: Any) -> Kind:
    """The row that knows what ``train`` is given as ``model``, later rows first; anything else is refused."""
    for library, package in LATE.items():
        if library in sys.modules:
            import_module(package)
    found = next((kind for kind in reversed(KINDS.values()) if kind.trained and kind.knows(model)), None)
    if found is None:
        raise InputError("model", "must be a nested structure of NumPy or JAX arrays", type(model).__name__,
                         "models of other libraries need their package to be imported first (of torch, give a "
                         "torch.nn.Module itself and loss(output, *rest))")
    return found


def kind_of(model: dict[str, Any], certificate: dict[str, Any]) -> Kind:
    """The row for what a folder holds; unknown kinds, and another certificate than the kind has, are refused."""
    name = model.get("kind")
    if isinstance(name, str) and name in LATE:
        import_module(LATE[name])
    if not isinstance(name, str) or name not in KINDS:
        raise InputError("model", "must be of a known kind: " + ", ".join(KINDS), name,
                         "it may need another package to be imported")
    kind = KINDS[name]
    if entry_of(certificate) != kind.subject:
        raise InputError("certificate", f"must be about a {kind.subject} where the model is a {name}",
                         entry_of(certificate))
    return kind

"""The one way to a released model: refuse, charge, execute, certify; and the table of model kinds."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from lastiterate.accounting.calibration import check_within
from lastiterate.accounting.certificate import entry_of
from lastiterate.accounting.tail_truncation import support_caveats
from lastiterate.errors import InputError
from lastiterate.planning.planner import Choice
from lastiterate.release import composition_reminder
from lastiterate.release.folder import Stored
from lastiterate.release.ledger_charge import warn_of_dumps
from lastiterate.release.released_model import Fitted
from lastiterate.release.training_request import Order, Unread, is_source
from lastiterate.release.units import check_units
from lastiterate.run.preprocessing import TopEigenvalue
from lastiterate.run.updates import PostProcessing
from lastiterate.run.validation import check_kept

# The kinds of released models, one row each: what ``train`` is given for it, and who reads its
# folder.  Another package (``LATE`` has the one for PyTorch) adds its row with ``register`` when it
# is imported, which happens when such a model turns up: nothing here needs it. The module of a kind
# is a ``Home``; it is loaded when a model of its kind turns up, so that checking a folder needs no
# engine.

if TYPE_CHECKING:
    from lastiterate.engine.random import Key


class Home(Protocol):
    """What the module of a kind defines."""

    def knows(self, model: object) -> bool:
        """Whether this is what ``train`` is given for the kind; of kinds that it makes."""
        ...

    def named(self, optimizer: object, model: object) -> str:
        """What a certificate calls an optimizer of this model; of kinds that take one."""
        ...

    def draws(self, model: object, loss: object, augment: object) -> list[str]:
        """What draws random numbers for every record, by name; of kinds that ``train`` makes."""
        ...

    def check(self, order: Order) -> Order:
        """Refuse what the kind cannot execute, by the form of its data; the order as ``fit`` takes
        it."""
        ...

    def fit(self, order: Order, key: Key | None) -> Fitted:
        """Execute what was checked and paid for."""
        ...

    def read(self, stored: Stored, like: object) -> Fitted:
        """The model in a folder; of its proof, what is written counts."""
        ...


@dataclass(frozen=True)
class Kind:
    """``subject``: what its certificates are about, "run" or "problem". ``trained``: whether
    ``train`` makes it.

    ``containers``: whether it takes records in other containers than a tuple of arrays.
    ``streams``: whether it takes records that are read in pieces. ``shared``: whether several
    devices may share its batches. ``tables``: whether its records are rows of numbers, by which
    repeated fits are recognised. ``exactly``: how a folder calls such a model with exact noise,
    whose certificates are about an "exact_run" (``None``: there is none).
    """

    name: str
    module: str
    subject: str = "run"
    trained: bool = True
    containers: bool = False
    streams: bool = False
    shared: bool = False
    tables: bool = False
    exactly: str | None = None

    def read(self, stored: Stored, like: object) -> Fitted:
        exact = stored.model.get("kind") != self.name
        if exact and stored.model.get("run") != stored.model.get("exact_run"):
            raise InputError(
                "model", "must describe the run of its certificate", None, "train again"
            )
        return replace(self.home.read(stored, like), exact=exact)

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
    def home(self) -> Home:
        library = self.missing
        if library is not None:
            raise InputError(
                "model",
                f"is a {library} one, and needs that library",
                None,
                f"pip install lastiterate[{library}]",
            )
        return cast(Home, import_module(self.module))


LINEAR = Kind(
    "linear",
    "lastiterate.release.linear_model",
    streams=True,
    shared=True,
    tables=True,
    exactly="exact",
)
SELECTED = Kind("selected", "lastiterate.release.tuning", "selection", trained=False, tables=True)
SAMPLED = Kind(
    "posterior-sample", "lastiterate.release.posterior", "problem", trained=False, tables=True
)
UNLEARNED = Kind("unlearned", "lastiterate.release.unlearning", "unlearning", trained=False)
NETWORK = Kind(
    "network",
    "lastiterate.release.network_model",
    streams=True,
    shared=True,
    exactly="exact-network",
)
KINDS = {kind.name: kind for kind in (LINEAR, NETWORK, SELECTED, UNLEARNED, SAMPLED)}
LATE = {"torch": "lastiterate.torch", "exact-torch": "lastiterate.torch"}
"""Name of a kind (the first is also the library's) and the package that registers it; such models
exist only beside it."""


def register(kind: Kind) -> None:
    """Add a kind of model; a name that is taken is refused."""
    if kind.name in KINDS and KINDS[kind.name] != kind:
        raise InputError("kind", "must have a name of its own", kind.name)
    KINDS[kind.name] = kind


def kind_for(model: object) -> Kind:
    """The row that knows what ``train`` is given as ``model``, later rows first; anything else is
    refused."""
    for library, package in LATE.items():
        if library in sys.modules:
            import_module(package)
    row = next(
        (kind for kind in reversed(KINDS.values()) if kind.trained and kind.home.knows(model)), None
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


def kind_of(model: dict[str, Any], certificate: dict[str, Any]) -> Kind:
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


# The one way to a released model: refuse what does not fit, charge, execute, state what is
# certified.  Whoever wants a release opens the data's form, plans a certificate, and gives an
# ``Order``. What differs between kinds of models (``kinds``) is what they refuse and how they
# execute; writing the folder and showing it are behind this.

SEED = "the caller gave the seed: whoever knows it can subtract the noise"


@dataclass(frozen=True, eq=False)
class Released:
    """What came out: the model, the plans it was chosen from, and scores on data that is public
    (``None`` where there are none)."""

    model: Fitted
    choice: Choice | None = None
    test_score: float | None = None
    plain_score: float | None = None
    features: str = ""  #: why records become rows as they do
    weigh: Callable[[], str] | None = None  #: whether more features pay; plans once more


def executed(kind: Kind, order: Order) -> Fitted:
    """The model that an order asks for; its line in the ledger is finished when the model is out
    (``finish``).

    **Guarantee:** everything that can be refused without a record's value is refused before the
    charge, and the charge comes before a value is looked at. The certificate speaks of the run that
    was executed.
    """
    of_units = order.of_units  # a kind of model may put another loss in the place of a unit's
    order = checked(kind, order)
    key = order.key
    order.charging.of_units = of_units
    order.charging.charge(order.charged or order.certificate, order.size, delta=order.delta)
    warn_of_dumps()
    with order.charging.reading():
        order = order.opened()
        if order.charging.finished is not None:
            return _written_before(kind, order, order.charging.finished)
        remembered = composition_reminder.REMINDER.begins(
            order.data, order.seed, tables=kind.tables
        )
        model = kind.home.fit(order, key)
    composition_reminder.REMINDER.after(remembered)
    if (
        kind.tables or order.kept is not None
    ) and not order.in_pieces:  # behind what a checkpoint refuses
        order.charging.remember(order.data if order.kept is None else order.kept)
    added = (*order.caveats, *model.conditions, *(() if order.seed is None else (SEED,)))
    return replace(
        model,
        proof=replace(
            order.certificate,
            caveats=(*order.certificate.caveats, *added),
            unit="" if order.unit is None else order.unit_name,
        ),
    )


def _written_before(kind: Kind, order: Order, place: Path) -> Fitted:
    """The model that an earlier process of this order wrote, before it was stopped; refused with
    other records."""
    from lastiterate.release.loading import load

    if (kind.tables or order.kept is not None) and not order.in_pieces:
        order.charging.check_same(order.data if order.kept is None else order.kept)
    return load(place)


def checked(kind: Kind, order: Order) -> Order:
    """The order with what it assumes; refused where its certificate exceeds its budget, or it
    cannot be executed."""
    order.certificate.check_lower_bounds(order.delta)
    if order.epsilon is not None:
        check_within(order.certificate, order.epsilon, order.delta)
    if kind.subject == "run" and order.certificate.run.nominal:
        check_nominal(order)
    if order.in_pieces:
        from lastiterate.engine.streaming.buffers import Devices
        from lastiterate.engine.streaming.source import check_streams

        check_in_pieces(kind, order.devices, order.exact)
        check_streams(order.certificate.run, order.data if is_source(order.data) else None)
        shared = Devices(order.devices)
        shared.check_checkpoint(order.charging.kept_in)
        shared.check_records(order.certificate.run.n)
    if not isinstance(order.data, Unread) and not is_source(order.data):
        check_kept("data", order.data)
    caveats = order.caveats
    if kind.subject == "run":
        run = order.certificate.run
        if (type(run.update) is PostProcessing) != (order.optimizer is not None):
            raise InputError(
                "optimizer",
                "is needed where the run's update is PostProcessing, and for no other",
                None,
                "give train the optimizer, or leave the update to it",
            )
        caveats += check_units(run, order.units, order.records if run.nominal else run.n)
    if kind.subject == "run" and not order.exact:
        caveats += support_caveats(order.certificate, order.delta)
    return kind.home.check(replace(order, caveats=caveats))


def check_nominal(order: Order) -> None:
    """Refuse what would follow from the true number of records where the public n is nominal."""
    if order.in_pieces:
        raise InputError(
            "data",
            "must be in the memory of one device under add-remove: what is read in pieces is cut "
            "by the number of records, which nothing may follow from",
            None,
            "use zero-out, where n is public",
        )
    if any(isinstance(part, TopEigenvalue) for part in order.certificate.run.prelude):
        raise InputError(
            "prelude",
            "must have no top eigenvalue under add-remove: its largest value follows from how "
            "many records there are",
            "TopEigenvalue",
            "give the step sizes themselves",
        )


def check_in_pieces(kind: Kind, devices: object, exact: bool) -> None:
    """Refuse records that are read in pieces, or that devices share, where one device needs the
    whole data."""
    if isinstance(devices, bool) or not isinstance(devices, int) or devices < 1:
        raise InputError("devices", "must be a positive whole number", devices)
    if devices > 1 and not exact and not kind.shared:
        raise InputError(
            "devices",
            f"must be 1 for {kind.name} models",
            devices,
            "linear models and losses written with JAX share batches",
        )
    if exact or not kind.streams:
        raise InputError(
            "data",
            "must be in the memory of one device for "
            + ("secure_noise" if exact else kind.name + " models"),
            None,
            "linear models and losses written with JAX read them in pieces, and on several devices",
        )


def finish(kind: Kind, order: Order) -> Fitted:
    """``executed``, for models that are out when they are in the caller's hands."""
    model = executed(kind, order)
    order.charging.finish(model)
    return model

"""What is to be released: a certificate and everything that its execution needs, decided before
anything is paid."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lastiterate.accounting.certificate import Certificate
from lastiterate.accounting.subjects import UNNAMED
from lastiterate.data.schema import Schema
from lastiterate.release.ledger_charge import Charged, Charging
from lastiterate.release.predictions import Labels, Range, Scores
from lastiterate.release.units import UnitLoss

if TYPE_CHECKING:
    from lastiterate.engine.random import Key

Progress = Callable[[int, int, float], None]
"""Called with steps done, steps in all, and seconds."""


@dataclass(frozen=True)
class Unread:
    """Records whose values are looked at when ``read`` is called: once, after they are paid for."""

    read: Callable[[], Any]


@dataclass(frozen=True, kw_only=True)
class Order:
    """The certificate's subject on ``data``, stated at ``delta``.

    ``epsilon``: the budget that was asked for (``None`` where the run's own noise was): what is
    certified with more is refused before it is charged. ``data``: arrays, a source of pieces, or
    ``Unread``. ``model``: what the kind of model is made from: first parameters, a module, a row
    norm. ``exact``: the arithmetic: exact sums and exact noise, not double precision. ``unit``: who
    a row belongs to; ``unit_name``: what such a unit is called. ``places``: of the rows that are
    trained on, and of those that the run's one noisy count is about. ``answers``, ``schema``: what
    scores of linear models mean, how records of a file become rows. ``optimizer``: what makes the
    steps, where the run says that a caller's does. ``augment``: what records draw. ``scratch``: the
    folder of scratch files. ``devices``: how many share every batch. ``size``: bytes that the model
    takes on disk, about. ``caveats``: what the releaser assumes. ``charged``: what a ledger pays
    for, where it is not the certificate. ``kept``: the data that the ledger's keyed digest is of,
    where they are not ``data``.
    """

    certificate: Certificate
    data: Any
    epsilon: float | None
    delta: float
    model: Any = None
    loss: Any = None
    exact: bool = False
    seed: int | None = None
    microbatch: int | None = None
    optimizer: Any = None
    augment: Callable[[Any, Any], Any] | None = None
    progress: Progress | None = None
    charging: Charging = field(default_factory=Charging)
    scratch: Path | None = None
    devices: int = 1
    unit: object = None
    unit_name: str = UNNAMED
    places: tuple[np.ndarray, np.ndarray] | None = None
    answers: Labels | Range | Scores | None = None
    schema: Schema | None = None
    size: int = 0
    caveats: tuple[str, ...] = ()
    charged: Charged | None = None
    kept: object = None

    @property
    def key(self) -> Key | None:
        """Of a seed, for tests; ``None``: the execution draws its own."""
        if self.seed is None:
            return None
        from lastiterate.engine import seeded_key

        return seeded_key(self.seed)

    @property
    def records(self) -> int | None:
        """How many records the data have, of which nothing is looked at; ``None`` for a file's,
        whose own column says whose every row is."""
        part: Any = self.data
        while type(part) in (tuple, list, dict) and len(part):  # pyright: ignore
            first: Any = next(iter(part.values())) if type(part) is dict else part[0]  # pyright: ignore
            part = first  # pyright: ignore
        return None if isinstance(part, Unread) else len(part)  # pyright: ignore

    @property
    def in_pieces(self) -> bool:
        """Whether the records are read in pieces: a source, or shared by several devices."""
        return is_source(self.data) or self.devices != 1

    @property
    def of_units(self) -> bool:
        """Whether it is known whose every row is, or a record is a unit: a unit is protected as a
        whole then."""
        return self.unit is not None or isinstance(self.loss, UnitLoss)

    @property
    def units(self) -> Any:
        """Who each of the rows that are trained on belongs to."""
        return (
            self.unit
            if self.unit is None or self.places is None
            else np.asarray(self.unit)[self.places[0]]
        )

    def opened(self) -> Order:
        """The same with its values at hand; for what has been paid for."""
        return replace(self, data=self.data.read()) if isinstance(self.data, Unread) else self


def is_source(data: object) -> bool:
    """Whether ``data`` are records that are read in pieces, such as ``lastiterate.data.stream``
    gives."""
    return all(hasattr(data, name) for name in ("pieces", "digested", "dear", "__len__"))

"""Linear models with exact noise: ``train(..., secure_noise=True)``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from lastiterate.accounting.certificate import Certificate
from lastiterate.data.schema import Schema
from lastiterate.engine import seeded_key
from lastiterate.engine.exact_sums import execute_exactly, grid_of
from lastiterate.errors import InputError
from lastiterate.release import composition_reminder
from lastiterate.release.charging import Custody
from lastiterate.release.exposure import warn_of_dumps
from lastiterate.release.folder import Stored
from lastiterate.release.kinds import Order
from lastiterate.release.linear import SEED, FittedLinear
from lastiterate.release.linear import read as read_linear
from lastiterate.release.linear_orders import Answers, arrays_of, check_order, indices_of
from lastiterate.release.software import EXACT
from lastiterate.release.statements import Written


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class FittedExact(FittedLinear):
    """A linear model whose certificate covers the arithmetic as well."""

    kind: ClassVar[str] = "exact"
    generator: ClassVar[str] = EXACT

    def contents(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        model, tensors = FittedLinear.contents(self)
        return model | {"exact_run": self.run.to_dict()}, tensors


def read(stored: Stored, like: Any = None) -> FittedExact:
    """The model in a folder."""
    check_described_run(stored)
    found = read_linear(stored, like)
    return FittedExact(proof=Written(stored.certificate), delta=found.delta, schema=found.schema, run=found.run,
                       released=found.released, answers=found.answers)


def check_described_run(stored: Stored) -> None:
    """Refuse a folder whose model was described by another run than its certificate's."""
    if stored.model.get("run") != stored.model.get("exact_run"):
        raise InputError("model", "must describe the run of its certificate", None, "train again")


def fit_order(order: Order) -> FittedExact:
    """The run's own loss on data (x, y), executed exactly."""
    certificate = order.certificate
    check_order(order)
    rows, target = arrays_of(order)
    return fit(certificate, rows, target, delta=order.delta, answers=indices_of(certificate.run),
               seed=order.seed, custody=order.custody, progress=order.progress)


def fit(certificate: Certificate, features: Any, target: Any, *, delta: float, answers: Answers,
        seed: int | None = None, schema: Schema | None = None, custody: Custody,
        progress: Callable[[int, int, float], None] | None = None) -> FittedExact:
    """Execute the run of ``certificate`` exactly on rows (n, d) and targets (n,), and release its last iterate."""
    grid_of(certificate.run)  # refuses before anything is paid
    custody.pay(certificate, delta=delta)
    warn_of_dumps()
    rows = composition_reminder.REMINDER.sketch(features)
    composition_reminder.REMINDER.before(rows)
    composition_reminder.REMINDER.seeded(seed, (features, target))
    key = None if seed is None else seeded_key(seed)
    released = execute_exactly(certificate.run, features, target, key, progress, custody.keeper)
    proof = certificate if seed is None else replace(certificate, caveats=(*certificate.caveats, SEED))
    composition_reminder.REMINDER.after(rows)
    return FittedExact(proof=proof, delta=delta, schema=schema, run=certificate.run, released=released, answers=answers)

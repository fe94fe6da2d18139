"""Networks with exact noise: ``train(..., model=, loss=, secure_noise=True)``."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import jax
import numpy as np

from lastiterate.engine import seeded_key
from lastiterate.engine.exact_records import RecordGrid, fit_network_exactly
from lastiterate.engine.network import check_fits
from lastiterate.release import composition_reminder
from lastiterate.release.exact_linear import check_described_run
from lastiterate.release.exposure import warn_of_dumps
from lastiterate.release.folder import Stored
from lastiterate.release.kinds import Order
from lastiterate.release.linear import SEED
from lastiterate.release.software import EXACT
from lastiterate.release.stateful import check_stateless
from lastiterate.release.statements import Written
from lastiterate.release.trained_network import FIRST, FittedNetwork, check
from lastiterate.release.trained_network import read as read_network


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class FittedExactNetwork(FittedNetwork):
    """A network whose certificate covers the arithmetic of its sums as well."""

    kind: ClassVar[str] = "exact-network"
    generator: ClassVar[str] = EXACT

    def contents(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        model, tensors = FittedNetwork.contents(self)
        return model | {"exact_run": self.run.to_dict()}, tensors


def fit_order(order: Order) -> FittedExactNetwork:
    """Execute the run on ``loss(params, *record)`` exactly and release the last parameters."""
    run = order.certificate.run
    check(run, order.loss)
    check_stateless(order.model)
    RecordGrid.of(run)  # refuses before anything is paid
    check_fits(run, order.loss, order.model, order.data, order.microbatch)
    added = (FIRST, *(() if order.seed is None else (SEED,)))
    key = None if order.seed is None else seeded_key(order.seed)
    order.custody.pay(order.certificate, delta=order.delta)
    warn_of_dumps()
    composition_reminder.REMINDER.seeded(order.seed, jax.tree.leaves(order.data))
    params = fit_network_exactly(run, order.loss, order.model, order.data, key, microbatch=order.microbatch,
                                 progress=order.progress, keeper=order.custody.keeper)
    return FittedExactNetwork(proof=replace(order.certificate, caveats=(*order.certificate.caveats, *added)),
                              delta=order.delta, run=run, params=params)


def read(stored: Stored, like: Any = None) -> FittedExactNetwork:
    """The model in a folder; its arrays in the structure of ``like``, or in dictionaries and lists."""
    check_described_run(stored)
    found = read_network(stored, like)
    return FittedExactNetwork(proof=Written(stored.certificate), delta=found.delta, run=found.run, params=found.params)

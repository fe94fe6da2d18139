"""Class indices beyond the end of an array, of which JAX takes another entry, or NaN, without a word."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.experimental import checkify

from lastiterate.engine.operations import equations
from lastiterate.engine.parameter_form import Form
from lastiterate.engine.record_loss import ARRAYS, RecordLoss, in_precision
from lastiterate.errors import InputError

LOOKUPS = {"gather", "dynamic_slice"}


@dataclass(eq=False)
class LabelCheck:
    """Refuse records (x, y, ...) whose largest whole number y lies beyond what a loss looks up with it.

    Where every array that is looked up in is longer, nothing is executed; otherwise the loss is, on that y with zeros
    for the rest. What JAX cannot check passes, and so do negative numbers, which losses use for "none". Records may
    come in pieces: only what exceeds all before is looked at.
    """

    loss: RecordLoss
    form: Form
    exact: bool
    largest: int = -1

    def __call__(self, records: tuple[Any, ...]) -> None:
        labels: Any = records[1] if len(records) > 1 else None
        if not isinstance(labels, ARRAYS) or labels.ndim != 1 or labels.dtype.kind not in "iu" or not labels.size:
            return
        largest = np.asarray(labels).max()
        if largest <= self.largest:
            return
        with jax.enable_x64(True):
            self._look_up(records, largest)
        self.largest = int(largest)

    def _look_up(self, records: tuple[Any, ...], label: np.integer[Any]) -> None:
        blank = in_precision(jax.tree.map(lambda a: np.zeros_like(np.asarray(a)[0]), records), exact=self.exact)
        given: Any = (self.form.arrays(np.zeros(self.form.size), exact=self.exact), (blank[0], label, *blank[2:]))

        def value(arrays: Any, record: Any) -> Any:
            return self.loss(self.form.whole(arrays), *record)

        traced: Any = jax.make_jaxpr(value)(*given)  # pyright: ignore
        sizes: list[int] = [size for eqn in equations(traced) if eqn.primitive.name in LOOKUPS
                            for size in eqn.invars[0].aval.shape]
        if label < min(sizes, default=math.inf):
            return
        try:
            found, _ = jax.jit(checkify.checkify(value, errors=checkify.index_checks))(*given)
        except (NotImplementedError, ValueError):  # of operations that checkify does not follow, as jax.checkpoint
            return
        if found.get() is not None:
            raise InputError("data", "must have class indices that the loss knows, and one lies beyond an array's end, "
                             "where JAX takes another entry", None, "encode labels as 0, 1, ... first")

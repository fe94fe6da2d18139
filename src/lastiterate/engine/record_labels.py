"""Class indices beyond the end of an array, of which JAX takes another entry, or NaN, without a word."""

from __future__ import annotations

import math
from typing import Any

import jax
import numpy as np
from jax.experimental import checkify

from lastiterate.engine.operations import equations
from lastiterate.engine.parameter_form import Form
from lastiterate.engine.record_loss import ARRAYS, RecordLoss, in_precision
from lastiterate.errors import InputError

LOOKUPS = {"gather", "dynamic_slice"}


def check_labels(loss: RecordLoss, form: Form, exact: bool, records: tuple[Any, ...]) -> None:
    """Refuse records (x, y, ...) whose largest whole number y lies beyond what the loss looks up with it.

    Where every array that is looked up in is longer, nothing is executed; otherwise the loss is, on that y with zeros
    for the rest. What JAX cannot check passes, and so do negative numbers, which losses use for "none".
    """
    labels: Any = records[1] if len(records) > 1 else None
    if not isinstance(labels, ARRAYS) or labels.ndim != 1 or labels.dtype.kind not in "iu" or not labels.size:
        return
    largest = np.asarray(labels).max()
    blank = in_precision(jax.tree.map(lambda a: np.zeros_like(np.asarray(a)[0]), records), exact=exact)
    given: Any = (form.arrays(np.zeros(form.size), exact=exact), (blank[0], largest, *blank[2:]))

    def value(arrays: Any, record: Any) -> Any:
        return loss(form.whole(arrays), *record)

    traced: Any = jax.make_jaxpr(value)(*given)  # pyright: ignore
    sizes: list[int] = [size for eqn in equations(traced) if eqn.primitive.name in LOOKUPS
                        for size in eqn.invars[0].aval.shape]
    if largest < min(sizes, default=math.inf):
        return
    try:
        found, _ = jax.jit(checkify.checkify(value, errors=checkify.index_checks))(*given)
    except (NotImplementedError, TypeError, ValueError):
        return
    if found.get() is not None:
        raise InputError("data", "must have class indices that the loss knows, and one lies beyond an array's end, "
                         "where JAX takes another entry", None, "encode labels as 0, 1, ... first")

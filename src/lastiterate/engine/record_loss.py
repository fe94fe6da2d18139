"""A loss of one record: what it is handed, and what is refused before a record is read."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.interpreters.partial_eval import dce_jaxpr

from lastiterate.engine.fingerprint import constants
from lastiterate.engine.gradient_dependence import PUBLIC, RECORD, dependence
from lastiterate.engine.operations import check_operations
from lastiterate.engine.parameter_form import Form
from lastiterate.engine.traced import evaluated, program
from lastiterate.errors import InputError
from lastiterate.run.run import Run

RecordLoss = Callable[..., jax.Array]
"""``loss(params, *record)``: one number for one record."""
ARRAYS: tuple[type[Any], ...] = (np.ndarray, jax.Array)


def in_precision(records: object, *, exact: bool) -> Any:
    """Records as the loss takes them: floating-point numbers are float64 where the parameters are."""
    def cast(a: jax.Array) -> jax.Array:
        return a.astype("float64") if exact and jnp.issubdtype(a.dtype, jnp.floating) else a

    return jax.tree.map(cast, records)


def check_records(run: Run, data: tuple[Any, ...]) -> None:
    """Refuse data whose first axis does not hold the run's n records, or that holds numbers that are not finite."""
    check_shapes(run, data)
    for leaf in jax.tree.leaves(data):
        check_finite(leaf)


def check_shapes(run: Run, data: tuple[Any, ...]) -> None:
    """Refuse data whose first axis does not hold the run's n records."""
    leaves = jax.tree.leaves(data)
    for leaf in leaves:
        if not hasattr(leaf, "dtype"):
            raise InputError("data", "must be arrays, or structures of arrays, for a loss of one record",
                             type(leaf).__name__, "give numbers of a table by to_numpy()")
        if leaf.dtype.kind in "OUSTmM":
            raise InputError("data", "must be arrays of numbers", str(leaf.dtype), "encode texts and days first")
        if np.ndim(leaf) < 1 or np.shape(leaf)[0] != np.shape(leaves[0])[0] or not run.admits(np.shape(leaf)[0]):
            many = "as many records" if run.nominal else f"the run's n = {run.n} records"
            raise InputError("data", f"must have {many} along the first axis of every array", np.shape(leaf))
    if not leaves:
        raise InputError("data", "must hold at least one array", None)


def check_finite(values: np.ndarray | jax.Array) -> None:
    """Refuse numbers that are not finite."""
    if jnp.issubdtype(np.asarray(values).dtype, jnp.inexact) and not np.isfinite(values).all():
        raise InputError("data", "must be finite numbers", "NaN or infinity", "fill or drop those values first")


def check_classes(run: Run, records: tuple[Any, ...]) -> None:
    """Refuse records without a class where classes have weights: their second part must be its index."""
    weights = run.loss.class_weights
    if weights is None:
        return
    target = next((part for part in records[1:2] if isinstance(part, ARRAYS)), None)
    if target is None or target.ndim != 1 or target.dtype.kind not in "iu":
        said = None if target is None else f"{target.dtype} of shape {target.shape}"
        raise InputError("class_weight", "is for records (x, y, ...) whose second part y is a class index, one whole "
                         "number for each", said, "leave it out, or put weights into the loss, before the clip")
    if not np.isin(np.asarray(target), np.arange(len(weights))).all():
        raise InputError("class_weight", f"is for the class indices 0..{len(weights) - 1}, and data have others", None,
                         "give every class a weight, and encode labels as 0, 1, ... first")


def check_loss(loss: RecordLoss, form: Form, exact: bool, data: tuple[Any, ...], n: int = 0) -> None:
    """Refuse what is not one number for one record, or holds an array like the data, of ``n`` private records."""
    arrays = form.arrays(np.zeros(form.size), exact=exact)
    first = in_precision(jax.tree.map(lambda a: np.asarray(a)[0], data), exact=exact)
    try:
         closed, number = jax.make_jaxpr(lambda arrays, *record: loss(form.whole(arrays), *record),  # pyright: ignore
                                       return_shape=True)(arrays, *first)
    except (TypeError, ValueError, IndexError, AttributeError, RuntimeError) as error:
        half = "'NoneType'" in str(error)  # of equinox.partition, which leaves None for what is in the other one
        raise InputError("loss", "must take the parameters and one record (without a batch axis)",
                         str(error).splitlines()[0][:120],
                         "put the halves of a module together with equinox.combine first" if half else "") from None
    except NameError as error:
        if "axis name" not in str(error):
            raise
        raise InputError("loss", "must treat every record alone, and this one asks for an axis over records, as batch "
                         "normalisation does", str(error).splitlines()[0][:80], "use group normalisation") from None
    if not hasattr(number, "shape") or number.shape != () or not jnp.issubdtype(number.dtype, jnp.floating):
        said = getattr(number, "shape", type(number).__name__)
        raise InputError("loss", "must return one number for one record, a floating-point scalar", said,
                         "take no mean over a batch: the trainer hands it one record at a time")
    check_operations(closed.jaxpr)
    _, read = dce_jaxpr(closed.jaxpr, [True] * len(closed.jaxpr.outvars))
    for name, one in zip(form.array_names, read[:len(arrays)], strict=True):
        if not one:
            raise InputError("model", f"must hold parameters that the loss reads, and {name} is none: it would be "
                             "released as noise", None, "leave it out of what is trained")
    check_holds_no_records(n, closed, first, "loss")


def check_holds_no_records(n: int, program: Any, record: object, argument: str) -> None:
    """Refuse a traced function that holds an array with one entry, shaped like a part of ``record``, for each of n."""
    rows = {(n, *np.shape(leaf)) for leaf in jax.tree.leaves(record)}
    if any(np.shape(value) in rows for value in constants(program)):
        raise InputError(argument, "must look at one record, and holds an array with one entry for every record",
                         None, "what it needs of others is no longer that record's own")


def check_gradient(loss: RecordLoss, form: Form, params: object, exact: bool, data: tuple[Any, ...]) -> None:
    """Refuse a loss without finite gradients at the first parameters, by made-up records: zeros, ones, normal numbers.

    During training a record whose gradient is not finite counts as 0, because a run that ended would reveal it.
    This check has seen no record, and so reveals nothing.
    """
    rng = np.random.default_rng(0)
    arrays = form.arrays(np.asarray(form.vector(params)), exact=exact)

    def record(make: Callable[[tuple[int, ...]], Any]) -> Any:
        def made(values: np.ndarray) -> np.ndarray:
            number = jnp.issubdtype(values.dtype, jnp.floating)
            return np.asarray(make(values.shape[1:]) if number else np.zeros(values.shape[1:])).astype(values.dtype)

        return in_precision(jax.tree.map(lambda a: made(np.asarray(a)), data), exact=exact)

    gradient = jax.jit(_gradient(loss, form, arrays, record(np.zeros)))  # one program, not one for each operation

    def finite(make: Callable[[tuple[int, ...]], Any]) -> bool:
        return all(np.isfinite(array).all() for array in gradient(arrays, record(make)))

    makes: tuple[Callable[[tuple[int, ...]], Any], ...] = lambda shape: rng.normal(size=shape), np.ones, np.zeros
    if not any(map(finite, makes)):
        raise InputError("loss", "must have a finite gradient at the first parameters, and has none on made-up records",
                         "not finite", "look for logarithms and roots of 0; nothing was trained")


def _gradient(loss: RecordLoss, form: Form, arrays: object, record: tuple[Any, ...]) -> Callable[..., Any]:
    """The gradient of one record as a program; refuses a loss that has none, or that JAX cannot vectorise, and
    parameters that no record moves."""
    try:
        closed, tree = program(jax.grad(lambda arrays, record: loss(form.whole(arrays), *record)), arrays, record)
        check_operations(closed.jaxpr)
        gradient = evaluated(closed, tree)
        jax.eval_shape(jax.vmap(gradient, (None, 0)), arrays, jax.tree.map(lambda a: a[None], record))
    except InputError:
        raise
    except (NotImplementedError, TypeError, ValueError) as error:
        raise InputError("loss", "must be made of operations of which JAX has gradients, of many records at once",
                         str(error).splitlines()[0][:120], "compute that part in another way") from None
    _check_moved(closed, form)
    return gradient


def _check_moved(gradient: Any, form: Form) -> None:
    """Refuse parameters whose gradient is the same for every record, by the program of one record's gradient: what is
    released of them would be noise, around what the loss says without data."""
    given = [PUBLIC] * len(form.shapes)
    kinds = dependence(gradient, given + [RECORD] * (len(gradient.jaxpr.invars) - len(given)))
    for name, shape, kind in zip(form.array_names, form.shapes, kinds, strict=True):
        if kind != RECORD and math.prod(shape) > 0:
            raise InputError("model", f"must hold parameters that records move, and the gradient by {name} is the same "
                             "for every record, as where it is read through stop_gradient, argmax, sign or times 0: it "
                             "would be released as noise", None,
                             "leave it out of what is trained, and let the loss hold it")

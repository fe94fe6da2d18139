"""A loss of one record: its arguments, its augmentation, its random keys, and what is refused."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.interpreters.partial_eval import dce_jaxpr

from lastiterate.engine.parameters import Form
from lastiterate.engine.random import Key, Number, encrypt, parts, stream
from lastiterate.engine.tracing import (
    PUBLIC,
    RECORD,
    as_function,
    check_operations,
    constants,
    dependence,
    program,
)
from lastiterate.errors import InputError, first_line
from lastiterate.run.run import MOST_COPIES, Run

# Keys of records: random bits that follow from a record's index and the step, and from nothing else
# in the batch. Records bring their indices as one more column, which samplers, sorts and scratch
# files carry like every other. Where a step reads a chunk, keys replace the indices.

RECORDS = np.uint64(2**62)
"""The stream of records' keys among those of the secret draws; passes and steps have smaller
numbers."""
WORDS = 2
"""Words of 32 bits of a record's key."""


def with_keys(chunk: tuple[Any, ...], order: Key, k: Number, copies: int) -> Any:
    """Return a chunk (records, indices, which slots are real) with keys of step k, (m, copies,
    ``WORDS``) uint32, for the indices.

    ``order``: the stream of secret draws.
    """
    *records, numbers, real = chunk
    return (*records, keys_of(order, numbers, k, copies), real)


def keys_of(order: Key, numbers: np.ndarray | jax.Array, k: Number, copies: int = 1) -> jax.Array:
    """The keys of step k of the records of these ``numbers``, one for each copy, (m, copies,
    ``WORDS``) uint32."""
    first = jnp.repeat(numbers.astype(jnp.uint64), copies)
    second = jnp.asarray(k, jnp.uint64) * MOST_COPIES + jnp.tile(
        jnp.arange(copies, dtype=jnp.uint64), numbers.size
    )
    pair = encrypt(stream(order, RECORDS), first, second)
    return jnp.stack(parts(pair)[:WORDS], axis=-1).reshape(numbers.size, copies, WORDS)


_keys = jax.jit(keys_of, static_argnames="copies")


def keys_of_batch(order: Key, numbers: np.ndarray, k: int, copies: int = 0) -> np.ndarray:
    """The same for a batch of any size, on the host; of 0 copies for the first ones alone, (m,
    ``WORDS``). Few sizes are compiled."""
    padded = np.zeros(1 << max(0, len(numbers) - 1).bit_length(), np.int64)
    padded[: len(numbers)] = numbers
    keys = np.asarray(_keys(order, padded, k, copies=max(1, copies)))[: len(numbers)]
    return keys if copies else keys[:, 0]


def repeat_for_keys(records: tuple[Any, ...]) -> tuple[Any, ...]:
    """Every record as often as it has keys, one after the other, with one of them; (m copies, ...)."""
    *rest, keys = records
    rest = (
        jax.tree.map(lambda a: jnp.repeat(a, keys.shape[1], axis=0), rest)
        if keys.shape[1] > 1
        else rest
    )
    return (*rest, keys.reshape(-1, WORDS))


def to_key(words: jax.Array) -> jax.Array:
    """Two words as a key of threefry, whose bits follow from it alone."""
    return jax.random.wrap_key_data(words, impl="threefry2x32")  # pyright: ignore


# A loss of one record: what it is handed, and what is refused before a record is read.

RecordLoss = Callable[..., jax.Array]
"""``loss(params, *record)``: one scalar for one record."""
ARRAYS: tuple[type[Any], ...] = (np.ndarray, jax.Array)


def cast_records(records: object, *, exact: bool) -> Any:
    """Records as the loss takes them: floating-point numbers are float64 where the parameters are."""

    def cast(a: jax.Array) -> jax.Array:
        return a.astype("float64") if exact and jnp.issubdtype(a.dtype, jnp.floating) else a

    return jax.tree.map(cast, records)


def check_records(run: Run, data: tuple[Any, ...]) -> None:
    """Refuse data whose first axis does not hold the run's n records, or that holds numbers that
    are not finite."""
    check_shapes(run, data)
    for leaf in jax.tree.leaves(data):
        check_finite(leaf)


def check_shapes(run: Run, data: tuple[Any, ...]) -> None:
    """Refuse data whose first axis does not hold the run's n records."""
    leaves = jax.tree.leaves(data)
    for leaf in leaves:
        if not hasattr(leaf, "dtype"):
            raise InputError(
                "data",
                "must be arrays, or structures of arrays, for a loss of one record",
                type(leaf).__name__,
                "give numbers of a table by to_numpy()",
            )
        if leaf.dtype.kind in "OUSTmM":
            raise InputError(
                "data", "must be arrays of numbers", str(leaf.dtype), "encode texts and days first"
            )
        if (
            np.ndim(leaf) < 1
            or np.shape(leaf)[0] != np.shape(leaves[0])[0]
            or not run.admits(np.shape(leaf)[0])
        ):
            many = "as many records" if run.nominal else f"the run's n = {run.n} records"
            raise InputError(
                "data", f"must have {many} along the first axis of every array", np.shape(leaf)
            )
    if not leaves:
        raise InputError("data", "must hold at least one array", None)


def check_finite(values: np.ndarray | jax.Array) -> None:
    """Refuse numbers that are not finite."""
    if jnp.issubdtype(np.asarray(values).dtype, jnp.inexact) and not np.isfinite(values).all():
        raise InputError(
            "data", "must be finite numbers", "NaN or infinity", "fill or drop those values first"
        )


def check_classes(run: Run, records: tuple[Any, ...]) -> None:
    """Refuse records without a class where classes have weights: their second part must be its
    index."""
    weights = run.loss.class_weights
    if weights is None:
        return
    target = next((part for part in records[1:2] if isinstance(part, ARRAYS)), None)
    if target is None or target.ndim != 1 or target.dtype.kind not in "iu":
        shape = "" if target is None else ", ".join(map(str, ("n", *target.shape[1:])))
        said = None if target is None else f"{target.dtype} of shape ({shape})"
        flat = target is not None and target.ndim == 1
        raise InputError(
            "class_weight",
            "is for records (x, y, ...) whose second part y is a class index, one whole "
            "number for each",
            said,
            ("give integers: y.long() of torch, y.astype(int) of NumPy; " if flat else "")
            + "leave it out, or put weights into the loss: the clip comes after them, and may undo "
            "them",
        )
    if not np.isin(np.asarray(target), np.arange(len(weights))).all():
        raise InputError(
            "class_weight",
            f"is for the class indices 0..{len(weights) - 1}, and data have others",
            None,
            "give every class a weight, and encode labels as 0, 1, ... first",
        )


def check_loss(
    loss: RecordLoss, form: Form, exact: bool, data: tuple[Any, ...], n: int = 0
) -> None:
    """Refuse a loss that is not one scalar for one record, or holds an array like the data, of
    ``n`` private records."""
    arrays = form.arrays(np.zeros(form.size), exact=exact)
    first = cast_records(jax.tree.map(lambda a: np.asarray(a)[0], data), exact=exact)
    try:
        closed, number = jax.make_jaxpr(
            lambda arrays, *record: loss(form.whole(arrays), *record),  # pyright: ignore
            return_shape=True,
        )(arrays, *first)
    except (TypeError, ValueError, IndexError, AttributeError, RuntimeError) as error:
        half = "'NoneType'" in str(
            error
        )  # of equinox.partition, which leaves None for what is in the other one
        raise InputError(
            "loss",
            "must take the parameters and one record (without a batch axis)",
            first_line(error),
            "put the halves of a module together with equinox.combine first" if half else "",
        ) from None
    except NameError as error:
        if "axis name" not in str(error):
            raise
        raise InputError(
            "loss",
            "must treat every record alone, and this one asks for an axis over records, as batch "
            "normalisation does",
            first_line(error, 80),
            "use group normalisation",
        ) from None
    if (
        not hasattr(number, "shape")
        or number.shape != ()
        or not jnp.issubdtype(number.dtype, jnp.floating)
    ):
        said = getattr(number, "shape", type(number).__name__)
        raise InputError(
            "loss",
            "must return one number for one record, a floating-point scalar",
            said,
            "take no mean over a batch: the trainer hands it one record at a time",
        )
    check_operations(closed.jaxpr)
    _, read = dce_jaxpr(closed.jaxpr, [True] * len(closed.jaxpr.outvars))
    for name, one in zip(form.array_names, read[: len(arrays)], strict=True):
        if not one:
            raise InputError(
                "model",
                f"must hold parameters that the loss reads, and {name} is none: it would be "
                "released as noise",
                None,
                "leave it out of what is trained",
            )
    check_holds_no_records(n, closed, first, "loss")


def check_holds_no_records(n: int, program: Any, record: object, argument: str) -> None:
    """Refuse a traced function that holds an array with one entry, shaped like a part of
    ``record``, for each of n."""
    rows = {(n, *np.shape(leaf)) for leaf in jax.tree.leaves(record)}
    if any(np.shape(value) in rows for value in constants(program)):
        raise InputError(
            argument,
            "must look at one record, and holds an array with one entry for every record",
            None,
            "what it needs of others is no longer that record's own",
        )


def check_gradient(
    loss: RecordLoss, form: Form, params: object, exact: bool, data: tuple[Any, ...]
) -> None:
    """Refuse a loss without finite gradients at the first parameters, on synthetic records: zeros,
    ones, normal numbers.

    During training a record whose gradient is not finite counts as 0, because a run that ended
    would reveal it. This check has seen no record, and so reveals nothing.
    """
    rng = np.random.default_rng(0)
    arrays = form.arrays(np.asarray(form.vector(params)), exact=exact)

    def record(make: Callable[[tuple[int, ...]], Any]) -> Any:
        def make_values(values: np.ndarray) -> np.ndarray:
            number = jnp.issubdtype(values.dtype, jnp.floating)
            return np.asarray(
                make(values.shape[1:]) if number else np.zeros(values.shape[1:])
            ).astype(values.dtype)

        return cast_records(jax.tree.map(lambda a: make_values(np.asarray(a)), data), exact=exact)

    gradient = jax.jit(
        _gradient(loss, form, arrays, record(np.zeros))
    )  # one program, not one for each operation

    def finite(make: Callable[[tuple[int, ...]], Any]) -> bool:
        return all(np.isfinite(array).all() for array in gradient(arrays, record(make)))

    makes: tuple[Callable[[tuple[int, ...]], Any], ...] = (
        lambda shape: rng.normal(size=shape),
        np.ones,
        np.zeros,
    )
    if not any(map(finite, makes)):
        raise InputError(
            "loss",
            "must have a finite gradient at the first parameters, and has none on synthetic records",
            "not finite",
            "look for logarithms and roots of 0; nothing was trained",
        )


def _gradient(
    loss: RecordLoss, form: Form, arrays: object, record: tuple[Any, ...]
) -> Callable[..., Any]:
    """The gradient of one record as a program; refuses a loss that has none, or that JAX cannot
    vectorise, and parameters that no record moves."""
    try:
        closed, tree = program(
            jax.grad(lambda arrays, record: loss(form.whole(arrays), *record)), arrays, record
        )
        check_operations(closed.jaxpr)
        gradient = as_function(closed, tree)
        jax.eval_shape(
            jax.vmap(gradient, (None, 0)), arrays, jax.tree.map(lambda a: a[None], record)
        )
    except InputError:
        raise
    except (NotImplementedError, TypeError, ValueError) as error:
        raise InputError(
            "loss",
            "must be made of operations of which JAX has gradients, of many records at once",
            first_line(error),
            "compute that part in another way",
        ) from None
    _check_moved(closed, form)
    return gradient


def _check_moved(gradient: Any, form: Form) -> None:
    """Refuse parameters whose gradient is the same for every record, by the program of one record's
    gradient: what is released of them would be noise, around what the loss says without data."""
    given = [PUBLIC] * len(form.shapes)
    kinds = dependence(gradient, given + [RECORD] * (len(gradient.jaxpr.invars) - len(given)))
    for name, shape, kind in zip(form.array_names, form.shapes, kinds, strict=True):
        if kind != RECORD and math.prod(shape) > 0:
            raise InputError(
                "model",
                f"must hold parameters that records move, and the gradient by {name} is the same "
                "for every record, as where it is read through stop_gradient, argmax, sign or "
                "times 0: it "
                "would be released as noise",
                None,
                "leave it out of what is trained, and let the loss hold it",
            )


# A loss of one record that draws random numbers: an augmentation before it, or a key that it asks
# for.

Augment = Callable[[jax.Array, Any], Any]
"""``augment(key, x)``: another form of a record's first part, from a key of its own."""
BLANK = np.zeros((1, WORDS), np.uint32)
"""A record's key, where its form alone counts."""


@dataclass(frozen=True)
class DrawingLoss:
    """A loss as the engine takes it: the last part of a record is its key, as words.

    **Guarantee:** what is drawn follows from the record's own key.
    """

    loss: RecordLoss
    augment: Augment | None
    asks: bool  #: whether the loss takes a key

    def __call__(self, params: object, *record: Any) -> jax.Array:
        *rest, words = record
        before = own = to_key(words)
        if self.augment is not None and self.asks:
            before, own = jax.random.split(own)
        if self.augment is not None:
            rest[0] = cast_like(self.augment(before, rest[0]), rest[0])
        given = {"key": own} if self.asks else {}
        return self.loss(params, *rest, **given)


def asks_for_key(loss: RecordLoss) -> bool:
    """Whether a loss has an argument ``key`` that is given by name alone: ``loss(params, x, y, *,
    key)``."""
    try:
        argument = inspect.signature(loss).parameters.get("key")
    except (TypeError, ValueError):
        return False
    return argument is not None and argument.kind is inspect.Parameter.KEYWORD_ONLY


def prepare_loss(
    run: Run, loss: RecordLoss, augment: Augment | None, records: tuple[Any, ...], *, exact: bool
) -> tuple[RecordLoss, tuple[Any, ...]]:
    """The loss of one record, and records of the form that it takes; of ``records`` shapes and
    types count.

    Errors: a run that says something else of what is drawn; an augmentation that does not take one
    record.
    """
    asks = asks_for_key(loss)
    if (run.augmentation is not None) != (asks or augment is not None):
        raise InputError(
            "augmentation of the run",
            "must say what records draw, and nothing else",
            None,
            "give train(augment=..., copies=...) or a loss with an argument key that is given by "
            "name, "
            "and leave the run's to it",
        )
    if run.augmentation is None:
        return loss, records
    if augment is not None:
        _check_augment(
            run,
            augment,
            cast_records(jax.tree.map(lambda a: np.asarray(a)[0], records), exact=exact),
        )
    return DrawingLoss(loss, augment, asks), (*records, BLANK)


@contextmanager
def blame_augmentation(augment: object, without: Callable[[], object]) -> Generator[None]:
    """Inside, what refuses an augmented record becomes an error of the augmentation, if ``without``
    it nothing does."""
    try:
        yield
    except InputError as error:
        if augment is None or error.argument == "augment":
            raise
        without()
        raise InputError(
            "augment",
            "must give a record that the model and the loss take",
            None,
            f"without it they do, and with it {error}".removesuffix("."),
        ) from None


def cast_like(record: object, given: object) -> Any:
    """Cast the record that an augmentation made to the precision of the record that it was
    given."""

    def cast(made: jax.Array, before: jax.Array) -> jax.Array:
        return (
            jnp.asarray(made).astype(before.dtype)
            if jnp.issubdtype(before.dtype, jnp.floating)
            else made
        )

    return jax.tree.map(cast, record, given)


def _check_augment(run: Run, augment: Augment, record: tuple[Any, ...]) -> None:
    """Refuse what does not make one record of one record, or holds an array like the data."""
    first = record[0]
    try:
        closed, made = jax.make_jaxpr(
            lambda words, x: augment(to_key(words), x), return_shape=True
        )(BLANK[0], first)
        same = jax.tree.structure(made) == jax.tree.structure(first)
    except (TypeError, ValueError, IndexError, AttributeError, RuntimeError, NameError) as error:
        raise InputError(
            "augment",
            "must take a key and one record (without a batch axis)",
            first_line(error),
            "draw with jax.random under that key",
        ) from None
    if not same:
        raise InputError(
            "augment",
            "must give a record of the form that it takes",
            str(jax.tree.structure(made))[:120],
        )
    check_operations(closed.jaxpr, "augment")
    check_holds_no_records(run.n, closed, record, "augment")

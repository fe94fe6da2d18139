"""A loss of one record that draws random numbers: an augmentation before it, or a key that it asks for."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lastiterate.engine.operations import check_operations
from lastiterate.engine.record_keys import WORDS, as_key
from lastiterate.engine.record_loss import RecordLoss, check_holds_no_records, in_precision
from lastiterate.errors import InputError
from lastiterate.run.run import Run

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
        before = own = as_key(words)
        if self.augment is not None and self.asks:
            before, own = jax.random.split(own)
        if self.augment is not None:
            rest[0] = like(self.augment(before, rest[0]), rest[0])
        given = {"key": own} if self.asks else {}
        return self.loss(params, *rest, **given)


def asks_for_key(loss: RecordLoss) -> bool:
    """Whether a loss has an argument ``key`` that is given by name alone: ``loss(params, x, y, *, key)``."""
    try:
        argument = inspect.signature(loss).parameters.get("key")
    except (TypeError, ValueError):
        return False
    return argument is not None and argument.kind is inspect.Parameter.KEYWORD_ONLY


def drawing(run: Run, loss: RecordLoss, augment: Augment | None, records: tuple[Any, ...], *,
            exact: bool) -> tuple[RecordLoss, tuple[Any, ...]]:
    """The loss of one record, and records of the form that it takes; of ``records`` shapes and types count.

    Errors: a run that says something else of what is drawn; an augmentation that does not take one record.
    """
    asks = asks_for_key(loss)
    if (run.record_draws is not None) != (asks or augment is not None):
        raise InputError("record_draws of the run", "must say what records draw, and nothing else", None,
                         "give train(augment=..., copies=...) or a loss with an argument key that is given by name, "
                         "and leave the run's to it")
    if run.record_draws is None:
        return loss, records
    if augment is not None:
        _check_augment(run, augment, in_precision(jax.tree.map(lambda a: np.asarray(a)[0], records), exact=exact))
    return DrawingLoss(loss, augment, asks), (*records, BLANK)


@contextmanager
def blaming(augment: object, without: Callable[[], object]) -> Generator[None]:
    """Inside, what refuses an augmented record becomes an error of the augmentation, if ``without`` it nothing does."""
    try:
        yield
    except InputError as error:
        if augment is None or error.argument == "augment":
            raise
        without()
        raise InputError("augment", "must give a record that the model and the loss take", None,
                         f"without it they do, and with it {error}".removesuffix(".")) from None


def like(record: object, given: object) -> Any:
    """What an augmentation made, in the precision of what it was given."""
    def cast(made: jax.Array, before: jax.Array) -> jax.Array:
        return jnp.asarray(made).astype(before.dtype) if jnp.issubdtype(before.dtype, jnp.floating) else made

    return jax.tree.map(cast, record, given)


def _check_augment(run: Run, augment: Augment, record: tuple[Any, ...]) -> None:
    """Refuse what does not make one record of one record, or holds an array like the data."""
    first = record[0]
    try:
        closed, made = jax.make_jaxpr(lambda words, x: augment(as_key(words), x), return_shape=True)(BLANK[0], first)
        same = jax.tree.structure(made) == jax.tree.structure(first)
    except (TypeError, ValueError, IndexError, AttributeError, RuntimeError, NameError) as error:
        raise InputError("augment", "must take a key and one record (without a batch axis)",
                         str(error).splitlines()[0][:120], "draw with jax.random under that key") from None
    if not same:
        raise InputError("augment", "must give a record of the form that it takes",
                         str(jax.tree.structure(made))[:120])
    check_operations(closed.jaxpr, "augment")
    check_holds_no_records(run.n, closed, record, "augment")

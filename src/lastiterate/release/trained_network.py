"""Networks and other losses of one record: trained by a described run, released with their certificate."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, cast

import jax
import numpy as np

from lastiterate.engine.drawing_loss import asks_for_key
from lastiterate.engine.exact_records import RecordGrid, fit_network_exactly
from lastiterate.engine.gaussian_noise import Key
from lastiterate.engine.network import check_fits, fit_network
from lastiterate.engine.streaming.devices import Arrays
from lastiterate.engine.streaming.streamed_network import fit_streaming
from lastiterate.errors import InputError
from lastiterate.release import tree
from lastiterate.release.augmented import augmented_by
from lastiterate.release.fitted import Fitted
from lastiterate.release.folder import Stored
from lastiterate.release.order import Order, is_source
from lastiterate.release.protected_units import UnitLoss
from lastiterate.release.stateful import check_stateless
from lastiterate.release.statements import Written
from lastiterate.run.arrays import check_kept
from lastiterate.run.losses import Abstract
from lastiterate.run.run import Run

FIRST = "the first parameters, and what the loss holds, are taken to be chosen without looking at the data"


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class FittedNetwork(Fitted):
    """The final parameters, structured like the first ones.

    The forward pass is the caller's code: no folder carries it, and ``predict`` takes it unless the parameters are
    callable themselves, as an Equinox module is.
    """

    kind: ClassVar[str] = "network"
    exact_kind: ClassVar[str] = "exact-network"
    run: Run
    params: Any

    @property
    def conditions(self) -> tuple[str, ...]:
        return (FIRST,)

    def predict(self, x: object, forward: Callable[[Any, Any], Any] | None = None) -> np.ndarray:
        """``forward(params, record)`` for every record of ``x`` (arrays with the records along their first axis).

        ``x``: what the forward pass takes, such as the x of ``train(run, (x, y))``: the loss does not say which parts
        of a record that is. A structure of arrays is given to it as a structure.
        """
        if self.run.release == "all":
            raise InputError("release", "must be 'last' for predictions", "all", "use one of the iterates in params")
        if forward is not None and not callable(forward):
            raise InputError("forward", "must be a function of the parameters and one record", type(forward).__name__)
        check_kept("x", x)
        x = np.asarray(cast("list[object]", x)) if isinstance(x, list) else x
        leaves = jax.tree.leaves(x)
        arrays = all(hasattr(leaf, "dtype") for leaf in leaves)
        sizes = {np.shape(leaf)[:1] for leaf in leaves} if arrays else set[tuple[int, ...]]()
        if len(sizes) != 1 or () in sizes:
            raise InputError("x", "must be arrays, or a structure of arrays, with the records along the first axis",
                             sorted(sizes) or type(x).__name__)
        x = jax.tree.map(  # pyright: ignore
            lambda leaf: leaf if isinstance(leaf, jax.Array) else np.asarray(leaf), x)  # pyright: ignore
        if forward is None and not callable(self.params):
            raise InputError("forward", "is needed to predict: a function of the parameters and one record", None,
                             "the loss alone does not say what the output is")
        if forward is not None:
            try:
                return _arrays(jax.vmap(partial(forward, self.params))(x))
            except (TypeError, ValueError, IndexError, KeyError) as error:
                whole = isinstance(x, tuple)
                raise InputError("x", "must hold records that the forward pass takes", str(error).splitlines()[0][:120],
                                 "of records (x, y) give x" if whole else "") from None
        try:
            return _arrays(jax.vmap(self.params)(x))
        except TypeError as error:
            raise InputError("forward", "is needed where the parameters do not answer by themselves",
                             str(error).splitlines()[0][:120], "of half a module give lambda half, record: "
                             "equinox.combine(half, rest)(record)") from None

    def contents(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        leaves, tensors = tree.described(self.params)
        return {"run": self.run.to_dict(), "parameters": leaves}, tensors

    def summary(self) -> str:
        arrays = [leaf for leaf in jax.tree.leaves(self.params) if hasattr(leaf, "dtype")]
        return (f"{sum(np.size(array) for array in arrays):,} parameters in {len(arrays)} arrays, "
                f"{self.run.steps} steps, n = {self.run.n}")


def _arrays(pytree: object) -> Any:
    return jax.tree.map(np.asarray, pytree)


def knows(model: object) -> bool:
    """Whether ``model`` is a structure of NumPy or JAX arrays, with whatever else between them."""
    return any(isinstance(leaf, np.ndarray | jax.Array) for leaf in jax.tree.leaves(model))


def check(order: Order) -> Order:
    """Refuse what cannot be trained, by the shapes of the records alone."""
    run = order.certificate.run
    check_loss(run, order.loss)
    check_stateless(order.model)
    if order.exact:
        RecordGrid.of(run)
    if not order.in_pieces:
        check_fits(run, order.loss, order.model, order.data, order.microbatch, order.optimizer, order.augment)
    return order


def fit(order: Order, key: Key | None) -> FittedNetwork:
    """Execute the run on ``loss(params, *record)`` and release the last parameters."""
    run = order.certificate.run
    how: Any = {"microbatch": order.microbatch, "progress": order.progress, "checkpoint": order.charging.checkpoint,
                "optimizer": order.optimizer, "augment": order.augment}
    if order.in_pieces:
        source = order.data if is_source(order.data) else Arrays(order.data)
        params = fit_streaming(run, order.loss, order.model, source, key, folder=order.scratch, devices=order.devices,
                               **how)
    else:
        execute = fit_network_exactly if order.exact else fit_network
        params = execute(run, order.loss, order.model, order.data, key, **how)
    return FittedNetwork(proof=order.certificate, delta=order.delta, exact=order.exact, run=run, params=params)


def named(optimizer: object, model: object) -> str:
    """What a certificate calls an optimizer: functions have no name of their own."""
    return "an optax transformation"


def draws(model: object, loss: Any, augment: Any) -> list[str]:
    """An augmentation, and a loss that takes a key."""
    return [*augmented_by(augment), *(["the loss"] if asks_for_key(loss) else [])]


def check_loss(run: Run, loss: object) -> None:
    """Refuse a run with a linear loss, what is no function, and classes where a record may hold several."""
    if type(run.loss) is not Abstract:
        raise InputError("loss of the run", "must be Abstract where the loss is given as a function",
                         type(run.loss).__name__, "leave model and loss out to train a linear model")
    if not callable(loss):
        raise InputError("loss", "must be a function of the parameters and one record", type(loss).__name__)
    if isinstance(loss, UnitLoss) and run.loss.class_weights is not None:
        raise InputError("class_weight", "must be left out where records are units, whose rows may be of several "
                         "classes", None, "multiply a row's loss by its weight inside of UnitLoss: a unit is clipped "
                         "after that")


def read(stored: Stored, like: object = None) -> FittedNetwork:
    """The model in a folder; its arrays in the structure of ``like``, or in dictionaries and lists."""
    run, tensors, leaves = Run.from_dict(stored.model["run"]), stored.tensors(), stored.model.get("parameters")
    params = tree.rebuilt(leaves, tensors) if like is None else tree.into(like, leaves, tensors)
    return FittedNetwork(proof=Written(stored.certificate), delta=stored.certificate["delta"], run=run, params=params)

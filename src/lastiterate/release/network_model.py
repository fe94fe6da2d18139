"""Networks and other losses of one record, released with their certificate."""

# pyright: basic

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, cast

import jax
import jax.export
import jax.numpy as jnp
import numpy as np

from lastiterate.atomic_files import write_folder
from lastiterate.engine.exact_gradients import RecordGrid, exactly
from lastiterate.engine.network import check_fits, iterate_network
from lastiterate.engine.random import Key
from lastiterate.engine.record_loss import asks_for_key
from lastiterate.engine.step_iterator import Steps, run_to_end
from lastiterate.engine.streaming.buffers import Arrays
from lastiterate.engine.streaming.execution import iterate_streaming
from lastiterate.errors import InputError, first_line
from lastiterate.release.folder import FILES, MANIFEST, StoredModel, format_manifest, free
from lastiterate.release.released_model import ReleasedModel
from lastiterate.release.signatures import ProvenanceRecord
from lastiterate.release.training import name_augmentation
from lastiterate.release.training_request import TrainingRequest, is_source
from lastiterate.release.units import UnitLoss
from lastiterate.run.losses import KnownConstants
from lastiterate.run.run import Run
from lastiterate.run.validation import check_kept

# State among the parameters, as in layers of Equinox and collections of Flax: it is found before
# anything is paid.

STATISTICS = "batch_stats"
"""What Flax calls the running means and variances of batch normalisation."""


def check_stateless(params: object) -> None:
    """Refuse batch normalisation, and every other layer whose state the records would change.

    Layers that are frozen (``inference=True``) may stay. Looks at the structure alone; where
    Equinox was not imported there is no such layer. Statistics of Flax are known by the name of
    their collection.
    """
    leaves: Any = jax.tree_util.tree_leaves_with_path(params)  # pyright: ignore
    for path, _ in leaves:
        if any(getattr(step, "key", None) == STATISTICS for step in path):
            raise InputError(
                "model",
                "must hold parameters alone, and batch statistics are none: noise would be added "
                "to them",
                jax.tree_util.keystr(path),  # pyright: ignore
                'give variables["params"], and let the loss hold the statistics',
            )
    nn: Any = getattr(sys.modules.get("equinox"), "nn", None)
    if nn is None:
        return

    def stateful(node: object) -> bool:
        return any(
            isinstance(part, nn.StateIndex) for part in getattr(node, "__dict__", {}).values()
        )

    for path, node in jax.tree_util.tree_leaves_with_path(params, is_leaf=stateful):  # pyright: ignore
        if not stateful(node) or getattr(node, "inference", None) is True:
            continue
        name, place = type(node).__name__, jax.tree_util.keystr(path)  # pyright: ignore
        mixes = isinstance(node, nn.BatchNorm)
        raise InputError(
            "model",
            "must treat every record alone, and batch normalisation mixes them"
            if mixes
            else "must treat every record alone, and this layer keeps state from one to the next",
            f"{name} at {place}" if place else name,
            ("use equinox.nn.GroupNorm, or " if mixes else "") + "freeze it with "
            "equinox.nn.inference_mode and give the module whole",
        )


# Parameters in nested structures, as named arrays and back; JSON holds the path of each array.

# places in JAX's trees have no types


WIDEST = 100_000
"""Entries of a list; what stands in a file cannot ask for more memory than that."""
PLAIN = ("float16", "float32", "float64")
"""Precisions of the file format; shorter ones are stored as float32, which holds them exactly."""
Step = tuple[str, Any]


def describe_arrays(params: object) -> tuple[list[dict[str, Any]], dict[str, np.ndarray]]:
    """Every array of ``params``: its path, precision and name in the file, and the arrays by name.

    Leaves that are no arrays (activation functions, names) are code and stay behind.
    """
    leaves: list[dict[str, Any]] = []
    tensors: dict[str, np.ndarray] = {}
    for place, leaf in _arrays_in(params):
        array = np.asarray(leaf)
        name, dtype = str(len(leaves)), str(array.dtype)
        leaves.append({"path": [list(step) for step in place], "dtype": dtype, "array": name})
        tensors[name] = np.asarray(array if dtype in PLAIN else array.astype(np.float32), order="C")
    return leaves, tensors


def rebuilt(leaves: object, tensors: dict[str, np.ndarray]) -> Any:
    """The arrays in nested dictionaries (of keys and attributes) and lists."""
    placed = _check_leaves(leaves, tensors)
    if [place for place, _ in placed] == [()]:
        return placed[0][1]
    root: dict[Step, Any] = {}
    for place, array in placed:
        node = root
        for step in place[:-1]:
            node = node.setdefault(step, {})
            if not isinstance(node, dict):
                raise _damage_error("one array hangs below another")
        if not place or place[-1] in node:
            raise _damage_error("two arrays hang in one place")
        node[place[-1]] = array
    return _plain(root)


def restore_arrays(like: object, leaves: object, tensors: dict[str, np.ndarray]) -> Any:
    """Return the arrays in the structure of ``like``, which must have arrays of the same shapes at
    the same positions."""
    arrays = dict(_check_leaves(leaves, tensors))
    wanted = dict(_arrays_in(like))
    if arrays.keys() != wanted.keys():
        strange = sorted(map(str, arrays.keys() ^ wanted.keys()))
        raise InputError("like", "must have arrays in the same places as the model", strange[0])
    for place, leaf in wanted.items():
        if np.shape(leaf) != arrays[place].shape:
            raise InputError(
                "like",
                f"must have arrays of the model's shapes, {arrays[place].shape} at {place}",
                np.shape(leaf),
            )
    paths, tree = jax.tree_util.tree_flatten_with_path(like)
    return jax.tree.unflatten(tree, [arrays.get(_steps(path), leaf) for path, leaf in paths])


def _arrays_in(params: object) -> list[tuple[tuple[Step, ...], Any]]:
    leaves = jax.tree_util.tree_leaves_with_path(params)
    return [(_steps(path), leaf) for path, leaf in leaves if hasattr(leaf, "dtype")]


def _steps(path: Any) -> tuple[Step, ...]:
    return tuple(map(_step, path))


def _step(entry: object) -> Step:
    match entry:
        case jax.tree_util.SequenceKey(idx=index):
            return "index", index
        case jax.tree_util.GetAttrKey(name=name):
            return "attribute", name
        case jax.tree_util.DictKey(key=key) | jax.tree_util.FlattenedIndexKey(key=key):
            return "key", key if type(key) in (int, str) else repr(key)
        case other:
            return "key", str(other)


def _check_leaves(
    leaves: object, tensors: dict[str, np.ndarray]
) -> list[tuple[tuple[Step, ...], np.ndarray]]:
    """What a file says about its arrays, checked."""
    if not isinstance(leaves, list) or not leaves:
        raise _damage_error("no list of arrays")
    placed: list[tuple[tuple[Step, ...], np.ndarray]] = []
    for leaf in leaves:
        match leaf:
            case {"path": [*steps], "dtype": str() as dtype, "array": str() as name} if (
                name in tensors
            ):
                placed.append((tuple(map(_check_step, steps)), _cast_array(tensors[name], dtype)))
            case _:
                raise _damage_error("an array without a place")
    if len(placed) != len(tensors) or len({place for place, _ in placed}) != len(placed):
        raise _damage_error("another number of arrays than places")
    return placed


def _check_step(step: object) -> Step:
    match step:
        case ["index", int() as index] if type(index) is int and 0 <= index < WIDEST:
            return "index", index
        case ["attribute", str() as name]:
            return "attribute", name
        case ["key", key] if type(key) in (int, str):
            return "key", key
        case _:
            raise _damage_error("a place that no structure has")


def _cast_array(array: np.ndarray, dtype: str) -> np.ndarray:
    try:
        wanted = jnp.dtype(dtype)
    except TypeError:
        raise _damage_error("an unknown precision") from None
    if not jnp.issubdtype(wanted, jnp.floating) or not np.isfinite(array).all():
        raise _damage_error("arrays that are no finite numbers")
    return array.astype(wanted)


def _plain(node: object) -> Any:
    if not isinstance(node, dict):
        return node
    kinds = {kind for kind, _ in node}
    if kinds == {"index"}:
        wide = max(index for _, index in node) + 1
        return [_plain(node.get(("index", index))) for index in range(wide)]
    if "index" in kinds:
        raise _damage_error("a list with named entries")
    return {name: _plain(value) for (_, name), value in node.items()}


def _damage_error(what: str) -> InputError:
    return InputError(
        "parameters of the model",
        f"must be complete, and the folder holds {what}",
        None,
        "check it with lastiterate verify",
    )


# The released network, and the execution of its run.

FORWARD = "forward.stablehlo"
PLATFORMS = ("cpu", "cuda", "tpu")
FIRST = "the first parameters, and what the loss holds, are taken to be chosen without looking at the data"


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class FittedNetwork(ReleasedModel):
    """The final parameters, structured like the first ones.

    The forward pass is the caller's code: no folder carries it, and ``predict`` takes it unless the
    parameters are callable themselves, as an Equinox module is.
    """

    kind: ClassVar[str] = "network"
    exact_kind: ClassVar[str] = "exact-network"
    run: Run
    params: Any

    @property
    def conditions(self) -> tuple[str, ...]:
        return (FIRST,)

    def predict(self, x: object, forward: Callable[[Any, Any], Any] | None = None) -> np.ndarray:
        """``forward(params, record)`` for every record of ``x`` (arrays with the records along
        their first axis).

        ``x``: what the forward pass takes, such as the x of ``train(run, (x, y))``: the loss does
        not say which parts of a record that is. A structure of arrays is given to it as a
        structure.
        """
        if self.run.release == "all":
            raise InputError(
                "release",
                "must be 'last' for predictions",
                "all",
                "give your forward function one of the iterates in model.params: "
                "jax.tree.map(lambda a: a[step - 1], model.params)",
            )
        if forward is not None and not callable(forward):
            raise InputError(
                "forward",
                "must be a function of the parameters and one record",
                type(forward).__name__,
            )
        check_kept("x", x)
        x = np.asarray(cast("list[object]", x)) if isinstance(x, list) else x
        leaves = jax.tree.leaves(x)
        arrays = all(hasattr(leaf, "dtype") for leaf in leaves)
        sizes = {np.shape(leaf)[:1] for leaf in leaves} if arrays else set[tuple[int, ...]]()
        if len(sizes) != 1 or () in sizes:
            raise InputError(
                "x",
                "must be arrays, or a structure of arrays, with the records along the first axis",
                sorted(sizes) or type(x).__name__,
            )
        x = jax.tree.map(  # pyright: ignore
            lambda leaf: leaf if isinstance(leaf, jax.Array) else np.asarray(leaf), x
        )  # pyright: ignore
        if forward is None and not callable(self.params):
            raise InputError(
                "forward",
                "is needed to predict: a function of the parameters and one record",
                None,
                "the loss alone does not say what the output is",
            )
        if forward is not None:
            try:
                return _arrays(jax.vmap(partial(forward, self.params))(x))
            except (TypeError, ValueError, IndexError, KeyError) as error:
                whole = isinstance(x, tuple)
                raise InputError(
                    "x",
                    "must hold records that the forward pass takes",
                    first_line(error),
                    "of records (x, y) give x" if whole else "",
                ) from None
        try:
            return _arrays(jax.vmap(self.params)(x))
        except TypeError as error:
            raise InputError(
                "forward",
                "is needed where the parameters do not answer by themselves",
                first_line(error),
                "of half a module give lambda half, record: equinox.combine(half, rest)(record)",
            ) from None

    def to_stablehlo(
        self, folder: str | Path, x: object, forward: Callable[[Any, Any], Any] | None = None
    ) -> Path:
        """Write a folder with the release and its forward pass, which JAX runs without this library.

        ``x``: public records as ``predict`` takes them, of which only the shapes count; ``forward``:
        as for ``predict``. ``forward.stablehlo`` is what ``jax.export`` writes of a function of the
        arrays in ``weights.safetensors``, by name, and of any number of records. ``verify`` checks
        the folder; that the forward pass is the one of the training is the writer's word.

        Errors: a folder that exists, and what JAX cannot write.
        """
        where = free(folder)
        self.predict(jax.tree.map(lambda leaf: leaf[:1], x), forward)  # refuses what does not fit
        _, tensors = describe_arrays(self.params)
        leaves, tree = jax.tree.flatten(self.params)

        def answer(weights: dict[str, Any], records: Any) -> Any:
            each = iter(weights[name] for name in tensors)
            params = jax.tree.unflatten(
                tree,
                [
                    next(each).astype(leaf.dtype) if hasattr(leaf, "dtype") else leaf
                    for leaf in leaves
                ],
            )
            one = params if forward is None else partial(forward, params)
            return jax.vmap(one)(records)

        rows = jax.export.symbolic_shape("records")
        shapes = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct((*rows, *np.shape(leaf)[1:]), np.asarray(leaf).dtype),
            x,
        )
        weights = {
            name: jax.ShapeDtypeStruct(array.shape, array.dtype) for name, array in tensors.items()
        }
        limit = "jax_traceback_in_locations_limit"
        before = getattr(jax.config, limit)
        try:
            jax.config.update(limit, 0)  # no paths of this machine
            compiled: Any = jax.jit(answer)
            made = jax.export.export(compiled, platforms=PLATFORMS)(weights, shapes)
        except Exception as error:  # JAX's own kinds, and those of the forward pass
            raise InputError(
                "forward", "must be one that jax.export writes", first_line(error)[:200]
            ) from None
        finally:
            jax.config.update(limit, before)
        made_of = self.files()
        files = {name: made_of[name] for name in FILES} | {FORWARD: bytes(made.serialize())}
        write_folder(where, files | {MANIFEST: format_manifest(files)})
        return where

    def contents(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        leaves, tensors = describe_arrays(self.params)
        return {"run": self.run.to_dict(), "parameters": leaves}, tensors

    def summary(self) -> str:
        arrays = [leaf for leaf in jax.tree.leaves(self.params) if hasattr(leaf, "dtype")]
        return (
            f"{sum(np.size(array) for array in arrays):,} parameters in {len(arrays)} arrays, "
            f"{self.run.steps} steps, n = {self.run.n}"
        )


def _arrays(pytree: object) -> Any:
    return jax.tree.map(np.asarray, pytree)


def knows(model: object) -> bool:
    """Whether ``model`` is a structure of NumPy or JAX arrays, with whatever else between them."""
    return any(isinstance(leaf, np.ndarray | jax.Array) for leaf in jax.tree.leaves(model))


def check(order: TrainingRequest) -> TrainingRequest:
    """Refuse what cannot be trained, by the shapes of the records alone."""
    run = order.certificate.run
    check_loss(run, order.loss)
    check_stateless(order.model)
    if order.exact:
        RecordGrid.of(run)
    if not order.in_pieces:
        check_fits(
            run,
            order.loss,
            order.model,
            order.data,
            order.microbatch,
            order.optimizer,
            order.augment,
        )
    return order


def fit(order: TrainingRequest, key: Key | None) -> FittedNetwork:
    """Execute the run on ``loss(params, *record)`` and release the last parameters."""
    return run_to_end(iterate(order, key))


def iterate(order: TrainingRequest, key: Key | None) -> Steps[FittedNetwork]:
    """``fit`` in pauses."""
    run = order.certificate.run
    how: Any = {
        "microbatch": order.microbatch,
        "progress": order.progress,
        "checkpoint": order.charging.checkpoint,
        "optimizer": order.optimizer,
        "augment": order.augment,
        "by_step": order.by_step,
    }
    if order.in_pieces:
        source = order.data if is_source(order.data) else Arrays(order.data)
        steps = iterate_streaming(
            run,
            order.loss,
            order.model,
            source,
            key,
            folder=order.scratch,
            devices=order.devices,
            exact=order.exact,
            **how,
        )
    else:
        data = copy_arrays(order.data) if order.by_step else order.data
        how["executed_as"] = exactly(run) if order.exact else None
        steps = iterate_network(run, order.loss, order.model, data, key, **how)
    params = yield from steps
    return FittedNetwork(
        proof=order.certificate, delta=order.delta, exact=order.exact, run=run, params=params
    )


def copy_arrays(data: object) -> Any:
    """Records that a loop's own code cannot change between two steps."""
    return jax.tree.map(lambda leaf: leaf if isinstance(leaf, jax.Array) else np.array(leaf), data)


def name_optimizer(optimizer: object, model: object) -> str:
    """What a certificate calls an optimizer: functions have no name of their own."""
    return "an optax transformation"


def draws(model: object, loss: Any, augment: Any) -> list[str]:
    """An augmentation, and a loss that takes a key."""
    return [*name_augmentation(augment), *(["the loss"] if asks_for_key(loss) else [])]


def check_loss(run: Run, loss: object) -> None:
    """Refuse a run with a linear loss, what is no function, and classes where a record may hold
    several."""
    if type(run.loss) is not KnownConstants:
        raise InputError(
            "loss of the run",
            "must be KnownConstants where the loss is given as a function",
            type(run.loss).__name__,
            "leave model and loss out to train a linear model",
        )
    if not callable(loss):
        raise InputError(
            "loss", "must be a function of the parameters and one record", type(loss).__name__
        )
    if isinstance(loss, UnitLoss) and run.loss.class_weights is not None:
        raise InputError(
            "class_weight",
            "must be left out where records are units, whose rows may be of several classes",
            None,
            "multiply a row's loss by its weight inside of UnitLoss: a unit is clipped after that",
        )


def read(stored: StoredModel, like: object = None) -> FittedNetwork:
    """The model in a folder; its arrays in the structure of ``like``, or in dictionaries and lists."""
    run, tensors, leaves = (
        Run.from_dict(stored.model["run"]),
        stored.tensors(),
        stored.model.get("parameters"),
    )
    params = rebuilt(leaves, tensors) if like is None else restore_arrays(like, leaves, tensors)
    return FittedNetwork(
        proof=ProvenanceRecord(stored.certificate),
        delta=stored.certificate["delta"],
        run=run,
        params=params,
    )

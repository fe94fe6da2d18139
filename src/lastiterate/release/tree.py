"""Parameters in nested structures as named arrays: where each array hangs, in JSON, and the way back."""

# pyright: basic
# places in JAX's trees have no types
from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lastiterate.errors import InputError

WIDEST = 100_000
"""Entries of a list; what stands in a file cannot ask for more memory than that."""
PLAIN = ("float16", "float32", "float64")
"""Precisions of the file format; shorter ones are stored as float32, which holds them exactly."""
Step = tuple[str, Any]


def described(params: object) -> tuple[list[dict[str, Any]], dict[str, np.ndarray]]:
    """Every array of ``params``: its path, precision and name in the file, and the arrays by name.

    Leaves that are no arrays (activation functions, names) are code and stay behind.
    """
    leaves: list[dict[str, Any]] = []
    tensors: dict[str, np.ndarray] = {}
    for place, leaf in _arrays(params):
        array = np.asarray(leaf)
        name, dtype = str(len(leaves)), str(array.dtype)
        leaves.append({"path": [list(step) for step in place], "dtype": dtype, "array": name})
        tensors[name] = np.asarray(array if dtype in PLAIN else array.astype(np.float32), order="C")
    return leaves, tensors


def rebuilt(leaves: object, tensors: dict[str, np.ndarray]) -> Any:
    """The arrays in nested dictionaries (of keys and attributes) and lists."""
    placed = _placed(leaves, tensors)
    if [place for place, _ in placed] == [()]:
        return placed[0][1]
    root: dict[Step, Any] = {}
    for place, array in placed:
        node = root
        for step in place[:-1]:
            node = node.setdefault(step, {})
            if not isinstance(node, dict):
                raise _damaged("one array hangs below another")
        if not place or place[-1] in node:
            raise _damaged("two arrays hang in one place")
        node[place[-1]] = array
    return _plain(root)


def into(like: object, leaves: object, tensors: dict[str, np.ndarray]) -> Any:
    """The arrays in the structure of ``like``, which must have arrays of the same shapes in the same places."""
    arrays = dict(_placed(leaves, tensors))
    wanted = dict(_arrays(like))
    if arrays.keys() != wanted.keys():
        strange = sorted(map(str, arrays.keys() ^ wanted.keys()))
        raise InputError("like", "must have arrays in the same places as the model", strange[0])
    for place, leaf in wanted.items():
        if np.shape(leaf) != arrays[place].shape:
            raise InputError("like", f"must have arrays of the model's shapes, {arrays[place].shape} at {place}",
                             np.shape(leaf))
    paths, tree = jax.tree_util.tree_flatten_with_path(like)
    return jax.tree.unflatten(tree, [arrays.get(_steps(path), leaf) for path, leaf in paths])


def _arrays(params: object) -> list[tuple[tuple[Step, ...], Any]]:
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


def _placed(leaves: object, tensors: dict[str, np.ndarray]) -> list[tuple[tuple[Step, ...], np.ndarray]]:
    """What a file says about its arrays, checked."""
    if not isinstance(leaves, list) or not leaves:
        raise _damaged("no list of arrays")
    placed: list[tuple[tuple[Step, ...], np.ndarray]] = []
    for leaf in leaves:
        match leaf:
            case {"path": [*steps], "dtype": str() as dtype, "array": str() as name} if name in tensors:
                placed.append((tuple(map(_checked, steps)), _narrowed(tensors[name], dtype)))
            case _:
                raise _damaged("an array without a place")
    if len(placed) != len(tensors) or len({place for place, _ in placed}) != len(placed):
        raise _damaged("another number of arrays than places")
    return placed


def _checked(step: object) -> Step:
    match step:
        case ["index", int() as index] if type(index) is int and 0 <= index < WIDEST:
            return "index", index
        case ["attribute", str() as name]:
            return "attribute", name
        case ["key", key] if type(key) in (int, str):
            return "key", key
        case _:
            raise _damaged("a place that no structure has")


def _narrowed(array: np.ndarray, dtype: str) -> np.ndarray:
    try:
        wanted = jnp.dtype(dtype)
    except TypeError:
        raise _damaged("an unknown precision") from None
    if not jnp.issubdtype(wanted, jnp.floating) or not np.isfinite(array).all():
        raise _damaged("arrays that are no finite numbers")
    return array.astype(wanted)


def _plain(node: object) -> Any:
    if not isinstance(node, dict):
        return node
    kinds = {kind for kind, _ in node}
    if kinds == {"index"}:
        wide = max(index for _, index in node) + 1
        return [_plain(node.get(("index", index))) for index in range(wide)]
    if "index" in kinds:
        raise _damaged("a list with named entries")
    return {name: _plain(value) for (_, name), value in node.items()}


def _damaged(what: str) -> InputError:
    return InputError("parameters of the model", f"must be complete, and the folder holds {what}", None,
                      "check it with lastiterate verify")

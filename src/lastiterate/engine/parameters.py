"""Parameters in any nested structure, as one vector and back."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lastiterate.errors import InputError

ITEMS = (jax.tree_util.DictKey, jax.tree_util.SequenceKey)
"""Steps into dictionaries, lists and tuples. Objects of other kinds, as modules, may hold numbers
of their own."""


@dataclass(frozen=True)
class Form:
    """Structure, shapes and dtypes of parameters; during the run all of them lie in one float64
    vector.

    Where there are several vectors, (..., size), every array has their axes in front.

    Leaves that are no arrays, such as activation functions, stay as they are (``fixed``: ``None``
    for an array).
    """

    tree: jax.tree_util.PyTreeDef
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    fixed: tuple[Any, ...]

    @classmethod
    def of(cls, params: object) -> Form:
        leaves, tree = jax.tree.flatten(params)
        arrays = [leaf for leaf in leaves if hasattr(leaf, "dtype")]
        if not arrays:
            raise InputError("params", "must hold at least one array", type(params).__name__)
        for path, leaf in jax.tree_util.tree_leaves_with_path(params):  # pyright: ignore
            name = jax.tree_util.keystr(path) or "the array"  # pyright: ignore
            if hasattr(leaf, "dtype"):
                _check_array(name, leaf)
            elif isinstance(leaf, float) and all(isinstance(key, ITEMS) for key in path):  # pyright: ignore
                raise InputError(
                    "model",
                    f"must hold arrays, and {name} is a number, which would not be trained",
                    leaf,
                    f"write np.array({leaf!r})",
                )
        fixed = tuple(None if hasattr(leaf, "dtype") else leaf for leaf in leaves)
        return cls(
            tree,
            tuple(np.shape(leaf) for leaf in arrays),
            tuple(str(leaf.dtype) for leaf in arrays),
            fixed,
        )

    @property
    def size(self) -> int:
        return sum(map(math.prod, self.shapes))

    def vector(self, params: object) -> jax.Array:
        """All entries, (size,) float64."""
        arrays = [leaf for leaf in jax.tree.leaves(params) if hasattr(leaf, "dtype")]
        if all(
            isinstance(leaf, np.ndarray) for leaf in arrays
        ):  # without a program for every shape
            return jnp.asarray(
                np.concatenate([np.ravel(leaf).astype(np.float64) for leaf in arrays])
            )
        return jnp.concatenate([jnp.ravel(leaf).astype(jnp.float64) for leaf in arrays])

    def arrays(self, theta: np.ndarray | jax.Array, *, exact: bool) -> list[Any]:
        """The arrays as gradients are computed with them: float32 at least, or all float64."""
        return self._split(
            theta,
            [
                "float64" if exact else str(jnp.promote_types(dtype, "float32"))
                for dtype in self.dtypes
            ],
        )

    def restore_precision(self, theta: np.ndarray) -> list[Any]:
        """The arrays in the precision that they came in."""
        return self._split(theta, self.dtypes)

    def from_vector(self, theta: np.ndarray) -> Any:
        """Parameters as the loss takes them, in the precision that they came in."""
        return self.whole(self.restore_precision(theta))

    def _split(self, theta: np.ndarray | jax.Array, dtypes: Sequence[str]) -> list[Any]:
        ends = np.cumsum([math.prod(shape) for shape in self.shapes])[:-1]
        xp: Any = np if isinstance(theta, np.ndarray) else jnp
        return [
            part.reshape((*theta.shape[:-1], *shape)).astype(dtype)
            for part, shape, dtype in zip(
                xp.split(theta, ends, axis=-1), self.shapes, dtypes, strict=True
            )
        ]

    @property
    def array_names(self) -> list[str]:
        """Return the path of every array, as Python would write it."""
        leaves: Any = jax.tree_util.tree_leaves_with_path(self.whole(range(len(self.shapes))))  # pyright: ignore
        return [
            jax.tree_util.keystr(path) or "the array"  # pyright: ignore
            for (path, _), fixed in zip(leaves, self.fixed, strict=True)
            if fixed is None
        ]

    def whole(self, arrays: Iterable[object]) -> Any:
        """Parameters as the loss takes them, around their arrays."""
        rest = iter(arrays)
        return jax.tree.unflatten(
            self.tree, [next(rest) if leaf is None else leaf for leaf in self.fixed]
        )


def _check_array(name: str, leaf: np.ndarray | jax.Array) -> None:
    if not jnp.issubdtype(leaf.dtype, jnp.floating):
        raise InputError(
            "params",
            f"must be floating-point arrays, and {name} is not",
            str(leaf.dtype),
            "keep counters, keys and indices out of what is trained: of a module of Equinox train "
            "the "
            "first half of equinox.partition(module, equinox.is_inexact_array), and combine both "
            "in the "
            "loss",
        )
    if not np.isfinite(np.asarray(leaf, np.float64)).all():
        raise InputError("params", "must be finite at the start", name)

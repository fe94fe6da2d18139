"""State among the parameters, as layers of Equinox and collections of Flax hold it: found before anything is paid."""

from __future__ import annotations

import sys
from typing import Any

import jax

from lastiterate.errors import InputError

STATISTICS = "batch_stats"
"""What Flax calls the running means and variances of batch normalisation."""


def check_stateless(params: object) -> None:
    """Refuse batch normalisation, and every other layer whose state the records would change.

    Layers that are frozen (``inference=True``) may stay. Looks at the structure alone; where Equinox was not imported
    there is no such layer. Statistics of Flax are known by the name of their collection.
    """
    leaves: Any = jax.tree_util.tree_leaves_with_path(params)  # pyright: ignore
    for path, _ in leaves:
        if any(getattr(step, "key", None) == STATISTICS for step in path):
            raise InputError("model", "must hold parameters alone, and batch statistics are none: noise would be added "
                             "to them", jax.tree_util.keystr(path),  # pyright: ignore
                             'give variables["params"], and let the loss hold the statistics')
    nn: Any = getattr(sys.modules.get("equinox"), "nn", None)
    if nn is None:
        return

    def stateful(node: object) -> bool:
        return any(isinstance(part, nn.StateIndex) for part in getattr(node, "__dict__", {}).values())

    for path, node in jax.tree_util.tree_leaves_with_path(params, is_leaf=stateful):  # pyright: ignore
        if not stateful(node) or getattr(node, "inference", None) is True:
            continue
        name, place = type(node).__name__, jax.tree_util.keystr(path)  # pyright: ignore
        mixes = isinstance(node, nn.BatchNorm)
        raise InputError("model", "must treat every record alone, and batch normalisation mixes them" if mixes else
                         "must treat every record alone, and this layer keeps state from one to the next",
                         f"{name} at {place}" if place else name,
                         ("use equinox.nn.GroupNorm, or " if mixes else "") + "freeze it with "
                         "equinox.nn.inference_mode and give the module whole")

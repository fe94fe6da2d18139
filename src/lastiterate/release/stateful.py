"""Layers of Equinox that keep state from record to record: found in the parameters before anything is paid."""

from __future__ import annotations

import sys
from typing import Any

import jax

from lastiterate.errors import InputError


def check_stateless(params: object) -> None:
    """Refuse batch normalisation, and every other layer whose state the records would change.

    Layers that are frozen (``inference=True``) may stay. Looks at the structure alone; where Equinox was not imported
    there is no such layer.
    """
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

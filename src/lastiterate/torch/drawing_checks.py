"""What is refused of an augmentation before a record is read: it is tried on made-up records under made-up keys."""

# pyright: reportMissingImports=false
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.func import vmap
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map, tree_structure

from lastiterate.errors import InputError
from lastiterate.run.run import Run
from lastiterate.torch.keyed_dropout import drops
from lastiterate.torch.layers import all_tensors
from lastiterate.torch.own_rules import NoOwnRules
from lastiterate.torch.record_drawing import Augment, Drawing
from lastiterate.torch.record_gradients import made_up, normal, said


def with_blank_keys(records: tuple[Any, ...]) -> tuple[Any, ...]:
    """Records with keys, of which the form alone counts."""
    return (*records, torch.zeros(1, dtype=torch.int64))


BESIDE = 3
"""Made-up records that are vectorised together."""


def drawing_of(run: Run, module: torch.nn.Module, augment: Augment | None, records: tuple[Any, ...],
               dtype: torch.dtype) -> Drawing | None:
    """What the run's records draw, tried on made-up ones; of ``records`` shapes and types count.

    Errors: a run that says something else; what is no function of one record and its key alone.
    """
    dropping = any(drops(part) for part in module.modules())
    if (run.record_draws is not None) != (dropping or augment is not None):
        raise InputError("record_draws of the run", "must say what records draw, and nothing else", None,
                         "give train(augment=..., copies=...), and leave the run's to it")
    if run.record_draws is None:
        return None
    drawing = Drawing(augment, run.record_draws.copies)
    if augment is not None:
        _check_augment(run, drawing, records, dtype)
    return drawing


def _check_augment(run: Run, drawing: Drawing, records: tuple[Any, ...], dtype: torch.dtype) -> None:
    """Refuse what is no function of one record and its key alone."""
    first = made_up(records[0], dtype, normal, BESIDE)
    words, random = torch.arange(BESIDE), torch.random.get_rng_state()
    with HoldsNoRecords(run, records[0]):
        alone = [_tried(drawing, tree_map(lambda a, at=i: a[at], first), words[i]) for i in range(BESIDE)]
    if not torch.equal(random, torch.random.get_rng_state()):
        raise InputError("augment", "must draw from its key, and draws from the generator of all records", None,
                         "write key.uniform(...), key.normal(...) or key.integers(...)")
    try:
        with NoOwnRules():
            beside = vmap(lambda one, word: drawing.drawn((one,), word)[0])(first, words)
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        raise InputError("augment", "must be made of operations that torch.func.vmap takes", said(error),
                         "write torch.where in the place of if, and draw from the key") from None
    for i, one in enumerate(alone):
        for part, many in zip(tree_leaves(one), tree_leaves(beside), strict=True):
            if many[i].shape != part.shape or not torch.allclose(many[i].double(), part.double(), 1e-4, 1e-6,
                                                                equal_nan=True):
                raise InputError("augment", "must look at one record, and what it makes depends on those that it is "
                                 "vectorised with", None, "look for functions with a vmap of their own")


def _tried(drawing: Drawing, first: object, word: torch.Tensor) -> Any:
    """What is made of one made-up record."""
    try:
        made = drawing.drawn((first,), word)[0]
        same = tree_structure(made) == tree_structure(first)
    except InputError:
        raise
    except (RuntimeError, TypeError, ValueError, IndexError, AttributeError, KeyError) as error:
        raise InputError("augment", "must take a key and one record (without a batch axis), and give a record of that "
                         "form", said(error), "draw with key.uniform(...), key.normal(...), key.integers(...)"
                         ) from None
    if not same:
        raise InputError("augment", "must give a record of the form that it takes", str(tree_structure(made))[:120])
    return made


class HoldsNoRecords(TorchFunctionMode):
    """Refuses, while it is active, tensors with one entry for every record, each of a record's shape."""

    def __init__(self, run: Run, first: object) -> None:
        super().__init__()
        self._rows = {(run.n, *leaf.shape[1:]) for leaf in tree_leaves(first)}

    def __torch_function__(self, func: Callable[..., Any], types: object, args: tuple[Any, ...] = (),
                           kwargs: dict[str, Any] | None = None) -> Any:
        if any(tuple(tensor.shape) in self._rows for tensor in all_tensors((args, kwargs or {}))):
            raise InputError("augment", "must look at one record, and holds a tensor with one entry for every record",
                             None, "what it needs of others is no longer that record's own")
        return func(*args, **(kwargs or {}))

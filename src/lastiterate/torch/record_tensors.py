"""Records from a torch Dataset, tensors or arrays: nested tensors with the records along their first axis."""

# pyright: reportMissingImports=false
from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_leaves, tree_map

from lastiterate.engine.streaming.record_source import first_record
from lastiterate.errors import InputError
from lastiterate.release.order import is_source
from lastiterate.run.run import Run
from lastiterate.torch.dataset_pieces import item_of
from lastiterate.torch.module_outputs import as_dictionary

UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)


def records_of(run: Run, data: Any, device: torch.device) -> tuple[Any, ...]:
    """The run's n records as a tuple: what the module takes, then what the loss takes beside its output.

    Tensors stay where they are: on the CPU, or on the module's device. Of a source that is read in pieces it is the
    first record alone, whose form all others have. Errors: another number of records than n, numbers that are not
    finite, tensors on a third device.
    """
    n = run.n
    if is_source(data):
        if len(data) != n:
            raise InputError("data", f"must have the run's n = {n} records", len(data))
        n, data = 1, first_record(data)
    n = records_in(data, n) if run.nominal else n
    parts = stacked(data, n) if isinstance(data, torch.utils.data.Dataset) else whole(data)
    if not isinstance(parts, tuple) or len(parts) < 1:
        raise InputError("data", "must be a Dataset, a dictionary, or a tuple: what the module takes, then what the "
                         "loss takes", type(parts).__name__, "write (x, y)")
    records = tensors_of(parts)
    check_lengths(records, n)
    leaves = tree_leaves(records)
    for leaf in leaves:
        if leaf.device.type != "cpu" and leaf.device != device:
            raise InputError("data", f"must lie on the CPU or on the module's device, {device}", str(leaf.device),
                             "move the module or the data")
        if (leaf.is_floating_point() or leaf.is_complex()) and not bool(torch.isfinite(leaf).all()):
            raise InputError("data", "must be finite numbers", "NaN or infinity", "fill or drop those values first")
    if not leaves:
        raise InputError("data", "must hold at least one tensor", None)
    return records


def records_in(data: Any, n: int) -> int:
    """How many records there are, where n is nominal; n where nothing has a length."""
    if isinstance(data, torch.utils.data.Dataset):
        return len(data) if hasattr(data, "__len__") else n  # pyright: ignore
    leaves = [leaf for leaf in tree_leaves(whole(data)) if np.ndim(leaf) > 0]
    return max(1, len(leaves[0])) if leaves else n


def check_lengths(records: tuple[Any, ...], n: int) -> None:
    """Refuse tensors or arrays of another length than n."""
    for leaf in tree_leaves(records):
        if np.ndim(leaf) < 1 or np.shape(leaf)[0] != n:
            raise InputError("data", f"must have the run's n = {n} records along the first axis of every tensor",
                             tuple(np.shape(leaf)))


def check_items(data: Any, n: int) -> None:
    """Refuse a Dataset of another number of items than n, or one without numbers."""
    if isinstance(data, torch.utils.data.IterableDataset) or not hasattr(data, "__len__"):
        raise InputError("data", "must be a Dataset with a length and numbered items", type(data).__name__,
                         "the run decides which record is in which batch")
    if len(data) != n:
        raise InputError("data", f"must have the run's n = {n} records", len(data), "set n to the length of the data")


def whole(data: object) -> Any:
    """Records as a tuple of their parts: a dictionary is all that the module takes, with nothing for the loss besides.
    """
    data = as_dictionary(data)
    return (data,) if isinstance(data, dict) else tuple(map(as_dictionary, data)) if isinstance(data, tuple) else data


def tensors_of(records: tuple[Any, ...]) -> tuple[Any, ...]:
    """Tensors or arrays as tensors."""
    return tuple(_tensors(part) for part in records)


def numpy_targets(records: tuple[Any, ...]) -> tuple[Any, ...]:
    """The first two parts of records, the second as an array of NumPy where it is one tensor: what a class is read of.
    """
    return (records[0], *(part.numpy(force=True) if isinstance(part, torch.Tensor) else part for part in records[1:2]))


def blank(records: tuple[Any, ...]) -> tuple[Any, ...]:
    """One record of zeros, of the shapes and types of these; no number is read."""
    def one(value: object) -> torch.Tensor:
        held = value if isinstance(value, torch.Tensor) else np.asarray(value)
        if not held.ndim:
            raise InputError("data", "must be tensors or arrays with the records along their first axis",
                             type(value).__name__, "write np.asarray(...) around lists; texts of several lengths are "
                             "filled up first")
        if isinstance(held, torch.Tensor):
            return long(torch.zeros((1, *held.shape[1:]), dtype=held.dtype))
        return tensors_of((np.zeros((1, *held.shape[1:]), held.dtype),))[0]

    return tuple(tree_map(one, part) for part in records)


def _tensors(part: object, name: str = "data") -> Any:
    def one(value: object) -> torch.Tensor:
        if isinstance(value, torch.Tensor):
            return long(value.detach())
        array = np.asarray(value)
        if array.dtype.kind not in "fiub":
            raise InputError(name, "must be tensors or arrays of numbers", str(array.dtype))
        return long(torch.from_numpy(np.array(array)))

    return tree_map(one, part)


def long(values: torch.Tensor) -> torch.Tensor:
    """As torch takes them: whole numbers along one axis are class indices, which are long integers, and so are wide
    ones without a sign, with which it hardly computes."""
    whole = not (values.is_floating_point() or values.is_complex() or values.dtype == torch.bool)
    return values.long() if whole and (values.dim() == 1 or values.dtype in UNSIGNED) else values


def stacked(data: Any, n: int) -> tuple[Any, ...]:
    """All items of a Dataset, each read once."""
    check_items(data, n)
    if type(data) is torch.utils.data.TensorDataset:
        return data.tensors
    items = [item if isinstance(item, tuple) else tuple(item) if isinstance(item, list) else (item,)
             for item in (item_of(data, i) for i in range(n))]
    try:
        return tuple(torch.utils.data.default_collate(list(part)) for part in zip(*items, strict=True))
    except (RuntimeError, TypeError, ValueError):
        raise InputError("data", "must have items of the same parts and shapes, made of tensors or numbers", None,
                         "fill up what is shorter") from None


def positional(data: object) -> int:
    """How many parts a module takes by position, of records as ``train`` takes them; 0 where it takes them by name.

    Records that are read in pieces have one part for the module.
    """
    first = None if is_source(data) else whole(data)[0]
    return 0 if isinstance(first, dict) else len(first) if isinstance(first, tuple) else 1


def inputs_of(x: object, parts: int | None) -> Any:
    """What a module takes, of records with or without what the loss takes beside: tensors of one length, nested as they
    are given.

    ``parts``: ``positional`` of the records of the training, which says what a tuple of arrays is; None: not known. A
    Dataset's items are read. Errors: anything else, and lengths that differ.
    """
    if isinstance(x, torch.utils.data.Dataset):
        x = stacked(x, len(x) if hasattr(x, "__len__") else 0)  # type: ignore[arg-type]
    x = tuple(map(as_dictionary, x)) if isinstance(x, tuple) else as_dictionary(x)
    inputs = _tensors(x if isinstance(x, tuple | dict | torch.Tensor) else np.asarray(x), "x")
    leaves = tree_leaves(inputs)
    if not leaves or any(leaf.dim() < 1 or len(leaf) != len(leaves[0]) for leaf in leaves):
        raise InputError("x", "must have records along the first axis, as many in every part",
                         str([tuple(leaf.shape) for leaf in leaves])[:120])
    if isinstance(inputs, tuple) and (parts == 1 or isinstance(inputs[0], tuple | dict)):
        inputs = inputs[0]  # the rest is for the loss
    given = len(inputs) if isinstance(inputs, tuple) else 1
    if given > 1 and parts is None:
        raise InputError("x", "must say which of its parts the module takes, for the model does not", f"{given} parts",
                         "give the one part alone, or ((a, b), y) for several")
    if not isinstance(inputs, dict) and given != (parts or given):
        raise InputError("x", f"must hold the {parts} parts that the module was trained on, as train takes them", given)
    if not isinstance(inputs, dict) and parts == 0:
        raise InputError("x", "must be a dictionary, by whose names the module was trained", f"{given} without names")
    return inputs


def taken(records: object, places: torch.Tensor, device: torch.device) -> Any:
    """The records at ``places``, on the device."""
    return tree_map(lambda a: a.index_select(0, places.to(a.device)).to(device), records)

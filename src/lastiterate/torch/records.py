"""Records from datasets, tensors and arrays, and a module's nested inputs and outputs."""

# pyright: reportMissingImports=false
from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, final

import numpy as np
import torch
from torch.utils._pytree import tree_leaves, tree_map

from lastiterate.engine.streaming.source import first_record
from lastiterate.errors import InputError, outside
from lastiterate.release.training_request import is_source
from lastiterate.run.run import Run

# A torch Dataset of any size as records that are read in pieces, by several threads where that is
# asked for.


@final
@dataclass(frozen=True, eq=False)
class DatasetPieces:
    """A torch ``Dataset`` as a source of records, read in pieces.

    A run that reads records again reads them from an encrypted temporary file.

    Parameters
    ----------
    dataset : torch.utils.data.Dataset
        Dataset with a length. Its items are tuples: the inputs of the module, then the further
        arguments of the loss. An item must be a function of its index alone, and may be read by
        several threads; random transformations belong in ``train(augment=)``.
    num_workers : int, default 0
        Number of threads that read items, at most 64. They change no bit of the result.

    Raises
    ------
    InputError
        If the dataset has no length, or ``num_workers`` is out of range.

    Examples
    --------
    >>> import torch
    >>> from lastiterate.torch import DatasetPieces
    >>> data = torch.utils.data.TensorDataset(torch.ones(5, 3), torch.zeros(5))
    >>> [len(x) for x, y in DatasetPieces(data).pieces(2)]
    [2, 2, 1]
    """

    dataset: torch.utils.data.Dataset[Any]
    num_workers: int = 0
    dear = True

    def __post_init__(self) -> None:
        data, workers = self.dataset, self.num_workers
        if isinstance(data, torch.utils.data.IterableDataset) or not hasattr(data, "__len__"):
            raise InputError(
                "dataset",
                "must be a Dataset with a length and numbered items",
                type(data).__name__,
                "give one with __len__ and __getitem__",
            )
        if isinstance(workers, bool) or not isinstance(workers, int) or not 0 <= workers <= 64:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InputError("num_workers", "must be an integer 0 .. 64", workers)

    def __len__(self) -> int:
        return len(self.dataset)  # type: ignore[arg-type]

    def pieces(self, most: int, first: int = 0) -> Iterator[tuple[np.ndarray, ...]]:
        """Records from number ``first`` on, ``most`` at a time."""
        several = self.num_workers > 0 and most > 1
        with ThreadPoolExecutor(self.num_workers) if several else nullcontext() as pool:
            mapped: Callable[..., Iterable[Any]] = map if pool is None else pool.map
            for begin in range(first, len(self), most):
                numbers = range(begin, min(len(self), begin + most))
                items = list(mapped(partial(item_of, self.dataset), numbers))
                if begin == 0:
                    warn_of_random_items(self.dataset, items)
                yield _stack_items(items)

    def fingerprint(self) -> Iterator[np.ndarray]:
        """All records."""
        for piece in self.pieces(2**12):
            yield from piece


def item_of(dataset: torch.utils.data.Dataset[Any], number: int) -> Any:
    """One item; what a Dataset raises may hold a record's values, and only its type is shown."""
    try:
        return dataset[number]
    except InputError:
        raise
    except Exception as error:
        raise InputError(
            "data",
            "must give an item for every number below its length: its __getitem__ raised an error",
            type(error).__name__,
            "ask the Dataset for its items in a loop to see it",
        ) from None


def _stack_items(items: list[Any]) -> tuple[np.ndarray, ...]:
    """Items as arrays with the records along their first axis."""
    rows = [item if isinstance(item, tuple | list) else (item,) for item in items]
    try:
        arrays = tuple(
            np.stack([np.asarray(part) for part in parts]) for parts in zip(*rows, strict=True)
        )
    except (ValueError, TypeError, RuntimeError):
        raise InputError(
            "data",
            "must have items of the same parts and shapes, made of tensors or numbers",
            None,
            "fill up what is shorter",
        ) from None
    if any(part.dtype.kind not in "fiub" for part in arrays):
        raise InputError(
            "data",
            "must have items made of tensors or numbers",
            None,
            "a tuple of them: dictionaries are taken where the Dataset itself is given to train",
        )
    return arrays


# Inputs and outputs of a module other than plain tensors: dictionaries, classes of its own, caches,
# means of a batch.


def to_dictionary(given: object) -> Any:
    """A mapping of a class of its own, as tokenizers give one, as a dictionary; anything else as it
    is."""
    return dict(given) if isinstance(given, Mapping) else given


def predict_records(module: torch.nn.Module, records: object) -> Any:
    """What a module answers for some records, which it takes by name where they are a dictionary."""
    if isinstance(records, dict):
        return module(**records)
    return module(*(records if isinstance(records, tuple) else (records,)))


def tensors_in(output: object) -> Iterator[torch.Tensor]:
    """The tensors with axes that a module answers. Numbers without one are means over the batch,
    such as a loss that the module computes itself; what is no tensor, such as a cache for later
    words, is nobody's answer."""
    for leaf in tree_leaves(output):
        if isinstance(leaf, torch.Tensor):
            if leaf.dim() > 0:
                yield leaf
        elif isinstance(leaf, Mapping):
            yield from tensors_in(dict(leaf))


def without_batch(output: object) -> Any:
    """What the module answers for one record: its tensors without the batch axis, all else as it
    is, in its classes."""

    def one(leaf: object) -> Any:
        if isinstance(leaf, torch.Tensor):
            return leaf[0] if leaf.dim() > 0 else leaf
        return without_batch(dict(leaf)) if isinstance(leaf, Mapping) else leaf

    return tree_map(one, output)


def split_by_record(output: object, count: int, make: Callable[[torch.Tensor], Any]) -> Any:
    """What ``make`` makes of the tensors that a module answers for each of ``count`` records, in
    tuples and dictionaries; None where there are none."""
    if isinstance(output, torch.Tensor):
        return make(output) if output.dim() > 0 and len(output) == count else None
    if isinstance(output, Mapping):
        parts = {name: split_by_record(each, count, make) for name, each in output.items()}
        return {name: made for name, made in parts.items() if made is not None} or None
    if isinstance(output, tuple | list):
        return (
            tuple(
                made for each in output if (made := split_by_record(each, count, make)) is not None
            )
            or None
        )
    return None


def to_arrays(output: object, count: int) -> Any:
    """The same as arrays; NumPy has no bfloat16."""
    return split_by_record(
        output,
        count,
        lambda tensor: (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).cpu().numpy(),
    )


def join_answers(parts: list[Any]) -> Any:
    """Answers for some records after another as one."""
    return tree_map(lambda *each: np.concatenate(each), *parts)


# Records from a torch Dataset, tensors or arrays: nested tensors with the records along their first
# axis.


UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)


def records_of(run: Run, data: Any, device: torch.device) -> tuple[Any, ...]:
    """Return the run's n records as a tuple: the inputs of the module, then those of the loss other
    than the module's output.

    Tensors stay where they are: on the CPU, or on the module's device. Of a source that is read in
    pieces it is the first record alone, whose form all others have. Errors: another number of
    records than n, numbers that are not finite, tensors on a third device.
    """
    n = run.n
    if is_source(data):
        if len(data) != n:
            raise InputError("data", f"must have the run's n = {n} records", len(data))
        n, data = 1, first_record(data)
    n = records_in(data, n) if run.nominal else n
    parts = stack_dataset(data, n) if isinstance(data, torch.utils.data.Dataset) else whole(data)
    if not isinstance(parts, tuple) or len(parts) < 1:
        raise InputError(
            "data",
            "must be a Dataset, a dictionary, or a tuple: what the module takes, then what the "
            "loss takes",
            type(parts).__name__,
            "give loader.dataset: the run draws its batches itself"
            if isinstance(parts, torch.utils.data.DataLoader)
            else "write (x, y), or (x, x) where a record is its own target",
        )
    records = tensors_of(parts)
    check_lengths(records, n)
    leaves = tree_leaves(records)
    for leaf in leaves:
        if leaf.device.type != "cpu" and leaf.device != device:
            raise InputError(
                "data",
                f"must lie on the CPU or on the module's device, {device}",
                str(leaf.device),
                "move the module or the data",
            )
        if (leaf.is_floating_point() or leaf.is_complex()) and not bool(torch.isfinite(leaf).all()):
            raise InputError(
                "data",
                "must be finite numbers",
                "NaN or infinity",
                "fill or drop those values first",
            )
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
            raise InputError(
                "data",
                f"must have the run's n = {n} records along the first axis of every tensor",
                tuple(np.shape(leaf)),
            )


def check_items(data: Any, n: int) -> None:
    """Refuse a Dataset of another number of items than n, or one without numbers."""
    if isinstance(data, torch.utils.data.IterableDataset) or not hasattr(data, "__len__"):
        raise InputError(
            "data",
            "must be a Dataset with a length and numbered items",
            type(data).__name__,
            "the run decides which record is in which batch: give a Dataset with __len__ and "
            "__getitem__, or read the stream into tensors first",
        )
    if len(data) != n:
        raise InputError(
            "data",
            f"must have the run's n = {n} records",
            len(data),
            "set n to the length of the data",
        )


def whole(data: object) -> Any:
    """Records as a tuple of their parts: a dictionary is all that the module takes, with nothing
    for the loss besides."""
    data = to_dictionary(data)
    return (
        (data,)
        if isinstance(data, dict)
        else tuple(map(to_dictionary, data))
        if isinstance(data, tuple)
        else data
    )


def tensors_of(records: tuple[Any, ...]) -> tuple[Any, ...]:
    """Tensors or arrays as tensors."""
    return tuple(_tensors(part) for part in records)


def numpy_targets(records: tuple[Any, ...]) -> tuple[Any, ...]:
    """The first two parts of records, the second as an array of NumPy where it is one tensor: what
    a class is read of."""
    return (
        records[0],
        *(
            part.numpy(force=True) if isinstance(part, torch.Tensor) else part
            for part in records[1:2]
        ),
    )


def blank(records: tuple[Any, ...]) -> tuple[Any, ...]:
    """One record of zeros, of the shapes and types of these; no number is read."""

    def one(value: object) -> torch.Tensor:
        held = value if isinstance(value, torch.Tensor) else np.asarray(value)
        if not held.ndim:
            raise InputError(
                "data",
                "must be tensors or arrays with the records along their first axis",
                type(value).__name__,
                "write np.asarray(...) around lists; texts of several lengths are filled up first",
            )
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
            raise InputError(
                name,
                "must be tensors or arrays of numbers",
                str(array.dtype),
                "of a DataLoader give each batch by itself" if name == "x" else "",
            )
        return long(torch.from_numpy(np.array(array)))

    return tree_map(one, part)


def long(values: torch.Tensor) -> torch.Tensor:
    """Convert integers to the types that torch takes: those along one axis are class indices, which
    are long integers; wide unsigned ones become long too, because torch hardly computes with
    them."""
    whole = not (values.is_floating_point() or values.is_complex() or values.dtype == torch.bool)
    return values.long() if whole and (values.dim() == 1 or values.dtype in UNSIGNED) else values


def as_tuple(item: object) -> tuple[Any, ...]:
    """An item's parts."""
    return tuple(item) if isinstance(item, tuple | list) else (item,)


def is_same(one: Any, two: Any) -> bool:
    """Whether two readings of a part are equal, as far as they are numbers."""
    try:
        one, two = torch.as_tensor(one), torch.as_tensor(two)
        both_nan = (one != one) & (two != two)
        return one.shape == two.shape and bool(((one == two) | both_nan).all())
    except (TypeError, ValueError, RuntimeError):
        return True  # no numbers: refused where they are stacked


READ_AGAIN = 4
"""Items of a Dataset that are read twice: a transform that flips a coin is missed in one of 16."""


def warn_of_random_items(data: Any, items: list[Any]) -> None:
    """Warn where the first items differ when they are read again: each keeps one form in the whole
    training. The same words for all records."""
    for number, item in enumerate(items[:READ_AGAIN]):
        again = as_tuple(item_of(data, number))
        pairs = zip(tree_leaves(as_tuple(item)), tree_leaves(again), strict=False)
        if not all(is_same(one, two) for one, two in pairs):
            warnings.warn(
                "data: items of the Dataset differ when they are read again, and every record keeps "
                "the form of one reading; leave random transforms out of the Dataset, and give them "
                "to train(augment=...)",
                stacklevel=outside(),
            )
            return


def stack_dataset(data: Any, n: int) -> tuple[Any, ...]:
    """All items of a Dataset, each read once."""
    check_items(data, n)
    if type(data) is torch.utils.data.TensorDataset:
        return data.tensors
    items = [as_tuple(item_of(data, i)) for i in range(n)]
    warn_of_random_items(data, items)
    try:
        return tuple(
            torch.utils.data.default_collate(list(part)) for part in zip(*items, strict=True)
        )
    except (RuntimeError, TypeError, ValueError):
        raise InputError(
            "data",
            "must have items of the same parts and shapes, made of tensors or numbers",
            None,
            "fill up what is shorter",
        ) from None


def positional(data: object) -> int:
    """How many parts a module takes by position, of records as ``train`` takes them; 0 where it
    takes them by name.

    Records that are read in pieces have one part for the module.
    """
    first = None if is_source(data) else whole(data)[0]
    return 0 if isinstance(first, dict) else len(first) if isinstance(first, tuple) else 1


def inputs_of(x: object, parts: int | None) -> Any:
    """Return the module's inputs, from records with or without the loss's: tensors of one length,
    nested as they are given.

    ``parts``: ``positional`` of the records of the training, which says what a tuple of arrays is;
    None: not known. A Dataset's items are read. Errors: anything else, and lengths that differ.
    """
    if isinstance(x, torch.utils.data.Dataset):
        x = stack_dataset(x, len(x) if hasattr(x, "__len__") else 0)  # type: ignore[arg-type]
    x = tuple(map(to_dictionary, x)) if isinstance(x, tuple) else to_dictionary(x)
    inputs = _tensors(x if isinstance(x, tuple | dict | torch.Tensor) else np.asarray(x), "x")
    leaves = tree_leaves(inputs)
    if not leaves or any(leaf.dim() < 1 or len(leaf) != len(leaves[0]) for leaf in leaves):
        raise InputError(
            "x",
            "must have records along the first axis, as many in every part",
            str([tuple(leaf.shape) for leaf in leaves])[:120],
        )
    if isinstance(inputs, tuple) and (parts == 1 or isinstance(inputs[0], tuple | dict)):
        inputs = inputs[0]  # the rest is for the loss
    given = len(inputs) if isinstance(inputs, tuple) else 1
    if given > 1 and parts is None:
        raise InputError(
            "x",
            "must say which of its parts the module takes, for the model does not",
            f"{given} parts",
            "give the one part alone, or ((a, b), y) for several",
        )
    if not isinstance(inputs, dict) and given != (parts or given):
        raise InputError(
            "x",
            f"must hold the {parts} parts that the module was trained on, as train takes them",
            given,
        )
    if not isinstance(inputs, dict) and parts == 0:
        raise InputError(
            "x",
            "must be a dictionary, by whose names the module was trained",
            f"{given} without names",
        )
    return inputs


def take_records(records: object, places: torch.Tensor, device: torch.device) -> Any:
    """The records at ``places``, on the device."""
    return tree_map(lambda a: a.index_select(0, places.to(a.device)).to(device), records)

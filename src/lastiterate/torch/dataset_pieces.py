"""A torch Dataset of any size as records that are read in pieces, by several threads where that is asked for."""

# pyright: reportMissingImports=false
from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, final

import numpy as np
import torch

from lastiterate.errors import InputError


@final
@dataclass(frozen=True, eq=False)
class DatasetPieces:
    """The items of ``dataset``, tuples of tensors or numbers: what the module takes, then what the loss takes.

    An item is a function of its number alone, and may be asked for by several threads: random transformations belong in
    ``train(augment=)``. ``num_workers``: threads that read the items of a piece; they change no bit. A run that reads
    records again reads them from an encrypted scratch file.
    """

    dataset: torch.utils.data.Dataset[Any]
    num_workers: int = 0
    dear = True

    def __post_init__(self) -> None:
        data, workers = self.dataset, self.num_workers
        if isinstance(data, torch.utils.data.IterableDataset) or not hasattr(data, "__len__"):
            raise InputError("dataset", "must be a Dataset with a length and numbered items", type(data).__name__)
        if isinstance(workers, bool) or not isinstance(workers, int) or not 0 <= workers <= 64:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InputError("num_workers", "must be a whole number 0 .. 64", workers)

    def __len__(self) -> int:
        return len(self.dataset)  # type: ignore[arg-type]

    def pieces(self, most: int, first: int = 0) -> Iterator[tuple[np.ndarray, ...]]:
        """Records from number ``first`` on, ``most`` at a time."""
        several = self.num_workers > 0 and most > 1
        with ThreadPoolExecutor(self.num_workers) if several else nullcontext() as pool:
            mapped: Callable[..., Iterable[Any]] = map if pool is None else pool.map
            for begin in range(first, len(self), most):
                numbers = range(begin, min(len(self), begin + most))
                yield _stacked(list(mapped(partial(item_of, self.dataset), numbers)))

    def digested(self) -> Iterator[np.ndarray]:
        """All records."""
        for piece in self.pieces(2**12):
            yield from piece


def item_of(dataset: torch.utils.data.Dataset[Any], number: int) -> Any:
    """One item; what a Dataset raises may hold a record's values, and only its type is shown."""
    try:
        return dataset[number]
    except Exception as error:
        raise InputError("data", "must give an item for every number below its length: its __getitem__ raised an error",
                         type(error).__name__, "ask the Dataset for its items in a loop to see it") from None


def _stacked(items: list[Any]) -> tuple[np.ndarray, ...]:
    """Items as arrays with the records along their first axis."""
    rows = [item if isinstance(item, tuple | list) else (item,) for item in items]
    try:
        arrays = tuple(np.stack([np.asarray(part) for part in parts]) for parts in zip(*rows, strict=True))
    except (ValueError, TypeError, RuntimeError):
        raise InputError("data", "must have items of the same parts and shapes, made of tensors or numbers", None,
                         "fill up what is shorter") from None
    if any(part.dtype.kind not in "fiub" for part in arrays):
        raise InputError("data", "must have items made of tensors or numbers", None,
                         "a tuple of them: dictionaries are taken where the Dataset itself is given to train")
    return arrays

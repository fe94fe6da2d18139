"""Batchings of plug-ins: blocks in public order that a rule of another package cuts."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field, fields
from functools import lru_cache
from typing import ClassVar, Self, cast, get_args

import numpy as np

from lastiterate import plugins
from lastiterate.errors import InputError
from lastiterate.run.batching import Batches, Batching, FullBatch, Indices
from lastiterate.run.serialization import admit, normalise_fields, require
from lastiterate.run.validation import check_integer


@dataclass(frozen=True)
class PublicBlocks(Batches):
    """Base of the batchings that other packages provide: blocks in public order, cut by a rule.

    A subclass is a frozen dataclass with a ``word`` and a method ``divide``; everything else follows
    from these here, the execution of a run included.

    Parameters
    ----------
    size : int
        Most records of a block, at least 1. Some blocks may hold fewer; sums are divided by
        ``size`` all the same.

    See Also
    --------
    lastiterate.Cyclic : Contiguous blocks, the last one shorter.

    Notes
    -----
    **Guarantee:** a plug-in draws nothing and answers nothing but its cut, which is checked and
    kept once for each ``n``: what is accounted is what is executed. Nothing about the batches is
    secret.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> import numpy as np
    >>> from lastiterate.run.plugin_batching import PublicBlocks
    >>> @dataclass(frozen=True)
    ... class Strided(PublicBlocks):
    ...     word = "strided"
    ...
    ...     def divide(self, n):
    ...         return np.arange(n) % -(-n // self.size)
    >>> Strided(4).block_sizes(10)
    array([4, 3, 3])
    """

    size: int = field(metadata=require(check_integer, "batch size"))
    drawn, sizes, secret, independent = "never", "some shorter", "", False
    not_admitted: ClassVar[str] = (
        "a batching of another package needs an entry point in lastiterate.batchings, and "
        "lastiterate.allow_plugins()"
    )

    def __post_init__(self) -> None:
        normalise_fields(self)
        if type(self) not in _PROVIDERS:
            find_plugins()  # where they are allowed, its package is found by its entry point

    @abstractmethod
    def divide(self, n: int) -> Indices:
        """Return the block that holds each record.

        Parameters
        ----------
        n : int
            Public number of records.

        Returns
        -------
        numpy.ndarray, shape (n,)
            Integers 0, 1, ..., each for at least one record and at most ``size``; always the same.
        """

    @classmethod
    def of_size(cls, n: int, size: int) -> Self:
        return cls(size)

    def divisor(self, n: int) -> float:
        return float(self.size)

    def blocks(self, n: int) -> int:
        return self.block_sizes(n).size

    def shares(self, n: int) -> tuple[float, float]:
        sizes = self.block_sizes(n)
        return float(sizes.min()) / self.size, float(sizes.max()) / self.size

    def assign_blocks(self, n: int) -> Indices:
        return _check_blocks(self, n)[0]

    def block_sizes(self, n: int) -> Indices:
        return _check_blocks(self, n)[1]


@lru_cache(maxsize=64)
def _check_blocks(batching: PublicBlocks, n: int) -> tuple[Indices, Indices]:
    """Return a plug-in's blocks of the records and the sizes of the blocks, read-only."""
    rule = f"must cut {n} records into blocks 0, 1, ... of 1 to {batching.size}, and its divide"
    held = _integers(batching.divide(n), n, rule)
    if held.min() < 0 or held.max() >= n:
        raise InputError("batching", f"{rule} gives a block {held[np.argmax(abs(held))]}")
    sizes = np.bincount(held)
    if sizes.min() < 1 or sizes.max() > batching.size:
        raise InputError("batching", f"{rule} makes blocks of {sizes.min()} to {sizes.max()}")
    if not np.array_equal(held, _integers(batching.divide(n), n, rule)):
        raise InputError("batching", f"{rule} is another one when it is asked again")
    held.setflags(write=False)
    sizes.setflags(write=False)
    return held, sizes


def _integers(cut: object, n: int, rule: str) -> Indices:
    """Return a copy of what a plug-in gave, which its later changes do not reach."""
    given = np.array(cut)
    if given.shape != (n,) or given.dtype.kind not in "iu":
        raise InputError("batching", f"{rule} gives no integers of shape (n,)")
    return given.astype(np.int64)


_PROVIDERS: dict[type[Batches], str] = {}


def find_plugins() -> dict[str, type[PublicBlocks]]:
    """Return the batchings of plug-ins by ``word``; none where they are not allowed."""
    return plugins.find_all("batchings", _accept)


def provider_of(batching: Batches) -> tuple[plugins.Outside, ...]:
    """Return the mark of a plug-in's batching; none for those of this project."""
    by = _PROVIDERS.get(type(batching))
    return () if by is None else (plugins.Outside("batchings", batching.word, by),)


def describe_provider(kind: type[PublicBlocks]) -> str:
    """Say which package provides a batching."""
    return plugins.mark(_PROVIDERS[kind])


def is_batching(value: object) -> bool:
    """Whether a value is a batching of this project, or an accepted one of a plug-in."""
    return type(value) in get_args(Batching) or type(value) in _PROVIDERS


def _accept(name: str, value: object, package: str) -> type[PublicBlocks]:
    """Return the class of a plug-in, from now on one that runs may hold."""
    known: tuple[type[Batches], ...] = get_args(Batching)
    bases = value.__bases__ if isinstance(value, type) else ()
    if bases != (PublicBlocks,) or "__dataclass_fields__" not in vars(value):
        raise InputError(
            "entry point",
            "must name a frozen dataclass that derives from "
            "lastiterate.run.plugin_batching.PublicBlocks alone",
            getattr(value, "__name__", None),
        )
    kind = cast("type[PublicBlocks]", value)
    own = {key for key in vars(kind) if not key.startswith("_")}
    others = {item.name for item in fields(PublicBlocks)} | {"divide", "word"}
    answered = sorted(own & (set(dir(PublicBlocks)) - others))
    if answered:
        raise InputError("batching", "must not answer what follows from its divide", answered[0])
    if vars(kind).get("word") != name:
        raise InputError("entry point", f"must be called as word of {kind.__name__} is", name)
    if name in {one.word for one in known} or kind.__name__ in {one.__name__ for one in known}:
        raise InputError("batching", "must have a name that no batching of this project has", name)
    _PROVIDERS[kind] = package
    admit(kind, FullBatch)
    return kind

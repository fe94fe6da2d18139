"""Devices that share the records of every chunk: the same program, whose sums are computed in several places."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from lastiterate.engine.checkpoint import Checkpoint
from lastiterate.engine.gaussian_noise import Key
from lastiterate.engine.streaming.record_source import Piece, own_records
from lastiterate.errors import InputError


def _by_process() -> list[list[Any]]:
    """The devices of every process."""
    every: Any = jax.devices()
    return [[one for one in every if one.process_index == process] for process in range(jax.process_count())]


@dataclass(frozen=True)
class Devices:
    """``count`` devices that JAX sees: of every process of a job the first ``count / processes``.

    **Guarantee:** one program for all of them, whose meaning does not depend on where its parts are computed: noise is
    drawn and added once, not once per device. Only the order of sums differs. Every process has devices of its own
    among them, so that the part of a batch that it reads is summed.
    """

    count: int = 1

    def __post_init__(self) -> None:
        if isinstance(self.count, bool) or not isinstance(self.count, int) or self.count < 1:  # pyright: ignore
            raise InputError("devices", "must be a positive whole number", self.count)
        devices = jax.devices() if self.count > 1 else ()
        if self.count > 1 and self.count > len(devices):
            raise InputError("devices", f"must not exceed the {len(devices)} that JAX sees", self.count,
                             "XLA_FLAGS=--xla_force_host_platform_device_count=N makes N of a processor, for tests")
        if self.count > 1 and self.count % jax.process_count():
            raise InputError("devices", f"must be a multiple of the {jax.process_count()} processes", self.count)
        if self.count > 1 and len({len(own) for own in _by_process()}) > 1:
            raise InputError("devices", "must be equally many in every process, and JAX sees more in some", self.count,
                             "start every process with as many devices as the others")

    def check_checkpoint(self, checkpoint: Checkpoint | Path | None) -> None:
        """Refuse checkpoints of several processes, which would write the same file."""
        if checkpoint is not None and self.count > 1 and jax.process_count() > 1:
            raise InputError("checkpoint", "is for runs in one process", f"{jax.process_count()} processes",
                             "leave it out")

    def check_records(self, n: int) -> None:
        """Refuse processes that would have no record of their own."""
        parts = self.part[1]
        if own_records(n, parts - 1, parts)[0] >= n:
            raise InputError("devices", f"must leave every one of {parts} processes records of its own", n)

    @cached_property
    def _mesh(self) -> Mesh:
        every = _by_process()
        return Mesh(np.array([one for own in every for one in own[:self.count // len(every)]]), ("records",))

    def place(self, records: Piece) -> Any:
        """Arrays (chunks, rows, ...) with the rows shared equally; ``records`` are the rows of this process."""
        if self.count == 1:
            return records
        shared = NamedSharding(self._mesh, PartitionSpec(None, "records"))
        return tuple(jax.make_array_from_process_local_data(shared, part) for part in records)  # pyright: ignore

    @property
    def part(self) -> tuple[int, int]:
        """Which process this is, of how many that share the work."""
        return (0, 1) if self.count == 1 else (jax.process_index(), jax.process_count())

    def gathered(self, own: np.ndarray) -> np.ndarray:
        """The arrays of all processes, which have one shape: (processes, ...), the same bits in each of them."""
        from jax.experimental import multihost_utils

        with jax.enable_x64(True):
            return np.asarray(multihost_utils.process_allgather(own))

    def compiled(self, function: Callable[..., Any]) -> Any:
        """A compiled function whose results are whole on every device."""
        return jax.jit(function, out_shardings=None if self.count == 1 else NamedSharding(self._mesh, PartitionSpec()))

    def same_key(self, key: Key, *described: str) -> Key:
        """The key of the first process, for all of them: one run has one stream of noise.

        It crosses the network between the processes, as the sums of gradients do. ``described``: what all of them must
        execute; a process that describes anything else is refused.
        """
        if self.count == 1 or jax.process_count() == 1:
            return key
        from jax.experimental import multihost_utils

        digest = np.frombuffer(hashlib.sha256("\n".join(described).encode()).digest(), np.uint8)
        if (self.gathered(digest) != digest).any():
            raise InputError("run", "must be the same in every process, and so must devices, the loss and the first "
                             "parameters; nothing was released", None,
                             "start every process with one script and the same arguments")
        return np.asarray(multihost_utils.broadcast_one_to_all(np.asarray(key)))


@dataclass(frozen=True)
class Arrays:
    """Records in memory as a source: arrays with the records along their first axis."""

    arrays: tuple[Any, ...]
    dear = False

    def __len__(self) -> int:
        return len(self.arrays[0])

    def pieces(self, most: int, first: int = 0) -> Iterator[Piece]:
        for begin in range(first, len(self), most):
            yield tuple(np.asarray(part[begin:begin + most]) for part in self.arrays)

    def digested(self) -> Iterator[np.ndarray]:
        return (np.asarray(part) for part in self.arrays)

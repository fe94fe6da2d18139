"""Buffers of chunks, shared by devices, kept where batches repeat in every epoch."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from lastiterate.engine.checkpoint import Checkpoint, FollowedCheckpoint
from lastiterate.engine.checkpoint import Key as Secret
from lastiterate.engine.job import explain_loss
from lastiterate.engine.random import Key
from lastiterate.engine.streaming.scratch import Scratch
from lastiterate.engine.streaming.source import Cursor, Piece, RecordForm, own_records
from lastiterate.errors import InputError
from lastiterate.run.validation import positive_integer

# Devices that share the records of every chunk: the same program, whose sums are computed on
# several devices.


def _by_process() -> list[list[Any]]:
    """The devices of every process."""
    every: Any = jax.devices()
    return [
        [one for one in every if one.process_index == process]
        for process in range(jax.process_count())
    ]


@dataclass(frozen=True)
class Devices:
    """``count`` devices that JAX sees: of every process of a job the first ``count / processes``.

    **Guarantee:** one program for all of them, whose meaning does not depend on where its parts are
    computed: noise is drawn and added once, not once per device. Only the order of sums differs.
    Every process has devices of its own among them, so that the part of a batch that it reads is
    summed.
    """

    count: int = 1

    def __post_init__(self) -> None:
        positive_integer("devices", self.count)
        devices = jax.devices() if self.count > 1 else ()
        if self.count > 1 and self.count > len(devices):
            raise InputError(
                "devices",
                f"must not exceed the {len(devices)} that JAX sees",
                self.count,
                "XLA_FLAGS=--xla_force_host_platform_device_count=N makes N of a processor, for "
                "tests",
            )
        if self.count > 1 and self.count % jax.process_count():
            raise InputError(
                "devices", f"must be a multiple of the {jax.process_count()} processes", self.count
            )
        if self.count > 1 and len({len(own) for own in _by_process()}) > 1:
            raise InputError(
                "devices",
                "must be equally many in every process, and JAX sees more in some",
                self.count,
                "start every process with as many devices as the others",
            )

    def check_checkpoint(self, checkpoint: Checkpoint | Path | None) -> None:
        """Refuse the checkpoint of a process that is not the first: it would be another file."""
        if checkpoint is not None and self.part[0] > 0:
            raise InputError(
                "checkpoint",
                "is kept by process 0 of a job alone",
                f"process {self.part[0]}",
                "leave it out where jax.process_index() is not 0",
            )

    def check_records(self, n: int) -> None:
        """Refuse processes that would have no record of their own."""
        parts = self.part[1]
        if own_records(n, parts - 1, parts)[0] >= n:
            raise InputError(
                "devices", f"must leave every one of {parts} processes records of its own", n
            )

    @cached_property
    def _mesh(self) -> Mesh:
        every = _by_process()
        return Mesh(
            np.array([one for own in every for one in own[: self.count // len(every)]]),
            ("records",),
        )

    def place(self, records: Piece) -> Any:
        """Arrays (chunks, rows, ...) with the rows shared equally; ``records`` are the rows of this
        process."""
        if self.count == 1:
            return records
        shared = NamedSharding(self._mesh, PartitionSpec(None, "records"))
        return tuple(jax.make_array_from_process_local_data(shared, part) for part in records)  # pyright: ignore

    @property
    def part(self) -> tuple[int, int]:
        """Which process this is, of how many that share the work."""
        return (0, 1) if self.count == 1 else (jax.process_index(), jax.process_count())

    def gather(self, own: np.ndarray) -> np.ndarray:
        """The arrays of all processes, which have one shape: (processes, ...), the same bits in
        each of them."""
        from jax.experimental import multihost_utils

        with jax.enable_x64(True), explain_loss():
            return np.asarray(multihost_utils.process_allgather(own))

    @property
    def local(self) -> tuple[Any, ...]:
        """The devices of this process; none where JAX chooses one."""
        own: list[Any] = list(jax.local_devices())  # pyright: ignore
        return tuple(own[: self.count // self.part[1]]) if self.count > 1 else ()

    def add_same(self, point: np.ndarray, own: np.ndarray) -> np.ndarray:
        """The sum of all processes' arrays ``own``, which have float64 and no rounding in it;
        refused where the processes are at different parameters."""
        words = np.append(own.view(np.int64), point.view(np.int64).sum())
        every = self.gather(words)
        if (every[:, -1] != every[0, -1]).any():
            raise InputError(
                "processes",
                "must have the same parameters in every step, and their bits differ; nothing was "
                "released",
                None,
                "start them on machines of one kind, with the same versions of all libraries",
            )
        parts = every[:, :-1].view(np.float64)
        return np.sum(parts, axis=0).reshape(own.shape)

    def broadcast(self, own: np.ndarray) -> np.ndarray:
        """The array of the first process, whose shape all of them have."""
        from jax.experimental import multihost_utils

        with jax.enable_x64(True), explain_loss():
            return np.asarray(multihost_utils.broadcast_one_to_all(own))

    def compile(self, function: Callable[..., Any]) -> Any:
        """A compiled function whose results are whole on every device."""
        return jax.jit(
            function,
            out_shardings=None if self.count == 1 else NamedSharding(self._mesh, PartitionSpec()),
        )

    def same_key(self, key: Key, *described: str) -> Key:
        """The key of the first process, for all of them: one run has one stream of noise.

        It crosses the network between the processes, as the sums of gradients do. ``described``:
        what all of them must execute; a process that describes anything else is refused.
        """
        if self.part[1] == 1:
            return key
        digest = np.frombuffer(hashlib.sha256("\n".join(described).encode()).digest(), np.uint8)
        if (self.gather(digest) != digest).any():
            raise InputError(
                "run",
                "must be the same in every process, and so must devices, the loss and the first "
                "parameters; nothing was released",
                None,
                "start every process with one script and the same arguments",
            )
        return self.broadcast(np.asarray(key))

    def follow(
        self, checkpoint: Checkpoint | None, records: Callable[[], Iterable[Any]]
    ) -> Checkpoint | FollowedCheckpoint | None:
        """The checkpoint of the first process, which has begun; in another one its state, without
        a key.

        **Guarantee:** all processes have the records that the checkpoint knows, by a digest under a
        secret: otherwise one key could be drawn from on two data sets, where the first process
        alone has the same ones.
        """
        part, parts = self.part
        if parts == 1:
            return checkpoint
        sent = b"" if checkpoint is None else FollowedCheckpoint.of(checkpoint)
        size = int(self.broadcast(np.array(len(sent))))
        if size == 0:
            return None
        held = np.zeros(size, np.uint8) if part else np.frombuffer(sent, np.uint8)
        held = self.broadcast(held)
        secret = Secret(self.broadcast(np.frombuffer(os.urandom(32), np.uint8)).tobytes())
        digest = np.frombuffer(bytes.fromhex(secret.digest(records())), np.uint8)
        if (self.gather(digest) != digest).any():
            raise InputError(
                "data",
                "must be the same in every process of a job that keeps a checkpoint; nothing was "
                "released",
                None,
                "let every process read the same files",
            )
        return FollowedCheckpoint.read(held.tobytes()) if part else checkpoint


@dataclass(frozen=True)
class Arrays:
    """Records in memory as a source: arrays with the records along their first axis."""

    arrays: tuple[Any, ...]
    dear = False

    def __len__(self) -> int:
        return len(self.arrays[0])

    def pieces(self, most: int, first: int = 0) -> Iterator[Piece]:
        for begin in range(first, len(self), most):
            yield tuple(np.asarray(part[begin : begin + most]) for part in self.arrays)

    def fingerprint(self) -> Iterator[np.ndarray]:
        return (np.asarray(part) for part in self.arrays)


# A buffer: arrays of one shape that hold the chunks of one step, or of several.

BUFFER = 2**23
"""Bytes of a buffer, about; two of them exist."""
MOST_CHUNKS = 4096


@dataclass
class ChunkBuffer:
    """``used`` chunks of ``records`` (chunks, rows, ...), zeros behind a chunk's last record; chunk
    i is part of step ``steps[i]``, and its last one where ``ends[i]``."""

    records: Piece
    steps: np.ndarray
    ends: np.ndarray
    used: int = 0

    @classmethod
    def empty(cls, form: RecordForm, chunks: int, rows: int) -> ChunkBuffer:
        return cls(form.empty(chunks, rows), np.zeros(chunks, np.int64), np.zeros(chunks, bool))

    @property
    def full(self) -> bool:
        return self.used == len(self.ends)

    @property
    def contents(self) -> list[np.ndarray]:
        """The bytes of every array's used chunks, in place."""
        return [part[: self.used].reshape(-1).view(np.uint8) for part in self.records]

    def add(self, cursor: Cursor, many: int, step: int, last: bool) -> None:
        """The next chunk: ``many`` records of a step."""
        at = 0
        for piece in cursor.take(many):
            for target, part in zip(self.records, piece, strict=True):
                target[self.used, at : at + len(part)] = part
            at += len(piece[0])
        for target in self.records:
            target[self.used, many:] = 0
        self.steps[self.used], self.ends[self.used] = step, last
        self.used += 1


@dataclass(frozen=True)
class Shape:
    """Chunks of a buffer; records of a chunk; rows that a chunk has for them (more, where devices
    share it equally).

    Each of ``parts`` processes has buffers of its own: of every batch it reads the records of its
    ``part`` alone.
    """

    chunks: int
    records: int
    rows: int
    part: int = 0
    parts: int = 1

    @classmethod
    def of(
        cls, form: RecordForm, records: int, devices: Devices, blocks: int, largest: int
    ) -> Shape:
        """As many chunks as fit, and no more than one pass has."""
        part, parts = devices.part
        own, rows = -(-records // parts), -(-records // devices.count) * devices.count // parts
        fit = max(1, BUFFER // max(1, rows * form.size))
        return cls(min(fit, MOST_CHUNKS, blocks * -(-largest // records)), own, rows, part, parts)

    def own(self, size: int) -> tuple[int, int, int]:
        """Return this process's share of a batch of ``size`` records: its begin, its number of
        records, its number of chunks."""
        share = -(-size // self.parts)
        begin = min(size, self.part * share)
        return begin, min(share, size - begin), max(1, -(-share // self.records))


# Buffers of one pass, kept as they are: batches that are the same in every pass are read and
# arranged once.

PAGE = 2**18
"""Bytes of a page, at most: few enough for a processor's own cache, where pages are decrypted."""


@dataclass
class BufferFile:
    """The buffers of one pass, in a scratch file (``Scratch``); ``size``: bytes of a record,
    ``chunks``: of the pass.

    **Guarantee:** what is read is what was written, bit for bit: a pass that is read again is the
    pass that was made.
    """

    shape: Shape
    size: int
    chunks: int
    folder: Path | None = None
    _scratch: Scratch = field(init=False, repr=False)
    _kept: list[tuple[int, np.ndarray, np.ndarray]] = field(
        init=False, default_factory=list[tuple[int, np.ndarray, np.ndarray]], repr=False
    )
    _next: int = field(init=False, default=0, repr=False)  #: the first page that is not written

    def __post_init__(self) -> None:
        chunk = self.shape.rows * self.size
        page = min(PAGE, self.shape.chunks * chunk)
        buffers = (
            2 + 2 * self.chunks // self.shape.chunks
        )  # two successive ones hold more chunks than one may
        self._scratch = Scratch(
            buffers + -(-self.chunks * chunk // page), page, self.folder, spare=True
        )

    def keep(self, buffer: ChunkBuffer) -> None:
        """The next buffer of the pass."""
        self._kept.append(
            (self._next, buffer.steps[: buffer.used].copy(), buffer.ends[: buffer.used].copy())
        )
        for parts in split_bytes(buffer.contents, self._scratch.size):
            self._scratch.write(self._next, np.concatenate(parts) if len(parts) > 1 else parts[0])
            self._next += 1

    def again(self, first: int, end: int, pair: list[ChunkBuffer]) -> Iterator[ChunkBuffer]:
        """The same buffers for the steps from ``first`` on, one pass of them or those before
        ``end``."""
        began = int(self._kept[0][1][0])
        for page, steps, ends in self._kept:
            if int(steps[0]) - began + first >= end:
                return
            buffer, many = pair[0], len(steps)
            buffer.used, buffer.steps[:many], buffer.ends[:many] = many, steps - began + first, ends
            for number, parts in enumerate(split_bytes(buffer.contents, self._scratch.size), page):
                content = np.frombuffer(self._scratch.read(number), np.uint8)
                for part in parts:
                    part[:], content = content[: len(part)], content[len(part) :]
            buffer.used = int(np.searchsorted(buffer.steps[:many], end))
            yield buffer
            pair.reverse()

    def close(self) -> None:
        """Give the space back."""
        self._scratch.close()


def split_bytes(contents: list[np.ndarray], size: int) -> Iterator[list[np.ndarray]]:
    """Bytes one behind the other, ``size`` at a time."""
    page, left = list[np.ndarray](), size
    for content in contents:
        while len(content):
            part, content = content[:left], content[left:]
            page, left = [*page, part], left - len(part)
            if left == 0:
                yield page
                page, left = [], size
    if page:
        yield page

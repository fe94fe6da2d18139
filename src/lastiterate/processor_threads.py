"""Work in as many threads as there are processors, with one thread of BLAS in each.

BLAS has threads of its own, which wait for each other in busy loops at every small product: two and
a half times the processor's time for slices of 512 rows, many times that for the eigenvectors of a
matrix where other processes run, and other last bits for other numbers of processors. OpenBLAS
takes the limit from the main thread alone; where slices are prepared from another, products keep
BLAS's own threads and their bits.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ContextDecorator
from dataclasses import dataclass, field
from functools import lru_cache
from threading import Lock
from typing import Any, TypeVar

from threadpoolctl import ThreadpoolController  # pyright: ignore

Item = TypeVar("Item")
Found = TypeVar("Found")


@dataclass
class _OneThread(ContextDecorator):
    """While anybody is inside, BLAS has one thread; whoever leaves last gives it back what it had."""

    lock: Lock = field(default_factory=Lock)
    inside: int = 0
    limit: Any = None

    def __enter__(self) -> None:
        with self.lock:
            if not self.inside:
                self.limit = _libraries().limit(limits=1, user_api="blas")  # pyright: ignore[reportUnknownMemberType]
            self.inside += 1

    def __exit__(self, *_: object) -> None:
        with self.lock:
            self.inside -= 1
            if not self.inside:
                self.limit.restore_original_limits()


one_thread = _OneThread()


@lru_cache(maxsize=1)
def _libraries() -> ThreadpoolController:
    return ThreadpoolController()


def processors() -> int:
    """Processors that this process may use: fewer than the machine has where it was given a share
    of them."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def map_in_threads(work: Callable[[Item], Found], items: Iterable[Item]) -> Iterator[Found]:
    """``work`` of every item, in their order; as many are under way as there are processors, and
    one more is ready."""
    many = processors()
    waiting: deque[Future[Found]] = deque()
    with one_thread, ThreadPoolExecutor(many, "lastiterate-prepares") as threads:
        try:
            for item in items:
                waiting.append(threads.submit(work, item))
                if len(waiting) > many:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for each in waiting:
                each.cancel()

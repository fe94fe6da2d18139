"""The next item is made in a thread while the last one is used."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")


def ahead(items: Iterator[Item]) -> Generator[Item, None, None]:
    """The same items: one is in use, and one is made or ready, so that two buffers serve.

    An error of ``items`` is raised where the item would have come; a caller that stops waits for the one in the making.
    """
    end = object()
    with ThreadPoolExecutor(1, "lastiterate-reads-ahead") as thread:
        made = thread.submit(next, items, end)
        try:
            while (item := made.result()) is not end:
                made = thread.submit(next, items, end)
                yield item  # type: ignore[misc]
        finally:
            made.exception()
            close = getattr(items, "close", None)
            if close is not None:
                close()

"""A process that was forked after JAX was used has none of its threads: what it asks of them waits for ever."""

from __future__ import annotations

import os

from lastiterate.errors import InputError

_used: int | None = None


def check_process() -> None:
    """Refuse to compute in a process that was forked from one that has computed."""
    global _used
    if _used not in (None, os.getpid()):
        raise InputError("this process", "was forked after a fit, and the threads that compute stayed behind", None,
                         "start it with multiprocessing.get_context(\"spawn\"), or fork before the first fit")
    _used = os.getpid()

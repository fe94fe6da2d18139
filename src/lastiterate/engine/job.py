"""What the processes of a job tell one another when one of them ends."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import Any

import jax

from lastiterate.errors import InputError

# Words that the processes of a job leave for one another when one ends. JAX keeps a table of them in
# the first process.

ENDED, LEAVING, FOLLOWED = "lastiterate/ended", "lastiterate/leaving", "lastiterate/followed/"
"""Keys: which process ended first, and why; that the first process is about to end; that another one
has seen it."""
LAST_WAIT = 3.0
"""Seconds that the first process waits for the others, whose connections end with it."""
OFTEN = 0.5
"""Seconds between two looks at the table."""


class _Job:
    lost_another = False  #: whether this process ends because another one has


_job = _Job()


def _read_job() -> tuple[Any, int, int]:
    """Return JAX's table (``None`` outside of a job), this process and their number; it starts no
    device."""
    from jax._src import distributed  # no public module has it

    state: Any = distributed.global_state
    return state.client, state.process_id, state.num_processes


def find_ended() -> tuple[int, str] | None:
    """Return the process that ended first, and why, where it has said it; only to the first process,
    which has the table: JAX aborts another one that asks when the first is lost."""
    with suppress(Exception):
        table, own, _ = _read_job()
        if own == 0:
            rank, _, why = table.key_value_try_get(ENDED).partition(" ")
            return int(rank), why
    return None


def tell_end(why: str) -> None:
    """Leave word why this process ends. The first one lets the others end before it: JAX aborts
    them when its table is gone, with lines of its own.

    **Guarantee:** it returns within seconds, whatever became of the others, and raises nothing.
    """
    with suppress(Exception):
        table, rank, count = _read_job()
        if table is None or (rank and _job.lost_another):  # the table may be lost as well
            return
        words = threading.Thread(target=_tell, args=(table, rank, count, why), daemon=True)
        words.start()
        words.join(LAST_WAIT + 2 * OFTEN)


def _tell(table: Any, rank: int, count: int, why: str) -> None:
    end = time.monotonic() + LAST_WAIT
    if not _job.lost_another:
        with suppress(Exception):  # the word of the process that ended first stays
            table.key_value_set(ENDED, f"{rank} {why or 'it gave no reason'}")
    with suppress(Exception):
        table.key_value_set(LEAVING if rank == 0 else f"{FOLLOWED}{rank}", "")
    for other in range(1, count if rank == 0 else 0):
        left = max(1, round(1000 * (end - time.monotonic())))
        with suppress(Exception):  # it is lost
            table.blocking_key_value_get(f"{FOLLOWED}{other}", left)
    if rank == 0:
        time.sleep(OFTEN)  # they have said that they end, and not ended yet


def follow_first() -> None:
    """End this process, with exit code 2, when the first one is about to end with an error."""

    def watch() -> None:
        while not over.wait(OFTEN):
            with suppress(Exception):
                table.key_value_try_get(LEAVING)  # raises where it is not there
                with suppress(Exception):
                    sys.stderr.flush()
                    table.key_value_set(f"{FOLLOWED}{rank}", "")
                os._exit(2)

    def stop() -> None:  # a thread in JAX's code while Python ends would abort the process
        over.set()
        watcher.join(LAST_WAIT)

    over = threading.Event()
    with suppress(Exception):
        table, rank, _ = _read_job()
        if table is not None and rank:
            watcher = threading.Thread(target=watch, daemon=True, name="follow-first")
            watcher.start()
            atexit.register(stop)


@contextmanager
def explain_loss() -> Generator[None]:
    """Say in one sentence that another device or process no longer answers."""
    try:
        yield
    except InputError:
        raise
    except (jax.errors.JaxRuntimeError, ValueError) as error:
        _job.lost_another = True
        ended = find_ended()
        if ended is not None:
            process, why = ended
            raise InputError(
                "processes",
                f"must all continue, and process {process} ended: {why.rstrip('.')}; nothing was released",
                None,
                "mend it there, then start all of them again, or resume from a checkpoint",
            ) from None
        raise InputError(
            "devices",
            "stopped: one of them, or a process, no longer answers",
            str(error).strip().split("\n")[0][:120],
            "nothing was released; resume from a checkpoint on the remaining devices or processes, or "
            "start again with them, under a charge of its own",
        ) from None

"""A bar of steps and time on standard error; nothing that depends on the data."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


@contextmanager
def steps_bar(what: str, console: Console | None = None) -> Generator[Callable[[int, int, float], None]]:
    """What a training calls with steps done, steps in all and seconds; by default shown on standard error."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    with Progress(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
                  TimeRemainingColumn(), console=Console(stderr=True) if console is None else console) as bar:
        task = bar.add_task(what, total=None, visible=False)  # until the data are read
        yield lambda done, steps, seconds: bar.update(task, completed=done, total=steps, visible=True)

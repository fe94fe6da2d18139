"""Bars of steps and time while a model is trained; nothing in them depends on the data."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from rich.console import Console


@contextmanager
def steps_bar(
    what: str, console: Console | None = None
) -> Generator[Callable[[int, int, float], None]]:
    """Show a bar of steps, by default on standard error.

    The bar is a function of steps done, steps in all and seconds; in a notebook it is a line.
    """
    with progress_bars(what, console) as (bar, _):
        yield bar


@contextmanager
def progress_bars(
    what: str, console: Console | None = None
) -> Generator[tuple[Callable[[int, int, float], None], Callable[[int, int], None] | None]]:
    """Show the bar of ``steps_bar``, and on a terminal another one while records are read.

    ``what``: the word before the bar, such as "training". ``console``: where it is shown, by
    default standard error. The second bar is a function of the records read and of all; it is
    ``None`` where there is no terminal.
    """
    line = notebook_progress(what)
    if line is not None:
        yield line, None
        return
    from rich import progress
    from rich.console import Console

    with progress.Progress(
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TimeElapsedColumn(),
        progress.TimeRemainingColumn(),
        console=Console(stderr=True) if console is None else console,
    ) as bar:
        rows = bar.add_task("reading records", total=None, visible=False)
        task = bar.add_task(what, total=None, visible=False)  # until the data are read

        def show_steps(done: int, steps: int, seconds: float) -> None:
            bar.update(task, completed=done, total=steps, visible=True)

        def show_rows(done: int, count: int) -> None:
            bar.update(rows, completed=done, total=count, visible=True)

        yield show_steps, show_rows if bar.console.is_terminal else None


def notebook_progress(what: str) -> Callable[[int, int, float], None] | None:
    """Return the function that shows steps and seconds in one line of a notebook, and updates it.

    ``None`` outside of notebooks.
    """
    ipython: Any = sys.modules.get("IPython")
    if ipython is None or getattr(ipython.get_ipython(), "kernel", None) is None:
        return None
    display, shown = cast(Any, import_module("IPython.display")).display, list[Any]()

    def show(done: int, steps: int, seconds: float) -> None:
        said = {"text/plain": f"{what}: {done} of {steps} steps, {seconds:.1f} s"}
        if shown:
            shown[0].update(said, raw=True)
        else:
            shown.append(display(said, raw=True, display_id=True))

    return show

"""Ctrl-C: raised where Python can raise it, and remembered for where it cannot.

An exception that a signal raises is lost where it lands in code whose errors are dropped: a
callback of the garbage collector (JAX has one), a finaliser, a library that turns every error into
its own. So the handler of the command line raises KeyboardInterrupt and keeps a flag as well, and
every loop of long work calls ``check`` between its pieces. What was lost in a callback is raised
again a moment later. So is one that comes while a compiled module is loaded: those of jaxlib end the
process where an exception comes out of the Python that they call, and crash where they are made and
not executed. A second Ctrl-C ends the process at once, and so does the first one where compiled
code keeps the interpreter from noticing it for ``PATIENCE`` seconds.

Importing this module does nothing, and without ``handle_interrupts`` nothing here does anything: programs
that use the library keep the handlers that they have.
"""

from __future__ import annotations

import _thread
import os
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from importlib.machinery import ExtensionFileLoader
from pathlib import Path
from types import FrameType
from typing import Any

__all__ = ["check", "later", "say", "unfinished"]
CODE = 130  #: exit code of a command that was stopped by its user, as shells have it
PATIENCE = 10.0
"""Seconds that compiled code may keep the interpreter from noticing a Ctrl-C."""
WAIT_FOR_CALLBACK, WAIT_FOR_NOTICE = 0.01, 1.0
"""Seconds until a Ctrl-C is raised again: the first time, when the code that dropped it is left, and
each time after."""
NOTHING = "nothing was released"
_AGAIN = b"\x00"


class _State:
    """What is known of this process's Ctrl-C."""

    installed = False
    heard = False  #: whether somebody is there to catch a KeyboardInterrupt
    pending = False
    noticed = 0  #: signals that the interpreter came to know of
    depth = 0  #: of ``later``
    kept = 0  #: of ``keep_outcome``
    own = 0  #: signals that were sent by this module itself
    asking = threading.Lock()  #: held by the thread that sends them
    outcome = NOTHING
    wake: socket.socket


_now = _State()
unfinished: set[Path] = set()
"""Files and folders that are being written under names of their own; a process that ends at once
removes them."""


def check() -> None:
    """Raise the KeyboardInterrupt that was lost, if there is one; called by every loop between two
    pieces of work."""
    if _now.pending and _now.heard and not _now.depth:
        raise KeyboardInterrupt


def is_pending() -> bool:
    """Whether Ctrl-C was pressed and not yet answered."""
    return _now.pending


def mark_answered() -> None:
    """Say that the work was stopped in order: what follows, a report of what is there, is not
    stopped as well."""
    _now.pending = False


def say(outcome: str) -> None:
    """What has come of the command so far, for the sentence that a Ctrl-C from now on ends with."""
    if not _now.kept:
        _now.outcome = outcome


@contextmanager
def keep_outcome() -> Generator[None]:
    """A piece of work whose outcomes are its own, and none of the command's."""
    _now.kept += 1
    try:
        yield
    finally:
        _now.kept -= 1


def outcome() -> str:
    """What has come of the command so far."""
    return _now.outcome


def sentence() -> str:
    """What an interrupted command says."""
    return f"interrupted: {_now.outcome}"


@contextmanager
def listen() -> Generator[None]:
    """The work that a Ctrl-C stops; before and behind it one is only remembered."""
    _now.heard, _now.outcome = True, NOTHING
    try:
        check()
        yield
    finally:
        _now.heard = False


@contextmanager
def later() -> Generator[None]:
    """A piece of work that is done whole: a Ctrl-C meanwhile is raised behind it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _now.depth += 1
    try:
        yield
    finally:
        _now.depth -= 1
    check()


def handle_interrupts() -> None:
    """Take this process's Ctrl-C; once, in the main thread, by a program and never by a library."""
    if _now.installed or threading.current_thread() is not threading.main_thread():
        return
    _now.installed = True
    receiver, _now.wake = socket.socketpair()
    _now.wake.setblocking(False)
    signal.signal(signal.SIGINT, _on_press)
    signal.set_wakeup_fd(_now.wake.fileno(), warn_on_full_buffer=False)
    sys.unraisablehook = _lost
    threading.Thread(
        target=_watch, args=(receiver,), name="lastiterate-interrupts", daemon=True
    ).start()


def finish() -> None:
    """The command's work is done and shown: a Ctrl-C while Python ends changes nothing any more."""
    if _now.installed:
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def end(said: str | None = None) -> None:
    """End the process, with a sentence on standard error; without Python's own shutdown, which
    crashes while compiled steps still run in other threads."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, RuntimeError):
            stream.flush()
    if said is not None:
        shown = "\x1b[?25h\r" if os.isatty(2) else ""  # a progress bar may have hidden the cursor
        os.write(2, f"{shown}{said}\n".encode())
    os._exit(CODE)


def _on_press(signum: int, frame: FrameType | None) -> None:
    _now.pending = True
    _now.noticed += 1
    if _now.heard and not _now.depth:
        if not _is_loading(frame):
            raise KeyboardInterrupt
        _now.wake.send(_AGAIN)


def _is_loading(frame: FrameType | None) -> bool:
    """Whether a compiled module is loaded: by importlib's function that makes and executes it."""
    while frame is not None:
        if frame.f_code.co_name == "_load_unlocked":
            loader = getattr(frame.f_locals.get("spec"), "loader", None)
            if isinstance(loader, ExtensionFileLoader):
                return True
        frame = frame.f_back
    return False


def _lost(unraisable: Any) -> None:
    """Python's hook for errors that are dropped: a Ctrl-C among them is asked for again, without a
    word."""
    if unraisable.exc_type is not None and issubclass(unraisable.exc_type, KeyboardInterrupt):
        _now.wake.send(_AGAIN)
    elif not _now.pending:  # what an interrupted callback left behind is no news
        sys.__unraisablehook__(unraisable)


def _watch(receiver: socket.socket) -> None:
    """Count the interrupts that are pressed, outside the interpreter's main thread, which may be
    busy with compiled code."""
    pressed = 0
    while True:
        byte = receiver.recv(1)
        if byte == _AGAIN:
            with suppress(RuntimeError):  # Python ends
                threading.Thread(
                    target=_ask_until_noticed, name="lastiterate-again", daemon=True
                ).start()
        elif _now.own:
            _now.own -= 1
        elif byte == bytes([signal.SIGINT]):
            pressed += 1
            if pressed > 1:
                _abandon()
            threading.Thread(
                target=_end_when_stuck, name="lastiterate-patience", daemon=True
            ).start()


def _ask_until_noticed() -> None:
    """Ask for a Ctrl-C once more, until the interpreter knows of it: a signal that arrives just
    before its main thread begins to wait does not end that wait."""
    before, pause = _now.noticed, WAIT_FOR_CALLBACK
    with _now.asking:
        while _now.noticed == before and _now.pending:
            time.sleep(pause)
            if _now.noticed == before and _now.pending and not _now.own:  # the last was delivered
                _now.own += 1
                _ask_again()
            pause = WAIT_FOR_NOTICE


def _ask_again() -> None:
    main = threading.main_thread().ident
    if main is None or not hasattr(signal, "pthread_kill"):  # Windows
        _thread.interrupt_main()
    else:
        signal.pthread_kill(
            main, signal.SIGINT
        )  # a signal, which also ends what the thread waits for


def _end_when_stuck() -> None:
    """End the process where its main thread does not come to know of a Ctrl-C, and is not about to
    write."""
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until or _now.depth:
        if _now.noticed:
            return
        time.sleep(0.05)
    _abandon()


def _abandon() -> None:
    """End at once; what was not finished leaves nothing behind."""
    for path in list(unfinished):
        shutil.rmtree(path, ignore_errors=True)
        with suppress(OSError):
            path.unlink()
    end(sentence())

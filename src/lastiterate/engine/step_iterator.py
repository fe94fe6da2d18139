"""The steps of one release, made one after the other when its caller asks for them."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, closing, suppress
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar, cast, final

from lastiterate.errors import InputError
from lastiterate.run.run import Run

# A run is a generator: it pauses between steps, and returns what it releases. ``train`` runs it to
# its end at once, a caller's own loop takes one step at a time; the steps are the same code.

T = TypeVar("T")


class Pause(NamedTuple):
    """A run between two steps: how many are done, and how the last iterate is read.

    ``read`` returns a copy of the iterate, in the form of the released ones; it is ``None`` before
    the first step, and wherever iterates are hidden.
    """

    done: int
    read: Callable[[], Any] | None = None


Steps = Generator[Pause, None, T]


def run_to_end(steps: Steps[T]) -> T:
    """Make all steps, and return what they release."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


def map_steps(function: Callable[[Any], Any], steps: Steps[Any]) -> Steps[Any]:
    """The same steps, with ``function`` of every iterate that is read and of the result."""

    def apply(read: Callable[[], Any]) -> Any:
        return function(read())

    with closing(steps):
        while True:
            try:
                done, read = next(steps)
            except StopIteration as end:
                return function(end.value)
            yield Pause(done, None if read is None else partial(apply, read))


def resume_within(context: Callable[[], AbstractContextManager[Any]], steps: Steps[T]) -> Steps[T]:
    """The same steps, each made inside of ``context``, which whoever takes them is outside of."""
    try:
        while True:
            with context():
                try:
                    pause = next(steps)
                except StopIteration as end:
                    return end.value
            yield pause
    finally:
        with context():
            steps.close()


@final
class StepIterator(Generic[T]):
    """A release of ``run`` whose caller takes the steps; ``more``: how, for refusals.

    **Guarantee:** every step is made once, from the state before it. An iterate is given out only
    where the run releases all of them, and the model only once, after the last step. An error or an
    interruption within a step ends the run.
    """

    def __init__(self, steps: Steps[T], run: Run, more: str) -> None:
        self._steps, self.run, self._more = steps, run, more
        self._process, self._over = os.getpid(), ""
        self._model = cast("T | None", None)
        weakref.finalize(
            self, _close, steps, self._process
        )  # gives reserved space and scratch files back
        self._pause = Pause(0)
        self._pause = self._resume()

    @property
    def done(self) -> int:
        """How many steps are made."""
        return self._pause.done

    def advance(self) -> None:
        """Make the next step."""
        self._check_running()
        if self.done == self.run.steps:
            raise InputError(
                "run", f"has made all of its {self.run.steps} steps", None, "release the model"
            )
        self._pause = self._resume()

    def read_iterate(self) -> Any:
        """Return a copy of the last iterate; refused where iterates are hidden."""
        if self.run.release != "all":
            averaged = ", method=lastiterate.NoisySGD()" if self.run.method.averaged else ""
            raise InputError(
                "release",
                "must be 'all' where a loop looks at iterates: the noise was calibrated to hide "
                "them",
                self.run.release,
                f'begin with dataclasses.replace(run, release="all"{averaged}), which is charged '
                "for every iterate",
            )
        self._check_running()
        if self._pause.read is None:
            raise InputError(
                "run",
                "must have made a step before an iterate is looked at",
                f"{self.done} of {self.run.steps} steps",
                "the first parameters are those that you gave"
                if self.done == 0
                else "the released model has every iterate",
            )
        return self._pause.read()

    def release(self) -> T:
        """Return the released model, once, after the last step."""
        self._check_running()
        if self.done != self.run.steps:
            raise InputError(
                "run",
                f"must have made all of its {self.run.steps} steps to be released",
                f"{self.done} steps",
                f"{self._more.format(done=self.done)}, or describe a run of fewer steps: that is "
                "another one, with noise of its own",
            )
        if self._model is None:
            self._resume()
        self._over = "has released its model"
        model, self._model = cast("T", self._model), None
        return model

    def __reduce__(self) -> Any:
        raise InputError(
            "run",
            "is of one process, and cannot be copied or stored between two steps",
            None,
            "checkpoint= keeps an encrypted state, from which the same call resumes",
        )

    def _check_running(self) -> None:
        if os.getpid() != self._process:
            raise InputError(
                "run",
                "must be continued by the process that began it",
                None,
                "begin it in this process: another release, with a charge of its own",
            )
        if self._over:
            raise InputError(
                "run",
                self._over,
                None,
                "keep that model, or begin again: another release, with a charge of its own"
                if "released" in self._over
                else "begin again: from its checkpoint where it has one, otherwise another release, "
                "with a charge of its own",
            )

    def _resume(self) -> Pause:
        """Run to the next pause; after the last step, and where an earlier process made the model,
        to the end."""
        self._over = f"was ended by an error or an interruption after {self.done} steps"
        try:
            pause = next(self._steps)
        except StopIteration as end:
            self._model, pause = end.value, Pause(self.run.steps)
        self._over = ""
        return pause


def _close(steps: Steps[Any], process: int) -> None:
    """End a run that nobody continues; a forked process leaves that to the one that began it."""
    if os.getpid() != process:
        return
    with suppress(ValueError):  # another thread is in the middle of a step
        steps.close()

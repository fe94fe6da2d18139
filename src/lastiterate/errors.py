"""The one way to say that an input cannot be used, and what else is raised or warned."""

from __future__ import annotations

import sys
from collections.abc import Callable


class InputError(ValueError):
    """A bad argument, file or value, in one sentence: the argument, the rule, the value, the
    remedy.

    ``argument`` is the name that a Python caller knows; the command line puts its flag in its
    place, prints the sentence and exits with code 2. Nothing has been written when it is raised.
    """

    def __init__(self, argument: str, rule: str, value: object = None, remedy: str = "") -> None:
        got = "" if value is None else f", got {shown(value)}"
        tail = f"; {remedy}" if remedy else ""
        self.argument, self.rule = argument, f"{rule}{got}{tail}."
        super().__init__(f"{argument} {self.rule}")

    def followed_by(self, clause: str) -> InputError:
        """The same error, with something more behind its remedy."""
        return InputError(self.argument, f"{self.rule.removesuffix('.')}; {clause}")

    def __reduce__(self) -> tuple[Callable[..., InputError], tuple[object, ...]]:
        return _unpickled, (
            type(self),
            self.argument,
            self.rule,
        )  # errors of worker processes are pickled


def _unpickled(kind: type[InputError], argument: str, rule: str) -> InputError:
    return kind(argument, rule.removesuffix("."))


LONGEST = 200
"""Characters of a value that a sentence shows."""


def shown(value: object) -> str:
    """``repr(value)``, cut where it is long; some values have none at all."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # a number of too many digits, lists in lists
        return f"a long {type(value).__name__}"
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."


def outside() -> int:
    """``stacklevel`` of the first frame that is not of this library, for who warns: what several
    parts notice is then shown once for a caller's line."""
    frame, level = sys._getframe(1), 1  # pyright: ignore[reportPrivateUsage]
    while frame is not None and str(frame.f_globals.get("__name__")).startswith("lastiterate."):
        frame, level = frame.f_back, level + 1
    return level


class RepeatedFitWarning(UserWarning):
    """A data set is fitted again: fits compose, and the epsilon of a model is for its own fit only."""


class BudgetWarning(UserWarning):
    """A privacy budget that promises little, delta above 1/n or epsilon above 20; or one that buys
    next to nothing."""


class ExposureWarning(UserWarning):
    """The process is set to write memory or arrays to disk: hidden state would lie there in the
    clear."""


class TimeWarning(UserWarning):
    """A named algorithm is expected to take longer than the time that a fit may take."""


class NotCertified(ValueError):
    """No theorem certifies the run: the message lists why each one failed."""

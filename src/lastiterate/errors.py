"""The one way to say that an input cannot be used, and what else is raised or warned."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable

NAME_UNITS = "unit=NAMES, or units=NAMES in an estimator's fit"
"""The arguments by which a release names the owner of a row; the command line has its own words for
it."""


class InputError(ValueError):
    """A bad argument, file or value, in one sentence: argument, rule, value and remedy.

    Nothing has been written when it is raised. The command line prints the sentence and exits with
    code 2.

    Parameters
    ----------
    argument : str
        Name that a Python caller knows; the command line shows its option instead.
    rule : str
        Rule that the value breaks.
    value : object, optional
        Value that was given.
    remedy : str, default ""
        Advice that works.

    Attributes
    ----------
    argument : str
        The name.
    rule : str
        Rule, value and remedy, as the message shows them.

    Examples
    --------
    >>> import lastiterate as li
    >>> try:
    ...     li.Poisson(2.0)
    ... except li.InputError as error:
    ...     print(error.argument)
    rate of poisson batches
    """

    def __init__(self, argument: str, rule: str, value: object = None, remedy: str = "") -> None:
        got = "" if value is None else f", got {format_value(value)}"
        tail = f"; {remedy}" if remedy else ""
        self.argument, self.rule = argument, f"{rule}{got}{tail}."
        super().__init__(f"{argument} {self.rule}")

    def with_clause(self, clause: str) -> InputError:
        """Return the same error with another clause behind its remedy."""
        return InputError(self.argument, f"{self.rule.removesuffix('.')}; {clause}")

    def __reduce__(self) -> tuple[Callable[..., InputError], tuple[object, ...]]:
        return _unpickle, (
            type(self),
            self.argument,
            self.rule,
        )  # errors of worker processes are pickled


def _unpickle(kind: type[InputError], argument: str, rule: str) -> InputError:
    return kind(argument, rule.removesuffix("."))


# Libraries of the full installation that accounting, verifying and reporting do without.

FULL_INSTALLATION = {
    "cryptography": "cryptography",
    "jax": "JAX",
    "jaxlib": "JAX",
    "matplotlib": "matplotlib",
    "sklearn": "scikit-learn",
}
"""Libraries of ``pip install lastiterate`` by the modules that they install; docs/installation.md
shows how to leave them out."""


def name_missing_library(error: ModuleNotFoundError) -> str | None:
    """Return the library of the full installation that an import lacks; None for other modules."""
    return FULL_INSTALLATION.get((error.name or "").partition(".")[0])


def refuse_missing_library(library: str) -> InputError:
    """Return the refusal of what an installation for accounting alone cannot do."""
    return InputError(
        library,
        "is needed for this and is not installed",
        None,
        "the full installation has it: pip install lastiterate",
    )


LONGEST = 200
"""Characters of a value that a sentence shows."""


def format_value(value: object) -> str:
    """``repr(value)``, cut where it is long; some values have none at all."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # a number of too many digits, lists in lists
        return f"a long {type(value).__name__}"
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."


def outside() -> int:
    """Return the ``stacklevel`` of the first frame outside this library.

    A warning of several parts is then shown once for a caller's line.
    """
    frame, level = sys._getframe(1), 1  # pyright: ignore[reportPrivateUsage]
    while frame is not None and str(frame.f_globals.get("__name__")).startswith("lastiterate."):
        frame, level = frame.f_back, level + 1
    return level


class RepeatedFitWarning(UserWarning):
    """A data set that is fitted again.

    Fits compose, and the epsilon of a model is for its own fit only.
    """


class BudgetWarning(UserWarning):
    """A privacy budget that promises little: delta above 1/n, or epsilon above 20.

    It is also given where a budget buys next to nothing.
    """


class RowProtectionWarning(UserWarning):
    """A fit that protects single rows of a table whose schema names a column of identifiers."""


class ExposureWarning(UserWarning):
    """A process that is set to write memory or arrays to disk, with hidden state in the clear."""


class TimeWarning(UserWarning):
    """A named algorithm is expected to take longer than the time that a fit may take."""


class NotCertified(ValueError):
    """A run that no theorem certifies: the message lists why each one failed.

    Examples
    --------
    >>> import lastiterate as li
    >>> try:
    ...     li.calibrate(li.Run(n=100, steps=3, step_size=0.1), epsilon=1.0, delta=1e-5)
    ... except li.NotCertified as error:
    ...     print("clip" in str(error))
    True
    """


def first_line(error: BaseException, most: int = 120) -> str:
    """Return the first line of a message, cut between words; the error's name where it has none."""
    lines = str(error).split("\n")
    return textwrap.shorten(lines[0], most, placeholder=" ...") or type(error).__name__

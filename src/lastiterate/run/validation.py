"""Checks of numbers, arrays and class weights that a description holds."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from lastiterate.errors import InputError

# Arrays.

Array = NDArray[np.float64]


def repeat_value(value: float, count: int) -> Array:
    """``value`` ``count`` times, read-only, in the memory of one number; shape (count,)."""
    return np.broadcast_to(np.float64(value), (count,))


def frozen(values: Array) -> Array:
    """The same array, read-only."""
    values.setflags(write=False)
    return values


def check_kept(name: str, value: object) -> None:
    """Refuse arrays of which a conversion to plain numbers would drop a part in silence, masks and
    imaginary parts, and queries that hold no values yet.

    What is looked at is the kind of array, never a value; structures, lists and tables of arrays
    are looked through.
    """
    polars = sys.modules.get("polars")
    if polars is not None and isinstance(value, polars.LazyFrame):
        raise InputError(
            name, "must not be a query that is still to be run", None, "use its collect()"
        )
    if isinstance(value, dict):
        value = tuple(value.values())  # pyright: ignore
    if isinstance(value, tuple | list):
        kinds = set(map(type, value))  # pyright: ignore  # of a long list of numbers there is one
        plain = {kind for kind in kinds if issubclass(kind, int | float | str)}
        for part in value if kinds - plain else ():  # pyright: ignore
            check_kept(name, part)  # pyright: ignore
    elif "numpy.ma" in sys.modules and isinstance(value, np.ma.MaskedArray):
        raise InputError(
            name,
            "must be plain arrays: a mask would be dropped",
            None,
            "fill or drop masked values first",
        )
    elif isinstance(value, complex) or any(
        getattr(kind, "kind", "") == "c" for kind in _dtypes(value)
    ):
        raise InputError(
            name,
            "must be real numbers (Complex data not supported)",
            None,
            "give real and imaginary parts as columns",
        )


def check_text(name: str, texts: Iterable[object]) -> None:
    """Refuse names that an array of text would change: it drops null characters at their end,
    and turns numbers that are mixed with text into text."""
    if any(not isinstance(text, str) or text.endswith("\0") for text in texts):
        raise InputError(
            name,
            "must be text alone, without a null character at the end of any: arrays take such "
            "names "
            "for others",
        )


def _dtypes(value: object) -> tuple[object, ...]:
    """The types of an array's entries, or of a table's columns."""
    columns = getattr(value, "dtypes", ())  # of a DataFrame; a Series has one
    return (getattr(value, "dtype", None), *(columns if np.iterable(columns) else ()))


# Refusals of numbers.

RANGE = (1e-30, 1e30)
"""Magnitudes of a run's numbers: products and squares of three of them stay far inside double
precision, so that no variance overflows and no sensitivity underflows."""
MAGNITUDES = (1e-9, 1e9)
"""Row norms, intercepts, ridges and clips that are executed: their products stay far inside single
precision."""
WHOLE: frozenset[type] = frozenset(
    {int, *(np.dtype(code).type for code in np.typecodes["AllInteger"])}
)
NUMBERS: frozenset[type] = WHOLE | {float, np.float16, np.float32, np.float64}
"""Types of numbers: the types themselves, no subclasses (a bool is none), so that what was checked
is used."""


def to_float(name: str, value: Any) -> float:
    """``value`` as a built-in float."""
    if type(value) not in NUMBERS:
        raise InputError(name, "must be a number", value)
    try:
        return float(value)
    except OverflowError:
        raise InputError(
            name, f"must lie within {RANGE[1]:g}", value, "choose other units"
        ) from None


def to_floats(name: str, values: Any) -> tuple[float, ...]:
    """A list, tuple or one-dimensional array of numbers as a tuple of built-in floats."""
    if type(values) is np.ndarray and values.ndim == 1 and values.dtype.type in NUMBERS:
        return tuple(values.astype(np.float64).tolist())
    if type(values) not in (list, tuple):
        raise InputError(name, "must be a list or tuple of numbers", type(values).__name__)
    if set(map(type, values)) == {float}:
        return tuple(values)
    return tuple(to_float(f"every entry of {name}", value) for value in values)


def integer(name: str, value: Any) -> int:
    """``value`` as a built-in int."""
    if type(value) not in WHOLE:
        raise InputError(name, "must be an integer", value)
    return int(value)


def positive(name: str, value: object, *, zero: bool = False) -> None:
    """Refuse anything that is not a positive (or, with ``zero``, non-negative) number within
    ``RANGE``."""
    size = to_float(name, value)
    if not math.isfinite(size) or size < 0 or (size == 0 and not zero):
        raise InputError(name, "must be a finite number " + (">= 0" if zero else "> 0"), value)
    if size != 0 and not RANGE[0] <= size <= RANGE[1]:
        raise InputError(
            name, f"must lie between {RANGE[0]:g} and {RANGE[1]:g}", value, "choose other units"
        )


def all_positive(name: str, values: tuple[float, ...], *, zero: bool = False) -> None:
    """``positive`` for many built-in floats at once; the first bad one is named."""
    sizes = np.array(values, dtype=np.float64)
    good = (sizes >= RANGE[0]) & (sizes <= RANGE[1]) | (zero & (sizes == 0))
    if not good.all():
        positive(name, values[int(np.argmin(good))], zero=zero)


def check_integer(name: str, value: Any, least: int = 1, most: int = 10**12) -> None:
    """Refuse anything that is not an integer between ``least`` and ``most``."""
    if type(value) not in WHOLE or not least <= value <= most:
        raise InputError(name, f"must be an integer between {least} and {most}", value)


def is_finite(value: object) -> bool:
    """Return whether it is a number that a float holds; integers may be longer."""
    try:
        return (
            isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        )
    except OverflowError:
        return False


def positive_integer(name: str, value: object) -> None:
    """Refuse anything but an integer of at least 1."""
    if type(value) is not int or value < 1:
        raise InputError(name, "must be a positive integer", value)


def nonnegative(name: str, value: float, unit: str = "number") -> None:
    """Refuse what is below 0, or not a number."""
    if not value >= 0:
        raise InputError(name, f"must be a {unit} >= 0", value)


def check_choice(name: str, value: object, choices: Iterable[object]) -> None:
    """Refuse a text that is not among ``choices``."""
    if not isinstance(value, str) or value not in choices:
        raise InputError(name, "must be one of " + ", ".join(map(str, choices)), value)


def check_interval(
    name: str, value: float, low: float, high: float, ends: str = "[]", remedy: str = ""
) -> None:
    """Refuse a number outside of an interval, of which ``ends`` says whether its ends are in it."""
    if (
        not low <= value <= high
        or (ends[0] == "(" and value == low)
        or (ends[1] == ")" and value == high)
    ):
        raise InputError(name, f"must lie in {ends[0]}{low:g}, {high:g}{ends[1]}", value, remedy)


def executable(name: str, value: object, *, zero: bool = False) -> None:
    """Refuse a number that single precision could overflow or lose."""
    low, high = MAGNITUDES
    size = to_float(name, value)
    if not (low <= size <= high or (zero and size == 0)):
        rule = f"must {'be 0 or ' if zero else ''}lie between {low:g} and {high:g}"
        raise InputError(name, rule, value, "scale the features")


# Public weights of classes: what a record's contribution is multiplied by, at most 1.  The largest
# weight is 1, so that no record contributes more than it would without weights: every bound on a
# record, its clip, its Lipschitz constant and its smoothness hold as they are for every class. Only
# ratios matter to the classifier.

LEAST = 1e-9
Weights = tuple[float, ...] | None
"""One for every class, in the order of class indices; ``None``: all count alike."""


def check_class_weights(weights: Weights, classes: int) -> None:
    """Refuse weights that are not one for each class, or that would let a record contribute more
    than its bounds."""
    if weights is None:
        return
    rule = f"must hold {classes} numbers from {LEAST:g} to 1, one for each class, and the largest must be 1"
    if (
        len(weights) != classes
        or not all(LEAST <= weight <= 1 for weight in weights)
        or max(weights) != 1
    ):
        raise InputError(
            "class_weights", rule, weights, "divide them by the largest: only their ratios count"
        )


def relative_weights(given: object, labels: Sequence[Any]) -> Weights:
    """Weights by class index, divided by the largest, of a public dictionary from labels to
    positive numbers.

    Errors: "balanced", which would count private labels; labels that are no class; a class without
    a weight.
    """
    if given is None:
        return None
    if len(labels) < 2:
        raise InputError("class_weight", "is for classes", None, "leave it out")
    if isinstance(given, str):
        raise InputError(
            "class_weight",
            "must be a dictionary from labels to public weights; 'balanced' would count "
            "private labels",
            given,
            f"write {{{labels[0]!r}: 1, {labels[1]!r}: 5}}, of public numbers",
        )
    if not isinstance(given, Mapping):
        raise InputError(
            "class_weight",
            "must be a dictionary from labels to public weights",
            type(given).__name__,
        )
    entries = cast("Mapping[object, object]", given)
    named = {str(label): value for label, value in entries.items()}
    strange, missing = (
        sorted(set(named) - set(map(str, labels))),
        sorted(set(map(str, labels)) - set(named)),
    )
    listed = "the classes are " + ", ".join(map(str, labels))
    if missing and not strange and len(named) == len(entries):
        raise InputError(
            "class_weight",
            f"must have one weight for each of the classes, and has none for {missing[0]!r}",
            None,
            f"give it 1 to count it as it is; {listed}",
        )
    if strange or len(named) != len(entries):
        raise InputError(
            "class_weight",
            "must have one weight for each of the classes, and none for anything else",
            (strange or sorted(named))[0],
            listed,
        )
    weights = [to_float(f"class_weight of {label}", named[str(label)]) for label in labels]
    largest = max(weights)
    if (
        not all(math.isfinite(weight) and weight > 0 for weight in weights)
        or min(weights) < LEAST * largest
    ):
        raise InputError(
            "class_weight",
            "must hold positive numbers, none less than a billionth of the largest",
            dict(zip(map(str, labels), weights, strict=True)),
            "leave out records that must not count",
        )
    return None if min(weights) == largest else tuple(weight / largest for weight in weights)

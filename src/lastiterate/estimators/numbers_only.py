"""Text where numbers are needed, refused without a look at what it says."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from lastiterate.errors import InputError

WHO = "an estimator with schema= says what columns of text mean"


@contextmanager
def numbers_only(name: str) -> Iterator[None]:
    """Inside, NumPy's and scikit-learn's refusal of text in ``name``, which shows a value, becomes one that does not.

    Errors: ``InputError`` where there was text.
    """
    try:
        yield
    except ValueError as error:
        if "could not convert string" not in str(error):
            raise
        raise InputError(name, "must hold numbers", None, WHO) from None

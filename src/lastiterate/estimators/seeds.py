"""The seed of a fit, from what scikit-learn calls a random state."""

from __future__ import annotations

from typing import Any

from sklearn.utils import check_random_state  # pyright: ignore

from lastiterate.errors import InputError


def seed_of(random_state: Any) -> int | None:
    """A seed drawn from a whole number or a generator of NumPy; ``None`` for 128 bits from the system."""
    if random_state is None:
        return None
    try:
        return int(check_random_state(random_state).randint(2**31))
    except ValueError:
        raise InputError("random_state", "must be None, a whole number from 0 to 2^32 - 1, or a RandomState of NumPy",
                         random_state) from None

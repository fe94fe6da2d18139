"""A reminder, once per process, that fits on one data set compose.

Two signs show a repeated fit. Something of scikit-learn that fits again and again
(cross-validation, searches, selection of features, a model for each target or class) is on the call
stack, in its worker processes too. Or rows are back that an earlier fit of this process saw:
sketches made of the smallest of their hashes overlap in proportion (Broder: On the resemblance and
containment of documents, 1997). It is a reminder and no accountant: rows that were scaled again,
and fits in other processes, are not recognised.
"""

from __future__ import annotations

import hashlib
import secrets
import sys
import warnings
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping
from contextlib import closing, nullcontext
from threading import Lock
from typing import Any, cast

import numpy as np

from lastiterate.errors import RepeatedFitWarning, outside
from lastiterate.release.training_request import is_source

REPEATING = (
    "sklearn.model_selection._search",
    "sklearn.model_selection._validation",
    "sklearn.feature_selection._rfe",
    "sklearn.feature_selection._sequential",
    "sklearn.feature_selection._from_model",
    "sklearn.multioutput",
    "sklearn.multiclass",
    "sklearn.ensemble._voting",
    "sklearn.ensemble._stacking",
    "sklearn.ensemble._base",
    "sklearn.calibration",
)
"""Modules of scikit-learn that fit on the same records several times, or before another fit on
them."""
HASHES = 64  #: in a sketch, at most
FITS = 64  #: that are remembered
SHARED = 0.1  #: part of the smaller sketch that must be back; some rows are equal by chance
SLICE = 1024  #: rows that are hashed at once
MESSAGE = (
    "fits on one data set compose, and a model's epsilon is for its own fit only: k fits cost up "
    "to k epsilon "
    "and k delta, and no epsilon covers scores on private rows; tune on public data, decide "
    "beforehand, or use "
    "DPSearchCV, which pays for its search"
)

SAME_SEED = (
    "this seed was used for a fit on other data: whoever holds both models subtracts one from the "
    "other, and "
    "the noise is gone; no epsilon holds for either of them, so leave the seed out"
)

Sketch = frozenset[int]


class Reminder:
    """What a process remembers of its last fits.

    **Guarantee:** at most ``HASHES`` 64-bit hashes of rows per fit, and one of seeded data, are
    kept under a secret of the process; they are never written, shown or pickled with an estimator.
    """

    def __init__(self) -> None:
        self._secret = secrets.randbits(128)
        self._fits: deque[Sketch] = deque(maxlen=FITS)
        self._seeds: deque[tuple[int, bytes]] = deque(maxlen=FITS)
        self._warned = False
        self._one_at_a_time = Lock()

    def begins(self, data: object, seed: int | None, *, tables: bool) -> Sketch | None:
        """Warn of what an earlier fit makes of the one that begins; what to remember it by where it
        is of a table."""
        found = _rows(data) if tables else None
        rows = None if found is None else self.sketch(found)
        if rows is not None:
            self.before(rows)
        if seed is not None:
            import jax

            self.warn_about_seed(seed, data if is_source(data) else jax.tree.leaves(data))
        return rows

    def sketch(self, rows: np.ndarray) -> Sketch:
        """The smallest hashes of rows (n, d): sum of random odd numbers times the row's 32-bit
        words, modulo 2^64."""
        factors = (
            cast(
                np.ndarray,
                np.random.default_rng(self._secret).integers(
                    2**64, size=rows.shape[1], dtype=np.uint64
                ),
            )
            | 1
        )
        hashes = np.empty(len(rows), dtype=np.uint64)
        with np.errstate(over="ignore"):
            for first in range(0, len(rows), SLICE):
                words = np.ascontiguousarray(rows[first : first + SLICE], dtype=np.float32).view(
                    np.uint32
                )
                hashes[first : first + SLICE] = np.einsum(
                    "ij,j->i", words.astype(np.uint64), factors
                )
        return frozenset(np.unique(hashes)[:HASHES].tolist())

    def before(self, rows: Sketch) -> None:
        """Warn before a repeated fit, once; where the warning is made an error, every time, and
        nothing is spent."""
        with self._one_at_a_time:  # fits may run in threads
            if not _is_repeating() and not any(_overlap(rows, other) for other in self._fits):
                return
            # a recorded warning is not shown, and is still raised where a filter makes it an error
            with warnings.catch_warnings(record=True) if self._warned else nullcontext():
                warnings.warn(
                    MESSAGE, RepeatedFitWarning, stacklevel=outside()
                )  # where ``fit`` was called
            self._warned = True

    def warn_about_seed(self, seed: int | None, data: Any) -> None:
        """Warn where a seed made the noise of a fit on other data of this process: their difference
        has no noise.

        ``data``: arrays or tensors in a fixed order, or records that are read in pieces.
        """
        if seed is None:
            return
        digests = defaultdict[int, hashlib.blake2b](
            lambda: hashlib.blake2b(key=self._secret.to_bytes(16, "big"))
        )
        for piece in (
            data.pieces(SLICE) if is_source(data) else (data,)
        ):  # the same for records in memory and in pieces
            for place, part in enumerate(piece):
                digests[place].update(_plain(part).tobytes())
        combined = b"".join(digest.digest() for digest in digests.values())
        with self._one_at_a_time:
            if any(seed == other and combined != before for other, before in self._seeds):
                warnings.warn(SAME_SEED, RepeatedFitWarning, stacklevel=outside())
            self._seeds.append((seed, combined))

    def after(self, rows: Sketch | None) -> None:
        """Remember a fit that released a model."""
        if rows is not None:
            with self._one_at_a_time:
                self._fits.append(rows)


def _rows(data: Any) -> np.ndarray | None:
    """The numbers of every record's largest part, (n, d); of a source, those of the first records.

    ``None`` where they tell no data set from another: one integer each, or no numbers.
    """
    if is_source(data):
        with closing(data.pieces(4096)) as pieces:
            return np.asarray(next(pieces)[0])
    try:
        rows = _plain(max(_parts(data), key=lambda part: int(np.prod(np.shape(part)))))
    except (TypeError, ValueError, RuntimeError):  # the fit says what is wrong with such data
        return None
    if not rows.ndim or rows.dtype.kind not in "biuf" or not rows.size:
        return None
    rows = rows.reshape(len(rows), -1)
    return rows if rows.shape[1] > 1 or rows.dtype.kind == "f" else None


def _parts(data: Any) -> Iterator[Any]:
    """The arrays and tensors in nested containers; a list of numbers is an array."""
    if isinstance(data, Mapping):
        data = tuple(cast("Mapping[Any, Any]", data).values())
    if isinstance(data, tuple) or (isinstance(data, list) and hasattr(data[0], "shape")):  # pyright: ignore
        for part in cast("tuple[Any, ...]", data):
            yield from _parts(part)
    else:
        yield data


def _plain(part: Any) -> np.ndarray:
    """An array, or a tensor of any device, as NumPy holds it."""
    if not hasattr(part, "detach"):
        return np.ascontiguousarray(part)
    tensor = part.detach().cpu()
    return np.ascontiguousarray(tensor.float() if "bfloat16" in str(tensor.dtype) else tensor)


def _overlap(one: Sketch, two: Sketch) -> bool:
    return len(one & two) >= SHARED * min(len(one), len(two))


def _is_repeating() -> bool:
    frame = sys._getframe()  # pyright: ignore[reportPrivateUsage]
    while frame is not None:
        if str(frame.f_globals.get("__name__")).startswith(REPEATING):
            return True
        frame = frame.f_back
    return False


REMINDER = Reminder()

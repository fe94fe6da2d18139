"""A reminder, once per process, that fits on one data set compose.

Two signs show a repeated fit. Something of scikit-learn that fits again and again
(cross-validation, searches, selection of features, a model for each target or class) is on the call
stack, in its worker processes too. Or records are back that an earlier fit of this process saw, in
the table that the caller handed over or in the rows that were made of it: sketches made of the
smallest of their hashes overlap in proportion (Broder: On the resemblance and containment of
documents, 1997). It is a reminder and no accountant: tables that the caller scaled again, and fits
in other processes, are not recognised.
"""

from __future__ import annotations

import hashlib
import secrets
import sys
import warnings
from collections import defaultdict, deque
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing, contextmanager, nullcontext
from contextvars import ContextVar
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
WIDE = 256  #: columns, from which on only whole rows of numbers are hashed
SAMPLE = 1000  #: hashes of a column, about, that tell whether its values are nearly all different
FEWEST, DIFFERENT = 50, 0.99
"""Values of a column, or rows, and the part of them that must differ: two independent draws of such
a column share fewer than ``SHARED``, and their order need not count."""
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

_HANDED: ContextVar[tuple[object, ...]] = ContextVar("handed", default=())


@contextmanager
def recognise_by(*tables: object) -> Generator[None]:
    """Inside, fits are recognised by ``tables`` too: what the caller gave before any map."""
    token = _HANDED.set(tables)
    try:
        yield
    finally:
        _HANDED.reset(token)


class Reminder:
    """What a process remembers of its last fits.

    **Guarantee:** of every table of a fit at most three times ``HASHES`` 64-bit hashes of rows and
    cells, and one hash of seeded data, are kept under a secret of the process; they are never
    written, shown or pickled with an estimator.
    """

    def __init__(self) -> None:
        self._secret = secrets.randbits(128)
        self._fits: deque[list[Sketch]] = deque(maxlen=FITS)
        self._seeds: deque[tuple[int, bytes]] = deque(maxlen=FITS)
        self._warned = False
        self._one_at_a_time = Lock()

    def begins(self, data: object, seed: int | None, *, tables: bool) -> list[Sketch] | None:
        """Warn of what an earlier fit makes of the one that begins; what to remember it by where it
        is of a table."""
        rows = None
        if tables:
            made = _rows(data)
            found = [table for table in _HANDED.get() if not _is_view(made, table)]
            each = map(self.sketch, found if made is None else [made, *found])
            rows = list(dict.fromkeys(one for sketches in each for one in sketches))
        if rows:
            self.before(rows)
        if seed is not None:
            import jax

            self.warn_about_seed(seed, data if is_source(data) else jax.tree.leaves(data))
        return rows

    def sketch(self, data: object) -> list[Sketch]:
        """The smallest hashes of a table's rows, by the names or positions of their columns; where
        nearly all differ, of its rows in any order of columns, and of its cells."""
        columns = _columns(data)
        if columns is None:
            rows = _rows(data)
            return [] if rows is None else [self._smallest(self._hash_wide(rows))]
        in_order, in_any, cells = np.uint64(0), np.uint64(0), list[np.ndarray]()
        with np.errstate(over="ignore"):
            for name, words, fractional in columns:
                hashes = _mix(words ^ np.uint64(self._key("")))
                in_order = in_order + hashes * np.uint64(self._key(f" {name}") | 1)
                in_any = in_any + hashes
                if fractional and _differ(hashes):
                    cells.append(hashes if len(hashes) <= SAMPLE else _sample(hashes))
        hashed = [np.asarray(in_order)]
        if _differ(_mix(np.asarray(in_any))):
            hashed.append(_mix(np.asarray(in_any)))
        if cells:
            hashed.append(np.concatenate(cells))
        return [self._smallest(one) for one in hashed if one.ndim]

    def _smallest(self, hashes: np.ndarray) -> Sketch:
        return frozenset(np.unique(hashes)[:HASHES].tolist())

    def _key(self, name: str) -> int:
        """A secret number of 64 bits for a column's name."""
        digest = hashlib.blake2b(
            name.encode(errors="replace"), digest_size=8, key=self._secret.to_bytes(16, "big")
        )
        return int.from_bytes(digest.digest(), "big")

    def _hash_wide(self, rows: np.ndarray) -> np.ndarray:
        """Hashes (n,) of rows (n, d): sum of random odd numbers times the row's 32-bit words,
        modulo 2^64."""
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
        return hashes

    def before(self, rows: list[Sketch]) -> None:
        """Warn before a repeated fit, once; where the warning is made an error, every time, and
        nothing is spent."""
        with self._one_at_a_time:  # fits may run in threads
            if not _is_repeating() and not any(
                _overlap(one, other) for fit in self._fits for other in fit for one in rows
            ):
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

    def after(self, rows: list[Sketch] | None) -> None:
        """Remember a fit that released a model."""
        if rows:
            with self._one_at_a_time:
                self._fits.append(rows)


def _is_view(made: np.ndarray | None, table: object) -> bool:
    """Whether both are the same numbers in memory."""
    if made is None or not isinstance(table, np.ndarray):
        return False
    return np.may_share_memory(made, cast(np.ndarray, table))


def _columns(data: Any) -> list[tuple[str, np.ndarray, bool]] | None:
    """Of every column of a table its name or position, a number for each cell, (n,), and whether
    most cells are fractional numbers or texts of several words.

    ``None`` for other data, wide ones, and one column of integers, which tells no data set from
    another.
    """
    try:
        found = list(_name_columns(data))
        if not 1 <= len(found) <= WIDE:
            return None
        each = [(name, *_words(column)) for name, column in found]
    except Exception:  # the fit says what is wrong with such data, and this is only a reminder
        return None
    if (len(each) == 1 and not each[0][2]) or len({len(words) for _, words, _ in each}) > 1:
        return None
    return each


def _name_columns(data: Any) -> Iterator[tuple[str, np.ndarray]]:
    """The columns of a data frame, a dictionary or an array by their names or positions."""
    names: Any = getattr(data, "column_names", getattr(data, "columns", None))
    if isinstance(data, Mapping):
        held = cast("Mapping[object, Any]", data)
        if all(np.ndim(part) == 1 for part in held.values()):
            yield from ((str(name), np.asarray(part)) for name, part in held.items())
    elif names is not None and hasattr(data, "iloc"):
        yield from ((str(name), np.asarray(data.iloc[:, i])) for i, name in enumerate(names))
    elif names is not None:
        yield from ((str(name), np.asarray(data[name])) for name in names)
    else:
        rows = _rows(data)
        if rows is None:
            rows = np.asarray(data)
        if rows.ndim == 2 and rows.shape[1] <= WIDE:
            yield from ((str(i), rows[:, i]) for i in range(rows.shape[1]))


def _words(column: np.ndarray) -> tuple[np.ndarray, bool]:
    """A number of 64 bits for each cell (n,), the same in single and double precision, and whether
    most are fractional numbers or texts of several words."""
    if column.ndim != 1:
        raise ValueError("no column")
    if column.dtype.kind in "mM":
        return column.astype(f"{column.dtype.kind}8[s]").view(np.uint64), False
    try:
        numbers = column if column.dtype.kind in "biuf" else column.astype(np.float64)
    except (TypeError, ValueError):
        cells = column.tolist()
        numbered = {cell: _number_text(cell) for cell in set(cells)}
        words = np.fromiter(map(numbered.__getitem__, cells), np.int64, len(cells))
        several = sum(str(cell).count(" ") > 1 for cell in cells[:SAMPLE])
        return words.view(np.uint64), 2 * several > len(cells[:SAMPLE])
    with np.errstate(all="ignore"):
        single = numbers.astype(np.float32) + np.float32(0)  # of both zeros one
        single[np.isnan(single)] = np.nan
        fractional = np.mean(single[:SAMPLE] % 1 > 0) > 0.5
    return single.view(np.uint32).astype(np.uint64), bool(fractional)


def _number_text(cell: object) -> int:
    """A number for the text of a cell, the same for all that are missing."""
    text = str(cell).strip()
    return hash("" if text in ("None", "nan", "<NA>", "NaT") else text)


def _mix(words: np.ndarray) -> np.ndarray:
    """Spread numbers (n,) evenly over 64 bits (Steele, Lea and Flood: SplitMix64)."""
    with np.errstate(over="ignore"):
        words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def _sample(hashes: np.ndarray) -> np.ndarray:
    """About ``SAMPLE`` of many different hashes: the smallest ones, each as often as it is there."""
    return hashes[hashes < np.uint64(2**64 // len(hashes) * SAMPLE)]


def _differ(hashes: np.ndarray) -> bool:
    """Whether nearly all hashes (n,) differ, by those of a sample."""
    if len(hashes) > SAMPLE:
        hashes = _sample(hashes)
    return len(hashes) >= FEWEST and len(np.unique(hashes)) >= DIFFERENT * len(hashes)


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

"""Text as signed counts of hashed words, pairs of words and pieces of words."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from itertools import chain, pairwise
from typing import Any, ClassVar, Self, final

import numpy as np

from lastiterate.features.column_maps import RecordMap
from lastiterate.features.record_fields import Field, Text, Values
from lastiterate.run.serialization import require
from lastiterate.run.validation import check_integer

# A linear model learns which words and pieces of words speak for a class.

MOST_HASHES, NARROWEST = 4096, 256
RECORDS_PER_HASH = 4.0
"""Records times mu for each number of a row; a narrower row sums up more words in one number."""


@final
@dataclass(frozen=True)
class HashedWords(RecordMap):
    """A map of text to signed counts of hashed words, word pairs and pieces of words.

    Words fill the first half of the row and pieces the second. Each half has norm sqrt(1/2), or 0
    where a text has none.

    Parameters
    ----------
    buckets : int, default 1024
        Number of entries of a row.
    piece : int, default 4
        Number of characters of a piece, at most 20.

    Raises
    ------
    InputError
        If a value is out of range.

    Notes
    -----
    **Guarantee:** a row depends on its own record only. Source of the hashing: Weinberger et al.
    2009, as in scikit-learn's ``HashingVectorizer``.

    Examples
    --------
    >>> from lastiterate.features import HashedWords
    >>> HashedWords(buckets=256).buckets
    256
    """

    buckets: int = field(
        default=1024, metadata=require(check_integer, "buckets of words", least=2, most=2**20)
    )
    piece: int = field(default=4, metadata=require(check_integer, "piece of words", most=20))
    name: ClassVar[str] = "words"
    takes: ClassVar[tuple[type[Field], ...]] = (Text,)

    @classmethod
    def for_budget(cls, fields: tuple[Field, ...], resolved: float) -> Self:
        wanted = resolved / (
            RECORDS_PER_HASH * max(1, sum(isinstance(field, Text) for field in fields))
        )
        return cls(
            min(
                MOST_HASHES,
                max(NARROWEST, 2 ** math.floor(math.log2(max(min(wanted, MOST_HASHES), 1.0)))),
            )
        )

    @classmethod
    def pays(cls, fields: tuple[Field, ...], resolved: float) -> bool:
        return any(
            isinstance(field, Text) for field in fields
        )  # which becomes numbers in no other way

    def width(self, field: Field) -> int:
        return self.buckets

    def norm(self, field: Field) -> float:
        return 1.0

    def words(self) -> str:
        return (
            f"words: words, pairs of words and pieces of {self.piece} characters, counted with "
            f"signs in "
            f"{self.buckets} numbers"
        )

    def rows(self, field: Field, values: Values) -> np.ndarray:
        texts = [str(text).encode("utf-8", "replace").decode().lower() for text in values]
        first = self.buckets - self.buckets // 2
        halves = [
            count_hashes(hash_words(texts), first),
            count_hashes(hash_pieces(texts, self.piece), self.buckets // 2),
        ]
        return np.concatenate(halves, axis=1) / math.sqrt(2)


WORD = re.compile(r"\b\w\w+\b")


def hash_words(texts: list[str]) -> list[np.ndarray]:
    """Hashes of each text's words of two letters and more, and of the pairs that follow each
    other."""
    words = map(WORD.findall, texts)
    terms = [[*each, *map(" ".join, pairwise(each))] for each in words]
    return hash_lists(terms)


def hash_pieces(texts: list[str], size: int) -> list[np.ndarray]:
    """Hashes of all pieces of ``size`` characters of each text's words with spaces around them, and
    of shorter words as they are."""
    words = [text.split() for text in texts]
    pieces: dict[str, list[str]] = {}
    for word in dict.fromkeys(chain.from_iterable(words)):
        padded = f" {word} "
        starts = range(max(1, len(padded) - size + 1))
        pieces[word] = [padded[start : start + size] for start in starts]
    of_word = dict(zip(pieces, hash_lists(list(pieces.values())), strict=True))
    return [np.concatenate([NONE, *map(of_word.__getitem__, each)]) for each in words]


NONE = np.zeros(0, dtype=np.int64)


def count_hashes(hashes: list[np.ndarray], buckets: int) -> np.ndarray:
    """Counts (n, buckets) of each text's hashes, with their signs; rows of norm 1, or 0 where a
    text has none.

    ``HashingVectorizer`` of scikit-learn has the same numbers, bit for bit.
    """
    counts = np.zeros((len(hashes), buckets))
    for row, each in zip(counts, hashes, strict=True):
        row[:] = np.bincount(np.abs(each) % buckets, np.where(each < 0, -1.0, 1.0), buckets)
    norms = np.sqrt(np.square(counts).sum(axis=1, keepdims=True))
    return counts / np.where(norms > 0, norms, 1.0)


# MurmurHash3 by Austin Appleby (public domain), the variant of 32 bits, with seed 0.

FIRST, SECOND, ADDED, MASK = 0xCC9E2D51, 0x1B873593, 0xE6546B64, 0xFFFFFFFF
FINAL = ((16, 0x85EBCA6B), (13, 0xC2B2AE35))
LONG = 64
"""Bytes from which on a text is hashed by itself: few are as long."""


def hash_lists(lists: list[list[str]]) -> list[np.ndarray]:
    """The hashes of the terms of each list."""
    hashes = hash_texts([term.encode() for term in chain.from_iterable(lists)])
    ends = np.cumsum([0, *map(len, lists)])
    return [hashes[start:end] for start, end in pairwise(ends.tolist())]


def hash_texts(texts: list[bytes]) -> np.ndarray:
    """The hashes of texts, as signed integers of 32 bits in int64."""
    lengths = np.array([*map(len, texts)], dtype=np.int64)
    out = np.empty(len(texts), dtype=np.int64)
    order = np.argsort(lengths, kind="stable")
    for of in np.split(order, np.flatnonzero(np.diff(lengths[order], prepend=-1)))[1:]:
        length = int(lengths[of[0]])
        padded = np.zeros((len(of), 4 * -(-length // 4)), dtype=np.uint8)
        joined = b"".join(map(texts.__getitem__, of.tolist()))
        padded[:, :length] = np.frombuffer(joined, np.uint8).reshape(len(of), length)
        blocks = padded.view("<u4").astype(np.uint64)
        if length < LONG:
            out[of] = _mix_blocks(blocks.T, length)
        else:
            out[of] = [_mix_blocks(row, length) for row in blocks.tolist()]
    return out - ((out >> 31) << 32)


def _mix_blocks(blocks: Any, length: int) -> Any:
    """The hash of blocks of four bytes, the last one filled up with 0: integers, or arrays of
    them."""
    mixed = 0
    for number, block in enumerate(blocks):
        part = _turn(block * FIRST & MASK, 15) * SECOND & MASK
        mixed = mixed ^ part
        if 4 * (number + 1) <= length:
            mixed = (_turn(mixed, 13) * 5 + ADDED) & MASK
    mixed = mixed ^ length
    for bits, factor in FINAL:
        mixed = (mixed ^ (mixed >> bits)) * factor & MASK
    return mixed ^ (mixed >> 16)


def _turn(number: Any, bits: int) -> Any:
    """32 bits rotated to the left by ``bits``."""
    return (number << bits | number >> (32 - bits)) & MASK

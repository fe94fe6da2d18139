"""Text as hashed words and pieces of words, so that a linear model learns which of them speak for a class."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar, Self, final

import numpy as np

from lastiterate.features.record_fields import Field, Text, Values
from lastiterate.features.record_map import RecordMap
from lastiterate.run.fields import settle
from lastiterate.run.validate import whole

if TYPE_CHECKING:
    from sklearn.feature_extraction.text import HashingVectorizer  # pyright: ignore

WIDEST, NARROWEST = 4096, 256
PER_NUMBER = 4.0
"""Records times mu for each number of a row; a narrower row sums up more words in one number."""


@final
@dataclass(frozen=True)
class HashedWords(RecordMap):
    """Words and pairs of words, and pieces of ``piece`` characters within words, counted in ``buckets`` numbers.

    A hash says in which number a word counts, and with which sign (scikit-learn's ``HashingVectorizer``; Weinberger et
    al. 2009): a narrow row is a signed random projection of a wide one. Words fill the first half of the row and pieces
    the second; each half has norm sqrt(1/2), or 0 where a text has none.
    """

    buckets: int = 1024
    piece: int = 4
    name: ClassVar[str] = "words"
    takes: ClassVar[tuple[type[Field], ...]] = (Text,)

    def __post_init__(self) -> None:
        settle(self)
        whole("buckets of words", self.buckets, least=2, most=2**20)
        whole("piece of words", self.piece, most=20)

    @classmethod
    def sized(cls, fields: tuple[Field, ...], resolved: float) -> Self:
        wanted = resolved / (PER_NUMBER * max(1, sum(isinstance(field, Text) for field in fields)))
        return cls(min(WIDEST, max(NARROWEST, 2 ** math.floor(math.log2(max(min(wanted, WIDEST), 1.0))))))

    @classmethod
    def pays(cls, fields: tuple[Field, ...], resolved: float) -> bool:
        return any(isinstance(field, Text) for field in fields)  # which becomes numbers in no other way

    def width(self, field: Field) -> int:
        return self.buckets

    def norm(self, field: Field) -> float:
        return 1.0

    def words(self) -> str:
        return (f"words: words, pairs of words and pieces of {self.piece} characters, counted with signs in "
                f"{self.buckets} numbers")

    def rows(self, field: Field, values: Values) -> np.ndarray:
        texts = [str(text).encode("utf-8", "replace").decode() for text in values]
        first = self.buckets - self.buckets // 2
        halves = [vectorizer(first, 0), vectorizer(self.buckets // 2, self.piece)]
        parts: list[np.ndarray] = [half.transform(texts).toarray() for half in halves]  # pyright: ignore
        return np.concatenate(parts, axis=1) / math.sqrt(2)


@lru_cache(maxsize=8)
def vectorizer(buckets: int, piece: int) -> HashingVectorizer:
    """Of words and pairs of them (``piece`` 0), or of pieces of words."""
    from sklearn.feature_extraction.text import HashingVectorizer  # pyright: ignore

    if piece:
        return HashingVectorizer(n_features=buckets, norm="l2", analyzer="char_wb", ngram_range=(piece, piece))
    return HashingVectorizer(n_features=buckets, norm="l2", ngram_range=(1, 2))

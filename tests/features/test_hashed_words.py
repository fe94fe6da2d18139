"""Hashed words: the numbers of scikit-learn's vectorizer, without importing it."""

import random
import string

import numpy as np
import pytest
from sklearn.feature_extraction.text import HashingVectorizer

from lastiterate.features import HashedWords
from lastiterate.features.hashed_words import LONG, hash_texts
from lastiterate.features.record_fields import Text

LETTERS = [*string.printable, *"äöüßÄÖİıſΣς数据🤷🏽\u2028\u0085\x1c\x00\u00a0\u0301"]
ODD = ["", "  ", "a", "ab", " ab\n\ncd ", "ab " * 300, "x" * 500, "_" * 70, "nan", "A\tB"]


def by_scikit_learn(texts: list[str], buckets: int, piece: int) -> np.ndarray:
    words = HashingVectorizer(n_features=buckets - buckets // 2, ngram_range=(1, 2))
    pieces = HashingVectorizer(
        n_features=buckets // 2, analyzer="char_wb", ngram_range=(piece, piece)
    )
    halves = [half.transform(texts).toarray() for half in (words, pieces)]
    return np.concatenate(halves, axis=1) / np.sqrt(2)


@pytest.mark.parametrize(("buckets", "piece"), [(2, 1), (3, 2), (256, 4), (1025, 20)])
def test_rows_are_those_of_scikit_learn_to_the_last_bit(buckets: int, piece: int) -> None:
    rng = random.Random(buckets)
    texts = ODD + ["".join(rng.choices(LETTERS, k=rng.randrange(200))) for _ in range(100)]
    rows = HashedWords(buckets, piece).rows(Text("t"), texts)
    assert np.array_equal(rows, by_scikit_learn(texts, buckets, piece))


def test_a_row_depends_on_its_own_text_alone() -> None:
    one, texts = HashedWords(64), [*ODD, "a word or two", "ab cd ab"]
    together = one.rows(Text("t"), texts)
    assert np.array_equal(together, np.concatenate([one.rows(Text("t"), [t]) for t in texts]))
    assert one.rows(Text("t"), []).shape == (0, 64)


def test_hashes_are_the_published_ones() -> None:
    """Values of MurmurHash3_x86_32 with seed 0; long texts are hashed by integers, not arrays."""
    known = {b"": 0, b"hello": 0x248BFA47, b"hello, world": 0x149BBB7F}
    known[b"The quick brown fox jumps over the lazy dog"] = 0x2E4FF723
    assert [int(one) % 2**32 for one in hash_texts(list(known))] == list(known.values())
    long = [b"a" * length for length in (LONG - 1, LONG, LONG + 1, LONG + 3)]
    texts = [text.decode() for text in long]
    assert np.array_equal(HashedWords(8).rows(Text("t"), texts), by_scikit_learn(texts, 8, 4))

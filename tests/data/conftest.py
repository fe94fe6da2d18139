"""The law of every reader: a file that is cut off or changed gives one sentence, or (if only
changed) a table."""

import os

import numpy as np
import pytest

from lastiterate.data import Table, read_table
from lastiterate.errors import InputError


def _places(size, most):
    """Every place in a short file; in a long one its ends and about ``most`` places between."""
    if size <= most:
        return range(size)
    return sorted({*range(100), *range(size - 100, size), *range(0, size, size // most)})


def _put(path, place, byte):
    with path.open("r+b") as file:
        file.seek(place)
        file.write(bytes([byte]))


@pytest.fixture
def refused_when_cut():
    """Cutting a valid file anywhere (but at ``unseen`` places) is refused in one sentence, and so
    is one byte more."""

    def check(path, *, unseen=(), longer=True, most=600):
        whole = path.read_bytes()
        assert len(read_table(path)) > 0
        for place in reversed(_places(len(whole), most)):
            os.truncate(path, place)
            if place in unseen:
                assert len(read_table(path)) > 0
                continue
            with pytest.raises(InputError) as caught:
                read_table(path)
            assert "\n" not in str(caught.value) and len(str(caught.value)) < 400, place
        path.write_bytes(whole + b"\0")
        if longer:
            with pytest.raises(InputError):
                read_table(path)
        path.write_bytes(whole)

    return check


@pytest.fixture
def survives_changed_bytes():
    """One changed byte gives a table or an ``InputError`` in one line, and nothing else."""

    def check(path, times=400):
        whole, random = path.read_bytes(), np.random.default_rng(0)
        for _ in range(times):
            # the first bytes, where headers are, as often as all others
            place = random.integers(min(len(whole), 256) if random.random() < 0.5 else len(whole))
            _put(path, place, random.integers(256))
            try:
                assert isinstance(read_table(path), Table)
            except InputError as error:
                assert "\n" not in str(error)
            _put(path, place, whole[place])

    return check

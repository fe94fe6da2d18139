"""Slices in threads: their order, their errors, and products whose bits do not depend on threads."""

import threading

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

import lastiterate as li
from lastiterate.engine.linear_model import Measurable, prepare_privately
from lastiterate.engine.preprocessing import each_sum
from lastiterate.processor_threads import map_in_threads

RNG = np.random.default_rng(0)
TABLES = [
    (RNG.standard_normal((m, 300)), RNG.standard_normal((300, 40 + m))) for m in (1, 65, 200, 333)
] * 4


def blas():
    return [each["num_threads"] for each in threadpool_info() if each["user_api"] == "blas"]


def multiplied():
    return list(map_in_threads(lambda each: each[0] @ each[1], TABLES))


def test_products_have_the_bits_of_one_thread():
    with threadpool_limits(1, user_api="blas"):
        alone = [left @ right for left, right in TABLES]
    with threadpool_limits(2, user_api="blas"):
        for one, other in zip(alone, multiplied(), strict=True):
            np.testing.assert_array_equal(one, other)


def test_blas_has_its_threads_back():
    def failing(number):
        assert set(blas()) == {1}
        raise KeyError(number)

    with threadpool_limits(2, user_api="blas"):
        before = blas()
        first, second = map_in_threads(abs, [1, 2]), map_in_threads(abs, [3, 4])
        assert (next(first), next(second)) == (1, 3)  # one begins before the other ends
        first.close()
        assert set(blas()) == {1}
        second.close()
        assert blas() == before
        with pytest.raises(KeyError):
            next(map_in_threads(failing, [1]))
        assert blas() == before


def test_preparations_are_computed_by_one_thread():
    seen = []

    def release(*_):
        seen.extend(blas())
        return np.zeros(1)

    run = li.Run(
        n=2,
        steps=1,
        step_size=0.1,
        noise=li.NoiseMultiplier(1.0),
        loss=li.Logistic(),
        preprocessing=(li.PrivateMean(row_norm=1.0, noise_multiplier=1.0),),
    )
    with threadpool_limits(2, user_api="blas"):
        before = blas()
        prepare_privately(run, Measurable(2, 1, lambda: iter(()), lambda: iter(())), release)
        assert set(seen) == {1} and blas() == before


def test_items_come_in_order_and_an_error_where_it_belongs():
    gates = [threading.Event() for _ in range(2)]

    def later_first(number):
        if number == 0:
            assert gates[0].wait(10)  # the first item waits for the second
        gates[0].set()
        if number == 5:
            raise KeyError(number)
        return number

    found = map_in_threads(later_first, range(9))
    assert [next(found) for _ in range(5)] == list(range(5))
    with pytest.raises(KeyError, match="5"):
        next(found)
    assert list(map_in_threads(abs, [])) == []


def test_few_items_are_ahead():
    """Memory: not every slice is read before the first sum is used."""
    read = []

    def slices():
        for number in range(1000):
            read.append(number)
            yield np.full(3, float(number))

    sums = each_sum(slices(), lambda rows: rows.sum())
    assert next(sums) == 0 and len(read) < 200
    sums.close()
    assert len(read) < 200

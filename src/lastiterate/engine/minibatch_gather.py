"""Batches that are drawn again in every pass, gathered on the host while earlier steps run.

A compiled program gathers records one number at a time; NumPy copies whole records, in a thread of
its own. Two buffers exist, of a share of the data each.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import numpy as np

from lastiterate.engine.loop import StepProgram, arrange_for_pass
from lastiterate.engine.noise import ahead
from lastiterate.engine.preprocessing import allocate_aligned
from lastiterate.engine.random import Key
from lastiterate.engine.sampler_interface import BatchOrder, EpochSampler, words
from lastiterate.engine.samplers import Bins

GROUP = 2**25
"""Bytes of a buffer, about; never less than a batch."""


class Group(NamedTuple):
    """Records of the steps before ``end``, and the program that reads them; valid until the group
    after the next."""

    program: StepProgram
    data: object
    end: int


def batches(
    program: StepProgram, data: object, key: Key, first: int, steps: int
) -> Generator[Group, None, None]:
    """Yield the data of the steps ``first`` .. ``steps`` - 1, arranged by the draws of ``key``;
    ``data`` as the draw of the whole run left them."""
    sampler = program.sampler
    if sampler.drawn != "each pass":
        yield Group(program, data, steps)
    elif isinstance(sampler, EpochSampler) and jax.default_backend() == "cpu":
        yield from ahead(iterate_batches(program, sampler, data, key, first, steps))
    else:  # a device gathers what lies there
        for number in range(first // sampler.blocks, -(-steps // sampler.blocks)):
            yield Group(
                program,
                arrange_for_pass(program, data, key, number),
                min(steps, (number + 1) * sampler.blocks),
            )


def iterate_batches(
    program: StepProgram, sampler: EpochSampler, data: object, key: Key, first: int, steps: int
) -> Iterator[Group]:
    """As many batches at a time as a buffer holds, as ``Bins`` reads them."""
    reads = replace(program, sampler=Bins(sampler.layout, sampler.blocks, sampler.rows_read))
    leaves, tree = jax.tree.flatten(data)
    rows, blocks = [flat(leaf, sampler) for leaf in leaves], sampler.blocks
    buffers = Buffers(rows, sampler, sampler.records(data))
    random = words(key, first // blocks, -(-steps // blocks), sampler.records(data))
    with closing(ahead(map(sampler.allocate, random))) as drawn:
        for number, order in enumerate(drawn, first // blocks):
            begin, until = max(0, first - number * blocks), min(blocks, steps - number * blocks)
            while begin < until:
                end = buffers.fits(order, begin, until)
                records = jax.tree.unflatten(tree, buffers.fill(order, begin, end))
                yield Group(
                    reads, (records, order.begins - order.begins[begin]), number * blocks + end
                )
                begin = end


def flat(leaf: np.ndarray, sampler: EpochSampler) -> np.ndarray:
    """Records along the first axis, as a view."""
    array = np.asarray(leaf)
    return array.reshape(-1, *array.shape[len(sampler.layout.shape) :])


class Buffers:
    """Two buffers for records like ``rows``, with empty slots behind them that a program may read
    and leaves out."""

    def __init__(self, rows: list[np.ndarray], sampler: EpochSampler, n: int) -> None:
        self._rows, self._sampler = rows, sampler
        blocks = sampler.blocks
        size = sum(part[:1].nbytes for part in rows)
        whole = GROUP // max(1, size)  # records of a buffer
        batches = max(1, min(blocks, whole * blocks // n))
        mean = n * batches / blocks
        self._most = n if batches == blocks else min(n, math.ceil(mean + 8 * math.sqrt(mean)))
        self._pair = [self._empty() for _ in range(2)]

    def _empty(self) -> list[np.ndarray]:
        slots = self._most + self._sampler.rows_read
        return [allocate_aligned((slots, *part.shape[1:]), part.dtype) for part in self._rows]

    def fits(self, order: BatchOrder, begin: int, until: int) -> int:
        """Return the first batch after ``begin`` that does not fit; ``begin`` itself always does."""
        return max(
            begin + 1,
            min(
                until,
                int(
                    np.searchsorted(  # pyright: ignore
                        order.begins, order.begins[begin] + self._most, side="right"
                    )
                )
                - 1,
            ),
        )

    def fill(self, order: BatchOrder, begin: int, end: int) -> list[Any]:
        """The records of batches ``begin`` .. ``end`` - 1, in the buffer that is not in use."""
        places = order.places[order.begins[begin] : order.begins[end]]
        if len(places) > self._most:  # one batch alone, far larger than expected: never cut
            self._most = len(places)
            self._pair = [self._pair[0], self._empty()]
        self._pair.reverse()
        if len(self._pair[0][0]) < self._most + self._sampler.rows_read:
            self._pair[0] = self._empty()
        for target, part in zip(self._pair[0], self._rows, strict=True):
            np.take(
                part, places, axis=0, out=target[: len(places)], mode="clip"
            )  # all positions are valid
        with jax.enable_x64(True):  # which every thread has for itself
            return [jax.device_put(target, may_alias=True) for target in self._pair[0]]

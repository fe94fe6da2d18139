"""The buffers of a run: made of records as they come, or where batches are the same in every pass read again."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import closing

from lastiterate.engine.streaming.chunk_buffer import ChunkBuffer, Shape
from lastiterate.engine.streaming.passes import Passes
from lastiterate.engine.streaming.record_source import Cursor


def filled_buffers(passes: Passes, shape: Shape, first: int) -> Generator[ChunkBuffer, None, None]:
    """The buffers of all steps from ``first`` on; each is valid until the one after the next is asked for.

    A buffer ends with a step unless that step alone is longer than a buffer, and with a pass: so the buffers of all
    processes hold the same chunks, whichever of them keep theirs.
    """
    run, pair = passes.run, [ChunkBuffer.empty(passes.form, shape.chunks, shape.rows) for _ in range(2)]
    whole = -(-first // run.blocks) * run.blocks  # where the next pass begins
    kept = passes.kept(shape) if whole + run.blocks < run.steps else None
    if kept is None:
        yield from _made(passes, shape, first, run.steps, pair)
        return
    with closing(kept):
        yield from _made(passes, shape, first, whole, pair)
        for buffer in _made(passes, shape, whole, whole + run.blocks, pair):
            kept.keep(buffer)
            yield buffer
        passes.close()
        for begin in range(whole + run.blocks, run.steps, run.blocks):
            passes.check()
            yield from kept.again(begin, run.steps, pair)


def _made(passes: Passes, shape: Shape, first: int, end: int, pair: list[ChunkBuffer]) -> Iterator[ChunkBuffer]:
    """The buffers of the steps ``first`` .. ``end`` - 1; ``pair[0]`` is the one that is not in use."""
    blocks = passes.run.blocks
    step = first
    if first >= end:
        return
    with closing(passes.from_pass(first // blocks)) as every:
        for one in every:
            shares = one.shares(shape).tolist()
            cursor = Cursor(one.pieces(shares[step % blocks][0]))
            until = min(end, (step // blocks + 1) * blocks)
            for k in range(step, until):
                begin, many, chunks = shares[k % blocks]
                if shape.parts > 1 and one.counts is None:
                    cursor = Cursor(one.pieces(begin))
                for number in range(chunks):
                    if pair[0].full or (number == 0 and pair[0].used + chunks > shape.chunks and pair[0].used):
                        yield from _handed(pair)
                    left = max(0, many - number * shape.records)
                    pair[0].add(cursor, min(shape.records, left), k, number + 1 == chunks)
                if chunks > shape.chunks:
                    yield from _handed(pair)
            if until % blocks == 0 and (shape.parts == 1 or one.counts is not None):
                cursor.finish()
            if pair[0].used:
                yield from _handed(pair)
            step = until
            if step == end:
                break


def _handed(pair: list[ChunkBuffer]) -> Iterator[ChunkBuffer]:
    """The buffer that is filled; when the next is asked for the one before it is free."""
    yield pair[0]
    pair.reverse()
    pair[0].used = 0

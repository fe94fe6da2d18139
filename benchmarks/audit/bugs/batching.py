"""Batches that are not drawn as described."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp

from benchmarks.audit.bugs import runs
from benchmarks.audit.bugs.bug import Bug
from lastiterate.engine import loop, minibatch_gather, trainer
from lastiterate.engine.sampler_interface import take_records, until_end, words
from lastiterate.engine.samplers import AllocatedEachPass, PoissonDraws

step_at, summed, drawn, for_pass = (
    loop.step_at,
    loop.batch_sum,
    PoissonDraws.batch_sum,
    loop.arrange_for_pass,
)


def repeated(program, state, data, *rest):
    """The last block's first record stands in the first block as well."""
    return step_at(program, state, tuple(a.at[0, 0, 0].set(a[-1, 0, 0]) for a in data), *rest)


def own_size(program, theta, data, order, k):
    """A block is divided by the records that it holds."""
    total, rows = summed(program, theta, data, order, k), data[0]
    held = (jnp.abs(rows[k % rows.shape[0]]).sum(-1) > 0).sum()
    return total * program.divisor / jnp.maximum(held, 1)


def drawn_count(sampler, read, data, key, k):
    """The drawn number divides the sum, instead of the expected one."""
    total = drawn(sampler, read, data, key, k)
    held = drawn(
        sampler,
        lambda chunk: (jnp.abs(chunk[0]).sum(-1) > 0).sum()[None, None].astype(jnp.float64),
        data,
        key,
        k,
    )[0, 0]
    return total * sampler.rate * sampler.layout.size / jnp.maximum(held, 1.0)


def overlapping(sampler, read, data, key, k):
    """A block begins with the last record of the block before it."""
    records, order, begins = data
    first, end, n = begins[k % sampler.parts], begins[k % sampler.parts + 1], sampler.layout.size

    def at(place):
        places = jax.lax.dynamic_slice_in_dim(order, place, sampler.count)
        return read(
            take_records(records, jnp.where(place + jnp.arange(sampler.count) < end, places, n), n)
        )

    return until_end(jnp.maximum(first - 1, 0), end, sampler.count, at)


TWO_BATCHES = (loop, "step_at", repeated)
PUBLIC_ORDER = (trainer, "arrange_once", lambda program, data, key: data)
IN_PLACE = ((trainer, "arrange_once", PUBLIC_ORDER[2]), (trainer, "places", lambda run, key: None))
ONE_DRAW = (
    (
        loop,
        "arrange_for_pass",
        lambda program, data, key, number: for_pass(program, data, key, 0 * number),
    ),
    (
        trainer,
        "arrange_for_pass",
        lambda program, data, key, number: for_pass(program, data, key, 0 * jnp.asarray(number)),
    ),
    (
        minibatch_gather,
        "words",
        lambda key, first, last, n: (next(words(key, 0, 1, n)) for _ in range(first, last)),
    ),
)

BUGS = (
    Bug(
        "a short last block divided by its own size",
        runs.SHORT_BLOCK,
        ((loop, "batch_sum", own_size),),
    ),
    Bug("one record in two batches", runs.TWO_BLOCKS, (TWO_BATCHES,)),
    Bug(
        "one Poisson batch for all steps",
        runs.RARE,
        (
            (
                PoissonDraws,
                "batch_sum",
                lambda sampler, read, data, key, k: drawn(sampler, read, data, key, 0 * k),
            ),
        ),
    ),
    Bug(
        "Poisson batches divided by their drawn size",
        replace(runs.RARE, n=20, steps=16),
        ((PoissonDraws, "batch_sum", drawn_count),),
    ),
    Bug(
        "Poisson batches of twice the rate",
        runs.RARE,
        (
            (
                PoissonDraws,
                "places",
                lambda sampler, key, number, begin, places=PoissonDraws.places: places(
                    replace(sampler, rate=2 * sampler.rate), key, number, begin
                ),
            ),
        ),
    ),
    Bug("public order instead of a permutation", runs.CONTRACTING, (PUBLIC_ORDER, *IN_PLACE)),
    Bug("one allocation for all passes", runs.ALLOCATED, ONE_DRAW),
    Bug(
        "a secret block that begins with its neighbour's last record",
        runs.ALLOCATED,
        ((AllocatedEachPass, "batch_sum", overlapping),),
    ),
)

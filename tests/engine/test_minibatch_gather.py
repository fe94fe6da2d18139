"""Batches that the host gathers: the draws of the compiled samplers, and the same model bit for
bit."""

from contextlib import closing

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lastiterate as li
from lastiterate.engine import key_from_seed, keys_from_seed, minibatch_gather
from lastiterate.engine import trainer as many_models
from lastiterate.engine.linear_gradients import Linear, arrange, hidden
from lastiterate.engine.loop import StepProgram, advance, arrange_for_pass, schedule, start
from lastiterate.engine.noise import NoiseAhead
from lastiterate.engine.random import ORDER, stream
from lastiterate.engine.sampler_interface import (
    sort_stably,
    split_into_bins,
    split_into_blocks,
    words,
)
from lastiterate.engine.samplers import sampler_of
from lastiterate.engine.trainer import Loop, Trainer

N, D = 103, 3
X = np.random.default_rng(0).normal(size=(N, D))
Y = (X[:, 0] > 0).astype(int)
KEY = key_from_seed(5)
BATCHINGS = (li.RandomAllocation(20), li.Reshuffled(20), li.Reshuffled(103), li.RandomAllocation(1))


def described(batching, steps=17):
    return li.Run(
        n=N,
        loss=li.Logistic(),
        steps=steps,
        batching=batching,
        step_size=0.5,
        noise=li.NoiseMultiplier(2.0),
    )


@pytest.mark.parametrize("largest", [1, 5, 70_000, 2**40, 2**64 - 1])
def test_a_stable_sort(largest):
    rng = np.random.default_rng(largest % 1000)
    drawn = rng.integers(0, largest, 5000, np.uint64, endpoint=True)
    drawn[1::5] = (
        drawn[1] // 8192 * 8192 + drawn[1::5] % 4096
    )  # numbers that their last bits alone tell apart
    drawn[::7] = drawn[0]  # equal numbers keep their order
    np.testing.assert_array_equal(sort_stably(drawn, largest), np.argsort(drawn, kind="stable"))


@pytest.mark.parametrize(
    ("n", "size"), [(1, 1), (7, 7), (5000, 1), (5000, 40), (5000, 4999), (200_000, 2)]
)
def test_blocks_are_those_of_a_full_sort_in_public_order(n, size):
    rng = np.random.default_rng(n + size)
    for spread in (
        1,
        2**12,
    ):  # words that agree in their first bits, and equal ones, lie on both sides of cuts
        drawn = rng.integers(0, 2**64 - 1, n, np.uint64, endpoint=True) // spread
        drawn[::7] = drawn[0]
        whole = np.argsort(drawn, kind="stable")
        wanted = [np.sort(whole[begin : begin + size]) for begin in range(0, n, size)]
        np.testing.assert_array_equal(split_into_blocks(drawn, size), np.concatenate(wanted))


@pytest.mark.parametrize("batching", BATCHINGS, ids=str)
@pytest.mark.parametrize("number", [0, 3])
def test_the_host_deals_what_the_program_arranges(batching, number):
    with jax.enable_x64(True):
        sampler = sampler_of(batching, N, 7)
        own = stream(stream(KEY, ORDER), number)
        dealt = sampler.allocate(list(words(KEY, 0, 4, N))[number])
        numbers = jnp.arange(1, sampler.layout.slots + 1).reshape(sampler.layout.shape)
        arranged = sampler.arrange(numbers, own)
    if isinstance(batching, li.RandomAllocation):
        _, order, begins = arranged
        np.testing.assert_array_equal(dealt.places, order[:N])
        np.testing.assert_array_equal(dealt.begins, begins)
        return
    slots = np.flatnonzero(
        np.asarray(numbers).ravel()
    )  # where arranged records lie: block by block
    real = sampler.layout.slot(np.arange(N))
    np.testing.assert_array_equal(np.asarray(arranged).ravel()[real] - 1, slots[dealt.places])
    assert dealt.begins[-1] == N and (np.diff(dealt.begins) <= batching.size).all()


def test_words_do_not_depend_on_how_many_passes_are_drawn_at_once():
    whole = list(words(KEY, 0, 5, 10))
    np.testing.assert_array_equal(next(words(KEY, 4, 5, 10)), whole[4])
    assert len({each.tobytes() for each in whole}) == 5


def compiled(run):
    """The run with every pass arranged by the compiled program."""
    with jax.enable_x64(True):
        program = StepProgram.of(run, Linear(run.loss, run.clip, hidden(run), 1))
        data, plan = arrange(run, X, Y), schedule(run)
        state, blocks = start(program, np.zeros((1, D + 1)), KEY), program.sampler.blocks
        ahead, order = NoiseAhead.normal(KEY, state.theta.shape), stream(KEY, ORDER)
        for k in range(run.steps):
            one_pass = arrange_for_pass(program, data, KEY, k // blocks)
            state, _ = advance(
                program, state, one_pass, order, plan, ahead.at(k)[0], k, k + 1, False
            )
        return np.asarray(state.theta)


@pytest.mark.parametrize("batching", BATCHINGS, ids=str)
@pytest.mark.parametrize("size", [1, 700, 2**25])
def test_bits_do_not_depend_on_who_gathers_and_how_much_at_once(batching, size, monkeypatch):
    monkeypatch.setattr(minibatch_gather, "GROUP", size)
    run = described(batching, steps=17 if batching.size > 1 else 150)
    np.testing.assert_array_equal(Trainer(run).fit(X, Y, KEY), compiled(run))


def test_a_batch_far_larger_than_expected_is_read_to_its_end(monkeypatch):
    """All records in one of 103 batches, in a buffer for a few: none may be left out."""
    monkeypatch.setattr(
        minibatch_gather,
        "words",
        lambda key, first, last, n: (np.full(n, 102, np.uint64) for _ in range(first, last)),
    )
    run, found = described(li.RandomAllocation(1), steps=206), []
    for size in (1, 2**25):  # the second has a place for every record of a pass
        monkeypatch.setattr(minibatch_gather, "GROUP", size)
        found.append(Trainer(run).fit(X, Y, KEY))
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize("first", [0, 1, 6, 7, 16])
def test_groups_begin_at_any_step(first, monkeypatch):
    """A run that goes on in the midst of a pass reads the batches of that pass."""
    monkeypatch.setattr(minibatch_gather, "GROUP", 700)
    run = described(li.RandomAllocation(20))
    trainer = Trainer(run)
    with jax.enable_x64(True):
        data, loop = arrange(run, X, Y), Loop(run, trainer.loop.objective)
        read = {}
        with closing(minibatch_gather.batches(loop.program, data, KEY, first, run.steps)) as every:
            at = first
            for group in every:
                (rows, _), begins = group.data
                for k in range(at, group.end):
                    read[k] = np.asarray(rows)[begins[k % 6] : begins[k % 6 + 1]].copy()
                at = group.end
    assert list(read) == list(range(first, 17))
    drawn = [split_into_bins(each, 6) for each in words(KEY, 0, 3, N)]
    for k, rows in read.items():
        dealt = drawn[k // 6]
        np.testing.assert_array_equal(
            rows, data[0][dealt.places[dealt.begins[k % 6] : dealt.begins[k % 6 + 1]]]
        )


@pytest.mark.parametrize("batching", BATCHINGS, ids=str)
def test_many_models_whose_passes_the_host_sorts(batching, monkeypatch):
    run, keys = described(batching), keys_from_seed(6, 5)
    programs = Trainer(run).fit_many(X, Y, keys, absent=(3,))
    monkeypatch.setattr(many_models, "SORTED_BY_HOST", 0)
    dealt = []
    monkeypatch.setattr(
        many_models, "words", lambda *asked: dealt.append(asked[1:]) or words(*asked)
    )
    np.testing.assert_array_equal(Trainer(run).fit_many(X, Y, keys, absent=(3,)), programs)
    passes = -(-run.steps // run.blocks)
    assert [one[0] for one in dealt] == [number for number in range(passes) for _ in keys]

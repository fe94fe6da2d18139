"""The trainer step by step: against NumPy with the same noise, and what every part of it promises."""

from collections import Counter
from dataclasses import replace
from itertools import combinations
from typing import get_args

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import chi2

import lastiterate as li
from engine import reference
from lastiterate.engine import Trainer, execute, fresh_key, key_from_seed, random, samplers, scores
from lastiterate.engine.linear_gradients import AT_ONCE, Linear, arrange, hidden, places
from lastiterate.engine.loop import StepProgram, advance, arrange_for_pass, arrange_once
from lastiterate.engine.network import fit_network
from lastiterate.engine.preprocessing import clip_rows
from lastiterate.engine.random import (
    NOISE,
    ORDER,
    below,
    bits,
    encrypt,
    gaussian,
    parts,
    permutation,
    stream,
    uniform,
)
from lastiterate.engine.sampler_interface import lay_out_rows, sum_over_chunks
from lastiterate.engine.samplers import TABLE, Bins, Subsets, sampler_of
from lastiterate.errors import InputError
from lastiterate.run.batching import Batching
from lastiterate.run.facts import CHUNK, FLOAT_SLACK
from tiers import unless

RNG = np.random.default_rng(0)
N, D = 23, 4
X = RNG.normal(size=(N, D)) * 1.5
LOSSES = {
    "logistic": (li.Logistic(row_norm=1.5, ridge=0.1, intercept=0.7), RNG.integers(0, 2, N)),
    "softmax": (
        li.Softmax(classes=3, row_norm=1.5, ridge=0.05, intercept=0.7),
        RNG.integers(0, 3, N),
    ),
    "huber": (
        li.HuberRidge(row_norm=1.5, residual_clip=0.4, ridge=0.05, intercept=0.7),
        RNG.normal(size=N),
    ),
}
RUN = dict(n=N, steps=9, step_size=li.Constant(0.3), noise=li.GradientNoise(0.2), release="all")
CHANGES = {
    "full batch": {},
    "clip, decreasing": {"clip": 0.3, "step_size": li.InverseDecay(1.0, 0.5)},
    "clip, arbitrary": {
        "clip": 0.3,
        "step_size": li.StepSchedule(tuple(np.linspace(0.1, 0.9, 9))),
        "noise": li.GradientNoise(tuple(np.linspace(1, 0, 9))),
    },
    "clip, langevin": {
        "clip": 0.3,
        "noise": li.Langevin(0.1),
        "step_size": li.InverseDecay(1.0, 0.5),
    },
    "single records, nesterov, box": {
        "batching": li.Cyclic(1),
        "optimizer": li.Nesterov(),
        "domain": li.domains.Box(-0.3, 0.5),
    },
    "heavy ball, l2 squared": {
        "optimizer": li.HeavyBall(0.7),
        "batching": li.Cyclic(10),
        "prox": li.penalties.L2Squared(0.5),
    },
    "adam, simplex": {
        "optimizer": li.Adam(),
        "batching": li.Cyclic(10),
        "domain": li.domains.Simplex(0.7),
    },
    "adam, without the noise, elastic net": {
        "optimizer": li.Adam(0.8, 0.9, noise_floor=0.1),
        "batching": li.Cyclic(10),
        "prox": li.penalties.ElasticNet(0.05, 0.3),
    },
    "adam, without noise that falls, group lasso": {
        "optimizer": li.Adam(0.8, 0.9, noise_floor=0.1),
        "noise": li.GradientNoise(tuple(np.linspace(1, 0.1, 9))),
        "prox": li.penalties.GroupLasso(0.1),
    },
    "correlated noise": {"noise": li.Correlated(0.5, 4), "clip": 0.3, "batching": li.Cyclic(7)},
    "correlated, decaying, groups of a class": {
        "noise": li.Correlated(0.5, (1.0, 0.6), decay=0.7),
        "clip": 0.3,
        "optimizer": li.HeavyBall(0.7),
        "prox": li.penalties.GroupLasso(0.1, axis=1),
    },
    "lambda-cgd": {
        "noise": li.Correlated(0.5, 1, decay=0.9),
        "clip": 0.3,
        "domain": li.domains.Ball(0.2),
    },
    "nuclear norm": {"prox": li.penalties.NuclearNorm(0.1)},
    "prox and ball": {
        "prox": li.penalties.L1(0.05),
        "domain": li.domains.Ball(0.2),
        "optimizer": li.Nesterov(),
    },
}
"""Every field's values, several in a run where none hides another: the reference follows each of
them."""


ABSENT = {
    "full batch": li.FullBatch(),
    "blocks": li.Cyclic(7),
    "permuted": li.Permuted(7),
    "reshuffled": li.Reshuffled(7),
    "poisson": li.Poisson(0.3),
    "fixed size": li.FixedSize(5),
    "allocated": li.RandomAllocation(6),
}
"""The programs of other tests here, so that few are compiled."""
OF_MANY = ("full batch", "permuted", "reshuffled", "poisson")
"""One of each time at which batches are drawn: many models read the same arranged records."""


@pytest.mark.parametrize("batching", ABSENT, ids=str)
def test_absent_records_pull_nowhere(batching):
    """Without an intercept a row of zeros has no gradient; with one it has, and an absent record
    still has none."""
    key, zeroed = key_from_seed(5), X * (np.arange(N) != 5)[:, None]
    for intercept in (0.0, 0.7):
        model = replace(LOSSES["softmax"][0], intercept=intercept)
        run = li.Run(**RUN | {"batching": ABSENT[batching], "loss": model})
        y, trainer = LOSSES["softmax"][1], Trainer(run)
        absent, without = trainer.fit(X, y, key, absent=(5,)), trainer.fit(zeroed, y, key)
        assert np.array_equal(absent, without) == (intercept == 0.0)
        assert not np.array_equal(absent, trainer.fit(X, y, key))
        if batching in OF_MANY:
            many = Trainer(replace(run, release="last")).fit_many(
                X, y, np.stack([key, key]), absent=(5,)
            )[0]
            np.testing.assert_allclose(many, absent[-1], atol=2e-6)


def gradient_sum(loss, clip, exact, theta, chunks):
    """The trainer's sum of a block's gradients."""
    return _gradient_sum(Linear(loss, clip, exact), jnp.asarray(theta), chunks)


@jax.jit
def _gradient_sum(objective, theta, chunks):
    return sum_over_chunks(lambda chunk: objective.chunk_sum(theta, chunk), chunks)


def noise_of(key, shape, steps):
    """The very noise that the trainer will draw."""
    with jax.enable_x64(True):
        return np.array([gaussian(stream(key, NOISE), k, shape) for k in range(steps)])


MATRICES = {"correlated, decaying, groups of a class", "nuclear norm"}
"""What differs from a vector's prox only for several rows of weights."""
ALONE = ("full batch", "clip, decreasing", "clip, arbitrary", "clip, langevin", "lambda-cgd")
"""Released without the iterates before too: sums of gradients, which have two precisions then, as
they are and clipped, for every loss, and noise that is taken back. What follows a sum is in double
precision always, and sees no release."""
CELLS = [(loss, change) for change in CHANGES for loss in LOSSES]


def tried_always(cell):
    """Each change with one loss, the losses in turn (so each has its gradients cut record by record
    with one); each loss with its gradients as they are. The rest is exhaustive."""
    loss, change = cell
    turn = (
        "softmax" if change in MATRICES else list(LOSSES)[list(CHANGES).index(change) % len(LOSSES)]
    )
    return change == "full batch" or loss == turn


@pytest.mark.parametrize("loss, change", unless(tried_always, CELLS))
def test_agrees_with_numpy_step_by_step(loss, change):
    model, y = LOSSES[loss]
    run, key = li.Run(loss=model, **RUN | CHANGES[change]), key_from_seed(3)
    noise = noise_of(key, (model.classes if loss == "softmax" else 1, D + 1), run.steps)
    ours = Trainer(run).fit(X, y, key)
    theirs = reference.fit(run, X, y, noise)
    np.testing.assert_allclose(ours, theirs, atol=2e-5)
    if change in ALONE:
        last = Trainer(replace(run, release="last")).fit(X, y, key)
        np.testing.assert_allclose(last, ours[-1], atol=2e-6)  # double against single precision
    calls = []
    watched = Trainer(run).fit(X, y, key, progress=lambda *a: calls.append(a))
    np.testing.assert_allclose(watched, ours, atol=1e-12)
    assert [c[0] for c in calls] == list(range(1, 10)) and all(
        c[1] == 9 and len(c) == 3 for c in calls
    )


def batches_of(run, key):
    """The records of every step, as the trainer will draw them."""
    sampler = sampler_of(run.batching, N, AT_ONCE)
    with jax.enable_x64(True):
        order, program = stream(key, ORDER), StepProgram.of(run, Linear(run.loss, run.clip, True))
        if sampler.drawn == "each step":
            return drawn_at_steps(sampler, order, run.steps)
        found = []
        for first in range(0, run.steps, run.blocks):
            number = (np.arange(N),)
            if sampler.drawn == "once":
                (moved,), begins = arrange_once(program, number, key)
            else:
                _, moved, begins = arrange_for_pass(program, number, key, first // run.blocks)
            found.extend(np.split(np.asarray(moved), np.asarray(begins)[1:])[: run.blocks])
        return found[: run.steps]


def drawn_at_steps(sampler, order, steps):
    if isinstance(sampler, Subsets):
        return list(
            np.asarray(jax.jit(jax.vmap(lambda k: sampler.places(order, k)))(jnp.arange(steps)))
        )
    some, every = (
        jax.jit(lambda k, piece, begin: sampler.places(stream(order, k), piece, begin)),
        [],
    )
    for k in range(steps):
        found, begin = [], 0
        while begin < N:
            found.append(np.asarray(some(k, len(found), begin)))
            begin = int(found[-1][-1]) + 1
        found = np.concatenate(found)
        every.append(found[found < N])
    return every


SECRET = [
    li.Poisson(0.3),
    li.Poisson(0.02),
    li.FixedSize(5),
    li.BallsInBins(6),
    li.RandomAllocation(6),
]


@pytest.mark.parametrize("batching", SECRET, ids=str)
def test_drawn_batches_agree_with_numpy_step_by_step(batching, monkeypatch):
    """With chunks that hold a batch, and with chunks of 3 records."""
    model, y = LOSSES["softmax"]
    run, key = (
        li.Run(loss=model, **RUN | {"batching": batching, "noise": li.GradientNoise(0.01)}),
        key_from_seed(6),
    )
    batches = batches_of(run, key)
    assert all(len(set(b.tolist())) == b.size for b in batches), "no record twice in a batch"
    assert len({tuple(sorted(b.tolist())) for b in batches}) > 1
    theirs = reference.fit(run, X, y, noise_of(key, (3, D + 1), run.steps), batches=batches)
    for most in (AT_ONCE, 3):
        monkeypatch.setattr(Linear, "most", property(lambda self, most=most: most))
        trainer = Trainer(run)
        assert trainer.loop.program.sampler == sampler_of(batching, N, most), (
            "which is what programs are kept by"
        )
        np.testing.assert_allclose(trainer.fit(X, y, key), theirs, atol=2e-5)


def test_a_batch_of_every_record_is_never_truncated():
    """More records than are read at once: twelve standard deviations would be needed for it to
    happen by chance."""
    run = li.Run(loss=LOSSES["huber"][0], **RUN | {"batching": li.Poisson(0.2)})
    with jax.enable_x64(True):
        every = np.arange(N)
        rows, y = arrange(run, X, LOSSES["huber"][1])
        one, theta = Linear(run.loss, None, True), jnp.ones((1, D + 1))
        total = one_bin(7, lambda c: one.chunk_sum(theta, c), (rows, y), every.size)
        exact = one.chunk_sum(theta, (rows, y))
    np.testing.assert_allclose(total, exact, rtol=1e-12)


def one_bin(count, read, data, size):
    """All records in a single bin, read ``count`` at a time."""
    padded = tuple(
        jnp.asarray(np.concatenate((a, np.zeros((count, *a.shape[1:]), a.dtype)))) for a in data
    )
    return Bins(lay_out_rows(size), 1, count).batch_sum(
        read, (padded, jnp.array([0, size])), None, 0
    )


def test_one_secret_permutation_then_the_same_blocks():
    model, y = LOSSES["softmax"]
    run, key = li.Run(loss=model, **RUN | {"batching": li.Permuted(7)}), key_from_seed(5)
    with jax.enable_x64(True):
        blocks, targets = arrange(run, X, y, places(run, key))
    rows = arrange(replace(run, batching=li.FullBatch()), X, y)[0].reshape(-1, D + 1)
    kept = np.abs(blocks.reshape(-1, D + 1)).sum(1) > 0
    order = [
        int(np.flatnonzero((rows == row).all(1))[0]) for row in blocks.reshape(-1, D + 1)[kept]
    ]
    assert sorted(order) == list(range(N)) and order != list(range(N)), (
        "a permutation, and not the identity"
    )
    noise = noise_of(key, (3, D + 1), run.steps)
    theirs = reference.fit(replace(run, batching=li.Cyclic(7)), X[order], y[order], noise)
    np.testing.assert_allclose(Trainer(run).fit(X, y, key), theirs, atol=2e-5)
    assert targets.reshape(-1)[kept] == pytest.approx(y[order].astype(np.float32))


@pytest.mark.parametrize("steps", [3, 12, 14])
def test_a_fresh_permutation_in_every_pass(steps):
    """12 steps are three whole passes of four blocks; the reference reads every pass in the order
    that was drawn."""
    model, y = LOSSES["softmax"]
    run, key = (
        li.Run(loss=model, **RUN | {"batching": li.Reshuffled(7), "steps": steps}),
        key_from_seed(6),
    )
    noise, rows = (
        noise_of(key, (3, D + 1), steps),
        arrange(replace(run, batching=li.FullBatch()), X, y)[0],
    )
    rows, orders, theirs, theta = rows.reshape(-1, D + 1), [], [], None
    for first in range(0, steps, run.blocks):
        with jax.enable_x64(True):
            program = StepProgram.of(run, Linear(model, None, True))
            drawn = np.asarray(
                arrange_for_pass(program, arrange(run, X, y), key, first // run.blocks)[0]
            )
        drawn = drawn.reshape(-1, D + 1)
        order = [
            int(np.flatnonzero((rows == row).all(1))[0]) for row in drawn[np.abs(drawn).sum(1) > 0]
        ]
        assert sorted(order) == list(range(N)) and order not in orders, (
            "each a permutation, and another one"
        )
        orders.append(order)
        few = min(run.blocks, steps - first)
        part = replace(run, batching=li.Cyclic(7), steps=few)
        theirs.append(reference.fit(part, X[order], y[order], noise[first : first + few], theta))
        theta = theirs[-1][-1]
    theirs = np.concatenate(theirs)
    np.testing.assert_allclose(Trainer(run).fit(X, y, key), theirs, atol=2e-5)
    last = replace(run, release="last")
    np.testing.assert_allclose(Trainer(last).fit(X, y, key), theirs[-1], atol=2e-5)
    calls = []
    np.testing.assert_allclose(
        Trainer(last).fit(X, y, key, progress=lambda *a: calls.append(a[0])), theirs[-1], atol=2e-5
    )
    assert calls == list(range(1, steps + 1))
    many = Trainer(last).fit_many(X, y, np.stack([key, key]))
    np.testing.assert_allclose(many, np.stack([theirs[-1]] * 2), atol=2e-5)


@pytest.mark.parametrize("loss", LOSSES, ids=str)
def test_zeroing_one_record_moves_the_sum_by_less_than_its_sensitivity(loss):
    """Extreme rows, many chunks, float32: the computed sum, not the exact one."""
    model, _ = LOSSES[loss]
    rng = np.random.default_rng(1)
    n = 4 * CHUNK + 17
    data = rng.normal(size=(n, D)) * 10.0 ** rng.integers(-3, 6, size=(n, 1))
    y = {
        "logistic": rng.integers(0, 2, n),
        "softmax": rng.integers(0, 3, n),
        "huber": rng.normal(size=n) * 1e6,
    }[loss]
    run = li.Run(n=n, steps=1, step_size=li.Constant(0.1), noise=li.GradientNoise(0.1), loss=model)
    bound = run.facts().sensitivity.value
    assert bound == pytest.approx(run.facts().lipschitz.value * (1 + FLOAT_SLACK))
    rows, labels = (part[0] for part in arrange(run, data, y))
    assert rows.shape[:2] == labels.shape and rows.shape[1] <= AT_ONCE
    theta = rng.normal(size=(model.classes if loss == "softmax" else 1, D + 1)) * 30
    largest = 0.0
    with jax.enable_x64(True):
        full = np.asarray(gradient_sum(model, None, False, theta, (rows, labels)))
        for i in rng.integers(0, n, 25):
            less = rows.copy()
            less.reshape(-1, D + 1)[i] = 0
            part = np.asarray(gradient_sum(model, None, False, theta, (less, labels)))
            largest = max(largest, np.linalg.norm(full - part))
    assert 0.3 * bound < largest <= bound


@pytest.mark.parametrize("rows", [1, CHUNK, CHUNK + 1, 516, AT_ONCE])
@pytest.mark.parametrize("clip", [None, 0.3])
def test_single_precision_sums_have_few_terms(rows, clip):
    """FLOAT_SLACK allows float32 sums of at most CHUNK records; longer ones are made of such."""
    data = np.ones((rows, D + 1), np.float32), np.zeros(rows, np.int32)
    with jax.enable_x64(True):
        objective = Linear(LOSSES["softmax"][0], clip, False)
        traced = jax.make_jaxpr(objective.chunk_sum)(jnp.zeros((3, D + 1)), data)
        contracted = [
            eqn.invars[0].aval.shape[eqn.params["dimension_numbers"][0][0][0]]
            for eqn in traced.jaxpr.eqns
            if eqn.primitive.name == "dot_general" and eqn.outvars[0].aval.dtype == jnp.float32
        ]
        theta = np.random.default_rng(0).normal(size=(3, D + 1))
        one = reference.gradient(objective.loss, clip, theta, *(a[:1] for a in data))
        np.testing.assert_allclose(jax.jit(objective.chunk_sum)(theta, data), rows * one, rtol=1e-5)
    assert contracted == [D + 1, -(-rows // -(-rows // CHUNK))] and max(contracted) <= CHUNK


def test_rows_are_clipped_below_the_norm():
    rows = clip_rows(RNG.normal(size=(500, 30)) * 10.0 ** RNG.integers(-2, 12, size=(500, 1)), 1.5)
    norms = np.linalg.norm(rows.astype(np.float64), axis=1)
    assert norms.max() <= 1.5 and norms.max() > 1.5 * (1 - 1e-5) and (norms < 1).any(), (
        "short rows stay as they are"
    )


def test_private_mean_and_prediction_use_the_same_rows():
    model, y = LOSSES["softmax"]
    part = li.PrivateMean(noise_multiplier=1e-9, row_norm=1.0)
    run = li.Run(
        loss=model,
        **RUN | {"preprocessing": (part,), "release": "last", "noise": li.GradientNoise(0.0)},
    )
    found = execute(run, X, y, key_from_seed(1))
    clipped = clip_rows(X, 1.0)
    np.testing.assert_allclose(found.released[0], clipped.mean(0), atol=1e-6)
    moved = np.column_stack((clip_rows(clipped - found.released[0], 1.5), np.full(N, 0.7)))
    np.testing.assert_allclose(scores(run, found, X), moved @ found.weights.T, atol=1e-6)
    many = [
        execute(
            replace(run, preprocessing=(replace(part, noise_multiplier=5.0),)),
            X,
            y,
            key_from_seed(s),
        ).released[0]
        for s in range(80)  # 320 numbers: their deviation within three of its own
    ]
    assert np.std(np.array(many) - clipped.mean(0)) == pytest.approx(5.0 * 1.0 / N, rel=0.12)


@pytest.mark.system_entropy
def test_keys():
    one, two = (fresh_key() for _ in range(2))
    assert one.size * 32 == 128 and (one != two).any()
    model, y = LOSSES["logistic"]
    run = li.Run(loss=model, **RUN | {"release": "last"})
    assert (Trainer(run).fit(X, y) != Trainer(run).fit(X, y)).all()
    assert (
        Trainer(run).fit(X, y, key_from_seed(1)) == Trainer(run).fit(X, y, key_from_seed(1))
    ).all()


LOSS = li.Softmax(classes=3, ridge=0.1)
MANY_FIELDS = {
    "step_size": li.InverseDecay(1.0, 0.5),
    "clip": 0.5,
    "domain": li.domains.Ball(0.1),
    "prox": li.penalties.ElasticNet(0.1, 0.2),
    "optimizer": li.HeavyBall(0.5),
}
DRAWN = {
    "batching": li.Poisson(0.31),
    "domain": li.domains.Box(-1.0, 1.0),
    "start": li.GaussianStart(0.5),
}
SAME_PROGRAM = {
    "noise and steps": (
        DRAWN,
        {"steps": 77, "noise": li.GradientNoise(0.5), "step_size": li.Constant(0.01)},
    ),
    "decreasing": (MANY_FIELDS, {"step_size": li.InverseDecay(3.0, 0.1)}),
    "clip": (MANY_FIELDS, {"clip": 0.1}),
    "ridge": (MANY_FIELDS, {"loss": li.Softmax(classes=3, ridge=0.7)}),
    "row norm, intercept": (
        DRAWN,
        {"loss": li.Softmax(classes=3, ridge=0.1, row_norm=2.0, intercept=0.1)},
    ),
    "ball": (MANY_FIELDS, {"domain": li.domains.Ball(0.2)}),
    "box": (DRAWN, {"domain": li.domains.Box(0.0, 2.0)}),
    "penalty": (MANY_FIELDS, {"prox": li.penalties.ElasticNet(0.3, 0.4)}),
    "momentum": (MANY_FIELDS, {"optimizer": li.HeavyBall(0.1)}),
    "start": (DRAWN, {"start": li.GaussianStart(2.0)}),
    "adjacency": (DRAWN, {"adjacency": "replace-one", "noise": li.NoiseMultiplier(2.0)}),
    "correlated noise": (
        {"noise": li.Correlated(1.0, 4), "clip": 0.3},
        {"noise": li.Correlated(2.0, (1.0, 0.1, 0.0, -0.2))},
    ),
    "rate": (DRAWN, {"batching": li.Poisson(0.3)}),
}
"""A run, and what is changed of it; few runs, so that little is compiled."""


@pytest.mark.parametrize("change", SAME_PROGRAM)
def test_runs_that_differ_in_numbers_share_one_program(change, caplog):
    """The numbers change the result, and nothing is compiled again for them."""
    one, two = SAME_PROGRAM[change]
    one = {"loss": LOSS, "release": "last"} | one
    y, key = LOSSES["softmax"][1], key_from_seed(0)
    before = Trainer(li.Run(**RUN | one)).fit(X, y, key)
    count = advance._cache_size()
    with jax.log_compiles(True), caplog.at_level("WARNING"):
        after = Trainer(li.Run(**RUN | one | two)).fit(X, y, key)
    assert advance._cache_size() == count
    assert not [
        r
        for r in caplog.records
        if "Compiling" in r.getMessage() or "compilation" in r.getMessage()
    ]
    assert (before != after).any() and not jax.config.jax_enable_x64, (
        "the user's configuration is left alone"
    )


def test_a_network_of_other_numbers_is_not_compiled_again():
    def loss(p, x, y):
        return -jax.nn.log_softmax(p @ x)[y]

    run = li.Run(**RUN | {"release": "last", "clip": 0.5})
    params, data = np.zeros((3, D), np.float32), (X.astype(np.float32), LOSSES["softmax"][1])
    before = fit_network(run, loss, params, data, key_from_seed(0))
    count = advance._cache_size()
    after = fit_network(
        replace(run, clip=0.2, noise=li.GradientNoise(0.1), steps=5),
        loss,
        params,
        data,
        key_from_seed(0),
    )
    assert advance._cache_size() == count and (before != after).any()


def test_another_structure_is_another_program():
    run = li.Run(**RUN | {"loss": LOSS, "release": "last"})
    programs = [
        run,
        replace(run, clip=1.0),
        replace(run, optimizer=li.Nesterov()),
        replace(run, batching=li.Cyclic(7)),
    ]
    programs.append(replace(run, noise=li.Correlated(1.0, 3)))
    programs += [
        replace(run, domain=li.domains.Ball(1.0)),
        replace(run, loss=replace(LOSS, classes=4)),
    ]
    keys = {
        jax.tree.structure(StepProgram.of(r, Linear(r.loss, r.clip, hidden(r)))) for r in programs
    }
    assert len(keys) == len(programs)


def test_every_batching_has_a_sampler_and_nothing_else_has_one():
    assert set(TABLE) == set(get_args(Batching))
    for kind, make in TABLE.items():
        batching = kind() if kind is li.FullBatch else kind(0.3) if kind is li.Poisson else kind(6)
        assert make(batching, N, AT_ONCE).drawn == batching.drawn
        assert make(batching, N, AT_ONCE).blocks == batching.blocks(N)

    class Backwards:
        pass

    with pytest.raises(InputError, match="has no sampler that draws it"):
        sampler_of(Backwards(), N, AT_ONCE)


def test_every_record_is_in_one_block_of_a_pass_each_equally_likely_and_independently():
    """4,000 passes of 6 records in 3 blocks, |z| < 6 everywhere (a right sampler fails with
    probability < 1e-6)."""
    sampler, passes = sampler_of(li.RandomAllocation(2), 6, AT_ONCE), 4000
    with jax.enable_x64(True):
        keys = jax.vmap(lambda k: stream(jnp.asarray(key_from_seed(3)), k))(jnp.arange(passes))
        _, order, begins = jax.vmap(lambda key: sampler.arrange((jnp.zeros(6),), key))(keys)
    order, begins = np.asarray(order)[:, :6], np.asarray(begins)
    assert (
        (np.sort(order, axis=1) == np.arange(6)).all()
        and (begins[:, 0] == 0).all()
        and (begins[:, -1] == 6).all()
    )
    blocks = np.empty((passes, 6), int)
    for number in range(passes):
        blocks[number, order[number]] = (
            np.searchsorted(begins[number], np.arange(6), side="right") - 1
        )
    assert (np.diff(begins, axis=1) == [np.bincount(row, minlength=3) for row in blocks]).all()

    def even(where, values):
        expected = np.prod(np.shape(where)) / values
        z = (np.bincount(np.ravel(where), minlength=values) - expected) / np.sqrt(expected)
        assert np.abs(z).max() < 6

    for record in range(6):
        even(blocks[:, record], 3)
        even(3 * blocks[1:, record] + blocks[:-1, record], 9)  # of successive passes
        even(3 * blocks[:, record] + blocks[:, record - 1], 9)  # of two records
    assert np.ptp(np.diff(begins, axis=1)) >= 5, "blocks of any size are read"


@pytest.mark.parametrize(
    "change, data, word",
    [
        ({}, (X[:5], None), "n = 23"),
        ({}, (np.where(X > 2, np.nan, X), None), "finite"),
        ({}, (X[:, 0], None), "shape"),
        ({}, (X, np.full(N, 3)), "0..1"),
        ({}, (X, np.zeros(4)), "shape"),
        ({"loss": li.KnownConstants(li.LossFacts(lipschitz=1.0))}, (X, None), "KnownConstants"),
        ({"domain": li.domains.Box(-1.0, 1.0, 2)}, (X, None), "number of parameters, 5"),
        ({"step_size": li.Constant(1e29), "steps": 50}, (X, None), "diverge"),
    ],
)
def test_bad_input_is_one_sentence(change, data, word):
    model, y = LOSSES["logistic"]
    run = li.Run(**RUN | {"loss": model, "release": "last"} | change)
    with pytest.raises(InputError, match=word) as caught:
        Trainer(run).fit(data[0], y if data[1] is None else data[1], key_from_seed(0))
    assert "\n" not in str(caught.value)


def test_a_hidden_state_is_computed_in_double_precision():
    """Two parameters closer than single precision can tell apart must not jump apart: the step
    contracts them."""
    loss = li.HuberRidge(row_norm=1.001, residual_clip=1e-3, intercept=0.0)
    n = 1000
    run = li.Run(n=n, steps=1, step_size=li.Constant(1.0), noise=li.GradientNoise(0.1), loss=loss)
    assert (
        hidden(run)
        and not hidden(replace(run, optimizer=li.Nesterov()))
        and not hidden(replace(run, release="all"))
    )
    with jax.enable_x64(True):
        data = [a[0] for a in arrange(run, np.ones((n, 1)), np.full(n, 16384.0))]
        theta = np.array([[16384.0009, 0.0]])
        steps = [
            t - np.asarray(gradient_sum(loss, None, hidden(run), t, data)) / n
            for t in (theta, theta + np.array([[1e-6, 0.0]]))
        ]
    assert np.abs(steps[1] - steps[0]).max() <= 1e-6 * (1 + 1e-3)


def test_small_factors_do_not_escape_the_clip():
    loss = li.HuberRidge(row_norm=1.0, residual_clip=1.0, intercept=0.0)
    run = li.Run(
        n=1, steps=1, step_size=li.Constant(1.0), noise=li.GradientNoise(1.0), clip=1e-9, loss=loss
    )
    for x, y in ((1e-30, 1.0), (1.0, 1e-30), (1e-20, 1.0), (1.0, 1.0)):
        with jax.enable_x64(True):
            data = [a[0] for a in arrange(run, np.array([[x]]), np.array([y]))]
            for exact in (True, False):
                found = np.linalg.norm(
                    np.asarray(gradient_sum(loss, 1e-9, exact, np.zeros((1, 2)), data))
                )
                assert found <= min(1e-9, x * y) * (1 + 1e-6)


KNOWN = {  # of the authors' Random123, for 20 rounds: counter, key, block
    "zeros": ((0, 0, 0, 0), (0, 0, 0, 0), (0x9C6CA96A, 0xE17EAE66, 0xFC10ECD4, 0x5256A7D8)),
    "ones": ((2**32 - 1,) * 4, (2**32 - 1,) * 4, (0x2A881696, 0x57012287, 0xF6C7446E, 0xA16A6732)),
    "digits of pi": (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0, 0x082EFA98, 0xEC4E6C89),
        (0x59CD1DBB, 0xB8879579, 0x86B5D00C, 0xAC8B6D84),
    ),
}


@pytest.mark.parametrize("few", [0, 1])
@pytest.mark.parametrize("name", KNOWN)
def test_the_cipher_gives_the_published_blocks(name, few, monkeypatch):
    """With rounds written out, as for many blocks, and in a loop, as for few."""
    monkeypatch.setattr(random, "FEW", few)
    counter, key, block = (np.array(words, np.uint32) for words in KNOWN[name])
    with jax.enable_x64(True):
        first, second = (
            jnp.asarray(words.astype(np.uint64)) for words in (counter[:2], counter[2:])
        )
        pair = random._encrypt_all(
            jnp.asarray(key), *(low | (high << np.uint64(32)) for low, high in (first, second))
        )
        assert [int(word) for word in parts(pair)] == block.tolist()


def test_many_blocks_are_encrypted_piece_by_piece(monkeypatch):
    """Every block is a function of its own counter and the key, wherever it lies among the others."""
    monkeypatch.setattr(random, "AT_ONCE", 8)
    with jax.enable_x64(True):
        first = jnp.arange(33, dtype=jnp.uint64).reshape(3, 11) + np.uint64(2**63 - 5)
        for found, expected in zip(
            encrypt(key_from_seed(1), first, ~first),
            jax.jit(random._encrypt_all)(key_from_seed(1), first, ~first),
            strict=True,
        ):
            np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("bit", [0, 31, 32, 63, 64, 95, 96, 127])
def test_every_bit_of_a_key_changes_every_draw(bit):
    """No two keys of 128 bits share a generator: whoever knows 64 bits of one knows none of its
    draws."""
    key = key_from_seed(4)
    other = key.copy()
    other[bit // 32] ^= np.uint32(1 << bit % 32)
    with jax.enable_x64(True):
        for draw in (
            lambda key: gaussian(stream(key, NOISE), 3, (50,)),
            lambda key: gaussian(key, 3, (50,)),
            lambda key: permutation(stream(key, ORDER), 0, 50),
            lambda key: stream(stream(key, ORDER), 7),
        ):
            assert (np.asarray(draw(key)) == np.asarray(draw(other))).mean() < 0.2
    # the two halves of a key do not cancel
    other = key ^ np.array([1, 0, 1, 0], np.uint32)
    with jax.enable_x64(True):
        assert (np.asarray(gaussian(key, 0, (50,))) != np.asarray(gaussian(other, 0, (50,)))).all()


def test_streams_steps_and_bits_of_a_key_do_not_meet():
    with jax.enable_x64(True):
        key = jnp.asarray(key_from_seed(5))
        found = [stream(key, which) for which in range(4)] + [
            stream(stream(key, which), 0) for which in range(4)
        ]
        drawn = [bits(key, step, 6) for step in range(4)]
    assert len({tuple(np.asarray(one).tolist()) for one in found}) == 8
    every = np.concatenate([np.asarray(one) for one in drawn])
    keys = np.concatenate([np.asarray(one).view(np.uint64) for one in found])
    assert len(set(every.tolist()) | set(keys.tolist())) == every.size + keys.size


def test_whole_numbers_uniform_numbers_and_orders_are_even():
    """100,000 draws: |z| < 6 for every count, Kolmogorov-Smirnov p above 1e-6."""
    from scipy.stats import kstest

    with jax.enable_x64(True):
        key = jnp.asarray(key_from_seed(6))
        whole, real = np.asarray(below(key, 0, 100_000, 7)), np.asarray(uniform(key, 1, 100_000))
        orders = np.asarray(jax.vmap(lambda k: permutation(key, k, 4))(jnp.arange(24_000)))
    assert (
        np.abs(np.bincount(whole, minlength=7) - 1e5 / 7).max() < 6 * np.sqrt(1e5 / 7)
        and whole.max() == 6
    )
    assert kstest(real, "uniform").pvalue > 1e-6 and real.min() > 0 and real.max() < 1
    _, counts = np.unique(orders @ [64, 16, 4, 1], return_counts=True)
    assert counts.size == 24 and np.abs(counts - 1000).max() < 6 * np.sqrt(1000)


@pytest.mark.parametrize(
    "n, size, most",
    [(9, 3, 100), (8, 5, 100), (9, 4, 5)],
    ids=["different draws", "by an order", "drawn again and again"],
)
def test_every_subset_is_equally_likely(n, size, most, monkeypatch):
    """Chi squared over all subsets; the place within a batch does not count. Of 5 draws 4 seldom
    differ: all are drawn again."""
    monkeypatch.setattr(
        samplers, "draws", lambda n, size, draws=samplers.draws: min(draws(n, size), most)
    )
    sampler, draws = sampler_of(li.FixedSize(size), n, AT_ONCE), 30_000
    with jax.enable_x64(True):
        key = jnp.asarray(key_from_seed(3))
        found = np.sort(
            np.asarray(jax.jit(jax.vmap(lambda k: sampler.places(key, k)))(jnp.arange(draws))),
            axis=1,
        )
    counts = Counter(map(tuple, found.tolist()))
    subsets = list(combinations(range(n), size))
    expected = draws / len(subsets)
    statistic = sum((counts[one] - expected) ** 2 / expected for one in subsets)
    assert set(counts) <= set(subsets) and chi2.sf(statistic, len(subsets) - 1) > 1e-4

"""The trainer step by step: against NumPy with the same noise, and what every part of it promises."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lastiterate as li
from engine import reference
from lastiterate.engine import Trainer, execute, fresh_key, scores, seeded_key
from lastiterate.engine.batches import in_bins, poisson_places, read_at_once
from lastiterate.engine.gradients import AT_ONCE, Linear
from lastiterate.engine.loop import pass_data, shape_of
from lastiterate.engine.noise import NOISE, ORDER, cos_sin, gaussian, generator, normal_pairs, stream
from lastiterate.engine.prepare import arrange, hidden, places
from lastiterate.engine.rows import clip_rows
from lastiterate.engine.sums import DRAWN, over_bin, over_chunks
from lastiterate.errors import InputError
from lastiterate.run.facts import CHUNK, FLOAT_SLACK

RNG = np.random.default_rng(0)
N, D = 23, 4
X = RNG.normal(size=(N, D)) * 1.5
LOSSES = {
    "logistic": (li.Logistic(row_norm=1.5, ridge=0.1, intercept=0.7), RNG.integers(0, 2, N)),
    "softmax": (li.Softmax(classes=3, row_norm=1.5, ridge=0.05, intercept=0.7), RNG.integers(0, 3, N)),
    "huber": (li.HuberRidge(row_norm=1.5, residual_clip=0.4, ridge=0.05, intercept=0.7), RNG.normal(size=N)),
}
RUN = dict(n=N, steps=9, step_size=li.Constant(0.3), noise=li.GradientNoise(0.2), release="all")
CHANGES = {
    "full batch": {},
    "blocks": {"batching": li.Cyclic(7)},
    "single records": {"batching": li.Cyclic(1)},
    "nesterov": {"momentum": li.Nesterov()},
    "heavy ball": {"momentum": li.HeavyBall(0.7), "batching": li.Cyclic(10)},
    "ball": {"domain": li.domains.Ball(0.2)},
    "box": {"domain": li.domains.Box(-0.05, 0.1)},
    "clip": {"clip": 0.3},
    "decreasing": {"step_size": li.InverseDecay(1.0, 0.5)},
    "arbitrary": {
        "step_size": li.Steps(tuple(np.linspace(0.1, 0.9, 9))),
        "noise": li.GradientNoise(tuple(np.linspace(1, 0, 9))),
    },
    "simplex": {"domain": li.domains.Simplex(0.7)},
    "l1": {"prox": li.penalties.L1(0.05)},
    "l2 squared": {"prox": li.penalties.L2Squared(0.5), "batching": li.Cyclic(7)},
    "elastic net": {"prox": li.penalties.ElasticNet(0.05, 0.3)},
    "group lasso": {"prox": li.penalties.GroupLasso(0.1)},
    "groups of a class": {"prox": li.penalties.GroupLasso(0.1, axis=1)},
    "nuclear norm": {"prox": li.penalties.NuclearNorm(0.1)},
    "prox and ball": {"prox": li.penalties.L1(0.05), "domain": li.domains.Ball(0.2), "momentum": li.Nesterov()},
    "langevin": {"noise": li.Langevin(0.1), "step_size": li.InverseDecay(1.0, 0.5)},
}


ABSENT = {
    "full batch": li.FullBatch(),
    "blocks": li.Cyclic(7),
    "permuted": li.Permuted(7),
    "reshuffled": li.Reshuffled(7),
    "poisson": li.Poisson(0.4),
    "fixed size": li.FixedSize(6),
}


@pytest.mark.parametrize("batching", ABSENT, ids=str)
def test_absent_records_pull_nowhere(batching):
    """Without an intercept a row of zeros has no gradient; with one it has, and an absent record still has none."""
    key, zeroed = seeded_key(5), X * (np.arange(N) != 5)[:, None]
    for intercept in (0.0, 0.7):
        model = replace(LOSSES["softmax"][0], intercept=intercept)
        run = li.Run(**RUN | {"release": "last", "batching": ABSENT[batching], "loss": model})
        y, trainer = LOSSES["softmax"][1], Trainer(run)
        absent, without = trainer.fit(X, y, key, absent=(5,)), trainer.fit(zeroed, y, key)
        assert np.array_equal(absent, without) == (intercept == 0.0)
        assert not np.array_equal(absent, trainer.fit(X, y, key))
        np.testing.assert_allclose(trainer.fit_many(X, y, key[None], absent=(5,))[0], absent, atol=1e-9)


def gradient_sum(loss, clip, exact, theta, chunks):
    """The trainer's sum of a block's gradients."""
    return over_chunks(lambda chunk: Linear(loss, clip, exact).chunk_sum(jnp.asarray(theta), chunk), chunks)


def noise_of(key, shape, steps):
    """The very noise that the trainer will draw."""
    with jax.enable_x64(True):
        return np.array([gaussian(stream(key, NOISE), k, shape) for k in range(steps)])


@pytest.mark.parametrize("change", CHANGES, ids=str)
@pytest.mark.parametrize("loss", LOSSES, ids=str)
def test_agrees_with_numpy_step_by_step(loss, change):
    model, y = LOSSES[loss]
    run, key = li.Run(loss=model, **RUN | CHANGES[change]), seeded_key(3)
    noise = noise_of(key, (model.classes if loss == "softmax" else 1, D + 1), run.steps)
    ours = Trainer(run).fit(X, y, key)
    theirs = reference.fit(run, X, y, noise)
    np.testing.assert_allclose(ours, theirs, atol=2e-5)
    last = Trainer(replace(run, release="last")).fit(X, y, key)
    np.testing.assert_allclose(last, ours[-1], atol=2e-6)  # double against single precision
    calls = []
    watched = Trainer(replace(run, release="last")).fit(X, y, key, progress=lambda *a: calls.append(a))
    np.testing.assert_allclose(watched, last, atol=1e-12)
    assert [c[0] for c in calls] == list(range(1, 10)) and all(c[1] == 9 and len(c) == 3 for c in calls)


def batches_of(run, key):
    """The records of every step, as the trainer will draw them."""
    order, shape = stream(key, ORDER), shape_of(run)
    with jax.enable_x64(True):
        if isinstance(run.batching, li.BallsInBins):
            (moved,), begins = in_bins(shape, (np.arange(N),), order, 0)
            bins = np.split(np.asarray(moved), np.asarray(begins)[1:-1])
            return [bins[k % run.blocks] for k in range(run.steps)]
        found = []
        for k in range(run.steps):
            if isinstance(run.batching, li.FixedSize):
                places = jax.random.permutation(generator(stream(order, k)), N)[: run.batching.size]
            else:
                chunk, begin, count = [], 0, read_at_once(run, DRAWN)
                while begin < N:
                    one = generator(stream(stream(order, k), len(chunk)))
                    chunk.append(np.asarray(poisson_places(one, run.batching.rate, begin, count)))
                    begin = int(chunk[-1][-1]) + 1
                places = np.concatenate(chunk)
                places = places[places < N]
            found.append(np.asarray(places))
        return found


@pytest.mark.parametrize("batching", [li.Poisson(0.3), li.Poisson(0.02), li.FixedSize(5), li.BallsInBins(6)], ids=str)
@pytest.mark.parametrize("most", [AT_ONCE, 3], ids=lambda most: f"chunks of {most}")
def test_drawn_batches_agree_with_numpy_step_by_step(batching, most, monkeypatch):
    monkeypatch.setattr(Linear, "most", property(lambda self: most))
    model, y = LOSSES["softmax"]
    run, key = li.Run(loss=model, **RUN | {"batching": batching, "noise": li.GradientNoise(0.01)}), seeded_key(6)
    batches = batches_of(run, key)
    assert all(len(set(b.tolist())) == b.size for b in batches), "no record twice in a batch"
    assert len({tuple(sorted(b.tolist())) for b in batches}) > 1
    theirs = reference.fit(run, X, y, noise_of(key, (3, D + 1), run.steps), batches=batches)
    np.testing.assert_allclose(Trainer(run).fit(X, y, key), theirs, atol=2e-5)
    jax.clear_caches()  # programs of another chunk size


def test_a_batch_of_every_record_is_never_truncated():
    """More records than are read at once: twelve standard deviations would be needed for it to happen by chance."""
    run = li.Run(loss=LOSSES["huber"][0], **RUN | {"batching": li.Poisson(0.2)})
    with jax.enable_x64(True):
        every = np.arange(N)
        rows, y = arrange(run, X, LOSSES["huber"][1])
        one = Linear(run.loss, None, True)
        read = read_at_once(run, one.most)
        total = one_bin(read, lambda c: one.chunk_sum(jnp.ones((1, D + 1)), c), padded((rows, y), read), every.size)
        exact = one.chunk_sum(jnp.ones((1, D + 1)), (rows, y))
    assert read < N
    np.testing.assert_allclose(total, exact, rtol=1e-12)


def padded(data, room):
    return tuple(np.concatenate((a, np.zeros((room, *a.shape[1:]), a.dtype))) for a in data)


def one_bin(count, read, data, size):
    return over_bin(count, read, (tuple(map(jnp.asarray, data)), jnp.array([0, size])), 0)


def test_one_secret_permutation_then_the_same_blocks():
    model, y = LOSSES["huber"]
    run, key = li.Run(loss=model, **RUN | {"batching": li.Permuted(7)}), seeded_key(5)
    with jax.enable_x64(True):
        blocks, targets = arrange(run, X, y, np.asarray(places(run, key)))
    rows = arrange(replace(run, batching=li.FullBatch()), X, y)[0].reshape(-1, D + 1)
    kept = np.abs(blocks.reshape(-1, D + 1)).sum(1) > 0
    order = [int(np.flatnonzero((rows == row).all(1))[0]) for row in blocks.reshape(-1, D + 1)[kept]]
    assert sorted(order) == list(range(N)) and order != list(range(N)), "a permutation, and not the identity"
    noise = noise_of(key, (1, D + 1), run.steps)
    theirs = reference.fit(replace(run, batching=li.Cyclic(7)), X[order], y[order], noise)
    np.testing.assert_allclose(Trainer(run).fit(X, y, key), theirs, atol=2e-5)
    assert targets.reshape(-1)[kept] == pytest.approx(y[order].astype(np.float32))


@pytest.mark.parametrize("steps", [3, 12, 14])
def test_a_fresh_permutation_in_every_pass(steps):
    """12 steps are three whole passes of four blocks; the reference reads every pass in the order that was drawn."""
    model, y = LOSSES["huber"]
    run, key = li.Run(loss=model, **RUN | {"batching": li.Reshuffled(7), "steps": steps}), seeded_key(6)
    noise, rows = noise_of(key, (1, D + 1), steps), arrange(replace(run, batching=li.FullBatch()), X, y)[0]
    rows, orders, theirs, theta = rows.reshape(-1, D + 1), [], [], None
    for first in range(0, steps, run.blocks):
        with jax.enable_x64(True):
            drawn = np.asarray(pass_data(shape_of(run), AT_ONCE, arrange(run, X, y), key, first // run.blocks)[0])
        drawn = drawn.reshape(-1, D + 1)
        order = [int(np.flatnonzero((rows == row).all(1))[0]) for row in drawn[np.abs(drawn).sum(1) > 0]]
        assert sorted(order) == list(range(N)) and order not in orders, "each a permutation, and another one"
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
    many = Trainer(last).fit_many(X, y, jax.numpy.stack([key, key]))
    np.testing.assert_allclose(many, np.stack([theirs[-1]] * 2), atol=2e-5)


@pytest.mark.parametrize("loss", LOSSES, ids=str)
def test_zeroing_one_record_moves_the_sum_by_less_than_its_sensitivity(loss):
    """Extreme rows, many chunks, float32: the computed sum, not the exact one."""
    model, _ = LOSSES[loss]
    rng = np.random.default_rng(1)
    n = 4 * CHUNK + 17
    data = rng.normal(size=(n, D)) * 10.0 ** rng.integers(-3, 6, size=(n, 1))
    y = {"logistic": rng.integers(0, 2, n), "softmax": rng.integers(0, 3, n), "huber": rng.normal(size=n) * 1e6}[loss]
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


@pytest.mark.parametrize("rows", [1, CHUNK, CHUNK + 1, 500, 516, AT_ONCE])
@pytest.mark.parametrize("clip", [None, 0.3])
def test_single_precision_sums_have_few_terms(rows, clip):
    """FLOAT_SLACK allows float32 sums of at most CHUNK records; longer ones are made of such."""
    data = jnp.ones((rows, D + 1), jnp.float32), jnp.zeros(rows, jnp.int32)
    with jax.enable_x64(True):
        objective = Linear(LOSSES["softmax"][0], clip, False)
        traced = jax.make_jaxpr(objective.chunk_sum)(jnp.zeros((3, D + 1)), data)
        contracted = [
            eqn.invars[0].aval.shape[eqn.params["dimension_numbers"][0][0][0]]
            for eqn in traced.jaxpr.eqns
            if eqn.primitive.name == "dot_general" and eqn.outvars[0].aval.dtype == jnp.float32
        ]
        theta = jnp.asarray(np.random.default_rng(0).normal(size=(3, D + 1)))
        many = objective.chunk_sum(theta, data)
        np.testing.assert_allclose(many, rows * objective.chunk_sum(theta, tuple(a[:1] for a in data)), rtol=1e-5)
    assert contracted == [D + 1, -(-rows // -(-rows // CHUNK))] and max(contracted) <= CHUNK


def test_rows_are_clipped_below_the_norm():
    rows = clip_rows(RNG.normal(size=(500, 30)) * 10.0 ** RNG.integers(-2, 12, size=(500, 1)), 1.5)
    norms = np.linalg.norm(rows.astype(np.float64), axis=1)
    assert norms.max() <= 1.5 and norms.max() > 1.5 * (1 - 1e-5) and (norms < 1).any(), "short rows stay as they are"


def test_private_mean_and_prediction_use_the_same_rows():
    model, y = LOSSES["softmax"]
    part = li.PrivateMean(noise_multiplier=1e-9, row_norm=1.0)
    run = li.Run(loss=model, **RUN | {"prelude": (part,), "release": "last", "noise": li.GradientNoise(0.0)})
    found = execute(run, X, y, seeded_key(1))
    clipped = clip_rows(X, 1.0)
    np.testing.assert_allclose(found.released[0], clipped.mean(0), atol=1e-6)
    moved = np.column_stack((clip_rows(clipped - found.released[0], 1.5), np.full(N, 0.7)))
    np.testing.assert_allclose(scores(run, found, X), moved @ found.weights.T, atol=1e-6)
    many = [
        execute(replace(run, prelude=(replace(part, noise_multiplier=5.0),)), X, y, seeded_key(s)).released[0]
        for s in range(200)
    ]
    assert np.std(np.array(many) - clipped.mean(0)) == pytest.approx(5.0 * 1.0 / N, rel=0.12)


def test_keys():
    one, two = (jax.random.key_data(fresh_key()) for _ in range(2))
    assert one.size * 32 == 128 and (one != two).any()
    model, y = LOSSES["logistic"]
    run = li.Run(loss=model, **RUN | {"release": "last"})
    assert (Trainer(run).fit(X, y) != Trainer(run).fit(X, y)).all()
    assert (Trainer(run).fit(X, y, seeded_key(1)) == Trainer(run).fit(X, y, seeded_key(1))).all()


def test_nothing_is_compiled_again_for_other_noise_steps_and_step_sizes(caplog):
    model, y = LOSSES["logistic"]
    run = li.Run(loss=model, **RUN | {"release": "last"})
    Trainer(run).fit(X, y)
    with jax.log_compiles(True), caplog.at_level("WARNING"):
        Trainer(replace(run, steps=77, noise=li.GradientNoise(0.5), step_size=li.Constant(0.01))).fit(X, y)
    assert not [r for r in caplog.records if "Compiling" in r.getMessage() or "compilation" in r.getMessage()]
    assert not jax.config.jax_enable_x64, "the user's configuration is left alone"


@pytest.mark.parametrize(
    "change, data, word",
    [
        ({}, (X[:5], None), "n = 23"),
        ({}, (np.where(X > 2, np.nan, X), None), "finite"),
        ({}, (X[:, 0], None), "shape"),
        ({}, (X, np.full(N, 3)), "0..1"),
        ({}, (X, np.zeros(4)), "shape"),
        ({"loss": li.Abstract(li.LossFacts(lipschitz=1.0))}, (X, None), "Abstract"),
        ({"domain": li.domains.Box(-1.0, 1.0, 2)}, (X, None), "number of parameters, 5"),
        ({"step_size": li.Constant(1e29), "steps": 50}, (X, None), "diverge"),
    ],
)
def test_bad_input_is_one_sentence(change, data, word):
    model, y = LOSSES["logistic"]
    run = li.Run(**RUN | {"loss": model, "release": "last"} | change)
    with pytest.raises(InputError, match=word) as caught:
        Trainer(run).fit(data[0], y if data[1] is None else data[1], seeded_key(0))
    assert "\n" not in str(caught.value)


def test_a_hidden_state_is_computed_in_double_precision():
    """Two parameters closer than single precision can tell apart must not jump apart: the step contracts them."""
    loss = li.HuberRidge(row_norm=1.001, residual_clip=1e-3, intercept=0.0)
    n = 1000
    run = li.Run(n=n, steps=1, step_size=li.Constant(1.0), noise=li.GradientNoise(0.1), loss=loss)
    assert hidden(run) and not hidden(replace(run, momentum=li.Nesterov())) and not hidden(replace(run, release="all"))
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
    run = li.Run(n=1, steps=1, step_size=li.Constant(1.0), noise=li.GradientNoise(1.0), clip=1e-9, loss=loss)
    for x, y in ((1e-30, 1.0), (1.0, 1e-30), (1e-20, 1.0), (1.0, 1.0)):
        with jax.enable_x64(True):
            data = [a[0] for a in arrange(run, np.array([[x]]), np.array([y]))]
            for exact in (True, False):
                found = np.linalg.norm(np.asarray(gradient_sum(loss, 1e-9, exact, np.zeros((1, 2)), data)))
                assert found <= min(1e-9, x * y) * (1 + 1e-6)


def test_noise_is_standard_normal_with_room_in_the_tails():
    from scipy.stats import kstest

    with jax.enable_x64(True):
        draws = np.asarray(gaussian(seeded_key(2), 0, (200_001,)))
        halves = draws[:100_001], draws[100_001:]
        ends = np.array([0, 2**63, 2**64 - 1], dtype=np.uint64)
        pairs = np.array([normal_pairs(jax.numpy.asarray(ends), jax.numpy.full(3, word, "uint64")) for word in ends])
    assert draws.dtype == np.float64 and kstest(draws, "norm").pvalue > 1e-6
    # the two numbers of a pair: same law each, no correlation of values or of sizes, and an even angle
    x, y = halves[0][:100_000], halves[1]
    assert abs(np.mean(x * y)) < 5 / np.sqrt(1e5) and abs(np.corrcoef(x**2, y**2)[0, 1]) < 5 / np.sqrt(1e5)
    assert kstest(np.arctan2(y, x), "uniform", (-np.pi, 2 * np.pi)).pvalue > 1e-6
    assert kstest(np.exp(-(x**2 + y**2) / 2), "uniform").pvalue > 1e-6
    # the smallest word gives the largest radius, finite and of probability 2^-73 or so; the largest word the smallest
    radius = np.sqrt((pairs**2).sum(1))
    assert np.isfinite(pairs).all() and radius[:, 2].max() < 1e-7
    assert radius[:, 0].min() > 9.3 and 10.0 < radius[:, 0].max() < 10.2
    assert np.allclose(radius[:, 1], np.sqrt(2 * np.log(2)), rtol=1e-12)


def test_every_quadrant_of_the_noise_is_reached():
    words = np.arange(4, dtype=np.uint64) + np.uint64(12345 << 40)
    with jax.enable_x64(True):
        x, y = normal_pairs(jax.numpy.full(4, 2**60, "uint64"), jax.numpy.asarray(words))
        angle = np.linspace(-np.pi / 4, np.pi / 4, 2001)
        cos, sin = map(np.asarray, cos_sin(jax.numpy.asarray(angle)))
    assert np.ptp(np.hypot(x, y)) < 1e-12
    turns = np.sort(np.arctan2(y, x))
    assert np.allclose(np.diff(turns), np.pi / 2, atol=1e-12)
    assert np.abs(cos - np.cos(angle)).max() < 3e-16 and np.abs(sin - np.sin(angle)).max() < 3e-16

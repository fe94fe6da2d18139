"""A caller's optimizer on a loss written with JAX: post-processing of noisy gradients, stated, kept
and charged."""

from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lastiterate as li
from lastiterate.engine import key_from_seed
from lastiterate.engine.checkpoint import Checkpoint
from lastiterate.engine.checkpoint import Key as Sealing
from lastiterate.engine.network import fit_network
from lastiterate.engine.streaming.buffers import Arrays
from lastiterate.errors import InputError
from lastiterate.theorems.assumptions import plain_updates
from lastiterate.theorems.theorem import Applies
from tiers import EXHAUSTIVE

N = 24
X = np.random.default_rng(0).normal(size=(N, 4)).astype(np.float32)
Y = (np.arange(N) % 2).astype(np.float32)
FIRST = {"a": np.full(4, 0.3), "b": np.full(1, 0.2)}
PLAIN = li.Run(
    n=N,
    steps=9,
    step_size=1.0,
    noise=li.GradientNoise(0.2),
    clip=0.7,
    batching=li.RandomAllocation(8),
)
RUN = replace(PLAIN, optimizer=li.PostProcessing("mine"))


def loss(params: Any, x: Any, y: Any) -> Any:
    return (params["a"] @ x + params["b"][0] - y) ** 2


class Rule(NamedTuple):
    """The form of optax, without optax."""

    init: Any
    update: Any


def adam(rate: float, decay: float = 0.0, apart: bool = True, held: Any = 0.0) -> Rule:
    def init(params: Any) -> Any:
        zeros = jax.tree.map(jnp.zeros_like, params)
        return jnp.zeros((), jnp.int32), zeros, zeros

    def update(gradient: Any, state: Any, params: Any) -> Any:
        gradient = gradient if apart else jax.tree.map(lambda g, p: g + decay * p, gradient, params)
        count = state[0] + 1
        mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state[1], gradient)
        square = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, state[2], gradient)
        moved = jax.tree.map(
            lambda m, v, p: (
                -rate
                * (
                    m / (1 - 0.9**count) / (jnp.sqrt(v / (1 - 0.999**count)) + 1e-8)
                    + (decay * p if apart else 0.0)
                    + jnp.sum(jnp.asarray(held))
                )
            ),
            mean,
            square,
            params,
        )
        return moved, (count, mean, square)

    return Rule(init, update)


def gathered(inner: Rule, every: int) -> Rule:
    """The inner rule on means of so many gradients."""

    def init(params: Any) -> Any:
        return jnp.zeros((), jnp.int32), jax.tree.map(jnp.zeros_like, params), inner.init(params)

    def update(gradient: Any, state: Any, params: Any) -> Any:
        count, held, within = state
        held = jax.tree.map(lambda h, g: h + g / every, held, gradient)
        full = (count + 1) % every == 0
        moved, after = inner.update(held, within, params)

        def where(new: Any, old: Any) -> Any:
            return jax.tree.map(lambda n, o: jnp.where(full, n, o), new, old)

        zeros = jax.tree.map(jnp.zeros_like, held)
        return where(moved, zeros), (count + 1, where(zeros, held), where(after, within))

    return Rule(init, update)


def halved(inner: Rule) -> Rule:
    """The inner rule, which remembers its means in bfloat16."""

    def short(state: Any) -> Any:
        return jax.tree.map(lambda s: s.astype(jnp.bfloat16) if s.ndim else s, state)

    def update(gradient: Any, state: Any, params: Any) -> Any:
        moved, after = inner.update(
            gradient, jax.tree.map(lambda s: s.astype(jnp.float64) if s.ndim else s, state), params
        )
        return moved, short(after)

    return Rule(lambda params: short(inner.init(params)), update)


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"release": "all", "batching": li.Cyclic(8)},
        {"noise": li.Correlated(1.0, 4), "batching": li.Cyclic(8)},
        {
            "batching": li.Poisson(0.3),
            "domain": li.domains.Ball(0.4),
            "prox": li.penalties.L1(0.01),
        },
    ],
    ids=str,
)
def test_an_optimizer_is_the_rule_of_its_name(change: dict[str, Any]):
    ours = replace(PLAIN, optimizer=li.Adam(), **change)
    theirs = replace(RUN, **change)
    expected = fit_network(ours, loss, FIRST, (X, Y), key_from_seed(3))
    found = fit_network(theirs, loss, FIRST, (X, Y), key_from_seed(3), optimizer=adam(1.0))
    for name in FIRST:
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-9, atol=1e-9)


def test_the_run_says_it_and_only_what_charges_every_iterate_certifies_it():
    convex = li.KnownConstants(li.LossFacts(lipschitz=0.7, smooth=0.5, strong=0.1))
    known = replace(PLAIN, clip=None, loss=convex, batching=li.Cyclic(8))
    model = li.train(
        replace(known, loss=li.KnownConstants(li.LossFacts(lipschitz=0.7))),
        (X, Y),
        model=FIRST,
        loss=loss,
        optimizer=adam(0.1),
        seed=1,
        min_evidence=li.Evidence.ASSUMED,
    )
    assert model.run.optimizer == li.PostProcessing("an optax transformation")
    assert li.Run.from_json(model.run.to_json()) == model.run
    assert any(
        text.startswith("update: post-processing, stated")
        for text in model.certificate.all_caveats()
    )
    plain = li.account(known, min_evidence=li.Evidence.ASSUMED)
    assert any(
        plain_updates in v.theorem.assumptions
        for v in plain.verdicts
        if isinstance(v.result, Applies)
    )
    other = li.account(
        replace(known, optimizer=li.PostProcessing()), min_evidence=li.Evidence.ASSUMED
    )
    charged = [
        v.theorem
        for v in other.verdicts
        if isinstance(v.result, Applies) and v.theorem.kind == "upper"
    ]
    assert charged and not any(plain_updates in theorem.assumptions for theorem in charged)
    everything = li.account(replace(known, release="all"), min_evidence=li.Evidence.ASSUMED)
    assert other.epsilon(1e-5) == everything.epsilon(1e-5) > plain.epsilon(1e-5)


def test_it_is_calibrated_saved_verified_and_loaded(tmp_path: Path):
    run = replace(PLAIN, noise=None)
    model = li.train(
        run, (X, Y), model=FIRST, loss=loss, optimizer=adam(0.1), epsilon=2.0, delta=1e-5
    )
    folder = model.save(tmp_path / "model")
    assert li.verify(folder).holds
    again = li.load(folder, like=FIRST)
    assert again.run == model.run and again.certificate.epsilon(1e-5) <= 2.0
    np.testing.assert_array_equal(again.params["a"], model.params["a"])


@pytest.mark.parametrize("data", [(X, Y), Arrays((X, Y))], ids=["in memory", "in pieces"])
def test_an_interrupted_run_goes_on_with_the_state_of_its_optimizer(
    kept: dict[str, Any], data: Any, interrupted: Any
):
    order: Any = dict(model=FIRST, loss=loss, seed=2)
    whole = li.train(PLAIN, data, optimizer=adam(0.1, 0.01), **order)
    with interrupted(4) as progress:
        li.train(PLAIN, data, optimizer=adam(0.1, 0.01), progress=progress, **order, **kept)
    with pytest.raises(InputError, match="another loss, model or optimizer"):
        li.train(PLAIN, data, optimizer=adam(0.2, 0.01), **order, **kept)
    again = li.train(PLAIN, data, optimizer=adam(0.1, 0.01), **order, **kept)
    for name in FIRST:
        assert np.array_equal(again.params[name], whole.params[name])


def test_counters_come_back_in_their_own_shape(tmp_path: Path):
    checkpoint = Checkpoint(tmp_path / "c", Sealing(bytes(32)), 0.0)
    checkpoint.begin(PLAIN, (X,), key_from_seed(1), "loss")
    checkpoint.keep(3, {"theta": np.ones((2, 3)).T, "memory0": np.array(7, np.int32)})
    again = Checkpoint(tmp_path / "c", Sealing(bytes(32)), 0.0)
    again.begin(PLAIN, (X,), key_from_seed(1), "loss")
    done, arrays = again.state
    assert (
        done == 3
        and arrays["memory0"].shape == ()
        and arrays["memory0"] == 7
        and arrays["theta"].shape == (3, 2)
    )


def test_exact_noise_takes_one():
    model = li.train(
        PLAIN, (X, Y), model=FIRST, loss=loss, optimizer=adam(0.1), seed=1, secure_noise=True
    )
    assert model.exact and np.isfinite(model.params["a"]).all()


def printing(gradient: Any, state: Any, params: Any) -> Any:
    jax.debug.print("{}", gradient["a"][0])
    return gradient, state


def searching(gradient: Any, state: Any, params: Any, *, value_fn: Any) -> Any:
    return gradient, state


REFUSED = {
    "code outside of JAX": (Rule(lambda p: (), printing), "operations of JAX"),
    "what needs the loss again": (Rule(lambda p: (), searching), "gradients, its own state"),
    "an array that could be records": (adam(0.1, held=jnp.asarray(X)), "could be records"),
    "weight decay in running means": (adam(0.1, 0.1, apart=False), "coupled"),
    "the same, of gathered gradients": (gathered(adam(0.1, 0.1, apart=False), 9), "coupled"),
    "the same, in bfloat16": (halved(adam(0.1, 0.1, apart=False)), "coupled"),
    "a class": (Rule, "as optax has them"),
    "an instance of another library": (0.1, "as optax has them"),
    "another number of parameters": (
        Rule(lambda p: (), lambda g, s, p: ({"a": g["a"]}, s)),
        "one number for each",
    ),
    "keys": (Rule(lambda p: jax.random.key(0), lambda g, s, p: (g, s)), "state of numbers"),
}


@pytest.mark.parametrize("refused", REFUSED)
def test_what_is_refused_before_anything_is_trained(refused: str):
    optimizer, said = REFUSED[refused]
    with pytest.raises(InputError, match=said):
        li.train(PLAIN, (X, Y), model=FIRST, loss=loss, optimizer=optimizer, seed=1)


def test_coupled_decay_is_taken_where_the_run_says_so():
    run = replace(PLAIN, optimizer=li.PostProcessing("mine", "coupled"))
    assert (
        li.train(
            run, (X, Y), model=FIRST, loss=loss, optimizer=adam(0.1, 0.1, apart=False), seed=1
        ).run
        == run
    )


def test_a_state_that_is_not_0_is_no_decay():
    def update(gradient: Any, state: Any, params: Any) -> Any:
        sizes = jax.tree.map(lambda s, g: jnp.where(g == 0, s / 2, s), state, gradient)
        return jax.tree.map(lambda s, g: -s * jnp.sign(g), sizes, gradient), sizes

    signs = Rule(lambda params: jax.tree.map(lambda p: jnp.full_like(p, 0.1), params), update)
    assert (
        li.train(PLAIN, (X, Y), model=FIRST, loss=loss, optimizer=signs, seed=1).run.optimizer
        is not None
    )


@pytest.mark.parametrize(
    "optimizer",
    [
        gathered(adam(0.1, 0.1), 3),
        halved(adam(0.1, 0.1)),
        gathered(
            Rule(
                lambda params: params,
                lambda g, s, p: (g, jax.tree.map(lambda s, p: 0.9 * s + 0.1 * p, s, p)),
            ),
            2,
        ),
    ],
)
def test_decay_apart_and_copies_of_parameters_are_no_decay_in_means(optimizer: Any):
    assert (
        li.train(PLAIN, (X, Y), model=FIRST, loss=loss, optimizer=optimizer, seed=1).run.optimizer
        is not None
    )


def test_an_optimizer_and_a_description_of_one_go_together():
    with pytest.raises(InputError, match="is needed where"):
        li.train(RUN, (X, Y), model=FIRST, loss=loss, seed=1)
    with pytest.raises(InputError, match="is needed where"):
        li.train(
            replace(PLAIN, optimizer=li.Adam()),
            (X, Y),
            model=FIRST,
            loss=loss,
            optimizer=adam(0.1),
            seed=1,
        )
    with pytest.raises(InputError, match="must be 1 where an optimizer"):
        li.train(
            replace(PLAIN, step_size=0.1),
            (X, Y),
            model=FIRST,
            loss=loss,
            optimizer=adam(0.1),
            seed=1,
        )
    linear = replace(PLAIN, loss=li.Logistic(), clip=None)
    with pytest.raises(InputError, match="losses given as functions"):
        li.train(linear, (X, Y), optimizer=adam(0.1), seed=1)
    with pytest.raises(InputError, match="is needed where"):
        li.train(replace(linear, optimizer=li.PostProcessing()), (X, Y), seed=1)


def test_the_transformations_of_optax(kept: dict[str, Any], interrupted: Any):
    optax = pytest.importorskip("optax")
    order: Any = dict(model=FIRST, loss=loss, seed=2)
    rate = optax.warmup_cosine_decay_schedule(0.0, 0.3, 3, 9)
    more = (
        (
            optax.sgd(0.1, momentum=0.9, nesterov=True),
            optax.lamb(0.1),
            optax.lion(0.01),
            optax.multi_transform(
                {"s": optax.sgd(0.1), "z": optax.set_to_zero()}, {"a": "s", "b": "z"}
            ),
            optax.inject_hyperparams(optax.adam)(learning_rate=rate),
        )
        if EXHAUSTIVE
        else ()
    )
    for optimizer in (
        optax.adamw(rate, weight_decay=0.1),
        optax.chain(optax.clip_by_global_norm(1.0), optax.rmsprop(0.1)),
        *more,
    ):
        model = li.train(PLAIN, (X, Y), optimizer=optimizer, **order)
        assert not np.array_equal(model.params["a"], FIRST["a"])
    assert np.array_equal(
        li.train(
            PLAIN,
            (X, Y),
            optimizer=optax.multi_transform(
                {"s": optax.sgd(0.1), "z": optax.set_to_zero()}, {"a": "s", "b": "z"}
            ),
            **order,
        ).params["b"],
        FIRST["b"],
    )
    ours = li.train(replace(PLAIN, optimizer=li.Adam()), (X, Y), **order)
    theirs = li.train(PLAIN, (X, Y), optimizer=optax.adam(1.0), **order)
    np.testing.assert_allclose(theirs.params["a"], ours.params["a"], rtol=1e-6)
    for optimizer in (optax.lbfgs(), optax.polyak_sgd(), optax.contrib.reduce_on_plateau()):
        with pytest.raises(InputError, match="alone"):
            li.train(PLAIN, (X, Y), optimizer=optimizer, **order)
    coupled = optax.chain(optax.add_decayed_weights(0.1), optax.adam(0.1, mu_dtype=jnp.bfloat16))
    for optimizer in (
        coupled,
        optax.MultiSteps(coupled, 4).gradient_transformation(),
        optax.flatten(coupled),
    ):
        with pytest.raises(InputError, match="coupled"):
            li.train(PLAIN, (X, Y), optimizer=optimizer, **order)
    apart = optax.MultiSteps(optax.adamw(rate, weight_decay=0.1), 4).gradient_transformation()
    assert li.train(PLAIN, (X, Y), optimizer=apart, **order).run.optimizer is not None
    with interrupted(4) as progress:
        li.train(PLAIN, (X, Y), optimizer=optax.adamw(rate), progress=progress, **order, **kept)
    again = li.train(PLAIN, (X, Y), optimizer=optax.adamw(rate), **order, **kept)
    whole = li.train(PLAIN, (X, Y), optimizer=optax.adamw(rate), **order)
    assert np.array_equal(again.params["a"], whole.params["a"])

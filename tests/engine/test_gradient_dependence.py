"""Parameters that no record moves are found in the traced program, and no other parameter is
refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lastiterate as li
from lastiterate.engine.tracing import PUBLIC, RECORD, ZERO, dependence
from lastiterate.errors import InputError

HELD = np.zeros(3, np.float32)
SEEN = np.array([0.5, -1.0, 2.0], np.float32)


def squared(p, x):
    """What makes ``w`` a parameter that records move."""
    return ((p["w"] * x).sum() - 1) ** 2


def looped(p, x):
    return jax.lax.while_loop(
        lambda held: held[0] < x[0], lambda held: (held[0] + 1, held[1] * 2), (0.0, x.sum())
    )[1]


UNMOVED = {
    "stop_gradient": lambda p, x: squared(p, x) + (jax.lax.stop_gradient(p["v"]) * x).sum(),
    "argmax": lambda p, x: squared(p, x) * x[jnp.argmax(p["v"])],
    "sign": lambda p, x: squared(p, x) + (jnp.sign(p["v"]) @ x) ** 2,
    "round": lambda p, x: squared(p, x) + (jnp.round(p["v"]) @ x) ** 2,
    "comparison": lambda p, x: squared(p, x) + jnp.where(p["v"] > 0, x, -x).sum(),
    "times 0": lambda p, x: squared(p, x) + 0.0 * (p["v"] @ x) ** 2,
    "times zeros that the loss holds": lambda p, x: squared(p, x) + (p["v"] * HELD * x).sum(),
    "times made zeros": lambda p, x: squared(p, x) + (p["v"] * jnp.zeros(3)) @ x,
    "integers": lambda p, x: squared(p, x) + (p["v"].astype(int) * x).sum(),
    "scan": lambda p, x: (
        squared(p, x)
        + jax.lax.scan(lambda held, one: (held * one + 0.0 * p["v"].sum(), None), p["w"].sum(), x)[
            0
        ]
    ),
    "cond": lambda p, x: jax.lax.cond(
        x[0] > 0, lambda: squared(p, x), lambda: squared(p, -x) + 0.0 * p["v"].sum()
    ),
    "jit": lambda p, x: (
        squared(p, x) + jax.jit(lambda v: jnp.sin(jax.lax.stop_gradient(v)) @ x)(p["v"])
    ),
    "checkpoint": lambda p, x: jax.checkpoint(lambda w, v: (w @ x) ** 2 + (0.0 * v).sum())(
        p["w"], p["v"]
    ),
    "a penalty alone": lambda p, x: squared(p, x) + 0.1 * (p["v"] ** 2).sum(),
    "a constant slope": lambda p, x: squared(p, x) + (p["v"] * SEEN).sum(),
}
MOVED = {
    "linear": lambda p, x: (p["w"] * p["v"]) @ x,
    "bias": lambda p, x: (p["w"] @ x + p["v"].sum() - 1) ** 2,
    "rectified": lambda p, x: jax.nn.relu(p["w"] * x) @ jax.nn.relu(p["v"]),
    "hinge": lambda p, x: jnp.maximum(0, 1 - x[0] * (p["w"] @ x)) + jnp.abs(p["v"] @ x - 1),
    "looked up": lambda p, x: squared(p, x) + p["v"][x[0].astype(int) % 3],
    "softmax": lambda p, x: -jax.nn.log_softmax(p["w"] * x + p["v"])[0],
    "scan": lambda p, x: jax.lax.scan(
        lambda held, one: (jnp.tanh(held * one + p["v"].sum()), None), p["w"].sum(), x
    )[0],
    "cond": lambda p, x: jax.lax.cond(x[0] > 0, lambda: p["w"].sum(), lambda: p["v"].sum()),
    "chosen by a loop": lambda p, x: jnp.where(looped(p, x) > 3, p["w"], p["v"]).sum(),
    "a custom derivative": lambda p, x: clipped(p["w"] @ x) + clipped(p["v"] @ x),
    "straight through": lambda p, x: (
        (x @ (p["v"] + jax.lax.stop_gradient(jnp.sign(p["v"]) - p["v"]))) ** 2 + squared(p, x)
    ),
    "convolved": lambda p, x: (
        (jnp.convolve(x, p["w"]) ** 2).sum() + (jnp.convolve(x, p["v"]) ** 2).sum()
    ),
}


@jax.custom_vjp
def clipped(x):
    return jnp.clip(x, -1, 1)


clipped.defvjp(lambda x: (clipped(x), x), lambda x, slope: (slope * (jnp.abs(x) < 1),))


def trained(loss, **more):
    run = li.Run(
        n=4,
        steps=1,
        step_size=0.1,
        noise=li.GradientNoise(1.0),
        clip=1.0,
        loss=li.KnownConstants(),
        **more,
    )
    params = {"v": np.full(3, 0.5, np.float32), "w": np.ones(3, np.float32)}
    return li.train(run, (np.ones((4, 3), np.float32),), model=params, loss=loss, delta=1e-2)


@pytest.mark.parametrize("which", UNMOVED)
def test_a_parameter_that_no_record_moves_is_refused_by_name(which):
    with pytest.raises(
        InputError, match=r"must hold parameters that records move, and the gradient by \['v'\]"
    ):
        trained(UNMOVED[which])


def kinds_of(loss):
    gradient = jax.make_jaxpr(lambda v, w, x: jax.grad(loss)({"v": v, "w": w}, x))(SEEN, SEEN, SEEN)
    return dependence(gradient, [PUBLIC, PUBLIC, RECORD])


def test_kinds_are_those_of_the_gradient():
    assert [kinds_of(loss) for loss in MOVED.values()] == [[RECORD, RECORD]] * len(MOVED)
    zero = {which: kinds_of(loss)[0] for which, loss in UNMOVED.items()}
    assert {which for which, kind in zero.items() if kind == PUBLIC} == {
        "a penalty alone",
        "a constant slope",
    }
    assert {kind for which, kind in zero.items()} == {ZERO, PUBLIC}


def test_a_gradient_that_follows_from_a_record_is_never_called_public():
    """Whatever is called 0 or public is the same number for records and parameters that were drawn."""
    rng = np.random.default_rng(0)
    for loss in UNMOVED.values():
        gradient = jax.jit(jax.grad(loss))
        params = {name: rng.normal(size=3).astype(np.float32) for name in "vw"}
        found = [gradient(params, rng.normal(size=3).astype(np.float32)) for _ in range(2)]
        for name, kind in zip("vw", kinds_of(loss), strict=True):
            same = all(np.array_equal(found[0][name], other[name]) for other in found)
            assert same or kind == RECORD
            assert kind != ZERO or not np.any(found[0][name])


def test_parameters_that_records_move_are_trained_and_empty_ones_may_stay():
    assert set(trained(MOVED["bias"]).params) == {"v", "w"}
    run = li.Run(
        n=4, steps=1, step_size=0.1, noise=li.GradientNoise(1.0), clip=1.0, loss=li.KnownConstants()
    )
    params = {"v": np.zeros((0, 3), np.float32), "w": np.ones(3, np.float32)}
    found = li.train(
        run,
        (np.ones((4, 3), np.float32),),
        model=params,
        delta=1e-2,
        loss=lambda p, x: squared(p, x) + p["v"].sum(),
    )
    assert found.params["v"].shape == (0, 3)


@pytest.mark.parametrize(
    "params, word",
    [
        ({"w": SEEN, "count": np.zeros((), np.int32)}, "floating-point"),
        ({"w": SEEN, "key": jax.random.key(0)}, "floating-point"),
        ({"w": SEEN, "key": jax.random.PRNGKey(0)}, "floating-point"),
        ({"w": SEEN, "on": np.ones((), bool)}, "floating-point"),
        (
            {"params": {"w": SEEN}, "batch_stats": {"norm": {"mean": SEEN}}},
            "batch statistics are none",
        ),
    ],
    ids=["counter", "key", "old key", "switch", "batch statistics"],
)
def test_state_among_the_parameters_is_refused(params, word):
    run = li.Run(
        n=4, steps=1, step_size=0.1, noise=li.GradientNoise(1.0), clip=1.0, loss=li.KnownConstants()
    )
    with pytest.raises(InputError, match=word):
        li.train(
            run,
            (np.ones((4, 3), np.float32),),
            model=params,
            delta=1e-2,
            loss=lambda p, x: squared(
                p.get("params", p), x - p.get("batch_stats", {"norm": {"mean": 0}})["norm"]["mean"]
            ),
        )


LOOPS = {
    "test": lambda p, x: jax.lax.while_loop(lambda held: held < x, lambda held: held + 1, p),
    "body": lambda p, x: jax.lax.while_loop(lambda held: held < 3.0, lambda held: held + x, p),
    "a carry of the body": lambda p, x: jax.lax.while_loop(
        lambda held: held[0] < 3.0,
        lambda held: (held[0] + 1, held[2], held[1] + x),
        (p, p, p),
    )[1],
    "neither": lambda p, x: jax.lax.while_loop(lambda held: held < 3.0, lambda held: held + 1, p),
}


@pytest.mark.parametrize("name", LOOPS)
def test_a_loop_follows_from_all_that_its_test_and_its_body_read(name):
    program = jax.make_jaxpr(LOOPS[name])(0.0, 1.0)
    assert dependence(program, [PUBLIC, RECORD]) == [PUBLIC if name == "neither" else RECORD]

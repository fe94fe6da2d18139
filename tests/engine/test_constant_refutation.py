"""Claimed constants: true ones survive, slightly false ones are refuted by a witness that can be
checked by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lastiterate as li
from lastiterate.errors import InputError

RNG = np.random.default_rng(5)
X = RNG.normal(size=(30, 3))
X /= np.linalg.norm(X, axis=1)[:, None]
Y = RNG.integers(0, 2, 30)


def logistic(theta, x, y):
    return jnp.logaddexp(0.0, theta @ x) - y * (theta @ x)


def wavy(theta, x, y):
    """Hessian between -0.5 and 2.5 along x, of norm at most 2.5."""
    z = theta @ x
    return z**2 / 2 - 1.5 * jnp.cos(z) + 0 * y


AS_LONG = {"pairs": 200, "climbs": 80}
"""Searches of one length share their programs."""


def search(loss, radius=2.0, **claims):
    return li.audit.falsify(
        loss, np.zeros(3), (X, Y), li.LossFacts(**claims), radius=radius, **AS_LONG
    )


@pytest.mark.parametrize(
    "loss, claims",
    [
        (logistic, {"lipschitz": 1.0, "smooth": 0.25, "strong": 0.0}),
        (wavy, {"smooth": 2.5, "weak_convexity": 0.5}),
    ],
)
def test_true_constants_survive_and_are_called_tested(loss, claims):
    found = search(loss, **claims)
    assert not found.witnesses
    for name, value in claims.items():
        fact = getattr(found.facts, name)
        assert (
            fact.value == value
            and fact.evidence is li.Evidence.TESTED
            and "200 random pairs" in fact.why
        )
    run = li.Run(
        n=30,
        steps=10,
        step_size=li.Constant(0.1),
        noise=li.GradientNoise(1.0),
        loss=li.KnownConstants(found.facts),
        clip=None if "lipschitz" in claims else 1.0,
    )
    assert li.account(run, min_evidence=li.Evidence.TESTED).epsilon(1e-5) < np.inf


@pytest.mark.parametrize(
    "loss, claim, value, true",
    [
        (logistic, "lipschitz", 0.98, 1.0),
        (logistic, "smooth", 0.247, 0.25),
        (logistic, "strong", 0.01, 0.0),
        (wavy, "smooth", 2.45, 2.5),
        (wavy, "weak_convexity", 0.47, 0.5),
        (wavy, "weak_convexity", 0.0, 0.5),
    ],
)
def test_false_constants_are_refuted_by_a_witness(loss, claim, value, true):
    found = search(
        loss,
        radius=4.0,
        **({"smooth": 5.0} | {claim: value} if claim == "strong" else {claim: value}),
    )
    (witness,) = found.witnesses
    assert (
        getattr(found.facts, claim) is None and witness.claim == claim and witness.claimed == value
    )
    # by hand, in another arithmetic: gradients by differences of the loss
    x, y = X[witness.record], Y[witness.record]

    def gradient(theta):
        with jax.enable_x64(True):
            steps = 1e-5 * np.eye(3)
            return np.array(
                [float(loss(theta + s, x, y) - loss(theta - s, x, y)) / 2e-5 for s in steps]
            )

    one, two = gradient(witness.first), gradient(witness.second)
    moved = witness.second - witness.first
    curvature = (two - one) @ moved / (moved @ moved)
    needed = {
        "lipschitz": np.linalg.norm(one),
        "smooth": np.linalg.norm(two - one) / np.linalg.norm(moved),
        "strong": curvature,
        "weak_convexity": -curvature,
    }[claim]
    assert needed == pytest.approx(witness.needed, rel=1e-3, abs=1e-4)
    assert (needed < value) if claim == "strong" else (needed > value)
    assert abs(needed) <= true * (1 + 1e-3) or claim == "strong"
    assert f"{claim} = {value:g} does not hold" in str(witness)


def test_a_smoothness_below_the_weak_convexity_bounds_the_hessian_from_above():
    """Hessians in [-m, M], m > M: gradients may turn faster than M, downwards."""

    def concave(theta, x, y):
        return -((theta @ x) ** 2) + 0 * y

    claims = {"smooth": 0.05, "weak_convexity": 2.0}
    assert not search(concave, **claims).witnesses, "it is -2 along x, and 0 elsewhere"
    assert [w.claim for w in search(concave, smooth=0.05).witnesses] == ["smooth"], (
        "|Hessian| <= 0.05 is meant"
    )
    (witness,) = search(wavy, smooth=0.05, weak_convexity=0.6).witnesses
    assert witness.claim == "smooth" and witness.needed == pytest.approx(2.5, rel=1e-2)
    found = search(concave, smooth=0.05, weak_convexity=1.9)
    assert [w.claim for w in found.witnesses] == ["weak_convexity"]
    assert found.facts.smooth is None, "by itself it would say what was not looked at"


def test_facts_of_another_loss_are_tested_at_most_and_other_constants_are_left_alone():
    """What rows that are clipped enforce of a linear model says nothing about the loss that is
    searched."""
    facts = li.Logistic(row_norm=1.0, intercept=0.0).facts()
    found = li.audit.falsify(logistic, np.zeros(3), (X, Y), facts, **AS_LONG)
    for name in ("lipschitz", "smooth", "strong", "weak_convexity"):
        fact, before = getattr(found.facts, name), getattr(facts, name)
        assert fact.evidence is li.Evidence.TESTED < before.evidence and fact.value == before.value
    claims = li.LossFacts(lipschitz=1.0, log_sobolev=0.3)
    found = li.audit.falsify(logistic, np.zeros(3), (X, Y), claims, **AS_LONG)
    assert found.facts.log_sobolev == claims.log_sobolev
    clipped = li.Run(n=30, steps=1, step_size=0.1, clip=1.0).facts()
    found = li.audit.falsify(logistic, np.zeros(3), (X, Y), clipped, **AS_LONG)
    assert found.facts.sensitivity.evidence is li.Evidence.ASSUMED, "nobody searched for it"


@pytest.mark.parametrize(
    "change, word",
    [
        ({"claims": li.LossFacts(sensitivity=1.0)}, "must state one of"),
        ({"radius": 0.0}, "radius"),
        ({"loss": lambda p, x, y: x}, "one number"),
        ({"params": np.zeros(3, int)}, "floating-point"),
    ],
)
def test_bad_input(change, word):
    given = {
        "loss": logistic,
        "params": np.zeros(3),
        "data": (X, Y),
        "claims": li.LossFacts(lipschitz=1.0),
    } | change
    with pytest.raises(InputError, match=word):
        li.audit.falsify(
            given.pop("loss"), given.pop("params"), given.pop("data"), given.pop("claims"), **given
        )

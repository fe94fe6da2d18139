"""Proximal maps and projections: firmly nonexpansive, true minimisers, projections that stay where
they are."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lastiterate as li
from engine import reference
from lastiterate.engine.methods import project, projection_of, proximal
from lastiterate.errors import InputError

RNG = np.random.default_rng(7)
SHAPE = (3, 4)
NORMALS = tuple(map(tuple, RNG.normal(size=(2, 12))))
PROXES = [
    li.penalties.L1(0.4),
    li.penalties.L2Squared(0.7),
    li.penalties.ElasticNet(0.3, 0.5),
    li.penalties.GroupLasso(0.6),
    li.penalties.GroupLasso(0.6, axis=1),
    li.penalties.NuclearNorm(0.5),
]
DOMAINS = [
    li.domains.Everywhere(),
    li.domains.Ball(1.3),
    li.domains.Box(-0.2, 0.7),
    li.domains.Simplex(1.5),
    li.domains.AffineBall(2.0, NORMALS, (0.3, -0.2)),
]
STEP = 0.8


def penalty(prox, x):
    match prox:
        case li.penalties.L1(weight):
            return weight * np.abs(x).sum()
        case li.penalties.L2Squared(weight):
            return weight / 2 * (x**2).sum()
        case li.penalties.ElasticNet(l1, l2):
            return l1 * np.abs(x).sum() + l2 / 2 * (x**2).sum()
        case li.penalties.GroupLasso(weight, axis):
            return weight * np.linalg.norm(x, axis=axis).sum()
        case li.penalties.NuclearNorm(weight):
            return weight * np.linalg.svd(x)[1].sum()


def mapped(part, points):
    with jax.enable_x64(True):
        one = (
            partial(project, projection_of(part))
            if part in DOMAINS
            else partial(proximal, part, STEP)
        )
        return np.asarray(jax.jit(jax.vmap(one))(points))


@pytest.mark.parametrize("part", PROXES + DOMAINS, ids=lambda part: str(part)[:40])
def test_firmly_nonexpansive(part):
    """|P x - P y|^2 <= <P x - P y, x - y>, at distances from tiny to huge, kinks and ties included."""
    x, y = RNG.normal(size=(2, 4000, *SHAPE)) * np.exp(RNG.uniform(-4, 4, (2, 4000, 1, 1)))
    x[:500], y[:300, 0] = np.round(x[:500]), x[:300, 0]
    y[1000:1500] = x[1000:1500] + 1e-3 * y[1000:1500]
    px, py = mapped(part, x), mapped(part, y)
    moved = px - py
    inner = (moved * (x - y)).sum((1, 2))
    assert (inner - (moved**2).sum((1, 2)) >= -1e-9 * np.abs(x - y).sum((1, 2)) ** 2 - 1e-12).all()


@pytest.mark.parametrize("prox", PROXES, ids=str)
def test_proximal_maps_minimise(prox):
    """Nothing near the answer, in any direction and at any distance, has a smaller objective."""
    for x in RNG.normal(size=(20, *SHAPE)):
        (found,) = mapped(prox, x[None])
        np.testing.assert_allclose(found, reference.prox(prox, STEP, x), atol=1e-12)

        def objective(u, x=x):
            return STEP * penalty(prox, u) + ((u - x) ** 2).sum() / 2

        least = objective(found)
        ways = RNG.normal(size=(300, *SHAPE)) * np.exp(RNG.uniform(-9, 1, (300, 1, 1)))
        assert min(objective(found + way) for way in ways) >= least - 1e-12
        assert (
            min(objective(found * (1 + t)) for t in (-1, -0.1, -1e-4, 1e-4, 0.1)) >= least - 1e-12
        )


@pytest.mark.parametrize("domain", DOMAINS, ids=lambda part: str(part)[:40])
def test_projections_are_idempotent_and_closest(domain):
    points = RNG.normal(size=(300, *SHAPE)) * np.exp(RNG.uniform(-3, 3, (300, 1, 1)))
    found = mapped(domain, points)
    np.testing.assert_allclose(mapped(domain, found), found, atol=1e-11)
    inside = mapped(domain, RNG.normal(size=(300, *SHAPE)))
    for x, p in zip(
        points, found, strict=True
    ):  # the angle at a projection is obtuse, for every point of the set
        assert (((x - p) * (inside - p)).sum((1, 2)) <= 1e-8 * (1 + np.abs(x).sum())).all()
    for p in found:
        match domain:
            case li.domains.Ball(radius):
                assert np.linalg.norm(p) <= radius
            case li.domains.Box(low, high):
                assert p.min() >= low and p.max() <= high
            case li.domains.Simplex(total):
                assert p.min() >= 0 and p.sum() == pytest.approx(total, rel=1e-12)
            case li.domains.AffineBall():
                assert np.linalg.norm(p) <= domain.radius * (1 + 1e-9)
                np.testing.assert_allclose(np.array(NORMALS) @ p.ravel(), domain.offsets, atol=1e-9)
            case _:
                np.testing.assert_array_equal(found, points)
    if not isinstance(domain, li.domains.Everywhere):
        np.testing.assert_allclose(
            found[:5], [reference.project(domain, x) for x in points[:5]], atol=1e-6
        )


@pytest.mark.parametrize("domain", DOMAINS[1:], ids=lambda part: str(part)[:40])
def test_diameters_bound_distances_and_are_reached(domain):
    if isinstance(domain, li.domains.Box):
        domain = li.domains.Box(domain.low, domain.high, 12)
    far = RNG.choice([-1.0, 1.0], (4000, *SHAPE)) * 50
    far[:12] = 50 * np.eye(12).reshape(12, *SHAPE)
    with jax.enable_x64(True):
        found = np.asarray(
            jax.vmap(partial(project, projection_of(domain)))(np.concatenate((far, -far)))
        )
    distance = np.linalg.norm((found[:4000] - found[4000:]).reshape(4000, -1), axis=1).max()
    corners = np.linalg.norm(found[0] - found[1])
    assert max(distance, corners) <= domain.diameter() * (1 + 1e-12)
    assert max(distance, corners) >= 0.99 * domain.diameter()


@pytest.mark.parametrize(
    "build, word",
    [
        (lambda: li.penalties.L1(0.0), "weight of l1"),
        (lambda: li.penalties.ElasticNet(1.0, -1.0), "l2 of the elastic net"),
        (lambda: li.penalties.GroupLasso(1.0, axis=2), "axis"),
        (lambda: li.penalties.NuclearNorm(float("nan")), "nuclear"),
        (lambda: li.domains.Simplex(-1.0), "simplex"),
        (lambda: li.domains.AffineBall(0.1, ((1.0, 1.0),), (5.0,)), "exceed the distance"),
        (lambda: li.domains.AffineBall(9.0, ((1.0, 1.0), (2.0, 2.0)), (1.0, 2.0)), "independent"),
        (lambda: li.domains.AffineBall(9.0, ((1.0, 1.0), (2.0,)), (1.0, 2.0)), "length"),
        (lambda: li.domains.AffineBall(9.0, ((1.0, float("inf")),), (1.0,)), "finite"),
    ],
)
def test_bad_descriptions_are_one_sentence(build, word):
    with pytest.raises(InputError, match=word) as caught:
        build()
    assert "\n" not in str(caught.value)


def test_a_domain_for_other_parameters_is_refused():
    from lastiterate.engine import Trainer

    run = li.Run(
        n=4,
        steps=2,
        step_size=li.Constant(0.1),
        noise=li.GradientNoise(1.0),
        loss=li.Logistic(),
        domain=li.domains.AffineBall(2.0, ((1.0, 1.0),), (0.5,)),
    )
    with pytest.raises(InputError, match="each of 4 parameters"):
        Trainer(run).fit(np.ones((4, 3)), np.zeros(4))


def test_prox_and_domain_survive_json_and_shape_the_verdicts():
    run = li.Run(
        n=100,
        steps=50,
        step_size=li.Constant(0.5),
        noise=li.NoiseMultiplier(5.0),
        batching=li.Cyclic(10),
        prox=li.penalties.ElasticNet(0.1, 0.2),
        domain=li.domains.AffineBall(2.0, ((1.0, 1.0),), (0.5,)),
        loss=li.Logistic(),
    )
    assert li.Run.from_json(run.to_json()) == run
    found = {v.theorem.name: v for v in li.account(run).verdicts}
    applies = {name for name, v in found.items() if type(v.result).__name__ == "Applies"}
    assert "shifted-interpolation" in applies and "composition-gdp" in applies
    # what was proved for projections, or as an exact law of the steps alone, must not speak of a
    # proximal step
    assert not applies & {"quadratic-witness", "linear-witness", "sgld-strongly-convex-batch"}
    langevin = li.Run(
        n=100,
        steps=50,
        step_size=li.Constant(0.1),
        noise=li.Langevin(0.5),
        loss=li.Logistic(ridge=0.5),
    )
    for changed, wanted in (
        (langevin, True),
        (replace(langevin, prox=li.penalties.L1(0.1)), False),
    ):
        names = {
            v.theorem.name
            for v in li.account(changed).verdicts
            if type(v.result).__name__ == "Applies"
        }
        assert ("langevin-linear" in names) == wanted and (
            "composition-langevin" in names
        ) == wanted


def test_nearly_parallel_normals_do_not_make_a_projection_expand():
    normals = ((1.0, 0.0, 0.0, 0.3), (1.0, 1e-14, 0.0, 0.3))
    domain = li.domains.AffineBall(9.0, normals, (0.0, 0.0))
    with jax.enable_x64(True):
        for seed in range(50):
            start, end = np.random.default_rng(seed).normal(size=(2, 4))
            moved = project(projection_of(domain), jnp.asarray(start)) - project(
                projection_of(domain), jnp.asarray(end)
            )
            assert np.linalg.norm(moved) <= np.linalg.norm(start - end) * (1 + 1e-12)
            plane = np.linalg.svd(np.array(normals))[2][1]
            assert (
                abs(plane @ np.asarray(project(projection_of(domain), jnp.asarray(start)))) < 1e-12
            )

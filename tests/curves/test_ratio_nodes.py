"""Where the nodes of a grid for likelihood ratios go: what the code says today, so that no change of
a certified bound passes unnoticed, and what must hold of any choice."""

import math

import numpy as np
import pytest

from lastiterate.curves.ratio_grid import (
    FAR_TRIMMED,
    RatioGrid,
    _group_nodes,
    _others,
    _refine_nodes,
    _short,
    _short_ratios,
    first_nodes,
    lognormal,
    mean_of_copies,
    nodes_of_mean,
)


def five(nodes):
    """The ends of a grid and three nodes between them."""
    size = nodes.size
    return nodes[[0, size // 5, size // 2, size - (size + 3) // 4, size - 1]].tolist()


@pytest.mark.parametrize(
    "given, nodes",
    [
        ((0.3, 1, 50, False), (-2.895, -0.786574588353, 0.0230612654127, 0.645113134958, 2.895)),
        ((1.0, 3, 80, False), (-10.0, -2.63501531125, 0.0165609569764, 2.27305154434, 10.0)),
        ((1.0, 3, 80, True), (-14.0, -2.78403091423, 0.0165312366687, 2.3924083271, 14.0)),
        ((4.0, 20, 60, False), (-46.0, -8.53532229624, 1.44760261388, 13.173455164, 46.0)),
        (
            (0.02, 5000, 40, False),
            (-0.1902, -0.0511067515095, 0.00243952141521, 0.0460812530071, 0.1902),
        ),
    ],
)
def test_the_nodes_of_one_ratio(given, nodes):
    """They reach from 9.5 (13.5) standard deviations below to as many above; the other nodes are
    what the code said."""
    a, count, size, far = given
    found = first_nodes(a, count, size, far=far)
    assert found.size == size and np.all(np.diff(found) > 0)
    assert five(found) == pytest.approx(nodes, rel=1e-9, abs=1e-10)
    tail = 13.5 if far else 9.5
    ends = [-a * tail - a * a / 2, a * (tail + a) - a * a / 2]
    assert [found[0], found[-1]] == pytest.approx(ends, rel=1e-12)


LAWS = {
    "short": lognormal(0.8, first_nodes(0.8, 3, 60)),
    "wide": lognormal(2.0, first_nodes(2.0, 40, 300), 1e-12),
    "near 1": lognormal(0.05, first_nodes(0.05, 40, 600), 1e-12),
}


@pytest.mark.parametrize(
    "one, two, given, nodes",
    [
        (
            "short",
            "short",
            (0.5, 1.0, 70),
            (-5.62664102322, -1.43104524846, 0.165547990325, 1.51852035224, 7.22814737822),
        ),
        (
            "short",
            "wide",
            (0.75, 5.0, 50),
            (-7.31075908972, -1.25757621022, 1.13651972108, 4.35843985304, 18.6804471847),
        ),
        (
            "wide",
            "near 1",
            (0.3, 40.0, 90, 1e-6),
            (-0.589600232403, 0.242791293439, 1.62217587237, 3.71656904803, 9.95544362899),
        ),
        (
            "near 1",
            "near 1",
            (2 / 3, 300.0, 40),
            (-0.34079433301, -0.0924846193873, 0.00648444878805, 0.0877849689384, 0.350518369931),
        ),
    ],
)
def test_the_nodes_of_a_mean(one, two, given, nodes):
    """What the code said."""
    found = nodes_of_mean(LAWS[one], LAWS[two], *given)
    assert found.size == given[2] and np.all(np.diff(found) > 0)
    assert five(found) == pytest.approx(nodes, rel=1e-9, abs=1e-10)


def test_a_grid_of_a_mean_leaves_out_no_more_than_what_is_trimmed():
    """Of all sums of two nodes, those below the grid have little Q-mass, and those above it little
    P-mass; a grid that trims more is shorter."""
    one, two = LAWS["short"], LAWS["wide"]
    at = np.add.outer(0.25 * one.value, 0.75 * two.value).ravel()
    mass, spans = np.outer(one.mass, two.mass).ravel(), []
    for trimmed in (1e-19, 1e-12, 1e-5):
        nodes = nodes_of_mean(one, two, 0.25, 4.0, 100, trimmed)
        assert mass[at < math.exp(nodes[0])].sum() <= 5 * trimmed
        assert (mass * at)[at > math.exp(nodes[-1])].sum() <= 5 * trimmed
        spans.append(nodes[-1] - nodes[0])
    assert spans[0] > spans[1] > spans[2]


@pytest.mark.parametrize(
    "a, count, size, far, means",
    [
        (0.5, 1, 60, False, (0.241761827824, 0.18979777216, 0.107158369234)),
        (0.5, 2, 60, False, (0.192714605829, 0.136235586919, 0.0573360477588)),
        (1.2, 3, 80, False, (0.348491139664, 0.306527242265, 0.231349128217)),
        (0.3, 6, 50, True, (0.113423292265, 0.0413544596283, 0.00103384625607)),
        (1.0, 45, 90, False, (0.131999911615, 0.0675681557138, 0.0104393721737)),
    ],
)
def test_means_over_a_ratio_depend_on_where_nodes_are(a, count, size, far, means):
    """E[(Y - level)_+] at levels 0.9, 1.02 and 1.3: what the code said."""
    law = mean_of_copies(a, count, size, far=far)
    found = [
        float((law.mass * np.maximum(law.value - level, 0)).sum()) + law.lost
        for level in (0.9, 1.02, 1.3)
    ]
    assert found == pytest.approx(means, rel=1e-9) and law.value.size == size + 1
    assert law.trimmed == (FAR_TRIMMED if far else 1e-19) == (1e-40 if far else 1e-19)


@pytest.mark.parametrize("rest", [0.5, 1.0, 1.25, 2.0, 3.0, 10.0, 32.0, 33.0, 40.0, 100.0, 1e5])
@pytest.mark.parametrize("scale", [0.01, 1.0, 12.0])
def test_the_total_that_other_copies_hardly_ever_stay_below(rest, scale):
    """All but one of ``rest`` copies are below it with a chance of 1e-7: their largest, or the sum
    of those without the 16 largest, if there are more than 32."""
    x = np.linspace(-5.0, 5.0, 201)
    q = 3.0 * np.exp(-((x - 0.5) ** 2) / 2)
    below = [math.fsum(q[: end + 1]) / math.fsum(q) for end in range(x.size)]
    expected, x = -math.inf, scale * x
    if rest > 1:
        expected = next(
            at for at, chance in zip(x, below, strict=True) if chance ** (rest - 1) >= 1e-7
        )
    if rest > 32:
        kept = [
            math.exp(at) * mass
            for at, mass, chance in zip(x, q, below, strict=True)
            if chance <= 1 - 16 / rest
        ]
        expected = max(expected, math.log(rest * math.fsum(kept) / math.fsum(q)))
    assert _others(x, q, rest) == pytest.approx(expected, rel=1e-9, abs=1e-9)


def test_the_largest_of_other_copies_may_be_the_largest_of_all():
    x, q = np.array([0.0, 1.0, 2.0]), np.array([1.0, 1.0, 2.0])
    assert [_others(x, q, rest) for rest in (2.0, 12.0, 13.0, 20.0, 30.0)] == [0, 0, 1, 1, 2]


def test_intervals_are_refined_where_rounding_costs_most():
    """What the code said for masses of any unit, of a ratio that is drawn once, and often."""
    edges = np.array([-3.0, -2.0, -0.5, 0.0, 0.25, 1.0, 4.0])
    q, p = np.array([1.0, 6.0, 20.0, 9.0, 5.0, 0.5]), np.array([0.1, 2.0, 15.0, 11.0, 9.0, 4.0])
    for rest, expected in (
        (1.0, (-1.57995149635, 0.054938265501, 1.8191089197, 3.27303630657)),
        (2.5, (-1.5220818083, 0.068231513421, 1.81116749389, 3.27038916463)),
        (40.0, (-1.25491009877, 0.318031420794, 2.02526012128, 3.34175337376)),
    ):
        nodes = _refine_nodes(edges, q, p, rest, 12)
        assert nodes[[2, 5, 8, 10]].tolist() == pytest.approx(expected, rel=1e-9)
        assert nodes[0] == -3 and nodes[-1] == 4 and nodes.size == 12
        scaled = _refine_nodes(edges, 7 * q, 0.01 * p, rest, 12)
        np.testing.assert_allclose(scaled, nodes, rtol=1e-9)


def test_intervals_of_any_ratios_are_refined():
    """Losses that no double holds the power of: what the code said."""
    edges = np.array([-900.0, -800.0, -1.0, 0.0, 1.0, 500.0, 900.0])
    q, p = np.array([1.0, 6.0, 20.0, 9.0, 5.0, 0.5]), np.array([0.1, 2.0, 15.0, 11.0, 9.0, 4.0])
    for rest, nodes in ((1.0, (-559.03074989, 256.13633338)), (40.0, (26.66158264, 370.63661467))):
        assert _refine_nodes(edges, q, p, rest, 12)[[2, 6 + (rest == 1)]].tolist() == pytest.approx(
            nodes, rel=1e-8
        )


def test_nodes_that_doubles_do_not_tell_apart_are_one():
    edges = 1 + np.array([0.0, 1e-15, 3e-15, 1e-13])
    found = _refine_nodes(edges, np.ones(3), np.ones(3), 1.0, 50)
    assert found.tolist() == [1.0]


@pytest.mark.parametrize(
    "number, rounded",
    [
        (1.0, 1.0),
        (math.pi, round(math.pi * 2**18) / 2**18),
        (1e-3, round(1e-3 * 2**29) / 2**29),
        (0.7, round(0.7 * 2**20) / 2**20),
        (1e300, math.ldexp(round(math.ldexp(1e300, 20 - 997)), 997 - 20)),
        (0.0, 0.0),
    ],
)
def test_numbers_are_rounded_to_twenty_digits(number, rounded):
    assert _short(np.array([number, -number])).tolist() == [rounded, -rounded]


@pytest.mark.parametrize(
    "ratio, rounded",
    [
        (1.0, 1.0),
        (1 + math.pi * 1e-6, 1 + round(math.pi * 1e-6 * 2**38) / 2**38),
        (1 - 1e-3 / 3, 1 - round(1e-3 / 3 * 2**31) / 2**31),
        (1.4142135623, 1 + round(0.4142135623 * 2**21) / 2**21),
        (0.6180339887, 1 - round(0.3819660113 * 2**21) / 2**21),
        (1.7320508075, round(1.7320508075 * 2**19) / 2**19),
        (0.1234567, round(0.1234567 * 2**23) / 2**23),
        (2.2360679775, round(2.2360679775 * 2**18) / 2**18),
    ],
)
def test_ratios_near_1_are_rounded_by_their_distance_from_it(ratio, rounded):
    assert _short_ratios(np.array([ratio])).tolist() == [rounded]


@pytest.mark.parametrize("size, width", [(5, 1), (128, 1), (255, 1), (256, 2), (700, 5)])
def test_groups_of_nodes_keep_masses_and_means(size, width):
    """Groups of as many neighbours, and a shorter last one; the node at 0 is in none."""
    drawn = np.random.default_rng(size)
    value = np.append(0.0, np.cumsum(drawn.uniform(0.001, 0.05, size)))
    mass = np.append(0.5, drawn.uniform(0.0, 1.0, size))
    mass[3] = 0.0
    found = _group_nodes(RatioGrid(value, mass, 0.0, 0.0, 0.0))
    starts = range(1, size + 1, width)
    expected = []
    for start in starts:
        part = slice(start, min(start + width, size + 1))
        total = math.fsum(np.maximum(mass[part], 1e-300))
        mean = math.fsum(np.maximum(mass[part], 1e-300) * value[part]) / total
        expected.append((mean, total, value[part][0], value[part][-1]))
    assert all(part.size == len(starts) for part in found)
    np.testing.assert_allclose(np.transpose(found), expected, rtol=2.0**-19)

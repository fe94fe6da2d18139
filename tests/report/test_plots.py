"""Pictures: the numbers under the lines, and the region that no bound can enter."""

import math
from dataclasses import replace

import numpy as np
import pytest

import lastiterate as li
from lastiterate.errors import InputError
from lastiterate.report.plots import Line, envelope, epsilon_over_steps, lines, theorem_over_steps
from lastiterate.theorems import TABLE
from lastiterate.theorems.theorem import Applies, match

DELTA = 1e-5


def assumed(run):
    return li.account(run, min_evidence=li.Evidence.ASSUMED)


@pytest.mark.parametrize("name", TABLE)
def test_every_theorem_has_an_example(name):
    run = TABLE[name].example
    found = match(TABLE[name], run)
    assert isinstance(found, Applies), found
    assert 0.1 < found.bound.epsilon(DELTA) < 1000
    before = match(TABLE[name], replace(run, steps=10))
    if (
        name == "objective-perturbation"
    ):  # fewer steps of its solver leave a larger error, which is paid for
        return
    assert isinstance(before, Applies) and before.bound.epsilon(DELTA) <= found.bound.epsilon(
        DELTA
    ) * (1 + 1e-9)


@pytest.mark.parametrize(
    "name", ["langevin-lower-bound", "shifted-interpolation-permuted", "smooth-bounded-domain"]
)
def test_lines_are_what_account_says(name):
    run = TABLE[name].example
    drawn = {line.name: line for line in lines(assumed(run), DELTA, points=4)}
    rows = {row["theorem"]: row for row in assumed(run).rows(DELTA) if row["applies"]}
    assert set(drawn) == set(rows) and name in drawn
    for line in drawn.values():
        assert line.steps == (1, 10, 100, 1000) and line.kind == TABLE[line.name].kind
        assert line.epsilons[-1] == rows[line.name]["epsilon"]


def test_the_envelope_is_the_largest_lower_bound():
    drawn = (
        Line("a", "lower", (1, 2, 3), (0.1, 0.5, 0.2)),
        Line("b", "lower", (2, 3), (0.3, 0.4)),
        Line("c", "upper", (1, 2, 3), (9.0, 9.0, 9.0)),
        Line("d", "exact", (3,), (0.6,)),
        Line("e", "claimed", (1, 2, 3), (0.01, 8.0, 0.01)),
    )
    floor = envelope(drawn)
    assert floor.steps == (1, 2, 3) and floor.epsilons == (0.1, 0.5, 0.6)
    assert envelope(drawn[2:3]) is None
    # with a start of its own and no domain two lower bounds apply, and every upper one lies above
    # their maximum
    drawn = lines(assumed(TABLE["langevin-lower-bound"].example), DELTA, points=10)
    assert sum(line.kind == "lower" for line in drawn) == 2
    floor = dict(zip(envelope(drawn).steps, envelope(drawn).epsilons, strict=True))
    for line in drawn:
        if line.kind == "upper":
            assert all(e >= floor[k] for k, e in zip(line.steps, line.epsilons, strict=True))


def test_the_shaded_region(tmp_path):
    certificate = assumed(TABLE["langevin-lower-bound"].example)
    made = epsilon_over_steps(
        certificate, DELTA, tmp_path / "e.png", points=6, stress="shifted-interpolation"
    )
    axes, floor = made, envelope(lines(certificate, DELTA, points=6))
    (shaded,) = axes.collections
    corners = shaded.get_paths()[0].vertices
    assert {float(x) for x in corners[:, 0]} == set(map(float, floor.steps))
    assert corners[:, 1].min() == 0 and corners[:, 1].max() == max(floor.epsilons)
    names = [text.get_text() for text in axes.get_legend().get_texts()]
    assert (
        names[0] == floor.name
        and "quadratic-witness (lower)" in names
        and "composition-gdp (upper, assumed)" in names
    )
    widths = {line.get_label(): line.get_linewidth() for line in axes.lines}
    assert max(widths, key=widths.get).startswith("shifted-interpolation (")
    bounded = epsilon_over_steps(
        assumed(TABLE["bounded-domain-convex"].example), DELTA, tmp_path / "b.svg", points=3
    )
    assert not bounded.collections, "nothing is known from below inside a domain"


def test_bounds_far_apart_have_a_logarithmic_axis(tmp_path):
    run = li.Run(
        n=50_000,
        steps=2000,
        step_size=li.Constant(0.5),
        noise=li.NoiseMultiplier(5.0),
        batching=li.Cyclic(500),
        loss=li.KnownConstants(li.LossFacts(lipschitz=1.0, smooth=1.0, strong=0.01)),
    )
    made = epsilon_over_steps(assumed(run), DELTA, tmp_path / "far.png", points=4)
    assert made.get_yscale() == "log" and 0 < made.get_ylim()[0] < 0.1
    near = replace(run, noise=li.GradientNoise(0.01), step_size=li.InverseDecay(1.0, 0.01))
    made = epsilon_over_steps(assumed(near), DELTA, tmp_path / "near.png", points=4)
    assert made.get_yscale() == "linear" and made.get_ylim()[0] == 0


def test_a_theorem_in_front(tmp_path):
    found = theorem_over_steps(TABLE["sgld-lsi"], DELTA, tmp_path / "t.png")
    widths = {line.get_label(): line.get_linewidth() for line in found.lines}
    assert max(widths, key=widths.get).startswith("sgld-lsi (")
    assert (tmp_path / "t.png").stat().st_size > 10_000


def test_schedules_of_a_fixed_length_have_no_picture(tmp_path):
    run = replace(TABLE["composition-gdp"].example, steps=3)
    for change in (
        {"step_size": li.StepSchedule((0.1, 0.1, 0.1))},
        {"noise": li.GradientNoise((1.0, 1.0, 1.0))},
    ):
        with pytest.raises(InputError, match="any number of steps"):
            lines(assumed(replace(run, **change)), DELTA)
    silent = lines(assumed(replace(run, noise=li.GradientNoise(0.0))), DELTA)
    assert all(math.isfinite(e) for line in silent for e in line.epsilons) and np.all(
        [len(s.steps) for s in silent]
    )

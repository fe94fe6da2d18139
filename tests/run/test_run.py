"""The description of a run: constants, conversions, JSON, refusals."""

import copy
import inspect
import json
import math
import pickle
from dataclasses import replace

import pytest

import lastiterate as li
from lastiterate import InputError
from lastiterate.run.facts import FLOAT_SLACK, mint

SOFTMAX = li.Softmax(classes=3, row_norm=2.0, ridge=0.1, intercept=1.0)
RUNS = [
    li.Run(n=100, steps=5, step_size=li.Constant(0.1), noise=li.GradientNoise(0.2), loss=SOFTMAX),
    li.Run(
        n=100,
        steps=3,
        step_size=li.StepSchedule((0.1, 0.2, 0.3)),
        noise=li.GradientNoise((0.1, 0.2, 0.3)),
        batching=li.Cyclic(30),
        domain=li.domains.Ball(2.0),
        start=li.GaussianStart(0.5),
        release="all",
        loss=li.Logistic(ridge=0.1),
    ),
    li.Run(
        n=100,
        steps=5,
        step_size=li.InverseDecay(2.0, 0.1),
        noise=li.Langevin(0.1),
        batching=li.Permuted(10),
        domain=li.domains.Box(-1.0, 1.0, 4),
        optimizer=li.HeavyBall(0.9),
        preprocessing=(li.PrivateMean(5.0, 1.0),),
        adjacency="replace-one",
        loss=li.HuberRidge(residual_clip=0.5),
    ),
    li.Run(
        n=100,
        steps=5,
        step_size=li.Constant(0.1),
        noise=li.NoiseMultiplier(2.0),
        batching=li.Poisson(0.1),
        clip=1.0,
        adjacency="add-remove",
        optimizer=li.Nesterov(),
        loss=li.KnownConstants(li.LossFacts(smooth=1.0, weak_convexity=0.1)),
    ),
    li.Run(
        n=100,
        steps=5,
        step_size=li.Constant(0.1),
        noise=li.NoiseMultiplier(2.0),
        batching=li.BallsInBins(7),
        loss=li.KnownConstants(li.LossFacts(sensitivity=1.0, lipschitz=2.0)),
    ),
]


@pytest.mark.parametrize("run", RUNS, ids=range(len(RUNS)))
def test_json_round_trip(run):
    assert li.Run.from_json(run.to_json()) == run
    assert li.Run.from_dict(json.loads(json.dumps(run.to_dict()))) == run


def test_json_cannot_forge_evidence():
    text = json.dumps(RUNS[4].to_dict()).replace(
        '"type": "Fact"', '"type": "Fact", "evidence": "PROVED"'
    )
    with pytest.raises(li.Run.from_dict.__globals__["InputError"], match="'evidence'"):
        li.Run.from_json(text)
    assert li.Run.from_json(RUNS[4].to_json()).facts().sensitivity.evidence == li.Evidence.ASSUMED
    assert li.Fact(1.0).evidence == li.Evidence.ASSUMED
    assert mint(1.0, li.Evidence.PROVED, "").evidence == li.Evidence.PROVED


@pytest.mark.parametrize(
    "change, word",
    [
        ({"type": "Banana"}, "type"),
        ({"surprise": 1}, "surprise"),
        ({"n": -1}, "n must"),
        ({"n": 1.5}, "n must"),
        ({"steps": 0}, "steps"),
        ({"adjacency": "swap"}, "adjacency"),
        ({"release": "some"}, "release"),
        ({"clip": -1}, "clip"),
        ({"step_size": {"type": "Constant", "value": 0}}, "step_size"),
        ({"batching": {"type": "Cyclic", "size": 1000}}, "batch"),
        ({"step_size": {"type": "Steps", "values": [0.1]}}, "5 steps"),
        ({"adjacency": "add-remove"}, "Poisson"),
        ({"step_size": {"type": "Constant"}}, "value"),
        ({"domain": {"type": "Constant", "value": 1.0}}, "domain"),
        ({"update": {"type": "Fixed"}}, "optimizer"),
        ({"prelude": [{"type": "Fixed"}]}, "preprocessing"),
        ({"steps": True}, "steps"),
        ({"loss": None}, "loss"),
        ({"noise": {"type": "GradientNoise", "std": float("nan")}}, "noise"),
    ],
)
def test_bad_descriptions_are_refused(change, word):
    with pytest.raises(li.Run.from_dict.__globals__["InputError"], match=word):
        li.Run.from_dict(RUNS[0].to_dict() | change)


@pytest.mark.parametrize(
    ("made", "word"),
    [
        (
            lambda: li.Correlated(1.0),
            r"^Correlated.band must be given; write Correlated\(z, band, power=..., decay=...\)",
        ),
        (
            lambda: li.Run(n=10, steps=1, step_size=1, secure_noise=True),
            "^secure_noise is no argument of Run; give it to train",
        ),
        (lambda: replace(RUNS[0], batch=3), "^batch is no argument of Run; write Run"),
        (lambda: li.Run(10), "^Run takes 0 arguments without a name, got 1"),
        (lambda: li.Run(n=10, step_size=1), "^Run.steps must be given"),
        (lambda: li.Poisson(), r"^Poisson.rate must be given; write Poisson\(rate\)"),
        (lambda: li.Logistic(rows=1.0), "^rows is no argument of Logistic"),
    ],
)
def test_arguments_that_a_description_does_not_have(made, word):
    with pytest.raises(InputError, match=word) as caught:
        made()
    assert "\n" not in str(caught.value)


def test_a_description_shows_its_own_arguments():
    assert list(inspect.signature(li.Correlated).parameters) == ["z", "band", "power", "decay"]
    assert pickle.loads(pickle.dumps(RUNS[0])) == copy.copy(RUNS[0]) == RUNS[0]


def test_loss_constants():
    b2 = 2.0**2 + 1
    facts = SOFTMAX.facts()
    assert facts.lipschitz.value == pytest.approx(math.sqrt(2 * b2)) and facts.strong.value == 0.1
    assert facts.smooth.value == pytest.approx(b2 / 2 + 0.1)
    logistic = li.Logistic(row_norm=2.0, ridge=0.1, intercept=1.0).facts()
    assert logistic.lipschitz.value == pytest.approx(
        math.sqrt(b2)
    ) and logistic.smooth.value == pytest.approx(b2 / 4 + 0.1)
    huber = li.HuberRidge(row_norm=2.0, residual_clip=0.5, ridge=0.1, intercept=1.0).facts()
    assert huber.lipschitz.value == pytest.approx(
        0.5 * math.sqrt(b2)
    ) and huber.smooth.value == pytest.approx(b2 + 0.1)


def test_sensitivity_follows_adjacency_and_batching():
    def of(adjacency="zero-out", batching=None, **facts):
        run = li.Run(
            n=10,
            steps=1,
            step_size=li.Constant(1.0),
            noise=li.GradientNoise(1.0),
            adjacency=adjacency,
            batching=batching or li.FullBatch(),
            loss=li.KnownConstants(li.LossFacts(**facts)),
        )
        return run.facts().sensitivity.value

    assert of(lipschitz=3.0) == 3 and of("replace-one", lipschitz=3.0) == 6
    assert (
        of(lipschitz=3.0, batching=li.FixedSize(2)) == 3
        and of("replace-one", li.FixedSize(2), lipschitz=3.0) == 6
    )
    assert of("replace-one", sensitivity=5.0) == 5, (
        "a given sensitivity is for the run's own adjacency"
    )
    assert of(sensitivity=5.0, lipschitz=3.0) == 3 and of(sensitivity=2.0, lipschitz=3.0) == 2
    assert of(sensitivity=5.0, batching=li.FixedSize(2)) == 5, "the drawn sets are conditioned on"
    enforced = li.Run(
        n=10,
        steps=1,
        step_size=li.Constant(1.0),
        noise=li.GradientNoise(1.0),
        loss=li.Logistic(intercept=0.0),
    )
    assert enforced.facts().sensitivity.value == pytest.approx(1 + FLOAT_SLACK)


def test_noise_conventions():
    base = dict(n=100, steps=2, loss=SOFTMAX)
    assert li.Run(step_size=li.Constant(0.5), noise=li.Langevin(3.0), **base).first_noise == 6.0
    z = li.Run(
        step_size=li.Constant(0.5), noise=li.NoiseMultiplier(3.0), batching=li.Cyclic(30), **base
    )
    assert z.first_noise == pytest.approx(3 * math.sqrt(10) / 30)
    clipped = li.Run(
        step_size=li.Constant(0.5),
        noise=li.NoiseMultiplier(3.0),
        clip=0.7,
        batching=li.Poisson(0.2),
        adjacency="add-remove",
        **base,
    )
    assert clipped.noise_stds[1] == pytest.approx(3 * 0.7 / 20), (
        "the expected batch size divides, never the drawn one"
    )
    assert (
        li.Run(
            step_size=li.Constant(1.0),
            noise=li.NoiseMultiplier(1.0),
            batching=li.Cyclic(33),
            **base,
        ).blocks
        == 4
    )
    assert li.InverseDecay(2.0, 0.5).sizes(4, 5)[0] == pytest.approx(1 / (4 + 1))


def test_print_cuts_long_lists_of_numbers_short():
    run = replace(
        RUNS[0], steps=1000, step_size=li.StepSchedule(tuple(1 / (k + 3) for k in range(1000)))
    )
    assert len(str(run)) < 700 < 10_000 < len(repr(run))
    assert "StepSchedule(values=(0.3333333333333333, 0.25, 0.2, ..., 0.000998003992015968))" in str(
        run
    )
    assert str(RUNS[1]) == repr(RUNS[1]), "short lists are shown"

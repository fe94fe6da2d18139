"""Runs with extreme and odd numbers: every verdict is a number or a reason, never a crash, and
lower <= upper."""

import math
import random
import warnings

import lastiterate as li
from lastiterate.errors import InputError
from tiers import size

DRAWS = size(150, 3000, "DRAWS")


def number(rng):
    return 10 ** rng.uniform(-12, 12) if rng.random() < 0.3 else rng.choice([0.1, 0.5, 1.0, 2.0])


def drawn(rng):
    names = ["sensitivity", "lipschitz", "smooth", "strong", "weak_convexity", "log_sobolev"]
    facts = {name: number(rng) for name in rng.sample(names, rng.randint(1, 4))}
    if "strong" in facts and rng.random() < 0.3:
        facts["strong"] = 0.0
    linear = dict(
        row_norm=number(rng),
        ridge=rng.choice([0.0, number(rng)]),
        intercept=rng.choice([0.0, number(rng)]),
    )
    steps, n = rng.choice([1, 2, 3, 17, 60]), rng.choice([1, 2, 7, 300])
    many = tuple(rng.choice([0.0, number(rng)]) for _ in range(steps))
    return li.Run(
        n=n,
        steps=steps,
        step_size=rng.choice(
            [
                li.Constant(number(rng)),
                li.StepSchedule([number(rng) for _ in many]),
                li.InverseDecay(number(rng), number(rng)),
            ]
        ),
        noise=rng.choice(
            [
                li.GradientNoise(rng.choice([0.0, number(rng)])),
                li.Langevin(number(rng)),
                li.NoiseMultiplier(number(rng)),
                li.GradientNoise(many),
            ]
        ),
        batching=rng.choice(
            [
                li.FullBatch(),
                li.Cyclic(rng.randint(1, n)),
                li.Permuted(rng.randint(1, n)),
                li.Reshuffled(rng.randint(1, n)),
                li.FixedSize(1),
                li.BallsInBins(1),
            ]
        ),
        domain=rng.choice(
            [
                li.domains.Everywhere(),
                li.domains.Ball(number(rng)),
                li.domains.Box(-1.0, 1.0, 3),
                li.domains.Box(-1.0, 1.0),
            ]
        ),
        start=rng.choice([li.FixedStart(), li.GaussianStart(number(rng))]),
        clip=rng.choice([None, number(rng)]),
        preprocessing=rng.choice([(), (li.PrivateMean(number(rng), 1.0),)]),
        loss=rng.choice(
            [
                li.KnownConstants(li.LossFacts(**facts)),
                li.Logistic(**linear),
                li.Softmax(classes=3, **linear),
                li.HuberRidge(residual_clip=number(rng), **linear),
            ]
        ),
        adjacency=rng.choice(["zero-out", "replace-one"]),
    )


def test_every_verdict_is_a_number_or_a_reason():
    rng, counted = random.Random(1), 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        while counted < DRAWS:
            try:
                run = drawn(rng)
            except InputError:  # a strong constant above smooth, and the like
                continue
            counted += 1
            found = li.account(run, min_evidence=li.Evidence.ASSUMED)
            epsilon = found.epsilon(1e-6)
            consistent = (
                run.loss.facts().log_sobolev is None
            )  # what the caller states about it may be false
            assert epsilon >= 0 and (
                found.lower(1e-6) <= epsilon * (1 + 1e-9) + 1e-9 or not consistent
            ), run
            assert li.Run.from_json(run.to_json()) == run
            # the whole answer exchanges records as well, which takes as long as all of the rest
            rows = found.rows(1e-6) if counted % 10 else found.answer(1e-6)["verdicts"]
            assert all(not math.isnan(row["epsilon"] or 0.0) for row in rows)

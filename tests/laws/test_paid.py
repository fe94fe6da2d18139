"""Smoothness that is measured and paid for, against the exact joint law of what is released."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.special import ndtr, ndtri

import lastiterate as li
from lastiterate.accounting.certificate_subject import curves_of_preprocessing
from lastiterate.curves.composition import compose
from lastiterate.curves.curve import WithFailure
from lastiterate.curves.gaussian import Gdp
from lastiterate.run.facts import Evidence
from lastiterate.run.measured_smoothness import chernoff_excess
from lastiterate.run.noisy_counts import NoisyCount
from lastiterate.run.preprocessing import TopEigenvalue
from lastiterate.run.step_sizes import RelativeToSmooth

STEPS, BATCH = 3, 4


def described(batching, relative, z, scale, failure, floor=0.05):
    """Rows of norm 1 without intercept and a loss of curvature 1: eigenvalues are sums of squares."""
    return li.Run(
        n=3 * BATCH,
        steps=STEPS,
        step_size=RelativeToSmooth(relative),
        noise=li.NoiseMultiplier(z),
        batching=batching,
        loss=li.HuberRidge(row_norm=1.0, residual_clip=1.0, intercept=0.0),
        preprocessing=(TopEigenvalue(scale, failure, floor),),
    )


def law_of_eigenvalue(run, exact):
    """Points and masses of the released eigenvalue: atoms at both ends of its interval, a grid
    between."""
    part, high = run.preprocessing[-1], run.divisor
    low, shift = part.floor * high, -ndtri(part.failure)
    edges = np.linspace(low, high, 401)
    at = ndtr((edges - exact) / part.noise_multiplier - shift)
    return np.concatenate(([low], (edges[1:] + edges[:-1]) / 2, [high])), np.concatenate(
        ([at[0]], np.diff(at), [1 - at[-1]])
    )


def exact_deltas(run, others, epsilons):
    """Exact delta at every epsilon, both orders, where one record has a row of norm 1 and a
    constant gradient of 1, and the other rows of every batch have the eigenvalue ``others``: the
    last iterate is Gaussian given the eigenvalue and the place."""
    with_record, without = law_of_eigenvalue(run, others + 1.0), law_of_eigenvalue(run, others)
    std = run.noise_stds[0]
    grid = np.linspace(-14, 14, 1401)
    width, found = grid[1] - grid[0], np.zeros((len(epsilons), 2))
    places = range(run.blocks)
    for u, p, q in zip(with_record[0], with_record[1], without[1], strict=True):
        step = run.with_top_eigenvalue(float(u), 1).first_step
        kept = 1 - step * others / run.divisor
        spread = step * std * math.sqrt(sum(kept ** (2 * k) for k in range(STEPS)))
        density = np.zeros_like(grid)
        for place in places:
            shift = sum(
                step / run.divisor * kept ** (STEPS - 1 - t)
                for t in range(STEPS)
                if t % run.blocks == place
            )
            density += (
                np.exp(-((grid - shift / spread) ** 2) / 2) / math.sqrt(2 * math.pi) / run.blocks
            )
        base = np.exp(-(grid**2) / 2) / math.sqrt(2 * math.pi)
        found += [
            [
                np.maximum(p * density - math.exp(epsilon) * q * base, 0).sum() * width,
                np.maximum(q * base - math.exp(epsilon) * p * density, 0).sum() * width,
            ]
            for epsilon in epsilons
        ]
    return found


CASES = [
    (batching, relative, z, scale, failure, others)
    for batching in (li.FullBatch(), li.Permuted(BATCH))
    for relative in (0.7, 1.9)
    for z in (1.0, 3.0)
    for scale, failure in ((0.5, 0.05), (2.0, 1e-4))
    for others in (0.2, 2.5)
]


@pytest.mark.parametrize(("batching", "relative", "z", "scale", "failure", "others"), CASES)
def test_the_certificate_lies_above_the_joint_law(batching, relative, z, scale, failure, others):
    run = described(batching, relative, z, scale, failure)
    certificate = li.account(run)
    epsilons = (0.0, 0.3, 1.0, 2.0)
    for epsilon, exact in zip(epsilons, exact_deltas(run, others, epsilons), strict=True):
        assert exact.max() <= certificate.delta(epsilon) * (1 + 1e-4) + 1e-9


def test_neither_the_mechanism_nor_its_failure_can_be_left_out():
    run = described(li.Permuted(BATCH), 1.9, 30.0, 1.0, 1e-6)
    exact = exact_deltas(run, 2.5, (0.3,)).max()
    bare = next(
        v.result.curve for v in li.account(run).certifying if v.theorem.name.endswith("permuted")
    )
    assert exact > bare.delta(0.3) * 1.5, "the eigenvalue itself says something about the record"
    assert exact <= compose(bare, WithFailure(Gdp(1.0), 1e-6)).delta(0.3)
    # an eigenvalue that is mostly too small, with a curvature that is expanded by every step
    failing = described(li.FullBatch(), 1.9, 40.0, 1e-3, 0.1, floor=0.05)
    failing = replace(failing, steps=STEPS)
    curve = next(
        v.result.curve
        for v in li.account(failing).certifying
        if v.theorem.name == "shifted-interpolation"
    )
    assert li.account(failing).delta(3.0) >= 0.1 > curve.delta(3.0)


def test_every_certificate_pays_and_says_so():
    run = described(li.Permuted(BATCH), 1.9, 3.0, 4.0, 1e-7)
    certificate = li.account(run)
    assert curves_of_preprocessing(certificate.run) == (
        WithFailure(Gdp((1 + 1.25 * 2**-7) / 4.0), 1e-7),
    )
    verdict = certificate.best(1e-5)
    assert (
        verdict.theorem.name == "shifted-interpolation-permuted"
        and verdict.evidence is Evidence.PAID
    )
    assert not [text for text in certificate.all_caveats() if "conditional" in text], (
        "what is paid for is not assumed"
    )
    assert li.account(run, min_evidence=Evidence.PROVED).certifying == ()
    drawn = li.account(replace(run, batching=li.Reshuffled(BATCH)))
    assert curves_of_preprocessing(drawn.run)[0].failure == 2e-7, (
        "drawn batches follow by a bound that can fail as well"
    )


def test_counts_are_charged_beside_the_measured_constant():
    """Steps that follow a paid measurement keep no count in the run that theorems read: it is
    composed in once, afterwards."""
    run = replace(
        described(li.Permuted(BATCH), 1.9, 3.0, 4.0, 1e-7),
        loss=li.Logistic(row_norm=1.0, intercept=0.0),
    )
    counted = replace(run, counts=(NoisyCount(2.5, 10),))
    theorem = li.account(counted).best(1e-5).theorem.name
    assert theorem == li.account(run).best(1e-5).theorem.name
    both = li.account(counted).epsilon(1e-5)
    expected = compose(li.account(run).curve(theorem), Gdp(1 / 2.5)).epsilon(1e-5)
    assert expected < both < 1.01 * expected, "integer noise costs a little more than Gaussian"


def test_the_curve_does_not_depend_on_what_is_measured():
    run = described(li.Permuted(BATCH), 1.9, 3.0, 4.0, 1e-7)
    plain = replace(run, preprocessing=(), step_size=li.Constant(1.0))
    for eigenvalue in (0.3, 1.0, 4.0):
        executed = run.with_top_eigenvalue(eigenvalue, 1)
        assert executed.first_step == pytest.approx(1.9 * BATCH / eigenvalue, rel=1e-9)
        facts = li.LossFacts(lipschitz=1.0, smooth=eigenvalue / BATCH, strong=0.0)
        same = replace(
            plain,
            step_size=executed.step_size,
            loss=li.KnownConstants(facts),
            noise=li.GradientNoise(executed.first_noise * (1 + 1.25 * 2**-7) ** -1),
        )
        bare = next(
            v.result.curve
            for v in li.account(run).certifying
            if v.theorem.name.endswith("permuted")
        )
        found = li.account(same, min_evidence=Evidence.ASSUMED)
        curve = next(
            v.result.curve for v in found.certifying if v.theorem.name.endswith("permuted")
        )
        assert curve.delta(1.0) == pytest.approx(bare.delta(1.0), rel=1e-9)


def test_descriptions_that_would_depend_on_it_are_refused():
    run = described(li.Permuted(BATCH), 1.9, 3.0, 4.0, 1e-7)
    for change, words in (
        ({"preprocessing": ()}, "needs a TopEigenvalue"),
        ({"noise": li.Langevin(1.0)}, "must not depend on the step size"),
        ({"domain": li.domains.Ball(1.0)}, "domain must be Everywhere"),
        ({"start": li.GaussianStart(1.0)}, "start must"),
        ({"prox": li.penalties.L1(0.1)}, "prox must be left out"),
        ({"loss": li.KnownConstants()}, "must be a linear model's"),
        ({"preprocessing": (TopEigenvalue(1.0), TopEigenvalue(1.0))}, "as its last part"),
    ):
        with pytest.raises(li.InputError, match=words):
            replace(run, **change)
    for relative in (0.0, 2.0, -1.0, math.nan):
        with pytest.raises(li.InputError, match="must lie in"):
            RelativeToSmooth(relative)
    with pytest.raises(li.InputError, match="is not measured yet"):
        _ = run.step_sizes
    assert li.Run.from_json(run.to_json()) == run


def test_eigenvalues_of_drawn_batches():
    """The bound on the excess holds in simulation, and follows the formula."""
    mean, batches, dimension, failure = 3.0, 50, 10, 0.02
    x = chernoff_excess(mean, batches, dimension, failure)
    assert batches * dimension * math.exp(mean * (x - (1 + x) * math.log1p(x))) == pytest.approx(
        failure, rel=1e-6
    )
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(300, dimension)) * np.arange(1, dimension + 1) ** -1.0
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    top, q = np.linalg.eigvalsh(rows.T @ rows)[-1], 0.05
    bound = (1 + chernoff_excess(q * top, batches, dimension, failure)) * q * top
    worst = [
        max(
            np.linalg.eigvalsh(part.T @ part)[-1]
            for part in (rows[rng.random(300) < q] for _ in range(batches))
        )
        for _ in range(100)
    ]
    assert np.mean(np.array(worst) > bound) <= failure
    assert chernoff_excess(2 * mean, batches, dimension, failure) * 2 > x, (
        "(1 + x) mean grows with the mean"
    )

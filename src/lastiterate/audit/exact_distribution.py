"""Compare released iterates with their exact distribution, and the noise with its covariance."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import combinations, permutations, product
from types import NoneType
from typing import cast

import numpy as np
from numpy.typing import ArrayLike

from lastiterate.audit import learned_scores
from lastiterate.engine import Trainer, keys_from_seed
from lastiterate.errors import InputError
from lastiterate.run.batching import Poisson
from lastiterate.run.domains import Everywhere
from lastiterate.run.losses import HuberRidge, KnownConstants
from lastiterate.run.methods import NoisySGD, snapshots_of
from lastiterate.run.noise import GradientNoise, NoiseMultiplier
from lastiterate.run.run import Run
from lastiterate.run.step_sizes import FixedStart, GaussianStart, StepSchedule
from lastiterate.run.updates import HeavyBall, Nesterov, PostProcessing

# Whether the noise of all steps together has the described distribution, read off all iterates of a
# small run.  Rows of zeros have no gradients: what the iterates show of every step is its noise
# alone. Multiplied by the C of the description it must be independent standard normal draws, over
# steps, coordinates and models.

COLUMNS, COVARIANCE_MODELS = 4, 500
SILENT = 1e-6
"""Noise so much smaller than the largest is lost in the rounding of iterates."""


def columns(run: Run) -> np.ndarray:
    """C, (T, T): the noise of the steps is its inverse times independent draws."""
    column = run.decided_noise.column(run.steps)
    full = np.concatenate((np.zeros(run.steps - 1), column, np.zeros(run.steps - column.size)))
    return np.stack(
        [full[run.steps - 1 - k : 2 * run.steps - 1 - k] for k in range(run.steps)], axis=1
    )


def draws(run: Run, seed: int) -> np.ndarray:
    """Of every noisy step, in units of the described draws, (models, T, COLUMNS); ``run``: a small
    one without a domain.
    """
    silent = replace(
        run,
        release="all",
        start=FixedStart(),
        loss=HuberRidge(row_norm=1.0, residual_clip=float(run.noise_unit or 1.0), intercept=0.0),
    )
    rows, target = np.zeros((run.n, COLUMNS)), np.zeros(run.n)
    released = Trainer(silent).fit_many(rows, target, keys_from_seed(seed, COVARIANCE_MODELS))
    added = learned_scores.noisy_gradients(silent, released)[..., 0, :COLUMNS]
    std, noisy = silent.noise_stds, silent.noise_stds > SILENT * silent.largest_noise
    return np.einsum("kt,mtp->mkp", columns(silent), added)[:, noisy] / std[noisy, None]


def noise_p(run: Run, seed: int) -> float:
    """p of what the description says, from all second moments over steps: a sum of squared normal
    scores."""
    from scipy.stats import chi2  # pyright: ignore

    noise = draws(run, seed)
    count, steps = noise.shape[0] * noise.shape[2], noise.shape[1]
    moments = np.einsum("mkp,mtp->kt", noise, noise) / count
    scores = count * (((np.diag(moments) - 1) ** 2 / 2).sum() + (np.tril(moments, -1) ** 2).sum())
    return float(chi2.sf(scores, steps * (steps + 1) / 2))  # pyright: ignore


# The exact distribution of variance-reduced steps on squared error, up to the square of a small
# noise. Their noise between snapshots is as large as the parameters have moved, which depends on
# earlier noise; where noise is small that is how far they would have moved without. Given the
# batches the last iterate is Gaussian then. A sum instead of a difference, or a snapshot that is
# too old, stays within its clip and need not leak: they show here.

EVERY, STEPS, SNAPSHOT_RATE, SNAPSHOT_STEP = 2, 4, 0.3, 0.6
NORM, CLIP = 2.0, 20.0
"""Bounds on rows and residuals far above those of the synthetic records: nothing is clipped."""
MULTIPLIER, SNAPSHOT = 2e-3, 0.1
"""Noise between snapshots, and at snapshots in units of it: both move parameters by some
thousandths."""


def shrunk(run: Run, records: int) -> Run:
    """The run's schedule, ridge and intercept: two snapshots, each with one step after it."""
    eta = np.resize(run.step_sizes[:STEPS], STEPS)
    loss = HuberRidge(
        row_norm=NORM,
        residual_clip=CLIP,
        ridge=min(run.loss.ridge, 0.5),
        intercept=min(getattr(run.loss, "intercept", 0.5), 1.0),
    )
    start = GaussianStart(min(run.start.std, MULTIPLIER)) if run.start.std > 0 else run.start
    return replace(
        run,
        n=records,
        steps=STEPS,
        batching=Poisson(SNAPSHOT_RATE),
        loss=loss,
        domain=Everywhere(),
        prox=None,
        start=start,
        release="last",
        adjacency="zero-out",
        preprocessing=(),
        counts=(),
        probability_calibration=None,
        step_size=StepSchedule(tuple((SNAPSHOT_STEP * eta / eta.max()).tolist())),
        noise=NoiseMultiplier(MULTIPLIER),
        method=replace(run.method, every=EVERY, snapshot=SNAPSHOT),
    )


def snapshot_mixture(
    run: Run, rows: np.ndarray, target: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Weights (c,), means (c, p) and covariances (c, p, p) over all batches of the steps between
    snapshots."""
    every = range(len(rows))
    subsets = [list(one) for size in range(len(rows) + 1) for one in combinations(every, size)]
    components: list[tuple[float, np.ndarray, np.ndarray]] = []
    for batches in product(subsets, repeat=STEPS - STEPS // EVERY):
        taken = sum(map(len, batches))
        weight = SNAPSHOT_RATE**taken * (1 - SNAPSHOT_RATE) ** (len(rows) * len(batches) - taken)
        components.append((weight, *_gaussian(run, rows, target, iter(batches))))
    weights, means, spreads = zip(*components, strict=True)
    return np.array(weights), np.stack(means), np.stack(spreads)


def _gaussian(
    run: Run, rows: np.ndarray, target: np.ndarray, batches: Iterator[list[int]]
) -> tuple[np.ndarray, np.ndarray]:
    """Mean and covariance of the last iterate given the batches; the state is parameters w,
    snapshot s and its noisy mean gradient g, written out again on purpose."""
    n, p = rows.shape
    ridge, width = run.loss.ridge, float(np.hypot(NORM, run.loss.intercept))  # pyright: ignore
    eye, none = np.eye(p), np.zeros((p, p))
    mean, spread = np.zeros(3 * p), np.zeros((3 * p, 3 * p))
    spread[:p, :p] = run.start.std**2 * eye
    for k, eta in enumerate(run.step_sizes):
        if k % EVERY == 0:
            bend, push = rows.T @ rows / n, rows.T @ target / n
            take = np.block([[eye, none, none], [eye, none, none], [bend, none, none]])
            mean = take @ mean - np.concatenate((0 * push, 0 * push, push))
            spread = take @ spread @ take.T
            spread[2 * p :, 2 * p :] += (SNAPSHOT * MULTIPLIER * CLIP * width / n) ** 2 * eye
            moved, noise = none, 0.0
        else:
            batch = rows[next(batches)]
            moved, size = (
                batch.T @ batch / (SNAPSHOT_RATE * n),
                float(np.linalg.norm(mean[:p] - mean[p : 2 * p])),
            )
            noise = MULTIPLIER * min(2 * CLIP * width, width**2 * size) / (SNAPSHOT_RATE * n)
        step = np.eye(3 * p)
        step[:p] = np.hstack(((1 - eta * ridge) * eye - eta * moved, eta * moved, -eta * eye))
        mean, spread = step @ mean, step @ spread @ step.T
        spread[:p, :p] += (eta * noise) ** 2 * eye
    return mean[:p], spread[:p, :p]


# The distribution of the released iterate, compared with the exact one: the second line behind
# attacks.  On squared error that nothing clamps every step is an affine map with Gaussian noise, so
# that given all batches the last iterate is exactly Gaussian, and a finite mixture of Gaussians
# over the batches that can be drawn. On four synthetic records and two passes (or steps that draw
# their own batches) all of them can be listed. Compared are the mean, the covariance and the
# distribution along two directions (Kolmogorov and Smirnov): what leaves no trace on a worst-case
# record, such as momentum left on, the best iterate instead of the last or the wrong order of
# batches, shows here.

RECORDS, SIZE, RATE = 4, 2, 0.3
ROWS = np.array([[0.9, -0.3], [-0.2, 0.7], [0.5, 0.8], [-0.8, -0.4]])
TARGET = np.array([1.2, -0.7, 0.3, 1.9])
STEP, NOISE, FAR = 0.6, 0.05, 1e6
LONGEST = 40
"""Steps over which correlated noise is looked at; its band, in twice as many."""
MODELS = 20_000
Z, P = 6.0, 1e-7
"""Beyond these a distribution is not the described one: a correct trainer gets there with
probability below 1e-6."""
Batches = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class LawReport:
    """Distance of the models from the exact distribution: ``z`` of means and covariances, ``p`` of
    their distribution, ``noise`` that of the noise of all steps together."""

    models: int
    batching: str
    components: int  #: Gaussians in the exact mixture
    z: float
    p: float
    noise: float

    @property
    def holds(self) -> bool:
        return self.z < Z and min(self.p, self.noise) > P

    @property
    def verdict(self) -> str:
        """In words."""
        return (
            "the released iterate follows its exact law"
            if self.holds
            else "BUG: the released iterate does not follow the law of the run"
        )

    def to_json(self) -> str:
        return json.dumps({**asdict(self), "holds": self.holds, "verdict": self.verdict}, indent=2)

    def rows(self) -> list[tuple[str, str]]:
        """Label and text, in the order in which they are read."""
        return [
            ("law of", f"the last iterate on squared error, {self.batching}"),
            ("models", f"{self.models}, against an exact mixture of {self.components} Gaussians"),
            (
                "mean and covariance",
                f"at most {self.z:.1f} standard errors away (a right trainer: below {Z:g})",
            ),
            ("distribution", f"Kolmogorov-Smirnov p = {self.p:.1e} (a right trainer: above {P:g})"),
            (
                "noise of all steps",
                f"covariance p = {self.noise:.1e} (a right trainer: above {P:g})",
            ),
            ("verdict", self.verdict),
        ]


def compare(run: Run, *, models: int = MODELS, seed: int = 0) -> LawReport:
    """Compare the releases of the library's trainer with their exact distribution: the batches,
    momentum, ridge, start and schedule of ``run``, on squared error and four records. The domain is
    left out (audits look at it), and so are clips and what is done before and after the steps."""
    snapshots = snapshots_of(run.method) is not None
    small = shrunk(run, RECORDS) if snapshots else quadratic_run(run)
    draws = Trainer(small).fit_many(ROWS, TARGET, keys_from_seed(seed, models))[:, 0, :]
    mixed = snapshot_mixture(small, _with_intercept(small), TARGET) if snapshots else mixture(small)
    weights, means, spreads = mixed
    return LawReport(
        models,
        type(run.batching).__name__,
        len(weights),
        _moments(draws, weights, means, spreads),
        _distribution(draws, weights, means, spreads),
        1.0 if snapshots else noise_p(small, seed + 1),
    )


def quadratic_run(run: Run) -> Run:
    """The run with its batches, schedule, momentum and start on four records of squared error."""
    for name, part in (("optimizer", run.optimizer), ("method", run.method)):
        if type(part) not in (NoneType, Nesterov, HeavyBall, NoisySGD):
            raise InputError(
                name,
                "has no law that is written out here",
                type(part).__name__,
                "leave law out: the default audit attacks the noisy steps"
                if isinstance(part, PostProcessing)
                else "",
            )
    known = not isinstance(run.loss, KnownConstants)
    loss = HuberRidge(
        row_norm=50.0,
        residual_clip=FAR,
        ridge=min(run.loss.ridge, 0.5) if known else 0.0,
        intercept=min(getattr(run.loss, "intercept", 0.5), 1.0),
    )
    poisson = isinstance(run.batching, Poisson)
    batching = Poisson(RATE) if poisson else run.batching.of_size(RECORDS, SIZE)
    noise, blocks = run.decided_noise, batching.blocks(RECORDS)
    steps = blocks * max(2, -(-2 * noise.column(LONGEST).size // blocks))
    eta = np.resize(run.step_sizes[:steps], steps)
    std = np.resize(run.noise_stds[:steps], steps)
    small = replace(
        run,
        n=RECORDS,
        steps=steps,
        batching=batching,
        loss=loss,
        clip=None,
        prox=None,
        domain=Everywhere(),
        release="last",
        adjacency="zero-out",
        preprocessing=(),
        counts=(),
        probability_calibration=None,
        augmentation=None,
        rows_per_record=1,
        step_size=StepSchedule(tuple((STEP * eta / eta.max()).tolist())),
        noise=GradientNoise(tuple((NOISE * std / max(std.max(), 1e-300)).tolist())),
    )
    if noise.independent:
        return small
    unit = replace(small, noise=noise.with_unit())
    return replace(unit, noise=unit.decided_noise.scale_by(NOISE / unit.first_noise))


def mixture(run: Run) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Weights (c,), means (c, p) and covariances (c, p, p) over all batches that can be drawn."""
    rows = _with_intercept(run)
    components = [
        (weight, *gaussian(run, rows, batches)) for weight, batches in enumerate_batches(run)
    ]
    weights, means, spreads = zip(*components, strict=True)
    return np.array(weights), np.stack(means), np.stack(spreads)


def _with_intercept(run: Run) -> np.ndarray:
    return np.column_stack((ROWS, np.full(RECORDS, run.loss.intercept)))  # pyright: ignore


def enumerate_batches(run: Run) -> Iterator[tuple[float, Batches]]:
    """All batches of all steps, with their probabilities."""
    every = tuple(range(run.n))
    match run.batching.drawn:
        case "never":
            yield 1.0, (_split_blocks(run, every) * -(-run.steps // run.blocks))[: run.steps]
        case "once":
            for weight, batches in _passes(run):
                yield weight, batches * (run.steps // run.blocks)
        case _:
            units = _steps(run) if run.batching.drawn == "each step" else _passes(run)
            for chosen in product(units, repeat=run.steps // len(units[0][1])):
                yield (
                    float(np.prod([one for one, _ in chosen])),
                    tuple(b for _, part in chosen for b in part),
                )


def _passes(run: Run) -> list[tuple[float, Batches]]:
    """The batches of one pass: an order cut into blocks, or every record's own bin."""
    blocks, every = run.blocks, range(run.n)
    if run.batching.independent:
        return [
            (blocks**-run.n, tuple(tuple(i for i in every if bins[i] == j) for j in range(blocks)))
            for bins in product(range(blocks), repeat=run.n)
        ]
    different = sorted({_split_blocks(run, order) for order in permutations(every)})
    return [(1 / len(different), batches) for batches in different]


def _split_blocks(run: Run, order: Sequence[int]) -> Batches:
    """The blocks of an order of the records."""
    block = run.batching.assign_blocks(run.n)
    if block is None:
        raise InputError("batching", "has no law that is listed here", type(run.batching).__name__)
    return tuple(
        tuple(sorted(order[i] for i in range(run.n) if block[i] == j)) for j in range(run.blocks)
    )


def _steps(run: Run) -> list[tuple[float, Batches]]:
    """The batch of one step that draws its own."""
    every, rate = range(run.n), run.batching.inclusion_probability(run.n)
    if run.batching.sizes == "equal":
        sets = list(combinations(every, int(run.divisor)))
        return [(1 / len(sets), (one,)) for one in sets]
    if not run.batching.independent or rate is None:
        raise InputError("batching", "has no law that is listed here", type(run.batching).__name__)
    return [
        (rate**m * (1 - rate) ** (run.n - m), (one,))
        for m in range(run.n + 1)
        for one in combinations(every, m)
    ]


def gaussian(run: Run, rows: np.ndarray, batches: Batches) -> tuple[np.ndarray, np.ndarray]:
    """Mean and covariance of the last iterate given the batches. The state holds the parameters,
    the momentum, and the effect of every draw of noise on both.

    Update rules are written out again, on purpose: what is compared with the trainer must not share
    its mistakes.
    """
    p, b = rows.shape[1], run.divisor
    eye, none = np.eye(p), np.zeros((p, p))
    mean, spread, drawn = np.zeros(2 * p), np.zeros((2 * p, 2 * p)), np.zeros((run.steps, 2 * p, p))
    mixing = np.linalg.inv(columns(run))
    spread[:p, :p] = run.start.std**2 * eye
    if isinstance(run.optimizer, Nesterov):
        spread = np.block([[spread[:p, :p]] * 2] * 2)  # the previous parameters are the first ones
    for k, batch in enumerate(batches):
        x, y, eta = rows[list(batch)], TARGET[list(batch)], run.step_sizes[k]
        bend, push = x.T @ x / b + run.loss.ridge * eye, x.T @ y / b  # pyright: ignore
        match run.optimizer:
            case None:
                move, towards, noisy = (
                    np.block([[eye - eta * bend, none], [none, none]]),
                    (push, 0 * push),
                    (1.0, 0.0),
                )
            case HeavyBall(beta):
                move = np.block([[eye - eta * bend, -eta * beta * eye], [bend, beta * eye]])
                towards, noisy = (push, -push / eta), (1.0, -1.0 / eta)
            case Nesterov():
                ahead, shrink = k / (k + 3.0), eye - eta * bend
                move, towards, noisy = (
                    np.block([[(1 + ahead) * shrink, -ahead * shrink], [eye, none]]),
                    (push, 0 * push),
                    (1.0, 0.0),
                )
            case _:
                raise AssertionError  # refused before
        way = np.kron(np.array(noisy)[:, None], eye)
        mean = move @ mean + eta * np.concatenate(towards)
        spread = move @ spread @ move.T
        drawn = move @ drawn + eta * run.noise_stds[k] * mixing[k][:, None, None] * way
    return mean[:p], (spread + np.einsum("kij,klj->il", drawn, drawn))[:p, :p]


def _moments(
    draws: np.ndarray, weights: np.ndarray, means: np.ndarray, spreads: np.ndarray
) -> float:
    """The largest distance of a mean or second moment, in standard errors."""
    first = weights @ means
    centred = means - first
    second = np.einsum("c,cij->ij", weights, spreads + centred[:, :, None] * centred[:, None, :])
    deviations = draws - first
    products = deviations[:, :, None] * deviations[:, None, :]
    count = np.sqrt(len(draws))
    scores = [
        np.abs(deviations.mean(0)) / (deviations.std(0) / count),
        (np.abs(products.mean(0) - second) / (products.std(0) / count)).ravel(),
    ]
    return float(max(part.max() for part in scores))


def _distribution(
    draws: np.ndarray, weights: np.ndarray, means: np.ndarray, spreads: np.ndarray
) -> float:
    """The smallest p of two directions."""
    from scipy.special import ndtr  # pyright: ignore
    from scipy.stats import kstest  # pyright: ignore

    def along(direction: np.ndarray) -> float:
        middles = means @ direction
        sizes = np.sqrt(np.einsum("i,cij,j->c", direction, spreads, direction))

        def exact(values: ArrayLike) -> np.ndarray:
            values = np.asarray(values, np.float64)
            cdf = np.zeros(values.shape)
            for weight, middle, size in zip(weights, middles, sizes, strict=True):
                cdf += weight * ndtr((values - middle) / size)
            return cdf

        return float(kstest(draws @ direction, exact).pvalue)  # pyright: ignore

    return min(
        along(one)
        for one in (np.ones(means.shape[1]), cast(np.ndarray, np.arange(means.shape[1]) - 1.2))
    )

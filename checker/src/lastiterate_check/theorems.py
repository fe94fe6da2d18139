"""The theorems that certify runs: what each needs of a description, and its curve for one record.

Names are those of certificates. Every theorem is evaluated from its source's formula. Closed forms
are balls; sums of many positive terms are floats, raised above their rounding (``UP`` for each of
at most 10^7 terms).
"""

from __future__ import annotations

import math
import tomllib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from flint import arb

from lastiterate_check import late, others, shifts
from lastiterate_check.balls import Curve, Gaussian, Renyi, up
from lastiterate_check.blocks import LARGEST, bins, pass_of_blocks
from lastiterate_check.losses import Array, Losses, drawn_subset, sampled
from lastiterate_check.run import SLACK, Fact, NotCovered, Run, StepMap, number, whole

UP = 1 + 1e-9
LEVELS = 256
"""Different noises that are told apart in sampled steps; more are rounded down to that many."""


class Fails(Exception):
    """An assumption does not hold: the theorem does not speak of the run."""


@dataclass(frozen=True)
class Theorem:
    """Source, names of the conditions, the curve; ``geometry``: whether it uses smoothness."""

    source: str
    assumes: tuple[str, ...]
    curve: Callable[[Run], Curve]
    geometry: bool = False
    stated: tuple[str, ...] = ()


def flat(run: Run) -> bool:
    """Whether the loss is known to be convex."""
    facts = run.smooth_facts()
    strong, weak = facts.get("strong"), facts.get("weak_convexity")
    return "smooth" in facts and (strong is not None or (weak is not None and weak.value == 0))


def gibbs(run: Run) -> bool:
    """Start N(0, 2 sigma^2 / strong)."""
    strong, start = run.constants.get("strong"), run.part("start", "Fixed")
    if strong is None or strong.value <= 0 or start["type"] != "GaussianStart":
        return False
    return math.isclose(
        number(start, "std"), math.sqrt(2 * run.temperature / strong.value), rel_tol=1e-9
    )


def contracts(run: Run) -> bool:
    """Smooth and strongly convex, after clipping."""
    facts = run.smooth_facts()
    return "smooth" in facts and "strong" in facts and facts["strong"].value > 0


def longest(run: Run) -> float:
    """The longest step."""
    return float(run.etas.max())


def smooth(run: Run) -> float:
    """The smoothness, after clipping; infinite where it is unknown."""
    return run.smooth_facts()["smooth"].value if "smooth" in run.smooth_facts() else math.inf


METHODS = ("Descent", "TailAverage", "ExponentialAverage")
CONDITIONS: dict[str, Callable[[Run], bool]] = {
    "noisy": lambda run: run.method["type"] in METHODS,
    "bounded": lambda run: run.sensitivity is not None,
    "independent": lambda run: run.independent,
    "correlated": lambda run: not run.independent,
    "last": lambda run: run.release == "last",
    "plain": lambda run: run.update is None,
    "own": lambda run: run.method["type"] == "Descent" and not run.body.get("record_draws"),
    "public": lambda run: run.drawn == "never",
    "full": lambda run: run.kind == "FullBatch",
    "permuted": lambda run: run.kind == "Permuted",
    "reshuffled": lambda run: run.kind == "Reshuffled",
    "bins": lambda run: run.kind == "BallsInBins",
    "allocated": lambda run: run.kind == "RandomAllocation",
    "poisson": lambda run: run.kind == "Poisson",
    "subsets": lambda run: run.kind == "FixedSize" and run.size < run.n,
    "sized": lambda run: not run.random_sizes,
    "counted": lambda run: run.adjacency != "add-remove",
    "single": lambda run: run.moved == 1,
    "one-step": lambda run: run.etas.size == 1 and not run.relative,
    "constant": lambda run: run.constant,
    "one-temperature": lambda run: (
        (run.constant or run.noise["type"] == "Langevin") and run.temperature > 0
    ),
    "no-prox": lambda run: run.prox is None,
    "domain": lambda run: math.isfinite(run.diameter),
    "convex": flat,
    "strong": contracts,
    "gibbs": gibbs,
    "short": lambda run: longest(run) * smooth(run) < 1,
    "nonexpansive": lambda run: longest(run) * smooth(run) <= 2,
    "contracting": lambda run: (
        contracts(run) and longest(run) <= 2 / (smooth(run) + run.smooth_facts()["strong"].value)
    ),
    "snapshots": lambda run: (
        run.method["type"] == "VarianceReduced"
        and (run.kind, run.clip, run.update) == ("Poisson", None, None)
        and run.noise["type"] == "NoiseMultiplier"
        and run.loss["type"] != "Abstract"
    ),
    "perturbed": lambda run: run.method["type"] == "PerturbedMinimiser",
}


def per_step(run: Run) -> Array:
    """(sensitivity / (divisor std))^2 of every step, or one entry where all are the same."""
    with np.errstate(divide="ignore"):
        return (run.sensitivity.value / run.divisor / run.stds) ** 2 * (1 + 1e-14)


def composition(run: Run) -> Curve:
    """mu^2 = sum over the record's steps of (S / (b std))^2 at the worst place (Dong, Roth, Su
    2022, Cor. 3.3)."""
    if run.sensitivity.value == 0:
        return Gaussian(0.0)
    charges = per_step(run)
    if run.stds.size == 1:
        ratio = arb(run.sensitivity.value) / (arb(run.divisor) * arb(float(run.stds[0])))
        return Gaussian(ratio * arb(run.passes).sqrt()) if run.stds[0] > 0 else Gaussian(math.inf)
    place = np.arange(run.steps) % run.blocks
    if run.drawn == "pass":  # the place is another one in every pass: the worst of each
        worst = np.zeros(run.passes)
        np.maximum.at(worst, np.arange(run.steps) // run.blocks, charges)
        total = math.fsum(worst)
    else:
        total = float(np.bincount(place, weights=charges).max())
    return Gaussian(math.sqrt(total) * UP)


def correlated(run: Run) -> Curve:
    """mu = s S / (b std), s^2 = max over places of sum_{e, f} |<C_{j+el}, C_{j+fl}>| (PROOFS Q)."""
    noise, blocks, steps = run.noise, run.blocks, run.steps
    if run.drawn not in ("never", "once"):
        raise Fails("a record in the same place of every pass")
    if steps > 10**7:
        raise NotCovered("more than 10,000,000 steps of correlated noise")
    band = noise.get("band")
    if isinstance(band, int):
        power, k = number(noise, "power", 0.5), np.arange(1, band)
        entries = np.concatenate(([1.0], np.cumprod((k - 1 + power) / k)))
    else:
        entries = np.array(band, dtype=float)
    column, decay = np.zeros(steps), number(noise, "decay", 0.0)
    column[: min(entries.size, steps)] = entries[:steps]
    if decay:
        for t in range(1, steps):
            column[t] += decay * column[t - 1]
    if (
        column >= 0
    ).all():  # all inner products add up: s = |sum of the columns at the record's steps|
        summed = column.copy()
        for begin in range(blocks, steps, blocks):
            summed[begin : begin + blocks] += summed[begin - blocks : begin][: steps - begin]
        square = float((summed**2).sum())
    else:
        passes = run.passes
        if passes * passes * min(entries.size, steps) > 10**8:
            raise NotCovered("a band with negative entries over so many passes")
        square = 0.0
        for j in range(min(blocks, steps)):
            count = (steps - 1 - j) // blocks + 1
            total = 0.0
            for f in range(count):
                left = steps - j - f * blocks
                for e in range(f + 1):
                    d = (f - e) * blocks
                    total += (1 if e == f else 2) * abs(
                        float(column[d : left + d][:left] @ column[: min(left, steps - d)])
                    )
            square = max(square, total)
            if j > 64 and blocks > 128:
                raise NotCovered("a band with negative entries over so many blocks")
    ratio = arb(run.sensitivity.value) / (arb(run.divisor) * arb(float(run.stds[0])))
    return Gaussian(ratio * (arb(square) * UP).sqrt())


# Langevin dynamics: Renyi divergences that are linear in the order.


def ratio(run: Run) -> arb:
    """S^2 / (sigma^2 n^2)."""
    return (arb(run.sensitivity.value) / run.n) ** 2 / arb(run.temperature)


def duration(run: Run) -> arb:
    """The sum of all steps, rounded up."""
    if run.etas.size == 1:
        return arb(float(run.etas[0])) * run.steps
    return arb(math.fsum(run.etas)) * (1 + arb(1e-15))


def diffusion(run: Run) -> Curve:
    """S^2 T / (4 sigma^2 n^2): Chourasia et al. 2021, Theorem 1 with Lemma 4."""
    return Renyi(up(ratio(run) * duration(run) / 4))


def log_sobolev(run: Run) -> Curve:
    """S^2 / (2 c sigma^4 n^2) (1 - exp(-sigma^2 c T)): Chourasia et al. 2021, Theorem 2."""
    given = run.constants.get("log_sobolev")
    if given is not None and given.value > 0:
        rate = arb(given.value) * run.temperature
    elif contracts(run) and longest(run) * smooth(run) < 1 and gibbs(run):
        rate = arb(run.constants["strong"].value) / 2
    else:
        raise Fails("a log-Sobolev constant")
    return Renyi(up(ratio(run) / (2 * rate) * (1 - (-rate * duration(run)).exp())))


def strongly_convex(run: Run) -> Curve:
    """S^2 / (lambda sigma^2 n^2) (1 - exp(-lambda T / 2)): Chourasia et al., Corollary 1; Ryffel
    et al. for m = n."""
    strong = arb(run.constants["strong"].value)
    return Renyi(up(ratio(run) / strong * (1 - (-strong * duration(run) / 2).exp())))


def squared_norm(run: Run) -> Curve:
    """S^2 / ((2 - eta m) m sigma^2 n^2) (1 - exp(-(2 - eta m) eta m K / 2)): Chourasia et al.,
    Corollary 2, rescaled."""
    facts = run.smooth_facts()
    if not contracts(run) or facts["smooth"].value != facts["strong"].value:
        raise Fails("smooth = strong")
    m, eta = arb(facts["strong"].value), arb(float(run.etas[0]))
    left = 2 - eta * m
    if not left > 0:
        raise Fails("a step below 2/smooth")
    return Renyi(up(ratio(run) / (left * m) * (1 - (-left * eta * m * run.steps / 2).exp())))


def in_every_batch(run: Run) -> Curve:
    """mu^2 = (S/b)^2 (sum eta_u R_u)^2 / (2 sigma^2 sum eta_u R_u^2), R_u = prod_{w > u} (1 -
    eta_w lambda) (PROOFS D)."""
    strong = run.ridge + (run.constants["strong"].value - run.ridge) * run.shares[0]
    if run.etas.size == 1:
        eta = arb(float(run.etas[0]))
        r = 1 - eta * strong
        if not r > 0:
            shift, noise = eta, eta
        else:
            shift = eta * (1 - r**run.steps) / (1 - r)
            noise = eta * (1 - r ** (2 * run.steps)) / (1 - r**2)
        square = shift**2 / noise
    else:
        shift = noise = 0.0
        for eta in run.etas.tolist():
            r = max(0.0, 1 - eta * strong)
            shift, noise = shift * r + eta, noise * r * r + eta
        square = arb(shift * shift / noise) * UP
    return Gaussian(
        arb(run.sensitivity.value) / run.divisor * (square / (2 * arb(run.temperature))).sqrt()
    )


# Weakly convex losses, blocks in public order, bounded domains (PROOFS C; docs/theorems/cyclic-
# weakly-convex).


def one_shift(run: Run) -> arb:
    """S / (b std): what one participation adds over the noise of its own step."""
    if run.stds[0] == 0:
        raise NotCovered("steps without noise")
    return arb(run.sensitivity.value) / (arb(run.divisor) * arb(float(run.stds[0])))


def square_of_step(run: Run) -> arb:
    """L^2 of Proposition 2.1 of Kong and Ribero, as restored: 1 + 2 lam m (1 + m / (2 (M + m))),
    twice where clips act."""
    curved, lam = StepMap(run), arb(float(run.etas[0]))

    def grown(step: arb, weak: float, steep: float) -> arb:
        return (
            1 + 2 * step * weak * (1 + arb(weak) / (2 * (arb(steep) + weak)))
            if weak > 0
            else arb(1)
        )

    if not curved.clipped:
        weak, steep = max(0.0, -(curved.ridge + curved.low)), max(0.0, curved.ridge + curved.high)
        if not lam * (arb(steep) + weak) <= 1 + 1e-15:
            raise Fails("a step of at most 1/(M + m)")
        return grown(lam, weak, steep)
    weak, steep = max(0.0, -curved.low), max(0.0, curved.high)
    if not lam * (2 * (arb(steep) + weak) + curved.ridge) <= 1 + 1e-15:
        raise Fails("a step of at most 1/(2 (M + m)), because clips can act")
    shrink = 1 - lam * curved.ridge
    if not shrink > 0:
        return arb(1)
    found = 2 * shrink**2 * grown(lam / shrink, weak, steep)
    return found if found > 1 else arb(1)


def cyclic(run: Run, square: arb) -> Curve:
    """mu^2 = (s^2/v) ((E - 1) theta_L(l) + 1), theta_L(k) = L^(2k-2) / (1 + L^2 + ... +
    L^(2k-2))."""
    log = square.log()
    if log > 1e-12:
        theta = (1 - (-log).exp()) / (1 - (-run.blocks * log).exp())
    else:  # theta grows with L: taken at the largest L that is this near to 1
        theta = arb(1) / run.blocks * (1 + 1e-11)
    return Gaussian(
        one_shift(run) * ((run.passes - 1) * theta + 1).sqrt() * (1 + run.steps * arb(2) ** -50)
    )


def weakly_convex_bounded(run: Run) -> Curve:
    """(D + 2 eta C)^2 / v for bounded gradients, (L D + s)^2 / v for smooth losses: the last
    step absorbs all."""
    eta, found = arb(float(run.etas[0])), []
    deviation = eta * float(run.stds[0])
    if run.lipschitz is not None:
        bound = run.lipschitz.value * (1 + (SLACK if run.lipschitz.evidence == "ENFORCED" else 0.0))
        found.append(
            (abs(1 - eta * run.ridge) * run.diameter + 2 * eta * bound, run.lipschitz.evidence)
        )
    try:
        grown = (
            square_of_step(run).sqrt() * run.diameter + eta * run.sensitivity.value / run.divisor
        )
        found.append(
            (grown, min((f.evidence for f in [*StepMap(run).facts, run.sensitivity]), key=strength))
        )
    except (Fails, NotCovered):
        pass
    if not found:
        raise Fails("bounded gradients, or a smooth loss and a short step")
    strongest = max(strength(evidence) for _, evidence in found)
    return Gaussian(
        min((up(apart / deviation) for apart, evidence in found if strength(evidence) == strongest))
    )


def strength(evidence: str) -> int:
    """How strong evidence is."""
    return ["ASSUMED", "TESTED", "PAID", "ENFORCED", "PROVED"].index(evidence)


def at_a_distance(run: Run, moved: arb) -> Curve:
    """mu^2 = min(T m^2, min_k (D + k m)^2 / k) / (eta std)^2: states at distance z are at most z +
    m apart after a step.

    Convex in k, least at k = D/m; every k is a bound.
    """
    deviation, apart = arb(float(run.etas[0])) * float(run.stds[0]), arb(run.diameter)
    middle = run.diameter / float(moved.mid()) if moved > 0 else run.steps
    tried = {1, run.steps, *(min(run.steps, max(1, math.floor(middle) + d)) for d in (-1, 0, 1, 2))}
    found = [arb(run.steps).sqrt() * moved, *((apart + k * moved) / arb(k).sqrt() for k in tried)]
    return Gaussian(min(up(one / deviation) for one in found) * (1 + run.steps * 2.0**-50))


def bounded_convex(run: Run) -> Curve:
    """Full batches, convex, a bounded domain: Altschuler and Talwar 2022, with the constants of
    a restart."""
    return at_a_distance(run, arb(float(run.etas[0])) * run.sensitivity.value / run.divisor)


def bounded_gradients(run: Run) -> Curve:
    """Clipped gradients in a bounded domain: two states are at most 2 eta L farther apart after
    a step."""
    if run.lipschitz is None:
        raise Fails("a bound on every record's gradient")
    if longest(run) * run.ridge > 2:
        raise Fails("step * ridge of at most 2")
    return at_a_distance(run, 2 * arb(float(run.etas[0])) * run.lipschitz.value * (1 + SLACK))


def hoelder(run: Run) -> Curve:
    """z' = z + min(eta H z^l + s, 2 eta L): any path D = z_tau, ..., 0 is a bound
    (docs/theorems/bounded-domain)."""
    facts, eta = run.constants, float(run.etas[0])
    if "hoelder" not in facts or "hoelder_exponent" not in facts:
        raise Fails("a Hoelder constant of the gradients")
    growth, power = eta * facts["hoelder"].value, facts["hoelder_exponent"].value
    s = eta * run.sensitivity.value / run.divisor
    most = math.inf if run.lipschitz is None else 2 * eta * run.lipschitz.value * (1 + SLACK)
    unit = late.hoelder_path(
        lambda z: z + np.minimum(growth * z**power + s, most), run.steps, run.diameter
    )
    return Gaussian(unit / (eta * float(run.stds[0])) * UP)


# Sampled steps.


def levels(run: Run, first: int = 0, share: float = 1.0) -> list[tuple[float, int]]:
    """(noise multiplier, steps) from step ``first`` on; many different ones are rounded down to
    a few."""
    unit = run.divisor / run.sensitivity.value * math.sqrt(share) * (1 - 1e-14)
    if run.stds.size == 1:
        return [(float(run.stds[0]) * unit, run.steps - first)]
    return few(Counter((run.stds[first:] * unit).tolist()))


def few(counts: Counter[float]) -> list[tuple[float, int]]:
    """At most ``LEVELS`` values, each rounded down."""
    values = sorted(counts)
    if len(values) > LEVELS:
        low, high = math.log(max(values[0], 1e-300)), math.log(max(values[-1], 1e-300))
        width = (high - low) / (LEVELS - 1)
        merged: dict[int, float] = {}
        total: Counter[float] = Counter()
        for value in values:
            merged.setdefault(
                int((math.log(max(value, 1e-300)) - low) / width), value
            )  # the least of its level
        for value in values:
            total[merged[int((math.log(max(value, 1e-300)) - low) / width)]] += counts[value]
        counts = total
    return sorted(counts.items())


def poisson_losses(rate: float, noises: list[tuple[float, int]], mu: float = 0.0) -> Curve:
    """Poisson-sampled Gaussian steps (Zhu, Dong, Wang 2022, Theorems 10 and 11)."""
    if min(z for z, _ in noises) < 1 / 30:
        raise NotCovered("steps with next to no noise")
    return Losses([(sampled(rate, z), count) for z, count in noises], mu)


def poisson(run: Run, first: int = 0, share: float = 1.0, mu: float = 0.0) -> Curve:
    """(1 - q) N(0, z^2) + q N(1, z^2) against N(0, z^2), composed."""
    if run.sensitivity.value == 0:
        return Gaussian(mu)
    return poisson_losses(run.rate, levels(run, first, share), mu)


def allocation(run: Run, first: int = 0, share: float = 1.0, mu: float = 0.0) -> Curve:
    """One pair for every pass, with the least noise of its steps (PROOFS J)."""
    if run.sensitivity.value == 0:
        return Gaussian(mu)
    unit = run.divisor / run.sensitivity.value * math.sqrt(share) * (1 - 1e-14)
    passes, rest = divmod(run.steps - first, run.blocks)
    if run.stds.size == 1:
        counts, last = (
            Counter({float(run.stds[0]) * unit: passes} if passes else {}),
            float(run.stds[0]) * unit,
        )
    else:
        later = run.stds[first:] * unit
        counts = Counter(
            later[: passes * run.blocks].reshape(passes, run.blocks).min(axis=1).tolist()
        )
        last = float(later[passes * run.blocks :].min()) if rest else 1.0
    if min([*counts, last]) < 1 / LARGEST:
        raise NotCovered("passes with next to no noise")
    pairs = [(pass_of_blocks(run.blocks, 1 / z), count) for z, count in few(counts)]
    if rest:
        pairs.append((pass_of_blocks(run.blocks, 1 / last, rest), 1))
    return Losses(pairs, mu)


def balls_in_bins(run: Run) -> Curve:
    """(1/l) sum_j N(a_j e_j, I) against N(0, I), a_j^2 = sum over bin j's steps of (S / (b
    std))^2 (PROOFS G3)."""
    if run.sensitivity.value == 0:
        return Gaussian(0.0)
    if run.stds.size == 1:
        passes, more = divmod(run.steps, run.blocks)
        one = math.sqrt(float(per_step(run)[0])) * (1 + 1e-14)
        groups = [(math.sqrt(passes + 1) * one, more), (math.sqrt(passes) * one, run.blocks - more)]
    else:
        squares = np.bincount(
            np.arange(run.steps) % run.blocks, weights=per_step(run), minlength=run.blocks
        )
        found = Counter((np.sqrt(squares) * (1 + 1e-13)).tolist())
        if len(found) > 64:
            raise NotCovered("bins of more than 64 different noises")
        groups = list(found.items())
    groups = tuple((a, count) for a, count in groups if count and a > 0)
    if not groups:
        return Gaussian(0.0)
    if max(a for a, _ in groups) > LARGEST:
        raise NotCovered("bins with next to no noise")
    return Losses([(bins(groups, run.blocks), 1)])


def fixed_size(
    run: Run, first: int = 0, share: float = 1.0, mu: float = 0.0, longer: float = 1.0
) -> Curve:
    """Batches of a fixed size, amplified by sampling (docs/theorems/fixed-size)."""
    if run.sensitivity.value == 0:
        return Gaussian(mu)
    noises = [(z / longer, count) for z, count in levels(run, first, share)]
    if min(z for z, _ in noises) < 0.1:
        raise NotCovered("steps with next to no noise")
    return Losses([(drawn_subset(run.rate, z, run.moved == 2), count) for z, count in noises], mu)


def variance_reduced(run: Run) -> Curve:
    """Snapshots are Gaussian mechanisms, the steps between them Poisson-sampled ones
    (docs/theorems)."""
    every, z = whole(run.method, "every", low=2), number(run.noise, "z")
    longer = max(1.0, run.sensitivity.value / run.unit) * (1 + 1e-14)
    taken = -(-run.steps // every)
    mu = math.sqrt(taken) * longer / (number(run.method, "snapshot") * z) * (1 + 1e-14)
    if run.steps == taken:
        return Gaussian(mu)
    return poisson_losses(run.rate, [(z / longer * (1 - 1e-14), run.steps - taken)], mu)


CURVES: dict[str, Callable[[Run], Curve]] = {
    "composition-gdp": composition,
    "correlated-gdp": correlated,
    "composition-langevin": diffusion,
    "langevin-linear": diffusion,
    "langevin-lsi": log_sobolev,
    "langevin-strongly-convex": strongly_convex,
    "langevin-squared-norm": squared_norm,
    "sgld-lsi": log_sobolev,
    "sgld-strongly-convex": strongly_convex,
    "sgld-strongly-convex-batch": in_every_batch,
    "cyclic-weakly-convex": lambda run: cyclic(run, square_of_step(run)),
    "cyclic-weakly-convex-bounded": weakly_convex_bounded,
    "pabi-convex": lambda run: cyclic(run, arb(1)),
    "bounded-domain-convex": bounded_convex,
    "lipschitz-bounded-domain": bounded_gradients,
    "hoelder-bounded-domain": hoelder,
    "shifted-interpolation": shifts.public_order,
    "shifted-interpolation-permuted": shifts.permuted,
    "shifted-interpolation-reshuffled": shifts.reshuffled,
    "shifted-interpolation-bins": shifts.secret_bins,
    "shifted-interpolation-allocated": shifts.allocated,
    "poisson-pld": poisson,
    "poisson-rdp": poisson,
    "random-allocation-pld": allocation,
    "balls-in-bins-pld": balls_in_bins,
    "fixed-size-amplified": fixed_size,
    "variance-reduction": variance_reduced,
    "restarted-poisson-pld": lambda run: late.restarted_draws(run, poisson),
    "restarted-allocation-pld": lambda run: late.restarted_passes(run, allocation),
    "restarted-fixed-size": lambda run: late.restarted_subsets(run, fixed_size),
    "delayed-shifts-poisson": late.delayed_poisson,
    "delayed-shifts-allocated": late.delayed_blocks,
    "delayed-shifts-fixed-size": late.delayed_subsets,
    "objective-perturbation": others.perturbed_objective,
}
TABLE = tomllib.loads(Path(__file__).with_name("theorems.toml").read_text(encoding="utf-8"))
THEOREMS = {
    name: Theorem(
        row["source"],
        tuple(row["assumes"].split()),
        CURVES[name],
        row.get("geometry", False),
        tuple(row.get("stated", ())),
    )
    for name, row in TABLE["theorems"].items()
}


def facts_used(theorem: Theorem, run: Run) -> list[Fact]:
    """The facts that a theorem rests on."""
    facts = [run.sensitivity] if run.sensitivity is not None else []
    if theorem.geometry:
        try:
            facts += StepMap(run).facts
        except NotCovered:
            facts += [run.constants["log_sobolev"]] if "log_sobolev" in run.constants else []
        if "log_sobolev" in run.constants and theorem.curve is log_sobolev:
            facts.append(run.constants["log_sobolev"])
    return facts + [run.constants[name] for name in theorem.stated if name in run.constants]

"""A run as its description says it is, and the constants that follow for every data set.

Nothing here reads a verdict of the certificate. Bounds that the trainer enforces (clipped rows,
clipped gradients) are marked ENFORCED, what the releaser states ASSUMED or TESTED; what follows
from a released measurement is PAID.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any

import numpy as np

Array = np.ndarray
SLACK = 1.25 * 2.0**-7
"""The trainer adds gradients in float32, in chunks of 256 rows: a neighbour's computed sum may be
farther away than the exact one by 2 gamma_256 * 256 L < 2^-7 (1 + 2^-15) L (Higham 2002, section
3.1); a quarter more for all else."""
DRAWN = {
    "FullBatch": "never",
    "Cyclic": "never",
    "Permuted": "once",
    "BallsInBins": "once",
    "Reshuffled": "pass",
    "RandomAllocation": "pass",
    "FixedSize": "step",
    "Poisson": "step",
}
"""When the batches of each kind are drawn."""
WORDS = {
    "PROVED": "from the description",
    "ENFORCED": "the trainer enforces it",
    "PAID": "measured, and paid for",
    "TESTED": "stated by the releaser, tested",
    "ASSUMED": "stated by the releaser",
}
STRENGTH = ["ASSUMED", "TESTED", "PAID", "ENFORCED", "PROVED"]


class NotCovered(Exception):
    """What this program does not speak about."""


class BadInput(Exception):
    """What is no certificate."""


def number(
    body: dict[str, Any], name: str, default: float | None = None, low: float = 0.0
) -> float:
    """A finite number of a description."""
    value = body.get(name, default)
    if (
        isinstance(value, bool)
        or not isinstance(value, (int, float))
        or not math.isfinite(value)
        or value < low
    ):
        raise BadInput(
            f"{body.get('type', 'run')}.{name}: must be a finite number of at least {low:g}"
        )
    return float(value)


def whole(body: dict[str, Any], name: str, default: int | None = None, low: int = 1) -> int:
    """An integer of a description."""
    value = body.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= 10**12:
        raise BadInput(f"{body.get('type', 'run')}.{name}: must be an integer of at least {low}")
    return value


class Fact:
    """A number that holds for every data set, how well it is known, and why."""

    def __init__(self, value: float, evidence: str, why: str) -> None:
        self.value, self.evidence, self.why = value, evidence, why


def by_foundation(fact: Fact) -> tuple[int, float]:
    """Order two bounds of one thing: enforced ones first, then better evidence, then the
    smaller."""
    return -min(STRENGTH.index(fact.evidence), STRENGTH.index("ENFORCED")), fact.value


def in_present_words(body: dict[str, Any]) -> dict[str, Any]:
    """A description of an older format: momentum was the name of update, and two methods were
    kinds of noise."""
    if "momentum" in body and "update" not in body:
        body = {"update" if key == "momentum" else key: value for key, value in body.items()}
    old = {
        "SnapshotNoise": ("VarianceReduced", ("every", "snapshot")),
        "ObjectiveNoise": ("PerturbedMinimiser", ("parameters", "last")),
    }
    noise = body.get("noise")
    if not isinstance(noise, dict) or noise.get("type") not in old or "method" in body:
        return body
    name, moved = old[noise["type"]]
    method = {"type": name, **{key: noise[key] for key in moved if key in noise}}
    kept = {key: value for key, value in noise.items() if key not in moved}
    return {**body, "noise": {**kept, "type": "NoiseMultiplier"}, "method": method}


class Run:
    """What a description says: fields by their names, and what every theorem asks."""

    def __init__(
        self, body: dict[str, Any], adjacency: str | None = None, rows_per_unit: int | None = None
    ) -> None:
        if not isinstance(body, dict) or body.get("type") != "Run":
            raise BadInput('run: must be an object with "type": "Run"')
        self.body = body = in_present_words(body)
        self.n, self.steps = whole(body, "n"), whole(body, "steps")
        self.adjacency = adjacency or body.get("adjacency", "zero-out")
        if self.adjacency not in ("zero-out", "replace-one", "add-remove"):
            raise BadInput("run.adjacency: must be zero-out, replace-one or add-remove")
        self.rows_per_unit = rows_per_unit or whole(body, "rows_per_unit", 1)
        self.batching = self.part("batching", "FullBatch")
        self.kind = self.batching["type"]
        if self.kind not in DRAWN:
            raise NotCovered(f"batches of the kind {self.kind}")
        if self.adjacency == "add-remove" and self.kind not in ("Poisson", "RandomAllocation"):
            raise BadInput("run.adjacency: add-remove is for Poisson batches and random allocation")
        self.drawn = DRAWN[self.kind]
        self.clip = None if body.get("clip") is None else number(body, "clip")
        self.update, self.method = body.get("update"), self.part("method", "Descent")
        self.release, self.prox = body.get("release", "last"), body.get("prox")
        self.prelude, self.counts = body.get("prelude") or [], body.get("counts") or []
        self.calibration, self.domain = body.get("calibration"), self.part("domain", "Everywhere")
        self.noise, self.schedule = self.part("noise", "none"), self.part("step_size", "Constant")
        self.loss = self.part("loss", "Abstract")
        self.relative = self.schedule["type"] == "RelativeToSmooth"
        if self.divisor > self.n:
            raise BadInput("run.batching: a batch cannot hold more than n records")

    def part(self, name: str, default: str) -> dict[str, Any]:
        """A part of the description, an object with a type."""
        value = self.body.get(name) or {"type": default}
        if not isinstance(value, dict) or not isinstance(value.get("type"), str):
            raise BadInput(f"run.{name}: must be an object with a type")
        return value

    # Batches.

    @cached_property
    def moved(self) -> int:
        """How many records' contributions a sum changes by: an exchange takes one out and puts
        one in."""
        return 2 if self.adjacency == "replace-one" else 1

    @cached_property
    def size(self) -> int:
        """The public batch size."""
        return self.n if self.kind == "FullBatch" else whole(self.batching, "size")

    @cached_property
    def rate(self) -> float:
        """The probability that a step draws a record."""
        if self.kind == "Poisson":
            rate = number(self.batching, "rate")
            if not 0 < rate <= 1:
                raise BadInput("run.batching.rate: must lie in (0, 1]")
            return rate
        return self.size / self.n

    @cached_property
    def divisor(self) -> float:
        """What sums of gradients are divided by."""
        return self.rate * self.n if self.kind == "Poisson" else float(self.size)

    @cached_property
    def blocks(self) -> int:
        """Batches in one pass."""
        return 1 if self.drawn == "step" or self.kind == "FullBatch" else -(-self.n // self.size)

    @cached_property
    def passes(self) -> int:
        """Passes that are begun."""
        return -(-self.steps // self.blocks)

    @property
    def random_sizes(self) -> bool:
        """Whether a batch may hold any number of records."""
        return self.kind in ("BallsInBins", "RandomAllocation", "Poisson")

    @cached_property
    def shares(self) -> tuple[float, float]:
        """The fewest and the most records of a batch, over the divisor."""
        if self.random_sizes:
            return 0.0, self.n / self.divisor
        if self.kind in ("Cyclic", "Permuted", "Reshuffled"):
            return (self.n - self.size * (self.blocks - 1)) / self.size, 1.0
        return 1.0, 1.0

    @cached_property
    def place_weights(self) -> Array:
        """The probability of every block for one record."""
        if self.random_sizes:
            return np.full(self.blocks, 1 / self.blocks)
        counts = np.full(self.blocks, float(self.size))
        counts[-1] = self.n - self.size * (self.blocks - 1)
        return counts / self.n

    # Steps and noise.

    @cached_property
    def etas(self) -> Array:
        """The step size of every step; one entry where it is constant."""
        kind = self.schedule["type"]
        if self.relative:
            return np.ones(1)
        if kind == "Constant":
            return np.array([number(self.schedule, "value")])
        if kind == "InverseDecay":
            beta, strong = number(self.schedule, "beta"), number(self.schedule, "strong")
            if self.steps > 10**7:
                raise NotCovered("more than 10,000,000 different steps")
            return 1.0 / (2.0 * beta + strong * np.arange(self.steps) / 2.0)
        if kind in ("Steps", "StableSteps"):
            return self.listed(self.schedule.get("values"), "step_size")
        raise NotCovered(f"step sizes of the kind {kind}")

    def listed(self, values: Any, name: str) -> Array:
        """One number for every step."""
        if not isinstance(values, list) or len(values) != self.steps:
            raise BadInput(f"run.{name}: needs one value for each of {self.steps} steps")
        array = np.array([number({"type": name, "value": value}, "value") for value in values])
        return array[:1] if name == "noise" and (array == array[0]).all() else array

    @cached_property
    def unit(self) -> float | None:
        """What a noise multiplier multiplies: the clipping norm, else the loss's Lipschitz
        constant."""
        given = self.constants.get("lipschitz")
        return self.clip if self.clip is not None else None if given is None else given.value

    @cached_property
    def stds(self) -> Array:
        """The noise on the mean gradient at every step; one entry where it is always the same."""
        kind = self.noise["type"]
        if kind == "GradientNoise":
            std = self.noise.get("std")
            return (
                self.listed(std, "noise")
                if isinstance(std, list)
                else np.array([number(self.noise, "std")])
            )
        if kind == "Langevin":
            return number(self.noise, "sigma") * np.sqrt(2 / self.etas)
        if kind in ("NoiseMultiplier", "Correlated"):
            if self.unit is None:
                raise NotCovered("a noise multiplier without a clip or a Lipschitz constant")
            return np.array([number(self.noise, "z") * self.unit / self.divisor])
        raise NotCovered(f"noise of the kind {kind}")

    @property
    def constant(self) -> bool:
        """Whether step size and noise are the same at every step."""
        return self.etas.size == 1 and self.stds.size == 1

    def each(self, values: Array) -> Array:
        """One entry per step."""
        if self.steps > 10**7:
            raise NotCovered("more than 10,000,000 steps one by one")
        return np.broadcast_to(values, (self.steps,)) if values.size == 1 else values

    @property
    def temperature(self) -> float:
        """sigma^2, where every step adds sqrt(2 step) sigma N(0, I) to the parameters."""
        if self.noise["type"] == "Langevin":
            return number(self.noise, "sigma") ** 2
        return float(self.etas[0] * self.stds[0] ** 2 / 2)

    @property
    def independent(self) -> bool:
        """Whether the noise of a step is independent of all other steps' noise."""
        return self.noise["type"] != "Correlated"

    # Constants of the loss.

    @cached_property
    def ridge(self) -> float:
        """The ridge that is added outside of records."""
        return (
            0.0
            if self.loss["type"] == "Abstract" or self.relative
            else number(self.loss, "ridge", 0.0)
        )

    @cached_property
    def row(self) -> float:
        """The largest norm of a row with its intercept."""
        return math.hypot(number(self.loss, "row_norm", 1.0), number(self.loss, "intercept", 1.0))

    @cached_property
    def curvature(self) -> float:
        """How steep a linear model's loss is in its scores: the largest eigenvalue of its second
        derivative."""
        cap = None if self.loss.get("cap") is None else number(self.loss, "cap")
        if cap is not None and not 1e-6 <= cap < 1:
            raise BadInput("loss.cap: must lie between 1e-6 and 1")
        most = {"Logistic": 0.25, "Softmax": 0.5, "HuberRidge": 1.0}[self.loss["type"]]
        if cap is None or cap >= 0.5:
            return most
        return cap * (1 - cap) if self.loss["type"] == "Logistic" else 2 * cap * (1 - cap)

    @cached_property
    def constants(self) -> dict[str, Fact]:
        """The loss's own constants: lipschitz, smooth, strong, weak_convexity, sensitivity,
        log_sobolev, hoelder."""
        kind = self.loss["type"]
        if kind == "Abstract":
            stated = self.loss.get("constants") or {}
            facts = {}
            for name, given in stated.items():
                if isinstance(given, dict) and "value" in given:
                    known = "TESTED" if given.get("type") == "TestedFact" else "ASSUMED"
                    facts[name] = Fact(number(given, "value"), known, str(given.get("why", "")))
            return facts
        if kind not in ("Logistic", "Softmax", "HuberRidge"):
            raise NotCovered(f"a loss of the kind {kind}")
        cap = self.loss.get("cap")
        steep = {
            "Logistic": 1.0,
            "Softmax": math.sqrt(2),
            "HuberRidge": number(self.loss, "residual_clip", 1.0),
        }[kind]
        lipschitz = steep * (1.0 if cap is None else number(self.loss, "cap")) * self.row
        ridge = number(self.loss, "ridge", 0.0)
        why = "rows are clipped before training"
        return {
            "lipschitz": Fact(lipschitz, "ENFORCED", why),
            "smooth": Fact(self.curvature * self.row**2 + ridge, "ENFORCED", why),
            "strong": Fact(ridge, "PROVED", "a convex data term and the ridge"),
            "weak_convexity": Fact(0.0, "PROVED", "a convex data term"),
        }

    @cached_property
    def lipschitz(self) -> Fact | None:
        """A bound on one record's contribution: the clip, or a smaller constant that is as well
        founded."""
        given = self.constants.get("lipschitz")
        if self.clip is None:
            return given
        clipped = Fact(self.clip, "ENFORCED", "every record's gradient is clipped")
        return clipped if given is None else min(clipped, given, key=by_foundation)

    @cached_property
    def sensitivity(self) -> Fact | None:
        """How far neighbours move a sum of contributions."""
        stated, bound = self.constants.get("sensitivity"), self.lipschitz
        if bound is None:
            return stated
        slack = SLACK if STRENGTH.index(bound.evidence) >= STRENGTH.index("ENFORCED") else 0.0
        derived = Fact(
            self.moved * bound.value * (1 + slack),
            bound.evidence,
            f"{'2 L' if self.moved == 2 else 'L'}, L = {bound.value:g}: {bound.why}",
        )
        return derived if stated is None else min(derived, stated, key=by_foundation)

    @cached_property
    def clip_acts(self) -> bool:
        """Whether per-record clipping may change the field of gradients: not that of a scalar
        residual (PROOFS B3),
        and not where an enforced bound lies below the clip."""
        if self.clip is None or self.loss["type"] in ("Logistic", "HuberRidge"):
            return False
        given = self.constants.get("lipschitz")
        idle = given is not None and given.evidence == "ENFORCED" and given.value <= self.clip
        return not idle

    def smooth_facts(self) -> dict[str, Fact]:
        """smooth, strong, weak_convexity as they survive clipping (none of them where it may
        act)."""
        return {} if self.clip_acts else self.constants

    @cached_property
    def diameter(self) -> float:
        """The diameter of the domain that every step is projected on, rounded up."""
        kind = self.domain["type"]
        if kind == "Everywhere":
            return math.inf
        if kind == "Ball":
            return 2 * number(self.domain, "radius")
        if kind == "Simplex":
            return number(self.domain, "total", 1.0) * math.sqrt(2) * (1 + 1e-15)
        if kind == "Box":
            if self.domain.get("dimension") is None:
                return math.inf
            width = number(self.domain, "high", low=-math.inf) - number(
                self.domain, "low", low=-math.inf
            )
            return width * math.sqrt(whole(self.domain, "dimension")) * (1 + 1e-15)
        if (
            kind == "AffineBall"
        ):  # a ball's own diameter bounds its sections'; the section's is smaller
            normals, offsets = (
                np.array(self.domain["normals"], float),
                np.array(self.domain["offsets"], float),
            )
            point = np.linalg.lstsq(normals, offsets, rcond=None)[0]
            left = number(self.domain, "radius") ** 2 - float(point @ point)
            return 2 * math.sqrt(max(left, 0.0)) * (1 + 1e-9)
        raise NotCovered(f"a domain of the kind {kind}")

    @cached_property
    def shrinks(self) -> float:
        """w of the part w/2 |theta|^2 of the proximal term."""
        if self.prox is None:
            return 0.0
        names = {"L2Squared": "weight", "ElasticNet": "l2"}
        kind = self.prox.get("type")
        if kind not in ("L1", "GroupLasso", "NuclearNorm", *names):
            raise NotCovered(f"a proximal term of the kind {kind}")
        return number(self.prox, names[kind]) if kind in names else 0.0


class StepMap:
    """Bounds on the Hessian of a step's data term: the Lipschitz constant of the step follows
    (PROOFS B)."""

    def __init__(self, run: Run, shares: tuple[float, float] | None = None) -> None:
        facts, ridge = run.constants, run.ridge
        if run.relative:
            if run.clip_acts:
                raise NotCovered("steps relative to a smoothness that clipping loses")
            low, high, shares = 0.0, number(run.schedule, "relative"), (1.0, 1.0)
            self.facts = [
                Fact(high, "PAID", "the largest eigenvalue is measured, and steps follow it")
            ]
        else:
            if "smooth" not in facts:
                raise NotCovered("a loss whose smoothness is not stated")
            high, low = facts["smooth"].value - ridge, -facts["smooth"].value
            self.facts = [facts["smooth"]]
            if "strong" in facts:
                low = facts["strong"].value - ridge
                self.facts.append(facts["strong"])
            elif "weak_convexity" in facts:
                low = -facts["weak_convexity"].value
                self.facts.append(facts["weak_convexity"])
        fewest, most = run.shares if shares is None else shares
        self.ridge, self.clipped = ridge, run.clip_acts
        self.low, self.high = low * (fewest if low > 0 else most), high * most

    def lipschitz(self, eta: Array) -> Array:
        """Upper ends of the Lipschitz constants of steps of these sizes.

        A difference 1 - eta h carries an absolute error of a few ulp of 1 + eta |h|, which is
        added.
        """
        eta = np.asarray(eta, dtype=float)
        if not self.clipped:
            constants = np.maximum(
                abs(1 - eta * (self.ridge + self.low)), abs(1 - eta * (self.ridge + self.high))
            )
        else:
            shrink = 1 - eta * self.ridge
            inner = clipped_step(eta / np.where(shrink > 0, shrink, 1.0), self.low, self.high)
            beyond = -shrink + eta * max(abs(self.low), abs(self.high))
            constants = np.where(shrink > 0, shrink * inner, beyond)
        exact = constants == 1.0  # 1 - 0: convex data terms without a ridge
        return np.where(
            exact,
            1.0,
            constants + 2.0**-51 * (1 + eta * (abs(self.low) + abs(self.high) + self.ridge)),
        )


def clipped_step(eta: Array, low: float, high: float) -> Array:
    """Lip of x - eta clip(grad f(x)), low <= Hess f <= high (PROOFS B1): max(1, |1 - A|, |1 -
    B|, sqrt q)."""
    a, b = eta * high, eta * low
    plain = np.maximum(1.0, np.maximum(abs(1 - a), abs(1 - b)))
    total = a + b
    with np.errstate(divide="ignore", invalid="ignore"):
        q = 1 + (a - b) ** 2 / (total * (4 - total))
        turn = 1 - q * (2 - total) / 2
    rotates = (
        (total > 0)
        & (total < 4)
        & (b <= turn * (1 + 1e-12) + 1e-12)
        & (turn <= a * (1 + 1e-12) + 1e-12)
    )
    return np.where(rotates, np.maximum(plain, np.sqrt(np.where(rotates, q, 1.0))), plain)

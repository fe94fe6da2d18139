"""The explorer's answers: a run from a few numbers, what the theorems say of it, and how to write it elsewhere.

The accountant answers every question; the page only shows what it is given.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any, cast

from lastiterate.accounting.certificate import Certificate
from lastiterate.accounting.wording import finite
from lastiterate.curves.curve import check_delta
from lastiterate.errors import InputError
from lastiterate.markup import Markup, tag
from lastiterate.report import sections
from lastiterate.report.series import family
from lastiterate.report.subject import Subject
from lastiterate.run.batching import (
    BallsInBins,
    Batching,
    Cyclic,
    FixedSize,
    FullBatch,
    Permuted,
    Poisson,
    RandomAllocation,
    Reshuffled,
)
from lastiterate.run.evidence import Evidence
from lastiterate.run.losses import HuberRidge, Logistic, Softmax
from lastiterate.run.noise import NoiseMultiplier
from lastiterate.run.run import Run
from lastiterate.run.strict_json import is_object
from lastiterate.theorems import TABLE

CLOSED = tuple(theorem for theorem in TABLE.values() if family(theorem.name) != "sampling")
"""The theorems whose numbers come at once."""
KINDS = {"full": FullBatch, "cyclic": Cyclic, "permuted": Permuted, "reshuffled": Reshuffled,
         "allocation": RandomAllocation, "bins": BallsInBins, "fixed": FixedSize, "poisson": Poisson}
LOSSES = ("logistic", "softmax of 10 classes", "huber-ridge")
WHOLE, NUMBERS = {"n": 1e12, "batch": 1e12, "passes": 1e9}, ("step", "ridge", "clip", "noise", "delta")
"""Whole numbers with their largest values, and other numbers."""
LEAST_DELTA = 1e-300
"""The smallest delta of a question; the logarithms of smaller ones leave the range of doubles."""
DEFAULT: dict[str, Any] = {"n": 6000, "batch": 300, "passes": 30, "step": 0.2, "ridge": 0.01, "clip": 1.0, "noise": 3.0,
                           "delta": 1e-5, "batching": "permuted", "loss": "logistic", "adjacency": "zero-out"}
"""What the page begins with."""


@dataclass(frozen=True)
class Asked:
    """A question: the run that the fields describe, and delta."""

    run: Run
    delta: float

    @property
    def sampled(self) -> bool:
        """Whether more than closed forms speak of the run."""
        return self.run.batching.drawn != "never" and not isinstance(self.run.batching, Permuted)


def read(fields: object) -> Asked:
    """The question in the page's fields; ``InputError`` for anything else."""
    if not is_object(fields) or set(fields) != set(DEFAULT):
        raise InputError("fields", "must be those of the page", None)
    given = cast(dict[str, Any], fields)
    for name in (*WHOLE, *NUMBERS):
        value = given[name]
        if not _is_finite(value):
            raise InputError(name, "must be a number", value)
        if name in WHOLE and (value != int(value) or not 1 <= value <= WHOLE[name]):
            raise InputError(name, f"must be a whole number from 1 to {WHOLE[name]:g}", value)
    for name, known in (("batching", KINDS), ("loss", LOSSES)):
        if not isinstance(given[name], str) or given[name] not in known:
            raise InputError(name, "must be one of " + ", ".join(known), given[name])
    check_delta(given["delta"])
    if given["delta"] < LEAST_DELTA:
        raise InputError("delta", f"must be at least {LEAST_DELTA:g}", given["delta"])
    if given["batching"] != "full" and given["batch"] > given["n"]:
        raise InputError("batch", "must be at most n, the number of records", given["batch"],
                         f"n is {int(given['n']):,}")
    return Asked(_run(given), float(given["delta"]))


def _is_finite(value: object) -> bool:
    """Whether it is a number that a float holds."""
    try:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:  # of an integer with hundreds of digits
        return False


def _run(given: dict[str, Any]) -> Run:
    n, size, passes = (int(given[name]) for name in WHOLE)
    batching = _batching(given["batching"], n, size)
    per_pass = batching.blocks(n) if batching.blocks(n) > 1 else max(1, round(n / batching.expected_batch(n)))
    ridge, clip = float(given["ridge"]), float(given["clip"])
    loss = {
        "logistic": lambda: Logistic(ridge=ridge),
        "softmax of 10 classes": lambda: Softmax(classes=10, ridge=ridge),
        "huber-ridge": lambda: HuberRidge(residual_clip=1.0, ridge=ridge),
    }[given["loss"]]()
    return Run(
        n=n,
        steps=passes * per_pass,
        step_size=float(given["step"]),
        noise=NoiseMultiplier(float(given["noise"])),
        batching=batching,
        clip=clip or None,
        adjacency=given["adjacency"],
        loss=loss,
    )


def _batching(kind: str, n: int, size: int) -> Batching:
    if kind == "full":
        return FullBatch()
    return Poisson(size / n) if kind == "poisson" else cast(Any, KINDS[kind])(size)


def answer(fields: object, *, rows: str) -> dict[str, Any]:
    """What the page shows. ``rows``: "closed" for closed forms alone, "all", or "curves" for the pictures as well.

    ``final``: whether a later answer could differ.
    """
    asked = read(fields)
    theorems = CLOSED if rows == "closed" else tuple(TABLE.values())
    proof = Certificate.of(asked.run, theorems, Evidence.ENFORCED)
    best, epsilon = proof.best(asked.delta), proof.epsilon(asked.delta)
    shown: dict[str, Any] = {
        "epsilon": finite(epsilon), "theorem": None if best is None else best.theorem.name,
        "lower": finite(proof.lower(asked.delta)), "multiplier": asked.run.noise.z, "std": asked.run.first_noise,  # pyright: ignore
        "steps": asked.run.steps, "final": rows != "closed" or not asked.sampled,
        "why_not": proof.why_not() if best is None else "",
        "others": [[row["theorem"], row["kind"], row["epsilon"] if row["epsilon"] is None else finite(row["epsilon"])]
                   for row in proof.rows(asked.delta) if row["applies"]]}
    if rows == "curves":
        shown["curves"] = _curves(asked, proof)
    else:
        shown["copies"] = copies(asked)
    return shown


def _curves(asked: Asked, certificate: Certificate) -> Markup:
    """The report's own pictures of the run."""
    from lastiterate.accounting.comparison import Checked

    text = certificate.to_json(asked.delta)
    subject = Subject("run", json.loads(text), text, Checked((), None, asked.delta), certificate, described=True)
    return tag("div", sections.tradeoff(subject, moving=False), sections.steps(subject))


def copies(asked: Asked) -> dict[str, str]:
    """The run as Python, as a command and as JSON: each gives the same run."""
    run = asked.run
    parts = [
        f"n={run.n}",
        f"steps={run.steps}",
        f"step_size={run.first_step!r}",
        f"noise=li.{run.noise!r}",
        f"batching=li.{run.batching!r}",
        f"clip={run.clip!r}",
        f"adjacency={run.adjacency!r}",
        f"loss=li.{run.loss!r}",
    ]
    text = run.to_json()
    return {
        "python": f"import lastiterate as li\n\nrun = li.Run({', '.join(parts)})\nprint(li.account(run).explain("
                  f"{asked.delta!r}))\n",
        "cli": f"cat > run.json <<'END'\n{text}\nEND\nlastiterate account run.json --delta {asked.delta!r}\n",
        "json": text + "\n"}

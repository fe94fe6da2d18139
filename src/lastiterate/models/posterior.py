"""A posterior sample from a data file to a model folder, and back: ``lastiterate train --model bayes-linear``."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

from lastiterate.accounting.stored import Checked
from lastiterate.bayes.certificate import PosteriorCertificate, RidgePosterior
from lastiterate.bayes.linear import LinearModel, Neighbours
from lastiterate.bayes.ridge import ClippedRows, least_prior
from lastiterate.bayes.samples import PosteriorSample, sample_posterior
from lastiterate.errors import InputError
from lastiterate.run.arrays import Array

KIND = "bayes-linear"
GUESSES = tuple(float(b) for b in np.geomspace(1e-3, 10, 9))
"""Noise precisions that the plan chooses from, for labels in [-1, 1]."""


@dataclass(frozen=True, eq=False)
class Released:
    """A released sample, how it was described, and R^2 on held-out data of a bundled public set (else ``None``)."""

    sample: PosteriorSample
    delta: float
    score: float | None

    def text(self, where: str) -> str:
        """What ``train`` prints."""
        certificate, model = self.sample.certificate, self.sample.certificate.problem.model
        lines = [
            f"epsilon {certificate.epsilon(self.delta):.4g} at delta {self.delta:g}, {certificate.adjacency} adjacency "
            f"({certificate.under('replace-one').epsilon(self.delta):.4g} under replace-one)",
            f"one exact posterior sample: prior precision {model.prior_precision:.4g}, "
            f"noise precision {model.noise_precision:.4g}",
            *([] if self.score is None else [f"R^2 {self.score:.3f} on public test data"]),
            f"model {where}", *(f"- {text}" for text in certificate.caveats),
        ]
        return "\n".join(lines)


def planned(domain: ClippedRows, *, epsilon: float, delta: float) -> LinearModel:
    """The model within the budget with the least predicted error, from public numbers only.

    The prediction is for isotropic rows and labels of which 1/4 of the variance is explained: with m = beta n
    row_norm^2 / d it is (alpha / (alpha + m))^2 / 4 for the prior's pull and row_norm^2 / (alpha + m) for the sample.
    """
    def risk(model: LinearModel) -> float:
        alpha = model.prior_precision
        total = alpha + model.noise_precision * domain.n * domain.row_norm**2 / domain.features
        return (alpha / total) ** 2 / 4 + domain.row_norm**2 / total

    return min((least_prior(domain, epsilon=epsilon, delta=delta, noise_precision=beta) for beta in GUESSES), key=risk)


def release(data: str, where: Path, *, schema: Any, epsilon: float, delta: float | str = "auto",
            row_norm: float | None = None, adjacency: Neighbours = "zero-out", test: str | None = None) -> Released:
    """Sample from the posterior of ridge regression given a file (or a bundled set), certify it, write a folder.

    Features and target are scaled by public ranges to [-1, 1]; a constant column is added. Nothing is written unless
    the certificate exists.
    """
    from safetensors.numpy import save as pack

    from lastiterate.data import BUNDLED, encode, load_bundled, read_table, split
    from lastiterate.data.schema import public_row_norm
    from lastiterate.models import folder as artefact
    from lastiterate.planning.planner import automatic_delta

    if test is not None:
        raise InputError("--test", f"is not scored for {KIND}", test, "leave it out")
    table, own = load_bundled(data) if data in BUNDLED else (read_table(data), schema)
    if own is None or not own.regression:
        raise InputError("--model", "needs a target that is a range of numbers", KIND, "use logistic for classes")
    features, target = encode(table, own)
    kept = split(len(features), seed=0) if data in BUNDLED else (np.arange(len(features)), np.arange(0))
    norm = public_row_norm(own, features.shape[1]) if row_norm is None else row_norm
    rows = design(features, norm)
    domain = ClippedRows(n=len(kept[0]), features=rows.shape[1], row_norm=math.hypot(norm, 1.0) * (1 + 1e-12))
    chosen = automatic_delta(domain.n) if isinstance(delta, str) else delta
    problem = RidgePosterior(planned(domain, epsilon=epsilon, delta=chosen), domain)
    sample = sample_posterior(problem, rows[kept[0]], target[kept[0]], adjacency=adjacency)
    model = {"format": 1, "kind": KIND, "schema": own.to_dict(), "row_norm": norm}
    artefact.save(where, pack({"weights": sample.value}), model, cast(Any, sample.certificate), chosen)
    return Released(sample, chosen, _r2(rows[kept[1]] @ sample.value, target[kept[1]]) if kept[1].size else None)


def design(features: Any, norm: float) -> Array:
    """Rows scaled down to ``norm``, shape (n, d), with a constant column: shape (n, d + 1)."""
    n, d = features.shape
    rows, _ = ClippedRows(n=n, features=d, row_norm=norm).clip(features, np.zeros(n))
    return np.column_stack([rows, np.ones(n)])


def predict(folder: Path, data: str) -> Array:
    """Predictions in the target's own units for every record of a file, shape (n,)."""
    from safetensors.numpy import load as unpack

    from lastiterate.data import Schema, encode_features, read_table
    from lastiterate.models import folder as artefact

    model, packed = artefact.load(folder)
    schema = Schema.from_dict(model["schema"])
    weights = unpack(packed)["weights"]
    low, high = cast(Any, schema.target_range)
    found = design(encode_features(read_table(data), schema), model["row_norm"]) @ weights
    return low + (np.clip(found, -1, 1) + 1) * (high - low) / 2


def prediction_rows(folder: Path, data: str) -> tuple[list[str], list[list[str]]]:
    """Header and rows of the CSV that the command ``predict`` writes."""
    return ["prediction"], [[f"{value:.6g}"] for value in predict(folder, data)]


def wrote(path: Path) -> bool:
    """Whether a folder, or a single certificate, is that of a posterior sample."""
    from lastiterate.models import folder as artefact

    file = path / artefact.CERTIFICATE if path.is_dir() else path
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(found, dict) and "problem" in found


def checked(path: Path) -> Checked:
    """What the command ``verify`` says about a folder or a single certificate."""
    from lastiterate.models import folder as artefact

    text = (path / artefact.CERTIFICATE if path.is_dir() else path).read_text(encoding="utf-8")
    stored, problems = json.loads(text), list[str]()
    try:
        _ = verify(path) if path.is_dir() else PosteriorCertificate.from_json(text)
    except InputError as error:
        problems.append(str(error))
    return Checked(tuple(problems), stored.get("epsilon"), stored.get("delta", math.nan))


def verify(folder: Path) -> PosteriorCertificate:
    """The certificate of a folder, derived again from its problem; ``InputError`` if anything differs."""
    from lastiterate.models import folder as artefact

    artefact.load(folder)
    text = (folder / artefact.CERTIFICATE).read_text(encoding="utf-8")
    found, stored = PosteriorCertificate.from_json(text), json.loads(text)
    for name, key in ((artefact.WEIGHTS, "weights_sha256"), (artefact.MODEL, "model_sha256")):
        if hashlib.sha256((folder / name).read_bytes()).hexdigest() != stored.get(key):
            raise InputError("model", f"holds another {name} than the one that was certified", str(folder))
    return found


def _r2(found: Array, target: Any) -> float:
    target = np.asarray(target, dtype=np.float64)
    return float(1 - ((target - found) ** 2).sum() / ((target - target.mean()) ** 2).sum())

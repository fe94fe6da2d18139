"""One valid object of every class that a run can be made of, and runs that hold them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

import lastiterate as li
from lastiterate.run import domains, penalties
from lastiterate.run.batching import Batching
from lastiterate.run.noisy_counts import NoisyCount, NoisyGroups
from lastiterate.run.preprocessing import (
    CosineFeatures,
    PrivateCovariance,
    PrivateTargetMean,
    SquareRoots,
    TopEigenvalue,
    UnitRows,
)
from lastiterate.run.run import DESCRIPTIONS
from lastiterate.run.step_sizes import FixedStart, RelativeToSmooth

BASE = li.Run(n=100, steps=3, step_size=0.1, noise=li.GradientNoise(0.2), clip=1.0)

PARTS: dict[type, Any] = {
    type(part): part
    for part in (
        li.Constant(0.1),
        li.InverseDecay(2.0, 0.1),
        li.StepSchedule((0.1, 0.2, 0.3)),
        RelativeToSmooth(1.5),
        li.StableSteps((0.3, 0.2, 0.1)),
        li.GradientNoise((0.1, 0.2, 0.3)),
        li.Langevin(0.1),
        li.NoiseMultiplier(2.0),
        li.Correlated(2.0, (1.0, 0.5, 0.2), decay=0.3),
        li.NoisySGD(),
        li.TailAverage(0.3),
        li.ExponentialAverage(0.9),
        li.ObjectivePerturbation(6),
        li.VarianceReduced(3, 1.5),
        *(kind.of_size(100, 10) for kind in get_args(Batching)),
        domains.Everywhere(),
        domains.Ball(2.0),
        domains.Box(-1.0, 1.0, 4),
        domains.Simplex(1.0),
        domains.AffineBall(2.0, ((1.0, 0.5),), (0.25,)),
        penalties.L1(0.1),
        penalties.L2Squared(0.1),
        penalties.ElasticNet(0.1, 0.2),
        penalties.GroupLasso(0.1, 1),
        penalties.NuclearNorm(0.1),
        FixedStart(),
        li.GaussianStart(0.5),
        li.Nesterov(),
        li.HeavyBall(0.9),
        li.Adam(noise_floor=0.1),
        li.PostProcessing("adamw", "coupled"),
        li.PrivateMean(5.0, 1.0),
        PrivateTargetMean(5.0),
        SquareRoots(),
        UnitRows(),
        CosineFeatures(5.0, 7),
        PrivateCovariance(5.0),
        TopEigenvalue(5.0),
        NoisyCount(5.0, 20, "apart"),
        NoisyGroups(5.0, 20, ("a", "b")),
        li.Calibration(5.0),
        li.AssumedSlope(0.5),
        li.RecordAugmentation("flips", 4),
        li.Logistic(ridge=0.1),
        li.Softmax(classes=3, row_norm=2.0, cap=0.2, class_weights=(0.5, 1.0, 0.1)),
        li.HuberRidge(residual_clip=0.5),
        li.KnownConstants(li.LossFacts(lipschitz=1.0, smooth=2.0, strong=0.5)),
    )
}


def holding(part: Any, run: li.Run = BASE) -> li.Run:
    """The run with ``part`` in the field of its kind."""
    field = next(
        name
        for name, kinds in DESCRIPTIONS.items()
        if any(isinstance(part, kind) for kind in kinds)
    )
    found = {field: (part,) if field in ("preprocessing", "counts") else part}
    if isinstance(part, NoisyCount | NoisyGroups | li.Calibration | li.AssumedSlope):
        found |= {"loss": li.Logistic()}
    if isinstance(part, PrivateTargetMean):
        found |= {"loss": li.HuberRidge()}
    if isinstance(part, li.StableSteps):
        found |= {
            "preprocessing": (PrivateCovariance(5.0),),
            "optimizer": li.HeavyBall(0.5),
            "loss": li.Logistic(),
        }
    if isinstance(part, li.ObjectivePerturbation):
        found |= {"noise": li.NoiseMultiplier(2.0), "clip": None, "loss": li.Logistic(ridge=0.1)}
    if isinstance(part, li.VarianceReduced):
        found |= {
            "noise": li.NoiseMultiplier(2.0),
            "clip": None,
            "loss": li.Logistic(),
            "batching": li.Poisson(0.1),
        }
    if isinstance(part, li.PostProcessing):
        found |= {"step_size": li.Constant(1.0)}
    if isinstance(part, RelativeToSmooth):
        found |= {
            "preprocessing": (TopEigenvalue(5.0),),
            "noise": li.NoiseMultiplier(1.0),
            "loss": li.Logistic(),
        }
    return replace(run, **found)


RUNS = [holding(part) for part in PARTS.values()]

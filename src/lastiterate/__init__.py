"""Differentially private training for people who release only the final model."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from lastiterate.accounting import account, calibrate
    from lastiterate.certificate import Certificate
    from lastiterate.domains import AffineBall, Ball, Box, Everywhere, Simplex
    from lastiterate.errors import RepeatedFitWarning
    from lastiterate.evidence import Evidence, Fact
    from lastiterate.losses import Abstract, HuberRidge, Logistic, LossFacts, Softmax
    from lastiterate.prox import L1, ElasticNet, GroupLasso, L2Squared, NuclearNorm
    from lastiterate.run import Run
    from lastiterate.schedules import (
        BallsInBins,
        Constant,
        Cyclic,
        Fixed,
        FixedSize,
        FullBatch,
        GaussianStart,
        GradientNoise,
        HeavyBall,
        InverseDecay,
        Langevin,
        Nesterov,
        NoiseMultiplier,
        Permuted,
        Poisson,
        PrivateMean,
        Reshuffled,
        Steps,
    )
    from lastiterate.training import falsify, train

_HOME = {
    "accounting": ("account", "calibrate"),
    "certificate": ("Certificate",),
    "domains": ("AffineBall", "Ball", "Box", "Everywhere", "Simplex"),
    "errors": ("RepeatedFitWarning",),
    "evidence": ("Evidence", "Fact"),
    "losses": ("Abstract", "HuberRidge", "Logistic", "LossFacts", "Softmax"),
    "prox": ("ElasticNet", "GroupLasso", "L1", "L2Squared", "NuclearNorm"),
    "run": ("Run",),
    "schedules": ("BallsInBins", "Constant", "Cyclic", "Fixed", "FixedSize", "FullBatch", "GaussianStart",
                  "GradientNoise", "HeavyBall", "InverseDecay", "Langevin", "Nesterov", "NoiseMultiplier", "Permuted",
                  "Poisson", "PrivateMean", "Reshuffled", "Steps"),
    "training": ("falsify", "train"),
}
_WHERE = {name: module for module, names in _HOME.items() for name in names}

__all__ = [
    "L1", "Abstract", "AffineBall", "Ball", "BallsInBins", "Box", "Certificate", "Constant", "Cyclic", "ElasticNet",
    "Everywhere", "Evidence", "Fact", "Fixed", "FixedSize", "FullBatch", "GaussianStart", "GradientNoise", "GroupLasso",
    "HeavyBall", "HuberRidge", "InverseDecay", "L2Squared", "Langevin", "Logistic", "LossFacts", "Nesterov",
    "NoiseMultiplier", "NuclearNorm", "Permuted", "Poisson", "PrivateMean", "RepeatedFitWarning", "Reshuffled", "Run",
    "Simplex", "Softmax", "Steps", "account", "calibrate", "falsify",
    "train",
]


def __getattr__(name: str) -> Any:
    """Public names are looked up on first use (PEP 562), so that the import stays light."""
    if name in _WHERE:
        value = getattr(import_module(f"lastiterate.{_WHERE[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'lastiterate' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

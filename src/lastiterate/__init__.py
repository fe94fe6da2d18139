"""Differentially private training for people who release only the final model."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from lastiterate.accounting import account, calibrate
    from lastiterate.certificate import Certificate
    from lastiterate.errors import RepeatedFitWarning
    from lastiterate.evidence import Evidence, Fact
    from lastiterate.losses import Abstract, HuberRidge, Logistic, LossFacts, Softmax
    from lastiterate.run import Run
    from lastiterate.schedules import (
        Ball,
        BallsInBins,
        Box,
        Constant,
        Cyclic,
        Everywhere,
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

_HOME = {
    "accounting": ("account", "calibrate"),
    "certificate": ("Certificate",),
    "errors": ("RepeatedFitWarning",),
    "evidence": ("Evidence", "Fact"),
    "losses": ("Abstract", "HuberRidge", "Logistic", "LossFacts", "Softmax"),
    "run": ("Run",),
    "schedules": ("Ball", "BallsInBins", "Box", "Constant", "Cyclic", "Everywhere", "Fixed", "FixedSize", "FullBatch",
                  "GaussianStart", "GradientNoise", "HeavyBall", "InverseDecay", "Langevin", "Nesterov",
                  "NoiseMultiplier", "Permuted", "Poisson", "PrivateMean", "Reshuffled", "Steps"),
}
_WHERE = {name: module for module, names in _HOME.items() for name in names}

__all__ = [
    "Abstract", "Ball", "BallsInBins", "Box", "Certificate", "Constant", "Cyclic", "Everywhere", "Evidence", "Fact",
    "Fixed", "FixedSize", "FullBatch", "GaussianStart", "GradientNoise", "HeavyBall", "HuberRidge", "InverseDecay",
    "Langevin", "Logistic", "LossFacts", "Nesterov", "NoiseMultiplier", "Permuted", "Poisson", "PrivateMean",
    "RepeatedFitWarning", "Reshuffled", "Run", "Softmax", "Steps", "account", "calibrate",
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

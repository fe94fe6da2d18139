"""Differentially private training for people who release only the final model."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from lastiterate.accounting.calibration import calibrate
    from lastiterate.accounting.certificate import Certificate, account
    from lastiterate.accounting.stored import read_certificate
    from lastiterate.errors import RepeatedFitWarning
    from lastiterate.models.training import falsify, train
    from lastiterate.run.batching import BallsInBins, Cyclic, FixedSize, FullBatch, Permuted, Poisson, Reshuffled
    from lastiterate.run.domains import AffineBall, Ball, Box, Everywhere, Simplex
    from lastiterate.run.evidence import Evidence, Fact
    from lastiterate.run.facts import LossFacts
    from lastiterate.run.losses import Abstract, HuberRidge, Logistic, Softmax
    from lastiterate.run.noise import GradientNoise, Langevin, NoiseMultiplier
    from lastiterate.run.penalties import L1, ElasticNet, GroupLasso, L2Squared, NuclearNorm
    from lastiterate.run.run import Run
    from lastiterate.run.starts import Fixed, GaussianStart, HeavyBall, Nesterov, PrivateMean
    from lastiterate.run.step_sizes import Constant, InverseDecay, Steps

_HOME = {
    "accounting.calibration": ("calibrate",),
    "accounting.certificate": ("Certificate", "account"),
    "accounting.stored": ("read_certificate",),
    "run.domains": ("AffineBall", "Ball", "Box", "Everywhere", "Simplex"),
    "errors": ("RepeatedFitWarning",),
    "run.evidence": ("Evidence", "Fact"),
    "run.facts": ("LossFacts",),
    "run.losses": ("Abstract", "HuberRidge", "Logistic", "Softmax"),
    "run.penalties": ("ElasticNet", "GroupLasso", "L1", "L2Squared", "NuclearNorm"),
    "run.run": ("Run",),
    "run.step_sizes": ("Constant", "InverseDecay", "Steps"),
    "run.noise": ("GradientNoise", "Langevin", "NoiseMultiplier"),
    "run.batching": ("BallsInBins", "Cyclic", "FixedSize", "FullBatch", "Permuted", "Poisson", "Reshuffled"),
    "run.starts": ("Fixed", "GaussianStart", "HeavyBall", "Nesterov", "PrivateMean"),
    "models.training": ("falsify", "train"),
}
_WHERE = {name: module for module, names in _HOME.items() for name in names}

__all__ = [
    "L1", "Abstract", "AffineBall", "Ball", "BallsInBins", "Box", "Certificate", "Constant", "Cyclic", "ElasticNet",
    "Everywhere", "Evidence", "Fact", "Fixed", "FixedSize", "FullBatch", "GaussianStart", "GradientNoise", "GroupLasso",
    "HeavyBall", "HuberRidge", "InverseDecay", "L2Squared", "Langevin", "Logistic", "LossFacts", "Nesterov",
    "NoiseMultiplier", "NuclearNorm", "Permuted", "Poisson", "PrivateMean", "RepeatedFitWarning", "Reshuffled", "Run",
    "Simplex", "Softmax", "Steps", "account", "calibrate", "falsify", "read_certificate", "train",
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

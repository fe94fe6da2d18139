"""scikit-learn estimators: a budget in, a model and its certificate out."""

from lastiterate.estimators.classifier import DPLogisticRegression
from lastiterate.estimators.grid_search import DPSearchCV
from lastiterate.estimators.onnx_converters import register_onnx_converters
from lastiterate.estimators.regressor import DPHuberRidge
from lastiterate.estimators.released_estimators import (
    ReleasedClassifier,
    ReleasedRegressor,
    list_trusted_types,
)

__all__ = [
    "DPHuberRidge",
    "DPLogisticRegression",
    "DPSearchCV",
    "ReleasedClassifier",
    "ReleasedRegressor",
    "list_trusted_types",
    "register_onnx_converters",
]

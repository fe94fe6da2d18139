"""scikit-learn estimators: a budget in, a model and its certificate out."""

from lastiterate.estimators.classifier import DPLogisticRegression
from lastiterate.estimators.grid_search import DPSearchCV
from lastiterate.estimators.onnx_converters import register_onnx_converters
from lastiterate.estimators.regressor import DPHuberRidge

__all__ = ["DPHuberRidge", "DPLogisticRegression", "DPSearchCV", "register_onnx_converters"]

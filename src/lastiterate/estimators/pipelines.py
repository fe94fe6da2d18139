"""A warning where a step of scikit-learn's pipeline has learned from the private rows before they were paid for."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from types import FrameType
from typing import Any

from sklearn.pipeline import Pipeline
from sklearn.utils import get_tags

DEPTH = 40
"""Callers that are looked at."""


class UnpaidStepWarning(UserWarning):
    """What a pipeline learned from private rows is not covered by the certificate."""


def warn_of_learned_steps(estimator: object) -> None:
    """Name the steps of the pipeline that is fitting ``estimator`` and that learn from rows.

    Whether a step learns is what it says itself (scikit-learn's tag ``requires_fit``). Steps that were applied outside
    a pipeline cannot be noticed.
    """
    pipeline = _fitting(estimator)
    if pipeline is None:
        return
    names = [name for name, step in pipeline.steps[:-1] for name in _learned(name, step)]
    if names:
        warnings.warn(f"the certificate does not cover {', '.join(names)}: what a step of the pipeline learned from "
                      "the private rows was not paid for; public ranges in a schema (SchemaTransformer) take its place",
                      UnpaidStepWarning, stacklevel=4)


def _fitting(estimator: object) -> Pipeline | None:
    frame: FrameType | None = sys._getframe(1)
    for _ in range(DEPTH):
        if frame is None:
            return None
        caller = frame.f_locals.get("self")
        if isinstance(caller, Pipeline) and caller.steps[-1][1] is estimator:
            return caller
        frame = frame.f_back
    return None


def _learned(name: str, step: Any) -> Iterator[str]:
    """The step itself, or those of its parts, that learn."""
    inner = [(f"{name}.{part[0]}", part[1]) for attribute in ("steps", "transformers", "transformer_list")
             for part in vars(step).get(attribute, ())] if not isinstance(step, str) and step is not None else []
    if inner:
        for part, one in inner:
            yield from _learned(part, one)
    elif step is not None and not isinstance(step, str) and get_tags(step).requires_fit:
        yield name

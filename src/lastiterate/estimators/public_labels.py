"""The public labels of a classifier: given, or taken from the data."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from lastiterate.errors import InputError, outside

CLASSES_CAVEAT = "the set of labels was taken from the data and is treated as public"


def public_labels(classes: Any, seen: np.ndarray, caveats: list[str]) -> np.ndarray:
    """The public label set: given, or taken from the data with a warning and a caveat."""
    if classes is None:
        warnings.warn("classes=None: the labels found in y are treated as public; pass classes= to avoid it",
                      UserWarning, stacklevel=outside())
        caveats.append(CLASSES_CAVEAT)
        return seen
    if isinstance(classes, str | bytes) or np.ndim(classes) != 1:
        raise InputError("classes", "must be a sequence of labels", classes, "write them as a list: [0, 1]")
    labels = np.unique(np.asarray(classes))
    if len(labels) < np.size(classes):
        raise InputError("classes", "must name every label once", classes)
    unknown = np.setdiff1d(seen, labels)
    if unknown.size:
        raise InputError("y", "must hold only the public classes", None, "add the missing label to classes=")
    return labels

"""Public weights of classes: what a record's contribution is multiplied by, at most 1.

The largest weight is 1, so that no record contributes more than it would without weights: every bound on a record, its
clip, its Lipschitz constant and its smoothness hold as they are for every class. Only ratios matter to the classifier.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

from lastiterate.errors import InputError
from lastiterate.run.validate import number

LEAST = 1e-9
Weights = tuple[float, ...] | None
"""One for every class, in the order of class indices; ``None``: all count alike."""


def check_class_weights(weights: Weights, classes: int) -> None:
    """Refuse weights that are not one for each class, or that would let a record contribute more than its bounds."""
    if weights is None:
        return
    rule = f"must hold {classes} numbers from {LEAST:g} to 1, one for each class, and the largest must be 1"
    if len(weights) != classes or not all(LEAST <= weight <= 1 for weight in weights) or max(weights) != 1:
        raise InputError("class_weights", rule, weights, "divide them by the largest: only their ratios count")


def relative_weights(given: object, labels: Sequence[Any]) -> Weights:
    """Weights by class index, divided by the largest, of a public dictionary from labels to positive numbers.

    Errors: "balanced", which would count private labels; labels that are no class; a class without a weight.
    """
    if given is None:
        return None
    if len(labels) < 2:
        raise InputError("class_weight", "is for classes", None, "leave it out")
    if isinstance(given, str):
        raise InputError("class_weight", "must be a dictionary from labels to public weights; 'balanced' would count "
                         "private labels", given, f"write {{{labels[0]!r}: 1, {labels[1]!r}: 5}}, of public numbers")
    if not isinstance(given, Mapping):
        raise InputError("class_weight", "must be a dictionary from labels to public weights", type(given).__name__)
    entries = cast("Mapping[object, object]", given)
    named = {str(label): value for label, value in entries.items()}
    strange, missing = sorted(set(named) - set(map(str, labels))), sorted(set(map(str, labels)) - set(named))
    if strange or missing or len(named) != len(entries):
        raise InputError("class_weight", "must have one weight for each of the classes, and none for anything else",
                         (strange or missing or sorted(named))[0], "the classes are " + ", ".join(map(str, labels)))
    weights = [number(f"class_weight of {label}", named[str(label)]) for label in labels]
    largest = max(weights)
    if not all(math.isfinite(weight) and weight > 0 for weight in weights) or min(weights) < LEAST * largest:
        raise InputError("class_weight", "must hold positive numbers, none less than a billionth of the largest",
                         weights, "leave out records that must not count")
    return None if min(weights) == largest else tuple(weight / largest for weight in weights)

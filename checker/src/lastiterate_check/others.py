"""What is certified without steps of a run alone: selection, exact posterior samples, forgetting."""

from __future__ import annotations

from typing import Any

from lastiterate_check.balls import Curve
from lastiterate_check.run import NotCovered


def selected(curve: Curve, law: dict[str, Any]) -> Curve:
    raise NotCovered("selection")


def posterior(problem: dict[str, Any], adjacency: str) -> Curve:
    raise NotCovered("posteriors")


def forgotten(body: dict[str, Any], lines: list[str]) -> Curve:
    raise NotCovered("forgetting")

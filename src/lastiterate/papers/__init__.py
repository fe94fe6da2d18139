"""Figures and tables of the papers the project builds on: the published value beside ours, one item each."""

from __future__ import annotations

from lastiterate.papers import (
    bok,
    chourasia_privacy,
    heller_fetaya,
    kong_ribero,
    kong_ribero_runs,
    rivals,
    ryffel_privacy,
    sampling,
    utility,
)
from lastiterate.papers.item import Item, Panel, Result, Row, Trace, Work

ITEMS: tuple[Item, ...] = (
    *chourasia_privacy.ITEMS, *utility.ITEMS, *rivals.ITEMS, *ryffel_privacy.ITEMS, *kong_ribero.ITEMS,
    *kong_ribero_runs.ITEMS, *heller_fetaya.ITEMS, *bok.ITEMS, *sampling.ITEMS,
)
"""Every item, in the order in which they are listed."""

__all__ = ["ITEMS", "Item", "Panel", "Result", "Row", "Trace", "Work"]

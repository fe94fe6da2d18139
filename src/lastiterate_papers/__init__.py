"""Figures and tables of the papers that the project builds on: one item each, with the published
value next to ours."""

from __future__ import annotations

from lastiterate_papers import (
    bok,
    chien,
    chourasia_dynamics,
    chourasia_privacy,
    heller_fetaya,
    heller_fetaya_networks,
    heller_fetaya_sample,
    kong_ribero,
    kong_ribero_runs,
    later_texts,
    rivals,
    ryffel_privacy,
    ryffel_risk,
    ryffel_table3,
    ryffel_tables,
    sampling_from_below,
    utility,
)
from lastiterate_papers.item import Item, Panel, Result, Row, Setting, Trace, Work

ITEMS: tuple[Item, ...] = (
    *chourasia_privacy.ITEMS,
    *chourasia_dynamics.ITEMS,
    *rivals.ITEMS,
    *utility.ITEMS,
    *ryffel_risk.ITEMS,
    *ryffel_privacy.ITEMS,
    *ryffel_tables.ITEMS,
    *ryffel_table3.ITEMS,
    *kong_ribero.ITEMS,
    *kong_ribero_runs.ITEMS,
    *heller_fetaya.ITEMS,
    *heller_fetaya_sample.ITEMS,
    *heller_fetaya_networks.ITEMS,
    *bok.ITEMS,
    *sampling_from_below.ITEMS,
    *later_texts.ITEMS,
    *chien.ITEMS,
)
"""Every item, in the order in which they are listed."""

__all__ = ["ITEMS", "Item", "Panel", "Result", "Row", "Setting", "Trace", "Work"]

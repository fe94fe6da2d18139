"""What epsilon others published for data of people, so that a reader has something to compare with.

Only figures that their releasers published themselves. Units, neighbours and deltas differ, so that a smaller number is
not by itself a stronger promise; the table says so.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Deployment:
    """``low`` to ``high``: epsilon as published; ``delta`` as text, "" where the announcement gives none."""

    name: str
    low: float
    high: float
    delta: str
    unit: str
    source: str


DEPLOYMENTS = (
    Deployment("Language models of a keyboard (Gboard)", 0.994, 13.69, "1e-10", "one person",
               "Google Research, Advances in private training for production on-device language models, 2024"),
    Deployment("A language model with open weights (VaultGemma)", 2.0, 2.0, "1.1e-10",
               "one sequence of 1,024 tokens", "VaultGemma Team, arXiv:2510.15001"),
    Deployment("Word suggestions in office programs (Assistive AI)", 4.0, 4.0, "below 1e\N{NON-BREAKING HYPHEN}7",
               "one person", "Microsoft 2020, as listed by OpenDP's deployments registry"),
    Deployment("Counts for redistricting, census of the United States 2020", 19.61, 19.61, "", "one person or housing "
               "unit", "U.S. Census Bureau, announcement of 9 June 2021"),
)
"""The smallest upper end first."""

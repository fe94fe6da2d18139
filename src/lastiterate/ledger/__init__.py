"""A record of what was released about a data set, and a budget that no sequence of releases
exceeds."""

from lastiterate.ledger.budget_check import Release, Total
from lastiterate.ledger.filters import Charge, GaussianFilter, RenyiFilter
from lastiterate.ledger.ledger import Ledger

__all__ = ["Charge", "GaussianFilter", "Ledger", "Release", "RenyiFilter", "Total"]

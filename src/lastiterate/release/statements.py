"""A certificate as it lies in a folder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lastiterate.accounting.certificate import Certificate


@dataclass(frozen=True, eq=False)
class Written:
    """It is derived again, and compared, when somebody asks for it."""

    body: dict[str, Any]

    def derived(self) -> Certificate:
        return Certificate.from_dict(self.body)

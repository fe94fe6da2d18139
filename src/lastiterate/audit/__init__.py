"""Audits: attack a trainer, and put a lower bound on its epsilon beside the certificate's upper bound.

Names are looked up on first use, so that the statistics alone never load the engine.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lastiterate.audit.adversarial_image import ImageModel, ImageNeighbours, instantiate
    from lastiterate.audit.adversary import Effort, attack_network
    from lastiterate.audit.attacks import ATTACKS
    from lastiterate.audit.auditing import audit
    from lastiterate.audit.canaries import worst_case
    from lastiterate.audit.langevin_network import langevin_run, with_prior
    from lastiterate.audit.lenet import lenet_logits, lenet_loss, lenet_parameters
    from lastiterate.audit.neighbours import DataSet, Neighbours
    from lastiterate.audit.one_run import OneRunReport, audit_one_run
    from lastiterate.audit.one_run_statistics import one_run_epsilon
    from lastiterate.audit.outcome import AuditReport

_WHERE = {"ATTACKS": "attacks", "audit": "auditing", "OneRunReport": "one_run", "audit_one_run": "one_run",
          "worst_case": "canaries", "one_run_epsilon": "one_run_statistics",
          "AuditReport": "outcome", "DataSet": "neighbours", "Neighbours": "neighbours",
          "Effort": "adversary", "attack_network": "adversary", "ImageModel": "adversarial_image",
          "ImageNeighbours": "adversarial_image",
          "instantiate": "adversarial_image", "langevin_run": "langevin_network", "with_prior": "langevin_network",
          "lenet_logits": "lenet", "lenet_loss": "lenet", "lenet_parameters": "lenet"}

__all__ = [
    "ATTACKS",
    "AuditReport",
    "DataSet",
    "Effort",
    "ImageModel",
    "ImageNeighbours",
    "Neighbours",
    "OneRunReport",
    "attack_network",
    "audit",
    "audit_one_run",
    "instantiate",
    "langevin_run",
    "lenet_logits",
    "lenet_loss",
    "lenet_parameters",
    "one_run_epsilon",
    "with_prior",
    "worst_case",
]


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        value = getattr(import_module(f"lastiterate.audit.{_WHERE[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'lastiterate.audit' has no attribute {name!r}")

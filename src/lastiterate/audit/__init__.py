"""Audits: attack a trainer, and put a lower bound on its epsilon beside the certificate's upper bound.

Names are looked up on first use, so that the statistics alone never load the engine.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lastiterate.audit.adversary import Effort, attack_network
    from lastiterate.audit.attacks import ATTACKS
    from lastiterate.audit.auditing import audit
    from lastiterate.audit.canaries import worst_case
    from lastiterate.audit.coins import OneRunReport, audit_once
    from lastiterate.audit.langevin_network import langevin_run, with_prior
    from lastiterate.audit.lenet import lenet_logits, lenet_loss, lenet_parameters
    from lastiterate.audit.neighbours import ImageModel, Neighbours, instantiate
    from lastiterate.audit.one_run import one_run_epsilon
    from lastiterate.audit.outcome import AuditReport
    from lastiterate.audit.worlds import World, Worlds

_WHERE = {"ATTACKS": "attacks", "audit": "auditing", "OneRunReport": "coins", "audit_once": "coins",
          "worst_case": "canaries", "one_run_epsilon": "one_run",
          "AuditReport": "outcome", "World": "worlds", "Worlds": "worlds",
          "Effort": "adversary", "attack_network": "adversary", "ImageModel": "neighbours", "Neighbours": "neighbours",
          "instantiate": "neighbours", "langevin_run": "langevin_network", "with_prior": "langevin_network",
          "lenet_logits": "lenet", "lenet_loss": "lenet", "lenet_parameters": "lenet"}

__all__ = ["ATTACKS", "AuditReport", "Effort", "ImageModel", "Neighbours", "OneRunReport", "World", "Worlds",
           "attack_network", "audit", "audit_once", "instantiate", "langevin_run", "lenet_logits", "lenet_loss",
           "lenet_parameters", "one_run_epsilon", "with_prior", "worst_case"]


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        value = getattr(import_module(f"lastiterate.audit.{_WHERE[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'lastiterate.audit' has no attribute {name!r}")

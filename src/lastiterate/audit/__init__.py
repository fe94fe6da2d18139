"""Audits: attack a trainer, and put a lower bound on its epsilon beside the certificate's upper bound."""

from lastiterate.audit.attacks import ATTACKS
from lastiterate.audit.auditing import audit
from lastiterate.audit.canaries import worst_case
from lastiterate.audit.one_run import one_run_epsilon
from lastiterate.audit.outcome import AuditReport
from lastiterate.audit.worlds import World, Worlds

__all__ = ["ATTACKS", "AuditReport", "World", "Worlds", "audit", "one_run_epsilon", "worst_case"]

"""The public names of this package (see ``lazy``)."""

from lastiterate.audit.attacks import ATTACKS as ATTACKS
from lastiterate.audit.canaries import DataSet as DataSet
from lastiterate.audit.canaries import Neighbours as Neighbours
from lastiterate.audit.canaries import worst_case as worst_case
from lastiterate.audit.networks import fit_networks as fit_networks
from lastiterate.audit.networks import weights_after as weights_after
from lastiterate.audit.one_run import OneRunReport as OneRunReport
from lastiterate.audit.one_run import audit_one_run as audit_one_run
from lastiterate.audit.report import AuditReport as AuditReport
from lastiterate.audit.runner import audit as audit
from lastiterate.audit.statistics import one_run_epsilon as one_run_epsilon
from lastiterate.engine.constant_refutation import falsify as falsify

__all__: list[str]

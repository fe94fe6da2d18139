"""The public names of this package (see ``lazy``)."""

from lastiterate.audit.adversarial_image import ImageModel as ImageModel
from lastiterate.audit.adversarial_image import ImageNeighbours as ImageNeighbours
from lastiterate.audit.adversarial_image import all_logits as all_logits
from lastiterate.audit.adversarial_image import instantiate as instantiate
from lastiterate.audit.adversary import Effort as Effort
from lastiterate.audit.adversary import attack_network as attack_network
from lastiterate.audit.attacks import ATTACKS as ATTACKS
from lastiterate.audit.auditing import audit as audit
from lastiterate.audit.canaries import worst_case as worst_case
from lastiterate.audit.checkpoints import fit_networks as fit_networks
from lastiterate.audit.checkpoints import weights_after as weights_after
from lastiterate.audit.neighbours import DataSet as DataSet
from lastiterate.audit.neighbours import Neighbours as Neighbours
from lastiterate.audit.one_run import OneRunReport as OneRunReport
from lastiterate.audit.one_run import audit_one_run as audit_one_run
from lastiterate.audit.one_run_statistics import one_run_epsilon as one_run_epsilon
from lastiterate.audit.outcome import AuditReport as AuditReport
from lastiterate.engine.counterexamples import falsify as falsify

__all__: list[str]

"""What a path on the command line names: a run, or the run of a released model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lastiterate.accounting.certificate import Certificate, account
from lastiterate.accounting.exact_steps import ExactRun
from lastiterate.accounting.unlearning import Unlearning
from lastiterate.audit.auditing import certificate_of
from lastiterate.errors import InputError
from lastiterate.release import folder, loading
from lastiterate.release.fitted_linear import FittedLinear
from lastiterate.run import strict_json
from lastiterate.run.evidence import Evidence
from lastiterate.run.run import Run


@dataclass(frozen=True)
class Subject:
    """A run to audit, and the delta at which its certificate speaks (``None`` if it has none)."""

    run: Run
    delta: float | None = None
    at_least: Evidence = Evidence.ENFORCED
    kind: str = "run"  #: of the released model, where there is one
    forgetting: Certificate | None = None  #: of a model that forgot, whose last steps ``run`` is
    exact: bool = False  #: whether the noise of ``run`` is exact

    @property
    def attacked(self) -> Run | ExactRun:
        """What ``audit`` takes."""
        return ExactRun(self.run) if self.exact else self.run

    @property
    def whole(self) -> Certificate:
        """Of all that is described, what is attacked and what is not."""
        if self.forgetting is not None:
            return self.forgetting
        return Certificate(ExactRun(self.run)) if self.exact else account(self.run, at_least=self.at_least)

    @property
    def certificate(self) -> Certificate:
        """Of what is attacked."""
        return Certificate(ExactRun(self.run)) if self.exact else certificate_of(self.run, self.at_least)


def read(path: Path) -> Subject:
    """The run in a JSON file, or in the certificate of a folder that train wrote.

    Only the description is used: the model's own data are not touched. Errors: a folder that does not verify.
    """
    if not path.exists():
        raise InputError("audit", "needs an existing run file or model folder", str(path))
    if not path.is_dir():
        return Subject(Run.from_dict(strict_json.read(path, "run")))
    whole = folder.read(path)
    if problems := loading.verify(path).problems:
        raise InputError("model", "does not fit its certificate, whose numbers an audit would be beside", problems[0],
                         "lastiterate verify lists everything")
    stored, model = whole.certificate, whole.model
    delta, evidence = stored.get("delta"), str(stored.get("at_least"))
    if "exact_run" in stored:
        if model.get("kind") != FittedLinear.exact_kind:
            raise InputError("audit", "attacks exact noise of linear models only, and this release has exact noise",
                             str(model.get("kind")), "write the run to a file and audit that")
        return Subject(Run.from_dict(stored["exact_run"]), delta, kind=str(model.get("kind")), exact=True)
    if "unlearning" in stored:
        subject = Unlearning.read(stored)
        return Subject(subject.requests[-1].run, delta, kind=str(model.get("kind")), forgetting=Certificate(subject))
    if "run" not in stored or not isinstance(delta, float) or evidence not in Evidence.__members__:
        raise InputError("certificate", "must be one of a run that lastiterate wrote, complete", None,
                         "check it with lastiterate verify")
    return Subject(Run.from_dict(stored["run"]), delta, Evidence[evidence], str(model.get("kind")))

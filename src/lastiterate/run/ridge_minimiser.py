"""The exact minimiser of a ridge problem that was trained without noise, as any solver finds it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

from lastiterate.errors import InputError
from lastiterate.run import codec
from lastiterate.run.fields import settle
from lastiterate.run.losses import HuberRidge, LinearLoss, Logistic, Softmax
from lastiterate.run.validate import positive, whole

NORM_SLACK = 1e-6
"""How much longer than the loss's ``row_norm``, relatively, rows may be: they are looked at and not clipped."""


@final
@dataclass(frozen=True, kw_only=True)
class RidgeMinimiser:
    """The weights that minimise the mean of ``loss`` over ``n`` records, ridge included.

    ``residual``: the largest Euclidean norm of the objective's gradient that is accepted as the end of the solver.
    Errors: ``InputError`` where the loss has no ridge, so that nothing says how far one record moves its minimiser.

    **Guarantee:** it says nothing about differential privacy: such a model has none.
    """

    n: int
    loss: LinearLoss
    residual: float

    def __post_init__(self) -> None:
        settle(self)
        whole("n", self.n)
        positive("residual", self.residual)
        if not self.loss.ridge > 0:
            raise InputError("ridge", "must be positive where a minimiser is to forget records", self.loss.ridge,
                             "without it one record may move the minimiser by any distance")

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready description; ``from_dict`` gives it back."""
        return codec.encode(self)

    @classmethod
    def from_dict(cls, data: object) -> RidgeMinimiser:
        """Read a description; ``InputError`` for anything else."""
        decoded = codec.decode(data, "training", {kind.__name__: kind for kind in (cls, Logistic, Softmax, HuberRidge)})
        if type(decoded) is not cls:
            raise InputError("training", "must be a JSON object with \"type\": \"RidgeMinimiser\"",
                             type(decoded).__name__)
        return decoded

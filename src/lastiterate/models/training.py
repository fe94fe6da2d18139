"""Train any differentiable model by a described run, and doubt what is claimed of its loss; JAX is loaded late."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

from lastiterate.accounting.certificate import Certificate, account
from lastiterate.errors import InputError, NotCertified
from lastiterate.run.evidence import Evidence
from lastiterate.run.facts import LossFacts
from lastiterate.run.losses import Abstract
from lastiterate.run.run import Run

FIRST = "the first parameters are taken to be chosen without looking at the data"


class Released(NamedTuple):
    """The final parameters, structured like the first ones, and the certificate of the run that made them."""

    params: Any
    certificate: Certificate


def train(
    run: Run,
    loss: Callable[..., Any],
    params: Any,
    data: tuple[Any, ...],
    *,
    microbatch: int | None = None,
    at_least: Evidence = Evidence.ENFORCED,
    progress: Callable[[int, int, float], None] | None = None,
) -> Released:
    """Execute ``run`` on ``loss(params, *record)`` and release the last parameters with their certificate.

    ``loss``: one number for one record, written with JAX (an Equinox or Flax network works as it is). ``params``: any
    nested structure of floating-point arrays, chosen without looking at the data. ``data``: a tuple of arrays (or
    structures of arrays) with n records along the first axis, such as (x, y). ``microbatch``: records whose gradients
    are in memory at once; it changes nothing else. Errors: ``NotCertified`` before training, if no theorem certifies
    the run on facts of ``at_least``; ``InputError`` for bad input or a loss that is not finite; nothing is released.

    **Guarantee:** the certificate speaks of the very run that is executed. It covers this release only.
    """
    from lastiterate.engine.network import fit_network

    if not isinstance(run.loss, Abstract):
        raise InputError("loss of the run", "must be Abstract where the loss is given as a function",
                         type(run.loss).__name__, "linear models are trained by lastiterate.estimators")
    if not callable(loss):
        raise InputError("loss", "must be a function of the parameters and one record", type(loss).__name__)
    if not isinstance(data, tuple):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InputError("data", "must be a tuple of what the loss takes after the parameters", type(data).__name__,
                         "write (x, y)")
    certificate = account(run, at_least=at_least)
    if not certificate.certifying:
        raise NotCertified(certificate.why_not())
    certificate = replace(certificate, caveats=(*certificate.caveats, FIRST))
    return Released(fit_network(run, loss, params, data, microbatch=microbatch, progress=progress), certificate)


def falsify(loss: Callable[..., Any], params: Any, data: tuple[Any, ...], claims: LossFacts, *, radius: float = 1.0,
            pairs: int = 512, climbs: int = 100, seed: int = 0) -> Any:
    """Search for two points that violate the ``lipschitz``, ``smooth``, ``strong`` or ``weak_convexity`` of ``claims``.

    ``loss(params, *record)`` as for training; ``params``: where the search is centred, ``radius``: its extent (distance
    over the square root of the number of parameters). ``data``: *public or synthetic* records: a constant that was
    checked on private ones would say something about them. Returns a ``Search``: ``facts`` with what survived, as
    ``TESTED`` (a refuted constant is dropped), ``witnesses`` with a record and two points for what did not, ``tried``.

    **Guarantee:** a witness is a proof (to rounding); no witness is none, and is called ``TESTED``, not more.
    """
    from lastiterate.engine.counterexamples import look

    return look(loss, params, data, claims, radius=radius, pairs=pairs, climbs=climbs, seed=seed)

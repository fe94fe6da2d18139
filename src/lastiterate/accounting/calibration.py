"""Ask every theorem about a run, keep all verdicts, and find the noise or the steps that a budget allows."""

# arguments are checked because callers are not
# pyright: reportUnnecessaryIsInstance=false
from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from typing import Literal

from lastiterate.accounting.accounted_run import UPPER
from lastiterate.accounting.budgets import check_budget, check_within
from lastiterate.accounting.certificate import Certificate, account
from lastiterate.curves.roots import Excess, Root, falling_root
from lastiterate.errors import InputError, NotCertified
from lastiterate.run.evidence import Evidence
from lastiterate.run.losses import Abstract
from lastiterate.run.noise import GradientNoise, NoiseMultiplier
from lastiterate.run.run import Run, check_described, check_run
from lastiterate.theorems.theorem import Theorem

MOST_STEPS = 10**7
"""The longest run that ``calibrate`` looks for."""
NEARLY = 1 + 1e-6
"""Noise is found within this factor."""
CLOSE = 5e-3
"""Theorems are compared where their noises differ by more, relatively, and curves are costly."""
NEAR = 0.01
"""Theorems whose coarse curves exceed the best one's by more are asked for their exact ones alone."""
FARTHEST = 40 * math.log(4)
"""The logarithm of the largest factor of noise, or number of steps, that is tried."""


def calibrate(
    run: Run,
    *,
    epsilon: float,
    delta: float,
    field: Literal["noise", "steps"] = "noise",
    at_least: Evidence = Evidence.ENFORCED,
) -> Certificate:
    """The least noise (or the most steps) with which ``run`` is certified (epsilon, delta)-DP.

    The returned certificate's ``run`` is the calibrated one; its epsilon(delta) is at most ``epsilon``. Errors:
    ``NotCertified`` when no theorem can certify the run at any noise, ``InputError`` for a bad budget, or one that no
    noise keeps.
    """
    found = calibrated(run, epsilon=epsilon, delta=delta, field=field, at_least=at_least)
    certificate = account(found, at_least=at_least)
    check_within(certificate, epsilon, delta)
    return certificate


def calibrated(run: Run, *, epsilon: float, delta: float, field: Literal["noise", "steps"] = "noise",
               at_least: Evidence = Evidence.ENFORCED) -> Run:
    """The run of ``calibrate``'s certificate, for those who compare many and certify one."""
    check_run(run)
    check_budget(epsilon, delta, run.n)
    if field not in ("noise", "steps"):
        raise InputError("field", "must be 'noise' or 'steps'", field)

    if field == "steps":
        check_described(run)
    run = with_kind_of_noise(run)
    if run.loss.facts().log_sobolev is not None:
        # a constant of the laws at one noise and number of steps says nothing about others
        run = replace(run, loss=Abstract(replace(run.loss.facts(), log_sobolev=None)))

    def excess(candidate: Run, theorems: tuple[Theorem, ...] = UPPER) -> float:
        return excess_of(Certificate.of(candidate, theorems, at_least).delta(epsilon), delta)

    def over(candidate: Run) -> float:
        return excess_of_epsilon(Certificate.of(candidate, UPPER, at_least).epsilon(delta), epsilon)

    probe = _certifiable(run, at_least, delta)
    holding = tuple(verdict.theorem for verdict in probe.certifying)
    if probe.expensive:
        found = _costly_search(run, field, epsilon, delta, at_least, holding)
    elif field == "steps":
        found = _most_steps(run, lambda longer: excess(longer) <= 0, epsilon, delta)
    else:
        # what a theorem assumes seldom depends on the noise's size: those that hold for the probe decide, all confirm
        found = _least_noise(run, partial(excess, theorems=holding), epsilon, delta)
        if excess(scale_noise(found, 1 / NEARLY)) <= 0:
            found = _least_noise(run, excess, epsilon, delta)
    if over(found) <= 0:
        return found
    # a bound that rises again beyond epsilon keeps delta there and states a larger epsilon: what is stated decides
    if field == "steps":
        return _most_steps(run, lambda longer: over(longer) <= 0, epsilon, delta)
    return _least_noise(found, over, epsilon, delta, least=1e-3 if probe.expensive else 9e-7)


def excess_of(reached: float, delta: float) -> float:
    """-log(log(reached) / log(delta)), positive exactly where ``reached`` is above ``delta``.

    Gaussian tails make it nearly a line in the logarithm of the noise: log(reached) grows with the noise's square.
    """
    value = -math.log(math.log(min(max(reached, 1e-300), 1 - 1e-9)) / math.log(delta))
    return min(value, 0.0) if reached <= delta else max(value, 1e-300)


def excess_of_epsilon(reached: float, epsilon: float) -> float:
    """Return log(reached / epsilon) between -700 and 700, positive exactly where ``reached`` is above ``epsilon``."""
    ratio = min(max(reached / epsilon, 1e-300), 1e300)
    return min(math.log(ratio), 0.0) if reached <= epsilon else max(math.log(ratio), 1e-300)


def with_kind_of_noise(run: Run) -> Run:
    """The run, one unit of noise in it where it is not decided: of what a multiplier multiplies, if there is that."""
    if run.noise is not None:
        return run
    return replace(run, noise=NoiseMultiplier(1.0) if run.noise_unit else GradientNoise(1.0))


def scale_noise(run: Run, factor: float) -> Run:
    """The run with every noise standard deviation multiplied by ``factor``."""
    assert run.noise is not None
    return replace(run, noise=run.noise.scaled(factor))


def with_unit_noise(run: Run) -> Run:
    """The run with its noise (a single number) set to 1, the start of a search."""
    assert run.noise is not None
    return replace(run, noise=run.noise.with_unit())


def _certifiable(run: Run, at_least: Evidence, delta: float) -> Certificate:
    """The certificate of ``run`` with noise 1; what nothing certifies at any noise is refused."""
    probe = Certificate.of(with_unit_noise(run), UPPER, at_least)
    if not any(math.isfinite(probe.curve(verdict).epsilon(delta)) for verdict in probe.certifying):
        raise NotCertified(probe.nearest())
    return probe


def _costly_search(run: Run, field: str, epsilon: float, delta: float, at_least: Evidence,
                   holding: tuple[Theorem, ...]) -> Run:
    """The search where curves are costly: roots of ``excess_of`` on ever finer curves, the last exact.

    Of those that hold with noise 1 the theorem that wins on coarse curves is searched on its exact one, and of the
    others those whose exact curve needs less; the answer is confirmed.
    """
    if field == "steps":
        _require_free_schedule(run)
    base = with_unit_noise(run)

    def candidate(x: float) -> Run:
        if field == "noise":
            return scale_noise(base, math.exp(x))
        return replace(run, steps=min(max(math.floor(math.exp(-x) * (1 + 1e-12)), 1), MOST_STEPS))

    def excess(times: int, asked: tuple[Theorem, ...]) -> Callable[[float], float]:
        return lambda x: excess_of(Certificate.of(candidate(x), asked, at_least).coarse_delta(epsilon, times), delta)

    near, far, root = holding, tuple[Theorem, ...](), Root(0.0 if field == "noise" else -math.log(run.steps), 2.0)
    for times, enough, tries, longest in ((2, 0.02, 60, 4.0), (1, 1.5e-3, 40, 0.1)):
        nearer = falling_root(excess(times, near), root.at, root.slope, enough=enough, tries=tries,
                              longest=longest, farthest=FARTHEST, least=1e-7)
        root = root if nearer is None else nearer
        ranked = Certificate.of(candidate(root.at), near, at_least).by_coarse_delta(epsilon, times)
        most = excess_of(ranked[0][0], delta) + NEAR if ranked else 0.0
        near = tuple(theorem for reached, theorem in ranked if excess_of(reached, delta) <= most)
        far = (*(theorem for _, theorem in ranked if theorem not in near), *far)
    excesses = tuple((theorem, cache(excess(0, (theorem,)))) for theorem in (*near, *far))
    asked, root = _least_root(excesses, root)
    for theorems in (asked, UPPER):
        for more in (0.0, 1e-9, 1e-6, 1e-4, 1e-3, 1e-2, 1e-1):  # rounding decides between 0 and a little more
            if Certificate.of(chosen := candidate(root.at + more), theorems, at_least).certifies(epsilon, delta):
                if field == "noise":
                    return chosen
                return _longer(chosen, lambda n: Certificate.of(n, asked, at_least).certifies(epsilon, delta))
    raise out_of_reach(epsilon, delta) if field == "noise" else _too_short(epsilon, delta)


def _least_root(excesses: tuple[tuple[Theorem, Excess], ...], root: Root) -> tuple[tuple[Theorem, ...], Root]:
    """The theorem with the least root of all, within ``CLOSE``, and that root; the first is searched from ``root`` on.

    Coarse curves do not decide between theorems: their allowances for rounding, or the orders that they leave out, are
    more than a small delta. Exact ones are flat where that allowance is all that is left, and then the bracket decides.
    """
    winner, best = tuple[Theorem, ...](), root
    for theorem, excess in excesses:
        if winner and excess(best.at) > -CLOSE * best.slope:  # what is computed there, the certificate needs as well
            continue
        longest = 1.0 if winner else 0.1
        found = falling_root(excess, best.at, best.slope, enough=min(4e-4, CLOSE * best.slope / 2), tries=100,
                             longest=longest, farthest=FARTHEST, least=CLOSE / 250)
        if found is not None:
            winner, best = (theorem,), found
    return winner, best


def _longer(run: Run, within: Callable[[Run], bool]) -> Run:
    """The longest run from ``run`` on that is still certified, by strides that double and then halve."""
    low, stride = run.steps, 1
    while low + stride <= MOST_STEPS and within(replace(run, steps=low + stride)):
        low, stride = low + stride, 2 * stride
    high = min(low + stride, MOST_STEPS + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if within(replace(run, steps=middle)) else (low, middle)
    return replace(run, steps=low)


def _least_noise(run: Run, excess: Callable[[Run], float], epsilon: float, delta: float, least: float = 9e-7) -> Run:
    """The run with the least noise, within ``NEARLY`` (or 1 + ``least``), that is certified."""
    base = with_unit_noise(run)
    # a little below 0: ``epsilon(delta)`` of the run is rounded up further than ``delta(epsilon)``
    root = falling_root(lambda x: excess(scale_noise(base, math.exp(x))) + 1e-8, 0.0, 2.0, enough=0.0, tries=400,
                        longest=4.0, farthest=FARTHEST, least=least)
    if root is None:
        raise out_of_reach(epsilon, delta)
    return scale_noise(base, math.exp(root.at))


def out_of_reach(epsilon: float, delta: float) -> InputError:
    """Return the refusal of a budget that no noise keeps."""
    return InputError("epsilon", "cannot be reached by noise alone", epsilon,
                      f"delta = {delta:g} leaves nothing: raise epsilon, or spend less on the preparation")


def _most_steps(run: Run, within: Callable[[Run], bool], epsilon: float, delta: float) -> Run:
    """The longest run, for schedules of any length; bounds grow with the steps."""
    _require_free_schedule(run)
    if not within(replace(run, steps=1)):
        raise _too_short(epsilon, delta)
    return _longer(replace(run, steps=1), within)


def _require_free_schedule(run: Run) -> None:
    if not run.for_any_length:
        raise InputError("field", "'steps' needs a schedule that is defined for any number of steps", "steps",
                         "use a constant step size or inverse-decay")


def _too_short(epsilon: float, delta: float) -> InputError:
    return InputError("epsilon", f"is exceeded by the first step at delta = {delta:g}", epsilon, "add noise")

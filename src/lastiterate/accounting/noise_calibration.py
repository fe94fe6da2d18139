"""Find the noise or the number of steps that a budget allows."""

# arguments are checked because callers are not
# pyright: reportUnnecessaryIsInstance=false

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from typing import Literal

from lastiterate.accounting.accounted_run import ExactRun, preparation_squared, upper_theorems
from lastiterate.accounting.certificate import Certificate, account
from lastiterate.accounting.certificate_subject import format_rounded_up
from lastiterate.accounting.guarantee import Guarantee
from lastiterate.curves.curve import check_delta
from lastiterate.curves.renyi import Rdp
from lastiterate.curves.roots import Excess, Root, find_falling_root, smallest_true
from lastiterate.errors import BudgetWarning, InputError, NotCertified, outside
from lastiterate.lazy import accept_old_names
from lastiterate.run.facts import Evidence
from lastiterate.run.losses import KnownConstants
from lastiterate.run.noise import GradientNoise, NoiseMultiplier
from lastiterate.run.run import Run, check_described, check_run
from lastiterate.run.validation import to_float
from lastiterate.theorems.composition import composition_mu
from lastiterate.theorems.theorem import Theorem

# Refusal of budgets that promise nothing, and of certificates that exceed theirs.

LARGEST_EPSILON, LARGEST_DELTA = 1e3, 0.5
"""Beyond them a guarantee rules out nothing that anybody could observe: odds of e^1000, or every
second release."""
LARGE_EPSILON = 20.0
"""Beyond this epsilon next to nothing is promised: e^20 is half a billion."""


def check_range(epsilon: float, delta: float, n: int | None = None) -> None:
    """Refuse what no budget can be; ``n``: the number of records, where it is known."""
    if not 0 < to_float("epsilon", epsilon) <= LARGEST_EPSILON:
        raise InputError(
            "epsilon",
            f"must be a positive number, at most {LARGEST_EPSILON:g}",
            epsilon,
            "1 is a common choice, and beyond 10 little is promised",
        )
    check_delta(to_float("delta", delta))
    if delta >= LARGEST_DELTA:
        raise InputError(
            "delta",
            f"must lie below {LARGEST_DELTA:g}",
            delta,
            "choose less than 1/n" + ("" if n is None else f" = {1 / n:.1g}"),
        )


def check_budget(epsilon: float, delta: float, n: int) -> None:
    """The same, and warn where delta exceeds 1/n, n the number of records."""
    check_range(epsilon, delta, n)
    warn_of_delta(delta, n)
    warn_of_epsilon(epsilon)


def check_within(guarantee: Guarantee, epsilon: float, delta: float) -> None:
    """Refuse what is certified with more than the budget that it was planned for.

    Every search for a noise ends here, and every release passes here before it is charged: a search
    that found too little is refused, whatever went wrong in it.
    """
    guarantee.check_lower_bounds(delta)
    reached = guarantee.epsilon(delta)
    if not reached <= epsilon:
        found = (
            f"epsilon {format_rounded_up(reached)}" if reached < math.inf else "no epsilon at all"
        )
        raise InputError(
            "epsilon",
            f"is exceeded by what would run, which is certified with {found} at delta = {delta:g}",
            epsilon,
            "ask for a larger epsilon or delta; no record was read",
        )


def warn_of_epsilon(epsilon: float) -> None:
    """Warn where next to nothing is promised."""
    if LARGE_EPSILON < epsilon < math.inf:
        warnings.warn(
            f"epsilon = {epsilon:.4g} promises next to nothing: somebody's odds of guessing right "
            f"may grow "
            f"by a factor of e^{epsilon:.4g}; beyond {LARGE_EPSILON:g} it is a number for "
            f"comparisons, not a "
            "protection",
            BudgetWarning,
            stacklevel=outside(),
        )


def warn_of_delta(delta: float, n: int) -> None:
    """Warn where delta exceeds 1/n."""
    if delta > 1 / n:
        warnings.warn(
            f"delta = {delta:g} exceeds 1/n = {1 / n:.2g}: a mechanism that publishes one random "
            f"record in "
            "full keeps such a budget; choose a delta far below 1/n",
            BudgetWarning,
            stacklevel=outside(),
        )


SPARE = 0.99
"""Least noise below this fraction of the stated one is worth a warning."""


def warn_of_stated_noise(stated: Run, found: Certificate, epsilon: float, delta: float) -> None:
    """Warn where the noise that a run states would have kept a smaller epsilon than the budget.

    ``found``: of the run with the least noise that keeps the budget, which will be executed.
    """
    if stated.noise is None:
        return
    known = bool(stated.noisy_steps and found.run.noisy_steps)  # sizes, before every step
    if known and found.run.largest_noise >= SPARE * stated.largest_noise:
        return
    exact = type(found.subject) is ExactRun
    own = (
        Certificate(ExactRun(stated)) if exact else account(stated, min_evidence=found.min_evidence)
    )
    kept = own.epsilon(delta)
    if not kept < (epsilon if known else SPARE * epsilon):
        return
    least, larger = (
        each.decided_noise.words
        or (f"noise of standard deviation {each.largest_noise:.4g}" if known else f"{each.noise}")
        for each in (found.run, stated)
    )
    wanted = format_rounded_up(kept)
    warnings.warn(
        f"noise: the run states {larger}, which keeps epsilon {wanted} at delta = {delta:g}, and "
        f"epsilon = {epsilon:g} is kept with {least}: that will be executed; ask for epsilon = "
        f"{wanted} to keep the stated noise, or leave the noise out of the run",
        BudgetWarning,
        stacklevel=outside(),
    )


# Noise or steps that a budget allows.


MOST_STEPS = 10**7
"""The longest run that ``calibrate`` looks for."""
NEARLY = 1 + 1e-6
"""Noise is found within this factor."""
CLOSE = 5e-3
"""Theorems are compared where their noises differ by more, relatively, and curves are costly."""
NEAR = 0.01
"""Theorems whose coarse curves exceed the best one's by more are asked for their exact ones alone.
"""
LOUD = 1e6
"""The noise with which a run is asked again that nothing certifies with noise 1."""
FARTHEST = 40 * math.log(4)
"""The logarithm of the largest factor of noise, or number of steps, that is tried."""


@accept_old_names("calibrate", at_least="min_evidence")
def calibrate(
    run: Run,
    *,
    epsilon: float,
    delta: float,
    field: Literal["noise", "steps"] = "noise",
    min_evidence: Evidence = Evidence.ENFORCED,
) -> Certificate:
    """Find the least noise, or the most steps, with which a run keeps a budget.

    Parameters
    ----------
    run : Run
        Description of the run. Its noise may be ``None``; noise that is stated fixes the kind, and
        the search replaces its size.
    epsilon : float
        Budget, in natural logarithms, within (0, 1000].
    delta : float
        Budget, within (0, 0.5).
    field : {"noise", "steps"}, default "noise"
        Part of the run to search for. "steps" needs stated noise and a schedule for any number of
        steps, and finds at most 1e7 steps.
    min_evidence : Evidence, default Evidence.ENFORCED
        Weakest evidence of the facts that the certificate may rest on.

    Returns
    -------
    Certificate
        Certificate of the calibrated run, which is its ``run``; its epsilon at ``delta`` is at most
        ``epsilon``.

    Raises
    ------
    NotCertified
        If no theorem certifies the run at any noise.
    InputError
        If the budget is out of range, or neither noise nor steps can keep it.

    Warns
    -----
    BudgetWarning
        If ``delta`` exceeds 1/n, or ``epsilon`` exceeds 20.

    See Also
    --------
    account : Certify a run whose noise is stated.

    Notes
    -----
    **Guarantee:** the returned certificate is derived again for the calibrated run, and refused if
    it exceeds the budget. The search stops close to the least noise, on the private side.

    Examples
    --------
    >>> import lastiterate as li
    >>> run = li.Run(n=1000, steps=20, step_size=0.5, loss=li.Logistic())
    >>> certificate = li.calibrate(run, epsilon=1.0, delta=1e-5)
    >>> certificate.epsilon(1e-5) <= 1.0, certificate.run.noise.z > 1
    (True, True)
    """
    found = calibrate_run(run, epsilon=epsilon, delta=delta, field=field, min_evidence=min_evidence)
    certificate = account(found, min_evidence=min_evidence)
    check_within(certificate, epsilon, delta)
    return certificate


def calibrate_run(
    run: Run,
    *,
    epsilon: float,
    delta: float,
    field: Literal["noise", "steps"] = "noise",
    min_evidence: Evidence = Evidence.ENFORCED,
) -> Run:
    """The run of ``calibrate``'s certificate, for those who compare many and certify one."""
    check_run(run)
    check_budget(epsilon, delta, run.n)
    if field not in ("noise", "steps"):
        raise InputError("field", "must be 'noise' or 'steps'", field)

    if field == "steps":
        check_described(run)
    run = with_kind_of_noise(run)
    if run.loss.facts().log_sobolev is not None:
        # a constant of the distributions at one noise and number of steps says nothing about others
        run = replace(run, loss=KnownConstants(replace(run.loss.facts(), log_sobolev=None)))

    everyone = upper_theorems()

    def excess(candidate: Run, theorems: tuple[Theorem, ...] = everyone) -> float:
        return excess_of(Certificate.of(candidate, theorems, min_evidence).delta(epsilon), delta)

    def over(candidate: Run) -> float:
        return excess_of_epsilon(
            Certificate.of(candidate, upper_theorems(), min_evidence).epsilon(delta), epsilon
        )

    probe = _certifiable(run, min_evidence, delta)
    holding = tuple(verdict.theorem for verdict in probe.certifying)
    if probe.expensive:
        found = _costly_search(run, field, epsilon, delta, min_evidence, holding)
    elif field == "steps":
        found = _most_steps(run, lambda longer: excess(longer) <= 0, epsilon, delta)
    else:
        # what a theorem assumes seldom depends on the noise's size: those that hold for the probe
        # decide, all confirm
        found = _least_noise(run, partial(excess, theorems=holding), epsilon, delta)
        if excess(scale_noise(found, 1 / NEARLY)) <= 0:
            found = _least_noise(run, excess, epsilon, delta)
    if over(found) <= 0:
        return found
    # a bound that rises again beyond epsilon keeps delta there and states a larger epsilon: what is
    # stated decides
    if field == "steps":
        return _most_steps(run, lambda longer: over(longer) <= 0, epsilon, delta)
    return _least_noise(found, over, epsilon, delta, least=1e-3 if probe.expensive else 9e-7)


def excess_of(reached: float, delta: float) -> float:
    """-log(log(reached) / log(delta)), positive exactly where ``reached`` is above ``delta``.

    Gaussian tails make it nearly a line in the logarithm of the noise: log(reached) grows with the
    noise's square.
    """
    value = -math.log(math.log(min(max(reached, 1e-300), 1 - 1e-9)) / math.log(delta))
    return min(value, 0.0) if reached <= delta else max(value, 1e-300)


def excess_of_epsilon(reached: float, epsilon: float) -> float:
    """Return log(reached / epsilon) between -700 and 700, positive exactly where ``reached`` is
    above ``epsilon``."""
    ratio = min(max(reached / epsilon, 1e-300), 1e300)
    return min(math.log(ratio), 0.0) if reached <= epsilon else max(math.log(ratio), 1e-300)


def with_kind_of_noise(run: Run) -> Run:
    """The run, one unit of noise in it where it is not decided: of what a multiplier multiplies, if
    there is that."""
    if run.noise is not None:
        return run
    return replace(run, noise=NoiseMultiplier(1.0) if run.noise_unit else GradientNoise(1.0))


def scale_noise(run: Run, factor: float) -> Run:
    """The run with every noise standard deviation multiplied by ``factor``."""
    assert run.noise is not None
    return replace(run, noise=run.noise.scale_by(factor))


def with_unit_noise(run: Run) -> Run:
    """Return the run with its noise (a single value) set to 1, the start of a search."""
    assert run.noise is not None
    return replace(run, noise=run.noise.with_unit())


def _certifiable(run: Run, min_evidence: Evidence, delta: float) -> Certificate:
    """The certificate of ``run`` with noise 1, or with ``LOUD`` where none is finite at 1: a failure
    of the preparation counts e^epsilon times in groups and exchanges. What neither certifies is
    refused."""
    unit = with_unit_noise(run)
    probe = Certificate.of(unit, upper_theorems(), min_evidence)
    if _is_finite(probe, delta):
        return probe
    loud = Certificate.of(scale_noise(unit, LOUD), upper_theorems(), min_evidence)
    if _is_finite(loud, delta):
        return loud
    raise NotCertified(probe.nearest())


def _is_finite(probe: Certificate, delta: float) -> bool:
    """Whether a theorem certifies the run at ``delta``."""
    return any(math.isfinite(probe.curve(one).epsilon(delta)) for one in probe.certifying)


def _costly_search(
    run: Run,
    field: str,
    epsilon: float,
    delta: float,
    min_evidence: Evidence,
    holding: tuple[Theorem, ...],
) -> Run:
    """The search where curves are costly: roots of ``excess_of`` on ever finer curves, the last
    exact.

    Of those that hold with noise 1 the theorem that wins on coarse curves is searched on its exact
    one, and of the others those whose exact curve needs less; the answer is confirmed.
    """
    if field == "steps":
        _require_free_schedule(run)
    base = with_unit_noise(run)

    def candidate(x: float) -> Run:
        if field == "noise":
            return scale_noise(base, math.exp(x))
        return replace(run, steps=min(max(math.floor(math.exp(-x) * (1 + 1e-12)), 1), MOST_STEPS))

    def excess(times: int, asked: tuple[Theorem, ...]) -> Callable[[float], float]:
        return lambda x: excess_of(
            Certificate.of(candidate(x), asked, min_evidence).coarse_delta(epsilon, times), delta
        )

    near, far, root = (
        holding,
        tuple[Theorem, ...](),
        Root(0.0 if field == "noise" else -math.log(run.steps), 2.0),
    )
    for times, enough, tries, longest in ((2, 0.02, 60, 4.0), (1, 1.5e-3, 40, 0.1)):
        nearer = find_falling_root(
            excess(times, near),
            root.at,
            root.slope,
            enough=enough,
            tries=tries,
            longest=longest,
            farthest=FARTHEST,
            least=1e-7,
        )
        root = root if nearer is None else nearer
        ranked = Certificate.of(candidate(root.at), near, min_evidence).rank_by_coarse_delta(
            epsilon, times
        )
        most = excess_of(ranked[0][0], delta) + NEAR if ranked else 0.0
        near = tuple(theorem for reached, theorem in ranked if excess_of(reached, delta) <= most)
        far = (*(theorem for _, theorem in ranked if theorem not in near), *far)
    excesses = tuple((theorem, cache(excess(0, (theorem,)))) for theorem in (*near, *far))
    asked, root = _least_root(excesses, root)
    for theorems in (asked, upper_theorems()):
        for more in (
            0.0,
            1e-9,
            1e-6,
            1e-4,
            1e-3,
            1e-2,
            1e-1,
        ):  # rounding decides between 0 and a little more
            if Certificate.of(
                chosen := candidate(root.at + more), theorems, min_evidence
            ).certifies(epsilon, delta):
                if field == "noise":
                    return chosen
                return _longer(
                    chosen,
                    lambda n: Certificate.of(n, asked, min_evidence).certifies(epsilon, delta),
                )
    raise (
        unreachable_budget_error(epsilon, delta) if field == "noise" else _too_short(epsilon, delta)
    )


def _least_root(
    excesses: tuple[tuple[Theorem, Excess], ...], root: Root
) -> tuple[tuple[Theorem, ...], Root]:
    """The theorem with the least root of all, within ``CLOSE``, and that root; the first is
    searched from ``root`` on.

    Coarse curves do not decide between theorems: their allowances for rounding, or the orders that
    they leave out, are more than a small delta. Exact ones are flat where that allowance is all
    that is left, and then the bracket decides.
    """
    winner, best = tuple[Theorem, ...](), root
    for theorem, excess in excesses:
        if (
            winner and excess(best.at) > -CLOSE * best.slope
        ):  # what is computed there, the certificate needs as well
            continue
        longest = 1.0 if winner else 0.1
        found = find_falling_root(
            excess,
            best.at,
            best.slope,
            enough=min(4e-4, CLOSE * best.slope / 2),
            tries=100,
            longest=longest,
            farthest=FARTHEST,
            least=CLOSE / 250,
        )
        if found is not None:
            winner, best = (theorem,), found
    return winner, best


def _longer(run: Run, within: Callable[[Run], bool]) -> Run:
    """The longest run from ``run`` on that is still certified, by strides that double and then
    halve."""
    low, stride = run.steps, 1
    while low + stride <= MOST_STEPS and within(replace(run, steps=low + stride)):
        low, stride = low + stride, 2 * stride
    high = min(low + stride, MOST_STEPS + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if within(replace(run, steps=middle)) else (low, middle)
    return replace(run, steps=low)


def _least_noise(
    run: Run, excess: Callable[[Run], float], epsilon: float, delta: float, least: float = 9e-7
) -> Run:
    """The run with the least noise, within ``NEARLY`` (or 1 + ``least``), that is certified."""
    base = with_unit_noise(run)
    # a little below 0: ``epsilon(delta)`` of the run is rounded up further than ``delta(epsilon)``
    root = find_falling_root(
        lambda x: excess(scale_noise(base, math.exp(x))) + 1e-8,
        0.0,
        2.0,
        enough=0.0,
        tries=400,
        longest=4.0,
        farthest=FARTHEST,
        least=least,
    )
    if root is None:
        raise unreachable_budget_error(epsilon, delta)
    return scale_noise(base, math.exp(root.at))


def unreachable_budget_error(epsilon: float, delta: float) -> InputError:
    """Return the refusal of a budget that no noise keeps."""
    return InputError(
        "epsilon",
        "cannot be reached by noise alone",
        epsilon,
        f"delta = {delta:g} leaves nothing: raise epsilon, or spend less on the preparation",
    )


def _most_steps(run: Run, within: Callable[[Run], bool], epsilon: float, delta: float) -> Run:
    """The longest run, for schedules of any length; bounds grow with the steps."""
    _require_free_schedule(run)
    if not within(replace(run, steps=1)):
        raise _too_short(epsilon, delta)
    return _longer(replace(run, steps=1), within)


def _require_free_schedule(run: Run) -> None:
    if not run.for_any_length:
        raise InputError(
            "field",
            "'steps' needs a schedule that is defined for any number of steps",
            "steps",
            "use a constant step size or inverse-decay",
        )


def _too_short(epsilon: float, delta: float) -> InputError:
    return InputError(
        "epsilon", f"is exceeded by the first step at delta = {delta:g}", epsilon, "add noise"
    )


# Exact noise.

LARGEST = 1e60
"""The inverse of the smallest Renyi slope that is looked for: less than any budget and any unit of
records allows."""


def calibrate_exactly(run: Run, *, epsilon: float, delta: float) -> Certificate:
    """Return the certificate of this schedule with the least exact noise that keeps (epsilon,
    delta)."""
    check_run(run)
    check_budget(epsilon, delta, run.n)
    unit = with_unit_noise(with_kind_of_noise(run))
    ExactRun(unit)  # says why not
    rows = run.rows_per_unit

    def is_within_budget(inverse: float) -> bool:
        curve = Rdp.linear(1 / inverse)
        return (curve.group(rows) if rows > 1 else curve).epsilon(delta) <= epsilon

    inverse = smallest_true(is_within_budget, 1e-9, LARGEST, 1e-9)
    if math.isinf(inverse):
        raise unreachable_budget_error(epsilon, delta)
    slope = 1 / inverse
    left = 2 * slope / (1 + 1e-9) - preparation_squared(run)
    if left <= 0:
        raise InputError(
            "epsilon",
            "does not suffice for the preparation alone",
            epsilon,
            "give its parts more noise, or ask for a larger epsilon",
        )
    certificate = Certificate(
        ExactRun(scale_noise(unit, composition_mu(unit) / math.sqrt(left) * (1 + 1e-9)))
    )
    check_within(certificate, epsilon, delta)
    return certificate

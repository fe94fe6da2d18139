"""The laws that every theorem of the table keeps, each as a function that raises where one is broken.

Bounds are compared with exact distributions: small runs whose secret draws are all enumerated, and
longer ones on quadratics, whose last iterate is exactly Gaussian.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from itertools import islice
from typing import Any, get_args

import numpy as np

import lastiterate as li
from lastiterate.features.column_maps import RecordMap
from lastiterate.features.record_fields import Field, Values
from lastiterate.run.batching import Batching
from lastiterate.run.plugin_batching import PublicBlocks
from lastiterate.run.run import Run
from lastiterate.testing import exact_distributions
from lastiterate.theorems.theorem import Applies, Theorem, list_built_in, match

TRIES = 40
"""Runs that are drawn, at most, for each one to which a theorem applies."""
DELTAS = (1e-2, 1e-6)
SLACK = 5e-4, 1e-7
"""Relative and absolute error of the exact deltas, which are integrals."""


def check_theorem(
    theorem: Theorem, *, runs: int = 30, seed: int = 0, batchings: Iterable[type] = ()
) -> None:
    """Check a theorem by every law of this module.

    Parameters
    ----------
    theorem : Theorem
        Theorem, registered or not.
    runs : int, default 30
        Number of runs of each batching that it must apply to.
    seed : int, default 0
        Seed of the drawn runs.
    batchings : iterable of type, default ()
        Classes of batchings; by default those of the library.

    Raises
    ------
    AssertionError
        If a law is broken, or the theorem applies to no run that is drawn.

    Examples
    --------
    >>> from lastiterate.testing import check_theorem
    >>> from lastiterate.theorems import TABLE
    >>> check_theorem(TABLE["composition-gdp"], runs=3)
    """
    check_example(theorem)
    if theorem.kind == "upper":
        check_bound(theorem, runs=runs, seed=seed, batchings=batchings)
        check_monotone(theorem, runs=runs, seed=seed)
        check_adjacency(theorem, runs=runs, seed=seed)
    check_against_table(theorem, runs=runs, seed=seed)


def check_example(theorem: Theorem) -> None:
    """Check what a theorem says of itself, and that it applies to its example.

    Parameters
    ----------
    theorem : Theorem
        Theorem, registered or not.

    Raises
    ------
    AssertionError
        If a text is missing, or the example has no finite bound.

    Examples
    --------
    >>> from lastiterate.testing import check_example
    >>> from lastiterate.theorems import TABLE
    >>> check_example(TABLE["composition-gdp"])
    """
    for name in ("name", "title", "text", "citation", "formula", "latex"):
        assert getattr(theorem, name), f"{theorem.name}: {name} is empty"
    found = match(theorem, theorem.example)
    assert isinstance(found, Applies), f"{theorem.name} does not apply to its example: {found}"
    assert math.isfinite(found.bound.epsilon(1e-5)), f"{theorem.name}: no epsilon of its example"


def check_bound(
    theorem: Theorem, *, runs: int = 30, seed: int = 0, batchings: Iterable[type] = ()
) -> None:
    """Check that an upper bound lies above the exact distributions of drawn runs.

    Parameters
    ----------
    theorem : Theorem
        Theorem of kind "upper".
    runs : int, default 30
        Number of runs of each batching that it must apply to.
    seed : int, default 0
        Seed of the drawn runs.
    batchings : iterable of type, default ()
        Classes of batchings; by default those of the library.

    Raises
    ------
    AssertionError
        If the bound is too small for a run, which is named, or applies to none.

    Notes
    -----
    Runs have up to 4 records and 5 steps, every step size up to 3 / smooth, convex and non-convex
    records, each adjacency; quadratics have up to 40 steps. Neither has a domain, a penalty or an
    update rule: a theorem about these needs tests of its own.

    Examples
    --------
    >>> from lastiterate.testing import check_bound
    >>> from lastiterate.theorems import TABLE
    >>> check_bound(TABLE["composition-gdp"], runs=3)
    """
    kinds = tuple(batchings) or get_args(Batching)
    met = sum(_check_small_runs(theorem, kind, runs, seed) for kind in kinds)
    met += _check_quadratics(theorem, runs, seed) if not batchings else 0
    assert met, f"{theorem.name} applies to no run that was drawn: nothing is tested"


def _check_small_runs(theorem: Theorem, kind: type, runs: int, seed: int) -> int:
    """Compare bounds with enumerated draws; return how many runs the theorem applied to."""
    rng, met = np.random.default_rng(seed), 0
    for _ in range(TRIES * runs):
        run, slopes, bends = exact_distributions.draw_small_run(kind, rng)
        if exact_distributions.needs_absence(theorem) and bends[0] != 0:
            continue
        found = match(theorem, run)
        truth = (
            exact_distributions.exact_deltas(run, slopes, bends)
            if isinstance(found, Applies)
            else None
        )
        if truth is None or not isinstance(found, Applies):
            continue
        for epsilon, true in zip(exact_distributions.EPSILONS, truth, strict=True):
            bound = found.curve.delta(epsilon)
            assert bound >= true * (1 - SLACK[0]) - SLACK[1], (
                f"{theorem.name}: delta({epsilon}) = {bound:.6g} lies below the exact {true:.6g} of "
                f"{run}, slopes {slopes}, curvatures {bends}"
            )
        met += 1
        if met == runs:
            break
    return met


def _check_quadratics(theorem: Theorem, runs: int, seed: int) -> int:
    """Compare bounds with Gaussian last iterates of longer runs in public order."""
    met = 0
    for run, hessians in islice(_draw_quadratics(seed), TRIES * runs):
        found = match(theorem, run)
        if not isinstance(found, Applies):
            continue
        curvatures = exact_distributions.block_curvatures(run, hessians)
        mu = max(
            exact_distributions.exact_mu_of(run, curvatures, place) for place in range(run.blocks)
        )
        for alpha in (1.01, 2.0, 30.0):
            bound, true = found.curve.rdp(alpha), alpha * mu**2 / 2
            assert bound >= true * (1 - 1e-12), (
                f"{theorem.name}: the Renyi divergence of order {alpha}, {bound:.6g}, lies below the "
                f"exact {true:.6g} of {run}, Hessians {hessians}"
            )
        met += 1
        if met == runs:
            break
    return met


def _draw_quadratics(seed: int) -> Iterable[tuple[Run, Any]]:
    """Draw runs on quadratics without end, in public order."""
    rng = np.random.default_rng(seed)
    while True:
        kind: Any = li.Cyclic if rng.random() < 0.5 else lambda size: li.FullBatch()
        yield exact_distributions.draw_quadratic_run(rng, kind)


def check_monotone(theorem: Theorem, *, runs: int = 30, seed: int = 0) -> None:
    """Check that a run that is no more private has no smaller bound, and which facts a bound names.

    Parameters
    ----------
    theorem : Theorem
        Theorem of kind "upper".
    runs : int, default 30
        Number of runs that it must apply to, where so many are drawn.
    seed : int, default 0
        Seed of the drawn runs.

    Raises
    ------
    AssertionError
        If less noise, a larger sensitivity, less curvature or fewer records make the bound smaller;
        or if another value of a constant changes the bound and no fact of the verdict names it.

    Examples
    --------
    >>> from lastiterate.testing import check_monotone
    >>> from lastiterate.theorems import TABLE
    >>> check_monotone(TABLE["composition-gdp"], runs=3)
    """
    rng, met = np.random.default_rng(seed), 0
    for run, _ in islice(_draw_quadratics(seed), TRIES * runs):
        before = match(theorem, run)
        if not isinstance(before, Applies):
            continue
        for what, other in exact_distributions.weaken(run, rng):
            after = match(theorem, other)
            if not isinstance(after, Applies):
                continue
            least = before.curve.delta(0.7) * (1 - 1e-9) - 1e-15
            assert after.curve.delta(0.7) >= least, (
                f"{theorem.name}: changing {what} for the worse makes the bound of {run} smaller"
            )
            if what in exact_distributions.CONSTANTS and after.curve != before.curve:
                named = " ".join(fact.why for fact in before.facts)
                assert exact_distributions.CONSTANTS[what] in named, (
                    f"{theorem.name} uses {exact_distributions.CONSTANTS[what]} and no fact names it: {run}"
                )
        met += 1
        if met == runs:
            break


def check_adjacency(theorem: Theorem, *, runs: int = 30, seed: int = 0) -> None:
    """Check that exchanging a record costs no less than zeroing it, of gradients of one length.

    Parameters
    ----------
    theorem : Theorem
        Theorem of kind "upper".
    runs : int, default 30
        Number of runs of each batching that it must apply to, where so many are drawn.
    seed : int, default 0
        Seed of the drawn runs.

    Raises
    ------
    AssertionError
        If the bound of replace-one is the smaller one.

    Examples
    --------
    >>> from lastiterate.testing import check_adjacency
    >>> from lastiterate.theorems import TABLE
    >>> check_adjacency(TABLE["composition-gdp"], runs=3)
    """
    for kind in get_args(Batching):
        rng, met = np.random.default_rng(seed), 0
        for _ in range(TRIES * runs):
            run, _, _ = exact_distributions.draw_small_run(kind, rng)
            constants = {"lipschitz": 1.0, "smooth": run.loss.facts().fact("smooth")}
            loss = li.KnownConstants(li.LossFacts(**constants, strong=0.0))
            zeroed, exchanged = (
                match(theorem, replace(run, adjacency=adjacency, loss=loss))
                for adjacency in ("zero-out", "replace-one")
            )
            if not isinstance(zeroed, Applies) or not isinstance(exchanged, Applies):
                continue
            for epsilon in exact_distributions.EPSILONS:
                one, two = zeroed.curve.delta(epsilon), exchanged.curve.delta(epsilon)
                assert two >= one * (1 - 1e-6) - 1e-12, (
                    f"{theorem.name}: delta({epsilon}) is {two:.6g} under replace-one and {one:.6g} "
                    f"under zero-out of {run}"
                )
            met += 1
            if met == runs:
                break


def check_against_table(theorem: Theorem, *, runs: int = 30, seed: int = 0) -> None:
    """Check a bound against the bounds of the library on the other side, on drawn runs.

    Parameters
    ----------
    theorem : Theorem
        Theorem of any kind; a claimed one is not compared.
    runs : int, default 30
        Number of runs that are drawn.
    seed : int, default 0
        Seed of the drawn runs.

    Raises
    ------
    AssertionError
        If an upper bound lies below a lower bound of the same run.

    Examples
    --------
    >>> from lastiterate.testing import check_against_table
    >>> from lastiterate.theorems import TABLE
    >>> check_against_table(TABLE["quadratic-witness"], runs=3)
    """
    uppers = theorem.kind in ("upper", "exact")
    others = ("lower", "exact") if uppers else ("upper", "exact")
    known = [
        other
        for other in list_built_in()
        if theorem.kind != "claimed" and other.kind in others and other.name != theorem.name
    ]
    for run, _ in [(theorem.example, None), *islice(_draw_quadratics(seed), runs)]:
        found = match(theorem, run)
        for other in known if isinstance(found, Applies) else ():
            against = match(other, run)
            if not isinstance(found, Applies) or not isinstance(against, Applies):
                continue
            upper, lower = (found, against) if uppers else (against, found)
            for delta in DELTAS:
                least, most = lower.bound.epsilon(delta), upper.bound.epsilon(delta)
                assert least <= most * (1 + 1e-6) + 1e-12, (
                    f"{theorem.name} and {other.name} contradict one another at delta {delta}: at "
                    f"least {least:.6g}, at most {most:.6g}, for {run}"
                )


def check_batching(kind: type[PublicBlocks], *, runs: int = 30, seed: int = 0) -> None:
    """Check a plug-in's batching: what is executed, and the library's bounds on its runs.

    Parameters
    ----------
    kind : type
        Class of the batching, whose one argument is ``size``.
    runs : int, default 30
        Number of runs for each theorem that speaks of them.
    seed : int, default 0
        Seed of the drawn runs.

    Raises
    ------
    AssertionError
        If a step reads other records than ``divide`` says, or a bound of the library lies below an
        exact distribution.

    Notes
    -----
    Runs can hold the batching only where its package is installed and plug-ins are allowed.

    Examples
    --------
    >>> import lastiterate as li
    >>> from lastiterate.testing import check_batching
    >>> check_batching(li.Cyclic, runs=3)
    """
    from lastiterate.engine.samplers import sampler_of

    for n, size, most in ((10, 4, 100), (12, 4, 100), (12, 4, 2), (7, 7, 3), (3, 1, 1)):
        batching: Any = kind(size)
        sampler, held = sampler_of(batching, n, most), batching.block_of(n)
        plan = sampler.layout
        rows = np.zeros((plan.slots, n), np.float32)
        rows[plan.slot(np.arange(n)), np.arange(n)] = 1.0
        data = rows.reshape(*plan.shape, n)
        for k in range(2 * batching.blocks(n)):
            read = np.asarray(sampler.batch_sum(_sum_rows, data, None, k))  # pyright: ignore
            wanted = held == k % batching.blocks(n)
            assert np.array_equal(read, wanted), f"{batching}: step {k} of {n} records reads {read}"
    met = 0
    for theorem in list_built_in():
        if theorem.kind == "upper":
            met += _check_small_runs(theorem, kind, runs, seed) if _speaks(theorem) else 0
    assert met, f"no theorem speaks of {kind.__name__}"


def check_feature_map(record_map: RecordMap, field: Field, values: Values) -> None:
    """Check that a map makes numbers of one record from that record alone, within its norm.

    Parameters
    ----------
    record_map : RecordMap
        Map of the features.
    field : Field
        Public facts of the field.
    values : Values
        Values of a few records that the field may have, extreme ones among them.

    Raises
    ------
    AssertionError
        If rows depend on other records, on their order or on the call, have another width than is
        stated, are not finite, or are longer than the stated norm.

    Examples
    --------
    >>> import numpy as np
    >>> from lastiterate.features import Curves
    >>> from lastiterate.features.record_fields import Number
    >>> from lastiterate.testing import check_feature_map
    >>> check_feature_map(Curves(), Number("age"), np.array([-1.0, 0.3, 1.0]))
    """
    name, n = type(record_map).__name__, len(values)
    rows = np.asarray(record_map.rows(field, values))
    assert rows.shape == (n, record_map.width(field)), f"{name}: rows of shape {rows.shape}"
    assert np.isfinite(rows).all(), f"{name}: rows that are not finite"
    longest = float(np.linalg.norm(rows, axis=1).max())
    stated = record_map.norm(field)
    assert longest <= stated * (1 + 1e-6), f"{name}: a row of norm {longest:g}, above {stated:g}"
    alone = np.concatenate([record_map.rows(field, values[i : i + 1]) for i in range(n)])
    assert np.array_equal(rows, alone), f"{name}: a row depends on other records"
    assert np.array_equal(rows, record_map.rows(field, values)), f"{name}: rows change with calls"


def _sum_rows(chunk: Any) -> Any:
    return chunk.sum(0)


def _speaks(theorem: Theorem) -> bool:
    """Whether a theorem may apply to blocks in public order."""
    drawn = {"secret_blocks", "secret_bins", "fresh_permutations", "fresh_blocks", "drawn_anew"}
    drawn |= {"poisson_batches", "sampled_batches", "bounded_domain", "perturbed_objective"}
    return not drawn & {asked.name for asked in theorem.assumptions}

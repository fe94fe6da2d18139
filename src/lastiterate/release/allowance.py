"""What a ledger leaves for one more release, what a release takes of it, and what fits."""

from __future__ import annotations

import math
import shlex
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Protocol, final

from lastiterate.accounting.certificate import Certificate
from lastiterate.accounting.noise_calibration import calibrate
from lastiterate.accounting.private_selection import Selection
from lastiterate.curves.curve import BestOf, Curve
from lastiterate.curves.gaussian import Gdp
from lastiterate.curves.roots import first_within
from lastiterate.errors import NAME_UNITS, InputError, NotCertified
from lastiterate.ledger.budget_check import Total, refusal
from lastiterate.ledger.filters import Charge, Filter
from lastiterate.release.units import guess_unit_column
from lastiterate.run.batching import FullBatch
from lastiterate.run.losses import KnownConstants
from lastiterate.run.run import Run

# A filter charges curves of one epsilon at one delta very differently: a Gaussian mechanism costs
# its squared mu, a numerical profile or Renyi divergences may cost several times as much. So a plan
# is compared with others by what it costs here.

LEAST_EPSILON = 1e-3
"""A budget that allows less is used up."""
LARGEST_MU, LEAST_MU = 100.0, 1e-4
"""Between them is what is looked for when a refusal says what would fit."""


class Charged(Protocol):
    """A charge to a ledger: a certificate, or a number that is released together with a model."""

    @property
    def adjacency(self) -> str: ...

    def with_adjacency(self, adjacency: str) -> Charged | None: ...

    def curve(self) -> Curve: ...

    def describe(self) -> dict[str, Any]: ...


@final
@dataclass(frozen=True)
class Allowance:
    """A ledger's filter, the remaining budget of each of its dimensions, in its units, and the
    ledger's adjacency.

    ``total``: whose budget it is. ``of_units``: whether what is charged protects all rows of a unit
    together. ``id_columns``: those that may name units and that nobody named, and ``described``:
    whether the caller describes the run, for what a refusal says.
    """

    filter: Filter
    left: tuple[int, ...]
    adjacency: str
    total: Total
    of_units: bool = False
    id_columns: tuple[str, ...] = ()
    described: bool = False

    @classmethod
    def of(
        cls,
        total: Total,
        token: str = "",
        *,
        of_units: bool = False,
        id_columns: tuple[str, ...] = (),
    ) -> Allowance:
        """What a data set's releases leave; with a ``token``, what those before that release left
        to it."""
        before = next(
            (release.number for release in total.releases if release.token == token), None
        )
        spent = [0] * len(total.filter.budget)
        for release in total.releases:
            if release.state != "cancelled" and (before is None or release.number < before):
                spent = [a + b for a, b in zip(spent, release.charge.costs, strict=True)]
        left = tuple(
            max(0, budget - used) for budget, used in zip(total.filter.budget, spent, strict=True)
        )
        return cls(total.filter, left, total.adjacency, total, of_units, id_columns)

    def size_for(self, charged: Charged) -> int:
        """For how many groups of the rows that a release protects the ledger is charged: those of
        one unit."""
        return self.total.groups(None if self.of_units else find_unit_rows(charged))

    def curve(self, charged: Charged) -> Curve:
        """What a release is charged: everything that certifies it, under the ledger's adjacency and
        for its unit."""
        return curve_to_charge(charged, self.adjacency, self.size_for(charged))

    def share(self, charged: Charged) -> float:
        """The part of the whole budget that a release takes, of the dimension that it takes most
        of; infinite where the filter does not charge its curve."""
        charge = self._charge(charged)
        return math.inf if charge is None else self._share(charge)

    def fits(self, charged: Charged) -> bool:
        """Return whether the remaining budget covers a release."""
        return self._fits(self._charge(charged))

    def check(self, charged: Charged, delta: float, total: Total, *, forgets: bool = False) -> None:
        """Refuse a release that does not fit, and say what would.

        ``forgets``: it is the steps of a model that forgets, whose cost no budget of the request
        sets.
        """
        self._check_rows(charged)
        charge = self._charge(charged)
        if not self._fits(charge):
            remedy = (
                self._remedy_of_forget(charged, delta) if forgets else self._remedy(charged, delta)
            )
            raise refusal(total, charge, remedy)

    def _check_rows(self, charged: Charged) -> None:
        """Refuse a release that counts more rows of a unit than the ledger says anybody has."""
        run, most = _find_run(charged), self.total.rows
        if not isinstance(run, Run) or most is None or self.total.of_rows:
            return
        used = max(run.rows_per_unit, run.rows_per_record)
        if used > most:
            raise InputError(
                "rows_per_unit",
                f"must be at most {most}: the ledger says that no {self.total.unit} of "
                f"{self.total.dataset} has more rows",
                used,
                f"give rows_per_unit={most}, or make a ledger that states the most rows that one "
                f"{self.total.unit} has; nothing was charged",
            )

    def _remedy_of_forget(self, charged: Charged, delta: float) -> str:
        """What to do where the steps of a model that forgets cost those who stay too much."""
        size, unit, most = self.size_for(charged), self.total.unit, self._largest_epsilon(delta)
        rows = (
            f"single rows are charged as a group of {size}: if these data have one row of each "
            f"{unit}, name their column (lastiterate forget --unit COLUMN); or "
            if size > 1
            else ""
        )
        return (
            f"{rows}the steps cost those who stay the same at every epsilon: train again without "
            f"the removed records, "
            + (
                "which needs another budget, since this one is used up"
                if most < LEAST_EPSILON
                else f"with an epsilon of at most {most:g} at delta {delta:g}"
            )
            + "; no record was read, and nothing was charged"
        )

    def _charge(self, charged: Charged) -> Charge | None:
        curve = self.curve(charged)
        with suppress(InputError):
            return self.filter.charge(curve)
        return None

    def _share(self, charge: Charge) -> float:
        pairs = zip(charge.costs, self.filter.budget, strict=True)
        return max(cost / budget if budget else math.inf for cost, budget in pairs if cost)

    def _fits(self, charge: Charge | None) -> bool:
        return charge is not None and all(
            cost <= left for cost, left in zip(charge.costs, self.left, strict=True)
        )

    def _remedy(self, charged: Charged, delta: float) -> str:
        """Why rows are charged as a group, where they are; then full batches of the same epsilon
        where they fit, or else of a smaller one."""
        size = self.size_for(charged)
        if self._largest_epsilon(delta) < LEAST_EPSILON:
            said = "the budget is used up"
        else:
            parts = (self._explain_group(charged, size, delta), self._offer(charged, size, delta))
            said = "; or ".join(filter(None, parts))
            said = said or f"take a smaller epsilon: {self.describe_rest(delta)}"
        return f"{said}; nothing was trained, and nothing was charged"

    def _offer(self, charged: Charged, size: int, delta: float) -> str:
        """Full batches that fit, by a charge of the same run, or the automatic plan; empty where
        none is known to."""
        most = self._largest_epsilon(delta, size)
        if most < LEAST_EPSILON:
            return ""
        fits = f"epsilon={most:g} at delta {delta:g} fits"
        if not isinstance(charged, Certificate):
            return fits if isinstance(charged.curve(), Gdp) else ""
        if isinstance(charged.subject, Selection):
            return f"one fit without a search costs less: {fits} by the automatic plan"
        if not charged.verdicts:
            return ""
        planned = type(charged.run.loss) is not KnownConstants
        if not self.described:
            return f"{fits} by the automatic plan" if planned else ""
        batches = type(charged.run.batching) is not FullBatch
        same, smaller = (
            _in_full_batches(charged, epsilon, delta) for epsilon in (charged.epsilon(delta), most)
        )
        if batches and same is not None and self.fits(same):
            return (
                f"full batches (batching=FullBatch()) of the same epsilon at delta {delta:g} "
                f"fit, they need {100 * self.share(same):.3g}%"
            )
        if smaller is not None and self.fits(smaller):
            plan = " by the automatic plan, and the same epsilon" if planned else ""
            return fits + (f"{plan} with batching=FullBatch()" if batches else "")
        return f"{fits} by the automatic plan" if planned else ""

    def _explain_group(self, charged: Charged, size: int, delta: float) -> str:
        """Why a release of rows costs as much as a group of them, and what costs less; empty where
        it does not."""
        if size == 1:
            return ""
        cause = (
            f"rows are charged as a group of {size}, because the ledger is per {self.total.unit} "
            "and nothing says whose a row is"
        )
        column = guess_unit_column(self.id_columns, self.total.unit)
        if column is not None:
            name = f"add unit={shlex.quote(column)}"
        elif self.id_columns:
            name = (
                f"add unit=COLUMN, the column that names each {self.total.unit} (the schema calls "
                f"{' and '.join(self.id_columns)} ids)"
            )
        elif isinstance(_find_run(charged), Run):
            name = f"say whose a row is ({NAME_UNITS})"
        else:
            return cause  # a posterior sample is of single rows
        most = self._largest_epsilon(delta)
        smaller = charged.curve().epsilon(delta) > most
        return (
            f"{cause}: {name}"
            + (f" and epsilon={most:g} at most" if smaller else "")
            + f", where rows_per_unit={self.total.rows} uses all rows of each"
        )

    def _largest_epsilon(self, delta: float, size: int = 1) -> float:
        """Of a Gaussian mechanism that fits as a group of ``size``, the largest, rounded down to
        three digits."""
        return _round_down(Gdp(self._largest_mu() / size).epsilon(delta))

    def describe_rest(self, delta: float, *, planned: bool = False) -> str:
        """The largest epsilon of a Gaussian mechanism that still fits, in words; ``planned``: and
        that the automatic plan has such a one."""
        most = self._largest_epsilon(delta)
        if most < LEAST_EPSILON:
            return "the budget is used up"
        unit = "" if self.total.of_rows else " with --unit"
        first = f"the automatic plan{unit}, or " * planned
        return (
            f"{first}a Gaussian mechanism (full batches, charged by composition){',' * planned} "
            f"fits with epsilon up to {most:g} at delta {delta:g}"
        )

    def describe_first(self, delta: float) -> str:
        """The largest epsilon of one release of the automatic plan, in words; empty where the
        budget has none."""
        most = self._largest_epsilon(delta)
        if most < LEAST_EPSILON:
            return ""
        unit = "" if self.total.of_rows else " with --unit"
        return (
            f"One release of the automatic plan{unit} fits with epsilon up to {most:g} at delta "
            f"{delta:g} ({self.adjacency}). Other runs may take more of the budget than their "
            "epsilon says: lastiterate plan --ledger FILE shows how much"
        )

    def _largest_mu(self) -> float:
        """Of a Gaussian mechanism that fits, the largest to a thousandth; below ``LEAST_MU`` where
        hardly one does."""

        def largest_cost_share(inverse: float) -> float:
            pairs = zip(self.filter.charge(Gdp(1 / inverse)).costs, self.left, strict=True)
            return max(cost / left if left else math.inf for cost, left in pairs if cost)

        low = high = 1 / LARGEST_MU
        while largest_cost_share(high) > 1 and high < 1 / LEAST_MU:
            low, high = high, 4 * high
        return 1 / first_within(largest_cost_share, 1.0, low, high, 1e-3)


def _in_full_batches(charged: Certificate, epsilon: float, delta: float) -> Certificate | None:
    """The run of a certificate in full batches, calibrated to an epsilon, where it can be."""
    with suppress(InputError, NotCertified):
        return calibrate(
            replace(charged.run, batching=FullBatch()),
            epsilon=epsilon,
            delta=delta,
            min_evidence=charged.min_evidence,
        )
    return None


def _round_down(value: float) -> float:
    """Three digits that do not exceed ``value``."""
    if value <= 0:
        return 0.0
    step = 10.0 ** (math.floor(math.log10(value)) - 2)
    return float(f"{math.floor(value / step) * step:.3g}")


def _find_run(charged: Charged) -> object:
    """The run whose rows a release protects; ``None`` where there is none."""
    return (
        charged.subject.run if isinstance(charged, Certificate) else getattr(charged, "run", None)
    )


def find_unit_rows(charged: Charged) -> int | None:
    """The rows of one unit that a release protects together, by its description; ``None`` where
    these are all."""
    run = _find_run(charged)
    if not isinstance(run, Run):
        return 1
    return None if run.rows_per_record > 1 else run.rows_per_unit


def curve_to_charge(charged: Charged, adjacency: str, size: int = 1) -> Curve:
    """Everything that certifies a release, as one curve under the ledger's adjacency, for a group
    of ``size`` units."""
    under = charged.with_adjacency(adjacency)
    if under is None:
        raise InputError(
            "adjacency",
            f"must be the ledger's, {adjacency}",
            charged.adjacency,
            f"the constants of this run cannot be converted: make the ledger with --adjacency "
            f"{charged.adjacency}, or leave adjacency out of the run where its batches allow it",
        )
    if size == 1:
        return under.curve()
    curves = under.subject.for_groups if isinstance(under, Certificate) else (under.curve(),)
    if not curves:
        raise InputError(
            "unit",
            "must be given: nothing says what this release costs for several rows together",
            None,
            f"train one plan and say whose a row is ({NAME_UNITS}), or charge a ledger per row; "
            "nothing was charged",
        )
    return BestOf(tuple(curve.group(size) for curve in curves))

"""Whole certificates, as the library issues them, hold: all deltas, and an exchanged record."""

import json
from dataclasses import replace

import pytest

from lastiterate_check.check import (
    HOLDS,
    UNITS,
    check,
    check_ledger,
    is_paid,
    stated_curves,
    unit_of,
)

li = pytest.importorskip("lastiterate")
from lastiterate.curves.renyi import Rdp  # noqa: E402
from lastiterate.ledger import GaussianFilter, Ledger  # noqa: E402


def described(**changed):
    usual = {"n": 600, "steps": 60, "step_size": 0.5, "loss": li.Logistic(ridge=0.02)}
    return li.Run(**{**usual, "noise": li.NoiseMultiplier(5.0), **changed})


WHITE = (li.PrivateMean(15.0, 1.0), li.PrivateCovariance(20.0))
RUNS = {
    "allocation": lambda: described(
        batching=li.RandomAllocation(60), update=li.HeavyBall(0.9), preprocessing=WHITE
    ),
    "permuted": lambda: described(batching=li.Permuted(60), calibration=li.Calibration(25.0)),
    "full-units": lambda: described(rows_per_unit=2, counts=(li.NoisyCount(30.0, 100),)),
    "correlated": lambda: described(batching=li.Cyclic(60), noise=li.Correlated(3.0, 10)),
    "ball": lambda: described(batching=li.Cyclic(60), domain=li.domains.Ball(0.1), steps=300),
}


@pytest.mark.parametrize("name", RUNS)
def test_an_issued_certificate_holds(name):
    stored = json.loads(json.dumps(li.account(RUNS[name]()).to_dict(1e-5)))
    report = check(stored)
    assert report.verdict == HOLDS, "\n".join(report.lines)
    assert len(report.lines) > 5


@pytest.mark.parametrize("name", ["", "unit", "patient {x}"])
@pytest.mark.parametrize("rows", [{}, {"rows_per_unit": 3}, {"rows_per_record": 3}])
def test_the_words_of_a_unit_are_the_librarys(name, rows):
    stated = replace(li.account(described(**rows)), unit=name).to_dict(1e-5)
    got = unit_of(json.loads(json.dumps(stated)), name)
    assert got[:2] == (stated["stated"]["unit"]["rows"], stated["stated"]["unit"]["words"])
    whose = name or "unit"
    few = 3 if rows else 1
    assert got[2] == (
        "one row" if not (name or rows) else f"one {whose} with at most {few} row{'s' * (few > 1)}"
    )


def test_a_forgotten_record_is_checked():
    run = described(batching=li.Permuted(60))
    after = described(batching=li.Permuted(60), steps=40)
    stored = {
        "epsilon": 1e-3,
        "delta": 1e-5,
        "adjacency": "forgotten",
        "unlearning": {
            "training": run.to_dict(),
            "requests": [{"removed": 2, "run": after.to_dict()}],
        },
    }
    report = check(stored)
    assert report.verdict != HOLDS
    assert 0.01 < report.own["epsilon"] < 5
    assert check({**stored, "epsilon": report.own["epsilon"] * 1.0001}).verdict == HOLDS
    prepared = described(batching=li.Permuted(60), preprocessing=WHITE).to_dict()
    body = {**stored, "unlearning": {**stored["unlearning"], "training": prepared}}
    assert "not covered: forgetting after a private preparation" in check(body).lines


APART = (li.NoisyCount(5.0, 66, "apart"),)
CHARGES = {
    "steps": {"noise": li.NoiseMultiplier(20.0)},
    "allocation": {"batching": li.RandomAllocation(60)},
    "unfinished": {"batching": li.RandomAllocation(60), "steps": 55, "preprocessing": WHITE},
    "poisson": {"batching": li.Poisson(0.05)},
    "bins": {"batching": li.BallsInBins(60), "release": "all"},
    "permuted": {"batching": li.Permuted(60)},
    "snapshots": {"batching": li.Poisson(0.05), "method": li.VarianceReduced(10, 3.0)},
    "units": {"batching": li.Poisson(0.02), "rows_per_unit": 2, "noise": li.NoiseMultiplier(9.0)},
    "exchanged": {"batching": li.RandomAllocation(60), "adjacency": "replace-one"},
    "counted": {"batching": li.RandomAllocation(60), "counts": APART},
    "counted-more": {
        "batching": li.RandomAllocation(60),
        "counts": (li.NoisyCount(1.0, 66, "apart"),),
    },
    "counted-exchanged": {
        "batching": li.RandomAllocation(60),
        "adjacency": "replace-one",
        "counts": APART,
    },
}


@pytest.mark.parametrize("noise", [3.0, 30.0])
def test_a_charge_pays_for_exact_noise(noise):
    """Renyi divergences: what small epsilons need follows from Pinsker's inequality."""
    curve = Rdp(slope=3.0 / noise**2)
    charge = GaussianFilter(12.0, 1e-4).charge(curve).costs
    square, failure = (float(cost * unit) for cost, unit in zip(charge, UNITS, strict=True))
    (stated,) = stated_curves(json.loads(json.dumps(curve.to_dict())))
    assert is_paid(stated, square, failure) and not is_paid(stated, square * 0.8, failure)


@pytest.mark.parametrize("name", [name for name in CHARGES if name != "unfinished"])
def test_a_charge_of_a_ledger_pays_for_its_curve_and_a_smaller_one_does_not(name):
    run = described(**CHARGES[name])
    budget = GaussianFilter(12.0, 1e-4)
    curve = li.account(run).curve()
    charge = budget.charge(curve).costs
    stated = json.loads(json.dumps(curve.to_dict()))
    square, failure = (float(cost * unit) for cost, unit in zip(charge, UNITS, strict=True))
    paying = next(one for one in stated_curves(stated) if is_paid(one, square, failure))
    assert not is_paid(paying, square * 0.9, failure)


def test_a_ledger_that_the_library_wrote_is_checked(tmp_path):
    ledger = Ledger(tmp_path / "ledger.db")
    ledger.add("d", unit="record", adjacency="zero-out", filter=GaussianFilter(3.0, 1e-6))
    for name in ("steps", "unfinished", "bins"):
        curve = li.account(described(**CHARGES[name])).curve()
        ledger.reserve("d", curve, adjacency="zero-out", run="r" * 64, purpose=name)
    report = check_ledger(tmp_path / "ledger.db")
    assert report.verdict == HOLDS, "\n".join(report.lines)
    assert len(report.lines) == 5 and "entries of 3 releases, tied; head" in report.lines[0]
    assert report.lines[1] == "holds: d, release 1: the charge covers its privacy curve"
    # a curve for which no other program knows a bound
    perturbed = described(
        method=li.ObjectivePerturbation(8), steps=400, loss=li.Logistic(ridge=0.05)
    )
    curve = li.account(perturbed).curve()
    ledger.reserve("d", curve, adjacency="zero-out", run="r" * 64, purpose="perturbed")
    assert check_ledger(tmp_path / "ledger.db").verdict == "not covered"

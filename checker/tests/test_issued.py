"""Whole certificates, as the library issues them, hold: all deltas, and an exchanged record."""

import json

import pytest

from lastiterate_check.check import HOLDS, check

li = pytest.importorskip("lastiterate")


def described(**changed):
    usual = {"n": 600, "steps": 60, "step_size": 0.5, "loss": li.Logistic(ridge=0.02)}
    return li.Run(**{**usual, "noise": li.NoiseMultiplier(5.0), **changed})


WHITE = (li.PrivateMean(15.0, 1.0), li.PrivateCovariance(20.0))
RUNS = {
    "allocation": lambda: described(
        batching=li.RandomAllocation(60), update=li.HeavyBall(0.9), prelude=WHITE
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

"""Sixty runs as an earlier version described them: they are read, and every row says of them what
it said then."""

import json
from pathlib import Path

import pytest

import lastiterate as li

DELTA = 1e-5
GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "runs.json").read_text())


def found(run):
    certificate = li.account(run, min_evidence=li.Evidence.ASSUMED)
    return {row["theorem"]: row["epsilon"] for row in certificate.rows(DELTA) if row["applies"]}


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda golden: golden["name"])
def test_every_row_says_what_it_said(golden):
    """Up to rounding of another machine; rows may be added, and none may go. One did: the lower bound
    of "measured", whose ridge contracts by what is measured (tests/laws/test_lower.py)."""
    run = li.Run.from_dict(golden["run"])
    assert li.Run.from_json(run.to_json()) == run
    rows = found(run)
    for name, epsilon in golden["rows"].items():
        assert rows[name] == pytest.approx(epsilon, rel=1e-7), name


def test_there_are_sixty_and_each_kind_of_part_is_among_them():
    text = json.dumps(GOLDEN)
    assert len(GOLDEN) == 60
    for word in (
        "VarianceReduced",
        "PerturbedMinimiser",
        "HeavyBall",
        "Nesterov",
        "PrivateCovariance",
        "TopEigenvalue",
        "RandomAllocation",
        "BallsInBins",
        "replace-one",
        "add-remove",
        "Ball",
        "L2Squared",
    ):
        assert f'"{word}"' in text, word

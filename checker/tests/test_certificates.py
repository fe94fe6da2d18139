"""Certificates that are kept in the repository hold, and do not once their number is smaller."""

import copy
import json
from pathlib import Path

import pytest

from lastiterate_check.check import HOLDS, canonical_hash, check
from lastiterate_check.run import BadInput

KEPT = Path(__file__).parents[2] / "tests" / "golden" / "certificates"
NOT_COVERED = ("format-3-posterior",)
FILES = [path for path in sorted(KEPT.glob("*.json")) if path.stem not in NOT_COVERED]


@pytest.fixture(params=FILES, ids=lambda path: path.stem)
def stored(request):
    return json.loads(request.param.read_text())


def restated(stored, **changed):
    body = {**copy.deepcopy(stored), **changed}
    return {**body, "content_sha256": canonical_hash(body)}


def test_kept_certificates_hold(stored):
    report = check(stored)
    assert report.verdict == HOLDS, "\n".join(report.lines)
    assert report.own["epsilon"] <= stored["epsilon"] * 1.001


def test_a_smaller_epsilon_does_not_hold(stored):
    assert check(restated(stored, epsilon=stored["epsilon"] / 1.004)).verdict != HOLDS


def test_a_changed_number_is_bad_input(stored):
    with pytest.raises(BadInput, match="content_sha256"):
        check({**stored, "epsilon": stored["epsilon"] / 2})


@pytest.mark.parametrize("name", NOT_COVERED)
def test_what_is_not_covered_is_named(name):
    report = check(json.loads((KEPT / f"{name}.json").read_text()))
    assert report.verdict == "not covered"
    assert "posterior" in report.lines[-2]

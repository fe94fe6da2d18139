"""Every true certificate of the corpus holds, and no false one does."""

import json
from pathlib import Path

import pytest

from lastiterate_check.check import HOLDS, check
from lastiterate_check.run import BadInput

CORPUS = Path(__file__).parents[1] / "corpus"
INDEX = json.loads((CORPUS / "index.json").read_text())


@pytest.mark.parametrize("name", INDEX)
def test_the_verdict_is_right(name):
    stored = json.loads((CORPUS / "certificates" / f"{name}.json").read_text())
    if INDEX[name].get("changed") == "two-rows-each" and "stated" in stored:
        with pytest.raises(BadInput, match=r"stated.unit: says rows = 1"):
            check(stored)
        del stored["stated"], stored["caveats"], stored["content_sha256"]  # an extract of it
    report = check(stored)
    assert (report.verdict == HOLDS) == INDEX[name]["true"], "\n".join(report.lines)
    if INDEX[name]["computed"] is not None and INDEX[name]["true"]:
        assert report.own["epsilon"] == pytest.approx(INDEX[name]["computed"], rel=3e-4)


def test_half_of_it_is_false_and_every_file_is_listed():
    files = {path.stem for path in (CORPUS / "certificates").glob("*.json")}
    false = [row for row in INDEX.values() if not row["true"]]
    assert files == set(INDEX)
    assert 0.5 <= len(false) / len(INDEX) < 0.6
    assert len({row["changed"] for row in false}) >= 10
    measured = [row["computed"] / row["epsilon"] for row in false if row["computed"]]
    assert min(measured) < 1.004
    assert max(measured) > 2


def test_the_page_tells_the_size():
    page = (CORPUS.parents[1] / "docs" / "explanation" / "trust.md").read_text()
    false = sum(not row["true"] for row in INDEX.values())
    assert f"{len(INDEX)}, of which {false} are false" in page

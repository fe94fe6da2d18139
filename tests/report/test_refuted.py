"""The picture of how bounds fail: mistakes lie below the truth somewhere, what certifies never
does."""

import re
from pathlib import Path

import pytest

from lastiterate.theorems import TABLE
from support import load_script

ROOT = Path(__file__).parents[2]


picture = load_script(ROOT / "benchmarks" / "figures" / "refuted_bounds.py")


@pytest.mark.parametrize("make", picture.PANELS, ids=lambda make: make.__name__)
def test_order_of_the_lines(make):
    panel = make()
    assert len(panel.x) == len(panel.claimed) == len(panel.true) == len(panel.ours) >= 9
    slack = 1e-3 if make is picture.radius else 1e-9  # that truth comes from a grid
    assert all(
        ours >= true * (1 - slack) for ours, true in zip(panel.ours, panel.true, strict=True)
    )
    below = [true / claimed for claimed, true in zip(panel.claimed, panel.true, strict=True)]
    assert max(below) > 1.03, "somewhere the truth is larger than the claim"
    assert below[-1] > 1.03 and (make is not picture.averaged_drift or min(below) > 20)


def test_the_pages_name_theorems_that_exist():
    slug = re.compile(r"`([a-z]+(?:-[a-z]+)+)`")
    known = set(TABLE) | {"add-remove", "replace-one", "zero-out"}
    for name in ("which-theorem.md", "how-bounds-fail.md", "hidden-state.md"):
        found = set(slug.findall((ROOT / "docs" / "guides" / name).read_text()))
        assert found <= known, (name, found - known)


def test_a_page_for_every_theorem():
    generate = load_script(ROOT / "docs" / "generate.py")
    overview = generate.overview()
    for name, theorem in TABLE.items():
        assert f"[{name}]({name}.md) | {theorem.kind} |" in overview
        text = generate.page(theorem)
        assert text.startswith(f"# {name}\n") and f"```text\n{theorem.formula}\n```" in text
        assert all(f"| `{a.name}` |" in text for a in theorem.assumptions)
        for note in re.findall(r"\]\(\.\./theorems/([a-z-]+)\.md\)", text):
            assert (ROOT / "docs" / "theorems" / f"{note}.md").is_file(), (name, note)
        plain = re.sub(r"\\(.)", r"\1", text)
        assert theorem.citation.split(" (")[0].split(",")[0] in plain and '"type": "Run"' in plain
        told = {"claimed": "claimed to be", "lower": "at least"}.get(theorem.kind, "at most")
        assert told in text.split("## Example")[1]
    assert generate.marked("a*b_c <d> |e|") == r"a\*b\_c &lt;d> \|e\|"
    assert generate.marked("see docs/theorems/sgld.") == "see [sgld](../theorems/sgld.md)."


def test_every_proof_note_is_in_the_navigation():
    navigation = (ROOT / "mkdocs.yml").read_text()
    for path in (ROOT / "docs").rglob("*.md"):
        assert str(path.relative_to(ROOT / "docs")) in navigation, path
    for theorem in TABLE.values():
        notes = re.findall(r"docs/theorems/([a-z-]+)", theorem.citation + theorem.remark)
        assert notes, f"{theorem.name} has no proof note"
        for note in notes:
            assert (ROOT / "docs" / "theorems" / f"{note}.md").is_file()

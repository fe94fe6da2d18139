"""The page on posterior samples: its links exist, and its picture shows what it claims."""

import re
from pathlib import Path

from lastiterate_papers.interim_breach import breach
from support import load_script

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "guides" / "posterior-sample.md").read_text()


def test_links_and_picture_exist():
    for target in re.findall(r"\]\(([^)]+)\)", PAGE):
        assert (ROOT / "docs" / "guides" / target).is_file(), target
    nav = (ROOT / "mkdocs.yml").read_text()
    for page in ("posterior-sample", "theorems/posterior-sample", "theorems/ridge-posterior"):
        assert f"{page}.md" in nav
    assert "theorems/propose-test-sample.md" in nav


def test_the_lines_of_the_picture():
    picture = load_script(ROOT / "benchmarks" / "figures" / "posterior_and_sgld.py")
    lines = picture.over_epochs(breach(1.0, 1e-5, 5.0), points=7, grid=1501)
    top = max(lines.exact)
    at = lines.exact.index(top)
    assert 0 < at < 6 and list(lines.exact[: at + 1]) == sorted(lines.exact[: at + 1]), "rising"
    assert (
        list(lines.exact[at:]) == sorted(lines.exact[at:], reverse=True) and lines.exact[-1] < 0.2
    ), "and falling"
    assert lines.posterior <= 1 and top > 5 and lines.exact[-1] < lines.posterior
    for chernoff, event, exact in zip(lines.chernoff, lines.half_line, lines.exact, strict=True):
        assert chernoff <= event * (1 + 1e-6) + 1e-9 and event <= exact * (1 + 1e-3) + 1e-6

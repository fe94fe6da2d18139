"""What pages name exists: files, modules, commands, names of the library, targets of links."""

import importlib
import re
from pathlib import Path

import pytest

import lastiterate as li
from lastiterate import plugins
from lastiterate.certificate_statement import AUDIT, FACTS, SETTINGS, STATED
from lastiterate.cli import app

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    [
        *(ROOT / "docs").rglob("*.md"),
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        ROOT / "SECURITY.md",
        ROOT / "CODE_OF_CONDUCT.md",
        ROOT / "benchmarks" / "RESULTS.md",
    ]
)
GENERATED = {
    "support.md",
    "gallery/index.md",
    "table/index.md",
    "reference/index.md",
    "reference/command-line.md",
    "reference/errors.md",
    "assets/example-report.html",
}
"""Pages that hooks make while the documentation is built."""
PLACEHOLDERS = (
    "docs/theorems/NAME.md",
    "src/lastiterate/theorems/NAME.py",
    "benchmarks/FOLDER/NAME.py",
)


def resolves(name):
    """Whether ``lastiterate.a.b`` is a module, or a name in one."""
    parts = name.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        try:
            for part in parts[cut:]:
                found = getattr(found, part)
        except AttributeError:
            return False
        return True
    return False


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_names_on_a_page_exist(page):
    text = page.read_text(encoding="utf-8")
    files = set(
        re.findall(
            r"(?<![\w/.-])((?:docs|benchmarks|tests|src|tools)/[\w./*-]+\.(?:py|md|toml|png))", text
        )
    )
    assert not [file for file in files - set(PLACEHOLDERS) if not list(ROOT.glob(file))], page
    rooms = set(re.findall(r"`((?:[a-z_]+/)+[a-z_]+\.py)`", text)) - {
        file for file in files if "/" in file
    }
    missing = [
        file
        for file in rooms
        if not any((ROOT / where / file).is_file() for where in (".", "src/lastiterate"))
    ]
    assert not [file for file in missing if file not in PLACEHOLDERS], page
    modules = set(re.findall(r"python -m (benchmarks(?:\.[a-z_]+)+)", text))
    ends = (".py", "/__main__.py")
    assert not [
        name
        for name in modules
        if not any((ROOT / (name.replace(".", "/") + end)).is_file() for end in ends)
    ]
    names = set(re.findall(r"(?<![\w/.-])(lastiterate(?:\.[A-Za-z_]\w*)+)", text))
    groups = {f"lastiterate.{group}" for group in plugins.KINDS}  # of entry points
    assert not [name for name in names - groups if not resolves(name)], page
    short = set(re.findall(r"(?<![\w.])li\.([A-Za-z_]\w*)", text))
    assert not [name for name in short if not hasattr(li, name)], page


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_on_a_page_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        where = page.parent / target
        made = where.resolve().is_relative_to(ROOT / "docs") and (
            str(where.resolve().relative_to(ROOT / "docs")) in GENERATED
        )
        if not target.startswith("http"):
            assert made or where.exists(), target


def find_anchors(page):
    """Return the anchors of a page's headings, as MkDocs makes them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.S | re.M)
    titles = [re.sub(r"[^\w\s-]", "", line) for line in re.findall(r"^#+ (.+)$", text, re.M)]
    return {re.sub(r"[-\s]+", "-", title.strip().lower()) for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_anchors_on_a_page_exist(page):
    for target, anchor in re.findall(r"\]\(([^)#\s]*)#([^)\s]+)\)", page.read_text("utf-8")):
        where = page.parent / target if target else page
        if target.startswith("http") or where.suffix != ".md" or not where.exists():
            continue
        assert anchor in find_anchors(where), f"{target}#{anchor}"


def test_commands_on_pages_exist():
    import typer

    commands = set(typer.main.get_command(app).commands)
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        blocks = "\n".join(re.findall(r"```console\n(.*?)```", text, re.DOTALL))
        used = set(re.findall(r"^(?:\$ )?lastiterate ([a-z]+)\b", blocks, re.MULTILINE))
        assert used <= commands, (page, used - commands)


def test_a_name_that_is_gone_is_noticed():
    assert resolves("lastiterate.curves.gaussian.Gdp") and resolves("lastiterate.audit.audit")
    assert not resolves("lastiterate.nothing") and not resolves(
        "lastiterate.curves.gaussian.Nothing"
    )


def test_every_version_of_the_changelog_has_sections():
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    versions = re.split(r"^## ", text, flags=re.MULTILINE)[1:]
    if not li.__version__.endswith(".dev0"):  # towncrier writes the section of a release
        assert versions[0].startswith(li.__version__)
    for version in versions:
        before, *sections = re.split(r"^### ", version, flags=re.MULTILINE)
        assert sections and "\n- " not in before, "every entry stands in a section"
        order = ["Security", "Added", "Changed", "Deprecated", "Removed", "Fixed"]
        names = [part.split("\n")[0] for part in sections]
        assert names == [name for name in order if name in names]


def test_the_readme_is_no_longer_than_a_reader_bears():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 90


def test_the_guide_lists_every_entry_of_a_statement():
    """In a table of its own: nothing else tells a releaser what a statement may hold."""
    text = (ROOT / "docs" / "guides" / "release.md").read_text(encoding="utf-8")
    table = text.split("| entry of the statement | content |")[1].split("\n\n")[0]
    known = {*STATED, *FACTS, *AUDIT, *SETTINGS}
    assert set(re.findall(r"`(\w+)`", table)) == known


def test_the_comparison_names_the_release_that_each_row_was_checked_against():
    """A row without a full version, or a page without its day, can be of any age."""
    text = (ROOT / "docs" / "guides" / "comparison.md").read_text(encoding="utf-8")
    assert re.search(r"checked on \d+ \w+ 20\d\d against the newest release", text)
    rows = [line.split(" | ")[0] for line in text.splitlines() if line.startswith("| ")][1:]
    undated = [row for row in rows if not re.search(r"\d+\.\d+\.\d+", row)]
    assert undated == ["| PrivTab"], "which has no releases: its card is dated below"
    pins = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    (pinned,) = re.findall(r"^dp-accounting==(\S+)$", pins, re.MULTILINE)
    assert f"| dp-accounting {pinned} " in text
    assert "written and vetted by people, without a proof assistant" in text
    assert "machine-checked" not in text and "by Monte Carlo" in text


PAPERS = {
    "2605.15648": ("guides/batches.md", "guides/comparison.md", "theorems/poisson.md"),
    "2606.12733": ("guides/audit.md",),
    "2601.21636": ("theorems/correlated-noise.md",),
    "2410.06266": ("theorems/correlated-noise.md", "theorems/balls-in-bins.md"),
    "2412.16802": ("theorems/balls-in-bins.md",),
    "2508.15089": ("guides/batches.md", "theorems/poisson.md"),
    "2306.06076": ("guides/images.md",),
    "2211.13403": ("guides/images.md",),
}


@pytest.mark.parametrize("paper", PAPERS)
def test_a_paper_is_cited_where_a_reader_needs_it(paper):
    for page in PAPERS[paper]:
        assert f"arXiv:{paper}" in (ROOT / "docs" / page).read_text(encoding="utf-8"), page


FILES = re.compile(
    r"``?((?:[\w]+/)*[\w]+\.py)``?|\b((?:docs|benchmarks|checker|tools|tests)/[\w/.-]*\w)"
)


@pytest.mark.parametrize("package", ["src/lastiterate", "src/lastiterate_papers"])
def test_files_that_the_sources_name_exist(package):
    """A name is looked for from the repository, from the package and beside the file."""
    lost = []
    for path in (ROOT / package).rglob("*.py"):
        for quoted, listed in FILES.findall(path.read_text(encoding="utf-8")):
            name = (quoted or listed).rstrip(".")
            places = [place / name for place in (ROOT, ROOT / package, path.parent)]
            if not any(
                place.exists() or place.with_name(f"{place.name}.md").exists() for place in places
            ):
                lost.append(f"{path.relative_to(ROOT)}: {name}")
    assert not lost


def test_the_readme_says_which_idea_works_where():
    """The demo is certified by secret batches, which need no hidden iterate."""
    text = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    secret, hidden = text.split("**Secret batches.**")[1].split("**Hidden iterates.**")
    assert "works for any clipped loss, linear models and networks alike" in secret
    assert "certifies the demo above (`random-allocation-pld`)" in secret
    assert "needs no hidden iterate" in secret
    assert "works for convex, smooth losses" in hidden and "not for networks" in hidden


def test_every_place_names_the_same_time_of_an_audit():
    """Counted models are sized for a minute; pairs, pilots and the public ways take up to three
    more."""
    time = "one to four minutes"
    places = [ROOT / "README.md", ROOT / "docs/guides/audit.md"]
    places += [ROOT / "src/lastiterate/cli/audit.py", ROOT / "src/lastiterate/audit/runner.py"]
    for place in places:
        text = " ".join(place.read_text(encoding="utf-8").split())
        assert text.count(time) == 1 and "about a minute" not in text, place

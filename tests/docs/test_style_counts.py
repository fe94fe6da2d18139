"""Counts of style may fall and never rise: ``style_counts.toml`` has the limits."""

import ast
import importlib.util
import inspect
import re
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = sorted((ROOT / "src" / "lastiterate").rglob("*.py"))
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
REFERENCE = ("theorems", "reference", "releases", "papers.md", "leaderboard.md", "glossary.md")
"""Folders and pages of ``docs`` to look things up in; all others count as words to read."""
STYLE = ROOT / "docs" / "contributing" / "style.md"
LIMITS = tomllib.loads(Path(__file__).with_name("style_counts.toml").read_text("utf-8"))
IRREGULAR = {
    *[
        "kept",
        "held",
        "drawn",
        "told",
        "said",
        "made",
        "put",
        "cut",
        "sent",
        "dealt",
        "shown",
        "written",
        "given",
        "taken",
    ]
}
IRREGULAR |= {*["found", "chosen", "known", "built", "laid", "left", "looked", "met", "seen"]}
VERBS = {*["seed", "need", "feed", "embed", "exceed", "proceed", "speed", "bring", "string"]}
PACKAGES = ("", ".audit", ".bayes", ".estimators", ".features", ".jax", ".ledger", ".testing")
PACKAGES += (".torch",)


def is_participle(name):
    """Return whether the first word of a function's name is a participle."""
    if name.startswith("__"):
        return False
    word = name.strip("_").split("_")[0]
    regular = len(word) > 4 and word.endswith(("ed", "ing"))
    return word in IRREGULAR or (regular and word not in VERBS)


def is_property(function):
    """Return whether a decorator makes the function a property."""
    names = [ast.unparse(decorator).rsplit(".", 1)[-1] for decorator in function.decorator_list]
    return bool({"property", "cached_property", "setter"} & {*names})


@cache
def read(file):
    """Return the text of a file."""
    return file.read_text("utf-8")


@cache
def functions():
    """Return each function of the library with its file; every file is parsed once."""
    return [
        (file, node)
        for file in SOURCE
        for node in ast.walk(ast.parse(read(file)))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]


def participles():
    """List functions, other than properties, that are named by a participle."""
    return [
        f"{file.relative_to(ROOT)}:{node.lineno} {node.name}"
        for file, node in functions()
        if is_participle(node.name) and not is_property(node)
    ]


@cache
def prose(page):
    """Return the text of a page without code, at the same line numbers."""
    text = re.sub(r"```.*?```", lambda block: "\n" * block[0].count("\n"), read(page), flags=re.S)
    return re.sub(r"`[^`\n]*`", "", text)


def read_words():
    """Return the left column of the table of words."""
    return re.findall(r"^\| `([a-z -]+?)` \| ", read(STYLE), flags=re.M)


def private_words():
    """List uses of the left column in the library and the pages."""
    pattern = re.compile(rf"(?<![\w-])({'|'.join(map(re.escape, read_words()))})(?![\w-])", re.I)
    texts = [(file, read(file)) for file in SOURCE]
    texts += [(page, prose(page)) for page in PAGES if page != STYLE]
    return [
        f"{file.relative_to(ROOT)}:{text.count(chr(10), 0, match.start()) + 1} {match[0]}"
        for file, text in texts
        for match in pattern.finditer(text)
    ]


def short_files():
    """List modules of fewer than 80 lines."""
    return [
        str(file.relative_to(ROOT))
        for file in SOURCE
        if file.name != "__init__.py" and len(read(file).splitlines()) < 80
    ]


def lacks_sections(value):
    """Return whether a docstring lacks a numpydoc section that the value's signature asks for."""
    text = inspect.getdoc(value) or ""
    wanted = ["Examples"]
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return not text
    if {*signature.parameters} - {"self", "args", "kwargs"}:
        wanted.append("Parameters")
    if inspect.isfunction(value) and signature.return_annotation not in (None, "None"):
        wanted.append("Returns")
    return any(not re.search(rf"^{name}\n-+$", text, flags=re.M) for name in wanted)


def undocumented_names():
    """List public functions and classes without a full numpydoc docstring."""
    found = []
    for package in PACKAGES:
        if package == ".torch" and not importlib.util.find_spec("torch"):
            continue
        module = importlib.import_module(f"lastiterate{package}")
        values = [(name, getattr(module, name)) for name in module.__all__]
        found += [
            f"lastiterate{package}.{name}"
            for name, value in values
            if callable(value) and lacks_sections(value)
        ]
    return found


def count_guide_words():
    """Return the number of words on pages that are read, reference aside."""
    pages = [page for page in PAGES if page.is_relative_to(ROOT / "docs")]
    read_through = [
        page for page in pages if page.relative_to(ROOT / "docs").parts[0] not in REFERENCE
    ]
    return sum(len(read(page).split()) for page in read_through)


LISTS = {
    "participles": participles,
    "private_words": private_words,
    "short_files": short_files,
    "undocumented_names": undocumented_names,
}


@pytest.mark.parametrize("name", LISTS)
def test_count_does_not_rise(name):
    found = LISTS[name]()
    listing = "\n".join(found)
    assert len(found) <= LIMITS[name], f"{name}: {len(found)}, limit {LIMITS[name]}\n{listing}"


def test_prose_does_not_get_harder():
    text = "\n".join(map(prose, PAGES))
    words = re.findall(r"[A-Za-z']+", text)
    what = 1000 * sum(word.lower() == "what" for word in words) / len(words)
    no_tables = re.sub(r"\|[^\n]*", "", text)
    lengths = [len(part.split()) for part in re.split(r"(?<=[.!?])\s+", no_tables)]
    lengths = [length for length in lengths if length > 3]
    assert round(what, 2) <= LIMITS["what_per_1000_words"]
    assert round(sum(lengths) / len(lengths), 1) <= LIMITS["words_per_sentence"]


def test_guides_do_not_get_longer():
    assert count_guide_words() <= LIMITS["guide_words"]


def test_offenders_are_found():
    assert is_participle("_executed") and is_participle("kept") and not is_participle("run_steps")
    assert not is_participle("seed") and lacks_sections(is_participle)
    assert "beside" in read_words() and "go on" in read_words() and "not" not in read_words()


def test_changelog_fragments_have_known_types():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["towncrier"]
    kinds = "|".join(kind["directory"] for kind in settings["type"])
    names = {file.name for file in (ROOT / settings["directory"]).iterdir()}
    names -= {"README.md", "template.jinja"}
    assert not [name for name in names if not re.fullmatch(rf"[a-z0-9-]+\.({kinds})\.md", name)]


def check_commits(*arguments, folder=ROOT):
    """Run the check of commit subjects."""
    script = [sys.executable, str(ROOT / "tools" / "check_commits.py"), *map(str, arguments)]
    return subprocess.run(script, cwd=folder, capture_output=True, text=True)


@pytest.mark.parametrize(
    "subject, fault",
    [
        ("fix(curves): keep the group profile finite above epsilon 700", ""),
        ("docs!: drop the old tutorial", ""),
        ("Accounting measured beside dp-accounting", "write 'type(scope): imperative'"),
        ("fix(curves): " + "a" * 60, "has 73 characters"),
        ("fix: added a check", "begins with 'added'"),
        ("fix: add a check.", "ends with a full stop"),
    ],
)
def test_commit_subjects(subject, fault, tmp_path):
    (tmp_path / "message").write_text(f"# a comment\n{subject}\n\nA body of the message.\n")
    done = check_commits(tmp_path / "message")
    assert (done.returncode, fault in done.stdout) == (1 if fault else 0, True), done.stdout


def test_commit_check_without_history_checks_nothing_and_says_so(tmp_path):
    done = check_commits(folder=tmp_path)
    assert done.returncode == 0 and "nothing checked" in done.stdout, done.stderr

"""Counts of style may fall and never rise: ``style_counts.toml`` has the limits."""

import ast
import importlib.util
import inspect
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = sorted((ROOT / "src" / "lastiterate").rglob("*.py"))
PAGES = [page for page in sorted((ROOT / "docs").rglob("*.md")) if "assets" not in page.parts]
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
PACKAGES = ("", ".audit", ".bayes", ".estimators", ".features", ".ledger", ".torch")


def is_participle(name):
    """Return whether the first word of a function's name is a participle."""
    word = name.strip("_").split("_")[0]
    regular = len(word) > 4 and word.endswith(("ed", "ing"))
    return word in IRREGULAR or (regular and word not in VERBS)


def is_property(function):
    """Return whether a decorator makes the function a property."""
    names = [ast.unparse(decorator).rsplit(".", 1)[-1] for decorator in function.decorator_list]
    return bool({"property", "cached_property", "setter"} & {*names})


def participles():
    """List functions, other than properties, that are named by a participle."""
    return [
        f"{file.relative_to(ROOT)}:{node.lineno} {node.name}"
        for file in SOURCE
        for node in ast.walk(ast.parse(file.read_text("utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and is_participle(node.name)
        and not is_property(node)
    ]


def prose(page):
    """Return the text of a page without code, at the same line numbers."""
    text = re.sub(
        r"```.*?```", lambda block: "\n" * block[0].count("\n"), page.read_text("utf-8"), flags=re.S
    )
    return re.sub(r"`[^`\n]*`", "", text)


def read_words():
    """Return the left column of the table of words."""
    return re.findall(r"^\| ([a-z -]+?) \| ", STYLE.read_text("utf-8"), flags=re.M)[1:]


def private_words():
    """List uses of the left column in the library and the pages."""
    pattern = re.compile(rf"(?<![\w-])({'|'.join(map(re.escape, read_words()))})(?![\w-])", re.I)
    texts = [(file, file.read_text("utf-8")) for file in SOURCE]
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
        if file.name != "__init__.py" and len(file.read_text("utf-8").splitlines()) < 80
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

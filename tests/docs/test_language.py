"""The project speaks the field's terms: the library and its documentation hold no private words."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
BANNED = {
    r"nobody (sees|knows)": "secret, not released",
    r"louder|voices?": "contribution, gradient",
    r"doubt\w*": "undecided; test a constant",
    r"moduli": "sizes; moduli of continuity one by one",
    r"coins?": "with probability 1/2",
    r"worlds?": "neighbouring data sets",
    r"roughly|rough": "coarse, about",
    r"\w*_pulls?|pulls?|pulled|pulling": "gradient, contribution",
    r"meets?|met|meetings?": "use, participate; participation",
    r"rooms?": "package; allowance",
    r"told|tells?|telling": "say, show, distinguish",
    r"in the dark": "with hidden iterates",
    r"fairy|yardsticks?": "comparison",
}
"""A private word, and what the field says."""
ALLOWED: dict[tuple[str, str], int] = {}
"""Files that may hold a word, and how often."""
FILES = sorted(
    [
        *(ROOT / "src").rglob("*.py"),
        *(ROOT / "src").rglob("*.pyi"),
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "docs").rglob("*.py"),
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
    ]
)


def found_in(text):
    """Every banned word of a text with its line."""
    return [
        (match[0], text.count("\n", 0, match.start()) + 1)
        for words in BANNED
        for match in re.finditer(rf"(?<![A-Za-z])({words})(?![A-Za-z])", text)
    ]


def test_words_are_found():
    text = "a record\nmet twice, largest_pull(run), metric, grooming"
    assert found_in(text) == [("largest_pull", 2), ("met", 2)]
    assert found_in("two worlds") == [("worlds", 1)]


def violations(files):
    """``file: word (lines)`` for each word of each file that stands there more often than it may."""
    for file in files:
        name, lines = str(file.relative_to(ROOT)), {}
        for word, line in found_in(file.read_text(encoding="utf-8")):
            lines.setdefault(word, []).append(line)
        yield from (
            f"{name}: {word} {at}"
            for word, at in lines.items()
            if len(at) > ALLOWED.get((name, word), 0)
        )


def test_no_private_words():
    assert len(FILES) > 300
    wrong = list(violations(FILES))
    assert not wrong, "the glossary (docs/glossary.md) has the field's terms\n" + "\n".join(wrong)


def test_every_violation_is_listed():
    """This file quotes its words, and a word that is allowed twice counts from the third on."""
    here = list(violations([Path(__file__)]))
    assert (
        any(line.startswith("tests/docs/test_language.py: met [") for line in here)
        and len(here) > 10
    )
    assert not list(violations([ROOT / "README.md"]))

"""The page of what is supported is the accountant's answer for every kind there is; formulas are
those of the table."""

import re
import sys
from collections import Counter
from pathlib import Path
from typing import get_args

import pytest

import lastiterate as li
from lastiterate.run.adjacency import Adjacency
from lastiterate.run.batching import Batching
from lastiterate.run.noise import Noise
from lastiterate.run.updates import Update
from lastiterate.theorems import TABLE

DOCS = Path(__file__).parents[2] / "docs"
sys.path.insert(0, str(DOCS))
import generate  # noqa: E402
import generate_support as support  # noqa: E402

sys.path.remove(str(DOCS))


def test_every_kind_is_asked_for():
    assert set(support.batchings()) == {kind.__name__ for kind in get_args(Batching)}
    assert set(support.NOISES) == {kind.__name__ for kind in get_args(Noise)}
    assert set(support.UPDATES) == {kind.__name__ for kind in get_args(Update)}
    found = list(support.rows("any"))
    assert len(found) == len(support.batchings()) * len(support.groups()) * (
        len(support.UPDATES) + 1
    ) * len(get_args(Adjacency))


def test_a_cell_says_what_the_accountant_says():
    """Certified, not possible and open: one of each, asked again here."""
    run = li.Run(
        n=1000,
        steps=30,
        step_size=0.1,
        noise=li.NoiseMultiplier(5.0),
        clip=1.0,
        batching=li.Poisson(0.1),
        adjacency="add-remove",
        loss=li.KnownConstants(li.LossFacts()),
    )
    found = support.cell("Poisson", "NoiseMultiplier", "add-remove", None, "any")
    assert (
        found.certified == tuple(verdict.theorem.name for verdict in li.account(run).certifying)
        and found.certified
    )
    refused = support.cell("Cyclic", "NoiseMultiplier", "add-remove", None, "any")
    assert "add-remove is defined for" in refused.text and refused.text.startswith("not possible")
    assert "open" in support.cell("FixedSize", "Correlated", "zero-out", None, "any").text
    adam = support.cell("Permuted", "NoiseMultiplier", "zero-out", "Adam", "strongly convex")
    assert {TABLE[name].family for name in adam.certified} == {"composition"}, (
        "an update rule that is post-processing hides nothing"
    )


def test_the_page_links_what_certifies_and_the_map_leads_there():
    text = support.page()
    names = set(re.findall(r"\]\(table/([a-z-]+)\.md\)", text))
    assert (
        names <= set(TABLE)
        and {"shifted-interpolation-permuted", "random-allocation-pld", "poisson-pld"} <= names
    )
    assert names == set(re.findall(r'href="table/([a-z-]+)\.html"', text)), (
        "every theorem of the tables is on the map"
    )
    assert all(
        f"### {name}\n" in text and f'href="#{name.lower()}"' in text
        for name in support.batchings()
    )
    assert not any(TABLE[name].kind != "upper" for name in names)


GREEK = (
    "alpha",
    "beta",
    "delta",
    "epsilon",
    "eta",
    "lambda",
    "mu",
    "nu",
    "sigma",
    "tau",
    "theta",
    "zeta",
)


def letters(text):
    spelled = re.sub(r"eps(?!ilon)", "epsilon", text)
    return {name for name in GREEK if re.search(rf"(?<![a-z]){name}(?![a-z])", spelled)}


@pytest.mark.parametrize("name", TABLE)
def test_a_formula_has_the_numbers_and_letters_of_the_plain_text(name):
    plain, tex = TABLE[name].formula, TABLE[name].latex
    assert Counter(re.findall(r"\d+", plain)) == Counter(re.findall(r"\d+", tex))
    assert letters(plain) == letters(tex)
    assert tex.count("{") == tex.count("}") and tex.count(r"\left") == tex.count(r"\right")
    assert all(part.count(r"\left") == part.count(r"\right") for part in tex.split(r"\quad")), (
        "parts are set apart"
    )


def test_another_formula_is_noticed():
    assert letters("alpha S / eta") != letters(r"\alpha S / \sigma") and letters("H_eps(") == {
        "epsilon"
    }


NOTES = sorted((DOCS / "theorems").glob("*.md"))


def between_dollars(text):
    """Formulas of a note, and what remains of it without them, without code and without links."""
    for nothing in (r"```.*?```", r"`[^`]*`", r"\]\([^)]*\)"):
        text = re.sub(nothing, "", text, flags=re.DOTALL)
    found = re.findall(r"\$\$(.+?)\$\$|\$([^$]+)\$", text)
    return [block or inline for block, inline in found], re.sub(r"\$\$.+?\$\$|\$[^$]+\$", "", text)


def set_well(tex):
    """Whether LaTeX becomes MathML whole: no command and no brace is left, and brackets of one part
    are in balance."""
    from latex2mathml.converter import convert

    made = convert(tex, display="block")
    plain = re.sub(r"<[^>]*>", "", made)
    return (
        made.startswith("<math")
        and "merror" not in made
        and "\\" not in plain
        and "<script" not in made
    )


@pytest.mark.parametrize("note", NOTES, ids=lambda path: path.stem)
def test_formulas_of_a_note_are_mathematics_that_needs_no_script(note):
    pytest.importorskip("latex2mathml")
    found, rest = between_dollars(note.read_text(encoding="utf-8"))
    assert found and not [tex for tex in found if tex != tex.strip() or not set_well(tex)]
    assert not [tex for tex in found if tex.count("{") != tex.count("}")]
    left = re.findall(r"\$|[A-Za-z]_[{A-Za-z0-9]|\w\^|[<>]=|\bsqrt\b", rest)
    assert not left, "a formula as plain text"


def test_formulas_of_theorems_are_mathematics_that_needs_no_script():
    pytest.importorskip("latex2mathml")
    assert not [
        name
        for name, theorem in TABLE.items()
        if not all(map(set_well, theorem.latex.split(r"\quad")))
    ]


def test_a_formula_that_is_not_set_is_noticed():
    pytest.importorskip("latex2mathml")
    assert set_well(r"\mu^2 \le \sum_t a_t") and not set_well(r"\unknowncommand x")
    assert between_dollars("a $x_1$ and `y_2`, b_3\n\n$$z$$") == (["x_1", "z"], "a  and , b_3\n\n")


def test_a_formula_of_a_page_takes_the_place_of_its_dollars():
    pytest.importorskip("latex2mathml")
    made = generate.on_page_content(
        '<p>if <span class="arithmatex">\\(a &lt; b\\)</span>:</p>\n'
        '<div class="arithmatex">\n\\[c\\]\n</div>',
        page=None,
    )
    assert made.count("<math") == 2 and "arithmatex" not in made and 'display="block"' in made
    assert "&#x0003C;" in made and "lt;" not in made, "what the page escaped is not escaped twice"
    long = generate.on_page_content(rf'<span class="arithmatex">\({"x + " * 12} x\)</span>')
    assert long.startswith('<span class="long-formula"><math')

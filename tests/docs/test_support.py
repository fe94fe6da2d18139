"""The page of what is supported is the accountant's answer for every kind there is; formulas are those of the table."""

import re
import sys
import tomllib
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
import generate_support as support  # noqa: E402

sys.path.remove(str(DOCS))


def test_every_kind_is_asked_for():
    assert set(support.batchings()) == {kind.__name__ for kind in get_args(Batching)}
    assert set(support.NOISES) == {kind.__name__ for kind in get_args(Noise)}
    assert set(support.UPDATES) == {kind.__name__ for kind in get_args(Update)}
    found = list(support.rows("any"))
    assert len(found) == len(support.batchings()) * len(support.groups()) * (len(support.UPDATES) + 1) * len(
        get_args(Adjacency))


def test_a_cell_says_what_the_accountant_says():
    """Certified, not possible and open: one of each, asked again here."""
    run = li.Run(n=1000, steps=30, step_size=0.1, noise=li.NoiseMultiplier(5.0), clip=1.0, batching=li.Poisson(0.1),
                 adjacency="add-remove", loss=li.Abstract(li.LossFacts()))
    found = support.cell("Poisson", "NoiseMultiplier", "add-remove", None, "any")
    assert found.certified == tuple(verdict.theorem.name for verdict in li.account(run).certifying) and found.certified
    refused = support.cell("Cyclic", "NoiseMultiplier", "add-remove", None, "any")
    assert "add-remove is defined for" in refused.text and refused.text.startswith("not possible")
    assert "open" in support.cell("FixedSize", "Correlated", "zero-out", None, "any").text
    assert support.cell("Permuted", "NoiseMultiplier", "zero-out", "Adam", "strongly convex").certified == (
        "composition-gdp",), "an update rule that is post-processing hides nothing"


def test_the_page_links_what_certifies_and_the_map_leads_there():
    text = support.page()
    names = set(re.findall(r"\]\(table/([a-z-]+)\.md\)", text))
    assert names <= set(TABLE) and {"shifted-interpolation-permuted", "random-allocation-pld", "poisson-pld"} <= names
    assert names == set(re.findall(r'href="\.\./table/([a-z-]+)/"', text)), "every theorem of the tables is on the map"
    assert all(f"### {name}\n" in text and f'href="#{name.lower()}"' in text for name in support.batchings())
    assert not any(TABLE[name].kind != "upper" for name in names)


FORMULAS = tomllib.loads((DOCS / "formulas.toml").read_text(encoding="utf-8"))
GREEK = ("alpha", "beta", "delta", "epsilon", "eta", "lambda", "mu", "nu", "sigma", "tau", "theta", "zeta")


def letters(text):
    spelled = re.sub(r"eps(?!ilon)", "epsilon", text)
    return {name for name in GREEK if re.search(rf"(?<![a-z]){name}(?![a-z])", spelled)}


def test_every_theorem_has_its_formula():
    assert list(FORMULAS) == list(TABLE)


@pytest.mark.parametrize("name", TABLE)
def test_a_formula_has_the_numbers_and_letters_of_the_plain_text(name):
    plain, tex = TABLE[name].formula, FORMULAS[name]
    assert Counter(re.findall(r"\d+", plain)) == Counter(re.findall(r"\d+", tex))
    assert letters(plain) == letters(tex)
    assert tex.count("{") == tex.count("}") and tex.count(r"\left") == tex.count(r"\right")
    assert all(part.count(r"\left") == part.count(r"\right") for part in tex.split(r"\quad")), "parts are set apart"


def test_another_formula_is_noticed():
    assert letters("alpha S / eta") != letters(r"\alpha S / \sigma") and letters("H_eps(") == {"epsilon"}


def test_formulas_are_mathematics_that_needs_no_script():
    pytest.importorskip("latex2mathml")
    from latex2mathml.converter import convert

    for name, tex in FORMULAS.items():
        for part in tex.split(r"\quad"):
            made = convert(part, display="block")
            assert made.startswith("<math") and "merror" not in made and "<script" not in made, name

"""The page of the papers: every item's values with units, all of its panels, and the size of its
run."""

from pathlib import Path

import pytest

from lastiterate_papers import ITEMS
from lastiterate_papers.item import by_name
from support import load_script

ROOT = Path(__file__).parents[2]
page = load_script(ROOT / "tools" / "papers_page.py")
PAGE = (ROOT / "docs" / "papers.md").read_text(encoding="utf-8")


def body(**more):
    panel = {
        "title": "t",
        "x_name": "x",
        "y_name": "y",
        "log_x": False,
        "log_y": False,
        "names": [],
        "traces": [{"label": "a", "x": [1.0, 2.0], "y": [1.0, None], "style": "audit"}],
    }
    rows = [
        {
            "what": "only ours",
            "published": None,
            "ours": 3.0,
            "difference": None,
            "relation": "=",
            "agrees": None,
            "unit": "%",
        },
        {
            "what": "a|b",
            "published": 70.25,
            "ours": 71.5,
            "difference": 1.25,
            "relation": "<=",
            "agrees": False,
            "unit": "%",
        },
    ]
    return {
        "item": "heller-fetaya-fig2",
        "quick": False,
        "given": {"n": 0.0, "step": 0.0},
        "panels": [panel] * 3,
        "rows": rows,
        "notes": ["a note"],
        "status": "differs",
        "settings": {
            "n": 2000,
            "step": 0.3333333,
            "clip": None,
            "orders": [2, [3, 4.0]],
            "tests": {"a": "b"},
        },
        **more,
    }


def test_values_stand_beside_what_was_published_with_their_units():
    assert page.values(body()).splitlines() == [
        "| | published | ours | difference | |",
        "|---|---|---|---|---|",
        "| a\\|b | <= 70.25 % | 71.5 % | 1.2 % | **differs** |",
        "| only ours |  | 3 % |  |  |",
    ]
    ours = page.values(body(rows=body()["rows"][:1])).splitlines()
    assert ours == ["| | ours |", "|---|---|", "| only ours | 3 % |"]


def test_the_size_of_a_run_names_what_was_chosen():
    assert page.size(body()) == "in full" and page.size(body(quick=True)) == "reduced"
    assert page.size(body(given={"n": 500.0, "step": 0.0})) == "in full, with n=500"


def test_the_page_names_the_size_and_how_a_reduced_item_is_made_in_full():
    assert (
        page.settings(body()["settings"])
        == "n 2000, step 0.3333, clip none, orders 2 / (3 / 4), tests (a b)"
    )
    item = by_name(ITEMS, "heller-fetaya-fig2")
    for quick in (True, False):
        text = "\n".join(
            page.section(
                item,
                body(quick=quick, rows=[{**body()["rows"][0], "what": "largest epsilon shown"}]),
            )
        )
        assert "Size and settings: n 2000, step" in text
        assert quick == (
            "`lastiterate papers heller-fetaya-fig2 --data-dir DATA --out DIR`, which goes on"
            in text
        )


def test_all_panels_are_drawn():
    from io import BytesIO

    from matplotlib.image import imread

    one, three = (
        imread(BytesIO(page.picture(body(panels=body()["panels"][:count])))).shape
        for count in (1, 3)
    )
    assert three[0] > 1.7 * one[0] and three[1] > 1.7 * one[1], "two in a line, the third below"


@pytest.mark.parametrize("item", [each.name for each in ITEMS])
def test_the_page_has_every_item_with_its_picture(item):
    assert f"\n### {item}\n" in PAGE and f"](papers/{item}.png)" in PAGE
    assert (ROOT / "docs" / "papers" / f"{item}.png").is_file()
    part = PAGE.split(f"\n### {item}\n")[1].split("\n### ")[0]
    assert (
        "|---|" in part
        and "\nSize and settings: " in part
        and by_name(ITEMS, item).title in " ".join(part.split())
    )

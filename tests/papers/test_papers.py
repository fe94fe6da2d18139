"""Items of ``lastiterate papers``: what they compare, what they write, and what they keep."""

import json
import math

import pytest
from typer.testing import CliRunner

from lastiterate.cli import app
from lastiterate.errors import InputError
from lastiterate.papers import ITEMS, Item, Panel, Result, Row, Trace, Work, files
from lastiterate.papers.item import by_name

QUICK = ("chourasia-fig1", "chourasia-tightness", "chourasia-corollary2")
"""The cheapest items; all of them: ``lastiterate papers --all --quick``."""


def command(*words):
    return CliRunner().invoke(app, ["papers", *words])


def item(name="chourasia-toy", run=None, **more):
    panel = Panel("title", "x", "y", (Trace("line", (1.0, 2.0), (1.0, 3.0)),))
    found = Result((Row("what", 1.0, 1.0),), (panel,))
    return Item(name, "paper", "title", "matches", run or (lambda work: found), **more)


@pytest.mark.parametrize("name", QUICK)
def test_a_quick_item_finds_what_the_list_says(name, tmp_path):
    done = command(name, "--quick", "--out", str(tmp_path), "--json")
    assert done.exit_code == 0, done.output
    found = json.loads((tmp_path / f"{name}.json").read_text())
    assert json.loads(done.stdout)["rows"] == found["rows"] and found["quick"] is True
    assert found["status"] == by_name(ITEMS, name).status
    assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert {path.name for path in tmp_path.iterdir()} == {f"{name}.png", f"{name}.json"}
    for row in found["rows"]:
        if row["published"] is not None:
            assert row["difference"] == row["ours"] - row["published"]
    assert found["settings"] and found["seconds"] >= 0


def test_the_54_values_of_figure_1():
    rows = by_name(ITEMS, "chourasia-fig1").run(Work()).rows
    assert len(rows) == 54 and all(row.agrees for row in rows)
    published = {row.what: row.published for row in rows}
    # alpha S^2/(lambda sigma^2 n^2) = 30 * 16/(0.0004 * 25e6) = 0.048, and 1 - e^-1
    assert published["order 30, strong 1, K 100: Corollary 1"] == pytest.approx(0.048 * (1 - math.exp(-1)))
    assert published["order 30, strong 4, K 100: composition"] == pytest.approx(0.024)


def test_names_are_slugs_of_their_papers_and_stand_once():
    names = [each.name for each in ITEMS]
    assert len(names) == len(set(names))
    first = ("chourasia-", "ryffel-", "kong-ribero-", "heller-fetaya-", "bok-", "steinke-", "chua-")
    assert all(name.startswith(first) and name == name.lower() for name in names)


def test_the_list_names_every_item_with_its_status():
    listed = json.loads(command("--json").stdout)
    assert [row["item"] for row in listed] == [each.name for each in ITEMS]
    for row, each in zip(listed, ITEMS, strict=True):
        assert row["status"] == ("data not at hand" if each.data else each.status)


def test_a_row_agrees_by_its_relation_and_tolerance():
    assert Row("", 1.0, 1.1, 0.11).agrees and not Row("", 1.0, 1.1, 0.09).agrees
    assert Row("", 1.0, 2.0, 0.0, "<=").agrees and not Row("", 2.1, 2.0, 0.0, "<=").agrees
    assert Row("", 2.0, 1.0, 0.0, ">=").agrees and not Row("", 0.9, 1.0, 0.0, ">=").agrees
    assert not Row("", math.inf, math.inf, 1.0).agrees and not Row("", math.nan, 1.0, 9.0).agrees
    assert Row("", 1.0).agrees is None and Row("", 1.0).difference is None


def test_one_row_that_disagrees_makes_an_item_differ():
    good, bad, none = Row("a", 1.0, 1.0), Row("b", 1.0, 2.0), Row("c", 1.0)
    assert Result((good, none), ()).status == "matches" and Result((none,), ()).status == "not published"
    assert Result((good, bad, none), ()).status == "differs"


def test_nothing_is_written_where_an_item_fails(tmp_path, monkeypatch):
    def fails(work):
        raise InputError("item", "cannot be made", None)

    monkeypatch.setattr("lastiterate.papers.ITEMS", (item(run=fails), item("chourasia-good")))
    done = command("chourasia-toy", "--out", str(tmp_path / "one"))
    assert done.exit_code == 2 and not (tmp_path / "one").exists()
    done = command("--all", "--out", str(tmp_path))
    assert done.exit_code == 1 and {path.name for path in tmp_path.iterdir()} == {
        "chourasia-good.png", "chourasia-good.json"}
    broken = Result((Row("what", 1.0),), (), {"setting": object()})  # not JSON: nor is the picture left behind
    with pytest.raises(TypeError):
        files.write(tmp_path / "two", item(), Work(), broken, 0.0)
    assert not (tmp_path / "two").exists()


def test_finished_items_with_the_same_settings_are_kept(tmp_path, monkeypatch):
    calls = []
    made = item().run(Work())
    monkeypatch.setattr("lastiterate.papers.ITEMS", (item(run=lambda work: calls.append(work.seed) or made),))
    for words in ([], [], ["--seed", "1"], ["--seed", "1", "--quick"]):
        assert command("--all", "--out", str(tmp_path), *words).exit_code == 0
    assert calls == [0, 1, 1]
    (tmp_path / "chourasia-toy.json").write_text("{ damaged")
    assert command("--all", "--out", str(tmp_path), "--seed", "1", "--quick").exit_code == 0
    assert calls == [0, 1, 1, 1]


def test_an_item_without_its_data_is_listed_and_refused(tmp_path, monkeypatch):
    needs = item(data=("some/file.npz",))
    monkeypatch.setattr("lastiterate.papers.ITEMS", (needs,))
    assert needs.status_with(None) == "data not at hand" == needs.status_with(tmp_path)
    done = command("chourasia-toy", "--data-dir", str(tmp_path))
    assert done.exit_code == 2 and "some/file.npz" in done.stderr
    done = command("--all", "--out", str(tmp_path / "out"), "--json")
    assert done.exit_code == 0 and json.loads(done.stdout)[0]["status"] == "data not at hand"
    (tmp_path / "some").mkdir()
    (tmp_path / "some" / "file.npz").touch()
    assert needs.status_with(tmp_path) == "matches"


@pytest.mark.parametrize("words", [("--all",), ("--all", "chourasia-fig1", "--out", "x"), ("chourasia-none",),
                                   ("--seed", "-1"), ("--data-dir", "nowhere")])
def test_bad_flags_are_one_sentence(words):
    done = command(*words)
    assert done.exit_code == 2 and done.stderr.startswith("error:")

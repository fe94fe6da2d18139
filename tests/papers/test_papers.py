"""Items of ``lastiterate papers``: what they compare, what they write, and what they keep."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

from lastiterate.cli import app
from lastiterate.curves.gaussian import Gdp
from lastiterate.errors import InputError
from lastiterate.report.charts import STYLES
from lastiterate_papers import (
    ITEMS,
    Item,
    Panel,
    Result,
    Row,
    Setting,
    Trace,
    Work,
    chourasia_dynamics,
    comparisons,
    files,
    formulas,
    ryffel_risk,
    sampling_from_below,
)
from lastiterate_papers.files import MARKERS
from lastiterate_papers.finished_cells import Cells
from lastiterate_papers.item import by_name

QUICK = (
    "chourasia-fig1",
    "chourasia-tightness",
    "chourasia-dynamics",
    "ryffel-theorem32",
    "ryffel-corollary33",
    "ryffel-lemma41-proof",
    "ryffel-ridge-radius",
    "kong-ribero-constants",
    "kong-ribero-unfinished",
    "heller-fetaya-lemma-a2",
    "heller-fetaya-rates",
    "heller-fetaya-claim-iv9",
    "bok-table1",
    "bok-closed-forms",
    "annamalai-no-amplification",
    "chien-forgetting",
    "chien-li-convergence",
    "ye-shokri-sampling",
    "feldman-shenfeld-allocation",
)
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
    assert "[" not in found["finding"] and found["finding"].endswith(".")
    for row in found["rows"]:
        if row["published"] is not None:
            assert row["difference"] == row["ours"] - row["published"]
    for panel in found["panels"]:
        assert lines_differ(panel["traces"]), panel["title"]
    assert found["settings"] and found["seconds"] >= 0


def lines_differ(traces):
    """Whether no two lines of a panel have one colour and one marker, the markers of a repeated
    style included."""
    styles, looks = [trace["style"] for trace in traces], []
    for place, style in enumerate(styles):
        marker = MARKERS[styles[:place].count(style) % len(MARKERS)] or STYLES[style].marker
        looks.append((STYLES[style].colour, STYLES[style].dash, marker))
    return len(set(looks)) == len(looks)


def test_the_lines_of_a_panel_are_told_apart():
    """Colours that two styles share, as certified and last iterate do, would be one line to a
    reader."""
    assert not lines_differ([{"style": "certified"}, {"style": "last iterate"}])
    found = by_name(ITEMS, "kong-ribero-table2").run(Work())
    assert all(lines_differ([vars(trace) for trace in panel.traces]) for panel in found.panels)


def test_every_item_says_what_was_found_in_one_sentence():
    for each in ITEMS:
        assert each.finding.endswith(".") and ". " not in each.finding, each.name
    toy = replace(item(), finding="Ours is [a, b: c] of it.")
    assert (
        toy.found([{"what": "a, b: c", "ours": 12345678.0, "unit": "%"}])
        == "Ours is 12,345,678 % of it."
    )
    assert toy.found([{"what": "a, b: c", "ours": 1.25e-7}]) == "Ours is 1.25e-07 of it."
    assert toy.found([{"what": "a, b: c", "ours": None}]) == "Ours is  of it."
    with pytest.raises(KeyError):
        toy.found([])


def test_the_54_values_of_figure_1():
    rows = by_name(ITEMS, "chourasia-fig1").run(Work()).rows
    assert len(rows) == 54 and all(row.agrees for row in rows)
    published = {row.what: row.published for row in rows}
    # alpha S^2/(lambda sigma^2 n^2) = 30 * 16/(0.0004 * 25e6) = 0.048, and 1 - e^-1
    assert published["order 30, strong 1, K 100: Corollary 1"] == pytest.approx(
        0.048 * (1 - math.exp(-1))
    )
    assert published["order 30, strong 4, K 100: composition"] == pytest.approx(0.024)


@pytest.mark.filterwarnings("ignore::lastiterate_papers.lemma_51.UnpaidWarning")
def test_what_is_ours_on_both_sides_is_not_called_published():
    """A status says what a paper published, and not that we agree with ourselves."""
    for name, counted in (
        ("kong-ribero-unfinished", 4),
        ("heller-fetaya-rates", 2),
        ("ryffel-smoothness", 1),
    ):
        rows = by_name(ITEMS, name).run(Work()).rows
        assert sum(row.published is not None for row in rows) == counted, name


def test_utility_formulas_by_hand():
    c = formulas.Constants(lipschitz=2.0, strong=0.1, smooth=0.5, n=1000, d=5)
    assert formulas.lemma_6(c, 0.2, 50, 1e-3) == pytest.approx(
        2 * 0.5 * 4 / 0.01 * math.exp(-1) + 2 * 0.5 * 5e-3 / 0.1
    )
    assert formulas.lemma_41(c, 0.2, 50, 1e-3, 3.0, 0.04) == pytest.approx(
        0.25 * 3 * math.exp(-1) + 0.5 * 0.2 * 0.04 / 0.2 + 0.5 * 5e-3 / 0.1
    )
    assert formulas.lemma_42(c, 0.2, 50, 1e-3, 0.04) == pytest.approx(
        formulas.lemma_41(c, 0.2, 50, 1e-3, 4 * 4 / 0.01, 0.04)
    )
    assert formulas.lemma_43(c, 50, 1e-3, 3.0, 0.04) == pytest.approx(
        1 / 50 * 3 + 0.16 / 5 * math.log(1 + 5 / 2) + 2 * 5e-3
    )
    assert formulas.theorem_4_renyi(c, 10, 0.5) == formulas.Choice(
        pytest.approx(4 * 10 * 4 / (0.1 * 0.5 * 1e6)), math.ceil(50 * math.log(1e6 * 0.5 / 50))
    )
    log = math.log(1e5)
    assert formulas.theorem_4(c, 0.5, 1e-5) == formulas.Choice(
        pytest.approx(8 * 4 * (0.5 + 2 * log) / (0.1 * 0.25 * 1e6)),
        math.ceil(50 * math.log(0.25e6 / (20 * log))),
    )
    assert formulas.theorem_41(c, 10, 0.5).steps == math.ceil(10 * math.log(1e4))
    assert formulas.theorem_42(c, 0.5, 1e-5).steps == math.ceil(10 * math.log(0.25e6 / (20 * log)))
    assert formulas.theorem_43(c, 10, 0.5).steps == math.ceil(max(5 * 1e4, 1e8 / 5))
    assert (
        formulas.theorem_44(c, 0.5, 1e-5).temperature
        == formulas.theorem_4(c, 0.5, 1e-5).temperature
    )
    assert formulas.risk_constant(c, 20.0, 0.04) == pytest.approx(
        6 * 20 * 0.5 * 5 * 4 / (0.01 * 1e6) + 0.1
    )
    assert formulas.risk_falling(c, 20.0) == pytest.approx(18 * 20 * 5 * 4 / (0.1 * 1e6))


def test_the_recursion_of_lemma_41_by_hand():
    """From 1/3 one record leads to 1/6 - 1/2, the other to 0.995/3 + 1/2; what is printed lies
    below their mean."""
    exact, printed, repaired = ryffel_risk._one_step(1, 1.0, 0.01, 1.0, 1 / 3)
    assert exact == pytest.approx(((1 / 6 - 0.5) ** 2 + (0.995 / 3 + 0.5) ** 2) / 2)
    assert printed == pytest.approx(0.995 / 9 + 0.25) and repaired == pytest.approx(0.995 / 9 + 0.5)
    assert printed < exact < repaired


def test_the_densities_of_a_step_in_two_ways():
    """The Fokker-Planck equation with the drift of one data set gives its density, and not that of
    the other one."""
    grid = chourasia_dynamics.Grid(np.linspace(-6, 6, 401))
    start = np.exp(-(grid.x**2) / 2) / math.sqrt(2 * math.pi)
    flowed = grid.flowed(start, 0.05, 1, 30)
    ours, other = (grid.law(start, chourasia_dynamics.STEP, sign).density for sign in (1, -1))
    assert (
        np.abs(flowed - ours).sum() * grid.gap
        < 1e-3
        < 0.1
        < np.abs(flowed - other).sum() * grid.gap
    )
    law = grid.law(start, 0.2, 1)
    assert law.slope[1:-1] == pytest.approx(
        np.gradient(np.log(law.density), grid.gap)[1:-1], abs=2e-3
    )


def test_exact_laws_of_mixtures():
    one, two = ((1.0,), (1.0,)), ((1.0,), (0.0,))
    assert comparisons.renyi(3.0, one, two, 2.0) == pytest.approx(
        3 / 8, rel=1e-6
    )  # order (gap/std)^2 / 2
    assert comparisons.projected_renyi(3.0, one, two, 2.0, -60, 60) == pytest.approx(
        3 / 8, rel=1e-4
    )
    assert comparisons.projected_renyi(3.0, one, two, 2.0, -0.1, 0.1) < 3 / 8, (
        "a projection only loses"
    )
    assert comparisons.hockey_stick(0.3, one, two, 2.0) == pytest.approx(
        Gdp(0.5).delta(0.3), rel=1e-4
    )
    assert comparisons.epsilon_of(1e-3, one, two, 2.0) == pytest.approx(
        Gdp(0.5).epsilon(1e-3), rel=1e-3
    )


def test_a_shuffled_pass_of_one_batch_is_the_gaussian_mechanism():
    """One block: N(2, sigma^2) against N(1, sigma^2); more blocks hide the place, and never add."""
    found = sampling_from_below.shuffle_lower(0.7, 1, 1e-6)
    assert found == pytest.approx(Gdp(1 / 0.7).epsilon(1e-6), rel=2e-2) and found <= Gdp(
        1 / 0.7
    ).epsilon(1e-6)
    assert sampling_from_below.shuffle_lower(0.7, 1000, 1e-6) < found


def test_names_are_slugs_of_their_papers_and_stand_once():
    names = [each.name for each in ITEMS]
    assert len(names) == len(set(names))
    first = (
        "chourasia-",
        "ryffel-",
        "kong-ribero-",
        "heller-fetaya-",
        "bok-",
        "steinke-",
        "chua-",
        "feldman-shenfeld-",
        "ye-shokri-",
        "chien-",
        "annamalai-",
        "cebere-",
    )
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
    assert (
        Result((good, none), ()).status == "matches"
        and Result((none,), ()).status == "not published"
    )
    assert (
        Result((good, bad, none), ()).status
        == "differs"
        == Result((good, bad), (), restored=True).status
    )
    assert Result((good, none), (), restored=True).status == "restored"


def test_nothing_is_written_where_an_item_fails(tmp_path, monkeypatch):
    def fails(work):
        raise InputError("item", "cannot be made", None)

    monkeypatch.setattr("lastiterate_papers.ITEMS", (item(run=fails), item("chourasia-good")))
    done = command("chourasia-toy", "--out", str(tmp_path / "one"))
    assert done.exit_code == 2 and not (tmp_path / "one").exists()
    done = command("--all", "--out", str(tmp_path))
    assert done.exit_code == 2 and {path.name for path in tmp_path.iterdir()} == {
        "chourasia-good.png",
        "chourasia-good.json",
    }
    broken = Result(
        (Row("what", 1.0),), (), {"setting": object()}
    )  # not JSON: nor is the picture left behind
    with pytest.raises(TypeError):
        files.write(tmp_path / "two", item(), Work(), broken, files.Cost(0.0, 0.0))
    assert not (tmp_path / "two").exists()


def test_finished_items_with_the_same_settings_are_kept(tmp_path, monkeypatch):
    calls = []
    made = item().run(Work())
    monkeypatch.setattr(
        "lastiterate_papers.ITEMS", (item(run=lambda work: calls.append(work.seed) or made),)
    )
    for words in ([], [], ["--seed", "1"], ["--seed", "1", "--quick"]):
        assert command("--all", "--out", str(tmp_path), *words).exit_code == 0
    assert calls == [0, 1, 1]
    (tmp_path / "chourasia-toy.json").write_text("{ damaged")
    assert command("--all", "--out", str(tmp_path), "--seed", "1", "--quick").exit_code == 0
    assert calls == [0, 1, 1, 1]


def in_pieces(made, broken=()):
    """An item of four pieces of work; those that are ``broken`` fail."""

    def one(work, number):
        if number in broken:
            raise InputError("item", "was interrupted", number)
        made.append(number)
        return {"value": work.seed + 0.1 * number}

    def run(work):
        values = [
            work.cell(f"piece {number}", lambda number=number: one(work, number))["value"]
            for number in range(4)
        ]
        panel = Panel("title", "x", "y", (Trace("line", (1.0, 2.0), (1.0, 3.0)),))
        return Result(tuple(Row(f"{k}", value) for k, value in enumerate(values)), (panel,))

    return item(run=run, settings={"n": Setting(3.0)})


def test_an_interrupted_item_goes_on_where_it_stopped(tmp_path, monkeypatch):
    """Finished pieces are kept until the result is written; the result is that of a run without
    interruption."""
    made = []
    monkeypatch.setattr("lastiterate_papers.ITEMS", (in_pieces(made, broken=(2,)),))
    assert command("chourasia-toy", "--out", str(tmp_path)).exit_code == 2
    (partial,) = tmp_path.iterdir()
    assert made == [0, 1] and partial.name.startswith(".chourasia-toy.cells-")
    with partial.open("a") as file:
        file.write('\n{"cell": "piece 2", "val')  # cut off while it was written
    monkeypatch.setattr("lastiterate_papers.ITEMS", (in_pieces(made),))
    done = command("chourasia-toy", "--out", str(tmp_path), "--json")
    assert done.exit_code == 0 and made == [0, 1, 2, 3]
    assert {path.name for path in tmp_path.iterdir()} == {"chourasia-toy.json", "chourasia-toy.png"}
    whole = command("chourasia-toy", "--out", str(tmp_path / "whole"), "--json")
    assert json.loads(done.stdout)["rows"] == json.loads(whole.stdout)["rows"] and made == [
        0,
        1,
        2,
        3,
        0,
        1,
        2,
        3,
    ]


@pytest.mark.parametrize(
    "changed", ["--seed 1", "--quick", "--set n=4", "version", "source", "data"]
)
def test_cells_of_other_settings_are_not_taken_up(tmp_path, monkeypatch, changed):
    made, data = [], tmp_path / "data"
    data.mkdir()
    (data / "x").write_text("first")
    out = ("--out", str(tmp_path / "out"), "--data-dir", str(data))

    def toy(broken):
        return replace(in_pieces(made, broken), data=("x",))

    monkeypatch.setattr("lastiterate_papers.ITEMS", (toy((2,)),))
    assert command("chourasia-toy", *out).exit_code == 2
    monkeypatch.setattr("lastiterate_papers.ITEMS", (toy(()),))
    if changed == "version":
        monkeypatch.setattr("lastiterate.__version__", "another")
    elif changed == "source":
        monkeypatch.setattr(files, "_source", lambda: "another")
    elif changed == "data":
        (data / "x").write_text("other")
    words = changed.split() if changed.startswith("--") else ()
    assert command("chourasia-toy", *out, *words).exit_code == 0
    assert made == [0, 1, 0, 1, 2, 3]
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "chourasia-toy.json",
        "chourasia-toy.png",
    }


def test_what_a_cell_cost_is_counted_once_and_its_name_is_its_own(tmp_path):
    about = {"item": "chourasia-toy", "seed": 0}
    first = Cells.of(tmp_path, about)
    assert first.get("a", lambda: (1.5, 2)) == [1.5, 2], "as JSON has it, kept or new"
    with pytest.raises(InputError):
        first.get("a", lambda: 0)
    again = Cells.of(tmp_path, about)
    assert again.get("a", lambda: 1 / 0) == [1.5, 2]
    line = json.loads((tmp_path / again.path.name).read_text().split("\n")[1])
    assert (again.seconds, again.processor) == (
        line["seconds"],
        line["processor"],
    ) and first.seconds == 0


def test_settings_of_an_item_of_its_own(tmp_path):
    words = ("heller-fetaya-fig1", "--quick", "--json", "--out", str(tmp_path))
    found = json.loads(command(*words, "--set", "n=100,ratio=316.2").stdout)
    assert found["given"] == {"n": 100, "ratio": 316.2, "delta": 1e-5, "exponent": 1 / 64}
    ours = {row["what"]: row["ours"] for row in found["rows"]}
    # the pair's posteriors, and the peak of Appendix A-E's bound, as found for this project
    assert ours[
        "posterior sample: epsilon at most, the pair of equation 8 by its Renyi divergences"
    ] == pytest.approx(1.017, abs=2e-3)
    assert 7.09 < ours["SGLD: largest bound of Appendix A-E over the passes"] <= 7.102
    for bad in ("n", "m=3", "n=x"):
        assert command(*words, "--set", bad).exit_code == 2
    assert (
        command("--set", "n=3").exit_code == 2
        and command("bok-table1", "--set", "n=3").exit_code == 2
    )


def test_an_item_without_its_data_is_listed_and_refused(tmp_path, monkeypatch):
    needs = item(data=("some/file.npz",))
    monkeypatch.setattr("lastiterate_papers.ITEMS", (needs,))
    assert needs.status_with(None) == "data not at hand" == needs.status_with(tmp_path)
    done = command("chourasia-toy", "--data-dir", str(tmp_path))
    assert done.exit_code == 2 and "some/file.npz" in done.stderr
    done = command("--all", "--out", str(tmp_path / "out"), "--json")
    assert done.exit_code == 0 and json.loads(done.stdout)[0]["status"] == "data not at hand"
    (tmp_path / "some").mkdir()
    (tmp_path / "some" / "file.npz").mkdir()
    assert needs.status_with(tmp_path) == "data not at hand", "a folder is no file"
    (tmp_path / "some" / "file.npz").rmdir()
    (tmp_path / "some" / "file.npz").touch()
    assert needs.status_with(tmp_path) == "matches"


@pytest.mark.parametrize(
    "words",
    [
        ("--all",),
        ("--all", "chourasia-fig1", "--out", "x"),
        ("chourasia-none",),
        ("--seed", "-1"),
        ("--data-dir", "nowhere"),
    ],
)
def test_bad_flags_are_one_sentence(words):
    done = command(*words)
    assert done.exit_code == 2 and done.stderr.startswith("error:")


def test_account_prints_renyi_orders():
    """The caption of Figure 1 on the command line."""
    words = (
        "account --n 5000 --steps 100 --step-size 0.02 --sigma 0.02 --sensitivity 4 --smooth 4 "
        "--strong 1 "
        f"--start gaussian:{0.02 * math.sqrt(2)!r} --adjacency replace-one --trust-constants "
        f"--renyi"
    )
    done = CliRunner().invoke(app, [*words.split(), "10,30", "--json"])
    found = json.loads(done.stdout)["renyi"]
    assert found["orders"] == [10, 30]
    rows = {row["theorem"]: row for row in found["theorems"]}
    expected = [order * 0.0016 * (1 - math.exp(-1)) for order in (10, 30)]
    assert (
        rows["langevin-strongly-convex"]["epsilon"] == pytest.approx(expected)
        and "quadratic-witness" not in rows
    )
    assert rows["composition-langevin"]["epsilon"] == pytest.approx([10 * 0.0008, 30 * 0.0008])
    first = [row["epsilon"][0] for row in found["theorems"]]
    assert first == sorted(first)
    shown = CliRunner().invoke(app, [*words.split(), "30"]).stdout
    assert "Renyi divergence of order" in shown and "0.03035" in shown  # rounded up
    for bad in ("1", "0.5,2", "2,", "inf"):
        assert CliRunner().invoke(app, [*words.split(), bad]).exit_code == 2

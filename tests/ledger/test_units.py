"""The unit of a budget: what protects less is charged as a group, or refused, and no total is
stated for it."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lastiterate.cli import app
from lastiterate.curves.gaussian import Gdp
from lastiterate.errors import BudgetWarning, InputError
from lastiterate.ledger import GaussianFilter, Ledger, database
from lastiterate.ledger.budget_check import is_other_unit, is_row
from lastiterate.ledger.quote import quote_line

ASKED = dict(adjacency="zero-out", run="r" * 64, purpose="test")


def made(path: Path, rows: int | None = None, unit: str = "person") -> Ledger:
    ledger = Ledger(path)
    ledger.add("d", unit=unit, adjacency="zero-out", filter=GaussianFilter(4.0), rows_per_unit=rows)
    return ledger


def old(path: Path, lines: int = 3) -> Ledger:
    """A ledger of persons as versions up to 0.1.0 filled it: nothing says whom its lines protect."""
    ledger = made(path)
    for number in range(lines):
        token = ledger.reserve("d", Gdp(0.5), rows=None, **ASKED)
        ledger.touch(token)
        ledger.release(token, str(number) * 64)
    with closing(sqlite3.connect(path)) as other, other:
        events = [event for (event,) in other.execute("SELECT event FROM events ORDER BY number")]
        other.execute("DELETE FROM events")
        for kind, fields in map(json.loads, events):
            if kind != "protects":
                database.append(other, kind, **fields)
    return ledger


def told(*words: object) -> tuple[int, str]:
    found = CliRunner().invoke(app, ["ledger", *map(str, words)])
    return found.exit_code, " ".join(found.output.split())


def test_a_release_of_rows_is_refused_where_nobody_says_how_many_there_are(tmp_path: Path) -> None:
    ledger = made(tmp_path / "l")
    with pytest.raises(
        InputError, match=r"unit must be given: the budget of d is per person.*nothing was charged"
    ):
        ledger.reserve("d", Gdp(0.5), **ASKED)
    assert ledger.total().releases == ()
    ledger.reserve("d", Gdp(0.5), rows=None, **ASKED)
    assert ledger.verify() == () and ledger.total().unproven == ()


@pytest.mark.parametrize(
    "rows, protected, times",
    [(7, 1, 7), (7, 3, 3), (7, 7, 1), (7, 9, 1), (7, None, 1), (1, 1, 1), (None, 3, 1)],
)
def test_a_group_is_charged(
    tmp_path: Path, rows: int | None, protected: int | None, times: int
) -> None:
    """The group of as many of the protected rows as one unit can have; mu of a Gaussian mechanism
    is multiplied."""
    ledger = made(tmp_path / "l", rows)
    ledger.reserve("d", Gdp(0.25), rows=protected, **ASKED)
    assert ledger.total().left[0] == pytest.approx(1 - (times * 0.25 / 4) ** 2)
    assert ledger.verify() == () and ledger.total().unproven == ()


def test_what_does_not_fit_as_a_group_is_refused(tmp_path: Path) -> None:
    ledger = made(tmp_path / "l", 7)
    with pytest.raises(InputError, match="refuses this release"):
        ledger.reserve("d", Gdp(0.6), **ASKED)
    made(tmp_path / "rows", unit="row").reserve("d", Gdp(0.6), **ASKED)


def test_no_total_is_stated_for_lines_of_rows(tmp_path: Path) -> None:
    """Of an older ledger, by show, verify, their JSON, a quotation; and a line that was added today
    changes nothing."""
    ledger = old(tmp_path / "l")
    ledger.reserve("d", Gdp(0.5), rows=None, **ASKED)
    assert ledger.total().unproven == (1, 2, 3)
    code, shown = told("show", ledger.path)
    assert code == 1 and "budget: epsilon" not in shown
    assert (
        "no total is known for a person: releases 1, 2, 3 are not known to protect more than a row"
        in shown
    )
    code, said = told("verify", ledger.path)
    assert (
        code == 1
        and "holds:" not in said
        and "lines 1, 2, 3 on d were charged for single rows" in said
    )
    assert not json.loads(told("verify", ledger.path, "--json")[1])["holds"]
    (body,) = json.loads(told("show", ledger.path, "--json")[1])["datasets"]
    assert body["releases_of_rows"] == [1, 2, 3] and body["rows_per_unit"] is None
    quote = quote_line(ledger, "0" * 64)
    assert "budget: epsilon" not in quote.together and len(quote.problems) == 1


def test_one_row_each_makes_older_lines_whole_and_more_do_not(tmp_path: Path) -> None:
    one, seven = old(tmp_path / "one"), old(tmp_path / "seven", 1)
    assert told("rows", one.path, 1) == (0, "d: one person has at most 1 row, by your word")
    assert one.verify() == () and "budget: epsilon" in told("show", one.path)[1]
    assert told("rows", seven.path, 7)[0] == 0
    assert seven.total().unproven == (1,) and told("verify", seven.path)[0] == 1
    code, said = told("rows", one.path, 2)
    assert code == 2 and "stated already, 1, and cannot be changed" in said
    assert told("rows", old(tmp_path / "zero").path, 0)[0] == 2


def test_a_statement_of_rows_cannot_be_edited(tmp_path: Path) -> None:
    ledger = made(tmp_path / "l", 7)
    ledger.reserve("d", Gdp(0.1), **ASKED)
    with closing(sqlite3.connect(ledger.path)) as other, other:
        other.execute(
            "UPDATE events SET event = replace(event, ': 7', ': 1') WHERE event LIKE '[\"rows%'"
        )
    assert any("was changed" in problem for problem in ledger.verify())


def test_a_command_makes_it(tmp_path: Path) -> None:
    words = "--dataset", "d", "--epsilon", 3, "--delta", 1e-5
    code, said = told("make", tmp_path / "a", *words, "--unit", "person")
    assert code == 0 and "Only releases that say whose a row is are charged" in said
    code, said = told("make", tmp_path / "b", *words, "--unit", "person", "--rows-per-unit", 7)
    assert code == 0 and "Only releases" not in said and Ledger(tmp_path / "b").total().rows == 7
    assert "per person of at most 7 rows, zero-out" in told("show", tmp_path / "b")[1]
    assert "Only releases" not in told("make", tmp_path / "c", *words, "--unit", "one row")[1]


@pytest.mark.parametrize(
    "words, single",
    [
        ("row", True),
        ("A Record", True),
        ("one image", True),
        ("person", False),
        ("row of tables", False),
        ("a", False),
        ("patients", False),
    ],
)
def test_words_for_single_rows(words: str, single: bool) -> None:
    assert is_row(words) is single


TWO_IDS = """\
target = "again"
classes = ["no", "yes"]
[columns.stay]
kind = "id"
[columns.patient]
kind = "id"
[columns.age]
kind = "number"
low = 0
high = 100
"""


@pytest.fixture(scope="module")
def stays(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with 60 stays of 20 patients, whose schema calls both numbers ids."""
    place = tmp_path_factory.mktemp("stays")
    rows = [f"s{i},p{i // 3},{20 + i},{'yes' if i % 2 else 'no'}" for i in range(60)]
    (place / "stays.csv").write_text("\n".join(["stay,patient,age,again", *rows, ""]))
    (place / "stays.toml").write_text(TWO_IDS)
    return place


def try_stays(stays: Path, tmp_path: Path, unit: str, *options: str) -> tuple[int, str, Ledger]:
    """Train on the stays under a ledger per ``unit``: exit code, what was said, the ledger."""
    tmp_path.mkdir(exist_ok=True)
    ledger = Ledger(tmp_path / "b.db")
    limit = GaussianFilter(4.0)
    ledger.add("stays", unit=unit, rows_per_unit=3, adjacency="zero-out", filter=limit)
    data = [str(stays / "stays.csv"), "--schema", str(stays / "stays.toml")]
    budget = ["--epsilon", "3", "--delta", "1e-4", "--ledger", str(ledger.path)]
    order = ["train", *data, *budget, "--dataset", "stays", "--out", str(tmp_path / "m"), *options]
    result = CliRunner().invoke(app, order)
    return result.exit_code, " ".join(result.output.split()), ledger


def test_another_column_than_the_ledgers_unit_is_refused(stays: Path, tmp_path: Path) -> None:
    """The table has the column that the budget is for: a stay is no patient."""
    code, said, ledger = try_stays(
        stays, tmp_path, "patient", "--unit", "stay", "--rows-per-unit", "3"
    )
    assert code == 2 and "--unit must be patient" in said and "give --unit patient" in said
    assert not ledger.total("stays").releases


def test_the_unit_is_known_by_its_word(stays: Path, tmp_path: Path) -> None:
    """A ledger of "one patient" and a column Patient_ID: a stay is refused, the column is not."""
    place = tmp_path / "renamed"
    place.mkdir()
    for name in ("stays.csv", "stays.toml"):
        text = (stays / name).read_text().replace("patient", "Patient_ID")
        (place / name).write_text(text)
    code, said, ledger = try_stays(place, tmp_path, "one patient", "--unit", "stay")
    assert code == 2 and "give --unit Patient_ID" in said and not ledger.total("stays").releases
    again = try_stays(place, tmp_path / "again", "one patient", "--unit", "Patient_ID")
    assert again[0] == 0 and "only if nobody has two" not in again[1]


def test_forgetting_by_another_column_is_refused(stays: Path, tmp_path: Path) -> None:
    data = [str(stays / "stays.csv"), "--schema", str(stays / "stays.toml")]
    model, budget = tmp_path / "m", ["--epsilon", "3", "--delta", "1e-4"]
    algorithm = ["--algorithm", "noisy-gd", "--out", str(model)]
    assert CliRunner().invoke(app, ["train", *data, *budget, *algorithm]).exit_code == 0
    ledger = Ledger(tmp_path / "b.db")
    limit = GaussianFilter(4.0)
    ledger.add("stays", unit="patient", rows_per_unit=3, adjacency="zero-out", filter=limit)
    (tmp_path / "ids.txt").write_text("s3\n")
    order = ["forget", str(model), data[0], "--remove", str(tmp_path / "ids.txt"), "--unit", "stay"]
    order += ["--epsilon", "1", "--ledger", str(ledger.path), "--dataset", "stays"]
    result = CliRunner().invoke(app, [*order, "--out", str(tmp_path / "after")])
    assert result.exit_code == 2
    assert "--unit must be patient" in " ".join(result.output.split())
    assert not ledger.total("stays").releases


def test_a_refusal_names_the_column_of_the_ledgers_unit(stays: Path, tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "small.db")
    for dataset, unit in (("a", "patient"), ("b", "person")):
        filter_ = GaussianFilter(0.5)
        ledger.add(dataset, unit=unit, rows_per_unit=3, adjacency="zero-out", filter=filter_)
    for dataset, remedy in (
        ("a", "add --unit patient, where --rows-per-unit 3"),
        ("b", "the column that names each person (the schema calls stay and patient ids)"),
    ):
        data = [str(stays / "stays.csv"), "--schema", str(stays / "stays.toml")]
        budget = ["--epsilon", "1", "--delta", "1e-4", "--ledger", str(ledger.path)]
        order = ["train", *data, *budget, "--dataset", dataset, "--out", str(tmp_path / dataset)]
        result = CliRunner().invoke(app, order)
        assert result.exit_code == 2 and remedy in " ".join(result.output.split())


def test_more_rows_than_the_ledger_says_anybody_has_are_refused(
    stays: Path, tmp_path: Path
) -> None:
    order = ["--unit", "patient", "--rows-per-unit"]
    code, said, ledger = try_stays(stays, tmp_path, "patient", *order, "4")
    assert code == 2 and "--rows-per-unit must be at most 3" in said
    assert not ledger.total("stays").releases
    assert try_stays(stays, tmp_path / "again", "patient", *order, "2")[0] == 0


def test_a_unit_of_another_name_is_said_at_the_charge_and_on_the_page(
    stays: Path, tmp_path: Path
) -> None:
    with pytest.warns(BudgetWarning, match="it protects one person only if nobody has two"):
        code, _, _ = try_stays(stays, tmp_path, "person", "--unit", "stay")
    assert code == 0
    page = (tmp_path / "m" / "report.html").read_text()
    assert "budget is per person, and this model protects one stay" in page


@pytest.mark.parametrize(
    ("name", "unit", "other"),
    [
        ("patient", "patient", False),
        ("Patient_ID", "one patient", False),
        ("patients", "patient", False),
        ("stay", "patient", True),
        ("id", "person", True),
        ("", "person", False),
        ("unit", "person", False),
        ("stay", "row", False),
    ],
)
def test_names_of_units_are_compared_without_their_endings(
    name: str, unit: str, other: bool
) -> None:
    assert is_other_unit(name, unit) is other

"""Every field of every row is in one chain: any edit is noticed, and a kept head notices what was
cut off."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from lastiterate.accounting.certificate_json import check_schema
from lastiterate.cli import app
from lastiterate.curves.gaussian import Gdp
from lastiterate.errors import InputError
from lastiterate.ledger import GaussianFilter, Ledger
from lastiterate.ledger.budget_check import LineCheckpoints
from lastiterate.ledger.database import FIRST, LINE, hash_chain
from lastiterate.ledger.quote import quote_line
from lastiterate.release.ledger_charge import make_charging

ASKED = dict(adjacency="zero-out", run="r" * 64, purpose="test")


def filled(path: Path) -> Ledger:
    """Two data sets, and a release in each of the four states."""
    ledger = Ledger(path)
    ledger.add(
        "a", unit="patient", adjacency="zero-out", filter=GaussianFilter(1.0, 1e-7), rows_per_unit=1
    )
    ledger.add("b", unit="record", adjacency="zero-out", filter=GaussianFilter(2.0))
    tokens = [ledger.reserve(name, Gdp(0.3), **ASKED) for name in ("a", "a", "b", "b")]
    for token in tokens[1:3]:
        ledger.touch(token)
        LineCheckpoints(path, token).begin("d" * 64, lambda: None)
        LineCheckpoints(path, token).note(3, lambda: None)
    ledger.release(tokens[1], "f" * 64)
    ledger.cancel(tokens[3])
    assert {release.state for name in "ab" for release in ledger.total(name).releases} == {
        "reserved",
        "released",
        "touched",
        "cancelled",
    }
    return ledger


def edited(ledger: Ledger, *statements: str) -> None:
    with closing(sqlite3.connect(ledger.path)) as other, other:
        for statement in statements:
            other.execute(statement)


def cells(ledger: Ledger) -> list[tuple[str, int, str, Any]]:
    """Every cell of every table, with its row's place."""
    found: list[tuple[str, int, str, Any]] = []
    with closing(sqlite3.connect(ledger.path)) as other:
        for table in ("datasets", "releases", "events"):
            rows = other.execute(f"SELECT rowid, * FROM {table}")
            names = [column[0] for column in rows.description]
            found += [
                (table, row[0], name, value)
                for row in rows
                for name, value in list(zip(names, row, strict=True))[1:]
            ]
    return found


def others(name: str, value: Any) -> list[Any]:
    """Other values of a cell: a number that differs by 1, a character that differs, other words of
    the same kind."""
    if isinstance(value, int):
        return [value + 1, value - 1] if value else [value + 1]
    if value is None:
        return ["e" * 64]
    words = [
        value[:-1],
        value + " ",
        ("0" if value[0] != "0" else "1") + value[1:],
        value[:-1] + "~",
    ]
    words += ["reserved", "touched", "released", "cancelled"] if name == "state" else []
    words += [value.replace("1.0", "900.0"), value.replace("0.3", "0.1"), value.replace("[", "[1")]
    return [word for word in dict.fromkeys(words) if word != value] + (
        [None] if name == "model" else []
    )


def test_every_edit_of_one_field_is_noticed(tmp_path: Path) -> None:
    whole = filled(tmp_path / "whole")
    kept, tried = whole.path.read_bytes(), 0
    head = whole.head()
    assert whole.verify() == () == whole.verify(head)
    for table, row, name, value in cells(whole):
        for other in others(name, value):
            ledger = Ledger(tmp_path / "edited")
            for end in ("", "-journal"):
                ledger.path.with_name("edited" + end).unlink(missing_ok=True)
            ledger.path.write_bytes(kept)
            try:
                with closing(sqlite3.connect(ledger.path)) as connection, connection:
                    connection.execute("PRAGMA foreign_keys = OFF")
                    connection.execute(
                        f"UPDATE {table} SET {name} = ? WHERE rowid = ?", (other, row)
                    )
            except sqlite3.IntegrityError:
                continue  # the table itself refuses the value
            try:
                problems = ledger.verify()
            except InputError:
                problems = ("refused",)
            assert problems, (table, row, name, value, other)
            tried += 1
    assert tried > 250


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE releases SET state = 'cancelled' WHERE number = 2",
        "UPDATE releases SET state = 'cancelled', model = NULL WHERE number = 2",
        "UPDATE datasets SET filter = replace(filter, '1.0', '100.0') WHERE name = 'a'",
        "UPDATE datasets SET unit = 'ward' WHERE name = 'a'",
        "UPDATE releases SET model = printf('%064d', 0) WHERE number = 2",
        "DELETE FROM releases WHERE number = 4",
        "DELETE FROM events WHERE number = 5",
        "DELETE FROM events",
        "DELETE FROM datasets WHERE name = 'b'",
        "INSERT INTO datasets VALUES ('c', 'u', 'zero-out', '{}', '2020-01-01')",
        "INSERT INTO events VALUES (99, '[\"begun\", {}]', 'x')",
        "UPDATE events SET event = '[1'",
        "UPDATE events SET number = number + 1 WHERE number = (SELECT max(number) FROM events)",
    ],
)
def test_what_a_chain_of_charges_alone_missed(statement: str, tmp_path: Path) -> None:
    ledger = filled(tmp_path / "l")
    edited(ledger, "PRAGMA foreign_keys = OFF", statement)
    assert ledger.verify()


def test_a_line_without_a_charge_hides_no_other_problem(tmp_path: Path) -> None:
    ledger = filled(tmp_path / "l")
    edited(
        ledger,
        "UPDATE releases SET costs = '[]' WHERE number = 3",
        "UPDATE releases SET purpose = 'x' WHERE number = 1",
    )
    problems = ledger.verify()
    assert any("line 1 was changed" in problem for problem in problems)
    assert any("line 3 holds no curve" in problem for problem in problems)


def test_a_kept_head_notices_what_was_cut_off_or_written_anew(tmp_path: Path) -> None:
    ledger = filled(tmp_path / "l")
    early, late = ledger.head(), None
    ledger.reserve("b", Gdp(0.1), **ASKED)
    late = ledger.head()
    assert early != late and ledger.verify(early) == ledger.verify(late) == ()
    edited(
        ledger,
        "DELETE FROM events WHERE number = (SELECT max(number) FROM events)",
        "DELETE FROM releases WHERE number = (SELECT max(number) FROM releases)",
    )
    assert ledger.verify() == ledger.verify(early) == (), "nothing in the file can show it"
    assert any("head that was kept" in problem for problem in ledger.verify(late))
    with pytest.raises(InputError, match="64 hexadecimal"):
        ledger.verify("abc")

    def call(*words: object) -> tuple[int, str]:
        found = CliRunner().invoke(app, ["ledger", *map(str, words)])
        return found.exit_code, " ".join(found.output.split())

    assert f"head {early}" in call("show", ledger.path)[1]
    assert "keep the head in another place" in call("verify", ledger.path)[1]
    assert call("verify", ledger.path, "--head", early)[0] == 0
    assert call("verify", ledger.path, "--head", late)[0] == 1
    assert call("verify", ledger.path, "--head", "abc")[0] == 2


def test_a_file_that_only_claims_another_format_is_refused(tmp_path: Path) -> None:
    ledger = filled(tmp_path / "l")
    edited(ledger, "PRAGMA user_version = 1")
    with pytest.raises(InputError, match="lastiterate ledger made"):
        ledger.verify()


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE datasets SET filter = replace(filter, '1.0', '9.0') WHERE name = 'a'",
        "UPDATE releases SET state = 'cancelled' WHERE number = 2",
        "UPDATE datasets SET unit = 'row' WHERE name = 'a'",
    ],
)
def test_a_ledger_that_does_not_hold_is_not_charged_and_shown_as_such(tmp_path, statement):
    ledger = filled(tmp_path / "l")
    assert CliRunner().invoke(app, ["ledger", "show", str(ledger.path)]).exit_code == 0
    edited(ledger, statement)
    before = ledger.path.read_bytes()
    with pytest.raises(InputError, match="ledger must hold before it is charged"):
        ledger.reserve("a", Gdp(0.1), **ASKED)
    assert ledger.path.read_bytes() == before
    for more in ([], ["--json"]):
        told = CliRunner().invoke(app, ["ledger", "show", str(ledger.path), *more])
        assert told.exit_code == 1 and "was changed" in " ".join(told.output.split())


def rebuilt(ledger: Ledger, costs: str) -> None:
    """Lower the costs of every line in the events and in the table, and chain all of it again."""
    with closing(sqlite3.connect(ledger.path)) as file, file:
        before, line = FIRST, ""
        for number, text, _ in file.execute("SELECT * FROM events ORDER BY number").fetchall():
            kind, fields = json.loads(text)
            if kind == "line":
                fields["costs"] = costs
                line = hash_chain(line, *(fields[name] for name in LINE[:8]))
                fields["chain"] = line
                file.execute(
                    "UPDATE releases SET costs = ?, chain = ? WHERE number = ?",
                    (costs, line, fields["number"]),
                )
            text = json.dumps([kind, fields], sort_keys=True)
            before = hash_chain(before, number, text)
            file.execute(
                "UPDATE events SET event = ?, chain = ? WHERE number = ?", (text, before, number)
            )


def test_lines_that_cost_less_than_their_curves_are_not_added_to(tmp_path):
    """Whoever can rewrite every hash of the file cannot lower what its curves cost."""
    ledger = filled(tmp_path / "l")
    rebuilt(ledger, "[98956046500, 0]")  # the cost of mu .3: the same file again
    assert ledger.verify() == ()
    rebuilt(ledger, "[1000, 0]")
    assert {problem[7:] for problem in ledger.verify()} == {"charges less than its curve costs"}
    before = ledger.path.read_bytes()
    for name in "ab":
        with pytest.raises(
            InputError, match=r"must hold before it is charged: line . charges less"
        ):
            ledger.reserve(name, Gdp(0.1), **ASKED)
        with pytest.raises(
            InputError, match=r"must hold before it is charged: line . charges less"
        ):
            make_charging(ledger=ledger, dataset=name).allowance()
    assert ledger.path.read_bytes() == before


def test_a_release_is_counted_among_those_of_its_data_set(tmp_path):
    ledger = Ledger(tmp_path / "l")
    for name in "ab":
        ledger.add(name, unit="record", adjacency="zero-out", filter=GaussianFilter(2.0))
    for name, model in (("a", "a" * 64), ("b", "b" * 64), ("a", "c" * 64), ("b", "d" * 64)):
        token = ledger.reserve(name, Gdp(0.3), **ASKED)
        ledger.touch(token)
        ledger.release(token, model)
    ledger.cancel(ledger.reserve("b", Gdp(0.3), **ASKED))
    assert [
        (quote_line(ledger, each * 64).number, quote_line(ledger, each * 64).releases)
        for each in "abcd"
    ] == [(1, 2), (1, 2), (2, 2), (2, 2)]


@pytest.mark.parametrize(
    "event",
    [
        ["rows", {"dataset": "b", "rows": 0}],
        ["rows", {"dataset": "b", "rows": "2"}],
        ["rows", {"dataset": "b", "rows": 2, "more": 1}],
        ["protects", {"token": "t"}],
        ["state", {"token": "t", "state": "lost", "model": None}],
        ["checkpoint", {"token": "t", "checkpoint": -1}],
        ["another", {}],
        {"rows": 1},
        3,
    ],
)
def test_events_that_do_not_fit_their_schema_are_refused(event, tmp_path):
    """Appended with a right chain, as whoever writes to the file can do."""
    ledger = filled(tmp_path / "ledger.db")
    with closing(sqlite3.connect(ledger.path)) as other, other:
        last, before = other.execute(
            "SELECT number, chain FROM events ORDER BY number DESC LIMIT 1"
        ).fetchone()
        text = json.dumps(event)
        row = (last + 1, text, hash_chain(before, last + 1, text))
        other.execute("INSERT INTO events VALUES (?, ?, ?)", row)
    assert ledger.verify() == (f"event {last + 1} does not fit ledger.schema.json",)


def test_every_event_that_is_written_fits_its_schema(tmp_path):
    ledger = filled(tmp_path / "ledger.db")
    assert ledger.verify() == ()
    with closing(sqlite3.connect(ledger.path)) as other:
        texts = [text for (text,) in other.execute("SELECT event FROM events")]
    for text in texts:
        check_schema(json.loads(text), "ledger")
    kinds = {json.loads(text)[0] for text in texts}
    assert kinds == {"begun", "dataset", "rows", "line", "protects", "state", "first", "checkpoint"}

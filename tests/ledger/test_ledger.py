"""The ledger file: what fits, what is refused, what stays charged, and what is told apart."""

import os
import re
import resource
import sqlite3
import stat
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lastiterate.cli import app
from lastiterate.curves.curve import EpsDelta, WithFailure
from lastiterate.curves.gaussian import Gdp
from lastiterate.curves.renyi import Rdp
from lastiterate.errors import InputError
from lastiterate.ledger import GaussianFilter, Ledger, RenyiFilter, database
from lastiterate.ledger.budget_check import LineCheckpoints, Total
from lastiterate.ledger.quote import together

RUN = "r" * 64
ASKED = dict(adjacency="zero-out", run=RUN, purpose="test")


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    found = Ledger(tmp_path / "budget.ledger")
    found.add(
        "ward-3",
        unit="patient",
        adjacency="zero-out",
        filter=GaussianFilter(1.0, 1e-7),
        rows_per_unit=1,
    )
    return found


def test_the_budget_is_used_up_and_never_exceeded(ledger: Ledger) -> None:
    for _ in range(4):
        token = ledger.reserve("ward-3", Gdp(0.5), **ASKED)
        ledger.touch(token)
        ledger.release(token, "f" * 64)
    assert ledger.total().left == (0.0, 1.0)
    with pytest.raises(InputError, match=r"25% of the budget .* 0% is left"):
        ledger.reserve("ward-3", Gdp(0.5), **ASKED)
    assert len(ledger.total().releases) == 4 and ledger.verify() == ()


@pytest.mark.parametrize(
    "epsilon, delta, said",
    [
        (1.0, 1e-5, "epsilon 1 at delta 1e-05"),
        (8.0, 1e-3, "epsilon 8 at delta 0.001"),
        (3.0, 0.01, "epsilon 3 at delta 0.01"),
        (2.0, 0.3, "epsilon 2 at delta 0.3"),
        (5.0, 1e-9, "epsilon 5 at delta 1e-09"),
        (1e3, 1e-5, "epsilon 1000 at delta 1e-05"),
    ],
)
def test_a_total_is_stated_at_the_delta_of_its_budget(
    tmp_path: Path, epsilon: float, delta: float, said: str
) -> None:
    file = str(tmp_path / "budget.db")
    Ledger(file).add(  # a path as text, as everywhere
        "d", unit="row", adjacency="zero-out", filter=GaussianFilter.of(epsilon, delta)
    )
    shown = together(Ledger(file).total())
    assert said in shown and "no epsilon" not in shown
    words = shown.removeprefix("budget: ").removesuffix("; spent: 0 %").split()
    assert words[::2] == ["epsilon", "at", words[4]] and words[3] == "delta"
    assert Ledger(file).total().filter.total().epsilon(float(words[4])) <= float(words[1])


def check_spent(total: Total) -> None:
    """Check the stated epsilon of the charges against one that is computed here."""
    words = together(total).partition("is epsilon ")[2].split()
    stated, delta = float(words[0]), float(words[3])
    curve = WithFailure(Gdp((total.spent[0] * 2**-40) ** 0.5), total.spent[1] * 2**-100)
    assert curve.epsilon(delta) <= stated <= 1.001 * curve.epsilon(delta)


def test_what_is_spent_is_rounded_up_and_agrees_with_what_is_left(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "l")
    ledger.add("d", unit="row", adjacency="zero-out", filter=GaussianFilter(1.0, 1e-6))
    shares = {0.5: "50 %", 0.4984: "99.84 %", 0.00155: "more than 99.99 %"}
    for square, share in shares.items():
        curve = Gdp(square**0.5 * (1 - 1e-9))
        ledger.reserve("d", curve, adjacency="zero-out", run="r" * 64, purpose="p")
        assert f"; spent: {share}, which is epsilon " in together(ledger.total("d"))
        check_spent(ledger.total("d"))
    ledger.add("f", unit="row", adjacency="zero-out", filter=GaussianFilter(1.0, 1e-6))
    ledger.reserve("f", EpsDelta(0.1, 5e-7), adjacency="zero-out", run="r" * 64, purpose="p")
    assert ledger.total("f").spent[1] > 0
    check_spent(ledger.total("f"))
    whole = RenyiFilter.of(3.0, 1e-5, (4.0, 8.0))
    ledger.add("r", unit="row", adjacency="zero-out", filter=whole)
    ledger.reserve("r", Gdp(0.3), adjacency="zero-out", run="r" * 64, purpose="p")
    said = together(ledger.total("r")).partition("is epsilon ")[2].split()[0]
    orders = Rdp(orders=(4.0, 8.0), values=(0.18, 0.36))
    assert orders.epsilon(1e-5) <= float(said) <= 1.001 * orders.epsilon(1e-5)


def test_a_total_beyond_every_epsilon_says_so(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "l")
    ledger.add("d", unit="row", adjacency="zero-out", filter=GaussianFilter(100.0, 0.2))
    nothing = "budget: no epsilon below 1000 at delta 0.1 or less; spent: 0 %"
    assert together(ledger.total()) == nothing


@pytest.mark.parametrize("path", [None, 3, b"l"])
def test_a_ledger_is_a_path(path: object) -> None:
    with pytest.raises(InputError, match=r"ledger must be the path of a file, got .*Ledger"):
        Ledger(path)  # pyright: ignore[reportArgumentType]


def test_squares_are_added_and_not_mus(ledger: Ledger) -> None:
    ledger.reserve("ward-3", Gdp(0.6), **ASKED)
    ledger.reserve("ward-3", Gdp(0.7999999), **ASKED)
    with pytest.raises(InputError, match="refuses"):
        ledger.reserve("ward-3", Gdp(0.01), **ASKED)


def test_what_never_touched_a_record_is_given_back_and_nothing_else_is(ledger: Ledger) -> None:
    token = ledger.reserve("ward-3", Gdp(0.9), **ASKED)
    with pytest.raises(InputError, match="refuses"):
        ledger.reserve("ward-3", Gdp(0.9), **ASKED)
    ledger.cancel(token)
    token = ledger.reserve("ward-3", Gdp(0.9), **ASKED)
    ledger.touch(token)
    with pytest.raises(InputError, match="as touched"):
        ledger.cancel(token)
    assert ledger.total().left[0] == pytest.approx(0.19)
    assert [release.state for release in ledger.total().releases] == ["cancelled", "touched"]


def test_a_resumed_run_is_charged_once(ledger: Ledger) -> None:
    token = ledger.reserve("ward-3", Gdp(0.9), **ASKED)
    assert ledger.reserve("ward-3", Gdp(0.9), token=token, **ASKED) == token
    assert len(ledger.total().releases) == 1
    for other in (dict(ASKED, run="s" * 64), ASKED):
        with pytest.raises(InputError, match="another run"):
            ledger.reserve("ward-3", Gdp(0.9 if other != ASKED else 0.8), token=token, **other)
    ledger.touch(token)
    ledger.release(token, "f" * 64)
    ledger.release(token, "f" * 64)
    with pytest.raises(InputError, match="as released"):
        ledger.release(token, "e" * 64)


def test_other_curves_enter_through_a_dominating_one(ledger: Ledger) -> None:
    ledger.reserve("ward-3", EpsDelta(0.2, 1e-9), **ASKED)
    ledger.reserve("ward-3", Rdp(0.001), **ASKED)
    left = ledger.total().left
    assert 0.9 < left[0] < 1 and left[1] == pytest.approx(1 - 1 / 64 - 1 / 1024)
    assert ledger.verify() == ()


def test_a_renyi_ledger(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "l")
    ledger.add("a", unit="record", adjacency="replace-one", filter=RenyiFilter(0.5, (2.0, 8.0)))
    ledger.reserve("a", Gdp(0.5), **(ASKED | dict(adjacency="replace-one")))
    assert ledger.total().left == pytest.approx((0.75, 0.75))
    with pytest.raises(InputError, match="adjacency"):
        ledger.reserve("a", Gdp(0.5), **ASKED)
    assert ledger.verify() == ()


def test_a_budget_cannot_be_changed_and_data_sets_are_apart(ledger: Ledger) -> None:
    with pytest.raises(InputError, match="cannot be changed"):
        ledger.add("ward-3", unit="patient", adjacency="zero-out", filter=GaussianFilter(9.0))
    ledger.add(
        "ward-4", unit="patient", adjacency="zero-out", filter=GaussianFilter(0.1), rows_per_unit=1
    )
    ledger.reserve("ward-3", Gdp(1.0), **ASKED)
    assert ledger.total("ward-4").left[0] == 1.0 and ledger.datasets() == ("ward-3", "ward-4")
    with pytest.raises(InputError, match="must name a data set"):
        ledger.reserve("ward-5", Gdp(0.1), **ASKED)
    with pytest.raises(InputError, match="must name a data set"):
        ledger.total()


def test_the_counter_only_grows(ledger: Ledger) -> None:
    token = ledger.reserve("ward-3", Gdp(0.1), **ASKED)
    line = LineCheckpoints(ledger.path, token)
    line.begin("d" * 64, lambda: None)
    for number in (3, 2):
        line.note(number, lambda: None)
    assert line.last_number() == 3
    with pytest.raises(InputError, match="does not know"):
        LineCheckpoints(ledger.path, "0" * 32).last_number()


def test_a_ledger_that_is_busy_is_not_called_damaged(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who restored an older copy for it would lose what was charged since."""
    monkeypatch.setattr("lastiterate.ledger.database.PATIENCE", 0.01)
    with sqlite3.connect(ledger.path, isolation_level=None) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(InputError, match="the file is whole"):
            ledger.reserve("ward-3", Gdp(0.1), **ASKED)
        other.execute("ROLLBACK")
    ledger.reserve("ward-3", Gdp(0.1), **ASKED)


def test_a_ledger_has_one_name(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes that charge it under two hard links do not see one another: half of the lines
    would be lost."""
    other, draft = (
        ledger.path.with_name("other"),
        ledger.path.with_name(f".{ledger.path.name}-12-ab"),
    )
    os.link(ledger.path, draft)  # of a process that was killed while it made the ledger
    other.symlink_to(ledger.path)
    token = Ledger(other).reserve("ward-3", Gdp(0.1), **ASKED)
    assert LineCheckpoints(ledger.path, token).last_number() == 0 and not draft.exists()
    other.unlink()
    os.link(ledger.path, other)
    for path in (ledger.path, other):
        with pytest.raises(InputError, match="must have one name"):
            Ledger(path).reserve("ward-3", Gdp(0.1), **ASKED)
    other.unlink()
    monkeypatch.setattr(os.path, "ismount", lambda path: path == ledger.path)
    with pytest.raises(InputError, match="mount its whole folder"):
        ledger.total()


def test_a_ledger_that_is_mounted_from_its_own_disk_is_seen(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python compares numbers of disks, which are the same there."""
    inner = Ledger(ledger.path.with_name("a b\\c"))
    inner.add(
        "ward-3", unit="patient", adjacency="zero-out", filter=GaussianFilter(1.0), rows_per_unit=1
    )
    mounts = ledger.path.with_name("mounts")
    monkeypatch.setattr(database, "MOUNTS", mounts)
    written = str(inner.path).replace("\\", "\\134").replace(" ", "\\040")
    for name, one in ((str(ledger.path), ledger), (written, inner)):
        mounts.write_text(
            f"22 1 8:1 / / rw - ext4 /dev/sda rw\n43 22 8:1 /home/l {name} rw - ext4 /dev/sda rw\n"
        )
        with pytest.raises(InputError, match="mount its whole folder"):
            one.total()
    mounts.unlink()
    assert ledger.total().releases == inner.total().releases == ()


def test_files_are_the_owners_alone(ledger: Ledger) -> None:
    with database.open_ledger(ledger.path) as other, database.transaction(other):
        other.execute("UPDATE datasets SET unit = 'nobody'")
        files = sorted(ledger.path.parent.iterdir())
        assert len(files) == 2 and all(stat.S_IMODE(file.stat().st_mode) == 0o600 for file in files)
        other.execute("UPDATE datasets SET unit = 'patient'")
    assert list(ledger.path.parent.iterdir()) == [ledger.path]


def test_the_file_alone_has_every_charge(ledger: Ledger, tmp_path: Path) -> None:
    """Somebody else has it open, so that nothing would be moved into the file when the last one
    closes it."""
    (tmp_path / "copies").mkdir()
    copy = Ledger(tmp_path / "copies" / "l")
    with closing(sqlite3.connect(ledger.path)) as other:
        other.execute("SELECT * FROM datasets").fetchall()
        token = ledger.reserve("ward-3", Gdp(0.5), **ASKED)
        for move in (
            lambda: None,
            lambda: ledger.touch(token),
            lambda: ledger.release(token, "f" * 64),
        ):
            move()
            copy.path.write_bytes(ledger.path.read_bytes())
            assert (
                copy.verify() == ()
                and copy.total() == ledger.total()
                and copy.head() == ledger.head()
            )


def written_ahead(ledger: Ledger) -> sqlite3.Connection:
    """Let another program keep a log next to a ledger's file, and write there."""
    other = sqlite3.connect(ledger.path, isolation_level=None)
    assert other.execute("PRAGMA journal_mode = WAL").fetchone() == ("wal",)
    with database.transaction(Unasked(other)):  # type: ignore[arg-type]
        database.append(
            other, "dataset", name="b", unit="u", adjacency="zero-out", filter="{}", made="today"
        )
        other.execute("INSERT INTO datasets VALUES ('b', 'u', 'zero-out', '{}', 'today')")
    return other


class Unasked:
    """A connection that does not say that it writes ahead."""

    def __init__(self, other: sqlite3.Connection) -> None:
        self.other, self.in_transaction = other, False

    def execute(self, statement: str) -> sqlite3.Cursor:
        return self.other.execute(
            "SELECT 'delete'" if statement == "PRAGMA journal_mode" else statement
        )


def test_a_file_with_a_log_next_to_it_is_not_charged(ledger: Ledger) -> None:
    other = written_ahead(ledger)
    assert len(ledger.datasets()) == 2
    with pytest.raises(InputError, match=r"copies .* miss charges.* journal_mode to DELETE"):
        ledger.reserve("ward-3", Gdp(0.5), **ASKED)
    assert other.execute("PRAGMA journal_mode = DELETE").fetchone() == ("delete",)
    other.close()
    ledger.reserve("ward-3", Gdp(0.5), **ASKED)


def test_a_disk_without_space_is_told_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = database.begin

    def full(connection: sqlite3.Connection) -> None:
        connection.execute("PRAGMA max_page_count = 1")
        begin(connection)
        connection.execute("CREATE TABLE more AS SELECT hex(zeroblob(9999)) AS text")

    monkeypatch.setattr(database, "begin", full)
    asked = ["--dataset", "a", "--unit", "u", "--epsilon", "1", "--delta", "1e-6"]
    result = CliRunner().invoke(app, ["ledger", "make", str(tmp_path / "l"), *asked])
    assert result.exit_code == 2 and list(tmp_path.iterdir()) == []
    assert re.fullmatch(r"error: .*is full.*free some space and run again\.\n", result.stderr), (
        result.stderr
    )


def test_a_charge_that_cannot_be_written_is_none(ledger: Ledger) -> None:
    before, limits = ledger.path.read_bytes(), resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
        with pytest.raises(database.Unreachable, match="the file is whole"):
            ledger.reserve("ward-3", Gdp(0.5), **ASKED)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (
        ledger.verify() == ()
        and ledger.total().releases == ()
        and ledger.path.read_bytes() == before
    )


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE releases SET costs = '[1, 0]' WHERE number = 1",
        "DELETE FROM releases WHERE number = 1",
        'UPDATE releases SET curve = \'{"type": "Gdp", "mu": 0.1}\' WHERE number = 1',
        "UPDATE releases SET day = '2020-01-01' WHERE number = 2",
        "UPDATE releases SET state = 'released'",
        "UPDATE releases SET costs = '[9999999999999, 0]' WHERE number = 2",
    ],
)
def test_verify_sees_what_was_changed(ledger: Ledger, statement: str) -> None:
    for mu in (0.3, 0.4):
        ledger.reserve("ward-3", Gdp(mu), **ASKED)
    assert ledger.verify() == ()
    with sqlite3.connect(ledger.path) as other:
        other.execute(statement)
    other.close()
    assert ledger.verify()


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TRIGGER t AFTER INSERT ON releases BEGIN DELETE FROM releases; END",
        "CREATE TABLE other (a)",
        "CREATE VIEW v AS SELECT * FROM releases",
        "PRAGMA user_version = 9",
        "PRAGMA application_id = 1",
    ],
)
def test_other_files_are_refused(ledger: Ledger, statement: str) -> None:
    with sqlite3.connect(ledger.path) as other:
        other.execute(statement)
    other.close()
    with pytest.raises(InputError, match="lastiterate ledger made"):
        ledger.total()


def test_nothing_in_the_file_is_a_time_or_a_digest(ledger: Ledger) -> None:
    token = ledger.reserve("ward-3", Gdp(0.1), **ASKED)
    ledger.touch(token)
    (release,) = ledger.total().releases
    assert len(release.day) == 10 and release.run == RUN and release.model is None
    assert set(vars(release)) == {
        "number",
        "token",
        "dataset",
        "purpose",
        "run",
        "curve",
        "costs",
        "day",
        "chain",
        "state",
        "model",
        "checkpoint",
    }


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be written"):
        Ledger(tmp_path / "none" / "l").add(
            "a", unit="u", adjacency="zero-out", filter=GaussianFilter(1.0)
        )
    with pytest.raises(InputError, match="existing file"):
        Ledger(tmp_path / "l").total()
    assert os.listdir(tmp_path) == []

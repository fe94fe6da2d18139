"""A line of a ledger has one beginning: one key, on one data set, wherever processes are killed or
claims copied."""

import sqlite3
from collections.abc import Generator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest

from lastiterate.curves.gaussian import Gdp
from lastiterate.errors import InputError
from lastiterate.ledger import GaussianFilter, Ledger, budget_check
from lastiterate.ledger.budget_check import LineCheckpoints

ONE, OTHER = "1" * 64, "2" * 64


class Killed(Exception):
    pass


def killed() -> None:
    raise Killed


def nothing() -> None:
    pass


@pytest.fixture
def line(tmp_path: Path) -> LineCheckpoints:
    ledger = Ledger(tmp_path / "l")
    ledger.add("a", unit="record", adjacency="zero-out", filter=GaussianFilter(1.0))
    token = ledger.reserve("a", Gdp(0.1), adjacency="zero-out", run="r" * 64, purpose="test")
    return LineCheckpoints(ledger.path, token)


@pytest.mark.parametrize("digest", [ONE, OTHER])
def test_a_second_first_checkpoint_is_not_written(digest: str, line: LineCheckpoints) -> None:
    line.begin(ONE, nothing)
    with pytest.raises(InputError, match="another process"):
        line.begin(digest, killed)
    assert line.last_number() == 1


def test_the_digest_is_on_disk_before_the_file(line: LineCheckpoints) -> None:
    """Seen by another process, which a transaction that is open does not reach."""
    seen = list[str]()

    def write() -> None:
        with sqlite3.connect(line.path) as other:
            seen.extend(row[0] for row in other.execute("SELECT event FROM events"))

    line.begin(ONE, write)
    assert any(ONE in event for event in seen)


@pytest.mark.parametrize("first", ["the copy", "the original"])
def test_whoever_goes_on_first_shuts_the_other_out(first: str, line: LineCheckpoints) -> None:
    """The original was killed behind its file and before it was counted."""
    with pytest.raises(Killed):
        line.begin(ONE, killed)
    assert line.last_number() == 0
    if first == "the copy":
        line.begin(OTHER, nothing)
        with pytest.raises(InputError, match="both would draw noise"):
            line.resume(ONE, 1)
        line.resume(OTHER, 1)
    else:
        line.resume(ONE, 1)
        with pytest.raises(InputError, match="both would draw noise"):
            line.begin(OTHER, killed)
        line.resume(ONE, 1)
    assert line.last_number() == 1 and Ledger(line.path).verify() == ()


@pytest.mark.parametrize(
    "digest", [OTHER, ONE], ids=["killed behind its file", "counted, of the same noise"]
)
def test_of_two_that_begin_between_one_anothers_words_the_last_counts(
    digest: str, line: LineCheckpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The digest of one that was killed behind its file is the line's: it could go on beside the
    first."""
    entered, plain = list[int](), budget_check.transaction

    @contextmanager
    def transaction(connection: sqlite3.Connection) -> Generator[None, None, None]:
        entered.append(1)
        if len(entered) == 2:
            with nullcontext() if digest == ONE else pytest.raises(Killed):
                line.begin(digest, nothing if digest == ONE else killed)
        with plain(connection):
            yield

    monkeypatch.setattr(budget_check, "transaction", transaction)
    with pytest.raises(InputError, match="another process"):
        line.begin(ONE, killed)
    line.resume(digest, 1)
    assert line.last_number() == 1


def test_an_older_file_and_other_noise_are_refused_at_any_number(line: LineCheckpoints) -> None:
    line.begin(ONE, nothing)
    for number in (2, 3):
        line.note(number, nothing)
    with pytest.raises(InputError, match="rolled back"):
        line.resume(ONE, 2)
    for number in (3, 9):
        with pytest.raises(InputError, match="both would draw noise"):
            line.resume(OTHER, number)
    line.resume(ONE, 4)  # killed between the file and the ledger's word
    assert line.last_number() == 4


def test_a_line_without_a_first_checkpoint_is_not_resumed(line: LineCheckpoints) -> None:
    with pytest.raises(InputError, match="both would draw noise"):
        line.resume(ONE, 1)

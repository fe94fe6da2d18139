"""Damaged and hostile ledger files: told in one sentence, or found by verify. The exhaustive tier
tries 100,000."""

import random
from collections import Counter
from pathlib import Path

import pytest

from lastiterate.curves.curve import EpsDelta
from lastiterate.curves.gaussian import Gdp
from lastiterate.errors import InputError
from lastiterate.ledger import GaussianFilter, Ledger
from lastiterate.ledger.budget_check import Total
from tiers import size

MUTANTS = size(1000, 100_000, "MUTANTS")


def made(path: Path) -> bytes:
    """A ledger with two releases."""
    ledger = Ledger(path)
    ledger.add("a", unit="record", adjacency="zero-out", filter=GaussianFilter(1.0, 1e-7))
    for curve in (Gdp(0.2), EpsDelta(0.1, 0.0)):
        token = ledger.reserve("a", curve, adjacency="zero-out", run="r" * 64, purpose="test")
        ledger.touch(token)
        ledger.release(token, "f" * 64)
    return ledger.path.read_bytes()


def mutant(whole: bytes, chance: random.Random) -> bytes:
    """A copy with flipped bytes, a cut, a doubled stretch, or text exchanged for other text."""
    found, used = bytearray(whole), [i for i, byte in enumerate(whole) if byte]
    match chance.randrange(4):
        case 0:
            for _ in range(chance.choice([1, 1, 2, 8])):
                found[chance.choice(used)] ^= 1 << chance.randrange(8)
        case 1:
            del found[chance.randrange(len(found)) :]
        case 2:
            at, width = chance.choice(used), chance.randrange(1, 40)
            found[at : at + width] = found[at : at + width][::-1]
        case _:
            old, new = chance.choice(
                [
                    (b"released", b"reserved"),
                    (b"0.2", b"1e9"),
                    (b"Gdp", b"Pld"),
                    (b"[", b"{"),
                    (b"mu", b"mv"),
                    (b"zero-out", b"zero\xffout"),
                    (b"1e-07", b"-0e99"),
                ]
            )
            found = bytearray(bytes(found).replace(old, new))
    return bytes(found)


def outcome(content: bytes, path: Path, honest: Total | None = None) -> tuple[str, Total | None]:
    """ "refused", "found" by verify or "accepted"; what is accepted charges as much as the
    ``honest`` ledger."""
    path.write_bytes(content)
    try:
        problems, total = Ledger(path).verify(), Ledger(path).total("a")
    except InputError as error:
        assert "\n" not in str(error) and str(error).endswith(".")
        return "refused", None
    finally:
        path.with_name(path.name + "-journal").unlink(missing_ok=True)
    if problems:  # in an index or in free space, too
        with pytest.raises(InputError):
            Ledger(path).reserve("a", Gdp(0.1), adjacency="zero-out", run="r" * 64, purpose="test")
    # what verify accepts charges as much as before; made, unit and day are the user's own words
    assert (
        honest is None
        or problems
        or total.filter != honest.filter
        or (total.spent == honest.spent and total.filter.budget == honest.filter.budget)
    )
    return "found" if problems else "accepted", total


def test_mutants_are_refused_or_found(tmp_path: Path) -> None:
    chance, whole = random.Random(20), made(tmp_path / "whole")
    first, honest = outcome(whole, tmp_path / "l")
    assert first == "accepted" and honest is not None
    found = Counter(
        outcome(mutant(whole, chance), tmp_path / "l", honest)[0] for _ in range(MUTANTS)
    )
    assert found["refused"] > MUTANTS / 10


@pytest.mark.parametrize("damaged", [b"\x0f\x18\x1d", b"\x0f\x19\x1c"], ids=["unit", "adjacency"])
def test_a_text_whose_type_became_bytes(tmp_path: Path, damaged: bytes) -> None:
    """Types of name, unit and adjacency in the row's header: 13 + 2 n for a text of n bytes, 12 + 2 n
    for bytes (SQLite's file format, 2.1)."""
    whole = made(tmp_path / "whole")
    assert whole.count(b"\x0f\x19\x1d") == 1
    found, _ = outcome(whole.replace(b"\x0f\x19\x1d", damaged), tmp_path / "l")
    assert found == "refused"
    (problem, *_) = Ledger(tmp_path / "l").verify()
    assert problem.startswith("the file is damaged: ")

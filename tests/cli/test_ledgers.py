"""``lastiterate ledger``: made once, shown, verified, with exit codes."""

import json
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from lastiterate.accounting.certificate_subject import format_rounded_down, format_rounded_up
from lastiterate.accounting.tradeoff_summary import bound_right_guesses
from lastiterate.cli import app
from lastiterate.curves.gaussian import Gdp
from lastiterate.ledger import GaussianFilter, Ledger
from lastiterate.ledger.quote import quote_line
from lastiterate.planning.task import budget
from lastiterate.release.allowance import Allowance
from lastiterate.release.folder import SIGNATURE, format_manifest
from lastiterate.report.guarantee_section import _describe_charge

MADE = (
    "--dataset",
    "ward-3",
    "--unit",
    "patient",
    "--rows-per-unit",
    "1",
    "--epsilon",
    "3",
    "--delta",
    "1e-5",
)


def call(*words: object) -> tuple[int, str]:
    found = CliRunner().invoke(app, ["ledger", *map(str, words)])
    return found.exit_code, found.output


def test_make_show_verify_cancel(tmp_path: Path) -> None:
    file = tmp_path / "l"
    assert call("make", file, *MADE)[0] == 0
    token = Ledger(file).reserve(
        "ward-3", Gdp(0.5), adjacency="zero-out", run="r" * 64, purpose="a [bold] purpose"
    )
    code, shown = call("show", file)
    assert (
        code == 0
        and "a [bold] purpose" in shown
        and "per patient" in shown
        and "epsilon 3 at delta 1e-05" in shown
    )
    spent = format_rounded_up(Gdp(0.5).epsilon(1e-5))
    assert (
        f"a [bold] purpose  epsilon {spent} at delta 1e-05" in shown
        and "no model  " + token in shown
    )
    mu, words = Ledger(file).total().filter.total().curve.mu, " ".join(shown.split())
    share = math.ceil(2500 / mu**2) / 100
    assert f"budget: epsilon 3 at delta 1e-05; spent: {share:g} %, which is" in words
    assert f"%, which is epsilon {spent} at delta 1e-05 if no release's cost was chosen" in words
    assert "at the budget's delta 1e-05 (a card may state epsilon at another):" in shown
    rest = Allowance.of(Ledger(file).total())
    fits = " ".join(shown.split()).partition("fits with epsilon up to ")[2].split()[0]
    largest = budget(float(fits), 1e-5)
    assert (
        rest.filter.charge(Gdp(largest)).costs[0]
        <= rest.left[0]
        < rest.filter.charge(Gdp(1.02 * largest)).costs[0]
    )
    assert f"enough is left for {math.floor(4 * mu**2) - 1} more like the last" in words
    (body,) = json.loads(call("show", file, "--json")[1])["datasets"]
    assert body["left"]["squared mu"] == pytest.approx(1 - 0.25 / body["filter"]["mu"] ** 2)
    assert body["releases"][0]["state"] == "reserved"
    assert call("verify", file)[0] == 0 and json.loads(call("verify", file, "--json")[1])["holds"]
    assert call("cancel", file, token) == (0, "given back\n")
    assert Ledger(file).total().left[0] == 1.0


def test_a_budget_is_made_once(tmp_path: Path) -> None:
    file = tmp_path / "l"
    assert call("make", file, *MADE, "--filter", "renyi", "--orders", "4,8")[0] == 0
    code, said = call("make", file, *MADE)
    assert code == 2 and "cannot be changed" in said


@pytest.mark.parametrize(
    "words",
    [
        ("--filter", "other"),
        ("--orders", "2"),
        ("--filter", "renyi", "--orders", "a"),
        ("--filter", "renyi", "--failure", "1e-6"),
        ("--failure", "0.1"),
        ("--adjacency", "other"),
        ("--filter", "renyi", "--orders", "0.5"),
    ],
)
def test_what_cannot_be_made(tmp_path: Path, words: tuple[str, ...]) -> None:
    code, said = call("make", tmp_path / "l", *MADE, *words)
    assert code == 2 and said.startswith("error:") and not list(tmp_path.iterdir())


def test_a_damaged_ledger(tmp_path: Path) -> None:
    import sqlite3

    file = tmp_path / "l"
    call("make", file, *MADE)
    Ledger(file).reserve("ward-3", Gdp(0.5), adjacency="zero-out", run="r" * 64, purpose="p")
    with sqlite3.connect(file) as other:
        other.execute("UPDATE releases SET costs = '[0, 0]'")
    other.close()
    code, said = call("verify", file)
    assert code == 1 and "was changed" in said and "charges less" in said
    plan = ["plan", "--n", "900", "--features", "3", "--epsilon", "1", "--ledger", str(file)]
    found = CliRunner().invoke(app, plan)
    said = " ".join(found.output.split())
    assert found.exit_code == 2 and "must hold before it is" in said and "from a copy" in said
    with sqlite3.connect(file) as other:
        other.execute("DELETE FROM releases")
    other.close()
    found = CliRunner().invoke(app, plan)
    missing = "--ledger must hold before it is planned for: line 1 is missing"
    assert found.exit_code == 2 and missing in " ".join(found.output.split())
    file.write_bytes(b"SQLite format 3\0" + bytes(200))
    assert call("verify", file)[0] == call("show", file)[0] == 2


def test_a_report_quotes_the_line_of_its_model(tmp_path: Path) -> None:
    """The page that train writes, and that report --ledger makes; another ledger, or another model,
    is refused."""
    import numpy as np

    import lastiterate as li
    from lastiterate.report import subject

    for name in ("l", "other"):
        assert call("make", tmp_path / name, *MADE)[0] == 0
    words = [
        "train",
        "iris",
        "--epsilon",
        "2",
        "--algorithm",
        "permuted-sgd",
        "--ledger",
        str(tmp_path / "l"),
        "--out",
        str(tmp_path / "m"),
    ]
    assert CliRunner().invoke(app, words).exit_code == 0
    page = (tmp_path / "m" / "report.html").read_text()
    left = 100 * Ledger(tmp_path / "l").total().left[0]
    for text in (
        "ward-3",
        "patient",
        f"{format_rounded_down(left)} %",
        "number 1 of 1",
        "budget: epsilon 3 at delta 1e-05; spent: ",
        "every charge",
    ):
        assert text in page, text
    assert "not counted: releases on" not in page
    (tmp_path / "m" / "report.html").unlink()

    def report(ledger: str) -> tuple[int, str]:
        found = CliRunner().invoke(
            app, ["report", str(tmp_path / "m"), "--ledger", str(tmp_path / ledger)]
        )
        return found.exit_code, found.output

    assert report("other")[0] == 2 and "must have a line of this model" in " ".join(
        report("other")[1].split()
    )
    assert report("l")[0] == 0 and (tmp_path / "m" / "report.html").read_text() == page
    dropped = CliRunner().invoke(app, ["report", str(tmp_path / "m"), "--force"])
    assert dropped.exit_code == 2 and "--ledger is needed: the page that would be replaced" in (
        " ".join(dropped.output.split())
    )
    assert (tmp_path / "m" / "report.html").read_text() == page
    again = ["report", str(tmp_path / "m"), "--force", "--ledger", str(tmp_path / "l")]
    assert CliRunner().invoke(app, again).exit_code == 0
    assert (tmp_path / "m" / "report.html").read_text() == page
    shown = CliRunner().invoke(app, ["verify", str(tmp_path / "m")])
    said = " ".join(shown.output.split())
    assert shown.exit_code == 0 and "report.html was NOT checked: it quotes a ledger" in said
    assert "--ledger FILE" in said and "forg" not in said

    def compare(*more: object) -> tuple[int, str]:
        found = CliRunner().invoke(app, ["verify", str(tmp_path / "m"), *map(str, more)])
        return found.exit_code, " ".join(found.output.split())

    same = "it was made again and is the same."
    code, said = compare("--ledger", tmp_path / "l")
    assert code == 0 and same in said and "more release" not in said
    code, said = compare("--ledger", tmp_path / "other")
    assert code == 2 and "must have a line of this model" in said
    for forged in (
        page.replace("spent: ", "spent: 0."),
        page.replace("number 1 of 1", "number 1 of 0"),
        page.replace("right at most", "right at least"),
    ):
        assert forged != page
        (tmp_path / "m" / "report.html").write_text(forged)
        listed = format_manifest(
            {
                name: (tmp_path / "m" / name).read_bytes()
                for name in ("model.json", "weights.safetensors", "certificate.json", "report.html")
            }
        )
        (tmp_path / "m" / "manifest.json").write_bytes(listed)
        code, said = compare("--ledger", tmp_path / "l")
        assert code == 1 and same not in said and "report.html DIFFERS" in said, said
    assert CliRunner().invoke(app, again).exit_code == 0
    run = li.Run(n=20, steps=2, step_size=0.1, clip=1.0, adjacency="zero-out")
    model = li.train(
        run,
        (np.ones((20, 2)),),
        model={"w": np.zeros(2)},
        loss=lambda p, x: (p["w"] @ x - 1.0) ** 2,
        epsilon=0.5,
        delta=1e-5,
        ledger=tmp_path / "l",
    )
    quote = subject.read(model.save(tmp_path / "n"), ledger=tmp_path / "l").ledger
    assert quote is not None and (quote.number, quote.releases) == (2, 2)
    book = Ledger(tmp_path / "l")
    most = bound_right_guesses(book.total().filter.total())
    assert (quote.total, quote.right) == ("epsilon 3 at delta 1e-05", most)
    assert quote.unproven == bool(book.total().unproven)
    code, said = compare("--ledger", tmp_path / "l")
    assert code == 0 and f"{same} {tmp_path / 'l'} has 1 more release now" in said, said
    words = f"lastiterate report {tmp_path / 'm'} --ledger {tmp_path / 'l'}"
    assert f"does not count: {words} --force No signature" in said, said
    (tmp_path / "m" / SIGNATURE).write_bytes(b"{}")
    code, said = compare("--ledger", tmp_path / "l")
    assert code == 0 and f"does not count: {words} --out mine.html. The folder is signed" in said
    own = ["report", str(tmp_path / "m"), "--ledger", str(tmp_path / "l"), "--out"]
    assert CliRunner().invoke(app, [*own, str(tmp_path / "mine.html")]).exit_code == 0
    assert "number 1 of 2" in (tmp_path / "mine.html").read_text()
    refused = CliRunner().invoke(app, ["report", str(tmp_path / "m")])
    assert refused.exit_code == 2 and " ".join(refused.output.split()).endswith(
        "name another file with --out."
    )
    assert (tmp_path / "m" / "report.html").read_text() == page
    (tmp_path / "m" / SIGNATURE).unlink()
    (tmp_path / "n" / "report.html").unlink(missing_ok=True)
    none = CliRunner().invoke(app, ["verify", str(tmp_path / "n"), "--ledger", str(tmp_path / "l")])
    said = " ".join(none.output.split())
    assert none.exit_code == 2 and "there is no report.html" in said
    assert "write the page, lastiterate report" in said
    import sqlite3

    with sqlite3.connect(tmp_path / "l") as other:
        other.execute("UPDATE releases SET run = ? WHERE number = 2", ("0" * 64,))
    other.close()
    with pytest.raises(li.InputError, match="another run"):
        subject.read(tmp_path / "n", ledger=tmp_path / "l")
    assert "was changed" in subject.read(tmp_path / "m", ledger=tmp_path / "l").ledger.problems[0]
    code, said = compare("--ledger", tmp_path / "l")
    assert code == 1 and said.startswith(f"{tmp_path / 'l'} does not hold - line 2"), said
    own = f"make your own page without one: lastiterate report {tmp_path / 'm'} --out mine.html"
    assert own in said and f"--ledger {tmp_path / 'l'}" not in said and "DIFFERS" not in said
    alone = ["report", str(tmp_path / "m"), "--out", str(tmp_path / "alone.html")]
    assert CliRunner().invoke(app, alone).exit_code == 0
    told = json.loads(compare("--ledger", tmp_path / "l", "--json")[1])
    assert not told["holds"] and told["problems"] == [] and "line 2" in told["ledger_problems"][0]
    found = CliRunner().invoke(app, [*again, "--out", str(tmp_path / "damaged.html")])
    said = " ".join(found.output.split())
    assert found.exit_code == 1 and "does not hold, and the page says so" in said
    sheet = ["export", str(tmp_path / "m"), "--to", "nist"]
    found = CliRunner().invoke(app, [*sheet, "--ledger", str(tmp_path / "l")])
    assert found.exit_code == 2 and "must hold before it is quoted: line 2" in (
        " ".join(found.output.split())
    )
    assert CliRunner().invoke(app, sheet).exit_code == 0
    shown = (tmp_path / "damaged.html").read_text()
    assert 0 < shown.index("The ledger does not hold") < shown.index("Verified")


@pytest.mark.parametrize("command", ["train", "tune", "plan"])
def test_a_budget_of_persons_names_flags_and_a_way_out(tmp_path: Path, command: str) -> None:
    file = tmp_path / "l"
    assert call("make", file, *MADE[:4], *MADE[6:])[0] == 0
    (tmp_path / "t.csv").write_text("who,x,y\n" + "".join(f"{i},0.1,{i % 2}\n" for i in range(20)))
    (tmp_path / "t.toml").write_text(
        'target = "y"\nclasses = ["0", "1"]\n[columns.who]\nkind = "id"\n'
        '[columns.x]\nkind = "number"\nlow = 0\nhigh = 1\n'
    )
    words = ["--epsilon", "1", "--ledger", str(file)]
    about = ["--n", "20", "--features", "1"] if command == "plan" else [str(tmp_path / "t.csv")]
    out = [] if command == "plan" else ["--out", str(tmp_path / "m")]
    out += ["--row-norms", "0.5,1"] if command == "tune" else []
    found = CliRunner().invoke(app, [command, *about, *words, *out])
    said = " ".join(found.output.split())
    assert found.exit_code == 2 and "unit=" not in said and "units=" not in said
    assert (
        "say whose a row is (train --unit COLUMN), or state the most rows that one patient has"
        in said
    )
    assert "(lastiterate ledger rows FILE NUMBER)" in said
    if command == "plan":
        assert call("rows", file, 1)[0] == 0
        assert CliRunner().invoke(app, [command, *about, *words, *out]).exit_code == 0
    if command == "train":
        found = CliRunner().invoke(
            app, [command, *about, *words, *out, "--unit", "who", "--algorithm", "noisy-gd"]
        )
        assert found.exit_code == 0, found.output


def test_a_report_names_the_other_data_sets_of_the_ledger(tmp_path: Path) -> None:
    """A new name is a new budget: the page says what its total does not count."""
    ledger = Ledger(tmp_path / "l")
    for name in ("2025", "2026", "2027"):
        ledger.add(name, unit="patient", adjacency="zero-out", filter=GaussianFilter(1.0))
    asked = {"adjacency": "zero-out", "run": "r" * 64, "purpose": "train", "rows": None}
    token = ledger.reserve("2026", Gdp(0.5), **asked)
    ledger.touch(token)
    ledger.release(token, "f" * 64)
    quote = quote_line(ledger, "f" * 64)
    said = _describe_charge(SimpleNamespace(ledger=quote, statement={}))
    assert (
        quote.others == ("2025", "2027") and "this is release 1 of 1 that count; budget: " in said
    )
    assert said.endswith(
        "not counted: releases on 2025, 2027 of the same ledger; for whoever is in both they add up"
    )
    many = replace(quote, others=tuple(map(str, range(25))))
    assert "19 and 5 more of the same ledger" in many.about_others
    assert replace(quote, others=()).about_others == ""


def test_the_remedy_for_a_ledger_that_is_not_there_makes_one(tmp_path: Path) -> None:
    code, said = call("show", tmp_path / "new.db")
    assert code == 2
    words = said.split("lastiterate ledger ")[1].rstrip(". \n").split()
    words = [{"NAME": "clinic", "TOTAL": "3"}.get(word, word) for word in words]
    assert call(*words)[0] == 0 and call("show", tmp_path / "new.db")[0] == 0

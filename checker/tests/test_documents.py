"""What is read before anything is computed: JSON, schemas, hashes, folders, ledgers, exit codes."""

import hashlib
import json
import sqlite3
from pathlib import Path

import pytest

from lastiterate_check.__main__ import main
from lastiterate_check.check import canonical_hash, chain, check, fit, misfits, parse
from lastiterate_check.run import TABLE, BadInput

ROOT = Path(__file__).parents[2]
KEPT = ROOT / "tests" / "golden" / "certificates" / "format-3-run.json"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "no JSON"),
        ('{"a": 1, "a": 2}', "key twice"),
        ('{"a": NaN}', "no finite number"),
        ('{"a": 1e999}', "no finite number"),
        ("[" * 50 + "]" * 50, "deeper"),
    ],
)
def test_strict_json(text, reason):
    with pytest.raises(BadInput, match=reason):
        parse(text, "file")


@pytest.mark.parametrize("name", ["certificate", "manifest", "model", "ledger"])
def test_schemas_are_those_of_the_package(name):
    own = ROOT / "checker" / "src" / "lastiterate_check" / "schemas" / f"{name}.schema.json"
    theirs = list((ROOT / "src" / "lastiterate").rglob(f"{name}.schema.json"))
    assert [path.read_text() for path in theirs] == [own.read_text()]


def test_what_does_not_fit_a_schema_is_refused():
    fit({"sha256": {"a": "0" * 64}}, "manifest")
    wrongs = {}, {"sha256": {}}, {"sha256": {"a": "0" * 64}, "more": 1}, {"sha256": {"a": "zz"}}
    for wrong in (*wrongs, {"sha256": 3}):
        with pytest.raises(BadInput, match="manifest"):
            fit(wrong, "manifest")


def test_every_keyword_of_the_schemas_is_compared():
    names = ("certificate", "manifest", "model", "ledger")
    folder = ROOT / "checker" / "src" / "lastiterate_check"
    used = set()

    def look(schema):
        if isinstance(schema, dict):
            used.update(schema)
            inner = schema.get("properties", {})
            parts = [value for key, value in schema.items() if key != "properties"]
            for part in (*parts, *inner.values()):
                look(part)
        for part in schema if isinstance(schema, list) else ():
            look(part)

    for name in names:
        look(json.loads((folder / "schemas" / f"{name}.schema.json").read_text()))
    code = (folder / "check.py").read_text()
    told = {"$schema", "$id", "title", "description"}
    assert not [key for key in used - told if f'"{key}"' not in code]
    assert len(list(misfits(0, {"type": "integer", "minimum": 1}, "rows"))) == 1
    assert not list(misfits(1, {"type": "integer", "minimum": 1}, "rows"))


def folder_with(tmp_path, certificate):
    (tmp_path / "certificate.json").write_text(json.dumps(certificate))
    digest = hashlib.sha256((tmp_path / "certificate.json").read_bytes()).hexdigest()
    (tmp_path / "manifest.json").write_text(json.dumps({"sha256": {"certificate.json": digest}}))
    return tmp_path


def unbound(stored):
    """The same without the files that it names."""
    body = {**stored, "weights_sha256": None, "model_sha256": None}
    return {**body, "content_sha256": canonical_hash(body)}


def test_exit_codes(tmp_path, capsys):
    stored = unbound(json.loads(KEPT.read_text()))
    folder = folder_with(tmp_path, stored)
    assert main([str(folder)]) == 0
    assert "computed here" in capsys.readouterr().out
    assert main([str(folder), "--json", "--delta", "1e-6"]) == 0
    assert json.loads(capsys.readouterr().out)["verdict"] == "holds"
    folder_with(tmp_path, unbound({**stored, "epsilon": stored["epsilon"] / 2}))
    assert main([str(folder)]) == 3
    (tmp_path / "certificate.json").write_text(json.dumps(stored) + " ")
    assert main([str(folder)]) == 2
    assert "whose hash is stated" in capsys.readouterr().err
    assert main([str(tmp_path / "nothing.json")]) == 2


def sealed(stored, **stated):
    """The certificate with another statement, its own hash written again."""
    return unbound({**stored, "stated": {**stored["stated"], **stated}})


def test_it_says_who_is_protected_and_what_it_does_not_compare(tmp_path, capsys):
    stored = json.loads(KEPT.read_text())
    folder = folder_with(tmp_path, unbound(stored))
    assert main([str(folder)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "protects one row" in lines and lines[-1] == "holds"
    assert lines[-2].startswith("not compared: ") and "caveats" in lines[-2]
    assert "stated.secret" in lines[-2] and "right_guesses" not in lines[-2]
    (folder / "manifest.json").unlink()
    assert main([str(folder)]) == 0
    told = capsys.readouterr().out
    assert "no manifest.json: no list of files was there, report.html was not compared" in told


def test_a_unit_that_the_run_does_not_protect_is_refused():
    stored = json.loads(KEPT.read_text())
    words = TABLE["units"]["together"].format(whose="one unit (patient)", rows=4)
    for unit in (
        {"name": "patient", "rows": 4, "words": words},
        {"rows": 2, "words": stored["stated"]["unit"]["words"]},
        {"rows": 1, "words": "one person, all of their rows"},
    ):
        with pytest.raises(BadInput, match=r"stated.unit: says .*; the run protects one row"):
            check(sealed(stored, unit=unit))
    with pytest.raises(BadInput, match="neighbours"):
        check(sealed(stored, neighbours=TABLE["neighbours"]["add-remove"]))
    units = {"name": "patient", "rows": 4, "words": words}
    for rows in (1, 3, 4):
        body = sealed({**stored, "run": {**stored["run"], "rows_per_record": rows}}, unit=units)
        if rows < 4:
            with pytest.raises(BadInput, match=r"stated.unit: says rows = 4"):
                check(body)
        else:
            assert "protects one patient with at most 4 rows" in check(body).lines


def test_right_guesses_below_the_curve_are_not_shown():
    stored = json.loads(KEPT.read_text())
    right = stored["stated"]["right_guesses"]
    assert f"holds: right guesses {right:.6g}" in check(stored).lines
    for lower in (0.5001, 0.5 + (right - 0.5) * 0.99):
        report = check(sealed(stored, right_guesses=lower))
        assert report.verdict == "not covered"
        assert any(line.startswith("not covered: right guesses") for line in report.lines)


def test_a_statement_below_what_linear_losses_show_is_refuted(tmp_path):
    run = {
        "type": "Run",
        "n": 100,
        "steps": 10,
        "step_size": {"type": "Constant", "value": 0.5},
        "noise": {"type": "NoiseMultiplier", "z": 3.0},
        "loss": {"type": "Abstract", "constants": {"lipschitz": {"type": "Fact", "value": 1.0}}},
    }
    body = {
        "epsilon": 4.0,
        "delta": 1e-5,
        "adjacency": "zero-out",
        "theorem": "composition-gdp",
        "run": run,
        "at_least": "ASSUMED",
    }
    path = tmp_path / "certificate.json"
    path.write_text(json.dumps(body))
    assert main([str(path)]) == 1
    path.write_text(json.dumps({**body, "epsilon": 4.66}))
    assert main([str(path)]) == 0
    path.write_text(json.dumps({**body, "at_least": "ENFORCED", "epsilon": 4.66}))
    assert main([str(path)]) == 3  # the constant is the releaser's word


def ledger(path, mu=0.5, budget=1.0, changed=None, curve=None):
    """A ledger with one charge of a mu-Gaussian mechanism, for its own curve or another one."""
    base = sqlite3.connect(path)
    base.execute("CREATE TABLE events (number, event, chain)")
    base.execute(
        "CREATE TABLE releases (number, token, dataset, purpose, run, curve, costs, day, chain, "
        "state)"
    )
    filter_ = json.dumps({"type": "GaussianFilter", "mu": budget, "failure": 0.0})
    curve = json.dumps(curve or {"type": "Gdp", "mu": mu})
    costs = json.dumps([int(mu * mu * 2**40) + 1, 0])
    line = [1, "t", "d", "p", "r", curve, costs, "2026-01-01"]
    tied = chain("", *line)
    names = ["number", "token", "dataset", "purpose", "run", "curve", "costs", "day"]
    fields = {
        **dict(zip(names, line, strict=True)),
        "chain": tied,
        "state": "reserved",
        "model": None,
        "checkpoint": 0,
    }
    dataset = {"name": "d", "unit": "u", "adjacency": "zero-out", "filter": filter_, "made": "day"}
    before = "lastiterate ledger, format 2"
    events = [("begun", {"format": 2}), ("dataset", dataset), ("line", fields)]
    for number, event in enumerate(events, 1):
        text = json.dumps(event, sort_keys=True)
        before = chain(before, number, text)
        base.execute("INSERT INTO events VALUES (?, ?, ?)", (number, text, before))
    base.execute("INSERT INTO releases VALUES (?,?,?,?,?,?,?,?,?,?)", (*line, tied, "reserved"))
    if changed:
        base.execute(changed)
    base.commit()
    base.close()
    return str(path)


def test_ledgers(tmp_path, capsys):
    assert main([ledger(tmp_path / "a.db")]) == 0
    assert "0.25" in capsys.readouterr().out
    assert main([ledger(tmp_path / "b.db", mu=1.1)]) == 1
    changed = "UPDATE events SET event = replace(event, '0.5', '0.4') WHERE number = 3"
    assert main([ledger(tmp_path / "c.db", changed=changed)]) == 2
    assert main([ledger(tmp_path / "d.db", changed="UPDATE releases SET state = 'cancelled'")]) == 2


def gaussian(mu):
    return {"type": "Gdp", "mu": mu}


@pytest.mark.parametrize(
    ("parts", "known"),
    [
        ([gaussian(0.5), gaussian(0.3)], None),
        ([gaussian(0.3), {"type": "BestOf", "curves": [gaussian(9.0), gaussian(0.5)]}], None),
        ([gaussian(0.5), gaussian(0.50001)], "epsilon 2.2"),
        ([gaussian(0.51), gaussian(0.3)], "epsilon 2.3"),
        ([gaussian(0.3), {"type": "BestOf", "curves": [gaussian(9.0), gaussian(0.6)]}], "epsilon"),
        ([gaussian(0.3), {"type": "PerturbedObjective", "mu": 0.1}], "no bound"),
        ([], "no bound"),
    ],
)
def test_a_charge_pays_for_each_part_of_a_worse_one(parts, known, tmp_path, capsys):
    """Records that are trained on and records that are only counted: the charge of 0.5 must cover
    whichever is worse, and a charge that covers one of them alone is refused."""
    path = ledger(tmp_path / "a.db", curve={"type": "WorstOf", "curves": parts})
    assert main([path]) == (0 if known is None else 3)
    line = capsys.readouterr().out.splitlines()[1]
    words = "d, release 1: the charge covers its privacy curve"
    if known is None:
        assert line == f"holds: {words}"
    else:
        assert line.startswith(f"not covered: {words}: not shown; known here: {known}")


def test_certificates_of_nothing_hold():
    body = {"epsilon": None, "delta": 1e-5, "adjacency": "zero-out"}
    assert check(body).verdict == "holds"

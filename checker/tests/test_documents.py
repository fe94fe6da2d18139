"""What is read before anything is computed: JSON, schemas, hashes, folders, ledgers, exit codes."""

import hashlib
import json
import sqlite3
from pathlib import Path

import pytest

from lastiterate_check.__main__ import main
from lastiterate_check.check import canonical_hash, chain, check, fit, parse
from lastiterate_check.run import BadInput

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
    for wrong in ({}, {"sha256": {}, "more": 1}, {"sha256": {"a": "zz"}}, {"sha256": 3}):
        with pytest.raises(BadInput, match="manifest"):
            fit(wrong, "manifest")


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


def ledger(path, mu=0.5, budget=1.0, changed=None):
    """A ledger with one charge of a mu-Gaussian mechanism."""
    base = sqlite3.connect(path)
    base.execute("CREATE TABLE events (number, event, chain)")
    base.execute(
        "CREATE TABLE releases (number, token, dataset, purpose, run, curve, costs, day, chain, "
        "state)"
    )
    filter_ = json.dumps({"type": "GaussianFilter", "mu": budget, "failure": 0.0})
    curve, costs = json.dumps({"type": "Gdp", "mu": mu}), json.dumps([int(mu * mu * 2**40) + 1, 0])
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


def test_certificates_of_nothing_hold():
    body = {"epsilon": None, "delta": 1e-5, "adjacency": "zero-out"}
    assert check(body).verdict == "holds"

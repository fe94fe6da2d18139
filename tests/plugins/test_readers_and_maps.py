"""Readers and feature maps of plug-ins: used with permission, marked on what is released."""

import json

import numpy as np
import pytest

import lastiterate as li
from lastiterate.data import Schema, read_table
from lastiterate.data.columns import Numeric
from lastiterate.errors import InputError
from lastiterate.features.map_registry import automatic_maps, maps_named
from lastiterate.features.record_fields import Number
from support import call, install_plugin

BY = "by forms 1.0, not reviewed by this project"
MODULE = """
from dataclasses import dataclass
import numpy as np
from lastiterate.data.readers import Format
from lastiterate.data.table import Table
from lastiterate.features.column_maps import RecordMap
from lastiterate.features.record_fields import Number


def read(path):
    rows = [line.split("|") for line in path.read_text().splitlines()]
    return Table(("a", "b", "y"), {name: [row[i] for row in rows] for i, name in enumerate("aby")})


bars = Format("a file of .bars", lambda path: path.suffix == ".bars", read,
              lambda path: dict.fromkeys("aby", "?"))


@dataclass(frozen=True)
class Signs(RecordMap):
    name, takes = "signs", (Number,)

    def width(self, field):
        return 1

    def norm(self, field):
        return 1.0

    def rows(self, field, values):
        return np.sign(np.asarray(values, float)).reshape(-1, 1)

    def words(self):
        return "the sign of every number"
"""
POINTS = {"readers": {"bars": "forms:bars"}, "features": {"signs": "forms:Signs"}}


@pytest.fixture
def forms(tmp_path, monkeypatch):
    """A package with a reader and a map, a file that it reads, and the file's schema."""
    install_plugin(tmp_path / "site", monkeypatch, "forms", POINTS, MODULE)
    rng = np.random.default_rng(0)
    values = rng.uniform(-1, 1, size=(200, 2))
    lines = [f"{a:.4f}|{b:.4f}|{'yes' if a > 0 else 'no'}" for a, b in values]
    (tmp_path / "data.bars").write_text("\n".join(lines) + "\n")
    (tmp_path / "schema.toml").write_text(
        'target = "y"\nclasses = ["no", "yes"]\n[columns]\n'
        'a = {kind = "number", low = -1, high = 1}\nb = {kind = "number", low = -1, high = 1}\n'
    )
    return tmp_path


def train(forms, *words):
    """Train on the file with a seed-free budget; what the command answers."""
    out = forms / "model"
    given = ("train", forms / "data.bars", "--schema", forms / "schema.toml", "--epsilon", 5)
    return call(*given, "--delta", 1e-4, "--out", out, *words), out


def test_without_permission_the_file_and_the_map_are_unknown(forms):
    answer, out = train(forms)
    assert answer.code == 2 and "must be one of: a folder of .parquet files" in answer.err
    assert not out.exists()
    with pytest.raises(InputError, match=r"must be plain, or maps of records"):
        maps_named("signs")


def test_what_they_contribute_is_marked_on_the_release(forms):
    answer, out = train(forms, "--features", "signs", "--allow-plugins")
    assert answer.code == 0, answer.err
    stored = json.loads((out / "certificate.json").read_text())
    marks = [f"feature map signs: {BY}", f"reader bars: {BY}"]
    assert set(marks) <= set(stored["caveats"]) and "plugins" not in stored
    checked = call("verify", out, "--allow-plugins")
    shown = " ".join(checked.out.split())
    assert checked.code == 0 and all(f"from outside: {text}." in shown for text in marks)
    card = forms / "card.md"
    assert call("export", out, "--to", "model-card", "--out", card, "--allow-plugins").code == 0
    assert all(text in card.read_text() for text in marks)
    refused = call("verify", out)
    assert refused.code == 2 and f"cannot be checked: it rests on the {marks[0]}" in refused.err
    with pytest.raises(InputError, match="allow_plugins"):
        li.load(out)
    predicted = call("predict", out, forms / "data.bars", "--allow-plugins")
    assert predicted.code == 0 and "yes" in predicted.out


def test_a_release_without_them_is_not_marked(forms):
    answer, out = train(forms, "--features", "plain", "--allow-plugins")
    assert answer.code == 0
    stored = json.loads((out / "certificate.json").read_text())
    assert not any("feature map" in text for text in stored["caveats"])
    assert call("verify", out).code == 0, "a reader is needed for training alone"


def test_no_map_of_a_plug_in_is_chosen_by_itself(forms):
    fields = (Number("a"),)
    with li.allow_plugins():
        assert all(one.name != "signs" for one in automatic_maps(fields, 1e9))
        assert maps_named("signs")[0].name == "signs"
    listed = call("--allow-plugins", "train", "--features", "list").out
    assert BY in " ".join(listed.split())


def test_a_reader_never_takes_a_file_from_this_project(forms, monkeypatch):
    greedy = MODULE.replace('path.suffix == ".bars"', "True")
    install_plugin(forms / "greedy", monkeypatch, "forms", POINTS, greedy)
    (forms / "data.csv").write_text("a,b,y\n0.1,0.2,no\n")
    with li.allow_plugins():
        assert read_table(forms / "data.csv").outside == ()
        assert read_table(forms / "data.bars").outside[0].words == f"reader bars: {BY}"


@pytest.mark.parametrize(
    "change, said",
    [
        (("row[i] for row in rows] for", "secret] for"), r"data.bars \(NameError\)"),
        (("return Table(", "return len(str(rows)) or Table("), "must become a Table"),
        (('Format("a file', 'dict("a file'), "of forms 1.0 does not"),
        (("name, takes", 'name = "curves"; takes'), "must be called curves"),
        (("class Signs(RecordMap)", "class Signs"), "must name a class that derives"),
    ],
)
def test_a_broken_one_names_its_package(forms, monkeypatch, change, said):
    old, new = change
    assert old in MODULE
    text = (
        MODULE.replace(old, new).replace(", (Number,)", "")
        if "takes" in old
        else MODULE.replace(old, new)
    )
    install_plugin(forms / "broken", monkeypatch, "forms", POINTS, text)
    with li.allow_plugins(), pytest.raises(InputError, match=said) as caught:
        read_table(forms / "data.bars")
        maps_named("signs")
    assert "forms 1.0" in str(caught.value) and "0." not in str(caught.value).replace("1.0", "")


def test_a_map_of_this_project_keeps_its_name(tmp_path, monkeypatch):
    taken = MODULE.replace('"signs", (Number', '"curves", (Number')
    install_plugin(tmp_path, monkeypatch, "forms", {"features": {"curves": "forms:Signs"}}, taken)
    with li.allow_plugins():
        assert type(maps_named("curves")[0]).__module__.startswith("lastiterate")


def test_a_schema_with_a_map_of_a_plug_in_is_read_with_permission(forms):
    with li.allow_plugins():
        schema = Schema(
            (Numeric("a", -1.0, 1.0),),
            target="y",
            classes=("no", "yes"),
            features=maps_named("signs"),
        )
        written = json.loads(json.dumps(schema.to_dict()))
        assert Schema.from_dict(written) == schema
    with pytest.raises(InputError, match="allow_plugins"):
        Schema.from_dict(written)

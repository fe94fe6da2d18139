"""Releases in files of other programs: each is accepted, and a changed part of it is found."""

import base64
import json
import pickle
import shutil
import warnings
import zipfile

import numpy as np
import pytest

from lastiterate_check.__main__ import main
from lastiterate_check.exports import fields, number
from lastiterate_check.run import BadInput

li = pytest.importorskip("lastiterate")
FORMS = {
    "m.onnx": "not compared: whether the graph, which has the hash that the file states",
    "m.safetensors": "weights and model in the file are those that the certificate names",
    "m.skops": "not compared: schema.json (what skops makes",
    "m.joblib": "not compared: what the pickle executes",
    "flow": "not compared: MLmodel",
}


@pytest.fixture(scope="module")
def exports(tmp_path_factory):
    """One release in every form, by the name of its file or folder; and in its own folder."""
    for library in ("onnx", "mlflow"):
        pytest.importorskip(library)
    place, rows = tmp_path_factory.mktemp("exports"), np.random.default_rng(0).normal(size=(80, 3))
    run = li.Run(n=80, steps=4, step_size=0.1, loss=li.Logistic(row_norm=2.0, ridge=0.1))
    model = li.train(run, (rows, (rows[:, 0] > 0).astype(int)), epsilon=1.0, delta=1e-4)
    model.save(place / "model")
    model.to_mlflow(place / "flow")
    model.to_onnx(place / "m.onnx")
    model.to_safetensors(place / "m.safetensors")
    model.to_skops(place / "m.skops")
    model.to_sklearn(place / "m.joblib")
    return place


def altered(exports, form, name, old, new, tmp_path):
    """A copy of an export with other bytes in it; of an MLflow model in the file of that name."""
    target = tmp_path / form
    (shutil.copytree if form == "flow" else shutil.copy)(exports / form, target)
    file = target / "data" / "model" / name if form == "flow" else target
    content = file.read_bytes()
    assert old in content
    file.write_bytes(content.replace(old, new, 1))
    return str(target)


@pytest.mark.parametrize(("form", "words"), FORMS.items(), ids=FORMS)
def test_each_form_is_accepted(form, words, exports, capsys):
    assert main([str(exports / form)]) == 0
    told = capsys.readouterr().out
    assert words in told
    assert "computed here" in told


@pytest.mark.parametrize("form", FORMS)
def test_a_changed_weight_is_found(form, exports, tmp_path):
    weight = li.load(exports / "model").released.weights[0, 0]
    old, new = weight.tobytes(), np.nextafter(weight, 9.0).tobytes()
    assert main([altered(exports, form, "weights.safetensors", old, new, tmp_path)]) == 2


@pytest.mark.parametrize("form", FORMS)
def test_a_changed_certificate_is_found(form, exports, tmp_path, capsys):
    changed = b'"steps": 4', b'"steps": 3'
    if form == "m.safetensors":  # its header is JSON, and holds JSON as text
        changed = tuple(text.replace(b'"', b'\\"') for text in changed)
    assert main([altered(exports, form, "certificate.json", *changed, tmp_path)]) == 2
    told = capsys.readouterr().err
    assert "hash" in told or "describes another run" in told or "no skops file" in told


@pytest.mark.parametrize("form", ["m.onnx", "m.safetensors"])
def test_metadata_that_say_something_else_are_found(form, exports, tmp_path, capsys):
    epsilon = json.loads((exports / "model" / "certificate.json").read_text())["epsilon"]
    old = f"{epsilon!r}".encode()
    content = (exports / form).read_bytes()
    entry = b"lastiterate.epsilon" if form == "m.onnx" else b'"' + old + b'"'
    place = content.index(old, content.index(entry))
    (tmp_path / form).write_bytes(content[:place] + b"0.1" + content[place + 3 :])
    assert main([str(tmp_path / form)]) == 2
    assert "epsilon is not what the certificate says" in capsys.readouterr().err


def test_other_weights_than_certified_are_found_in_onnx(exports, tmp_path):
    weights = base64.b64encode((exports / "model" / "weights.safetensors").read_bytes())
    changed = weights[:200] + (b"B" if weights[200:201] == b"A" else b"A") + weights[201:]
    assert main([altered(exports, "m.onnx", "", weights, changed, tmp_path)]) == 2


def test_a_graph_without_a_hash_is_not_compared(exports, tmp_path, capsys):
    """As versions wrote it that stated none; an entry of another name has no meaning here."""
    told = altered(exports, "m.onnx", "", b"graph_sha256", b"other_sha256", tmp_path)
    assert main([told]) == 0
    assert "the graph, of which it states no hash" in capsys.readouterr().out


def test_nothing_is_executed_and_names_stand_once(exports, tmp_path, capsys):
    files = {path.name: path.read_bytes() for path in (exports / "model").iterdir()}

    class Trap:
        def __reduce__(self):
            return (tmp_path / "mark").write_text, ("executed",)

    (tmp_path / "m.joblib").write_bytes(pickle.dumps([files, Trap()], protocol=4))
    assert main([str(tmp_path / "m.joblib")]) == 0
    assert "not compared: what the pickle executes" in capsys.readouterr().out
    assert not (tmp_path / "mark").exists()
    (tmp_path / "m.joblib").write_bytes(pickle.dumps([files, {"model.json": b"{}"}], protocol=4))
    assert main([str(tmp_path / "m.joblib")]) == 2
    for packing, twice in ((zipfile.ZIP_DEFLATED, ()), (zipfile.ZIP_STORED, ("model.json",))):
        with (
            warnings.catch_warnings(action="ignore"),  # of a name that stands twice
            zipfile.ZipFile(tmp_path / "m.skops", "w", packing) as file,
        ):
            for name in (*files, *twice):
                file.writestr(name, files[name])
        assert main([str(tmp_path / "m.skops")]) == 2


def test_files_without_a_release_are_bad_input(tmp_path):
    for ending in ("onnx", "safetensors", "skops", "joblib"):
        for content in (b"", b"nothing", b"\xff" * 40, b"PK\3\4" + bytes(30), bytes(8) + b"{}"):
            (tmp_path / f"a.{ending}").write_bytes(content)
            assert main([str(tmp_path / f"a.{ending}")]) == 2


def test_numbers_and_fields_of_protobuf():
    assert number(b"\x96\x01", 0) == (150, 2)
    message = b"\x08\x96\x01" + b"\x12\x03abc" + b"\x1d1234" + b"\x2112345678"
    assert [(n, content) for n, content, _ in fields(message)] == [
        (1, b""),
        (2, b"abc"),
        (3, b"1234"),
        (4, b"12345678"),
    ]
    assert b"".join(raw for _, _, raw in fields(message)) == message
    for wrong in (b"\x12\x04abc", b"\x13", b"\x80"):
        with pytest.raises((ValueError, KeyError, IndexError, BadInput)):
            list(fields(wrong))

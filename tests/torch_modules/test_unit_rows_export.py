"""A model of units leaves as the module on rows: its names, its files and its messages."""

import re
from dataclasses import replace
from html import unescape

import numpy as np
import pytest
import torch
import torch.nn.functional as functional
from lastiterate_check.__main__ import check_path
from lastiterate_check.check import HOLDS
from lastiterate_check.run import BadInput
from safetensors.torch import load_file

import lastiterate as li
from lastiterate.errors import InputError
from lastiterate.release.units import UnitLoss, units_as_records
from lastiterate.report.exports import FORMATS
from lastiterate.report.page import page
from lastiterate.report.subject import read
from lastiterate.torch import PerUnit, make_private, released_module

WHO = np.array([0, 1, 1, 2, 2, 2, 3, 4, 4, 4, 4])
X = np.random.default_rng(0).normal(size=(len(WHO), 4)).astype(np.float32)
PRESENT, ROWS, CLASSES = units_as_records((X, np.arange(len(WHO)) % 3), WHO, 3)
BASIC = {"steps": 2, "step_size": 0.5, "noise": li.NoiseMultiplier(1.0), "clip": 0.5}
RUN = li.Run(n=5, **BASIC)
DATA = ROWS, PRESENT, CLASSES


class Net(torch.nn.Module):
    """A map that is trained, with a frozen part and a buffer."""

    def __init__(self, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.map, self.shift = torch.nn.Linear(4, 3), torch.nn.Linear(3, 3)
        self.shift.requires_grad_(False)
        self.register_buffer("scale", torch.ones(3))

    def forward(self, x):
        return {"logits": self.shift(self.map(x)) * self.scale}


def of_row(output, y):
    return functional.cross_entropy(output["logits"], y)


def train(**more):
    return li.train(RUN, DATA, model=PerUnit(Net()), loss=UnitLoss(of_row, 3), seed=1, **more)


def test_exported_weights_are_those_of_the_plain_module(tmp_path):
    model = train(out=tmp_path / "model")
    assert sorted(model.state) == ["map.bias", "map.weight"]
    wanted = model.predict(ROWS)["logits"]
    file = model.to_safetensors(tmp_path / "weights.safetensors")
    hub = model.to_huggingface(tmp_path / "hub") / "weights.safetensors"
    for kept in (file, hub, tmp_path / "model" / "weights.safetensors"):
        plain = Net()
        assert not plain.load_state_dict(load_file(kept), strict=False).unexpected_keys
        with torch.no_grad():
            one = plain(torch.from_numpy(ROWS[1, :1]))["logits"]
        np.testing.assert_allclose(one, wanted[1, :1], rtol=0, atol=1e-6)
    plain = Net(7)
    plain.load_state_dict(model.state_dict())
    assert torch.equal(plain.map.weight, model.state["map.weight"])
    for whole in (PerUnit(Net(7)), torch.nn.Sequential(PerUnit(Net(7)))):
        state = model.state_dict()
        if isinstance(whole, torch.nn.Sequential):
            state = {f"0.{name}": part for name, part in state.items()}
        whole.load_state_dict(state)
        whole.load_state_dict(whole.state_dict())
        inner = whole.module if isinstance(whole, PerUnit) else whole[0].module
        assert torch.equal(inner.map.weight, plain.map.weight)
    for written in (file, tmp_path / "hub", tmp_path / "model"):
        assert li.verify(written).holds
        assert check_path(written, None).verdict == HOLDS, "the independent checker agrees"
    named = b"one record, by a caveat one unit with at most 3 rows"
    assert named in file.read_bytes()
    file.write_bytes(file.read_bytes().replace(named, named.replace(b"3", b"2")))
    with pytest.raises(BadInput, match="metadata: unit is not what the certificate says"):
        check_path(file, None)


def test_a_folder_of_units_loads_into_the_module_on_rows(tmp_path):
    model = train(out=tmp_path / "model")
    single = li.load(tmp_path / "model", like=Net())
    again = li.load(tmp_path / "model", like=PerUnit(Net()))
    wanted = model.predict(ROWS)["logits"]
    assert np.array_equal(again.predict(ROWS)["logits"], wanted)
    np.testing.assert_allclose(single.predict(ROWS[:, 0])["logits"], wanted[:, 0], atol=1e-6)
    assert single.certificate.epsilon(1e-5) == model.certificate.epsilon(1e-5)
    for other in (Net(3), PerUnit(Net(3))):
        with pytest.raises(InputError, match="frozen parameters"):
            li.load(tmp_path / "model", like=other)
    with pytest.raises(InputError, match=r"like must have a parameter map"):
        li.load(tmp_path / "model", like=torch.nn.Linear(4, 3))


def test_a_folder_of_an_earlier_version_loads_both_ways(tmp_path, monkeypatch):
    """Folders once called parameters as PerUnit does, and their digest has those names."""
    with monkeypatch.context() as patched:
        patched.setattr(released_module, "unwrap", lambda module: module)
        patched.setattr(released_module, "unwrap_names", lambda module, named: dict(named))
        model = train(out=tmp_path / "model")
    assert sorted(model.state) == ["module.map.bias", "module.map.weight"]
    assert li.verify(tmp_path / "model").holds
    wanted = model.predict(ROWS)["logits"]
    whole = li.load(tmp_path / "model", like=PerUnit(Net()))
    single = li.load(tmp_path / "model", like=Net())
    assert np.array_equal(whole.predict(ROWS)["logits"], wanted)
    np.testing.assert_allclose(single.predict(ROWS[:, 0])["logits"], wanted[:, 0], atol=1e-6)
    assert li.verify(single.save(tmp_path / "again")).holds
    for other in (Net(3), PerUnit(Net(3))):
        with pytest.raises(InputError, match="frozen parameters"):
            li.load(tmp_path / "model", like=other)


def test_loops_and_single_steps_name_parameters_alike(tmp_path):
    every = replace(RUN, release="all")
    net = PerUnit(Net())
    loop = make_private(every, module=net, data=DATA, loss=UnitLoss(of_row, 3), seed=1)
    next(loop)
    first = loop.parameters()
    assert sorted(first) == ["map.bias", "map.weight"]
    for _ in loop:
        pass
    last = loop.parameters()
    model = loop.release()
    assert torch.equal(net.module.map.bias, model.module_at(RUN.steps, like=Net()).map.bias)
    assert torch.equal(net.module.map.bias, last["map.bias"])
    assert not torch.equal(net.module.map.bias, Net().map.bias)
    with pytest.raises(InputError, match=r"must be 'last' for the state of one.*module_at\(step"):
        model.state_dict()
    for like in (Net(), PerUnit(Net())):
        held = dict(model.module_at(1, like=like).named_parameters())
        assert any(torch.equal(part, first["map.bias"]) for part in held.values())
    last = make_private(RUN, module=net, data=DATA, loss=UnitLoss(of_row, 3), seed=1)
    for _ in last:
        pass
    assert torch.equal(net.module.map.bias, last.release().state["map.bias"])


def test_messages_name_the_way_for_single_rows(tmp_path):
    model = train(out=tmp_path / "model")
    with pytest.raises(InputError, match=r"like=module\)\.predict\(x\)") as said:
        model.predict(X)
    assert "x[None]" not in str(said.value)
    pytest.importorskip("onnxscript")
    with pytest.raises(InputError, match=r"like=module\)\.to_onnx") as said:
        model.to_onnx(tmp_path / "net.onnx", ROWS)
    assert "\x1b" not in str(said.value)
    single = li.load(tmp_path / "model", like=Net())
    assert li.verify(single.to_onnx(tmp_path / "net.onnx", X)).holds


def test_a_compiled_module_leaves_as_the_module_that_was_compiled(tmp_path, monkeypatch):
    plain = torch.nn.Linear(4, 3)
    compiled = torch.compile(plain, backend="eager")
    given = {"loss": functional.cross_entropy, "seed": 1}
    run, data = li.Run(**BASIC, n=len(X)), (X, np.arange(len(X)) % 3)
    model = li.train(run, data, model=compiled, out=tmp_path / "model", **given)
    assert sorted(model.state) == ["bias", "weight"]
    weights = load_file(tmp_path / "model" / "weights.safetensors")
    other = torch.nn.Linear(4, 3)
    assert not other.load_state_dict(weights, strict=False).unexpected_keys
    with monkeypatch.context() as patched:
        patched.setattr(released_module, "unwrap", lambda module: module)
        patched.setattr(released_module, "unwrap_names", lambda module, named: dict(named))
        li.train(run, data, model=compiled, out=tmp_path / "earlier", **given)
    for folder in ("model", "earlier"):
        for like in (torch.nn.Linear(4, 3), compiled):
            again = li.load(tmp_path / folder, like=like)
            np.testing.assert_allclose(again.predict(X), model.predict(X), atol=1e-6)


def test_a_checkpoint_of_units_resumes(tmp_path):
    key = tmp_path / "key"
    key.write_text(bytes(range(32)).hex())
    key.chmod(0o600)
    kept = {"checkpoint": tmp_path / "kept", "checkpoint_key": key, "checkpoint_every": 0.0}

    def stop(done, steps, seconds):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(progress=stop, **kept)
    assert torch.equal(train(**kept).state["map.bias"], train().state["map.bias"])


def test_a_loss_reads_attributes_of_units_as_of_records():
    outputs = pytest.importorskip("transformers.modeling_outputs")

    class Attributes(Net):
        def forward(self, x):
            logits = super().forward(x)["logits"]
            return outputs.SequenceClassifierOutput(logits=logits, loss=logits.mean())

    def loss(output, y):
        return functional.cross_entropy(output.logits, y)

    model = li.train(RUN, DATA, model=PerUnit(Attributes()), loss=UnitLoss(loss, 3), seed=1)
    assert torch.equal(model.state["map.weight"], train().state["map.weight"])
    assert sorted(model.predict(ROWS)) == ["logits"]


def test_a_loss_that_reads_an_attribute_of_a_dictionary_is_told_its_entry():
    def loss(output, y):
        return functional.cross_entropy(output.logits, y)

    with pytest.raises(InputError, match=r"loss must take one record.*output\['logits'\]"):
        li.train(RUN, DATA, model=PerUnit(Net()), loss=UnitLoss(loss, 3))
    mended = UnitLoss(lambda output, y: functional.cross_entropy(output["logits"], y), 3)
    assert li.train(RUN, DATA, model=PerUnit(Net()), loss=mended, seed=1).state


def test_pages_and_verify_call_a_record_a_unit_and_contradict_nothing(tmp_path):
    train(out=tmp_path / "model")
    named = "one unit with at most 3 rows"
    assert li.verify(tmp_path / "model").protects == f"one record, by a caveat {named}"
    subject = read(tmp_path / "model")
    text = unescape(re.sub("<[^>]+>", " ", page(subject)))
    assert f"O{named[1:]}, if further rows were left out" in text
    assert "nobody has more than one row" not in text
    sheet = "".join(FORMATS["w3c"](subject).values())
    assert f"several records, each of them {named}" in sheet
    assert "somebody with more than one row" not in sheet

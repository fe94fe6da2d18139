"""Saved, loaded, verified, predicted with; and nothing but such models needs torch."""

import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as functional

import lastiterate as li
from lastiterate.cli import app
from lastiterate.errors import InputError
from lastiterate.torch import FittedModule, Grouped
from lastiterate.torch.released_module import predict_module

N = 12
X = np.random.default_rng(0).normal(size=(N, 4)).astype(np.float32)
Y = np.arange(N) % 3
RUN = li.Run(
    n=N, steps=3, step_size=0.3, noise=li.NoiseMultiplier(2.0), clip=0.5, batching=li.Cyclic(4)
)


def network(dtype=torch.float32):
    module = torch.nn.Sequential(
        torch.nn.Linear(4, 5), torch.nn.BatchNorm1d(5), torch.nn.Linear(5, 3)
    ).to(dtype)
    module[0].requires_grad_(False)
    return module.eval()


def trained(run=RUN, dtype=torch.float32):
    return li.train(run, (X, Y), model=network(dtype), loss=functional.cross_entropy)


@pytest.fixture(scope="module")
def model():
    return trained()


def test_a_folder_travels(model, tmp_path):
    where = model.save(tmp_path / "m")
    assert li.verify(where).holds
    plain, shaped = li.load(where), li.load(where, like=model.module)
    assert (
        type(plain) is FittedModule and plain.run == RUN and plain.certificate == model.certificate
    )
    for name, tensor in plain.state_dict().items():
        assert torch.equal(tensor, model.state[name])
    assert shaped.state_dict().keys() == model.module.state_dict().keys()
    np.testing.assert_array_equal(shaped.predict(X), model.predict(X))
    assert not plain.module and set(plain.state) == {"1.weight", "1.bias", "2.weight", "2.bias"}
    with pytest.raises(InputError, match="load the folder with like=module"):
        plain.predict(X)
    for like, said in ((torch.nn.Linear(4, 3), "must have a parameter"), ({}, "must be a module")):
        with pytest.raises(InputError, match=said):
            li.load(where, like=like)
    assert FIRST_SAID in " ".join(model.certificate.caveats) and "72 parameters" not in repr(model)


FIRST_SAID = "first parameters and buffers"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_precisions_are_kept(dtype, tmp_path):
    model = trained(dtype=dtype)
    again = li.load(model.save(tmp_path / "m"), like=model.module)
    for name, tensor in model.state.items():
        assert tensor.dtype == dtype and torch.equal(again.module.state_dict()[name], tensor)


def test_all_iterates(tmp_path):
    run = li.Run(
        n=N, steps=3, step_size=0.3, noise=li.NoiseMultiplier(2.0), clip=0.5, release="all"
    )
    net, given = network(), {"loss": functional.cross_entropy, "seed": 1}
    model = li.train(run, (X, Y), model=net, **given)
    assert model.state["2.weight"].shape == (3, 3, 5) and model.module is None
    assert torch.equal(
        li.load(model.save(tmp_path / "m")).state["2.weight"], model.state["2.weight"]
    )
    said = r"'all'; ask the module of one step: model.module_at\(step, like=module\)"
    for found in (model, li.load(tmp_path / "m", like=net)):
        with pytest.raises(InputError, match=said):
            found.predict(X)
        one = found.module_at(2, like=net)
        assert not one.training and torch.equal(one[2].weight, model.state["2.weight"][1])
        with pytest.raises(InputError, match=r"'all'; write the module of one step, .*module_at"):
            found.to_onnx(tmp_path / "f.onnx", X)
    last = li.train(replace(run, release="last"), (X, Y), model=net, **given)
    assert torch.equal(model.module_at(3, like=net)[2].weight, last.module[2].weight)
    for step in (0, 4):
        with pytest.raises(InputError, match="step must be an integer between 1 and 3"):
            model.module_at(step, like=net)
    for like, said in (
        (network(), "must hold the frozen parameters"),
        (torch.nn.Linear(3, 2), r"must have a parameter .* of shape"),
        ("net", "of the class that was trained, got 'str'"),
    ):
        with pytest.raises(InputError, match=said):
            model.module_at(1, like=like)
        with pytest.raises(InputError, match=said):
            li.load(tmp_path / "m", like=like)
    with pytest.raises(InputError, match=r"release must be 'all' .* 'last'; take model.module"):
        last.module_at(1, like=net)
    with pytest.raises(InputError, match="a module to predict; load the folder with like=module"):
        li.load(last.save(tmp_path / "last")).predict(X)


def test_one_record_without_its_axis_is_told_how_to_get_it():
    image = torch.zeros(1, 6, 6)
    conv = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.GroupNorm(2, 2))
    said = r"along the first axis, got 'records of shape \(6, 6\): .*'; .* as x\[None\]"
    with pytest.raises(InputError, match=said):
        predict_module(conv, image, None)
    assert predict_module(conv, image[None], None).shape == (1, 2, 4, 4)


def test_a_damaged_folder_is_not_read(model, tmp_path):
    where = model.save(tmp_path / "m")
    weights = bytearray((where / "weights.safetensors").read_bytes())
    weights[-1] ^= 1
    (where / "weights.safetensors").write_bytes(bytes(weights))
    assert not li.verify(where).holds
    with pytest.raises(InputError, match="does not fit its certificate"):
        li.load(where)


def test_a_checkpoint_goes_on_with_the_same_bits(tmp_path, kept, interrupted):
    given = dict(model=network(), loss=functional.cross_entropy) | kept
    first = li.train(RUN, (X, Y), **{**given, "checkpoint": tmp_path / "d"}, seed=5)
    with interrupted(2) as progress:
        li.train(RUN, (X, Y), **given, seed=5, progress=progress)
    second = li.train(RUN, (X, Y), **given, seed=5)
    assert all(torch.equal(first.state[name], second.state[name]) for name in first.state)
    assert not (tmp_path / "c").exists()
    with interrupted(2) as progress:
        li.train(RUN, (X, Y), **given, progress=progress)
    li.train(RUN, (X, Y), **given)


def test_groups_are_released_in_their_own_units(tmp_path):
    run = li.Run(n=N, steps=1, step_size=0.3, noise=li.GradientNoise(0.0), clip=0.5)
    module = network()
    from lastiterate.torch.module_training import fit_module

    parameters, theta = fit_module(
        run, Grouped(module, {"2": 9.0}), functional.cross_entropy, (X, Y)
    )
    again = parameters.restore_precision(parameters.vector(module))
    torch.testing.assert_close(again["2.weight"], module[2].weight.detach())
    assert parameters.names == ("2.weight", "2.bias") and theta.size == 18


def test_only_such_models_need_torch(model, tmp_path):
    """Without torch: everything is imported, a run is accounted, a folder of this kind verified,
    and not loaded."""
    where = model.save(tmp_path / "m")
    code = f"""
import sys, lastiterate as li, lastiterate.torch, lastiterate.release.pipeline
assert "torch" not in sys.modules
sys.modules["torch"] = None
assert li.verify({str(where)!r}).holds
try:
    li.load({str(where)!r})
except li.InputError as error:
    assert "pip install lastiterate[torch]" in str(error), error
else:
    raise AssertionError
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_command_line_verifies_a_folder(model, tmp_path):
    from typer.testing import CliRunner

    where = model.save(tmp_path / "m")
    found = CliRunner().invoke(app, ["verify", str(where), "--json"])
    assert found.exit_code == 0 and json.loads(found.output), found.output

"""Modules as ONNX files: their own answers in another runtime, and weights that verify."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from lastiterate_check.exports import read_release
from torch import nn
from typer.testing import CliRunner

import lastiterate as li
from lastiterate.cli import app
from lastiterate.errors import InputError

pytest.importorskip("onnxscript")
N = 24


class Images(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4)
        self.drop, self.last = nn.Dropout(0.5), nn.Linear(4 * 36, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.drop(torch.relu(self.norm(self.conv(x)))).flatten(1))


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.last = nn.Embedding(7, 4), nn.Linear(6, 2)

    def forward(self, ids: torch.Tensor, more: torch.Tensor) -> torch.Tensor:
        return self.last(torch.cat([self.words(ids).mean(1), more], 1))


def train(module: nn.Module, inputs: Any) -> Any:
    run = li.Run(n=N, steps=2, step_size=0.1, clip=1.0, noise=li.NoiseMultiplier(9.0))
    labels = torch.arange(N) % 2
    loss = nn.functional.cross_entropy
    return li.train(run, (inputs, labels), model=module, loss=loss)


def answer(file: Path, *inputs: torch.Tensor) -> np.ndarray:
    session = onnxruntime.InferenceSession(file.read_bytes())
    names = [one.name for one in session.get_inputs()]
    given = {name: part.numpy() for name, part in zip(names, inputs, strict=True)}
    return session.run(None, given)[0]


def test_a_module_answers_as_predict_does(tmp_path: Path) -> None:
    x = torch.randn(N, 1, 8, 8)
    model = train(Images(), x)
    model.module.train()
    file = model.to_onnx(tmp_path / "images.onnx", torch.zeros(2, 1, 8, 8))
    assert all(part.training for part in model.module.modules())
    for count in (1, 5, N):
        np.testing.assert_allclose(answer(file, x[:count]), model.predict(x[:count]), atol=1e-5)
    assert b".py" not in file.read_bytes()  # no paths of the machine
    checked = li.verify(file)
    assert checked.holds and checked.epsilon == model.certificate.epsilon(model.delta)
    assert any("module's code" in text for text in checked.uncovered)
    said = " ".join(CliRunner().invoke(app, ["verify", str(file)]).output.split())
    assert "; weights, model and certificate agree. " in said and "module's code" in said
    assert "compares, of a torch module the weights alone" in read_release(file)[1][-1]


def test_several_inputs(tmp_path: Path) -> None:
    inputs = torch.randint(0, 7, (N, 3)), torch.randn(N, 2)
    model = train(Two(), inputs)
    file = model.to_onnx(tmp_path / "two.onnx", inputs)
    np.testing.assert_allclose(answer(file, *inputs), model.predict(inputs), atol=1e-5)
    assert li.verify(file).holds
    assert read_release(file)[0]["weights_sha256"]  # by the independent checker


def test_a_changed_weight_is_found(tmp_path: Path) -> None:
    inputs = torch.randint(0, 7, (N, 3)), torch.randn(N, 2)
    file = train(Two(), inputs).to_onnx(tmp_path / "two.onnx", inputs)
    whole, made = file.read_bytes(), onnx.load(file)
    for array in made.graph.initializer:
        if array.name == "last.weight":
            weights = onnx.numpy_helper.to_array(array).copy()
            weights[0, 0] = np.nextafter(weights[0, 0], np.float32(9))
            array.CopyFrom(onnx.numpy_helper.from_array(weights, array.name))
    file.write_bytes(made.SerializeToString())
    checked = li.verify(file)
    assert checked.problems == ("the array last.weight is not the one that was certified",)
    made = onnx.load_from_string(whole)
    made.graph.node[0].name += "_"
    file.write_bytes(made.SerializeToString())
    assert "hash the metadata state" in li.verify(file).problems[0]
    made.graph.initializer.append(made.graph.initializer[0])
    file.write_bytes(made.SerializeToString())
    assert "two arrays of one name" in li.verify(file).problems[0]


def test_the_metadata_must_say_what_the_certificate_says(tmp_path: Path) -> None:
    inputs = torch.randint(0, 7, (N, 3)), torch.randn(N, 2)
    file = train(Two(), inputs).to_onnx(tmp_path / "two.onnx", inputs)
    made = onnx.load(file)
    next(one for one in made.metadata_props if one.key == "lastiterate.epsilon").value = "0.1"
    file.write_bytes(made.SerializeToString())
    assert not li.verify(file).holds


def test_what_cannot_be_written_says_why(tmp_path: Path) -> None:
    x = torch.randn(N, 1, 8, 8)
    model = train(Images(), x)
    with pytest.raises(InputError, match="public records"):
        model.to_onnx(tmp_path / "images.onnx")
    with pytest.raises(InputError, match="two records or more"):
        model.to_onnx(tmp_path / "images.onnx", x[:1])
    with pytest.raises(InputError, match=r"torch\.onnx\.export writes"):
        model.to_onnx(tmp_path / "images.onnx", torch.zeros(2, 3, 9))
    loaded = li.load(model.save(tmp_path / "model"))
    with pytest.raises(InputError, match="like=module"):
        loaded.to_onnx(tmp_path / "images.onnx", x)
    assert not (tmp_path / "images.onnx").exists()

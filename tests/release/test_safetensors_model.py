"""safetensors files: any kind of model in one file whose release verifies."""

import json
import struct
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from lastiterate_check.exports import read_release
from safetensors.numpy import load_file
from typer.testing import CliRunner

import lastiterate as li
from lastiterate.cli import app
from lastiterate.errors import InputError
from lastiterate.release.verification import to_safetensors

N = 30
X = np.random.default_rng(0).normal(size=(N, 4)).astype(np.float32)
Y = (X[:, 0] > 0).astype(np.int32)


def loss(params: Any, x: Any, y: Any) -> Any:
    return (x @ params["w"].astype(jnp.float32) - y) ** 2


def train(kind: str) -> Any:
    if kind == "linear":
        run = li.Run(n=N, steps=2, step_size=0.1, loss=li.Logistic(row_norm=2.0, ridge=0.1))
        return li.train(run, (X, Y), epsilon=5.0, delta=1e-4)
    run = li.Run(n=N, steps=2, step_size=0.1, clip=1.0, noise=li.NoiseMultiplier(9.0))
    dtype = jnp.bfloat16 if kind == "network in bfloat16" else np.float32
    return li.train(run, (X, Y), model={"w": jnp.zeros(4, dtype)}, loss=loss)


def rewrite(file: Path, changes: dict[str, Any]) -> None:
    """Replace entries of a file's metadata; the arrays stay."""
    content = file.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    header["__metadata__"] |= changes
    made = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(made)) + made + content[8 + length :])


@pytest.mark.parametrize("kind", ["linear", "network", "network in bfloat16"])
def test_every_kind_of_model_verifies(kind: str, tmp_path: Path) -> None:
    model = train(kind)
    folder, file = model.save(tmp_path / "model"), tmp_path / "m.safetensors"
    done = CliRunner().invoke(
        app, ["export", str(folder), "--to", "safetensors", "--out", str(file)]
    )
    assert done.exit_code == 0, done.output
    there, here = load_file(file), load_file(folder / "weights.safetensors")
    assert there.keys() == here.keys() and all((there[k] == here[k]).all() for k in here)
    checked = li.verify(file)
    assert checked.holds and not checked.uncovered
    assert read_release(file)[0]["weights_sha256"]  # by the independent checker
    assert checked.epsilon == model.certificate.epsilon(model.delta)
    done = CliRunner().invoke(app, ["verify", str(file)])
    assert "weights, model and certificate agree" in " ".join(done.output.split())


def test_changes_are_found(tmp_path: Path) -> None:
    file = tmp_path / "m.safetensors"
    content = to_safetensors(train("linear").files())
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert not li.verify(file).holds
    for changes, said in (
        ({"epsilon": "0.1"}, "the entry epsilon"),
        ({"unit": "one person"}, "the entry unit"),
    ):
        file.write_bytes(content)
        rewrite(file, changes)
        assert said in li.verify(file).problems[0]
    file.write_bytes(content)
    rewrite(file, {"note": "more"})
    assert li.verify(file).holds and li.verify(file).uncovered == ("the metadata's note",)


def test_an_entry_that_stands_twice_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "m.safetensors"
    content = to_safetensors(train("linear").files())
    (length,) = struct.unpack("<Q", content[:8])
    header = content[8 : 8 + length].decode()
    twice = header.replace('"delta":', '"epsilon":"0.1","delta":', 1).encode()
    file.write_bytes(struct.pack("<Q", len(twice)) + twice + content[8 + length :])
    with pytest.raises(InputError, match="safetensors file that lastiterate wrote"):
        li.verify(file)


def test_other_files_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "m.safetensors"
    for content in (b"", b"\xff" * 40, (1 << 62).to_bytes(8, "little") + b"{}"):
        file.write_bytes(content)
        with pytest.raises(InputError, match="--to safetensors"):
            li.verify(file)

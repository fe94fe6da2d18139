"""Networks as StableHLO: their answers by JAX alone, beside a release that verifies."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import equinox
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lastiterate as li
from lastiterate.errors import InputError

N = 30
X = np.random.default_rng(0).normal(size=(N, 4)).astype(np.float32)
Y = (X[:, 0] > 0).astype(np.int32)
RUN = li.Run(n=N, steps=2, step_size=0.1, clip=1.0, noise=li.NoiseMultiplier(9.0))
ALONE = """
import sys, json
import numpy as np
import jax.export
from safetensors.numpy import load_file

forward = jax.export.deserialize(open(sys.argv[1] + "/forward.stablehlo", "rb").read())
answer = forward.call(load_file(sys.argv[1] + "/weights.safetensors"), np.load(sys.argv[2]))
assert "lastiterate" not in sys.modules
print(json.dumps(np.asarray(answer).tolist()))
"""


def forward(params: Any, x: Any) -> Any:
    hidden = jnp.tanh(x @ params["first"])
    return hidden @ params["last"][0] + params["last"][1]


def loss(params: Any, x: Any, y: Any) -> Any:
    return -jax.nn.log_softmax(forward(params, x))[y]


def train() -> Any:
    rng = np.random.default_rng(1)
    first = rng.normal(size=(4, 5)).astype(np.float32)
    last = [rng.normal(size=(5, 2)).astype(np.float32), np.zeros(2, np.float32)]
    return li.train(RUN, (X, Y), model={"first": first, "last": last}, loss=loss)


def test_jax_alone_answers_as_predict_does(tmp_path: Path) -> None:
    model = train()
    folder = model.to_stablehlo(tmp_path / "net", X[:3], forward)
    np.save(tmp_path / "x.npy", X[:7])
    done = subprocess.run(
        [sys.executable, "-c", ALONE, str(folder), str(tmp_path / "x.npy")],
        check=True,
        capture_output=True,
        text=True,
    )
    np.testing.assert_allclose(json.loads(done.stdout), model.predict(X[:7], forward), atol=1e-6)
    checked = li.verify(folder)
    assert checked.holds and not checked.uncovered
    content = (folder / "forward.stablehlo").read_bytes()
    assert b"lastiterate" not in content and b".py" not in content  # no paths of the machine


def test_changes_are_found(tmp_path: Path) -> None:
    folder = train().to_stablehlo(tmp_path / "net", X[:3], forward)
    for name in ("forward.stablehlo", "weights.safetensors"):
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        assert not li.verify(folder).holds
        (folder / name).write_bytes(content)
    assert li.verify(folder).holds


def test_modules_of_equinox_answer_by_themselves(tmp_path: Path) -> None:
    net = equinox.nn.MLP(4, 2, 3, 1, key=jax.random.key(0))

    def of_net(net: Any, x: Any, y: Any) -> Any:
        return -jax.nn.log_softmax(net(x))[y]

    model: Any = li.train(RUN, (X, Y), model=net, loss=of_net)
    folder = model.to_stablehlo(tmp_path / "net", X)
    made = jax.export.deserialize((folder / "forward.stablehlo").read_bytes())
    from safetensors.numpy import load_file

    found = made.call(load_file(folder / "weights.safetensors"), X)
    np.testing.assert_allclose(found, model.predict(X), atol=1e-6)


def test_what_cannot_be_written_is_refused(tmp_path: Path) -> None:
    model = train()
    with pytest.raises(InputError, match="forward is needed"):
        model.to_stablehlo(tmp_path / "net", X)
    with pytest.raises(InputError, match="records that the forward pass takes"):
        model.to_stablehlo(tmp_path / "net", X[:, :3], forward)
    assert not (tmp_path / "net").exists()
    (tmp_path / "net").mkdir()
    with pytest.raises(InputError, match="must not exist yet"):
        model.to_stablehlo(tmp_path / "net", X, forward)

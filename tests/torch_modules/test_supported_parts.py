"""The table of what works and what is refused is executed: every row of it, on a module that has
the part."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import distributed, nn
from torch.distributed._composable import replicate
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import lastiterate as li
from lastiterate.errors import InputError
from lastiterate.torch import private_version

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "from-opacus.md"
ROW = re.compile(r"^\| ([^|]+) \| (works|refused) \|", re.MULTILINE)
ROWS = {match[1]: match[2] for match in ROW.finditer(PAGE.read_text())}
X = np.random.default_rng(0).normal(size=(8, 3, 4)).astype(np.float32)
Y = np.arange(8) % 2
RUN = li.Run(n=8, steps=1, step_size=0.1, noise=li.GradientNoise(0.1), clip=1.0)


def around(*parts: nn.Module) -> nn.Module:
    return nn.Sequential(*parts, nn.Flatten(), nn.Linear(12, 2))


class Read(nn.Module):
    """A recurrent layer's outputs."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)[0]


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.one(torch.tanh(self.one(x)))


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> Any:
        return checkpoint(self.one, x, use_reentrant=False)


class Cast(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return self.one(x).float()


class Lightning(nn.Module):
    """The structure of a ``LightningModule``, whose loop nobody starts."""

    def __init__(self) -> None:
        super().__init__()
        self.model = around()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.model(x)

    @property
    def trainer(self) -> Any:
        raise RuntimeError("attached to no Trainer")

    def training_step(self, batch: Any, number: int) -> torch.Tensor:
        return self.trainer.log(batch, number)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return self.trainer.optimizer


class Dropped(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout(x, training=self.training)


def fully_sharded() -> nn.Module:
    whole = around(nn.Linear(4, 4))
    fully_shard(whole, mesh=init_device_mesh("cpu", (1,)))
    return whole


def cut() -> nn.Module:
    return parallelize_module(
        around(nn.Linear(4, 4)), init_device_mesh("cpu", (1,)), {"0": ColwiseParallel()}
    )


@pytest.fixture(scope="module", autouse=True)
def job() -> Iterator[None]:
    """A job of one process, in which modules are spread as in one of many."""
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


def weighted(out: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(
        out, target, weight=torch.tensor([0.2, 1.0]), reduction="sum"
    )


CASES: dict[str, Callable[[], nn.Module]] = {
    "`BatchNorm` that trains": lambda: around(nn.BatchNorm1d(3)),
    "`BatchNorm` in `.eval()`": lambda: around(nn.BatchNorm1d(3).eval()),
    "`BatchNorm` after `private_version`": lambda: (
        private_version(nn.Sequential(nn.BatchNorm1d(3), nn.Flatten(), nn.Linear(12, 2))).module
    ),
    "`GroupNorm`, `LayerNorm`": lambda: around(nn.GroupNorm(1, 3), nn.LayerNorm(4)),
    "`Dropout`, `Dropout1d` to `3d`": lambda: around(nn.Dropout(0.5), nn.Dropout1d(0.5)),
    "`functional.dropout(x, training=self.training)`": lambda: around(Dropped()),
    "`AlphaDropout`, `RReLU`, dropout inside of attention": lambda: around(nn.AlphaDropout(0.5)),
    "`LSTM`, `GRU`, `RNN`": lambda: around(Read(nn.LSTM(4, 4, batch_first=True))),
    "`LSTM`, `GRU`, `RNN` after `private_version`": lambda: (
        private_version(
            nn.Sequential(Read(nn.GRU(4, 3, batch_first=True)), nn.Flatten(), nn.Linear(9, 2))
        ).module
    ),
    "a `LightningModule`": Lightning,
    "tied weights": lambda: around(Tied()),
    "layers under `torch.utils.checkpoint`": lambda: around(Checkpointed()),
    "`bfloat16` parameters": lambda: around(nn.Linear(4, 4)).to(torch.bfloat16),
    "`torch.autocast` inside of `forward`": lambda: around(Cast()),
    "class weights in the loss": lambda: around(),
    "`class_weight={0: 1, 1: 5}` of `train`": lambda: around(),
    "`DataParallel`": lambda: around(nn.DataParallel(nn.Linear(4, 4))),
    "`DistributedDataParallel`": lambda: around(DistributedDataParallel(nn.Linear(4, 4))),
    "`FSDP`, `FullyShardedDataParallel`": lambda: around(
        FullyShardedDataParallel(nn.Linear(4, 4), device_id=torch.device("cpu"))
    ),
    "`fully_shard`": fully_sharded,
    "`replicate`": lambda: replicate(around(nn.Linear(4, 4))),
    "layers cut by `parallelize_module`, and other packed tensors": cut,
}
SPREAD = {row for row in CASES if row.startswith(("`FSDP`", "`replicate`", "layers cut"))}


def test_every_row_has_a_case():
    assert list(ROWS) == list(CASES)


@pytest.mark.parametrize("row", CASES)
def test_what_the_table_says_is_what_happens(row: str):
    torch.manual_seed(0)
    module = CASES[row]()
    loss = weighted if row == "class weights in the loss" else nn.functional.cross_entropy
    if ROWS.get(row) == "refused":
        with pytest.raises(InputError, match="model must"):
            li.train(RUN, (X, Y), model=module, loss=loss)
        if row in SPREAD:
            with pytest.raises(InputError, match=r"torch.distributed has spread|plain tensors"):
                private_version(module)
        return
    weights = {"class_weight": {0: 1, 1: 5}} if "class_weight" in row else {}
    found = li.train(RUN, (X, Y), model=module, loss=loss, **weights)
    assert found.certificate.run.loss.class_weights == ((0.2, 1.0) if weights else None)
    wanted = torch.bfloat16 if "bfloat" in row else torch.float32
    assert all(tensor.dtype == wanted for tensor in found.state.values())

"""A Dataset that is read in pieces, by any number of threads, trains the very module that arrays in
memory do."""

import threading
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import lastiterate as li
from lastiterate.errors import InputError
from lastiterate.torch import DatasetPieces

N = 30
X = np.random.default_rng(0).normal(size=(N, 4)).astype(np.float32)
Y = np.arange(N) % 3
RUN = li.Run(
    n=N,
    steps=9,
    step_size=0.5,
    noise=li.GradientNoise(0.05),
    clip=1.0,
    batching=li.RandomAllocation(7),
)


class Decoded(torch.utils.data.Dataset[Any]):
    def __init__(self, n: int = N) -> None:
        self.n, self.threads = n, set[int]()
        self.meeting = threading.Barrier(2, timeout=5)

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, number: int) -> tuple[torch.Tensor, int]:
        self.threads.add(threading.get_ident())
        return torch.from_numpy(X[number]), int(Y[number])


class Together(Decoded):
    def __getitem__(self, number: int) -> tuple[torch.Tensor, int]:
        if number in (2, 3):  # neither of the two is read unless both are
            self.meeting.wait()
        return super().__getitem__(number)


def weights(data: Any) -> np.ndarray:
    torch.manual_seed(0)
    fitted = li.train(RUN, data, model=nn.Linear(4, 3), loss=nn.functional.cross_entropy, seed=3)
    return np.concatenate([tensor.numpy().ravel() for tensor in fitted.state.values()])


class Failing(Decoded):
    def __getitem__(self, number: int) -> tuple[torch.Tensor, int]:
        if number == 7:
            raise KeyError("a private value")
        return super().__getitem__(number)


@pytest.mark.parametrize("data", [Failing(), DatasetPieces(Failing()), DatasetPieces(Failing(), 2)])
def test_what_a_dataset_raises_shows_no_value(data: Any) -> None:
    with pytest.raises(InputError, match="got 'KeyError'") as caught:
        weights(data)
    assert "private" not in str(caught.value) and caught.value.__suppress_context__


def test_any_number_of_threads_reads_the_records_of_memory():
    wanted = weights((X, Y))
    for workers in (0, 2):
        np.testing.assert_array_equal(weights(DatasetPieces(Decoded(), workers)), wanted)


def test_items_are_read_side_by_side_and_in_order():
    found = list(DatasetPieces(Together(), 2).pieces(8, 2))
    np.testing.assert_array_equal(np.concatenate([piece[0] for piece in found]), X[2:])
    assert [len(piece[1]) for piece in found] == [8, 8, 8, 4]


class Uneven(Decoded):
    def __getitem__(self, number: int) -> Any:
        return torch.zeros(1 + number % 2), 0


class Named(Decoded):
    def __getitem__(self, number: int) -> Any:
        return {"x": torch.zeros(4)}, 0


def test_what_makes_no_records_is_refused():
    for data, said in ((Uneven(), "same parts and shapes"), (Named(), "tensors or numbers")):
        with pytest.raises(InputError, match=said):
            weights(DatasetPieces(data))
    with pytest.raises(InputError, match="n = 30"):
        weights(DatasetPieces(Decoded(29)))
    with pytest.raises(InputError, match="num_workers"):
        DatasetPieces(Decoded(), -1)
    with pytest.raises(InputError, match="length"):
        DatasetPieces(torch.utils.data.ChainDataset([]))


class Flipped(Decoded):
    """Draws a random number whenever an item is read."""

    def __getitem__(self, number: int) -> tuple[torch.Tensor, int]:
        x, y = super().__getitem__(number)
        return x * float(torch.randn(())), y


@pytest.mark.parametrize("wrap", [lambda data: data, DatasetPieces], ids=["Dataset", "pieces"])
def test_a_random_transform_in_a_dataset_is_warned_of_and_augment_takes_it(wrap: Any):
    loss = nn.functional.cross_entropy
    with pytest.warns(UserWarning, match=r"keeps the form of one reading; .*train\(augment"):
        li.train(RUN, wrap(Flipped()), model=nn.Linear(4, 3), loss=loss)

    def augment(key: Any, x: torch.Tensor) -> torch.Tensor:
        return x * key.normal()

    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="data: items")
        li.train(RUN, wrap(Decoded()), model=nn.Linear(4, 3), loss=loss, augment=augment)

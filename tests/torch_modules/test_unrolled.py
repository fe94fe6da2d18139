"""Recurrent layers of ordinary operations answer as torch's own, and are trained."""

from itertools import product

import numpy as np
import pytest
import torch
from torch import nn

import lastiterate as li
from lastiterate.errors import InputError
from lastiterate.torch import private_version
from lastiterate.torch.rewrite import UnrolledRecurrence

KINDS = {"lstm": nn.LSTM, "gru": nn.GRU, "tanh": nn.RNN, "relu": nn.RNN}


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.filterwarnings("ignore:LSTM with projections")
def test_outputs_states_and_gradients_are_those_of_torch(name: str):
    torch.manual_seed(0)
    kind, values = KINDS[name], torch.randn(4, 6, 3)
    for layers, both, first, bias in product((1, 2), (False, True), (False, True), (False, True)):
        more = {"nonlinearity": "relu"} if name == "relu" else {}
        more |= {"proj_size": 2} if name == "lstm" and layers == 2 else {}
        theirs = kind(3, 4, layers, bidirectional=both, batch_first=first, bias=bias, **more)
        ours = UnrolledRecurrence(theirs)
        ours.load_state_dict(theirs.state_dict())
        assert list(ours.state_dict()) == list(theirs.state_dict())
        states = theirs(values)[1]
        states = (
            tuple(torch.randn_like(each) for each in states)
            if name == "lstm"
            else torch.randn_like(states)
        )
        for given in ((values,), (values, states), (values[0],)):
            found, wanted = (
                torch.cat([part.flatten() for part in (out, *(end if name == "lstm" else (end,)))])
                for out, end in (layer(*given) for layer in (ours, theirs))
            )
            torch.testing.assert_close(found, wanted, atol=1e-6, rtol=1e-5)
            slopes = [
                torch.autograd.grad((out**2).sum(), list(theirs.parameters()))
                for out in (found, wanted)
            ]
            for one, other in zip(*slopes, strict=True):
                torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)


class Reader(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.read, self.out = (
            nn.Embedding(5, 3),
            nn.LSTM(3, 4, 2, batch_first=True, dropout=0.3),
            nn.Linear(4, 2),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.read(self.words(x))[0][:, -1])


def test_a_reader_is_trained_and_its_state_goes_back_into_the_module_that_was_given():
    torch.manual_seed(0)
    module, words, target = (
        Reader(),
        np.random.default_rng(0).integers(0, 5, (12, 4)),
        np.arange(12) % 2,
    )
    run = li.Run(
        n=12, steps=2, step_size=0.5, noise=li.GradientNoise(0.05), clip=1.0, batching=li.Cyclic(6)
    )
    with pytest.raises(
        InputError, match=r"recurrent layers are none.*LSTM at 'read'.*private_version"
    ):
        li.train(run, (words, target), model=module, loss=nn.functional.cross_entropy)
    found = private_version(module)
    assert found.changed == (
        "read: LSTM is made of ordinary operations, one time step after the other, without its "
        "dropout",
    )
    model = li.train(run, (words, target), model=found.module, loss=nn.functional.cross_entropy)
    module.load_state_dict(model.state_dict())
    module.eval()
    np.testing.assert_allclose(
        model.predict(words), module(torch.from_numpy(words)).detach().numpy(), atol=1e-6
    )


def test_packed_sequences_and_subclasses_are_not_exchanged_silently():
    packed = nn.utils.rnn.pack_sequence([torch.randn(3, 3), torch.randn(2, 3)])
    with pytest.raises(InputError, match="packed"):
        UnrolledRecurrence(nn.GRU(3, 4))(packed)

    class Other(nn.GRU):
        pass

    assert private_version(Other(3, 4)).changed == ()


class Steps(nn.Module):
    """A cell over three time steps, and scores of two classes."""

    def __init__(self, cell: nn.Module):
        super().__init__()
        self.cell, self.head = cell, nn.Linear(4, 2)

    def forward(self, x):
        state = None
        for time in range(x.shape[1]):
            state = self.cell(x[:, time], state)
        return self.head(state[0] if isinstance(state, tuple) else state)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    ("kind", "more"),
    [
        (nn.LSTMCell, {}),
        (nn.GRUCell, {}),
        (nn.RNNCell, {}),
        (nn.RNNCell, {"nonlinearity": "relu"}),
    ],
)
def test_cells_answer_as_torchs_and_are_trained(kind, more, bias):
    torch.manual_seed(0)
    module = Steps(kind(3, 4, bias=bias, **more))
    found, x = private_version(module), torch.randn(20, 3, 3)
    assert any("ordinary operations" in line for line in found.changed)
    assert list(found.module.state_dict()) == list(module.state_dict())
    assert torch.allclose(found.module(x), module(x), atol=1e-6)
    assert torch.allclose(found.module.cell(x[0, 0])[0], module.cell(x[0, 0])[0], atol=1e-6)
    run = li.Run(n=20, steps=2, step_size=0.1, clip=1.0, noise=li.NoiseMultiplier(1.0))
    labels = (x.sum((1, 2)) > 0).long()
    trained = li.train(run, (x, labels), model=found.module, loss=nn.functional.cross_entropy)
    assert all(torch.isfinite(tensor).all() for tensor in trained.state.values())

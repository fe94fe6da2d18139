"""Tables that all records look up: nobody writes there, and a padding row is left out wherever a
record stands."""

import numpy as np
import pytest
import torch
from torch.nn import functional

import lastiterate as li
from lastiterate.engine.random import key_from_seed
from lastiterate.torch.module_training import prepare
from lastiterate.torch.record_gradients import to_theta

N, PAD = 8, 2
WORDS = np.random.default_rng(0).integers(0, 5, (N, 4))
WORDS[:, 1] = PAD
CLASSES = np.arange(N) % 5
RUN = li.Run(n=N, steps=3, step_size=0.1, clip=1.0, noise=li.NoiseMultiplier(1.0))


class Tied(torch.nn.Module):
    """A table that is read twice, so that no layer of its own takes its gradients."""

    def __init__(self, look):
        super().__init__()
        self.table, self.look = torch.nn.Parameter(torch.empty(5, 4)), look
        with torch.no_grad():
            self.table[:] = 0.3 * torch.randn(5, 4, generator=torch.Generator().manual_seed(0))

    def forward(self, x):
        return 3 * functional.linear(self.look(self.table, x).mean(1), self.table)


LOOKUPS = {
    "function": lambda table, x: functional.embedding(x, table, padding_idx=PAD),
    "counted from the end": lambda table, x: functional.embedding(x, table, PAD - 5, sparse=True),
    "by frequency": lambda table, x: functional.embedding(x, table, PAD, scale_grad_by_freq=True),
    "torch": lambda table, x: torch.embedding(table, x, PAD),
    "operation": lambda table, x: torch.ops.aten.embedding(table, x, PAD),
    "overload": lambda table, x: torch.ops.aten.embedding.default(table, x, padding_idx=PAD),
    "bag": lambda table, x: functional.embedding_bag(x, table, padding_idx=PAD)[:, None],
}


@pytest.mark.parametrize("way", LOOKUPS)
def test_every_place_has_the_gradient_of_its_record_alone(way):
    summed = prepare(RUN, Tied(LOOKUPS[way]), functional.cross_entropy, (WORDS, CLASSES)).summed
    theta = to_theta(np.random.default_rng(1).normal(size=20), torch.device("cpu"))
    trained, records = (
        summed.parameters.tensors(theta, summed.dtype),
        (torch.tensor(WORDS), torch.tensor(CLASSES)),
    )
    found = summed.contributions(trained, summed.parameters.copy_constants(summed.dtype), records)[
        "table"
    ].each()
    for i in range(N):
        leaf = trained["table"].detach().clone().requires_grad_()
        functional.cross_entropy(
            summed.call({"table": leaf}, (records[0][i : i + 1],), {})[0], records[1][i]
        ).backward()
        slope = leaf.grad.to_dense()
        assert float(slope[PAD].norm()) > 0, "the other reading trains the row"
        torch.testing.assert_close(found[i].reshape(5, 4).float(), slope)


WRITES = {  # none changes a number for records of words 0 and 1
    "renormalised": lambda table, x: functional.embedding(x, table, max_norm=50.0),
    "bag": lambda table, x: functional.embedding_bag(x, table, max_norm=50.0)[:, None],
    "filled": lambda table, x: functional.embedding(
        x, table.detach().masked_fill_((x > 2).any().expand(5, 4), 9.0)
    ),
    "put": lambda table, x: functional.embedding(
        x,
        table.detach().index_put_(
            (x[0],), (x[0] > 2).to(table.dtype)[:, None].expand(4, 4), accumulate=True
        ),
    ),
    "scaled": lambda table, x: functional.embedding(x, table.detach().mul_(1 + (x > 2).any())),
}


@pytest.mark.parametrize("way", WRITES)
def test_what_writes_to_a_table_is_refused_though_no_number_changes(way):
    with pytest.raises(
        li.InputError,
        match="must not write to its parameters or buffers in a forward pass, got 'tab",
    ):
        prepare(RUN, Tied(WRITES[way]), functional.cross_entropy, (WORDS, CLASSES))


def test_what_starts_to_write_in_the_middle_of_a_training_is_refused():
    module = Tied(LOOKUPS["function"])
    ready = prepare(RUN, module, functional.cross_entropy, (WORDS, CLASSES))
    module.look = WRITES["renormalised"]
    with pytest.raises(li.InputError, match="must hold records that the module and the loss take"):
        ready.execute(key_from_seed(0))


def test_compiled_code_whose_lookups_cannot_be_exchanged_is_refused():
    compiled = torch.jit.trace(
        lambda table, x: torch.embedding(table, x, 3), (torch.zeros(5, 4), torch.tensor(WORDS))
    )
    with pytest.raises(
        li.InputError, match=r"embedding with padding_idx in compiled code'; leave torch.jit out"
    ):
        prepare(RUN, Tied(compiled), functional.cross_entropy, (WORDS, CLASSES))


@pytest.mark.parametrize("padding", [0, 1, PAD])
def test_the_usual_text_classifier_trains_whatever_its_padding(padding):
    module = torch.nn.Sequential(
        torch.nn.Embedding(5, 4, padding_idx=padding), torch.nn.Flatten(), torch.nn.Linear(16, 5)
    )
    found = li.train(RUN, (WORDS, CLASSES), model=module, loss=functional.cross_entropy, seed=1)
    assert found.certificate.epsilon(1e-5) > 0

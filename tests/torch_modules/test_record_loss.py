"""Losses of one record: shapes and types of targets as torch's batches take them."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
F = torch.nn.functional

import lastiterate as li  # noqa: E402
from lastiterate.torch.record_loss import record_loss  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:this seed was used")
N = 40
RUN = li.Run(n=N, steps=6, step_size=0.3, clip=1.0, batching=li.RandomAllocation(10))
X = torch.randn(N, 3, generator=torch.Generator().manual_seed(1))
Y = X[:, 0] > 0


class Squeezed(torch.nn.Module):
    """One score for each record, without its last axis: of one record also without the first."""

    def __init__(self, axis=None):
        super().__init__()
        self.linear, self.axis = torch.nn.Linear(3, 1), axis

    def forward(self, x):
        scores = self.linear(x)
        return scores.squeeze() if self.axis is None else scores.squeeze(self.axis)


def trained(module, loss, y, x=X):
    with torch.no_grad():
        for tensor in module.parameters():
            tensor.fill_(0.1)
    model = li.train(RUN, (x, y), model=module, loss=loss, epsilon=4.0, delta=1e-4, seed=3)
    return torch.cat([tensor.flatten() for tensor in model.state.values()]).numpy(), model


WANTED = trained(Squeezed(-1), torch.nn.BCEWithLogitsLoss(), Y.float())[0]
SCORE = lambda: torch.nn.Linear(3, 1)  # noqa: E731
PROBABILITY = lambda: torch.nn.Sequential(SCORE(), torch.nn.Sigmoid())  # noqa: E731


@pytest.mark.parametrize(
    ("module", "loss", "y"),
    [
        (Squeezed, torch.nn.BCEWithLogitsLoss(), Y.float()),
        (SCORE, torch.nn.BCEWithLogitsLoss(), Y.float()),
        (SCORE, torch.nn.BCEWithLogitsLoss(), Y.float()[:, None]),
        (SCORE, torch.nn.BCEWithLogitsLoss(), Y.long()),
        (SCORE, F.binary_cross_entropy_with_logits, Y.long()[:, None]),
        (PROBABILITY, torch.nn.BCELoss(), Y.float()),
        (PROBABILITY, F.binary_cross_entropy, Y.float()[:, None]),
        (PROBABILITY, torch.nn.BCELoss(reduction="sum"), Y.long()),
    ],
)
def test_binary_targets_of_every_shape_train_the_same_model(module, loss, y):
    found, _ = trained(module(), loss, y)
    assert np.allclose(found, WANTED, rtol=1e-4, atol=1e-5)


def test_labels_of_one_column_are_class_indices():
    column, _ = trained(torch.nn.Linear(3, 2), torch.nn.CrossEntropyLoss(), Y.long()[:, None])
    plain, _ = trained(torch.nn.Linear(3, 2), torch.nn.CrossEntropyLoss(), Y.long())
    assert np.array_equal(column, plain)


def test_an_autoencoder_has_its_records_as_targets():
    module = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 3))
    assert np.isfinite(trained(module, torch.nn.MSELoss(), X)[0]).all()


def test_a_squeezing_module_predicts_for_one_record():
    _, model = trained(Squeezed(), torch.nn.BCEWithLogitsLoss(), Y.float())
    every, first = model.predict((X,)), model.predict((X[:1],))
    assert every.shape == (N,) and first.shape == (1,) and np.allclose(first, every[:1])


class SqueezedRows(torch.nn.Module):
    """Loses the batch axis of one record, and leaves a row."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(3, 2)

    def forward(self, x):
        return self.linear(x).unsqueeze(1).squeeze()


def test_a_row_that_lost_its_batch_axis_is_refused_with_what_helps():
    with pytest.raises(li.InputError, match=r"batch axis.*squeeze\(-1\)"):
        trained(SqueezedRows(), torch.nn.CrossEntropyLoss(), Y.long())


@pytest.mark.parametrize("target", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("score", [-200.0, -1.0, 0.5, 200.0])
def test_binary_cross_entropy_is_torchs_own(score, target):
    score = torch.tensor([score], dtype=torch.float64, requires_grad=True)
    target = torch.tensor([target], dtype=torch.float64)
    own = record_loss(torch.nn.BCELoss(), score.sigmoid(), (target,))
    torchs = torch.nn.BCELoss()(score.sigmoid(), target)
    assert torch.allclose(own, torchs)
    assert torch.allclose(
        *(torch.autograd.grad(each, score, retain_graph=True)[0] for each in (own, torchs))
    )


def test_no_value_of_a_record_ends_the_run():
    """``torch.nn.BCELoss`` itself raises on such a target, which a neighbouring data set lacks."""
    y = Y.float()
    y[7] = 5.0
    with pytest.raises(RuntimeError, match="between 0 and 1"):
        torch.nn.BCELoss()(torch.full((N,), 0.5), y)
    assert np.isfinite(trained(PROBABILITY(), torch.nn.BCELoss(), y)[0]).all()


def test_a_loss_that_checks_values_is_refused_with_what_helps():
    with pytest.raises(li.InputError, match=r"torch\.nn\.BCELoss\(\)"):
        trained(PROBABILITY(), lambda p, y: F.binary_cross_entropy(p, y), Y.float()[:, None])

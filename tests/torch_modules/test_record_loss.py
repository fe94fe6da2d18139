"""Losses of one record: shapes and types of targets as torch's batches take them."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import lastiterate as li
from lastiterate.torch.record_gradients import record_loss
from support import refuse_unpaid

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


def score():
    return torch.nn.Linear(3, 1)


def probability():
    return torch.nn.Sequential(score(), torch.nn.Sigmoid())


@pytest.mark.parametrize(
    ("module", "loss", "y"),
    [
        (Squeezed, torch.nn.BCEWithLogitsLoss(), Y.float()),
        (score, torch.nn.BCEWithLogitsLoss(), Y.float()),
        (score, torch.nn.BCEWithLogitsLoss(), Y.float()[:, None]),
        (score, torch.nn.BCEWithLogitsLoss(), Y.long()),
        (score, F.binary_cross_entropy_with_logits, Y.long()[:, None]),
        (probability, torch.nn.BCELoss(), Y.float()),
        (probability, F.binary_cross_entropy, Y.float()[:, None]),
        (probability, torch.nn.BCELoss(reduction="sum"), Y.long()),
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
    assert np.isfinite(trained(probability(), torch.nn.BCELoss(), y)[0]).all()


def test_a_loss_that_checks_values_is_refused_with_what_helps():
    with pytest.raises(li.InputError, match=r"torch\.nn\.BCELoss\(\)"):
        trained(probability(), lambda p, y: F.binary_cross_entropy(p, y), Y.float()[:, None])


def density(output, y):
    return -torch.distributions.Normal(output[0], output[1].exp()).log_prob(y)


def test_a_distribution_checks_no_value_of_a_record():
    """Its check of values would raise on a record that is not finite, and has no vectorised form."""
    before = torch.distributions.Distribution._validate_args
    plain, _ = trained(
        torch.nn.Linear(3, 2),
        lambda o, y: o[1] + 0.5 * ((y - o[0]) / o[1].exp()).square(),
        X[:, 0],
    )
    assert np.allclose(trained(torch.nn.Linear(3, 2), density, X[:, 0])[0], plain, atol=1e-5)
    assert torch.distributions.Distribution._validate_args is before


def checked(output, y):
    return -torch.distributions.Normal(output[0], output[1].exp(), validate_args=True).log_prob(y)


def test_a_loss_that_raises_on_a_record_is_refused_before_the_charge(tmp_path):
    with refuse_unpaid(tmp_path, r"validate_args=False") as charged:
        li.train(
            RUN,
            (X, X[:, 0]),
            model=torch.nn.Linear(3, 2),
            loss=checked,
            epsilon=4.0,
            delta=1e-4,
            **charged,
        )


def test_probabilities_and_targets_of_other_shapes_are_not_broadcast():
    module = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Sigmoid())
    with pytest.raises(li.InputError, match="target size"):
        trained(module, torch.nn.BCELoss(), Y.float()[:, None])


def test_hooks_of_a_loss_are_called_or_refused():
    loss = torch.nn.BCELoss()
    loss.register_forward_hook(lambda module, given, value: value / 2)
    with pytest.raises(li.InputError, match="loss"):
        trained(probability(), loss, Y.float()[:, None])
    loss = torch.nn.BCEWithLogitsLoss(reduction="sum")
    loss.register_forward_hook(lambda module, given, value: value / 4)
    assert not np.allclose(trained(score(), loss, Y.float()[:, None])[0], WANTED, atol=1e-3)


def penalised(output, y):
    (slope,) = torch.autograd.grad(output.sum(), output)
    return F.cross_entropy(output, y) + slope.square().sum()


class Images(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.convolution = torch.nn.Conv2d(1, 2, 2)

    def forward(self, x):
        return self.convolution(x).mean((2, 3))


def sparse():
    parts = torch.nn.Embedding(4, 2, sparse=True), torch.nn.Flatten(), torch.nn.Linear(6, 2)
    return torch.nn.Sequential(*parts)


def wrapped():
    pytest.importorskip("opacus")
    from opacus.grad_sample import GradSampleModule

    return GradSampleModule(torch.nn.Linear(3, 2))


CLASSES = torch.nn.CrossEntropyLoss()


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize(
    ("make", "loss", "x", "remedy"),
    [
        (wrapped, CLASSES, X, r"to_standard_module\(\)"),
        (lambda: torch.nn.Linear(3, 2), penalised, X, r"torch\.func\.grad"),
        (sparse, CLASSES, (X > 0).long(), "sparse=False"),
        (
            lambda: torch.nn.utils.weight_norm(torch.nn.Linear(3, 2)),
            CLASSES,
            X,
            r"parametrizations\.weight_norm",
        ),
        (Images, CLASSES, torch.ones(N, 1, 3, 3, dtype=torch.uint8), r"x\.float\(\) / 255"),
        (
            lambda: torch.nn.Linear(3, 2),
            CLASSES,
            torch.ones(N, 3, dtype=torch.uint8),
            r"x\.float\(\) / 255",
        ),
    ],
    ids=["wrapped", "autograd", "sparse", "weight_norm", "uint8", "uint8 rows"],
)
def test_what_is_refused_names_what_helps(make, loss, x, remedy):
    with pytest.raises(li.InputError, match=remedy):
        li.train(RUN, (x, Y.long()), model=make(), loss=loss, epsilon=4.0, delta=1e-4)


def test_a_loader_is_refused_with_what_helps():
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(X, Y.long()), 10)
    with pytest.raises(li.InputError, match=r"loader\.dataset"):
        li.train(RUN, loader, model=torch.nn.Linear(3, 2), loss=CLASSES, epsilon=4.0, delta=1e-4)
    li.train(
        RUN, loader.dataset, model=torch.nn.Linear(3, 2), loss=CLASSES, epsilon=4.0, delta=1e-4
    )

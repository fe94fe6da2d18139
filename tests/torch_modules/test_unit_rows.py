"""Records that are units: an author's texts together are one record, with one gradient and one
clip."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as functional

import lastiterate as li
from lastiterate.errors import InputError
from lastiterate.release.units import UnitLoss, units_as_records
from lastiterate.torch import PerUnit
from lastiterate.torch.module_training import fit_module, loss_of, prepare

N, MOST = 5, 3
WHO = np.array([0, 1, 1, 2, 2, 2, 3, 4, 4, 4, 4])  # the last author has more texts than are used
X = np.random.default_rng(0).normal(size=(len(WHO), 4)).astype(np.float32)
Y = np.arange(len(WHO)) % 3
PRESENT, ROWS, CLASSES = units_as_records((X, Y), WHO, MOST)


class Answers(torch.nn.Module):
    """Answers a dictionary with a mean over the batch in it, as modules do that know their labels."""

    def __init__(self):
        super().__init__()
        self.map = torch.nn.Linear(4, 3)

    def forward(self, x):
        found = self.map(x)
        return {"logits": found, "mean": found.mean()}


def of_one(output, y):
    return functional.cross_entropy(output["logits"], y)


def test_a_units_gradient_is_the_mean_over_its_places_and_is_clipped_once():
    module, clip = Answers(), 0.9
    named = dict(module.named_parameters())
    total, norms = dict.fromkeys(named, 0.0), []
    for author in range(N):
        kept = np.resize(np.flatnonzero(author == WHO)[:MOST], MOST)
        loss = (
            sum(
                of_one({"logits": module.map(torch.from_numpy(X[i]))}, torch.tensor(Y[i]))
                for i in kept
            )
            / MOST
        )
        slopes = torch.autograd.grad(loss, list(named.values()))
        norms.append(float(torch.sqrt(sum((slope**2).sum() for slope in slopes))))
        for name, slope in zip(named, slopes, strict=True):
            total[name] = total[name] + min(1.0, clip / norms[-1]) * slope
    assert min(norms) < clip < max(norms)
    run = li.Run(n=N, steps=1, step_size=0.5, noise=li.GradientNoise(0.0), clip=clip)
    parameters, theta = fit_module(
        run, PerUnit(module), loss_of(UnitLoss(of_one, MOST)), (ROWS, PRESENT, CLASSES)
    )
    for name, tensor in parameters.restore_precision(theta).items():
        own = name.removeprefix("module.")
        torch.testing.assert_close(
            tensor, named[own].detach() - 0.5 * total[own] / N, rtol=1e-4, atol=1e-6
        )


def test_a_model_of_units_is_released_and_says_what_a_record_is():
    run = li.Run(n=N, steps=2, step_size=0.5, noise=li.NoiseMultiplier(1.0), clip=0.5)
    model = li.train(
        run, (ROWS, PRESENT, CLASSES), model=PerUnit(Answers()), loss=UnitLoss(of_one, MOST)
    )
    assert any("one unit with at most 3 rows" in caveat for caveat in model.certificate.caveats)
    protected = model.certificate.to_dict(1e-5)["stated"]["unit"]["words"]
    assert (
        "all rows of a unit (a caveat then says so)" in protected
        and protected in model.certificate.explain(1e-5)
    )
    assert model.predict(ROWS)["logits"].shape == (N, MOST, 3) and "mean" not in model.predict(ROWS)
    assert isinstance(model.module.module, Answers)
    for wrong, said in (
        ((ROWS, PRESENT[:, :2], CLASSES), "loss must take one record"),
        ((ROWS, CLASSES), "loss must"),
    ):
        with pytest.raises(InputError, match=said):
            li.train(run, wrong, model=PerUnit(Answers()), loss=UnitLoss(of_one, MOST))
    with pytest.raises(InputError, match=r"module must be a torch.nn.Module"):
        PerUnit("module")


def test_classes_have_weights_within_a_unit_and_before_its_clip():
    """A unit has rows of several classes: weights of records are refused for modules and for losses
    written with JAX, and those of rows stand in the loss of a row, so that the unit's gradient is
    still at most the clip."""
    run, refused = (
        li.Run(n=N, steps=1, step_size=0.5, noise=li.NoiseMultiplier(1.0), clip=0.5),
        "whose rows may be of",
    )
    with pytest.raises(InputError, match=refused):
        li.train(
            run,
            (ROWS, PRESENT, CLASSES),
            model=PerUnit(Answers()),
            loss=UnitLoss(of_one, MOST),
            class_weight={0: 1, 1: 5, 2: 5},
        )
    with pytest.raises(InputError, match=refused):
        li.train(
            run,
            (PRESENT, ROWS, CLASSES),
            model=np.zeros((3, 4)),
            class_weight={0: 1, 1: 5, 2: 5},
            loss=UnitLoss(lambda p, x, y: ((p @ x)[y] - 1) ** 2, MOST),
        )
    weights, quiet = (
        torch.tensor([0.2, 1.0, 7.0]),
        replace(run, noise=li.GradientNoise(0.0), batching=li.Cyclic(1)),
    )
    weighted = UnitLoss(lambda output, y: weights[y] * of_one(output, y), MOST)
    first = PerUnit(Answers())
    prepared = prepare(quiet, first, loss_of(weighted), (ROWS, PRESENT, CLASSES))
    constants = prepared.summed.parameters.copy_constants(torch.float32)
    for author in range(N):
        found = prepared.total(prepared.initial, constants, torch.tensor([author]))
        total = sum(
            weighted.loss(
                {"logits": first.module.map(torch.from_numpy(ROWS[author, i]))},
                torch.tensor(CLASSES[author, i]),
            )
            * float(PRESENT[author, i])
            for i in range(MOST)
        )
        slopes = torch.autograd.grad(total / MOST, list(first.parameters()))
        whole = torch.cat([slope.ravel() for slope in slopes]).double().numpy()
        scale = min(1.0, 0.5 / np.linalg.norm(whole))
        np.testing.assert_allclose(found, scale * whole, atol=1e-5)
        assert np.linalg.norm(found) <= 0.5

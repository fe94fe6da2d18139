"""The audit stands by a right trainer of modules and refutes broken ones, at failure probability
1e-6 each.

All data gradients are constant, the canary's is four times the clip and orthogonal to all others,
so that the released law is exactly Gaussian and composition is tight.
"""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.optim.lr_scheduler import StepLR

import lastiterate as li
from benchmarks.audit.bugs.noise import NOISE_HALVED, of_unit
from lastiterate.audit import audit
from lastiterate.audit.canaries import DataSet, Neighbours
from lastiterate.audit.runner import GIVEN, SINGLE
from lastiterate.cli.app import app
from lastiterate.engine import external_gradients, key_from_seed
from lastiterate.torch import record_gradients, trainer

N, TRIALS, FAILURE = 6, 3000, 1e-6
X = np.zeros((N, 2), np.float32)
X[0, 0] = 4.0
X[1:, 1] = np.resize([1.0, -1.0], N - 1)
Y = np.ones(N, np.float32)
NEIGHBOURS = Neighbours(
    DataSet(X, Y), DataSet(X, Y, 0), 0, "orthogonal records", np.array([1.0, 0.0]), True
)
RUN = li.calibrate(li.Run(n=N, steps=6, step_size=0.5, clip=1.0), epsilon=4.0, delta=1e-5).run


def linear(out, y):
    return -(out * y).sum()


def attacked(run=RUN, **changes):
    module = torch.nn.Linear(2, 1, bias=False)
    torch.nn.init.zeros_(module.weight)
    return audit(
        run,
        neighbours=NEIGHBOURS,
        train=trainer(run, module, linear),
        trials=TRIALS,
        failure=FAILURE,
        delta=1e-5,
        seed=3,
        batch_models=TRIALS,
        attack="projection",
    )


@pytest.mark.parametrize("batching, shown", [(li.FullBatch(), 0.6), (li.Cyclic(2), 0.2)], ids=str)
def test_a_right_trainer_stands(batching, shown):
    """The last iterate of blocks carries the noise of steps that the record has no part in, which
    no theorem uses."""
    run = li.calibrate(replace(RUN, batching=batching), epsilon=4.0, delta=1e-5).run
    report = attacked(run)
    assert not report.refuted and report.lower_gaussian <= report.upper
    assert report.lower_gaussian > shown * report.upper, "it attacks something"


def schedule(p):
    return StepLR(torch.optim.SGD(p, lr=0.5, momentum=0.9), 4, 0.5)


def test_an_optimizer_makes_the_steps_of_every_model_as_train_does():
    named = li.PostProcessing("SGD, StepLR")
    run = replace(RUN, step_size=1, optimizer=named, batching=li.RandomAllocation(3))
    module, seeds = torch.nn.Linear(2, 1), (1, 2, 3)
    train = trainer(run, module, linear, optimizer=schedule)
    found = train(X, Y, np.stack([key_from_seed(seed) for seed in seeds]))
    for seed, numbers in zip(seeds, found, strict=True):
        model = li.train(run, (X, Y), model=module, loss=linear, optimizer=schedule, seed=seed)
        known = np.concatenate([part.double().numpy().ravel() for part in model.state.values()])
        np.testing.assert_allclose(numbers, known, rtol=1e-5, atol=1e-6)
    assert np.abs(found[0] - found[1]).max() > 0.1


def test_an_optimizer_of_an_audit_is_that_of_the_run(patched):
    module = torch.nn.Linear(2, 1, bias=False)
    said = r"must be PostProcessing .* 'NoneType'; calibrate and audit replace\(run, (.*)\)\."
    with pytest.raises(li.InputError, match=said) as refused:
        trainer(RUN, module, linear, optimizer=schedule)
    assert "optimizer=lastiterate.PostProcessing('SGD, StepLR')" in str(refused.value)
    run = replace(RUN, step_size=1, optimizer=li.PostProcessing("SGD, StepLR"))
    few = {"neighbours": NEIGHBOURS, "trials": 500, "batch_models": 500, "seed": 1}
    train = trainer(run, module, linear, optimizer=schedule)
    right = audit(run, train=train, attack="learned", **few)
    assert not right.refuted and right.caveats == (GIVEN,)
    assert right.not_executed == (SINGLE,)
    patched(*BROKEN["clipping forgotten"])
    assert audit(run, train=train, attack="learned", **few).refuted
    early = lambda p: StepLR(torch.optim.SGD(p, lr=0.5), 1, 0.01)  # noqa: E731
    with pytest.raises(li.InputError, match="move nothing"):
        trainer(run, module, linear, optimizer=early)
    with pytest.raises(li.InputError, match=r"train=lastiterate.torch.trainer\(.*optimizer=...\)"):
        audit(run, train=trainer(run, module, linear), **few)


asked = external_gradients._query_many
chunk_sum = record_gradients.PerRecord.chunk_sum


def clipped_mean(summed, theta, constants, records, real):
    """The sum of the unclipped gradients, clipped as if it were one record's mean."""
    total = chunk_sum(replace(summed, clip=None), theta, constants, records, real)
    return total * torch.clamp(N / torch.linalg.vector_norm(total).clamp(min=1e-9), max=1.0)


BROKEN = {
    "noise halved": NOISE_HALVED,
    "one noise for all steps, of both signs": of_unit(
        lambda k, unit: unit * (1 - 2.0 * (k % 2)), lambda k: 0 * k
    ),
    "clipping forgotten": (
        record_gradients.PerRecord,
        "chunk_sum",
        lambda summed, *rest: chunk_sum(replace(summed, clip=None), *rest),
    ),
    "clipping after averaging": (record_gradients.PerRecord, "chunk_sum", clipped_mean),
    "one norm for every layer": (record_gradients, "CLIP_SHRINK", 2.0),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_trainers_are_refuted(name, patched):
    patched(*BROKEN[name])
    report = attacked()
    silent = name.startswith(
        "one noise"
    )  # which cancels: scores without any noise are not what is described
    assert report.refuted and (report.lower_gaussian is None) == silent
    assert (report.lower if silent else report.lower_gaussian) > 1.3 * report.upper, (
        name,
        report.lower,
    )


def test_records_in_the_wrong_batches_are_refuted(monkeypatch):
    run = li.calibrate(replace(RUN, batching=li.Cyclic(2)), epsilon=4.0, delta=1e-5).run

    def always(program, states, numbers, owns, k):
        points, places = asked(program, states, numbers, owns, k)
        return points, places.at[:, 0].set(1.0)

    monkeypatch.setattr(external_gradients, "_query_many", always)
    assert attacked(run).refuted


def command(words):
    with pytest.raises(SystemExit) as ended:
        app(words)
    return ended.value.code


def adam(p):
    return torch.optim.Adam(p, lr=1e-2)


@pytest.mark.parametrize(
    ("optimizer", "p", "release", "missing"),
    [
        (adam, 0.0, "last", ["optimizer (PostProcessing)"]),
        (None, 0.5, "last", ["augmentation (RecordAugmentation)"]),
        (adam, 0.5, "all", ["release (all)", "optimizer (Post", "augmentation (Rec"]),
    ],
    ids=["optimizer", "dropout", "all"],
)
def test_the_command_audits_every_folder_of_a_module(
    optimizer, p, release, missing, tmp_path, capsys, patched
):
    """What the folder does not hold is left out and named, and a broken trainer is still found."""
    run = replace(RUN, step_size=1, steps=2, release=release)
    module = torch.nn.Sequential(torch.nn.Dropout(p), torch.nn.Linear(2, 1))
    li.train(run, (X, Y), model=module, loss=linear, optimizer=optimizer, out=tmp_path / "model")
    words = ["audit", str(tmp_path / "model"), "--trials", "400", "--seed", "1", "--json"]
    assert command(words) == 0
    found = json.loads(capsys.readouterr().out)
    for name in missing:
        assert any(text.startswith(name) for text in found["not_executed"])
    said = " ".join(found["caveats"])
    assert ("rule (Adam) is not executed" in said) == (optimizer is not None)
    assert ("dropout of records is not executed" in said) == (p > 0)
    patched(*NOISE_HALVED)
    assert command([*words, "--attack", "projection"]) == 1

"""Loops around a module of torch: the bits, the certificate, the charge and the refusals of
`lastiterate.train`, step by step."""

import copy
import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import lastiterate as li
from lastiterate.engine.checkpoint import FILE_VARIABLE, VARIABLE
from lastiterate.errors import InputError
from lastiterate.ledger import GaussianFilter, Ledger
from lastiterate.release import composition_reminder
from lastiterate.torch import FittedModule, Grouped, PrivateLoop, make_private

N, RNG = 60, np.random.default_rng(0)
X = RNG.normal(size=(N, 4)).astype(np.float32)
Y = (X[:, 0] > 0).astype(int)
LOSS = torch.nn.functional.cross_entropy
RUN = li.Run(n=N, steps=6, step_size=0.2, clip=1.0, batching=li.Cyclic(20))
ALL = replace(RUN, release="all")
BUDGET: dict[str, Any] = {"epsilon": 8.0, "delta": 1e-4}


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    """A process that has not fitted yet."""
    monkeypatch.setattr(composition_reminder, "REMINDER", composition_reminder.Reminder())


def net(*parts):
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(4, 5), *parts, torch.nn.Tanh(), torch.nn.Linear(5, 2)
    )


def begin(run=RUN, module=None, data=(X, Y), **options):
    module = net() if module is None else module
    return make_private(run, **{"module": module, "data": data, "loss": LOSS} | BUDGET | options)


def adam(parameters):
    return torch.optim.Adam(parameters, lr=1e-2)


def same(one, two):
    assert one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


RUNS: dict[str, tuple[li.Run, dict[str, Any]]] = {
    "cyclic": (RUN, {}),
    "all iterates of secret batches": (replace(ALL, batching=li.RandomAllocation(20)), {}),
    "poisson, momentum": (replace(RUN, batching=li.Poisson(0.3), optimizer=li.HeavyBall(0.9)), {}),
    "reshuffled, adam of torch": (
        replace(RUN, step_size=1, batching=li.Reshuffled(20)),
        {"optimizer": adam},
    ),
    "correlated": (replace(RUN, noise=li.Correlated(1.0, 4, 0.6)), {}),
    "secure noise": (replace(RUN, batching=li.Poisson(0.3)), {"secure_noise": True}),
    "pieces": (
        replace(RUN, batching=li.Permuted(20)),
        {"data": li.data.Generated(N, lambda first, many: (X[first:][:many], Y[first:][:many]))},
    ),
    "data set": (
        RUN,
        {"data": torch.utils.data.TensorDataset(torch.from_numpy(X), torch.from_numpy(Y))},
    ),
    "dropout": (RUN, {"parts": (torch.nn.Dropout(0.2),)}),
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", RUNS)
def test_the_loop_releases_the_bits_and_the_certificate_of_train(name):
    run, options = RUNS[name]
    options = {"data": (X, Y), "seed": 7} | options
    parts = options.pop("parts", ())
    module = net(*parts)
    first = {key: tensor.clone() for key, tensor in module.state_dict().items()}
    private = begin(run, module, **options)
    seen, steps = [], []
    for step in private:
        steps.append(step)
        assert step == private.done and torch.is_grad_enabled()
        same(module.state_dict(), first)
        if run.release == "all":
            seen.append(private.parameters())
    found = private.release()
    data = options.pop("data")
    model = li.train(run, data, model=net(*parts), loss=LOSS, **BUDGET | options)
    assert type(found) is FittedModule and found.exact == model.exact
    assert steps == [*range(1, run.steps + 1)]
    same(found.state, model.state)
    assert found.certificate.to_dict(1e-4) == model.certificate.to_dict(1e-4)
    assert found.effect == model.effect and private.run == model.run and found.inputs == 1
    if run.release == "last":
        same(module.state_dict(), model.module.state_dict())
        assert np.array_equal(found.predict(X), model.predict(X))
    else:
        same(module.state_dict(), {**first, **seen[-1]})
        same({name: torch.stack([each[name] for each in seen]) for name in seen[0]}, found.state)


def test_groups_with_speeds_of_their_own_are_loaded_too():
    module = net()
    private = begin(module=Grouped(module, {"0": 0.1}), seed=1)
    assert len(list(private)) == 6
    found = private.release()
    model = li.train(RUN, (X, Y), model=Grouped(net(), {"0": 0.1}), loss=LOSS, seed=1, **BUDGET)
    same(found.state, model.state)
    assert sorted(found.state) == ["0.bias", "0.weight"]
    same(module.state_dict(), model.module.state_dict())


def test_a_hidden_iterate_is_refused_and_a_visible_one_is_a_copy():
    private = begin()
    next(private)
    with pytest.raises(InputError, match=r"'all'.*dataclasses\.replace\(run, release=\"all\"\)"):
        private.parameters()
    assert next(private) == 2, "the refusal changes nothing"
    assert private._steps._pause.read is None, "nor does the engine hand it over"
    private = begin(ALL)
    with pytest.raises(InputError, match="must have made a step before"):
        private.parameters()
    next(private)
    private.parameters()["0.bias"].zero_()
    shown = private.parameters()["0.bias"]
    assert shown.abs().min() > 0
    list(private)
    assert torch.equal(private.release().state["0.bias"][0], shown)


def test_a_release_comes_once_after_the_last_step():
    module = net()
    private = begin(module=module)
    before = module[0].weight.clone()
    for step in private:
        if step == 3:
            break
    assert repr(private) == "PrivateLoop(3 of 6 steps)" and type(private) is PrivateLoop
    with pytest.raises(InputError, match=r"all of its 6 steps.*'3 steps'; iterate over the loop"):
        private.release()
    assert torch.equal(module[0].weight, before)
    assert list(private) == [4, 5, 6] and list(private) == []
    private.release()
    assert not torch.equal(module[0].weight, before)
    with pytest.raises(InputError, match="has released its model"):
        private.release()
    for again in (copy.deepcopy, pickle.dumps):
        with pytest.raises(InputError, match="run is of one process, and cannot be copied"):
            again(private)


def test_a_step_that_fails_ends_the_run(monkeypatch):
    private = begin()
    next(private)

    def fail(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("lastiterate.engine.external_gradients.external_noise", fail)
        with pytest.raises(KeyboardInterrupt):
            next(private)
    for use in (private.__next__, private.release):
        with pytest.raises(InputError, match="was ended by an error or an interruption after 1"):
            use()


def test_the_loop_changes_neither_the_trained_copy_nor_the_records():
    module = net(torch.nn.Dropout(0.2))
    x, y = torch.from_numpy(X.copy()), torch.from_numpy(Y.copy())
    private = begin(module=module, data=(x, y), seed=1)
    next(private)
    with torch.no_grad():
        module[0].weight.fill_(9.0)
    module[1].p = 0.9
    x.fill_(9.0), y.fill_(1)
    list(private)
    other = begin(module=net(torch.nn.Dropout(0.2)), seed=1)
    list(other)
    found, wanted = private.release(), other.release()
    same(found.state, wanted.state)
    assert found.effect == wanted.effect and found.module[1].p == 0.2


def test_a_module_that_lost_its_parameters_is_refused_and_released_later():
    module = net()
    private = begin(module=module)
    list(private)
    last, module[2] = module[2], torch.nn.Linear(5, 3)
    with pytest.raises(
        InputError, match=r"module must still have its parameter 2\.weight.*\(3, 5\)"
    ):
        private.release()
    module[2] = last
    same(module.state_dict(), private.release().module.state_dict())


def test_a_module_that_cannot_be_copied_is_refused_before_the_charge(tmp_path):
    class Single(torch.nn.Linear):
        def __deepcopy__(self, memo):
            raise RuntimeError("there is one")

    ledger = Ledger(tmp_path / "l")
    ledger.add("a", unit="record", adjacency="zero-out", filter=GaussianFilter.of(9.0, 1e-4))
    with pytest.raises(InputError, match=r"module must be one that copy.deepcopy.*there is one"):
        begin(module=Single(4, 2), ledger=ledger)
    assert ledger.total().releases == ()


def test_the_ledger_is_charged_once_before_the_first_step(tmp_path):
    ledger = Ledger(tmp_path / "l")
    ledger.add("a", unit="record", adjacency="zero-out", filter=GaussianFilter.of(9.0, 1e-4))
    private = begin(ledger=ledger.path, dataset="a", out=tmp_path / "model")
    assert [line.state for line in ledger.total().releases] == ["touched"]
    list(private)
    model = private.release()
    assert [line.state for line in ledger.total().releases] == ["released"]
    assert ledger.verify() == () and li.verify(tmp_path / "model")
    same(li.load(tmp_path / "model", like=net()).state_dict(), model.state_dict())
    with pytest.raises(InputError, match="refuses this release"):
        begin(epsilon=20.0, ledger=ledger)


def test_a_loop_that_was_stopped_resumes_from_its_checkpoint(tmp_path, monkeypatch):
    for name in (VARIABLE, FILE_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    key = tmp_path / "key"
    key.write_text("0f" * 32)
    key.chmod(0o600)
    given = {"checkpoint": tmp_path / "c", "checkpoint_every": 0, "checkpoint_key": key, "seed": 5}
    private = begin(**given)
    assert [next(private) for _ in range(4)] == [1, 2, 3, 4]
    del private
    private = begin(**given)
    assert private.done == 4 and list(private) == [5, 6]
    other = begin(seed=5)
    list(other)
    same(private.release().state, other.release().state)
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize(
    "change, kind, match",
    [
        ({"progress": True}, InputError, "progress is for train"),
        ({"noise": 3}, TypeError, r"make_private\(\) got an unexpected keyword argument 'noise'"),
        ({"module": {"w": np.zeros(3)}}, InputError, r"module must be a torch\.nn\.Module"),
        ({"module": "net"}, InputError, "module must be"),
        ({"run": replace(RUN, clip=None)}, ValueError, "clip"),
        ({"loss": None}, InputError, "loss must be a function"),
        (
            {"data": torch.utils.data.DataLoader([(X[0], 0)])},
            InputError,
            "draws its batches itself",
        ),
        (
            {"module": net(torch.nn.BatchNorm1d(5))},
            InputError,
            "module must treat.*GroupNorm|alone",
        ),
    ],
    ids=lambda part: next(iter(part)) if isinstance(part, dict) else "",
)
def test_refusals_are_those_of_train(change, kind, match):
    with pytest.raises(kind, match=match):
        begin(**change)


def test_a_loop_that_stops_early_is_told_how_its_iterate_is_released():
    private = begin(ALL)
    next(private), next(private)
    shown = private.parameters()
    said = r"'2 steps'; iterate .*: module_at\(2, like=module\) of the finished loop's model is"
    with pytest.raises(InputError, match=said):
        private.release()
    list(private)
    module = private.release().module_at(2, like=net())
    assert all(torch.equal(part, shown[name]) for name, part in module.named_parameters())

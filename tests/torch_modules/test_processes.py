"""Modules on several processes: the model of one process, noise once, and one sentence where they
differ or one of them fails.

Threads that take turns are the processes here, so that one compiled program serves all of them;
``test_job.py`` starts real ones.
"""

import copy
import threading
from dataclasses import replace

import numpy as np
import pytest
import torch

import lastiterate as li
from lastiterate.engine import external_gradients, key_from_seed
from lastiterate.errors import InputError
from lastiterate.ledger import GaussianFilter, Ledger
from lastiterate.release.training_request import Processes
from lastiterate.release.units import UnitLoss, units_as_records
from lastiterate.torch import PerUnit, make_private, module_training, processes
from lastiterate.torch.module_training import fit_in_pieces, fit_module, loss_of
from lastiterate.torch.processes import SeveralProcesses
from lastiterate.torch.record_gradients import full_precision
from lastiterate.torch.released_module import exactly

pytestmark = pytest.mark.filterwarnings("ignore::lastiterate.errors.RepeatedFitWarning")
N, RNG = 61, np.random.default_rng(0)
X, Y = RNG.normal(size=(N, 4)).astype(np.float32), RNG.integers(0, 3, N)
LOSS = torch.nn.functional.cross_entropy
RUN = li.Run(
    n=N, steps=6, step_size=0.3, noise=li.GradientNoise(0.01), batching=li.Cyclic(15), clip=0.5
)
IN_ORDER_OR_SORTED = [
    li.FullBatch(),
    li.Cyclic(15),
    li.Permuted(15),
    li.Reshuffled(15),
    li.RandomAllocation(15),
    li.BallsInBins(15),
]


def network(*parts):
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(4, 5), *parts, torch.nn.Tanh(), torch.nn.Linear(5, 3)
    )


class Job:
    """Threads of which one runs at a time, and the others wait for it to meet them."""

    def __init__(self, count):
        self.count, self.turn, self.held = count, threading.Lock(), [None] * count
        self.barrier = threading.Barrier(count)

    def exchange(self, rank, value):
        self.held[rank] = value
        self.turn.release()
        try:
            self.barrier.wait(60)
            found = list(self.held)
            self.barrier.wait(60)
        finally:
            self.turn.acquire()
        return found


class Threads(SeveralProcesses):
    def __init__(self, rank, job):
        self.rank, self.count, self._group, self._sums = rank, job.count, job, None
        self._meeting, self._device = False, torch.device("cpu")

    def _reduce(self, tensor, how, group=None):
        every = torch.stack(self._gather(tensor.clone()))
        summed = how == torch.distributed.ReduceOp.SUM
        tensor.copy_(every.sum(0) if summed else every.max(0).values)

    def _gather(self, value):
        return self._group.exchange(self.rank, value)

    def _broadcast(self, value):
        return self._gather(value)[0]

    def _leave(self):
        self._group = None


def run_job(count, body):
    """What ``body(processes)`` returns or raises in each of ``count`` processes."""
    job, results = Job(count), [None] * count

    def run(rank):
        with job.turn:
            try:
                results[rank] = body(Threads(rank, job))
            except BaseException as error:
                results[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(count)]
    with full_precision(torch.device("cpu")):  # which restores what threads change in turn
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
    return results


def fit_together(count, run, model, loss=LOSS, data=(X, Y), fit=fit_module, seed=3, **more):
    """The parameters of every process, whose keys are their own but for the first one's."""

    def body(mine):
        key = key_from_seed(seed + mine.rank)
        with mine:
            return fit(run, copy.deepcopy(model), loss, data, key, processes=mine, **more)[1]

    results = run_job(count, body)
    for each in results:
        if isinstance(each, BaseException):
            raise each
        np.testing.assert_array_equal(each, results[0])
    return results[0]


CASES = {
    **{str(batching): (replace(RUN, batching=batching), {}) for batching in IN_ORDER_OR_SORTED},
    "poisson": (replace(RUN, batching=li.Poisson(0.2)), {}),
    "fixed size": (replace(RUN, batching=li.FixedSize(15)), {}),
    "poisson under add-remove": (
        replace(RUN, n=60, batching=li.Poisson(0.2), adjacency="add-remove"),
        {},
    ),
    "batches of one record": (replace(RUN, batching=li.RandomAllocation(1)), {}),
    "exact sums": (replace(RUN, batching=li.Poisson(0.2)), {"executed_as": exactly}),
    "every iterate": (replace(RUN, release="all", batching=li.Poisson(0.2)), {}),
    "an average, correlated noise": (
        replace(RUN, method=li.TailAverage(0.5), noise=li.Correlated(0.1, 4)),
        {},
    ),
    "an optimizer and its schedule": (
        replace(RUN, step_size=1, optimizer=li.PostProcessing()),
        {
            "optimizer": lambda p: torch.optim.lr_scheduler.CosineAnnealingLR(
                torch.optim.Adam(p, lr=0.1), 6
            )
        },
    ),
}


@pytest.mark.parametrize("number, case", [*enumerate(CASES)], ids=CASES)
def test_the_model_is_the_one_of_one_process(number, case):
    run, more = CASES[case]
    alone = fit_module(run, network(), LOSS, (X, Y), key_from_seed(3), **more)[1]
    found = fit_together((2, 4)[number % 2], run, network(), **more)
    np.testing.assert_allclose(found, alone, rtol=0, atol=2e-6)


def test_another_draw_is_far_from_that():
    one, other = (
        fit_module(RUN, network(), LOSS, (X, Y), key_from_seed(seed))[1] for seed in (3, 4)
    )
    assert np.abs(one - other).max() > 1e-3


def test_random_draws_of_records_are_those_of_one_process():
    run = replace(
        RUN, batching=li.Poisson(0.3), augmentation=li.RecordAugmentation("shift and dropout", 2)
    )
    more = {"augment": lambda key, x: x + 0.5 * key.normal(4)}
    model = network(torch.nn.Dropout(0.5))
    alone = fit_module(run, model, LOSS, (X, Y), key_from_seed(3), **more)[1]
    found = fit_together(2, run, model, **more)
    np.testing.assert_allclose(found, alone, rtol=0, atol=2e-6)


def test_units_are_summed_once():
    who = np.arange(N) // 4
    rows = units_as_records((X, Y), who, 3)
    rows = (rows[1], rows[0], rows[2])
    run, loss = replace(RUN, n=len(rows[0]), batching=li.Poisson(0.4)), loss_of(UnitLoss(LOSS, 3))
    alone = fit_module(run, PerUnit(network()), loss, rows, key_from_seed(3))[1]
    found = fit_together(4, run, PerUnit(network()), loss, rows)
    np.testing.assert_allclose(found, alone, rtol=0, atol=2e-6)


@pytest.mark.parametrize("batching", [li.Cyclic(15), li.RandomAllocation(15)], ids=str)
def test_records_that_come_in_pieces_are_read_once(batching, monkeypatch, tmp_path):
    """A process reads and sorts a part of them; of the job each record is summed once a step."""
    monkeypatch.setattr("lastiterate.engine.streaming.execution.AT_ONCE", 170)
    run, summed = replace(RUN, batching=batching, steps=5), []
    total = module_training.PreparedModule.total

    def count(self, point, constants, numbers, *more):
        summed.append(len(numbers))
        return total(self, point, constants, numbers, *more)

    monkeypatch.setattr(module_training.PreparedModule, "total", count)
    source = li.data.Generated(
        N, lambda first, many: (X[first : first + many], Y[first : first + many])
    )
    alone = fit_in_pieces(run, network(), LOSS, source, key_from_seed(3), folder=tmp_path)[1]
    expected = sum(summed)
    summed.clear()
    found = fit_together(2, run, network(), data=source, fit=fit_in_pieces, folder=tmp_path)
    np.testing.assert_allclose(found, alone, rtol=0, atol=2e-6)
    assert sum(summed) == expected and not list(tmp_path.iterdir())


@pytest.mark.parametrize("batching", [li.Cyclic(15), li.RandomAllocation(15)], ids=str)
def test_exact_sums_have_the_bits_of_one_process(batching, monkeypatch, tmp_path):
    """In memory and in pieces: which process sums a record changes nothing."""
    monkeypatch.setattr("lastiterate.engine.streaming.execution.AT_ONCE", 170)
    run, given = replace(RUN, batching=batching), {"executed_as": exactly}
    torch.manual_seed(0)
    wide = torch.nn.Sequential(torch.nn.Linear(4, 65), torch.nn.Tanh(), torch.nn.Linear(65, 3))
    alone = fit_module(run, wide, LOSS, (X, Y), key_from_seed(3), **given)[1]
    source = li.data.Generated(
        N, lambda first, many: (X[first : first + many], Y[first : first + many])
    )
    held = fit_together(2, run, wide, **given)
    found = fit_together(2, run, wide, data=source, fit=fit_in_pieces, folder=tmp_path, **given)
    assert alone.tobytes() == held.tobytes() == found.tobytes()


# Noise: drawn once, whatever the number of processes.

WIDE = 3000


@pytest.mark.parametrize("exact", [False, True], ids=["gaussian", "discrete gaussian"])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_noise_has_its_exact_variance_on_any_number_of_processes(count, exact, monkeypatch):
    """Gradients are zero, so that what is released is the noise of all steps times their size."""
    draws, noise = [], external_gradients.external_noise
    monkeypatch.setattr(
        external_gradients,
        "external_noise",
        lambda *given: (draws.append(given[4]), noise(*given))[1],
    )
    model = torch.nn.Linear(WIDE // 3, 3, bias=False)
    torch.nn.init.zeros_(model.weight)
    sigma, steps, size, batch = 0.7, 4, 0.5, 15
    run = replace(
        RUN,
        steps=steps,
        step_size=size,
        noise=li.GradientNoise(sigma),
        batching=li.Cyclic(batch),
    )
    data = np.zeros((N, WIDE // 3), np.float32), Y
    more = {"executed_as": exactly} if exact else {}
    found = fit_together(count, run, model, data=data, **more)
    chi = float((found**2).sum()) / (steps * (size * sigma) ** 2)
    assert abs(chi - WIDE) < 6 * np.sqrt(2 * WIDE), chi / WIDE
    assert len(draws) == (0 if exact else count * steps), "the same draw in each, added once"


# ``train``, its charge and its folder.


def join_threads(monkeypatch):
    """Let every thread's ``train`` find its own processes, and the main one be alone."""
    own = threading.local()
    monkeypatch.setattr(processes, "_join", lambda: getattr(own, "mine", Processes()))

    def run(count, body):
        def enter(mine):
            own.mine = mine if count > 1 else Processes()
            return body(mine)

        return run_job(count, enter)

    return run


@pytest.fixture
def joined(monkeypatch):
    return join_threads(monkeypatch)


TRAINED = replace(RUN, noise=None)
ASKED = {"loss": LOSS, "epsilon": 8.0, "delta": 1e-4, "seed": 3}


@pytest.fixture
def ledger(tmp_path):
    held = Ledger(tmp_path / "ledger")
    held.add("d", unit="record", adjacency="zero-out", filter=GaussianFilter(900.0))
    return held


def states(ledger):
    return [release.state for release in ledger.total("d").releases]


def test_train_charges_and_writes_once(joined, ledger, tmp_path):
    """The certificate is that of one process; a replica is taken for its module."""
    alone = li.train(TRAINED, (X, Y), model=network(), **ASKED)
    more = {**ASKED, "ledger": ledger, "out": tmp_path / "model", "statement": {"purpose": "test"}}
    models = joined(2, lambda mine: li.train(TRAINED, (X, Y), model=network(), **more))
    for model in models:
        assert model.certificate.to_dict(1e-4) == alone.certificate.to_dict(1e-4)
        assert model.certificate.caveats == alone.certificate.caveats
        for name, tensor in alone.state.items():
            torch.testing.assert_close(model.state[name], tensor, rtol=0, atol=2e-6)
            assert torch.equal(model.state[name], models[0].state[name])
    assert states(ledger) == ["released"]
    again = li.load(tmp_path / "model", like=network())
    assert all(torch.equal(again.state[name], models[0].state[name]) for name in again.state)


class Strange(Exception):
    """An error of a user's own code, whose text may show a record."""


def refused(results, *words):
    """Every process ends in the same sentence."""
    assert all(isinstance(each, InputError) for each in results), results
    assert len({str(each).split("; records were read")[0].strip(".") for each in results}) == 1, (
        results
    )
    for word in words:
        assert word in str(results[0]), results[0]
    return str(results[0])


DIFFERENT = {
    "run": lambda mine: {"run": replace(TRAINED, steps=6 + mine)},
    "epsilon": lambda mine: {"delta": 1e-4 * (1 + mine), "run": RUN, "epsilon": None},
    "the first parameters": lambda mine: {
        "model": network()
        .requires_grad_(True)
        .apply(
            lambda part: torch.nn.init.constant_(part.bias, mine) if hasattr(part, "bias") else None
        )
    },
    "loss": lambda mine: {"loss": lambda out, y: LOSS(out, y, label_smoothing=0.1 * mine)},
    "optimizer": lambda mine: {
        "run": replace(TRAINED, step_size=1),
        "optimizer": lambda p: torch.optim.SGD(p, lr=0.1 + mine),
    },
    "the form of the data": lambda mine: {"data": (X.astype((np.float32, np.float64)[mine]), Y)},
}


@pytest.mark.parametrize("case", DIFFERENT)
def test_processes_that_differ_are_refused_before_the_charge(case, joined, ledger, tmp_path):
    def body(mine):
        given = {"run": TRAINED, "data": (X, Y), "model": network(), **ASKED, "ledger": ledger}
        given |= {"out": tmp_path / "model"} | DIFFERENT[case](mine.rank)
        return li.train(given.pop("run"), given.pop("data"), **given)

    said = refused(joined(2, body), "must be the same in every process, and process 1 has another")
    name = {"the first parameters": "model", "the form of the data": "data"}.get(case, case)
    assert said.startswith(name) and states(ledger) == [] and not (tmp_path / "model").exists()


def test_other_records_are_refused_without_a_release(joined, ledger, tmp_path):
    """After the charge, for values of records are looked at then."""

    def body(mine):
        x = X.copy()
        x[-1, -1] += mine.rank
        more = {**ASKED, "ledger": ledger, "out": tmp_path / "model"}
        return li.train(TRAINED, (x, Y), model=network(), **more)

    refused(joined(2, body), "data must be the same in every process", "the same order")
    assert states(ledger) == ["touched"] and not (tmp_path / "model").exists()


def test_an_error_of_one_process_ends_all_and_shows_no_record(joined, ledger, tmp_path):
    for rank in (0, 1):

        def body(mine, failing=rank):
            def progress(done, steps, seconds):
                if done == 3 and mine.rank == failing:
                    raise Strange("a secret")

            more = {**ASKED, "ledger": ledger, "out": tmp_path / "model", "progress": progress}
            return li.train(TRAINED, (X, Y), model=network(), **more)

        results = joined(3, body)
        own = results.pop(rank)
        assert isinstance(own, Strange)
        said = refused(results, f"Strange ended process {rank}", "nothing was released")
        assert "secret" not in said
    assert states(ledger) == ["touched", "touched"] and not (tmp_path / "model").exists()


def test_a_refusal_of_the_first_process_is_everyones(joined, ledger):
    """The others have no ledger of their own to ask."""
    asked = {**ASKED, "epsilon": None, "ledger": ledger}
    run = replace(RUN, noise=li.GradientNoise(1e-5))
    refused(joined(2, lambda mine: li.train(run, (X, Y), model=network(), **asked)), "budget")
    assert states(ledger) == []


def test_parameters_that_drift_apart_are_never_released(joined, tmp_path):
    """As on machines whose last bits differ, or with a key of one's own."""

    def body(mine):
        send = mine.send
        mine.send = lambda make: (
            send(make)
            if make.__name__ != "begin"
            else (send(make)[0] + np.uint32(mine.rank), None, None)
        )
        return li.train(TRAINED, (X, Y), model=network(), out=tmp_path / "model", **ASKED)

    refused(joined(2, body), "the same parameters in every step, and their bits differ")
    assert not (tmp_path / "model").exists()


def test_a_loop_takes_the_same_steps(joined):
    run = replace(RUN, release="all", noise=None)
    alone = li.train(run, (X, Y), model=network(), **ASKED)

    def body(mine):
        module = network()
        private = make_private(run, module=module, data=(X, Y), **ASKED)
        seen = [private.parameters()["0.weight"] for _ in private]
        return private.release(), seen

    for model, seen in joined(2, body):
        for step in range(run.steps):
            torch.testing.assert_close(seen[step], alone.state["0.weight"][step], rtol=0, atol=2e-6)
            assert torch.equal(seen[step], model.state["0.weight"][step])


@pytest.mark.parametrize("then", [1, 2, 4])
def test_a_checkpoint_resumes_on_any_number_of_processes(then, joined, tmp_path):
    """The first process writes it; the others hear where the run stands."""
    key = tmp_path / "key"
    key.write_text("ab" * 32), key.chmod(0o600)
    kept = {"checkpoint": tmp_path / "state", "checkpoint_key": key, "checkpoint_every": 0}
    alone = li.train(TRAINED, (X, Y), model=network(), **ASKED)

    def begin(mine):
        def progress(done, steps, seconds):
            if done == 4:
                raise Strange

        return li.train(TRAINED, (X, Y), model=network(), progress=progress, **ASKED, **kept)

    assert all(isinstance(each, Strange) for each in joined(2, begin))
    assert kept["checkpoint"].exists()
    begun = []

    def resume(mine):
        def progress(done, steps, seconds):
            begun.append(done)

        return li.train(TRAINED, (X, Y), model=network(), progress=progress, **ASKED, **kept)

    models = joined(then, resume)
    assert min(begun) > 3 and not kept["checkpoint"].exists()
    for model in models:
        assert model.effect == models[0].effect
        for name, tensor in alone.state.items():
            torch.testing.assert_close(model.state[name], tensor, rtol=0, atol=2e-6)


def test_a_variable_of_a_launcher_alone_is_refused(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    with pytest.raises(
        InputError, match=r"must all have RANK, WORLD_SIZE.*got .*MASTER_ADDR.*torchrun"
    ):
        li.train(RUN, (X, Y), model=network(), loss=LOSS, delta=1e-4)

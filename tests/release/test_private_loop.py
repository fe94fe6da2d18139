"""Loops written by hand around a loss of JAX: the bits, the certificate, the charge and the
refusals of `lastiterate.train`, step by step."""

import copy
import gc
import os
import pickle
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lastiterate as li
from lastiterate.engine.checkpoint import FILE_VARIABLE, VARIABLE
from lastiterate.engine.loop import advance
from lastiterate.engine.network import iterate_network
from lastiterate.engine.step_iterator import Pause, StepIterator
from lastiterate.engine.streaming.buffers import Arrays
from lastiterate.engine.trainer import Diverged, Loop
from lastiterate.errors import InputError, NotCertified
from lastiterate.jax import PrivateState, private
from lastiterate.ledger import GaussianFilter, Ledger
from lastiterate.release import composition_reminder, network_model, pipeline
from lastiterate.release.network_model import FittedNetwork
from lastiterate.release.units import UnitLoss

RNG = np.random.default_rng(3)
N, D = 60, 4
X = RNG.normal(size=(N, D)).astype(np.float32) / 4
Y = (X[:, 0] > 0).astype(int)
FIRST = {"in": RNG.normal(size=(3, D)).astype(np.float32), "out": [np.zeros((2, 3)), np.zeros(2)]}
RUN = li.Run(n=N, steps=6, step_size=0.2, clip=1.0, batching=li.Cyclic(20))
ALL = replace(RUN, release="all")
QUADRATIC = replace(  # whose hidden iterates earn a theorem
    RUN,
    steps=60,
    batching=li.FullBatch(),
    clip=None,
    loss=li.KnownConstants(li.LossFacts(lipschitz=1.0, smooth=1.0, strong=1.0)),
)


def forward(params, x):
    return params["out"][0] @ jnp.tanh(params["in"] @ x) + params["out"][1]


def loss(params, x, y):
    return -jax.nn.log_softmax(forward(params, x))[y]


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    """A process that has not fitted yet."""
    monkeypatch.setattr(composition_reminder, "REMINDER", composition_reminder.Reminder())


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    found = Ledger(tmp_path / "l")
    found.add("a", unit="record", adjacency="zero-out", filter=GaussianFilter.of(9.0, 1e-4))
    return found


def begin(run=RUN, given=loss, data=(X, Y), first=FIRST, **options):
    pair = private(run, given, **{"epsilon": 8.0, "delta": 1e-4} | options)
    return pair, pair.init(first, data)


def finish(pair, state):
    while state.done < state.steps:
        state = pair.update(state)
    return pair.release(state)


def same(one, two):
    jax.tree.map(np.testing.assert_array_equal, one, two)


def shaken(key, x):
    return x + 0.1 * jax.random.normal(key, x.shape, x.dtype)


def unit_loss(params, rows, labels):
    return loss(params, rows, labels)


RUNS: dict[str, tuple[li.Run, dict[str, Any]]] = {
    "full": (replace(RUN, batching=li.FullBatch()), {}),
    "cyclic": (RUN, {}),
    "all iterates": (ALL, {}),
    "all of secret batches": (replace(ALL, batching=li.RandomAllocation(20)), {}),
    "poisson, momentum": (
        replace(RUN, batching=li.Poisson(0.3), optimizer=li.HeavyBall(0.9)),
        {},
    ),
    "allocation, adam": (
        replace(RUN, batching=li.RandomAllocation(20), optimizer=li.Adam()),
        {},
    ),
    "reshuffled, all": (replace(ALL, batching=li.Reshuffled(20)), {}),
    "permuted": (replace(RUN, batching=li.Permuted(20)), {}),
    "correlated": (replace(RUN, noise=li.Correlated(1.0, 4, 0.6)), {}),
    "secure noise": (RUN, {"secure_noise": True}),
    "secure noise, all": (replace(ALL, batching=li.Poisson(0.3)), {"secure_noise": True}),
    "average": (RUN, {"average": li.TailAverage(0.5)}),
    "draws": (RUN, {"augment": shaken, "copies": 2}),
    "weights": (RUN, {"class_weight": {0: 1, 1: 3}}),
    "start": (replace(RUN, start=li.GaussianStart(1.0)), {}),
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", RUNS)
def test_the_loop_releases_the_bits_and_the_certificate_of_train(name):
    run, options = RUNS[name]
    first = jax.tree.map(np.zeros_like, FIRST) if name == "start" else FIRST
    pair, state = begin(run, first=first, seed=7, **options)
    assert (state.done, state.steps) == (0, run.steps) and state.run.noise is not None
    seen = []
    while state.done < state.steps:
        before = state.done
        state = pair.update(state)
        assert state.done == before + 1
        if run.release == "all":
            seen.append(pair.parameters(state))
        assert not jax.config.jax_enable_x64, "the loop's own arrays keep their precision"  # pyright: ignore
    found = pair.release(state)
    given: dict[str, Any] = {"epsilon": 8.0, "delta": 1e-4, "seed": 7}
    model = li.train(run, (X, Y), model=first, loss=loss, **given | options)
    assert type(found) is FittedNetwork and found.exact == model.exact
    same(found.params, model.params)
    assert found.certificate.to_dict(1e-4) == model.certificate.to_dict(1e-4)
    assert state.run == model.run and found.certificate.verify()
    if run.release == "all":
        same(jax.tree.map(lambda *each: np.stack(each), *seen), found.params)


def test_optax_transformations_and_pieces_and_units():
    optax = pytest.importorskip("optax")
    run = replace(RUN, step_size=1.0, batching=li.RandomAllocation(20))
    for more in ({}, {"data": Arrays((X, Y))}):
        given: dict[str, Any] = {"epsilon": 8.0, "delta": 1e-4, "seed": 2}
        given |= {"optimizer": optax.adam(1e-2)}
        found = finish(*begin(run, **given | more))
        model = li.train(run, more.get("data", (X, Y)), model=FIRST, loss=loss, **given)
        same(found.params, model.params)
        assert found.certificate.to_dict(1e-4) == model.certificate.to_dict(1e-4)
    rows, present = X.reshape(20, 3, D), np.ones((20, 3), np.float32)
    units = replace(RUN, n=20, batching=li.Cyclic(10))
    data = (present, rows, Y.reshape(20, 3))
    found = finish(*begin(units, UnitLoss(unit_loss, 3), data, seed=2))
    given = {"epsilon": 8.0, "delta": 1e-4, "seed": 2}
    model = li.train(units, data, model=FIRST, loss=UnitLoss(unit_loss, 3), **given)
    same(found.params, model.params)
    assert found.certificate.to_dict(1e-4) == model.certificate.to_dict(1e-4)
    grouped = replace(RUN, rows_per_unit=2)
    who = np.arange(N) // 2
    found = finish(*begin(grouped, seed=2, unit=who))
    model = li.train(grouped, (X, Y), model=FIRST, loss=loss, unit=who, **given)
    assert found.certificate.to_dict(1e-4) == model.certificate.to_dict(1e-4)
    with pytest.raises(InputError, match="unit"):
        begin(grouped, seed=2, unit=np.arange(N) // 3)


def quadratic(w, x, y):
    return 0.5 * ((w - x) ** 2).sum() / 4


TRUSTED: dict[str, Any] = {
    "given": quadratic,
    "first": np.zeros(D),
    "epsilon": None,
    "min_evidence": li.Evidence.ASSUMED,
}


def test_only_hidden_iterates_earn_the_theorem_about_the_last_one():
    loud = replace(QUADRATIC, noise=li.GradientNoise(0.3))
    hidden = finish(*begin(loud, **TRUSTED)).certificate
    visible = finish(*begin(replace(loud, release="all"), **TRUSTED)).certificate
    assert hidden.epsilon(1e-4) < 0.7 * visible.epsilon(1e-4)


def test_a_hidden_iterate_is_refused_and_the_remedy_works():
    pair, state = begin()
    state = pair.update(state)
    with pytest.raises(InputError, match=r"release must be 'all'.*charged for every") as caught:
        pair.parameters(state)
    remedy = str(caught.value).split("begin with ")[1].split(", which is")[0]
    assert remedy == 'dataclasses.replace(run, release="all")'
    assert pair.update(state).done == 2, "the refusal changes nothing"
    pair, state = begin(replace(RUN, release="all"))
    assert pair.parameters(pair.update(state))["in"].shape == (3, D)
    averaged = replace(RUN, method=li.TailAverage(0.5))
    pair, state = begin(averaged)
    with pytest.raises(InputError, match=r'release="all", method=lastiterate.NoisySGD\(\)\)'):
        pair.parameters(pair.update(state))
    begin(replace(averaged, release="all", method=li.NoisySGD()))


def test_no_iterate_is_held_for_the_loop_where_they_are_hidden(monkeypatch):
    """Neither the state nor what the engine hands over has one."""
    pauses = []
    before = pipeline.iterate_release

    def watched(*given):
        steps = before(*given)
        try:
            while True:
                pauses.append(next(steps))
                yield pauses[-1]
        except StopIteration as end:
            return end.value

    monkeypatch.setattr(pipeline, "iterate_release", watched)
    finish(*begin())
    assert [pause.done for pause in pauses] == [*range(RUN.steps + 1)]
    assert {pause.read for pause in pauses} == {None}
    pauses.clear()
    finish(*begin(ALL))
    assert pauses[0].read is None and all(pause.read is not None for pause in pauses[1:])


def test_iterates_are_copies_of_what_is_released():
    pair, state = begin(ALL, seed=1)
    with pytest.raises(InputError, match=r"must have made a step before an iterate.*0 of 6"):
        pair.parameters(state)
    state = pair.update(state)
    spoilt = pair.parameters(state)
    spoilt["out"][0][:] = np.nan
    same(pair.parameters(state)["in"], spoilt["in"])
    assert np.isfinite(pair.parameters(state)["out"][0]).all()
    model = finish(pair, state)
    assert np.isfinite(model.params["out"][0]).all()


def test_the_loop_cannot_change_the_records_between_two_steps(monkeypatch):
    """Not even where JAX reads the memory of NumPy's arrays as it is."""
    taken = []

    def watched(run, loss, params, data, *given, **named):
        taken.extend(data)
        return iterate_network(run, loss, params, data, *given, **named)

    monkeypatch.setattr(network_model, "iterate_network", watched)
    x, y = X.copy(), Y.copy()
    pair, state = begin(data=(x, y), seed=1)
    assert not any(np.shares_memory(one, two) for one, two in zip(taken, (x, y), strict=True))
    state = pair.update(state)
    x[:], y[:] = 9.0, 1
    found = finish(pair, state)
    taken.clear()
    same(found.params, finish(*begin(seed=1)).params)


def test_a_state_is_used_once():
    pair, first = begin()
    state = pair.update(first)
    for use in (pair.update, pair.parameters, pair.release):
        if use == pair.parameters:
            continue
        with pytest.raises(
            InputError, match=r"state must be the last one, after 1 steps.*got '0 st"
        ):
            use(first)
    visible, old = begin(ALL)
    visible.update(old)
    with pytest.raises(InputError, match="a state is used once"):
        visible.parameters(old)
    with pytest.raises(InputError, match="state must be one that init or update of this pair"):
        visible.update(state)
    with pytest.raises(InputError, match=r"state must be one that init.*'dict'"):
        visible.update({})  # type: ignore[arg-type]
    for again in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(
            InputError, match=r"run is of one process, and cannot be copied.*checkpoint="
        ):
            again(state)
    finish(pair, state)


def test_a_release_comes_once_after_the_last_step():
    pair, state = begin()
    with pytest.raises(InputError, match=r"run must have made all of its 6 steps.*got '0 steps'"):
        pair.release(state)
    while state.done < 5:
        state = pair.update(state)
    with pytest.raises(InputError, match=r"'5 steps'; call update until.*fewer steps: that is"):
        pair.release(state)
    state = pair.update(state)
    with pytest.raises(InputError, match="has made all of its 6 steps; release the model"):
        pair.update(state)
    model = pair.release(state)
    assert np.isfinite(model.params["in"]).all()
    for use in (pair.release, pair.update):
        with pytest.raises(InputError, match=r"has released its model.*a charge of its own"):
            use(state)
    found = finish(*begin(replace(RUN, steps=3)))
    assert found.run.steps == 3, "the remedy"


@pytest.mark.parametrize("kind", [RuntimeError, KeyboardInterrupt])
def test_a_step_that_fails_ends_the_run(kind, monkeypatch):
    pair, state = begin()
    state = pair.update(state)

    def fail(*_):
        raise kind

    with monkeypatch.context() as patched:
        patched.setattr("lastiterate.engine.trainer.advance", fail)
        with pytest.raises(kind):
            pair.update(state)
    for use in (pair.update, pair.release):
        with pytest.raises(InputError, match="was ended by an error or an interruption after 1"):
            use(state)


def test_a_run_that_diverges_releases_nothing(ledger, monkeypatch):
    def overflow(*given):
        state, iterates = advance(*given)
        return state, jnp.full_like(iterates, jnp.inf)

    monkeypatch.setattr("lastiterate.engine.trainer.advance", overflow)
    pair, state = begin(ALL, epsilon=1.0, ledger=ledger)
    while state.done < state.steps:
        state = pair.update(state)
    with pytest.raises(Diverged):
        pair.parameters(state)
    with pytest.raises(InputError, match=r"diverge.*the ledger keeps the charge"):
        pair.release(state)
    assert [line.state for line in ledger.total().releases] == ["touched"]


def test_the_state_shows_public_numbers_alone():
    pair, state = begin()
    state = pair.update(state)
    assert repr(state) == "PrivateState(1 of 6 steps)" and str(state) == repr(state)
    assert jax.tree.leaves(state) == [state], "no array of it is mapped over"
    assert type(state) is PrivateState and not hasattr(state, "__dict__")


def test_steps_are_not_traced():
    pair, state = begin()
    with pytest.raises(InputError, match=r"update must be called outside of jax\.jit"):
        jax.jit(lambda: pair.update(state))()
    with pytest.raises(InputError, match=r"init must be called outside of jax\.jit"):
        jax.jit(lambda: pair.init(FIRST, (X, Y)))()
    finish(pair, state)


def test_another_process_cannot_continue_the_run(monkeypatch):
    pair, state = begin()
    with monkeypatch.context() as patched:
        patched.setattr(os, "getpid", lambda: 1)
        with pytest.raises(InputError, match="must be continued by the process that began it"):
            pair.update(state)
    finish(pair, state)


def test_a_forked_process_leaves_the_run_of_its_parent_alone(monkeypatch):
    ended = []

    def steps():
        try:
            yield Pause(0)
        finally:
            ended.append(True)

    for process, expected in ((1, []), (os.getpid(), [True])):
        given = steps()
        found = StepIterator(given, RUN, "call update")
        with monkeypatch.context() as patched:
            patched.setattr(os, "getpid", lambda process=process: process)
            del found
        assert ended == expected
        given.close()
        ended.clear()


def test_the_ledger_is_charged_once_before_the_first_step(ledger, monkeypatch, tmp_path):
    steps = []
    before = Loop._run_steps  # pyright: ignore[reportPrivateUsage]

    def watched(*given):
        steps.append([line.state for line in ledger.total().releases])
        return before(*given)

    monkeypatch.setattr(Loop, "_run_steps", watched)
    pair, state = begin(epsilon=1.0, ledger=ledger.path, dataset="a", out=tmp_path / "model")
    assert steps == [["touched"]], "charged, and only then computed with"
    left = ledger.total().left
    model = finish(pair, state)
    (line,) = ledger.total().releases
    assert line.state == "released" and ledger.total().left == left and ledger.verify() == ()
    assert li.verify(tmp_path / "model")
    same(li.load(tmp_path / "model", like=FIRST).params, model.params)


def test_what_the_budget_does_not_hold_is_refused_by_init(ledger, monkeypatch):
    monkeypatch.setattr(Loop, "_run_steps", None)
    pair = private(RUN, loss, epsilon=20.0, delta=1e-4, ledger=ledger, dataset="a")
    with pytest.raises(InputError, match="refuses this release"):
        pair.init(FIRST, (X, Y))
    assert ledger.total().releases == ()


class Stopped(Exception):
    pass


def test_an_error_of_the_loop_leaves_the_ledger_as_an_interrupted_train(ledger, tmp_path):
    ledger.add("b", unit="record", adjacency="zero-out", filter=GaussianFilter.of(9.0, 1e-4))

    def stop(done, *_):
        if done >= 3:
            raise Stopped

    given: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-4, "ledger": ledger}
    with pytest.raises(Stopped):
        li.train(RUN, (X, Y), model=FIRST, loss=loss, progress=stop, dataset="a", **given)

    def loop():
        pair, state = begin(**given, dataset="b", out=tmp_path / "model")
        while state.done < state.steps:
            state = pair.update(state)
            stop(state.done)

    with pytest.raises(Stopped):
        loop()
    one, two = (ledger.total(name).releases for name in ("a", "b"))
    assert [line.state for line in (*one, *two)] == ["touched"] * 2
    assert ledger.total("a").left == ledger.total("b").left
    gc.collect()
    assert {path.name for path in tmp_path.iterdir()} == {"l"}, "reserved space is given back"


def test_a_process_that_ends_within_a_loop_gives_reserved_space_back(tmp_path):
    code = """
import os, numpy as np, lastiterate as li
from lastiterate.jax import private
run = li.Run(n=8, steps=2, step_size=0.1, clip=1.0, noise=li.NoiseMultiplier(9.0))
pair = private(run, lambda w, row: w @ row, out="model")
state = pair.update(pair.init(np.zeros(3), (np.ones((8, 3)),)))
assert len(os.listdir()) == 1
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def key(tmp_path, monkeypatch):
    for name in (VARIABLE, FILE_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    path = tmp_path / "key"
    path.write_text("0f" * 32)
    path.chmod(0o600)
    return path


def test_a_loop_that_was_stopped_resumes_from_its_checkpoint(key, tmp_path, ledger):
    given: dict[str, Any] = {
        "seed": 5,
        "checkpoint": tmp_path / "c",
        "checkpoint_every": 0,
        "checkpoint_key": key,
        "ledger": ledger,
        "dataset": "a",
    }
    pair, state = begin(**given)
    for _ in range(4):
        state = pair.update(state)
    del pair, state
    pair, state = begin(**given)
    assert state.done == 4 and (tmp_path / "c").exists()
    model = finish(pair, state)
    same(model.params, finish(*begin(seed=5)).params)
    assert not (tmp_path / "c").exists()
    assert [line.state for line in ledger.total().releases] == ["released"]


def test_a_checkpoint_of_visible_iterates_is_refused_before_the_charge(key, tmp_path, ledger):
    given: dict[str, Any] = {"checkpoint": tmp_path / "c", "checkpoint_key": key}
    given |= {"epsilon": 1.0, "ledger": ledger, "dataset": "a"}
    with pytest.raises(InputError, match="checkpoint is for runs that release the last iterate"):
        begin(ALL, **given)
    assert ledger.total().releases == ()


@pytest.mark.parametrize(
    "change, kind, match",
    [
        ({"progress": True}, InputError, "progress is for train"),
        ({"shape": 3}, TypeError, r"private\(\) got an unexpected keyword argument 'shape'"),
        ({"model": FIRST}, TypeError, "'model'"),
        ({"given": "loss"}, InputError, "loss must be a function of the parameters"),
        ({"run": "run"}, InputError, "run must be a Run"),
        ({"first": None}, InputError, "params is needed together with a loss"),
        ({"first": "w"}, InputError, "params must be a nested structure of NumPy or JAX arrays"),
        ({"data": X}, InputError, "data must be a tuple"),
        ({"data": (X[:-1], Y[:-1])}, InputError, "60"),
        ({"run": replace(RUN, clip=None)}, NotCertified, "clip"),
        ({"epsilon": None}, InputError, "epsilon is needed"),
        ({"optimizer": li.Adam()}, InputError, "optimizer must be one of torch or optax"),
        ({"dataset": "a"}, InputError, "dataset names a data set of a ledger"),
        ({"seed": -1}, InputError, "seed must be an integer >= 0"),
        ({"statement": {"x": object()}}, InputError, "statement"),
    ],
    ids=lambda part: next(iter(part)) if isinstance(part, dict) else "",
)
def test_refusals_are_those_of_train(change, kind, match):
    with pytest.raises(kind, match=match):
        begin(**change)


def test_a_module_of_torch_is_sent_to_its_own_loop():
    torch = pytest.importorskip("torch")
    with pytest.raises(InputError, match=r"params must be a nested structure.*make_private"):
        begin(first=torch.nn.Linear(2, 2))


# Loops as their libraries write them: a module in two parts, of which one is trained.


def test_an_equinox_module_in_a_loop_of_its_own():
    eqx = pytest.importorskip("equinox")
    module = eqx.nn.MLP(D, 2, 5, 1, key=jax.random.key(0))
    trained, rest = eqx.partition(module, eqx.is_inexact_array)

    def entropy(trained, x, y):
        return -jax.nn.log_softmax(eqx.combine(trained, rest)(x))[y]

    pair, state = begin(ALL, entropy, first=trained)
    shown = []
    while state.done < state.steps:
        state = pair.update(state)
        own = eqx.combine(pair.parameters(state), rest)
        shown.append(float(jnp.mean(jax.vmap(own)(X[:5]))))
    model = pair.release(state)
    last = eqx.combine(jax.tree.map(lambda a: a[-1], model.params), rest)
    assert shown[-1] == float(jnp.mean(jax.vmap(last)(X[:5]))) and len(set(shown)) == 6


def test_a_module_of_flax_in_a_loop_of_its_own():
    nnx = pytest.importorskip("flax.nnx", reason="flax needs orbax and tensorstore")
    module = nnx.Linear(D, 2, rngs=nnx.Rngs(0))
    definition, params = nnx.split(module, nnx.Param)

    def entropy(params, x, y):
        return -jax.nn.log_softmax(nnx.merge(definition, params)(x))[y]

    model = finish(*begin(RUN, entropy, first=params))
    nnx.update(module, model.params)
    assert module(X[:2]).shape == (2, 2)


def test_the_two_parts_of_a_module_like_those_of_nnx():
    """``nnx.split`` gives a definition and nested parameters, ``nnx.merge`` puts them together."""

    def merge(definition, params):
        return partial(definition, params)

    pair, state = begin(
        given=lambda params, x, y: -jax.nn.log_softmax(merge(forward, params)(x))[y]
    )
    same(finish(pair, state).params.keys(), FIRST.keys())

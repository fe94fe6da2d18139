"""Batches that several devices share: the run of one device, its law, and its certificate."""

import os
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest

import lastiterate as li
from lastiterate.engine.streaming.buffers import Arrays, Devices
from lastiterate.engine.streaming.execution import execute_streaming
from lastiterate.errors import InputError

QUICK = "--xla_cpu_parallel_codegen_split_count=1 --xla_backend_optimization_level=0"
"""Of XLA: how well programs are translated for a processor says nothing of how devices share them.
"""
SHARED = r"""
import os
import sys
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8 " + sys.argv.pop(1)
sys.path[:0] = sys.argv[1:]
import jax, numpy as np, lastiterate as li
from engine.test_law import BASE, X as QX, Y as QY, agrees
from lastiterate.audit.score_distributions import spread_over_devices, spread
from lastiterate.engine import Trainer, key_from_seed, keys_from_seed
from lastiterate.engine.linear_gradients import Linear
from lastiterate.engine.loop import schedule, start
from lastiterate.engine.noise import NoiseAhead
from lastiterate.engine.streaming.buffers import Arrays, Devices
from lastiterate.engine.streaming.execution import Rows, execute_streaming
from lastiterate.engine.streaming.sorting import Passes
from lastiterate.engine.streaming.steps import iterate_buffers
from lastiterate.engine.streaming.steps import StreamLoop, advance_chunks

assert len(jax.devices()) == 8
rng = np.random.default_rng(0)
x, y = rng.normal(size=(203, 3)).astype(np.float32), rng.integers(0, 3, 203)
common = dict(n=203, steps=17, step_size=0.3, loss=li.Softmax(classes=3, ridge=1e-2))
run = li.Run(**common, noise=li.GradientNoise(0.01), batching=li.RandomAllocation(40))  # blocks in order: the network
one, eight = (execute_streaming(run, Arrays((x, y)), key_from_seed(3), devices=count).weights for count in (1, 8))
np.testing.assert_allclose(eight, one, rtol=0, atol=1e-13)

run = li.Run(**common, batching=li.Permuted(40))
one, eight = (li.train(run, (x, y), epsilon=2.0, seed=1, devices=count) for count in (1, 8))
assert one.certificate.to_json(1e-5) == eight.certificate.to_json(1e-5)
np.testing.assert_allclose(eight.released.weights, one.released.weights, rtol=0, atol=1e-13)

def loss(params, row, label):
    return -jax.nn.log_softmax(row @ params)[label]
run = li.Run(n=203, steps=5, step_size=0.3, noise=li.GradientNoise(0.01), batching=li.Cyclic(40), clip=1.0)
first = np.zeros((3, 3), np.float32)
one, eight = (li.train(run, (x, y), model=first, loss=loss, seed=1, devices=count, delta=1e-5).params
              for count in (1, 8))
np.testing.assert_allclose(eight, one, rtol=0, atol=1e-6)

# models of audits, on all devices
run = li.Run(**common, noise=li.GradientNoise(0.01), batching=li.RandomAllocation(40))
keys, many = keys_from_seed(5, 11), Trainer(run).fit_many
assert len(spread(keys).sharding.device_set) == 8 and spread(keys).shape == (16, *keys.shape[1:])
for absent in ((), (7,)):
    shared, alone = spread_over_devices(many)(x, y, keys, absent=absent), many(x, y, keys, absent)
    np.testing.assert_allclose(shared, alone, rtol=0, atol=1e-13)

# the exact law of 20,000 runs on quadratics, rows of every chunk on eight devices
devices = Devices(8)
loop = StreamLoop(BASE, Linear(BASE.loss, None, True), devices)
with jax.enable_x64(True):
    keys, plan = keys_from_seed(17, 20_000), jax.tree.map(jax.numpy.asarray, schedule(BASE))
    state = jax.vmap(lambda key: start(loop.program, np.zeros((1, 3)), key))(keys)
    total = np.zeros((20_000, 1, 3))
    passes = Passes(BASE, Arrays((QX, QY)), Rows(BASE, ()), keys[0])
    for buffer in iterate_buffers(passes, loop.choose_shape(passes), 0):
        records = devices.place(buffer.records)
        assert len(records[0].sharding.device_set) == 8 and records[0].shape[1] % 8 == 0
        noise = NoiseAhead.of_models(keys, (1, 3), BASE.steps).at(0)[0]
        assert noise.units.shape[1] >= BASE.steps
        state, total = jax.jit(jax.vmap(lambda state, total, units, *read: advance_chunks(
            loop.program, state, total, *read, keys[0], plan, noise._replace(units=units), 0, buffer.used),
            in_axes=(0, 0, 0, None, None, None)))(state, total, noise.units, records, buffer.steps, buffer.ends)
    draws = np.asarray(state.theta)[:, 0, :]
assert agrees(draws, BASE)
assert not agrees(draws * 1.05, BASE)
print("done")
"""


def test_eight_devices_make_the_run_of_one():
    """Weights to rounding, the same certificate, and the exact law: noise is added once, and not
    eight times."""
    ran = subprocess.run(
        [sys.executable, "-c", SHARED, QUICK, str(Path(__file__).parents[1])],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0 and ran.stdout.splitlines()[-1] == "done", ran.stderr[-2000:]


PART = r"""
import os
import sys
from dataclasses import replace
import jax, numpy as np
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize("127.0.0.1:" + sys.argv[1], 2, int(sys.argv[2]))
import lastiterate as li
from lastiterate.engine import key_from_seed
from lastiterate.engine.exact_linear import execute_exactly
from lastiterate.engine.streaming.buffers import Arrays, Devices
from lastiterate.engine.streaming.execution import execute_streaming
from lastiterate.errors import InputError
assert len(jax.devices()) == 4 and jax.local_device_count() == 2
rng = np.random.default_rng(0)
x, y = rng.normal(size=(103, 3)).astype(np.float32), rng.integers(0, 3, 103)
run = li.Run(n=103, steps=7, step_size=0.3, noise=li.GradientNoise(0.01), batching=li.Cyclic(40),
             loss=li.Softmax(classes=3, ridge=1e-2))
key = key_from_seed(3 + int(sys.argv[2]))  # the first one's counts
read = []
class Counted(Arrays):
    def pieces(self, most, first=0):
        for piece in Arrays.pieces(self, 5, first):
            if most > 1:
                read.append(len(piece[0]))
            yield piece
found = execute_streaming(run, Counted((x, y)), key, devices=2).weights
assert sum(read) < 0.65 * 7 * 40, "each reads its part of every batch"
alone = execute_streaming(run, Arrays((x, y)), key_from_seed(3)).weights
np.testing.assert_allclose(found, alone, rtol=0, atol=1e-13)
found = execute_streaming(run, Arrays((x, y)), key, devices=4).weights
np.testing.assert_allclose(found, alone, rtol=0, atol=1e-13)
assert {one.process_index for one in Devices(2)._mesh.devices} == {0, 1}, "one device of each process"

# exact sums: the same bits, whoever adds them up
paid = dict(preprocessing=(li.PrivateMean(1.0, 2.0),), noise=li.NoiseMultiplier(1.0),
            probability_calibration=li.Calibration(5.0))
for more, batching in (({}, li.Cyclic(40)), (paid, li.RandomAllocation(40)), (dict(clip=0.5), li.FullBatch())):
    one = replace(run, **more, batching=batching)
    alone = execute_exactly(one, x, y, key_from_seed(3)).weights
    for count in (2, 4):
        found = execute_streaming(one, Counted((x, y)), key, devices=count, exact=True).weights
        assert found.tobytes() == alone.tobytes(), (more, count, np.abs(found - alone).max())
def wide(params, row, label):
    return -jax.nn.log_softmax(params["b"] @ jax.numpy.tanh(params["a"] @ row))[label]
first = dict(a=rng.normal(size=(67, 3)).astype(np.float32), b=rng.normal(size=(3, 67)).astype(np.float32))
from lastiterate.engine.exact_gradients import fit_network_exactly
from lastiterate.engine.streaming.execution import fit_streaming
class Dear(Counted):
    dear = True
for batching in (li.Cyclic(40), li.RandomAllocation(40), li.FullBatch()):
    one = replace(run, loss=li.KnownConstants(li.LossFacts()), clip=0.5, batching=batching)
    alone = fit_network_exactly(one, wide, first, (x, y), key_from_seed(3), microbatch=8)
    for count in (2, 4):
        found = fit_streaming(one, wide, first, Dear((x, y)), key, devices=count, exact=True,
                              microbatch=8)
        assert all(found[name].tobytes() == alone[name].tobytes() for name in first), (batching, count)
shared, own = Devices(2), np.array([[1.0, -2.0**-40]])
np.testing.assert_array_equal(shared.add_same(np.ones(3), own), 2 * own)
try:
    shared.add_same(np.full(3, 1.0 + int(sys.argv[2])), own)
    raise SystemExit("steps at two parameters were added up")
except InputError as error:
    assert error.argument == "processes" and "same parameters in every step" in str(error), error

def loss(params, row, label):
    return -jax.nn.log_softmax(row @ params)[label]
network = dict(model=np.zeros((3, 3), np.float32), loss=loss, delta=1e-5, devices=2)
quiet = dict(clip=1.0, batching=li.Cyclic(40), noise=li.GradientNoise(1e-9))
plain = replace(run, loss=li.KnownConstants(li.LossFacts()), **quiet)
assert np.isfinite(li.train(plain, (x, y), **network).params).all()
for other, more in ((replace(run, noise=li.GradientNoise(0.01 + int(sys.argv[2]))), None),
                    (plain, {**network, "loss": lambda params, *one: (1 + int(sys.argv[2])) * loss(params, *one)}),
                    (plain, {**network, "model": np.full((3, 3), float(sys.argv[2]), np.float32)})):
    try:
        if more is None:
            execute_streaming(other, Arrays((x, y)), key, devices=2)
        else:
            li.train(other, (x, y), **more)
        raise SystemExit("processes that describe different runs were accepted")
    except InputError as error:
        assert error.argument == "run" and "same in every process" in str(error), error
# the first process keeps a checkpoint, from which one process or both resume
from pathlib import Path
from lastiterate.engine.checkpoint import Checkpoint, Key
from lastiterate.engine.streaming.execution import fit_streaming
from lastiterate.engine.streaming import buffers
first, most = sys.argv[2] == "0", buffers.MOST_CHUNKS
buffers.MOST_CHUNKS = 1  # one step at a time
class Stop(Exception):
    pass
def stop(done, steps, seconds):
    if done >= 4:
        raise Stop
def linear(key, **more):
    return execute_streaming(run, Arrays((x, y)), key, **more).weights
def free(key, **more):
    return fit_streaming(plain, loss, np.zeros((3, 3), np.float32), Arrays((x, y)), key, **more)
def own():
    return Checkpoint(Path(sys.argv[3]), Key(bytes(32)), 0.0) if first else None
for fit, count in ((linear, 2), (free, 2), (linear, 1), (free, 1)):
    try:
        fit(key, progress=stop, checkpoint=own(), devices=2)
        raise SystemExit("it was not stopped")
    except Stop:
        pass
    if first or count == 2:
        steps, held = [], own()
        found = fit(key, progress=lambda done, *_: steps.append(done), checkpoint=held, devices=count)
        assert min(steps) > 3, "steps before the checkpoint are not made again"
        np.testing.assert_allclose(found, fit(key_from_seed(3)), rtol=0, atol=1e-6)
        if first:
            held.finish()
own_x = x
for fit in (linear, free):
    held, x = own(), own_x + (0 if first else np.eye(103, 3, dtype=np.float32))
    try:
        fit(key, progress=stop, checkpoint=held, devices=2)
        raise SystemExit("a key was drawn from on two data sets")
    except InputError as error:
        assert error.argument == "data" and "same in every process" in str(error), error
    if first:
        held.finish()
x = own_x
buffers.MOST_CHUNKS = most
if not first:
    try:
        linear(key, devices=2, checkpoint=Checkpoint(Path(sys.argv[3] + "-2"), Key(bytes(32)), 0.0))
        raise SystemExit("a checkpoint of the second process was accepted")
    except InputError as error:
        assert error.argument == "checkpoint" and "process 0 of a job alone" in str(error), error

prepared = dict(preprocessing=(li.PrivateMean(1.0, 2.0), li.PrivateCovariance(1.0)), noise=li.NoiseMultiplier(1.0))
measured = dict(preprocessing=(li.PrivateMean(1.0, 2.0), li.TopEigenvalue(1.0)), noise=li.NoiseMultiplier(1.0),
                step_size=li.RelativeToSmooth(1.0))
for more, batching, times in ((prepared, li.RandomAllocation(40), 3), (measured, li.Permuted(40), 2)):
    one, read[:] = replace(run, **more, batching=batching), []
    found = execute_streaming(one, Counted((x, y)), key, devices=2)
    assert sum(read) < 0.55 * times * 103, "preparations and sorting read its part"
    alone = execute_streaming(one, Arrays((x, y)), key_from_seed(3))
    np.testing.assert_allclose(found.weights, alone.weights, rtol=0, atol=1e-12)
    for mine, other in zip(found.released, alone.released, strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-9)

def drop_out(done, steps, seconds):
    if sys.argv[2] == "1":
        os._exit(0)
try:
    execute_streaming(replace(run, steps=1000), Arrays((x, y)), key, drop_out, devices=2)
except InputError as error:
    print("done:", error, flush=True)
os._exit(0)  # JAX would wait for the other one
"""


def test_two_processes_make_the_run_of_one(tmp_path):
    """Over loopback, on one device of each or on all; they share the key of the first, so that
    noise is one stream, and each reads its part. Processes that describe different runs are
    refused. The first one's checkpoint is resumed by both or by one. When one drops out the
    other says so in a sentence and releases nothing."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    environment = {**os.environ, "XLA_FLAGS": f"--xla_force_host_platform_device_count=2 {QUICK}"}
    both = [
        subprocess.Popen(
            [sys.executable, "-c", PART, port, str(i), str(tmp_path / "kept")],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for i in range(2)
    ]
    (out, err), (_, other) = (process.communicate() for process in both)
    assert [process.returncode for process in both] == [0, 0], err[-2000:] + other[-2000:]
    said = out.split("done: ")[-1].strip()
    assert said.startswith("devices stopped: one of them, or a process") and "\n" not in said, out


def test_devices_that_are_not_there_are_refused():
    x, y = np.zeros((20, 2), np.float32), np.zeros(20, int)
    run = li.Run(
        n=20, steps=2, step_size=0.1, noise=li.GradientNoise(1.0), loss=li.Logistic(ridge=0.1)
    )
    for count in (0, 1.5, 10**6):
        with pytest.raises(InputError, match="devices"):
            li.train(run, (x, y), devices=count, delta=1e-5)
    with pytest.raises(InputError, match="must not exceed the 1 that JAX sees"):
        li.train(run, (x, y), devices=2, secure_noise=True, delta=1e-5)


def test_processes_with_unequal_numbers_of_devices_are_refused(monkeypatch):
    seen = [SimpleNamespace(process_index=process) for process in (0, 0, 0, 1)]
    monkeypatch.setattr(jax, "devices", lambda: seen)
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    for count, rule in ((2, "equally many in every process"), (3, "a multiple of the 2 processes")):
        with pytest.raises(InputError, match=rule):
            Devices(count)
    seen.append(SimpleNamespace(process_index=1))
    seen.append(SimpleNamespace(process_index=1))
    for count in (2, 4):
        assert Devices(count).count == count


def test_a_device_that_drops_out_ends_the_run_in_one_sentence(monkeypatch):
    class Lost(Devices):
        def __post_init__(self) -> None:
            pass

        def place(self, records):
            raise jax.errors.JaxRuntimeError("UNAVAILABLE: device 3 is gone\nmore lines")

        def compile(self, function):
            return function

    monkeypatch.setattr("lastiterate.engine.streaming.execution.Devices", Lost)
    run = li.Run(
        n=20, steps=2, step_size=0.1, noise=li.GradientNoise(1.0), loss=li.Logistic(ridge=0.1)
    )
    with pytest.raises(
        InputError, match=r"devices stopped: .* got 'UNAVAILABLE: device 3 is gone'; nothing was"
    ):
        execute_streaming(
            run, Arrays((np.zeros((20, 2), np.float32), np.zeros(20, int))), None, devices=2
        )

"""Keys hold 128 random bits, and no random bits are used twice: not by two purposes, and not by two
steps."""

import ast
import itertools
import os
import sys
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import lastiterate as li
from lastiterate.engine import (
    exact_noise,
    execute,
    fresh_key,
    key_from_seed,
    keys_from_seed,
    linear_model,
    minibatch_gather,
    noise,
    random,
)
from lastiterate.engine.exact_linear import execute_exactly
from lastiterate.engine.external_gradients import ExternalLoop
from lastiterate.engine.random import (
    NOISE,
    ORDER,
    PREPARATION,
    START,
    Bits,
    fresh_secret,
    gaussian,
    stream,
)
from lastiterate.engine.step_iterator import run_to_end
from lastiterate.engine.streaming.buffers import Arrays
from lastiterate.engine.streaming.execution import execute_streaming

pytestmark = pytest.mark.system_entropy
N, D = 13, 3
X = np.random.default_rng(0).normal(size=(N, D)).astype(np.float32)
Y = np.arange(N) % 2


@pytest.mark.parametrize(
    "made", [lambda: fresh_key().tobytes(), fresh_secret], ids=["key", "secret"]
)
def test_every_bit_of_a_key_is_one_of_the_operating_systems(
    made: Callable[[], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = set()
    for bit in (None, *range(128)):
        given = (0 if bit is None else 1 << bit).to_bytes(16, "big")
        monkeypatch.setattr(
            "os.urandom", lambda count, given=given: given[:count].ljust(count, b"\0")
        )
        found.add(made())
    assert len(found) == 129 and {len(key) for key in found} == {16}


@pytest.mark.parametrize(
    "made", [lambda: fresh_key().tobytes(), fresh_secret], ids=["key", "secret"]
)
def test_every_byte_of_many_keys_is_uniform_and_no_key_comes_twice(
    made: Callable[[], bytes],
) -> None:
    """Of 2^16 keys of b bits about 2^(31 - b) pairs would be equal."""
    count = 2**16
    keys = [made() for _ in range(count)]
    assert len(set(keys)) == count
    values = np.frombuffer(b"".join(keys), np.uint8).reshape(count, 16)
    counts = np.stack([np.bincount(column, minlength=256) for column in values.T])
    assert np.abs(((counts - count / 256) ** 2).sum(1) / (count / 256) - 255).max() < 8 * np.sqrt(
        510
    )
    for one, two in itertools.combinations(range(16), 2):
        equal = np.count_nonzero(values[:, one] == values[:, two])
        assert abs(equal - count / 256) < 8 * np.sqrt(count / 256), (one, two)


def test_every_bit_of_a_key_is_in_every_stream() -> None:
    key = key_from_seed(3)
    words = np.unpackbits(np.ascontiguousarray(key).view(np.uint8))
    flipped = []
    for bit in range(128):
        other = words.copy()
        other[bit] ^= 1
        flipped.append(np.packbits(other).view(np.uint32))
    run = li.Run(n=N, steps=2, step_size=0.1, clip=1.0, noise=li.GradientNoise(0.3))
    with jax.enable_x64(True):
        for which in (NOISE, START, ORDER, PREPARATION):
            assert (
                len({np.asarray(stream(each, which)).tobytes() for each in (key, *flipped)}) == 129
            )
        assert len({float(gaussian(each, 0, (1,))[0]) for each in (key, *flipped)}) == 129
    exact = {
        exact_noise.draws_of(run, 2.0**-20, each)(0, 1, 1, (1,)).tobytes()
        for each in (key, *flipped)
    }
    assert len(exact) == 129
    assert (
        len({exact_noise.preparation_bits(each, 0).words(2).tobytes() for each in (key, *flipped)})
        == 129
    )


class Used:
    """Which blocks of the cipher every purpose uses: a purpose is the function that asks for noise,
    words or an order.

    Blocks that become keys of streams are no draws, and are left out.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.blocks: dict[Any, list[str]] = defaultdict(list)
        plain, made = random.encrypt, Bits.__post_init__

        def encrypted(key: Any, first: Any, second: Any) -> Any:
            # a callback, because some of it is vectorised
            jax.debug.callback(partial(self._wrote, self._purpose()), key, first, second)
            with jax.disable_jit(False):  # the cipher's rounds one by one are most of the time
                return plain(key, first, second)

        def created(bits: Bits) -> None:
            self.blocks[bits.key, bits.number].append(self._purpose())
            made(bits)

        monkeypatch.setattr(random, "encrypt", encrypted)
        monkeypatch.setattr(Bits, "__post_init__", created)

    def _wrote(self, purpose: str, key: Any, first: Any, second: Any) -> None:
        own = np.asarray(key).tobytes()
        for one, two in zip(np.ravel(first).tolist(), np.ravel(second).tolist(), strict=True):
            if two < int(random.DERIVED):
                self.blocks[own, one, two].append(purpose)

    @staticmethod
    def _purpose() -> str:
        frame = sys._getframe(1)
        while True:
            path = Path(frame.f_code.co_filename)
            if "lastiterate" in path.parts and path.name not in (
                Path(random.__file__).name,
                "exact_noise.py",
            ):
                return f"{path.name} {frame.f_code.co_name}"
            if path.name == "exact_noise.py" and frame.f_code.co_name in (
                "draws",
                "preparation_bits",
            ):
                return f"{path.name} {frame.f_code.co_name}"
            assert frame.f_back is not None
            frame = frame.f_back

    @property
    def purposes(self) -> set[str]:
        return {purpose for each in self.blocks.values() for purpose in each}

    def shared(self) -> set[frozenset[str]]:
        """Purposes that have blocks in common."""
        jax.effects_barrier()
        return {frozenset(each) for each in self.blocks.values() if len(set(each)) > 1}

    def of(self, word: str) -> set[Any]:
        """The blocks of purposes with this word."""
        return {
            block for block, each in self.blocks.items() if any(word in purpose for purpose in each)
        }


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> Iterator[Used]:
    # draws of passes are made in this thread, where nothing is compiled
    monkeypatch.setattr(minibatch_gather, "ahead", lambda items: (item for item in items))
    for module in (random, noise):
        monkeypatch.setattr(
            module, "PAIRS", 64
        )  # what is drawn for steps that are never made takes long here
    with jax.disable_jit():
        yield Used(monkeypatch)


LINEAR: dict[str, Any] = dict(
    n=N, steps=4, step_size=0.2, noise=li.GradientNoise(0.3), loss=li.Logistic(ridge=1e-2)
)
MEAN, COVARIANCE = li.PrivateMean(2.0, 1.0), li.PrivateCovariance(2.0, 0.25)
RUNS: dict[str, tuple[dict[str, Any], set[str]]] = {
    "full": ({}, set()),
    "permuted": ({"batching": li.Permuted(5)}, {"samplers.py"}),
    "reshuffled": ({"batching": li.Reshuffled(5)}, {"sampler_interface.py"}),
    "fixed": ({"batching": li.FixedSize(4)}, {"samplers.py"}),
    "poisson": ({"batching": li.Poisson(0.4)}, {"samplers.py"}),
    "bins": ({"batching": li.BallsInBins(5)}, {"samplers.py"}),
    "allocation": ({"batching": li.RandomAllocation(5)}, {"sampler_interface.py"}),
    "prepared": (
        {"preprocessing": (MEAN, COVARIANCE), "batching": li.Reshuffled(5)},
        {"preprocessing.py", "sampler_interface.py"},
    ),
    "measured": (
        {"preprocessing": (li.TopEigenvalue(2.0, 1e-6),), "step_size": li.RelativeToSmooth(0.5)},
        {"preprocessing.py"},
    ),
    "start": (
        {"start": li.GaussianStart(1.0), "batching": li.Poisson(0.4)},
        {"loop.py start", "samplers.py"},
    ),
    "calibrated": (
        {"probability_calibration": li.Calibration(2.0, 2), "steps": 2},
        {"probability_calibration.py"},
    ),
    "target": (
        {
            "preprocessing": (li.PrivateTargetMean(2.0, 1.0), MEAN),
            "loss": li.HuberRidge(),
            "steps": 2,
        },
        {"preprocessing.py"},
    ),
    "cosines": ({"preprocessing": (li.CosineFeatures(2.0, 1),), "steps": 1}, {"preprocessing.py"}),
    "minimiser": (
        {
            "method": li.ObjectivePerturbation(D + 1),
            "steps": 1,
            "step_size": 1.0,
            "noise": li.NoiseMultiplier(1.0),
        },
        {"methods.py"},
    ),
}
OTHERS = {
    "noise.py": "in every case",
    "sorting.py": "records in pieces, below",
    "samplers.py": "modules, below",
    "exact_noise.py": "takes its bits as an argument",
    "exact_linear.py": "exact noise, below",
    "noisy_accuracy.py": "has a key of its own, below",
    "tuning.py": "has a secret of its own: tests/release",
}
"""Files that draw and are no case of RUNS, and where they are looked at."""


@pytest.mark.parametrize("name", RUNS)
def test_no_two_purposes_share_bits(name: str, used: Used) -> None:
    """Preparation, start, order and steps draw from different blocks of the cipher, and every step
    from its own."""
    changed, wanted = RUNS[name]
    run = li.Run(**LINEAR | changed)
    execute(run, X, Y, key_from_seed(1))
    assert not used.shared()
    assert all(used.of(word) for word in wanted), used.purposes
    if run.method.noisy_steps:
        assert {step for _, _, step in used.of("noise.py normal")} >= set(range(run.steps))


def test_every_file_that_draws_is_looked_at() -> None:
    """By what it imports; a new one belongs to a case above, or to one of its own."""
    drawing = {
        "gaussian",
        "normals",
        "uniform",
        "bits",
        "below",
        "permutation",
        "words",
        "words_between",
        "Bits",
    }
    found = set()
    for path in Path(li.__file__).parent.rglob("*.py"):
        imported = {
            alias.name
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.ImportFrom) and str(node.module).endswith("engine.random")
            for alias in node.names
        }
        if imported & drawing:
            found.add(path.name)
    looked_at = {word.split()[0] for _, wanted in RUNS.values() for word in wanted}
    assert found == (looked_at | set(OTHERS) | {"loop.py"}) & found, found - looked_at - set(OTHERS)
    assert set(OTHERS) <= found


def test_no_two_purposes_share_bits_where_records_come_in_pieces(used: Used) -> None:
    run = li.Run(
        **LINEAR
        | {
            "batching": li.Permuted(5),
            "preprocessing": (MEAN,),
            "probability_calibration": li.Calibration(2.0, 1),
            "steps": 2,
        }
    )
    execute_streaming(run, Arrays((X, Y)), key_from_seed(1))
    assert not used.shared()
    assert all(
        used.of(word)
        for word in ("noise.py", "sorting.py", "preprocessing.py", "probability_calibration.py")
    ), used.purposes


@pytest.mark.parametrize(
    "batching, word",
    [(li.Poisson(0.4), "samplers.py"), (li.Reshuffled(7), "samplers.py")],
    ids=["poisson", "reshuffled"],
)
def test_no_two_purposes_share_bits_where_gradients_come_from_a_module(
    batching: Any, word: str, used: Used
) -> None:
    run = li.Run(
        n=N,
        steps=4,
        step_size=0.2,
        clip=1.0,
        noise=li.GradientNoise(0.3),
        batching=batching,
        start=li.GaussianStart(1.0),
    )
    steps = ExternalLoop(run, ((2,),)).iterate(
        np.zeros(2), lambda point, places, keys: point + len(places), key_from_seed(1)
    )
    run_to_end(steps)
    assert not used.shared()
    assert {step for _, _, step in used.of("noise.py normal")} >= set(range(run.steps))
    assert used.of(word), used.purposes


@pytest.mark.parametrize("preprocessing", [(), (MEAN,)], ids=["plain", "prepared"])
def test_no_two_purposes_share_exact_bits(preprocessing: tuple[Any, ...], used: Used) -> None:
    run = li.Run(
        **LINEAR
        | {
            "noise": li.GradientNoise(0.3),
            "preprocessing": preprocessing,
            "batching": li.Poisson(0.4),
            "probability_calibration": li.Calibration(2.0, 2) if preprocessing else None,
        }
    )
    execute_exactly(run, X, Y, key_from_seed(1))
    assert not used.shared()
    assert len(used.of("exact_noise.py draws")) == run.steps and len(
        used.of("preparation_bits")
    ) == len(preprocessing)
    assert used.of("samplers.py") and len(used.of("exact_linear.py")) == 2 * len(preprocessing)


def test_threads_and_forks_draw_keys_of_their_own() -> None:
    """Nothing of a key's randomness lies in the process, where a thread would share it and a fork
    would copy it."""
    with ThreadPoolExecutor(8) as pool:
        keys = list(pool.map(lambda _: fresh_key().tobytes(), range(400)))
    for _ in range(8):
        reading, writing = os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the child draws keys and does nothing else
            child = os.fork()
        if child == 0:
            os.write(writing, b"".join(fresh_key().tobytes() + fresh_secret() for _ in range(4)))
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading, "rb") as pipe:
            whole = pipe.read()
        os.waitpid(child, 0)
        keys += [whole[first : first + 16] for first in range(0, len(whole), 16)]
    assert len(set(keys)) == len(keys) == 400 + 64


def test_a_count_draws_from_a_key_of_its_own() -> None:
    one, two = keys_from_seed(7, 2)
    assert (one == key_from_seed(7)).all() and not (one == two).any()
    with jax.enable_x64(True):
        streams = {
            np.asarray(stream(key, which)).tobytes()
            for key in (one, two)
            for which in (NOISE, START, ORDER, PREPARATION)
        }
    assert len(streams | {one.tobytes(), two.tobytes()}) == 10


def test_a_preparation_that_used_the_noise_of_a_step_would_be_seen(
    used: Used, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(linear_model, "_key", lambda key, part: stream64(key, NOISE))
    execute(li.Run(**LINEAR | {"preprocessing": (MEAN,)}), X, Y, key_from_seed(1))
    assert [
        each for each in used.shared() if any("preprocessing.py" in purpose for purpose in each)
    ]


def stream64(key: Any, which: int) -> Any:
    with jax.enable_x64(True):
        return stream(key, which)

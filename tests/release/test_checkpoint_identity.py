"""A checkpoint knows its loss: no other one goes on with its key, for the difference of two
releases with the same noise would be a sum of gradients without any."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lastiterate as li
from lastiterate.engine import checkpoint
from lastiterate.engine.streaming.buffers import Arrays
from lastiterate.ledger import GaussianFilter, Ledger
from lastiterate.release.units import UnitLoss

N = 24
X = np.random.default_rng(0).normal(size=(N, 4)).astype(np.float32)
Y = (np.arange(N) % 2).astype(np.float32)
RUN = li.Run(
    n=N, steps=8, step_size=0.3, clip=1.0, batching=li.Cyclic(8), noise=li.GradientNoise(0.2)
)
FIRST = {"a": np.zeros(4, np.float32), "b": np.zeros(1, np.float32)}


class Interrupted(Exception):
    pass


def interrupt(done: int, *_: Any) -> None:
    if done >= 4:
        raise Interrupted


def squares(scale: float = 1.0) -> Callable[..., Any]:
    return lambda p, x, y: scale * (p["a"] @ x + p["b"][0] - y) ** 2


def with_backward(factor: float) -> Callable[..., Any]:
    """The derivative alone differs, and no code of it stands in the traced loss."""

    @jax.custom_vjp
    def same(x: Any) -> Any:
        return x

    same.defvjp(lambda x: (x, None), lambda _, slope: (factor * slope,))
    return lambda p, x, y: same(p["a"] @ x + p["b"][0] - y) ** 2


TABLE = np.arange(4.0, dtype=np.float32)
OTHERS = {
    "a number": (squares(), squares(1.5)),
    "a function": (squares(), lambda p, x, y: jnp.abs(p["a"] @ x + p["b"][0] - y)),
    "a constant array": (
        lambda p, x, y: (p["a"] @ (x * TABLE) + p["b"][0] - y) ** 2,
        lambda p, x, y: (p["a"] @ (x * (TABLE + np.float32([0, 0, 0, 1e-6]))) + p["b"][0] - y) ** 2,
    ),
    "a jitted constant": (
        lambda p, x, y: jax.jit(lambda z: z @ jnp.asarray(TABLE))(p["a"] * x) - y * p["b"][0],
        lambda p, x, y: jax.jit(lambda z: z @ jnp.asarray(-TABLE))(p["a"] * x) - y * p["b"][0],
    ),
    "a long constant": (
        lambda p, x, y: (
            (p["a"] @ x) * jnp.asarray(np.arange(5000.0) % 7).sum() * y + x[0] * p["b"][0]
        ),
        lambda p, x, y: (
            (p["a"] @ x) * jnp.asarray(np.arange(5000.0) % 8).sum() * y + x[0] * p["b"][0]
        ),
    ),
    "a derivative": (with_backward(1.0), with_backward(2.0)),
    "names": (
        lambda p, x, y: p["a"][0] * x[0] * y + p["b"][0] * y,
        lambda p, x, y: p["a"][1] * x[0] * y + p["b"][0] * y,
    ),
}
KINDS: dict[str, dict[str, Any]] = {"memory": {}, "exact": {"secure_noise": True}, "stream": {}}


def begun(kept: dict[str, Any], data: Any, **more: Any) -> bytes:
    with pytest.raises(Interrupted):
        li.train(RUN, data, progress=interrupt, **kept, **more)
    return kept["checkpoint"].read_bytes()


def refused(said: str, kept: dict[str, Any], data: Any, **more: Any) -> None:
    before = kept["checkpoint"].read_bytes()
    with pytest.raises(li.InputError, match=said):
        li.train(RUN, data, **kept, **more)
    assert kept["checkpoint"].read_bytes() == before


def data_of(kind: str) -> Any:
    return Arrays((X, Y)) if kind == "stream" else (X, Y)


@pytest.mark.parametrize("other", OTHERS)
def test_no_other_loss_goes_on(other: str, kept: dict[str, Any]) -> None:
    one, two = OTHERS[other]
    begun(kept, (X, Y), model=FIRST, loss=one)
    said = "another loss, model or optimizer, .*; restore the command that began it"
    refused(said, kept, (X, Y), model=FIRST, loss=two)
    li.train(RUN, (X, Y), model=FIRST, loss=one, **kept)
    assert not kept["checkpoint"].exists()


@pytest.mark.parametrize("kind", KINDS)
def test_in_every_kind_of_network(kind: str, kept: dict[str, Any]) -> None:
    begun(kept, data_of(kind), model=FIRST, loss=squares(), **KINDS[kind])
    refused(
        "another loss, model or optimizer",
        kept,
        data_of(kind),
        model=FIRST,
        loss=squares(2.0),
        **KINDS[kind],
    )
    li.train(RUN, data_of(kind), model=FIRST, loss=squares(), **kept, **KINDS[kind])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("after", [0, 4])
def test_a_run_resumes_from_its_own_first_parameters(
    kind: str, after: int, kept: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the bit: whoever draws other first parameters makes no second release with this noise."""
    asked: dict[str, Any] = dict(loss=squares(), seed=3, **KINDS[kind])
    whole = li.train(RUN, data_of(kind), model=FIRST, **asked).params
    with monkeypatch.context() as patched:
        if not after:  # killed before the first step: only the beginning is kept
            patched.setattr(checkpoint.Checkpoint, "due", False)
        begun(kept, data_of(kind), model=FIRST, **asked)
    other = {"a": np.full(4, 0.5, np.float32), "b": np.ones(1, np.float32)}
    with pytest.warns(UserWarning, match="it continues from its own"):
        again = li.train(RUN, data_of(kind), model=other, **kept, **asked).params
    assert all(again[name].tobytes() == whole[name].tobytes() for name in FIRST)


def test_neither_does_another_arithmetic_or_structure(kept: dict[str, Any]) -> None:
    begun(kept, (X, Y), model=FIRST, loss=squares())
    refused("another", kept, (X, Y), model=FIRST, loss=squares(), secure_noise=True)
    renamed = lambda p, x, y: (p["c"] @ x + p["d"][0] - y) ** 2  # noqa: E731
    refused(
        "another loss, model or optimizer",
        kept,
        (X, Y),
        model={"c": FIRST["a"], "d": FIRST["b"]},
        loss=renamed,
    )
    half = {name: array.astype(np.float16) for name, array in FIRST.items()}
    refused("another loss, model or optimizer", kept, (X, Y), model=half, loss=squares())


def test_units_know_the_loss_within(kept: dict[str, Any]) -> None:
    data = (np.ones((N, 2), np.float32), np.stack([X, X], 1), np.stack([Y, Y], 1))
    begun(kept, data, model=FIRST, loss=UnitLoss(squares(), 2))
    refused(
        "another loss, model or optimizer", kept, data, model=FIRST, loss=UnitLoss(squares(2.0), 2)
    )


def test_linear_models_know_their_arithmetic(kept: dict[str, Any]) -> None:
    from dataclasses import replace

    run, data = replace(RUN, loss=li.Logistic(row_norm=1.0), clip=None), (X, (Y > 0).astype(int))
    with pytest.raises(Interrupted):
        li.train(run, data, progress=interrupt, **kept)
    with pytest.raises(li.InputError, match="another"):
        li.train(run, data, secure_noise=True, **kept)


def test_other_versions_do_not_go_on(kept: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    begun(kept, (X, Y), model=FIRST, loss=squares())
    monkeypatch.setattr(checkpoint, "versions", lambda: "jax 99")
    refused("other versions: .*jax", kept, (X, Y), model=FIRST, loss=squares())


def test_a_checkpoint_of_a_ledger_stays_with_it(kept: dict[str, Any], tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "l")
    ledger.add("a", unit="record", adjacency="zero-out", filter=GaussianFilter.of(100.0, 1e-3))
    begun(kept, (X, Y), model=FIRST, loss=squares(), ledger=ledger, dataset="a")
    refused("was begun under a ledger", kept, (X, Y), model=FIRST, loss=squares())
    li.train(RUN, (X, Y), model=FIRST, loss=squares(), ledger=ledger, dataset="a", **kept)
    assert [release.state for release in ledger.total().releases] == ["released"]


def test_the_same_loss_is_known_in_another_process(kept: dict[str, Any]) -> None:
    begun(kept, (X, Y), model=FIRST, loss=with_backward(1.0))
    script = f"""
import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})
from pathlib import Path
import test_checkpoint_identity as t
path = Path({str(kept["checkpoint"])!r})
t.li.train(t.RUN, (t.X, t.Y), model=t.FIRST, loss=t.with_backward(1.0), checkpoint=path,
           checkpoint_key=path.parent / "key")
assert not path.exists()
"""
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.parametrize(
    "more",
    [["diabetes", "--model", "bayes-linear"], ["digits", "--algorithm", "objective-perturbation"]],
    ids=lambda more: more[-1],
)
def test_what_has_no_steps_keeps_no_checkpoint_and_says_so(
    more: list[str], tmp_path: Path, kept: dict[str, Any]
) -> None:
    """Before anything is charged: whoever runs it again to go on would pay twice."""
    from typer.testing import CliRunner

    from lastiterate.cli import app

    books = tmp_path / "l"
    Ledger(books).add("d", unit="record", adjacency="zero-out", filter=GaussianFilter.of(8.0, 1e-5))
    told = CliRunner().invoke(
        app,
        [
            "train",
            *more,
            "--epsilon",
            "1",
            "--ledger",
            str(books),
            "--dataset",
            "d",
            "--out",
            str(tmp_path / "model"),
            "--checkpoint",
            str(kept["checkpoint"]),
            "--checkpoint-key",
            str(kept["checkpoint_key"]),
        ],
    )
    assert told.exit_code == 2 and "checkpoint is not kept of a" in " ".join(told.output.split()), (
        told.output
    )
    assert (
        not Ledger(books).total().releases
        and not (tmp_path / "model").exists()
        and not (tmp_path / "c").exists()
    )

"""Fits that are charged to a ledger and kept in checkpoints: what is charged when, once, and what
is refused first."""

import json
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import lastiterate as li
from lastiterate.cli import app
from lastiterate.curves.gaussian import Gdp
from lastiterate.engine import checkpoint
from lastiterate.engine.checkpoint import FILE_VARIABLE, VARIABLE, Key, claim
from lastiterate.errors import BudgetWarning
from lastiterate.estimators import DPHuberRidge, DPLogisticRegression
from lastiterate.ledger import GaussianFilter, Ledger, RenyiFilter
from lastiterate.ledger.quote import describe_second_name
from lastiterate.release import composition_reminder, data_file, file_training, linear_model
from lastiterate.release.ledger_charge import (
    Charging,
    compute_keyed_digest,
    make_charging,
    weights_hash,
)
from lastiterate.release.model_kinds import LINEAR
from lastiterate.release.pipeline import finish, run_release
from lastiterate.release.released_model import ReleasedModel
from lastiterate.release.score_meaning import Labels
from lastiterate.release.training_request import Algorithm, Budget, LazyRecords, TrainingRequest
from lastiterate.run.noisy_counts import NoisyCount

RUN = li.Run(n=60, steps=30, step_size=0.3, batching=li.Permuted(20), loss=li.Logistic(ridge=1e-2))


def records() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.uniform(-1, 1, (60, 4)).astype(np.float32), rng.integers(0, 2, 60)


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    found = Ledger(tmp_path / "l")
    found.add("a", unit="record", adjacency="zero-out", filter=GaussianFilter.of(3.0, 1e-5))
    return found


@pytest.fixture
def renyi(tmp_path: Path) -> Ledger:
    """A ledger whose refusals name what fits at once: under a Gaussian filter that search takes
    seconds."""
    found = Ledger(tmp_path / "r")
    found.add("a", unit="record", adjacency="zero-out", filter=RenyiFilter.of(3.0, 1e-5))
    return found


@pytest.fixture
def key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in (VARIABLE, FILE_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    path = tmp_path / "key"
    path.write_text("0f" * 32)
    path.chmod(0o600)
    return path


class Interrupted(Exception):
    pass


def interrupt(done: int, steps: int, seconds: float) -> None:
    if done >= 10:
        raise Interrupted


def test_a_release_is_charged_and_named(ledger: Ledger, tmp_path: Path) -> None:
    model = li.train(RUN, records(), epsilon=1.0, delta=1e-6, ledger=ledger.path, dataset="a")
    (release,) = ledger.total().releases
    assert (
        release.state == "released" and 0.5 < ledger.total().left[0] < 1 and ledger.verify() == ()
    )
    model.save(tmp_path / "m")
    stored = json.loads((tmp_path / "m" / "certificate.json").read_text())
    assert stored["weights_sha256"] == release.model


def test_the_first_charge_under_a_second_name_warns_once(ledger: Ledger) -> None:
    for name in ("b", "empty"):
        ledger.add(name, unit="record", adjacency="zero-out", filter=GaussianFilter.of(3.0, 1e-5))
    said = list[list[str]]()
    for name in ("a", "b", "b", "a"):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            li.train(RUN, records(), epsilon=0.2, delta=1e-6, ledger=ledger.path, dataset=name)
        texts = [str(one.message) for one in caught if one.category is BudgetWarning]
        said.append([text for text in texts if "two names" in text])
    assert said == [
        [],
        [
            "l also holds releases on a, and this is the first on b: if these records are in one of "
            "them, charge it under that name, since the budgets of two names add up"
        ],
        [],
        [],
    ]
    token = ledger.reserve("empty", Gdp(0.1), adjacency="zero-out", run="r" * 64, purpose="p")
    ledger.cancel(token)
    assert "releases on a, b, and" in describe_second_name(ledger, ledger.total("empty"))


def test_a_release_beyond_the_budget_is_refused_before_a_record_is_read(
    renyi: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    def looked(*_: object, **__: object) -> None:
        raise AssertionError("a record was read")

    monkeypatch.setattr(linear_model, "execute", looked)
    monkeypatch.setattr(composition_reminder.Reminder, "sketch", looked)
    monkeypatch.setattr(data_file, "encode", looked)
    with pytest.raises(li.InputError, match="refuses this release"):
        li.train(RUN, records(), epsilon=6.0, delta=1e-5, ledger=renyi, dataset="a")
    with pytest.raises(li.InputError, match="refuses this release"):
        file_training.fit_file(
            TrainingRequest(
                data="iris",
                budget=Budget(8.0, 1e-5),
                algorithm=Algorithm("noisy-gd"),
                charging=make_charging(ledger=renyi, dataset="a"),
            )
        )
    assert renyi.total().releases == () and set(renyi.total().left) == {1.0}


def test_an_aborted_fit_stays_charged(ledger: Ledger) -> None:
    with pytest.raises(Interrupted):
        li.train(RUN, records(), epsilon=1.0, ledger=ledger, dataset="a", progress=interrupt)
    with (
        pytest.warns(BudgetWarning, match="line 1 of the ledger was charged for the same fit"),
        pytest.raises(
            li.InputError,
            match=r"class indices.*; records were read, and the ledger keeps the charge\.$",
        ),
    ):
        li.train(RUN, (records()[0], np.full(60, 7)), epsilon=1.0, ledger=ledger, dataset="a")
    assert [release.state for release in ledger.total().releases] == ["touched", "touched"]


@pytest.mark.parametrize("more", [{}, {"secure_noise": True}], ids=["plain", "exact"])
@pytest.mark.parametrize(
    "loss",
    [lambda p, x, y: p @ x - y, lambda p, x, y: ((p - x) ** 2)[:2], lambda p, x: 0.0],
    ids=["shapes", "a vector", "arguments"],
)
def test_a_mistake_in_a_loss_costs_nothing(ledger: Ledger, loss: object, more: dict) -> None:
    run = li.Run(n=60, steps=3, step_size=0.3, clip=1.0)
    with pytest.raises(li.InputError, match="loss must"):
        li.train(
            run,
            records(),
            model=np.zeros(3),
            loss=loss,
            epsilon=1.0,
            delta=1e-6,
            ledger=ledger,
            dataset="a",
            **more,
        )
    assert ledger.total().releases == ()


def test_accounting_is_free(ledger: Ledger) -> None:
    li.calibrate(RUN, epsilon=1.0, delta=1e-6)
    assert ledger.total().left == (1.0, 1.0)


@pytest.mark.parametrize("made", [DPLogisticRegression, DPHuberRidge])
def test_estimators_are_charged(made: type, renyi: Ledger) -> None:
    x, y = records()
    asked: dict[str, Any] = dict(
        epsilon=1.0, row_norm=1.0, algorithm="noisy-gd", ledger=renyi.path, dataset="a"
    )
    if made is DPLogisticRegression:
        fitted = made(classes=[0, 1], **asked).fit(x, y)
    else:
        fitted = made(target_range=(-1.0, 1.0), **asked).fit(x, y - 0.5)
    (release,) = renyi.total().releases
    assert release.state == "released" and release.purpose == made.__name__
    with pytest.raises(li.InputError, match="refuses"):
        for _ in range(20):
            fitted.fit(x, y)
    assert renyi.verify() == ()


def test_replace_one_ledgers_charge_replace_one(tmp_path: Path) -> None:
    run, left = RUN, {}
    for adjacency in ("zero-out", "replace-one"):
        ledger = Ledger(tmp_path / adjacency)
        ledger.add("a", unit="record", adjacency=adjacency, filter=RenyiFilter.of(8.0, 1e-5))
        li.train(run, records(), epsilon=1.0, delta=1e-6, ledger=ledger, dataset="a")
        left[adjacency] = ledger.total().left[0]
    assert left["replace-one"] < 1 - 2 * (
        1 - left["zero-out"]
    )  # twice the sensitivity, more than twice the divergence


def test_a_resumed_fit_counts_with_the_noise_that_it_had(
    ledger: Ledger, key: Path, tmp_path: Path
) -> None:
    """A process that is killed between its folder and the ledger's last word is run again: a second
    number about the same people would cost as much as the first, and one with the same noise about
    others would show who they are."""
    x, y = records()
    places = np.arange(40), np.arange(40, 60)
    certificate = li.account(
        replace(
            RUN, n=40, noise=li.NoiseMultiplier(20.0), counts=(NoisyCount(8.0, 20, drawn="apart"),)
        )
    )

    def killed(rows: np.ndarray, threshold: float | None = None) -> float:
        charging = make_charging(
            ledger=ledger, dataset="a", checkpoint=tmp_path / "c", every=0.0, key_file=key
        )
        return run_release(
            LINEAR,
            TrainingRequest(
                proof=certificate,
                data=(rows, y),
                delta=1e-6,
                places=places,
                answers=Labels((0, 1), threshold),
                charging=charging,
            ),
        ).counted[0]

    first = killed(x)
    assert killed(x) == first and len(ledger.total().releases) == 1
    others = x.copy()
    others[50] += 1.0
    with pytest.raises(li.InputError, match="other data"):
        killed(others)
    with pytest.raises(
        li.InputError, match="another loss, model or optimizer"
    ):  # the difference of both counts has no noise
        killed(x, 0.9)
    (tmp_path / "c").unlink()
    assert killed(x) != first and len(ledger.total().releases) == 2


def test_a_resumed_fit_is_charged_once_and_releases_the_same_bits(
    ledger: Ledger, key: Path, tmp_path: Path
) -> None:
    asked = dict(
        epsilon=1.0, delta=1e-6, checkpoint=tmp_path / "c", checkpoint_every=0.0, checkpoint_key=key
    )
    whole = li.train(RUN, records(), seed=3, **asked)
    assert not (tmp_path / "c").exists()
    with pytest.raises(Interrupted):
        li.train(RUN, records(), seed=3, ledger=ledger, dataset="a", progress=interrupt, **asked)
    old = (tmp_path / "c").read_bytes()
    (tmp_path / "c").write_bytes(old[:-1])
    with pytest.raises(li.InputError, match="damaged"):
        li.train(RUN, records(), seed=3, ledger=ledger, dataset="a", **asked)
    (tmp_path / "c").write_bytes(old)
    with pytest.raises(li.InputError, match="another run"):
        li.train(RUN, records(), seed=3, ledger=ledger, dataset="a", **(asked | dict(epsilon=0.5)))
    with pytest.raises(li.InputError, match="seed"):
        li.train(RUN, records(), ledger=ledger, dataset="a", **asked)
    again = li.train(RUN, records(), seed=3, ledger=ledger, dataset="a", **asked)
    assert again.released.weights.tobytes() == whole.released.weights.tobytes()
    (release,) = ledger.total().releases
    assert release.state == "released" and release.checkpoint > 1 and not (tmp_path / "c").exists()
    (tmp_path / "c").write_bytes(old)
    with pytest.raises(li.InputError, match="rolled back"):
        li.train(RUN, records(), seed=3, ledger=ledger, dataset="a", **asked)
    assert len(ledger.total().releases) == 1


def test_out_saves_the_model_and_refuses_a_folder_before_the_charge(
    ledger: Ledger, tmp_path: Path
) -> None:
    asked = dict(epsilon=1.0, delta=1e-6, ledger=ledger, dataset="a", out=tmp_path / "m")
    model = li.train(RUN, records(), **asked)
    (release,) = ledger.total().releases
    assert release.state == "released" and release.model == weights_hash(model)
    loaded = li.load(tmp_path / "m")
    assert loaded.released.weights.tobytes() == model.released.weights.tobytes()
    assert li.verify(tmp_path / "m").holds
    with pytest.raises(li.InputError, match=r"^out must not exist yet.*m'; nothing was charged"):
        li.train(RUN, records(), **asked)
    assert ledger.total().releases == (release,)
    with pytest.raises(li.InputError, match="still in this process: save it under another name"):
        model.save(tmp_path / "m")
    assert list(tmp_path.glob(".m-*")) == []


@pytest.mark.parametrize("when", ["release", "discard"])
@pytest.mark.parametrize("kept", [False, True], ids=["alone", "checkpoint"])
def test_the_call_that_was_killed_behind_its_model_returns_it(
    ledger: Ledger,
    key: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    when: str,
    kept: bool,
) -> None:
    asked = dict(epsilon=1.0, delta=1e-6, ledger=ledger, dataset="a", out=tmp_path / "m")
    if kept:
        asked |= dict(checkpoint=tmp_path / "c", checkpoint_key=key)

    def killed(*_: object) -> None:
        raise Interrupted

    with monkeypatch.context() as patched, pytest.raises(Interrupted):
        patched.setattr(Charging, when, killed)
        li.train(RUN, records(), **asked)
    stored = li.load(tmp_path / "m").released.weights.tobytes()
    if when == "discard" and not kept:  # nothing was left to do
        with pytest.raises(li.InputError, match="must not exist yet"):
            li.train(RUN, records(), **asked)
        return
    x, y = records()
    with pytest.raises(li.InputError, match="data must be those of the model"):
        li.train(RUN, (x + 1, y), **asked)
    with pytest.warns(UserWarning, match="nothing was trained or charged again"):
        again = li.train(RUN, records(), **asked)
    assert again.released.weights.tobytes() == stored and not (tmp_path / "c").exists()
    assert [release.state for release in ledger.total().releases] == ["released"]


def test_a_model_that_cannot_be_written_to_out_is_not_lost(ledger: Ledger, tmp_path: Path) -> None:
    def occupied(done: int, steps: int, seconds: float) -> None:
        (tmp_path / "m").mkdir(exist_ok=True)

    with pytest.warns(UserWarning, match="must not exist yet.*the model was saved at") as caught:
        model = li.train(
            RUN,
            records(),
            epsilon=1.0,
            delta=1e-6,
            ledger=ledger,
            dataset="a",
            out=tmp_path / "m",
            progress=occupied,
        )
    (text,) = [str(one.message) for one in caught if "saved at" in str(one.message)]
    where = text.split("saved at ")[1].split(":")[0]
    assert li.load(where).released.weights.tobytes() == model.released.weights.tobytes()


def test_a_fit_that_is_killed_before_it_looked_at_a_record_goes_on(
    ledger: Ledger, key: Path, tmp_path: Path
) -> None:
    """Reading the data takes longest and needs most memory: whoever dies there has paid, and does
    not pay again."""
    asked = dict(
        epsilon=1.0,
        delta=1e-6,
        ledger=ledger,
        dataset="a",
        checkpoint=tmp_path / "c",
        checkpoint_key=key,
    )

    def dies() -> None:
        raise Interrupted

    with pytest.raises(Interrupted):
        ordered(dies, **asked)
    claim = (tmp_path / "c").read_bytes()
    assert [release.state for release in ledger.total().releases] == ["touched"]
    with pytest.raises(li.InputError, match="begun under a ledger"):
        li.train(
            RUN,
            records(),
            **{name: value for name, value in asked.items() if name not in ("ledger", "dataset")},
        )
    with pytest.raises(Interrupted):  # kept now, under a key of its own
        li.train(RUN, records(), progress=interrupt, **asked)
    kept = (tmp_path / "c").read_bytes()
    (tmp_path / "c").write_bytes(claim)
    with pytest.raises(li.InputError, match="rolled back"):
        li.train(RUN, records(), **asked)
    (tmp_path / "c").write_bytes(kept)
    li.train(RUN, records(), **asked)
    assert [release.state for release in ledger.total().releases] == ["released"] and not (
        tmp_path / "c"
    ).exists()


def ordered(before: Callable[[], None], **asked: Any) -> ReleasedModel:
    """``train`` on records that are read when they are paid for, and do something else ``before``."""
    charging = make_charging(
        ledger=asked["ledger"],
        dataset=asked["dataset"],
        checkpoint=asked["checkpoint"],
        every=0.0,
        key_file=asked["checkpoint_key"],
    )

    def read() -> Any:
        before()
        return records()

    certificate = li.calibrate(RUN, epsilon=asked["epsilon"], delta=asked["delta"])
    return finish(
        LINEAR,
        TrainingRequest(
            proof=certificate,
            data=LazyRecords(read),
            delta=asked["delta"],
            charging=charging,
        ),
    )


@pytest.mark.parametrize("killed", [False, True])
def test_two_that_begin_at_once_draw_one_noise(
    killed: bool, ledger: Ledger, key: Path, tmp_path: Path
) -> None:
    asked = dict(
        epsilon=1.0,
        delta=1e-6,
        ledger=ledger,
        dataset="a",
        checkpoint=tmp_path / "c",
        checkpoint_key=key,
    )

    def other() -> None:
        if killed:
            with pytest.raises(Interrupted):
                li.train(RUN, records(), progress=interrupt, checkpoint_every=0.0, **asked)
        else:
            li.train(RUN, records(), **asked)

    if killed:
        ordered(other, **asked)
    else:
        with pytest.raises(li.InputError, match="by another process"):
            ordered(other, **asked)
    assert [release.state for release in ledger.total().releases] == ["released"]


def test_the_ledger_knows_the_data_of_the_process_that_goes_on(
    ledger: Ledger, key: Path, tmp_path: Path
) -> None:
    """One that comes later, with other data, is refused by the checkpoint: what it read is not what
    was trained on."""
    asked = dict(
        epsilon=1.0,
        delta=1e-6,
        ledger=ledger,
        dataset="a",
        checkpoint=tmp_path / "c",
        checkpoint_key=key,
    )
    rows, y = records()

    def other() -> None:
        with pytest.raises(Interrupted):
            li.train(RUN, (rows + 1, y), progress=interrupt, checkpoint_every=0.0, **asked)

    with pytest.raises(li.InputError, match="other data"):
        ordered(other, **asked)
    model = li.train(RUN, (rows + 1, y), **asked)
    known = ledger.find_release(weights_hash(model))
    assert known is not None and known[1] == compute_keyed_digest(known[0].token, (rows + 1, y))


@pytest.mark.parametrize("first", ["copy", "c"])
def test_a_copy_of_the_claim_is_no_second_beginning(
    first: str, ledger: Ledger, key: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that is killed between its first checkpoint and the ledger's word on it has begun:
    who copied its claim would draw other noise under the same line. Of both only the one that comes
    first goes on."""
    asked = dict(epsilon=1.0, delta=1e-6, ledger=ledger, dataset="a", checkpoint_key=key)
    plain = checkpoint.seal

    def dies(path: Path, *rest: Any, **more: Any) -> None:
        if path.exists():
            (tmp_path / "copy").write_bytes(path.read_bytes())
        plain(path, *rest, **more)
        if (tmp_path / "copy").exists():
            raise Interrupted

    monkeypatch.setattr(checkpoint, "seal", dies)
    with pytest.raises(Interrupted):
        li.train(RUN, records(), checkpoint=tmp_path / "c", **asked)
    monkeypatch.undo()
    begun = (tmp_path / "c").read_bytes()
    with pytest.raises(Interrupted):
        li.train(RUN, records(), progress=interrupt, checkpoint=tmp_path / first, **asked)
    with pytest.raises(li.InputError, match="both would draw noise"):
        li.train(
            RUN, records(), checkpoint=tmp_path / ("c" if first == "copy" else "copy"), **asked
        )
    assert (tmp_path / "c").read_bytes() == begun and ledger.verify() == ()
    li.train(RUN, records(), checkpoint=tmp_path / first, **asked)


def test_a_claim_replaces_no_checkpoint(key: Path, tmp_path: Path) -> None:
    (tmp_path / "c").write_bytes(b"another's")
    with pytest.raises(li.InputError, match="by another process"):
        claim(tmp_path / "c", Key(bytes(32)), "t" * 32)
    assert (tmp_path / "c").read_bytes() == b"another's" and len(list(tmp_path.glob(".c-*"))) == 0


def test_a_rolled_back_checkpoint_is_seen_with_a_ledger(
    ledger: Ledger, key: Path, tmp_path: Path
) -> None:
    asked = dict(
        epsilon=1.0,
        ledger=ledger,
        dataset="a",
        progress=interrupt,
        checkpoint=tmp_path / "c",
        checkpoint_every=0.0,
        checkpoint_key=key,
    )
    with pytest.raises(Interrupted):
        li.train(
            RUN, records(), **(asked | dict(progress=lambda done, *_: interrupt(done + 8, 0, 0.0)))
        )
    old = (tmp_path / "c").read_bytes()
    with pytest.raises(Interrupted):
        li.train(RUN, records(), **asked)
    (tmp_path / "c").write_bytes(old)
    with pytest.raises(li.InputError, match="rolled back"):
        li.train(RUN, records(), **asked)


def test_without_a_key_nothing_is_written(key: Path, tmp_path: Path) -> None:
    with pytest.raises(li.InputError, match="needs a key"):
        li.train(RUN, records(), epsilon=1.0, checkpoint=tmp_path / "c")
    assert not (tmp_path / "c").exists()


def test_names_that_belong_together(ledger: Ledger, key: Path) -> None:
    for asked in (dict(dataset="a"), dict(ledger=ledger, dataset="b"), dict(checkpoint_key=key)):
        with pytest.raises(li.InputError):
            li.train(RUN, records(), epsilon=1.0, **asked)


def test_the_command_line(ledger: Ledger, key: Path, tmp_path: Path) -> None:
    def call(*words: object) -> tuple[int, str]:
        found = CliRunner().invoke(app, [*map(str, words)])
        return found.exit_code, found.output

    out = tmp_path / "m"
    asked = (
        "train",
        "iris",
        "--epsilon",
        2,
        "--ledger",
        ledger.path,
        "--dataset",
        "a",
        "--algorithm",
        "noisy-gd",
        "--checkpoint",
        tmp_path / "c",
        "--checkpoint-key",
        key,
    )
    assert call(*asked, "--out", out)[0] == 0
    (release,) = ledger.total().releases
    assert release.state == "released" and not (tmp_path / "c").exists()
    codes = [call(*asked, "--out", tmp_path / f"m{i}")[0] for i in range(2)]
    assert codes == [0, 2] and ledger.verify() == (), (
        "two fits of epsilon 2 are within 3, three are not"
    )
    assert (tmp_path / "m0").exists() and not (tmp_path / "m1").exists()
    code, said = call("train", "iris", "--epsilon", 1, "--dataset", "a", "--out", tmp_path / "n")
    assert code == 2 and "--dataset" in said
    code, said = call(
        "train",
        "diabetes",
        "--epsilon",
        0.05,
        "--model",
        "bayes-linear",
        "--ledger",
        ledger.path,
        "--dataset",
        "a",
        "--adjacency",
        "zero-out",
        "--out",
        tmp_path / "p",
    )
    assert code in (0, 2), said

"""What a run describes and what users call is executed by an audit, or named as not executed."""

import inspect
from dataclasses import fields, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lastiterate as li
from lastiterate.accounting.accounted_run import ExactRun
from lastiterate.audit import audit, audit_one_run, end_to_end, fit_networks, networks, worst_case
from lastiterate.audit.canaries import DataSet, Neighbours, execute
from lastiterate.audit.end_to_end import one_by_one
from lastiterate.audit.runner import (
    GIVEN,
    OTHER_TRAINER,
    SINGLE,
    STAND_IN,
    STEPS,
    auditable,
    default_train,
)
from lastiterate.engine import (
    Trainer,
    checkpoint,
    clipped_gradients,
    exact_linear,
    keys_from_seed,
    trainer,
)
from lastiterate.estimators import DPLogisticRegression
from lastiterate.run.run import DESCRIPTIONS, Run
from tiers import unless

pytestmark = pytest.mark.usefixtures("optimised")  # many models: the time is in the steps

NUMBERS = li.HuberRidge(row_norm=1.0, residual_clip=1.0, ridge=0.5, intercept=0.5)
CLASSES = li.Logistic(ridge=0.1)
RUN = li.Run(
    n=6, steps=4, step_size=0.5, loss=NUMBERS, noise=li.NoiseMultiplier(0.7), batching=li.Cyclic(3)
)
WIDE = {
    "preprocessing": (li.PrivateCovariance(9.0),),
    "step_size": li.StableSteps((0.3,) * 4),
    "clip": 0.1,
    "optimizer": li.HeavyBall(0.5),
}
MEASURED = {"preprocessing": (li.TopEigenvalue(9.0),), "step_size": li.RelativeToSmooth(0.5)}
CASES: dict[str, list[tuple[str, dict]]] = {
    "step_size": [
        ("Constant", {"step_size": 0.2}),
        ("InverseDecay", {"step_size": li.InverseDecay(0.5, 0.5)}),
        ("StepSchedule", {"step_size": (0.5, 0.4, 0.3, 0.2)}),
        ("RelativeToSmooth", MEASURED),
        ("StableSteps", WIDE),
    ],
    "noise": [
        ("GradientNoise", {"noise": li.GradientNoise(0.3)}),
        ("NoiseMultiplier", {"noise": li.NoiseMultiplier(2)}),
        ("Langevin", {"noise": li.Langevin(0.5)}),
        ("Correlated", {"noise": li.Correlated(0.7, 3)}),
    ],
    "batching": [
        ("FullBatch", {"batching": li.FullBatch()}),
        ("Cyclic", {"batching": li.Cyclic(2)}),
        ("Permuted", {"batching": li.Permuted(2)}),
        ("Reshuffled", {"batching": li.Reshuffled(2)}),
        ("FixedSize", {"batching": li.FixedSize(2)}),
        ("Poisson", {"batching": li.Poisson(0.4)}),
        ("BallsInBins", {"batching": li.BallsInBins(2)}),
        ("RandomAllocation", {"batching": li.RandomAllocation(2)}),
    ],
    "domain": [
        ("Everywhere", {"batching": li.FullBatch()}),
        ("Ball", {"domain": li.domains.Ball(0.1)}),
        ("Box", {"domain": li.domains.Box(-0.1, 0.1)}),
        ("Simplex", {"domain": li.domains.Simplex()}),
        ("AffineBall", {"domain": li.domains.AffineBall(1.0, ((1.0, 1.0),), (0.1,))}),
    ],
    "prox": [
        ("L1", {"prox": li.penalties.L1(0.1)}),
        ("L2Squared", {"prox": li.penalties.L2Squared(0.1)}),
        ("ElasticNet", {"prox": li.penalties.ElasticNet(0.1, 0.1)}),
        ("GroupLasso", {"prox": li.penalties.GroupLasso(0.1)}),
        ("NuclearNorm", {"prox": li.penalties.NuclearNorm(0.1)}),
    ],
    "start": [("FixedStart", {"steps": 5}), ("GaussianStart", {"start": li.GaussianStart(1.0)})],
    "optimizer": [
        ("HeavyBall", {"optimizer": li.HeavyBall(0.5)}),
        ("Nesterov", {"optimizer": li.Nesterov()}),
        ("Adam", {"optimizer": li.Adam(), "clip": 1.0}),
        (
            "PostProcessing",
            {
                "optimizer": li.PostProcessing("mine"),
                "step_size": 1.0,
                "clip": 1.0,
                "loss": li.KnownConstants(li.LossFacts()),
            },
        ),
    ],
    "preprocessing": [
        ("PrivateMean", {"preprocessing": (li.PrivateMean(9.0, 1.0),)}),
        ("PrivateTargetMean", {"preprocessing": (li.PrivateTargetMean(9.0, 1.0),)}),
        ("SquareRoots", {"preprocessing": (li.SquareRoots(),)}),
        ("UnitRows", {"preprocessing": (li.UnitRows(),)}),
        ("CosineFeatures", {"preprocessing": (li.CosineFeatures(9.0, 4),)}),
        ("PrivateCovariance", {"preprocessing": (li.PrivateCovariance(9.0),)}),
        ("TopEigenvalue", MEASURED),
    ],
    "loss": [
        ("Logistic", {"loss": CLASSES}),
        ("Softmax", {"loss": li.Softmax(classes=3)}),
        ("HuberRidge", {"loss": replace(NUMBERS, ridge=0.1)}),
        ("KnownConstants", {"loss": li.KnownConstants(li.LossFacts()), "clip": 1.0}),
    ],
    "method": [
        ("NoisySGD", {"steps": 5}),
        ("TailAverage", {"method": li.TailAverage(0.5)}),
        ("ExponentialAverage", {"method": li.ExponentialAverage(0.9)}),
        ("VarianceReduced", {"method": li.VarianceReduced(2, 1.0), "batching": li.Poisson(0.4)}),
        (
            "ObjectivePerturbation",
            {
                "method": li.ObjectivePerturbation(2),
                "loss": CLASSES,
                "steps": 1,
                "batching": li.FullBatch(),
                "step_size": 1.0,
            },
        ),
    ],
    "counts": [
        ("NoisyCount", {"counts": (li.NoisyCount(5.0, 6),), "loss": CLASSES}),
        ("NoisyGroups", {"counts": (li.NoisyGroups(5.0, 6, ("a", "b")),), "loss": CLASSES}),
    ],
    "probability_calibration": [
        ("Calibration", {"probability_calibration": li.Calibration(9.0, 1), "loss": CLASSES}),
        ("AssumedSlope", {"probability_calibration": li.AssumedSlope(0.5), "loss": CLASSES}),
    ],
    "augmentation": [
        (
            "RecordAugmentation",
            {
                "augmentation": li.RecordAugmentation("shaken", 2),
                "clip": 1.0,
                "loss": li.KnownConstants(),
            },
        )
    ],
    "n": [("", {"n": 7})],
    "steps": [("", {"steps": 5})],
    "clip": [("", {"clip": 0.1})],
    "release": [("", {"release": "all"})],
    "adjacency": [("", {"adjacency": "replace-one"})],
    "rows_per_unit": [("", {"rows_per_unit": 2})],
    "rows_per_record": [("", {"rows_per_record": 2})],
}
"""Every class that a field of a run may hold, and a run that differs in it."""
EVERY = [(field, kind) for field, found in CASES.items() for kind, _ in found]
QUICK = {
    "Langevin",
    "Permuted",
    "Simplex",
    "L1",
    "GaussianStart",
    "HeavyBall",
    "PostProcessing",
    "TopEigenvalue",
    "StableSteps",
    "NoisyCount",
    "Calibration",
    "KnownConstants",
    "",
}
FREE = {"n", "clip", "steps"}
"""Changes of numbers that other tests look at, in the exhaustive tier here."""


def test_the_cases_are_all_that_a_run_can_describe() -> None:
    assert set(CASES) == {item.name for item in fields(Run)}
    for field, kinds in DESCRIPTIONS.items():
        wanted = {kind.__name__ for kind in kinds} - {"NoneType"}
        assert {kind for kind, _ in CASES[field]} == wanted, field
    for kinds in CASES.values():
        assert all(replace(RUN, **changes) for _, changes in kinds), "none is refused"


def shown(run: Run, least: float = -np.inf) -> np.ndarray:
    """What an audit trains of a run under one key, on both data sets of its first pair; no entry of
    a row is below ``least``."""
    pair = (
        networks.families(run)[0]
        if networks.is_clipped_only(run)
        else worst_case(run, None if run.method.model_parameters or run.preprocessing else 1)
    )
    train = default_train(run)
    filled = [
        replace(data, features=np.maximum(data.features, least))
        for data in (pair.with_record, pair.without_record)
    ]
    return np.concatenate(
        [np.ravel(execute(run, data, train, keys_from_seed(3, 1))) for data in filled]
    )


@pytest.mark.parametrize(
    ("field", "kind"), unless(lambda case: case[1] in QUICK and case[0] not in FREE, EVERY)
)
def test_every_described_part_is_executed_or_named(
    field: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It changes what is trained, or the report says that it is not executed."""
    described = replace(RUN, **dict(CASES[field])[kind])
    found = auditable(described)
    named = {text.split()[0] for text in found.lacking}
    if field in named:
        assert (
            not kind
            or kind in next(text for text in found.lacking if text.split()[0] == field)
            or field == "loss"
        )
        return
    if field == "rows_per_record":  # places with the same row give the model of that row
        monkeypatch.setattr(end_to_end, "execute_units", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            shown(found.run)
        return
    plain = replace(found.run, **{field: getattr(RUN, field)})
    # a pair's rows have norms of 0 and 1, which neither roots nor divisions by the norm change
    least = 0.25 if field == "preprocessing" else -np.inf
    one = shown(found.run, least)
    two = shown(RUN if plain == found.run else plain, least)
    assert one.shape != two.shape or not np.allclose(one, two, rtol=1e-6), "it is executed"


def test_parameters_of_train_that_no_way_uses_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = end_to_end.train

    def grown(run: Run, data: object, *, colour: str = "", **given: object) -> object:
        return real(run, data, **given)

    every = [*inspect.signature(real).parameters.values()]
    extra = inspect.Parameter("colour", inspect.Parameter.KEYWORD_ONLY, default="")
    grown.__signature__ = inspect.Signature([*every, extra])  # type: ignore[attr-defined]
    monkeypatch.setattr(end_to_end, "train", grown)
    broken, left = ways(RUN)
    assert (
        broken == ()
        and "colour" in left[-1]
        and left[-1].startswith("of train: model, loss, epsilon")
    )
    used = {"seed", "checkpoint", "ledger", "scratch", "progress"}
    assert not used & set(left[-1].removeprefix("of train: ").split(", "))


def ways(run: Run) -> tuple[tuple[str, ...], tuple[str, ...]]:
    pair = worst_case(run)
    return end_to_end.check_entry_points(
        end_to_end.linear(run, pair),
        lambda keys: default_train(run)(pair.with_record.features, pair.with_record.target, keys),
    )


def test_what_is_refused_is_named_with_the_reason() -> None:
    broken, left = ways(replace(RUN, noise=li.GradientNoise(0.0)))
    assert broken == () and left[0].endswith(
        "train, stopped and resumed (nothing certifies the run)"
    )
    assert end_to_end.check_entry_points(
        end_to_end.linear(replace(RUN, steps=10**6), worst_case(RUN)), lambda _: 1 / 0
    )[1]


def test_a_pipeline_that_trains_another_model_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    trained = Trainer.fit_arranged
    monkeypatch.setattr(
        Trainer, "fit_arranged", lambda self, *given, **named: 1.01 * trained(self, *given, **named)
    )
    broken, _ = ways(RUN)
    assert broken == tuple(
        f"{words} gives another model than the one that is attacked"
        for words in ("train", "train, stopped and resumed")
    )


def test_a_checkpoint_that_loses_a_step_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    state = checkpoint.Checkpoint.state.fget
    assert state is not None

    def lost(checkpoint: checkpoint.Checkpoint) -> tuple[int, dict[str, np.ndarray]]:
        done, arrays = state(checkpoint)
        return max(done - 1, 0), arrays

    monkeypatch.setattr(checkpoint.Checkpoint, "state", property(lost))
    assert ways(RUN)[0] == (
        "train, stopped and resumed gives another model than the one that is attacked",
    )


def test_a_key_that_is_no_fresh_one_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer, "fresh_key", lambda: keys_from_seed(9, 1)[0])
    assert ways(RUN)[0] == ("two calls of train give one model",)


class Loose:
    """Array functions for which every number is a finite one."""

    def __getattr__(self, name: str) -> object:
        return (
            (lambda given: jnp.ones_like(given, bool)) if name == "isfinite" else getattr(jnp, name)
        )


def test_a_network_that_releases_all_iterates_is_the_one_that_is_attacked() -> None:
    """All arrays of one iterate come before the next one's, as in the program that is attacked."""
    run = li.Run(
        n=4,
        steps=3,
        step_size=0.5,
        clip=1.0,
        noise=li.NoiseMultiplier(4.0),
        batching=li.Permuted(2),
        release="all",
        optimizer=li.Adam(),
    )
    pair = networks.families(run)[0]
    features, target = pair.with_record.features, pair.with_record.target
    broken, _ = end_to_end.check_entry_points(
        networks.public(run, pair), lambda keys: networks.train_many(run)(features, target, keys)
    )
    assert broken == ()


def test_gradients_that_are_no_numbers_leave_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    run = li.Run(
        n=6, steps=2, step_size=0.5, clip=1.0, noise=li.NoiseMultiplier(0.7), batching=li.Cyclic(3)
    )
    pair = networks.families(run)[0]
    assert networks.violations(run, pair, 1) == ()
    monkeypatch.setattr(clipped_gradients, "jnp", Loose())
    jax.clear_caches()
    assert "no number" in networks.violations(run, pair, 1)[0]
    jax.clear_caches()


def test_exact_noise_is_attacked_as_it_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    run = replace(RUN, noise=li.NoiseMultiplier(2.0), batching=li.FullBatch())
    pair = worst_case(run)
    right = audit(ExactRun(run), neighbours=pair, trials=120, seed=1)
    assert (
        not right.refuted
        and "of train: " in right.not_executed[-1]
        and "secure" not in right.not_executed[-1]
    )
    draws_of = exact_linear.draws_of
    monkeypatch.setattr(
        exact_linear, "draws_of", lambda *given: lambda *asked: 0 * draws_of(*given)(*asked)
    )
    assert audit(ExactRun(run), neighbours=pair, trials=120, seed=1).refuted


def test_units_of_several_rows_are_attacked_as_units() -> None:
    """A unit whose places hold one row moves the model as that row moves it where it is a record."""
    units = replace(RUN, rows_per_record=3, noise=li.GradientNoise(0.3))
    pair = worst_case(units)
    for data in (pair.with_record, pair.without_record):
        rows = execute(
            RUN, data, Trainer(replace(units, rows_per_record=1)).fit_many, keys_from_seed(1, 1)
        )
        found = execute(RUN, data, one_by_one(units), keys_from_seed(1, 1))
        np.testing.assert_allclose(np.ravel(found), np.ravel(rows), rtol=1e-6)


def test_modules_are_trained_by_the_ways_of_their_users(monkeypatch):
    """A released module's run is attacked on a stand-in; ``train`` on the same module gives the
    very model."""
    pytest.importorskip("torch")
    from lastiterate.torch.audited_modules import stand_in

    run = li.Run(
        n=4,
        steps=2,
        step_size=0.3,
        loss=li.KnownConstants(li.LossFacts()),
        clip=1.0,
        batching=li.Reshuffled(2),
        noise=li.GradientNoise(1.0),
    )
    train, pair = stand_in(run, networks.SHAPES), networks.families(run)[0]

    def attacked(keys, moved=0.0):
        data = pair.with_record
        return train(data.features, data.target, keys) + moved

    monkeypatch.setattr(end_to_end, "WAYS", {"train on records in pieces": end_to_end.in_pieces})
    broken, left = end_to_end.check_entry_points(train.call(pair), attacked, noisy=False)
    assert broken == () and not any("train on records in pieces" in words for words in left)
    monkeypatch.setattr(end_to_end, "WAYS", {"train": end_to_end.in_memory})
    assert end_to_end.check_entry_points(
        train.call(pair), lambda keys: attacked(keys, 1e-3), noisy=False
    )[0] == ("train gives another model than the one that is attacked",)


def test_a_report_says_what_was_executed_however_it_is_called() -> None:
    few: dict[str, Any] = {"trials": 60, "failure": 0.3, "batch_models": 60, "seed": 1}
    run = li.Run(n=4, steps=2, step_size=0.3, clip=1.0, noise=li.NoiseMultiplier(2.0))
    pair = networks.families(run)[0]
    own = networks.train_many(run)
    stand_in = audit(run, neighbours=pair, **few)
    assert stand_in.caveats == (STAND_IN,)
    assert stand_in.not_executed[0] == "loss (a function of the user's)"
    given = audit(run, neighbours=pair, train=lambda *a, **k: own(*a, **k), **few)
    assert given.caveats == (GIVEN,) and given.not_executed == (OTHER_TRAINER,)
    assert given.upper == stand_in.upper and given.upper_whole is None
    once = replace(run, n=60, steps=1)
    made = networks.train_many(once, {"first": (30,), "second": (30,)})
    assert STAND_IN in audit_one_run(once, canaries=60, seed=1).caveats
    assert GIVEN in (found := audit_one_run(once, canaries=60, seed=1, train=made).caveats)
    assert not any("not executed" in text for text in found)
    units = replace(RUN, preprocessing=(li.PrivateMean(20.0, 1.0),), rows_per_unit=3, steps=50_000)
    found = auditable(units, given=True)
    assert found.claimed == replace(units, rows_per_unit=1) and found.lacking == (
        "rows_per_unit (3)",
    )
    assert found.run.preprocessing == ()  # what the records are for; the claim is of all the run


def test_replay_says_what_it_attacks() -> None:
    few: dict[str, Any] = {"attack": "replay", "trials": 60, "failure": 0.3}
    mean = replace(RUN, preprocessing=(li.PrivateMean(20.0, 1.0),))
    report = audit(mean, **few)
    assert report.not_executed == ("preprocessing (PrivateMean)", SINGLE)
    assert report.upper_whole == li.account(mean).epsilon(1e-5) > report.upper
    estimator = DPLogisticRegression(epsilon=1.0, delta=1e-5, row_norm=1.0, classes=[0, 1])
    assert audit(estimator, n=60, features=3, **few).caveats == (STEPS,)
    for subject, more in ((ExactRun(RUN), {}), (RUN, {"train": Trainer(RUN).fit_many})):
        with pytest.raises(li.InputError, match="guesses the keys that the library draws"):
            audit(subject, **few, **more)


def test_records_of_any_shape_are_attacked_by_a_trainer_that_takes_them() -> None:
    run = li.Run(n=8, steps=2, step_size=0.3, clip=1.0, noise=li.NoiseMultiplier(0.1))
    images, labels = np.zeros((8, 1, 2, 3), np.float32), np.zeros((8, 2))
    images[3, 0, 1, 2] = 4.0

    def pair(x: np.ndarray, y: np.ndarray) -> Neighbours:
        return Neighbours(DataSet(x, y), DataSet(x, y, absent=3), 3, "one bright image")

    def loss(params: Any, image: Any, label: Any) -> Any:
        return -(params * image).sum()

    def train(x: Any, y: Any, keys: Any, absent: Any = ()) -> np.ndarray:
        x = np.where(np.isin(np.arange(8), absent)[:, None, None, None], 0, x)
        return np.asarray(
            fit_networks(run, loss, np.zeros((1, 2, 3), np.float32), (x, y), keys)
        ).reshape(len(keys), -1)

    few: dict[str, Any] = {"trials": 200, "batch_models": 200, "seed": 1}
    report = audit(run, neighbours=pair(images, labels), train=train, **few)
    assert report.lower > 2 and report.caveats == (GIVEN,)  # hardly any noise
    assert audit(run, neighbours=pair(images, labels), train=train, trials=100).trials == 100
    with pytest.raises(li.InputError, match=r"gradients of 7 .* shape \(1, 2, 3\)'; give the trai"):
        audit(run, neighbours=pair(images, labels), **few)
    other = images.copy()
    other[5, 0, 0, 0] = 1.0
    with pytest.raises(li.InputError, match=r"must differ in one record, not in 2, got .3, 5."):
        Neighbours(DataSet(images, labels), DataSet(other, labels, absent=3), 3, "two")
    other = labels.copy()
    other[3, 1] = 1.0
    assert Neighbours(DataSet(images, labels), DataSet(images, other), 3, "another label")
    with pytest.raises(li.InputError, match="an entry for each record of features, got 'features"):
        DataSet(images, labels[:3])

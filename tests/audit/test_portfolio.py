"""The portfolio: what single attacks miss, valid statements, whole trainers, laws, networks."""

import warnings
from dataclasses import replace

import numpy as np
import pytest

import lastiterate as li
from benchmarks.audit.bugs import batching, clipping, noise, output, preparation
from lastiterate.accounting.guarantee import Guarantee
from lastiterate.audit import audit, worst_case
from lastiterate.audit.canary_families import families
from lastiterate.audit.end_to_end import end_to_end
from lastiterate.audit.exact_distribution import compare, quadratic_run
from lastiterate.audit.report import OTHER, Claim
from lastiterate.audit.runner import default_train
from lastiterate.audit.statements import best_threshold
from lastiterate.engine import Trainer, keys_from_seed
from lastiterate.estimators import DPLogisticRegression
from lastiterate.run import adjacency as record_bounds

pytestmark = pytest.mark.usefixtures("optimised")  # many models: the time is in the steps

LOSS = li.HuberRidge(row_norm=1.0, residual_clip=1.0, ridge=0.5, intercept=0.5)
RUN = li.calibrate(li.Run(n=6, steps=12, step_size=0.5, loss=LOSS), epsilon=1.0, delta=1e-5).run
SWAPPED = li.calibrate(replace(RUN, adjacency="replace-one"), epsilon=1.0, delta=1e-5).run


def test_a_right_trainer_stands_and_the_report_says_what_each_attack_saw():
    report = audit(RUN, trials=4000, seed=1)
    assert not report.refuted and report.lower <= report.upper
    assert report.attack == "projection" and report.lower_gaussian > 0.5, (
        "the tight pair is the favourite"
    )
    assert (
        sum(one.share for one in report.seen) == pytest.approx(1.0) and report.seen[0].share == 0.5
    )
    assert len({one.neighbours for one in report.seen}) == 2 < report.pairs
    rows = report.rows()
    assert sum(label == "tried" for label, _ in rows) == 2
    assert {"would have been seen", "cannot be seen"} <= {label for label, _ in rows}


CAUGHT = {
    "no noise on the intercept": (noise.BUGS, "learned"),
    "rows clipped by the largest coordinate": (clipping.BUGS, "projection"),
    "rows above a quantile unclipped, logistic": (clipping.BUGS, "learned"),
    "fit with half the noise of fit_many": (output.BUGS, None),
}


@pytest.mark.parametrize("name", CAUGHT)
def test_bugs_that_one_attack_on_one_pair_misses(name, patched):
    bugs, attack = CAUGHT[name]
    bug = next(bug for bug in bugs if bug.name == name)
    run = bug.subject()
    for patch in bug.patches:
        patched(*patch)
    assert not audit(run, attack="projection", trials=4000, seed=2, batch_models=200).refuted
    report = audit(run, trials=4000, seed=2, batch_models=200)  # one program for both
    assert report.refuted
    if attack is None:
        assert report.verdict == OTHER and "fit and fit_many" in report.violations[0]
    else:
        assert any(one.refuted_at is not None and one.attack == attack for one in report.seen)


def exactly(mu):
    """A trainer in NumPy that is exactly mu-GDP on the tight pair under replace-one."""

    def train(features, target, keys):
        draws = np.array([np.random.default_rng(key).normal(size=2) for key in np.asarray(keys)])
        return (draws + mu / 2 * np.sign(target.sum()) * np.array([1.0, 0.0]))[:, None, :]

    return train


def test_all_attacks_together_are_wrong_as_seldom_as_they_say():
    """An exactly tight trainer, failure probability 0.3, 40 audits: 24 refutations have probability
    below 1e-4."""
    pair = worst_case(replace(SWAPPED, batching=li.Permuted(6)))  # all targets have one sign
    pair = replace(
        pair,
        gaussian=False,
        direction=np.array([[1.0, 0.0]]),
        without_record=replace(
            pair.without_record,
            target=-7 * pair.with_record.target * (np.arange(6) == pair.record)
            + pair.with_record.target,
        ),
    )
    mu = li.account(SWAPPED).best(1e-5).result.curve.mu
    reports = [
        audit(SWAPPED, neighbours=pair, train=exactly(mu), trials=300, failure=0.3, seed=seed)
        for seed in range(40)
    ]
    assert len(reports[0].seen) > 5 and sum(report.refuted for report in reports) < 24
    assert max(report.lower for report in reports) > 0, "it attacks something"
    assert audit(SWAPPED, neighbours=pair, train=exactly(8 * mu), trials=1000, seed=0).refuted


def test_thresholds_look_where_the_claim_is_contradicted_most():
    claim = Claim.of(li.account(RUN))
    rng = np.random.default_rng(0)
    present, without = rng.normal(0.27, 1, 4000), rng.normal(0, 1, 4000)
    assert best_threshold(claim, present, without)[1] < 4.5
    assert best_threshold(claim, present + 0.4, without)[1] > 10
    bounded, distance = best_threshold(
        claim, np.clip(rng.normal(0, 1, 4000), -2, 2) + 0.27, np.clip(without, -2, 2)
    )
    assert distance > 5 and abs(bounded) > 1.7, "bounded noise shows at its end alone"
    assert claim.refute(0.001, 0.01) is not None and claim.refute(0.5, 0.5) is None


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"batching": li.Cyclic(2)},
        {"adjacency": "replace-one"},
        {"loss": li.Softmax(classes=3, row_norm=2.0, ridge=0.1)},
        {"loss": li.Logistic(ridge=0.1), "adjacency": "replace-one"},
    ],
    ids=str,
)
def test_pairs_have_one_shape_and_bounded_directions(changes):
    run = replace(RUN, **changes)
    found = families(run)
    assert (
        len(
            {
                (pair.with_record.features.shape, pair.with_record.target.dtype.kind)
                for pair in found
            }
        )
        == 1
    )
    assert len({pair.about for pair in found}) == len(found) > 10
    for pair in found[1:]:
        empty = pair.without_record
        assert empty.absent is None or (
            not empty.features[empty.absent].any() and empty.target[empty.absent] == 0
        )


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"batching": li.Permuted(2)},
        {"adjacency": "replace-one"},
        {"loss": li.Softmax(classes=3, row_norm=2.0, ridge=0.1)},
        {"loss": li.Logistic(ridge=0.1), "batching": li.RandomAllocation(2)},
    ],
    ids=str,
)
def test_pairs_are_turned_by_the_seed_and_a_right_trainer_leaks_as_much(changes):
    """The tight pair stays; the record of a pair that is turned moves a model along the direction
    that is turned."""
    run = replace(RUN, **changes)
    one, other, again = (families(run, seed=seed) for seed in (1, 2, 1))
    assert all(
        np.array_equal(a.with_record.features, b.with_record.features)
        for a, b in zip(one, again, strict=True)
    )
    np.testing.assert_array_equal(one[0].with_record.features, other[0].with_record.features)
    if run.batching.drawn != "never":
        assert len({pair.record for found in (one, other) for pair in found}) > 3, (
            "places are drawn, too"
        )
    assert (
        sum(
            not np.array_equal(a.with_record.features, b.with_record.features)
            for a, b in zip(one, other, strict=True)
        )
        > len(one) // 2
    )
    trainer = Trainer(replace(run, noise=li.NoiseMultiplier(0.0), steps=1, batching=li.FullBatch()))
    for pair in (*one[1:], *other[1:]):
        if pair.direction is None:
            continue
        key, absent = (
            keys_from_seed(3, 1),
            () if pair.without_record.absent is None else (pair.record,),
        )
        moved = trainer.fit_many(
            pair.with_record.features, pair.with_record.target, key
        ) - trainer.fit_many(
            pair.without_record.features, pair.without_record.target, key, absent=absent
        )
        cosine = (
            (moved[0] * pair.direction).sum()
            / np.linalg.norm(moved)
            / np.linalg.norm(pair.direction)
        )
        assert cosine > (0.86 if run.loss.outputs == 3 else 0.999), (
            pair.about
        )  # at 0 a third class has a share


def test_an_exchange_that_the_accountant_counts_as_one_record_is_refuted(patched, monkeypatch):
    """The audit makes neighbours from the word of the adjacency, and shares no count of records
    with the accountant."""
    wrong = (record_bounds, "records_moved", lambda adjacency: 1)
    with monkeypatch.context() as alone:
        alone.setattr(*wrong)
        with pytest.raises(li.NotCertified, match="quadratic-witness"):
            li.calibrate(replace(RUN, adjacency="replace-one"), epsilon=1.0, delta=1e-5)
    patched(wrong, (Guarantee, "check_lower_bounds", lambda self, delta: None))
    run = li.calibrate(replace(RUN, adjacency="replace-one"), epsilon=1.0, delta=1e-5).run
    assert audit(run, trials=4000, seed=1).refuted


def test_private_preparation_is_attacked_with_its_noise(patched):
    run = li.calibrate(
        replace(RUN, preprocessing=(li.PrivateMean(20.0, 1.0),)), epsilon=1.0, delta=1e-5
    ).run
    pair = families(run)[0]
    few = {
        "trials": 30,
        "batch_models": 30,
        "seed": 1,
    }  # one by one; without the noise of the mean, all are told apart
    right = audit(run, neighbours=pair, **few)
    assert not right.refuted and right.upper == pytest.approx(1.0, rel=1e-3) and not right.caveats
    bug = next(bug for bug in preparation.BUGS if "private mean" in bug.name)
    patched(*bug.patches[0])
    assert audit(run, neighbours=pair, train=default_train(run), **few).refuted


def test_estimators_are_attacked_as_a_whole(patched):
    warnings.simplefilter("ignore")
    estimator = DPLogisticRegression(epsilon=1.0, delta=1e-5, row_norm=1.0, classes=[0, 1])
    whole = end_to_end(estimator, 400, 3)
    pair = next(
        pair
        for pair in families(whole.run, 3)
        if pair.about == "an extreme row among ordinary ones"
    )
    few = {"n": 400, "features": 3, "trials": 30, "seed": 1}
    right = audit(estimator, neighbours=pair, **few)
    assert not right.refuted and right.adjacency == "replace-one" and right.upper <= 1.0
    patched(*next(bug for bug in preparation.BUGS if "estimator" in bug.name).patches[0])
    assert audit(estimator, neighbours=pair, **few).refuted


def test_laws_of_drawn_batches(patched):
    run = replace(
        RUN, batching=li.RandomAllocation(2), optimizer=li.Nesterov(), start=li.GaussianStart(0.1)
    )
    assert compare(run, seed=3).holds
    for patch in batching.ONE_DRAW:
        patched(*patch)
    assert not compare(run, seed=3).holds


@pytest.mark.parametrize(
    "changes",
    [
        {"probability_calibration": li.Calibration(9.0, 1), "loss": li.Logistic()},
        {"rows_per_record": 3, "loss": li.Logistic()},
        {
            "augmentation": li.RecordAugmentation("shaken", 2),
            "clip": 1.0,
            "loss": li.KnownConstants(),
        },
    ],
    ids=lambda found: next(iter(found)),
)
def test_the_law_is_that_of_the_steps_alone(changes):
    """What is done to records before the steps, or to the model after them, does not keep anybody
    from it."""
    steps = {name: part for name, part in changes.items() if name in ("loss", "clip")}
    assert quadratic_run(replace(RUN, **changes)) == quadratic_run(replace(RUN, **steps))


def test_networks_are_attacked_on_a_loss_that_stands_in(patched):
    run = li.calibrate(li.Run(n=6, steps=4, step_size=0.5, clip=1.0), epsilon=4.0, delta=1e-5).run
    report = audit(run, trials=3000, seed=1)
    assert (
        not report.refuted
        and report.lower_gaussian > 0.7 * report.upper
        and "stand-in" in report.caveats[0]
    )
    patched(*noise.NOISE_HALVED)
    assert audit(run, trials=3000, seed=1).refuted

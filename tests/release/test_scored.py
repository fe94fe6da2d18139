"""Accuracy that may be shown: what it costs, which records it is about, what its interval covers."""

import math
import re
import warnings
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

import lastiterate as li
from lastiterate.curves.gaussian import Gdp
from lastiterate.curves.selection import WorstOf
from lastiterate.engine import keys_from_seed
from lastiterate.estimators import DPHuberRidge, DPLogisticRegression
from lastiterate.ledger.filters import GaussianFilter
from lastiterate.ledger.ledger import Ledger
from lastiterate.planning.task import Task, budget
from lastiterate.release import linear_model, noisy_accuracy
from lastiterate.release.ledger_charge import Charging
from lastiterate.release.linear_plans import plan_run
from lastiterate.release.model_kinds import LINEAR
from lastiterate.release.noisy_accuracy import (
    Accuracy,
    CountCharge,
    accuracies,
    accuracy,
    count_for,
    half_width,
    noisy_count,
    noisy_numbers,
    split_held_out,
)
from lastiterate.release.pipeline import run_release
from lastiterate.release.score_meaning import Labels
from lastiterate.release.training_request import Algorithm, Budget, TrainingRequest
from lastiterate.report.guarantee_section import answers
from lastiterate.report.guideline_sheets import cyclonedx, nist
from lastiterate.report.subject import read
from lastiterate.run.noisy_counts import NoisyCount, NoisyGroups

DELTA = 1e-5
RNG = np.random.default_rng(6)
X = RNG.normal(size=(300, 4))
Y = (X[:, 0] + 0.3 * RNG.normal(size=300) > 0).astype(int)
RUN = li.Run(
    n=270, steps=40, step_size=1.0, loss=li.Logistic(), noise=li.NoiseMultiplier(20.0), clip=0.5
)


@pytest.fixture(scope="module")
def estimator():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(noisy_accuracy, "TOO_WIDE", 1.0)  # its 30 counted records are few
        return DPLogisticRegression(
            epsilon=3.0,
            delta=DELTA,
            run=RUN,
            classes=["no", "yes"],
            random_state=4,
            report_accuracy=0.2,
        ).fit(X, np.array(["no", "yes"])[Y])


def epsilon(run, delta=DELTA):
    return li.account(run).epsilon(delta)


def test_every_record_pays_for_what_it_is_part_of():
    alone, mu = li.account(RUN).curve("composition-gdp"), 0.4
    both = li.account(replace(RUN, counts=(NoisyCount(1 / mu, 30),))).curve("composition-gdp")
    assert both.mu == pytest.approx(math.hypot(alone.mu, mu), rel=1e-2) and both.mu > math.hypot(
        alone.mu, mu
    )
    apart = li.account(replace(RUN, counts=(NoisyCount(1 / mu, 30, drawn="apart"),))).curve(
        "composition-gdp"
    )
    assert isinstance(apart, WorstOf) and apart.curves[0] == alone
    assert apart.epsilon(DELTA) == max(alone.epsilon(DELTA), apart.curves[1].epsilon(DELTA))
    assert Gdp(mu).epsilon(DELTA) <= apart.curves[1].epsilon(DELTA) <= Gdp(1.02 * mu).epsilon(DELTA)
    loud = replace(RUN, counts=(NoisyCount(0.1, 30, drawn="apart"),))
    assert epsilon(loud) > Gdp(9.9).epsilon(DELTA), "the worse of the two, not the training alone"
    # a later count may be of records of either part
    three = replace(RUN, counts=(NoisyCount(2.0, 30, drawn="apart"), NoisyCount(3.0, 300)))
    curve = li.account(three).curve("composition-gdp")
    assert curve.curves[0].mu == pytest.approx(math.hypot(alone.mu, 1 / 3), rel=1e-2)
    assert curve.curves[1].mu == pytest.approx(math.hypot(1 / 2, 1 / 3), rel=1e-2)


@pytest.mark.parametrize(("share", "half"), [(0.0001, 0.5), (0.005, 0.23), (0.9, 0.07)])
def test_a_wide_interval_is_refused_or_said_before_the_charge(monkeypatch, share, half):
    """Its width follows from public numbers; a refusal names the part that is enough."""

    def refuse(*_, **__):
        raise li.InputError("ledger", "refuses")

    monkeypatch.setattr(Charging, "charge", refuse)

    def fit(share):
        with warnings.catch_warnings(record=True) as caught, pytest.raises(li.InputError) as error:
            warnings.simplefilter("always")
            DPLogisticRegression(
                epsilon=3.0, delta=DELTA, row_norm=3.0, classes=[0, 1], report_accuracy=share
            ).fit(np.tile(X, (10, 1)), np.tile(Y, 10))
        return str(error.value), [
            str(one.message) for one in caught if "known to within about" in str(one.message)
        ]

    noise = count_for(share, 3.0, DELTA, 300).noise_multiplier
    assert half_width(NoisyCount(noise, 300)) == pytest.approx(half, abs=0.006)
    error, said = fit(share)
    assert len(said) == (0.2 < half < 0.25)
    assert all(f"{half:.2f} only: its count of 300 records" in one for one in said)
    assert not said or f"standard deviation {noise:.3g}. Give it a larger part" in said[0]
    if half < 0.25:
        assert error == "ledger refuses."
        return
    enough = re.fullmatch(
        r"report_accuracy must buy an accuracy that is known to within less than 0.25: this one "
        rf"would be known to within about 0.50 only, as its count of 300 records has noise of "
        rf"standard deviation {noise:.3g}, got 0.0001; report_accuracy=(0\.\d+) is enough, or "
        r"leave it out and score on a public file; nothing was charged\.",
        error,
    )
    assert enough is not None, error
    assert fit(float(enough[1]))[0] == "ledger refuses."
    assert fit(0.98 * float(enough[1]))[0].startswith("report_accuracy must buy")


def test_where_no_part_is_enough_none_is_named():
    model = DPLogisticRegression(row_norm=3.0, classes=[0, 1], report_accuracy=0.5)
    with pytest.raises(li.InputError, match=r"got 0\.5; leave it out and score on a public file"):
        model.fit(X, Y)


def test_the_part_that_is_named_for_persons_leaves_the_training_something():
    """Where other rows of a person are trained on, the count takes from what the training has."""
    task = Task(n=3000, features=4, classes=2, rows_per_unit=2)
    order = TrainingRequest(data=None, budget=Budget(1.0, DELTA), algorithm=Algorithm("noisy-gd"))
    with pytest.raises(li.InputError, match=r"=0\.\d+ is enough") as error:
        plan_run(replace(order, report_accuracy=0.01), task)
    enough = float(re.search(r"=(0\.\d+) is", str(error.value))[1])
    found = plan_run(replace(order, report_accuracy=enough), task).certificate
    assert found.epsilon(DELTA) <= 1.0 and found.run.counts
    with pytest.raises(li.InputError, match=r"got 0\.01; leave it out"):
        plan_run(replace(order, report_accuracy=0.01), replace(task, n=900))


def test_a_later_score_that_says_nothing_is_refused_before_the_charge(estimator, tmp_path):
    model, labels = estimator.fitted_, np.array(["no", "yes"])[Y]
    ledger = Ledger(tmp_path / "book")
    ledger.add("data", unit="row", adjacency="zero-out", filter=GaussianFilter(9.0, 1e-7))
    paid = {"ledger": ledger, "dataset": "data"}
    for more in ({}, {"by": labels, "groups": ("no", "yes")}):
        with pytest.raises(
            li.InputError, match=r"^epsilon must buy an accuracy .*; epsilon=0\.\d+ is enough, or"
        ) as error:
            model.private_score(X, labels, epsilon=0.05, **more, **paid)
        assert ledger.total("data").releases == ()
        enough = float(re.search(r"epsilon=([\d.]+) is", str(error.value))[1])
        model.private_score(X, labels, epsilon=enough, **more)


def test_the_half_width_of_an_interval_grows_to_one_half():
    widths = [half_width(NoisyCount(z, 1000)) for z in (0.01, 10.0, 100.0, 1e6)]
    assert widths == sorted(widths) and widths[-1] == pytest.approx(0.5, abs=1e-2)
    middle = accuracy(NoisyCount(10.0, 1000), 500.0)
    assert widths[1] == (middle.high - middle.low) / 2


def test_several_processes_release_one_count(monkeypatch):
    """Its noise is drawn under the key of the first of them: two draws for one count would cost
    twice."""
    certificate = li.account(replace(RUN, counts=(NoisyCount(50.0, 30, drawn="apart"),)))
    kept, out = split_held_out(300)

    def counted():
        return run_release(
            LINEAR,
            TrainingRequest(
                proof=certificate,
                data=(X, Y),
                delta=DELTA,
                answers=Labels((0, 1)),
                places=(kept, out),
            ),
        ).counted

    assert counted() != counted()
    monkeypatch.setattr(linear_model.Devices, "same_key", lambda self, key: keys_from_seed(5, 1)[0])
    released = linear_model.execute
    monkeypatch.setattr(
        linear_model,
        "execute",
        lambda *given: released(*given[:3], keys_from_seed(5, 1)[0], *given[4:]),
    )
    assert counted() == counted()


def test_a_count_moves_by_one_whatever_the_neighbours_are():
    for adjacency in ("zero-out", "replace-one"):
        one = li.account(
            replace(RUN, adjacency=adjacency, counts=(NoisyCount(0.5, 30, drawn="apart"),))
        )
        assert one.curve("composition-gdp").curves[1].mu == pytest.approx(2.0, rel=1e-2)
    people = li.account(replace(RUN, rows_per_unit=3, counts=(NoisyCount(0.5, 30),)))
    assert people.curve("composition-gdp").mu > 6.0


@pytest.mark.parametrize(
    "change, word",
    [
        ({"rows_per_unit": 2}, "cannot be apart"),
        ({"loss": li.HuberRidge()}, "records whose class"),
        ({"release": "all"}, "must be 'last'"),
    ],
)
def test_what_cannot_be_counted_is_refused(change, word):
    with pytest.raises(li.InputError, match=word):
        replace(RUN, counts=(NoisyCount(1.0, 30, drawn="apart"),), **change)


def test_the_share_is_what_is_spent():
    found = count_for(0.25, 2.0, DELTA, 30)
    assert found.apart and found.noise_multiplier == pytest.approx(2 / budget(2.0, DELTA), rel=0.02)
    people = count_for(0.25, 2.0, DELTA, 30, rows_per_unit=4)
    assert not people.apart and people.noise_multiplier == pytest.approx(4 * found.noise_multiplier)
    for share in (0.0, 1.0, True, "half"):
        with pytest.raises(li.InputError, match="report_accuracy must lie"):
            count_for(share, 2.0, DELTA, 30)


def test_an_accuracy_leads_with_its_interval():
    """One right of one, and a whole interval, are no accuracy of 1."""
    sure, wide = Accuracy(0.9, 0.85, 0.95, 500, True), Accuracy(1.0, 0.495, 1.0, 200, False)
    assert str(sure) == (
        "0.850 to 0.950 with 95% confidence; counted 0.900, with noise, on 500 private records"
    )
    assert str(wide) == (
        "0.495 to 1.000 with 95% confidence; counted 1.000, with noise, on 200 private records: too "
        "few records, at this noise, to say more; they, or other rows of the same person, may be "
        "trained on"
    )


def test_parts_are_public_and_disjoint():
    train, held = split_held_out(300)
    assert len(held) == 30 and sorted([*train, *held]) == list(range(300))
    with pytest.raises(li.InputError, match="at least 20 records"):
        split_held_out(19)


def test_noise_is_as_described_and_intervals_cover():
    count, truth = NoisyCount(4.0, 400), 0.8
    drawn = np.array(
        [noisy_count(np.ones(400, bool), count, key) for key in keys_from_seed(3, 200)]
    )
    assert drawn.mean() == pytest.approx(400, abs=1.2) and drawn.std() == pytest.approx(
        4.0, rel=0.2
    )
    rng = np.random.default_rng(0)
    hits, widths = 0, []
    for _ in range(600):
        found = accuracy(count, rng.binomial(400, truth) + 4.0 * rng.normal())
        hits += found.low <= truth <= found.high
        widths.append(found.high - found.low)
    assert hits >= 0.95 * 600 and np.mean(widths) < 0.14
    for counted in (-50.0, 0.0, 400.0, 470.0):
        found = accuracy(count, counted)
        assert 0 <= found.low <= found.value <= found.high <= 1
    with pytest.raises(li.InputError, match="y must have 400 entries"):
        noisy_count(np.ones(3, bool), count, keys_from_seed(0, 1)[0])


def test_what_is_counted_is_not_trained_on(estimator, monkeypatch):
    (found,) = estimator.fitted_.accuracies
    assert found.records == 30 and found.apart and found.low <= found.value <= found.high
    assert estimator.run_.n == 270 and estimator.certificate_.epsilon(DELTA) <= 3.0
    _, held = split_held_out(300)
    other = Y.copy()
    other[held] = 1 - other[held]
    monkeypatch.setattr(noisy_accuracy, "TOO_WIDE", 1.0)
    again = DPLogisticRegression(**estimator.get_params()).fit(X, np.array(["no", "yes"])[other])
    assert (again.model_.weights == estimator.model_.weights).all()
    assert again.fitted_.counted[0] + estimator.fitted_.counted[0] == pytest.approx(
        30 + 2 * (estimator.fitted_.counted[0] - round_count(estimator)), abs=1e-6
    )


def round_count(estimator):
    _, held = split_held_out(300)
    return int((estimator.predict(X[held]) == np.array(["no", "yes"])[Y[held]]).sum())


def test_every_further_score_is_charged(estimator, tmp_path):
    model, labels = estimator.fitted_, np.array(["no", "yes"])[Y]
    ledger = Ledger(tmp_path / "book")
    ledger.add(
        "data",
        unit="row",
        adjacency="zero-out",
        filter=GaussianFilter(1.5 * budget(1.0, DELTA), 1e-7),
    )
    scored = model.private_score(X, labels, epsilon=1.0, ledger=ledger, dataset="data")
    assert (
        len(scored.accuracies) == 2
        and scored.accuracies[-1].records == 300
        and not scored.accuracies[-1].apart
    )
    assert abs(scored.counted[-1] - (model.predict(X) == labels).sum()) < 8 / budget(1.0, DELTA)
    assert scored.certificate.epsilon(DELTA) > model.certificate.epsilon(DELTA)
    assert (
        scored.released.weights == model.released.weights
    ).all() and model.run.counts != scored.run.counts
    with pytest.raises(li.InputError, match="refuses"):
        model.private_score(X, labels, epsilon=1.2, ledger=ledger, dataset="data")
    scored.save(tmp_path / "model")
    loaded = li.load(tmp_path / "model")
    assert loaded.accuracies == scored.accuracies and li.verify(tmp_path / "model").holds
    text = (tmp_path / "model" / "certificate.json").read_text()
    assert "accuracy: a count over 300 records, which may be trained on too" in text
    (tmp_path / "model" / "certificate.json").write_text(
        text.replace('"records": 300', '"records": 301')
    )
    assert not li.verify(tmp_path / "model").holds


def test_labels_of_another_kind_are_refused_before_they_are_charged(estimator, tmp_path):
    ledger = Ledger(tmp_path / "book")
    ledger.add("data", unit="row", adjacency="zero-out", filter=GaussianFilter(9.0, 1e-7))
    for wrong, words in (
        (Y, "must hold labels of the model, which are texts, got 'numbers'"),
        (np.array(["no", "yes"])[Y][:-1], "must be one label for each of 300 records"),
    ):
        with pytest.raises(li.InputError, match=words):
            estimator.fitted_.private_score(X, wrong, epsilon=1.0, ledger=ledger, dataset="data")
    assert ledger.total("data").releases == ()


def test_a_run_with_a_count_needs_its_records():
    run = replace(RUN, counts=(NoisyCount(1.0, 30, drawn="apart"),))
    with pytest.raises(li.InputError, match="counts must be one, with the records"):
        li.train(run, (X[:270], Y[:270]), delta=DELTA)


def test_nobody_may_have_more_counted_rows_than_is_charged(estimator):
    """``unit`` is looked at: too many rows of one are refused, and where nobody names it the
    certificate says so."""
    model, labels, person = estimator.fitted_, np.array(["no", "yes"])[Y], np.arange(300)
    assert len(model.private_score(X, labels, epsilon=1.0, unit=person).accuracies) == 2
    with pytest.raises(li.InputError, match=r"unit must have at most rows_per_unit = 1 rows"):
        model.private_score(X, labels, epsilon=1.0, unit=person // 2)
    with pytest.raises(li.InputError, match=r"unit must name the unit of each"):
        model.private_score(X, labels, epsilon=1.0, unit=person[1:])
    of_two = replace(RUN, n=150, rows_per_unit=2)
    two = li.train(of_two, (X[:150], Y[:150]))
    assert any(
        "no unit has more rows" in text
        for text in two.private_score(X, Y, epsilon=1.0).certificate.caveats
    )
    named = li.train(of_two, (X[:150], Y[:150]), unit=person[:150] // 2)
    asked = named.private_score(X, Y, epsilon=1.0, unit=person // 2)
    assert not any("no unit has more rows" in text for text in asked.certificate.caveats)
    assert (
        asked.run.counts[-1].noise_multiplier
        > 1.9 * model.private_score(X, labels, epsilon=1.0).run.counts[-1].noise_multiplier
    )
    alone = li.train(replace(RUN, n=150), (X[:150], Y[:150]), unit=person[:150])
    for protecting in (named, alone):  # else several rows of one count, and one is charged
        with pytest.raises(li.InputError, match=r"unit is needed: the certificate is about each"):
            protecting.private_score(X, Y, epsilon=1.0)
    column = np.array([f"p{i}" for i in person], dtype=object)  # as pandas keeps text
    assert len(alone.private_score(X, Y, epsilon=1.0, unit=column).accuracies) == 1
    with pytest.raises(li.InputError, match=r"unit must be one integer or text per row"):
        alone.private_score(X, Y, epsilon=1.0, unit=np.array([None, *column[1:]], dtype=object))
    units = li.train(replace(RUN, n=150, rows_per_record=2, clip=None), (X, Y), unit=person // 2)
    with pytest.raises(li.InputError, match="model must be one whose records are rows"):
        units.private_score(X, Y, epsilon=1.0, unit=person // 2)


# by groups


def moved_most(exchange):
    """The farthest, in Euclidean norm, that one record moves how many are right and wrong in three
    groups, by trying all there are: right or wrong, of a group or of none; zeroed, or exchanged for
    any other."""
    silent, records = (
        NoisyGroups(1e-12, 3, ("a", "b", "c")),
        [(r, g) for r in (True, False) for g in "abcz"],
    )

    def counts(*rows):
        rows = [*rows, (True, "z"), (False, "z"), (True, "z")][:3]
        right, by = zip(*rows, strict=True)
        return np.array(noisy_numbers(np.array(right), by, silent, keys_from_seed(0, 1)[0]))

    others = (
        records if exchange else [(True, "z")]
    )  # of no group: counted nowhere, like a record that is not there
    common = (False, "b")
    return max(
        np.linalg.norm(counts(one, common) - counts(two, common))
        for one in records
        for two in others
    )


def test_what_groups_cost_is_what_one_record_can_move():
    for adjacency, exchange in (("zero-out", False), ("replace-one", True)):
        run = replace(
            RUN, adjacency=adjacency, counts=(NoisyGroups(1 / 0.4, 300, ("a", "b", "c")),)
        )
        most = moved_most(exchange)
        assert most == pytest.approx(math.sqrt(2) if exchange else 1.0)
        beside = math.sqrt(
            li.account(run).curve("composition-gdp").mu ** 2
            - li.account(replace(run, counts=())).curve("composition-gdp").mu ** 2
        )
        assert 0.4 * most < beside < 0.41 * most, "not less than what is moved"
        charge = CountCharge(run, run.counts[0], adjacency)
        assert charge.curve().mu == pytest.approx(0.4 * most, rel=0.02)
        assert charge.with_adjacency("replace-one").curve().mu == pytest.approx(
            0.4 * math.sqrt(2), rel=0.02
        )
        people = CountCharge(replace(run, rows_per_unit=3), run.counts[0], adjacency)
        assert people.curve().mu == pytest.approx(3 * charge.curve().mu)


@pytest.mark.parametrize(
    ("names", "why"),
    [
        (("a", "a\0"), "a null character"),
        (("a\0", "b"), "a null character"),
        (("a", "b\n"), "must be printable"),
    ],
)
def test_a_record_is_of_one_group(names, why):
    """Arrays of text take "a" and "a\\0" for the same name: such groups would count a record twice."""
    assert np.array(["a"])[0] == np.array(["a\0"])[0]
    with pytest.raises(li.InputError, match=f"groups .*{why}"):
        NoisyGroups(1.0, 300, names)


def test_groups_are_scored_for_the_price_of_one_count(estimator, tmp_path):
    model, labels = estimator.fitted_, np.array(["no", "yes"])[Y]
    by = np.where(X[:, 1] > 0, "women", "men")
    by[:9] = "not said"
    ledger = Ledger(tmp_path / "book")
    ledger.add(
        "data",
        unit="row",
        adjacency="zero-out",
        filter=GaussianFilter(1.2 * budget(2.0, DELTA), 1e-7),
    )
    scored = model.private_score(
        X, labels, epsilon=2.0, by=by, groups=("women", "men"), ledger=ledger, dataset="data"
    )
    whole = model.private_score(X, labels, epsilon=2.0)
    assert scored.certificate.epsilon(DELTA) == whole.certificate.epsilon(DELTA)
    assert scored.run.counts[-1].noise_multiplier == whole.run.counts[-1].noise_multiplier
    women, men = scored.accuracies[-2:]
    assert (women.group, men.group) == ("women", "men") and str(women).startswith("women: ")
    right = model.predict(X) == labels
    for found in (women, men):
        own, reach = by == found.group, 8 * scored.run.counts[-1].noise_multiplier
        assert (
            abs(found.records - own.sum()) < reach and found.low <= right[own].mean() <= found.high
        )
    assert women.records + men.records < 300 + reach, "who is of no group is counted nowhere"
    with pytest.raises(li.InputError, match="refuses"):
        model.private_score(
            X, labels, epsilon=2.0, by=by, groups=("women", "men"), ledger=ledger, dataset="data"
        )
    scored.save(tmp_path / "model")
    assert (
        li.load(tmp_path / "model").accuracies == scored.accuracies
        and li.verify(tmp_path / "model").holds
    )
    shown = read(tmp_path / "model")
    assert (
        str(women) in "".join(map(str, answers(shown)))
        and '"slice": "women"' in cyclonedx(shown)["bom.cdx.json"]
    )
    hides = "One overall accuracy does not show whether a rare class is ever predicted."
    assert hides in "".join(map(str, answers(shown))), "the first one is of all records"
    assert hides[1:-1] in "".join(nist(shown).values())
    again = scored.private_score(X, labels, epsilon=1.0)
    assert len(again.accuracies) == 4 and again.accuracies[:3] == scored.accuracies


def test_labels_as_groups_show_a_class_that_is_never_predicted(tmp_path):
    """What one accuracy hides, and the page does not say of scores by class."""
    labels = np.where(np.arange(300) % 20 == 0, "yes", "no")
    run = replace(RUN, n=300)
    model = DPLogisticRegression(epsilon=3.0, delta=DELTA, run=run, classes=["no", "yes"])
    fitted = model.fit(X, labels).fitted_
    never = (fitted.predict(X) == "no").all()
    scored = fitted.private_score(X, labels, epsilon=8.0, by=labels, groups=("no", "yes"))
    assert never and scored.accuracies[0].low > 0.9 and scored.accuracies[1].low == 0.0
    scored.save(tmp_path / "model")
    shown = read(tmp_path / "model")
    assert "rare class" not in "".join([*map(str, answers(shown)), *nist(shown).values()])


def test_intervals_of_groups_cover():
    count, rng = NoisyGroups(4.0, 400, ("a", "b")), np.random.default_rng(1)
    hits = 0
    for _ in range(400):
        right = rng.binomial(150, 0.8), rng.binomial(60, 0.6)
        truth = np.array([right[0], 150 - right[0], right[1], 60 - right[1]])
        one, two = accuracies((count,), tuple(truth + 4.0 * rng.normal(size=4)))
        hits += (one.low <= 0.8 <= one.high) + (two.low <= 0.6 <= two.high)
        assert one.low <= one.value <= one.high and two.low <= two.value <= two.high
    assert hits >= 0.95 * 800
    empty, _ = accuracies((count,), (-9.0, -3.0, 40.0, 2.0))
    assert (empty.low, empty.high, empty.records) == (0.0, 1.0, 0)


def test_groups_are_named_beforehand(estimator):
    model, labels = estimator.fitted_, np.array(["no", "yes"])[Y]
    for given, word in (
        ({"by": labels}, "belong together"),
        ({"groups": ("no", "yes")}, "belong together"),
        ({"by": labels, "groups": ("no",)}, "two or more names"),
        ({"by": labels, "groups": ("no", "no")}, "all different"),
        ({"by": labels[1:], "groups": ("no", "yes")}, "by must have 300 entries"),
    ):
        with pytest.raises(li.InputError, match=word):
            model.private_score(X, labels, epsilon=1.0, **given)
    with pytest.raises(li.InputError, match="counts must be one"):
        li.train(
            replace(RUN, counts=(NoisyGroups(1.0, 30, ("a", "b")),)),
            (X[:270], Y[:270]),
            delta=DELTA,
        )


def test_persons_of_several_rows_are_not_counted_by_rows():
    """The user gives unit=, and no counts: the refusal names what he gave."""
    model = DPLogisticRegression(
        epsilon=3.0, delta=DELTA, row_norm=3.0, classes=[0, 1], rows_per_unit=3
    )
    who = np.arange(len(Y)) // 3
    fitted = model.fit(X, Y, units=who).fitted_
    with pytest.raises(
        li.InputError, match=r"whose records are rows.*records of up to 3 rows.*report_acc"
    ):
        fitted.private_score(X, Y, epsilon=0.1, unit=who)
    with pytest.raises(
        li.InputError, match=r"write a number such as 0.05, or the two costs as a t"
    ):
        model.set_params(threshold="1:20").fit(X, Y, units=who)
    with pytest.raises(li.InputError, match=r"got 'who'; give the column: units=frame\['who'\]"):
        model.set_params(threshold=None).fit(X, Y, units="who")


NAMES = {
    "age": {"kind": "number", "low": 0, "high": 100},
    "b": {"kind": "number", "low": 0, "high": 1},
}
TABLE_FACTS = {"target": "y", "classes": ["no", "yes"], "columns": NAMES}


@pytest.fixture(scope="module")
def of_table():
    """A model with a schema, the table that it was trained on, and its labels."""
    rng = np.random.default_rng(8)
    table = {"age": rng.uniform(0, 100, 300), "b": rng.uniform(0, 1, 300)}
    labels = np.where(table["age"] > 50, "yes", "no")
    model = DPLogisticRegression(epsilon=3.0, schema=TABLE_FACTS).fit(table, labels)
    return model, table, labels


def make_book(folder):
    ledger = Ledger(folder / "book")
    ledger.add("data", unit="row", adjacency="zero-out", filter=GaussianFilter(9.0, 1e-7))
    return ledger


def test_a_score_takes_tables_where_the_model_has_a_schema(of_table, tmp_path):
    estimator, table, labels = of_table
    model, ledger = estimator.fitted_, make_book(tmp_path)
    frame = pd.DataFrame(table)
    right = (estimator.predict(table) == labels).sum()
    for given in (table, frame, frame.assign(y=labels), estimator.transformer_.transform(table)):
        scored = model.private_score(given, labels, epsilon=1.0, ledger=ledger, dataset="data")
        assert abs(scored.counted[-1] - right) < 8 / budget(1.0, model.delta)
    assert len(ledger.total("data").releases) == 4


def test_the_form_of_scored_records_is_looked_at_before_the_charge(estimator, of_table, tmp_path):
    model, table, labels = of_table[0].fitted_, *of_table[1:]
    ledger, plain, texts = make_book(tmp_path), estimator.fitted_, np.array(["no", "yes"])[Y]
    asked = dict(epsilon=1.0, ledger=ledger, dataset="data")
    for one, x, y, words in (
        (plain, X[:, :-1], texts, r"x must have \d+ features like the model"),
        (plain, X.astype(object), texts, "x must be rows of numbers, at least one"),
        (plain, X.astype(str), texts, "x must be rows of numbers, at least one"),
        (plain, X[:0], texts[:0], "x must be rows of numbers, at least one"),
        (plain, [[1.0], [1.0, 2.0]], texts[:2], r"x must have \d+ features like the model"),
        (plain, {"age": X[:, 0]}, texts, "x must be rows of numbers .*no schema.*one row for"),
        (plain, pd.DataFrame({"age": X[:, 0]}), texts, r"x must have \d+ features like the model"),
        (model, {"age": [30]}, ["no"], "data file misses the column 'b' of the schema"),
        (model, {"age": [30, 40], "b": [1]}, ["no"], "X must have columns of one length"),
        (model, {"age": [], "b": []}, [], "x must hold at least one record"),
        (model, {"c": [30]}, ["no"], "data file has no column that the schema describes"),
        (model, pd.DataFrame({"c": [1.0]}), ["no"], r"x must have 16 features.*SchemaTransformer"),
        (model, table, labels[1:], "y must be one label for each of 300 records"),
        (model, table, labels == "yes", "y must hold labels of the model, which are texts"),
    ):
        with pytest.raises(li.InputError, match=words):
            one.private_score(x, y, **asked)
    assert ledger.total("data").releases == ()


def test_a_value_that_is_refused_after_the_charge_says_that_the_charge_stays(of_table, tmp_path):
    model, table, labels = of_table[0].fitted_, *of_table[1:]
    rows = of_table[0].transformer_.transform(table).copy()
    rows[7, 0] = np.nan
    ages = [*table["age"][:-1], None]
    ledger = make_book(tmp_path)
    for number, x in enumerate((rows, table | {"age": ages})):
        with pytest.raises(li.InputError, match="the ledger keeps the charge"):
            model.private_score(x, labels, epsilon=1.0, ledger=ledger, dataset="data")
        assert len(ledger.total("data").releases) == number + 1


def test_a_regression_has_no_right_labels_to_count():
    x = np.linspace(0, 1, 400)[:, None]
    model = DPHuberRidge(row_norm=1.0, target_range=(0, 1)).fit(x, x[:, 0]).fitted_
    with pytest.raises(li.InputError, match=r"model must be one of classes.*a number in \[0, 1\]"):
        model.private_score(x, x[:, 0], epsilon=1.0)

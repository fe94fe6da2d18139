"""Certificates: verdicts, adjacencies, round trips, and what makes them refuse."""

import copy
import json
import os
import re
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

import lastiterate as li
from lastiterate.accounting import certificate_subject
from lastiterate.accounting.certificate_json import content_hash
from lastiterate.accounting.certificate_subject import curves_of_preprocessing
from lastiterate.curves.gaussian import Gdp
from lastiterate.errors import InputError, NotCertified
from lastiterate.theorems import TABLE, theorem
from lastiterate.theorems.theorem import Applies, Fails

ASSUMED = li.Evidence.ASSUMED
RUN = li.Run(
    n=1000,
    steps=50,
    step_size=li.Constant(0.5),
    noise=li.NoiseMultiplier(3.0),
    batching=li.Permuted(100),
    loss=li.Softmax(classes=3, ridge=0.01),
)


def test_round_trip_and_tampering():
    found = replace(li.account(RUN), caveats=("the caller gave the seed",))
    text = found.to_json(1e-6)
    again = li.read_certificate(text)
    assert again == found and again.verify() and again.to_json(1e-6) == text
    body = json.loads(text)
    for change in (
        {"epsilon": 0.1},
        {"theorem": "composition-gdp"},
        {"adjacency": "replace-one"},
        {"delta": 1e-9},
    ):
        with pytest.raises(InputError, match="does not hold"):
            li.read_certificate(json.dumps(body | change))
        forged = body | change
        with pytest.raises(InputError, match="does not hold"):  # a forger fits the hash as well
            li.read_certificate(json.dumps(forged | {"content_sha256": content_hash(forged)}))
    with pytest.raises(InputError, match="certificate"):
        li.read_certificate("{}")


def test_one_run_under_the_adjacencies():
    """Never silently mixed: replace-one doubles the sensitivity, add-remove is for Poisson batches."""
    zero, swap = li.account(RUN), li.account(replace(RUN, adjacency="replace-one"))
    assert zero.replace_one_epsilon(1e-6) == swap.epsilon(1e-6) > zero.epsilon(1e-6)
    assert zero.with_adjacency("replace-one").run.adjacency == "replace-one"
    poisson = replace(RUN, batching=li.Poisson(0.1), adjacency="add-remove")
    assert li.account(poisson).replace_one_epsilon(1e-6) == float("inf"), "no conversion is claimed"
    given = li.KnownConstants(li.LossFacts(sensitivity=1.0, smooth=1.0, strong=0.0))
    abstract = li.account(
        replace(RUN, loss=given, noise=li.GradientNoise(0.1)), min_evidence=ASSUMED
    )
    assert abstract.with_adjacency("replace-one") is None
    split = abstract.curve(abstract.best(1e-6)).replace_one_curve().epsilon(1e-6)
    assert abstract.replace_one_epsilon(1e-6) == split < abstract.group(2, 1e-6), (
        "two zero-outs, by the best split"
    )


def test_evidence_decides():
    loss = li.KnownConstants(li.LossFacts(lipschitz=1.0, smooth=1.0, strong=0.0))
    run = replace(RUN, loss=loss)
    assert li.account(run).best(1e-6) is None and "min_evidence" in li.account(run).why_not()
    assumed = li.account(run, min_evidence=ASSUMED)
    assert assumed.best(1e-6).theorem.name == "shifted-interpolation-permuted"
    assert any("conditional on" in text for text in assumed.all_caveats())
    clipped = li.account(replace(run, clip=0.5))
    assert clipped.best(1e-6).theorem.name == "composition-gdp", (
        "clips are enforced, smoothness is only assumed"
    )
    assert not any("conditional on" in text for text in clipped.all_caveats())


def test_between_equals_the_theorem_that_assumes_least():
    """Full batches of a convex loss: every closed form says the same, up to the last digits."""
    flat = li.KnownConstants(li.LossFacts(sensitivity=1.0, smooth=1.0, strong=0.0))
    run = replace(RUN, batching=li.FullBatch(), noise=li.GradientNoise(0.01), loss=flat)
    found = li.account(run, min_evidence=ASSUMED)
    equal = [
        r
        for r in found.rows(1e-6)
        if r["applies"] and r["epsilon"] <= found.epsilon(1e-6) * (1 + 1e-9)
    ]
    assert {"composition-gdp", "pabi-convex", "shifted-interpolation"} <= {
        row["theorem"] for row in equal
    }
    assert found.best(1e-6).theorem.name == "composition-gdp"
    curved = li.KnownConstants(li.LossFacts(sensitivity=1.0, smooth=1.0, strong=0.5))
    contracting = li.account(
        replace(run, loss=curved, noise=li.Langevin(0.01)), min_evidence=ASSUMED
    )
    assert contracting.best(1e-6).theorem.name == "shifted-interpolation", (
        "not sgld-strongly-convex-batch"
    )


def test_release_all_and_momentum_fall_back_to_composition():
    for change in ({"release": "all"}, {"optimizer": li.Nesterov()}):
        found = li.account(replace(RUN, **change))
        assert {v.theorem.family for v in found.certifying} == {"composition"}


def test_a_place_that_is_released_is_not_averaged_over():
    hidden, seen = li.account(RUN), li.account(replace(RUN, batching=li.Cyclic(100)))
    assert hidden.epsilon(1e-6) < seen.epsilon(1e-6)
    all_released = li.account(replace(RUN, release="all"))
    assert all_released.epsilon(1e-6) == li.account(
        replace(RUN, release="all", batching=li.Cyclic(100))
    ).epsilon(1e-6)


def test_the_preparation_is_paid_for():
    paid = li.account(replace(RUN, preprocessing=(li.PrivateMean(5.0, 1.0),)))
    assert paid.epsilon(1e-6) > li.account(RUN).epsilon(1e-6)
    twice = li.account(replace(RUN, preprocessing=(li.PrivateMean(5.0, 1.0),) * 2))
    assert twice.epsilon(1e-6) > paid.epsilon(1e-6)
    one, two = (
        curves_of_preprocessing(found.run)[0].mu
        for found in (paid, paid.with_adjacency("replace-one"))
    )
    assert two == pytest.approx(2 * one)


@pytest.mark.parametrize(
    "noise",
    [
        li.GradientNoise(1.0),
        li.Langevin(1.0),
        li.NoiseMultiplier(1.0),
        li.GradientNoise(tuple(range(1, 51))),
    ],
)
@pytest.mark.parametrize("epsilon", [0.05, 1.0, 30.0])
def test_calibration_lies_just_within_the_budget(noise, epsilon):
    found = li.calibrate(replace(RUN, noise=noise), epsilon=epsilon, delta=1e-6)
    assert epsilon * 0.9999 < found.epsilon(1e-6) <= epsilon and found.certifies(epsilon, 1e-6)


def test_calibrating_steps():
    run = replace(RUN, noise=li.NoiseMultiplier(8.0))
    found = li.calibrate(run, epsilon=1.0, delta=1e-6, field="steps")
    assert (
        found.epsilon(1e-6) <= 1 < li.account(replace(run, steps=found.run.steps + 1)).epsilon(1e-6)
    )
    with pytest.raises(InputError, match="steps"):
        steps = li.StepSchedule((0.1,) * 50)
        li.calibrate(replace(run, step_size=steps), epsilon=1.0, delta=1e-6, field="steps")


@pytest.mark.parametrize(
    "bad",
    [
        dict(epsilon=0.0, delta=1e-6),
        dict(epsilon=1.0, delta=0.0),
        dict(epsilon=1.0, delta=1e-6, field="n"),
    ],
)
def test_bad_budgets(bad):
    with pytest.raises(InputError):
        li.calibrate(RUN, **bad)


def test_what_cannot_be_certified_says_why():
    run = replace(RUN, loss=li.KnownConstants(), noise=li.GradientNoise(1.0))
    with pytest.raises(
        NotCertified, match="composition-gdp: the gradient's sensitivity is unknown"
    ):
        li.calibrate(run, epsilon=1.0, delta=1e-6)
    every = li.account(run).why_not()
    assert re.search(r"sensitivity is unknown[^\n]*\n    composition-gdp, ", every)
    assert every.count("the gradient's sensitivity is unknown") == 1, "every reason once"
    expensive = replace(RUN, preprocessing=(li.PrivateMean(0.1, 1.0),))
    with pytest.raises(InputError, match="preparation"):
        li.calibrate(expensive, epsilon=0.1, delta=1e-6)


def test_a_preparation_cannot_be_left_out():
    paid = li.account(replace(RUN, preprocessing=(li.PrivateMean(1.0, 1.0),)))
    assert paid.verify()
    without = li.account(paid.run)
    vars(without.subject)["curves"] = tuple(verdict.bound for verdict in without.certifying)
    assert without.epsilon(1e-6) < paid.epsilon(1e-6) and not without.verify()
    assert copy.copy(without.subject).curves == paid.subject.curves, "a copy is derived again"


def test_calibration_drops_a_log_sobolev_constant_of_other_noise():
    """0.95 holds for the squared norm at sigma = 1 only; the exact epsilon at the calibrated noise
    stays below."""
    facts = li.LossFacts(sensitivity=1.0, smooth=1.0, strong=1.0, log_sobolev=0.95)
    run = li.Run(
        n=1,
        steps=1000,
        step_size=li.Constant(0.1),
        noise=li.Langevin(1.0),
        loss=li.KnownConstants(facts),
    )
    found = li.calibrate(run, epsilon=0.01, delta=1e-6, min_evidence=ASSUMED)
    assert found.lower(1e-6) <= found.epsilon(1e-6) <= 0.01
    assert found.run.loss.facts().log_sobolev is None


@pytest.mark.parametrize(
    "bad",
    [
        dict(clip=1e-22),
        dict(clip=1e-170),
        dict(step_size=li.Constant(1.0), domain=None),
    ],
)
def test_magnitudes_that_double_precision_loses_are_refused(bad):
    with pytest.raises(InputError):
        replace(RUN, **bad)
    for make in (
        lambda: li.Constant(1e160),
        lambda: li.domains.Ball(1e-168),
        lambda: li.Langevin(1e-162),
        lambda: li.Logistic(row_norm=1e18),
        lambda: li.HuberRidge(residual_clip=1e20),
        lambda: li.domains.Box(-1e45, 1e45),
        lambda: li.LossFacts(sensitivity=1e-40),
        lambda: li.NoiseMultiplier(1e-31),
    ):
        with pytest.raises(InputError):
            make()


NO_NOISE = li.Run(
    n=10, steps=5, step_size=li.Constant(0.5), noise=li.NoiseMultiplier(0.0), loss=li.Logistic()
)


def test_the_explanation_leads_with_the_answer():
    found = li.account(RUN)
    text = found.explain(1e-6)
    first, *rest = text.splitlines()
    best = found.best(1e-6).theorem
    assert (
        first.startswith(
            f"epsilon {certificate_subject.format_rounded_up(found.epsilon(1e-6))} at delta 1e-06"
        )
        and best.name in first
    )
    assert (
        "zero-out" in first
        and "one row of the training data" in rest[0]
        and "set to zero" in rest[0]
    )
    assert (
        rest[1]
        == f"Under replace-one: epsilon {certificate_subject.format_rounded_up(found.replace_one_epsilon(1e-6))}."
    )
    assert best.citation in rest[2]
    assert repr(text) == str(text), "an interactive session shows lines"
    failing = [v.theorem.name for v in found.verdicts if v.reasons]
    assert (
        not any(f"  {name} (" in text for name in failing)
        and f"{len(failing)} theorems do not apply" in text
    )
    every = found.explain(1e-6, all=True)
    assert all(name in every for name in failing) and "all=True" not in every
    for delta in (0.0, 1.0, -1.0):
        with pytest.raises(InputError, match="delta"):
            found.explain(delta)


def test_an_infinite_epsilon_is_explained():
    """It raised TypeError once wherever an applying row is infinite."""
    found = li.account(NO_NOISE)
    assert any(row["applies"] and row["epsilon"] is None for row in found.rows(1e-5))
    for text in (found.explain(1e-5), found.explain(1e-5, all=True)):
        assert text.startswith("no theorem certifies this run") and "infinite" in text
    json.loads(json.dumps(found.answer(1e-5), allow_nan=False))


@pytest.mark.parametrize("name", list(TABLE))
def test_a_certificate_answers_for_every_theorem(name):
    found = li.account(RUN)
    verdict = found.verdict(name)
    assert verdict.theorem.name == name and len(repr(verdict)) < 120 and name in repr(verdict)
    if verdict.reasons:
        with pytest.raises(InputError, match="does not apply to this run") as caught:
            found.curve(name)
        assert all(reason in str(caught.value) for reason in verdict.reasons)
    else:
        (row,) = [row for row in found.rows(1e-6) if row["theorem"] == name]
        if verdict.theorem.kind == "lower":
            assert verdict.bound.epsilon(1e-6) == row["epsilon"]
            with pytest.raises(InputError, match="lower bound"):
                found.curve(name)
            return
        assert (
            found.curve(name).epsilon(1e-6) == found.curve(verdict).epsilon(1e-6) == row["epsilon"]
        )


def test_unknown_theorems_and_short_reprs():
    found = li.account(RUN)
    with pytest.raises(InputError, match="composition-gdp"):
        found.verdict("composition")
    for run in (RUN, NO_NOISE, replace(RUN, steps=2, step_size=li.StepSchedule((0.1, 0.2)))):
        shown = repr(li.account(run))
        assert len(shown) < 200 and "\n" not in shown and str(run.n) in shown
    assert "no theorem certifies it" in repr(
        li.account(replace(RUN, loss=li.KnownConstants(), noise=li.GradientNoise(1.0)))
    )


def test_what_an_answer_is_conditional_on_is_explained():
    loss = li.KnownConstants(li.LossFacts(lipschitz=1.0, smooth=1.0, strong=0.0))
    text = li.account(replace(RUN, loss=loss), min_evidence=ASSUMED).explain(1e-6)
    assert "Conditional on: " in text and "lipschitz given by the caller (1)" in text
    assert "onditional" not in li.account(RUN).explain(1e-6)


def test_shown_numbers_are_rounded_away_from_a_better_claim():
    rng = np.random.default_rng(0)
    for value in 10 ** rng.uniform(-8, 8, 2000):
        assert (
            value * (1 - 1e-9)
            <= float(certificate_subject.format_rounded_up(value))
            <= value * 1.002
        )
        assert (
            value * 0.998
            <= float(certificate_subject.format_rounded_down(value))
            <= value * (1 + 1e-9)
        )
    assert (
        certificate_subject.format_rounded_up(None)
        == certificate_subject.format_rounded_up(float("inf"))
        == "-"
        and certificate_subject.format_rounded_up(0.0) == "0"
    )


@pytest.mark.parametrize(
    "edit",
    [
        lambda text: text.replace('"epsilon":', '"epsilon": 0.01, "epsilon":', 1),
        lambda text: text.replace('"delta": 1e-06', '"delta": NaN', 1),
        lambda text: text.replace('"n": 1000', '"n": ' + "9" * 400, 1),
        lambda text: text.replace(
            '"caveats": [', '"caveats": [' + "[" * 5000 + "]" * 5000 + ",", 1
        ),
        lambda text: text.replace('"run": {', '"run": [{', 1),
        lambda text: text.replace('"at_least": "ENFORCED"', '"at_least": ["ENFORCED"]', 1),
        lambda text: text.replace('"at_least": "ENFORCED"', '"at_least": "PERFECT"', 1),
        lambda text: text.replace('"delta": 1e-06', '"delta": "1e-06"', 1),
        lambda text: "[" + text + "]",
        lambda text: '"' + text[:5],
    ],
    ids=range(10),
)
def test_a_text_that_can_be_read_in_two_ways_is_no_certificate(edit):
    text = li.account(RUN).to_json(1e-6)
    assert li.read_certificate(text).epsilon(1e-6) and edit(text) != text
    with pytest.raises(InputError) as caught:
        li.read_certificate(edit(text))
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 300


def test_curvature_of_the_records_does_not_survive_zeroing_several():
    """Group privacy zeroes a unit's rows one by one; a stated curvature above the ridge goes with
    them."""
    stated = replace(
        RUN, loss=li.KnownConstants(li.LossFacts(lipschitz=1.0, smooth=1.0, strong=0.5))
    )
    assert "shifted-interpolation-permuted" in {
        v.theorem.name for v in li.account(stated, min_evidence=ASSUMED).certifying
    }
    for own, holds in (
        (stated, False),
        (replace(stated, loss=li.Logistic(row_norm=1.0, ridge=0.5)), True),
    ):
        found = li.account(replace(own, rows_per_unit=2), min_evidence=ASSUMED)
        reason = found.verdict("shifted-interpolation-permuted").result
        assert isinstance(reason, Applies if holds else Fails)
        assert holds or "with some of them zeroed" in reason.reasons[0]
        assert found.verdict("composition-gdp") in found.certifying, (
            "charges every step, whatever curves"
        )
        one = li.account(own, min_evidence=ASSUMED)
        assert one.group(2, 1e-6) == pytest.approx(found.epsilon(1e-6), rel=1e-9)


@pytest.mark.parametrize("noise", [li.NoiseMultiplier(3.0), li.Langevin(0.05)])
@pytest.mark.parametrize(
    "facts", [{"strong": 0.5}, {"weak_convexity": 0.01}, {"strong": 0.5, "log_sobolev": 2.0}]
)
def test_what_groups_are_promised_needs_no_stated_curvature(noise, facts):
    """Every verdict that covers groups stays what it is when the stated curvature is left out of
    the description."""
    run = replace(
        RUN,
        noise=noise,
        start=li.GaussianStart(1.0),
        batching=li.FullBatch(),
        loss=li.KnownConstants(li.LossFacts(lipschitz=1.0, sensitivity=1.0, smooth=1.0, **facts)),
    )
    bare = replace(
        run, loss=li.KnownConstants(li.LossFacts(lipschitz=1.0, sensitivity=1.0, smooth=1.0))
    )
    given, without = li.account(run, min_evidence=ASSUMED), li.account(bare, min_evidence=ASSUMED)
    refused = [v.theorem.name for v in given.certifying if not v.groups(run)]
    for verdict in given.certifying:
        if verdict.groups(run):
            same = without.verdict(verdict.theorem.name)
            assert same in without.certifying, verdict.theorem.name
            assert given.curve(verdict).epsilon(1e-6) == pytest.approx(
                without.curve(same).epsilon(1e-6), rel=1e-9
            )
    assert refused, "each of these facts certifies something that does not hold for groups"


def test_verdicts_about_one_run_are_not_believed_of_another():
    """There is no field to hand them over in; whatever gets there otherwise is refused, or found by
    ``verify``."""
    run = li.Run(n=1000, steps=200, step_size=0.5, noise=li.GradientNoise(0.05))
    known = li.account(
        replace(
            run,
            loss=li.Logistic(row_norm=1.0, intercept=0.0),
            preprocessing=(li.PrivateMean(5.0, 1.0),),
        )
    )
    exchanged = replace(known, subject=replace(known.subject, executed=run))
    assert exchanged == li.account(run) and exchanged.epsilon(1e-5) == np.inf
    slipped = li.account(run)
    vars(slipped.subject)["verdicts"] = known.verdicts
    assert slipped.certifying and not slipped.verify()
    for wrong in (
        lambda: slipped.epsilon(1e-5),
        lambda: li.account(run).curve(known.verdict("composition-gdp")),
        lambda: slipped.subject.curve_of(known.certifying[0], 1),
    ):
        with pytest.raises(li.InputError, match="must be the one that the verdict is about"):
            wrong()
    assert replace(known, caveats=("more",)).epsilon(1e-5) == known.epsilon(1e-5) and known.verify()


def test_a_certificate_from_another_processor_is_verified():
    """NumPy without the instructions that it looks for rounds as a processor that lacks them: at
    the smallest deltas epsilons of secret blocks differ by 4e-8 of themselves, and their grids by
    much more where last bits place nodes."""
    run = li.Run(
        n=10_000,
        steps=800,
        step_size=0.5,
        noise=li.NoiseMultiplier(4.0),
        batching=li.RandomAllocation(500),
        loss=li.Softmax(classes=3),
    )
    script = "import sys, lastiterate as li; print(li.account(li.Run.from_json(sys.argv[1])).to_json(1e-5))"
    features = " ".join(np._core._multiarray_umath.__cpu_dispatch__)
    made = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script, run.to_json()],
        check=True,
        capture_output=True,
        text=True,
        env=os.environ | {"NPY_DISABLE_CPU_FEATURES": features},
    )
    assert li.Certificate.check(json.loads(made.stdout)).problems == ()


@pytest.mark.parametrize("size", [0, -1, 1.5, "a", None])
def test_a_group_has_a_whole_number_of_records(size):
    with pytest.raises(li.InputError, match="size must be an integer"):
        li.account(RUN).group(size, 1e-5)


def test_what_is_nearest_to_a_certificate_is_one_line():
    bare = li.account(replace(RUN, loss=li.KnownConstants(), noise=li.GradientNoise(1.0)))
    assert "composition-gdp: the gradient's sensitivity is unknown" in bare.nearest()
    assert "\n" not in bare.nearest() and len(bare.nearest()) < 400 < len(bare.why_not())


def test_an_upper_bound_below_a_lower_bound_of_the_same_run_is_refused(monkeypatch):
    """A false theorem, once registered, certifies nothing: at issue, in calibration, in verify."""
    run = replace(RUN, steps=1, batching=li.FullBatch(), noise=li.NoiseMultiplier(1.0))
    honest = li.account(run)
    stored = honest.to_dict(1e-6)
    known = TABLE["composition-gdp"]
    false = replace(known, name="half-composition", bound=lambda run: Gdp(known.bound(run).mu / 2))
    monkeypatch.setitem(theorem._REGISTERED, false.name, false)
    certificate = li.account(run)
    assert certificate.epsilon(1e-6) < certificate.lower(1e-6) <= honest.epsilon(1e-6)
    both = "half-composition certifies .* quadratic-witness shows"
    for issue in (certificate.to_dict, certificate.answer, certificate.explain):
        with pytest.raises(NotCertified, match=both):
            issue(1e-6)
    with pytest.raises(NotCertified, match=both):
        li.calibrate(replace(run, noise=None), epsilon=1.0, delta=1e-6)
    checked = li.Certificate.check(stored)
    assert not checked.holds and re.search(both, checked.problems[0])
    # a file of another version that leaves the lower bounds out does not hide the contradiction
    rows = [row for row in stored["verdicts"] if row["kind"] == "upper"]
    rows.append(rows[0] | {"theorem": false.name})
    part = stored | {"library": "lastiterate 0.0.9", "verdicts": rows}
    assert re.search(both, li.Certificate.check(part).problems[0])
    monkeypatch.undo()
    assert li.Certificate.check(stored).holds


PERSONS = li.Run(
    n=550,
    steps=100,
    step_size=li.RelativeToSmooth(0.9),
    noise=li.NoiseMultiplier(1.0),
    loss=li.Logistic(intercept=0.2, cap=0.1),
    preprocessing=(li.PrivateMean(15.0, 1.0), li.TopEigenvalue(24.0)),
    rows_per_unit=3,
)


@pytest.mark.parametrize("adjacency", ["zero-out", "replace-one"])
def test_a_measured_smoothness_is_paid_for_by_units_of_several_rows(adjacency):
    """A failure counts for every row of a unit: delta_3(eps) = (1 + e^x + e^2x) (delta(x) + 1e-8),
    x = eps / 3; the search begins with noise 1, where nothing is left of a delta of 1e-5."""
    run = replace(PERSONS, adjacency=adjacency)
    found = li.calibrate(run, epsilon=3.0, delta=1e-5)
    assert 2.9 < found.epsilon(1e-5) <= 3.0 and found.run.noise.z > 20
    assert li.account(run).curve("composition-gdp").epsilon(1e-5) == np.inf, "with noise 1"
    if adjacency == "zero-out":
        row = li.account(replace(found.run, rows_per_unit=1)).curve("composition-gdp")
        x, failure = found.epsilon(1e-5) / 3, 1e-8
        assert isinstance(row.curve, Gdp) and row.failure == failure
        whole = (1 + np.exp(x) + np.exp(2 * x)) * (row.curve.delta(x) + failure)
        assert whole == pytest.approx(1e-5, rel=1e-3)


def test_a_failure_that_delta_does_not_cover_is_named():
    with pytest.raises(NotCertified, match=r"probability 1e-08 with which TopEigenvalue may fail"):
        li.calibrate(PERSONS, epsilon=3.0, delta=2e-8)
    assert li.calibrate(PERSONS, epsilon=3.0, delta=1e-6).epsilon(1e-6) <= 3.0, "as it advises"

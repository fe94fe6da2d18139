"""Certificates as they are written: what is stated beside epsilon, whose word the rest is, units of
several rows."""

import copy
import json
import math
from dataclasses import replace
from pathlib import Path

import jsonschema
import mpmath
import numpy as np
import pytest

import lastiterate as li
from lastiterate.accounting import certificate_json, tradeoff_summary
from lastiterate.accounting.accounted_run import ExactRun
from lastiterate.accounting.certificate_json import content_hash
from lastiterate.bayes.posterior_subject import certify as certify_sample
from lastiterate.certificate_statement import check_statement, read_statement
from lastiterate.curves.gaussian import Gdp
from lastiterate.errors import InputError
from lastiterate.release.posterior import certify_plan
from lastiterate.release.units import UNCHECKED, UnitLoss, select_unit_rows, units_as_records

GOLDEN = Path(__file__).parents[1] / "golden" / "certificates"
SCHEMA = json.loads(
    (Path(certificate_json.__file__).parent / "certificate.schema.json").read_text()
)
RUN = li.Run(
    n=1000,
    steps=50,
    step_size=0.5,
    noise=li.NoiseMultiplier(3.0),
    batching=li.Permuted(100),
    loss=li.Softmax(classes=3, ridge=0.01),
)
PLAIN = replace(RUN, batching=li.FullBatch(), noise=li.NoiseMultiplier(20.0))
WORD = {
    "unit": "one patient",
    "purpose": "triage",
    "contact": "dpo@example.org",
    "note": "<script>",
    "public_facts": [{"fact": "ages lie in 0 .. 110", "source": "the registry's manual"}],
    "charged": ["the pilot of May"],
    "not_charged": ["the table of counts"],
    "audit": {
        "protocol": "1,000 models, projection",
        "fixed_on": "2026-05-01",
        "result": {"lower": 0.4},
    },
}


@pytest.mark.parametrize("file", sorted(GOLDEN.glob("format-3-*.json")), ids=lambda file: file.stem)
def test_a_changed_number_of_a_certificate_is_found(file):
    body = json.loads(file.read_text())
    for change in (
        {"epsilon": body["epsilon"] * 0.9},
        {"epsilon": body["epsilon"] * 1.0005},
        {"stated": body["stated"] | {"secret": ["more"]}},
        {"stated": {}},
        {"format": True},
        {"format": 0},
        {"format": 2},
    ):
        edited = body | change
        edited["content_sha256"] = content_hash(edited)
        assert problems_of(json.dumps(edited)), change


@pytest.mark.parametrize("name", ("exact", "momentum", "perturbed", "run", "snapshots"))
def test_a_changed_noise_of_a_certificate_is_found(name):
    body = json.loads((GOLDEN / f"format-3-{name}.json").read_text())
    entry = "exact_run" if "exact_run" in body else "run"
    noise = body[entry]["noise"]
    edited = body | {entry: body[entry] | {"noise": noise | {"z": noise["z"] * 1.1}}}
    edited["content_sha256"] = content_hash(edited)
    assert problems_of(json.dumps(edited))
    edited = body | {entry: body[entry] | {"noise": noise | {"more": 1}}}
    with pytest.raises(InputError, match="noise"):
        problems_of(json.dumps(edited))


@pytest.mark.parametrize("file", sorted(GOLDEN.glob("format-3-*.json")), ids=lambda file: file.stem)
def test_what_a_certificate_states_may_not_change_within_its_format(file, monkeypatch):
    """Written by an earlier version: another word in ``stated``, or a secret less, and it would not
    hold any more."""
    monkeypatch.setattr(li, "__version__", "later")
    assert json.loads(file.read_text())["format"] == 3 and li.verify(file).problems == ()


@pytest.mark.parametrize(
    ("version", "factor", "holds"),
    [
        ("0.0.9", 1.02, True),
        ("0.0.9", 0.98, False),
        (li.__version__, 1.02, False),
        (li.__version__, 0.98, False),
    ],
)
def test_an_earlier_version_may_have_stated_more_and_never_less(version, factor, holds):
    """A tail that is summed more closely today makes no old statement false; only another version
    has that excuse."""
    body = json.loads((GOLDEN / "format-3-run.json").read_text())
    body["library"] = f"lastiterate {version}"
    rows = body["stated"]["guarantees"]
    rows[-1]["epsilon"] *= factor
    body["content_sha256"] = content_hash(body)
    assert (problems_of(json.dumps(body)) == ()) == holds
    if holds:
        for change in ({"delta": 1e-8}, {"epsilon": True}, {"epsilon": None}, {"more": 1}):
            edited = copy.deepcopy(body)
            edited["stated"]["guarantees"][-1] |= change
            edited["content_sha256"] = content_hash(edited)
            assert problems_of(json.dumps(edited)), change


@pytest.mark.parametrize(
    ("version", "factor", "holds"),
    [("0.0.9", 0.5, True), ("0.0.9", 1.001, True), ("0.0.9", 2.0, False)]
    + [(li.__version__, factor, False) for factor in (0.5, 1.001, 2.0)],
)
def test_an_earlier_version_may_have_known_another_lower_bound(version, factor, holds):
    """It certifies nothing; one above the epsilon of the certificate was true in no version."""
    run = li.Run(n=100, steps=9, step_size=0.5, noise=li.NoiseMultiplier(9.0), loss=li.Logistic())
    body = json.loads(li.account(run).to_json(1e-5))
    body["library"] = f"lastiterate {version}"
    (row,) = (row for row in body["verdicts"] if row["kind"] == "lower" and row["epsilon"])
    row["epsilon"] *= factor
    body["epsilon_at_least"] *= factor
    body["content_sha256"] = content_hash(body)
    checked = li.Certificate.check(body)
    assert checked.holds == holds
    assert any("lower bounds" in text for text in checked.uncovered) == (version == "0.0.9")
    if not holds:
        return
    place = body["verdicts"].index(row)
    for change in (
        lambda changed: changed["verdicts"][place].pop("epsilon"),
        lambda changed: changed["verdicts"][place].pop("applies"),
        lambda changed: changed["verdicts"][place].update(theorem=["a", "list"]),
        lambda changed: changed.update(epsilon_at_least=True),
        lambda changed: changed.pop("epsilon_at_least"),
    ):
        changed = copy.deepcopy(body)
        change(changed)
        changed["content_sha256"] = content_hash(changed)
        assert problems_of(json.dumps(changed))


@pytest.mark.parametrize("name", ["format-3-exact", "format-3-posterior", "format-3-selection"])
def test_verdicts_where_there_are_none_are_an_unknown_entry(name):
    body = json.loads((GOLDEN / f"{name}.json").read_text())
    body |= {"library": "lastiterate 0.0.9", "verdicts": [], "epsilon_at_least": 0.0}
    body["content_sha256"] = content_hash(body)
    assert "unknown entry 'verdicts'" in " ".join(problems_of(json.dumps(body)))


def test_reasons_of_another_version_are_named_as_not_compared():
    body = json.loads((GOLDEN / "format-3-whitened.json").read_text())
    body["library"] = f"lastiterate {li.__version__}"
    body["content_sha256"] = content_hash(body)
    assert li.Certificate.check(body).uncovered == ()
    failing = next(row for row in body["verdicts"] if row["reasons"])
    failing["reasons"] = ["this model is harmless"]
    body["content_sha256"] = content_hash(body)
    assert li.Certificate.check(body).problems
    body["library"] = "lastiterate 0.0.9"
    body["content_sha256"] = content_hash(body)
    checked = li.Certificate.check(body)
    assert checked.holds and "not apply" in checked.uncovered[0]


def problems_of(text):

    body = json.loads(text)
    return li.Certificate.check(body).problems


def test_groups_of_records_where_something_is_known_of_them():
    kinds = all_kinds()
    exact, sample = kinds["exact_run"], kinds["problem"]
    assert (
        exact.group(3, 1e-5)
        == exact.curve().group(3).epsilon(1e-5)
        > exact.group(1, 1e-5)
        == exact.epsilon(1e-5)
    )
    assert sample.group(1, 1e-5) == sample.epsilon(1e-5) and sample.group(2, 1e-5) == math.inf


def test_a_theorem_that_is_newer_than_an_old_certificate_changes_nothing():
    body = li.account(RUN).to_dict(1e-5)
    body["verdicts"] = [row for row in body["verdicts"] if row["applies"] or row["kind"] == "upper"]
    for library, held in ((body["library"], False), ("lastiterate 0.0.9", True)):
        body["library"] = library
        body["content_sha256"] = content_hash(body)
        assert (problems_of(json.dumps(body)) == ()) is held, "rows are left out by a newer table"


def all_kinds():
    exactly = li.Certificate(ExactRun(replace(PLAIN, loss=li.Logistic())))
    return {
        "run": li.account(RUN),
        "plain": li.account(PLAIN),
        "poisson": li.account(replace(RUN, batching=li.Poisson(0.1))),
        "nothing": li.account(replace(RUN, noise=li.GradientNoise(0.0))),
        "units": li.account(replace(RUN, rows_per_unit=3)),
        "exact_run": exactly,
        "problem": certify_plan(
            500, 3, row_norm=1.0, epsilon=2.0, delta=1e-5, adjacency="zero-out"
        ),
    }


@pytest.mark.parametrize("name", list(all_kinds()))
def test_every_kind_follows_the_schema_and_is_verified(name):
    certificate = all_kinds()[name]
    body = certificate.to_dict(1e-5, files={"word": WORD, "software": {"python": "3.11"}})
    jsonschema.validate(body, SCHEMA)
    assert problems_of(json.dumps(body)) == ()
    for entry, value in (
        ("stated", body["stated"] | {"secret": []}),
        ("software", {"python": 3}),
        ("word", {"x": 1}),
        ("word", {"note": 3}),
    ):
        edited = body | {entry: value}
        edited["content_sha256"] = content_hash(edited)
        assert problems_of(json.dumps(edited)), entry
    edited = body | {"word": WORD | {"note": "other"}}
    assert problems_of(json.dumps(edited)), "the hash covers the releaser's statement"


def test_a_stated_number_that_does_not_follow_is_found():
    body = li.account(RUN).to_dict(1e-5)
    for path in (
        ("mu", "value"),
        ("right_guesses",),
        ("true_positive_rates", 1, "at_most"),
        ("unit", "rows"),
        ("guarantees", 0, "epsilon"),
        ("contributions", "divisor"),
        ("noise", "multiplier"),
        ("batches", "blocks"),
    ):
        edited = json.loads(json.dumps(body))
        inner = edited["stated"]
        for key in path[:-1]:
            inner = inner[key]
        inner[path[-1]] *= 1.001
        edited["content_sha256"] = content_hash(edited)
        assert problems_of(json.dumps(edited)) == ("stated is not what follows from the run",), path


def test_a_gaussian_curve_is_stated_exactly():
    found = li.account(PLAIN).to_dict(1e-5)["stated"]
    mu = li.account(PLAIN).curve(li.account(PLAIN).best(1e-5)).mu
    assert found["mu"] == {"value": mu, "exact": True, "for_delta_of_at_least": 0.0}
    with mpmath.workdps(40):
        right = mpmath.ncdf(mpmath.mpf(mu) / 2)
        assert 0 <= found["right_guesses"] - right < 1e-9
        for row in found["true_positive_rates"]:
            z = mpmath.sqrt(2) * mpmath.erfinv(2 * mpmath.mpf(row["false_positive_rate"]) - 1)
            assert 0 <= row["at_most"] - mpmath.ncdf(z + mu) < 1e-8


def test_what_is_stated_of_other_curves_lies_above_them():
    """The closest mu above is above at every delta from its own up; rates are those of no test
    within the curve."""
    for certificate in (li.account(RUN), li.account(replace(RUN, batching=li.Poisson(0.1)))):
        curve, found = (
            certificate.curve(certificate.best(1e-5)),
            certificate.to_dict(1e-5)["stated"],
        )
        mu = found["mu"]["value"]
        assert not found["mu"]["exact"] and found["mu"]["for_delta_of_at_least"] == 1e-5
        for delta in np.geomspace(1e-5, 0.5, 40):
            assert Gdp(mu).epsilon(float(delta)) >= curve.epsilon(float(delta)) * (1 - 1e-9) - 1e-9
        assert Gdp(mu).epsilon(1e-5) <= curve.epsilon(1e-5) * 1.2, "and close"
        for row in found["true_positive_rates"]:
            rate = row["false_positive_rate"]
            limits = [
                tradeoff_summary.test_bound(e, curve.delta(e), rate) for e in np.linspace(0, 8, 200)
            ]
            assert min(limits) * 0.999 <= row["at_most"] <= min(limits) * 1.05


def test_one_point_leaves_what_its_region_says():
    assert tradeoff_summary.test_bound(0.0, 0.0, 0.1) == pytest.approx(0.1, rel=1e-9)
    assert tradeoff_summary.test_bound(math.log(3), 0.0, 0.01) == pytest.approx(0.03, rel=1e-9)
    assert tradeoff_summary.test_bound(math.log(3), 0.0, 0.5) == pytest.approx(
        1 - 0.5 / 3, rel=1e-9
    )
    assert tradeoff_summary.test_bound(0.0, 0.25, 0.1) == pytest.approx(0.35, rel=1e-9)


def test_epsilon_of_a_unit_is_by_group_privacy_of_steps_and_preparation():
    prepared = replace(PLAIN, preprocessing=(li.PrivateMean(noise_multiplier=9.0, row_norm=1.0),))
    one, three = li.account(prepared), li.account(replace(prepared, rows_per_unit=3))
    mu = one.curve(one.best(1e-5)).mu
    assert three.curve(three.best(1e-5)).mu == pytest.approx(3 * mu, rel=1e-9)
    assert three.epsilon(1e-5) >= one.group(3, 1e-5)
    assert any(
        "at most 3 rows" in text for text in three.all_caveats()
    ) and "one unit, 3" in three.explain(1e-5)
    assert three.lower(1e-5) == one.lower(1e-5) > 0, "a unit with one row is a unit"
    exactly = li.Certificate(ExactRun(replace(PLAIN, loss=li.Logistic(), rows_per_unit=2)))
    assert (
        exactly.epsilon(1e-5)
        > li.Certificate(ExactRun(replace(PLAIN, loss=li.Logistic()))).epsilon(1e-5) * 1.8
    )
    found = li.calibrate(replace(RUN, rows_per_unit=3), epsilon=2.0, delta=1e-5)
    assert 1.99 < found.epsilon(1e-5) <= 2.0 and found.run.rows_per_unit == 3
    assert li.Run.from_json(found.run.to_json()) == found.run
    for wrong in (0, 1001, 2.5, True):
        with pytest.raises(InputError, match="rows_per_unit"):
            replace(RUN, rows_per_unit=wrong)


def test_rows_of_a_unit_are_kept_by_their_own_order_alone():
    unit = np.array(["b", "a", "b", "b", "c", "a", "b"])
    assert select_unit_rows(unit, 2).tolist() == [True, True, True, False, True, True, False]
    assert select_unit_rows(np.arange(4), 1).all() and select_unit_rows(
        np.array([], dtype=int), 1
    ).shape == (0,)
    changed = np.array(["b", "z", "b", "b", "z", "z", "b"])  # the other units are others
    assert (
        select_unit_rows(changed, 2)[unit == "b"].tolist()
        == select_unit_rows(unit, 2)[unit == "b"].tolist()
    )
    for wrong in (np.zeros((2, 2), int), np.array([1.5, 2.0])):
        with pytest.raises(InputError, match="unit must be one integer"):
            select_unit_rows(wrong, 2)


def test_train_refuses_a_unit_with_more_rows_than_the_run_says(tmp_path):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(60, 2)), rng.integers(0, 2, 60)
    run = li.Run(
        n=60, steps=5, step_size=0.5, batching=li.FullBatch(), loss=li.Logistic(), rows_per_unit=2
    )
    unit = np.repeat(np.arange(30), 2)
    model = li.train(run, (x, y), epsilon=4.0, delta=1e-3, unit=unit, statement=WORD)
    assert UNCHECKED not in model.certificate.all_caveats()
    where = model.save(tmp_path / "m")
    body = json.loads((where / "certificate.json").read_text())
    assert (
        body["word"] == WORD
        and body["software"]["generator"].startswith("Threefry")
        and len(body["software"]["lastiterate_sha256"]) == 64
    )
    assert li.verify(where).holds and li.load(where).statement == WORD
    jsonschema.validate(body, SCHEMA)
    assert UNCHECKED in li.train(run, (x, y), epsilon=4.0, delta=1e-3).certificate.all_caveats()
    with pytest.raises(InputError, match="at most rows_per_unit = 2 rows"):
        li.train(run, (x, y), epsilon=4.0, delta=1e-3, unit=np.zeros(60, int))
    with pytest.raises(InputError, match="n = 60 rows"):
        li.train(run, (x, y), epsilon=4.0, delta=1e-3, unit=unit[:50])


def test_units_of_a_file_are_bounded_before_they_are_counted(tmp_path):
    from lastiterate.data.schema import Schema
    from lastiterate.release.file_training import fit_file
    from lastiterate.release.training_request import Algorithm, Budget, TrainingRequest
    from lastiterate.release.units import Units

    rng = np.random.default_rng(1)
    rows = [f"{i // 4},{rng.uniform():.3f},{'ab'[i % 2]}" for i in range(200)]
    (tmp_path / "d.csv").write_text("who,x,y\n" + "\n".join(rows) + "\n")
    schema = Schema.from_dict(
        {
            "target": "y",
            "classes": ["a", "b"],
            "columns": {"x": {"kind": "number", "low": 0, "high": 1}, "who": {"kind": "ignore"}},
        }
    )
    wanted = TrainingRequest(
        data=str(tmp_path / "d.csv"), budget=Budget(2.0, 1e-3), schema=schema, units=Units("who", 3)
    )
    found = fit_file(replace(wanted, algorithm=Algorithm("permuted-sgd"))).model
    assert (found.run.n, found.run.rows_per_unit, found.run.rows_per_record) == (50, 1, 3)
    assert found.certificate.epsilon(1e-3) <= 2.0
    exactly = fit_file(replace(wanted, budget=Budget(4.0, 1e-3), exact=True)).model
    assert (exactly.run.n, exactly.run.rows_per_unit, exactly.run.rows_per_record) == (150, 3, 1)
    assert (
        exactly.certificate.epsilon(1e-3) <= 4.0
        and UNCHECKED not in exactly.certificate.all_caveats()
    )
    planned = fit_file(replace(wanted, budget=Budget(2.0, 1e-3, time_budget=2.0))).model
    assert planned.run.rows_per_record == 3 and planned.certificate.epsilon(1e-3) <= 2.0
    for column, word in (
        ("x", "no feature"),
        ("y", "not the target"),
        ("z", "a column of the data file"),
    ):
        with pytest.raises(InputError, match=word):
            fit_file(replace(wanted, units=Units(column, 3)))


@pytest.mark.parametrize(
    "word, said",
    [
        ([], "table of entries"),
        ({"who": "me"}, "unknown entry"),
        ({"unit": 3}, "statement: unit"),
        ({"charged": "x"}, "a list"),
        ({"charged": [1]}, "statement: charged"),
        ({"public_facts": [{"fact": "x"}]}, "public_facts: source"),
        ({"public_facts": [{"of": "x"}]}, "a table of fact, source"),
        ({"audit": "done"}, "a table of protocol"),
        ({"audit": {"protocol": "p", "result": 3}}, "audit: result"),
        ({"note": "x" * 70_000}, "shorter than"),
        ({"audit": {"protocol": "p", "result": {"x": math.nan}}}, "JSON"),
    ],
)
def test_a_word_of_another_form_is_refused(word, said):
    with pytest.raises(InputError, match=said):
        check_statement(word)


def test_a_word_is_read_from_toml_and_json(tmp_path):
    (tmp_path / "w.toml").write_text(
        'unit = "one patient"\ncharged = ["a"]\n[audit]\nprotocol = "p"\n'
    )
    (tmp_path / "w.json").write_text(json.dumps(WORD))
    assert read_statement(tmp_path / "w.toml") == {
        "unit": "one patient",
        "charged": ["a"],
        "audit": {"protocol": "p"},
    }
    assert read_statement(tmp_path / "w.json") == WORD
    for name, text in (("bad.toml", "unit ="), ("bad.json", "{")):
        (tmp_path / name).write_text(text)
        with pytest.raises(InputError):
            read_statement(tmp_path / name)
    with pytest.raises(InputError, match="statement must be an existing file"):
        read_statement(tmp_path / "missing.toml")


def test_a_sample_states_what_it_can():
    problem = certify_plan(
        500, 3, row_norm=1.0, epsilon=2.0, delta=1e-5, adjacency="zero-out"
    ).subject.problem
    found = certify_sample(problem, "zero-out").to_dict(1e-5)["stated"]
    assert found["mu"]["exact"] is False and "batches" not in found
    assert found["charged"] == ["one exact posterior sample"]


def test_units_are_records_of_their_own(tmp_path):
    """A network's batches draw units: a unit's gradient is clipped as a whole, and a unit with fewer
    rows repeats them."""
    import jax
    import jax.numpy as jnp

    x, y = np.arange(12.0).reshape(6, 2).astype(np.float32), np.arange(6.0).astype(np.float32)
    unit = np.array([7, 3, 7, 7, 3, 9])
    present, rows, targets = units_as_records((x, y), unit, 2)
    assert present.tolist() == [[1, 1], [1, 1], [1, 1]] and targets.tolist() == [
        [0, 2],
        [1, 4],
        [5, 5],
    ]
    assert rows[0].tolist() == [[0, 1], [4, 5]] and rows[2].tolist() == [[10, 11], [10, 11]]

    def loss(params, row, target):
        return (row @ params["w"] - target) ** 2

    mean, params = UnitLoss(loss, 2), {"w": jnp.array([0.5, -0.25])}
    one = float(mean(params, present[0], rows[0], targets[0]))
    assert one == pytest.approx(
        float(loss(params, x[0], y[0]) + loss(params, x[2], y[2])) / 2, rel=1e-6
    )
    alone = jax.grad(mean)(params, present[2], rows[2], targets[2])
    assert np.allclose(alone["w"], jax.grad(loss)(params, x[5], y[5])["w"])
    zero = jax.grad(mean)(params, present[2] * [1, 0], rows[2], targets[2])
    assert np.allclose(zero["w"], alone["w"] / 2)  # a place that is empty counts 0
    run = li.Run(n=3, steps=2, step_size=0.01, clip=1.0, noise=li.NoiseMultiplier(5.0))
    model = li.train(run, (present, rows, targets), model=params, loss=mean, delta=1e-3)
    assert mean.caveat in model.certificate.all_caveats()
    singular = UnitLoss(
        lambda p, row, target: jnp.log(row @ p["w"]) + target, 2
    )  # no gradient at a row of zeros
    assert np.isfinite(
        jax.grad(singular)({"w": jnp.ones(2)}, present[2] * 0, rows[2], targets[2])["w"]
    ).all()
    with pytest.raises(InputError, match="unit of every row"):
        units_as_records((x, y[:5]), unit, 2)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda body: body.update(epsilon="1"), r"\$\.epsilon needs: type"),
        (lambda body: body.pop("caveats"), "'caveats' is a required property"),
        (lambda body: body["stated"].update(more=1), r"\$\.stated needs: additionalProperties"),
    ],
)
def test_a_file_that_does_not_fit_its_schema_is_refused_in_one_sentence(change, reason, tmp_path):
    run = li.Run(n=100, steps=3, step_size=0.1, loss=li.Logistic(), noise=li.NoiseMultiplier(9.0))
    body = json.loads(json.dumps(li.account(run).to_dict(1e-5)))
    change(body)
    body["content_sha256"] = certificate_json.content_hash(body)
    path = tmp_path / "certificate.json"
    path.write_text(json.dumps(body))
    with pytest.raises(li.InputError, match=reason):
        li.verify(path)
    from lastiterate_check.__main__ import main

    assert main([str(path)]) == 2

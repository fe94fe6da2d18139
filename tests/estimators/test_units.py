"""``fit(units=)`` protects persons: what the command line's ``--unit`` certifies, to the last bit."""

import json
import warnings

import numpy as np
import pandas as pd
import pytest
from sklearn import config_context
from sklearn.compose import ColumnTransformer
from sklearn.pipeline import FeatureUnion, Pipeline, make_pipeline
from sklearn.preprocessing import FunctionTransformer

import lastiterate as li
from lastiterate.curves.composition import curve_from_dict
from lastiterate.data import Numeric, Schema
from lastiterate.data.columns import Id
from lastiterate.errors import InputError, RowProtectionWarning
from lastiterate.estimators import DPHuberRidge, DPLogisticRegression, DPSearchCV, base
from lastiterate.estimators.base import seed_of
from lastiterate.features import SchemaTransformer
from lastiterate.ledger import GaussianFilter, Ledger
from lastiterate.release import noisy_accuracy
from lastiterate.release.file_training import fit_file, tune_file
from lastiterate.release.training_request import Algorithm, Budget, TrainingRequest
from lastiterate.release.tuning import law_of
from lastiterate.release.units import Units
from lastiterate.torch import DPNetClassifier

pytestmark = pytest.mark.filterwarnings("ignore::lastiterate.errors.RepeatedFitWarning")
RNG = np.random.default_rng(7)
WHO = RNG.permutation(np.repeat(np.arange(300), RNG.integers(1, 6, 300)))
AGE = RNG.integers(18, 91, len(WHO))
ILL = np.where(AGE + RNG.normal(0, 9, len(WHO)) > 50, "yes", "no")
COST = AGE * 10 + RNG.integers(0, 99, len(WHO))
TABLE = {"person": WHO, "age": AGE}
AGES = (Id("person"), Numeric("age", 18, 90))
CLASSES = Schema(AGES, classes=("no", "yes"), target="ill")
NUMBERS = Schema(AGES, target_range=(0, 1000), target="cost")


class Column:
    """A named column, as data frames have them."""

    def __init__(self, values, name):
        self.values, self.name = values, name

    def __array__(self, dtype=None, copy=None):
        return np.asarray(self.values, dtype)


PERSONS = Column(WHO, "person")


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Paths of the table with its classes, and with its numbers."""
    paths = []
    for target, values in (("ill", ILL), ("cost", COST)):
        paths.append(str(tmp_path_factory.mktemp("units") / f"{target}.csv"))
        lines = (",".join(map(str, row)) for row in zip(WHO, AGE, values, strict=True))
        with open(paths[-1], "w") as file:
            file.write(f"person,age,{target}\n" + "\n".join(lines) + "\n")
    return paths


@pytest.mark.parametrize(
    ("rows", "more"),
    [
        (1, {}),
        (3, {}),
        (3, {"algorithm": "noisy-gd"}),
        (2, {"report_accuracy": 0.1, "algorithm": "noisy-gd"}),
        (2, {"features": "fourier"}),
        (2, {"adjacency": "add-remove", "n": 500}),
        (2, {"class_weight": {"no": 1.0, "yes": 3.0}, "adjacency": "replace-one"}),
    ],
)
def test_a_classifier_certifies_what_the_command_line_certifies(
    written, rows, more, recwarn, monkeypatch
):
    """The certificate is equal to the last character, and so are the weights of one seed."""
    recwarn.clear()
    monkeypatch.setattr(noisy_accuracy, "TOO_WIDE", 1.0)  # few records are counted here
    budget = {name: more[name] for name in ("adjacency", "n") if name in more}
    asked = {name: value for name, value in more.items() if name not in (*budget, "algorithm")}
    told = fit_file(
        TrainingRequest(
            data=written[0],
            schema=CLASSES,
            budget=Budget(1.0, **budget),
            algorithm=Algorithm(more.get("algorithm", "automatic")),
            units=Units("person", rows),
            seed=seed_of(3),
            **asked,
        )
    ).model
    ours = DPLogisticRegression(schema=CLASSES, rows_per_unit=rows, random_state=3, **more)
    fitted = ours.fit(TABLE, ILL, units=PERSONS).fitted_
    body = fitted.certificate.to_dict(ours.delta_)
    assert body == told.certificate.to_dict(told.delta) and fitted.run == told.run
    np.testing.assert_array_equal(fitted.released.weights, told.released.weights)
    assert fitted.accuracies == told.accuracies
    assert body["stated"]["unit"]["name"] == "person" and body["stated"]["unit"]["rows"] == rows
    more = dict(more)
    by_rows = rows > 1 and {"report_accuracy", "features", "n"} & set(more)
    run = fitted.run
    assert (run.rows_per_unit, run.rows_per_record) == ((rows, 1) if by_rows else (1, rows))
    said = {str(one.message) for one in recwarn if "makes each row a record" in str(one.message)}
    if "report_accuracy" not in more:
        assert not said
        return
    del more["report_accuracy"]
    without = DPLogisticRegression(schema=CLASSES, rows_per_unit=rows, random_state=3, **more)
    persons = without.fit(TABLE, ILL, units=PERSONS).run_
    assert said == {
        f"report_accuracy=0.1 makes each row a record: {run.n} rows are trained on, charged as "
        f"groups of 2, with noise multiplier {run.noise.z:.4g}. Without it the records are the 300 "
        f"units, each with all of its rows, with noise multiplier {persons.noise.z:.4g}. Leave it "
        f"out and score on a public file, or use rows_per_unit=1"
    }
    assert run.noise.z > 1.5 * persons.noise.z


def test_a_regression_certifies_what_the_command_line_certifies(written):
    told = fit_file(
        TrainingRequest(
            data=written[1],
            schema=NUMBERS,
            budget=Budget(2.0),
            units=Units("person", 2),
            seed=seed_of(3),
        )
    ).model
    ours = DPHuberRidge(2.0, schema=NUMBERS, rows_per_unit=2, random_state=3)
    ours.fit(TABLE, COST, units=PERSONS)
    assert ours.certificate_.to_dict(ours.delta_) == told.certificate.to_dict(told.delta)
    np.testing.assert_array_equal(ours.model_.weights, told.released.weights)
    assert ours.run_.n == 300 and ours.run_.rows_per_record == 2


def test_rows_without_a_schema_are_those_of_persons():
    """An array of identifiers has no name: the certificate says "unit"."""
    rows = np.column_stack((AGE / 90, np.ones(len(AGE))))
    ours = DPLogisticRegression(row_norm=1.5, classes=["no", "yes"], rows_per_unit=3)
    ours.fit(rows, ILL, units=WHO)
    assert ours.certificate_.unit == "unit" and ours.run_.n == 300
    assert ours.fitted_.run.rows_per_record == 3


@pytest.mark.parametrize("rows", [1, 3])
def test_rows_beyond_the_limit_change_nothing(rows):
    """Neither weights nor anything that is certified follow from the rows that are dropped."""
    place = np.zeros(len(WHO), int)
    for person in range(300):
        place[person == WHO] = np.arange((person == WHO).sum())
    beyond = place >= rows
    other = {"person": WHO, "age": np.where(beyond, 18, AGE)}
    labels = np.where(beyond, "no", ILL)
    kept = {name: column[~beyond] for name, column in TABLE.items()}
    found = [
        DPLogisticRegression(schema=CLASSES, rows_per_unit=rows, random_state=1).fit(
            table, y, units=who
        )
        for table, y, who in (
            (TABLE, ILL, WHO),
            (other, labels, WHO),
            (kept, ILL[~beyond], WHO[~beyond]),
        )
    ]
    for one in found[1:]:
        np.testing.assert_array_equal(one.model_.weights, found[0].model_.weights)
        assert one.run_ == found[0].run_


def test_all_rows_of_a_person_move_a_step_by_no_more_than_the_certified_sensitivity():
    """One step on 50 persons, with one seed: the noise is the same, and the weights differ by what
    a person adds. Three rows that point one way would add three times as much as one."""
    who, rows = np.repeat(np.arange(50), 3), np.tile([[0.6, 0.8]], (150, 1))
    run = li.Run(
        n=50,
        steps=1,
        step_size=1.0,
        loss=li.Logistic(row_norm=1.0, intercept=0.0),
        rows_per_record=3,
    )

    def train(rows):
        one = DPLogisticRegression(epsilon=5.0, classes=[0, 1], run=run, random_state=5)
        return one.fit(rows, np.ones(150, int) * (who % 2), units=who)

    gone = np.where((who == 7)[:, None], 0.0, rows)
    found, without = train(rows), train(gone)
    moved = np.linalg.norm(found.model_.weights - without.model_.weights)
    assert found.run_ == without.run_ and found.model_.weights.shape == (1, 3)
    assert found.run_.n == 50
    np.testing.assert_allclose(moved, 0.5 / 50, rtol=1e-6)  # the gradient at 0 has norm 1/2


def test_nothing_that_is_shown_follows_from_how_many_rows_a_person_has():
    """A person of one row, and of five: the same run, shapes and features."""
    found = []
    for count in (1, 5):
        who = np.concatenate((np.arange(200), np.full(count - 1, 9)))
        table = {"person": who, "age": 18 + who % 70}
        labels = np.where(who % 2 == 0, "no", "yes")
        one = DPLogisticRegression(schema=CLASSES, rows_per_unit=5).fit(table, labels, units=who)
        found.append((one.run_, one.model_.weights.shape, one.transformer_.schema_, one.delta_))
    assert found[0] == found[1]


def test_a_search_uses_one_row_of_each_person_and_certifies_persons(written):
    told = tune_file(
        TrainingRequest(
            data=written[0], schema=CLASSES, budget=Budget(1.0), units=Units("person", 1), seed=2
        ),
        row_norms=(0.5, 1.0),
        algorithms=(Algorithm("noisy-gd"),),
        law=law_of(2.0),
    ).model
    rows = (2 * (AGE - 18) / 72 - 1)[:, None]
    search = DPSearchCV(
        DPLogisticRegression(classes=["no", "yes"], algorithm="noisy-gd"),
        {"row_norm": [0.5, 1.0]},
        mean_runs=2.0,
    )
    found, body = (
        one.to_dict(1e-4)
        for one in (search.fit(rows, ILL, units=PERSONS).certificate_, told.certificate)
    )
    for part in ("selection", "stated"):
        assert found[part] == body[part]
    assert found["stated"]["unit"]["name"] == "person" and found["stated"]["unit"]["rows"] == 1
    assert search.certificate_.subject.held_out == 60  # of 300 persons


def test_a_person_of_a_search_is_trained_on_or_scored_and_never_both(monkeypatch):
    from lastiterate.release import tuning

    seen = {}

    def execute(run, rows, labels, key):
        seen["train"] = rows[:, 0].tolist()
        return tuning_execute(run, rows, labels, key)

    def scores(run, model, rows):
        seen["held"] = rows[:, 0].tolist()
        return tuning_scores(run, model, rows)

    tuning_execute, tuning_scores = tuning.execute, tuning.scores
    monkeypatch.setattr(tuning, "execute", execute)
    monkeypatch.setattr(tuning, "scores", scores)
    who = RNG.permutation(np.repeat(np.arange(100), 3))
    DPSearchCV(
        DPLogisticRegression(classes=[0, 1], algorithm="noisy-gd"),
        {"row_norm": [200.0, 201.0]},
        mean_runs=2.0,
        runs="geometric",
        random_state=1,
    ).fit(who[:, None].astype(float), who % 2, units=who)
    both = seen["train"] + seen["held"]
    assert sorted(both) == list(range(100)) and len(seen["held"]) == 20


@pytest.mark.parametrize("of", ["fit", "search"])
def test_a_ledger_of_persons_is_charged_for_persons(tmp_path, of):
    book = Ledger(tmp_path / "l")
    book.add("d", unit="person", adjacency="zero-out", filter=GaussianFilter(90.0, 1e-6))
    one = DPLogisticRegression(row_norm=1.5, classes=["no", "yes"], algorithm="noisy-gd")
    if of == "search":
        one = DPSearchCV(one, {"row_norm": [0.5, 1.0]}, mean_runs=2.0)
    one.set_params(ledger=book, dataset="d").fit(AGE[:, None] / 90, ILL, units=WHO)
    (release,) = book.total("d").releases
    assert book.total("d").unproven == () and book.verify() == ()
    charged = curve_from_dict(json.loads(release.curve)).epsilon(1e-5)
    assert charged == pytest.approx(one.certificate_.epsilon(1e-5), rel=1e-6)


ROWS = AGE[:, None] / 90
PLAIN = {"row_norm": 1.0, "classes": ["no", "yes"]}


@pytest.mark.parametrize(
    ("settings", "given", "words"),
    [
        ({}, {"units": WHO[:-1]}, f"units must say whose each of the {len(WHO)} rows is"),
        ({}, {"units": np.ones(len(WHO), int)}, "units must leave at least two rows"),
        ({}, {"units": [""] * len(WHO)}, "units must say whose every row is, and some rows have"),
        ({}, {"units": [7, "007"] * (len(WHO) // 2)}, "units must write every identifier in one"),
        (
            {},
            {"units": WHO[:, None]},
            r"units must be one identifier per row, shape \(n,\), got .*; write units\[:, 0\]",
        ),
        ({}, {"units": np.ma.masked_array(WHO, WHO == 1)}, "units must be plain arrays"),
        (
            {"rows_per_unit": 3},
            {},
            r"rows_per_unit above 1 needs units=, .* got 3; give fit units=",
        ),
        ({"rows_per_unit": 0}, {"units": WHO}, "rows_per_unit must be a positive integer"),
        ({"stream": True}, {"units": WHO}, r"units cannot be bounded.*stream=False"),
        ({}, {"unit": WHO}, "unit is not supported; say whose every row is with units="),
        ({}, {"groups": WHO}, "groups is not supported; say whose every row is with units="),
    ],
)
def test_refusals_say_what_helps(settings, given, words):
    with pytest.raises(InputError, match=words):
        DPLogisticRegression(**PLAIN, **settings).fit(ROWS, ILL, **given)


def test_the_limit_of_a_given_run_is_its_own():
    run = li.Run(n=300, steps=2, step_size=0.1, loss=li.Logistic(), rows_per_record=2)
    with pytest.raises(InputError, match="rows_per_unit must be that of the run, 2, got 3"):
        DPLogisticRegression(run=run, classes=["no", "yes"], rows_per_unit=3).fit(
            ROWS, ILL, units=WHO
        )
    for given in (1, 2):
        one = DPLogisticRegression(run=run, classes=["no", "yes"], rows_per_unit=given)
        assert one.fit(ROWS, ILL, units=WHO).run_.rows_per_record == 2


def test_a_run_of_groups_pays_for_the_rows_of_a_person():
    kept = li.select_unit_rows(WHO, 2).sum()
    run = li.Run(n=int(kept), steps=2, step_size=0.1, loss=li.Logistic(), rows_per_unit=2)
    one = DPLogisticRegression(run=run, classes=["no", "yes"]).fit(ROWS, ILL, units=WHO)
    assert one.run_.rows_per_unit == 2 and one.certificate_.unit == "unit"
    assert not [text for text in one.certificate_.all_caveats() if "no unit column" in text]


def test_a_search_and_a_network_say_how_persons_are_protected():
    search = DPSearchCV(DPLogisticRegression(**PLAIN, rows_per_unit=2), {"row_norm": [1.0]})
    with pytest.raises(InputError, match=r"rows_per_unit of the estimator must be 1.*first row of"):
        search.fit(ROWS, ILL, units=WHO)
    with pytest.raises(InputError, match=r"units is not supported; .*UnitLoss and PerUnit"):
        DPNetClassifier(None).fit(ROWS, ILL, units=WHO)


def test_text_and_arrow_columns_name_persons_too():
    pyarrow = pytest.importorskip("pyarrow")
    found = [
        DPLogisticRegression(**PLAIN, random_state=2, algorithm="noisy-gd").fit(
            ROWS, ILL, units=given
        )
        for given in (
            WHO,
            WHO.astype(str),
            WHO.astype(float),
            WHO.tolist(),
            list(map(str, WHO)),
            pyarrow.chunked_array([WHO[:100], WHO[100:]]),
        )
    ]
    for one in found[1:]:
        np.testing.assert_array_equal(one.model_.weights, found[0].model_.weights)


def test_a_pipeline_hands_persons_on():
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import FunctionTransformer

    pipe = make_pipeline(FunctionTransformer(), DPLogisticRegression(**PLAIN))
    pipe.fit(ROWS, ILL, dplogisticregression__units=WHO)
    assert pipe[-1].certificate_.unit == "unit" and pipe[-1].run_.n == 300


def test_a_selection_of_two_rows_of_one_person_is_refused():
    """Whoever asks for it: one of them could be scored, and the other one trained on."""
    from lastiterate.release import tuning

    order = TrainingRequest(data=(ROWS, np.zeros(len(WHO), int)), unit=WHO)
    with pytest.raises(InputError, match="unit must have at most rows_per_unit = 1 rows"):
        tuning.check(order)


IDS = {"pid": {"kind": "id"}, "a": {"kind": "number", "low": 0, "high": 1}}
MAPS = {
    "alone": lambda schema: SchemaTransformer(schema),
    "in a union": lambda schema: FeatureUnion([("rows", SchemaTransformer(schema))]),
    "of columns": lambda schema: ColumnTransformer(
        [("rows", SchemaTransformer(schema), ["pid", "a"])]
    ),
}


@pytest.mark.parametrize("made", ["estimator", "search", "nested"])
@pytest.mark.parametrize("kind", MAPS)
def test_a_pipeline_whose_schema_names_an_id_says_so_too(monkeypatch, kind, made):
    """The schema of a step before the estimator counts as its own, and the message can be followed."""
    last = DPHuberRidge(row_norm=1.0, target_range=(0, 1), algorithm="noisy-gd", epsilon=2.0)
    if made == "search":
        last = DPSearchCV(last, {"row_norm": [0.5, 1.0]}, epsilon=2.0)
    inner = make_pipeline(FunctionTransformer(), last) if made == "nested" else last
    facts, a = {"target_range": [0, 1], "columns": IDS}, np.linspace(0, 1, 400)
    pipe = Pipeline([("map", MAPS[kind](facts)), ("last", inner)])
    table = pd.DataFrame({"pid": np.arange(400) // 2, "a": a})
    monkeypatch.setattr(base, "_warned", False)
    with pytest.warns(RowProtectionWarning, match="calls 'pid' an id") as warned:
        pipe.fit(table, a)
    said = next(str(one.message) for one in warned if one.category is RowProtectionWarning)
    name = {"nested": "last__dphuberridge__units"}.get(made, "last__units")
    assert f": fit(X, y, {name}=table['pid']) protects all rows of one pid together" in said
    monkeypatch.setattr(base, "_warned", False)
    if made == "estimator":
        with config_context(enable_metadata_routing=True):
            with pytest.warns(
                RowProtectionWarning, match=r"step and fit\(X, y, units=table\['pid'"
            ):
                pipe.fit(table, a)
            last.set_fit_request(units=True)
            assert pipe.fit(table, a, units=table["pid"])[-1].certificate_.unit == "pid"
    monkeypatch.setattr(base, "_warned", False)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RowProtectionWarning)
        pipe.fit(table, a, **{name: table["pid"]})
        one = pipe[-1][-1] if made == "nested" else pipe[-1]
        assert one.certificate_.unit == "pid"
        no_id = {"target_range": [0, 1], "columns": IDS | {"pid": {"kind": "ignore"}}}
        Pipeline([("map", MAPS[kind](no_id)), ("last", inner)]).fit(table, a)

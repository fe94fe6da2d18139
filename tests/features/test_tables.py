"""Data frames in, bounded rows out: SchemaTransformer, and estimators that take a schema."""

import contextlib
import datetime
import decimal
import itertools
import pickle
import warnings
from dataclasses import replace
from functools import partial

import numpy as np
import pandas
import pytest
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import ColumnTransformer, TransformedTargetRegressor
from sklearn.impute import SimpleImputer
from sklearn.model_selection import GridSearchCV
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import Normalizer, StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks
from torch.nn import Linear

import lastiterate as li
from lastiterate import InputError
from lastiterate.data import Array, Category, Numeric, Schema, encode_features, read_table
from lastiterate.data.columns import Date, Words
from lastiterate.data.encoding import label_text
from lastiterate.estimators import (
    DPHuberRidge,
    DPLogisticRegression,
    DPSearchCV,
    ReleasedClassifier,
    classifier,
    grid_search,
    regressor,
)
from lastiterate.estimators.pipelines import UnpaidStepWarning, labels_of
from lastiterate.features import Bins, Curves, HashedWords, SchemaTransformer
from lastiterate.release.linear_plans import choose_features
from lastiterate.release.mlflow_model import Scorer
from lastiterate.release.prediction import prediction_rows
from lastiterate.release.training_request import Budget
from lastiterate.torch import DPNetClassifier, module_classifier

pyarrow = pytest.importorskip("pyarrow")
N = 1500
SCHEMA = Schema(
    (Numeric("a", 0.0, 1.0, missing="indicator"), Category("c", ("x", "y"))),
    target="label",
    classes=("no", "yes"),
)


def columns(n=N, seed=0):
    rng = np.random.default_rng(seed)
    a = rng.random(n)
    label = np.abs(a - 0.5) < 0.25
    a[rng.random(n) < 0.05] = np.nan
    return {"a": a, "c": np.where(rng.random(n) < 0.5, "x", "y")}, np.where(label, "yes", "no")


def frames(cells):
    found = [
        cells,
        pyarrow.table({"a": pyarrow.array(cells["a"], from_pandas=True), "c": cells["c"]}),
    ]
    for library in ("pandas", "polars"):
        with contextlib.suppress(ImportError):
            found.append(__import__(library).DataFrame(cells))
    return found


@parametrize_with_checks([SchemaTransformer(Schema(array=Array(-5.0, 5.0), classes=("0", "1")))])
def test_scikit_learns_own_checks(estimator, check):
    """Of an array's schema: what these checks make up has no columns with names."""
    check(estimator)


def test_every_kind_of_table_gives_the_rows_of_a_file(tmp_path):
    cells, label = columns(50)
    lines = [
        f"{'' if np.isnan(a) else repr(float(a))},{c},{y}"
        for a, c, y in zip(*cells.values(), label, strict=True)
    ]
    (tmp_path / "t.csv").write_text("\n".join(["a,c,label", *lines]) + "\n")
    mapped = replace(SCHEMA, features=(Curves(),))
    wanted = encode_features(read_table(tmp_path / "t.csv"), mapped)
    made = SchemaTransformer(SCHEMA, features="curves")
    for table in frames(cells):
        found = made.fit(table).transform(table)
        assert found.dtype == np.float32 and np.array_equal(found, wanted), type(table)
        assert list(made.feature_names_in_) == ["a", "c"] and made.n_features_in_ == 2
    assert np.linalg.norm(wanted, axis=1).max() <= made.row_norm_ * (1 + 1e-6)
    names = made.get_feature_names_out()
    assert len(names) == wanted.shape[1] == len(set(names)) and names[-1] == "c=y"


def test_it_is_a_transformer_of_scikit_learn():
    cells, _ = columns(30)
    table = pyarrow.table(cells)
    made = SchemaTransformer(SCHEMA)
    assert clone(made).schema is made.schema or clone(made).schema == made.schema
    with pytest.raises(Exception, match="not fitted"):
        made.get_feature_names_out()
    assert np.array_equal(made.transform(table), clone(made).fit(table).transform(table))
    assert "schema_" not in vars(made), "what learns nothing needs no fit"
    again = pickle.loads(pickle.dumps(made.fit(table)))
    assert np.array_equal(again.transform(table), made.transform(table))
    with pytest.raises(ValueError, match="input_features"):
        made.get_feature_names_out(["a"])
    array = np.column_stack((cells["a"], cells["c"])).astype(object)
    array[:, 0] = cells["a"]
    assert np.array_equal(made.fit_transform(array), made.fit_transform(table))
    whole = ColumnTransformer([("one", SchemaTransformer(SCHEMA), [0, 1])])
    assert np.array_equal(whole.fit_transform(array), made.transform(table))
    assert whole.get_feature_names_out()[-1] == "one__c=y"


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"a": [0.1], "b": ["x"]}, "misses the column 'c' of the schema"),
        ({"a": [0.1], "c": ["x"], "d": [1]}, "does not describe"),
        ({"a": ["high"], "c": ["x"]}, "must hold numbers"),
        ({"a": [0.1, 0.2], "c": ["x"]}, "columns of one length"),
        (np.zeros((2, 3)), "must have the 2 columns"),
        ("a,c", "must be a data frame"),
        ({}, "must be a data frame"),
        ({"a": [[0.1]], "c": [["x"]]}, "single values"),
    ],
)
def test_tables_that_do_not_fit_are_one_sentence(table, words):
    with pytest.raises(InputError, match=words):
        SchemaTransformer(SCHEMA).fit(table).transform(table)


def test_schemas_come_from_files_and_dictionaries(tmp_path):
    cells, _ = columns(5)
    (tmp_path / "s.toml").write_text(
        'target = "label"\nclasses = ["no", "yes"]\n[columns.a]\nkind = "number"\n'
        'low = 0\nhigh = 1\nmissing = "indicator"\n[columns.c]\nkind = "category"\n'
        'values = ["x", "y"]\n'
    )
    for given in (tmp_path / "s.toml", str(tmp_path / "s.toml"), SCHEMA.to_dict()):
        assert SchemaTransformer(given).fit(cells).schema_.columns[1] == SCHEMA.columns[1]
    with pytest.raises(
        InputError, match="must name public maps here, or be plain or None, got 'auto'"
    ):
        SchemaTransformer(SCHEMA, features="auto").fit(cells)
    with pytest.raises(InputError, match="schema must be a Schema"):
        SchemaTransformer(3).fit(cells)


@pytest.fixture(scope="module")
def fitted():
    cells, label = columns()
    return DPLogisticRegression(epsilon=2.0, delta=1e-5, schema=SCHEMA).fit(cells, label)


def test_a_schema_is_all_that_an_estimator_needs(fitted, tmp_path):
    cells, label = columns(seed=5)
    assert fitted.score(cells, label) > 0.85, "curves are the default where the records carry them"
    assert [type(one) for one in fitted.transformer_.schema_.features] == [Curves]
    assert fitted.run_.preprocessing[0].row_norm == np.sqrt(2) and list(fitted.classes_) == [
        "no",
        "yes",
    ]
    assert list(fitted.feature_names_in_) == ["a", "c"] and fitted.n_features_in_ == 2
    place = fitted.fitted_.save(tmp_path / "m")
    again = li.load(place)
    assert again.schema == fitted.transformer_.schema_ and li.verify(place).holds
    (tmp_path / "new.csv").write_text("a,c\n0.5,x\n0.02,y\n")
    assert [row[0] for row in prediction_rows(again, str(tmp_path / "new.csv"))[1]] == ["yes", "no"]


def test_classes_complete_a_schema_that_leaves_them_open(tmp_path):
    cells, label = columns(400)
    body = SCHEMA.to_dict()
    for open_classes in ('classes = ["?"]\n', ""):
        (tmp_path / "s.toml").write_text(
            f'target = "label"\n{open_classes}[columns.a]\nkind = "number"\nlow = 0\n'
            'high = 1\nmissing = "indicator"\n[columns.c]\nkind = "category"\n'
            'values = ["x", "y"]\n'
        )
        for given in (
            tmp_path / "s.toml",
            {name: value for name, value in body.items() if name != "classes"},
        ):
            model = DPLogisticRegression(
                epsilon=5.0, schema=given, classes=["yes", "no"], algorithm="noisy-gd"
            )
            assert model.fit(cells, label).classes_.tolist() == ["no", "yes"]
        with pytest.raises(InputError, match="classes"):
            DPLogisticRegression(epsilon=5.0, schema=tmp_path / "s.toml", algorithm="noisy-gd").fit(
                cells, label
            )
    with pytest.raises(InputError, match="classes must be those of the schema"):
        DPLogisticRegression(epsilon=5.0, schema=SCHEMA, classes=["a", "b"]).fit(cells, label)


def test_labels_keep_their_kind():
    cells, label = columns(400)
    numbers = Schema(SCHEMA.columns, classes=("1", "0"))
    model = DPLogisticRegression(
        epsilon=5.0, schema=numbers, features="plain", algorithm="noisy-gd"
    ).fit(cells, (label == "yes") * 1)
    assert model.classes_.tolist() == [0, 1] and set(model.predict(cells)) <= {0, 1}
    assert not model.transformer_.schema_.features


def test_a_regression_takes_a_schema():
    cells, _ = columns()
    schema = Schema(SCHEMA.columns, target_range=(0.0, 10.0))
    y = 10 * np.nan_to_num(np.abs(2 * cells["a"] - 1))
    model = DPHuberRidge(epsilon=5.0, schema=schema, features="curves", algorithm="noisy-gd").fit(
        cells, y
    )
    assert model.score(cells, y) > 0.5
    with pytest.raises(
        InputError, match=r"target_range must be that of the schema, 0 to 10, .*a transformed y"
    ):
        DPHuberRidge(schema=schema, target_range=(0, 1)).fit(cells, y)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"features": "words"}, "has nothing to map: words"),
        ({"features": "curvy"}, "must be plain, or maps"),
        ({"classes": ["a", "b"]}, "classes must be those of the schema"),
        ({"schema": Schema(SCHEMA.columns, target_range=(0, 1))}, "must have classes"),
    ],
)
def test_what_does_not_fit_is_refused(change, words):
    cells, label = columns(100)
    with pytest.raises(InputError, match=words):
        DPLogisticRegression(**{"schema": SCHEMA} | change).fit(cells, label)


def test_labels_and_maps_need_the_schema():
    cells, label = columns(100)
    with pytest.raises(InputError, match="only the classes of the schema"):
        DPLogisticRegression(schema=SCHEMA).fit(cells, np.where(label == "yes", "yes", "perhaps"))
    with pytest.raises(InputError, match="y must have one label"):
        DPLogisticRegression(schema=SCHEMA).fit(cells, label[:50])
    with pytest.raises(InputError, match="features needs a schema"):
        DPLogisticRegression(row_norm=1.0, features="curves", classes=[0, 1]).fit(
            np.eye(4), [0, 1, 0, 1]
        )
    with pytest.raises(InputError, match=r"has no schema, got 'dict'; give the estimator schema="):
        DPLogisticRegression(row_norm=1.0, classes=["no", "yes"]).fit(cells, label)
    for word, why in (("scoring", "compared by a noisy accuracy"), ("cv", "held out once")):
        with pytest.raises(InputError, match=f"{word} is not supported.*{why}"):
            DPSearchCV(DPLogisticRegression(), {"row_norm": [1.0]}, **{word: "f1"})
    with pytest.raises(InputError, match="y must hold only the classes of the schema"):
        DPSearchCV(DPLogisticRegression(schema=SCHEMA), {"row_norm": [1.0]}, epsilon=1.0).fit(
            np.eye(20), [0, 1] * 10
        )


class Fitted(Exception):
    pass


@pytest.mark.parametrize(
    ("around", "names"),
    [
        (
            lambda model: make_pipeline(
                StandardScaler(), DPSearchCV(model, {"row_norm": [0.5, 1.0]})
            ),
            "standardscaler",
        ),
        (
            lambda _: make_pipeline(
                StandardScaler(), DPNetClassifier(Linear(3, 2), classes=[0, 1])
            ),
            "standardscaler",
        ),
        (
            lambda model: make_pipeline(StandardScaler(), OneVsRestClassifier(model)),
            "standardscaler",
        ),
        (
            lambda model: CalibratedClassifierCV(make_pipeline(StandardScaler(), model), cv=2),
            "standardscaler, CalibratedClassifierCV",
        ),
        (
            lambda _: TransformedTargetRegressor(
                DPHuberRidge(row_norm=1.0, target_range=(0, 1)), transformer=StandardScaler()
            ),
            "the target's transformer",
        ),
    ],
    ids=["search", "network", "inside a step", "calibration", "targets"],
)
def test_whoever_fits_is_told_what_was_learned_around_it(around, names, monkeypatch):
    """Nothing that scikit-learn learns of private rows around a fit is paid for."""

    def refused(*_):
        raise Fitted

    for home in (
        classifier,
        regressor,
        grid_search,
        module_classifier,
    ):  # what comes right behind the warning
        monkeypatch.setattr(home, "check_kept", refused)
    rng = np.random.default_rng(0)
    with pytest.warns(UnpaidStepWarning, match=f"does not cover {names}: "), pytest.raises(Fitted):
        around(DPLogisticRegression(row_norm=1.0, classes=[0, 1])).fit(
            rng.normal(size=(40, 3)), np.arange(40) % 2
        )


def test_steps_that_learn_are_named_and_others_are_not():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(300, 3)), rng.integers(0, 2, 300)
    model = DPLogisticRegression(epsilon=1.0, row_norm=2.0, classes=[0, 1], algorithm="noisy-gd")
    learned = ColumnTransformer([("fill", SimpleImputer(), [0]), ("same", "passthrough", [1, 2])])
    with pytest.warns(
        UnpaidStepWarning, match="does not cover columntransformer.fill, standardscaler"
    ):
        make_pipeline(learned, StandardScaler(), model).fit(x, y)
    cells, label = columns(300)
    made = SchemaTransformer(SCHEMA, features="curves")
    with warnings.catch_warnings():
        warnings.simplefilter("error", UnpaidStepWarning)
        make_pipeline(Normalizer(), model).fit(x, y)
        model = DPLogisticRegression(
            epsilon=3.0, row_norm=float(np.sqrt(2)), classes=["no", "yes"], algorithm="noisy-gd"
        )
        piped = make_pipeline(made, model).fit(cells, label)
    assert piped.score(cells, label) > 0.6


def test_the_choice_of_maps_looks_at_no_value():
    cells, label = columns(200)
    other = {"a": np.ones(200), "c": ["x"] * 200}
    first = DPLogisticRegression(epsilon=1.0, schema=SCHEMA, random_state=0).fit(cells, label)
    second = DPLogisticRegression(epsilon=1.0, schema=SCHEMA, random_state=0).fit(other, label)
    assert first.transformer_.schema_ == second.transformer_.schema_ and first.run_ == second.run_
    large = replace(SCHEMA, features=(Bins(3),))
    kept = DPLogisticRegression(epsilon=1.0, schema=large, algorithm="noisy-gd").fit(cells, label)
    assert kept.transformer_.schema_.features == (Bins(3),), "what the schema says comes first"


def test_names_of_maps_in_a_schema_are_as_large_as_names_that_are_asked_for():
    """A name states no size; numbers that a schema states are kept."""
    entries = {
        "target": "label",
        "classes": ["no", "yes"],
        "columns": {
            **{f"n{i}": {"kind": "number", "low": 0, "high": 1} for i in range(5)},
            "t": {"kind": "text"},
        },
    }
    asked, named = (
        Schema.from_dict(entries),
        Schema.from_dict(entries | {"features": "curves, words"}),
    )
    stated = Schema.from_dict(entries | {"features": ["words", {"type": "Curves", "knots": 12}]})
    for n, words, knots in ((500, 256, 8), (30_000, 1024, 12)):
        same = [
            choose_features(one, features, (6,), n, Budget(1.0, 1e-5)).schema
            for one, features in ((asked, "curves,words"), (named, "auto"), (named, "curves,words"))
        ]
        assert [one.features for one in same] == [(Curves(knots), HashedWords(words))] * 3
        kept = choose_features(stated, "auto", (6,), n, Budget(1.0, 1e-5)).schema
        assert (
            kept.features == (HashedWords(words), Curves(12))
            and Schema.from_dict(kept.to_dict()) == kept
        )
        assert not Schema.from_dict(kept.to_dict()).unsized


VALUES = [
    1,
    0,
    True,
    False,
    1.0,
    2.5,
    -0.0,
    "a",
    "1",
    "",
    None,
    float("nan"),
    2**70,
    2**53 + 1,
    b"x",
    np.float32(0.1),
    np.int64(3),
    np.bool_(True),
    np.str_("q"),
    datetime.date(2020, 1, 2),
    decimal.Decimal("1.50"),
]


@pytest.mark.parametrize(
    "column",
    [
        Category("c", ("1", "True"), outside="zero", missing="zero"),
        Numeric("c", -5.0, 5.0, missing="indicator"),
    ],
    ids=["category", "number"],
)
def test_a_value_of_a_list_is_read_by_itself(column):
    """True beside a 1 is not another 1, and 1.0 beside text is not the text 1.0: each pair as its
    two values alone."""
    schema = Schema((column,), target="label", classes=("no", "yes"))

    def row(*values):
        try:
            return SchemaTransformer(schema).fit_transform({"c": list(values)}).tolist()
        except InputError:
            return None

    alone = [row(value) for value in VALUES]
    for (one, first), (two, second) in itertools.product(zip(alone, VALUES, strict=True), repeat=2):
        assert row(first, second) == (None if one is None or two is None else one + two), (
            first,
            second,
        )


@pytest.mark.parametrize("kind", ["category", "number"])
def test_a_value_of_an_untyped_column_is_read_by_itself(kind):
    """Arrow would give 2 beside 1.50 the text 2.00, and true beside a 1 the text 1."""
    pandas = pytest.importorskip("pandas")
    column = (
        Category("c", ("1", "2", "True"), outside="zero", missing="indicator")
        if kind == "category"
        else Numeric("c", -5.0, 5.0, missing=0.0)
    )
    schema = Schema((column, Numeric("d", 0.0, 1.0)), target="label", classes=("no", "yes"))
    values = [
        *VALUES,
        decimal.Decimal("2"),
        pandas.NA,
        pandas.NaT,
        pandas.Timestamp("2020-01-02", tz="UTC"),
        [1],
    ]

    def row(*values):
        frame = pandas.DataFrame(
            {"d": [0.5] * len(values), "c": pandas.Series(values, dtype=object)}
        )
        try:
            return SchemaTransformer(schema).fit_transform(frame).tolist()
        except InputError:
            return None

    alone = [row(value) for value in values]
    assert sum(one is not None for one in alone) > 12 and row(pandas.NA) == row(pandas.NaT) == row(
        None
    ) == row("<NA>")
    for (one, first), (two, second) in itertools.product(zip(alone, values, strict=True), repeat=2):
        assert row(first, second) == (None if one is None or two is None else one + two), (
            first,
            second,
        )


def test_true_in_a_list_of_numbers_is_one_as_in_an_array():
    transformer = SchemaTransformer(
        Schema((Numeric("c", -5.0, 5.0),), target="label", classes=("no", "yes"))
    )
    expected = transformer.fit_transform({"c": [1, 0]})
    for column in (
        [True, 0.0],
        (True, np.bool_(False)),
        np.array([True, False]),
        ["1", 0],
        pyarrow.array([True, False]),
    ):
        np.testing.assert_array_equal(transformer.fit_transform({"c": column}), expected)


@pytest.mark.parametrize("unit", ["M", "D", "h", "s", "ms", "us", "ns"])
def test_days_in_an_array_are_those_of_a_table(unit):
    """Arrays of times in a dictionary, as a data frame has them."""
    days = np.array(["2021-03-01", "NaT", "2024-02-01"], dtype=f"M8[{unit}]")
    schema = Schema(
        (Date("d", "2020-01-01", "2026-01-01", missing="indicator"), Words("w")),
        target="label",
        classes=("no", "yes"),
    )
    made = SchemaTransformer(schema, features="words")
    text = ["2021-03-01", None, "2024-02-01"]
    expected = made.fit_transform({"d": text, "w": [""] * 3})
    np.testing.assert_array_equal(made.fit_transform({"d": days, "w": [""] * 3}), expected)
    if unit in ("s", "ms", "us", "ns"):
        table = pyarrow.table({"d": days, "w": days})
        np.testing.assert_array_equal(
            made.fit_transform({"d": days, "w": days}), made.fit_transform(table)
        )
    with pytest.raises(InputError, match="must hold numbers"):
        SchemaTransformer(
            Schema((Numeric("d", 0.0, 1.0),), target="label", classes=("a", "b"))
        ).fit_transform({"d": days})


@pytest.mark.parametrize(
    "text",
    [
        "3",
        "3.0",
        "3.00",
        "2.5",
        "2.50",
        "0.1",
        "0.10",
        "-0",
        "1e30",
        "1e-7",
        "100000000000000000001",
        "100000000000000000001.0",
        "1e400",
        "1e999",
    ],
)
def test_equal_labels_are_one_class(text):
    label = decimal.Decimal(text)
    assert label_text(label) == label_text(label * decimal.Decimal("1.00")) and isinstance(
        label_text(label), str
    )
    assert label != float(label) or label_text(label) == label_text(float(label)) == label_text(
        np.float64(label)
    )
    assert (
        label != label.to_integral_value()
        or abs(label) > 10**40
        or label_text(label) == label_text(int(label))
    )


def test_labels_of_decimals():
    schema = Schema((Category("c", ("x", "y")),), target="label", classes=("1", "3"))
    found = labels_of(
        schema,
        None,
        [decimal.Decimal("3.0"), decimal.Decimal(3), 3.0, decimal.Decimal("1.00"), "1"],
    )[1]
    assert found.tolist() == [1, 1, 1, 0, 0]


def test_labels_of_a_list_are_read_by_themselves():
    schema = Schema((Category("c", ("x", "y")),), target="label", classes=("1", "True", "a"))
    found = labels_of(schema, None, [True, 1, 1.0, "a", np.float32(1), np.bool_(True)])[1]
    assert found.tolist() == [1, 0, 0, 2, 0, 1]
    for nested in ([[1], [2, 3]], [{1}, {2}], [(1, 2), (3, 4)]):
        with pytest.raises(InputError, match="single values"):
            SchemaTransformer(schema).fit({"c": nested})


BAD_CELLS = {
    "an unknown category": ({"a": [0.5], "c": ["z"]}, "correct the cell"),
    "a missing value": ({"a": [0.5], "c": [""]}, "fill the cell"),
    "misses the column 'c'": ({"a": [0.5], "d": ["x"]}, "add it"),
    "letter by letter": ({"a": [0.5], "C": ["x"]}, "rename it in the file"),
    "must hold numbers": (
        {"a": ["1,5"], "c": ["x"]},
        "write 1000 and not 1,000, 30.5 and not 30,5",
    ),
}


def refusal(call, *given):
    with pytest.raises(InputError) as refused:
        call(*given)
    return str(refused.value)


@pytest.fixture(scope="module")
def predicting():
    """Whatever predicts from tables by the schema, with the names of its methods."""
    table, labels = columns()
    one = DPLogisticRegression(schema=SCHEMA, algorithm="noisy-gd", features="plain")
    pipe = make_pipeline(
        SchemaTransformer(SCHEMA),
        DPLogisticRegression(row_norm=2.0, classes=["no", "yes"], algorithm="noisy-gd"),
    )
    one, pipe = one.fit(table, labels), pipe.fit(table, labels)
    released = ReleasedClassifier(one.fitted_)
    methods = ("predict", "predict_proba", "decision_function")
    calls = {
        **{f"estimator.{name}": getattr(one, name) for name in methods},
        **{f"pipeline.{name}": getattr(pipe, name) for name in methods},
        "estimator.score": lambda x: one.score(x, ["no"]),
        "pipeline.score": lambda x: pipe.score(x, ["no"]),
        "released.predict": released.predict,
        "released.predict_proba": released.predict_proba,
    }
    counted = partial(one.fitted_.private_score, y=["no"] * 2000, epsilon=1.0)
    return {
        **{name: (call, "X") for name, call in calls.items()},
        "mlflow": (Scorer(one.fitted_).predict, "the table"),
        "private_score": (lambda x: counted(pandas.concat([x] * 2000)), "x"),
    }


@pytest.mark.parametrize("fault", BAD_CELLS)
def test_a_fitted_model_keeps_its_schema(predicting, fault):
    """Another schema would need another fit, which costs epsilon: the table is what can change."""
    table, remedy = BAD_CELLS[fault]
    for name, (call, given) in predicting.items():
        said = refusal(call, pandas.DataFrame(table))
        assert said.endswith(f"{remedy}; rewrite {given}, not the schema."), name
        assert "or train" not in said and (fault in said or "letter" in fault), name


def test_a_table_to_train_on_may_have_another_schema():
    """Also in a fold of a search, whose ``fit`` stands around the fit and around predictions."""
    table, labels = columns(60)
    bad = {**table, "c": np.where(np.arange(60) == 3, "z", table["c"])}
    pipe = make_pipeline(SchemaTransformer(SCHEMA), DPLogisticRegression(row_norm=2.0))
    for call in (
        DPLogisticRegression(schema=SCHEMA).fit,
        pipe.fit,
        GridSearchCV(pipe, {"schematransformer__features": [None]}, error_score="raise").fit,
        SchemaTransformer(SCHEMA).fit_transform,
    ):
        said = refusal(call, pandas.DataFrame(bad), labels)
        assert said.endswith('or train with it in values, or with outside = "zero" in the schema.')
    for transform in (
        SchemaTransformer(SCHEMA).transform,  # whose rows may be for li.load("model").predict
        SchemaTransformer(SCHEMA).fit(table).transform,
    ):
        said = refusal(transform, bad)
        assert said.endswith(" in the schema; for a trained model rewrite X, not the schema.")

"""Labels in scikit-learn's order, columns by their names, and estimators that a refused fit leaves
as they were."""

import warnings

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import get_scorer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder

import lastiterate as li
from lastiterate.data import Category, Numeric, Schema
from lastiterate.errors import BudgetWarning, InputError
from lastiterate.estimators import DPHuberRidge, DPLogisticRegression, DPSearchCV
from lastiterate.features import SchemaTransformer

RNG = np.random.default_rng(3)
AGE, B = RNG.uniform(18, 90, 800), RNG.uniform(0, 1, 800)
TABLE, COLUMNS = {"age": AGE, "b": B}, (Numeric("age", 18, 90), Numeric("b", 0, 1))
SICK = np.where(AGE > 50, "yes", "no")
ROWS = np.column_stack(((AGE - 54) / 36, B))


def fitted(classes, y, table=TABLE, columns=COLUMNS):
    return DPLogisticRegression(epsilon=5.0, schema=Schema(columns, classes=classes)).fit(table, y)


@pytest.mark.parametrize(
    "classes, y",
    [
        (("yes", "no"), SICK),
        (("True", "False"), SICK == "yes"),
        ((10, 9.0), np.where(SICK == "yes", 10, 9)),
    ],
)
def test_the_schemas_order_of_classes_is_not_that_of_labels(classes, y):
    """Scorers take the larger label for the second column; 9 comes before 10, and as texts behind
    it."""
    model = fitted(classes, y)
    assert list(model.classes_) == sorted(set(y.tolist())) and model.score(TABLE, y) > 0.95
    assert model.fitted_.answers.values == Schema(columns=COLUMNS, classes=classes).classes
    assert (
        get_scorer("roc_auc")(model, TABLE, y) > 0.99
        and get_scorer("neg_log_loss")(model, TABLE, y) > -0.3
    )


@pytest.mark.parametrize(
    "classes, y", [(("0", "1"), (SICK == "yes").astype(int)), (("False", "True"), SICK == "yes")]
)
def test_labels_of_objects_are_what_the_objects_are(classes, y):
    model = fitted(classes, y.astype(object))
    assert model.classes_.dtype.kind == y.dtype.kind and (model.predict(TABLE) == y).mean() > 0.95


def test_numbers_for_classes_that_are_texts():
    with pytest.raises(
        InputError, match="classes of the schema, which are texts, got 'int64 numbers'"
    ):
        fitted(("no", "yes"), (SICK == "yes").astype(int))


def test_a_refused_fit_leaves_the_model_as_it_was():
    model = fitted(("no", "yes"), SICK)
    before = model.score(TABLE, SICK)
    model.set_params(schema=Schema(COLUMNS[:1], classes=("no", "yes", "both")), report_accuracy=9)
    with pytest.raises(InputError, match="report_accuracy"):
        model.fit({"age": AGE}, SICK)
    assert model.score(TABLE, SICK) == before and list(model.classes_) == ["no", "yes"]
    plain = DPHuberRidge(epsilon=5.0, row_norm=1.5, target_range=(0, 90)).fit(ROWS, AGE)
    before = plain.predict(ROWS)
    with pytest.raises(InputError, match="epsilon"):
        plain.set_params(epsilon=-1.0).fit(ROWS[:, :1], AGE)
    assert np.array_equal(plain.predict(ROWS), before)


def test_days_are_no_numbers():
    days = AGE.astype("M8[D]")
    for fit in (
        lambda: DPLogisticRegression(row_norm=1.0, classes=["no", "yes"]).fit(days[:, None], SICK),
        lambda: DPHuberRidge(row_norm=1.5, target_range=(0, 90)).fit(ROWS, days - days[0]),
        lambda: DPHuberRidge(schema=Schema(COLUMNS, target_range=(0, 90))).fit(TABLE, days),
    ):
        with pytest.raises(InputError, match="must hold numbers, and has days or times"):
            fit()


def test_an_array_of_numbers_has_categories_too():
    table = np.column_stack((RNG.integers(1, 3, 800), AGE))
    columns = (Category("c", (1, 2.0)), COLUMNS[0])
    assert fitted(("no", "yes"), SICK, table, columns).score(table, SICK) > 0.95


@pytest.mark.parametrize(
    "make, said",
    [
        (
            lambda: DPLogisticRegression(row_norm="1", classes=["no", "yes"]),
            "row_norm must be a number",
        ),
        (
            lambda: DPLogisticRegression(row_norm=1.5, classes=["no", "yes"], time_budget="9"),
            "time_budget must be",
        ),
        *(
            (lambda given=given: DPHuberRidge(row_norm=1.5, target_range=given), said)
            for given, said in [
                (5, "target_range must be a list or tuple"),
                ((0, 1, 2), "target_range must be two numbers"),
                (("0", "1"), "every entry of target_range must be a number"),
                ({0, 1}, "must be a list or tuple of numbers"),
                ((1.0, 0.0), "must be finite numbers low < high"),
                ((0.0, np.inf), "must be finite numbers low < high"),
            ]
        ),
    ],
)
def test_arguments_of_another_kind_are_named(make, said):
    estimator = make()
    with pytest.raises(InputError, match=said):
        estimator.fit(ROWS, SICK if isinstance(estimator, DPLogisticRegression) else AGE)


def test_a_net_names_its_own_arguments():
    torch = pytest.importorskip("torch")
    from sklearn.exceptions import NotFittedError

    from lastiterate.torch import DPNetClassifier

    net = DPNetClassifier(torch.nn.Linear(2, 2), classes=["no", "yes"], batch_size=0)
    with pytest.raises(InputError, match="batch_size must be an integer"):
        net.fit(ROWS.astype(np.float32), SICK)
    with pytest.raises(NotFittedError):
        net.predict(ROWS)


def test_one_text_is_no_list_of_them():
    for make in (lambda: Schema(COLUMNS, classes="01"), lambda: Category("c", "12")):
        with pytest.raises(InputError, match="must be a list of texts"):
            make()


def test_a_saved_model_says_how_a_table_becomes_rows(tmp_path):
    model = fitted(("no", "yes"), SICK)
    again = li.load(model.fitted_.save(tmp_path / "m"))
    with pytest.raises(
        InputError, match=r"SchemaTransformer\(model.schema\).transform\(table\) makes them"
    ):
        again.predict(ROWS)
    assert np.array_equal(
        again.predict(SchemaTransformer(again.schema).transform(TABLE)), model.predict(TABLE)
    )


def test_what_several_parts_notice_is_said_once_where_fit_was_called():
    model = DPLogisticRegression(epsilon=50.0, row_norm=1.5, classes=["no", "yes"])
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("default")
        model.fit(ROWS, SICK)
    said = [one for one in seen if one.category is BudgetWarning]
    assert len(said) == 1 and said[0].filename == __file__


def test_what_stands_in_the_place_of_weights_is_not_shown():
    with pytest.raises(InputError, match="sample_weight is not supported") as caught:
        DPLogisticRegression(row_norm=1.5, classes=["no", "yes"]).fit(
            ROWS, SICK, np.full(800, 7.125)
        )
    assert "7.125" not in str(caught.value)


def test_a_search_knows_columns_by_their_names():
    arrow = pytest.importorskip("pyarrow")
    rows = arrow.table({"a": ROWS[:, 0], "b": ROWS[:, 1]})
    search = DPSearchCV(
        DPLogisticRegression(row_norm=1.5, classes=["no", "yes"]),
        {"row_norm": [1.4, 1.5]},
        epsilon=5.0,
    )
    assert list(search.fit(rows, SICK).best_estimator_.feature_names_in_) == ["a", "b"]
    assert search.score(rows, SICK) > 0.9
    with pytest.raises(ValueError, match="feature names should match"):
        search.predict(rows.select(["b", "a"]))


def test_answers_may_be_a_frame_of_one_column_and_persons_may_not():
    facts = {"columns": {"age": {"kind": "number", "low": 18, "high": 90}}}
    x, y = pd.DataFrame({"age": AGE}), pd.DataFrame({"sick": SICK})
    sick = DPLogisticRegression(epsilon=5.0, schema=facts | {"classes": ["no", "yes"]}).fit(x, y)
    assert sick.score(x, SICK) > 0.9
    ages = DPHuberRidge(epsilon=5.0, schema=facts | {"target_range": [18, 90]})
    assert ages.fit(x, x).score(x, AGE) > 0.5
    with pytest.raises(InputError, match=r"y must be one label .*give one column"):
        sick.fit(x, pd.DataFrame({"sick": SICK, "b": SICK}))
    with pytest.raises(InputError, match="X must hold at least one record"):
        sick.predict(x[:0])
    persons = pd.DataFrame({"pid": np.arange(800) // 2})
    sick.set_params(rows_per_unit=np.int64(2))
    with pytest.raises(InputError, match=r"units .*give one column: units=table\['pid'\]"):
        sick.fit(x, y, units=persons)
    assert sick.fit(x, y, units=persons["pid"]).run_.rows_per_record == 2


CODES = (SICK == "yes").astype(int)


@pytest.mark.parametrize("y", [CODES, CODES == 1, CODES * 1.0], ids=["int", "bool", "float"])
@pytest.mark.parametrize("stated", ["schema", "classes"])
def test_codes_of_text_classes_are_refused_with_the_mapping(y, stated):
    kinds = {
        "schema": {"schema": Schema(COLUMNS, classes=("no", "yes"))},
        "classes": {"classes": ["no", "yes"], "row_norm": 2.0},
    }
    model = DPLogisticRegression(epsilon=5.0, algorithm="noisy-gd", **kinds[stated])
    given = TABLE if stated == "schema" else ROWS
    with pytest.raises(InputError, match=r"which are texts, got .* numbers") as refused:
        model.fit(given, y)
    remedy = str(refused.value).split("from 0, ")[1].removesuffix(".")
    mapped = eval(remedy, {"np": np, "y": y})
    assert (mapped == SICK).all()
    model.fit(given, mapped)


@pytest.mark.parametrize(
    "model",
    [
        DPLogisticRegression(row_norm=2.0, classes=[0, 1], algorithm="noisy-gd"),
        DPHuberRidge(row_norm=2.0, target_range=(0, 1), algorithm="noisy-gd"),
    ],
    ids=["classifier", "regressor"],
)
def test_sparse_rows_are_refused_with_what_makes_them_dense(model):
    rows, stated = (ROWS > 0.5).astype(int), [[0, 1], [0, 1]]
    with pytest.raises(InputError, match=r"X must be dense.*OneHotEncoder\(sparse_output=False\)"):
        make_pipeline(OneHotEncoder(categories=stated), model).fit(rows, CODES)
    dense = OneHotEncoder(categories=stated, sparse_output=False)
    trained = make_pipeline(dense, model).fit(rows, CODES)
    with pytest.raises(InputError, match=r"give X.toarray\(\)"):
        trained[-1].predict(OneHotEncoder(categories=stated).fit_transform(rows))

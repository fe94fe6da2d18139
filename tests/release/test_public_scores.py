"""Scores on public records, and what they have to be compared with where a class is rare."""

import json
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console
from sklearn.linear_model import Ridge
from sklearn.metrics import r2_score

from lastiterate.cli.tables import model_to_json, show_model
from lastiterate.cli.train import Training
from lastiterate.data import Ignore, Numeric, Schema, load_bundled, split
from lastiterate.data.columns import Category, Date, Words
from lastiterate.data.encoding import encode_public
from lastiterate.errors import InputError
from lastiterate.planning.predicted_risk import predict_scores
from lastiterate.release import data_file
from lastiterate.release.file_training import PublicScores, fit_file
from lastiterate.release.prediction import prediction_rows
from lastiterate.release.score_meaning import Labels
from lastiterate.release.training_request import Algorithm, Budget, Processes, TrainingRequest
from support import call

NO_YES = Labels(("no", "yes"))


def chances(of_second):
    return np.column_stack((1 - np.asarray(of_second), of_second))


def test_scores_of_two_classes_are_those_of_a_hand_calculation():
    """Of 10 records two are "yes": 14 of 16 pairs are ordered right, with precisions 1 and 2/4."""
    target = np.array([0, 0, 0, 1, 0, 0, 0, 0, 0, 1])
    found = PublicScores.of_classes(
        NO_YES, chances([0.1, 0.2, 0.45, 0.3, 0.4, 0.1, 0.1, 0.1, 0.1, 0.49]), target
    )
    assert found.value == found.largest_share == 0.8 and found.largest_class == "no"
    assert (found.rarer_class, found.rarer_share) == ("yes", 0.2)
    assert found.auroc == 14 / 16 and found.average_precision == pytest.approx((1 + 2 / 4) / 2)
    assert not found.rare and (found.recall, found.precision) == (0, 0), "none is predicted yes"
    assert found.describe("t.csv") == (
        "0.800 on t.csv; always answering no gets 0.800; AUROC 0.875; average precision 0.750 "
        "for yes"
    )


def test_the_rarer_class_is_the_one_that_is_rarer_in_these_records():
    target = np.array([1] * 19 + [0])
    found = PublicScores.of_classes(NO_YES, chances([0.9] * 19 + [0.6]), target)
    assert (found.rarer_class, found.largest_class, found.rare) == ("no", "yes", True)
    assert found.auroc == found.average_precision == 1.0 and found.value == 0.95


def test_a_threshold_moves_accuracy_and_not_the_ranking():
    target = np.array([0, 0, 0, 1])
    plain, moved = (
        PublicScores.of_classes(Labels(("no", "yes"), t), chances([0.1, 0.2, 0.3, 0.4]), target)
        for t in (None, 0.35)
    )
    assert (plain.value, moved.value, plain.auroc) == (0.75, 1.0, moved.auroc)
    assert (moved.recall, moved.precision) == (1.0, 1.0)
    low = PublicScores.of_classes(
        Labels(("no", "yes"), 0.25), chances([0.1, 0.2, 0.3, 0.4]), target
    )
    assert (low.recall, low.precision) == (1.0, 0.5)


@pytest.mark.parametrize(
    ("labels", "target"), [(NO_YES, [0, 0, 0]), (Labels(("a", "b", "c")), [0, 1, 2])]
)
def test_there_is_no_ranking_of_one_class_or_of_three(labels, target):
    one = PublicScores.of_classes(
        labels, np.full((3, len(labels.values)), 1 / len(labels.values)), np.array(target)
    )
    assert one.auroc is one.average_precision is one.rarer_class is None
    assert "AUROC" not in one.describe("x") and one.largest_share is not None


SCHEMA = Schema((Numeric("age", 0, 100),), classes=("no", "yes"), target="ill")


def write(path, each):
    """1,000 people, of whom one in ``each`` is ill."""
    rows = (f"{i % 101},{'yes' if i % each == 0 else 'no'}" for i in range(1000))
    path.write_text("\n".join(["age,ill", *rows]) + "\n")
    return str(path)


def shown(result, capsys):
    show_model(Console(width=200), result, "m")
    return " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("each", "more", "hint"),
    [
        (25, {}, True),
        (4, {}, False),
        (25, {"threshold": 0.1}, False),
        (25, {"class_weight": {"no": 1.0, "yes": 9.0}}, False),
    ],
)
def test_the_card_says_what_always_answering_one_class_gets(tmp_path, capsys, each, more, hint):
    path = write(tmp_path / "a.csv", each)
    result = fit_file(
        TrainingRequest(
            data=path,
            schema=SCHEMA,
            budget=Budget(1.0),
            test=path,
            algorithm=Algorithm("noisy-gd"),
            **more,
        )
    )
    card, share = shown(result, capsys), 1 - 1 / each
    assert f"always no: {share:.3f}" in card
    assert f"for yes ({1 - share:.3f} of the records)" in card and "AUROC" in card
    assert (
        "rare classes" in card and "or --threshold" in card and "--class-weight" in card
    ) == hint
    scores = result.scores
    found = f"recall {scores.recall:.3f}, precision {scores.precision:.3f} for yes"
    assert (found in card) == bool(more), "after either option accuracy alone says little"
    assert ("predicts yes from probability 0.1 on, else no" in card) == ("threshold" in more)
    assert ("those of the weighted records" in card) == ("class_weight" in more)
    body = json.loads(json.dumps(model_to_json(result, "m")))
    assert body["test_scores"]["largest_share"] == share and body["test_score"] is not None


def test_the_card_of_a_regression_names_its_target(tmp_path, capsys):
    path = write(tmp_path / "a.csv", 25)
    columns = (Category("ill", ("no", "yes")),)
    schema = Schema(columns, target_range=(0.0, 100.0), target="age")
    order = TrainingRequest(
        data=path, schema=schema, budget=Budget(1.0), algorithm=Algorithm("noisy-gd")
    )
    assert "predicts age, within [0, 100]" in shown(fit_file(order), capsys)
    order = replace(order, schema=replace(schema, columns=(Numeric("ill", 0, 1),)))
    (tmp_path / "a.csv").write_text("ill,age,note\n" + "0.5,50,good\n1,40,bad\n" * 500)
    order = replace(
        order, schema=replace(order.schema, columns=(Numeric("ill", 0, 1), Words("note")))
    )
    card = shown(fit_file(order), capsys)
    assert "--features words suits straight" in card.replace(" │ │ ", " ")
    assert "suits straight" not in shown(fit_file(replace(order, features="words")), capsys)
    (tmp_path / "a.csv").write_text("ill,age\n" + "0.5,50\n1,40\n" * 500)
    order = replace(order, schema=replace(schema, columns=(Numeric("ill", 0, 1),)))
    for features, budget, said in (
        ("auto", 1.0, True),
        ("curves", 1.0, False),
        ("auto", 9.0, False),
    ):
        card = shown(fit_file(replace(order, features=features, budget=Budget(budget))), capsys)
        assert ("curves: numbers as" in card) and (
            "--features plain suits straight" in card
        ) == said


@pytest.mark.parametrize("weight", [None, {"no": 2.0, "yes": 2.0}, {"no": 1.0, "yes": 24.0}])
def test_probabilities_of_weighted_records_are_no_frequencies(tmp_path, capsys, recwarn, weight):
    """The card and ``predict`` say so where weights differ; each probability over its class's
    weight gives the share of the records."""
    path = write(tmp_path / "a.csv", 25)
    order = TrainingRequest(data=path, schema=SCHEMA, budget=Budget(20.0), class_weight=weight)
    result = fit_file(replace(order, seed=3))
    card, differ = shown(result, capsys), weight is not None and weight["no"] != weight["yes"]
    assert "calibrated by 4 noisy rounds" in card
    assert ("; they are those of the weighted records, not of the records" in card) == differ
    recwarn.clear()
    rows = prediction_rows(result.model, path, probabilities=True)[1]
    said = [str(one.message) for one in recwarn]
    assert len(said) == differ and all("among the records weighted by class" in x for x in said)
    given = np.array([row[1:] for row in rows], dtype=float)
    assert (given[:, 1].mean() > 0.25) == differ
    divided = given / [(weight or {}).get(name, 1.0) for name in ("no", "yes")]
    assert abs((divided[:, 1] / divided.sum(axis=1)).mean() - 0.04) < 0.01


def test_nothing_is_measured_on_records_that_nobody_called_public(tmp_path, capsys):
    """Neither scores nor shares of classes: those of the training records are private."""
    order = TrainingRequest(
        data=write(tmp_path / "a.csv", 25),
        schema=SCHEMA,
        budget=Budget(1.0),
        algorithm=Algorithm("noisy-gd"),
    )
    result = fit_file(order)
    card, body = shown(result, capsys), model_to_json(result, "m")
    assert body["test_score"] is body["test_scores"] is result.scores is None
    assert not any(word in card for word in ("always ", "AUROC"))
    assert "accuracy was not measured, and a rare class may never be predicted" in card
    (tmp_path / "a.toml").write_text(
        'target = "ill"\nclasses = ["no", "yes"]\n'
        '[columns.age]\nkind = "number"\nlow = 0\nhigh = 100\n'
    )
    with pytest.raises(InputError, match="test file is declared public"):
        Training(data=order.data, epsilon=1.0, test=order.data).order(Processes())


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({}, "accuracy was not measured, and a rare class"),
        ({"class_weight": {"no": 1.0, "yes": 15.0}}, "and even with class weights a rare class"),
        ({"threshold": 0.1}, "and even with a threshold a rare class"),
        ({"report_accuracy": 0.5}, "one overall accuracy does not show them, and a rare class"),
        (
            {"report_accuracy": 0.5, "class_weight": {"no": 1.0, "yes": 15.0}},
            "does not show them, and even with class weights a rare class",
        ),
        ({"exact": True}, "accuracy was not measured, and a rare class"),
    ],
)
def test_rare_classes_are_warned_of_until_a_public_test_measures_them(tmp_path, capsys, more, said):
    """A model may predict one class alone whatever the weights, and one accuracy hides it; the
    remedy that is named takes the warning away."""
    path = write(tmp_path / "a.csv", 25)
    order = TrainingRequest(data=path, schema=SCHEMA, budget=Budget(3.0), **more)
    card = shown(fit_file(order), capsys)
    assert f"{said} may never be predicted: --test FILE --test-is-public shows it" in card
    assert "--report-accuracy" not in card
    helps = "shows it; --class-weight or --threshold may help"
    assert (helps in card) == ({"class_weight", "threshold"}.isdisjoint(more))
    card = shown(fit_file(replace(order, test=path)), capsys)
    assert "may never be predicted" not in card and "test ranking AUROC" in card


def test_other_rows_are_planned_for_what_the_chosen_ones_were(tmp_path, monkeypatch):
    """Weights of classes, persons, the remaining budget: another width is all that differs."""
    from lastiterate.ledger import Ledger
    from lastiterate.ledger.filters import GaussianFilter
    from lastiterate.release import linear_plans
    from lastiterate.release.ledger_charge import Charging

    path, asked = write(tmp_path / "a.csv", 25), []
    consider = linear_plans._consider
    monkeypatch.setattr(
        linear_plans, "_consider", lambda *given: asked.append(given) or consider(*given)
    )
    ledger = Ledger(tmp_path / "b.db")
    ledger.add("a", unit="record", adjacency="zero-out", filter=GaussianFilter.of(3.0, 1e-4))
    order = TrainingRequest(
        data=path,
        schema=SCHEMA,
        budget=Budget(1.0, 1e-5),
        class_weight={"no": 1.0, "yes": 15.0},
        charging=Charging(ledger=ledger, dataset="a"),
    )
    result = fit_file(order)
    said = result.weigh_features()
    (chosen, *same), (other, *also) = asked
    assert same == also and same[-1] is not None, "budget, streaming and what the ledger left"
    assert chosen.class_weights == (1 / 15, 1.0)
    assert other == replace(chosen, features=other.features, row_norm=other.row_norm) != chosen
    rival = consider(other, *also).best
    scores = predict_scores(rival.certificate.run, rival.risk)
    assert scores is not None and f"and {scores.log_loss:.2g} with {other.features} " in said


def test_the_plan_says_before_the_charge_that_text_has_no_onnx_form(tmp_path):
    facts = '[columns.age]\nkind = "number"\nlow = 0\nhigh = 100\n'
    for more, told in (("", False), ('[columns.note]\nkind = "text"\n', True)):
        path = tmp_path / "s.toml"
        path.write_text(f'target = "ill"\nclasses = ["no", "yes"]\nsource = "s"\n{facts}{more}')
        code, out, _ = call("plan", "--n", 600, "--schema", path, "--epsilon", 1)
        said = "text: has no ONNX form; export --to mlflow takes it"
        assert code == 0 and (said in " ".join(out.split())) == told


def test_the_card_names_the_columns_that_take_most_of_a_row(tmp_path, capsys):
    """Next to other fields; a table of text alone has no other columns to compare with."""
    rows = [f"{i % 101},{'yes' if i % 3 else 'no'},word{i % 7}" for i in range(600)]
    path = tmp_path / "a.csv"
    path.write_text("\n".join(["age,ill,note", *rows]) + "\n")
    fields = {"age": Numeric("age", 0, 100), "note": Words("note")}
    for kept, more, words in (
        (("age", "note"), {}, "264 numbers in a row, note (text) 256; each adds noise"),
        (("age", "note"), {"features": "words"}, "257 numbers in a row, note (text) 256;"),
        (("note",), {}, None),
    ):
        columns = tuple(fields[name] if name in kept else Ignore(name) for name in ("age", "note"))
        schema = Schema(columns, classes=("no", "yes"), target="ill")
        order = TrainingRequest(data=str(path), schema=schema, budget=Budget(1.0), **more)
        card = shown(fit_file(order), capsys)
        assert "in 256 numbers" in card and (words is None or words in card)
        assert ("numbers in a row" in card) == (words is not None)
        assert "has no ONNX form; export --to mlflow takes it" in card


def test_check_and_plan_name_wide_categories_and_dates_before_a_charge(tmp_path):
    months = ", ".join(f'"c{i}"' for i in range(60))
    path, table = tmp_path / "s.toml", tmp_path / "a.csv"
    path.write_text(
        'target = "ill"\nclasses = ["no", "yes"]\nsource = "s"\n'
        f'[columns.cause]\nkind = "category"\nvalues = [{months}]\n'
        '[columns.age]\nkind = "number"\nlow = 0\nhigh = 90\n'
        '[columns.day]\nkind = "date"\nfirst = "2020-01-01"\nlast = "2021-01-01"\n'
    )
    table.write_text("cause,age,day,ill\n" + "c1,20,2020-02-03,no\nc2,30,2020-03-04,yes\n" * 20)
    said = "81 numbers in a row, cause (category) 60, day (date) 20; each adds noise"
    for command in (
        ("check", table, "--schema", path),
        ("plan", "--n", 600, "--schema", path, "--features", "plain", "--epsilon", 1),
    ):
        code, out, _ = call(*command)
        assert code == 0 and said in " ".join(out.split()), out


@pytest.mark.parametrize("features", ["auto", "plain"])
def test_rare_classes_are_better_off_with_few_columns(tmp_path, capsys, features):
    path = write(tmp_path / "a.csv", 25)
    order = TrainingRequest(
        data=path, schema=SCHEMA, budget=Budget(1.0), test=path, features=features
    )
    card = shown(fit_file(order), capsys)
    assert "rare classes" in card and ("--features plain" in card) == (features == "auto")


def test_text_needs_a_map_also_where_columns_are_few(tmp_path, capsys):
    """The card names an option that a schema with text takes."""
    rows = [f"{i % 101},{'yes' if i % 25 == 0 else 'no'},word{i % 7}" for i in range(600)]
    path = tmp_path / "a.csv"
    path.write_text("\n".join(["age,ill,note", *rows]) + "\n")
    schema = Schema((Numeric("age", 0, 100), Words("note")), classes=("no", "yes"), target="ill")
    order = TrainingRequest(data=str(path), schema=schema, budget=Budget(1.0), test=str(path))
    card = shown(fit_file(order), capsys)
    assert "--features words has fewer columns" in card and "--features plain" not in card
    fit_file(replace(order, features="words"))


def test_remedies_name_the_file_that_can_be_mended(tmp_path):
    """A released model is not trained again for a file, and a public test is not the data."""
    days = [f"2026-01-{1 + i % 28:02d},{'yes' if i % 3 else 'no'}" for i in range(60)]
    good, bad = tmp_path / "good.csv", tmp_path / "bad.csv"
    good.write_text("\n".join(["day,ill", *days]) + "\n")
    bad.write_text(good.read_text().replace("2026-01-05", "05.01.2026"))
    schema = Schema((Date("day", "2026-01-01", "2026-12-31"),), classes=("no", "yes"), target="ill")
    order = TrainingRequest(
        data=str(good), schema=schema, budget=Budget(1.0), algorithm=Algorithm("noisy-gd")
    )
    model = fit_file(order).model
    with pytest.raises(InputError) as refused:
        prediction_rows(model, str(bad))
    assert str(refused.value).endswith(f"correct the cell; rewrite {bad}, not the schema.")
    bad.write_text("ill\nno\n")
    with pytest.raises(InputError) as refused:
        prediction_rows(model, str(bad))
    assert str(refused.value).endswith(f"add it; rewrite {bad}, not the schema.")
    bad.write_text(good.read_text().replace("2026-01-05", "05.01.2026"))
    with pytest.raises(InputError, match=r"or train with.*this is in the test file .*bad\.csv"):
        fit_file(replace(order, test=str(bad)))


def rents(path, count=600, decimal="."):
    """Rents of 0 to 1,590; a third of them is above 1,000."""
    rows = [f"{i % 40};{40 * (i % 40) + i % 7 * 5:.1f}" for i in range(count)]
    path.write_text("\n".join(["size;rent", *rows]).replace(".", decimal) + "\n")
    return str(path)


@pytest.mark.parametrize("decimal", [".", ","])
def test_a_regression_is_scored_by_the_numbers_of_the_test_file(tmp_path, capsys, decimal):
    """Targets that training moves to the ends of the range stay what they are in a test."""
    path = rents(tmp_path / "rents.csv", decimal=decimal)
    schema = Schema(
        (Numeric("size", 0, 40),), target="rent", target_range=(0.0, 1000.0), decimal=decimal
    )
    order = TrainingRequest(data=path, schema=schema, budget=Budget(20.0), test=path)
    result = fit_file(order)
    said = np.array([float(row[0]) for row in prediction_rows(result.model, path)[1]])
    true = np.array([40 * (i % 40) + i % 7 * 5.0 for i in range(600)])
    assert result.test_score == pytest.approx(r2_score(true, said), abs=1e-6)
    assert result.test_score < r2_score(true.clip(0, 1000), said) - 0.2
    outside = int((true > 1000).sum())
    words = f"{outside} of 600 targets lie outside [0, 1000], and predictions never do"
    assert f"R^2 {result.test_score:.3f}, public data ({words})" in shown(result, capsys)
    assert result.scores.describe("t.csv") == f"R^2 {result.test_score:.3f} on t.csv; {words}"
    scores = model_to_json(result, "m")["test_scores"]
    assert (scores["targets"], scores["targets_outside"]) == (600, outside)
    wide = fit_file(replace(order, schema=replace(schema, target_range=(0.0, 2000.0))))
    assert wide.scores.targets_outside == 0 and "targets" not in wide.scores.describe("t.csv")
    assert "(" not in shown(wide, capsys).split("public data")[1].split("│")[0]


@pytest.mark.parametrize(
    ("cells", "said"),
    [
        ("inf", "must be finite numbers, and is not in record 2; correct the cell"),
        ("5", "must hold two different numbers at least, or R^2 has no meaning; add records"),
    ],
)
def test_targets_without_a_score_are_refused_before_training(tmp_path, cells, said):
    test, path = tmp_path / "test.csv", rents(tmp_path / "rents.csv")
    test.write_text(f"size;rent\n1;5\n2;{cells}\n")
    schema = Schema((Numeric("size", 0, 40),), target="rent", target_range=(0.0, 1000.0))
    order = TrainingRequest(data=path, schema=schema, budget=Budget(1.0), test=str(test))
    with pytest.raises(InputError, match="target 'rent' must") as refused:
        fit_file(order)
    assert said in str(refused.value) and f"in the test file {test}" in str(refused.value)


def test_a_bundled_regression_is_scored_by_its_own_numbers(monkeypatch):
    """Also where a schema's range is narrower than they are, as that of no bundled set is."""
    table, schema = load_bundled("diabetes")
    narrow = replace(schema, target_range=(25.0, 150.0))
    monkeypatch.setattr(data_file, "load_bundled", lambda name: (table, narrow))
    result = fit_file(TrainingRequest(data="diabetes", budget=Budget(20.0), features="plain"))
    x, y = encode_public(table, narrow)
    trained, held = split(len(table), seed=0)
    assert np.array_equal(y, table.answers)
    assert result.test_score == pytest.approx(r2_score(y[held], result.model.predict(x[held])))
    assert result.scores.targets_outside == (y[held] > 150).sum() > 30
    plain = Ridge().fit(x[trained], y[trained].clip(25, 150)).predict(x[held])
    assert result.plain_score == pytest.approx(r2_score(y[held], plain), abs=1e-5)

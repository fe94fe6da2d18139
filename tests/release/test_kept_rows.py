"""Where units are protected, nothing that is released follows from how many rows they have."""

import json
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
import torch

import lastiterate as li
from lastiterate.accounting.certificate import Certificate
from lastiterate.curves.composition import curve_from_dict
from lastiterate.data import Ignore, Numeric, Schema
from lastiterate.data.columns import Id
from lastiterate.errors import BudgetWarning, InputError
from lastiterate.estimators import DPLogisticRegression, DPSearchCV
from lastiterate.ledger import GaussianFilter, Ledger
from lastiterate.release.file_training import fit_file
from lastiterate.release.ledger_charge import Charging
from lastiterate.release.training_request import Budget, TrainingRequest
from lastiterate.release.units import UnitLoss, Units, select_unit_rows, units_as_records
from lastiterate.release.verification import load, verify
from lastiterate.run.probability_calibration import AssumedSlope
from lastiterate.torch import PerUnit

SCHEMA = Schema((Ignore("who"), Numeric("age", 0, 100)), classes=("no", "yes"), target="y")


def written(path, second):
    """1,000 people, the first ``second`` of whom have a second row."""
    rows = [f"{i},{i % 100},{('no', 'yes')[i % 2]}" for i in (*range(1000), *range(second))]
    path.write_text("\n".join(["who,age,y", *rows]) + "\n")
    return str(path)


def fitted(path, **more):
    return fit_file(TrainingRequest(data=path, schema=SCHEMA, budget=Budget(1.0, 1e-5), **more))


def test_features_are_chosen_by_the_number_of_units(tmp_path):
    """With 1,493 rows in place of 1,492 a number of records would choose twelve functions in place
    of eight."""
    found = [
        fitted(written(tmp_path / f"{second}.csv", second), units=Units("who", 3))
        for second in (0, 492, 493, 1000)
    ]
    assert len({(one.features, one.model.released.weights.shape) for one in found}) == 1
    assert "1000 records" in found[0].features and found[0].model.run.n == 1000


@pytest.mark.parametrize("missing", ["", "NA", " ? ", "nan"])
def test_every_row_is_somebody_s(tmp_path, missing):
    """Rows without an identifier would be taken for those of one person, and others of theirs are
    kept beside them."""
    path = tmp_path / "a.csv"
    written(path, 10)
    path.write_text(path.read_text() + f"{missing},5,no\n")
    with pytest.raises(
        InputError, match="unit must say whose every row is, and some rows have no identifier"
    ):
        fitted(str(path), units=Units("who", 3))
    with pytest.raises(InputError, match="whose every row is"):
        select_unit_rows(np.array(["a", "b", missing]), 1)


@pytest.mark.parametrize("unit, refused", [("person", True), ("row", False), ("record", False)])
def test_a_budget_of_people_is_not_charged_for_single_rows(tmp_path, recwarn, unit, refused):
    """Refused before anything is charged; whose rows are known is charged, with one row of each or
    several."""
    book = Ledger(tmp_path / "l")
    book.add("d", unit=unit, adjacency="zero-out", filter=GaussianFilter(900.0))
    path = written(tmp_path / "a.csv", 10)
    if refused:
        with pytest.raises(
            InputError, match="budget of d is per person, and this release protects one row"
        ):
            fitted(path, charging=Charging(ledger=book, dataset="d"))
    else:
        fitted(path, charging=Charging(ledger=book, dataset="d"))
    assert len(book.total("d").releases) == (not refused)
    for rows in (1, 2):
        fitted(path, units=Units("who", rows), charging=Charging(ledger=book, dataset="d"))
    assert book.verify() == () and book.total("d").unproven == ()
    assert not [one for one in recwarn if "for a group of" in str(one.message)]


def test_single_rows_are_charged_as_a_group_where_the_ledger_states_their_number(tmp_path):
    """Twice: for a ledger of persons of at most seven rows, and of one. What is charged is what
    group privacy says."""
    path, spent = written(tmp_path / "a.csv", 10), {}
    for rows in (1, 7):
        book = Ledger(tmp_path / f"l{rows}")
        book.add(
            "d",
            unit="person",
            adjacency="zero-out",
            filter=GaussianFilter(900.0, 1e-7),
            rows_per_unit=rows,
        )
        with pytest.warns(BudgetWarning, match="a group of 7") if rows == 7 else nullcontext():
            fitted(path, charging=Charging(ledger=book, dataset="d"))
        (release,) = book.total("d").releases
        spent[rows] = curve_from_dict(json.loads(release.curve)).epsilon(1e-5)
        assert book.verify() == () and book.total("d").unproven == ()
    assert spent[7] > 6.5 * spent[1]


def test_the_most_rows_of_the_run_itself_are_counted(tmp_path):
    """A unit of three rows by the caller's word: three such groups are one person of seven rows."""
    data, budget = (np.zeros((30, 2)), np.zeros(30, int)), dict(epsilon=1.0, delta=1e-5)
    run = li.Run(n=30, steps=2, step_size=0.1, rows_per_unit=3, loss=li.Logistic(row_norm=1.0))
    books = {}
    for name, rows in (("stated", 7), ("unstated", None)):
        books[name] = Ledger(tmp_path / name)
        books[name].add(
            "d",
            unit="person",
            adjacency="zero-out",
            filter=GaussianFilter(900.0),
            rows_per_unit=rows,
        )
    with pytest.warns(BudgetWarning, match="a group of 3"):
        li.train(run, data, ledger=books["stated"], **budget)
    li.train(run, data, ledger=books["unstated"], **budget)
    whole = li.train(run, data, ledger=books["stated"], unit=np.arange(30) // 3, **budget)
    curves = [curve_from_dict(json.loads(one.curve)) for one in books["stated"].total().releases]
    (alone,) = (
        curve_from_dict(json.loads(one.curve)) for one in books["unstated"].total().releases
    )
    assert curves[0].epsilon(1e-5) > 2.5 * alone.epsilon(1e-5)
    assert curves[1].epsilon(1e-5) == alone.epsilon(1e-5) == whole.certificate.epsilon(1e-5)


@pytest.mark.parametrize("estimator", ["DPLogisticRegression", "DPSearchCV"])
def test_estimators_do_not_charge_people_for_rows(tmp_path, estimator):
    """Without units: refused, or charged as a group where the ledger says of how many rows."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(200, 2)), rng.integers(0, 2, 200)
    for rows in (None, 2):
        book = Ledger(tmp_path / f"l{rows}")
        book.add(
            "d",
            unit="person",
            adjacency="zero-out",
            filter=GaussianFilter(90.0, 1e-6),
            rows_per_unit=rows,
        )
        one = DPLogisticRegression(
            epsilon=1.0, row_norm=2.0, classes=(0, 1), algorithm="noisy-gd", ledger=book
        )
        one = (
            one
            if estimator == "DPLogisticRegression"
            else DPSearchCV(
                one.set_params(ledger=None), {"row_norm": [1.0, 2.0]}, epsilon=1.0, ledger=book
            )
        )
        if rows is None or estimator == "DPSearchCV":
            with pytest.raises(InputError, match=r"unit must be given.*nothing was charged"):
                one.fit(x, y)
            assert book.total().releases == ()
        else:
            with pytest.warns(BudgetWarning, match="a group of 2"):
                one.fit(x, y)
            assert len(book.total().releases) == 1 and book.total().unproven == ()


@pytest.mark.parametrize("rows", [1, 3])
def test_the_certificate_names_the_unit(tmp_path, rows):
    """The certificate as it is written, its words, the folder as it is read again; another name is
    another promise."""
    model = fitted(written(tmp_path / "a.csv", 10), units=Units("who", rows)).model
    folder = model.save(tmp_path / "m")
    body = json.loads((folder / "certificate.json").read_text())
    assert body["stated"]["unit"]["name"] == "who" and body["stated"]["unit"]["rows"] == rows
    assert f"one unit (who) with at most {rows} row" in body["stated"]["unit"]["words"]
    assert "(who)" in model.certificate.explain(
        1e-5
    ) and "one record: a row" not in model.certificate.explain(1e-5)
    assert verify(folder).holds and load(folder).certificate.unit == "who"
    body["stated"]["unit"]["words"] = "one unit (household) with at most 1 row"
    assert any("stated" in text for text in Certificate.check(body).problems)


def test_the_card_is_about_units_where_they_are_protected(tmp_path, capsys):
    from rich.console import Console

    from lastiterate.accounting.certificate_subject import format_rounded_up
    from lastiterate.cli.tables import show_model

    for units, words in (
        (None, "one row; zero-out hides its presence"),
        (Units("who", 3), "one who with at most 3 rows"),
        (Units("who", 1), "one who with at most 1 row"),
    ):
        released = fitted(written(tmp_path / "a.csv", 10), units=units)
        show_model(Console(width=200), released, "m")
        said = " ".join(capsys.readouterr().out.split())
        assert words in said and ("k rows: more than k times" in said) == (units is None)
        two = released.model.certificate.group(2, 1e-5)
        assert ("1000 units (who)" in said) == (units is not None)
        assert (f"2 rows of a person: {format_rounded_up(two)};" in said) == (units is None)
        assert two > 2 * released.model.certificate.epsilon(1e-5)


@pytest.mark.parametrize(
    ("units", "more", "words"),
    [
        (None, {}, "--unit who protects all rows of one who together"),
        (Units("who", 1), {}, "1000 rows, the first of each who; --rows-per-unit uses more"),
        (Units("who", 3), {}, "at most 3 rows of each who, of which there are 1000"),
        (
            Units("who", 2),
            {"report_accuracy": 0.5, "budget": Budget(3.0, 1e-5)},
            "909 rows, at most 2 rows of each who",
        ),
        (
            Units("who", 2),
            {"budget": Budget(1.0, 1e-5, "add-remove", n=900)},
            "rows used at most 2 rows of each who",
        ),
    ],
)
def test_the_card_says_how_many_rows_are_used_or_how_to_protect_persons(
    tmp_path, capsys, units, more, words
):
    """All of it is public: how many rows persons of several rows have is not shown."""
    from rich.console import Console

    from lastiterate.cli.tables import show_model

    less = "made less extreme by a fixed public factor, 0."
    order = TrainingRequest(
        data=written(tmp_path / "a.csv", 10),
        schema=Schema((Id("who"), Numeric("age", 0, 100)), classes=("no", "yes"), target="y"),
        budget=Budget(1.0, 1e-5),
        units=units,
    )
    found = fit_file(replace(order, **more))
    show_model(Console(width=200), found, "m")
    said = " ".join(capsys.readouterr().out.split())
    assert (less in said) == isinstance(found.model.run.probability_calibration, AssumedSlope)
    assert ("one overall accuracy does not show them" in said) == ("report_accuracy" in more)
    assert "a rare class may never be predicted" in said
    assert words in said and (units is None or "1010" not in said)
    assert ("rows used" in said) == (units is not None)
    assert "if no unit has more rows" not in said, "train bounds them"


@pytest.mark.parametrize("k", [2, 3, 5, 10])
def test_a_person_with_k_rows_needs_more_than_k_times_as_much(k):
    run = li.Run(
        n=1000,
        steps=100,
        step_size=0.1,
        noise=li.NoiseMultiplier(3.0),
        clip=1.0,
        loss=li.Logistic(ridge=0.01),
    )
    certificate = li.account(run)
    assert certificate.group(k, 1e-5) > k * certificate.epsilon(1e-5)


def test_a_loss_of_units_protects_them(tmp_path):
    """Its records are units: of JAX and of torch, charged as they are certified."""
    book = Ledger(tmp_path / "l")
    book.add("d", unit="person", adjacency="zero-out", filter=GaussianFilter(90.0, 1e-6))
    present, rows = units_as_records(
        (np.random.default_rng(0).normal(size=(20, 2)).astype(np.float32),), np.arange(20) // 2, 2
    )
    run = li.Run(n=10, steps=2, step_size=0.1, clip=1.0)
    asked = dict(epsilon=1.0, delta=1e-5, ledger=book)
    li.train(
        run,
        (present, rows),
        model={"w": np.zeros(2)},
        loss=UnitLoss(lambda p, row: (p["w"] @ row - 1.0) ** 2, 2),
        **asked,
    )
    li.train(
        run,
        (rows, present),
        model=PerUnit(torch.nn.Linear(2, 1)),
        loss=UnitLoss(lambda output: (output[0] - 1.0) ** 2, 2),
        **asked,
    )
    assert len(book.total().releases) == 2 and book.total().unproven == ()

"""What the report draws of every column: the shape that was learned, in the column's units, with
the noise's band."""

import warnings
from dataclasses import replace

import numpy as np
import pytest

import lastiterate as li
from lastiterate.data import Category, Ignore, Numeric, Schema
from lastiterate.data.columns import Date
from lastiterate.errors import RepeatedFitWarning
from lastiterate.estimators import DPLogisticRegression
from lastiterate.release.column_effects import Effect, bounds_noise, column_effects
from lastiterate.report.charts import Axis
from lastiterate.report.exports import model_card
from lastiterate.report.figures import effects
from lastiterate.report.subject import read

N = 8000
SCHEMA = Schema(
    (
        Numeric("bent", 0.0, 10.0),
        Numeric("none", 0.0, 1e4, scale="log"),
        Category("c", ("x", "y")),
        Date("day", "2020-01-01", "2020-12-31", missing="indicator"),
        Ignore("id"),
    ),
    classes=("0", "1"),
)


HALFWAY = Effect("day", (2020.25, 2020.5), (1.0, 2.0), (0.1, 0.1), unit="year")


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(3)
    cells = {
        "bent": rng.uniform(0, 10, N),
        "none": np.exp(rng.uniform(0, 9, N)),
        "c": rng.choice(["x", "y"], N),
        "day": np.datetime_as_string(np.datetime64("2020-01-01") + rng.integers(0, 366, N)),
        "id": np.arange(N),
    }
    cells["day"][rng.random(N) < 0.2] = ""
    score = 4 * np.cos(cells["bent"]) + 2 * (cells["c"] == "y") + 3 * (cells["day"] == "") - 2
    return cells, (rng.random(N) < 1 / (1 + np.exp(-score))).astype(int)


@pytest.fixture(scope="module")
def model(table):
    return DPLogisticRegression(
        epsilon=3.0, delta=1e-5, schema=SCHEMA, features="curves", algorithm="noisy-gd"
    ).fit(*table)


def test_effects_are_the_shapes_that_were_there(model):
    found = {effect.column: effect for effect in column_effects(model.fitted_)}
    assert (
        list(found) == sorted(found, key=lambda name: -found[name].size)
        and next(iter(found)) == "bent"
    )
    bent = found["bent"]
    assert bent.places[0] == 0 and bent.places[-1] == 10
    assert np.corrcoef(bent.change, np.cos(bent.places))[0, 1] > 0.97
    assert found["c"].labels == ("x", "y")
    assert 1 < found["c"].change[1] - found["c"].change[0] < 2.5, "log odds of 2, with noise"
    assert found["none"].size < bent.size / 2 and found["none"].places[-1] == pytest.approx(1e4)
    gone = [found[name].missing for name in ("day", "day.month", "day.weekday")]
    assert found["none"].missing is None and sum(change for change, _ in gone) > 1.5
    assert set(found) == {"bent", "none", "c", "day", "day.month", "day.weekday"}
    assert all(min(effect.band) >= 0 and max(effect.band) > 0 for effect in found.values())
    within = np.abs(found["none"].change) <= np.array(found["none"].band)
    assert within.mean() > 0.8, "where nothing is to be learned the band holds what noise made"


def test_the_band_holds_the_noise_of_categories_that_no_record_has():
    """No record pulls such a weight back, so that its noise is the largest of all: a third of them
    lay outside of the weights' root mean square."""
    rng, full, empty, n = np.random.default_rng(1), tuple("abcdefghij"), ("x", "y", "z"), 900
    columns = Numeric("u", 0, 1), Category("c", full + empty), Category("e", full)
    schema = Schema(columns, classes=("0", "1"))
    cells = {"u": rng.random(n), "c": rng.choice(full, n), "e": rng.choice(full, n)}
    y, shares = (rng.random(n) < 0.3).astype(int), []
    for seed in range(6):
        model = DPLogisticRegression(epsilon=1.0, delta=1e-6, schema=schema, random_state=seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RepeatedFitWarning)
            found = {one.column: one for one in column_effects(model.fit(cells, y).fitted_)}["c"]
        shares += (np.abs(found.change) / found.band)[-3:].tolist()
    assert 0.1 < np.sqrt(np.mean(np.square(shares))) < 0.5 and max(shares) < 1.2


def test_effects_add_up_to_scores(model, table):
    cells, _ = table
    total = np.zeros(500)
    for effect in column_effects(model.fitted_):
        if effect.column in ("bent", "none"):
            total += np.interp(cells[effect.column][:500], effect.places, effect.change)
        elif (
            effect.missing is not None
        ):  # of a day that is not there: its place, its month and its weekday
            total += np.where(cells["day"][:500] == "", effect.missing[0], 0)
        elif effect.column == "c":
            total += np.where(cells["c"][:500] == "y", effect.change[1], effect.change[0])
    scores = model.decision_function({name: column[:500] for name, column in cells.items()})
    assert np.corrcoef(total, scores)[0, 1] > 0.95
    assert 0.7 < np.polyfit(total, scores, 1)[0] < 1.4, "and in the score's own units"


@pytest.mark.parametrize("algorithm", ["noisy-gd", "allocation-sgd"])
def test_steps_that_follow_what_was_measured_have_effects_too(table, algorithm):
    """Their noise is that of the steps that were taken, which the description alone does not say."""
    cells, y = ({name: values[:2000] for name, values in table[0].items()}, table[1][:2000])
    found = DPLogisticRegression(epsilon=3.0, delta=1e-5, schema=SCHEMA, algorithm=algorithm).fit(
        cells, y
    )
    assert {effect.column for effect in column_effects(found.fitted_)} >= {
        "bent",
        "none",
        "c",
        "day",
    }
    assert all(np.isfinite(effect.band).all() for effect in column_effects(found.fitted_))


def test_the_report_draws_them(model, tmp_path):
    subject = read(model.fitted_.save(tmp_path / "m"))
    page = str(effects(subject))
    assert page.count("<svg") >= 3 and "bent" in page and "associations, not causes" in page
    assert page.index("bent:") < page.index("none:")
    assert page.count("where it is missing: ") == 3, (
        "what a missing day changes, beside each part of a day"
    )
    assert "</svg></li>" not in page, "every line that the legend lists has a name"
    card = model_card(subject)["README.md"]
    assert ">day (year)<" in page and ">bent<" in page
    assert " at year 2020.5 |" in model_card(replace(subject, effects=(HALFWAY,)))["README.md"]
    assert 0 < card.index("| bent |") < card.index("| none |") and " at (missing) |" in card


def test_a_column_on_a_logarithmic_scale_is_drawn_on_one(model):
    """Half of its public range on that scale is half of the picture, and round numbers are written
    there."""
    found = next(effect for effect in column_effects(model.fitted_) if effect.column == "none")
    axis = Axis("none", found.places[0], found.places[-1], True, found.origin)
    drawn = [axis.place(place, 0.0, 1.0) for place in found.places]
    np.testing.assert_allclose(drawn, np.linspace(0, 1, len(drawn)), atol=1e-9)
    assert axis.ticks() == [0, 1, 10, 100, 1000, 10000]
    assert (
        next(effect for effect in column_effects(model.fitted_) if effect.column == "bent").origin
        is None
    )


def test_a_band_without_a_bound_is_called_so(model, tmp_path):
    subject = read(model.fitted_.save(tmp_path / "m"))
    assert "as large as it is for a value that no record has" in str(effects(subject))
    averaged = replace(model.fitted_.run, method=li.TailAverage(0.5))
    assert bounds_noise(model.fitted_.run) and not bounds_noise(averaged)
    other = replace(subject, effects=tuple(replace(one, bounded=False) for one in subject.effects))
    for said in (str(effects(other)), model_card(other)["README.md"]):
        assert "twice the root mean square of all weights" in said and "no record has" not in said


def test_text_is_said_to_have_no_picture(model, tmp_path):
    subject = read(model.fitted_.save(tmp_path / "m"))
    said = replace(subject, schema=SCHEMA.to_dict() | {"columns": {"remark": {"kind": "text"}}})
    assert "Not drawn" not in str(effects(subject)) and "Not drawn: remark." in str(effects(said))
    assert "Not shown: remark" in model_card(said)["README.md"]


def test_every_class_has_effects_against_the_mean_of_all(tmp_path):
    """Three classes whose scores are a line up, a line down and nothing of one column, and nothing
    of the other."""
    rng = np.random.default_rng(5)
    cells = {"a": rng.uniform(0, 10, N), "b": rng.uniform(0, 10, N)}
    lean = (cells["a"] - 5) / 2
    y = np.argmax(np.column_stack((lean, -lean, np.zeros(N))) + rng.gumbel(size=(N, 3)), axis=1)
    schema = Schema(
        (Numeric("a", 0.0, 10.0), Numeric("b", 0.0, 10.0)), classes=("up", "down", "flat")
    )
    found = DPLogisticRegression(
        epsilon=3.0, delta=1e-5, schema=schema, features="curves", algorithm="noisy-gd"
    ).fit(cells, np.array(schema.classes)[y])
    drawn = {(one.column, one.answer): one for one in column_effects(found.fitted_)}
    assert set(drawn) == {(column, answer) for column in "ab" for answer in schema.classes}
    up, down, flat = (np.array(drawn["a", answer].change) for answer in schema.classes)
    np.testing.assert_allclose(up + down + flat, 0, atol=1e-9)
    assert up[-1] - up[0] > 2 and down[0] - down[-1] > 2
    assert max(drawn["b", answer].size for answer in schema.classes) < drawn["a", "up"].size / 3
    within = np.concatenate(
        [
            np.abs(drawn["b", answer].change) <= np.array(drawn["b", answer].band)
            for answer in schema.classes
        ]
    )
    assert within.mean() > 0.8
    page = str(effects(read(found.fitted_.save(tmp_path / "m"))))
    assert "a, up:" in page and "against the mean of all" in page


def test_models_without_columns_have_no_effects():
    rng = np.random.default_rng(0)
    run = li.Run(n=100, steps=5, step_size=0.1, loss=li.Logistic(row_norm=1.0))
    plain = li.train(
        run, (rng.normal(size=(100, 3)), rng.integers(0, 2, 100)), epsilon=1.0, delta=1e-5
    )
    assert column_effects(plain) == ()


def test_estimators_without_coefficients_name_the_effects(model, table):
    with pytest.raises(AttributeError, match=r"fitted_\.effects\(\) has how the score changes"):
        _ = model.coef_
    assert model.fitted_.effects() == column_effects(model.fitted_) != ()
    rows = np.stack([table[0]["bent"] / 10, np.log1p(table[0]["none"]) / 10], axis=1)
    bare = DPLogisticRegression(epsilon=3.0, row_norm=2.0, classes=[0, 1], algorithm="noisy-gd")
    bare.fit(rows, table[1])
    with pytest.raises(AttributeError, match=r"give a schema=, and fitted_\.effects\(\)"):
        _ = bare.coef_
    assert bare.fitted_.effects() == ()

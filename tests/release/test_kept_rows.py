"""Where units are protected, nothing that is released follows from how many rows they have."""

import numpy as np
import pytest

from lastiterate.data import Ignore, Numeric, Schema
from lastiterate.errors import BudgetWarning, InputError
from lastiterate.ledger import GaussianFilter, Ledger
from lastiterate.release.charging import Charging
from lastiterate.release.datafile import Wanted, fit_file
from lastiterate.release.linear_plans import Budget
from lastiterate.release.protected_units import Units, kept_rows

SCHEMA = Schema((Ignore("who"), Numeric("age", 0, 100)), classes=("no", "yes"), target="y")


def written(path, second):
    """1,000 people, the first ``second`` of whom have a second row."""
    rows = [f"{i},{i % 100},{('no', 'yes')[i % 2]}" for i in (*range(1000), *range(second))]
    path.write_text("\n".join(["who,age,y", *rows]) + "\n")
    return str(path)


def fitted(path, **more):
    return fit_file(Wanted(data=path, schema=SCHEMA, budget=Budget(1.0, 1e-5), **more.pop("wanted", {})), **more)


def test_features_are_chosen_by_the_number_of_units(tmp_path):
    """With 1,493 rows in place of 1,492 a number of records would choose twelve functions in place of eight."""
    found = [fitted(written(tmp_path / f"{second}.csv", second), wanted={"units": Units("who", 3)})
             for second in (0, 492, 493, 1000)]
    assert len({(one.features, one.model.released.weights.shape) for one in found}) == 1
    assert "1000 records" in found[0].features and found[0].model.run.n == 1000


@pytest.mark.parametrize("missing", ["", "NA", " ? ", "nan"])
def test_every_row_is_somebody_s(tmp_path, missing):
    """Rows without an identifier would be taken for those of one person, and others of theirs are kept beside them."""
    path = tmp_path / "a.csv"
    written(path, 10)
    path.write_text(path.read_text() + f"{missing},5,no\n")
    with pytest.raises(InputError, match="unit must say whose every row is, and some rows have no identifier"):
        fitted(str(path), wanted={"units": Units("who", 3)})
    with pytest.raises(InputError, match="whose every row is"):
        kept_rows(np.array(["a", "b", missing]), 1)


@pytest.mark.parametrize("unit, warned", [("person", True), ("row", False), ("record", False)])
def test_a_budget_of_people_is_warned_of_single_rows(tmp_path, recwarn, unit, warned):
    book = Ledger(tmp_path / "l")
    book.add("d", unit=unit, adjacency="zero-out", filter=GaussianFilter(900.0))
    path = written(tmp_path / "a.csv", 10)
    fitted(path, charging=Charging(ledger=book, dataset="d"))
    said = [str(one.message) for one in recwarn if one.category is BudgetWarning]
    assert warned == any("is per person, and this release protects one row" in text for text in said)
    recwarn.clear()
    fitted(path, wanted={"units": Units("who", 2)}, charging=Charging(ledger=book, dataset="d"))
    assert not [one for one in recwarn if "protects one row" in str(one.message)]
    assert np.isfinite(book.total("d").left).all()


def test_the_card_is_about_units_where_they_are_protected(tmp_path, capsys):
    from rich.console import Console

    from lastiterate.cli.show import trained

    for units, words in ((None, "one record: a row of the data"), (Units("who", 3), "one unit with at most 3 rows")):
        released = fitted(written(tmp_path / "a.csv", 10), wanted={"units": units})
        trained(Console(width=200), released, "m")
        said = " ".join(capsys.readouterr().out.split())
        assert words in said and ("needs k times as much" in said) == (units is None)

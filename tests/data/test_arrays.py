"""NumPy's files: values come back as they were written, and damage is told in one sentence."""

import pickle
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest

from lastiterate.data import Schema, encode, encode_features, read_table, schema_template
from lastiterate.data.encoding import SLICE
from lastiterate.errors import InputError

X = np.arange(12.0).reshape(4, 3)
Y = np.array([0, 1, 1, 0])
SCHEMA = Schema.from_dict({"classes": ["0", "1"], "array": {"low": 0, "high": 11}})


@pytest.mark.parametrize("dtype", ["u1", "<i2", ">i4", "<f2", ">f4", "<f8", "?"])
def test_npy_round_trip(tmp_path, dtype):
    np.save(tmp_path / "a.npy", X.astype(dtype))
    table = read_table(tmp_path / "a.npy")
    np.testing.assert_array_equal(table.array, X.astype(dtype))
    assert table.answers is None and table.names == ("x0", "x1", "x2")


def test_npy_labels_lie_beside(tmp_path):
    np.save(tmp_path / "a.npy", np.asfortranarray(X))
    np.testing.assert_allclose(
        encode_features(read_table(tmp_path / "a.npy"), SCHEMA), X / 5.5 - 1, atol=1e-6
    )
    with pytest.raises(InputError, match=r"labels.*a\.labels\.npy"):
        encode(read_table(tmp_path / "a.npy"), SCHEMA)
    np.save(tmp_path / "a.labels.npy", Y)
    assert list(encode(read_table(tmp_path / "a.npy"), SCHEMA)[1]) == [0, 1, 1, 0]
    np.save(tmp_path / "a.labels.npy", np.array(["no", "yes", "yes", "no"])[:, None])
    assert list(read_table(tmp_path / "a.npy").answers) == ["no", "yes", "yes", "no"]
    np.save(tmp_path / "a.labels.npy", Y[:3])
    with pytest.raises(InputError, match=r"4 rows in a\.labels\.npy"):
        read_table(tmp_path / "a.npy")
    with pytest.raises(InputError, match=r"\(n, d\)"):
        read_table(tmp_path / "a.labels.npy")


def test_more_dimensions_become_columns(tmp_path):
    images = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    np.save(tmp_path / "a.npy", images)
    np.savez(tmp_path / "a.npz", x=images)
    for name in ("a.npy", "a.npz"):
        np.testing.assert_array_equal(
            read_table(tmp_path / name).array, np.arange(24).reshape(2, 12)
        )


@pytest.mark.parametrize(
    "array, word",
    [
        (np.array([[1, "a"]], dtype=object), "plain array"),
        (np.zeros(3, dtype=[("age", "f8"), ("job", "i4")]), "numeric array"),
        (np.zeros((3, 2), dtype=complex), "numeric array"),
        (np.array([["a", "b"]]), "numeric array"),
        (np.zeros((0, 3)), "numeric array|npy"),
        (np.zeros((3, 0)), "numeric array|npy"),
        (np.array(3.0), "numeric array"),
        (np.array([[0.0, np.nan]]), "must hold numbers, got 'NaN'"),
    ],
    ids=range(8),
)
def test_arrays_that_are_no_features(tmp_path, array, word):
    np.save(tmp_path / "a.npy", array)
    with pytest.raises(InputError, match=word):
        read_table(tmp_path / "a.npy")


def test_archives_take_only_what_they_need(tmp_path):
    np.savez_compressed(
        tmp_path / "a.npz", x_train=X, y_train=Y, notes=np.array([{"a": 1}], dtype=object)
    )
    assert list(encode(read_table(tmp_path / "a.npz"), SCHEMA)[1]) == [0, 1, 1, 0]
    np.savez(tmp_path / "b.npz", y=Y)
    with pytest.raises(InputError, match="'X'"):
        read_table(tmp_path / "b.npz")
    np.savez(tmp_path / "c.npz", X=X[:1], y=np.array(3))
    with pytest.raises(InputError, match="1 rows"):
        read_table(tmp_path / "c.npz")
    with zipfile.ZipFile(tmp_path / "d.npz", "w") as archive:
        archive.writestr("X", "no array")
    with pytest.raises(InputError):
        read_table(tmp_path / "d.npz")


def test_damage(tmp_path, refused_when_cut, survives_changed_bytes):
    np.save(tmp_path / "a.npy", X)
    np.savez(tmp_path / "b.npz", X=X, y=Y)
    np.savez_compressed(tmp_path / "c.npz", X=X, y=Y)
    for name in ("a.npy", "b.npz", "c.npz"):
        refused_when_cut(tmp_path / name, longer=name == "a.npy")  # a zip archive may have a tail
        survives_changed_bytes(tmp_path / name)
    np.save(tmp_path / "d.npy", X)
    np.save(tmp_path / "d.labels.npy", Y)
    labels = (tmp_path / "d.labels.npy").read_bytes()
    (tmp_path / "d.labels.npy").write_bytes(labels[:-1])
    with pytest.raises(InputError, match=r"d\.labels\.npy"):
        read_table(tmp_path / "d.npy")
    (tmp_path / "e.npy").write_bytes((tmp_path / "b.npz").read_bytes())
    (tmp_path / "e.npz").write_bytes((tmp_path / "a.npy").read_bytes())
    for name in ("e.npy", "e.npz"):
        with pytest.raises(InputError, match="plain array"):
            read_table(tmp_path / name)


def test_the_remedy_is_never_to_run_a_pickle(tmp_path):
    evil = pickle.dumps(Marks(tmp_path / "marker"))
    np.savez(tmp_path / "a.npz", X=np.array([[Marks(tmp_path / "marker")]], dtype=object))
    np.savez(tmp_path / "b.npz", X=X, y=np.array([Marks(tmp_path / "marker")] * 4))
    np.save(tmp_path / "c.npy", np.array([[Marks(tmp_path / "marker")]]), allow_pickle=True)
    np.save(tmp_path / "d.npy", X)
    for name in ("d.labels.npy", "e.npy", "f.npz"):
        (tmp_path / name).write_bytes(evil)
    for name in ("a.npz", "b.npz", "c.npy", "d.npy", "e.npy", "f.npz"):
        with pytest.raises(InputError, match="plain array") as caught:
            read_table(tmp_path / name)
        assert "trust" not in str(caught.value)
    assert not (tmp_path / "marker").exists()
    pickle.loads(evil)
    assert (tmp_path / "marker").exists(), "the content would have worked"


class Marks:
    """Unpickled, it writes a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


@pytest.mark.parametrize("rows", [3, SLICE + 3])
def test_values_are_compared_and_scaled_in_double_precision(tmp_path, rows):
    values = np.full((rows, 2), 0.1)  # in single precision 0.1 lies above 0.1
    values[-1] = [0.025, -1e300]
    np.save(tmp_path / "a.npy", values)
    entries = (
        {"kind": "number", "low": 0, "high": 0.1, "outside": "refuse"},
        {"kind": "number", "low": -1, "high": 1},
    )
    schema = Schema.from_dict(
        {"classes": ["0", "1"], "columns": {"x0": entries[0], "x1": entries[1]}}
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = encode_features(read_table(tmp_path / "a.npy"), schema)
    np.testing.assert_array_equal(found[-1], [-0.5, -1])
    np.testing.assert_allclose(found[:-1], [[1, 0.1]] * (rows - 1), atol=1e-7)
    values[-1, 0] = np.nextafter(0.1, 1)
    np.save(tmp_path / "a.npy", values)
    with pytest.raises(InputError, match=r"'x0'.*public range"):
        encode_features(read_table(tmp_path / "a.npy"), schema)


def test_whole_and_broken_numbers_in_one_range(tmp_path):
    """low = 0 is a whole number and high = 0.5 is not; neither may change the other."""
    np.save(tmp_path / "a.npy", X / 22)
    schema = Schema.from_dict({"classes": ["0", "1"], "array": {"low": 0, "high": 0.5}})
    np.testing.assert_allclose(
        encode_features(read_table(tmp_path / "a.npy"), schema), X / 5.5 - 1, atol=1e-6
    )
    assert "?" in schema_template(tmp_path / "a.npy")

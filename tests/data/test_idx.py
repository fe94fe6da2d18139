"""IDX files, written here byte by byte as the MNIST page describes them."""

import gzip
import struct

import numpy as np
import pytest

from lastiterate.data import Schema, encode, read_table, schema_template
from lastiterate.errors import InputError

CODES = {"u1": 0x08, "i1": 0x09, "i2": 0x0B, "i4": 0x0C, "f4": 0x0D, "f8": 0x0E}
IMAGES = np.random.default_rng(1).integers(256, size=(5, 4, 3)).astype("u1")
LABELS = np.array([3, 1, 4, 1, 5], dtype="u1")


def idx(array):
    head = struct.pack(">HBB", 0, CODES[array.dtype.str[1:]], array.ndim) + struct.pack(
        f">{array.ndim}I", *array.shape
    )
    return head + array.astype(array.dtype.newbyteorder(">")).tobytes()


def write(path, array):
    data = idx(array)
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("end", ["", ".gz"])
def test_every_type(tmp_path, code, end):
    values = np.random.default_rng(2).normal(scale=50, size=(4, 2, 3)).astype(code)
    table = read_table(write(tmp_path / f"t10k-images-idx3-any{end}", values))
    np.testing.assert_array_equal(table.array, values.reshape(4, 6))
    assert table.array.dtype == np.dtype(code) and table.answers is None
    assert (table.facts is not None) == (code == "u1")


@pytest.mark.parametrize(
    "images, labels",
    [
        ("train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"),
        ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
        ("train-images-idx3-ubyte", "train-labels-idx1-ubyte.gz"),
        ("train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte"),
        ("train-images.idx3-ubyte", "train-labels.idx1-ubyte"),
        ("images-of-images-idx3-ubyte", "images-of-labels-idx1-ubyte"),
    ],
)
def test_labels_lie_beside(tmp_path, images, labels):
    path = write(tmp_path / images, IMAGES)
    schema = Schema.from_dict(
        {"classes": [str(i) for i in range(10)], "array": {"low": 0, "high": 255}}
    )
    with pytest.raises(InputError, match="no labels.*" + labels.removesuffix(".gz")):
        encode(read_table(path), schema)
    write(tmp_path / labels, LABELS)
    features, target = encode(read_table(path), schema)
    np.testing.assert_allclose(features, IMAGES.reshape(5, 12) / 127.5 - 1, atol=1e-6)
    assert list(target) == [3, 1, 4, 1, 5]
    write(tmp_path / labels, LABELS[:4])
    with pytest.raises(InputError, match=r"5 rows in .*labels"):
        read_table(path)
    (tmp_path / labels).write_bytes((tmp_path / labels).read_bytes()[:-1])
    with pytest.raises(InputError, match=r"labels.*cut off"):
        read_table(path)


def test_the_same_kind_of_label_file_first(tmp_path):
    write(tmp_path / "a-labels-idx1-ubyte", LABELS)
    write(tmp_path / "a-labels-idx1-ubyte.gz", LABELS[::-1])
    assert list(read_table(write(tmp_path / "a-images-idx3-ubyte", IMAGES)).answers) == list(LABELS)
    assert list(read_table(write(tmp_path / "a-images-idx3-ubyte.gz", IMAGES)).answers) == list(
        LABELS[::-1]
    )


def test_any_name_with_the_magic_bytes(tmp_path):
    for name in ("pixels", "pixels.dat", "pixels.gz"):
        np.testing.assert_array_equal(
            read_table(write(tmp_path / name, IMAGES)).array, IMAGES.reshape(5, 12)
        )
    (tmp_path / "x-idx3-ubyte").write_bytes(
        gzip.compress(idx(IMAGES))
    )  # packed, whatever its name says
    assert len(read_table(tmp_path / "x-idx3-ubyte")) == 5
    for name, data in (
        ("a.gz", gzip.compress(b"text")),
        ("b.gz", gzip.compress(idx(IMAGES))[:12]),
        ("c", b"\0\0"),
    ):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(InputError, match="must be one of"):
            read_table(tmp_path / name)


@pytest.mark.parametrize(
    "change",
    [
        lambda d: b"\1" + d[1:],
        lambda d: d[:2] + b"\x0a" + d[3:],
        lambda d: d[:3] + b"\0" + d[4:],
        lambda d: d[:3] + b"\xff" + d[4:],
        lambda d: d[:4] + b"\xff" * 12 + d[16:],
        lambda d: d[:4] + b"\0" * 4 + d[8:],
        lambda d: d[:4] + b"\0" * 4 + b"\xff" * 8,
        lambda d: d[:4] + b"\0\0\0\6" + d[8:],
        lambda d: d[:4] + b"\0\0\0\4" + d[8:],
    ],
    ids=[
        "not zero",
        "no such type",
        "no dimension",
        "255 dimensions",
        "enormous",
        "empty",
        "none of enormous ones",
        "too few",
        "too many",
    ],
)
@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_wrong_headers(tmp_path, change, pack):
    path = tmp_path / "a-images-idx3-ubyte"
    path.write_bytes(pack(change(idx(IMAGES))))
    with pytest.raises(InputError, match="IDX"):
        read_table(path)


def test_labels_alone_are_no_table(tmp_path):
    with pytest.raises(InputError, match="images"):
        read_table(write(tmp_path / "train-labels-idx1-ubyte", LABELS))
    write(tmp_path / "b-labels-idx1-ubyte", IMAGES)
    with pytest.raises(InputError, match="one label"):
        read_table(write(tmp_path / "b-images-idx3-ubyte", IMAGES))
    with pytest.raises(InputError, match="NaN"):
        read_table(write(tmp_path / "c-images-idx2-float", np.array([[0, np.nan]], dtype="f4")))


def test_damage(tmp_path, refused_when_cut, survives_changed_bytes):
    for name in ("a-images-idx3-ubyte", "a-images-idx3-ubyte.gz"):
        path = write(tmp_path / name, IMAGES)
        refused_when_cut(path, longer=False)
        survives_changed_bytes(path)
        path.write_bytes(path.read_bytes() + b"more")
        with pytest.raises(InputError):
            read_table(path)
    path.write_bytes(gzip.compress(idx(IMAGES) + b"\0"))
    with pytest.raises(InputError, match="no more and no less"):
        read_table(path)
    data = bytearray(gzip.compress(idx(IMAGES)))
    data[-6] ^= 1  # the checksum
    path.write_bytes(data)
    with pytest.raises(InputError, match="gzip"):
        read_table(path)


def test_schema_states_what_the_format_says(tmp_path):
    path = write(tmp_path / "a-images-idx3-ubyte", IMAGES)
    (tmp_path / "s.toml").write_text(schema_template(path))
    with pytest.raises(InputError, match="classes"):
        Schema.read(tmp_path / "s.toml")
    (tmp_path / "s.toml").write_text(schema_template(path).replace('"?"]', '"0", "1"]'))
    schema = Schema.read(tmp_path / "s.toml")
    assert (schema.array.low, schema.array.high) == (0, 255)
    write(path, np.ones((2, 3), dtype="f4"))
    assert 'low = "?"' in schema_template(path)

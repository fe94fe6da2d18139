"""CIFAR-10 batches in their binary form, and the folder of them."""

import pickle

import numpy as np
import pytest

from lastiterate.data import Schema, encode, read_table, schema_template
from lastiterate.errors import InputError

RANDOM = np.random.default_rng(3)
IMAGES = RANDOM.integers(256, size=(3, 3072)).astype(np.uint8)
LABELS = [6, 9, 0]


def binary(images, labels):
    return b"".join(
        bytes([label]) + image.tobytes() for image, label in zip(images, labels, strict=True)
    )


@pytest.mark.parametrize("name", ["data_batch_1.bin", "test_batch.bin"])
def test_round_trip(tmp_path, name):
    path = tmp_path / name
    path.write_bytes(binary(IMAGES, LABELS))
    table = read_table(path)
    assert table.array.dtype == np.uint8
    np.testing.assert_array_equal(table.array, IMAGES)
    assert list(table.answers) == LABELS


def test_folders(tmp_path):
    images = RANDOM.integers(256, size=(11, 3072)).astype(np.uint8)
    labels = [i % 10 for i in range(11)]
    for i in range(11):
        (tmp_path / f"data_batch_{i + 1}.bin").write_bytes(
            binary(images[i : i + 1], labels[i : i + 1])
        )
    (tmp_path / "test_batch.bin").write_bytes(binary(images[:1], labels[:1]))
    (tmp_path / "batches.meta.txt").write_bytes(b"names of the classes")
    table = read_table(tmp_path)
    np.testing.assert_array_equal(table.array, images)  # data_batch_10 comes after data_batch_9
    assert list(table.answers) == labels
    (tmp_path / "data_batch_3.bin").unlink()
    with pytest.raises(InputError, match="gap"):
        read_table(tmp_path)


def test_folders_that_are_none(tmp_path):
    with pytest.raises(InputError, match=r"data_batch_1\.bin"):
        read_table(tmp_path)
    (tmp_path / "data_batch_1.bin").write_bytes(binary(IMAGES, LABELS))
    (tmp_path / "data_batch_01.bin").write_bytes(binary(IMAGES, LABELS))
    with pytest.raises(InputError, match="double"):
        read_table(tmp_path)


class Marks:
    """Unpickled, it writes a file."""

    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return open, (str(self.marker), "w")


def test_pickles_are_not_opened(tmp_path):
    """The Python version of CIFAR-10: neither a batch nor its folder."""
    folder, marker = tmp_path / "cifar-10-batches-py", tmp_path / "marker"
    folder.mkdir()
    (folder / "data_batch_1").write_bytes(pickle.dumps({b"data": IMAGES, b"more": Marks(marker)}))
    for path in (folder, folder / "data_batch_1"):
        with pytest.raises(InputError, match=r"CIFAR-10"):
            read_table(path)
    with pytest.raises(InputError, match="take the binary version"):
        read_table(folder)
    assert not marker.exists()
    pickle.loads((folder / "data_batch_1").read_bytes())
    assert marker.exists(), "the test above can fail"


def test_everything_is_public_by_the_format(tmp_path):
    (tmp_path / "test_batch.bin").write_bytes(binary(IMAGES, LABELS))
    (tmp_path / "s.toml").write_text(schema_template(tmp_path / "test_batch.bin"))
    schema = Schema.read(tmp_path / "s.toml")
    features, target = encode(read_table(tmp_path / "test_batch.bin"), schema)
    np.testing.assert_allclose(features, IMAGES / 127.5 - 1, atol=1e-6)
    assert list(target) == LABELS and schema.classes == tuple("0123456789")


def test_a_label_byte_above_nine(tmp_path):
    path = tmp_path / "data_batch_1.bin"
    path.write_bytes(binary(IMAGES, [1, 10, 2]))
    with pytest.raises(InputError, match="below 10"):
        read_table(path)
    path.write_bytes(b"")
    with pytest.raises(InputError, match=r"3073 bytes.*0 bytes"):
        read_table(path)


def test_damage(tmp_path, refused_when_cut, survives_changed_bytes):
    path = tmp_path / "data_batch_1.bin"
    path.write_bytes(binary(IMAGES, LABELS))
    refused_when_cut(path, unseen=(3073, 6146), most=150)
    survives_changed_bytes(path, times=200)

"""CIFAR-10 batches: binary, pickled as Python 2 did and as Python 3 does, and the folders of
either."""

import codecs
import copyreg
import io
import os
import pickle
import struct

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


def batch(images, labels):
    names = [b"a_s_%06d.png" % i for i in range(len(labels))]
    return {
        b"batch_label": b"training batch 1 of 5",
        b"labels": labels,
        b"data": images,
        b"filenames": names,
    }


def python3(images, labels, protocol=2):
    return pickle.dumps(batch(images, labels), protocol=protocol)


def python2(images, labels, fortran=False):
    """The same dict as Python 2.7's cPickle writes it: byte strings everywhere, arrays by
    numpy.core.multiarray."""

    def text(value):
        return b"U" + bytes([len(value)]) + value

    def small(value):
        return b"K" + bytes([value])

    raw = images.tobytes(order="F" if fortran else "C")
    shape = (
        b"J" + struct.pack("<i", len(images)) + b"M" + struct.pack("<H", images.shape[1]) + b"\x86"
    )
    dtype = b"cnumpy\ndtype\n" + text(b"u1") + small(0) + small(1) + b"\x87R"
    dtype += (
        b"("
        + small(3)
        + text(b"|")
        + b"NNN"
        + 2 * (b"J" + struct.pack("<i", -1))
        + small(0)
        + b"tb"
    )
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\n"
        + small(0)
        + b"\x85"
        + text(b"b")
        + b"\x87R"
    )
    array += b"(" + small(1) + shape + dtype + (b"\x88" if fortran else b"\x89")
    array += b"T" + struct.pack("<i", len(raw)) + raw + b"tb"
    numbers = b"](" + b"".join(map(small, labels)) + b"e"
    names = b"](" + b"".join(text(b"a_s_%06d.png" % i) for i in range(len(labels))) + b"e"
    entries = text(b"batch_label") + text(b"training batch 1 of 5") + text(b"labels") + numbers
    return b"\x80\x02}(" + entries + text(b"data") + array + text(b"filenames") + names + b"u."


WRITERS = {
    "data_batch_1.bin": binary,
    "data_batch_1": python3,
    "data_batch_2": python2,
    "data_batch_3": lambda images, labels: python2(images, labels, fortran=True),
    "data_batch_4": lambda images, labels: python3(images, labels, protocol=4),
    "test_batch": lambda images, labels: python2(images, labels).replace(
        b"numpy.core.", b"numpy._core."
    ),
    "test_batch.bin": binary,
}


@pytest.mark.parametrize("name", WRITERS)
def test_round_trip(tmp_path, name):
    path = tmp_path / name
    path.write_bytes(WRITERS[name](IMAGES, LABELS))
    table = read_table(path)
    assert table.array.dtype == np.uint8
    np.testing.assert_array_equal(table.array, IMAGES)
    assert list(table.answers) == LABELS


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", [name for name in WRITERS if not name.endswith(".bin")])
def test_the_written_pickles_are_pickles(name):
    """Python's own unpickler reads the same from what is written here."""
    found = pickle.loads(WRITERS[name](IMAGES, LABELS), encoding="bytes")
    np.testing.assert_array_equal(found[b"data"], IMAGES)
    assert found[b"labels"] == LABELS and found[b"filenames"][2] == b"a_s_000002.png"


@pytest.mark.parametrize("writer, end", [(binary, ".bin"), (python2, ""), (python3, "")])
def test_folders(tmp_path, writer, end):
    images = RANDOM.integers(256, size=(11, 3072)).astype(np.uint8)
    labels = [i % 10 for i in range(11)]
    for i in range(11):
        (tmp_path / f"data_batch_{i + 1}{end}").write_bytes(
            writer(images[i : i + 1], labels[i : i + 1])
        )
    (tmp_path / f"test_batch{end}").write_bytes(writer(images[:1], labels[:1]))
    (tmp_path / "batches.meta").write_bytes(b"names of the classes")
    table = read_table(tmp_path)
    np.testing.assert_array_equal(table.array, images)  # data_batch_10 comes after data_batch_9
    assert list(table.answers) == labels
    (tmp_path / f"data_batch_3{end}").unlink()
    with pytest.raises(InputError, match="gap"):
        read_table(tmp_path)


def test_folders_that_are_none(tmp_path):
    with pytest.raises(InputError, match="data_batch_1"):
        read_table(tmp_path)
    (tmp_path / "data_batch_1").write_bytes(python3(IMAGES, LABELS))
    (tmp_path / "data_batch_1.bin").write_bytes(binary(IMAGES, LABELS))
    with pytest.raises(InputError, match="side by side"):
        read_table(tmp_path)
    (tmp_path / "data_batch_1").unlink()
    (tmp_path / "data_batch_01.bin").write_bytes(binary(IMAGES, LABELS))
    with pytest.raises(InputError, match="double"):
        read_table(tmp_path)


def test_everything_is_public_by_the_format(tmp_path):
    (tmp_path / "test_batch.bin").write_bytes(binary(IMAGES, LABELS))
    (tmp_path / "s.toml").write_text(schema_template(tmp_path / "test_batch.bin"))
    schema = Schema.read(tmp_path / "s.toml")
    features, target = encode(read_table(tmp_path / "test_batch.bin"), schema)
    np.testing.assert_allclose(features, IMAGES / 127.5 - 1, atol=1e-6)
    assert list(target) == LABELS and schema.classes == tuple("0123456789")


class Calls:
    """Pickles as a call of a function."""

    def __init__(self, function, *args):
        self.call = function, args

    def __reduce__(self):
        return self.call


def attacks(marker):
    command = f"echo caught > {marker}"
    yield pickle.dumps(Calls(os.system, command), protocol=0)
    yield pickle.dumps({b"data": IMAGES, b"labels": [Calls(os.system, command)]}, protocol=2)
    yield pickle.dumps(
        {b"data": Calls(eval, f"open({str(marker)!r}, 'w')"), b"labels": LABELS}, protocol=4
    )
    yield pickle.dumps(Calls(getattr, np.ndarray, "tofile"), protocol=2)
    yield pickle.dumps(Calls(codecs.decode, b"00", "hex"), protocol=2)
    yield b"(S'" + command.encode() + b"'\nios\nsystem\n."  # the INST code
    yield b"(cos\nsystem\nS'" + command.encode() + b"'\no."  # the OBJ code
    yield b"\x80\x04\x8c\x05numpy\x8c\x10ndarray.__base__\x93."  # a name with a dot
    yield b"\x80\x02cnumpy.core.multiarray\nscalar\n."
    yield b"c" + b"x" * 100000 + b"\nsystem\n."


def test_pickles_cannot_call(tmp_path):
    path, marker = tmp_path / "data_batch_1", tmp_path / "marker"
    for data in attacks(marker):
        path.write_bytes(data)
        with pytest.raises(InputError, match="before anything in it ran") as caught:
            read_table(path)
        assert "\n" not in str(caught.value) and len(str(caught.value)) < 400
    assert not marker.exists()


def test_the_first_attack_would_work(tmp_path):
    """Python's own unpickler falls for it: the test above can fail."""
    pickle.loads(next(attacks(tmp_path / "marker")))
    assert (tmp_path / "marker").exists()


def test_registered_functions_are_not_called(tmp_path):
    """A function in copyreg's registry, once used, needs no name: EXT codes fetch it from a cache."""
    path, marker = tmp_path / "data_batch_1", tmp_path / "marker"
    copyreg.add_extension("posix", "system", 240)
    try:
        data = pickle.dumps(Calls(os.system, f"echo caught > {marker}"), protocol=2)
        assert b"\x82\xf0" in data
        pickle.loads(b"\x80\x02\x82\xf0.")  # now it is in the cache
        path.write_bytes(data)
        with pytest.raises(InputError, match="complete pickle"):
            read_table(path)
    finally:
        copyreg.remove_extension("posix", "system", 240)
    assert not marker.exists()


def test_stand_ins_cannot_be_changed(tmp_path):
    """BUILD sets attributes of whatever lies on the stack; the stand-ins have none to set."""
    path = tmp_path / "data_batch_1"
    for name in (
        b"numpy\nndarray",
        b"numpy\ndtype",
        b"_codecs\nencode",
        b"numpy.core.multiarray\n_reconstruct",
    ):
        for state in (b"}(S'args'\nK\x01u", b"N}(S'args'\nK\x01u\x86"):
            path.write_bytes(b"\x80\x02c" + name + b"\n" + state + b"b.")
            with pytest.raises(InputError, match="complete pickle"):
                read_table(path)
    path.write_bytes(python3(IMAGES, LABELS))
    assert len(read_table(path)) == 3


@pytest.mark.parametrize(
    "content, word",
    [
        ([1, 2], "b'data'"),
        ({"data": IMAGES, "labels": LABELS}, "b'data'"),
        (batch(IMAGES.astype(np.int16), LABELS), "b'data'"),
        (batch(IMAGES.astype(np.int8), LABELS), "b'data'"),
        (batch(IMAGES[:, :3071], LABELS), "3072"),
        (batch(IMAGES.reshape(3, 3, 32, 32), LABELS), "b'data'"),
        (batch(IMAGES[:0], []), "plain arrays"),
        (batch(IMAGES.tolist(), LABELS), "b'data'"),
        (batch(IMAGES, [1, 2, 10]), "b'labels'"),
        (batch(IMAGES, [1, 2, -1]), "b'labels'"),
        (batch(IMAGES, [1, 2, True]), "b'labels'"),
        (batch(IMAGES, (1, 2, 3)), "b'labels'"),
        (batch(IMAGES, [1, 2]), "2 labels, 3 images"),
        ({b"data": IMAGES, b"fine_labels": LABELS, b"coarse_labels": LABELS}, "b'labels'"),
    ],
    ids=range(14),
)
def test_other_pickles(tmp_path, content, word):
    path = tmp_path / "test_batch"
    stream = io.BytesIO()
    pickle.Pickler(stream, protocol=2).dump(content)
    path.write_bytes(stream.getvalue())
    with pytest.raises(InputError, match=word):
        read_table(path)


def test_a_label_byte_above_nine(tmp_path):
    path = tmp_path / "data_batch_1.bin"
    path.write_bytes(binary(IMAGES, [1, 10, 2]))
    with pytest.raises(InputError, match="below 10"):
        read_table(path)
    path.write_bytes(b"")
    with pytest.raises(InputError, match=r"3073 bytes.*0 bytes"):
        read_table(path)


def test_damage(tmp_path, refused_when_cut, survives_changed_bytes):
    for name in WRITERS:
        path = tmp_path / name
        path.write_bytes(WRITERS[name](IMAGES, LABELS))
        refused_when_cut(path, unseen=(3073, 6146) if name.endswith(".bin") else (), most=150)
        survives_changed_bytes(path, times=200)

"""Whether damaged schemas and data files are refused in a sentence, or read as records within their
public bounds."""

from __future__ import annotations

import gzip
import io
import random
import struct
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import lastiterate as li
from lastiterate.data import Schema, encode, read_table
from lastiterate.data.encoding import form_of
from oracles.model_fuzz import check_sentence

SECRET = "73.0912345"
"""A cell of one record: no refusal may show it, or the middle of it."""
SCHEMA = """target = "outcome"
classes = ["no", "yes"]
source = "made up"
[columns.age]
kind = "number"
low = 0
high = 120
outside = "clip"
missing = 40
[columns.ward]
kind = "category"
values = ["a", "b", "c"]
[columns.id]
kind = "ignore"
"""
TABLE = "id,age,ward,outcome\n" + "".join(
    f"{i},{SECRET if i == 3 else 20 + i},{'abc'[i % 3]},{('no', 'yes')[i % 2]}\n" for i in range(12)
)
IMAGES = np.arange(6 * 4 * 4, dtype=np.uint8).reshape(6, 4, 4)
LABELS = np.array([0, 1, 2, 0, 1, 2], np.uint8)
WORDS = (
    '"',
    "'",
    "[",
    "]",
    "{",
    "}",
    "=",
    ",",
    "\n",
    "\r",
    "\0",
    "\ufeff",
    "nan",
    "inf",
    "-inf",
    "1e400",
    "-1",
    "1e39",
    "true",
    "0x1f",
    "\u2028",
    "\ud83d\ude00",
    "a" * 300,
    "[[[[",
    "[columns.age]",
    "9" * 400,
    'kind = "number"',
)


def idx(array: np.ndarray) -> bytes:
    """An IDX file of bytes."""
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


def npz() -> bytes:
    """An archive of features and labels."""
    found = io.BytesIO()
    np.savez(found, X=np.linspace(-1, 1, 24).reshape(6, 4), y=LABELS)
    return found.getvalue()


def npy(array: np.ndarray = np.linspace(-1, 1, 24).reshape(6, 4)) -> bytes:  # noqa: B008
    """An array."""
    found = io.BytesIO()
    np.save(found, array)
    return found.getvalue()


@dataclass(frozen=True)
class Kind:
    """``name``: of the file; ``whole``: its bytes, undamaged; ``beside``: files that lie beside it."""

    name: str
    whole: bytes
    beside: tuple[tuple[str, bytes], ...] = ()
    schema: str = ""
    text: bool = False


BYTES = 'classes = ["0", "1", "2"]\n[array]\nlow = 0\nhigh = 255\n'
UNIT = 'classes = ["0", "1", "2"]\n[array]\nlow = -1\nhigh = 1\n'
KINDS = {
    "schema": Kind("s.toml", SCHEMA.encode(), (("d.csv", TABLE.encode()),), text=True),
    "csv": Kind("d.csv", TABLE.encode(), schema=SCHEMA, text=True),
    "csv.gz": Kind("d.csv.gz", gzip.compress(TABLE.encode(), mtime=0), schema=SCHEMA),
    "idx": Kind(
        "train-images-idx3-ubyte", idx(IMAGES), (("train-labels-idx1-ubyte", idx(LABELS)),), BYTES
    ),
    "idx labels": Kind(
        "train-labels-idx1-ubyte", idx(LABELS), (("train-images-idx3-ubyte", idx(IMAGES)),), BYTES
    ),
    "npz": Kind("d.npz", npz(), schema=UNIT),
    "npy": Kind("d.npy", npy(), (("d.labels.npy", npy(LABELS)),), UNIT),
}


def damaged(kind: Kind, rng: random.Random) -> bytes:
    """The file with bits flipped, a stretch lost, doubled, turned round, or (text) a word put in;
    archives also with another content that is packed properly."""
    found = bytearray(kind.whole)
    at, wide = rng.randrange(len(found)), rng.randrange(1, 30)
    choice = rng.randrange(7)
    if choice == 0:
        for _ in range(rng.choice((1, 1, 2, 8))):
            found[rng.randrange(len(found))] ^= 1 << rng.randrange(8)
    elif choice == 1:
        del found[at:]
    elif choice == 2:
        del found[at : at + wide]
    elif choice == 3:
        found[at:at] = found[at : at + wide] * rng.choice((1, 1, 3))
    elif choice == 4:
        found[at : at + wide] = found[at : at + wide][::-1]
    elif choice == 5 and not kind.text:
        size = rng.choice((1, 2, 4, 8))
        found[at : at + size] = rng.choice(
            (bytes(size), b"\xff" * size, b"\x7f" + b"\xff" * (size - 1))
        )
    else:
        return _rewritten(kind, rng, at)
    return bytes(found)


def _rewritten(kind: Kind, rng: random.Random, at: int) -> bytes:
    if kind.name.endswith(".gz"):
        inner = damaged(KINDS["csv"], rng)
        return gzip.compress(inner, mtime=0)
    if kind.name.endswith(".npz"):
        found = io.BytesIO()
        with zipfile.ZipFile(found, "w") as archive:
            for name in rng.sample(["X.npy", "y.npy", "../y.npy", "z", "X"], 2):
                archive.writestr(name, damaged(KINDS["npy"], rng))
        return found.getvalue()
    word = rng.choice(WORDS).encode("utf-8", "surrogatepass")
    return kind.whole[:at] + word + kind.whole[at + rng.choice((0, 0, 1, 5)) :]


def outcome(kind: Kind, content: bytes, home: Path) -> str:
    """ "refused" or "read"; what is read has rows within the public norm, and labels that the
    schema lists."""
    for name, beside in kind.beside:
        (home / name).write_bytes(beside)
    (home / kind.name).write_bytes(content)
    try:
        schema = (
            Schema.read(home / kind.name)
            if not kind.schema
            else Schema.from_dict(_toml(kind.schema))
        )
        data = next(
            path
            for path in (home / "d.csv", home / "train-images-idx3-ubyte", home / kind.name)
            if path.is_file() and path.suffix != ".toml"
        )
        table = read_table(data, schema)
        form = form_of(table, schema)
        rows, target = encode(table, schema)
    except li.InputError as error:
        check_sentence(error)
        assert SECRET[2:7] not in str(error), "no value is shown"
        return "refused"
    finally:
        for path in home.iterdir():
            path.unlink()
    assert rows.shape == (len(table), form.width) and np.isfinite(rows).all()
    assert np.abs(rows).max(initial=0) <= 1 + 1e-6
    assert np.linalg.norm(rows, axis=1).max(initial=0) <= form.norm * (1 + 1e-6)
    if schema.regression:
        assert np.abs(target).max(initial=0) <= 1 + 1e-6
    else:
        assert set(np.unique(target)) <= set(range(len(schema.classes)))
    return "read"


def _toml(text: str) -> dict[str, object]:
    import tomllib

    return tomllib.loads(text)

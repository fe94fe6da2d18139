"""Checkpoints at rest: what opens them, what does not, what is left when a writer fails or is
killed."""

import errno
import json
import os
import random
import stat
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lastiterate.engine import checkpoint
from lastiterate.engine.checkpoint import (
    Key,
    Owner,
    clean,
    read_key,
    remove,
    seal,
    token_of,
    unseal,
)
from lastiterate.errors import InputError

KEY, OTHER = Key(bytes(range(32))), Key(bytes(32))
OWNER = Owner("r" * 64, "d" * 64, "t" * 32, "p" * 64, "jax 1")
BODY = b"these are parameters and a seed " * 40


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "fit.checkpoint"
    seal(path, KEY, OWNER, 7, BODY)
    return path


def test_what_is_sealed_is_opened_again(file: Path) -> None:
    assert unseal(file, KEY, OWNER) == (7, BODY) and token_of(file) == OWNER.token
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    seal(file, KEY, OWNER, 8, b"later")
    assert unseal(file, KEY, OWNER) == (8, b"later") and os.listdir(file.parent) == [file.name]


def test_nothing_is_readable_and_no_two_files_are_alike(file: Path) -> None:
    first = file.read_bytes()
    seal(file, KEY, OWNER, 7, BODY)
    second = file.read_bytes()
    assert not any(
        BODY[i : i + 8] in content for content in (first, second) for i in range(0, len(BODY), 8)
    )
    assert KEY.secret not in first and first[-len(BODY) :] != second[-len(BODY) :]


@pytest.mark.parametrize(
    ("key", "owner", "words"),
    [
        (OTHER, OWNER, "is not the one"),
        (KEY, replace(OWNER, run="s" * 64), "another run"),
        (KEY, replace(OWNER, data="e" * 64), "other data"),
        (KEY, replace(OWNER, token=""), "another line of the ledger"),
        (KEY, replace(OWNER, program="q" * 64), "another loss, model or optimizer"),
        (KEY, replace(OWNER, software="jax 2"), "other versions: jax 1"),
    ],
)
def test_another_key_run_data_or_line(file: Path, key: Key, owner: Owner, words: str) -> None:
    with pytest.raises(InputError, match=words):
        unseal(file, key, owner)


def test_every_flipped_byte_and_every_cut_is_seen(file: Path) -> None:
    whole = file.read_bytes()
    for at in range(len(whole)):
        changed = bytearray(whole)
        changed[at] ^= 1 << (at % 8)
        file.write_bytes(bytes(changed))
        with pytest.raises(InputError):
            unseal(file, KEY, OWNER)
    for length in range(0, len(whole), 17):
        file.write_bytes(whole[:length])
        with pytest.raises(InputError):
            unseal(file, KEY, OWNER)


def test_a_header_that_is_exchanged_is_seen(file: Path) -> None:
    """The header is authenticated: another run's hash cannot be written over it."""
    content = file.read_bytes()
    file.write_bytes(content.replace(b"r" * 64, b"s" * 64))
    with pytest.raises(InputError, match="damaged"):
        unseal(file, KEY, Owner("s" * 64, OWNER.data, OWNER.token))


def test_hostile_headers(file: Path) -> None:
    chance, whole = random.Random(3), file.read_bytes()
    length = int.from_bytes(whole[8:12], "big")
    for _ in range(500):
        header = json.loads(whole[12 : 12 + length])
        name = chance.choice(list(header))
        header[name] = chance.choice([None, 3, "", "ü", "zz", [], {}, True, "0" * 64, 1e300])
        text = json.dumps(header).encode()
        file.write_bytes(
            checkpoint.MAGIC + len(text).to_bytes(4, "big") + text + whole[12 + length :]
        )
        with pytest.raises(InputError):
            unseal(file, KEY, OWNER)


@pytest.mark.parametrize("call", ["os.fsync", "os.replace"])
def test_a_full_disk_keeps_the_last_whole_checkpoint(
    file: Path, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(call, full)
    with pytest.raises(InputError, match="No space left"):
        seal(file, KEY, OWNER, 8, b"later")
    monkeypatch.undo()
    assert unseal(file, KEY, OWNER) == (7, BODY) and os.listdir(file.parent) == [file.name]


def test_what_a_killed_writer_leaves_is_cleaned(file: Path) -> None:
    stale = file.with_name(f".{file.name}-abc_1234.part")
    for act in (lambda: seal(file, KEY, OWNER, 8, BODY), lambda: clean(file), lambda: remove(file)):
        stale.write_bytes(b"cut off")
        act()
        assert not stale.exists()
    assert os.listdir(file.parent) == []


def test_what_others_write_beside_a_checkpoint_is_theirs(tmp_path: Path) -> None:
    """Checkpoints whose names go on behind this one's, and model folders named like it."""
    file = tmp_path / "fit[1]"
    others = [
        tmp_path / f".{name}-abc_1234.part"
        for name in ("fit[1]-2", "fit[1]-abc_123", "fit1", "fit[1]")
    ]
    for other in others[:-1]:
        other.write_bytes(b"half written")
    others[-1].mkdir()
    checkpoint.claim(file, KEY, "t" * 32)
    seal(file, KEY, OWNER, 1, BODY)
    remove(file)
    assert sorted(tmp_path.iterdir()) == sorted(others)


def test_keys_from_a_file_and_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (checkpoint.VARIABLE, checkpoint.FILE_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    assert read_key() is None
    path = tmp_path / "key"
    path.write_text(KEY.secret.hex() + "\n")
    path.chmod(0o644)
    with pytest.raises(InputError, match="owner alone"):
        read_key(path)
    path.chmod(0o600)
    assert read_key(path) == KEY
    monkeypatch.setenv(checkpoint.FILE_VARIABLE, str(path))
    assert read_key() == KEY
    monkeypatch.delenv(checkpoint.FILE_VARIABLE)
    monkeypatch.setenv(checkpoint.VARIABLE, OTHER.secret.hex())
    assert read_key() == OTHER


@pytest.mark.parametrize("text", ["", "secret", "ab" * 31, "ab" * 33, "zz" * 32, "ü" * 64])
def test_what_is_no_key_is_refused_and_not_shown(tmp_path: Path, text: str) -> None:
    path = tmp_path / "key"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(InputError, match="checkpoint key") as told:
        read_key(path)
    assert not text or text not in str(told.value)
    assert KEY.secret.hex() not in repr(KEY)


def test_the_digest_tells_data_apart() -> None:
    x = np.arange(12.0).reshape(3, 4)
    assert KEY.digest([x, x]) == KEY.digest([x.copy(), x]) != OTHER.digest([x, x])
    others = [x], [x.T], [x.reshape(4, 3)], [x.astype(np.float32)], [x, x[:0]]
    assert len({KEY.digest(arrays) for arrays in others}) == 5

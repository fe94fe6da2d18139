"""What macOS and Windows do differently, simulated: locks, renames, forcing to disk, scratch files.

Neither system runs these tests; docs/reference/platforms.md says so.
"""

import errno
import os
import signal
import sys
import time
from types import SimpleNamespace

import pytest

from lastiterate import atomic_files, interrupts, limits
from lastiterate.engine import checkpoint
from lastiterate.engine.streaming import scratch
from lastiterate.engine.streaming.scratch import NoScratch, Scratch
from lastiterate.errors import InputError
from lastiterate.ledger import GaussianFilter, Ledger
from lastiterate.release import folder, signatures


@pytest.fixture
def windows(monkeypatch):
    """No locks of files, and no waiting."""
    monkeypatch.setattr(atomic_files, "fcntl", None)
    monkeypatch.setattr(folder, "fcntl", None)
    slept = []
    monkeypatch.setattr(time, "sleep", slept.append)
    return slept


def refuse(times, rename, number=errno.EACCES):
    """Return ``rename`` as Windows has it: refused a few times, while another program reads."""
    left = [times]

    def renamed(draft, path):
        if left[0]:
            left[0] -= 1
            raise PermissionError(number, "used by another process", str(path))
        rename(draft, path)

    return renamed


# Files that appear whole.


def test_macos_forces_a_file_out_of_the_disks_cache(monkeypatch, tmp_path):
    asked, synced = [], []
    system = SimpleNamespace(
        F_FULLFSYNC=51,
        LOCK_EX=2,
        LOCK_NB=4,
        flock=lambda *given: None,
        fcntl=lambda handle, request: asked.append(request),
    )
    monkeypatch.setattr(atomic_files, "fcntl", system)
    monkeypatch.setattr(os, "fsync", synced.append)
    atomic_files.write_file(tmp_path / "a", b"one")
    atomic_files.append_line(tmp_path / "a", b"two")
    assert (tmp_path / "a").read_bytes() == b"onetwo"
    assert asked == [51] * 3 and synced == [], "the file, its folder and the line"

    def refused(handle, request):
        raise OSError(errno.ENOTSUP, "not on this file system")

    system.fcntl = refused
    atomic_files.write_file(tmp_path / "b", b"one")
    assert len(synced) == 2, "what the system can do is done"


def test_linux_asks_for_no_such_thing(monkeypatch, tmp_path):
    synced = []
    monkeypatch.setattr(os, "fsync", synced.append)
    atomic_files.write_file(tmp_path / "a", b"one")
    assert len(synced) == 2


@pytest.mark.parametrize("times", [0, 1, len(atomic_files.WAITS)])
def test_windows_waits_for_who_reads_the_old_file(times, windows, monkeypatch, tmp_path):
    (tmp_path / "a").write_bytes(b"old")
    monkeypatch.setattr(os, "replace", refuse(times, os.replace))
    atomic_files.write_file(tmp_path / "a", b"new")
    assert (tmp_path / "a").read_bytes() == b"new" and len(windows) == times
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_windows_waits_for_a_second_and_no_longer(windows, monkeypatch, tmp_path):
    (tmp_path / "a").write_bytes(b"old")
    monkeypatch.setattr(os, "replace", refuse(99, os.replace))
    with pytest.raises(PermissionError, match="a'"):
        atomic_files.write_file(tmp_path / "a", b"new")
    assert 0.5 < sum(windows) < 2 and (tmp_path / "a").read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["a"], "nothing is left of the new one"


def test_other_systems_do_not_wait(monkeypatch, tmp_path):
    monkeypatch.setattr(time, "sleep", lambda seconds: pytest.fail("it waited"))
    monkeypatch.setattr(os, "replace", refuse(1, os.replace))
    with pytest.raises(PermissionError):
        atomic_files.write_file(tmp_path / "a", b"new")


def test_a_folder_is_renamed_once_nobody_looks_into_it(windows, monkeypatch, tmp_path):
    monkeypatch.setattr(os, "rename", refuse(2, os.rename))
    atomic_files.write_folder(tmp_path / "m", {"a": b"1", "b/c": b"2"})
    assert (tmp_path / "m" / "b" / "c").read_bytes() == b"2" and len(windows) == 2


def test_folders_that_cannot_be_opened_are_not_forced_to_disk(monkeypatch, tmp_path):
    opened = os.open

    def open_file(path, flags, *more):
        if os.path.isdir(path):
            raise PermissionError(errno.EACCES, "a folder", str(path))
        return opened(path, flags, *more)

    monkeypatch.setattr(os, "open", open_file)
    atomic_files.write_file(tmp_path / "a", b"one")
    assert (tmp_path / "a").read_bytes() == b"one"


def test_windows_removes_what_killed_writers_left_and_no_open_file(windows, monkeypatch, tmp_path):
    killed, active = (tmp_path / f".a-{name}.part" for name in ("0" * 8, "1" * 8))
    for path in (killed, active):
        path.write_bytes(b"half")
    unlink = type(killed).unlink

    def unlink_closed(path, **given):
        if path == active:
            raise PermissionError(errno.EACCES, "in use", str(path))
        unlink(path, **given)

    monkeypatch.setattr(type(killed), "unlink", unlink_closed)
    atomic_files.write_file(tmp_path / "a", b"whole")
    assert {path.name for path in tmp_path.iterdir()} == {"a", active.name}


def test_windows_keeps_drafts_of_folders_for_a_day(windows, tmp_path):
    young, old = (tmp_path / f".m-{name}.part" for name in ("0" * 8, "1" * 8))
    for path in (young, old):
        path.mkdir()
    before = time.time() - 2 * folder.DAY
    os.utime(old, (before, before))
    folder.clean(tmp_path / "m")
    assert young.is_dir() and not old.exists()


# Names that are new.


@pytest.fixture
def without_links(monkeypatch):
    """A file system such as FAT, as Windows reports it."""

    def refused(draft, path):
        raise OSError(errno.EINVAL, "incorrect function", str(path))

    monkeypatch.setattr(os, "link", refused)


def test_a_new_file_replaces_none_where_there_are_no_links(without_links, tmp_path):
    atomic_files.write_file(tmp_path / "a", b"one", new=True)
    with pytest.raises(FileExistsError):
        atomic_files.write_file(tmp_path / "a", b"two", new=True)
    assert (tmp_path / "a").read_bytes() == b"one" and len([*tmp_path.iterdir()]) == 1


def test_a_ledger_is_made_by_one_process_alone(without_links, monkeypatch, tmp_path):
    """A move that may replace another process's ledger would lose its charges; that of Windows
    replaces nothing."""
    asked = dict(unit="record", adjacency="zero-out", filter=GaussianFilter(4.0))
    with pytest.raises(InputError, match="ledger cannot be written"):
        Ledger(tmp_path / "posix").add("d", **asked)
    assert not [*tmp_path.iterdir()]
    monkeypatch.setattr(atomic_files, "fcntl", None)
    Ledger(tmp_path / "windows").add("d", **asked)
    assert Ledger(tmp_path / "windows").datasets() == ("d",)


# Scratch files.


@pytest.fixture(params=["macos", "windows"])
def lacking(request, monkeypatch):
    """The functions of ``os`` that a system has not."""
    absent = ["posix_fallocate", "O_TMPFILE"]
    if request.param == "windows":
        absent += ["pwrite", "preadv"]
        monkeypatch.setattr(os, "O_TEMPORARY", 0, raising=False)
        monkeypatch.setattr(os, "O_BINARY", 0, raising=False)
    for name in absent:
        monkeypatch.delattr(os, name, raising=False)
    return request.param


def test_scratch_files_hold_their_pages_in_any_order(lacking, tmp_path):
    file = Scratch(5, 1000, tmp_path)
    pages = {page: bytes([page]) * (1000 - page) for page in range(5)}
    for page in (3, 0, 4, 1, 2):
        file.write(page, pages[page])
    assert {page: file.read(page) for page in (2, 0, 4, 3, 1)} == pages
    os.lseek(file._file, 0, os.SEEK_SET)
    assert os.write(file._file, b"changed") == 7
    with pytest.raises(InputError, match="damaged"):
        file.read(0)
    file.close()


def test_scratch_files_are_short_pages_at_the_end_too(lacking, tmp_path):
    file = Scratch(1, 10, tmp_path)
    file.write(0, b"12345678")
    os.ftruncate(file._file, 12)
    with pytest.raises(InputError, match="damaged"):
        file.read(0)
    file.close()


def test_a_full_disk_is_seen_before_the_first_page(lacking, monkeypatch, tmp_path):
    monkeypatch.setattr(scratch.shutil, "disk_usage", lambda path: SimpleNamespace(free=999))
    with pytest.raises(NoScratch, match="of free space"):
        Scratch(1, 1000, tmp_path)


def test_windows_is_asked_to_remove_the_scratch_file(monkeypatch, tmp_path):
    flags = []
    opened = os.open

    def open_file(path, given, *more):
        flags.append(given)
        return opened(path, given & ~(1 << 28), *more)

    monkeypatch.setattr(os, "O_TEMPORARY", 1 << 28, raising=False)
    monkeypatch.setattr(os, "open", open_file)
    os.close(scratch._nameless(tmp_path))
    assert flags[0] & 1 << 28 and flags[0] & os.O_EXCL


# The rest.


def test_modes_of_key_files_are_compared_where_there_are_modes(monkeypatch, tmp_path):
    (tmp_path / "key").write_text("ab" * 32)
    (tmp_path / "key").chmod(0o644)
    with pytest.raises(InputError, match="readable by its owner alone"):
        checkpoint.read_key(tmp_path / "key")
    monkeypatch.setattr(checkpoint, "HAS_MODES", False)
    assert checkpoint.read_key(tmp_path / "key") == checkpoint.Key(bytes.fromhex("ab" * 32))


def test_a_lost_interrupt_is_asked_again_without_signals_of_threads(monkeypatch):
    asked = []
    monkeypatch.delattr(signal, "pthread_kill")
    monkeypatch.setattr(interrupts._thread, "interrupt_main", lambda: asked.append("again"))
    interrupts._ask_again()
    assert asked == ["again"]


def test_memory_and_core_dumps_are_unknown_there(monkeypatch):
    monkeypatch.delattr(os, "sysconf")
    assert limits.memory() == float("inf")
    monkeypatch.setitem(sys.modules, "resource", None)
    assert not [text for text in signatures.exposures() if "core dump" in text]

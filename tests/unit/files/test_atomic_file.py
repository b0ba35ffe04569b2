"""Files that are written atomically: complete, or as before, with the permissions of other new files."""

from __future__ import annotations

import errno
import os

import pytest

from gemmule.core.errors import FileAccessError
from gemmule.files.atomic_file import atomic_write
from support.system_calls import replaced


def test_other_threads_keep_their_umask(tmp_path, monkeypatch):
    """A umask is of the process: files that other threads create meanwhile must not be everyone's."""
    before = os.umask(0o027)
    try:
        replaced(monkeypatch, "umask", lambda mask: pytest.fail(f"umask({mask:o})"))
        with atomic_write(tmp_path / "new" / "a.json") as file:
            file.write(b"first")
    finally:
        monkeypatch.undo()
        os.umask(before)
    (path,) = (tmp_path / "new").iterdir()
    assert (path.name, path.read_bytes(), path.stat().st_mode & 0o777) == ("a.json", b"first", 0o640)


def test_a_block_that_fails_leaves_the_file(tmp_path):
    path = tmp_path / "a.json"
    path.write_bytes(b"first")

    def fail():
        with atomic_write(path) as file:
            file.write(b"second")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert [(one.name, one.read_bytes()) for one in tmp_path.iterdir()] == [("a.json", b"first")]


def test_a_full_disk_is_an_error_of_the_file(tmp_path, monkeypatch):
    path = tmp_path / "a.json"
    path.write_bytes(b"first")

    def full(_descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    replaced(monkeypatch, "fsync", full)
    with (
        pytest.raises(FileAccessError, match=r"a\.json: writing it failed: .*; free some room"),
        atomic_write(path) as file,
    ):
        file.write(b"second")
    assert [(one.name, one.read_bytes()) for one in tmp_path.iterdir()] == [("a.json", b"first")]

"""Files that the system does not open, read or write: errors of gemmule that name the file and say what helps."""

from __future__ import annotations

import errno
import os
import pickle
import subprocess
import sys

import numpy as np
import pytest

import gemmule as gm
from gemmule.core.errors import ForbiddenFileError, MissingFileError
from gemmule.files.file_errors import errors_name, file_error


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("a.npy", np.ones((40, 30)))
    return tmp_path


def multiply(*arguments, **options):
    return gm.outofcore.matmul(*arguments, executor="cpu", **options)


def test_a_file_that_is_not_there(folder):
    pytest.importorskip("zarr"), pytest.importorskip("h5py")
    for names in (("nope.npy", "a.npy"), ("a.npy", "nope.npy"), ("nope.zarr", "a.npy"), ("nope.h5::x", "a.npy")):
        with pytest.raises(gm.FileAccessError, match=r"^nope.*: there is no such file; check the name") as told:
            multiply(*names, "c.npy", transpose_b=True)
        assert isinstance(told.value, FileNotFoundError)
        assert isinstance(told.value, gm.GemmuleError)
        assert str(folder) in str(told.value)
        assert told.value.errno == errno.ENOENT
    assert sorted(path.name for path in folder.iterdir()) == ["a.npy"]


def test_a_url_is_no_file(folder):
    for url in ("https://example.org/a.npy", "s3://bucket/a.npy"):
        with pytest.raises(MissingFileError, match=r": it is a URL, and files alone are read; download it first$"):
            multiply("a.npy", url, "c.npy")


def test_a_folder_that_is_not_there(folder):
    with pytest.raises(MissingFileError, match=r"^no/c.npy: its folder does not exist; make it first"):
        multiply("a.npy", "a.npy", "no/c.npy", transpose_b=True)


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="no folder that takes no files")
def test_a_folder_that_takes_no_files(folder):
    with pytest.raises(gm.FileAccessError, match=r"^/proc/c.npy: .*name a"):
        multiply("a.npy", "a.npy", "/proc/c.npy", transpose_b=True)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read and write everywhere")
def test_what_permissions_forbid(folder):
    os.chmod("a.npy", 0)
    with pytest.raises(ForbiddenFileError, match="change the permissions"):
        multiply("a.npy", "a.npy", "c.npy", transpose_b=True)
    os.chmod("a.npy", 0o600)
    os.mkdir("locked", 0o500)
    with pytest.raises(PermissionError, match=r"locked/c\.npy: writing it or its folder is not allowed"):
        multiply("a.npy", "a.npy", "locked/c.npy", transpose_b=True)


@pytest.mark.parametrize("name", ["x.txt", "x", "x.npz", "x.csv", "x.npy.gz"])
def test_a_result_is_not_named_as_what_it_is_not(folder, name):
    with pytest.raises(gm.ArgumentError, match=r"a \.npy file or a \.zarr store.*\.npy, or end it in \.zarr"):
        multiply("a.npy", "a.npy", name, transpose_b=True)
    assert not os.path.exists(name)
    multiply("a.npy", "a.npy", "X.NPY", transpose_b=True)
    assert np.load("X.NPY").shape == (40, 40)


#: The process limits itself: a call before its start would be one between fork and exec, which JAX's threads forbid.
LIMITED = """
import resource, runpy, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
runpy.run_module("gemmule", run_name="__main__", alter_sys=True)
"""


def test_a_full_disk_leaves_nothing_under_the_name(folder):
    """A limit on the size of files stands for it: the system refuses a write in the middle."""

    command = [sys.executable, "-c", LIMITED, "matmul", "a.npy", "a.npy", "--transpose-b", "-o", "c.npy"]
    told = subprocess.run([*command, "--executor", "cpu"], capture_output=True, text=True, check=False)
    assert told.returncode == 1, told.stderr
    assert told.stderr.startswith("gemmule: c.npy: writing it failed: File too large; raise the limit")
    assert told.stderr.count("\n") == 1
    assert not os.path.exists("c.npy")


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (errno.ENOSPC, "free some room"),
        (errno.EROFS, "change the permissions"),
        (errno.EIO, "choose another disk"),
        (errno.ENAMETOOLONG, "give a shorter one"),
        (errno.ENOENT, "name a folder that does"),
    ],
)
def test_each_reason_has_its_remedy(code, text):
    error = file_error(OSError(code, os.strerror(code)), "c.npy", written=True)
    assert str(error).startswith("c.npy: ")
    assert text in str(error)
    assert error.errno == code
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again)) == (type(error), str(error))


def test_errors_of_gemmule_are_not_told_twice():
    first = file_error(OSError(errno.EIO, "Input/output error"), "inner.npy")
    with pytest.raises(gm.FileAccessError) as told, errors_name("outer.npy"):
        raise first
    assert told.value is first

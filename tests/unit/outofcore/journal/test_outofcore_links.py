"""Temporary files have names that others can predict: what is planted there is refused and stays as it is."""

from __future__ import annotations

import os
import re
import shutil
import stat
from pathlib import Path

import numpy as np
import pytest

from gemmule.core.errors import ForbiddenFileError
from gemmule.files import temporary_file
from gemmule.outofcore.journal.temporary_files import hidden_path
from support.outofcore.killed_products import (
    child,
    content,
    damage,
    finish,
    hidden,
    journal_of,
    make_inputs,
    record,
    refused,
)
from support.system_calls import replaced

SECRET = b"somebody else's\n" * 20
REMEDY = "this one is left as it is; remove it, or choose another output"


def partial_of(output):
    return re.sub("journal$", "partial", journal_of(output))


def plant(kind, path):
    """Put something of somebody else under a temporary file's name; return what it is about, by name."""
    os.makedirs("theirs/c", exist_ok=True)
    for name in ("precious", "theirs/zarr.json"):
        Path(name).write_bytes(SECRET)
    if kind == "link":
        os.symlink("precious", path)
    elif kind == "dangling link":
        os.symlink("not made yet", path)
    elif kind == "link to a folder":
        os.symlink("theirs", path)
    elif kind == "hard link":
        os.link("precious", path)
    elif kind == "folder":
        os.mkdir(path)
    elif kind == "pipe":
        os.mkfifo(path)


def untouched(path, before):
    assert Path("precious").read_bytes() == SECRET == Path("theirs/zarr.json").read_bytes()
    assert sorted(os.listdir("theirs")) == ["c", "zarr.json"]
    assert not os.path.lexists("not made yet")
    after = os.lstat(path)
    same = "st_ino", "st_mode", "st_nlink", "st_uid", "st_size", "st_mtime_ns"
    assert all(getattr(after, name) == getattr(before, name) for name in same)


@pytest.fixture
def inputs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GEMMULE_EXECUTOR", "cpu")
    make_inputs()
    return np.load("A.npy").astype("f8") @ np.load("B.npy").astype("f8")


@pytest.fixture(params=[True, False], ids=["O_NOFOLLOW", "no O_NOFOLLOW"])
def no_follow(request, monkeypatch):
    """With the flag, and as on a system that has none."""
    if not request.param:
        monkeypatch.setattr(temporary_file, "_FLAGS", temporary_file._FLAGS & ~os.O_NOFOLLOW)


PLANTED = ["link", "dangling link", "link to a folder", "hard link", "folder", "pipe"]
#: Each with unfinished work that is to serve, and two that is not to; the rest is for test-all.
PLANTED_AND_RESUMED = [
    pytest.param(
        kind, resume, marks=[] if resume == "--resume" or kind in ("link", "hard link") else [pytest.mark.slow]
    )
    for kind in PLANTED
    for resume in ("--resume", "--no-resume")
]


@pytest.mark.combinations(2)
@pytest.mark.parametrize(("kind", "resume"), PLANTED_AND_RESUMED)
@pytest.mark.parametrize("of", [journal_of, partial_of])
def test_what_is_planted_is_refused_by_name_and_stays(inputs, output, no_follow, kind, of, resume):
    if kind == "folder" and of is partial_of and ".zarr" in output:
        pytest.skip("that is what a Zarr store's temporary folder is")
    place = of(output)
    plant(kind, place)
    before = os.lstat(place)
    for _ in range(3):
        message = refused(output, resume)
        assert message.startswith(f"gemmule: {place}: is ")
        assert REMEDY in message
        untouched(place, before)
    assert hidden() == [os.path.basename(place)]
    (os.rmdir if kind == "folder" else os.unlink)(place)
    record(output)
    np.testing.assert_allclose(content(output), inputs, rtol=0, atol=1e-4)
    assert hidden() == []


@pytest.mark.parametrize("kind", ["link", "hard link"])
@pytest.mark.parametrize("of", [journal_of, partial_of])
def test_what_replaces_unfinished_work_is_refused_on_resume_too(killed, kind, of):
    output, expected, _ = killed
    place = of(output)
    os.rename(place, "aside")
    if kind == "link":
        os.symlink("aside", place)
    elif os.path.isdir("aside"):
        pytest.skip("folders have no hard links")
    else:
        os.link("aside", place)
    before = os.lstat("aside")
    for _ in range(2):
        message = refused(output)
        assert message.startswith(f"gemmule: {place}: is a ")
        assert os.lstat("aside").st_mtime_ns == before.st_mtime_ns
    os.unlink(place)
    os.rename("aside", place)
    assert finish(output, expected)["tiles_reused"] > 0


@pytest.mark.parametrize("kind", ["link", "hard link", "link to a folder"])
@pytest.mark.parametrize("output", ["C.zarr"], indirect=True)
def test_links_within_a_zarr_store_s_temporary_folder_are_refused(killed, kind):
    output, expected, _ = killed
    place = os.path.join(partial_of(output), "c", "3" if kind == "link to a folder" else "0/4")
    if os.path.lexists(place):
        os.rename(place, "aside")
    plant(kind, place)
    before = os.lstat(place)
    assert refused(output).startswith(f"gemmule: {place}: is a ")
    untouched(place, before)
    assert child(output, int(1e9))[0] == 1
    os.unlink(place)
    if os.path.lexists("aside"):
        os.rename("aside", place)
    finish(output, expected)


@pytest.mark.parametrize("of", [journal_of, partial_of])
def test_what_belongs_to_another_user_is_refused(killed, monkeypatch, of):
    output, expected, _ = killed
    lstat, fstat, place = os.lstat, os.fstat, of(output)
    other = os.stat(place).st_ino

    def foreign(status):
        if status.st_ino != other:
            return status
        return os.stat_result([*status[:4], status.st_uid + 1, *status[5:]])

    with monkeypatch.context() as patch:
        patch.setattr(temporary_file.os, "lstat", lambda path: foreign(lstat(path)))
        patch.setattr(temporary_file.os, "fstat", lambda descriptor: foreign(fstat(descriptor)))
        for resume in ("--resume", "--no-resume"):
            message = refused(output, resume)
            assert message.startswith(f"gemmule: {place}: belongs to user {os.geteuid() + 1}, not {os.geteuid()}; ")
    assert finish(output, expected)["tiles_reused"] > 0


def test_a_file_system_on_which_all_files_belong_to_one_user_serves(killed_npy, monkeypatch):
    uid = os.geteuid()
    replaced(monkeypatch, "geteuid", lambda: uid + 1)
    assert finish("C.npy", killed_npy)["tiles_reused"] > 0


def test_a_file_that_is_replaced_while_it_is_opened_is_not_written_to(tmp_path, monkeypatch):
    (tmp_path / "precious").write_bytes(SECRET)
    own = tmp_path / "own"
    own.write_bytes(b"")
    monkeypatch.setattr(temporary_file, "_FLAGS", 0)
    opened = os.open

    def planting(path, *arguments):
        own.unlink()
        own.symlink_to("precious")
        return opened(path, *arguments)

    monkeypatch.setattr(temporary_file.os, "open", planting)
    with pytest.raises(ForbiddenFileError, match="was replaced while it was opened"):
        temporary_file.open_own(str(own))
    assert (tmp_path / "precious").read_bytes() == SECRET


@pytest.mark.parametrize("swap", ["other file", "link", "second name"])
def test_a_partial_file_that_is_exchanged_does_not_appear(inputs, monkeypatch, swap):
    from gemmule.outofcore.stores.formats.npy_sink import NpySink

    place, flush = partial_of("C.npy"), NpySink.flush

    def swapped(sink):
        flush(sink)
        if os.path.lexists("moved"):
            return
        if swap == "second name":
            os.link(place, "moved")
            return
        os.rename(place, "moved")
        if swap == "link":
            os.symlink("A.npy", place)
        else:
            Path(place).write_bytes(SECRET)

    monkeypatch.setattr(NpySink, "flush", swapped)
    assert place in refused("C.npy")
    assert not os.path.lexists("C.npy")


def test_a_band_s_journal_that_is_a_link_is_refused(killed_npy):
    Path("precious").write_bytes(SECRET)
    os.symlink("precious", journal_of("C.npy") + ".0-0")
    for resume in ("--resume", "--no-resume"):
        assert f"{journal_of('C.npy')}.0-0: is a symbolic link" in refused("C.npy", resume)
    assert Path("precious").read_bytes() == SECRET
    os.unlink(journal_of("C.npy") + ".0-0")
    assert finish("C.npy", killed_npy)["tiles_reused"] > 0


def test_files_that_only_begin_like_a_journal_stay(killed_npy):
    path = Path(journal_of("C.npy") + ".before-the-holidays")
    path.write_bytes(SECRET)
    record("C.npy", "--no-resume")
    assert path.read_bytes() == SECRET


# What may be a link: everything that the user names.


@pytest.mark.parametrize("output", ["C.npy", "C.zarr"], indirect=True)
def test_inputs_and_folders_may_be_links(inputs, output):
    os.mkdir("disk")
    os.symlink("disk", "folder")
    for name in ("A.npy", "B.npy"):
        shutil.move(name, f"disk/{name}")
        os.symlink(f"disk/{name}", name)
    linked = f"folder/{output}"
    record(linked)
    np.testing.assert_allclose(content(linked), inputs, rtol=0, atol=1e-4)
    assert os.listdir("disk") == os.listdir("folder")
    assert not any(name.startswith(".gemmule") for name in os.listdir("disk"))


@pytest.mark.parametrize("output", ["C.npy", "C.zarr"], indirect=True)
@pytest.mark.parametrize("target", ["dangling", "there"])
def test_an_output_that_is_a_link_stays_one_and_what_it_leads_to_is_replaced_whole(inputs, output, target):
    ending = output.partition(".")[2]
    os.mkdir("disk")
    linked, real = f"link.{ending}", f"disk/real.{ending}"
    os.symlink(real, linked)
    force = []
    if target == "there":
        record(real, "--alpha", "2")
        assert "exists already" in refused(linked)
        force = ["--force"]
        # Whoever stops it leaves the old one.
        assert child(linked, -4, "--force")[0] < 0
        np.testing.assert_allclose(content(real), 2 * inputs, rtol=0, atol=1e-4)
        assert all(name.startswith((".gemmule-real", "real")) for name in os.listdir("disk"))
    record(linked, *force)
    assert os.readlink(linked) == real
    np.testing.assert_allclose(content(real), inputs, rtol=0, atol=1e-4)
    assert os.listdir("disk") == [f"real.{ending}"]
    assert hidden() == []


def test_an_output_that_is_a_link_to_itself_or_into_nothing_is_refused(inputs):
    os.symlink("C.npy", "C.npy")
    assert refused("C.npy").startswith("gemmule: C.npy: ")
    os.unlink("C.npy")
    os.symlink("nowhere/C.npy", "C.npy")
    assert refused("C.npy").startswith("gemmule: C.npy: ")
    assert hidden() == []


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root makes folders of others")
def test_a_folder_of_a_group_serves(killed, tmp_path):
    output, expected, _ = killed
    others = [f".gemmule-other.npy-12345678{ending}" for ending in (".journal", ".partial")]
    for name in others:
        Path(name).write_bytes(SECRET)
        os.chown(name, 4321, 4321)
    os.chown(os.curdir, 1234, 4321)
    os.chmod(os.curdir, 0o2775)
    for root, folders, files in os.walk("."):
        # What was begun there belongs to the folder's group too.
        for name in folders + files:
            if name not in others:
                os.chown(os.path.join(root, name), os.geteuid(), 4321)
    told = finish_beside(output, expected, others)
    assert told["tiles_reused"] > 0
    status = os.stat(output.replace("::", "/"))
    assert (status.st_uid, status.st_gid) == (os.geteuid(), 4321)
    assert all(Path(name).read_bytes() == SECRET for name in others)


def finish_beside(output, expected, others):
    told = record(output)
    assert content(output).tobytes() == expected.tobytes()
    assert hidden() == sorted(others)
    return told


# A refusal leaves everything as it is, however often.


def everything():
    found = {}
    for root, _, names in os.walk("."):
        for name in names:
            path = os.path.join(root, name)
            status = os.lstat(path)
            found[path] = status.st_ino, status.st_mtime_ns, stat.S_IMODE(status.st_mode), Path(path).read_bytes()
    return found


@pytest.mark.parametrize("what", ["first line", "partial gone", "a band's first line", "one line of junk"])
def test_a_damaged_journal_is_refused_until_told_otherwise(killed, what):
    output, expected, _ = killed
    journal = journal_of(output)
    if what == "a band's first line":
        shutil.copyfile(journal, journal + ".0-0")
        damage(journal + ".0-0", 5)
    elif what == "one line of junk":
        Path(journal).write_bytes(b"junk" * 20)
    else:
        damage(journal, 5)
    if what == "partial gone":
        os.rename(partial_of(output), "aside")
    left = everything()
    messages = {refused(output) for _ in range(3)}
    assert len(messages) == 1
    assert "first line of this journal is damaged" in messages.pop()
    assert everything() == left
    assert finish(output, expected, "--no-resume")["tiles_reused"] == 0


@pytest.mark.parametrize("what", ["no JSON", "other chunks", "gone", "codecs"])
@pytest.mark.parametrize("output", ["C.zarr"], indirect=True)
def test_a_damaged_zarr_array_is_refused_until_told_otherwise(killed, what):
    output, expected, _ = killed
    metadata = Path(partial_of(output), "zarr.json")
    if what == "gone":
        os.rename(metadata, "aside")
    elif what == "no JSON":
        metadata.write_bytes(metadata.read_bytes()[:100])
    elif what == "codecs":
        metadata.write_bytes(metadata.read_bytes().replace(b'"bytes"', b'"nonsense"'))
    else:
        metadata.write_bytes(metadata.read_bytes().replace(b"32", b"16"))
    # What zarr leaves when it is killed while it writes.
    Path(partial_of(output), "c", "0").mkdir(parents=True, exist_ok=True)
    Path(partial_of(output), "c", "0", "1.0.partial").write_bytes(b"")
    left = everything()
    for _ in range(3):
        message = refused(output)
        assert message.startswith(f"gemmule: {partial_of(output)}: the unfinished work on C.zarr ")
        assert "everything is left as it is; start afresh with --no-resume" in message
        assert everything() == left
    assert finish(output, expected, "--no-resume")["tiles_reused"] == 0


def test_the_journal_of_a_finished_product_goes_and_what_is_none_stays(inputs):
    record("C.npy")
    journal = Path(hidden_path(os.path.abspath("C.npy"), ".journal"))
    journal.write_bytes(SECRET)
    assert "exists already" in refused("C.npy")
    assert journal.read_bytes() == SECRET

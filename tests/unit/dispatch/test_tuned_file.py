"""The file of tuned configurations: written whole, read with care, set aside where it is damaged."""

from __future__ import annotations

import errno
import json
import multiprocessing
import sys
from pathlib import Path

import pytest

from gemmule.core.errors import ArgumentError, FileFormatError
from gemmule.dispatch import tuned_table
from gemmule.dispatch.problem_key import key_of
from gemmule.dispatch.tuned_file import TunedFileWarning, merge_tuned, read_or_warn, read_tuned, write_tuned
from gemmule.files.user_folders import user_settings_file
from gemmule.lab.products import gemm_problem
from support.homeless import without_home
from support.tuned_entries import OTHERS, PROBLEM, chosen, entry, forget, table

__all__ = ["table"]


def test_a_file_comes_back_as_it_was_written(table):
    entries = (entry(), entry(problem=OTHERS["m"], ratio=None), entry(problem=OTHERS["batch"], chip="A100 SXM 80 GB"))
    write_tuned(table, entries)
    assert set(read_tuned(table)) == set(entries)
    assert [path.name for path in table.parent.iterdir()] == [table.name]
    # One entry a line: what changed can be seen.
    assert len(table.read_text().splitlines()) == 3 + 2 + 5


DAMAGED = {
    "empty": b"",
    "cut off": b'{"format": "gemmule tuned configurations", "version": 1, "runs": {}, "ent',
    "another kind": b'{"format": "something else"}',
    "no entries": b'{"format": "gemmule tuned configurations", "version": 1, "runs": {}}',
    "half an entry": b'{"format": "gemmule tuned configurations", "version": 1, "runs": {}, "entries": [{"m": 1}]}',
    "no text": b"\xff\xfe\x00",
    "a list": b"[]",
    "brackets without end": b"[" * 100000,
    "entries of no list": b'{"format": "gemmule tuned configurations", "version": 1, "runs": {}, "entries": {}}',
}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("us", "1" + "0" * 400),
        ("us", "NaN"),
        ("us", '"9.0"'),
        ("samples", "1e999"),
        ("samples", "0"),
        ("samples", "8.5"),
        ("ratio", "1" + "0" * 400),
        ("ratio", "-Infinity"),
        ("ratio", "NaN"),
        ("config", "[]"),
        ("run", "[]"),
        ("m", "1e999"),
    ],
)
def test_a_number_that_no_entry_has_is_damage(table, field, value):
    write_tuned(table, [entry()])
    content = json.loads(table.read_bytes())
    content["entries"][0][field] = "HERE"
    table.write_text(json.dumps(content).replace('"HERE"', value))
    with pytest.raises(FileFormatError, match=r"tuned\.json: "):
        read_tuned(table)


@pytest.mark.parametrize("what", DAMAGED)
def test_calls_go_on_without_a_damaged_file_and_leave_it(table, what):
    table.write_bytes(DAMAGED[what])
    with pytest.warns(TunedFileWarning, match="left as it is"):
        assert chosen().chosen_by == "cost"
    assert [path.name for path in table.parent.iterdir()] == [table.name]
    assert table.read_bytes() == DAMAGED[what]


def test_a_damaged_file_is_set_aside_by_what_replaces_it(table):
    taken = table.with_name("tuned.json.damaged")
    taken.write_text("somebody's")
    write_tuned(table, [entry()])
    damaged = table.read_bytes()[:-5]
    table.write_bytes(damaged)
    with pytest.warns(TunedFileWarning, match=r"set aside as .*\.damaged1"):
        merge_tuned(table, [entry()])
    assert len(read_tuned(table)) == 1
    assert taken.read_text() == "somebody's"
    assert table.with_name("tuned.json.damaged1").read_bytes() == damaged


@pytest.mark.parametrize("text", [b"\x93NUMPY", b"{}", b"thesis"])
def test_a_file_that_is_no_table_is_not_replaced(table, text):
    table.write_bytes(text)
    with pytest.raises(FileFormatError, match="left as it is: name another file"):
        merge_tuned(table, [entry()])
    assert table.read_bytes() == text


def test_a_file_of_a_later_version_is_left_as_it_is(table):
    later = b'{"format": "gemmule tuned configurations", "version": 2}'
    table.write_bytes(later)
    with pytest.warns(TunedFileWarning, match="version 2"):
        assert chosen().chosen_by == "cost"
    assert table.read_bytes() == later


@pytest.mark.parametrize("what", ["a later version", "a failing disk", "a damaged one that stays"])
def test_a_file_that_cannot_be_read_is_not_replaced(table, what, monkeypatch):
    write_tuned(table, [entry()])
    other = gemm_problem(8, 8, 8, "bfloat16", "bfloat16", "nn")

    def fail(*_):
        raise OSError(errno.EIO, "Input/output error", str(table))

    if what == "a later version":
        table.write_bytes(b'{"format": "gemmule tuned configurations", "version": 2}')
        expected = pytest.raises(FileFormatError, match=r"version 2; .* leaves it as it is: .*name another file")
    elif what == "a failing disk":
        monkeypatch.setattr(Path, "read_bytes", fail)
        expected = pytest.raises(OSError, match="Input/output")
    else:
        table.write_bytes(b'{"format": "gemmule tuned configurations"')
        monkeypatch.setattr(Path, "replace", fail)
        expected = pytest.raises(FileFormatError, match=r"cannot be set aside: .*name another file")
    before = table.stat()
    with expected:
        merge_tuned(table, [entry(problem=other)])
    assert (table.stat().st_ino, table.stat().st_size) == (before.st_ino, before.st_size)
    # Calls go on without it.
    with pytest.warns(TunedFileWarning, match=r"tuned\.json"):
        assert read_or_warn(table) == ()


@pytest.mark.parametrize("where", ["none.json", "tuned.json/below.json"])
def test_a_table_that_is_not_there_needs_no_warning(where, table):
    table.write_text("")
    assert read_or_warn(table.parent / where) == ()


def _write(path, first, count):
    for number in range(first, first + count):
        problem = gemm_problem(8 * number + 8, 8, 8, "bfloat16", "bfloat16", "nn")
        merge_tuned(Path(path), [entry(problem=problem)])
        # What all write is decided by what is better, not by who comes last.
        merge_tuned(Path(path), [entry(us=1e4 - number, ratio=None)])


def test_writers_at_the_same_time_lose_nothing(table):
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_write, args=(str(table), 1000 * n, 20)) for n in range(3)]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        # A reader never sees a part of a file.
        assert isinstance(read_or_warn(table), tuple)
        writers[0].join(0.01)
    assert [writer.exitcode for writer in writers] == [0, 0, 0]
    entries = {one.key: one for one in read_tuned(table)}
    assert len(entries) == 61
    assert entries[key_of(PROBLEM)].us == 1e4 - 2019
    assert not list(table.parent.glob("*.partial"))
    assert not list(table.parent.glob("*.damaged"))


def test_where_the_users_file_is(monkeypatch, tmp_path):
    def file(platform):
        return user_settings_file("GEMMULE_TUNED", "tuned.json", platform).relative_to(tmp_path)

    monkeypatch.delenv("GEMMULE_TUNED")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    assert tuned_table.user_file() == tmp_path / file(sys.platform)
    assert file("linux") == Path(".config", "gemmule", "tuned.json")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "settings"))
    assert file("linux") == Path("settings", "gemmule", "tuned.json")
    assert file("darwin") == Path("Library", "Application Support", "gemmule", "tuned.json")
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "local"))
    assert file("win32") == Path("local", "gemmule", "tuned.json")


def test_a_user_without_a_home_has_no_file(monkeypatch):
    monkeypatch.delenv("GEMMULE_TUNED")
    without_home(monkeypatch)
    with pytest.raises(ArgumentError, match="set GEMMULE_TUNED"):
        tuned_table.user_file()
    forget()
    assert chosen().chosen_by == "cost"

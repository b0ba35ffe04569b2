"""``gemmule report``: record files that it refuses, and a page that is never half written."""

from __future__ import annotations

import errno
import json

import pytest

from gemmule.core.errors import ArgumentError, FileFormatError
from gemmule.lab.report import page as report_page
from gemmule.lab.whole_files import write_whole
from support.fakes.modules import not_installed
from support.report import records as made
from support.report.page import TIMED, profile_records, run
from support.system_calls import failing

BAD = {
    "empty": ("", ": not a record file: it is empty"),
    "no json": ("hello\n", ":1: not a record file, whose lines are JSON"),
    "binary": (b"\x89PNG\r\n\xff", ":1: not a record file, whose lines are JSON"),
    "no experiment": (json.dumps(TIMED) + "\n", ":1: not a record file, which begins with an experiment block"),
    "cut": ([made.experiment(), TIMED, '{"record": "gemm", "ker'], ":3: not a record file: the last line is cut off"),
    "a list": ([made.experiment(), [1]], ":2: not a record file, whose lines are objects"),
    "no field": ([made.experiment(), {k: v for k, v in TIMED.items() if k != "m"}], ":2: a gemm record has no 'm'"),
    "text": ([made.experiment(), TIMED | {"tflops": "9"}], ":2: tflops='9' of a gemm record is not a number"),
    "nan": ([made.experiment(), TIMED | {"tflops": float("nan")}], ":2: tflops=nan of a gemm record is not a number"),
    "zero": ([made.experiment(), TIMED | {"median_us": 0}], ":2: median_us=0 of a gemm record is not positive"),
    "true": ([made.experiment(), TIMED | {"m": True}], ":2: m=True of a gemm record is not a whole number"),
    "config": ([made.experiment(), TIMED | {"config": {"tile": [1]}}], ":2: config tile=[1] of a gemm record is not a"),
    "optional": ([made.experiment(), TIMED | {"error_u": "small"}], ":2: error_u='small' of a gemm record is not"),
    "ratio": ([made.experiment(), {k: v for k, v in TIMED.items() if k != "paired_ratio_low"}], ":2: a gemm record"),
    "profile": ([made.experiment(), {"record": "profile", "kind": "x"}], ":2: kind='x' of a profile record is not one"),
    "kernel": (
        [made.experiment(), {k: v for k, v in profile_records()[1].items() if k != "grid"}],
        ":2: a profile record has no 'grid'",
    ),
    "twice": ([made.experiment(), made.experiment()], ":2: not a record file, which begins with an experiment block"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_files_are_refused_in_one_line(name, tmp_path):
    content, message = BAD[name]
    path = tmp_path / "bad.jsonl"
    if isinstance(content, list):
        lines = [line if isinstance(line, str) else json.dumps(line) + "\n" for line in content]
        path.write_text("".join(lines))
    else:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    pytest.importorskip("jinja2", reason="jinja2 is not installed")
    result = run(path, "-o", tmp_path / "page.html")
    assert result.exit_code == 1
    assert result.stderr.startswith(f"gemmule: {path}{message}"), result.stderr
    assert result.stderr.count("\n") == 1
    assert ";" in result.stderr  # the remedy
    assert [one.name for one in tmp_path.iterdir()] == ["bad.jsonl"]


def test_outputs_that_cannot_be_written(tmp_path):
    source = made.write(tmp_path / "a.jsonl", [made.experiment(), TIMED])
    existing = tmp_path / "there.html"
    existing.write_text("mine")
    for arguments, message in (
        ((source, "-o", existing), "there.html: exists; give --force to replace it"),
        ((source, "-o", source, "--force"), "is one of the files that are read or written besides; name another"),
        ((source, "-o", tmp_path), "is a folder; name a file"),
        ((source, "-o", tmp_path / "no" / "page.html"), "its folder does not exist; make it first"),
        ((tmp_path / "none.jsonl", "-o", tmp_path / "page.html"), "none.jsonl: there is no such file"),
    ):
        result = run(*arguments)
        assert (result.exit_code, result.stderr.count("\n")) == (1, 1), result.output
        assert message in result.stderr
    (tmp_path / "empty").mkdir()
    assert "the folder holds no record files" in run(tmp_path / "empty", "-o", tmp_path / "page.html").stderr
    assert run("-o", tmp_path / "page.html").exit_code == 2
    assert existing.read_text() == "mine"
    assert {one.name for one in tmp_path.iterdir()} == {"a.jsonl", "there.html", "empty"}


def test_a_page_has_its_name_when_it_is_complete(tmp_path, monkeypatch):
    target = tmp_path / "page.html"
    write_whole(target, "old", force=False)

    failing(monkeypatch, "fsync", errno.ENOSPC)
    with pytest.raises(OSError, match="No space"):
        write_whole(target, "new", force=True)
    assert target.read_text() == "old"
    assert [one.name for one in tmp_path.iterdir()] == ["page.html"]
    with pytest.raises(ArgumentError, match="exists"):
        write_whole(target, "new", force=False)


def test_a_file_named_like_an_unfinished_one_is_left_alone(tmp_path):
    target, other = tmp_path / "page.html", tmp_path / "page.html.partial"
    other.write_text("mine")
    write_whole(target, "new", force=False)
    assert (target.read_text(), other.read_text()) == ("new", "mine")


def test_folders_stand_for_their_files(tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    pytest.importorskip("jinja2", reason="jinja2 is not installed")
    for name in ("b", "a"):
        made.write(tmp_path / f"{name}.jsonl", [made.experiment(), TIMED])
    result = run(tmp_path, tmp_path / "a.jsonl", "-o", tmp_path / "page.html")
    assert result.exit_code == 0, result.output
    assert "from 2 record files" in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize("missing", ["jinja2", "matplotlib"])
def test_without_the_extra_the_remedy_is_named(missing, tmp_path):
    source = made.write(tmp_path / "a.jsonl", [made.experiment(), TIMED])
    if missing == "matplotlib":
        pytest.importorskip("jinja2", reason="jinja2 is not installed")
    with not_installed(missing):
        result = run(source, "-o", tmp_path / "page.html")
    assert result.exit_code == 1
    assert "pip install 'gemmule[report]'" in result.stderr
    assert result.stderr.count("\n") == 1


def test_records_that_fit_together_badly_are_told(tmp_path, monkeypatch):
    pytest.importorskip("jinja2", reason="jinja2 is not installed")
    path = made.write(tmp_path / "a.jsonl", [made.experiment(), TIMED])

    def broken(machine):
        raise KeyError("tile_m")

    monkeypatch.setattr(report_page, "machine_view", broken)
    with pytest.raises(FileFormatError, match=r"a\.jsonl: a record is not whole \(KeyError: 'tile_m'\)"):
        report_page.report([path])

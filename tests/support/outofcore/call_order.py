"""In which order a product's tiles and their journal reach the disk: recorded in the process, or seen by strace.

A killed process does not show a missing fsync, since the system keeps what was written. The order of the calls does.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import threading
from pathlib import Path

#: What strace is asked for.
CALLS = "pwrite64,fdatasync,fsync,rename,renameat,renameat2,link,unlink"
_LINE = re.compile(r"(?P<pid>\d+) +(?P<rest>.*)")
_ON_FILE = re.compile(
    r"\d+<(?P<path>[^>]*)>(, (?P<text>\"(?:[^\"\\]|\\.)*\"(?:\.\.\.)?), (?P<count>\d+), (?P<offset>\d+))?"
)
_TWO_NAMES = re.compile(r"(?:AT_FDCWD<[^>]*>, )?\"(?P<first>[^\"]*)\", (?:AT_FDCWD<[^>]*>, )?\"(?P<second>[^\"]*)\"")


@dataclasses.dataclass
class Call:
    """A call: when it began and ended, which one, on which file, and for a write what, where and how many bytes."""

    start: int
    end: int
    name: str
    path: str
    text: str = ""
    offset: int = 0
    count: int = 0


class Recorder:
    """Notes the calls of this process while it is open."""

    def __init__(self, monkeypatch):
        self.calls: list[Call] = []
        self._clock, self._lock = 0, threading.Lock()
        for name in ("pwrite", "fdatasync", "fsync"):
            monkeypatch.setattr(os, name, self._on_file(name, getattr(os, name)))
        for name in ("replace", "rename", "link"):
            monkeypatch.setattr(os, name, self._on_names(getattr(os, name)))

    def _tick(self) -> int:
        with self._lock:
            self._clock += 1
            return self._clock

    def _on_file(self, name, call):
        def noted(descriptor, *arguments):
            path, start = os.readlink(f"/proc/self/fd/{descriptor}"), self._tick()
            result = call(descriptor, *arguments)
            noted_call = Call(start, self._tick(), name, path)
            if name == "pwrite":
                noted_call.text = bytes(arguments[0])[:result].decode("latin1") if path.endswith(".journal") else ""
                noted_call.offset, noted_call.count = arguments[1], result
            self.calls.append(noted_call)
            return result

        return noted

    def _on_names(self, call):
        def noted(first, second, **options):
            start = self._tick()
            call(first, second, **options)
            self.calls.append(Call(start, self._tick(), "rename", os.path.abspath(second), os.path.abspath(first)))

        return noted


def read_strace(text: str, folder: Path) -> list[Call]:
    """Return the calls in the output of ``strace -f -y -s 65536 -e trace=...``, in which threads take turns."""
    calls, begun = [], {}
    for number, line in enumerate(text.splitlines()):
        match = _LINE.fullmatch(line)
        if not match:
            continue
        pid, rest = match["pid"], match["rest"]
        if rest.endswith("<unfinished ...>"):
            begun[pid] = number, rest.removesuffix("<unfinished ...>")
            continue
        start = number
        if resumed := re.match(r"<\.\.\. \w+ resumed>(.*)", rest):
            start, before = begun.pop(pid)
            rest = before + resumed[1]
        name, bracket, arguments = rest.partition("(")
        if not bracket or " = -1 " in rest or " = ?" in rest:
            continue
        if name in ("pwrite64", "fdatasync", "fsync"):
            found = _ON_FILE.match(arguments)
            call = Call(start, number, name.removesuffix("64"), found["path"])
            if found["text"]:
                call.text = json.loads(found["text"].replace("\\0", "\\u0000")) if found["path"].endswith("nal") else ""
                call.offset, call.count = int(found["offset"]), int(found["count"])
            calls.append(call)
        elif name in ("rename", "renameat", "renameat2", "link"):
            found = _TWO_NAMES.match(arguments)
            second, first = (os.path.join(folder, found[each]) for each in ("second", "first"))
            calls.append(Call(start, number, "rename", second, first))
    return calls


def check_order(calls: list[Call], shape: tuple[int, int], itemsize: int, chunk: tuple[int, int] | None = None) -> int:
    """Check that each line of the journal follows its data's way to the disk, and the name the last line's.

    `chunk` is the shape of the files of a Zarr array; None means a .npy file. Return how many tiles were noted.
    """
    notes = [call for call in calls if call.path.endswith(".journal") and call.name == "pwrite"]
    assert notes, "no journal was written"
    tiles = 0
    for note in notes:
        for line in note.text.splitlines():
            record = json.loads(line.rpartition(" ")[0])
            if "tile" not in record:
                continue
            tiles += 1
            if chunk is None:
                _check_rows(calls, note, record["tile"], shape[1], itemsize)
            else:
                _check_chunks(calls, note, record["tile"], chunk)
        synced = [call for call in calls if call.name == "fsync" and call.path == note.path and call.start > note.end]
        assert synced, "a line of the journal is not stored"
        name = [
            call for call in calls if call.name == "rename" and call.text.endswith(".partial") and _hidden(call.text)
        ]
        assert len(name) == 1, "the result does not appear once"
        assert min(call.end for call in synced) < name[0].start, "the result appears before the journal is stored"
    assert any(
        call.name == "fsync" and call.start > name[0].end and call.path == os.path.dirname(name[0].path)
        for call in calls
    ), "the result's name is not stored"
    return tiles


def _hidden(path: str) -> bool:
    return os.path.basename(path).startswith(".gemmule-")


def _check_rows(calls, note, tile, cols, itemsize):
    row, col, height, width = tile
    data = [call for call in calls if call.name == "pwrite" and call.path.endswith(".partial")]
    header = min(call.offset + call.count for call in data if call.offset == 0)
    for line in range(row, row + height):
        first = header + (line * cols + col) * itemsize
        writes = [
            call for call in data
            if call.offset <= first and first + width * itemsize <= call.offset + call.count and call.end < note.start
        ]  # fmt: skip
        assert writes, f"tile {tile} is noted before it is written"
        assert any(
            call.name in ("fdatasync", "fsync") and call.path == data[0].path
            and max(write.end for write in writes) < call.start and call.end < note.start
            for call in calls
        ), f"tile {tile} is noted before it is stored"  # fmt: skip


def _check_chunks(calls, note, tile, chunk):
    row, col, height, width = tile
    for i in range(row // chunk[0], -(-(row + height) // chunk[0])):
        for j in range(col // chunk[1], -(-(col + width) // chunk[1])):
            place = f"/c/{i}/{j}"
            made = [call for call in calls if call.name == "rename" and call.path.endswith(place)]
            made = [call for call in made if call.end < note.start]
            assert made, f"tile {tile} is noted before its file {place} is written"
            for path in (made[0].path, os.path.dirname(made[0].path)):
                assert any(
                    call.name == "fsync" and call.path == path and made[-1].end < call.start and call.end < note.start
                    for call in calls
                ), f"tile {tile} is noted before {path} is stored"

"""Journals that are whole but wrong: whatever a field says, the result is right or the product is refused."""

from __future__ import annotations

import contextlib
import copy
import itertools
import json
import os
import zlib
from pathlib import Path

import numpy as np
import pytest

import gemmule as gm
from gemmule.core.errors import FileFormatError, ForbiddenFileError, GemmuleError, WrongResultError
from gemmule.outofcore.calls import device_engine
from gemmule.outofcore.device.planner.rates import Rates
from gemmule.outofcore.journal.coverage import coverage_flaw
from gemmule.outofcore.journal.journaled_sink import JournaledSink
from gemmule.outofcore.journal.temporary_files import hidden_path
from gemmule.outofcore.stores.formats.npy_sink import NpySink
from gemmule.outofcore.tiles.plan import StreamPlan

M, N, K = 48, 40, 24
WRONG = [
    -1, 0, 1, 3, 8, 64, 2**31, 2**63, 10**30, 1.5, 16.0, float("nan"), float("inf"), "x", "16", "", None, True, False,
    [],    [1], [16, 16, 16, 16], {}, {"a": 1},
]  # fmt: skip


class Stopped(Exception):
    """Stands for whatever stops a run."""


def stopped(sink):
    """Take the place of a commit."""
    sink.flush()
    raise Stopped


class Unfinished:
    """A product that was stopped, whose journal is written anew for every mutant."""

    def __init__(self, output="C.npy", b="B.npy", **options):
        self.output, self.factors = output, ("A.npy", b)
        self.options = {"memory": "100KB", "executor": "cpu", "transpose_b": b == "A.npy"} | options
        self.a, self.b = np.load("A.npy").astype("f8"), np.load(b).astype("f8")
        if b == "A.npy":
            self.b = self.b.T
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(JournaledSink, "commit", stopped)
            with pytest.raises(Stopped):
                self.run()
        self.journal, self.partial = (
            Path(hidden_path(os.path.abspath(output), end)) for end in (".journal", ".partial")
        )
        lines = [json.loads(line.rpartition(b" ")[0]) for line in self.journal.read_bytes().splitlines()]
        assert len(lines) > 3
        self.lines = lines[: 1 + len(lines) // 2]
        # What is not noted is poison.
        raw = np.fromfile(self.partial, np.uint8)
        offset = len(raw) - 4 * len(self.a) * self.b.shape[1]
        items = raw[offset:].view("f4").reshape(len(self.a), -1)
        poisoned = np.full_like(items, np.nan)
        for line in self.lines[1:]:
            row, col, rows, cols = line["tile"]
            poisoned[row : row + rows, col : col + cols] = items[row : row + rows, col : col + cols]
        items[...] = poisoned
        self.raw = raw.tobytes()

    def run(self, **more):
        return gm.outofcore.matmul(*self.factors, self.output, **(self.options | more))

    def outcome(self, lines):
        """Run with a journal of these lines; return what refused it, or None where the result is right."""
        self.partial.write_bytes(self.raw)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.output)
        texts = [json.dumps(line).encode() for line in lines]
        written = b"".join(b"%s %08x\n" % (text, zlib.crc32(text)) for text in texts)
        self.journal.write_bytes(written)
        refused = None
        try:
            self.run()
        except GemmuleError as error:
            refused = error
        if refused is not None:
            assert not os.path.exists(self.output)
            assert self.journal.read_bytes() == written
            assert self.partial.read_bytes() == self.raw
            assert "\n" not in str(refused)
            return refused
        np.testing.assert_array_equal(np.load(self.output), self.a @ self.b)
        assert not self.journal.exists()
        assert not self.partial.exists()
        return None


@pytest.fixture
def inputs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(device_engine, "measured_rates", lambda *_: Rates(1e9, 1e9, 1e8, 1e8))
    rng = np.random.default_rng(0)
    # Sums of small integers are exact, however a plan cuts them.
    np.save("A.npy", rng.integers(-8, 9, (M, K)).astype("f4"))
    np.save("B.npy", rng.integers(-8, 9, (K, N)).astype("f4"))


def places(value, path=()):
    """Yield the way to each value in a JSON object."""
    if path:
        yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inner:
        yield from places(one, (*path, key))


def changed(lines, number, path, change):
    """Return a copy of lines in which one value is another, missing or one too much."""
    mutant = copy.deepcopy(lines)
    holder = mutant[number]
    for key in path[:-1]:
        holder = holder[key]
    if change == "missing":
        del holder[path[-1]]
    elif change == "surplus" and isinstance(holder, dict):
        holder["surplus"] = 1
    elif change == "surplus":
        holder.append(1)
    else:
        holder[path[-1]] = change
    return mutant


def mutant(lines, rng):
    """Return lines with one change, mostly where it matters: in the plan, and in tiles."""
    number = int(rng.integers(min(len(lines), 3)))
    every = [path for path in places(lines[number]) if number or path[0] == "plan" or rng.random() < 0.2]
    change = [*WRONG, "missing", "surplus"][rng.integers(len(WRONG) + 2)]
    return changed(lines, number, every[rng.integers(len(every))], change)


DEVICE = {"device_memory": "14KiB", "pinned_memory": "32KiB", "memory": "1MB"}


@pytest.mark.parametrize(
    ("transposed", "options"),
    [(False, {}), (True, {}), (False, DEVICE | {"strategy": "c-stationary"}), (False, DEVICE | {"strategy": "panels"}),
     (True, DEVICE | {"strategy": "c-stationary"}),
     (True, DEVICE | {"strategy": "resident-c", "device_memory": "30KiB"})],
    ids=["host", "host, symmetric", "c-stationary", "panels", "c-stationary, symmetric", "resident-c"],
)  # fmt: skip
def test_no_mutant_of_a_journal_commits_a_wrong_result(inputs, rng, transposed, options):
    work = Unfinished(b="A.npy" if transposed else "B.npy", **options)
    assert work.lines[0]["plan"]["symmetric"] == transposed
    # As it was it is taken.
    assert work.outcome(work.lines) is None
    refused = [work.outcome(mutant(work.lines, rng)) for _ in range(150 if "strategy" not in options else 60)]
    assert any(refused)


@pytest.fixture
def work(inputs):
    return Unfinished()


@pytest.mark.parametrize("value", [value for value in WRONG if value != 64])
@pytest.mark.parametrize("field", ["tile_m", "tile_n", "tile_k", "memory_bytes"])
def test_every_number_of_a_plan_is_held_against_the_product(work, field, value):
    error = work.outcome(changed(work.lines, 0, ("plan", field), value))
    if value in (1, 3, 8) and type(value) is int and field != "memory_bytes":
        # Other tiles than those that are stored: all are computed again.
        assert error is None
    elif type(value) is type(work.lines[0]["plan"][field]) and not (field == "memory_bytes" and value > 64):
        assert isinstance(error, FileFormatError)
        assert f"{field} is {value}" in str(error)
    else:
        assert isinstance(error, GemmuleError)


def test_a_plan_for_the_triangle_of_another_product_is_refused(work):
    np.save("B.npy", np.load("A.npy").T)
    square = Unfinished("D.npy")
    forged = changed(square.lines, 0, ("plan", "symmetric"), True)
    forged[0]["plan"] |= {"tile_m": 16, "tile_n": 16}
    assert "b is not the transpose of a" in str(square.outcome(forged))


def test_tiles_that_are_none_of_the_plan_do_not_count(work):
    row, col, rows, cols = work.lines[-1]["tile"]
    plan = work.lines[0]["plan"]
    noted = {tuple(line["tile"][:2]) for line in work.lines[1:]}
    poison = [tile for tile in itertools.product(range(0, M, plan["tile_m"]), range(0, N, plan["tile_n"]))
              if tile not in noted]  # fmt: skip
    top, left = poison[0]
    stored = np.frombuffer(work.raw[-4 * M * N :], "f4").reshape(M, N)

    def line(row, col, rows, cols):
        return {
            "tile": [row, col, rows, cols],
            "crc32": zlib.crc32(stored[row : row + rows, col : col + cols].tobytes()),
        }

    # Their checksums are right, but they are parts of tiles, or of several.
    for more in (
        [line(top, left, 1, 1)], [line(0, 0, M, N)], [line(top, 0, 1, N), line(0, left, M, 1)],
        [work.lines[-1], work.lines[-1]], [line(row, col, rows - 1, cols), line(row, col, rows, cols - 1)],
    ):  # fmt: skip
        assert work.outcome([*work.lines, *more]) is None
    for outside in ([M, 0, 1, 1], [0, 0, M + 1, 1], [0, N - 1, 1, 2], [0, 0, 2**62, 2**62]):
        error = work.outcome([*work.lines, {"tile": outside, "crc32": 0}])
        assert f"outside of a result of {M} x {N}" in str(error)


@pytest.mark.parametrize("form", [1, 2, None, "3"])
def test_a_journal_of_another_version_is_refused_by_name_and_left_alone(work, form):
    for lines in (changed(work.lines, 0, ("format",), form), [{"format": form}, *work.lines[1:]]):
        error = work.outcome(lines)
        assert str(error).startswith(f"{work.journal}: is a journal of format {form!r}, of another version of gemmule")
        assert "resume=False" in str(error)


@pytest.mark.parametrize("change", ["missing", "surplus"])
def test_a_plan_of_another_version_is_refused_by_name_and_left_alone(work, change):
    error = work.outcome(changed(work.lines, 0, ("plan", "keep"), change))
    assert "was planned by another version of gemmule" in str(error)


@pytest.mark.parametrize(
    "content", [b"[1] ", b'"x" ', b"{} ", b"[" * 100_000, b'{"a":' * 100_000, b"9" * 5000, b"\xff\xfe"]
)
@pytest.mark.parametrize("place", [0, 1])
def test_lines_that_are_no_objects_are_refused_and_left_alone(work, content, place):
    work.partial.write_bytes(work.raw)
    lines = [json.dumps(line).encode() for line in work.lines]
    lines.insert(place, content)
    raw = b"".join(b"%s %08x\n" % (text, zlib.crc32(text)) for text in lines)
    work.journal.write_bytes(raw)
    for _ in range(3):
        with pytest.raises(GemmuleError, match="resume=False"):
            work.run()
    assert work.journal.read_bytes() == raw
    work.run(resume=False)
    np.testing.assert_array_equal(np.load("C.npy"), work.a @ work.b)


@pytest.mark.parametrize(
    ("found", "written", "flaw"),
    [
        ([], [(0, 0, 4, 3)], None),
        ([(0, 0, 2, 3), (0, 1, 2, 2)], [(2, 0, 2, 1), (2, 1, 2, 2)], None),
        ([], [], "row 0, column 0 was not computed"),
        ([(0, 0, 4, 2)], [(0, 2, 3, 1)], "row 3, column 2 was not computed"),
        ([(0, 0, 4, 2)], [(0, 1, 4, 2)], "row 0, column 1 was computed 2 times"),
        ([], [(0, 0, 4, 3), (3, 2, 1, 1)], "row 3, column 2 was computed 2 times"),
    ],
)
def test_each_element_is_computed_once(found, written, flaw):
    told = coverage_flaw((4, 3), found, written)
    assert (told or "").endswith(flaw or "")
    assert (told is None) == (flaw is None)


@pytest.mark.parametrize("fault", ["left out", "twice"])
def test_a_tile_that_is_not_computed_once_keeps_the_result_from_appearing(work, monkeypatch, fault):
    def twice(plan, finished=None):
        tiles = list(order(plan, finished))
        return iter([*tiles, tiles[-1]] if fault == "twice" else tiles[:-1])

    order = StreamPlan.order
    monkeypatch.setattr(StreamPlan, "order", twice)
    with pytest.raises(WrongResultError, match=r"D\.npy: what begins at row .* computed"):
        gm.outofcore.matmul("A.npy", "B.npy", "D.npy", memory="100KB", executor="cpu")
    assert not os.path.exists("D.npy")


def test_a_commit_looks_at_the_size_of_the_file(work, monkeypatch):
    flush = NpySink.flush

    def cut(sink):
        flush(sink)
        os.truncate(hidden_path(os.path.abspath("D.npy"), ".partial"), 100)

    monkeypatch.setattr(NpySink, "flush", cut)
    with pytest.raises(ForbiddenFileError, match="was made 100 bytes long instead of"):
        gm.outofcore.matmul("A.npy", "B.npy", "D.npy", memory="100KB", executor="cpu")
    assert not os.path.exists("D.npy")

"""What a profile adds up to: counts, times and shares of records that are made up."""

from __future__ import annotations

import collections

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemmule.executor.activity import Call, Copy, KernelRun, Profile, Range
from gemmule.lab.products import gemm_problem
from gemmule.lab.profile.summary import RangesOf, busy_ns, rows, window_ns
from gemmule.lab.profile.tables import records, sizes, times
from pages.profiles import profile_block
from support.report.profiles import profiles

PROBLEM = gemm_problem(100, 80, 60, "float32", "float32", "nn")


@given(profiles())
def test_nothing_is_lost_or_counted_twice(profile):
    found = rows(profile)
    spans = {"range": profile.ranges, "kernel": profile.kernels, "call": profile.calls, "copy": profile.copies}
    for kind, of_kind in spans.items():
        group = [row for row in found if row.kind == kind]
        assert sum(row.count for row in group) == len(of_kind)
        assert sum(row.total_ns for row in group) == sum(span.end_ns - span.start_ns for span in of_kind)
        if any(row.total_ns for row in group):
            assert sum(row.share for row in group) == pytest.approx(1)
        assert [row.total_ns for row in group] == sorted((row.total_ns for row in group), reverse=True)
        counts = collections.Counter(span.name for span in of_kind)
        for name, count in counts.items():
            assert sum(row.count for row in group if row.name == name) == count
        if kind != "kernel":
            assert len(group) == len(counts)
    assert sum(sum(row.sizes) for row in found) == sum(copy.size for copy in profile.copies)
    for row in found:
        shortest, longest = min(row.durations_ns), max(row.durations_ns)
        assert shortest <= row.median_ns <= longest
        assert shortest <= row.average_ns <= longest
        assert 0 <= row.share <= 1
        assert (row.kind == "kernel") == (row.shape is not None)
        assert row.kind == "copy" or not row.sizes


@given(profiles())
def test_records_and_tables_say_the_same(profile):
    found = rows(profile)
    lines = records(found, PROBLEM)
    assert len(lines) == len(found)
    for kind in ("range", "kernel", "call", "copy"):
        header, cells = times(lines, kind)
        of_kind = [line for line in lines if line["kind"] == kind]
        assert len(cells) == len(of_kind)
        for line, row in zip(of_kind, cells, strict=True):
            told = dict(zip(header, row, strict=True))
            assert told["device function" if kind == "kernel" else kind] == line["name"]
            assert int(told["count"]) == line["count"]
            for name in ("total", "average", "median", "min", "max"):
                assert float(told[name]) == pytest.approx(line[f"{name}_us"], abs=0.0051)
            assert float(told["share"].removesuffix(" %")) == pytest.approx(100 * line["share"], abs=0.051)
            assert ("bytes" in line) == (kind == "copy")
            assert (line["record"], line["m"], line["n"], line["k"], line["dtype"]) == (
                "profile",
                100,
                80,
                60,
                "float32",
            )


@given(profiles(), st.integers(1, 14))
def test_the_range_of_a_launch_is_the_innermost_one_round_its_call(profile, correlation):
    (call,) = [one for one in profile.calls if one.correlation == correlation] or [None]
    round_it = [
        one
        for one in profile.ranges
        if call is not None and one.thread == call.thread and one.start_ns <= call.start_ns <= one.end_ns
    ]
    innermost = min(round_it, key=lambda one: one.end_ns - one.start_ns, default=None)
    assert RangesOf(profile).of(correlation) == (innermost.name if innermost else "")


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)), max_size=8))
def test_busy_time_counts_what_overlaps_once(spans):
    ranges = [Range("", start, start + length, 1) for start, length in spans]
    covered = {moment for start, length in spans for moment in range(start, start + length)}
    assert busy_ns(ranges) == len(covered)
    expected = max((one.end_ns for one in ranges), default=0) - min((one.start_ns for one in ranges), default=0)
    assert window_ns(Profile(ranges=tuple(ranges))) == expected


def test_the_figures_of_one_profile():
    launch = Call("cuLaunchKernelEx", 5, 15, 1, 9)
    shape = ((2, 1, 1), (128, 1, 1))
    kernels = tuple(KernelRun("k_0", start, end, 0, 7, 9, *shape, 32, 0) for start, end in ((20, 1020), (2000, 5000)))
    copies = (Copy("memcpy HtoD", 0, 1000, 0, 7, 1, 4000), Copy("memcpy HtoD", 0, 3000, 0, 7, 2, 12000),
              Copy("memset", 0, 0, 0, 7, 3, 16))  # fmt: skip
    found = rows(Profile(kernels, copies, (launch,), (Range("g01", 0, 100, 1), Range("other thread", 0, 100, 2))))
    (kernel,) = [row for row in found if row.kind == "kernel"]
    assert (kernel.name, kernel.within, kernel.count, kernel.total_ns) == ("k_0", "g01", 2, 4000)
    assert (kernel.average_ns, kernel.median_ns, kernel.share) == (2000, 2000, 1)
    lines = records(found, PROBLEM)
    header, (first, second) = sizes(lines)
    assert first == ["memcpy HtoD", "2", "0.016", "0.008", "0.004", "0.012", "4.00"]
    assert second[header.index("GB/s")] == ""  # what took no time has no rate
    header, cells = times(lines, "kernel")
    assert cells == [["g01", "k_0", "2 1 1", "128 1 1", "100.0 %", "2", "4.00", "2.00", "2.00", "1.00", "3.00"]]
    (record,) = [line for line in lines if line["name"] == "memcpy HtoD"]
    assert record == {
        "record": "profile", "kind": "copy", "name": "memcpy HtoD", "m": 100, "n": 80, "k": 60, "dtype": "float32",
        "count": 2, "total_us": 4.0, "average_us": 2.0, "median_us": 2.0, "min_us": 1.0, "max_us": 3.0, "share": 1.0,
        "bytes": 16000, "min_bytes": 4000, "max_bytes": 12000,
    }  # fmt: skip


def test_kernels_of_one_name_are_told_apart_by_range_and_shape():
    calls = tuple(Call("cuLaunchKernelEx", start, start + 5, 1, start) for start in (10, 110, 120))
    kernels = tuple(
        KernelRun("k_0", 1000 + n, 1100 + n, 0, 7, call.correlation, (grid, 1, 1), (32, 1, 1), 32, 0)
        for n, (call, grid) in enumerate(zip(calls, (1, 1, 2), strict=True))
    )
    ranges = (Range("k[stages=2]", 0, 100, 1), Range("k[stages=3]", 101, 200, 1))
    found = rows(Profile(kernels, (), calls, ranges))
    assert sorted((row.within, row.shape[0][0], row.count) for row in found if row.kind == "kernel") == [
        ("k[stages=2]", 1, 1), ("k[stages=3]", 1, 1), ("k[stages=3]", 2, 1),
    ]  # fmt: skip
    # Outside of all ranges a kernel has the name of its function.
    bare = records(rows(Profile(kernels[:1])), PROBLEM)
    assert times(bare, "kernel")[1][0][:2] == ["k_0", "k_0"]


def test_the_tables_of_a_record_file():
    block = {"record": "experiment", "date": "x"}
    copies = (Copy("memcpy HtoD", 0, 1000, 0, 7, 1, 4000),)
    small = records(rows(Profile(copies=copies, ranges=(Range("copy in", 0, 2000, 1),))), PROBLEM)
    large = records(rows(Profile(copies=copies)), gemm_problem(200, 80, 60, "float64", "float64", "nn"))
    text = profile_block([block, *large, *small])
    titles = [line for line in text.splitlines() if line and not line.startswith("|")]
    assert titles == [
        "100 x 80 x 60, float32: time by range, on the host, us", "100 x 80 x 60, float32: time by copy, us",
        "100 x 80 x 60, float32: sizes of copies, MB", "200 x 80 x 60, float64: time by copy, us",
        "200 x 80 x 60, float64: sizes of copies, MB",
    ]  # fmt: skip
    assert "| memcpy HtoD | 100.0 % | 1 | 1.00 | 1.00 | 1.00 | 1.00 | 1.00 |" in text
    assert text.count("| memcpy HtoD | 1 | 0.004 | 0.004 | 0.004 | 0.004 | 4.00 |") == 2

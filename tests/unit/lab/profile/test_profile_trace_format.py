"""The trace file by the rules of the trace event format: what breaks one, Perfetto shows in part or not at all."""

from __future__ import annotations

import collections
import itertools
import json
import math
from pathlib import Path

from hypothesis import given

from gemmule.executor.activity import Call, Copy, KernelRun, Profile, Range
from gemmule.lab.profile.trace import trace
from support.report.profiles import profiles

#: The first two kernels of `gemmule profile 1000 900 800 --kernels ladder --repeat 3` on an H200, as it wrote them.
MEASURED = Path(__file__).with_name("profile_trace.json")
META = {"process_name": "name", "process_sort_index": "sort_index", "thread_name": "name",
        "thread_sort_index": "sort_index"}  # fmt: skip


def ns(us):
    """Return a time in whole nanoseconds, as Perfetto reads it."""
    return round(us * 1e3)


def faults(found):
    """Yield what is wrong with a trace, in words."""
    if not isinstance(found, dict) or not isinstance(found.get("traceEvents"), list):
        yield "no object with a list traceEvents"
        return
    events = found["traceEvents"]
    wrong = [fault for event in events for fault in faults_of(event)]
    yield from wrong
    if wrong:
        return
    tracks = collections.defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            tracks[event["pid"], event["tid"]].append(event)
    for slices in tracks.values():
        yield from overlaps(slices)
    named = {(event["pid"], event["tid"]) for event in events if event["name"] == "thread_name"}
    yield from (f"track {track} has no name" for track in tracks if track not in named)
    mains = {pid for pid, _ in tracks}
    yield from (f"track {track} passes for a main thread" for track in tracks if track[1] in mains)
    yield from loose_arrows(events, tracks)


def faults_of(event):
    if event.get("ph") not in ("X", "M", "s", "f"):
        yield f"phase of {event}"
    for field in ("pid", "tid"):
        if type(event.get(field)) is not int:
            yield f"{field} of {event} is no whole number"
    if not isinstance(event.get("name"), str):
        yield f"{event} has no name"
    times = {"X": ("ts", "dur"), "s": ("ts",), "f": ("ts",), "M": ()}[event["ph"]]
    for field in times:
        value = event.get(field)
        if type(value) not in (int, float) or not math.isfinite(value) or value < 0:
            yield f"{field} of {event} is no time"
    if event["ph"] == "M" and META.get(event["name"]) not in event.get("args", {}):
        yield f"{event} is no metadata"


def overlaps(slices):
    """Yield pairs of a track of which one begins in the other and ends behind it."""
    spans = [(ns(one["ts"]), ns(one["ts"]) + ns(one["dur"]), one["name"]) for one in slices]
    for (start, end, name), (later, end_later, other) in itertools.permutations(spans, 2):
        if start < later < end < end_later:
            yield f"{other} begins in {name} and ends behind it"


def loose_arrows(events, tracks):
    """Yield arrows without two ends, that go back in time, or whose end is in no slice."""
    ends = collections.defaultdict(dict)
    for event in events:
        if event["ph"] in "sf":
            ends[event["cat"], event["id"]].setdefault(event["ph"], []).append(event)
            inside = [one for one in tracks[event["pid"], event["tid"]]
                      if ns(one["ts"]) <= ns(event["ts"]) <= ns(one["ts"]) + ns(one["dur"])]  # fmt: skip
            if not inside:
                yield f"{event} is in no slice"
    for key, found in ends.items():
        if [len(found.get(phase, ())) for phase in "sf"] != [1, 1]:
            yield f"arrow {key} has ends {found}"


@given(profiles())
def test_every_trace_keeps_the_rules(profile):
    found = json.loads(json.dumps(trace(profile, {"gpu": "one"}), allow_nan=False))
    assert not list(faults(found))
    order = [event["ph"] for event in found["traceEvents"]]
    assert order[: order.count("M")] == ["M"] * order.count("M")


def kernel(name, start, end):
    return KernelRun(name, start, end, 0, 7, 1, (1, 1, 1), (32, 1, 1), 16, 0)


def test_kernels_that_overlap_have_tracks_of_their_own():
    runs = (kernel("first", 0, 10), kernel("second", 5, 15), kernel("inside", 6, 9), kernel("after", 15, 20))
    events = trace(Profile(runs), {})["traceEvents"]
    names = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert {event["name"]: names[event["tid"]] for event in events if event["ph"] == "X"} == {
        "first": "stream 7, kernels", "second": "stream 7, kernels (2)", "inside": "stream 7, kernels",
        "after": "stream 7, kernels",
    }  # fmt: skip


def test_a_fault_is_seen():
    whole = {"ph": "X", "pid": 1, "tid": 5, "name": "a", "ts": 0.0, "dur": 2.0}
    about = {"ph": "M", "pid": 1, "tid": 5, "name": "thread_name", "args": {"name": "t"}}
    arrow = {"ph": "s", "pid": 1, "tid": 5, "name": "q", "cat": "q", "id": 1, "ts": 9.0}
    assert not list(faults({"traceEvents": [about, whole]}))
    for broken in (
        [whole],
        [about, whole | {"dur": -1.0}],
        [about, whole | {"ts": "0"}],
        [about, whole | {"pid": "1"}],
        [about, whole, whole | {"ts": 1.0}],
        [about, whole, arrow],
        [about | {"tid": 1}, whole | {"tid": 1}],
        [about, about | {"args": {}}, whole],
    ):
        assert list(faults({"traceEvents": broken})), broken


def measured_profile():
    """The profile that the kept trace was made from, and the trace."""
    found = json.loads(MEASURED.read_text())
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in found["traceEvents"] if e["name"] == "thread_name"}
    of = collections.defaultdict(list)
    for event in found["traceEvents"]:
        if event["ph"] == "X":
            owner = int(names[event["pid"], event["tid"]].split()[1].rstrip(","))
            start, details = ns(event["ts"]), event["args"]
            span = (event["name"], start, start + ns(event["dur"]))
            if event["cat"] == "kernel":
                shape = (tuple(details["grid"]), tuple(details["block"]))
                more = (details["correlation"], *shape, details["registers"], details["shared_bytes"])
                of["kernel"].append(KernelRun(*span, 0, owner, *more))
            elif event["cat"] == "copy":
                of["copy"].append(Copy(*span, 0, owner, details["correlation"], details["bytes"]))
            elif event["cat"] == "call":
                of["call"].append(Call(*span, owner, details["correlation"]))
            else:
                of["range"].append(Range(*span, owner))
    return Profile(*(tuple(of[kind]) for kind in ("kernel", "copy", "call", "range"))), found


def test_what_a_gpu_gave_keeps_the_rules():
    """The slices of a trace from an H200 as they were, each kernel and copy with an arrow of two ends."""
    profile, kept = measured_profile()
    assert profile.kernels
    assert profile.copies
    found = json.loads(json.dumps(trace(profile, kept["otherData"])))
    assert not list(faults(found))

    def slices(events):
        return sorted(json.dumps({**event, "tid": 0}) for event in events if event["ph"] == "X")

    assert slices(found["traceEvents"]) == slices(kept["traceEvents"])
    arrows = [event["ph"] for event in found["traceEvents"] if event.get("cat") == "queues"]
    assert len(arrows) == 2 * (len(profile.kernels) + len(profile.copies))

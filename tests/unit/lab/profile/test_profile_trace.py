"""The trace file: what Perfetto asks of the format, tracks that have names, arrows that have two ends."""

from __future__ import annotations

import collections
import errno
import json

import pytest
from hypothesis import given

from gemmule.core.errors import ArgumentError
from gemmule.executor.activity import Call, Copy, KernelRun, Profile, Range
from gemmule.lab.profile.trace import HOST, trace, write_trace
from support.report.profiles import profiles
from support.system_calls import failing


def events_of(profile, phase):
    # As a reader of the file gets them.
    return [event for event in json.loads(json.dumps(trace(profile, {})))["traceEvents"] if event["ph"] == phase]


@given(profiles())
def test_every_slice_has_what_perfetto_needs(profile):
    slices = events_of(profile, "X")
    spans = [*profile.ranges, *profile.calls, *profile.kernels, *profile.copies]
    assert len(slices) == len(spans)
    for event in slices:
        assert isinstance(event["name"], str)
        assert isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
        assert event["ts"] >= 0
        assert event["dur"] >= 0
    zero = min((span.start_ns for span in spans), default=0)
    # No nanosecond is lost on the way to microseconds.
    told = collections.Counter((e["name"], round(e["ts"] * 1e3), round(e["dur"] * 1e3)) for e in slices)
    assert told == collections.Counter((s.name, s.start_ns - zero, s.end_ns - s.start_ns) for s in spans)


@given(profiles())
def test_every_track_has_a_name_of_its_own(profile):
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events_of(profile, "M") if e["name"] == "thread_name"}
    processes = {e["pid"] for e in events_of(profile, "M") if e["name"] == "process_name"}
    assert len({(pid, name) for (pid, _), name in names.items()}) == len(names)
    for event in events_of(profile, "X"):
        assert (event["pid"], event["tid"]) in names
        assert event["pid"] in processes
        assert (event["pid"] == HOST) == (event["cat"] in ("range", "call"))


@given(profiles())
def test_arrows_lead_from_a_call_to_what_it_queued(profile):
    slices = events_of(profile, "X")
    starts = {event["id"]: event for event in events_of(profile, "s")}
    ends = {event["id"]: event for event in events_of(profile, "f")}
    calls = {call.correlation: call for call in profile.calls}
    queued = [one for one in (*profile.kernels, *profile.copies) if one.correlation in calls]
    assert len(starts) == len(events_of(profile, "s")) == len(queued)
    assert set(starts) == set(ends)
    assert len(ends) == len(events_of(profile, "f"))

    def slices_at(event, kinds):
        return [
            e for e in slices
            if (e["pid"], e["tid"]) == (event["pid"], event["tid"]) and e["ts"] == event["ts"] and e["cat"] in kinds
        ]  # fmt: skip

    for number, start in starts.items():
        assert ends[number]["bp"] == "e"
        assert (start["name"], start["cat"]) == (ends[number]["name"], ends[number]["cat"])
        origins = {e["args"]["correlation"] for e in slices_at(start, ["call"])}
        targets = {e["args"]["correlation"] for e in slices_at(ends[number], ["kernel", "copy"])}
        assert origins & targets


def test_tracks_and_details_of_one_profile():
    profile = Profile(
        (KernelRun("g01_0", 5000, 9000, 1, 13, 4, (8, 4, 1), (256, 1, 1), 96, 4096),),
        (Copy("memcpy HtoD", 1000, 3000, 1, 13, 3, 8000), Copy("memset", 3000, 3000, 0, 7, 99, 8)),
        (Call("cuMemcpyHtoDAsync_v2", 500, 900, 42, 3), Call("cuLaunchKernelEx", 4000, 4500, 42, 4)),
        (Range("copy in", 400, 3500, 42), Range("g01", 3600, 9500, 42)),
    )
    found = trace(profile, {"gpu": "H100"})
    assert found["otherData"] == {"gpu": "H100"}
    about = [event for event in found["traceEvents"] if event["ph"] == "M"]
    assert [e["args"]["name"] for e in about if e["name"] == "process_name"] == ["host", "GPU 0", "GPU 1"]
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in about if e["name"] == "thread_name"}
    tracks = {e["name"]: names[e["pid"], e["tid"]] for e in found["traceEvents"] if e["ph"] == "X"}
    assert tracks == {
        "copy in": "thread 42, ranges", "g01": "thread 42, ranges",
        "cuMemcpyHtoDAsync_v2": "thread 42, CUDA calls", "cuLaunchKernelEx": "thread 42, CUDA calls",
        "g01_0": "stream 13, kernels", "memcpy HtoD": "stream 13, copies", "memset": "stream 7, copies",
    }  # fmt: skip
    (kernel,) = [e for e in found["traceEvents"] if e.get("cat") == "kernel"]
    assert (kernel["ts"], kernel["dur"]) == (4.6, 4.0)
    assert kernel["args"]["grid"] == (8, 4, 1)
    copy, fill = [e["args"] for e in found["traceEvents"] if e.get("cat") == "copy"]
    assert copy == {"bytes": 8000, "GB/s": 4.0, "correlation": 3}
    assert "GB/s" not in fill
    assert len([e for e in found["traceEvents"] if e["ph"] == "s"]) == 2  # nobody knows who queued the fill


def test_the_file_is_whole_or_is_not_there(tmp_path, monkeypatch):
    path = tmp_path / "trace.json"
    write_trace(path, Profile(), {"of": 1}, force=False)
    assert json.loads(path.read_text())["otherData"] == {"of": 1}
    with pytest.raises(TypeError):
        write_trace(path, Profile(), {"no JSON": object()}, force=True)

    failing(monkeypatch, "fsync", errno.ENOSPC)
    with pytest.raises(OSError, match="No space"):
        write_trace(path, Profile(), {"of": 2}, force=True)
    assert json.loads(path.read_text())["otherData"] == {"of": 1}  # as it was
    assert list(tmp_path.iterdir()) == [path]


def test_files_of_others_are_left_alone(tmp_path):
    path, other = tmp_path / "trace.json", tmp_path / "trace.json.partial"
    for one in (path, other):
        one.write_text("mine")
    with pytest.raises(ArgumentError, match=r"trace\.json: exists; give force=True"):
        write_trace(path, Profile(), {}, force=False)
    assert path.read_text() == "mine"
    write_trace(path, Profile(), {}, force=True)
    assert json.loads(path.read_text())["traceEvents"] == []
    assert other.read_text() == "mine"
    path.unlink()
    path.mkdir()
    with pytest.raises(ArgumentError, match="is a folder"):
        write_trace(path, Profile(), {}, force=True)

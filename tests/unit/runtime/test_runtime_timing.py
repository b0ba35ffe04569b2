"""How samples are queued, captured and read, without a GPU: the driver's calls are recorded."""

from __future__ import annotations

import ctypes
import itertools
import types

import numpy as np
import pytest

from gemmule.core.errors import DriverError, UnsupportedError
from gemmule.lab.products import gemm_problem, random_inputs
from gemmule.runtime.graph_nodes import was_captured_last
from gemmule.runtime.rotation import ALIGNMENT, OperandSets, Rotation
from gemmule.runtime.sensors import Sensors
from gemmule.runtime.stopwatch import Graph, Stopwatch, closing, lead_in
from support.fakes.cuda import FakeCuda, Result, installed


class Driver(FakeCuda):
    """Records calls; answers what the code under test reads."""

    CUevent_flags = types.SimpleNamespace(CU_EVENT_DEFAULT=0)
    CUstreamCaptureMode = types.SimpleNamespace(CU_STREAM_CAPTURE_MODE_RELAXED="relaxed")
    CUgraphNodeType = types.SimpleNamespace(CU_GRAPH_NODE_TYPE_KERNEL="kernel")

    def __init__(self):
        super().__init__()
        self.calls: list[tuple] = []
        self.answers = {"cuStreamEndCapture": "graph", "cuGraphInstantiate": "executable", "cuEventElapsedTime": 12.0}

    def call(self, name, *arguments):
        self.calls.append((name, *arguments))
        if name == "cuEventCreate":
            return f"event{sum(one[0] == name for one in self.calls)}"
        answer = self.answers.get(name)
        return answer(*arguments) if callable(answer) else answer

    def __getattr__(self, name):
        def asked(*arguments):
            answer = self.call(name, *arguments)
            answers = answer if isinstance(answer, tuple) else () if answer is None else (answer,)
            return Result.CUDA_SUCCESS, *answers

        if not name.startswith("cu"):
            raise AttributeError(name)
        return asked

    def names(self):
        return [one[0] for one in self.calls]


@pytest.fixture
def driver():
    with installed(Driver()) as driver:
        yield driver


def watch(driver, calls, graph):
    lead = lead_in(1000, 0, 7)
    driver.calls.clear()
    return Stopwatch(lambda: driver.call("work"), calls, lead, graph=graph, ordinal=0, stream=7)


def test_a_sample_of_events_is_led_in_and_timed_around_its_calls(driver):
    timed = watch(driver, 3, graph=False)
    seconds = timed.queue()
    assert driver.names()[2:] == ["cuGraphLaunch", "cuEventRecord", "work", "work", "work", "cuEventRecord"]
    assert [one for one in driver.calls if one[0] == "cuEventRecord"] == [
        ("cuEventRecord", "event1", 7), ("cuEventRecord", "event2", 7)
    ]  # fmt: skip
    driver.calls.clear()
    assert seconds() == pytest.approx(12e-3 / 3)
    assert driver.calls == [
        ("cuEventSynchronize", "event2"), ("cuEventElapsedTime", "event1", "event2"),
        ("cuEventDestroy", "event1"), ("cuEventDestroy", "event2"),
    ]  # fmt: skip


def test_a_sample_of_a_graph_captures_its_calls_once(driver):
    timed = watch(driver, 4, graph=True)
    assert driver.names() == [
        "cuStreamBeginCapture", *["work"] * 4, "cuStreamEndCapture", "cuGraphInstantiate", "cuGraphUpload",
    ]  # fmt: skip
    driver.calls.clear()
    for _ in range(2):
        assert timed.queue()() == pytest.approx(12e-3 / 4)
    assert "work" not in driver.names()
    assert driver.names().count("cuGraphLaunch") == 4  # with the two lead-ins
    timed.close()
    assert driver.names()[-2:] == ["cuGraphExecDestroy", "cuGraphDestroy"]


def test_the_lead_in_is_one_launch_of_many_tiny_nodes(driver):
    lead_in(1000, 0, 7)
    writes = [one for one in driver.calls if one[0] == "cuMemsetD8Async"]
    assert len(writes) >= 32
    assert set(writes) == {("cuMemsetD8Async", 1000, 0, 4, 7)}


def test_a_capture_that_fails_ends_and_says_why(driver):
    def fails():
        raise DriverError("cuLaunchKernelEx", "CUDA_ERROR_INVALID_VALUE", "no")

    def ends(stream):
        raise DriverError("cuStreamEndCapture", "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", "no")

    driver.answers["cuStreamEndCapture"] = ends
    with pytest.raises(DriverError, match="cuLaunchKernelEx"):
        Graph(fails, 0, 7)
    assert driver.names()[-1] == "cuStreamEndCapture"


def test_the_kernels_of_a_graph_are_named_whichever_way_they_were_launched(driver):
    nodes = {
        "n1": ("kernel", types.SimpleNamespace(func=5, kern=0)),
        "n2": ("memset", None),
        "n3": ("kernel", types.SimpleNamespace(func=0, kern=6)),
    }
    driver.answers |= {
        "cuGraphGetNodes": lambda graph, count: (list(nodes) if count else [], 3),
        "cuGraphNodeGetType": lambda node: nodes[node][0],
        "cuGraphKernelNodeGetParams": lambda node: nodes[node][1],
        "cuFuncGetName": lambda function: b"sm80_sgemm",
        "cuKernelGetName": lambda kernel: b"splitKreduce",
    }
    assert Graph(lambda: None, 0, 7).kernels() == ["sm80_sgemm", "splitKreduce"]


@pytest.mark.parametrize(
    ("nodes", "kind", "name", "last"),
    [
        (["n"], "kernel", b"gemm", True),
        (["n"], "kernel", b"silu", False),
        (["n"], "memset", b"gemm", False),
        (["n", "m"], "kernel", b"gemm", False),
        ([], "kernel", b"gemm", False),
    ],
)
def test_what_the_next_launch_of_a_capture_follows(driver, nodes, kind, name, last):
    names = {1: b"gemm", 2: name}
    driver.answers |= {
        "cuStreamGetCaptureInfo": lambda stream: (1, 9, "graph", nodes, None, len(nodes)),
        "cuGraphNodeGetType": lambda node: kind,
        "cuGraphKernelNodeGetParams": lambda node: types.SimpleNamespace(func=2, kern=0),
        "cuFuncGetName": names.__getitem__,
    }
    queue = types.SimpleNamespace(direct=types.SimpleNamespace(function=1))
    assert was_captured_last(queue, 7) is last
    assert ("cuStreamGetCaptureInfo", 7) in driver.calls
    # Of several launches it is not known.
    assert was_captured_last(print, 7) is False


def test_a_rotation_goes_round():
    seen = []
    work = Rotation([lambda i=i: seen.append(i) for i in range(3)])
    for _ in range(7):
        work()
    assert seen == [0, 1, 2, 0, 1, 2, 0]


def test_operand_sets_are_aligned_do_not_overlap_and_hold_the_same_values(driver):
    driver.answers["cuMemAllocAsync"] = 1 << 20
    problem = gemm_problem(33, 20, 7, "float32", "float32", "tn")
    inputs = random_inputs(problem, 0)
    operands = OperandSets(problem, inputs, 3, 0, 7)
    ((_, size, _),) = (one for one in driver.calls if one[0] == "cuMemAllocAsync")
    sizes = {"a": 33 * 7 * 4, "b": 7 * 20 * 4, "d": 33 * 20 * 4}
    ranges = sorted((start, start + sizes[name]) for i in range(3) for name, start in operands.addresses(i).items())
    assert all(start % ALIGNMENT == 0 for start, _ in ranges)
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(ranges))
    assert ranges[-1][1] <= (1 << 20) + size
    assert operands.bytes == size
    uploads = [one for one in driver.calls if one[0] == "cuMemcpyHtoDAsync"]
    assert uploads == [
        ("cuMemcpyHtoDAsync", operands.addresses(0)[name], array.ctypes.data, array.nbytes, 7)
        for name, array in inputs.items()
    ]
    copies = {one[1:] for one in driver.calls if one[0] == "cuMemcpyDtoDAsync"}
    assert copies == {
        (operands.addresses(i)[name], operands.addresses(0)[name], sizes[name], 7) for i in (1, 2) for name in "ab"
    }
    driver.calls.clear()
    operands.poison(255)
    assert {one[1:] for one in driver.calls} == {(operands.addresses(i)["d"], 255, sizes["d"], 7) for i in range(3)}

    def download(target, source, size, stream):
        assert (source, size) == (operands.addresses(2)["d"], sizes["d"])
        ctypes.memset(target, 0, size)

    driver.answers["cuMemcpyDtoHAsync"] = download
    np.testing.assert_array_equal(operands.output(2), np.zeros((33, 20), np.float32))
    operands.close()
    assert driver.calls[-1] == ("cuMemFreeAsync", 1 << 20, 7)


class Management:
    """The functions of the management library that are used."""

    def __init__(self, clock=1755, power=612_345, fails=None):
        self.fails = fails

        def function(name, value):
            def answer(*arguments):
                if self.fails == name:
                    return 3
                if value is not None:
                    arguments[-1]._obj.value = value
                return 0

            return answer

        self.nvmlInit_v2 = function("nvmlInit_v2", None)
        self.nvmlDeviceGetHandleByPciBusId_v2 = function("nvmlDeviceGetHandleByPciBusId_v2", 99)
        self.nvmlDeviceGetClockInfo = function("nvmlDeviceGetClockInfo", clock)
        self.nvmlDeviceGetPowerUsage = function("nvmlDeviceGetPowerUsage", power)
        self.nvmlErrorString = lambda status: b"Not Supported"
        self.nvmlErrorString.__dict__["restype"] = None


def test_clocks_and_watts_are_sampled_while_a_block_runs():
    with Sensors("0000:18:00.0", lambda name: Management()).readings() as readings:
        pass
    assert readings.summary() == {
        "clock_mhz": 1755, "clock_mhz_min": 1755, "power_w": 612.3, "power_w_max": 612.3,
    }  # fmt: skip


@pytest.mark.parametrize("fails", ["nvmlInit_v2", "nvmlDeviceGetPowerUsage"])
def test_sensors_that_do_not_answer_say_so_at_once(fails):
    with pytest.raises(UnsupportedError, match=f"cannot be sampled: {fails} says Not Supported"):
        Sensors("0000:18:00.0", lambda name: Management(fails=fails))


@pytest.mark.parametrize(
    ("fails", "left"), [("nvmlDeviceGetPowerUsage", "clock_mhz"), ("nvmlDeviceGetClockInfo", "power_w")]
)
def test_sensors_that_stop_answering_leave_fields_out(fails, left):
    library = Management()
    found = Sensors("0000:18:00.0", lambda name: library)
    library.fails = fails
    with found.readings() as readings:
        pass
    assert {name.removesuffix("_min").removesuffix("_max") for name in readings.summary()} == {left}


def test_what_is_closed_after_an_error_does_not_hide_it():
    def fails():
        raise DriverError("cuStreamSynchronize", "CUDA_ERROR_ILLEGAL_ADDRESS", "no")

    taken = []
    with pytest.raises(KeyError), closing(fails, lambda: taken.append(1)):
        raise KeyError
    assert taken == [1]
    with pytest.raises(DriverError), closing(fails):
        pass


def test_a_machine_without_the_library_says_so():
    def missing(name):
        raise OSError(f"{name}: cannot open shared object file")

    with pytest.raises(UnsupportedError, match="clocks and watts cannot be sampled: libnvidia-ml"):
        Sensors("0000:18:00.0", missing)

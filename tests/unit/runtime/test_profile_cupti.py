"""What is asked of CUPTI and what is made of its records and refusals, with a stand-in for its package."""

from __future__ import annotations

import dataclasses
import sys
import threading
import types

import pytest

from gemmule.core.errors import DriverError, UnsupportedError
from gemmule.executor.activity import Copy, KernelRun
from gemmule.runtime import profiling
from gemmule.runtime.profiling import check_cupti
from support.fakes import cupti as fake_cupti
from support.fakes.cupti import CuptiError, FakeCupti, installed_nvtx
from support.fakes.modules import not_installed

RESULT = FakeCupti.Result


@pytest.fixture
def cupti():
    with fake_cupti.installed(FakeCupti()) as cupti:
        yield cupti


@pytest.fixture(autouse=True)
def no_nvtx():
    with installed_nvtx(None):
        yield


def a_program(cupti, session):
    with session.range("copy in"):
        cupti.call("cuMemcpyHtoDAsync_v2", 400)
        cupti.copy("HTOD", 40000, 5000)
    with session.range("g01"):
        for _ in range(3):
            cupti.call("cuLaunchKernelEx", 200)
            cupti.kernel("g01_0", 70000, (7, 7, 1), (256, 1, 1))
        cupti.call("cudaLaunchKernel_ptsz_v7000", 100, runtime=True)
        cupti.call("cuMemsetD8Async", 100)
        cupti.memset(512, 900)


def test_the_records_of_a_program(cupti):
    cupti.call("cuStreamSynchronize")  # before: nobody asked for it
    with profiling.profiling() as session:
        a_program(cupti, session)
    cupti.call("cuStreamSynchronize")  # after
    profile = session.profile()
    assert len(profile.kernels) == 3
    first = profile.kernels[0]
    assert dataclasses.replace(first, start_ns=0, end_ns=0, correlation=0) == KernelRun(
        "g01_0", 0, 0, 0, 13, 0, (7, 7, 1), (256, 1, 1), 96, 3072
    )
    assert first.duration_ns == 70000
    assert [one.correlation for one in profile.kernels] == sorted({one.correlation for one in profile.kernels})
    (copy, fill) = profile.copies
    assert (copy.name, copy.size, copy.duration_ns) == ("memcpy HtoD", 40000, 5000)
    assert (fill.name, fill.size) == ("memset", 512)
    assert isinstance(fill, Copy)
    names = [call.name for call in profile.calls]
    assert names == ["cuMemcpyHtoDAsync_v2", *["cuLaunchKernelEx"] * 3, "cudaLaunchKernel_ptsz", "cuMemsetD8Async"]
    assert [one.name for one in profile.ranges] == ["copy in", "g01"]
    assert {one.thread for one in (*profile.ranges, *profile.calls)} == {threading.get_native_id()}
    for call in profile.calls:
        assert any(one.start_ns < call.start_ns and call.end_ns < one.end_ns for one in profile.ranges)
    assert profile.lost == 0


def test_everything_is_undone_in_the_right_order(cupti):
    with profiling.profiling() as session:
        a_program(cupti, session)
        assert len(cupti.enabled) == 5
    assert cupti.enabled == set()
    names = [name for name, *_ in cupti.log if name != "get_timestamp"]
    assert names[0] == "subscribe"
    assert names.index("set_thread_id_type") < names.index("activity_register_callbacks")
    assert names.index("activity_register_callbacks") < names.index("activity_enable")
    ends = names[names.index("activity_flush_all") :]
    assert ends == ["activity_flush_all", *["activity_disable"] * 5, "activity_get_num_dropped_records", "unsubscribe"]
    assert ("set_thread_id_type", 1) in cupti.log
    assert cupti.log[-1] == ("unsubscribe", 77)


def test_two_profiles_in_one_process(cupti):
    with profiling.profiling() as first:
        a_program(cupti, first)
    with profiling.profiling() as second:
        a_program(cupti, second)
    assert len(first.profile().kernels) == len(second.profile().kernels) == 3
    assert first.profile().kernels[-1].end_ns < second.profile().kernels[0].start_ns


def stuck(cupti):
    """A program that breaks the GPU in the middle."""
    with profiling.profiling() as session:
        a_program(cupti, session)
        raise DriverError("cuLaunchKernelEx", "CUDA_ERROR_ILLEGAL_ADDRESS", "no")


def test_what_a_failed_block_left_in_the_buffers_is_not_in_the_next(cupti):
    cupti.refusals["activity_flush_all"] = RESULT.ERROR_UNKNOWN
    # The error of the block is the one that counts, not the one on the way out.
    with pytest.raises(DriverError, match="ILLEGAL_ADDRESS"):
        stuck(cupti)
    assert cupti.enabled == set()
    assert len(cupti.pending) > 0
    cupti.refusals.clear()
    with profiling.profiling() as session:
        a_program(cupti, session)
    assert len(session.profile().kernels) == 3


def test_records_without_times_and_dropped_ones_are_counted(cupti):
    cupti.lost = 4
    with profiling.profiling() as session:
        a_program(cupti, session)
        for record in cupti.pending[:2]:
            record.end = 0
        cupti._record(cupti.ActivityKind.OVERHEAD, 5)
    profile = session.profile()
    assert profile.lost == 4 + 2
    assert len(profile.calls) + len(profile.copies) == 6 + 2 - 2


def test_records_of_an_unknown_shape_are_an_error_and_not_an_empty_profile(cupti):
    with profiling.profiling() as session:
        a_program(cupti, session)
        (record, *_) = [one for one in cupti.pending if hasattr(one, "grid_x")]
        del record.grid_x
    with pytest.raises(UnsupportedError, match=r"could not be read .*grid_x.*13\.0 to 13\.4.*13\.0\.1 is installed"):
        session.profile()


@pytest.mark.parametrize(
    ("function", "status", "remedy"),
    [
        ("activity_enable", RESULT.ERROR_INSUFFICIENT_PRIVILEGES, "NVreg_RestrictProfilingToAdminUsers=0"),
        ("subscribe", RESULT.ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED, "another profiler is attached.*--ranges-only"),
        ("subscribe", RESULT.ERROR_MAX_LIMIT_REACHED, "another profiler is attached"),
        ("subscribe", RESULT.ERROR_NOT_INITIALIZED, r"driver speaks CUDA 13\.0\); pip install.*cuda-cupti==13\.0\.\*"),
        ("activity_enable", RESULT.ERROR_NOT_COMPATIBLE, "its version does not fit the driver"),
        ("activity_enable", RESULT.ERROR_MIG_DEVICE_NOT_SUPPORTED, "does not profile this GPU as it is set up"),
        (
            "activity_register_callbacks",
            RESULT.ERROR_UNKNOWN,
            r"cupti-python is 13\.0\.1, the driver speaks CUDA 13\.0",
        ),
    ],
)
def test_refusals_name_the_reason_and_the_remedy(cupti, function, status, remedy):
    cupti.refusals = {function: status}
    pattern = f"^CUPTI refuses {function} with CUPTI_{status.name}: .*{remedy}"
    with pytest.raises(UnsupportedError, match=pattern), profiling.profiling():
        pytest.fail("the block ran")
    assert cupti.enabled == set()
    # Whoever subscribed makes room for others.
    names = [name for name, *_ in cupti.log]
    assert names.count("unsubscribe") == (function != "subscribe")


def test_a_package_that_is_not_there():
    told = r"cupti-python, which is not installed; pip install 'gemmule\[profile\]'"
    with not_installed("cupti"), pytest.raises(UnsupportedError, match=told):
        check_cupti()


def test_a_package_that_does_not_load(monkeypatch, tmp_path):
    (tmp_path / "cupti").mkdir()
    (tmp_path / "cupti" / "__init__.py").write_text("raise ImportError('libstdc++.so.6: no such file')")
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("cupti", "cupti.cupti"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.raises(UnsupportedError, match=r"does not load: libstdc\+\+.so.6"):
        check_cupti()


def test_a_library_that_does_not_load():
    missing = RuntimeError("libcupti.so.13: cannot open shared object file")
    unloaded = fake_cupti.installed(FakeCupti({"get_timestamp": missing}))
    with unloaded, pytest.raises(UnsupportedError, match=r"libcupti.so.13.*nvidia-cuda-cupti.*LD_LIBRARY_PATH"):
        check_cupti()


def test_nvtx_gets_the_names_where_it_is_there(cupti):
    told = []

    class Annotate:
        def __init__(self, name, domain):
            self.name = (domain, name)

        def __enter__(self):
            told.append(("push", *self.name))

        def __exit__(self, *exc):
            told.append(("pop", *self.name))

    nvtx = installed_nvtx(types.SimpleNamespace(annotate=Annotate))
    with nvtx, profiling.profiling() as session:
        with session.range("copy in"):
            pass
        with pytest.raises(ZeroDivisionError), session.range("g01"):
            raise ZeroDivisionError
    assert told == [(step, "gemmule", name) for name in ("copy in", "g01") for step in ("push", "pop")]
    assert [one.name for one in session.profile().ranges] == ["copy in", "g01"]


def test_the_packages_own_records():
    """The fields that are read are there in the records of the package, where it is installed."""
    package = pytest.importorskip("cupti.cupti", reason="cupti-python is not installed")
    fields = {
        "Kernel": ("name", "grid_x", "block_z", "registers_per_thread", "static_shared_memory",
                   "dynamic_shared_memory", "device_id", "stream_id", "correlation_id"),
        "Memcpy": ("copy_kind", "bytes", "device_id", "stream_id", "correlation_id"),
        "Memset": ("bytes", "device_id", "stream_id", "correlation_id"),
        "API": ("cbid", "thread_id", "correlation_id"),
    }  # fmt: skip
    for kind, names in fields.items():
        classes = [getattr(package, name) for name in dir(package) if name.rstrip("0123456789") == f"Activity{kind}"]
        assert classes
        for record in classes:
            assert [name for name in ("kind", "start", "end", *names) if not hasattr(record, name)] == []
    for name in ("ActivityKind", "ActivityMemcpyKind", "ActivityThreadIdType", "CallbackDomain", "Result"):
        ours, theirs = getattr(FakeCupti, name), getattr(package, name)
        assert {one.name: int(one) for one in ours}.items() <= {key: int(one) for key, one in
                                                                theirs.__members__.items()}.items()  # fmt: skip
    assert package.cuptiError(35).status == CuptiError(35).status

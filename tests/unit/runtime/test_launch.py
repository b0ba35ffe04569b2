"""Launch recipes: the bytes of a parameter, and what the driver is told."""

from __future__ import annotations

import struct

import pytest

from gemmule.core.arch import Arch
from gemmule.core.dtype import BFLOAT16, FLOAT32, FLOAT64, INT32
from gemmule.core.errors import ArgumentError
from gemmule.core.launch import BytesParam, Launch, ScalarParam, TensorMapParam, TensorParam
from gemmule.runtime import launch as launching
from support.fakes.cuda import FakeCuda, installed


def test_a_tensor_is_pointer_extents_strides():
    wide = TensorParam("a", (5, 7), (-7, 1), shape_bits=64)
    assert wide.pack({"a": 0x1000}) == struct.pack("<Qqqqq", 0x1000, 5, 7, -7, 1)
    assert wide.size == 40
    narrow = TensorParam("b", (5, 7, 9), (63, 9, 1))
    assert narrow.pack({"b": 16}) == struct.pack("<Qiii4xqqq", 16, 5, 7, 9, 63, 9, 1)
    assert narrow.size == 48


def test_what_does_not_fit_is_refused():
    with pytest.raises(ArgumentError, match="32-"):
        TensorParam("a", (2**31,), (1,)).pack({"a": 0})
    assert len(TensorParam("a", (2**31,), (1,), shape_bits=64).pack({"a": 0})) == 24


def test_scalars():
    assert ScalarParam("alpha", FLOAT32, 0.5).pack({}) == struct.pack("<f", 0.5)
    assert ScalarParam("alpha", FLOAT64, 0.5).pack({}) == struct.pack("<d", 0.5)
    assert ScalarParam("alpha", INT32, -3).pack({}) == struct.pack("<i", -3)
    assert ScalarParam("alpha", INT32, 2**32 + 5).pack({}) == struct.pack("<i", 5)
    with pytest.raises(ArgumentError, match="alpha"):
        ScalarParam("alpha", FLOAT32, 1e300).pack({})
    assert ScalarParam("n", "int32", 5) == ScalarParam("n", INT32, 5)
    with pytest.raises(ArgumentError, match=r"dtype='int64' is none of .*; pass other numbers as BytesParam"):
        ScalarParam("n", "int64", 5)


def test_bytes_are_as_they_are_given():
    pair = BytesParam("pair", b"\1\2\3\4\5\6\7\10", 8)
    assert (pair.pack({}), pair.size, pair.alignment) == (b"\1\2\3\4\5\6\7\10", 8, 8)


def test_threads():
    assert Launch((1, 1, 1), (32, 4, 2), ()).threads == 256


@pytest.mark.parametrize(("pitches", "fetched"), [((512, 4096), 256), ((640, 5120), 128), ((528, 512), 128), ((), 256)])
def test_the_cache_fetches_no_more_than_whole_lines_around_a_row(pitches, fetched):
    extents = (16,) * (len(pitches) + 1)
    described = TensorMapParam("a", BFLOAT16, extents, pitches, extents, 32)
    assert described.fetched_bytes == fetched
    assert TensorMapParam("a", BFLOAT16, extents, pitches, extents, 32, promotion=0).fetched_bytes == 0


@pytest.mark.parametrize(
    ("arch", "overlaps", "attributes"), [("sm_80", True, 0), ("sm_90a", True, 1), ("sm_90a", False, 0)]
)
def test_launches_overlap_where_the_gpu_can(arch, overlaps, attributes):
    bindings = pytest.importorskip("cuda.bindings.driver", reason="NVIDIA's bindings are not installed")
    names = ("CUlaunchConfig", "CUlaunchAttribute", "CUlaunchAttributeID")
    arch = Arch.parse(arch)
    fake = type("Launching", (FakeCuda,), {name: getattr(bindings, name) for name in names})(arch.capability)
    kernel = object.__new__(launching.LoadedKernel)
    kernel.ordinal = 0
    with installed(fake):
        config = kernel.config(Launch((3, 2, 1), (64, 1, 1), (), overlaps=overlaps), 5)
    assert (config.gridDimX, config.gridDimY, config.blockDimX, int(config.hStream)) == (3, 2, 64, 5)
    assert config.numAttrs == attributes

"""Atomic operations on 16-bit values, one by one and packed."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from gemmule.vgpu.ptx.errors import PtxError
from support.ptx.snippets import at, run


def out_of(body, start, threads=32):
    out = start.copy()
    run(body, {"out": out}, threads)
    return out


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_sums_of_16_bits(dtype):
    name = "f16" if dtype is np.float16 else "bf16"
    value = int(np.array(1, dtype).view(np.uint16))
    body = f"mov.u16 %h1, {value};\n" + at("out", 2, "0") + f"red.global.add.noftz.{name} [%address], %h1;"
    assert out_of(body, np.zeros(2, dtype)).tolist() == [32, 0]


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_sums_of_packed_values(dtype):
    name = "f16x2" if dtype is np.float16 else "bf16x2"
    value = int(np.array([1, -2], dtype).view(np.uint32)[0])
    body = f"mov.u32 %r1, {value};\n" + at("out", 2, "0") + f"atom.global.add.noftz.{name} %r2, [%address], %r1;"
    assert out_of(body, np.array([0, 3], dtype)).tolist() == [32, 3 - 64]


def test_exchange_and_compare_of_16_bits():
    body = "mov.u16 %h1, 7;\nmov.u16 %h2, 9;\n" + at("out", 2) + "atom.global.exch.b16 %h3, [%address], %h1;\n"
    body += "atom.global.cas.b16 %h3, [%address], %h1, %h2;"
    assert (out_of(body, np.arange(32, dtype=np.uint16)) == 9).all()


def test_what_is_no_operation_of_ptx():
    with pytest.raises(PtxError, match="no atomic operation"):
        out_of(at("out", 2) + "red.global.max.noftz.f16 [%address], %h1;", np.zeros(32, np.float16))

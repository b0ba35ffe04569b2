"""Types of host code: sizes, offsets and values as bytes."""

from __future__ import annotations

import pytest

from gemmule.core.errors import UnsupportedError
from gemmule.vgpu.host_code.llvm_types import type_of


@pytest.mark.parametrize(
    ("text", "size", "offsets"),
    [
        ("i1", 1, ()),
        ("!llvm.ptr<1>", 8, ()),
        ("!llvm.struct<(i32, i64)>", 16, (0, 8)),
        ("!llvm.struct<packed (i32, i64)>", 12, (0, 4)),
        ("!llvm.struct<(ptr<1>, struct<(i32, struct<()>)>)>", 16, (0, 8)),
        ("!llvm.struct<(array<3 x i32>, array<3 x i32>, i64, ptr, ptr, i32)>", 56, (0, 12, 24, 32, 40, 48)),
        ("vector<4xf32>", 16, (0, 4, 8, 12)),
    ],
)
def test_layouts(text, size, offsets):
    found = type_of(text)
    assert (found.size, found.offsets) == (size, offsets)


def test_values_pass_through_bytes():
    kind = type_of("!llvm.struct<(i8, f32, array<2 x i16>, bf16)>")
    data = bytearray(kind.size)
    kind.write((255, 1.5, (1, 65535), -2.0), data)
    assert kind.read(data) == (255, 1.5, (1, 65535), -2.0)


@pytest.mark.parametrize("text", ["!llvm.token", "i32 i32", "tensor<4xf32>"])
def test_unknown_types_are_refused(text):
    with pytest.raises(UnsupportedError, match="not modelled"):
        type_of(text)

"""The copy engine writes whole 16 bytes: kernels that write by it leave results alone whose lines end within 16."""

from __future__ import annotations

import pytest

from gemmule.core.arch import Arch
from gemmule.core.dtype import BFLOAT16
from gemmule.core.layout import StridedMatrix
from gemmule.core.problem import GemmProblem
from gemmule.dispatch.registry import REGISTRY
from gemmule.dispatch.select import choose

HOPPER = Arch.parse("sm_90a")
WRITERS = [
    spec
    for spec in REGISTRY
    if spec.name == "hopper_gemm" or (getattr(spec.default, "epi_tiles", 0) and spec.name[0] == "h")
]


def problem(m: int, n: int, *, by_rows: bool, batch: tuple[int, ...] = ()) -> GemmProblem:
    """A product into lines whose pitch is a multiple of 16 bytes, whatever their length."""

    def lying(rows, cols, in_rows):
        pitch = -(-(cols if in_rows else rows) // 8) * 8 + 8
        strides = (pitch, 1) if in_rows else (1, pitch)
        steps = (pitch * (rows if in_rows else cols) + 8,) if batch else ()
        return StridedMatrix(BFLOAT16, rows, cols, *strides, steps, 16)

    return GemmProblem(m, n, 64, batch, lying(m, 64, True), lying(64, n, True), None, lying(m, n, by_rows))


def test_there_are_such_kernels():
    assert {spec.name for spec in WRITERS} == {"h07_tma_store", "h08_pingpong", "hopper_gemm"}


@pytest.mark.parametrize("batch", [(), (3,)], ids=str)
@pytest.mark.parametrize("by_rows", [True, False])
@pytest.mark.parametrize("beyond", range(1, 8))
@pytest.mark.parametrize("spec", WRITERS, ids=lambda spec: spec.name)
def test_lines_that_end_within_16_bytes_are_refused(spec, beyond, by_rows, batch):
    m, n = (256, 256 - beyond) if by_rows else (256 - beyond, 256)
    asked = problem(m, n, by_rows=by_rows, batch=batch)
    for config in spec.configs:
        reason = spec.why_not(asked, HOPPER, config)
        assert reason == (
            f"D has lines of {512 - 2 * beyond} bytes; TMA writes whole 16 bytes, here {2 * beyond} after the end of "
            "each line, which may belong to another array"
        )
    assert spec.refuses(asked, HOPPER) == reason
    whole = problem(n, m, by_rows=by_rows, batch=batch)
    assert spec.refuses(whole, HOPPER) is None


@pytest.mark.parametrize("shape", [(256, 133), (1, 133), (16, 4), (133, 1)], ids=str)
@pytest.mark.parametrize("by_rows", [True, False])
def test_another_kernel_is_chosen(shape, by_rows):
    asked = problem(*(shape if by_rows else shape[::-1]), by_rows=by_rows)
    assert choose(asked, HOPPER).spec not in WRITERS

"""Tensor maps that a kernel copies into global memory, and changes there."""

from __future__ import annotations

import numpy as np
import pytest

from gemmule.vgpu import FaultError, Options
from gemmule.vgpu.ptx.errors import PtxError
from support.ptx.copies import EXPECT, INIT, LOAD, SHARED, expected_box, map_of, out_of_shared
from support.ptx.hopper import SCHEDULES, run, wait

#: The warp copies the map of A into W, its first lane makes it one of B, and brings a box by it.
COPY = """
    .reg .b64 %w;
    mul.wide.u32 %d1, %lane, 8;
    add.u64 %d2, %m_a, %d1;
    add.u64 %d3, %p_w, %d1;
    setp.lt.u32 %p8, %lane, 16;
    @%p8 ld.b64 %d4, [%d2];
    @%p8 st.global.b64 [%d3], %d4;
    bar.warp.sync -1;
"""
REPLACE = """
    @%p9 tensormap.replace.tile.global_address.global.b1024.b64 [%p_w], %p_b;
    mov.u32 %r6, ROWS;
    @%p9 tensormap.replace.tile.global_dim.global.b1024.b32 [%p_w], 1, %r6;
    mov.b64 %d5, PITCH;
    @%p9 tensormap.replace.tile.global_stride.global.b1024.b64 [%p_w], 0, %d5;
    bar.warp.sync -1;
    fence.proxy.tensormap::generic.release.gpu;
    fence.proxy.tensormap::generic.acquire.gpu [%p_w], 128;
"""


def body(rows=6, pitch=256, replace=REPLACE, copy=COPY):
    changed = replace.replace("ROWS", str(rows)).replace("PITCH", str(pitch))
    return (
        INIT + copy + changed + EXPECT.replace("BYTES", "1024") + LOAD.format(rank=2, map="%p_w, {0, 0}")
        + wait("%r1", 0) + out_of_shared("out", 1024)
    )  # fmt: skip


def launch(rng, schedule="late", **changes):
    a, b = (rng.integers(1, 99, (rows, 64)).astype(np.float16) for rows in (8, 12))
    out, w = np.zeros(1024, np.uint8), np.zeros(16, np.uint64)
    run(body(**changes), {"a": a, "b": b, "out": out, "w": w}, maps=(map_of("a", a, (64, 8), 128),), shared=SHARED,
        options=Options(checks=True, schedule=schedule))  # fmt: skip
    return a, b, out


@pytest.mark.differs_on_hardware("the bytes of a tensor map are NVIDIA's there")
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_copy_is_a_map(rng, schedule):
    a, _, out = launch(rng, schedule, replace="")
    np.testing.assert_array_equal(out, expected_box(a, (64, 8), (0, 0), 128))


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_map_of_every_second_row_of_another_tensor(rng, schedule):
    _, b, out = launch(rng, schedule)
    # Of 8 rows of a box the tensor has 6, each of them two rows of B.
    np.testing.assert_array_equal(out, expected_box(b[::2], (64, 8), (0, 0), 128))


@pytest.mark.differs_on_hardware("what a GPU does with a map that is wrong is not defined")
@pytest.mark.parametrize(
    ("changes", "what"),
    [({"rows": 7}, "reaches to byte 1663 of operand b, which has 1536"),
     ({"pitch": 24}, "global_stride of 24 breaks the rules"),
     ({"rows": 0}, "global_dim of 0 breaks the rules"),
     ({"copy": ""}, "there is no tensor map at byte 0 of operand w"),
     ({"copy": "", "replace": ""}, "the bytes there are no tensor map")],
)  # fmt: skip
def test_maps_that_are_none(rng, changes, what):
    with pytest.raises(FaultError, match=what) as caught:
        launch(rng, **changes)
    (finding,) = caught.value.findings
    assert finding.kind == "out of bounds"


@pytest.mark.parametrize(
    ("by", "what"),
    [("global_stride.global.b1024.b64 [%p_w], 4, %d5", "none of the 4"), ("rank.global.b1024.b32 [%p_w], %r6", "rank")],
)
def test_parts_that_cannot_be_replaced(rng, by, what):
    with pytest.raises(PtxError, match=what):
        launch(rng, replace=REPLACE.replace("global_stride.global.b1024.b64 [%p_w], 0, %d5", by))

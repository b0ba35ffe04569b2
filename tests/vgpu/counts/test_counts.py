"""Counts of small kernels, worked out by hand."""

from __future__ import annotations

import json

import numpy as np
import pytest

from gemmule.vgpu import Counter, Options
from support.ptx.snippets import at, run

BUFFER = ".shared .align 128 .b8 buffer[16384];"


def counted(body, arrays, threads=32, ctas=1, shared=BUFFER, **options):
    counter = Counter(**options)
    run(body, arrays, threads, ctas, shared, Options(), (counter,))
    return counter.counts


def row(counts, text):
    (found,) = [row for row in counts.instructions if row.text.startswith(text)]
    return found


@pytest.mark.parametrize(("stride", "sectors"), [(1, 4), (2, 8), (8, 32), (32, 32), (0, 1)])
def test_sectors_of_a_strided_load(stride, sectors):
    a, out = np.zeros(32 * 32 * 2, np.uint32), np.zeros(64, np.uint32)
    body = f"mul.lo.u32 %r1, %index, {stride};" + at("a", 4, "%r1") + "ld.global.b32 %r2, [%address];"
    counts = counted(body, {"a": a, "out": out}, 64)
    load = row(counts, "ld.global")
    assert (load.requests, load.bytes, load.sectors) == (2, 256, 2 * sectors)
    assert load.ideal_sectors == (8 if stride else 2)


@pytest.mark.parametrize(("stride", "wavefronts"), [(1, 1), (2, 2), (4, 4), (32, 32), (33, 1), (0, 1)])
def test_bank_conflicts(stride, wavefronts):
    body = f"mov.u32 %r1, buffer;mul.lo.u32 %r2, %lane, {4 * stride};add.u32 %r1, %r1, %r2;st.shared.b32 [%r1], %tid;"
    counts = counted(body, {"out": np.zeros(1, np.uint32)}, 96)
    store = row(counts, "st.shared")
    assert (store.requests, store.wavefronts, store.ideal_wavefronts) == (3, 3 * wavefronts, 3)
    assert counts.bank_conflicts == 3 * (wavefronts - 1)


def test_instructions_by_class_count_warps_and_threads():
    body = """setp.lt.u32 %p1, %tid, 40;
    @!%p1 bra END;
    fma.rn.f32 %r1, %r2, %r2, %r2;
    add.f32 %r1, %r1, %r1;
    fma.rn.f64 %d1, %d2, %d2, %d2;
END:
    bar.sync 0;
"""
    counts = counted(body, {"out": np.zeros(1, np.uint32)}, 96, 2)
    assert counts.by_class()["fma f32"] == {"warps": 4, "threads": 80}
    assert counts.by_class()["barrier"] == {"warps": 6, "threads": 192}
    assert counts.flop == 80 * (2 + 1 + 2)
    assert counts.barriers == 6


def test_flop_of_matrix_instructions():
    body = """mov.b32 %r1, 0;
    mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32
        {%r11, %r12, %r13, %r14}, {%r1, %r1, %r1, %r1}, {%r1, %r1}, {%r1, %r1, %r1, %r1};
"""
    assert counted(body, {"out": np.zeros(1, np.uint32)}, 64).flop == 2 * 2 * 16 * 8 * 16


def test_caches():
    """Two CTAs read the same 4 KiB twice: L1 misses once in each multiprocessor, L2 once in all."""
    a = np.zeros(1024, np.uint32)
    body = "mul.wide.u32 %offset, %tid, 4;add.u64 %address, %p_a, %offset;"
    body += "ld.global.b32 %r1, [%address];bar.sync 0;ld.global.b32 %r2, [%address];"
    counts = counted(body, {"a": a}, 1024, 2, with_caches=True)
    sectors = 4096 // 32
    assert counts.hit_rates == {"l1": 0.5, "l2": 0.5}
    assert counts.bytes_by_level == {"l1": 4 * sectors * 32, "l2": 2 * sectors * 32, "memory": sectors * 32}


def test_as_json_and_as_a_table():
    a = np.zeros(64, np.uint32)
    counts = counted(".loc 1 3 0\n" + at("a", 4) + "st.global.b32 [%address], %tid;", {"a": a}, 64)
    data = json.loads(counts.to_json())
    assert data["global_sectors"] == 8
    assert data["global_requests"] == 2
    assert data["warp_instructions"] == sum(row["warps"] for row in data["instructions"])
    assert "snippet.py:3: st.global.b32" in counts.table()
    assert "8 sectors, 100.0% of them needed" in counts.table()


def test_counting_changes_nothing(rng):
    a = rng.integers(0, 100, 64).astype(np.uint32)
    out = np.zeros(64, np.uint32)
    body = at("a", 4) + "ld.global.b32 %r1, [%address];" + at("out", 4) + "st.global.b32 [%address], %r1;"
    counted(body, {"a": a, "out": out}, 64)
    np.testing.assert_array_equal(out, a)


def test_lanes_whose_guard_does_not_hold_do_nothing():
    body = """setp.lt.u32 %p1, %tid, 40;
    @%p1 fma.rn.f32 %r1, %r2, %r2, %r2;
    @%p1 add.f32 %r1, %r1, %r1;
"""
    counts = counted(body, {"out": np.zeros(1, np.uint32)}, 96, 2)
    assert (row(counts, "@%p1 fma").warps, row(counts, "@%p1 fma").threads) == (6, 80)
    assert counts.flop == 80 * 3


def test_copies_of_several_sizes_are_one_request():
    """Lane l reads 4 (l mod 4 + 1) bytes of its 16, so that a quarter of the sectors' bytes are wanted less."""
    body = """mov.u32 %r1, buffer;
    mad.lo.u32 %r2, %tid, 16, %r1;
    and.b32 %r3, %lane, 3;
    mad.lo.u32 %r3, %r3, 4, 4;
""" + at("a", 16)
    body += "cp.async.cg.shared.global [%r2], [%address], 16, %r3;\ncp.async.wait_all;"
    counts = counted(body, {"a": np.zeros(256, np.uint32)}, 64, with_caches=True)
    copy = row(counts, "cp.async.cg")
    assert (copy.requests, copy.sectors, copy.lines, copy.bytes) == (2, 32, 8, 2 * 8 * 40)
    assert copy.ideal_sectors == 2 * 8 * 40 // 32
    assert counts.bytes_by_level["l2"] == 32 * 32


def test_a_counter_counts_each_launch_anew():
    counter, out = Counter(with_caches=True), np.zeros(32, np.uint32)
    found = []
    for _ in range(2):
        run(at("out", 4) + "st.global.b32 [%address], %tid;", {"out": out}, 32, options=Options(), observers=(counter,))
        found.append(counter.counts.as_dict())
    assert found[0] == found[1]
    assert found[0]["bytes_by_level"]["memory"] == 128

"""ldmatrix, stmatrix and mma.sync as instructions: fragments in registers, against whole matrices."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from gemmule.vgpu import FaultError, Options
from support.ptx.snippets import at, run

BUFFER = ".shared .align 128 .b8 buffer[4096];"
# Type in PTX: (NumPy type, rows of A, k), and the accumulator's type.
PRODUCTS = [
    ("f16", np.float16, 16, 16, "f32"),
    ("f16", np.float16, 16, 8, "f32"),
    ("f16", np.float16, 16, 16, "f16"),
    ("bf16", ml_dtypes.bfloat16, 16, 16, "f32"),
    ("bf16", ml_dtypes.bfloat16, 16, 8, "f32"),
    ("tf32", np.float32, 16, 8, "f32"),
    ("tf32", np.float32, 16, 4, "f32"),
    ("s8", np.int8, 16, 32, "s32"),
    ("s8", np.int8, 16, 16, "s32"),
    ("f64", np.float64, 8, 4, "f64"),
    ("f64", np.float64, 16, 4, "f64"),
    ("f64", np.float64, 16, 8, "f64"),
    ("f64", np.float64, 16, 16, "f64"),
]
ACCUMULATORS = {"f32": np.float32, "f16": np.float16, "s32": np.int32, "f64": np.float64}


def load_store_matrix(store, count, transposed):
    """Fill shared memory, move `count` matrices with one instruction, and bring registers or memory back."""
    registers = "{" + ", ".join(f"%r{10 + i}" for i in range(count)) + "}"
    trans = ".trans" if transposed else ""
    fill = """mov.u32 %r1, buffer;
    mad.lo.u32 %r2, %tid, 16, %r1;
"""
    if store:
        loads = "".join(f"ld.global.b32 %r{10 + i}, [%address+{4 * i}];" for i in range(count))
        return (
            fill + at("a", 4 * count) + loads
            + f"stmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 [%r2], {registers};\nbar.warp.sync -1;"
            + "mov.b32 %r20, 0;setp.lt.u32 %p1, %tid, " + str(8 * count) + ";"
            + "@!%p1 ret;" + at("out", 16)
            + "ld.shared.v4.b32 {%r20, %r21, %r22, %r23}, [%r2];st.global.v4.b32 [%address], {%r20, %r21, %r22, %r23};"
        )  # fmt: skip
    stores = "".join(f"st.global.b32 [%address+{4 * i}], %r{10 + i};" for i in range(count))
    return (
        fill + at("a", 16)
        + "ld.global.v4.b32 {%r20, %r21, %r22, %r23}, [%address];st.shared.v4.b32 [%r2], {%r20, %r21, %r22, %r23};\n"
        + f"bar.warp.sync -1;\nldmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 {registers}, [%r2];\n"
        + at("out", 4 * count) + stores
    )  # fmt: skip


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_ldmatrix(rng, count, transposed):
    matrices = rng.integers(0, 2**16, (4, 8, 8), np.uint16)
    out = np.zeros((32, count, 2), np.uint16)
    run(load_store_matrix(False, count, transposed), {"a": matrices, "out": out}, 32, shared=BUFFER)
    for lane in range(32):
        for i in range(count):
            matrix = matrices[i].T if transposed else matrices[i]
            np.testing.assert_array_equal(out[lane, i], matrix[lane // 4, 2 * (lane % 4) :][:2])


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_stmatrix(rng, count, transposed):
    fragments = rng.integers(0, 2**16, (32, count, 2), np.uint16)
    out = np.zeros((count, 8, 8), np.uint16)
    run(load_store_matrix(True, count, transposed), {"a": fragments, "out": out}, 32, shared=BUFFER)
    for lane in range(32):
        for i in range(count):
            matrix = out[i].T if transposed else out[i]
            np.testing.assert_array_equal(matrix[lane // 4, 2 * (lane % 4) :][:2], fragments[lane, i])


def fragment(matrix, words, by_columns=False):
    """Registers of each lane for A (rows, k) or, by columns, for B (k, 8): PTX ISA, fragments of mma.m16n8k*."""
    per_word = words // matrix.itemsize
    source = matrix.T if by_columns else matrix
    rows, k = source.shape
    lanes = []
    for lane in range(32):
        group, within = lane // 4, lane % 4
        registers = [
            source[r + group, q + within * per_word :][:per_word]
            for q in range(0, k, 4 * per_word)
            for r in range(0, rows, 8)
        ]
        lanes.append(np.concatenate(registers))
    return np.ascontiguousarray(np.stack(lanes))


def accumulators(matrix):
    """Elements of C or D of each lane: two neighbours of a row, then of the row 8 below."""
    return np.stack(
        [
            np.concatenate([matrix[r + lane // 4, 2 * (lane % 4) :][:2] for r in range(0, len(matrix), 8)])
            for lane in range(32)
        ]
    )


@pytest.mark.parametrize("warps", [1, 3])
@pytest.mark.parametrize(("kind", "dtype", "rows", "k", "total"), PRODUCTS, ids=str)
def test_mma(rng, kind, dtype, rows, k, total, warps):
    word = 8 if kind == "f64" else 4
    make = (
        (lambda *s: rng.integers(-128, 128, s).astype(dtype))
        if kind == "s8"
        else (lambda *s: rng.integers(-8, 8, s).astype(dtype))
    )
    problems = [
        (make(rows, k), make(k, 8), rng.integers(-9, 9, (rows, 8)).astype(ACCUMULATORS[total])) for _ in range(warps)
    ]
    a = np.concatenate([fragment(p[0], word) for p in problems])
    b = np.concatenate([fragment(p[1], word, by_columns=True) for p in problems])
    c = np.concatenate([accumulators(p[2]) for p in problems])
    out = np.zeros_like(c)
    register, bits = ("%d", "b64") if word == 8 else ("%r", "b32")
    body, groups = "", {}
    for first, (name, array) in zip((1, 21, 31), {"a": a, "b": b, "c": c}.items(), strict=True):
        count = array.nbytes // len(array) // word
        names = [f"{register}{first + i}" for i in range(count)]
        groups[name] = "{" + ", ".join(names) + "}"
        body += at(name, count * word)
        body += "".join(f"ld.global.{bits} {x}, [%address+{i * word}];" for i, x in enumerate(names))
    count = c.nbytes // len(c) // word
    targets = [f"{register}{41 + i}" for i in range(count)]
    shape = f"m{rows}n8k{k}"
    body += f"mma.sync.aligned.{shape}.row.col.{total}.{kind}.{kind}.{total} {{{', '.join(targets)}}}, "
    body += f"{groups['a']}, {groups['b']}, {groups['c']};" + at("out", count * word)
    body += "".join(f"st.global.{bits} [%address+{i * word}], {x};" for i, x in enumerate(targets))
    for mode in ("exact", "hopper"):
        out[...] = -77
        run(body, {"a": a, "b": b, "c": c, "out": out}, 32 * warps, options=Options(mma=mode, checks=True))
        for warp, (x, y, z) in enumerate(problems):
            expected = x.astype(np.float64) @ y.astype(np.float64) + z
            got = out.reshape(warps, 32, -1)[warp]
            np.testing.assert_array_equal(got, accumulators(expected.astype(out.dtype)))


def test_an_aligned_instruction_needs_its_whole_warp():
    body = "setp.ge.u32 %p1, %tid, 8;\n@%p1 ret;\nmov.u32 %r1, buffer;\n"
    body += "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r2}, [%r1];"
    with pytest.raises(FaultError, match="all 32 lanes"):
        run(body, {"a": np.zeros(8, np.uint32)}, 32, shared=BUFFER)


def test_rows_must_be_aligned_and_inside():
    for change, what in (("add.u32 %r1, %r1, 8;", "multiple of 16"), ("add.u32 %r1, %r1, 4096;", "of shared memory")):
        with pytest.raises(FaultError, match=what):
            run(
                "mov.u32 %r1, buffer;\n" + change + "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r2}, [%r1];",
                {"a": np.zeros(8, np.uint32)},
                32,
                shared=BUFFER,
            )


def test_matrices_at_generic_addresses(rng):
    source, out = rng.integers(0, 2**32, 32 * 4, np.uint32), np.zeros(32, np.uint32)
    body = (
        """mov.u32 %r1, tile;
    mad.lo.u32 %r1, %lane, 16, %r1;
"""
        + at("a", 16)
        + """ld.global.v4.b32 {%r5, %r6, %r7, %r8}, [%address];
    st.shared.v4.b32 [%r1], {%r5, %r6, %r7, %r8};
    bar.sync 0;
    cvt.u64.u32 %d1, %r1;
    cvta.shared.u64 %d2, %d1;
    ldmatrix.sync.aligned.m8n8.x1.b16 {%r2}, [%d2];
"""
        + at("out", 4)
        + "st.global.b32 [%address], %r2;"
    )
    run(body, {"a": source, "out": out}, shared=".shared .align 16 .b8 tile[512];")
    np.testing.assert_array_equal(out, source[:32])
    with pytest.raises(FaultError, match="address is in global memory, but matrices are in shared"):
        run("ldmatrix.sync.aligned.m8n8.x1.b16 {%r2}, [%p_out];", {"out": out})

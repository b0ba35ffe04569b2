"""Loads, stores, atomic operations, address spaces."""

from __future__ import annotations

import numpy as np
import pytest

from gemmule.core.launch import Launch, TensorParam
from gemmule.vgpu import FaultError, Options, launch
from gemmule.vgpu.ptx.errors import PtxError
from support.ptx.snippets import at, integers, kernel_text, run


@pytest.mark.parametrize(
    "modifier", ["", ".ca", ".cg", ".cs", ".nc", ".nc.L1::no_allocate.L2::128B", ".L1::evict_last"]
)
def test_cache_operators(rng, modifier):
    source, out = integers(rng, np.uint32, 64), np.zeros(64, np.uint32)
    run(at("a", 4) + f"ld.global{modifier}.b32 %r1, [%address];" + at("out", 4) + "st.global.b32 [%address], %r1;",
        {"a": source, "out": out}, 64)  # fmt: skip
    np.testing.assert_array_equal(out, source)


@pytest.mark.parametrize("space", ["global", "shared", "local"])
@pytest.mark.parametrize(("count", "width"), [(2, 8), (4, 8), (2, 16), (4, 16), (2, 32), (4, 32), (2, 64)])
def test_vectors(rng, space, count, width):
    size = count * width // 8
    dtype = np.dtype(f"u{width // 8}")
    source = rng.integers(0, np.iinfo(dtype).max, (64, count), dtype, endpoint=True)
    out = np.zeros_like(source)
    register = {8: "%h", 16: "%h", 32: "%r", 64: "%d"}[width]
    vector = "{" + ", ".join(f"{register}{i + 1}" for i in range(count)) + "}"
    back = "{" + ", ".join(f"{register}{i + 11}" for i in range(count)) + "}"
    load = at("a", size) + f"ld.global.v{count}.b{width} {vector}, [%address];"
    store = at("out", size) + f"st.global.v{count}.b{width} [%address], {back};"
    through = {
        "global": "".join(f"mov.b{max(width, 16)} {register}{i + 11}, {register}{i + 1};" for i in range(count)),
        "shared": f"""mov.u32 %r40, buffer;
            mad.lo.u32 %r40, %tid, {size}, %r40;
            st.shared.v{count}.b{width} [%r40], {vector};
            ld.shared.v{count}.b{width} {back}, [%r40];""",
        "local": f"""mov.u64 %d40, depot;
            cvta.local.u64 %d41, %d40;
            cvta.to.local.u64 %d40, %d41;
            st.local.v{count}.b{width} [%d40+16], {vector};
            ld.local.v{count}.b{width} {back}, [%d40+16];""",
    }[space]
    shared = ".shared .align 16 .b8 buffer[1024];\n.local .align 16 .b8 depot[64];"
    run(load + through + store, {"a": source, "out": out}, 64, shared=shared)
    np.testing.assert_array_equal(out, source)


def test_narrow_loads_extend(rng):
    source = integers(rng, np.int8, 64)
    for kind, dtype in (("s8", np.int8), ("u8", np.uint8)):
        out = np.zeros(64, np.int32)
        body = at("a", 1) + f"ld.global.{kind} %r1, [%address];" + at("out", 4) + "st.global.b32 [%address], %r1;"
        run(body, {"a": source, "out": out}, 64)
        np.testing.assert_array_equal(out, source.view(dtype).astype(np.int32))


def test_narrow_stores_keep_the_low_bits(rng):
    source, out = integers(rng, np.uint32, 64), np.zeros(64, np.uint8)
    run(at("a", 4) + "ld.global.b32 %r1, [%address];" + at("out", 1) + "st.global.b8 [%address], %r1;",
        {"a": source, "out": out}, 64)  # fmt: skip
    np.testing.assert_array_equal(out, source.astype(np.uint8))


def test_generic_addresses(rng):
    source, out = integers(rng, np.uint32, 64), np.zeros(64, np.uint32)
    body = (
        at("a", 4)
        + """ld.b32 %r1, [%address];
        mov.u32 %r2, buffer;
        mad.lo.u32 %r2, %tid, 4, %r2;
        cvt.u64.u32 %d1, %r2;
        cvta.shared.u64 %d2, %d1;
        st.b32 [%d2], %r1;
        isspacep.shared %p1, %d2;
        isspacep.global %p2, %address;
        ld.shared.b32 %r3, [%r2];
        selp.b32 %r3, %r3, 0, %p1;
        selp.b32 %r3, %r3, 0, %p2;"""
        + at("out", 4)
        + "st.b32 [%address], %r3;"
    )
    run(body, {"a": source, "out": out}, 64, shared=".shared .align 4 .b8 buffer[256];")
    np.testing.assert_array_equal(out, source)


def test_shared_memory_begins_at_1024():
    out = np.zeros(32, np.uint32)
    run("mov.u32 %r1, buffer;" + at("out", 4) + "st.global.b32 [%address], %r1;", {"out": out},
        shared=".shared .align 16 .b8 buffer[64];")  # fmt: skip
    assert (out == 1024).all()


@pytest.mark.parametrize(
    ("name", "kind", "function"),
    [
        ("add", "u32", np.add), ("add", "u64", np.add), ("min", "s32", np.minimum), ("max", "u32", np.maximum),
        ("and", "b32", np.bitwise_and), ("or", "b32", np.bitwise_or), ("xor", "b32", np.bitwise_xor),
        ("add", "f32", np.add), ("add", "f64", np.add),
    ],
)  # fmt: skip
def test_reductions(rng, name, kind, function):
    dtype = np.dtype({"u": "u", "s": "i", "b": "u", "f": "f"}[kind[0]] + str(int(kind[1:]) // 8))
    source = rng.integers(-50, 50, 256).astype(dtype)
    total = np.full(4, 3, dtype)
    register = "%r1" if dtype.itemsize == 4 else "%d1"
    body = at("a", dtype.itemsize) + f"ld.global.b{8 * dtype.itemsize} {register}, [%address];"
    body += "and.b32 %r2, %index, 3;" + at("total", dtype.itemsize, "%r2")
    body += f"red.global.{name}.{kind} [%address], {register};"
    run(body, {"a": source, "total": total}, 128, 2)
    expected = [function.reduce(np.concatenate([[dtype.type(3)], source[i::4]])) for i in range(4)]
    np.testing.assert_array_equal(total, np.array(expected, dtype))


def test_atomics_return_what_was_there():
    total, out = np.zeros(1, np.uint32), np.zeros(256, np.uint32)
    body = "atom.global.add.u32 %r1, [%p_total], 1;" + at("out", 4) + "st.global.b32 [%address], %r1;"
    run(body, {"total": total, "out": out}, 128, 2)
    assert total[0] == 256
    np.testing.assert_array_equal(np.sort(out), np.arange(256))


def test_compare_and_swap_and_exchange():
    memory, out = np.array([5, 9], np.uint32), np.zeros(64, np.uint32)
    body = (
        """atom.global.cas.b32 %r1, [%p_memory], 5, 77;
        atom.global.exch.b32 %r2, [%p_memory+4], %tid;"""
        + at("out", 4)
        + "st.global.b32 [%address], %r1;"
    )
    run(body, {"memory": memory, "out": out}, 64)
    assert memory[0] == 77
    assert memory[1] < 64
    assert sorted(out)[:2] == [5, 77]


def test_wrapping_counters():
    up, down = np.zeros(1, np.uint32), np.zeros(1, np.uint32)
    run("red.global.inc.u32 [%p_up], 9;\nred.global.dec.u32 [%p_down], 9;", {"up": up, "down": down}, 32)
    assert up[0] == 32 % 10
    assert down[0] == (-32) % 10


def test_shared_atomics():
    out = np.zeros(64, np.uint32)
    body = (
        """mov.u32 %r1, counter;
        setp.eq.u32 %p1, %tid, 0;
        @%p1 st.shared.b32 [%r1], 100;
        bar.sync 0;
        red.shared.add.u32 [%r1], %tid;
        bar.sync 0;
        ld.shared.b32 %r2, [%r1];"""
        + at("out", 4)
        + "st.global.b32 [%address], %r2;"
    )
    run(body, {"out": out}, 64, shared=".shared .align 4 .b8 counter[4];")
    assert (out == 100 + sum(range(64))).all()


@pytest.mark.parametrize(
    ("body", "what"),
    [
        (at("a", 4) + "ld.global.b32 %r1, [%address+4];", "byte 128 of operand a, which has 128"),
        (at("a", 4) + "ld.global.b32 %r1, [%address+-4];", "4 bytes before operand a"),
        ("st.global.v2.b32 [%p_a+4], {%tid, %tid};", "multiple of 8"),
        (at("a", 4) + "ld.global.b32 %r1, [%address+2];", "byte 126"),
        ("mov.u64 %d1, 0;\nld.global.b32 %r1, [%d1];", "before operand a"),
        ("mov.u32 %r1, 0;\nld.shared.b32 %r2, [%r1];", "0x0 of shared memory"),
        ("mov.u32 %r1, 1088;\nld.shared.b32 %r2, [%r1];", "0x440 of shared memory"),
        ("mov.u32 %r1, 1030;\nst.shared.b32 [%r1], %tid;", "multiple of 4"),
        ("mov.u64 %d1, depot;\nst.local.b32 [%d1+16], %tid;", "of local memory"),
    ],
)
def test_accesses_outside_of_memory(body, what):
    shared = ".shared .align 16 .b8 buffer[64];\n.local .align 16 .b8 depot[16];"
    with pytest.raises(FaultError, match=what) as caught:
        run(".loc 1 17 3\n" + body, {"a": np.zeros(32, np.uint32)}, shared=shared)
    (finding,) = caught.value.findings
    assert finding.kernel == "test"
    assert finding.source == "snippet.py:17"
    assert finding.cta == (0, 0, 0)
    assert finding.warp == 0
    assert finding.lanes


def test_a_fault_names_the_threads_that_made_it():
    body = at("a", 4) + ".loc 1 5 0\nst.global.b32 [%address], %tid;"
    with pytest.raises(FaultError) as caught:
        run(body, {"a": np.zeros(70, np.uint32)}, 96)
    (finding,) = caught.value.findings
    assert (finding.kind, finding.warp, finding.lanes) == ("out of bounds", 2, tuple(range(6, 32)))
    assert "snippet.py:5" in str(finding)
    assert "lanes 6-31" in str(finding)


def test_an_array_keeps_its_place_in_the_memory_that_it_is_part_of(rng):
    whole = integers(rng, np.uint32, 66)
    part, out = whole[1:65], np.zeros(64, np.uint32)
    body = at("a", 4) + "ld.global.b32 %r1, [%address];" + at("out", 4) + "st.global.b32 [%address], %r1;"
    run(body, {"a": part, "out": out}, 64)
    np.testing.assert_array_equal(out, part)
    with pytest.raises(FaultError, match="misaligned"):
        run("ld.global.v2.b32 {%r1, %r2}, [%p_a];", {"a": part}, 32)


@pytest.mark.differs_on_hardware("there %warpid is a place in the multiprocessor")
def test_special_registers():
    names = {
        "tid": "%tid.x", "ntid": "%ntid.x", "ctaid": "%ctaid.x", "nctaid": "%nctaid.x", "laneid": "%laneid",
        "warpid": "%warpid", "nwarpid": "%nwarpid", "lt": "%lanemask_lt", "ge": "%lanemask_ge",
    }  # fmt: skip
    out = {name: np.zeros(192, np.uint32) for name in names}
    body = "".join(
        f"mov.u32 %r1, {register};" + at(name, 4) + "st.global.b32 [%address], %r1;" for name, register in names.items()
    )
    run(body, out, 96, 2)
    index = np.arange(192)
    expected = {
        "tid": index % 96, "ntid": 96, "ctaid": index // 96, "nctaid": 2, "laneid": index % 32,
        "warpid": index % 96 // 32, "nwarpid": 3, "lt": (1 << index % 32) - 1, "ge": 2**32 - (1 << index % 32),
    }  # fmt: skip
    for name, values in expected.items():
        np.testing.assert_array_equal(out[name], values, err_msg=name)


def test_schedules_do_not_change_a_kernel_without_races(rng):
    source = integers(rng, np.uint32, 128)
    results = []
    for schedule in ("late", "eager", "random"):
        out = np.zeros(128, np.uint32)
        body = (
            at("a", 4)
            + "ld.global.b32 %r1, [%address];"
            + """mov.u32 %r2, buffer;
            mad.lo.u32 %r3, %tid, 4, %r2;
            st.shared.b32 [%r3], %r1;
            bar.sync 0;
            xor.b32 %r4, %tid, 77;
            mad.lo.u32 %r3, %r4, 4, %r2;
            ld.shared.b32 %r1, [%r3];"""
            + at("out", 4)
            + "st.global.b32 [%address], %r1;"
        )
        run(body, {"a": source, "out": out}, 128, shared=".shared .align 4 .b8 buffer[512];",
            options=Options(schedule=schedule, seed=5, checks=True))  # fmt: skip
        results.append(out)
    np.testing.assert_array_equal(results[0], source[np.arange(128) ^ 77])
    np.testing.assert_array_equal(results[1], results[0])
    np.testing.assert_array_equal(results[2], results[0])


@pytest.mark.parametrize(
    ("body", "what"),
    [
        (".reg .b128 %q;\nld.global.b128 %q, [%p_out];", "type .b128 are not modelled"),
        (".reg .b128 %q;\nmov.b128 %q, {%d1, %d1};", "type .b128 are not modelled"),
        ("ld.const.b32 %r1, [%p_out];", "space .const is not modelled"),
        ("add.u32 %r1, %clock, 0;", "only mov reads it"),
        ("add.u64 %d1, %clock64, 0;", "only mov reads it"),
    ],
)
def test_what_is_not_known_is_refused(body, what):
    with pytest.raises(PtxError, match=what):
        run(body, {"out": np.zeros(1, np.uint32)})


def test_variables_of_the_module_are_refused():
    text = kernel_text("mov.u64 %d1, table;", {"out": 0})
    text = text.replace(".visible .entry", ".global .align 4 .u32 table[2] = {3, 4};\n.visible .entry")
    with pytest.raises(PtxError, match="table is in the module's memory"):
        launch(text, Launch((1, 1, 1), (32, 1, 1), (TensorParam("out", (), ()),)), {"out": np.zeros(1, np.uint32)})


@pytest.mark.parametrize(
    "body",
    [
        "st.param.b64 [param_out], %p_out;",
        "cvta.param.u64 %d1, param_out;\nst.b64 [%d1], %p_out;",
    ],
)
def test_parameters_are_constant(body):
    with pytest.raises(FaultError, match="parameters cannot be written"):
        run(body, {"out": np.zeros(1, np.uint32)})


@pytest.mark.differs_on_hardware("NVIDIA's assembler refuses its text")
def test_an_empty_statement_does_nothing():
    out = np.zeros(32, np.uint32)
    run("{ mov.u32 %r1, 1; };;\n" + at("out", 4) + "st.global.b32 [%address], %r1;", {"out": out})
    assert (out == 1).all()


def test_hints_change_nothing(rng):
    a, out = integers(rng, np.uint32, 32), np.zeros(32, np.uint32)
    body = (
        at("a", 4)
        + """prefetch.global.L2 [%address];
    prefetchu.L1 [%address];
    applypriority.global.L2::evict_normal [%p_a], 128;
    griddepcontrol.wait;
    griddepcontrol.launch_dependents;
    nanosleep.u32 20;
    ldu.global.b32 %r1, [%address];
"""
    )
    run(body + at("out", 4) + "st.global.b32 [%address], %r1;", {"a": a, "out": out})
    np.testing.assert_array_equal(out, a)


@pytest.mark.differs_on_hardware("it needs a profiler, a larger register file, or gives memory up")
def test_hints_for_others_change_nothing(rng):
    a, out = integers(rng, np.uint32, 32), np.zeros(32, np.uint32)
    body = "pmevent 1;\nsetmaxnreg.inc.sync.aligned.u32 64;\n" + at("a", 4) + "ld.global.b32 %r1, [%address];\n"
    run(
        body + "discard.global.L2 [%p_a], 128;\n" + at("out", 4) + "st.global.b32 [%address], %r1;",
        {"a": a, "out": out},
    )
    np.testing.assert_array_equal(out, a)

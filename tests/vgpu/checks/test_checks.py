"""Kernels with a fault of each kind, written for the purpose: the check that is for it finds it, and says where."""

from __future__ import annotations

import numpy as np
import pytest

from gemmule.core.errors import ArgumentError, DTypeError
from gemmule.core.launch import Launch, TensorParam
from gemmule.vgpu import CheckError, FaultError, Options, launch
from support.ptx.snippets import at, exchange, kernel_text, run

BUFFER = ".shared .align 4 .b8 buffer[1024];"
STORE = at("out", 4) + "st.global.b32 [%address], %r2;"


def findings(body, threads=64, ctas=1, shared=BUFFER, arrays=None, schedule="late"):
    arrays = arrays or {"out": np.zeros(threads * ctas, np.uint32)}
    try:
        run(body, arrays, threads, ctas, shared, Options(checks=True, schedule=schedule))
    except CheckError as error:
        return error.findings
    return ()


@pytest.mark.parametrize("schedule", ["late", "random"])
@pytest.mark.differs_on_hardware("it has a race")
def test_a_read_without_a_barrier(schedule):
    (finding,) = findings(".loc 1 4 0\n" + exchange(barrier=".loc 1 5 0\n") + STORE, schedule=schedule)
    assert finding.kind == "race"
    assert finding.space == "shared"
    assert finding.cta == (0, 0, 0)
    assert finding.source in ("snippet.py:4", "snippet.py:5")


def test_who_wrote_is_said():
    (finding,) = findings(".loc 1 4 0\n" + exchange(barrier=".loc 1 5 0\n") + STORE, ctas=2)
    assert finding.source == "snippet.py:5"
    assert "warp 1 wrote it at snippet.py:4" in str(finding)
    assert finding.lanes == tuple(range(32))
    assert finding.address == 1024 + 128
    assert finding.times == 1


def test_a_barrier_of_some_warps_orders_only_them():
    body = """setp.lt.u32 %p1, %tid, 64;
    @%p1 bar.sync 1, 64;
"""
    assert findings(exchange(body) + STORE, threads=64) == ()
    assert {x.kind for x in findings(exchange(body, shift=64) + STORE, threads=128)} == {"race"}


def test_overwriting_before_others_have_read():
    loop = exchange() + ".loc 1 12 0\nmad.lo.u32 %r3, %tid, 4, %r1;\nst.shared.b32 [%r3], 5;\n"
    (finding,) = findings(loop + STORE)
    assert (finding.kind, finding.source) == ("race", "snippet.py:12")
    assert "read it" in str(finding)
    assert findings(loop.replace(".loc 1 12", "bar.sync 0;\n.loc 1 12") + STORE) == ()


def test_two_warps_write_one_place():
    body = "mov.u32 %r1, buffer;\nst.shared.b32 [%r1], %tid;\nmov.u32 %r2, 0;"
    (finding,) = findings(body + STORE)
    assert "at the same time" in str(finding)
    assert (
        findings(
            "setp.lt.u32 %p1, %tid, 32;\nmov.u32 %r1, buffer;\n@%p1 st.shared.b32 [%r1], 7;mov.u32 %r2, 0;" + STORE
        )
        == ()
    )


def test_neighbouring_bytes_do_not_race():
    body = "mov.u32 %r1, buffer;\nadd.u32 %r1, %r1, %tid;\nst.shared.b8 [%r1], %tid;\nmov.u32 %r2, 0;"
    assert findings(body + STORE) == ()


def test_atomics_do_not_race_with_each_other_but_with_others():
    body = "mov.u32 %r1, buffer;\nred.shared.add.u32 [%r1], 1;\nmov.u32 %r2, 0;"
    zero = "mov.u32 %r1, buffer;\nsetp.eq.u32 %p1, %tid, 0;\n@%p1 st.shared.b32 [%r1], 0;bar.sync 0;"
    assert findings(zero + body + STORE) == ()
    assert {x.kind for x in findings(zero + body + "ld.shared.b32 %r2, [%r1];" + STORE)} == {"race"}


def test_ctas_write_one_place_in_global_memory():
    body = at("out", 4, "%tid") + ".loc 1 3 0\nst.global.b32 [%address], %cta;"
    (finding,) = findings(body, 32, 2)
    assert (finding.kind, finding.space, finding.source) == ("race", "global", "snippet.py:3")
    assert "operand out" in str(finding)
    assert findings(body, 32, 1) == ()


def test_a_cta_reads_what_another_wrote():
    body = at("out", 4) + "st.global.b32 [%address], %tid;ld.global.b32 %r1, [%p_out];"
    found = findings(body, 32, 3)
    assert {finding.kind for finding in found} == {"race"}
    assert any("CTA (0, 0, 0) wrote it" in str(finding) or "read it" in str(finding) for finding in found)


def test_warps_exchange_through_global_memory():
    body = at("out", 4) + "st.global.b32 [%address], %tid;{}xor.b32 %r1, %tid, 32;" + at("out", 4, "%r1")
    body += "ld.global.b32 %r2, [%address];"
    assert findings(body.format("bar.sync 0;"), 64) == ()
    assert {x.kind for x in findings(body.format(""), 64)} == {"race"}


@pytest.mark.differs_on_hardware("it reads what nobody wrote")
def test_shared_memory_that_nobody_wrote():
    body = "mov.u32 %r1, buffer;\nmad.lo.u32 %r1, %tid, 4, %r1;\n.loc 1 6 0\nld.shared.b32 %r2, [%r1];.loc 1 7 0\n"
    (finding,) = findings(body + STORE)
    assert (finding.kind, finding.source) == ("uninitialised", "snippet.py:7")
    assert (
        "loaded at snippet.py:6 from 4 bytes at byte 0 of buffer (0x400 of shared memory), which no thread wrote"
        in str(finding)
    )


def test_loading_without_use_is_allowed():
    body = "mov.u32 %r1, buffer;\nmad.lo.u32 %r1, %tid, 4, %r1;\nld.shared.b32 %r3, [%r1];\n"
    body += "mov.u32 %r4, %r3;\nmov.u32 %r2, 0;"
    assert findings(body + STORE) == ()


@pytest.mark.differs_on_hardware("it reads what nobody wrote")
@pytest.mark.parametrize(("selector", "found"), [("0x1U", 0), ("0x5410U", 1), ("%tid", 1)])
def test_a_register_of_which_no_byte_is_chosen(selector, found):
    """The compiler names any register where it chooses bytes of the other one alone."""
    body = f"mov.u32 %r1, 5;\nprmt.b32 %r2, %r1, %r7, {selector};\n"
    assert [finding.kind for finding in findings(body + STORE)] == ["uninitialised"] * found


@pytest.mark.differs_on_hardware("it reads what nobody wrote")
@pytest.mark.parametrize(
    ("use", "found"), [("dp2a.lo.u32.u32 %r2, %r1, {}, %r1;", 0), ("dp2a.hi.u32.u32 %r2, %r1, {}, %r1;", 1),
                       ("dp4a.u32.u32 %r2, %r1, {}, %r1;", 1), ("dp2a.lo.u32.u32 %r2, {}, %r1, %r1;", 1)],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("words", [1, 2])
def test_bytes_that_a_dot_product_does_not_read(use, found, words):
    """The compiler packs what a dot product of two numbers reads, and names any register for the other bytes."""
    body = "mov.u32 %r1, 5;\nprmt.b32 %r3, %r1, %tid, 0x3340U;\n"
    word = "%r5" if words == 2 else "%r4"
    # Two bytes of the one word, and two that nobody wrote, of one register or of another word of two.
    body += f"prmt.b32 {word}, %r7, %r8, 0x3340U;\n" * (words == 2)
    body += f"prmt.b32 %r4, %r3, {word if words == 2 else '%r7'}, 0x5410U;\n"
    kinds = {finding.kind for finding in findings(body + use.format("%r4") + STORE)}
    assert kinds == ({"uninitialised"} if found else set())


@pytest.mark.differs_on_hardware("it reads what nobody wrote")
@pytest.mark.parametrize(
    ("position", "length", "part", "found"),
    [(8, 8, "lo", 0), (8, 8, "hi", 1), (0, 16, "lo", 0), (0, 8, "lo", 1), (8, 4, "lo", 1), (0, 32, "hi", 0)],
)
def test_bytes_that_a_bit_field_replaces(position, length, part, found):
    """A dot product of the low two bytes, of which a bit field of whole bytes is inserted into a packed word."""
    body = "mov.u32 %r1, 5;\nprmt.b32 %r3, %r1, %r7, 0x3340U;\nprmt.b32 %r4, %r3, %r8, 0x5410U;\n"
    body += f"bfi.b32 %r5, %tid, %r4, {position}, {length};\ndp2a.{part}.u32.u32 %r2, %r1, %r5, %r1;\n"
    kinds = {finding.kind for finding in findings(body + STORE)}
    assert kinds == ({"uninitialised"} if found else set())


@pytest.mark.differs_on_hardware("it reads what nobody wrote")
def test_copies_of_what_nobody_wrote_are_followed():
    body = """mov.u32 %r1, buffer;
    ld.shared.b32 %r3, [%r1];
    setp.eq.u32 %p1, %tid, 5;
    @!%p1 bra OTHERS;
    mov.u32 %r4, %r3;
    bra JOIN;
OTHERS:
    mov.u32 %r4, 1;
JOIN:
    mov.u32 %r2, %r4;
"""
    (finding,) = findings(body + STORE, threads=32)
    assert finding.lanes == (5,)


@pytest.mark.differs_on_hardware("it reads what nobody wrote")
def test_registers_that_were_not_written():
    body = """setp.eq.u32 %p1, %tid, 7;
    @%p1 bra SKIP;
    mov.u32 %r5, 1;
SKIP:
    .loc 1 9 0
    add.u32 %r2, %r5, 1;
"""
    (finding,) = findings(body + STORE, threads=32)
    assert (finding.kind, finding.lanes, finding.source) == ("uninitialised", (7,), "snippet.py:9")
    assert "%r5" in str(finding)


@pytest.mark.differs_on_hardware("it reads where nobody knows")
def test_an_address_that_was_not_written_is_told_before_its_fault():
    body = """.loc 1 9 0
    cvt.u64.u32 %address, %r5;
    ld.global.b32 %r2, [%address];
"""
    found = findings(body + STORE, threads=32)
    assert [finding.kind for finding in found] == ["uninitialised", "out of bounds"]
    assert "%address, computed in" in str(found[0])


def test_half_a_warp_at_a_barrier_for_whole_warps():
    body = """setp.lt.u32 %p1, %lane, 16;
    @%p1 bra A;
    bar.sync 0;
    bra JOIN;
A:
    bar.sync 0;
JOIN:
    mov.u32 %r2, 0;
"""
    assert {finding.kind for finding in findings(body + STORE)} == {"barrier"}
    assert findings(body.replace("bar.sync", "barrier.sync") + STORE) == ()


@pytest.mark.parametrize("leave", ["@%p1 bra END;", "@%p1 ret;"])
@pytest.mark.parametrize("threads", [32, 20])
def test_threads_that_have_ended_are_not_waited_for(leave, threads):
    """PTX lets threads end before a barrier, by whatever way: warps, and some lanes of one."""
    body = f"setp.ge.u32 %p1, %tid, {threads};\n{leave}\nbar.sync 0;\nmov.u32 %r2, 0;"
    assert findings(body + STORE + "\nEND:\n") == ()


def test_lanes_that_pass_a_barrier_of_others_by():
    body = "mov.u32 %r2, 0;\nsetp.ge.u32 %p1, %lane, 16;\n@%p1 bra OVER;\nbar.sync 0;\nOVER:\nadd.u32 %r2, %r2, 1;"
    (found,) = findings(body + STORE)
    assert "lanes 16-31 have passed it by" in str(found)


def test_arrivals_that_nobody_awaits():
    found = findings("setp.lt.u32 %p1, %tid, 32;\n@%p1 bar.arrive 2, 64;\nmov.u32 %r2, 0;" + STORE)
    assert [finding.kind for finding in found] == ["barrier"]
    assert "never completed" in str(found[0])


@pytest.mark.differs_on_hardware("it has a race")
def test_the_same_place_is_reported_once():
    found = findings(exchange(barrier="") + STORE, threads=128, ctas=64)
    assert len(found) == 1


TABLE = "mov.u32 %r1, buffer;\nmov.u32 %r3, 1;\n"


@pytest.mark.differs_on_hardware("it reads what nobody wrote")
@pytest.mark.parametrize("operation", ["red.shared.add.u32 [%r1], %r3;", "atom.shared.max.u32 %r4, [%r1], %r3;"])
def test_atomics_on_what_nobody_wrote(operation):
    (finding,) = findings(TABLE + operation + "mov.u32 %r2, 0;" + STORE, 32)
    assert (finding.kind, finding.space, finding.address) == ("uninitialised", "shared", 1024)
    zero = "setp.eq.u32 %p1, %tid, 0;\n@%p1 st.shared.b32 [%r1], 0;\nbar.sync 0;\n"
    assert findings(TABLE + zero + operation + "mov.u32 %r2, 0;" + STORE, 32) == ()


@pytest.mark.differs_on_hardware("it reads what nobody wrote")
def test_an_exchange_uses_what_nobody_wrote_only_if_the_kernel_does():
    swap = TABLE + "setp.eq.u32 %p1, %tid, 0;\n@%p1 atom.shared.exch.b32 %r4, [%r1], %r3;\nmov.u32 %r2, 0;\n"
    assert findings(swap + STORE, 32) == ()
    (finding,) = findings(swap + "@%p1 add.u32 %r2, %r4, 1;\n" + STORE, 32)
    assert (finding.kind, finding.lanes) == ("uninitialised", (0,))


@pytest.mark.differs_on_hardware("it reads what nobody wrote")
def test_guards_say_which_lanes_write_and_use():
    half = "setp.lt.u32 %p1, %lane, 16;\nmov.u32 %r2, 0;\n@%p1 mov.u32 %r5, 7;\n"
    (finding,) = findings(half + "add.u32 %r2, %r5, 1;" + STORE, 32)
    assert (finding.kind, finding.lanes) == ("uninitialised", tuple(range(16, 32)))
    assert findings(half + "@%p1 add.u32 %r2, %r5, 1;" + STORE, 32) == ()
    (finding,) = findings(half + "@!%p1 add.u32 %r2, %r5, 1;" + STORE, 32)
    assert finding.lanes == tuple(range(16, 32))


@pytest.mark.differs_on_hardware("it reads what nobody wrote")
def test_each_item_of_a_vector_is_followed():
    body = TABLE + "st.shared.b32 [%r1], %r3;\nst.shared.b32 [%r1+8], %r3;\nbar.sync 0;\n"
    body += "ld.shared.v4.b32 {%r5, %r6, %r7, %r8}, [%r1];\n"
    assert findings(body + "add.u32 %r2, %r5, %r7;" + STORE, 32, shared=BUFFER.replace("align 4", "align 16")) == ()
    (finding,) = findings(body + "add.u32 %r2, %r5, %r8;" + STORE, 32, shared=BUFFER.replace("align 4", "align 16"))
    assert finding.kind == "uninitialised"
    assert "%r8, loaded at snippet.py:1 from 4 bytes at byte 12 of buffer (0x40c of shared memory)" in str(finding)


def test_a_copy_reads_its_source_until_it_is_awaited():
    body = "mov.u32 %r1, buffer;\nmad.lo.u32 %r3, %tid, 4, %r1;\nmov.u32 %r2, 0;\n" + at("out", 4)
    body += "cp.async.ca.shared.global [%r3], [%address], 4;\n"
    store, wait = "st.global.b32 [%address], %r2;\n", "cp.async.wait_all;\n"
    (finding,) = findings(body + store + wait, 32)
    assert (finding.kind, finding.space, finding.address) == ("race", "global", 0)
    assert "copy reads it" in str(finding)
    assert findings(body + wait + store, 32) == ()


def test_stores_between_the_elements_of_a_strided_operand():
    whole = np.zeros((4, 8), np.uint32)
    body = "setp.eq.u32 %p1, %tid, 0;\n@%p1 st.global.b32 [%p_out+{}], %tid;"
    (finding,) = findings(body.format(24), 32, arrays={"out": whole[:, :5]})
    assert (finding.kind, finding.space, finding.address) == ("out of bounds", "global", 24)
    assert findings(body.format(16), 32, arrays={"out": whole[:, :5]}) == ()
    # The gap of one operand is another's element.
    assert findings(body.format(24), 32, arrays={"out": whole[:, :5], "rest": whole[:, 5:]}) == ()


def test_a_fault_says_where_in_the_operand():
    out = np.zeros(32, np.uint32)
    with pytest.raises(FaultError) as caught:
        run("st.global.b32 [%p_out+128], %tid;", {"first": np.zeros(7, np.uint8), "out": out})
    assert caught.value.findings[0].address == 128
    with pytest.raises(FaultError, match="byte 2 of operand out"):
        run("st.global.b32 [%p_out+2], %tid;", {"out": out})


def test_what_is_written_is_kept_whatever_else_is_wrong():
    fixed, out = np.zeros(32, np.uint32), np.zeros(32, np.uint32)
    fixed.flags.writeable = False
    body = "st.global.b32 [%p_fixed], 5;\n" + at("out", 4, "%lane") + "st.global.b32 [%address], 6;"
    arrays = {"fixed": fixed, "out": out}
    with pytest.raises(ArgumentError, match="operand fixed, which is read-only"):
        run(body, arrays, options=Options())
    assert (out == 6).all()
    out[...] = 0
    with pytest.raises(CheckError, match="race"):
        run(body, arrays, 64, options=Options(checks=True))
    assert (out == 6).all()


@pytest.mark.parametrize("order", ["xy", "yx"])
def test_memory_may_be_written_through_one_of_two_operands(order):
    y = np.arange(32, dtype=np.uint32)
    x = y.view()
    x.flags.writeable = False
    body = at("x", 4) + "ld.global.b32 %r1, [%address];\nadd.u32 %r1, %r1, 1;\nst.global.b32 [%p_y+4], 9;"
    run(body, {name: {"x": x, "y": y}[name] for name in order}, options=Options())
    assert y[:3].tolist() == [0, 9, 2]


def test_elements_that_memory_cannot_hold():
    with pytest.raises(DTypeError, match="elements of 3 bytes"):
        run("mov.u32 %r1, 1;", {"out": np.zeros(4, "S3")})
    with pytest.raises(DTypeError, match="operand out is >f4, in the byte order of other machines"):
        run("", {"out": np.zeros(4, ">f4")})


def test_a_launch_without_operands():
    text = kernel_text("mov.u64 %d1, 0;\nst.global.b32 [%d1], %tid;", {"out": 0}).replace("ld.param.u64 %p_out", "//")
    with pytest.raises(FaultError, match="the launch has no arrays"):
        launch(text.replace("\t.param .u64 param_out", ""), Launch((1, 1, 1), (32, 1, 1), ()), {})


@pytest.mark.parametrize(
    ("directive", "grid", "block", "message"),
    [
        (".reqntid 128, 1, 1", (1, 1, 1), (64, 1, 1), "compiled with .reqntid 128"),
        (".reqntid 64", (1, 1, 1), (32, 2, 1), "compiled with .reqntid 64"),
        (".maxntid 32, 1, 1", (1, 1, 1), (64, 1, 1), "compiled with .maxntid 32"),
        ("", (1, 65536, 1), (64, 1, 1), "which must be"),
        ("", (1, 1, 65536), (64, 1, 1), "which must be"),
        ("", (1, 1, 1), (1, 1, 65), "which must be"),
    ],
)
def test_limits_of_a_launch(directive, grid, block, message):
    text = kernel_text("mov.u32 %r1, 1;", {"out": 0}).replace(")\n{", f")\n{directive}\n{{")
    recipe = Launch(grid, block, (TensorParam("out", (), ()),))
    with pytest.raises(ArgumentError, match=message):
        launch(text, recipe, {"out": np.zeros(1, np.uint32)}, ctas=range(1))


@pytest.mark.differs_on_hardware("NVIDIA's assembler refuses its text")
def test_a_launch_that_fits_its_directives():
    out = np.zeros(64, np.uint32)
    text = kernel_text(at("out", 4) + "st.global.b32 [%address], 1;", {"out": 0})
    text = text.replace(")\n{", ")\n.reqntid 64, 1, 1\n.maxntid 64, 1, 1\n{")
    launch(text, Launch((1, 1, 1), (64, 1, 1), (TensorParam("out", (), ()),)), {"out": out})
    assert (out == 1).all()

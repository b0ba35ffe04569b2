"""The PTX front end: every statement understood or refused, none lost."""

from __future__ import annotations

import numpy as np
import pytest

from gemmule.core.errors import UnsupportedError
from gemmule.core.launch import Launch, TensorParam
from gemmule.vgpu import Options, launch
from gemmule.vgpu.dataflow.control_flow import flow_of
from gemmule.vgpu.engine.program import Program
from gemmule.vgpu.ptx.errors import PtxError
from gemmule.vgpu.ptx.module import Address, Immediate, Register, Symbol
from gemmule.vgpu.ptx.parser import parse
from support.ptx.snippets import kernel_text, run


def parsed(body, shared=""):
    return parse(kernel_text(body, ["a"], shared))


def test_a_loc_does_not_swallow_the_instruction_behind_it():
    kernel = parsed(".loc 1 3 4\n\tadd.u32 %r1, %tid, 1;\n\t.loc\t1 5 6, function_name $L__x, inlined_at 1 2 3\n\tret;")
    add, end = kernel.instructions[-3:-1]
    assert (add.name, str(add.source), add.source.column) == ("add", "snippet.py:3", 4)
    assert (end.name, str(end.source)) == ("ret", "snippet.py:5")


def lines(body):
    return [None if one.source is None else one.source.line for one in parsed(body).instructions[-4:-1]]


def test_inline_assembly_belongs_to_the_line_that_it_stands_in():
    # NVVM counts its lines on from there.
    body = (
        ".loc 1 30 4\nmov.u32 %r1, 1;\n// begin inline asm\n{\n.loc 1 32 4\nWAIT:\n.loc 1 33 4\n"
        "add.u32 %r1, %tid, 1;\n}\n// end inline asm\nadd.u32 %r1, %tid, 2;\n"
    )
    assert lines(body) == [30, 30, 30]


def test_a_place_without_a_column_is_that_of_the_statement_before():
    body = ".loc 1 5 0\nmov.u32 %r1, 1;\n.loc 1 30 4\nmov.u32 %r1, 1;\n.loc 1 5 0\nadd.u32 %r1, %tid, 1;\n"
    assert lines(body) == [5, 30, 30]
    # Code behind a label may come from anywhere.
    assert lines(body.replace("add", "\nLABEL:\n.loc 1 5 0\nadd")) == [5, 30, 5]


def test_every_semicolon_is_accounted_for():
    with pytest.raises(UnsupportedError, match="semicolons more"):
        parsed(".loc 1 5 0; add.u32 %r1, %tid, 1;")


def test_comments_and_strings_are_no_code():
    kernel = parsed(
        '// add.u32 %r1, 1, 1;\n/* sub.u32 %r1,\n 1, 1; */\n.pragma "nounroll; mov";\nxor.b32 %r1, %tid, 3; // tail;'
    )
    names = [instruction.name for instruction in kernel.instructions]
    assert names.count("xor") == 1
    assert "sub" not in names


def test_inline_assembly_repeats_labels_and_registers():
    block = """{
    .reg .pred P1;
    .reg .b32 t;
    mov.u32 t, STEP;
    setp.eq.u32 P1, %r2, t;
    @P1 bra DONE;
    add.u32 %r2, %r2, t;
DONE:
    }
"""
    out = np.zeros(32, np.uint32)
    body = "mov.u32 %r2, 1;\n" + "".join(block.replace("STEP", str(step)) for step in (2, 3, 4))
    body += "mul.wide.u32 %offset, %tid, 4;\nadd.u64 %address, %p_out, %offset;\nst.global.b32 [%address], %r2;"
    run(body, {"out": out}, options=Options(checks=True))
    # 1 + 2, then equal to 3, then + 4.
    assert (out == 7).all()


def test_operands():
    kernel = parsed("ld.global.b32 %r1, [%p_a+-16];\nld.shared.b32 %r2, [buffer+8];\nmov.b32 %r3, 0fC0000000;",
                    ".shared .align 16 .b8 buffer[64];")  # fmt: skip
    load, shared, move = kernel.instructions[-4:-1]
    assert isinstance(load.operands[1], Address)
    assert isinstance(load.operands[1].base, Register)
    assert load.operands[1].offset == -16
    assert shared.operands[1].base == Symbol("buffer", 8)
    assert move.operands[1] == Immediate(0xC0000000, 32)


def test_code_of_the_toolkit_has_the_line_that_calls_it():
    """Other code that is inlined has its own; the same function is called in several places, or by another."""
    body = """
    .loc 2 202 3, function_name $L__a, inlined_at 1 15 7
    mov.u32 %r1, 1;
    .loc 2 202 3, function_name $L__a, inlined_at 1 40 7
    mov.u32 %r1, 2;
    .loc 2 9 3, function_name $L__b, inlined_at 2 202 3
    mov.u32 %r1, 3;
    .loc 3 12 1, function_name $L__c, inlined_at 1 50 2
    mov.u32 %r1, 4;
    .loc 2 30 1
    mov.u32 %r1, 5;
    """
    files = '.file 2 "/usr/local/cuda/targets/x86_64-linux/include/atomics.hpp"\n.file 3 "/home/me/include/own.cuh"\n'
    found = [instruction.source for instruction in parsed(files + body).instructions if instruction.name == "mov"]
    assert [source.line for source in found][-5:] == [15, 40, 40, 12, 30]


def test_blocks():
    kernel = parsed(
        "setp.eq.u32 %p1, %tid, 1;\n@%p1 bra A;\nadd.u32 %r1, %tid, 1;\nA:\nbar.sync 0;\nsub.u32 %r1, %tid, 1;"
    )
    blocks = flow_of(kernel).blocks
    assert [instruction.index for block in blocks for instruction in block.instructions] == list(
        range(len(kernel.instructions))
    )
    assert blocks[0].successors == (2, 1)
    assert [instruction.name for instruction in blocks[2].instructions] == ["bar"]


@pytest.mark.parametrize(
    ("body", "rule"),
    [
        ("frobnicate.u32 %r1, %r2;", "does not model this instruction"),
        ("add.frob.u32 %r1, %r2, %r3;", "modifier .frob"),
        ("add.u32 %r1, %r2;", "3 operands"),
        ("add.u32 %r1, %d1, %r3;", "%d1 is a .b64 register"),
        ("add.u32 %q1, %r2, %r3;", "no register"),
        ("bra NOWHERE;", "no register, variable, label"),
        ("mov.u32 %r1, %nonsense;", "known special register"),
        ("ld.global.b32 %r1, %d1;", "address in brackets"),
        ("ld.global.b32 %r1, [%r2];", "64 bits"),
        ("ld.frob.b32 %r1, [%d1];", "modifier .frob"),
        ("fma.rz.f64 %d1, %d2, %d3, %d4;", "only .rn is"),
        ("cvt.f32.s32 %r1, %r2, %r3;", "operands"),
        ("cvt.u32.f32 %r1, %r2;", "needs .rni"),
        ("mma.sync.aligned.m16n8k99.row.col.f32.f16.f16.f32 {%r1}, {%r2}, {%r3}, {%r4};", "not modelled"),
        ("tcgen05.wait::ld.sync.aligned;", "tensor cores of Blackwell are not modelled yet"),
        ("tcgen05.mma.cta_group::2.kind::f16 [%r1], %d1, %d2, %r3, {%r4, %r5}, %p1;", "not modelled yet; compile for"),
        (
            "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%r1], [%r2], %r3, [%r4];",
            "between shared memories",
        ),
        ("wgmma.mma_async.sync.aligned.m64n12k16.f32.f16.f16 {%r1}, %d1, %d2, 1, 1, 1, 0, 0;", "not modelled"),
        ("call foo;", "functions that kernels call are not modelled"),
        ("ld.param.b32 %r1, [param_a+8];", "outside of the kernel's parameters"),
        ("setp.lt.b32 %p1, %r1, %r2;", "equal or not equal"),
        ("mov.u32 %r1, 0d3FF0000000000000;", "is no .u32"),
        ("cp.async.cg.shared.global [%r1], [%d1], 4;", "16"),
    ],
)
def test_what_is_not_known_stops_with_its_text_and_line(body, rule):
    text = kernel_text("\n\n" + body, ["a"])
    with pytest.raises(UnsupportedError, match=rule) as caught:
        Program(parse(text))
    if isinstance(caught.value, PtxError):
        line = text.split("\n").index(body) + 1
        assert f"PTX line {line}: '{body.rstrip(';')}'" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("", "holds none"),
        (kernel_text("", ["a"]) * 2, "holds test, test|twice"),
        (kernel_text("", ["a"])[:-40], "cut off|ends before"),
        (kernel_text("A:\nA:", ["a"]), "stands twice"),
        (kernel_text(".frob 3;", ["a"]), "directive is not known"),
        (kernel_text("?", ["a"]), "no statement starts"),
    ],
)
def test_texts_that_are_no_kernel(text, rule):
    with pytest.raises(UnsupportedError, match=rule):
        parse(text)


def test_one_of_several_kernels_by_its_name():
    """As nvcc writes them: a file holds all kernels of a source."""
    texts = [kernel_text(f"st.global.b32 [%p_out], {number};", {"out": 0}) for number in (1, 2)]
    text = texts[0] + texts[1][texts[1].index(".visible") :].replace("test(", "other(")
    recipe = Launch((1, 1, 1), (1, 1, 1), (TensorParam("out", (), ()),))
    for entry, number in (("test", 1), ("other", 2)):
        out = np.zeros(1, np.uint32)
        launch(text, recipe, {"out": out}, options=Options(checks=True), entry=entry)
        assert out[0] == number
    for entry, message in (
        (None, "must hold one kernel, but holds test, other; name one, entry='test'"),
        ("third", "has no kernel third; it has test, other"),
    ):
        with pytest.raises(UnsupportedError, match=message):
            launch(text, recipe, {"out": np.zeros(1, np.uint32)}, entry=entry)

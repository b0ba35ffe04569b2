"""Fragments for mma.sync: loads from a swizzled stage into the registers of a warp, by ldmatrix."""

from __future__ import annotations

import cutlass
from cutlass import Int32, cute

from gemmule.kernels.parts.swizzled_stage import SwizzledStage


@cute.jit
def read_fragment(words, start, layout: cutlass.Constexpr[SwizzledStage], i: cutlass.Constexpr[int], step):
    """Read this thread's 4 words of 16 rows and 32 bytes of K.

    Parameters
    ----------
    words : Tensor
        Registers.
    start : Int32
        Address of the stage, a multiple of 128, plus this thread's offset in it.
    layout : SwizzledStage
        Layout of the stage.
    i, step : int
        Which fragment of the warp, and of which 32 bytes of K.
    """
    if cutlass.const_expr(layout.itemsize == 4 and not layout.k_major):
        for word in cutlass.range_constexpr(4):
            words[word] = _load_word(_moved(start, layout.fragment_step(i, step, word)))
    else:
        _ldmatrix(words, _moved(start, layout.fragment_step(i, step, 0)), not layout.k_major)


@cute.jit
def finish_fragment(words, layout: cutlass.Constexpr[SwizzledStage]):
    """Permute and round the words, which loads cannot do: just before they are multiplied, not when they are loaded."""
    if cutlass.const_expr(layout.paired_rows):
        _sort_bytes(words, layout)
    if cutlass.const_expr(layout.itemsize == 4):
        for word in cutlass.range_constexpr(4):
            words[word] = _rounded_to_tf32(words[word])


def _moved(start, step: tuple[int, int]):
    change, plus = step
    return (start ^ change) + plus


@cute.jit
def _ldmatrix(words: cute.Tensor, address, transposed: cutlass.Constexpr[bool]):
    """Load four matrices of 8 rows of 16 bytes; each lane gives the address of one row."""
    kind = cutlass.const_expr(".trans" if transposed else "")
    loaded = cute.arch.inline_ptx(
        f"ldmatrix.sync.aligned.m8n8.x4{kind}.shared.b16 {{{{$w0}}, {{$w1}}, {{$w2}}, {{$w3}}}}, [{{$r0}}];",
        write_only_types=[Int32] * 4,
        read_only_args=[address],
    )
    for i in cutlass.range_constexpr(4):
        words[i] = loaded[i]


@cute.jit
def _load_word(address):
    return cute.arch.inline_ptx("ld.shared.b32 {$w0}, [{$r0}];", write_only_types=[Int32], read_only_args=[address])


@cute.jit
def _sort_bytes(words: cute.Tensor, layout: cutlass.Constexpr[SwizzledStage]):
    """Turn words of (row 2g, row 2g + 1) of two k into words of one row and four k."""
    pairs = cute.make_rmem_tensor(cute.make_layout(4), Int32)
    cute.autovec_copy(words, pairs)
    for word in cutlass.range_constexpr(4):
        row, k = cutlass.const_expr(layout.half_of(word))
        words[word] = cute.arch.inline_ptx(
            f"prmt.b32 {{$w0}}, {{$r0}}, {{$r1}}, {(0x6420, 0x7531)[row]};",
            write_only_types=[Int32],
            read_only_args=[pairs[2 * k], pairs[2 * k + 1]],
        )


@cute.jit
def _rounded_to_tf32(word):
    """Round a float32 to the nearest TF32; mma.sync by itself would cut its last bits off."""
    return cute.arch.inline_ptx("cvt.rna.tf32.f32 {$w0}, {$r0};", write_only_types=[Int32], read_only_args=[word])

"""A warp's blocks of 16 x 16 elements of 16 bits between registers and shared memory: stmatrix and ldmatrix."""

from __future__ import annotations

import cutlass
from cutlass import Int32, cute


@cute.jit
def store_matrices(address, words: cute.Tensor, transposed: cutlass.Constexpr[bool] = False):
    """Write 8 x 8 matrices of 16-bit elements, four or two.

    Parameters
    ----------
    address : Int32
        Where this lane's row of 8 elements begins in shared memory: lanes 0 to 7 give the rows of the first matrix,
        8 to 15 those of the second, and so on.
    words : Tensor
        Two contiguous elements of each matrix: of row lane // 4, columns 2 * (lane % 4) and the next.
    transposed : bool
        Whether to write the matrices' transposes (``.trans``).
    """
    trans = ".trans" if transposed else ""
    if cutlass.const_expr(cute.size(words) == 4):
        cute.arch.inline_ptx(
            f"stmatrix.sync.aligned.m8n8.x4{trans}.shared.b16 [{{$r0}}], {{{{$r1}}, {{$r2}}, {{$r3}}, {{$r4}}}};",
            read_only_args=[address, words[0], words[1], words[2], words[3]],
        )
    else:
        cute.arch.inline_ptx(
            f"stmatrix.sync.aligned.m8n8.x2{trans}.shared.b16 [{{$r0}}], {{{{$r1}}, {{$r2}}}};",
            read_only_args=[address, words[0], words[1]],
        )


@cute.jit
def load_matrices(address, count: cutlass.Constexpr[int] = 4, transposed: cutlass.Constexpr[bool] = False):
    """Return the words, four or two, that `store_matrices` would write."""
    names = ", ".join(f"{{$w{w}}}" for w in range(count))
    trans = ".trans" if transposed else ""
    return cute.arch.inline_ptx(
        f"ldmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 {{{names}}}, [{{$r0}}];",
        write_only_types=[Int32] * count,
        read_only_args=[address],
    )

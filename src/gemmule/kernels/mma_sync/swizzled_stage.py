"""Stages for mma.sync in shared memory: lines of contiguous elements whose 16-byte chunks are swizzled.

Chunk c of line l is stored as chunk ``c xor l``: the same chunk of 8 lines, which ldmatrix reads at once, and the 8
chunks of a line, which copies write at once, are both in different banks. For elements of 16 bits and lines of 64,
this is CuTe's Swizzle<3,3,3> on the layout (rows, 64):(64, 1).

The number of threads and the sides of k-tiles are powers of two, or the distances between a thread's lines are. Offsets
of steps, and their changes of the swizzle, are then compile-time constants.
"""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import Int32, cute

from gemmule.core.dataclass import dataclass
from gemmule.kernels.parts.stage_copies import StageLayout
from gemmule.kernels.parts.target import target_major

#: Rows of a fragment (of B: columns), and its bytes of K.
ROWS, K_BYTES = 16, 32
_CHUNK, _LONG, _SHORT = 16, 128, 64


@dataclass(frozen=True)
class SwizzledStage(StageLayout):
    """Layout of a k-tile, and the reads of its fragments; MN-major, a line is 128 (or 64) bytes of rows of one k."""

    #: Order of the four words of a fragment. Rows first, as mma.sync takes A: rows 0 to 7 and 8 to 15 of the first 16
    #: bytes of K, then of the second. Else, as it takes B: the two halves of K of columns 0 to 7, then of the others.
    rows_first: bool

    @property
    def line(self) -> int:
        together = (self.depth if self.k_major else self.extent) * self.itemsize
        return _LONG if together % _LONG == 0 else _SHORT

    @property
    def paired_rows(self) -> bool:
        """Whether rows g and g + 8 of a fragment are rows 2g and 2g + 1 of the operand.

        ldmatrix transposes pairs of bytes: a thread gets two consecutive rows of MN-major 8-bit elements.
        """
        return self.itemsize == 1 and not self.k_major

    def swizzle(self, line: Any) -> Any:
        if self.itemsize == 4 and not self.k_major:
            # Read word by word, 8 contiguous ones in each of 4 lines at once.
            return (line & 3) << 5
        # Pairs of lines of 64 bytes fill all banks.
        return (line & 7) << 4 if self.line == _LONG else (line >> 1 & 3) << 4

    def k_of(self, line: Any) -> Any:
        """Return the k of a line of a panel.

        ldmatrix reads 8 lines at once. Of 8-bit elements these are k = 0, 1, 4, 5, 8, 9, 12, 13, or 2 more, so that a
        thread gets 4 consecutive k.
        """
        if self.itemsize > 1:
            return line
        return (line & -16) + ((line & 6) << 1) + (line >> 2 & 2) + (line & 1)

    def fragment_step(self, i: int, step: int, word: int) -> tuple[int, int]:
        """Return what to change in (xor) and then to add to a thread's offset for fragment `i` of a step of K.

        Only words of MN-major 32-bit elements are read one by one.
        """
        if self.k_major:
            return step * K_BYTES, i * ROWS * self.line
        panel, inside = divmod(i * ROWS * self.itemsize, self.line)
        lines = panel * self.depth + step * K_BYTES // self.itemsize
        if self.itemsize < 4:
            return inside, lines * self.line
        row, k = self.half_of(word)
        return inside + row * 32, (lines + k * 4) * self.line

    def half_of(self, word: Any) -> tuple[Any, Any]:
        """Return which half of the rows and of K a word belongs to, 0 or 1."""
        return (word & 1, word >> 1) if self.rows_first else (word >> 1, word & 1)

    @cute.jit
    def fragment_place(self, row):
        """Return the offset in bytes of this thread's part of the first fragment of its warp tile, from `row` on."""
        tid, _, _ = cute.arch.thread_idx()
        lane = tid & 31
        # Each 8 lanes give the addresses of what becomes one word.
        half_row, half_k = self.half_of(lane >> 3)
        if cutlass.const_expr(self.k_major):
            return (row + half_row * 8 + (lane & 7)) * self.line + (half_k * _CHUNK ^ self.swizzle(lane & 7))
        if cutlass.const_expr(self.itemsize == 2):
            line, along = half_k * 8 + (lane & 7), row * 2 + half_row * _CHUNK
        elif cutlass.const_expr(self.itemsize == 1):
            # Two words of pairs of rows, the first and the second two of each four k, become two words of rows.
            line, along = lane, row
        else:
            line, along = lane & 3, (row + (lane >> 2)) * 4
        panel, inside = along // self.line, along & (self.line - 1)
        return (panel * self.depth + line) * self.line + (inside ^ self.swizzle(line))

    @cute.jit
    def read_fragment(self, words, start, i: cutlass.Constexpr[int], step):
        """Read this thread's 4 words of 16 rows and 32 bytes of K.

        Parameters
        ----------
        words : Tensor
            Registers.
        start : Int32
            Address of the stage, a multiple of 128, plus this thread's offset in it.
        i, step : int
            Index of the warp's fragment, and of its 32 bytes of K.
        """
        if cutlass.const_expr(self.itemsize == 4 and not self.k_major):
            for word in cutlass.range_constexpr(4):
                words[word] = _load_word(_moved(start, self.fragment_step(i, step, word)))
        else:
            _ldmatrix(words, _moved(start, self.fragment_step(i, step, 0)), not self.k_major)

    @cute.jit
    def finish_fragment(self, words):
        """Permute and round the words, which loads cannot do, just before they are multiplied."""
        if cutlass.const_expr(self.paired_rows):
            self.sort_bytes(words)
        if cutlass.const_expr(self.itemsize == 4):
            for word in cutlass.range_constexpr(4):
                words[word] = _rounded_to_tf32(words[word])

    @cute.jit
    def sort_bytes(self, words: cute.Tensor):
        """Turn words of (row 2g, row 2g + 1) of two k into words of one row and four k."""
        pairs = cute.make_rmem_tensor(cute.make_layout(4), Int32)
        cute.autovec_copy(words, pairs)
        for word in cutlass.range_constexpr(4):
            row, k = cutlass.const_expr(self.half_of(word))
            words[word] = cute.arch.inline_ptx(
                f"prmt.b32 {{$w0}}, {{$r0}}, {{$r1}}, {(0x6420, 0x7531)[row]};",
                write_only_types=[Int32],
                read_only_args=[pairs[2 * k], pairs[2 * k + 1]],
            )


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
def _rounded_to_tf32(word):
    """Round a float32 to the nearest TF32; mma.sync by itself would cut its last bits off.

    Ties to even are one instruction, and need sm_90; ties away from zero are two or three.
    """
    mode = cutlass.const_expr("rn" if target_major() >= 9 else "rna")
    return cute.arch.inline_ptx(
        f"cvt.{mode}.tf32.f32 {{$w0}}, {{$r0}};", write_only_types=[Int32], read_only_args=[word]
    )

"""Elements of lines that begin anywhere, read from k-tiles in shared memory, of whichever of two words they are."""

from __future__ import annotations

from typing import Any, NamedTuple

import cutlass
from cutlass import Uint32, cute


class LaneWords(NamedTuple):
    """Where a lane's words of a wgmma tile are: its row's line, the first word in it, whether pairs are odd."""

    line: Any
    word: Any
    odd: Any
    group: Any  #: The line's number modulo 8, by which chunks are swizzled.
    carried: Any  #: Tensor. Of each half, what the k-tile beyond has of the last pair.

    def bases(self, word: Any, stage: Any) -> tuple[Any, Any, Any]:
        """Return where a word from the start of a chunk on is, for chunks as of `chunk_of`, with the chunk left out."""
        start = self.line + stage + (word & 3) * 4
        beyond = word >> 2
        return tuple(start + ((self.group ^ beyond * bits) << 4) for bits in (1, 3, 7))


def chunk_of(bases: tuple[Any, Any, Any], chunk: int) -> Any:
    """Return where the word is in a chunk, or in the next one, where it lies beyond 4 words."""
    # A chunk's number and the next one's differ in one bit, two or three.
    return bases[{0: 0, 1: 1, 2: 0, 3: 2, 4: 0, 5: 1, 6: 0, 7: 0}[chunk]] ^ chunk << 4


@cute.jit
def pair_at(low, high, odd, offset: cutlass.Constexpr[int]):
    """Return two elements in shared memory: a word, or where `odd` is not 0 its second half and the first of `high`."""
    return cute.arch.inline_ptx(
        "{\n.reg .pred odd;\n.reg .b32 low, high, bits;\nsetp.ne.s32 odd, {$r2}, 0;\nshl.b32 bits, {$r2}, 4;\n"
        f"ld.shared.b32 low, [{{$r0}} + {offset}];\nmov.b32 high, 0;\n"
        f"@odd ld.shared.b32 high, [{{$r1}} + {offset}];\nshf.r.wrap.b32 {{$w0}}, low, high, bits;\n}}",
        write_only_types=[Uint32],
        read_only_args=[low, high, odd],
    )


@cute.jit
def last_pair_at(low, high, lane, carried, offset: cutlass.Constexpr[int]):
    """Return the last pair of a k-tile, of which a word or two are beyond it, and carried."""
    return cute.arch.inline_ptx(
        "{\n.reg .pred here, odd;\n.reg .b32 low, high, bits;\nsetp.lt.s32 here, {$r3}, 3;\n"
        "setp.ne.and.s32 odd, {$r2}, 0, here;\nsetp.lt.s32 here, {$r3}, 4;\nshl.b32 bits, {$r2}, 4;\n"
        "mov.b32 low, {$r4};\nmov.b32 high, {$r4};\n"
        f"@here ld.shared.b32 low, [{{$r0}} + {offset}];\n@odd ld.shared.b32 high, [{{$r1}} + {offset}];\n"
        "shf.r.wrap.b32 high, low, high, bits;\nselp.b32 {$w0}, high, {$r4}, here;\n}",
        write_only_types=[Uint32],
        read_only_args=[low, high, lane.odd, lane.word, carried],
    )


@cute.jit
def carried_from(first, lane, offset: cutlass.Constexpr[int]):
    """Return what the last pair of the k-tile before has in the first chunk of this one: a pair, or its second word."""
    return cute.arch.inline_ptx(
        "{\n.reg .pred all;\n.reg .b32 low, high, bits, place;\nsetp.gt.s32 all, {$r2}, 3;\nshl.b32 bits, {$r1}, 4;\n"
        "sub.s32 place, {$r2}, 3;\nmax.s32 place, place, 0;\nmad.lo.s32 place, place, 4, {$r0};\n"
        f"ld.shared.b32 high, [place + {offset}];\nmov.b32 low, high;\n"
        f"@all ld.shared.b32 low, [place + {offset - 4}];\nshf.r.wrap.b32 low, low, high, bits;\n"
        "selp.b32 {$w0}, low, high, all;\n}",
        write_only_types=[Uint32],
        read_only_args=[first, lane.odd, lane.word],
    )


@cute.jit
def two_lines_at(address, offset: cutlass.Constexpr[int], line_bytes: cutlass.Constexpr[int]):
    """Return an element in shared memory, and the one a line further on."""
    return cute.arch.inline_ptx(
        f"{{\n.reg .b16 low, high;\nld.shared.b16 low, [{{$r0}} + {offset}];\n"
        f"ld.shared.b16 high, [{{$r0}} + {offset + line_bytes}];\nmov.b32 {{$w0}}, {{low, high}};\n}}",
        write_only_types=[Uint32],
        read_only_args=[address],
    )

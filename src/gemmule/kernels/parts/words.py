"""Words of 32 bits: wide accesses to memory that carry elements of any type, and exchanges between words."""

from __future__ import annotations

from collections.abc import Sequence

import cutlass
from cutlass import Uint32, cute


@cute.jit
def words_at(place: cute.Pointer, count: cutlass.Constexpr[int]):
    """Return the `count` words at a place as a tensor; its address must be a multiple of their size."""
    pointer = cute.make_ptr(Uint32, place.toint(), place.memspace, assumed_align=4 * count)
    return cute.make_tensor(pointer, cute.make_layout(count))


@cute.jit
def load_16_bytes(place: cute.Pointer, words: cute.Tensor):
    """Load 4 words from device memory. They pass by the L1 cache, which would keep them in vain: each is read once."""
    found = cute.arch.inline_ptx(
        "ld.global.L1::no_allocate.v4.b32 {{$w0}, {$w1}, {$w2}, {$w3}}, [{$r0}];",
        write_only_types=[Uint32] * 4,
        read_only_args=[place.toint()],
    )
    for v in cutlass.range_constexpr(4):
        words[v] = found[v]


@cute.jit
def stream_16_bytes(place: cute.Pointer, words: cute.Tensor):
    """Store 4 words to device memory, and let the L2 cache write them back before others: nobody reads them soon."""
    cute.arch.inline_ptx(
        "st.global.cs.v4.b32 [{$r0}], {{$r1}, {$r2}, {$r3}, {$r4}};",
        read_only_args=[place.toint(), words[0], words[1], words[2], words[3]],
    )


@cute.jit
def permuted(low, high, selector: cutlass.Constexpr[int]):
    """Return four of the eight bytes of two words: digit k of the selector, from the right, selects byte k."""
    return Uint32(cute.arch.prmt(low, high, selector))


@cute.jit
def exchange(words: cute.Tensor):
    """Transpose a square of elements in place: word r holds row r, as many elements as there are words (1, 2 or 4)."""
    if cutlass.const_expr(cute.size(words) == 2):
        low = permuted(words[0], words[1], 0x5410)
        words[1] = permuted(words[0], words[1], 0x7632)
        words[0] = low
    elif cutlass.const_expr(cute.size(words) == 4):
        # First bytes of rows 0 and 1, and of 2 and 3, side by side, then the pairs.
        upper = (permuted(words[0], words[1], 0x5140), permuted(words[0], words[1], 0x7362))
        lower = (permuted(words[2], words[3], 0x5140), permuted(words[2], words[3], 0x7362))
        for half in cutlass.range_constexpr(2):
            words[2 * half] = permuted(upper[half], lower[half], 0x5410)
            words[2 * half + 1] = permuted(upper[half], lower[half], 0x7632)


@cute.jit
def woven(words: cute.Tensor, picks: cutlass.Constexpr[tuple[tuple[int, int], ...]]):
    """Return four bytes as one word, the first one lowest; a pick is a word's number, and the byte's in it."""
    merges = cutlass.const_expr(_merges(picks))
    found = words[picks[0][0]]
    for number in cutlass.range_constexpr(len(merges)):
        found = permuted(found, words[merges[number][0]], merges[number][1])
    return found


def _merges(picks: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Return the words that are merged into the first one picked, one after another, and the selectors."""
    first, *others = dict.fromkeys(word for word, _ in picks)
    merged, found = set[int](), []
    for number in others or [first]:
        selector = 0
        for place, (word, byte) in enumerate(picks):
            # Once merged, bytes are in their places.
            held = place if word in merged else byte
            selector |= (4 + byte if word == number else held) << (4 * place)
        found.append((number, selector))
        merged |= {first, number}
    return tuple(found)


@cute.jit
def packed(elements: cute.Tensor):
    """Return 2 elements of 16 bits, or 4 of 8 bits, as one word, the first one lowest."""
    values = [Uint32(elements[number]) for number in range(cute.size(elements))]
    if cutlass.const_expr(len(values) == 4):
        values = [permuted(values[0], values[1], 0x0040), permuted(values[2], values[3], 0x0040)]
    return permuted(values[0], values[1], 0x5410)


@cute.jit
def shifted(low, high, bits):
    """Return the word that begins `bits` bits, 0 to 31, above the lowest of `low`, and goes on in `high`."""
    return cute.arch.inline_ptx(
        "shf.r.wrap.b32 {$w0}, {$r0}, {$r1}, {$r2};", write_only_types=[Uint32], read_only_args=[low, high, bits]
    )


@cute.jit
def joined(low, high, bits):
    """Return the word that ends `bits` bits, 0 to 31, below the highest of `high`, and begins in `low`."""
    return cute.arch.inline_ptx(
        "shf.l.wrap.b32 {$w0}, {$r0}, {$r1}, {$r2};", write_only_types=[Uint32], read_only_args=[low, high, bits]
    )


@cute.jit
def extract(loaded: cute.Tensor, offset, words: cute.Tensor):
    """Extract 4 of 8 words, from byte `offset` (0 to 15) on."""
    steps = [loaded[w] for w in range(8)]
    # By two words, by one, and by bytes within words: no index into registers depends on the offset.
    for distance in cutlass.range_constexpr(2):
        by = cutlass.const_expr(2 - distance)
        shifts = offset // 4 // by % 2 == 1
        steps = [steps[w + by] if shifts else steps[w] for w in range(len(steps) - by)]
    for w in cutlass.range_constexpr(4):
        words[w] = shifted(steps[w], steps[w + 1], offset % 4 * 8)


@cute.jit
def clamped_shift(word, bits):
    """Return a word shifted to the left, 0 by 32 bits and more."""
    return cute.arch.inline_ptx("shl.b32 {$w0}, {$r0}, {$r1};", write_only_types=[Uint32], read_only_args=[word, bits])

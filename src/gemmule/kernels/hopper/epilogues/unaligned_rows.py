"""Rows of 16- or 32-bit elements between shared memory and global memory, at any alignment."""

from __future__ import annotations

import cutlass
from cutlass import Int32, Uint16, Uint32, cute

from gemmule.kernels.parts.words import extract, joined, shifted, words_at

#: Bytes that a lane writes at once.
_VECTOR = 16


@cute.jit
def halves_at(start: cute.Pointer, count: cutlass.Constexpr[int]):
    """Return elements of 16 bits as a tensor, from a pointer of any type on."""
    return _bits_at(start, count, 16)


@cute.jit
def _bits_at(start: cute.Pointer, count: cutlass.Constexpr[int], width: cutlass.Constexpr[int]):
    """Return elements of 16 or 32 bits as a tensor, from a pointer of any type on."""
    bits = Uint16 if cutlass.const_expr(width == 16) else Uint32
    pointer = cute.make_ptr(bits, start.toint(), start.memspace, assumed_align=width // 8)
    return cute.make_tensor(pointer, cute.make_layout(count))


@cute.jit
def element_at(mX: cute.Tensor, i, j):
    """Return the pointer to an element."""
    return mX.iterator + cute.crd2idx((i, j), mX.layout)


@cute.jit
def write_row(start: cute.Pointer, staged: cute.Pointer, count, length: cutlass.Constexpr[int]):
    """Write, by a warp, the first `count` of `length` elements (a multiple of 64) that are staged, 4 bytes a lane."""
    tid, _, _ = cute.arch.thread_idx()
    lane = tid % 32
    source, target = halves_at(staged, length), halves_at(start, length)
    # If a row begins between two words, its first element and its last are written alone.
    odd = Int32(start.toint() // 2 % 2)
    for x in cutlass.range_constexpr(length // 64):
        e = 2 * (lane + 32 * x) - odd
        low, high = Uint32(source[cutlass.max(e, 0)]), Uint32(source[e + 1])
        if e >= 0 and e + 1 < count:
            words_at(start + e, 1)[0] = low | high << 16
        elif e >= 0 and e < count:
            target[e] = Uint16(low)
        elif e < 0:
            target[0] = Uint16(high)
    if odd == 1 and lane == 0 and length <= count:
        target[length - 1] = source[length - 1]


@cute.jit
def write_whole_rows(starts, staged: cute.Pointer, stride: cutlass.Constexpr[int], length: cutlass.Constexpr[int]):
    """Write, by a warp, `length` elements to each of several pointers; their rows have a stride of `stride` words."""
    tid, _, _ = cute.arch.thread_idx()
    lane = tid % 32
    steps = cutlass.const_expr(length // 64)
    # All words are loaded before the first is stored, so that their latencies overlap.
    words = cute.make_rmem_tensor(cute.make_layout((steps, len(starts))), Uint32)
    for r in cutlass.range_constexpr(len(starts)):
        odd = Int32(starts[r].toint() // 2 % 2)
        for x in cutlass.range_constexpr(steps):
            # In a row that begins between two words, word i is made of the halves of words i - 1 and i.
            w = lane + 32 * x
            word = words_at(staged + r * stride + w, 1)[0]
            before = words_at(staged + r * stride + cutlass.max(w - odd, 0), 1)[0]
            words[x, r] = shifted(before, word, 16 * odd)
    for r in cutlass.range_constexpr(len(starts)):
        start = starts[r]
        odd = Int32(start.toint() // 2 % 2)
        for x in cutlass.range_constexpr(steps):
            w = lane + 32 * x
            if odd == 0 or w > 0:
                words_at(start + 2 * w - odd, 1)[0] = words[x, r]
        if odd == 1 and lane < 2:
            # The first element and the last one.
            e = lane * (length - 1)
            halves_at(start, length)[e] = halves_at(staged + r * stride, length)[e]


@cute.jit
def words_before(mX: cute.Tensor, i, j):
    """Return the words before an element in its 16 bytes of memory: where its staged row begins."""
    return _bytes_before(element_at(mX, i, j)) >> 2


@cute.jit
def _bytes_before(start: cute.Pointer):
    """Return an address modulo 16."""
    return Int32(start.toint() & (_VECTOR - 1))


@cute.jit
def write_rows(
    mX: cute.Tensor,
    origin,
    staged: cute.Pointer,
    stride: cutlass.Constexpr[int],
    inside,
    length: cutlass.Constexpr[int],
    together: cutlass.Constexpr[int],
):
    """Write, by a warp, the part inside a matrix of 16 staged rows, 16 bytes a lane.

    Elements before a row's first multiple of 16 bytes, and from its last one on, are written one by one.

    Parameters
    ----------
    mX : Tensor
        The matrix.
    origin : tuple
        Row and column of the first element.
    staged, stride : Pointer, int
        The rows in shared memory, each `words_before` its first element further on, and words from one to the next.
    inside : tuple
        Rows from the origin to the matrix's end, and columns, of those up to `length`.
    length : int
        Elements of a row, a multiple of 8.
    together : int
        Vectors that a lane loads before it stores the first, so that their latencies overlap.
    """
    width = cutlass.const_expr(mX.element_type.width)
    per_vector, shift = cutlass.const_expr(_VECTOR * 8 // width), cutlass.const_expr(width // 16)
    slots = cutlass.const_expr(length // per_vector)
    lane, steps = cute.arch.thread_idx()[0] % 32, cutlass.const_expr(-(-16 * slots // 32))
    words = cute.make_rmem_tensor(cute.make_layout((4, together)), Uint32)
    for first in cutlass.range(0, steps, together, unroll=1):
        targets = []
        for x in cutlass.range_constexpr(together):
            index = Uint32(lane + 32 * (first + x))
            r, slot = Int32(index // slots), Int32(index % slots)
            start = element_at(mX, origin[0] + r, origin[1])
            before = _bytes_before(start) >> shift
            # The row's first vector begins after its first element, unless that begins one.
            vector = slot + cutlass.min(before, 1)
            e = vector * per_vector - before
            whole = r < inside[0] and e + per_vector <= inside[1]
            targets.append((start + e, whole))
            # Without a branch, so that no load waits for the one before.
            place = staged + (cutlass.min(r, 15) * stride + 4 * vector)
            _load_vector(place, before, words[None, x], width)
        for x in cutlass.range_constexpr(len(targets)):
            target, whole = targets[x]
            if whole:
                cute.autovec_copy(words[None, x], words_at(target, 4))
    _write_ends(mX, origin, staged, stride, inside, together, False)
    if inside[1] & (per_vector - 1) != 0:
        _write_ends(mX, origin, staged, stride, inside, together, True)


@cute.jit
def _load_vector(place: cute.Pointer, before, words: cute.Tensor, width: cutlass.Constexpr[int]):
    """Load 4 words of a staged row, from half a word before where it begins between two words of memory."""
    cute.autovec_copy(words_at(place, 4), words)
    if cutlass.const_expr(width == 16):
        odd = before & 1
        low = Uint32(words_at(place - odd, 1)[0])
        for w in cutlass.range_constexpr(4):
            high = Uint32(words[w])
            words[w] = joined(low, high, 16 * odd)
            low = high


@cute.jit
def _write_ends(
    mX: cute.Tensor,
    origin,
    staged: cute.Pointer,
    stride: cutlass.Constexpr[int],
    inside,
    together: cutlass.Constexpr[int],
    only_last: cutlass.Constexpr[bool],
):
    """Write the elements before rows' first vectors and after their last ones, as many as a vector has.

    Where columns are no multiple of that there may be more: `only_last` writes all after the last vectors.
    """
    width = cutlass.const_expr(mX.element_type.width)
    per_vector, bits = cutlass.const_expr(_VECTOR * 8 // width), Uint16 if cutlass.const_expr(width == 16) else Uint32
    at_once, lane, cols = cutlass.const_expr(32 // per_vector), cute.arch.thread_idx()[0] % 32, inside[1]
    shift, steps = cutlass.const_expr(width // 16), cutlass.const_expr(16 // at_once)
    place = lane & (per_vector - 1)
    together = cutlass.const_expr(min(together, steps))
    elements = cute.make_rmem_tensor(cute.make_layout(together), bits)
    for step in cutlass.range(0, steps, together, unroll=1):
        targets = []
        for x in cutlass.range_constexpr(together):
            r = (lane >> (4 - shift)) + at_once * (step + x)
            start = element_at(mX, origin[0] + r, origin[1])
            before = _bytes_before(start) >> shift
            # The first `heads` lanes take an element each before the first vector, the last lanes those after all.
            heads = Int32(0) if cutlass.const_expr(only_last) else -before & (per_vector - 1)
            e = place if place < heads else cols - per_vector + place
            last = place >= per_vector - (before + cols & (per_vector - 1))
            written = r < inside[0] and e >= 0 and ((place < heads and e < cols) or (place >= heads and last))
            targets.append((_bits_at(start + e, 1, width), written))
            source = _bits_at(staged + (r * stride + (before << shift >> 2)), per_vector, width)
            if written:
                elements[x] = source[e]
        for x in cutlass.range_constexpr(together):
            target, written = targets[x]
            if written:
                target[0] = elements[x]


@cute.jit
def read_rows(
    mX: cute.Tensor,
    origin,
    staged: cute.Pointer,
    stride: cutlass.Constexpr[int],
    inside,
    length: cutlass.Constexpr[int],
    mD: cute.Tensor,
):
    """Read, by a warp, 16 rows to where `write_rows` of `mD` writes from; what is not inside is set to zero.

    Vectors of 16 bytes of a staged row are taken from two in memory that are inside; elements of others one by one.
    Parameters as of `write_rows`.
    """
    width, together = cutlass.const_expr(mX.element_type.width), 2
    per_vector = cutlass.const_expr(_VECTOR * 8 // width)
    slots, lane = cutlass.const_expr(length // per_vector), cute.arch.thread_idx()[0] % 32
    loaded = cute.make_rmem_tensor(cute.make_layout((8, together)), Uint32)
    words = cute.make_rmem_tensor(cute.make_layout(4), Uint32)
    for first in cutlass.range(0, -(-16 * slots // 32), together, unroll=1):
        loaded.fill(0)
        targets = []
        for x in cutlass.range_constexpr(together):
            index = Uint32(lane + 32 * (first + x))
            r, e = Int32(index // slots), Int32(index % slots) * per_vector
            before, whole = _vector_before(mX, (origin[0] + r, origin[1]), e, inside[1])
            whole = whole and r < inside[0]
            if whole:
                start = element_at(mX, origin[0] + r, origin[1] + e) - before
                for half in cutlass.range_constexpr(2):
                    if cutlass.const_expr(half == 0) or before > 0:
                        target = cute.make_tensor(loaded[None, x].iterator + 4 * half, cute.make_layout(4))
                        cute.autovec_copy(words_at(start + half * per_vector, 4), target)
            row = staged + (cutlass.min(r, 15) * stride + words_before(mD, origin[0] + r, origin[1]))
            targets.append((row + (e >> 1 if cutlass.const_expr(width == 16) else e), before, r))
        for x in cutlass.range_constexpr(together):
            place, before, r = targets[x]
            extract(loaded[None, x], Uint32(before * (width // 8)), words)
            if r < 16:
                for w in cutlass.range_constexpr(4):
                    words_at(place + w, 1)[0] = words[w]
    cute.arch.sync_warp()
    _read_ends(mX, origin, staged, stride, inside, mD)


@cute.jit
def _vector_before(mX: cute.Tensor, row, e, cols):
    """Return how many elements before `e` its 16 bytes of memory begin, and whether it and the next are inside."""
    per_vector = cutlass.const_expr(_VECTOR * 8 // mX.element_type.width)
    before = _bytes_before(element_at(mX, row[0], row[1] + e)) // cutlass.const_expr(mX.element_type.width // 8)
    # Of aligned rows one vector is enough.
    beyond = e - before + (2 * per_vector if before > 0 else per_vector)
    return before, e >= before and beyond <= cols


@cute.jit
def _read_ends(mX: cute.Tensor, origin, staged: cute.Pointer, stride: cutlass.Constexpr[int], inside, mD: cute.Tensor):
    """Read, by a warp, elements of vectors that are not inside with the next: each row's first and last two."""
    width, together = cutlass.const_expr(mX.element_type.width), 4
    per_vector, bits = cutlass.const_expr(_VECTOR * 8 // width), Uint16 if cutlass.const_expr(width == 16) else Uint32
    lane, cols = cute.arch.thread_idx()[0] % 32, inside[1]
    last = (cols - 1) // per_vector
    elements = cute.make_rmem_tensor(cute.make_layout(together), bits)
    for first in cutlass.range(0, 16 * 3 * per_vector // 32, together, unroll=1):
        targets = []
        for x in cutlass.range_constexpr(together):
            index = lane + 32 * (first + x)
            r, which, place = index // (3 * per_vector), index // per_vector % 3, index % per_vector
            slot = Int32(0) if which == 0 else last + 1 - which
            _, whole = _vector_before(mX, (origin[0] + r, origin[1]), slot * per_vector, cols)
            e = slot * per_vector + place
            present = r < inside[0] and e < cols and (which == 0 or slot > 0) and not whole
            row = staged + (r * stride + words_before(mD, origin[0] + r, origin[1]))
            targets.append((_bits_at(row, 8, width), e, present))
            if present:
                elements[x] = _bits_at(element_at(mX, origin[0] + r, origin[1]), 8, width)[e]
        for x in cutlass.range_constexpr(together):
            target, e, present = targets[x]
            if present:
                target[e] = elements[x]

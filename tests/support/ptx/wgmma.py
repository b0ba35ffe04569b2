"""Products of a warpgroup as PTX, their operands in shared memory and in registers."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from support.ptx.snippets import at

A_AT, B_AT = 1024, 1024 + 8192
SHARED = ".shared .align 1024 .b8 image[40960]; .reg .b32 %acc<128>; .reg .b32 %frag<4>;"
TYPES = {
    "f16": np.dtype(np.float16), "bf16": np.dtype(ml_dtypes.bfloat16), "tf32": np.dtype(np.float32),
    "e4m3": np.dtype(ml_dtypes.float8_e4m3fn), "e5m2": np.dtype(ml_dtypes.float8_e5m2), "s8": np.dtype(np.int8),
    "u8": np.dtype(np.uint8),
}  # fmt: skip
SUMS = {"f32": np.dtype(np.float32), "f16": np.dtype(np.float16), "s32": np.dtype(np.int32)}
LAYOUT_CODES = {0: 0, 128: 1, 64: 2, 32: 3}


def swizzled(address, swizzle):
    """Exchange chunks of 16 bytes by the number of the line of 128 bytes that they are in."""
    if not swizzle:
        return address
    line, chunk = address // 128 % 8, address // 16
    return (chunk ^ line % (swizzle // 16)) * 16 + address % 16


def place(row, column, item, along_k, swizzle, leading, stride):
    """Where an element of an operand is, `row` of M or N, `column` of K: in a piece of 8 lines of 16 bytes or more."""
    across, down = (column, row) if along_k else (row, column)
    width = swizzle or 16
    piece, byte = divmod(across * item, width)
    inside = down % 8 * width + byte
    if along_k:
        return down // 8 * stride + inside + piece * leading
    # Without a swizzle the two offsets change places.
    first, second = (stride, leading) if not swizzle else (leading, stride)
    return piece * first + down // 8 * second + inside


def image_of(matrix, start, along_k, swizzle, image):
    """Put an operand, (extent, K), into shared memory; return its descriptor."""
    extent, k = matrix.shape
    item = matrix.itemsize
    width = swizzle or 16
    lines, length = (extent, k * item) if along_k else (k, extent * item)
    # Pieces one behind another along the lines, then those of the next 8 lines.
    step = 8 * width
    next_lines = step * -(-length // width)
    leading, stride = (step, next_lines) if along_k or swizzle else (next_lines, step)
    for row in range(extent):
        for column in range(k):
            address = swizzled(start + place(row, column, item, along_k, swizzle, leading, stride), swizzle)
            image[address - 1024 : address - 1024 + item] = np.frombuffer(matrix[row, column].tobytes(), np.uint8)
    del lines
    code = LAYOUT_CODES[swizzle]
    return start >> 4 | (leading >> 4) << 16 | (stride >> 4) << 32 | code << 62


LOAD_IMAGE = """
    mov.u32 %r1, image;
    mad.lo.u32 %r1, %tid, 16, %r1;
    mul.wide.u32 %d1, %tid, 16;
    add.u64 %d1, %p_image, %d1;
    mov.u32 %r2, 0;
    COPY:
    ld.global.v4.b32 {%r3, %r4, %r5, %r6}, [%d1];
    st.shared.v4.b32 [%r1], {%r3, %r4, %r5, %r6};
    add.u64 %d1, %d1, 2048;
    add.u32 %r1, %r1, 2048;
    add.u32 %r2, %r2, 1;
    setp.lt.u32 %p1, %r2, 20;
    @%p1 bra COPY;
    fence.proxy.async.shared::cta;
    bar.sync 0;
"""


def body_of(n, k, types, descriptors, tail, scale=1, registers=False, twice=True):
    """Load C, multiply once or twice, store D; `tail` is what stands behind the types' part of the operands."""
    d_type, a_type, b_type = types
    count = n // (4 if d_type == "f16" else 2)
    vector = ", ".join(f"%acc{i}" for i in range(count))
    a = "{%frag0, %frag1, %frag2, %frag3}" if registers else "%d2"
    form = f"wgmma.mma_async.sync.aligned.m64n{n}k{k}.{d_type}.{a_type}.{b_type}"
    text = LOAD_IMAGE + f"mov.u64 %d2, {descriptors[0]:#x};\nmov.u64 %d3, {descriptors[1]:#x};\n"
    text += "ld.global.b64 %d4, [%p_again];\n"
    for i in range(count):
        text += f"add.u32 %r8, %tid, {128 * i};\n" + at("c", 4, "%r8") + f"ld.global.b32 %acc{i}, [%address];\n"
    for i in range(4 if registers else 0):
        text += f"add.u32 %r8, %tid, {128 * i};\n" + at("a", 4, "%r8") + f"ld.global.b32 %frag{i}, [%address];\n"
    text += f"setp.ne.u32 %p2, {scale}, 0;\nsetp.eq.u32 %p3, 0, 0;\nFENCE\n"
    text += f"{form} {{{vector}}}, {a}, %d3, %p2{tail};\n"
    if twice:
        # The descriptor comes from memory: ptxas makes one of two products that it sees to be the same.
        text += f"{form} {{{vector}}}, {a}, %d4, %p3{tail};\n"
    text += "COMMIT\nWAIT\n"
    for i in range(count):
        text += f"add.u32 %r8, %tid, {128 * i};\n" + at("d", 4, "%r8") + f"st.global.b32 [%address], %acc{i};\n"
    return (
        text.replace("FENCE", "wgmma.fence.sync.aligned;")
        .replace("COMMIT", "wgmma.commit_group.sync.aligned;")
        .replace("WAIT", "wgmma.wait_group.sync.aligned 0;")
    )


def fragment_of_d(matrix):
    """Registers of the 128 threads, (registers, 128) words.

    Thread 4 g + t of a warp has columns 2 t and 2 t + 1 of each 8, of row g and of row g + 8.
    """
    threads = []
    for thread in range(128):
        warp, lane = divmod(thread, 32)
        words = []
        for block in range(matrix.shape[1] // 8):
            for half in (0, 1):
                row, column = 16 * warp + lane // 4 + 8 * half, 8 * block + 2 * (lane % 4)
                words.append(np.ascontiguousarray(matrix[row, column : column + 2]).view(np.uint32))
        threads.append(np.concatenate(words))
    return np.stack(threads, axis=1)


def fragment_of_a(matrix):
    """Registers of the 128 threads, (4, 128) words."""
    words = np.ascontiguousarray(matrix).view(np.uint32)
    found = np.empty((4, 128), np.uint32)
    for thread in range(128):
        warp, lane = divmod(thread, 32)
        for register in range(4):
            row = 16 * warp + lane // 4 + 8 * (register % 2)
            found[register, thread] = words[row, 4 * (register // 2) + lane % 4]
    return found


def product(a, b, c, types, *, a_k_major=True, b_k_major=True, swizzles=(128, 128), registers=False, signs=(1, 1),
            scale=1, twice=True):  # fmt: skip
    """Return the body that multiplies A, (64, K), by B, (N, K), and adds C, and its arrays; `d` is to be written."""
    n, k = b.shape
    image = np.full(40960, 0xFF, np.uint8)
    descriptors = [
        image_of(a, A_AT, a_k_major, swizzles[0], image), image_of(b, B_AT, b_k_major, swizzles[1], image)
    ]  # fmt: skip
    tail = "" if types[0] == "s32" else f", {signs[0]}, {signs[1]}"
    if types[1] in ("f16", "bf16"):
        tail += ("" if registers else f", {int(not a_k_major)}") + f", {int(not b_k_major)}"
    arrays = {"image": image, "c": fragment_of_d(c), "a": fragment_of_a(a)}
    arrays["d"] = np.full(arrays["c"].shape, 0x7FFFFFFF, np.uint32)
    arrays["again"] = np.array([descriptors[1]], np.uint64)
    return body_of(n, k, types, descriptors, tail, scale, registers, twice), arrays

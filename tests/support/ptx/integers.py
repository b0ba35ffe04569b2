"""Integer instructions in PTX beside NumPy."""

from __future__ import annotations

import numpy as np

from support.ptx.snippets import assert_same_bits, each, integers

TYPES = {"u16": np.uint16, "s16": np.int16, "u32": np.uint32, "s32": np.int32, "u64": np.uint64, "s64": np.int64}


def bits(kind):
    return f"b{kind[1:]}"


def wrapped(values, dtype):
    """Python integers modulo 2**bits."""
    info = np.iinfo(dtype)
    span = 1 << info.bits
    return np.array([(int(v) - info.min) % span + info.min for v in values], dtype)


def check(rng, instruction, function, kind, *kinds, out_kind=None):
    """Compare an instruction with a function of Python integers."""
    kinds = kinds or (kind, kind)
    sources = [integers(rng, TYPES[k]) for k in kinds]
    out = np.zeros(1024, TYPES[out_kind or kind])
    each(instruction, (bits(out_kind or kind), out), *((bits(k), s) for k, s in zip(kinds, sources, strict=True)))
    expected = [function(*(int(v) for v in values)) for values in zip(*sources, strict=True)]
    assert_same_bits(out, wrapped(expected, out.dtype))

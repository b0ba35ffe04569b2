"""mma.sync of every type on registers of all kinds: what the engine computes is what `mma_sync` says."""

from __future__ import annotations

import numpy as np
import pytest

from gemmule.vgpu import Options
from gemmule.vgpu.mma import MmaForm, mma_sync
from support.ptx.mma_reference import BITS, CASES, FLOATS, ids, random_values, unsigned
from support.ptx.snippets import at, run

WARPS = 16
KINDS = ["normal", "wide", "widest", "zeros", "any bits"]


def elements(rng, kind, dtype, count):
    """Bits of `count` elements; floats of one of KINDS."""
    if dtype in ("s8", "u8", "s32"):
        return rng.integers(0, 2 ** BITS[dtype], count).astype(unsigned(BITS[dtype]))
    if dtype == "f64":
        spread = {"normal": 1, "wide": 60}.get(kind, 300)
        return (rng.standard_normal(count) * 2.0 ** rng.integers(-spread, spread, count)).view(np.uint64)
    bits = random_values(rng, dtype, count, {"normal": 4, "wide": 24, "widest": 400}.get(kind, 12))
    if kind == "zeros":
        # One in eight is left, so that whole blocks are zero and C may be the only term.
        bits = np.where(rng.random(count) < 0.125, bits, rng.choice([0, 1 << BITS[dtype] - 1], count))
    elif kind == "any bits":
        exponent_bits, fraction_bits = FLOATS[dtype]
        drop = 13 if dtype == "tf32" else 0
        full = (1 << exponent_bits) - 1 << fraction_bits + drop
        bits = rng.integers(0, 2 ** BITS[dtype], count)
        bits = np.where((bits & full == full) & (rng.random(count) > 0.01), bits & ~(full & -full), bits)
        bits = np.where(rng.random(count) < 0.3, bits & ~full, bits)
    return bits.astype(unsigned(BITS[dtype]))


def instruction(shape, a_type, b_type, d_type):
    m, n, k = shape
    return f"mma.sync.aligned.m{m}n{n}k{k}.row.col.{d_type}.{a_type}.{b_type}.{d_type}"


def on_registers(shape, a_type, b_type, d_type, a, b, c, options):
    """Run one mma.sync on words of registers, (warps, 32, registers of a lane)."""
    register, bits, word = ("%d", "b64", 8) if d_type == "f64" else ("%r", "b32", 4)
    out = np.full_like(c, 0xA5)
    body, groups = "", []
    for first, (name, array) in zip((1, 11, 21), {"a": a, "b": b, "c": c}.items(), strict=True):
        count = array.shape[-1]
        names = [f"{register}{first + i}" for i in range(count)]
        groups.append("{" + ", ".join(names) + "}")
        body += at(name, count * word)
        body += "".join(f"ld.global.{bits} {x}, [%address+{i * word}];\n" for i, x in enumerate(names))
    targets = [f"{register}{41 + i}" for i in range(out.shape[-1])]
    body += f"{instruction(shape, a_type, b_type, d_type)} {{{', '.join(targets)}}}, {', '.join(groups)};\n"
    body += at("out", out.shape[-1] * word)
    body += "".join(f"st.global.{bits} [%address+{i * word}], {x};\n" for i, x in enumerate(targets))
    run(body, {"a": a, "b": b, "c": c, "out": out}, 32, ctas=len(a), options=options)
    return out


def register_words(rng, kind, shape, a_type, b_type, d_type):
    counts = MmaForm(shape, a_type, b_type, d_type, d_type).registers
    word = np.dtype(np.uint64 if d_type == "f64" else np.uint32)
    for dtype, count in zip((a_type, b_type, d_type), counts, strict=False):
        per_word = word.itemsize * 8 // BITS[dtype]
        yield elements(rng, kind, dtype, WARPS * 32 * count * per_word).view(word).reshape(WARPS, 32, count)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("shape", "a_type", "b_type", "d_type"), CASES, ids=ids(CASES))
def test_registers(rng, shape, a_type, b_type, d_type, kind):
    a, b, c = register_words(rng, kind, shape, a_type, b_type, d_type)
    got = on_registers(shape, a_type, b_type, d_type, a, b, c, Options(mma="hopper", checks=True))
    expected = mma_sync(MmaForm(shape, a_type, b_type, d_type, d_type), a, b, c, mode="hopper")
    if d_type == "f64":
        # Which NaN a sum of doubles gives is not defined.
        got, expected = got.view(np.float64), expected.view(np.float64)
    np.testing.assert_array_equal(got, expected)

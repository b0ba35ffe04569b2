"""Small PTX kernels around the instructions that a test is about."""

from __future__ import annotations

import re

import numpy as np

from gemmule.core.launch import Launch, TensorParam
from gemmule.vgpu import Options, launch

_BYTES = {"b8": 1, "b16": 2, "b32": 4, "b64": 8}


def kernel_text(body, params, shared="", target="sm_90a"):
    """A kernel called `test` with pointers p_<name> as parameters, in registers %p_<name>."""
    declared = ",\n".join(f"\t.param .u64 param_{name}" for name in params)
    loaded = "\n".join(f"\tld.param.u64 %p_{name}, [param_{name}];" for name in params)
    pointers = ", ".join(f"%p_{name}" for name in params)
    text = f"""
.version 8.8
.target {target}
.address_size 64
.visible .entry test(
{declared}
)
{{
	.reg .pred %p<32>;
	.reg .b16 %h<64>;
	.reg .b32 %r<64>;
	.reg .b64 %d<64>;
	.reg .b64 {pointers};
	.reg .b32 %tid, %lane, %warp, %cta, %index;
	.reg .b64 %offset, %address;
	{shared}
	.loc 1 1 0
{loaded}
	mov.u32 %tid, %tid.x;
	mov.u32 %cta, %ctaid.x;
	mov.u32 %index, %ntid.x;
	mad.lo.u32 %index, %index, %cta, %tid;
	and.b32 %lane, %tid, 31;
	shr.u32 %warp, %tid, 5;
{body}
	ret;
}}
	.file 1 "snippet.py"
"""
    # PTX has a special register of that name, which is a vector.
    return re.sub(r"%tid\b(?!\.)", "%thread", text)


def run(body, arrays, threads=32, ctas=1, shared="", options=None, observers=(), shared_bytes=0):
    """Run a body on arrays, which it finds at %p_<name>."""
    recipe = Launch(
        (ctas, 1, 1), (threads, 1, 1), tuple(TensorParam(name, (), ()) for name in arrays), shared_bytes=shared_bytes
    )
    options = options or Options(checks=True)
    launch(kernel_text(body, arrays, shared), recipe, arrays, options=options, observers=observers)


def at(name, size, index="%index"):
    """Instructions that put the address of element `index` of an array into %address."""
    return f"mul.wide.u32 %offset, {index}, {size};\nadd.u64 %address, %p_{name}, %offset;\n"


def each(instruction, out, *inputs):
    """Apply an instruction to every element; `out` and `inputs` are pairs of a PTX type of bits and an array.

    The instruction names its destination d and its sources a, b, c, as $d, $a, $b, $c; predicates are %p1.
    """
    names = "abcdefgh"
    arrays = {"out": out[1]}
    registers = {"b8": "%h", "b16": "%h", "b32": "%r", "b64": "%d"}
    body, numbers = [], {}
    text = instruction
    for number, (kind, array) in enumerate(inputs):
        arrays[names[number]] = array
        register = f"{registers[kind]}{number + 1}"
        numbers[names[number]] = register
        body.append(at(names[number], _BYTES[kind]) + f"ld.global.{kind} {register}, [%address];")
        text = re.sub(rf"\${names[number]}\b", register, text)
    target = f"{registers[out[0]]}20"
    # Poison shows where a destination is not written whole.
    body += [text.replace("$out", target), at("out", _BYTES[out[0]]) + f"st.global.{out[0]} [%address], {target};"]
    count = len(out[1])
    for name, array in arrays.items():
        assert len(array) == count, name
    threads = min(count, 128)
    assert count % threads == 0
    run("\n".join(body), arrays, threads=threads, ctas=count // threads, options=Options())
    return out[1]


def bits_of(array):
    return array.view(f"u{array.itemsize}")


SPECIAL_FLOATS = [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 0.5, 1.5, 2.5, -2.5, 3.5, 255.5, -128.5, 65504.0, 1e9]


def floats(rng, dtype, count=1024):
    """Numbers of all kinds: any bits, ordinary ones, special ones, subnormals, neighbours of powers of two."""
    dtype = np.dtype(dtype)
    unsigned = np.dtype(f"u{dtype.itemsize}")
    any_bits = rng.integers(0, np.iinfo(unsigned).max, count, unsigned, endpoint=True).view(dtype)
    normal = rng.standard_normal(count).astype(dtype)
    info = np.finfo(dtype)
    special = np.array(
        [
            *SPECIAL_FLOATS,
            info.tiny,
            -info.tiny,
            info.smallest_subnormal,
            info.max,
            info.min,
            1 + info.eps,
            1 - info.eps,
        ]
    ).astype(dtype)
    small = (info.smallest_subnormal * rng.integers(-1000, 1000, count)).astype(dtype)
    kinds = np.stack([any_bits, normal, special[rng.integers(0, len(special), count)], small])
    return kinds[rng.integers(0, 4, count), np.arange(count)]


def integers(rng, dtype, count=1024):
    """Integers of all kinds: any, small ones, limits."""
    info = np.iinfo(dtype)
    any_bits = rng.integers(info.min, info.max, count, dtype, endpoint=True)
    small = rng.integers(-5 if info.min else 0, 40, count).astype(dtype)
    limits = np.array([info.min, info.max, 0, 1, info.max // 2, info.min + 1], dtype)[rng.integers(0, 6, count)]
    return np.stack([any_bits, small, limits])[rng.integers(0, 3, count), np.arange(count)]


def assert_same_bits(got, expected):
    """Equal bit for bit; what is no number may be any NaN."""
    expected = np.asarray(expected).astype(got.dtype)
    if got.dtype.kind == "f":
        both_nan = np.isnan(got) & np.isnan(expected)
        different = (bits_of(got) != bits_of(expected)) & ~both_nan
    else:
        different = got != expected
    where = np.flatnonzero(different)
    assert not len(where), f"{len(where)} differ, first at {where[0]}: {got[where[0]]!r}, not {expected[where[0]]!r}"


def exchange(barrier="bar.sync 0;", shift=32):
    """Each thread stores into shared memory and reads what another warp stored."""
    return f"""mov.u32 %r1, buffer;
    mad.lo.u32 %r3, %tid, 4, %r1;
    st.shared.b32 [%r3], %index;
    {barrier}
    xor.b32 %r4, %tid, {shift};
    mad.lo.u32 %r3, %r4, 4, %r1;
    ld.shared.b32 %r2, [%r3];
"""

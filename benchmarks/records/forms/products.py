"""wgmma: types, columns, where A is, directions, swizzles, signs, with numbers of several kinds."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from . import Form, Prepared  # isort: skip
from support.ptx.wgmma import SHARED, SUMS, TYPES, product

EIGHT_BITS = ("e4m3", "e5m2")
FORMS = (
    ("f32", "f16", "f16"), ("f16", "f16", "f16"), ("f32", "bf16", "bf16"), ("f32", "tf32", "tf32"),
    *((d, a, b) for d in ("f32", "f16") for a in EIGHT_BITS for b in EIGHT_BITS),
    *(("s32", a, b) for a in ("s8", "u8") for b in ("s8", "u8")),
)  # fmt: skip
#: Powers of two between which exponents lie, around the middle of those that a type has.
SPREAD = {"e4m3": (-6, 4), "e5m2": (-12, 6), "f16": (-12, 6), "bf16": (-40, 30), "tf32": (-40, 30)}
#: Where a type's subnormal numbers begin.
LEAST = {"e4m3": -6, "e5m2": -14, "f16": -14, "bf16": -126, "tf32": -126}
NUMBERS = ("ordinary", "far apart", "subnormal", "infinities and NaN")


def factor(random: np.random.RandomState, kind: str, shape: tuple[int, ...], numbers: str) -> np.ndarray[Any, Any]:
    """Return a factor; integers are any."""
    dtype = TYPES[kind]
    if dtype.kind in "iu":
        return random.randint(0, 256, shape).astype(np.uint8).view(dtype)
    values = random.randn(*shape)
    if numbers == "far apart":
        values = values * np.exp2(random.randint(*SPREAD[kind], shape))
        values[random.random_sample(shape) < 0.1] = 0
    elif numbers == "subnormal":
        small = random.random_sample(shape) < 0.5
        values = np.where(small, values * np.exp2(float(LEAST[kind] - 1)), values)
    found = values.astype(dtype)
    if numbers == "infinities and NaN":
        where = random.random_sample(shape)
        found[where < 0.004] = np.nan
        if kind != "e4m3":
            found[(where > 0.992) & (where < 0.996)] = np.inf
            found[where > 0.996] = -np.inf
    return found


def multiply(n: int, types: tuple[str, str, str], numbers: str, how: dict[str, Any], random: np.random.RandomState
             ) -> Prepared:  # fmt: skip
    """Multiply twice, and add: into sums of like size, or into zeros."""
    k = 32 // TYPES[types[1]].itemsize
    a, b = factor(random, types[1], (64, k), numbers), factor(random, types[2], (n, k), numbers)
    if types[0] == "s32":
        c = random.randint(-(2**31), 2**31, (64, n)).astype(np.int32)
    else:
        c = (random.randn(64, n) * 3).astype(SUMS[types[0]])
    body, arrays = product(a, b, c, types, **how)
    return body, arrays, {"threads": 128, "shared": SHARED}


def forms() -> Iterator[Form]:
    """Yield them all."""

    def form(group: str, n: int, types: tuple[str, str, str], numbers: str, said: str = "", **how: Any) -> Form:
        name = f"{' '.join(types)}, n{n}, {numbers}{said}"
        return Form(group, name, functools.partial(multiply, n, types, numbers, how))

    for types, numbers, registers in itertools.product(FORMS, NUMBERS, (False, True)):
        if types[0] == "s32" and numbers != "ordinary":
            continue
        said = ", A in registers" if registers else ""
        yield form("wgmma", 32, types, numbers, said, registers=registers)
    for types in FORMS:
        for numbers in ("ordinary", "far apart")[: 1 + (types[0] != "s32")]:
            yield form("wgmma", 24, types, numbers, ", sums begin at 0", scale=0)
            yield form("wgmma", 8, types, numbers, ", once, sums begin at 0", scale=0, twice=False)
    for types, n in itertools.product((FORMS[0], FORMS[3], FORMS[4], FORMS[-3]), (8, 16, 48, 96, 160, 224, 256)):
        yield form("wgmma: columns", n, types, "ordinary")
    for types, a, b, swizzle in itertools.product(FORMS[:3], (True, False), (True, False), (0, 32, 64, 128)):
        said = f", A along {'k' if a else 'm'}, B along {'k' if b else 'n'}, swizzle {swizzle}"
        yield form("wgmma: directions", 64, types, "ordinary", said, a_k_major=a, b_k_major=b, swizzles=(swizzle,) * 2)
    for first, second in itertools.permutations((0, 32, 64, 128), 2):
        yield form("wgmma: swizzles", 40, FORMS[2], "ordinary", f", {first} and {second}", swizzles=(first, second))
    for types, swizzle in itertools.product((FORMS[3], FORMS[4], FORMS[-1]), (0, 32, 64)):
        yield form("wgmma: swizzles", 32, types, "ordinary", f", {swizzle}", swizzles=(swizzle, swizzle))
    for types, signs in itertools.product(FORMS[:-4], ((-1, 1), (1, -1), (-1, -1))):
        yield form("wgmma: signs", 16, types, "far apart", f", {signs[0]} {signs[1]}", signs=signs)

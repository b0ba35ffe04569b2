"""Classes of instructions by their kind of work."""

from __future__ import annotations

import re

from ..ptx.module import Instruction

_BY_NAME = {
    "load": ("ld", "ldu"),
    "store": ("st",),
    "atomic": ("atom", "red"),
    "async copy": ("cp",),
    "matrix load": ("ldmatrix", "stmatrix", "movmatrix"),
    "matrix multiply": ("mma", "wgmma"),
    "barrier": ("bar", "barrier", "mbarrier"),
    "fence": ("membar", "fence"),
    "warp exchange": ("shfl", "vote", "match", "redux", "elect", "activemask"),
    "convert": ("cvt", "cvta"),
    "compare": ("setp", "set", "testp", "selp", "slct"),
    "move": ("mov",),
    "branch": ("bra", "brx", "call", "ret", "exit", "trap"),
    "logic": ("and", "or", "xor", "not", "cnot", "shl", "shr", "shf", "lop3", "prmt", "bfe", "bfi", "bfind", "brev",
              "popc", "clz"),
    "function": ("rcp", "sqrt", "rsqrt", "ex2", "lg2", "sin", "cos", "tanh"),
}  # fmt: skip
_CLASS = {name: kind for kind, names in _BY_NAME.items() for name in names}
_SPACES = ("global", "shared", "local", "param", "const")
_FLOATS = ("f16", "f16x2", "bf16", "bf16x2", "f32", "f32x2", "f64")
_SHAPE = re.compile(r"m(\d+)n(\d+)k(\d+)$")


def class_of(instruction: Instruction) -> str:
    """Return the class of an instruction, e.g. ``load shared`` or ``fma f32``."""
    kind = _CLASS.get(instruction.name)
    if instruction.name == "cp" and "bulk" in instruction.modifiers:
        return _bulk(instruction)
    if kind in ("load", "store", "atomic"):
        space = next(
            (part.split("::")[0] for part in instruction.modifiers if part.split("::")[0] in _SPACES), "generic"
        )
        return f"{kind} {space}"
    if kind is not None:
        return kind
    number = next((part for part in instruction.modifiers if part in _FLOATS), None)
    if number is None:
        return "integer"
    return f"{'fma' if instruction.name in ('fma', 'mad') else 'float'} {number}"


def _bulk(instruction: Instruction) -> str:
    """Return the direction of a bulk copy: its first space is where it goes to. Groups are those of stores."""
    spaces = (part.split("::")[0] for part in instruction.modifiers)
    return (
        "bulk load"
        if next((part for part in spaces if part in ("shared", "global")), "global") == "shared"
        or ("prefetch" in instruction.modifiers)
        else "bulk store"
    )


def flop_of_lane(instruction: Instruction) -> float:
    """Return the floating-point operations of one lane; a fused multiply-add is two, of a matrix each lane's share."""
    name, modifiers = instruction.name, instruction.modifiers
    if name == "mma" or (name == "wgmma" and "mma_async" in modifiers):
        shape = next(filter(None, map(_SHAPE.match, modifiers)))
        m, n, k = map(int, shape.groups())
        return 2 * m * n * k / (32 if name == "mma" else 128)
    number = next((part for part in modifiers if part in _FLOATS), None)
    if number is None:
        return 0
    each = {"fma": 2, "mad": 2, "add": 1, "sub": 1, "mul": 1, "div": 1, "min": 0, "max": 0}.get(name, 0)
    return each * (2 if number.endswith("x2") else 1)

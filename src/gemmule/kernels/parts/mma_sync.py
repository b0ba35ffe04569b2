"""mma.sync: products of small matrices on tensor cores, held by a warp as words in its registers.

Words have 32 bits, or 64 where they are float64.
"""

from __future__ import annotations

import cutlass
from cutlass import cute

#: PTX names of the types of operands and accumulators.
_OPERANDS = {"float16": "f16", "bfloat16": "bf16", "float32": "tf32", "int8": "s8"}
_ACCUMULATORS = {"float16": "f16", "float32": "f32", "int32": "s32"}
_ITEMSIZES = {"float16": 2, "bfloat16": 2, "float32": 4, "int8": 1}


def mma_name(operands: str, accumulators: str, k_bytes: int) -> str:
    """Return the instruction for 16 rows and 8 columns of `accumulators`, and `k_bytes` (16 or 32) of `operands`."""
    one, total = _OPERANDS[operands], _ACCUMULATORS[accumulators]
    return f"mma.sync.aligned.m16n8k{k_bytes // _ITEMSIZES[operands]}.row.col.{total}.{one}.{one}.{total}"


def double_mma_name(rows: int, k: int) -> str:
    """Return the instruction for `rows` (8 or 16) rows and 8 columns of float64, and `k` (4, 8 or 16) elements of K."""
    return f"mma.sync.aligned.m{rows}n8k{k}.row.col.f64.f64.f64.f64"


@cute.jit
def mma_sync(name: cutlass.Constexpr[str], rC: cute.Tensor, a, b):
    """Add the product of the words of A and those of B, tuples both, to the words of C."""
    count = cutlass.const_expr(cute.size(rC))
    added = cute.arch.inline_ptx(
        f"{name} {_places('w', 0, count)}, {_places('r', 0, len(a))}, {_places('r', len(a), len(b))}, "
        f"{_places('r', len(a) + len(b), count)};",
        write_only_types=[rC.element_type] * count,
        read_only_args=[*a, *b, *[rC[i] for i in range(count)]],
    )
    for i in cutlass.range_constexpr(count):
        rC[i] = added[i]


def _places(kind: str, first: int, count: int) -> str:
    """Return the places of operands in the text of an instruction."""
    return "{" + ", ".join(f"{{${kind}{first + i}}}" for i in range(count)) + "}"

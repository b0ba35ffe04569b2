"""PTX instructions with one result, whose operands may be constants."""

from __future__ import annotations

import struct
from typing import Any

from cutlass import Float32, Float64, cute

_PREFIXES = {Float32: ("0f", ">f"), Float64: ("0d", ">d")}


def instruction(name: str, result: Any, *operands: Any) -> Any:
    """Return the result of an instruction, of type `result`, as are operands that are Python numbers."""
    values = [one for one in operands if not isinstance(one, int | float)]
    numbers = iter(range(len(values)))
    texts = [_literal(one, result) if isinstance(one, int | float) else f"{{$r{next(numbers)}}}" for one in operands]
    return cute.arch.inline_ptx(
        f"{name} {{$w0}}, {', '.join(texts)};", write_only_types=[result], read_only_args=values
    )


def _literal(value: float, kind: Any) -> str:
    """Return a constant as PTX spells it."""
    if kind not in _PREFIXES:
        return str(value)
    prefix, packed = _PREFIXES[kind]
    return prefix + struct.pack(packed, value).hex()

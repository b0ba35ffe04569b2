"""The product in programs that PyTorch's Inductor generates: a call of a Python function, into memory of the program.

A call of the operator goes through PyTorch's dispatcher, which calls Python twice, where a decode has a hundred small
products. Inductor's own products are called like this one.
"""

from __future__ import annotations

import sys
from typing import Any

from .linear_cache import product_into
from .product import TRACED, adds_in_the_kernel

_NAME = "gemmule_gemm"
_LOWERINGS, _EXTERN = "torch._inductor.lowering", "torch._inductor.select_algorithm"


def add_lowering(operator: Any) -> bool:
    """Add the lowering of the operator where Inductor is imported, and return whether it is there.

    Programs of Inductor's cache call the function by its name: this is called while a program is traced, before that.
    """
    lowering, extern = sys.modules.get(_LOWERINGS), sys.modules.get(_EXTERN)
    if lowering is None or extern is None or not hasattr(extern, "realize_inputs"):
        return False
    if hasattr(extern.extern_kernels, _NAME):
        return True
    choice = extern.ExternKernelChoice(product_into, name=_NAME)
    dispatched = lowering.fallback_handler(operator, add_to_fallback_set=False)

    def lower(a: Any, b: Any, c: Any, alpha: float, beta: float, out_dtype: Any, precision: str | None) -> Any:
        inputs, sizes_b = [a, b], b.get_size()
        calls = alpha == 1 and out_dtype is None and len(sizes_b) == 2 and not extern.V.graph.cpp_wrapper
        if c is not None:
            # A bias of columns, as `compute` finds it.
            inputs.append(c)
            calls &= beta == 1 and [*c.get_size()] == [sizes_b[-1]] and c.get_dtype() == a.get_dtype()
            calls &= adds_in_the_kernel(a.get_device().type == "cuda", a.get_dtype(), precision)
        if not calls:
            return dispatched(a, b, c, alpha, beta, out_dtype, precision)
        out = extern.ir.FixedLayout(a.get_device(), a.get_dtype(), [*a.get_size()[:-1], sizes_b[-1]])
        inputs = extern.realize_inputs(*inputs)
        for one in inputs:
            one.freeze_layout()
        options = {"layouts": _layouts([*(one.get_layout() for one in inputs), out], precision)}
        if precision is not None:
            options["precision"] = precision
        return choice.bind(inputs, out, **options).output_node()

    lowering.register_lowering(operator, type_promotion_kind=None)(lower)
    return True


def _layouts(layouts: list[Any], precision: str | None) -> str | None:
    """Return device, type, precision and each tensor's extents and strides; None where there are symbols among them."""
    extents = [[*layout.size, *layout.stride] for layout in layouts]
    if not all(isinstance(extent, int) or extent.is_Integer for one in extents for extent in one):
        return None
    first = layouts[0]
    return f"{first.device} {first.dtype} {precision} {extents}"


TRACED.append(add_lowering)

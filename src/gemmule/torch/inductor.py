"""The product in programs that PyTorch's Inductor generates: a call of a Python function, into memory of the program.

A call of the operator goes through PyTorch's dispatcher, which calls Python twice, where a decode has a hundred small
products. Inductor's own products are called like this one.
"""

from __future__ import annotations

import inspect
import sys
from typing import Any

import gemmule as gm

from .linear_cache import product_into
from .product import TRACED, bias_role

_NAME = "gemmule_gemm"
_LOWERINGS, _EXTERN = "torch._inductor.lowering", "torch._inductor.select_algorithm"
_CONFIG = "torch._inductor.config"
# Inductor hashes this table of function names and versions into the keys of its cache on disk.
_VERSIONS = "unsafe_marked_cacheable_functions"


def add_lowering(operator: Any) -> bool:
    """Add the lowering of the operator where Inductor is imported, and return whether it is there.

    Programs of Inductor's cache call the function by its name: this is called while a program is traced, before that.
    """
    lowering, extern = sys.modules.get(_LOWERINGS), sys.modules.get(_EXTERN)
    if lowering is None or extern is None or not hasattr(extern, "realize_inputs"):
        return False
    _state_version(operator)
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
            calls &= bias_role(a.get_device().type == "cuda", a.get_dtype(), precision) == "bias"
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


def _state_version(operator: Any) -> None:
    """State the version in Inductor's configuration: programs cached on disk by another version are not loaded."""
    config = sys.modules.get(_CONFIG)
    versions = getattr(config, _VERSIONS, None)
    # Older versions of PyTorch have no such table.
    if versions is not None:
        stated = {f"torch.ops.{operator}": f"{gm.__version__} {inspect.signature(product_into)}"}
        if not stated.items() <= versions.items():
            setattr(config, _VERSIONS, versions | stated)


def _layouts(layouts: list[Any], precision: str | None) -> str | None:
    """Return the precision, and each tensor's device, type, extents and strides; None where extents are symbols."""
    extents = [[*layout.size, *layout.stride] for layout in layouts]
    if not all(isinstance(extent, int) or extent.is_Integer for one in extents for extent in one):
        return None
    texts = [f"{one.device} {one.dtype} {[*one.size]} {[*one.stride]}" for one in layouts]
    return "; ".join([repr(precision), *texts])


TRACED.append(add_lowering)

"""Planning a product of host arrays on the virtual GPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gemmule.core.spec import KernelSpec
from gemmule.dispatch.registry import REGISTRY
from gemmule.dispatch.select import choose

from .absolute_maximum import ROLE as ABSMAX
from .call_plan import Plan
from .checked import Product, host_array
from .on_device import problem_in_place
from .product_plan import planned
from .virtual import as_device_view, copy_again, copy_back


def plan_on_virtual_gpu(product: Product, reason: str, registry: Sequence[KernelSpec] | None = None) -> Plan:
    """Plan a product of host arrays whose kernels run on the CPU: those of a registry, all if there is none."""
    from gemmule.vgpu.arch import device_name, virtual_arch

    views = {role: as_device_view(view) for role, view in product.operands.views.items()}
    problem, roles = problem_in_place(product, views)
    choice = choose(problem, virtual_arch(), REGISTRY if registry is None else registry)

    def run() -> Any:
        from gemmule.vgpu.execute import run_kernel

        for role, view in views.items():
            copy_again(view, product.view(role))
        given, finish = product.new_output()
        out = views.get("out") or as_device_view(given)
        arrays = {name: host_array(views[role]) for name, role in roles.items()} | {"d": host_array(out)}
        if ABSMAX in views:
            arrays[ABSMAX] = host_array(views[ABSMAX])
            arrays[ABSMAX][...] = 0
        run_kernel(problem, choice, arrays)
        copy_back(out, given)
        if ABSMAX in views:
            copy_back(views[ABSMAX], product.view(ABSMAX))
        return finish()

    return planned(product, "vgpu", device_name(), choice, reason, problem, run)

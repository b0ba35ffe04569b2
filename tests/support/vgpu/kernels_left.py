"""Calls on the virtual GPU that choose among some kernels only."""

from gemmule.api.planning import vgpu_products
from gemmule.dispatch.select import choose


def leave_kernels(monkeypatch, specs):
    """Have products on the virtual GPU choose among these kernels."""

    def chosen(problem, arch, registry):
        return choose(problem, arch, registry or specs)

    monkeypatch.setattr(vgpu_products, "choose", chosen)

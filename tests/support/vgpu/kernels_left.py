"""Calls on the virtual GPU that choose among some kernels only."""

from gemmule.api.planning import vgpu_products
from gemmule.api.planning.choice import choose_virtual


def leave_kernels(monkeypatch, specs):
    """Have products on the virtual GPU choose among these kernels."""

    def chosen(problem, registry, chip):
        return choose_virtual(problem, registry or specs, chip)

    monkeypatch.setattr(vgpu_products, "choose_virtual", chosen)

"""Compiled kernels are kept by a key that knows of every source which their code comes from."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path

import pytest

from gemmule.compiler.key import source_digests
from gemmule.dispatch.registry import REGISTRY
from gemmule.kernels.gemm.h12_six_products.spec import SPEC as SIX_PRODUCTS
from gemmule.kernels.gemm.h14_products.spec import SPEC as PRODUCTS
from gemmule.kernels.gemm.h14_reconstruction.spec import SPEC as RECONSTRUCTION
from gemmule.kernels.gemm.h14_residues.spec import SPEC as RESIDUES

EVERY = (*REGISTRY, SIX_PRODUCTS, PRODUCTS, RECONSTRUCTION, RESIDUES)


def imports(module):
    """The modules that a module imports from, and the names that it takes, by those that it gives them."""
    found = importlib.util.find_spec(module)
    if found is None:
        return {}
    tree = ast.parse(Path(found.origin).read_text())
    taken = [one for one in ast.walk(tree) if isinstance(one, ast.ImportFrom)]
    package = module.rpartition(".")[0]
    return {
        alias.asname or alias.name: f"{package}.{one.module}" if one.level else one.module
        for one in taken
        for alias in one.names
    }


def origins(package):
    """Modules that the device code of a package takes something from, directly or through its spec."""
    spec = imports(f"{package}.spec")
    for name, module in imports(f"{package}.kernel").items():
        yield spec.get(name, module) if module == f"{package}.spec" else module


@pytest.mark.parametrize("spec", EVERY, ids=lambda spec: spec.name)
def test_the_key_follows_every_kernel_that_code_is_made_of(spec):
    known = source_digests(spec)
    for package in (spec.package, *spec.built_on):
        for module in origins(package):
            if module.startswith("gemmule.kernels."):
                assert module.rpartition(".")[0] in known, module


def test_numbers_of_the_core_are_followed():
    assert "gemmule.core.residues" in source_digests(RESIDUES)
    assert "gemmule.core.below_stairs" in source_digests(next(one for one in REGISTRY if one.name == "g08_triangle"))
    assert "gemmule.core.residues" not in source_digests(SIX_PRODUCTS)

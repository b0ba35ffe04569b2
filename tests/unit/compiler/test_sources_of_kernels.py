"""The key of a compiled kernel follows every module that its code comes from."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import pytest

from gemmule.compiler import key
from gemmule.compiler.key import artifact_key, source_digests
from gemmule.core.arch import Arch
from gemmule.dispatch.registry import REGISTRY
from gemmule.kernels.emulation.bf16x6_products.spec import SPEC as SIX_PRODUCTS
from gemmule.kernels.emulation.ozaki_products.spec import SPEC as PRODUCTS
from gemmule.kernels.emulation.ozaki_reconstruction.spec import SPEC as RECONSTRUCTION
from gemmule.kernels.emulation.ozaki_residues.spec import SPEC as RESIDUES

EVERY = (*REGISTRY, SIX_PRODUCTS, PRODUCTS, RECONSTRUCTION, RESIDUES)
#: Prints the modules of gemmule that are imported with each module that is named. The package itself is a stand-in: its
#: own imports, for its users, are no part of a kernel.
_IMPORTED = """
import importlib, sys, types
package = types.ModuleType("gemmule")
package.__path__ = [sys.argv[1]]
for name in sys.argv[2:]:
    for loaded in [one for one in sys.modules if one.startswith("gemmule")]:
        del sys.modules[loaded]
    sys.modules["gemmule"] = package
    importlib.import_module(name)
    print(name, *(one for one in sys.modules if one.startswith("gemmule.")))
"""


def test_a_compiled_kernel_serves_gpus_of_any_number_of_multiprocessors():
    spec, arch = next(one for one in REGISTRY if one.name == "hopper_gemm"), Arch(9, 0, True)
    signature = spec.signatures(arch)[0]
    keys = {artifact_key(spec, spec.default.on(count), signature, arch) for count in (16, 114, 132)}
    assert len(keys) == 1
    assert artifact_key(spec, spec.configs[1], signature, arch) not in keys


@pytest.fixture(scope="module")
def imported():
    pytest.importorskip("cutlass", reason="the kernel compiler is not installed")
    names = sorted({f"{spec.package}.kernel" for spec in EVERY})
    command = [sys.executable, "-c", _IMPORTED, str(key._PACKAGE), *names]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return {name: modules for name, *modules in map(str.split, done.stdout.splitlines())}


def test_the_key_follows_every_module_that_a_kernel_imports(imported):
    for spec in EVERY:
        known = source_digests(spec)
        modules = imported[f"{spec.package}.kernel"]
        missing = [one for one in modules if one not in known and not key._source(one).endswith("__init__.py")]
        assert len(modules) > 3
        assert not missing, (spec.name, missing)


def test_a_constant_far_away_changes_the_key(monkeypatch, tmp_path):
    """The kernel of Hopper imports the raster through the tiles of a cluster."""
    spec = next(one for one in REGISTRY if one.name == "hopper_gemm")
    before, source = source_digests(spec), key._source
    changed = tmp_path / "raster.py"
    changed.write_text(pathlib.Path(source("gemmule.kernels.parts.raster")).read_text() + "\nFAR_AWAY = 1\n")
    monkeypatch.setattr(key, "_source", lambda name: str(changed) if name.endswith(".raster") else source(name))
    after = source_digests(spec)
    assert [name for name in before if before[name] != after[name]] == ["gemmule.kernels.parts.raster"]


def test_imports_after_a_comment_that_begins_one_are_found():
    content = "# from a import (\nfrom gemmule.core.arch import Arch\nx = f(1)\n"
    assert "gemmule.core.arch" in key._imports(content, "gemmule.core")


def test_other_kernels_change_no_key():
    assert "gemmule.kernels.emulation.residues" in source_digests(RESIDUES)
    assert not [name for name in source_digests(SIX_PRODUCTS) if "residues" in name or "transpose" in name]


def test_host_functions_of_the_virtual_gpu_are_in_no_key():
    spec = REGISTRY[0]
    assert "gemmule.compiler.compile" in source_digests(spec)
    assert not [module for module in source_digests(spec) if module.startswith("gemmule.compiler.host_functions")]

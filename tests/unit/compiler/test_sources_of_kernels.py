"""The key of a compiled kernel follows every module that its code comes from."""

from __future__ import annotations

import ast
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


@pytest.mark.parametrize(
    ("module", "old", "new", "same"),
    [
        ("gemmule.core.spec", '"""The specification of a kernel', '"""The specification\nof a kernel', True),
        ("gemmule.core.spec", "# Slots, as", "# One\n# line more, slots, as", True),
        ("gemmule.core.spec", "  #: One line.", "", True),
        ("gemmule.core.spec", "batch_dims: int = 1", "batch_dims: int = 2", False),
        ("gemmule.kernels.parts.raster", "    return ", "    # A line of a kernel.\n    return ", False),
        ("gemmule.kernels.parts.raster", '"""Rasters:', '"""The rasters:', True),
    ],
)
def test_what_is_said_of_code_changes_no_key(monkeypatch, tmp_path, module, old, new, same):
    """Comments and docstrings, unless they move lines of a kernel, which are in its line info."""
    spec = next(one for one in REGISTRY if one.name == "hopper_gemm")
    before, source = source_digests(spec), key._source
    changed, content = tmp_path / "changed.py", pathlib.Path(source(module)).read_text()
    assert old in content
    changed.write_text(content.replace(old, new, 1))
    monkeypatch.setattr(key, "_source", lambda name: str(changed) if name == module else source(name))
    after = source_digests(spec)
    assert [name for name in before if before[name] != after[name]] == ([] if same else [module])


def test_every_module_keeps_its_code():
    """`code_of` leaves out docstrings and comments alone, of strings with quotes and hashes too."""

    def tree_of(content):
        tree = ast.parse(content)
        for node in ast.walk(tree):
            documented = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
            if documented and ast.get_docstring(node, clean=False) is not None:
                node.body[0].value = ast.Constant("")
        return ast.dump(tree)

    for path in key._PACKAGE.rglob("*.py"):
        content = path.read_text()
        for with_lines in (False, True):
            code = key.code_of(content, with_lines=with_lines)
            assert tree_of(code) == tree_of(content), path
        assert code.count("\n") == content.count("\n"), path


def test_other_kernels_change_no_key():
    assert "gemmule.kernels.emulation.residues" in source_digests(RESIDUES)
    assert not [name for name in source_digests(SIX_PRODUCTS) if "residues" in name or "transpose" in name]


def test_host_functions_of_the_virtual_gpu_are_in_no_key():
    spec = REGISTRY[0]
    assert "gemmule.compiler.compile" in source_digests(spec)
    assert not [module for module in source_digests(spec) if module.startswith("gemmule.compiler.host_functions")]

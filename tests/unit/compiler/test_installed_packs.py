"""Packs of installed distributions: how they are found, and which are refused. Nothing is compiled here."""

from __future__ import annotations

import functools
import hashlib
import json
import lzma
import os
import re
import subprocess
import sys
import textwrap
import tracemalloc
import warnings
import zipfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from gemmule.cli import gemmule
from gemmule.compiler import key as keys
from gemmule.compiler import pack as packs
from gemmule.compiler.cache import CacheWarning, KernelCache
from gemmule.compiler.key import artifact_key
from gemmule.compiler.pack import INSTALLED, INSTALLED_FILE, PACKS, PackWarning, write_pack
from gemmule.core.arch import Arch
from gemmule.core.errors import CompileError, CompilerMissingError
from gemmule.dispatch.registry import REGISTRY
from support.artifacts import compiler_is_installed, made, mark_of

ARCH = Arch.parse("sm_90a")
SPEC = next(spec for spec in REGISTRY if spec.name == "gemm_reference")
SIGNATURES = SPEC.signatures(ARCH)
ORIGIN = "gemmule-kernels-sm90 0.1.0.dev0"
(PACKAGE,) = INSTALLED


def what(which=0):
    return SPEC, SPEC.default, SIGNATURES[which], ARCH


@pytest.fixture
def kernels(tmp_path, monkeypatch):
    """A cache with an empty folder, and a compiler."""
    monkeypatch.setenv("GEMMULE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("GEMMULE_PACK", raising=False)
    PACKS.unload()
    yield KernelCache(PACKS, made)
    PACKS.unload()


@pytest.fixture
def installed(tmp_path, monkeypatch, kernels):
    """The file of an installed pack that has the first kernel."""
    folder = tmp_path / "site" / PACKAGE
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("raise AssertionError('imported')")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    return written(folder / INSTALLED_FILE)


def written(path):
    content = made(*what(), mark="packed").as_bytes(compressed=False)
    write_pack(path, [(artifact_key(*what()), content)], origin=ORIGIN, specs=[SPEC])
    return path


def with_manifest(path, **changes):
    """Change entries of a pack's manifest."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    members["pack.json"] = json.dumps(json.loads(members["pack.json"]) | changes).encode()
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)


def test_an_installed_pack_is_found_without_a_name(installed, kernels):
    assert mark_of(kernels.artifact_for(*what())) == "packed"
    assert mark_of(kernels.artifact_for(*what(1))) == "compiled"
    assert kernels.is_compiled(*what())
    assert [(pack.path, pack.origin) for pack in PACKS.all()] == [(installed, ORIGIN)]


def test_the_command_names_it(installed):
    told = CliRunner().invoke(gemmule, ["info"]).output
    assert f"; 1 in {ORIGIN}\n" in told
    found = json.loads(CliRunner().invoke(gemmule, ["info", "--json"]).output)
    assert found["packs"] == [{"file": str(installed), "origin": ORIGIN, "kernels": 1}]


def test_it_is_behind_the_packs_that_are_named(installed, kernels, tmp_path, monkeypatch):
    write_pack(tmp_path / "named.pack", [(artifact_key(*what()), made(*what(), mark="named").as_bytes())])
    monkeypatch.setenv("GEMMULE_PACK", str(tmp_path / "named.pack"))
    assert mark_of(kernels.artifact_for(*what())) == "named"


def test_nothing_is_installed(kernels):
    if PACKS.installed():
        pytest.skip("gemmule-kernels-sm90 is installed")
    assert mark_of(kernels.artifact_for(*what())) == "compiled"


def _truncated(path):
    path.write_bytes(path.read_bytes()[:-40])


def _other_sources(path):
    with_manifest(path, sources={SPEC.name: "0" * 64}, members={}, blocks={})


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (_truncated, "is not a pack of gemmule, or is damaged"),
        (lambda path: path.write_bytes(b""), "is not a pack of gemmule, or is damaged"),
        (Path.unlink, "kernels.pack cannot be opened"),
        (lambda path: with_manifest(path, format=7), "is a pack of format 7"),
        (lambda path: with_manifest(path, toolchain="nvidia-cutlass-dsl 4.7.0"), "made with nvidia-cutlass-dsl 4.7.0"),
        (_other_sources, f"made from other sources of {SPEC.name}"),
    ],
)
def test_a_foreign_or_damaged_pack_is_refused_by_name_in_one_line(installed, kernels, change, why):
    change(installed)
    with pytest.warns(PackWarning) as told:
        assert mark_of(kernels.artifact_for(*what())) == "compiled"
    (line,) = [str(warning.message) for warning in told]
    assert "gemmule-kernels-sm90" in line
    assert str(installed) in line
    assert why in line
    assert line.endswith("install gemmule and gemmule-kernels-sm90 of one version")
    assert "\n" not in line
    assert not PACKS.installed()
    # Warnings are errors: it was the only one.
    assert mark_of(kernels.artifact_for(*what(1))) == "compiled"


def test_a_pack_of_these_sources_that_lacks_a_kernel_is_not_refused(installed, kernels):
    assert mark_of(kernels.artifact_for(*what(1))) == "compiled"
    assert [pack.path for pack in PACKS.installed()] == [installed]


def test_a_pack_is_the_same_bytes_in_any_order_and_place(tmp_path, kernels, monkeypatch):
    monkeypatch.setattr(packs, "BLOCK", 8)
    contents = [(artifact_key(*what(n)), made(*what(n)).as_bytes(compressed=False)) for n in range(packs.BLOCK + 2)]
    others = [spec for spec in REGISTRY if spec.name in ("gemm_reference", "g04_register_tile")]
    (tmp_path / "sub").mkdir()
    first = write_pack(tmp_path / "a.pack", contents, origin=ORIGIN, specs=others)
    second = write_pack(tmp_path / "sub" / "b.pack", reversed(contents), origin=ORIGIN, specs=reversed(others))
    assert first.path.read_bytes() == second.path.read_bytes()
    plain = write_pack(tmp_path / "c.pack", contents)
    assert first.path.stat().st_size < plain.path.stat().st_size
    assert len(first.kernels) == len(contents)
    for pack in (first, plain):
        artifacts = [made(*what(n)) for n in range(len(contents))]
        # The virtual GPU alone reads PTX, more than half of the bytes.
        expected = [one.without_ptx() for one in artifacts] if pack is first else artifacts
        assert [pack.artifact(key) for key, _ in contents] == expected
        assert pack.artifact("another") is None


def test_ptx_that_is_not_packed_is_compiled_or_named_with_the_remedy(installed, kernels):
    assert mark_of(kernels.artifact_for(*what())) == "packed"
    assert kernels.is_compiled(*what())
    assert not kernels.is_compiled(*what(), with_ptx=True)

    def missing(*what):
        raise CompilerMissingError("the kernel compiler is not installed; gemmule-kernels-sm90 has it")

    without = KernelCache(PACKS, missing)
    for number, found in ((0, r" pack{}; the pack \S*kernels\.pack has its machine code only,"), (1, r" pack{},")):
        with pytest.raises(CompilerMissingError) as raised:
            without.artifact_for(*what(number), with_ptx=True)
        assert re.fullmatch(
            r"the virtual GPU interprets PTX, that of gemm_reference for sm_90a is neither in the cache nor in a"
            + found.format("")
            + r' and the kernel compiler is not installed; pip install "gemmule\[compiler\]" compiles it',
            str(raised.value),
        )
    assert mark_of(without.artifact_for(*what())) == "packed"
    # With a compiler it is compiled, and cached for the GPU too.
    assert mark_of(kernels.artifact_for(*what(), with_ptx=True)) == "compiled"
    assert mark_of(kernels.artifact_for(*what())) == "compiled"
    assert kernels.is_compiled(*what(), with_ptx=True)


def test_a_later_pack_has_the_ptx(installed, kernels, tmp_path, monkeypatch):
    PACKS.load(packs.read_pack(written(tmp_path / "code.pack")))
    assert mark_of(kernels.artifact_for(*what())) == "packed"
    with_ptx = [(artifact_key(*what()), made(*what(), mark="whole").as_bytes())]
    write_pack(tmp_path / "named.pack", with_ptx)
    monkeypatch.setenv("GEMMULE_PACK", str(tmp_path / "named.pack"))
    assert mark_of(kernels.artifact_for(*what(), with_ptx=True)) == "whole"


def block_pack(path, contents, block=None, sizes=None):
    """Write a pack of one block, and replace its compressed content or the sizes of its kernels."""
    pack = write_pack(path, contents, origin=ORIGIN)
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    manifest, name = json.loads(members["pack.json"]), "blocks/0000.xz"
    members[name] = members[name] if block is None else block(members[name])
    manifest["members"][name] = hashlib.sha256(members[name]).hexdigest()
    manifest["blocks"][name] = manifest["blocks"][name] if sizes is None else sizes(manifest["blocks"][name])
    members["pack.json"] = json.dumps(manifest).encode()
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return packs.read_pack(pack.path)


@pytest.mark.parametrize(
    "block",
    [
        lambda content: lzma.compress(lzma.decompress(content) + b"0"),
        lambda content: lzma.compress(lzma.decompress(content)[:-1]),
        # 256 MiB in 39 KB.
        lambda content: lzma.compress(bytes(1 << 28), preset=0),
        lambda content: content[:-8],
        lambda content: b"",
    ],
    ids=["longer", "shorter", "much longer", "truncated", "empty"],
)
def test_a_block_of_another_length_is_refused_without_decompressing_it(tmp_path, kernels, block):
    contents = [(artifact_key(*what(n)), made(*what(n)).as_bytes(compressed=False)) for n in range(2)]
    pack = block_pack(tmp_path / "x.pack", contents, block)
    tracemalloc.start()
    with pytest.raises(CompileError, match=r"is damaged \(its block has not the [\d,]+ bytes .*; make it again with"):
        pack.artifact(contents[0][0])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # The dictionary takes 8 MiB.
    assert peak < 1 << 25


def test_a_kernel_under_the_key_of_another_is_refused(tmp_path, kernels):
    contents = [(artifact_key(*what(n)), made(*what(n), "packed").as_bytes(compressed=False)) for n in range(2)]
    pack = block_pack(
        tmp_path / "x.pack", contents, sizes=lambda sizes: dict(zip(reversed(sizes), sizes.values(), strict=True))
    )
    PACKS.load(pack)
    with pytest.warns(CacheWarning, match=r"x\.pack is damaged: .*another kernel under the key .*; make it again with"):
        assert mark_of(kernels.artifact_for(*what())) == "compiled"


def test_a_packed_kernel_needs_no_import_of_the_compiler(installed, tmp_path):
    script = textwrap.dedent(f"""
        import sys
        from gemmule.compiler.cache import artifact_for
        from gemmule.core.arch import Arch
        from gemmule.dispatch.registry import REGISTRY
        spec = next(spec for spec in REGISTRY if spec.name == {SPEC.name!r})
        arch = Arch.parse("sm_90a")
        print(artifact_for(spec, spec.default, spec.signatures(arch)[0], arch).cubin[-6:].decode())
        assert "cutlass" not in sys.modules and {PACKAGE!r} not in sys.modules
    """)
    path = os.pathsep.join([str(tmp_path / "site"), *sys.path])
    run = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=os.environ | {"PYTHONPATH": path}
    )
    assert run.stdout == "packed\n", run.stderr


def test_sources_are_read_once_where_nothing_is_compiled(monkeypatch, kernels):
    read = []

    def source(module):
        read.append(module)
        return found(module)

    found = keys._source
    monkeypatch.setattr(keys, "_source", source)
    monkeypatch.setattr(keys, "_module_once", functools.cache(keys._module))
    keys._closure_once.cache_clear()
    compiler_is_installed(monkeypatch, True)
    expected = [artifact_key(*what()), artifact_key(*what())]
    assert read.count(f"{SPEC.package}.kernel") == 2
    read.clear()
    compiler_is_installed(monkeypatch, False)
    assert [artifact_key(*what()), artifact_key(*what())] == expected
    assert read.count(f"{SPEC.package}.kernel") == 1
    assert len(read) == len(set(read))


def test_the_search_for_packages_imports_nothing(installed, monkeypatch):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert packs._installed_pack(PACKAGE, INSTALLED[PACKAGE]).origin == ORIGIN
        assert packs._installed_pack("gemmule_kernels_sm00", "none") is None
    assert PACKAGE not in sys.modules

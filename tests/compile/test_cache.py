"""The cache of compiled kernels: what it keeps, when it misses, and what it does with damage."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import subprocess
import sys
import textwrap

import pytest

from gemmule.compiler import cache, key
from gemmule.compiler.artifact import Artifact
from gemmule.compiler.cache import CacheWarning, KernelCache, cache_content, clear_cache
from gemmule.compiler.signature import read_entry
from gemmule.core.arch import Arch
from gemmule.core.dtype import FLOAT32
from gemmule.core.errors import ArgumentError, CompileError
from gemmule.core.launch import ScalarParam, TensorParam
from gemmule.core.permutation import transpose_problem
from gemmule.dispatch.registry import REGISTRY
from support.homeless import without_home

pytest.importorskip("cutlass", reason="the kernel compiler is not installed")

SPEC = next(spec for spec in REGISTRY if spec.name == "t01_copy_row")
ARCH = Arch.parse("sm_90a")
SIGNATURE = SPEC.signatures(ARCH)[0]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("GEMMULE_CACHE", str(tmp_path / "kernels"))
    return tmp_path / "kernels"


def get(kernels=None):
    """Return the kernel from a cache, or from that of another process."""
    return (kernels or KernelCache()).artifact_for(SPEC, SPEC.default, SIGNATURE, ARCH)


def test_a_kernel_is_kept_whole_and_found_again(folder):
    first = get()
    assert cache_content().kernels == 1
    assert [path.suffix for path in folder.iterdir()] == [".kernel"]
    assert get(KernelCache(compiler=lambda *what: pytest.fail("compiled again"))) == first
    assert clear_cache().kernels == 1
    assert list(folder.iterdir()) == []


def test_a_cached_kernel_needs_no_compiler(folder):
    """Loading it, in a process where the compiler cannot be imported, asks for nothing that is not in the cache."""
    get()
    script = textwrap.dedent(f"""
        import sys
        sys.modules["cutlass"] = None
        from gemmule.compiler.cache import artifact_for
        from gemmule.core.arch import Arch
        from gemmule.core.errors import CompilerMissingError
        from gemmule.dispatch.registry import REGISTRY
        spec = next(spec for spec in REGISTRY if spec.name == {SPEC.name!r})
        first, second, *_ = spec.signatures(Arch.parse("sm_90a"))
        print(artifact_for(spec, spec.default, first, Arch.parse("sm_90a")).entry)
        try:
            artifact_for(spec, spec.default, second, Arch.parse("sm_90a"))
        except CompilerMissingError as error:
            print(error)
    """)
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=os.environ, check=True)
    entry, error = run.stdout.strip().splitlines()
    assert entry.startswith(SPEC.name)
    assert 'pip install "gemmule[compiler]"' in error


@pytest.mark.parametrize("damage", ["truncated", "flipped"])
def test_a_damaged_file_is_set_aside_and_compiled_again(folder, damage, rng):
    first = get()
    (path,) = folder.iterdir()
    content = bytearray(path.read_bytes())
    if damage == "truncated":
        del content[100:]
    else:
        for place in rng.integers(40, len(content) // 2, 20):
            content[place] ^= 0x55
    path.write_bytes(content)
    with pytest.warns(CacheWarning, match="damaged"):
        assert get() == first
    assert sorted(found.suffix for found in folder.iterdir()) == [".damaged", ".kernel"]


def test_every_flipped_byte_is_noticed_or_harmless(folder, rng):
    artifact = get()
    (path,) = folder.iterdir()
    whole = path.read_bytes()
    # The archive's own tables stand at its ends; their damage takes many forms.
    tables = [*range(100), *range(len(whole) - 300, len(whole))]
    places = [(place, bit) for place in tables for bit in range(8)]
    places += [(int(place), int(rng.integers(8))) for place in rng.integers(0, len(whole), 300)]
    for place, bit in places:
        path.write_bytes(whole[:place] + bytes([whole[place] ^ (1 << bit)]) + whole[place + 1 :])
        with contextlib.suppress(CompileError):
            assert Artifact.load(path) == artifact


def test_what_cannot_be_read_or_set_aside_is_told_and_does_not_stop_the_call(folder):
    first = get()
    (path,) = folder.iterdir()
    path.write_bytes(b"damaged")
    # A folder takes the place of the file aside.
    path.with_suffix(".damaged").mkdir()
    with pytest.warns(CacheWarning, match="cannot be set aside"):
        assert get() == first
    path.unlink()
    path.mkdir()
    with pytest.warns(CacheWarning, match="cannot be cached"), pytest.warns(CacheWarning, match="cannot be read"):
        assert get() == first


def test_files_can_be_shared_as_the_user_wants(folder):
    before = os.umask(0o027)
    try:
        get()
    finally:
        os.umask(before)
    (path,) = folder.iterdir()
    assert path.stat().st_mode & 0o777 == 0o640


def test_clearing_leaves_other_files_alone(folder):
    get()
    (folder / "thesis.damaged").write_text("precious")
    (folder / "movie.partial").write_text("precious")
    clear_cache()
    assert sorted(path.name for path in folder.iterdir()) == ["movie.partial", "thesis.damaged"]


def test_no_home_is_told(monkeypatch):
    monkeypatch.delenv("GEMMULE_CACHE", raising=False)
    without_home(monkeypatch)
    with pytest.raises(ArgumentError, match="GEMMULE_CACHE"):
        cache.cache_folder()


def test_sources_that_change_under_a_running_process_are_never_cached(folder):
    """A kernel is imported once: after an edit, what is compiled is not what the file says."""
    edits = {}
    kernels = KernelCache(sources=lambda spec: key.source_digests(spec) | edits)
    get(kernels)
    kernels.unload()
    edits[f"{SPEC.package}.kernel"] = b"edited"
    with pytest.raises(CompileError, match="start a new process"):
        kernels.artifact_for(SPEC, SPEC.default, SPEC.signatures(ARCH)[1], ARCH)
    assert cache_content().kernels == 1


def test_an_unwritable_folder_is_told_and_does_not_stop_the_call(folder):
    folder.parent.joinpath("kernels").write_text("a file where the folder should be")
    with pytest.warns(CacheWarning, match="cannot be cached"):
        assert get().kernel == SPEC.name


def test_the_key_follows_everything_that_the_code_depends_on(monkeypatch):
    def name(**others):
        return key.artifact_key(SPEC, SPEC.default, SIGNATURE, ARCH, **others)

    base = name()
    assert name() == base
    assert key.artifact_key(SPEC, SPEC.default, SPEC.signatures(ARCH)[1], ARCH) != base
    assert key.artifact_key(SPEC, SPEC.default, SIGNATURE, Arch.parse("sm_80")) != base
    assert key.artifact_key(SPEC, dataclasses.replace(SPEC.default, block_y=8), SIGNATURE, ARCH) != base
    assert name(compiler="another compiler 1.0") != base
    monkeypatch.setenv("CUTE_DSL_ENABLE_ASSERTIONS", "1")
    assert name() != base
    monkeypatch.undo()
    known = key.source_digests(SPEC)
    for changed in known:
        assert name(sources=known | {changed: b"new"}) != base, changed


def test_a_folder_with_a_space_is_no_hindrance(folder, tmp_path, monkeypatch):
    (tmp_path / "with space").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "with space"))
    assert get().kernel == SPEC.name


def test_a_recipe_that_does_not_fit_is_refused(folder):
    artifact = get()
    launch = SPEC.launch(transpose_problem((5, 6), (1, 5), (6, 1), 1), SPEC.default)
    artifact.check_launch(launch)
    wrong = [
        launch.params[:1],
        (*launch.params, ScalarParam("alpha", FLOAT32, 1.0)),
        (launch.params[0], dataclasses.replace(launch.params[1], shape_bits=64)),
        (TensorParam("a", (), (1,)), launch.params[1]),
    ]
    for params in wrong:
        with pytest.raises(CompileError, match="launch recipe"):
            artifact.check_launch(dataclasses.replace(launch, params=params))


def test_ptx_that_is_not_understood_is_refused():
    with pytest.raises(CompileError, match="none"):
        read_entry(".version 8.8\n")
    with pytest.raises(CompileError, match="is malformed"):
        read_entry(".visible .entry k(\n .param .texref t\n)\n{}")
    name, slots = read_entry(".visible .entry k(\n\t.param .align 8 .b8 k_param_0[72],\n\t.param .f32 k_param_1\n)\n{}")
    assert name == "k"
    assert [(slot.size, slot.alignment) for slot in slots] == [(72, 8), (4, 4)]


def test_an_artifact_survives_the_disk(folder, tmp_path):
    artifact = get()
    artifact.save(tmp_path / "x.kernel")
    assert Artifact.load(tmp_path / "x.kernel") == artifact

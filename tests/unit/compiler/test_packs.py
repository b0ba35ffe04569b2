"""Packs of compiled kernels, and the order in which compiled kernels are looked for. Nothing is compiled here."""

from __future__ import annotations

import dataclasses
import io
import json
import multiprocessing
import random
import warnings
import zipfile

import pytest
from click.testing import CliRunner

import gemmule as gm
from gemmule.cli import gemmule
from gemmule.compiler import cache
from gemmule.compiler.artifact import Artifact
from gemmule.compiler.cache import CacheWarning, KernelCache, cached_kernels
from gemmule.compiler.key import artifact_key
from gemmule.compiler.pack import PACKS, read_pack, write_pack
from gemmule.core.arch import Arch
from gemmule.core.errors import CompileError, CompilerMissingError, FileFormatError
from gemmule.dispatch.registry import REGISTRY
from support.artifacts import made, mark_of

ARCH = Arch.parse("sm_80")
SPECS = {spec.name: spec for spec in REGISTRY if spec.name in ("gemm_reference", "g04_register_tile")}


def what(name="gemm_reference", which=0):
    spec = SPECS[name]
    return spec, spec.default, spec.signatures(ARCH)[which], ARCH


@pytest.fixture
def compiled():
    """What the compiler of `kernels` was asked for."""
    return []


@pytest.fixture(autouse=True)
def kernels(tmp_path, monkeypatch, compiled):
    """A cache with an empty folder, no packs, and a compiler that writes down what it is asked for."""

    def compile_kernel(spec, config, signature, arch):
        compiled.append((spec, config, signature, arch))
        return made(spec, config, signature, arch)

    monkeypatch.setenv("GEMMULE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("GEMMULE_PACK", raising=False)
    PACKS.unload()
    yield KernelCache(PACKS, compile_kernel)
    PACKS.unload()


def packed(path, *whats, mark="packed", tables=None):
    return write_pack(path, [(artifact_key(*x), made(*x, mark=mark).as_bytes()) for x in whats], tables)


def test_process_then_cache_then_packs_then_compiler(tmp_path, monkeypatch, kernels, compiled):
    packed(tmp_path / "named.pack", what(), what(which=1), mark="named")
    packed(tmp_path / "first.pack", what(), mark="first")
    packed(tmp_path / "last.pack", what(), mark="last")

    def found(*key):
        kernels.unload()
        return mark_of(kernels.artifact_for(*key))

    monkeypatch.setenv("GEMMULE_PACK", str(tmp_path / "named.pack"))
    assert found(*what()) == "named"
    gm.load_pack(tmp_path / "first.pack")
    assert found(*what()) == "first"
    gm.load_pack(str(tmp_path / "last.pack"))
    assert found(*what()) == "last"
    gm.load_pack(tmp_path / "first.pack")
    assert found(*what()) == "first"
    assert found(*what(which=1)) == "named"
    assert compiled == []
    made(*what(), mark="cached").save(cache.cache_folder() / (artifact_key(*what()) + ".kernel"))
    assert found(*what()) == "cached"
    loaded = kernels.artifact_for(*what())
    cache.clear_cache()
    assert kernels.artifact_for(*what()) is loaded
    assert found(*what()) == "first"
    assert compiled == []
    assert found(*what("g04_register_tile")) == "compiled"
    assert compiled == [what("g04_register_tile")]


def test_a_pack_gives_what_was_packed(tmp_path):
    whats = [what(), what(which=1), what("g04_register_tile")]
    written = packed(tmp_path / "x.pack", *whats, tables={"sm_80.json": b"{}", "empty": b""})
    read = read_pack(tmp_path / "x.pack")
    assert read == written
    assert sorted(read.kernels) == sorted(artifact_key(*x) for x in whats)
    assert sorted(read.tables) == ["empty", "sm_80.json"]
    for x in whats:
        assert read.artifact(artifact_key(*x)) == made(*x, mark="packed")
    assert read.artifact("no such key") is None
    assert (read.table("sm_80.json"), read.table("empty"), read.table("other")) == (b"{}", b"", None)
    first = (tmp_path / "x.pack").read_bytes()
    with zipfile.ZipFile(tmp_path / "x.pack") as archive:
        assert {member.date_time for member in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}
    packed(tmp_path / "x.pack", *reversed(whats), tables={"empty": b"", "sm_80.json": b"{}"})
    assert (tmp_path / "x.pack").read_bytes() == first
    assert [path.name for path in tmp_path.iterdir()] == ["x.pack"]


def test_a_pack_that_cannot_be_written_leaves_the_old_one(tmp_path):
    packed(tmp_path / "x.pack", what())
    before = (tmp_path / "x.pack").read_bytes()

    def failing():
        yield artifact_key(*what()), b"1"
        raise RuntimeError("stopped")

    with pytest.raises(RuntimeError):
        write_pack(tmp_path / "x.pack", failing())
    with pytest.raises(TypeError):
        write_pack(tmp_path / "x.pack", [("key", None)])
    assert (tmp_path / "x.pack").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["x.pack"]


def test_truncated_packs_are_refused(tmp_path):
    packed(tmp_path / "x.pack", what(), tables={"t": b"table"})
    whole = (tmp_path / "x.pack").read_bytes()
    for length in (0, 1, 22, len(whole) // 2, len(whole) - 23, len(whole) - 1):
        (tmp_path / "x.pack").write_bytes(whole[:length])
        with pytest.raises(FileFormatError, match=r"x\.pack is not a pack of gemmule, or is damaged .*make it again"):
            gm.load_pack(tmp_path / "x.pack")


def test_no_flipped_bit_gets_through(tmp_path):
    path, key = tmp_path / "x.pack", artifact_key(*what())
    packed(path, what(), tables={"t": b"table" * 20})
    whole, expected = path.read_bytes(), made(*what(), mark="packed")
    seen, told = set(), []
    for place in random.Random(1).sample(range(len(whole)), 400):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x10]) + whole[place + 1 :])
        try:
            read = read_pack(path)
            assert (read.artifact(key), read.table("t")) == (expected, b"table" * 20)
            seen.add("harmless")
        except FileFormatError:
            seen.add("refused")
        except CompileError as error:
            seen.add("member")
            told.append(str(error))
    assert {"refused", "member"} <= seen
    assert all("is damaged" in text for text in told)


def test_a_member_that_is_not_what_was_packed(tmp_path, kernels, compiled):
    path = tmp_path / "x.pack"
    packed(path, what())
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    members[f"kernels/{artifact_key(*what())}.kernel"] = made(*what(), mark="another").as_bytes()
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    gm.load_pack(path)
    with pytest.warns(CacheWarning, match=r"x\.pack is damaged: kernels/.* has another digest; make it again with"):
        assert mark_of(kernels.artifact_for(*what())) == "compiled"
    assert len(compiled) == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 4}, "format 4"),
        ({"format": True}, "format True"),
        ({"compressed": True}, "format 1, compressed; this version of gemmule reads .* make it again with this"),
        ({"blocks": {"blocks/0000.xz": {"x": 3}}}, r"lacks blocks/0000\.xz"),
        ({"blocks": {"blocks/0000.xz": 3}}, "is not a pack"),
        *(
            ({"blocks": {"blocks/0000.xz": {"x": size}}}, "is not a pack .*is not the size of a kernel.*make it again")
            for size in ("3", None, 1.5, 0, -5, True, 1 << 70)
        ),
        ({"members": {"kernels/x.kernel": "00"}}, r"lacks kernels/x\.kernel"),
        ({"members": 3}, "is not a pack"),
        ({"toolchain": None, "members": None}, "is not a pack"),
    ],
)
def test_other_manifests_are_refused(tmp_path, change, message):
    path = tmp_path / "x.pack"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("pack.json", json.dumps({"format": 1, "toolchain": "t", "members": {}} | change))
    with pytest.raises(FileFormatError, match=message):
        gm.load_pack(path)


def test_what_is_no_pack(tmp_path, monkeypatch, kernels, compiled):
    (tmp_path / "text").write_text("hello")
    with zipfile.ZipFile(tmp_path / "other.zip", "w") as archive:
        archive.writestr("a", "b")
    for name in ("text", "other.zip"):
        with pytest.raises(FileFormatError, match="is not a pack"):
            gm.load_pack(tmp_path / name)
    with pytest.raises(FileFormatError, match="is a folder; a pack"):
        gm.load_pack(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"missing\.pack.*there is no such file; check the name") as raised:
        gm.load_pack(tmp_path / "missing.pack")
    assert isinstance(raised.value, gm.GemmuleError)
    monkeypatch.setenv("GEMMULE_PACK", str(tmp_path / "missing.pack"))
    with pytest.raises(FileFormatError, match=r"GEMMULE_PACK='.*missing\.pack' cannot be opened .*unset it"):
        kernels.artifact_for(*what())
    assert not compiled
    monkeypatch.delenv("GEMMULE_PACK")
    kernels.artifact_for(*what())
    kernels.unload()
    monkeypatch.setenv("GEMMULE_PACK", str(tmp_path / "text"))
    # The kernel is on disk by now.
    with pytest.raises(FileFormatError, match="is not a pack"):
        kernels.artifact_for(*what())


def test_without_a_compiler_the_message_names_the_packs(tmp_path):
    def missing(*what):
        raise CompilerMissingError("the kernel compiler is not installed")

    kernels = KernelCache(PACKS, missing)
    packed(tmp_path / "x.pack", what())
    gm.load_pack(tmp_path / "x.pack")
    assert mark_of(kernels.artifact_for(*what())) == "packed"
    with pytest.raises(CompilerMissingError, match=r"not installed\. The packs .*another version.*x\.pack"):
        kernels.artifact_for(*what(which=1))


def test_only_what_would_be_used_is_packed(tmp_path):
    folder = cache.cache_folder()
    other_arch = (*what()[:3], Arch.parse("sm_90a"))
    for x in (what(), what("g04_register_tile"), other_arch):
        made(*x).save(folder / (artifact_key(*x) + ".kernel"))
    stale = folder / ("gemm_reference-sm_80-" + "0" * 24 + ".kernel")
    made(*what(which=1)).save(stale)
    (folder / ("gemm_reference-sm_80-" + "1" * 24 + ".kernel")).write_bytes(b"damaged")

    def keys(*arguments):
        return {key for key, _ in cached_kernels(folder, *arguments)}

    assert keys(SPECS) == {artifact_key(*x) for x in (what(), what("g04_register_tile"), other_arch)}
    assert keys(SPECS, ARCH) == {artifact_key(*what()), artifact_key(*what("g04_register_tile"))}
    assert keys({"g04_register_tile": SPECS["g04_register_tile"]}) == {artifact_key(*what("g04_register_tile"))}


def test_the_command(tmp_path):
    out = tmp_path / "sub" / "x.pack"

    def run(*arguments):
        return CliRunner().invoke(gemmule, ["pack", str(out), *arguments])

    empty = run()
    assert empty.exit_code == 1
    assert "has no compiled kernel" in empty.output
    for x in (what(), what("g04_register_tile")):
        made(*x).save(cache.cache_folder() / (artifact_key(*x) + ".kernel"))
    assert "no compiled kernel for sm_90; it has kernels for sm_80" in run("--arch", "sm_90").output
    done = run("--json")
    assert done.exit_code == 0, done.output
    assert len(json.loads(done.output)["kernels"]) == len(read_pack(out).kernels) == 2
    assert json.loads(done.output)["bytes"] == out.stat().st_size
    assert "1 compiled kernel," in run("--kernels", "gemm_reference", "--arch", "sm_80").output
    assert read_pack(out).kernels == (artifact_key(*what()),)
    for arguments, message in (
        (("--kernels", "nothing"), "kernel 'nothing' is not known"),
        (("--arch", "hopper"), "'hopper'"),
        (("--arch", "sm_120a"), "no compiled kernel for sm_120a"),
    ):
        refused = run(*arguments)
        assert refused.exit_code == 1
        assert message in refused.output


def _one_process(barrier, results, compiles):
    """Take a kernel from a cache whose file is damaged, as all others do at the same time."""

    def compile_kernel(*key):
        with compiles.get_lock():
            compiles.value += 1
        return made(*key)

    kernels = KernelCache(PACKS, compile_kernel)
    barrier.wait()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = [mark_of(kernels.artifact_for(*what())), mark_of(kernels.artifact_for(*what(which=1)))]
    results.put((found, [str(warning.message) for warning in caught]))


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="needs fork")
def test_sixteen_processes_and_a_damaged_file(tmp_path):
    context = multiprocessing.get_context("fork")
    path = cache.cache_folder() / (artifact_key(*what()) + ".kernel")
    made(*what()).save(path)
    path.write_bytes(path.read_bytes()[:-100])
    packed(tmp_path / "x.pack", what(which=1))
    gm.load_pack(tmp_path / "x.pack")
    barrier, results, compiles = context.Barrier(16), context.Queue(), context.Value("i", 0)
    processes = [context.Process(target=_one_process, args=(barrier, results, compiles)) for _ in range(16)]
    for process in processes:
        process.start()
    told = [results.get(timeout=180) for _ in processes]
    for process in processes:
        process.join()
        assert process.exitcode == 0
    assert all(found == ["compiled", "packed"] for found, _ in told)
    assert 1 <= compiles.value <= 16
    messages = [message for _, messages in told for message in messages]
    assert messages
    assert all("is damaged" in message and "was set aside as" in message for message in messages), messages
    assert Artifact.load(path) == made(*what())
    assert sorted(found.suffix for found in path.parent.iterdir()) == [".damaged", ".kernel"]


def test_a_damaged_file_that_another_process_set_aside_first(monkeypatch, kernels):
    path = cache.cache_folder() / (artifact_key(*what()) + ".kernel")
    path.parent.mkdir(parents=True)
    path.write_bytes(b"damaged")

    def gone(self, target):
        raise FileNotFoundError(str(self))

    monkeypatch.setattr(type(path), "replace", gone)
    # Warnings are errors: there is nothing to tell.
    assert mark_of(kernels.artifact_for(*what())) == "compiled"


def test_a_damaged_file_that_another_process_wrote_again(monkeypatch, kernels):
    load, seen = Artifact.load.__func__, []

    def damaged_once(cls, path):
        seen.append(path)
        if len(seen) == 1:
            raise CompileError("damaged")
        return load(cls, path)

    path = cache.cache_folder() / (artifact_key(*what()) + ".kernel")
    made(*what(), mark="again").save(path)
    monkeypatch.setattr(Artifact, "load", classmethod(damaged_once))
    assert mark_of(kernels.artifact_for(*what())) == "again"
    assert path.exists()


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="needs fork")
def test_sixteen_processes_write_one_pack(tmp_path):
    context = multiprocessing.get_context("fork")
    path, key = tmp_path / "x.pack", artifact_key(*what())
    packed(path, what(), mark="0")

    def write(number):
        for _ in range(5):
            packed(path, what(), mark=str(number))
            assert mark_of(read_pack(path).artifact(key)).isdigit()

    processes = [context.Process(target=write, args=(number,)) for number in range(16)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 16
    assert [found.name for found in tmp_path.iterdir()] == ["x.pack"]


def test_an_open_pack_stays_what_it_was(tmp_path):
    path, key = tmp_path / "x.pack", artifact_key(*what())
    first = packed(path, what(), mark="first")
    packed(path, what(), mark="second")
    assert mark_of(first.artifact(key)) == "first"
    path.unlink()
    assert mark_of(first.artifact(key)) == "first"


def test_a_pack_holds_plain_data(tmp_path):
    """What stands in for a compiled kernel has every field of one."""
    assert {field.name for field in dataclasses.fields(Artifact)} == set(vars(made(*what())))


@pytest.mark.parametrize("description", [b"null", b'"text"', b"[1]", b"{}"])
def test_an_artifact_whose_description_is_no_table_is_damaged(description):
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("artifact.json", description)
        archive.writestr("kernel.ptx", "ptx")
        archive.writestr("kernel.cubin", b"cubin")
    with pytest.raises(CompileError, match="damaged"):
        Artifact.from_bytes(content.getvalue(), "x.kernel")

"""Tuned configurations that come with a pack: where they stand among the others."""

from __future__ import annotations

import dataclasses
import types

import pytest
from click.testing import CliRunner

import gemmule as gm
from gemmule.api import packs
from gemmule.api.calls.call_cache import CALLS
from gemmule.api.planning import choice
from gemmule.cli import gemmule
from gemmule.compiler import cache
from gemmule.compiler.key import artifact_key
from gemmule.compiler.pack import PACKS, read_pack, write_pack
from gemmule.core.arch import Arch
from gemmule.core.errors import FileFormatError
from gemmule.core.gpu_rates import H200_RATES, GpuRates
from gemmule.dispatch import tuned_table
from gemmule.dispatch.choices import choice_cache
from gemmule.dispatch.tuned_file import write_tuned
from support.artifacts import compile_by, made
from support.tuned_entries import CHIP, GPU, LIBRARY, PROBLEM, SPEC, chosen, entry, forget, table

__all__ = ["table"]

FIRST, SECOND, THIRD, FOURTH = (SPEC.configs[number] for number in (3, 5, 7, 9))


@pytest.fixture(autouse=True)
def fresh(table, tmp_path, monkeypatch):
    """An empty user's file, no shipped one, and no packs."""
    monkeypatch.setenv("GEMMULE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("GEMMULE_PACK", raising=False)
    monkeypatch.setattr(tuned_table, "_packed", [])
    PACKS.unload()
    packs._take_named.cache_clear()
    forget()
    yield
    PACKS.unload()
    forget()


def packed(path, *entries):
    """A pack with these entries."""
    write_tuned(path.with_suffix(".json"), entries)
    write_pack(path, [], {packs.TUNED: path.with_suffix(".json").read_bytes()})
    return path


def test_after_the_users_and_before_the_shipped_ones(tmp_path):
    write_tuned(tuned_table.shipped_file(CHIP), [entry(FIRST)])
    assert chosen().config == FIRST
    CALLS.add(LIBRARY, "what was decided", None, (0, 16), 32, choice_cache.generation())
    gm.load_pack(packed(tmp_path / "a.pack", entry(SECOND)))
    assert (chosen().config, chosen().source.split(":")[0]) == (SECOND, f"the pack {tmp_path / 'a.pack'}")
    assert CALLS.by_description.get("what was decided") is None
    gm.load_pack(packed(tmp_path / "b.pack", entry(THIRD)))
    assert chosen().config == THIRD
    # The same where the table is read after the packs.
    forget()
    assert chosen().config == THIRD
    write_tuned(tmp_path / "tuned.json", [entry(FOURTH)])
    forget()
    assert chosen().config == FOURTH
    gm.load_pack(packed(tmp_path / "c.pack", entry(SECOND)))
    assert chosen().config == FOURTH


def test_the_same_processor_and_other_chips(tmp_path):
    by_cost = chosen().config
    gm.load_pack(packed(tmp_path / "a.pack", entry(SECOND, chip="H100 SXM 80 GB")))
    assert chosen().config == by_cost
    assert (chosen(gpu="NVIDIA H100 80GB HBM3").config, chosen(gpu="NVIDIA H100 80GB HBM3").predicted_us) == (
        SECOND,
        9.0,
    )
    gm.load_pack(packed(tmp_path / "b.pack", entry(THIRD)))
    assert chosen(gpu="NVIDIA H100 80GB HBM3").config == THIRD
    assert chosen(gpu="NVIDIA H100 80GB HBM3").predicted_us is None
    gm.load_pack(packed(tmp_path / "c.pack", entry(FOURTH), entry(SECOND, chip="H100 SXM 80 GB")))
    # Of one pack the chip's own entries come first.
    assert chosen(gpu="NVIDIA H100 80GB HBM3").config == SECOND
    assert chosen().config == FOURTH


def test_the_pack_that_the_variable_names(tmp_path, monkeypatch):
    device = types.SimpleNamespace(name=GPU, arch=Arch.parse("sm_90a"), multiprocessors=132)
    monkeypatch.setenv("GEMMULE_PACK", str(packed(tmp_path / "a.pack", entry(SECOND))))
    for _ in range(2):
        assert choice.choose_compiling(PROBLEM, device).config == SECOND
    assert len(tuned_table._packed) == 1
    monkeypatch.setenv("GEMMULE_PACK", str(tmp_path / "missing.pack"))
    with pytest.raises(FileFormatError, match=r"GEMMULE_PACK='.*missing\.pack' cannot be opened"):
        choice.choose_compiling(PROBLEM, device)


@pytest.mark.parametrize("table", [b"{}", b"no table", b'{"format": "gemmule tuned configurations", "version": 99}'])
def test_a_table_that_cannot_be_used_is_refused(tmp_path, table):
    write_pack(tmp_path / "a.pack", [], {packs.TUNED: table})
    with pytest.raises(FileFormatError, match=r"tuned\.json in the pack .*a\.pack"):
        gm.load_pack(tmp_path / "a.pack")
    assert not PACKS.all()
    assert not tuned_table._packed


def test_a_pack_without_a_table_changes_nothing(tmp_path):
    before = chosen()
    gm.load_pack(write_pack(tmp_path / "a.pack", []).path)
    assert chosen() is before


def test_the_command_packs_the_table(tmp_path):
    from gemmule.commands import pack as command

    what = (SPEC, SECOND, SPEC.signature(PROBLEM, SECOND), Arch.parse("sm_90a"))
    made(*what).save(cache.cache_folder() / (artifact_key(*what) + ".kernel"))
    out = tmp_path / "x.pack"

    def run(*arguments):
        return CliRunner().invoke(gemmule, ["pack", str(out), *arguments])

    assert run().exit_code == 0
    assert read_pack(out).tables == ()
    write_tuned(tmp_path / "tuned.json", [entry(SECOND)])
    told = run()
    assert "1 compiled kernel, tuned configurations" in told.output
    gm.load_pack(out)
    (tmp_path / "tuned.json").unlink()
    forget()
    assert chosen().config == SECOND
    write_tuned(tmp_path / "other.json", [entry(THIRD)])
    assert run("--table", str(tmp_path / "other.json")).exit_code == 0
    assert read_pack(out).table(packs.TUNED) == (tmp_path / "other.json").read_bytes()
    (tmp_path / "other.json").write_text("{}")
    refused = run("--table", str(tmp_path / "other.json"))
    assert refused.exit_code == 1
    assert "not a file of tuned configurations" in refused.output
    assert command.tables(None) == {}


def test_the_pack_of_a_search(tmp_path, monkeypatch):
    """The kernels of the table, compiled here by a stand-in, what the cache has of registered ones, and the table."""
    from gemmule.commands.tuned_pack import tuned_kernels, write_tuned_pack
    from gemmule.dispatch.registry import REGISTRY
    from gemmule.lab.products import gemm_problem

    arch = Arch.parse("sm_90a")
    compiled = []

    def compile_kernel(spec, config, signature, arch):
        compiled.append((spec.name, config))
        return made(spec, config, signature, arch)

    compile_by(monkeypatch, compile_kernel)
    specs = {spec.name: spec for spec in REGISTRY}
    odd, packing = gemm_problem(515, 301, 263, "bfloat16", "bfloat16", "nn"), specs["hopper_gemm_repacked"]
    unlisted = dataclasses.replace(SPEC.configs[3], group=SPEC.configs[3].group + 1)
    assert unlisted not in SPEC.configs
    entries = [
        entry(unlisted),
        entry(packing.default, problem=odd, kernel="hopper_gemm_repacked"),
        entry(THIRD, chip="another chip"),
        entry(THIRD, problem=gemm_problem(64, 64, 64, "bfloat16", "bfloat16", "nn"), kernel="of another version"),
    ]
    write_tuned(tmp_path / "tuned.json", entries)
    signature = SPEC.signature(PROBLEM, SPEC.default)
    for config in (SECOND, dataclasses.replace(SECOND, group=SECOND.group + 1)):
        what = (SPEC, config, signature, arch)
        made(*what).save(cache.cache_folder() / (artifact_key(*what) + ".kernel"))
    written = write_tuned_pack(tmp_path / "x.pack", tmp_path / "tuned.json", GPU, 132, arch)
    then = packing.next_kernel(odd, packing.default)
    expected = [
        (SPEC, unlisted, SPEC.signature(PROBLEM, unlisted)),
        (packing, packing.default, packing.signature(odd, packing.default)),
        (then.spec, then.config, then.spec.signature(then.problem, then.config)),
        (SPEC, SECOND, signature),
    ]
    assert sorted(written.kernels) == sorted(artifact_key(*what, arch) for what in expected)
    assert {name for name, _ in compiled} == {"hopper_gemm", "hopper_gemm_repacked", then.spec.name}
    assert written.table(packs.TUNED) == (tmp_path / "tuned.json").read_bytes()
    # Another machine: an empty cache, no compiler, no table of its own.
    monkeypatch.setenv("GEMMULE_CACHE", str(tmp_path / "elsewhere"))
    (tmp_path / "tuned.json").unlink()
    forget()
    gm.load_pack(written.path)
    assert chosen().config == unlisted
    assert len(tuned_kernels(entries[:2], arch, (H200_RATES,))) == 3


def test_the_pack_of_a_search_on_a_calibrated_part_of_a_gpu(tmp_path, monkeypatch):
    """Kernels of the cache serve any number of SMs; next kernels are those by its rates, and by shipped ones."""
    from gemmule.commands.tuned_pack import write_tuned_pack
    from gemmule.dispatch.rates_file import MeasuredRates, merge_rates
    from gemmule.dispatch.rates_table import clear_rates, rates_for
    from gemmule.dispatch.registry import REGISTRY
    from gemmule.lab.products import gemm_problem

    name, arch, run = "NVIDIA H100 PCIe", Arch.parse("sm_90a"), (("date", "20261124"),)
    monkeypatch.setenv("GEMMULE_RATES", str(tmp_path / "rates.json"))
    compile_by(monkeypatch, made)
    packing = next(spec for spec in REGISTRY if spec.name == "hopper_gemm_repacked")
    odd = gemm_problem(2045, 4096, 777, "bfloat16", "bfloat16", "nn")
    write_tuned(tmp_path / "tuned.json", [entry(packing.default, problem=odd, kernel=packing.name, chip=name)])
    part = SECOND.on(114)
    signature = SPEC.signature(PROBLEM, part)
    what = (SPEC, part, signature, arch)
    made(*what).save(cache.cache_folder() / (artifact_key(*what) + ".kernel"))
    clear_rates()
    shipped = rates_for(name, 114)
    measured = GpuRates(114, memory=0.9e6, multiply=1.0, load=3.0, l2=1.0, launch=1.0)
    merge_rates(tmp_path / "rates.json", MeasuredRates(name, measured, 33, 0.03, run))
    clear_rates()
    written = write_tuned_pack(tmp_path / "x.pack", tmp_path / "tuned.json", name, 114, arch)
    clear_rates()
    then = [packing.next_kernel(odd, packing.default, rates) for rates in (shipped, measured)]
    assert then[0].config != then[1].config
    expected = [(one.spec, one.config, one.spec.signature(one.problem, one.config)) for one in then]
    expected += [(packing, packing.default, packing.signature(odd, packing.default)), (SPEC, part, signature)]
    assert sorted(written.kernels) == sorted(artifact_key(*what, arch) for what in expected)

"""What ``gemmule pack`` takes of the cache: every kernel that a call may need."""

from __future__ import annotations

import importlib
import json
import pkgutil

import numpy as np
import pytest
from click.testing import CliRunner

import gemmule as gm
from gemmule import kernels as kernel_package
from gemmule.cli import gemmule
from gemmule.compiler import cache
from gemmule.compiler.key import artifact_key
from gemmule.core.arch import Arch
from gemmule.core.spec import KernelSpec
from gemmule.dispatch.compiled_kernels import COMPILED_KERNELS, with_followers
from gemmule.dispatch.registry import EVERY_KERNEL
from support.artifacts import made


def test_the_command_packs_what_follows_a_chosen_kernel(tmp_path, monkeypatch):
    """An emulated GEMM takes a dozen launches: a pack without one of them would not serve it."""
    monkeypatch.setenv("GEMMULE_CACHE", str(tmp_path / "cache"))
    hopper = Arch.parse("sm_90a")
    further = [spec for spec in COMPILED_KERNELS.values() if spec not in EVERY_KERNEL]
    assert {"ozaki_scales", "guard_decision", "float64_guarded", "bf16x6_products", "quantize"} <= {
        spec.name for spec in further
    }
    keys = set()
    for spec in further:
        x = (spec, spec.default, spec.signatures(hopper)[0], hopper)
        made(*x).save(cache.cache_folder() / (artifact_key(*x) + ".kernel"))
        keys.add(artifact_key(*x))
    done = CliRunner().invoke(gemmule, ["pack", str(tmp_path / "x.pack"), "--json"])
    assert done.exit_code == 0, done.output
    assert set(json.loads(done.output)["kernels"]) == keys


@pytest.mark.parametrize(
    "name", ["ozaki_gemm", "ozaki_complex", "bf16x6_gemm", "quantize_tensor", "hopper_gemm_small_repacked"]
)
def test_named_kernels_bring_what_only_follows_them(name, tmp_path, monkeypatch):
    monkeypatch.setenv("GEMMULE_CACHE", str(tmp_path / "cache"))
    hopper = Arch.parse("sm_90a")
    for spec in COMPILED_KERNELS.values():
        for signature in spec.signatures(hopper)[:1]:
            x = (spec, spec.default, signature, hopper)
            made(*x).save(cache.cache_folder() / (artifact_key(*x) + ".kernel"))
    done = CliRunner().invoke(gemmule, ["pack", str(tmp_path / "x.pack"), "--kernels", name, "--json"])
    assert done.exit_code == 0, done.output
    assert not done.stderr
    packed = {key.split("-")[0] for key in json.loads(done.stdout)["kernels"]}
    further = {spec.name for spec in COMPILED_KERNELS.values() if spec not in EVERY_KERNEL}
    assert packed == {name} | (further - {"quantize_tensor"})


def test_a_kernel_that_others_follow_alone_is_noted(tmp_path, monkeypatch):
    monkeypatch.setenv("GEMMULE_CACHE", str(tmp_path / "cache"))
    hopper = Arch.parse("sm_90a")
    for name in ("hopper_gemm_repacked", "hopper_gemm"):
        spec = COMPILED_KERNELS[name]
        x = (spec, spec.default, spec.signatures(hopper)[0], hopper)
        made(*x).save(cache.cache_folder() / (artifact_key(*x) + ".kernel"))
    pack = ["pack", str(tmp_path / "x.pack"), "--kernels"]
    for names in ("hopper_gemm_repacked", "hopper_gemm_repacked,ozaki_gemm"):
        alone = CliRunner().invoke(gemmule, [*pack, names])
        assert alone.exit_code == 0
        assert alone.stderr == (
            "gemmule: hopper_gemm_repacked needs the kernels that its plan lists under `followed by:`; add them to "
            "--kernels, or leave it out\n"
        )
    for names in ("hopper_gemm_repacked,hopper_gemm", "hopper_gemm"):
        assert not CliRunner().invoke(gemmule, [*pack, names]).stderr


@pytest.mark.parametrize(
    ("precision", "dtype", "first"),
    [("ozaki", "float64", "ozaki_gemm"), ("ozaki-15", "float64", "ozaki_gemm"), ("ozaki", "float32", "bf16x6_gemm"),
     ("bf16x6", "float32", "bf16x6_gemm"), ("ozaki", "complex64", "ozaki_complex"),
     ("ozaki", "complex128", "ozaki_complex")],
)  # fmt: skip
def test_a_named_emulation_has_all_its_launches(precision, dtype, first):
    a = np.empty((4096, 4096), dtype)
    plan = gm.matmul.plan(a, a, precision=precision, chip="h100")
    assert plan.kernel == first
    packed, _ = with_followers({first: COMPILED_KERNELS[first]})
    assert {one.split(" [")[0] for one in plan.next_kernel.split("], ")} <= set(packed)


def test_a_pack_takes_every_spec_of_the_package():
    found = set()
    for module in pkgutil.walk_packages(kernel_package.__path__, "gemmule.kernels."):
        if module.name.endswith(("spec", "first_launches", "syrk")):
            values = vars(importlib.import_module(module.name)).values()
            found |= {value.name for value in values if isinstance(value, KernelSpec)}
    assert found
    assert found <= set(COMPILED_KERNELS)

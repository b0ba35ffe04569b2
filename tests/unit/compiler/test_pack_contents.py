"""What ``gemmule pack`` takes of the cache: every kernel that a call may need."""

from __future__ import annotations

import importlib
import json
import pkgutil

from click.testing import CliRunner

from gemmule import kernels as kernel_package
from gemmule.cli import gemmule
from gemmule.compiler import cache
from gemmule.compiler.key import artifact_key
from gemmule.core.arch import Arch
from gemmule.core.spec import KernelSpec
from gemmule.dispatch.compiled_kernels import COMPILED_KERNELS
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


def test_a_pack_takes_every_spec_of_the_package():
    found = set()
    for module in pkgutil.walk_packages(kernel_package.__path__, "gemmule.kernels."):
        if module.name.endswith(("spec", "first_launches", "syrk")):
            values = vars(importlib.import_module(module.name)).values()
            found |= {value.name for value in values if isinstance(value, KernelSpec)}
    assert found
    assert found <= set(COMPILED_KERNELS)

"""The Hopper kernel's code holds the instructions that its page tells of, for every type and way to share work."""

from __future__ import annotations

import re

import pytest

from gemmule.compiler.cache import artifact_for
from gemmule.core.arch import Arch
from gemmule.dispatch.registry import REGISTRY

pytest.importorskip("cutlass", reason="the kernel compiler is not installed")

SPEC = next(spec for spec in REGISTRY if spec.name == "hopper_gemm")
HOPPER = Arch.parse("sm_90a")


def config(**fields):
    return next(config for config in SPEC.configs if fields.items() <= config.as_dict().items())


def ptx(config, **fields):
    signature = next(one for one in SPEC.signatures(HOPPER) if fields.items() <= dict(one).items())
    artifact = artifact_for(SPEC, config, signature, HOPPER)
    assert artifact.resources.spill_bytes == 0
    return artifact.ptx


@pytest.mark.parametrize(
    ("fields", "instruction"),
    [
        ({"a": "bfloat16", "d": "bfloat16"}, "m64n192k16.f32.bf16.bf16"),
        ({"a": "float16", "d": "float16"}, "m64n192k16.f32.f16.f16"),
        ({"a": "float32", "d": "float32"}, "m64n192k8.f32.tf32.tf32"),
        ({"a": "int8", "d": "int32"}, r"m64n192k32.*\.s32.s8.s8"),
    ],
    ids=str,
)
def test_each_type_has_its_products(fields, instruction):
    text = ptx(SPEC.default, **fields)
    found = set(re.findall(r"wgmma\.mma_async\S+", text))
    assert len(found) == 1
    assert re.search(instruction, found.pop())


def test_sums_go_from_cta_to_cta():
    text = ptx(config(tile_m=64, tile_n=64, cluster_k=8, swap_ab=0), a="bfloat16", d="bfloat16", adds="no")
    # Each CTA sends all its 32 sums of a thread, four at a time, to the CTAs whose columns they are.
    assert len(re.findall(r"st\.async\S*\.v4\.b32", text)) == 8
    assert not re.search(r"\b(red|atom)\.", text)


def test_a_swapped_tile_is_turned_back():
    plain = ptx(config(tile_m=64, tile_n=64, cluster_k=1, cluster_n=1, swap_ab=0), a="bfloat16", d="bfloat16")
    turned = ptx(config(tile_m=64, tile_n=64, swap_ab=1, cluster_k=1), a="bfloat16", d="bfloat16")
    assert "stmatrix.sync" in plain
    assert not re.search(r"stmatrix\S*\.trans", plain)
    assert not re.search(r"stmatrix\.sync(?!\S*\.trans)", turned)


def test_it_waits_for_the_launch_before_it():
    text = ptx(SPEC.default, a="bfloat16", d="bfloat16")
    assert text.index("griddepcontrol.wait") < text.index("cp.async.bulk.tensor")
    assert text.index("griddepcontrol.wait") < text.index("griddepcontrol.launch_dependents")

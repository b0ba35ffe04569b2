"""The tool that proves a refactor neutral: what it takes for the same, and what it reports."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

TOOLS = Path(__file__).resolve().parents[3] / "tools"
PTX = """// a comment
.visible .entry old_name_0(
	.param .u64 old_name_0_param_0
)
{
	.reg .b32 	%r<3>;
	.loc	1 68 0
	mov.u32 	%r7, %tid.x;
$L__BB0_4:
	wgmma.wait_group.sync.aligned 	1;
	add.s32 	%r2, %r7, %rd1;
	bra.uni 	$L__BB0_4;
}
	.file	1 "/somewhere/kernel.py"
"""


@pytest.fixture
def tools(monkeypatch):
    monkeypatch.syspath_prepend(str(TOOLS))
    import compare_ptx
    import ptx_listing

    yield compare_ptx, ptx_listing
    for name in ("compare_ptx", "ptx_listing"):
        sys.modules.pop(name)


def test_names_registers_labels_and_source_lines_do_not_matter(tools):
    _, listing = tools
    other = PTX.replace("old_name_0", "new_0").replace("%r7", "%r3").replace("$L__BB0_4", "$L__BB0_9")
    other = other.replace("1 68 0", "2 11 5").replace("/somewhere", "/elsewhere").replace("%r<3>", "%r<9>")
    assert listing.normalised(PTX, "old_name_0") == listing.normalised(other, "new_0")


@pytest.mark.parametrize(
    ("was", "now"), [("aligned 	1", "aligned 	0"), ("%r2, %r7, %rd1", "%r2, %rd1, %r7"), (".u64", ".u32")]
)
def test_one_wait_count_operand_or_type_does(tools, was, now):
    compare, listing = tools
    before, after = (listing.normalised(text, "old_name_0") for text in (PTX, PTX.replace(was, now)))
    assert before != after
    base, head = ({"ptx": text, "launches": "0"} for text in (before, after))
    (line,) = compare.differences(base, head)
    assert "PTX differs in 2 lines" in line
    assert compare.differences(base, base | {"launches": "1"}) == ["launch recipes differ"]


def test_a_kernel_that_does_not_compile_differs_even_from_one_that_did_not_either(tools):
    compare, _ = tools
    failed = {"ptx": "error: the kernel compiler is not installed", "launches": "0"}
    assert compare.differences(failed, failed) == ["HEAD does not compile: the kernel compiler is not installed"]
    assert compare.differences(failed | {"ptx": PTX}, failed) == compare.differences(failed, failed)


def test_a_kernel_that_base_lacks_is_rejected(tools):
    compare, _ = tools

    def listed(checkout, verb, keys=()):
        return iter([["g07_cp_async", {}, []]])

    with pytest.raises(SystemExit, match="BASE has no kernel g07; it has g07_cp_async"):
        compare.compare(Path("base"), Path("head"), {}, ["g07"], every=True, listed=listed)


def test_renamed_kernels_fields_and_signatures_are_paired(tools):
    compare, _ = tools
    old = ["h09", {"swapped": 1, "pingpong": 0}, [["a", "k"], ["type", "bfloat16"]]]
    names = {
        "kernels": {"h09": "gemm_sm90"},
        "fields": {"gemm_sm90": {"swapped": "swap_ab"}},
        "signatures": {"*": {"type": "element"}, "gemm_sm90": {"a": "a_major"}},
        "values": {"gemm_sm90": {"stream_k": 0}},
    }
    new = ["gemm_sm90", {"stream_k": 0, "pingpong": 0, "swap_ab": 1}, [["element", "bfloat16"], ["a_major", "k"]]]
    assert compare.renamed(old, names) == compare.canonical(new)
    assert compare.renamed(old, {}) == compare.canonical(old)
    # A field that BASE has keeps its value.
    there = ["h09", {"swapped": 1, "stream_k": 1}, []]
    assert compare.renamed(there, names) == compare.canonical(["gemm_sm90", {"stream_k": 1, "swap_ab": 1}, []])


def test_a_sample_has_every_config_and_every_signature_in_turn(tools):
    compare, _ = tools
    keys = [["k", {"tile": tile}, [["type", str(kind)]]] for tile in range(4) for kind in range(6)]
    keys += [["g07_cp_async", {"tile": 0}, [["type", str(kind)]]] for kind in range(6)]
    found = compare.sampled(keys)
    assert [json.dumps(key[1]) for key in found if key[0] == "k"] == [
        json.dumps({"tile": t}) for t in range(4) for _ in "ab"
    ]
    assert len({key[2][0][1] for key in found if key[0] == "k"}) > 4
    assert len([key for key in found if key[0] == "g07_cp_async"]) == 6


def test_what_has_no_pair_is_reported(tools):
    compare, _ = tools
    kept, gone, new = (["k", {"tile": tile}, []] for tile in range(3))

    def listing(checkout, verb, keys=()):
        if verb == "keys":
            yield from [kept, gone] if checkout == Path("base") else [kept, new]
        else:
            yield from ({"key": key, "ptx": "same", "launches": "same"} for key in keys)

    found = compare.compare(Path("base"), Path("head"), {}, [], every=True, listed=listing)
    assert len(found) == 2
    assert found[0].startswith("only in BASE")
    assert "'tile': 1" in found[0]
    assert found[1].startswith("only in HEAD")
    assert "'tile': 2" in found[1]


def test_kernels_that_only_run_after_another_are_compiled_in_every_config_and_signature(tools):
    _, listing = tools
    arch = listing.ARCHS[0]
    found = {}
    first = tuple(spec for spec in listing.REGISTRY if spec.next_kernel is not None)
    for job in listing.launches(first):
        found.setdefault(job.spec, []).append(job)
    after = {spec for spec in found if spec not in listing.REGISTRY}
    assert {spec.name for spec in after} == {
        "bf16x6_products", "complex128_guarded", "complex64_guarded", "float64_guarded", "float64_lines",
        "hopper_gemm_line_classes", "hopper_gemm_unaligned_a", "ozaki_guard", "ozaki_pairs", "ozaki_products",
        "ozaki_reconstruction", "ozaki_residues", "ozaki_scales", "ozaki_words", "simt_guarded",
    }  # fmt: skip
    for spec in after:
        assert {job.config for job in found[spec]} == set(spec.configs)
        assert {job.signature for job in found[spec]} == set(spec.signatures(arch))


def test_every_kernel_of_transposes_grouped_products_and_quantisation_is_listed(tools):
    _, listing = tools
    every = (*listing.kernels_of("transpose"), *listing.unplanned())
    assert {job.spec.name for job in listing.launches(every)} == {spec.name for spec in every}
    assert {job.spec.name for job in listing.launches_of({"transpose_blocks", "quantize"})} == {
        "transpose_blocks", "quantize",
    }  # fmt: skip

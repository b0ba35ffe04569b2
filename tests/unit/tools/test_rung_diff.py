"""The diffs between the rungs show what a rung changes, and nothing else."""

from __future__ import annotations

import ast
import itertools
import re
from pathlib import Path

import pytest

from pages.blocks import generated, listings
from pages.rung_diff import class_source, diff_text

RUNGS = [
    "g01_naive_uncoalesced", "g02_naive_coalesced", "g03_shared_tile", "g04_register_tile", "g05_conflict_free",
    "g06_double_buffer", "g07_cp_async",
]  # fmt: skip
HOPPER = [
    "h02_wgmma_tma", "h03_stages", "h04_warp_specialised", "h05_persistent", "h06_cluster_multicast", "h07_tma_store",
    "h08_pingpong",
]  # fmt: skip


@pytest.mark.parametrize("kernel", [*RUNGS, *HOPPER, "d01_shared_ab", "d02_b_in_registers"])
def test_the_class_is_python_with_the_names_that_all_share(kernel):
    source = class_source(kernel)
    (tree,) = ast.parse(source).body
    assert tree.name == "Kernel"
    assert "config: Config," in source


def changes(before, after):
    lines = diff_text(before, after).splitlines()
    assert lines[:2] == [f"--- {before}", f"+++ {after}"]
    return [line for line in lines[2:] if line[0:1] in ("+", "-")]


def test_only_real_changes_show():
    assert changes("g01_naive_uncoalesced", "g02_naive_coalesced") == [
        "-            grid=(blocks_m, blocks_n, 1), block=(self.block_m * self.block_n, 1, 1)",
        "+            grid=(blocks_n, blocks_m, 1), block=(self.block_m * self.block_n, 1, 1)",
        "-        block_m, block_n, _ = cute.arch.block_idx()",
        "-        m = block_m * self.block_m + tid % self.block_m",
        "-        n = block_n * self.block_n + tid // self.block_m",
        "+        block_n, block_m, _ = cute.arch.block_idx()",
        "+        m = block_m * self.block_m + tid // self.block_n",
        "+        n = block_n * self.block_n + tid % self.block_n",
    ]


def test_a_kernel_does_not_differ_from_itself():
    assert diff_text("g04_register_tile", "g04_register_tile") == ""


@pytest.mark.parametrize(("before", "after"), [*itertools.pairwise(RUNGS), *itertools.pairwise(HOPPER)])
def test_every_rung_changes_something_and_names_do_not_show(before, after):
    text = "\n".join(changes(before, after))
    assert text
    assert "class Kernel" not in text
    assert set(re.findall(r"\w*Config\b", text)) <= {"Config"}


def test_an_unknown_kernel_is_named():
    with pytest.raises(KeyError, match="g99_none"):
        class_source("g99_none")


def test_pages_hold_diffs_and_sources(tmp_path):
    page = (
        "<!-- generated: diff g04_register_tile g05_conflict_free -->\nold\n<!-- end -->\n"
        "<!-- generated: source g01_naive_uncoalesced -->\nold\n<!-- end -->\n"
    )
    text = generated(page, tmp_path, "../plots")
    file = "../listings/g04_register_tile-g05_conflict_free.diff"
    assert f"```{{literalinclude}} {file}\n:language: diff\n```" in text
    kernel = "../../src/gemmule/kernels/ladder/g01_naive_uncoalesced/kernel.py"
    assert f"```{{literalinclude}} {kernel}\n:pyobject: NaiveUncoalesced" in text
    assert "old" not in text
    assert generated(text, tmp_path, "../plots") == text
    assert listings(text) == {Path(file).name: diff_text("g04_register_tile", "g05_conflict_free")}

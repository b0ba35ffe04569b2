"""The order of waits and memory accesses in the PTX of dependent launches."""

from __future__ import annotations

import re

from gemmule.kernels.hopper.repack_config import NONE, OPERANDS

MEMORY = re.compile(r"\b(ld|st|cp\.async|prefetch)\S*\.global")


def assert_waits_first(code, waits=1):
    assert len(re.findall(r"griddepcontrol\.wait", code)) == waits
    assert code.index("griddepcontrol.wait") < MEMORY.search(code).start()


def assert_reads_a_word_before_it_waits(code):
    """The decision of the guard, which had ended when the grid in front let this one launch."""
    before = code[: code.index("griddepcontrol.wait")]
    assert [found[0] for found in MEMORY.finditer(before)] == ["ld.relaxed.gpu.global"]


def waits_of(name, types):
    """How often the code of a kernel waits at most: for each operand that it copies; in producer and consumers."""
    if name in ("hopper_gemm", "hopper_gemm_unaligned", "hopper_gemm_unaligned_a"):
        return 2
    if name in ("hopper_gemm_repacked", "hopper_gemm_small_repacked"):
        return int(types.get("operands", 1))
    if name.endswith("gemm_upcast") and "wide" in types:
        return sum(types.get(key, NONE) != NONE for key in OPERANDS)
    return 1


def assert_in_order(code, arch, *, overlaps, waits=1):
    """A kernel that waits for the launch in front does so first; it does where launches overlap."""
    if "griddepcontrol" in code:
        assert arch.major >= 9, "before Hopper launches are in order"
        found = len(re.findall(r"griddepcontrol\.wait", code))
        assert found <= waits
        assert_waits_first(code, found)
    else:
        assert not overlaps or arch.major < 9

"""The order of waits and memory accesses in the PTX of dependent launches."""

from __future__ import annotations

import re

MEMORY = re.compile(r"\b(ld|st|cp\.async|prefetch)\S*\.global")


def assert_waits_first(code, waits=1):
    assert len(re.findall(r"griddepcontrol\.wait", code)) == waits
    assert code.index("griddepcontrol.wait") < MEMORY.search(code).start()


def assert_reads_a_word_before_it_waits(code):
    """The decision of the guard, which had ended when the grid in front let this one launch."""
    before = code[: code.index("griddepcontrol.wait")]
    assert [found[0] for found in MEMORY.finditer(before)] == ["ld.relaxed.gpu.global"]


def assert_in_order(code, arch, *, overlaps):
    """A kernel that waits for the launch in front does so first; it does where launches overlap."""
    if "griddepcontrol" in code:
        assert arch.major >= 9, "before Hopper launches are in order"
        assert_waits_first(code)
    else:
        assert not overlaps or arch.major < 9

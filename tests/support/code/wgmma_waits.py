"""Instructions in PTX that touch the accumulators of a wgmma before the wait for it."""

from __future__ import annotations

import re

from gemmule.core.arch import Arch

ARCH = Arch.parse("sm_90a")


_SUMS = re.compile(r"wgmma\.mma_async\S*\s*\{(?P<sums>[^}]*)\}")


_WAITS_FOR_ALL = re.compile(r"wgmma\.wait_group\S*\s+0\s*;")


_REGISTER = re.compile(r"%\w+")


def early(ptx):
    """The instructions that touch a register of a product that may be under way, in the order of the text."""
    found, under_way = [], set()
    for line in ptx.splitlines():
        if product := _SUMS.search(line):
            under_way.update(_REGISTER.findall(product["sums"]))
        elif _WAITS_FOR_ALL.search(line):
            under_way.clear()
        # Copies are no instructions: they join a register's names.
        elif not re.match(r"\s*(//|mov\.|\.loc)", line) and under_way.intersection(_REGISTER.findall(line)):
            found.append(line.strip())
    return found

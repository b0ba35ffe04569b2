"""Instructions in PTX that touch the accumulators of a wgmma before the wait for it."""

from __future__ import annotations

import re

from gemmule.core.arch import Arch

ARCH = Arch.parse("sm_90a")


_SUMS = re.compile(r"wgmma\.mma_async\S*\s*\{(?P<sums>[^}]*)\}")


_WAIT = re.compile(r"wgmma\.wait_group\S*\s+(?P<left>\d+)\s*;")


_REGISTER = re.compile(r"%\w+")


def early(ptx):
    """The instructions that touch a register of a product that may be under way, in the order of the text."""
    found, groups = [], [set()]
    for line in ptx.splitlines():
        if product := _SUMS.search(line):
            groups[-1].update(_REGISTER.findall(product["sums"]))
        elif "wgmma.commit_group" in line:
            groups.append(set())
        elif wait := _WAIT.search(line):
            # The last group is not committed yet.
            groups = groups[-1 - int(wait["left"]) :]
        # Copies are no instructions: they join a register's names.
        elif not re.match(r"\s*(//|mov\.|\.loc)", line) and set().union(*groups).intersection(_REGISTER.findall(line)):
            found.append(line.strip())
    return found

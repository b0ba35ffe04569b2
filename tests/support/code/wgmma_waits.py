"""Instructions in PTX that touch the accumulators of a wgmma before the wait for it."""

from __future__ import annotations

import io
import re
import struct

from elftools.elf.elffile import ELFFile

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


#: The last 12 bits of instructions of 128 that wait or arrive, told apart by a bit, and of those that multiply, where
#: a bit says that A is in registers.
_WARPGROUP, _DEPBAR_BIT, _PRODUCTS, _FROM_REGISTERS = 0x9C5, 47, range(0x9F0, 0x9F4), 0x400


def is_serialised(artifact):
    """Whether the machine code waits for more of the products than PTX does.

    So the assembler does where registers do not suffice for products in flight; it says so, but not to us.
    """
    waits = products = 0
    code = ELFFile(io.BytesIO(artifact.cubin)).get_section_by_name(f".text.{artifact.entry}").data()
    for (low,) in struct.iter_unpack("<Q8x", code):
        waits += low & 0xFFF == _WARPGROUP and low >> _DEPBAR_BIT & 1
        products += low & 0xFFF & ~_FROM_REGISTERS in _PRODUCTS
    expected = len(_WAIT.findall(artifact.ptx)), len(_SUMS.findall(artifact.ptx))
    # It may unroll a loop.
    return waits * expected[1] > products * expected[0]

"""A round of loads of mma_sync_small is in flight together: none waits for those before it.

Loads in a block of their own for each k-tile waited for the k-tile before, as its scoreboard is theirs too. Such code
is right, and takes a wait for device memory for each k-tile; nothing but its speed tells.
"""

from __future__ import annotations

import io
import itertools
import struct

import pytest
from elftools.elf.elffile import ELFFile

from gemmule.compiler.cache import artifact_for
from gemmule.core.arch import Arch
from gemmule.core.dtype import FLOAT16
from gemmule.kernels.mma_sync.small.config import MOST_REGISTERS
from gemmule.kernels.mma_sync.small.spec import SPEC

pytest.importorskip("cutlass", reason="the kernel compiler is not installed")

HOPPER = Arch.parse("sm_90a")
#: Others take TF32 alone, whose elements pass through no registers.
CONFIGS = [one for one in SPEC.configs if one.registers((one.tile_m, one.tile_n)) <= MOST_REGISTERS]
#: The last 12 bits of an instruction of 128, on sm_80 to sm_100.
_LOAD, _BRANCH = 0x981, 0x947
#: Of the second half of an instruction: where its control bits begin; in these the scoreboard that it sets when its
#: result is written, and those that it waits for.
_CONTROL, _SETS, _WAITS = 41, (5, 7), (11, 63)


def blocks(artifact):
    """Return the instructions between branches: their operation, scoreboard, and the mask of those they wait for."""
    code = ELFFile(io.BytesIO(artifact.cubin)).get_section_by_name(f".text.{artifact.entry}").data()
    found = [[]]
    for at in range(0, len(code), 16):
        first, second = struct.unpack_from("<QQ", code, at)
        control = second >> _CONTROL
        sets, waits = (control >> shift & mask for shift, mask in (_SETS, _WAITS))
        found[-1].append((first & 0xFFF, sets, waits))
        if first & 0xFFF == _BRANCH:
            found.append([])
    return found


@pytest.mark.parametrize(
    ("config", "majors"),
    [
        pytest.param(config, majors, id=f"{config}-{''.join(majors)}", marks=[pytest.mark.slow] if number else [])
        for number, (config, majors) in enumerate(itertools.product(CONFIGS, itertools.product("km", "nk")))
    ],
)
def test_no_load_of_a_round_waits_for_another(config, majors):
    wanted = dict(zip(("a_major", "b_major"), majors, strict=True)) | {"a_copies": "2", "b_copies": "2"}
    signature = next(one for one in SPEC.signatures(HOPPER) if wanted.items() <= dict(one).items())
    loads = config.k_tiles * (config.tile_m + config.tile_n) * config.depth(FLOAT16) // config.threads
    found = []
    for block in blocks(artifact_for(SPEC, config, signature, HOPPER)):
        places = [place for place, (operation, _, _) in enumerate(block) if operation == _LOAD]
        if len(places) < loads:
            continue
        pending = 0
        for operation, sets, waits in block[places[0] : places[-1] + 1]:
            found.append(pending & waits)
            pending |= 1 << sets if operation == _LOAD else 0
    assert found, f"no {loads} loads follow each other without a branch"
    assert not any(found)

"""Instructions of mma_sync_gemm, counted in its machine code."""

from __future__ import annotations

import collections
import io
import struct

from elftools.elf.elffile import ELFFile

#: The last 12 bits of an instruction of 128, on sm_80 to sm_100.
OPCODES = {"HMMA": 0x23C, "IMMA": 0x237, "LDSM": 0x83B, "LDGSTS": 0xFAE, "LDG": 0x981}


def instructions(artifact):
    """Count the instructions of the kernel by name."""
    section = ELFFile(io.BytesIO(artifact.cubin)).get_section_by_name(f".text.{artifact.entry}")
    code = section.data()
    counts = collections.Counter(struct.unpack_from("<Q", code, at)[0] & 0xFFF for at in range(0, len(code), 16))
    return {name: counts[opcode] for name, opcode in OPCODES.items()}


def assert_instructions(artifact, config, element):
    """Hold the machine code for whole tiles, and 16 bytes a copy, against the config."""
    found = instructions(artifact)
    product, other = ("IMMA", "HMMA") if element == "int8" else ("HMMA", "IMMA")
    # Of a slice: 16 x 8 each, of 32 or 16 bytes of K.
    squares = config.tile_m // config.warps_m // 16 * (config.tile_n // config.warps_n // 8)
    assert found[product] == squares * (config.k_bytes // config.mma_k_bytes)
    assert found[other] == 0
    assert found["LDSM"] > 0
    # Those of the first slices and those of the loop: 16 bytes a thread.
    slice_bytes = (config.tile_m + config.tile_n) * config.k_bytes
    assert found["LDGSTS"] == 2 * slice_bytes // (16 * config.threads)
    assert artifact.resources.spill_bytes == 0

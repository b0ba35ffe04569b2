"""Kernels of a wheel are compiled without line information, which names the files of the sources."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile

import gemmule
from gemmule.compiler.compile import compile_kernel
from gemmule.core.arch import Arch
from gemmule.dispatch.registry import REGISTRY

pytest.importorskip("cutlass", reason="the kernel compiler is not installed")

ARCH = Arch.parse("sm_90a")
SPEC = next(spec for spec in REGISTRY if spec.name == "transpose_reference")


def test_the_instructions_are_the_same_and_no_path_is_in_the_code():
    what = (SPEC, SPEC.default, SPEC.signatures(ARCH)[0], ARCH)
    usual, bare = compile_kernel(*what), compile_kernel(*what, line_info=False)
    assert instructions(usual.cubin) == instructions(bare.cubin) != {}
    folder = str(Path(gemmule.__file__).parent).encode()
    assert folder in usual.cubin
    assert folder not in bare.as_bytes(compressed=False)
    assert len(bare.cubin) < len(usual.cubin)


def instructions(cubin):
    sections = ELFFile(io.BytesIO(cubin)).iter_sections()
    return {section.name: section.data() for section in sections if section.name.startswith(".text.")}

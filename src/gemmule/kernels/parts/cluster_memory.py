"""Shared memory of the other CTAs of a cluster."""

from __future__ import annotations

from typing import Any

from cutlass import Int32, cute


@cute.jit
def cluster_address(address, cta):
    """Return the address in the cluster of what a CTA has at an address of its own."""
    return cute.arch.inline_ptx(
        "mapa.shared::cluster.u32 {$w0}, {$r0}, {$r1};", write_only_types=[Int32], read_only_args=[address, cta]
    )


def load_shared(kind: Any, address: Any, length: int = 1, space: str = "shared::cluster") -> Any:
    """Load a vector of elements from a space of shared memory."""
    words = ", ".join(f"{{$w{v}}}" for v in range(length))
    vector, given = (f".v{length}", f"{{{words}}}") if length > 1 else ("", words)
    found = cute.arch.inline_ptx(
        f"ld.{space}{vector}.b{kind.width} {given}, [{{$r0}}];",
        write_only_types=[kind] * length,
        read_only_args=[address],
    )
    return found if length > 1 else (found,)


@cute.jit
def store_word(address, word):
    """Store a word of 32 bits in shared memory of the cluster."""
    cute.arch.inline_ptx("st.shared::cluster.b32 [{$r0}], {$r1};", read_only_args=[address, word])

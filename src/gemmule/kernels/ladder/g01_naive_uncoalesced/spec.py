"""Spec of the GEMM with a thread for each element, consecutive threads in different rows."""

from __future__ import annotations

import dataclasses

from gemmule.core.arch import Arch
from gemmule.core.dtype import FLOAT32
from gemmule.kernels.simt.row_major_config import ThreadBlockConfig
from gemmule.kernels.simt.row_major_spec import row_major_spec


@dataclasses.dataclass(frozen=True)
class NaiveUncoalescedConfig(ThreadBlockConfig):
    """Threads of a CTA, whose blocks go down the columns of C."""

    def grid(self, m: int, n: int) -> tuple[int, int, int]:
        """Return the CTAs for an (m, n) result: like the threads, consecutive ones along a column of C."""
        return (-(-m // self.block_m), -(-n // self.block_n), 1)


SPEC = row_major_spec(
    package=__package__,
    dtype=FLOAT32,
    summary="float32, row-major: one thread an element, consecutive threads in different rows",
    configs=(NaiveUncoalescedConfig(),),
    archs=(Arch(8, 0), Arch(9, 0, True), Arch(10, 0, True)),
)

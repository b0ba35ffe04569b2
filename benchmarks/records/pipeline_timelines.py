"""The timelines of Hopper's kernels, as `gemmule explain` lays them out, for the pages about them.

python benchmarks/records/pipeline_timelines.py --record benchmarks/results
python benchmarks/records/pipeline_timelines.py bf16x6_gemm --record benchmarks/results

Needs no GPU, and measures none: the virtual GPU says who waits for whom, and rules say how long things take.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from gemmule.core.chips import chip_named
from gemmule.core.dtype import Precision
from gemmule.core.spec import Choice
from gemmule.dispatch.registry import REGISTRY
from gemmule.lab.experiment import experiment
from gemmule.lab.explain.pipeline_sample import timeline_of
from gemmule.lab.explain.timeline_json import timeline_dict
from gemmule.lab.explain.timeline_text import SHOWN_WAITS
from gemmule.lab.products import gemm_problem
from gemmule.lab.records import write_records
from gemmule.vgpu.instrument import CountedKernel

SHAPE, DTYPE, LAYOUT, CHIP = (4096, 4096, 4096), "bfloat16", "nn", "h100"
KERNELS = (
    "h02_wgmma_tma", "h03_stages", "h04_warp_specialised", "h05_persistent", "h06_cluster_multicast", "h07_tma_store",
    "h08_pingpong", "hopper_gemm", "hopper_gemm_unaligned",
)  # fmt: skip


#: What is told of kernels whose own launch prepares operands for the one that follows.
SPLIT = {"bf16x6_gemm": ("float32", Precision.BF16X6)}


def timelines(kernels: Sequence[str] = KERNELS) -> Iterator[dict[str, Any]]:
    """Yield a record for each kernel, in its default config."""
    chip, specs = chip_named(CHIP), {spec.name: spec for spec in REGISTRY}
    for name in kernels:
        choice = Choice(specs[name], specs[name].default)
        dtype, precision = SPLIT.get(name, (DTYPE, Precision.IEEE))
        problem = dataclasses.replace(gemm_problem(*SHAPE, dtype, dtype, LAYOUT), precision=precision)
        if then := choice.next_kernel(problem):
            choice, problem = Choice(then.spec, then.spec.default), then.problem
        found = timeline_of(problem, choice, chip, CountedKernel)
        assert found is not None
        data = timeline_dict(found)
        # What a page shows no sign of is left out.
        data["events"] = [one for one in data["events"] if one["what"] != "wait" or one["for"] in SHOWN_WAITS]
        yield {
            "record": "timeline", "kernel": name, "config": choice.config.as_dict(), "shape": list(SHAPE),
            "dtype": dtype, "layout": LAYOUT, "chip": chip.name, "timeline": data,
        }  # fmt: skip


def main() -> None:
    """Lay out, and write a record file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kernels", nargs="*", default=KERNELS, help="those of 16-bit types by default")
    parser.add_argument("--record", type=Path, default=Path("benchmarks/results"))
    options = parser.parse_args()
    block = experiment("python benchmarks/records/pipeline_timelines.py")
    print(write_records(options.record, block, timelines(options.kernels)))


if __name__ == "__main__":
    main()

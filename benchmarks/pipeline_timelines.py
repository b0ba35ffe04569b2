"""The timelines of Hopper's kernels, as `gemmule explain` lays them out, for the pages about them.

python benchmarks/pipeline_timelines.py --record benchmarks/results

Needs no GPU, and measures none: the virtual GPU says who waits for whom, and rules say how long things take.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gemmule.core.chips import chip_named
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
    "h08_pingpong", "h09_production", "h10_ragged_result",
)  # fmt: skip


def timelines() -> Iterator[dict[str, Any]]:
    """Yield a record for each kernel, in its default config."""
    chip, specs = chip_named(CHIP), {spec.name: spec for spec in REGISTRY}
    for name in KERNELS:
        choice = Choice(specs[name], specs[name].default)
        found = timeline_of(gemm_problem(*SHAPE, DTYPE, DTYPE, LAYOUT), choice, chip, CountedKernel)
        assert found is not None
        data = timeline_dict(found)
        # What a page shows no sign of is left out.
        data["events"] = [one for one in data["events"] if one["what"] != "wait" or one["for"] in SHOWN_WAITS]
        yield {
            "record": "timeline", "kernel": name, "config": choice.config.as_dict(), "shape": list(SHAPE),
            "dtype": DTYPE, "layout": LAYOUT, "chip": chip.name, "timeline": data,
        }  # fmt: skip


def main() -> None:
    """Lay out, and write a record file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", type=Path, default=Path("benchmarks/results"))
    options = parser.parse_args()
    print(write_records(options.record, experiment("python benchmarks/pipeline_timelines.py"), timelines()))


if __name__ == "__main__":
    main()

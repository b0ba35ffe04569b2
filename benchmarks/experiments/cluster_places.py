"""Where clusters lie: how many run at once, by their CTAs, with each number of CTAs on the busiest SM.

python benchmarks/experiments/cluster_places.py --record benchmarks/results

A kernel that only waits says on which SM each CTA is, and when it began. Its shared memory lets an SM hold one to four
CTAs. Needs an NVIDIA GPU with clusters, and PyTorch.
"""

from __future__ import annotations

import argparse
import ctypes
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from gemmule.lab.experiment import experiment
from gemmule.lab.records import RecordFile
from gemmule.runtime.device import get_device
from gemmule.runtime.driver import call, driver

_PTX = """
.version 8.0
.target sm_90
.address_size 64
.visible .entry place(.param .u64 sms, .param .u64 starts, .param .u64 nanoseconds) {
    .reg .pred %p<3>;
    .reg .b32 %r<4>;
    .reg .b64 %rd<10>;
    ld.param.u64 %rd1, [sms];
    ld.param.u64 %rd2, [starts];
    ld.param.u64 %rd3, [nanoseconds];
    mov.u32 %r1, %tid.x;
    setp.ne.s32 %p1, %r1, 0;
    @%p1 bra end;
    mov.u32 %r2, %smid;
    mov.u64 %rd4, %globaltimer;
    mov.u32 %r3, %ctaid.x;
    mul.wide.u32 %rd5, %r3, 4;
    add.s64 %rd6, %rd1, %rd5;
    mul.wide.u32 %rd7, %r3, 8;
    add.s64 %rd8, %rd2, %rd7;
    st.global.u32 [%rd6], %r2;
    st.global.u64 [%rd8], %rd4;
wait:
    mov.u64 %rd9, %globaltimer;
    sub.s64 %rd9, %rd9, %rd4;
    setp.lt.s64 %p2, %rd9, %rd3;
    @%p2 bra wait;
end:
    ret;
}
"""
#: CTAs of clusters, shared memory by the CTAs that an SM holds, and nanoseconds that they wait.
_SIZES, _SHARED = (2, 3, 4, 5, 6, 7, 8, 10, 12, 16), {1: 200 << 10, 2: 110 << 10, 3: 72 << 10, 4: 54 << 10}
_WAIT, _THREADS = 40_000, 128


class Places:
    """Launches of the kernel."""

    def __init__(self) -> None:
        import torch

        self._torch = torch
        self.sms = torch.zeros(1024, dtype=torch.int32, device="cuda")
        self.starts = torch.zeros(1024, dtype=torch.int64, device="cuda")
        self._function = call("cuModuleGetFunction", call("cuModuleLoadData", _PTX.encode()), b"place")
        attributes = driver().CUfunction_attribute
        for name, value in (
            ("NON_PORTABLE_CLUSTER_SIZE_ALLOWED", 1),
            ("PREFERRED_SHARED_MEMORY_CARVEOUT", 100),
            ("MAX_DYNAMIC_SHARED_SIZE_BYTES", max(_SHARED.values())),
        ):
            call("cuFuncSetAttribute", self._function, getattr(attributes, f"CU_FUNC_ATTRIBUTE_{name}"), value)
        self._values = [
            ctypes.c_void_p(self.sms.data_ptr()),
            ctypes.c_void_p(self.starts.data_ptr()),
            ctypes.c_longlong(_WAIT),
        ]
        self._addresses = (ctypes.c_void_p * 3)(*map(ctypes.addressof, self._values))

    def __call__(self, ctas: int, clusters: int, each: int, policy: int) -> tuple[int, int]:
        """Return the CTAs of the busiest SM of those that ran at first, and how many clusters these were."""
        bindings: Any = driver()
        config = bindings.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = ctas * clusters, 1, 1
        config.blockDimX, config.blockDimY, config.blockDimZ = _THREADS, 1, 1
        config.sharedMemBytes, config.hStream = _SHARED[each], self._torch.cuda.current_stream().cuda_stream
        cluster, scheduling = bindings.CUlaunchAttribute(), bindings.CUlaunchAttribute()
        identity = bindings.CUlaunchAttributeID
        cluster.id = identity.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        cluster.value.clusterDim.x, cluster.value.clusterDim.y, cluster.value.clusterDim.z = ctas, 1, 1
        scheduling.id = identity.CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE
        scheduling.value.clusterSchedulingPolicyPreference = bindings.CUclusterSchedulingPolicy(policy)
        config.attrs, config.numAttrs = [cluster, scheduling], 2
        call("cuLaunchKernelEx", config, self._function, ctypes.addressof(self._addresses), 0)
        self._torch.cuda.synchronize()
        sms, starts = (x[: ctas * clusters].cpu().numpy() for x in (self.sms, self.starts))
        first = starts - starts.min() < _WAIT // 2
        return int(np.bincount(sms[first]).max()), int(first.sum()) // ctas


def records(places: Places, multiprocessors: int) -> Iterator[dict[str, Any]]:
    """Yield for each size of clusters, CTAs an SM and scheduling policy the clusters up to which SMs have so many."""
    for ctas in _SIZES:
        for policy in (0, 2):
            for each in _SHARED:
                most = dict.fromkeys(range(1, each + 1), 0)
                for clusters in range(1, multiprocessors * each // ctas + 2):
                    busiest, at_once = places(ctas, clusters, each, policy)
                    most[busiest] = max(most[busiest], at_once)
                yield {
                    "record": "cluster_places",
                    "ctas": ctas,
                    "policy": "load balancing" if policy else "default",
                    "resident": each,
                    "at_once": list(most.values()),
                }


def main() -> None:
    """Measure, and write a record file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", type=Path, default=Path("benchmarks/results"))
    given = parser.parse_args()
    device = get_device()
    block = experiment("python benchmarks/experiments/cluster_places.py", device.pci_bus_id)
    with RecordFile(given.record, block) as file:
        for one in records(Places(), device.multiprocessors):
            file.write(one)
            print(one["ctas"], one["policy"], one["resident"], one["at_once"], flush=True)


if __name__ == "__main__":
    main()

"""Variants of K-major operands' copies: squares, then fresh draws."""
import collections, dataclasses, math, random, sys, time
from pathlib import Path
from config_times import Session, costs_of
from untuned_choices import jobs_of
from gemmule.compiler.pool import compile_all
from gemmule.core.errors import CompileError
from gemmule.core.gpu_rates import H200_RATES as RATES
from gemmule.core.arch import Arch
from gemmule.dispatch.select import Choice, choose
from gemmule.kernels.simt.gemm.spec import SPEC
from gemmule.kernels.simt.gemm_mn_major.spec import SPEC as MN
from gemmule.lab.experiment import experiment
from gemmule.lab.products import gemm_problem
from gemmule.lab.records import RecordFile

START = time.time()
ARCH = Arch.parse("sm_90a")
say = lambda *words: print(f"{time.time() - START:.1f} s", *words, flush=True)
choices, numbers = [], {}

def number(spec, config):
    key = spec.name, str(config)
    if key not in numbers:
        numbers[key] = len(choices)
        choices.append(Choice(spec, config))
    return numbers[key]

from gemmule.kernels.simt.config import SimtConfig

def tiles(m, n, k, wm, wn, stages, wk, clusters):
    return [SimtConfig(m, n, k, wm, wn, stages, cluster_k=c, warps_k=wk) for c in clusters]

NEW = [
    *tiles(32, 32, 32, 1, 1, 4, 4, (2, 3, 4)), *tiles(32, 64, 32, 1, 1, 4, 4, (1, 2, 3, 4)),
]
GUESSED = {(32, 32, 32, 4, 2): (0.80, 0.83), (32, 32, 32, 4, 3): (0.82, 0.85), (32, 32, 32, 4, 4): (0.84, 0.87),
           (32, 64, 32, 4, 1): (0.88, 0.91), (32, 64, 32, 4, 2): (0.84, 0.87), (32, 64, 32, 4, 3): (0.84, 0.87), (32, 64, 32, 4, 4): (0.84, 0.87)}
from gemmule.kernels.simt import cost
cost.FACTORS.update(GUESSED)
cost._facts.cache_clear() if hasattr(cost._facts, "cache_clear") else None

def predicted(problem, configs, loading):
    cost.RATES = cost.RATES._replace(loading=loading)
    return list(cost.costs(problem, configs, RATES))

def nearest(problem, far, most, configs=None):
    every = list(SPEC.configs)
    least = min(costs_of(problem, [Choice(SPEC, one) for one in every], RATES))
    if configs:
        every = configs
    costs = costs_of(problem, [Choice(SPEC, one) for one in every], RATES)
    order = sorted(range(len(every)), key=costs.__getitem__)
    order = [x for x in order if SPEC.why_not(problem, ARCH, every[x]) is None]
    return [every[x] for x in order if costs[x] <= far * least][:most], least

def prepared(problem):
    if MN.refuses(problem, ARCH) is not None:
        return []
    configs = [one for one in MN.configs if MN.why_not(problem, ARCH, one) is None]
    if not configs:
        return []
    costs = list(MN.costs(problem, configs, RATES))
    best = min(range(len(configs)), key=costs.__getitem__)
    return [(number(MN, configs[best]), costs[best])]

def squares(sizes, layouts=("nn", "nt", "tn", "tt")):
    for size in sizes:
        for layout in layouts:
            problem = gemm_problem(size, size, size, "float32", "float32", layout)
            yield problem, [number(SPEC, one) for one in fields(problem, 1.04, 3, 1.08, 3)]

def fields(problem, far, most, far_new, most_new):
    every = [one for one in (*SPEC.configs, *NEW) if SPEC.why_not(problem, ARCH, one) is None]
    costs = predicted(problem, every, 400.0)
    order = sorted(range(len(every)), key=costs.__getitem__)
    own = [x for x in order if every[x] not in NEW]
    found = [x for x in own if costs[x] <= far * costs[own[0]]][:most]
    found += [x for x in order if every[x] in NEW and costs[x] <= far_new * costs[own[0]]][:most_new]
    before = predicted(problem, [every[x] for x in own], 0.0)
    found.append(own[min(range(len(own)), key=before.__getitem__)])
    return list(dict.fromkeys(every[x] for x in found))

def drawn(seed, counts, layouts=("nn", "nt", "tn", "tt")):
    """Products whose choice is another one, products that new tiles may be for, and others."""
    rng = random.Random(seed)
    left = list(counts)
    while sum(left):
        m, n, k = (max(round(math.exp(rng.uniform(math.log(8), math.log(8192))) / 4), 2) * 4 for _ in range(3))
        layout = rng.choice(layouts)
        if not 4e6 <= 2.0 * m * n * k <= 2e10:
            continue
        problem = gemm_problem(m, n, k, "float32", "float32", layout)
        own = [one for one in SPEC.configs if SPEC.why_not(problem, ARCH, one) is None]
        costs = [predicted(problem, own, loading) for loading in (0.0, 400.0)]
        before, after = (own[min(range(len(own)), key=one.__getitem__)] for one in costs)
        new = [one for one in NEW if SPEC.why_not(problem, ARCH, one) is None]
        near = predicted(problem, new, 400.0)
        kind = 0 if before != after else 1 if min(near) < 0.98 * min(costs[1]) else 2
        if not left[kind]:
            continue
        if choose(problem, ARCH, multiprocessors=132, chip="NVIDIA H200", tuned=False).spec is not SPEC:
            continue
        left[kind] -= 1
        found = [[before, after, *fields(problem, 1.0, 1, 1.03, 1)], fields(problem, 1.0, 1, 1.06, 2), fields(problem, 1.12, 3, 1.0, 1)][kind]
        print("kind", kind, m, n, k, layout, flush=True)
        yield problem, [number(SPEC, one) for one in dict.fromkeys(found)]

def main():
    mode, kernels, seconds, out = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), Path(sys.argv[4])
    if mode == "A":
        trials = [*squares((256, 512, 768, 384, 640, 1024)), *drawn(29116, (28, 36, 24))]
    else:
        raise SystemExit(mode)
    jobs, needed, rank = {}, collections.Counter(), {}
    for at, (problem, found) in enumerate(trials):
        for x in found:
            for job in jobs_of(problem, choices[x], ARCH):
                jobs[str(job)] = job
                needed[str(job)] += 1
                rank.setdefault(str(job), at)
    # Those of squares, then those needed most.
    order = sorted(jobs, key=lambda name: (rank[name] >= 24, rank[name] if rank[name] < 24 else -needed[name]))[:kernels]
    say(sum(1 for x in order if rank[x] < 24), "kernels of squares;", len(trials), "products", sum(len(x) for _, x in trials), "points", len(order), "of", len(jobs), "kernels")
    if len(sys.argv) > 5:
        for problem, found in trials:
            print(problem.m, problem.n, problem.k, problem.layout, len(found))
        return
    failing, spilled = set(jobs) - set(order), []
    for job, result in compile_all([jobs[name] for name in order]):
        if isinstance(result, CompileError):
            failing.add(str(job)); print("failed", job, str(result)[:300], flush=True)
        elif result.resources.spill_bytes:
            spilled.append((result.resources.spill_bytes, str(job)))
    say("compiled;", len(spilled), "spilled, most", max(spilled, default=None))
    from gemmule.runtime.bench import bench_gpu
    from gemmule.runtime.device import get_device
    device = get_device()
    block = experiment("python benchmarks/experiments/variants_tmp.py", device.pci_bus_id)
    with RecordFile(out, block) as file, bench_gpu() as gpu, gpu.cublaslt() as lt:
        file.write({"record": "configs", "kernel": SPEC.name, "kernels": [one.spec.name for one in choices],
                    "configs": [one.config.as_dict() for one in choices]})
        session = Session(gpu, lt, "float32", choices, failing, algorithms=8)
        session._rates = RATES
        warm = time.time()
        while time.time() - warm < 1.5:
            session.record(*trials[0])
        began = time.time()
        for at, (problem, found) in enumerate(trials):
            if time.time() - began > seconds:
                say("time is over,", len(trials) - at, "left"); break
            able = [x for x in found if not any(str(j) in failing for j in jobs_of(problem, choices[x], ARCH))]
            if not able:
                continue
            record = session.record(problem, able)
            file.write(record)
            names = []
            for x, t in sorted(record["times_us"].items(), key=lambda p: p[1])[:8]:
                one = choices[int(x)]
                c = one.config
                names.append(f"{t:.1f}:" + ("mn" if one.spec is MN else f"{c.tile_m}x{c.tile_n}x{c.tile_k}t{c.thread_m}x{c.thread_n}w{c.warps_k}c{c.cluster_k}"))
            lts = [t for t in record["cublaslt_us"] if t]
            say(problem.m, problem.n, problem.k, problem.layout, *names, "lt", lts[0] if lts else None, min(lts, default=None))

if __name__ == "__main__":
    main()

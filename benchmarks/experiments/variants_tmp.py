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

OLD = [dataclasses.replace(one, by_four=2) for one in SPEC.configs]

def nearest(problem, far, most):
    costs = costs_of(problem, [Choice(SPEC, one) for one in OLD], RATES)
    order = sorted(range(len(OLD)), key=costs.__getitem__)
    order = [x for x in order if SPEC.why_not(problem, ARCH, OLD[x]) is None]
    return [OLD[x] for x in order if costs[x] <= far * costs[order[0]]][:most], costs[order[0]]

def prepared(problem):
    if MN.refuses(problem, ARCH) is not None:
        return []
    configs = [one for one in MN.configs if MN.why_not(problem, ARCH, one) is None]
    if not configs:
        return []
    costs = list(MN.costs(problem, configs, RATES))
    best = min(range(len(configs)), key=costs.__getitem__)
    return [(number(MN, configs[best]), costs[best])]

def variants(config, *which):
    return [number(SPEC, dataclasses.replace(config, by_four=x)) for x in which]

def squares(sizes, layouts=("nn", "nt", "tn", "tt"), far=1.25, most=3):
    for size in sizes:
        union = {}
        for layout in layouts:
            for x, one in enumerate(nearest(gemm_problem(size, size, size, "float32", "float32", layout), far, most)[0]):
                union[one] = min(x, union.get(one, 9))
        union = sorted(union, key=union.get)[: most + 1]
        for layout in layouts:
            problem = gemm_problem(size, size, size, "float32", "float32", layout)
            found = []
            for x, one in enumerate(union):
                if layout == "tn":
                    found += variants(one, 2) + (variants(one, 5) if x < 1 else [])
                else:
                    found += variants(one, 1, 2) + (variants(one, 3) if x < 1 else []) + (variants(one, 6) if x < 1 and layout == "nt" else [])
            if size >= 1024 and layout != "tn":
                found += [x for x, _ in prepared(problem)]
            yield problem, found

def drawn(seed, count, far, most, layouts=("nn", "nt", "tt")):
    rng = random.Random(seed)
    made = 0
    while made < count:
        m, n, k = (max(round(math.exp(rng.uniform(math.log(8), math.log(8192))) / 4), 2) * 4 for _ in range(3))
        layout = rng.choice(layouts)
        if not 2e6 <= 2.0 * m * n * k <= 3e10:
            continue
        problem = gemm_problem(m, n, k, "float32", "float32", layout)
        if choose(problem, ARCH, multiprocessors=132, chip="NVIDIA H200", tuned=False).spec not in (SPEC, MN):
            continue
        made += 1
        near, least = nearest(problem, far, most)
        found = [x for one in near for x in variants(one, 1)] + variants(near[0], 2)
        found += [x for x, cost in prepared(problem) if cost < 1.15 * least]
        yield problem, found

def main():
    mode, kernels, seconds, out = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), Path(sys.argv[4])
    if mode == "A":
        trials = [*squares((1024, 512, 256, 2048, 768, 384, 1536)), *squares((640, 4096), most=2), *drawn(29114, 44, 1.2, 4)]
        # Half of the draws: 1700 x 372 x 3640 is as before.
        problem = gemm_problem(1700, 372, 3640, "float32", "float32", "nt")
        near, _ = nearest(problem, 1.3, 5)
        trials.insert(40, (problem, [x for one in near for x in variants(one, 1, 2)]))
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
    order = sorted(jobs, key=lambda name: (rank[name] >= 37, rank[name] if rank[name] < 37 else -needed[name]))[:kernels]
    say(sum(1 for x in order if rank[x] < 37), "kernels of squares;", len(trials), "products", sum(len(x) for _, x in trials), "points", len(order), "of", len(jobs), "kernels")
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
                names.append(f"{t:.1f}:" + ("mn" if one.spec is MN else f"{c.tile_m}x{c.tile_n}x{c.tile_k}w{c.warps_k}c{c.cluster_k}v{c.by_four}"))
            lts = [t for t in record["cublaslt_us"] if t]
            say(problem.m, problem.n, problem.k, problem.layout, *names, "lt", lts[0] if lts else None, min(lts, default=None))

if __name__ == "__main__":
    main()

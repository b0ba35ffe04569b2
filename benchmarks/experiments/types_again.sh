#!/usr/bin/env bash
# What is left to decide after types_of_draws.sh: a minute of a GPU at most, compiling included.
set -euo pipefail
cd "$(dirname "$0")/../.."
record=${RECORD:-out} python=${PYTHON:-python}

bench() { "$python" -m gemmule bench gemm --untuned --seconds 0.03 --record "$record" --layout nt "$@"; }

# bfloat16 into odd results, as after packing: few tiles and a long K.
bench --dtype bfloat16 --kernels "chosen,mma_sync_gemm[8],mma_sync_gemm[9],mma_sync_gemm[10],hopper_gemm_unaligned[tile_n=64]" \
    --sizes 113,217,4640 --sizes 163,101,2832 --sizes 297,133,7776 --sizes 479,229,7736 --sizes 81,311,1864
# Whether the CTAs of a cluster should share K of 8-bit floats, and whether operands of A or B should change places.
bench --dtype float8_e4m3fn:float8:bfloat16 \
    --kernels "chosen,hopper_gemm[tile_m=128,tile_n=128,pingpong=0],hopper_gemm[tile_n=192,pingpong=0,cluster_m=4]" \
    --sizes 256,4096,14336 --sizes 1024,28672,4096 --sizes 512,4096,4096
# float64 with odd extents, whose results are written in another order now.
"$python" benchmarks/experiments/config_times.py --record "$record" --dtype float64 --registered --odd --count 40 --seed 28 \
    --seconds 15

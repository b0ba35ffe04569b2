#!/usr/bin/env bash
# What decides between kernels of TF32, float64 and 8-bit floats on an H100 or H200: 150 s of its time at most.
#
# `types_of_draws.sh compile` compiles what `types_of_draws.sh` measures; records go to the folder in $RECORD.
set -euo pipefail
cd "$(dirname "$0")/../.."
record=${RECORD:-out} python=${PYTHON:-python}

times() { "$python" benchmarks/experiments/config_times.py --record "$record" "$@"; }

tf32() { # kernels layout M,N,K …
    local kernels=$1 layout=$2 words=()
    shift 2
    for size in "$@"; do words+=(--sizes "$size"); done
    "$python" -m gemmule bench gemm --untuned --seconds 0.03 --record "$record" --dtype float32:tf32 \
        --layout "$layout" --kernels "chosen,mma_sync_gemm[7],mma_sync_gemm[8],mma_sync_gemm[9],mma_sync_gemm[10],$kernels" \
        "${words[@]}"
}

if [[ ${1:-} == compile ]]; then
    times --dtype float64 --count 60 --seed 27 --kernels 210 --compile-only
    times --dtype float8_e4m3fn --count 120 --seed 1 --kernels 180 --compile-only
    exit
fi
# TF32 with odd extents: one product a CTA (7), K split among 2, 4 and 8 CTAs (8, 9, 10), and wgmma after copies.
tf32 hopper_gemm_k_major tn 81,131,957 373,201,1523 131,793,1857 351,1417,2473 3021,205,5273 1101,1303,701
tf32 hopper_gemm_k_major tt 155,775,4159 465,407,2841 637,1213,3019 789,789,1765 165,6359,109
tf32 hopper_gemm_k_major nn 67,209,1229 79,465,145 1261,1115,253 3909,3321,905 4869,187,369
tf32 hopper_gemm_repacked nt 285,175,5531 621,6273,1337 1037,991,1201 97,2113,333
# bfloat16 into odd results, as after packing: few tiles and a long K.
"$python" -m gemmule bench gemm --untuned --seconds 0.03 --record "$record" --dtype bfloat16 --layout nt \
    --kernels "chosen,mma_sync_gemm[8],mma_sync_gemm[9],mma_sync_gemm[10],hopper_gemm_unaligned[tile_n=64]" \
    --sizes 113,217,4640 --sizes 163,101,2832 --sizes 297,133,7776 --sizes 479,229,7736 --sizes 81,311,1864
times --dtype float64 --count 60 --seed 27 --seconds 40 --kernels 210
times --dtype float8_e4m3fn --count 120 --seed 1 --seconds 30 --kernels 180

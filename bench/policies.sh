#!/bin/sh
# The four batching policies on the first 200 requests of each Azure 2023 trace: tables, JSON and plots.
#
#   sh bench/policies.sh [OUTPUT_FOLDER]
#
# TRACES   folder with azure2023_code.csv.gz and azure2023_conv.csv.gz   (default: ../shared/data/traces)
# HEADWAY  the command to run                                           (default: headway)
# ARGS     more flags for every run, such as "--num-threads 4"
set -eu

traces=${TRACES:-../shared/data/traces}
out=${1:-bench/results}
mkdir -p "$out"

for name in azure2023_code azure2023_conv; do
    # shellcheck disable=SC2086  # ARGS holds several flags
    ${HEADWAY:-headway} bench \
        --trace "$traces/$name.csv.gz" --num-prompts 200 --length-divisor 4 --load 0.7 --seed 0 \
        --slo ttft_ms=5000,itl_ms=500 \
        --json "$out/$name.json" --plot "$out/$name.svg" ${ARGS:-} | tee "$out/$name.txt"
done

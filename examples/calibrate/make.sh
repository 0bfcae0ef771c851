#!/bin/sh
# Makes c4.json and c64.json: what `vllm bench serve` might have measured of a server whose kernels are 15 % slower than
# the roofline says and whose host takes 2 ms more a step. They are simulated, not measured.
set -eu
cd "$(dirname "$0")"
profile=$(mktemp)
trap 'rm -f "$profile"' EXIT
cat > "$profile" <<'JSON'
{"format": "headway-profile-1", "latency": "roofline", "kernel_scale": 1.15, "host_ms_per_step": 2.0,
 "num_measurements": 1}
JSON
for concurrency in 4 64; do
    headway simulate --model llama-3.1-8b --gpu l40s --profile "$profile" --concurrency $concurrency --num-prompts 256 \
        --prompt-tokens 512 --output-tokens 128 --json "c$concurrency.json"
done

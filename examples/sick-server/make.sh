#!/bin/sh
# Makes scrapes.prom and server.log: what the deployment of docker-compose.yml would show of itself on an L40S while 64
# clients chat with it, of whom 24 find a seat. All figures are simulated.
cd "$(dirname "$0")" || exit 1
headway simulate --model llama-3.1-8b --gpu l40s --engine-version 0.30.0 \
    --max-model-len 8192 --max-num-seqs 24 --max-num-batched-tokens 2048 \
    --num-prompts 420 --concurrency 64 --prompt-tokens 200-1200 --output-tokens 150-450 --seed 3 \
    --scrape-interval-s 75 --metrics-out scrapes.prom --log-out server.log

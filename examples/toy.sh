#!/bin/sh
# The lesson's toy: 60 requests, Poisson at 40/s, prompts of 128 to 8,192 tokens, 50 to 300 tokens out, 1,800 blocks of 16.
# First with its own constants, where every decoding token costs 0.5 ms whoever runs beside it: then batching saves
# nothing, and reading the weights once for everybody, which is why anybody batches, is not in the model. Then with
# constants in which a step costs 8 ms for the weights and 0.03 ms a token.
cd "$(dirname "$0")/.." || exit 1
for constants in step_ms=0.2,prefill_us=40,decode_token_us=500 step_ms=0.2,prefill_us=40,decode_ms=8,decode_token_us=30; do
    headway simulate --compare-policies --latency "constant:$constants" \
        --num-prompts 60 --request-rate 40 --seed 7 \
        --prompt-tokens file:examples/toy_prompts.txt --output-tokens 50-300 \
        --num-gpu-blocks-override 1801 --max-model-len 8704 \
        --max-num-seqs 16 --max-num-batched-tokens 512 --no-enable-prefix-caching
done

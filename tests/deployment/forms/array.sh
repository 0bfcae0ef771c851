ARGS=(--max-model-len "${LEN:-8192}")
ARGS+=(--max-num-seqs 64)
vllm serve org/m "${ARGS[@]}" -tp 2

set -e
vllm serve "${1:-org/m}" --max-model-len 8192 --max-num-seqs 64 -tp 2 "$@"

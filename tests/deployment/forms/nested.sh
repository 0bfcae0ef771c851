bash -lc 'source /venv/bin/activate && vllm serve org/m --max-model-len 8192 --max-num-seqs 64 -tp 2'

sudo -u svc env A=1 nohup timeout -k 5 600 numactl -N 0 uv run --with x vllm serve org/m --max-model-len 8192 --max-num-seqs 64 -tp 2 > log &

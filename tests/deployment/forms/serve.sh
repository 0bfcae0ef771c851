vllm serve org/m --max-model-len 8K --max_num_seqs=64 -tp 2

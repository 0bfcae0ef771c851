kubectl run v --image=vllm/vllm-openai:v0.32.0 --restart=Never -- org/m --max-model-len 8192 --max-num-seqs 64 -tp 2

podman run --device nvidia.com/gpu=all vllm/vllm-openai:v0.9.2 --model org/m --max-model-len 8192 --max-num-seqs 64 --tensor-parallel-size 2

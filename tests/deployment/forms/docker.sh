docker run --rm -it --gpus '"device=0,1"' -e X=1 --entrypoint vllm vllm/vllm-openai:v0.32.0 serve org/m --max-model-len 8192 --max-num-seqs 64 -tp 2

exec python3 -u -m vllm.entrypoints.openai.api_server --model org/m --max-model-len 8192 \
  --max-num-seqs 64 --tensor-parallel-size=2 2>&1 | tee log

@echo off
set "LEN=8192"
rem --max-num-seqs 1
vllm serve org/m ^
  --max-model-len %LEN% --max-num-seqs 64 -tp 2

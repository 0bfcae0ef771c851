$model = 'org/m'
$extra = @('--max-num-seqs', '64')
vllm serve $model `
  --max-model-len 8192 @extra -tp "2"

"""vLLM's CPU build, by its logprobs of prompts."""

from __future__ import annotations

import os

from bench.peers import judging


def main() -> None:
    """Judge, and write the opinion."""
    args = judging.parser(__doc__).parse_args()
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", f"0-{args.threads - 1}")
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ["VLLM_NO_USAGE_STATS"] = "1"
    os.environ["HF_HUB_OFFLINE"] = "1"
    from vllm import LLM, SamplingParams

    llm = LLM(
        model=args.model,
        skip_tokenizer_init=True,
        dtype=args.format,
        max_model_len=2048,
        max_num_seqs=8,
        max_logprobs=judging.TOP,
        enable_prefix_caching=False,
        enforce_eager=True,
    )
    items = judging.read_items(args.items)
    params = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=judging.TOP, detokenize=False)
    outputs = llm.generate([{"prompt_token_ids": item.prompt + item.continuation} for item in items], params)
    everything = []
    for item, output in zip(items, outputs, strict=True):
        places = []
        told = output.prompt_logprobs[len(item.prompt) :]
        for token_id, logprobs in zip(item.continuation, told, strict=True):
            # The text's own token comes along even where it is not among the likeliest.
            ranked = sorted(logprobs.items(), key=lambda entry: -entry[1].logprob)[: judging.TOP]
            values = [entry.logprob for _, entry in ranked]
            places.append(judging.Place([i for i, _ in ranked], values, logprobs[token_id].logprob))
        everything.append(places)
    judging.save_places(args.out, everything)


if __name__ == "__main__":
    main()

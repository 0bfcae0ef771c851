"""vLLM's CPU build, in process, driven step by step."""

from __future__ import annotations

import os
import time

from bench.peers import report, workload
from bench.peers.common import parser


def main() -> None:
    """Run the workload and print the result."""
    args = parser(__doc__).parse_args()
    recorder = report.Recorder()
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", f"0-{args.threads - 1}")
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ["VLLM_NO_USAGE_STATS"] = "1"
    os.environ["HF_HUB_OFFLINE"] = "1"
    from vllm import EngineArgs, LLMEngine, SamplingParams

    engine = LLMEngine.from_engine_args(
        EngineArgs(
            model=args.model,
            skip_tokenizer_init=True,
            dtype=args.format,
            max_model_len=2048,
            max_num_seqs=args.seats,
            max_num_batched_tokens=args.budget,
            enable_prefix_caching=False,
            enforce_eager=os.environ.get("PEER_EAGER") == "1",
            disable_log_stats=True,
        )
    )

    def run(requests: list[workload.PeerRequest], told: report.Recorder) -> None:
        zero = told.begin([request.arrival_s for request in requests])
        pending = sorted(range(len(requests)), key=lambda index: requests[index].arrival_s)
        counts = [0] * len(requests)
        while pending or engine.has_unfinished_requests():
            now = time.perf_counter() - zero
            while pending and requests[pending[0]].arrival_s <= now:
                index = pending.pop(0)
                params = SamplingParams(
                    temperature=0.0,
                    max_tokens=requests[index].num_output_tokens,
                    ignore_eos=True,
                    detokenize=False,
                )
                engine.add_request(str(index), {"prompt_token_ids": requests[index].prompt}, params)
            if not engine.has_unfinished_requests():
                time.sleep(max(0.0, requests[pending[0]].arrival_s - now))
                continue
            for output in engine.step():
                index, count = int(output.request_id), len(output.outputs[0].token_ids)
                told.tokens(index, count - counts[index])
                counts[index] = count
        told.end()

    run([workload.PeerRequest([7] * 20, 4)], report.Recorder())
    recorder.ready()
    requests = workload.read(args.workload)
    run(requests, recorder)
    num_prompt, num_output = sum(len(r.prompt) for r in requests), sum(r.num_output_tokens for r in requests)
    recorder.print(num_prompt, num_output, format=args.format, budget=args.budget)


if __name__ == "__main__":
    main()

"""Transformers' continuous batching, in process: its own loop on a thread, which notes the time of each token."""

from __future__ import annotations

import time

import torch
from transformers import AutoModelForCausalLM, ContinuousBatchingConfig, GenerationConfig

from bench.peers import report, workload
from bench.peers.common import parser

_PAGE_TOKENS = 32


def main() -> None:
    """Run the workload and print the result."""
    args = parser(__doc__).parse_args()
    recorder = report.Recorder()
    torch.set_num_threads(args.threads)
    # Attention by SDPA: the flash kernels that it would choose for itself are of GPUs.
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32, attn_implementation="sdpa").eval()
    settings = GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=0)
    batching = ContinuousBatchingConfig(
        page_size=_PAGE_TOKENS,
        num_blocks=args.kv_tokens // _PAGE_TOKENS,
        max_batch_tokens=args.budget,
        max_requests_per_batch=args.seats,
        allow_block_sharing=False,
        auto_switch_to_flash=False,
    )
    requests = workload.read(args.workload)
    with model.continuous_batching_context_manager(settings, continuous_batching_config=batching) as manager:

        def run(batch: list[workload.PeerRequest], told: report.Recorder) -> None:
            zero = told.begin([request.arrival_s for request in batch])
            pending = sorted(range(len(batch)), key=lambda index: batch[index].arrival_s)
            num_left = len(batch)
            while num_left:
                now = time.perf_counter() - zero
                while pending and batch[pending[0]].arrival_s <= now:
                    index = pending.pop(0)
                    length = batch[index].num_output_tokens
                    manager.add_request(
                        batch[index].prompt, str(index), length, record_timestamps=True, eos_token_id=-1
                    )
                due_s = batch[pending[0]].arrival_s - now if pending else 1.0
                result = manager.get_result(timeout=min(1.0, max(0.001, due_s)))
                if result is None:
                    if not manager.is_running():
                        raise SystemExit("its loop ended early")
                elif result.error is not None:
                    raise SystemExit(result.error)
                elif result.is_finished():
                    told.times(int(result.request_id), result.timestamps or [])
                    num_left -= 1
            told.end()

        run([workload.PeerRequest([7] * 20, 4)], report.Recorder())
        recorder.ready()
        run(requests, recorder)
    num_prompt, num_output = sum(len(r.prompt) for r in requests), sum(r.num_output_tokens for r in requests)
    recorder.print(num_prompt, num_output, format=args.format, budget=args.budget)


if __name__ == "__main__":
    main()

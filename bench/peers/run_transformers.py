"""Transformers' continuous batching, in process. Its offline call gives no times of single tokens."""

from __future__ import annotations

import torch

from bench.peers import report, workload
from bench.peers.common import parser


def main() -> None:
    """Run the workload and print the result."""
    args = parser(__doc__).parse_args()
    recorder = report.Recorder()
    torch.set_num_threads(args.threads)
    from transformers import AutoModelForCausalLM, GenerationConfig

    model = AutoModelForCausalLM.from_pretrained(
        args.model, dtype=torch.float32, attn_implementation="sdpa_paged"
    ).eval()
    requests = workload.read(args.workload)
    num_blocks, block_size = args.kv_tokens // 32, 32

    def run(batch: list[workload.PeerRequest], told: report.Recorder) -> None:
        told.begin([0.0] * len(batch))
        # One length for a call: requests of equal length are sent together.
        for length in sorted({request.num_output_tokens for request in batch}):
            settings = GenerationConfig(
                max_new_tokens=length,
                eos_token_id=-1,
                do_sample=False,
                num_blocks=num_blocks,
                block_size=block_size,
                max_batch_tokens=args.budget,
            )
            same = [request.prompt for request in batch if request.num_output_tokens == length]
            model.generate_batch(inputs=same, generation_config=settings, progress_bar=False)
        told.end()

    run([workload.PeerRequest([7] * 20, 4)], report.Recorder())
    recorder.ready()
    run(requests, recorder)
    num_prompt, num_output = sum(len(r.prompt) for r in requests), sum(r.num_output_tokens for r in requests)
    recorder.print(num_prompt, num_output, format=args.format, budget=args.budget)


if __name__ == "__main__":
    main()

"""OpenVINO GenAI's continuous batching pipeline, in process, driven step by step."""

from __future__ import annotations

import time

import numpy as np
import openvino
import openvino_genai

from bench.peers import report, workload
from bench.peers.common import parser


def main() -> None:
    """Run the workload and print the result."""
    args = parser(__doc__).parse_args()
    recorder = report.Recorder()
    scheduler = openvino_genai.SchedulerConfig()
    scheduler.max_num_batched_tokens = args.budget
    scheduler.max_num_seqs = args.seats
    scheduler.dynamic_split_fuse = True
    scheduler.enable_prefix_caching = False
    scheduler.num_kv_blocks = args.kv_tokens // 32
    pipeline = openvino_genai.ContinuousBatchingPipeline(
        args.model, scheduler, "CPU", {"INFERENCE_NUM_THREADS": args.threads}
    )

    def run(requests: list[workload.PeerRequest], told: report.Recorder) -> None:
        zero = told.begin([request.arrival_s for request in requests])
        pending = sorted(range(len(requests)), key=lambda index: requests[index].arrival_s)
        handles = {}
        while pending or pipeline.has_non_finished_requests():
            now = time.perf_counter() - zero
            while pending and requests[pending[0]].arrival_s <= now:
                index = pending.pop(0)
                settings = openvino_genai.GenerationConfig()
                settings.max_new_tokens = requests[index].num_output_tokens
                settings.ignore_eos = True
                settings.do_sample = False
                ids = openvino.Tensor(np.array([requests[index].prompt], dtype=np.int64))
                handles[index] = pipeline.add_request(index, ids, settings)
            if not pipeline.has_non_finished_requests():
                time.sleep(max(0.0, requests[pending[0]].arrival_s - now))
                continue
            pipeline.step()
            for index, handle in handles.items():
                if handle.can_read():
                    for output in handle.read().values():
                        told.tokens(index, len(output.generated_ids))
        told.end()

    run([workload.PeerRequest([7] * 20, 4)], report.Recorder())
    recorder.ready()
    requests = workload.read(args.workload)
    run(requests, recorder)
    num_prompt, num_output = sum(len(r.prompt) for r in requests), sum(r.num_output_tokens for r in requests)
    recorder.print(num_prompt, num_output, format=args.format, budget=args.budget)


if __name__ == "__main__":
    main()

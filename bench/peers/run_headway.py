"""headway itself, in process."""

from __future__ import annotations

from bench.peers import report, workload
from bench.peers.common import parser
from headway import factory
from headway.config import EngineOptions
from headway.core.arrivals import Arrival, TraceSource
from headway.core.clock import WallClock
from headway.core.request import Request, TokenContent
from headway.core.sampling import SamplingParams

_BLOCK_SIZE = 16


def main() -> None:
    """Run the workload and print the result."""
    command = parser(__doc__)
    command.add_argument("--asynchronous", action="store_true")
    args = command.parse_args()
    recorder = report.Recorder()
    options = EngineOptions(
        quantization=None if args.format == "fp32" else args.format,
        num_threads=args.threads,
        max_num_batched_tokens=args.budget,
        max_num_seqs=args.seats,
        block_size=_BLOCK_SIZE,
        num_blocks=args.kv_tokens // _BLOCK_SIZE,
        enable_prefix_caching=False,
        async_scheduling=args.asynchronous,
    )
    model = factory.load_model(args.model, options)
    warm = [workload.PeerRequest([7] * 20, 4)]
    run(model, options, warm, report.Recorder())
    recorder.ready()
    requests = workload.read(args.workload)
    run(model, options, requests, recorder)
    num_prompt, num_output = sum(len(r.prompt) for r in requests), sum(r.num_output_tokens for r in requests)
    recorder.print(num_prompt, num_output, format=args.format, budget=args.budget)


def run(
    model: factory.Model, options: EngineOptions, requests: list[workload.PeerRequest], recorder: report.Recorder
) -> None:
    """Serve requests at their arrivals."""
    made = [
        Request(
            str(index),
            TokenContent(request.prompt, _BLOCK_SIZE),
            len(request.prompt),
            SamplingParams(temperature=0.0, max_tokens=request.num_output_tokens, ignore_eos=True),
            model.facts.max_model_len,
        )
        for index, request in enumerate(requests)
    ]
    arrivals = [(request.arrival_s, Arrival(item)) for request, item in zip(requests, made, strict=True)]
    clock = WallClock()
    engine, _ = factory.build_engine(model, options, TraceSource(arrivals), clock)
    recorder.begin([request.arrival_s for request in requests])
    for outputs in engine.run():
        for output in outputs:
            recorder.tokens(int(output.request.request_id), output.num_tokens)
    recorder.end()


if __name__ == "__main__":
    main()

"""llama.cpp's server, in process (the xllamacpp wheel), over HTTP: one thread a request reads its events."""

from __future__ import annotations

import http.client
import json
import threading
import time
from urllib.parse import urlsplit

import xllamacpp

from bench.peers import report, workload
from bench.peers.common import parser


def main() -> None:
    """Run the workload and print the result."""
    args = parser(__doc__).parse_args()
    recorder = report.Recorder()
    params = xllamacpp.CommonParams()
    params.model.path = args.model
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = args.threads
    params.n_ctx = args.kv_tokens
    params.n_parallel = args.seats
    params.kv_unified = True
    params.n_batch = params.n_ubatch = args.budget
    params.cache_prompt = False
    params.n_threads_http = args.seats + 8
    params.verbosity = 0
    params.port = 0
    server = xllamacpp.Server(params)
    address = urlsplit(server.listening_address)

    def send(index: int, request: workload.PeerRequest, told: report.Recorder, zero: float) -> None:
        time.sleep(max(0.0, request.arrival_s - (time.perf_counter() - zero)))
        assert address.hostname is not None
        connection = http.client.HTTPConnection(address.hostname, address.port, timeout=1800)
        body = {
            "prompt": request.prompt,
            "n_predict": request.num_output_tokens,
            "ignore_eos": True,
            "temperature": 0.0,
            "cache_prompt": False,
            "return_tokens": True,
            "stream": True,
        }
        connection.request("POST", "/completion", json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        if response.status != 200:
            raise SystemExit(f"{response.status}: {response.read()[:200]!r}")
        for line in response:
            if line.startswith(b"data: "):
                event = json.loads(line[6:])
                told.tokens(index, len(event.get("tokens") or ()))
        connection.close()

    def run(requests: list[workload.PeerRequest], told: report.Recorder) -> None:
        zero = told.begin([request.arrival_s for request in requests])
        threads = [
            threading.Thread(target=send, args=(index, request, told, zero)) for index, request in enumerate(requests)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        told.end()

    run([workload.PeerRequest([7] * 20, 4)], report.Recorder())
    recorder.ready()
    requests = workload.read(args.workload)
    run(requests, recorder)
    num_prompt, num_output = sum(len(r.prompt) for r in requests), sum(r.num_output_tokens for r in requests)
    recorder.print(num_prompt, num_output, format=args.format, budget=args.budget)


if __name__ == "__main__":
    main()

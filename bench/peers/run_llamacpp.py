"""llama.cpp's server, built on this machine, over HTTP: one thread a request reads its events."""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

from bench.peers import report, workload
from bench.peers.common import parser

_HOST = "127.0.0.1"
_START_UP_S = 120.0


def main() -> None:
    """Run the workload and print the result."""
    args = parser(__doc__).parse_args()
    recorder = report.Recorder()
    port = _free_port()
    counts = {
        "--ctx-size": args.kv_tokens,
        "--parallel": args.seats,
        "--threads": args.threads,
        "--threads-batch": args.threads,
        "--batch-size": args.budget,
        "--ubatch-size": args.budget,
        "--threads-http": args.seats + 8,
        "--port": port,
    }
    command = [str(Path(sys.prefix) / "bin" / "llama-server"), "--model", args.model, "--host", _HOST]
    command += ["--kv-unified", "--no-cache-prompt", "--log-disable"]
    command += [str(word) for pair in counts.items() for word in pair]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            _await(server, port)
            recorder.watch(server.pid)
            _run([workload.PeerRequest([7] * 20, 4)], report.Recorder(), port)
            recorder.ready()
            requests = workload.read(args.workload)
            _run(requests, recorder, port)
            num_prompt, num_output = sum(len(r.prompt) for r in requests), sum(r.num_output_tokens for r in requests)
            recorder.print(num_prompt, num_output, format=args.format, budget=args.budget)
        finally:
            server.terminate()


def _free_port() -> int:
    with socket.socket() as held:
        held.bind((_HOST, 0))
        return int(held.getsockname()[1])


def _await(server: subprocess.Popen[bytes], port: int) -> None:
    """Until it says that it has loaded the model."""
    until = time.monotonic() + _START_UP_S
    while time.monotonic() < until:
        if server.poll() is not None:
            raise SystemExit(f"llama-server ended with {server.returncode}")
        try:
            connection = http.client.HTTPConnection(_HOST, port, timeout=5)
            connection.request("GET", "/health")
            if connection.getresponse().status == 200:
                return
        except OSError:
            pass
        time.sleep(0.02)
    raise SystemExit(f"llama-server was not ready within {_START_UP_S:.0f} s")


def _run(requests: list[workload.PeerRequest], told: report.Recorder, port: int) -> None:
    zero = told.begin([request.arrival_s for request in requests])
    threads = [
        threading.Thread(target=_send, args=(index, request, told, zero, port))
        for index, request in enumerate(requests)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    told.end()


def _send(index: int, request: workload.PeerRequest, told: report.Recorder, zero: float, port: int) -> None:
    time.sleep(max(0.0, request.arrival_s - (time.perf_counter() - zero)))
    connection = http.client.HTTPConnection(_HOST, port, timeout=1800)
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
    num_told = 0
    for line in response:
        if line.startswith(b"data: "):
            event = json.loads(line[6:])
            num_new = len(event.get("tokens") or ())
            if event.get("stop"):  # tokens that are half a character were not told of
                num_new = event["tokens_predicted"] - num_told
            told.tokens(index, num_new)
            num_told += num_new
    connection.close()


if __name__ == "__main__":
    main()

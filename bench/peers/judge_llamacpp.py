"""llama.cpp's server, place by place: it keeps what it has read, and is asked for one token more each time."""

from __future__ import annotations

import http.client
import json
from urllib.parse import urlsplit

import xllamacpp

from bench.peers import judging

_ALL = 1 << 20
"""More than any vocabulary has."""


def main() -> None:
    """Judge, and write the opinion."""
    args = judging.parser(__doc__).parse_args()
    params = xllamacpp.CommonParams()
    params.model.path = args.model
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = args.threads
    params.n_ctx = 2048
    params.n_parallel = 1
    params.verbosity = 0
    params.port = 0
    server = xllamacpp.Server(params)
    address = urlsplit(server.listening_address)
    assert address.hostname is not None
    connection = http.client.HTTPConnection(address.hostname, address.port, timeout=1800)
    everything = []
    for item in judging.read_items(args.items):
        ids = item.prompt + item.continuation
        everything.append([place(connection, ids[:end], ids[end]) for end in range(len(item.prompt), len(ids))])
    judging.save_places(args.out, everything)


def place(connection: http.client.HTTPConnection, ids: list[int], following: int) -> judging.Place:
    """The likeliest tokens behind these. All are asked for only where the text's own token is not among them."""
    logprobs = likeliest(connection, ids, judging.TOP)
    own = logprobs[following] if following in logprobs else likeliest(connection, ids, _ALL).get(following)
    return judging.Place(list(logprobs), list(logprobs.values()), own)


def likeliest(connection: http.client.HTTPConnection, ids: list[int], count: int) -> dict[int, float]:
    """Logprobs of so many tokens, best first."""
    body = {
        "prompt": ids,
        "n_predict": 1,
        "n_probs": count,
        "temperature": 0.0,
        "ignore_eos": False,
        "cache_prompt": True,
    }
    connection.request("POST", "/completion", json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    answer = json.loads(response.read())
    if response.status != 200:
        raise SystemExit(f"{response.status}: {answer}")
    top = answer["completion_probabilities"][0]["top_logprobs"]
    return {entry["id"]: entry["logprob"] for entry in top}


if __name__ == "__main__":
    main()

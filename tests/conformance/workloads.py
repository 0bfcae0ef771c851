"""Random workloads for the scheduler, by family and seed.

A workload has the recorder's form: {"config": {…}, "requests": [{…}]}. A family names the feature that its workloads
exercise; everything else about them is drawn at random, so that features meet.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

Workload = dict[str, Any]

_VOCABULARY = 5000
_BLOCK_SIZES = (1, 2, 3, 4, 8, 16)


def generate(family: str, seed: int) -> Workload:
    """The workload of one family and seed, always the same one.

    Raises:
        KeyError: no such family.
    """
    rng = random.Random(f"{family}/{seed}")
    workload = FAMILIES[family](rng)
    config = workload["config"]
    config["max_num_batched_tokens"] = max(config["max_num_batched_tokens"], config["max_num_seqs"])
    return workload


# ---------------------------------------------------------------------------------------------- building blocks


def _config(rng: random.Random, **given: Any) -> dict[str, Any]:
    """Limits of a small server whose pool always holds the longest sequence."""
    config: dict[str, Any] = {
        "block_size": rng.choice(_BLOCK_SIZES),
        "max_num_batched_tokens": rng.choice((8, 16, 32, 64, 128)),
        "max_num_seqs": rng.choice((1, 2, 4, 8, 12, 16)),
        "max_model_len": rng.choice((48, 96, 160)),
        "enable_prefix_caching": rng.random() < 0.6,
    } | given
    longest = -(-config["max_model_len"] // config["block_size"])
    config.setdefault("num_blocks", 1 + longest + rng.randint(0, 3 * longest))
    return config


def _tight_pool(rng: random.Random, config: dict[str, Any]) -> None:
    longest = -(-config["max_model_len"] // config["block_size"])
    config["num_blocks"] = 1 + longest + rng.randint(0, max(1, longest // 2))


def _requests(
    rng: random.Random,
    config: dict[str, Any],
    *,
    count: tuple[int, int] = (3, 25),
    prompt: tuple[int, int] | None = None,
    output: tuple[int, int] = (1, 24),
    shared: float = 0.6,
    gaps: tuple[int, ...] = (0, 0, 0, 1, 2, 5),
) -> list[dict[str, Any]]:
    """Requests with increasing arrivals; `shared` is the share of prompts that start like one of three stems."""
    longest = config["max_model_len"]
    low, high = prompt or (1, longest - 2)
    stems = [_tokens(rng, longest) for _ in range(3)]
    rows = []
    step = 0
    for i in range(rng.randint(*count)):
        step += rng.choice(gaps)
        length = rng.randint(low, min(high, longest - 2))
        cut = rng.randint(0, length) if rng.random() < shared else 0
        ids = rng.choice(stems)[:cut] + _tokens(rng, length - cut)
        most = max(1, min(output[1], longest - length))
        rows.append(
            {
                "id": f"r{i}",
                "arrival_step": step,
                "prompt_token_ids": ids,
                "max_tokens": rng.randint(min(output[0], most), most),
            }
        )
    return rows


def _tokens(rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(_VOCABULARY) for _ in range(count)]


def _workload(config: dict[str, Any], requests: list[dict[str, Any]]) -> Workload:
    return {"config": config, "requests": requests}


def _prioritise(rng: random.Random, workload: Workload) -> Workload:
    workload["config"]["policy"] = "priority"
    for row in workload["requests"]:
        row["priority"] = rng.randint(0, 3)
    return workload


def _abort_some(rng: random.Random, workload: Workload, share: float = 0.35) -> Workload:
    for row in workload["requests"]:
        if rng.random() < share:
            row["abort_step"] = row["arrival_step"] + rng.choice((0, 1, 1, 2, 3, 5, 8, 13))
    return workload


# ---------------------------------------------------------------------------------------------- families


def _plain(rng: random.Random) -> Workload:
    config = _config(rng, enable_prefix_caching=False)
    return _workload(config, _requests(rng, config))


def _short(rng: random.Random) -> Workload:
    config = _config(rng)
    return _workload(config, _requests(rng, config, count=(10, 40), prompt=(1, 8), output=(1, 12)))


def _long(rng: random.Random) -> Workload:
    config = _config(rng, max_model_len=rng.choice((256, 512)))
    return _workload(config, _requests(rng, config, count=(3, 12), prompt=(100, 500), output=(1, 16)))


def _prefix(rng: random.Random) -> Workload:
    """Shared stems, identical prompts, and next turns that continue an earlier request's prompt and output."""
    config = _config(rng, enable_prefix_caching=True, block_size=rng.choice((1, 2, 4, 8)))
    rows = _requests(rng, config, shared=0.9)
    longest = config["max_model_len"]
    for row in rows:
        row["output_token_ids"] = _tokens(rng, row["max_tokens"])
    for i in range(1, len(rows)):
        earlier = rows[rng.randrange(i)]
        draw = rng.random()
        if draw < 0.2:
            ids = earlier["prompt_token_ids"]
        elif draw < 0.5:
            ids = earlier["prompt_token_ids"] + earlier["output_token_ids"] + _tokens(rng, rng.randint(1, 6))
        else:
            continue
        rows[i]["prompt_token_ids"] = list(ids[: longest - 2])
        rows[i]["max_tokens"] = min(rows[i]["max_tokens"], longest - len(rows[i]["prompt_token_ids"]))
        del rows[i]["output_token_ids"][rows[i]["max_tokens"] :]
    return _workload(config, rows)


def _tight(rng: random.Random) -> Workload:
    config = _config(rng, max_num_seqs=rng.choice((4, 8, 16)), block_size=rng.choice((1, 2, 4, 8)))
    _tight_pool(rng, config)
    return _workload(config, _requests(rng, config, count=(5, 25), prompt=(1, 40), output=(8, 40)))


def _roomy(rng: random.Random) -> Workload:
    config = _config(rng, num_blocks=4000)
    return _workload(config, _requests(rng, config))


def _seats(rng: random.Random) -> Workload:
    config = _config(rng, max_num_seqs=rng.choice((1, 2, 3)))
    return _workload(config, _requests(rng, config, count=(6, 25), gaps=(0, 0, 1)))


def _threshold(rng: random.Random) -> Workload:
    config = _config(rng, long_prefill_token_threshold=rng.choice((1, 3, 4, 8, 16, 40)))
    return _workload(config, _requests(rng, config))


def _adaptive(rng: random.Random) -> Workload:
    config = _config(rng, long_prefill_token_threshold=rng.choice((1, 4, 8, 16)))
    config["long_prefill_token_threshold_adaptive"] = True
    return _workload(config, _requests(rng, config))


def _priority(rng: random.Random) -> Workload:
    config = _config(rng, block_size=rng.choice((1, 2, 4, 8)), max_num_seqs=rng.choice((2, 4, 8, 16)))
    if rng.random() < 0.7:
        _tight_pool(rng, config)
    rows = _requests(rng, config, prompt=(1, 50), output=(4, 40))
    if rng.random() < 0.3:
        arrivals = [float(i) for i in range(len(rows))]
        rng.shuffle(arrivals)
        for row, arrival in zip(rows, arrivals, strict=True):
            row["arrival_time"] = arrival
    return _prioritise(rng, _workload(config, rows))


def _abort(rng: random.Random) -> Workload:
    return _abort_some(rng, rng.choice((_plain, _prefix, _tight, _priority))(rng))


def _tiny_budget(rng: random.Random) -> Workload:
    seats = rng.choice((1, 2, 3, 4))
    config = _config(rng, max_num_seqs=seats, max_num_batched_tokens=seats + rng.randint(0, 3))
    return _workload(config, _requests(rng, config, count=(3, 12), prompt=(1, 30), output=(1, 10)))


def _watermark(rng: random.Random) -> Workload:
    workload = rng.choice((_plain, _prefix, _tight, _priority))(rng)
    workload["config"]["watermark"] = rng.choice((0.005, 0.01, 0.05, 0.1, 0.25))
    return workload


def _async(rng: random.Random) -> Workload:
    workload = rng.choice((_plain, _prefix, _tight, _tight, _priority, _threshold, _seats))(rng)
    workload["config"]["async_scheduling"] = True
    return workload


def _async_abort(rng: random.Random) -> Workload:
    return _abort_some(rng, _async(rng))


def _window(rng: random.Random) -> Workload:
    workload = rng.choice((_plain, _prefix, _tight, _long, _priority))(rng)
    workload["config"]["sliding_window"] = rng.choice((2, 3, 4, 7, 8, 16, 33, 64))
    if rng.random() < 0.3:
        workload["config"]["watermark"] = rng.choice((0.01, 0.1))
    return workload


def _window_async(rng: random.Random) -> Workload:
    workload = _window(rng)
    workload["config"]["async_scheduling"] = True
    return _abort_some(rng, workload, 0.1)


def _salt(rng: random.Random) -> Workload:
    workload = _prefix(rng)
    for row in workload["requests"]:
        salt = rng.choice((None, "a", "b"))
        if salt is not None:
            row["cache_salt"] = salt
    return workload


def _active(rng: random.Random) -> Workload:
    workload = rng.choice((_plain, _prefix, _tight, _async))(rng)
    config = workload["config"]
    config["max_num_active_seqs"] = rng.randint(1, config["max_num_seqs"])
    return workload


def _no_gate(rng: random.Random) -> Workload:
    workload = rng.choice((_long, _prefix, _tight, _priority, _async))(rng)
    workload["config"]["scheduler_reserve_full_isl"] = False
    return workload


def _unchunked(rng: random.Random) -> Workload:
    """vLLM refuses a budget below max_model_len when chunked prefill is off."""
    workload = rng.choice((_plain, _prefix, _tight, _priority, _threshold))(rng)
    config = workload["config"]
    config["enable_chunked_prefill"] = False
    config["max_num_batched_tokens"] = config["max_model_len"] + rng.choice((0, 0, 10, 100))
    return workload


def _pipeline(rng: random.Random) -> Workload:
    """Several steps in flight under the synchronous scheduler, as with pipeline parallelism."""
    workload = rng.choice((_plain, _prefix, _tight, _priority, _abort))(rng)
    workload["config"]["batch_queue"] = rng.choice((2, 2, 3))
    return workload


def _deep(rng: random.Random) -> Workload:
    """Asynchronous scheduling with more than two steps in flight, as with a pipeline of stages."""
    workload = _async_abort(rng)
    workload["config"]["batch_queue"] = rng.choice((3, 4))
    return workload


def _model_length(rng: random.Random) -> Workload:
    """Requests that are ended by max_model_len, not by max_tokens."""
    workload = rng.choice((_plain, _prefix, _tight, _priority, _async))(rng)
    longest = workload["config"]["max_model_len"]
    for row in workload["requests"]:
        if rng.random() < 0.4:
            row["max_tokens"] = longest - len(row["prompt_token_ids"]) + rng.randint(-1, 30)
            row.pop("output_token_ids", None)
    return workload


def _starved(rng: random.Random) -> Workload:
    """A pool that cannot hold the longest sequences: requests preempt themselves, thrash, and wait for ever."""
    workload = rng.choice((_plain, _prefix, _priority, _async, _no_gate, _threshold))(rng)
    config = workload["config"]
    longest = -(-config["max_model_len"] // config["block_size"])
    config["num_blocks"] = 1 + max(1, rng.randint(longest // 4, longest))
    config["max_steps"] = 300
    return workload


def _mixed(rng: random.Random) -> Workload:
    """Everything at once."""
    workload = rng.choice((_plain, _short, _prefix, _tight, _seats, _priority, _salt))(rng)
    config = workload["config"]
    for chance, name, values in (
        (0.4, "long_prefill_token_threshold", (1, 4, 16)),
        (0.3, "long_prefill_token_threshold_adaptive", (True,)),
        (0.3, "watermark", (0.01, 0.1)),
        (0.4, "async_scheduling", (True,)),
        (0.2, "sliding_window", (4, 8, 16)),
        (0.2, "scheduler_reserve_full_isl", (False,)),
        (0.2, "max_num_active_seqs", (1,)),
    ):
        if rng.random() < chance:
            config[name] = rng.choice(values)
    return _abort_some(rng, workload, 0.15)


def _real(rng: random.Random) -> Workload:
    """200 requests with lengths like those of a production trace (Azure 2023: long prompts, short answers)."""
    seats, longest, block_size = rng.choice((64, 256)), 4096, 16
    code = rng.random() < 0.5
    config = {
        "block_size": block_size,
        "max_num_batched_tokens": rng.choice((2048, 8192)),
        "max_num_seqs": seats,
        "max_model_len": longest,
        "enable_prefix_caching": rng.random() < 0.6,
        "num_blocks": 1 + rng.choice((512, 1200, 20_000)),
        "async_scheduling": rng.random() < 0.4,
    }
    stems = [_tokens(rng, longest) for _ in range(4)]
    rows, step = [], 0.0
    for i in range(200):
        step += rng.expovariate(rng.choice((0.5, 2.0)))
        length = _clip(rng.lognormvariate(7.2, 0.9) if code else rng.lognormvariate(6.6, 1.0), longest - 2)
        cut = rng.randint(0, length) if rng.random() < 0.3 else 0
        answer = _clip(rng.lognormvariate(2.8, 0.8) if code else rng.lognormvariate(4.6, 0.7), longest - length)
        ids = rng.choice(stems)[:cut] + _tokens(rng, length - cut)
        rows.append({"id": f"r{i}", "arrival_step": int(step), "prompt_token_ids": ids, "max_tokens": answer})
    return _workload(config, rows)


def _clip(value: float, most: int) -> int:
    return max(1, min(int(value), most))


FAMILIES: dict[str, Callable[[random.Random], Workload]] = {
    "plain": _plain,
    "short": _short,
    "long": _long,
    "prefix": _prefix,
    "tight": _tight,
    "roomy": _roomy,
    "seats": _seats,
    "threshold": _threshold,
    "adaptive": _adaptive,
    "priority": _priority,
    "abort": _abort,
    "tiny_budget": _tiny_budget,
    "watermark": _watermark,
    "async": _async,
    "async_abort": _async_abort,
    "window": _window,
    "window_async": _window_async,
    "salt": _salt,
    "active": _active,
    "no_gate": _no_gate,
    "unchunked": _unchunked,
    "pipeline": _pipeline,
    "deep": _deep,
    "model_length": _model_length,
    "starved": _starved,
    "mixed": _mixed,
    "real": _real,
}
"""What `make conformance` draws from, by name."""

"""How long a step takes here: two sizes timed when an engine is first made, and remembered."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import time
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path

import numpy as np
import torch

from headway.config import StepTime
from headway.executors.torch.batch import RequestRows
from headway.executors.torch.forward import ForwardPass
from headway.executors.torch.loader import LoadedModel, QuantizedModel
from headway.executors.torch.native.compilation import cache_folder

_SIZES = (16, 256)
"""Rows: few enough that reading weights dominates, and as many as a usual step."""
_MIN_PER_TOKEN_S = 1e-7
_TRUSTED_FOR_S = 24 * 3600


def step_time(model: LoadedModel, block_size: int) -> StepTime:
    """The time of a step of prompt tokens on this machine, from the cache if it has been measured before."""
    path = cache_folder() / "step-times" / f"{_key(model)}.json"
    known = _remembered(path)
    if known is not None:
        return known
    measured = measure(model, block_size)
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.with_suffix(f".{os.getpid()}")
        beside.write_text(json.dumps({"fixed_s": measured.fixed_s, "per_token_s": measured.per_token_s}))
        os.replace(beside, path)
    return measured


def _remembered(path: Path) -> StepTime | None:
    """What was measured lately; not for ever, since something else may have kept the processor busy then."""
    try:
        if time.time() - path.stat().st_mtime > _TRUSTED_FOR_S:
            return None
        known = json.loads(path.read_text())
        return StepTime(float(known["fixed_s"]), float(known["per_token_s"]))
    except (OSError, ValueError, TypeError, KeyError):
        return None


@torch.inference_mode()
def measure(model: LoadedModel, block_size: int, *, repeats: int = 3) -> StepTime:
    """Time steps of both sizes, the best of a few, and put a line through them."""
    sizes = [min(size, model.max_model_len - 1) for size in _SIZES]
    forward = model.forward_pass(2 + max(sizes) // block_size, block_size)
    seconds = [_best(forward, size, block_size, repeats) for size in sizes]
    per_token_s = max(_MIN_PER_TOKEN_S, (seconds[1] - seconds[0]) / max(1, sizes[1] - sizes[0]))
    return StepTime(max(0.0, seconds[0] - per_token_s * sizes[0]), per_token_s)


def _best(forward: ForwardPass, num_tokens: int, block_size: int, repeats: int) -> float:
    table = np.arange(1, 1 - (-num_tokens // block_size), dtype=np.int64)
    rows = [RequestRows([0] * num_tokens, 0, table, num_sampled=1, wants_logits=False)]
    times: list[float] = []
    for _ in range(repeats + 1):
        started_at = time.perf_counter()
        forward.run(rows)
        times.append(time.perf_counter() - started_at)
    # The first run meets cold memory and sleeping threads.
    return min(times[1:])


def _key(model: LoadedModel) -> str:
    """All that the time depends on: the model's shape, its arithmetic, threads and processor."""
    facts: Sequence[object] = (
        model.spec,
        model.arithmetic.engine.isa if isinstance(model.arithmetic, QuantizedModel) else str(model.device),
        model.kv_dtype,
        torch.get_num_threads(),
        torch.__version__,
        _processor(),
    )
    return blake2b(repr(facts).encode(), digest_size=12).hexdigest()


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return "".join(sorted({line for line in lines if line.startswith(("model name", "flags"))}))

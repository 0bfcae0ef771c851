"""Timing steps of a real executor over a grid of shapes, and the file that the table oracle reads."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, pairwise
from pathlib import Path
from random import Random
from statistics import fmean, median
from typing import NamedTuple

from headway.core.arrivals import Arrival, TraceSource
from headway.core.engine import Engine
from headway.core.events import Event, StepFinished
from headway.core.plan import ScheduledRequest, StepPlan
from headway.core.request import Request, TokenContent
from headway.core.sampling import SamplingParams
from headway.errors import ConfigError
from headway.executors.base import Executor
from headway.executors.simulated.table_files import STEP_COLUMNS, STEPS_FILE

_CHUNKS = (8, 32, 128, 512)
_PASTS = (0, 512)
_DECODES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 128)
_CONTEXTS = (16, 128, 512, 2048)
_DECODES_BESIDE_CHUNKS = (1, 8, 64)
_CONTEXTS_BESIDE_CHUNKS = (16, 512)
_HOST_REQUESTS, _HOST_TOKENS = 4, 96
_HICCUP = 1.5
"""A time beyond this many medians is another program's doing, not the step's."""


class StepPoint(NamedTuple):
    """One shape: a chunk of a prompt with its past, and decodes of equal context (the new token included)."""

    prefill_chunk: int
    kv_prefill: int
    n_decode: int
    kv_decode: int

    @property
    def num_tokens(self) -> int:
        """Rows of the step."""
        return self.prefill_chunk + self.n_decode


@dataclass(frozen=True, slots=True)
class ProfileLimits:
    """How large a step may be, as the engine that is to be predicted limits it."""

    max_num_batched_tokens: int
    max_num_seqs: int
    max_model_len: int
    num_blocks: int
    block_size: int


def grid(limits: ProfileLimits) -> list[StepPoint]:
    """Shapes to time: decodes alone, chunks alone, and both together, up to the limits."""
    budget, seats, longest = limits.max_num_batched_tokens, limits.max_num_seqs, limits.max_model_len
    chunks = _up_to(_CHUNKS, budget)
    contexts = [context for context in _CONTEXTS if context <= longest] or [longest]
    pasts = [past for past in _PASTS if past + chunks[-1] <= longest]
    points = [StepPoint(0, 0, n, context) for n in _up_to(_DECODES, min(seats, budget)) for context in contexts]
    beside = [context for context in _CONTEXTS_BESIDE_CHUNKS if context <= longest] or [longest]
    decodes = _up_to(_DECODES_BESIDE_CHUNKS, seats)
    for chunk in chunks:
        for past in pasts:
            points.append(StepPoint(chunk, past, 0, 0))
            points += [StepPoint(chunk, past, n, context) for n in decodes for context in beside]
    return points


def time_steps(
    executor: Executor,
    points: Sequence[StepPoint],
    limits: ProfileLimits,
    *,
    vocab_size: int,
    repeats: int = 5,
    on_point: Callable[[int, StepPoint, float], None] | None = None,
) -> dict[StepPoint, float]:
    """Mean seconds of each shape over `repeats` passes through all of them, after one that only warms up.

    A mean, since a run takes what its steps take together, and their times are skewed; hiccups are left out. In passes,
    a machine whose speed drifts is slow or fast for every shape alike. Tokens are random; sequences have blocks of
    their own as far as the pool goes, and share them beyond.

    Args:
        on_point: called after each step with its number among all of them, its shape and its seconds.

    Raises:
        ConfigError: fewer than one repeat.
    """
    if repeats < 1:
        raise ConfigError(f"A step must be timed at least once, not {repeats} times.")
    rng = Random(0)
    step_ids, released = count(), list[str]()
    seconds: dict[StepPoint, list[float]] = {point: [] for point in points}
    for index, point in enumerate((*points,) * (repeats + 1)):
        plan = _plan(point, next(step_ids), released, limits, vocab_size, rng)
        released = [request.request_id for request in plan.new]
        seconds[point].append(executor.collect(executor.submit(plan)).duration_s)
        if on_point is not None:
            on_point(index, point, seconds[point][-1])
    executor.collect(executor.submit(StepPlan(next(step_ids), (), (), (), (), released, 0)))
    return {point: _typical(times[1:]) for point, times in seconds.items()}


def host_seconds(make_engine: Callable[[TraceSource], Engine], vocab_size: int, block_size: int) -> float:
    """What the engine takes between two steps, on the mean of a short run of its own."""
    rng = Random(1)
    sampling = SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=_HOST_TOKENS)
    arrivals = []
    for index in range(_HOST_REQUESTS):
        content = TokenContent([rng.randrange(vocab_size) for _ in range(8)], block_size)
        arrivals.append((0.0, Arrival(Request(f"host-{index}", content, 8, sampling, 8 + _HOST_TOKENS))))
    engine = make_engine(TraceSource(arrivals))
    ends: list[tuple[float, float]] = []

    def listen(event: Event) -> None:
        if isinstance(event, StepFinished):
            ends.append((event.at, event.result.duration_s))

    engine.listeners.append(listen)
    for _ in engine.run():
        pass
    gaps = [at - before - duration_s for (before, _), (at, duration_s) in pairwise(ends)]
    return max(0.0, _typical(gaps))


def _typical(times: Sequence[float]) -> float:
    """The mean without hiccups."""
    bound = _HICCUP * abs(median(times))
    return fmean(time for time in times if time <= bound)


def write_steps(folder: Path, measured: Mapping[StepPoint, float], facts: Mapping[str, object]) -> Path:
    """Write the file that `--latency table:FOLDER` reads; `facts` go into its first line.

    Raises:
        ConfigError: the folder cannot be written.
    """
    path = folder / STEPS_FILE
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with path.open("w", encoding="utf-8", newline="") as file:
            file.write(f"# {json.dumps(dict(facts))}\n")
            writer = csv.writer(file)
            writer.writerow(STEP_COLUMNS)
            for point, seconds in measured.items():
                writer.writerow((*point, f"{seconds * 1e6:.1f}"))
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}.") from None
    return path


def _up_to(sizes: Sequence[int], limit: int) -> list[int]:
    """The sizes below the limit, and the limit itself."""
    return [*(size for size in sizes if size < limit), limit]


def _plan(
    point: StepPoint,
    step_id: int,
    released: Sequence[str],
    limits: ProfileLimits,
    vocab_size: int,
    rng: Random,
) -> StepPlan:
    blocks = _block_ids(limits)
    scheduled = [
        _item(f"step-{step_id}-{index}", point.kv_decode - 1, 1, blocks, limits, vocab_size, rng)
        for index in range(point.n_decode)
    ]
    if point.prefill_chunk:
        name = f"step-{step_id}-prompt"
        scheduled.append(_item(name, point.kv_prefill, point.prefill_chunk, blocks, limits, vocab_size, rng))
    requests = [item.request for item in scheduled]
    return StepPlan(step_id, scheduled, requests, (), (), list(released), point.num_tokens)


def _item(
    request_id: str,
    num_past: int,
    num_tokens: int,
    blocks: Iterator[int],
    limits: ProfileLimits,
    vocab_size: int,
    rng: Random,
) -> ScheduledRequest:
    length = num_past + num_tokens
    content = TokenContent([rng.randrange(vocab_size) for _ in range(length)], limits.block_size)
    sampling = SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=1)
    request = Request(request_id, content, length, sampling, limits.max_model_len + 1)
    table = [next(blocks) for _ in range(-(-length // limits.block_size))]
    return ScheduledRequest(request, num_tokens, num_past, 0, 0, table, True)


def _block_ids(limits: ProfileLimits) -> Iterator[int]:
    """Blocks of the pool in turn, without the null block."""
    while True:
        yield from range(1, limits.num_blocks)

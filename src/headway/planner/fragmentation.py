"""How much of a KV pool holds tokens: contiguous reservation against paging, on the same requests.

The pool is kept under pressure: requests wait in order and are admitted as soon as there is room; every running request
makes one token a step. Slots are then, as in the PagedAttention paper (Kwon et al. 2023), either

    used       a token's state
    reserved   empty now, filled before the request ends
    internal   given to a request that will never fill it
    external   free but of no use to the request that waits, or lost to the allocator's rounding

Shares are means over the steps in which a request waits, so that an idle pool does not count as waste.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

from headway.errors import ConfigError
from headway.planner.contiguous import Buddy
from headway.workload.trace import TraceRequest


@dataclass(frozen=True, slots=True)
class KVUse:
    """Mean shares of the pool; they add up to 1. `at_completion` is the share of its slots that a request has filled
    when it ends, over all requests."""

    policy: str
    used: float
    reserved: float
    internal: float
    external: float
    at_completion: float
    mean_running: float
    num_preemptions: int = 0
    shared: float = 0.0
    """Tokens that need no slot because an equal prefix has one, over the pool."""

    @property
    def of_allocated(self) -> float:
        """Used slots over slots that any request holds: what the allocator itself wastes, load aside."""
        held = self.used + self.reserved + self.internal
        return self.used / held if held else 0.0


class _Meter:
    """Adds up slot-steps while something waits."""

    def __init__(self, pool: int) -> None:
        self._pool = pool
        self._steps = 0.0
        self._sums: dict[str, float] = defaultdict(float)
        self.filled: int = 0
        self.held: int = 0

    def add(self, steps: float, **slots: float) -> None:
        """Count `steps` with these mean slots (and `running`)."""
        self._steps += steps
        for name, value in slots.items():
            self._sums[name] += value * steps

    def result(self, policy: str, num_preemptions: int = 0) -> KVUse:
        """Means over the steps counted."""
        steps = self._steps or 1.0
        share = {name: value / steps / self._pool for name, value in self._sums.items()}
        taken = share.get("used", 0.0) + share.get("reserved", 0.0) + share.get("internal", 0.0)
        return KVUse(
            policy=policy,
            used=share.get("used", 0.0),
            reserved=share.get("reserved", 0.0),
            internal=share.get("internal", 0.0),
            external=1.0 - taken,
            at_completion=self.filled / self.held if self.held else 0.0,
            mean_running=self._sums["running"] / steps,
            num_preemptions=num_preemptions,
            shared=share.get("shared", 0.0),
        )


def contiguous_use(requests: Sequence[TraceRequest], pool_tokens: int, max_model_len: int, reservation: str) -> KVUse:
    """Use under contiguous reservation from a buddy allocator, which hands out powers of two.

    Args:
        reservation: "max" (max_model_len each), "pow2" (the prompt, and the output's length rounded up to a power of
            two) or "oracle" (the final length, known in advance).

    Raises:
        ConfigError: a request is longer than max_model_len, or the pool cannot hold one.
    """
    rules: dict[str, Callable[[TraceRequest], int]] = {
        "max": lambda request: max_model_len,
        "pow2": lambda request: min(
            max_model_len, request.num_prompt_tokens + _power_of_two(request.num_output_tokens)
        ),
        "oracle": _final_tokens,
    }
    size_of = rules[reservation]
    _check(requests, pool_tokens, max_model_len, max(_power_of_two(size_of(request)) for request in requests))
    pool, meter = Buddy(pool_tokens), _Meter(pool_tokens)
    running: list[tuple[int, int, int, int, int]] = []  # end step, start, reserved size, final tokens, tokens at step 0
    now, next_request = 0, 0
    sizes = finals = bases = 0
    while next_request < len(requests) or running:
        while next_request < len(requests):
            request = requests[next_request]
            size, final = size_of(request), _final_tokens(request)
            start = pool.allocate(_power_of_two(size))
            if start is None:
                break
            base = request.num_prompt_tokens - now
            heapq.heappush(running, (now + request.num_output_tokens, start, size, final, base))
            sizes, finals, bases, next_request = sizes + size, finals + final, bases + base, next_request + 1
        end, start, size, final, base = heapq.heappop(running)
        if next_request < len(requests):
            count = len(running) + 1
            used = bases + count * (now + end) / 2
            meter.add(end - now, used=used, reserved=finals - used, internal=sizes - finals, running=count)
        now = end
        pool.free(start, _power_of_two(size))
        sizes, finals, bases = sizes - size, finals - final, bases - base
        meter.filled, meter.held = meter.filled + final, meter.held + size
    return meter.result(f"contiguous, {reservation}")


def _power_of_two(value: int) -> int:
    return 1 << (value - 1).bit_length()


def _final_tokens(request: TraceRequest) -> int:
    return request.num_prompt_tokens + request.num_output_tokens


@dataclass(slots=True)
class _Row:
    """A request on the paged pool. `shared_blocks` are held by key, `own_blocks` alone."""

    request: TraceRequest
    num_tokens: int
    final: int
    keys: tuple[Hashable, ...]
    own_blocks: int


class _PagedPool:
    """Counts blocks; blocks with equal keys are one block."""

    def __init__(self, num_blocks: int, block_size: int, sharing: bool) -> None:
        self.free = num_blocks
        self._block_size = block_size
        self._sharing = sharing
        self._holders: Counter[Hashable] = Counter()

    def admit(self, request: TraceRequest, num_tokens: int) -> _Row | None:
        """Blocks for a request that starts (or starts again) with `num_tokens`; None if they are not free."""
        keys = tuple(request.keys_at(self._block_size)) if self._sharing else ()
        new = sum(1 for key in keys if not self._holders[key])
        own = -(-num_tokens // self._block_size) - len(keys)
        if new + own > self.free:
            return None
        self.free -= new + own
        self._holders.update(keys)
        return _Row(request, num_tokens, _final_tokens(request), keys, own)

    def release(self, row: _Row) -> None:
        """Give a request's blocks back."""
        for key in row.keys:
            self._holders[key] -= 1
            if not self._holders[key]:
                del self._holders[key]
                self.free += 1
        self.free += row.own_blocks

    @property
    def num_keyed(self) -> int:
        """Blocks that are held by key."""
        return len(self._holders)


def paged_use(
    requests: Sequence[TraceRequest], pool_tokens: int, max_model_len: int, block_size: int, *, sharing: bool = False
) -> KVUse:
    """Use under paging: a block is taken when a request outgrows its last; the newest request gives way when none is
    free, and starts again later with all its tokens.

    Raises:
        ConfigError: a request is longer than max_model_len, or the pool cannot hold one.
    """
    longest = max(map(_final_tokens, requests))
    _check(requests, pool_tokens // block_size * block_size, max_model_len, -(-longest // block_size) * block_size)
    pool = _PagedPool(pool_tokens // block_size, block_size, sharing)
    meter = _Meter(pool_tokens)
    waiting = [(request, request.num_prompt_tokens) for request in reversed(requests)]
    rows: list[_Row] = []
    preemptions = 0
    while waiting or rows:
        while waiting:
            row = pool.admit(*waiting[-1])
            if row is None:
                break
            waiting.pop()
            rows.append(row)
        if waiting:
            _measure_paged(meter, rows, pool, block_size)
        preemptions += _grow(rows, pool, block_size, waiting, meter)
    name = f"paged, block {block_size}{', shared prefixes' if sharing else ''}"
    return meter.result(name, preemptions)


def _measure_paged(meter: _Meter, rows: Sequence[_Row], pool: _PagedPool, block_size: int) -> None:
    logical = sum(row.num_tokens for row in rows)
    doubled = sum(len(row.keys) for row in rows) - pool.num_keyed
    held = (sum(row.own_blocks for row in rows) + pool.num_keyed) * block_size
    used = logical - doubled * block_size
    later = sum(min(row.final, -(-row.num_tokens // block_size) * block_size) - row.num_tokens for row in rows)
    meter.add(
        1, used=used, reserved=later, internal=held - used - later, running=len(rows), shared=doubled * block_size
    )


def _grow(
    rows: list[_Row], pool: _PagedPool, block_size: int, waiting: list[tuple[TraceRequest, int]], meter: _Meter
) -> int:
    """One step: every row makes a token, finished rows leave, the newest give way if blocks run out."""
    preemptions, index = 0, 0
    while index < len(rows):
        row = rows[index]
        if row.num_tokens % block_size == 0 and row.num_tokens < row.final:
            while not pool.free:
                victim = rows.pop()
                pool.release(victim)
                waiting.append((victim.request, victim.num_tokens))
                preemptions += 1
                if victim is row:
                    break
            if index >= len(rows):
                break
            pool.free -= 1
            row.own_blocks += 1
        row.num_tokens += 1
        index += 1
    kept: list[_Row] = []
    for row in rows:
        if row.num_tokens >= row.final:
            meter.filled += row.final
            meter.held += (row.own_blocks + len(row.keys)) * block_size
            pool.release(row)
        else:
            kept.append(row)
    rows[:] = kept
    return preemptions


def _check(requests: Sequence[TraceRequest], pool_tokens: int, max_model_len: int, largest: int) -> None:
    longest = max(map(_final_tokens, requests))
    if longest > max_model_len:
        raise ConfigError(
            f"A request of {longest} tokens is longer than max_model_len {max_model_len}.",
            hint=f"Give --max-model-len {longest} or more.",
        )
    if largest > pool_tokens:
        raise ConfigError(f"A pool of {pool_tokens} tokens cannot hold one request of {largest}.", hint="Give more.")

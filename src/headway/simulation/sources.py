"""Where a simulation's requests come from: a stream by time, a stream taken by clients, or loops of several kinds."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from random import Random
from threading import Event
from typing import Protocol

from headway.config import EngineConfig
from headway.core.arrivals import Arrival, ArrivalSource, Item
from headway.core.request import Request, SyntheticContent
from headway.core.sampling import SamplingParams
from headway.errors import WorkloadError
from headway.workload import Length, TraceRequest, parse_length


@dataclass(frozen=True, slots=True)
class ClientGroup:
    """Clients that send requests of one kind, each its next when its last has ended."""

    name: str
    concurrency: int
    prompt: Length
    output: Length


def parse_clients(text: str) -> list[ClientGroup]:
    """Read `4x128/512,8x16384/1`: clients × prompt length / output length, each length as `parse_length` takes it.

    Raises:
        WorkloadError: not that.
    """
    groups = []
    for part in text.split(","):
        count, _, lengths = part.strip().partition("x")
        prompt, _, output = lengths.partition("/")
        if not count.isdigit() or int(count) < 1 or not output:
            raise WorkloadError(f"{part!r} is not a group of clients.", hint="As in 4x128/512,8x16384/1.")
        groups.append(ClientGroup(part.strip(), int(count), parse_length(prompt), parse_length(output)))
    return groups


class RequestSource(ArrivalSource, Protocol):
    """An arrival source that learns of ends."""

    num_skipped: int
    """Requests left out because they could never be held."""

    def release(self, ended: Sequence[Request]) -> None:
        """These requests have ended; in a closed loop their clients are free again."""


class RequestMaker:
    """Makes requests of lengths and block identities, which end at exactly their output length."""

    def __init__(self, config: EngineConfig, *, skip_too_long: bool = False) -> None:
        self._max_model_len = config.scheduler.max_model_len
        self._block_size = config.cache.block_size
        self._pool_tokens = (config.cache.num_blocks - 1) * config.cache.block_size
        self._skip = skip_too_long

    def accepts(self, item: TraceRequest, number: int) -> bool:
        """Whether the deployment can hold this request; False only where such are to be left out.

        Raises:
            WorkloadError: it cannot; names the row and the columns.
        """
        num_tokens = item.num_prompt_tokens + item.num_output_tokens
        limit = min(self._max_model_len, self._pool_tokens)
        if num_tokens <= limit:
            return True
        if self._skip:
            return False
        holder = "max_model_len" if limit == self._max_model_len else "the KV cache"
        where = f"Row {item.row}" if item.row else f"Request {number}"
        raise WorkloadError(
            f"{where} of the workload: num_prompt_tokens {item.num_prompt_tokens} + num_output_tokens "
            f"{item.num_output_tokens} = {num_tokens} tokens, more than {holder} of {limit}.",
            hint="Shorten requests with --length-divisor, raise --max-model-len or the blocks, or --skip-too-long.",
        )

    def request(self, item: TraceRequest, request_id: str, at: float) -> Request:
        """A request that arrives at that instant."""
        keys = item.keys_at(self._block_size) if item.block_keys else ()
        content, sampling = SyntheticContent(request_id, keys), _sampling(item.num_output_tokens)
        return Request(request_id, content, item.num_prompt_tokens, sampling, self._max_model_len, arrived_at=at)


@lru_cache(maxsize=65536)
def _sampling(num_output_tokens: int) -> SamplingParams:
    return SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=num_output_tokens)


class StreamSource:
    """A stream of requests; made when they are due, and kept by nobody afterwards.

    Args:
        concurrency: closed loop of that many clients, which ignore the arrivals; None is an open loop.
        is_paced: closed loop whose requests also wait for their own instants.
    """

    wake: Event | None = None

    def __init__(
        self, make: RequestMaker, requests: Iterable[TraceRequest], concurrency: int | None, *, is_paced: bool = False
    ) -> None:
        self._make = make
        self._keeps_time = concurrency is None or is_paced
        self._pending: Iterator[TraceRequest] = iter(requests)
        self._num_free = concurrency
        self._named: set[str] = set()
        """Names from the trace of the requests under way: some traces name conversations, not requests."""
        self._index = 0
        self.num_skipped = 0
        self._next: TraceRequest | None = None
        self._advance()

    def _advance(self) -> None:
        """Find the next request that can be held."""
        for item in self._pending:
            self._index += 1
            if self._make.accepts(item, self._index):
                self._next = item
                return
            self.num_skipped += 1
        self._next = None

    def release(self, ended: Sequence[Request]) -> None:
        """See `RequestSource.release`."""
        if self._num_free is not None:
            self._num_free += len(ended)
        if self._named:
            self._named.difference_update(request.request_id for request in ended)

    def _name(self, item: TraceRequest) -> str:
        """The trace's own name, told apart by its row while another request of that name is under way."""
        if not item.request_id:
            return f"request-{self._index - 1}"
        name = item.request_id if item.request_id not in self._named else f"{item.request_id}#{self._index}"
        self._named.add(name)
        return name

    def due(self, now: float, step: int) -> Sequence[Item]:
        """See `ArrivalSource.due`."""
        item = self._next
        if item is None or (self._keeps_time and item.arrival_s > now) or self._num_free == 0:
            return ()
        items: list[Item] = []
        while item is not None and not (self._keeps_time and item.arrival_s > now) and self._num_free != 0:
            at = item.arrival_s if self._num_free is None else now
            items.append(Arrival(self._make.request(item, self._name(item), at)))
            if self._num_free is not None:
                self._num_free -= 1
            self._advance()
            item = self._next
        return items

    def next_at(self) -> float | None:
        """See `ArrivalSource.next_at`."""
        if self._next is None or self._num_free == 0:
            return None
        return self._next.arrival_s if self._keeps_time else 0.0

    @property
    def exhausted(self) -> bool:
        """See `ArrivalSource.exhausted`."""
        return self._next is None


class ClientLoops:
    """Closed loops of several kinds side by side, until so many requests in all have been sent."""

    wake: Event | None = None

    def __init__(self, make: RequestMaker, groups: Sequence[ClientGroup], num_requests: int, seed: int) -> None:
        self._make = make
        self._groups = groups
        self._free = [group.concurrency for group in groups]
        self._dice = [Random(f"{seed}/{index}") for index in range(len(groups))]
        self._group_of: dict[str, int] = {}
        self._num_left = num_requests
        self.num_skipped = 0

    def release(self, ended: Sequence[Request]) -> None:
        """See `RequestSource.release`."""
        for request in ended:
            self._free[self._group_of.pop(request.request_id)] += 1

    def due(self, now: float, step: int) -> Sequence[Item]:
        """See `ArrivalSource.due`."""
        items: list[Item] = []
        for index, group in enumerate(self._groups):
            while self._free[index] and self._num_left:
                self._free[index] -= 1
                self._num_left -= 1
                dice = self._dice[index]
                item = TraceRequest(now, group.prompt.draw(dice), group.output.draw(dice))
                request_id = f"{group.name}#{self._num_left}"
                self._make.accepts(item, 0)
                self._group_of[request_id] = index
                items.append(Arrival(self._make.request(item, request_id, now)))
        return items

    def next_at(self) -> float | None:
        """See `ArrivalSource.next_at`."""
        return 0.0 if self._num_left and any(self._free) else None

    @property
    def exhausted(self) -> bool:
        """See `ArrivalSource.exhausted`."""
        return not self._num_left


class ConversationLoops:
    """Clients that each hold one conversation after another: a turn is sent when the one before has been answered.

    A conversation ends early with a turn that the deployment could never hold, where such are left out.
    """

    wake: Event | None = None

    def __init__(
        self,
        make: RequestMaker,
        conversations: Iterator[Iterator[TraceRequest]],
        concurrency: int,
        num_requests: int,
    ) -> None:
        self._make = make
        self._new = conversations
        self._num_left = num_requests
        self._ready: deque[tuple[TraceRequest, Iterator[TraceRequest]]] = deque()
        """What free clients send next, each with the rest of its conversation."""
        self._held: dict[str, Iterator[TraceRequest]] = {}
        self._num_sent = 0
        self.num_skipped = 0
        for _ in range(concurrency):
            self._go_on(iter(()))

    def _go_on(self, turns: Iterator[TraceRequest]) -> None:
        """A client's next turn: of its conversation, or the first of another; it leaves if there is none."""
        while self._num_left:
            item = next(turns, None)
            if item is not None and self._make.accepts(item, self._num_sent + len(self._ready) + 1):
                self._num_left -= 1
                self._ready.append((item, turns))
                return
            self.num_skipped += item is not None
            another = next(self._new, None)
            if another is None:
                return
            turns = another

    def release(self, ended: Sequence[Request]) -> None:
        """See `RequestSource.release`."""
        for request in ended:
            self._go_on(self._held.pop(request.request_id))

    def due(self, now: float, step: int) -> Sequence[Item]:
        """See `ArrivalSource.due`."""
        items: list[Item] = []
        while self._ready:
            item, turns = self._ready.popleft()
            request_id = f"request-{self._num_sent}"
            self._num_sent += 1
            self._held[request_id] = turns
            items.append(Arrival(self._make.request(item, request_id, now)))
        return items

    def next_at(self) -> float | None:
        """See `ArrivalSource.next_at`."""
        return 0.0 if self._ready else None

    @property
    def exhausted(self) -> bool:
        """See `ArrivalSource.exhausted`."""
        return not self._ready and not self._held

"""The waiting queue: first come first served, or by priority."""

from __future__ import annotations

import heapq
import itertools
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from headway.core.request import Request


class WaitingQueue(Protocol):
    """Requests that wait for admission, in the order in which they will be considered."""

    def add(self, request: Request) -> None:
        """A newcomer joins."""

    def put_back(self, request: Request) -> None:
        """A preempted or deferred request returns: ahead of everybody, where the order allows it."""

    def peek(self) -> Request:
        """The request to consider next; the queue must not be empty."""

    def pop(self) -> Request:
        """Take that request out."""

    def remove(self, requests: Iterable[Request]) -> None:
        """Take the given requests out, wherever they stand."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Request]: ...


class FcfsQueue:
    """First come, first served; those put back stand at the very front.

    Taking a request out costs the same wherever it stands and however many wait: a crowd may hang up all at once.
    """

    def __init__(self) -> None:
        self._requests: OrderedDict[Request, None] = OrderedDict()

    def add(self, request: Request) -> None:
        """See `WaitingQueue`."""
        self._requests[request] = None

    def put_back(self, request: Request) -> None:
        """See `WaitingQueue`."""
        self._requests[request] = None
        self._requests.move_to_end(request, last=False)

    def peek(self) -> Request:
        """See `WaitingQueue`."""
        return next(iter(self._requests))

    def pop(self) -> Request:
        """See `WaitingQueue`."""
        return self._requests.popitem(last=False)[0]

    def remove(self, requests: Iterable[Request]) -> None:
        """See `WaitingQueue`."""
        for request in requests:
            self._requests.pop(request, None)

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests)


def _urgency(request: Request) -> tuple[float, float]:
    return request.priority, request.arrived_at


_Entry = tuple[tuple[float, ...], str, int, Request]
"""Key, id, a running number that keeps requests from being compared, and the request."""


class PriorityQueue:
    """Lowest (key, id) first; being put back gives no advantage.

    Args:
        key: what a request is sorted by while it waits; must not change meanwhile. Default: (priority, arrival).
    """

    def __init__(self, key: Callable[[Request], tuple[float, ...]] = _urgency) -> None:
        self._key = key
        self._entries: dict[Request, _Entry] = {}
        self._heap: list[_Entry] = []
        """Also entries of requests that were taken out, until they come up or are the most."""
        self._numbers = itertools.count()

    def add(self, request: Request) -> None:
        """See `WaitingQueue`."""
        entry = self._key(request), request.request_id, next(self._numbers), request
        self._entries[request] = entry
        heapq.heappush(self._heap, entry)

    put_back = add

    def peek(self) -> Request:
        """See `WaitingQueue`."""
        while True:
            entry = self._heap[0]
            if self._entries.get(entry[-1]) is entry:
                return entry[-1]
            heapq.heappop(self._heap)

    def pop(self) -> Request:
        """See `WaitingQueue`."""
        request = self.peek()
        heapq.heappop(self._heap)
        del self._entries[request]
        return request

    def remove(self, requests: Iterable[Request]) -> None:
        """See `WaitingQueue`."""
        for request in requests:
            self._entries.pop(request, None)
        if len(self._heap) > 2 * len(self._entries):
            self._heap = list(self._entries.values())
            heapq.heapify(self._heap)

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Request]:
        return (entry[-1] for entry in sorted(self._entries.values()))


def make_queue(scheduling_policy: str) -> WaitingQueue:
    """The queue of a scheduling policy, `fcfs` or `priority`."""
    return PriorityQueue() if scheduling_policy == "priority" else FcfsQueue()

"""The waiting queue: first come first served, or by priority."""

from __future__ import annotations

import heapq
from collections import deque
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
    """First come, first served; those put back stand at the very front."""

    def __init__(self) -> None:
        self._requests: deque[Request] = deque()

    def add(self, request: Request) -> None:
        """See `WaitingQueue`."""
        self._requests.append(request)

    def put_back(self, request: Request) -> None:
        """See `WaitingQueue`."""
        self._requests.appendleft(request)

    def peek(self) -> Request:
        """See `WaitingQueue`."""
        return self._requests[0]

    def pop(self) -> Request:
        """See `WaitingQueue`."""
        return self._requests.popleft()

    def remove(self, requests: Iterable[Request]) -> None:
        """See `WaitingQueue`."""
        gone = set(requests)
        self._requests = deque(request for request in self._requests if request not in gone)

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests)


def _urgency(request: Request) -> tuple[float, float]:
    return request.priority, request.arrived_at


class PriorityQueue:
    """Lowest (key, id) first; being put back gives no advantage.

    Args:
        key: what a request is sorted by while it waits; must not change meanwhile. Default: (priority, arrival).
    """

    def __init__(self, key: Callable[[Request], tuple[float, ...]] = _urgency) -> None:
        self._key = key
        self._heap: list[tuple[tuple[float, ...], str, Request]] = []

    def add(self, request: Request) -> None:
        """See `WaitingQueue`."""
        heapq.heappush(self._heap, (self._key(request), request.request_id, request))

    put_back = add

    def peek(self) -> Request:
        """See `WaitingQueue`."""
        return self._heap[0][-1]

    def pop(self) -> Request:
        """See `WaitingQueue`."""
        return heapq.heappop(self._heap)[-1]

    def remove(self, requests: Iterable[Request]) -> None:
        """See `WaitingQueue`."""
        gone = set(requests)
        self._heap = [entry for entry in self._heap if entry[-1] not in gone]
        heapq.heapify(self._heap)

    def __len__(self) -> int:
        return len(self._heap)

    def __iter__(self) -> Iterator[Request]:
        return (entry[-1] for entry in sorted(self._heap, key=lambda entry: entry[:2]))


def make_queue(scheduling_policy: str) -> WaitingQueue:
    """The queue of a scheduling policy, `fcfs` or `priority`."""
    return PriorityQueue() if scheduling_policy == "priority" else FcfsQueue()

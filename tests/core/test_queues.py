"""The waiting queues against lists that do the same the slow way."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.queues import make_queue
from headway.core.request import Request, SyntheticContent
from headway.core.sampling import SamplingParams

Actions = list[tuple[str, int]]


def _request(index: int) -> Request:
    """Few ids and arrivals, so that requests tie in all that they are sorted by."""
    name = f"r{index % 3}"
    content = SyntheticContent(name)
    return Request(name, content, 8, SamplingParams(), 64, arrived_at=float(index % 2), priority=index % 2)


def _first_come(waiting: Sequence[Request]) -> list[Request]:
    return list(waiting)


def _by_priority(waiting: Sequence[Request]) -> list[Request]:
    return sorted(waiting, key=lambda request: (request.priority, request.arrived_at, request.request_id))


_ACTIONS = st.lists(st.tuples(st.sampled_from(["add", "put_back", "pop", "remove", "remove_all"]), st.integers(0, 11)))


@pytest.mark.parametrize(("policy", "order"), [("fcfs", _first_come), ("priority", _by_priority)])
@given(actions=_ACTIONS)
def test_a_queue_is_a_list_in_its_order(
    policy: str, order: Callable[[Sequence[Request]], list[Request]], actions: Actions
) -> None:
    """Whatever is added, put back, taken from the front or out of the middle; ids come back after they left."""
    queue, waiting = make_queue(policy), list[Request]()
    known = [_request(index) for index in range(12)]
    for action, index in actions:
        request = known[index]
        if action == "pop":
            if waiting:
                assert queue.peek() is waiting[0]
                assert queue.pop() is waiting.pop(0)
        elif action == "remove":
            queue.remove([request])
            waiting = [one for one in waiting if one is not request]
        elif action == "remove_all":
            queue.remove(known[index:])
            waiting = [one for one in waiting if one not in known[index:]]
        elif not any(one.request_id == request.request_id for one in waiting):
            getattr(queue, action)(request)
            waiting = order([request, *waiting] if action == "put_back" else [*waiting, request])
        assert list(queue) == waiting and len(queue) == len(waiting) and bool(queue) == bool(waiting)
